//! The record of an instance that has outlived its supervisor.

use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::Window;
use abi::dev::{self, Status};
use abi::window::{KLOG_BYTES, Orders, RingHeader, STREAM_BYTES};
use fs::Result;
use guard::partition::{Note, Partition};
use guard::timer;

use super::exec::Programs;
use super::usage::Account;
use super::{Instance, KLOG, OUTPUTS, OnHang};
use crate::label::Label;
use crate::network::Lease;
use crate::peers::Names;

impl Instance {
    /// A record around a partition that this supervisor has taken over; `misfit` is why it is to
    /// be ended, if so.
    ///
    /// # Errors
    /// `ENOMEM`: no memory for its logs. The partition is dropped.
    #[inline(never)]
    pub(crate) fn adopted(
        label: Label,
        partition: Partition,
        mut status: Status,
        note: &Note,
        misfit: Option<&'static str>,
        attached: (Option<Lease>, Names),
    ) -> Result<Arc<Self>> {
        let on_hang = match (note.unwatched, note.stop_when_hung) {
            (true, _) => OnHang::Ignore,
            (false, true) => OnHang::Stop,
            (false, false) => OnHang::Report,
        };
        let window = partition.window();
        status.start_to_user_ns = start_to_user_ns(window, note.started_ns);
        if Orders::asks_to_pause(window.orders.pause.load(Ordering::Relaxed)) {
            status.paused = dev::PAUSED_ASKED;
        }
        let positions = output_positions(window);
        let (stdin, control) = (
            window.stdin.written.load(Ordering::Acquire),
            window.control_in.written.load(Ordering::Acquire),
        );
        let programs = Programs::adopted(window);
        let account = Account::adopted(window, &status);
        let instance = Self::new(label, partition, status, on_hang, attached)?;
        {
            let mut record = instance.record.lock();
            record.positions = positions;
            (record.stdin_position, record.control_position) = (stdin, control);
            record.programs = programs;
            record.account = account;
            record.halt_reason =
                misfit.map(|why| String::from("its supervisor has started again, and ") + why);
        }
        if misfit.is_some() {
            instance.halt_wanted.store(true, Ordering::Release);
        }
        // Its writers may wait for room, and it for its further messages.
        instance.ring();
        Ok(instance)
    }
}

/// Nanoseconds from the start to the first program, by the clock that both kernels have.
fn start_to_user_ns(window: &Window, started_ns: u64) -> u64 {
    let first = window.status.first_user_tsc.load(Ordering::Relaxed);
    if first == 0 {
        return 0;
    }
    let since = timer::ticks_to_ns(timer::tsc().saturating_sub(first));
    let began = timer::wall_ns().saturating_sub(since);
    began.saturating_sub(started_ns).max(1)
}

/// Positions to go on at in the rings of an instance's outputs: behind what was taken out of them,
/// and at the oldest line of its kernel's log. By its own word, as the private positions are gone:
/// one that lies loses its own output.
fn output_positions(window: &Window) -> [u64; OUTPUTS] {
    let unread = |ring: &RingHeader| {
        let (read, written) = (
            ring.read.load(Ordering::Acquire),
            ring.written.load(Ordering::Acquire),
        );
        match written.wrapping_sub(read) <= STREAM_BYTES as u64 {
            true => read,
            false => written,
        }
    };
    let mut positions = [unread(&window.stdout), unread(&window.stderr), 0];
    let logged = window.klog.written.load(Ordering::Acquire);
    positions[KLOG] = logged.saturating_sub(KLOG_BYTES as u64);
    positions
}

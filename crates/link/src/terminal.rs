//! The instance's console as a terminal (`skerry run -t`): the line discipline here, its line the
//! standard streams' rings.

use alloc::sync::Arc;

use fs::poll::PollTable;
use fs::tty::{self, Termios, Tty, TtyDriver};
use fs::{DeviceId, Result};

use crate::{CONSOLE, streams};

/// `/dev/hvc0`, the number Linux gives hypervisor consoles.
const HVC: DeviceId = DeviceId::new(229, 0);

/// The driver of `/dev/hvc0`: its line is the standard streams' rings.
struct HvcDriver;

impl TtyDriver for HvcDriver {
    fn write(&self, bytes: &[u8]) -> usize {
        streams::output().push(bytes)
    }

    fn wait_writable(&self) -> Result<()> {
        let output = streams::output();
        output.writable.wait(|| output.has_room().then_some(()))
    }

    fn writable(&self, table: Option<&mut PollTable>) -> bool {
        let output = streams::output();
        if let Some(table) = table {
            table.poll_wait(&output.writable);
        }
        output.has_room()
    }

    fn resume(&self) {
        receive_input();
    }
}

/// The terminal of this instance, made at the first call.
pub fn console() -> &'static Arc<Tty> {
    let tty = CONSOLE.call_once(|| {
        let tty = Tty::new("hvc0", HVC, Arc::new(HvcDriver), Termios::default());
        if let Err(error) = tty::register(&tty) {
            log::error!("no /dev/hvc0: {error}");
        }
        tty::set_console(tty.clone());
        tty
    });
    // The thread that feeds it may sleep already, and the supervisor rings only when it was asked
    // to.
    crate::DOORBELL.set();
    tty
}

/// Passes standard input to the terminal, if there is one, as far as it has room.
pub(crate) fn receive_input() {
    let Some(tty) = CONSOLE.get() else { return };
    let mut pending = PENDING_INPUT.lock();
    loop {
        while !pending.is_empty() {
            let taken = tty.receive(&pending);
            pending.drain(..taken);
            if taken == 0 {
                // It calls `resume` when there is room.
                return;
            }
        }
        let mut buf = [0; 256];
        match streams::input().pop(&mut buf) {
            Some(0) => return tty.hang_up(),
            Some(count) => pending.extend_from_slice(&buf[..count]),
            None => return,
        }
    }
}

/// Input that the terminal had no room for.
static PENDING_INPUT: task::Mutex<alloc::vec::Vec<u8>> = task::Mutex::new(alloc::vec::Vec::new());

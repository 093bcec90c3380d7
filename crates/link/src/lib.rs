//! An instance's end of its window: standard streams, control messages, the doorbell.
//!
//! The supervisor's doorbell wakes one thread, which reads control messages and tells readers and
//! writers of the streams to look again, and one that follows the descriptor. Nothing in the
//! window is believed beyond its own bounds
//! (`ring`).
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod exec;
mod exec_terminal;
mod peers;
mod streams;
mod terminal;

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::layout::PAGE_SIZE;
use abi::live::Refusal;
use abi::msg;
use abi::window::Window;
pub use exec::{ExecFault, ExecProgram, ExecRequest, ExecStdio, RunProgram};
use fs::tty::{Tty, WinSize};
use guard::device::FunctionPlace;
use guard::instance::{self, Adopters, Epoch};
pub use peers::on_peer_doorbell;
use ring::MessageReader;
pub use streams::{stderr, stdin, stdout};
use task::{Event, NoMemory, Once};
pub use terminal::console;

/// Handlers of the supervisor's control messages, set by the crate that knows processes.
#[derive(Clone, Copy)]
pub struct ControlHandlers {
    /// Deliver this signal to the first program.
    pub signal: fn(u32),
    /// Ends all programs of the instance.
    pub shutdown: fn(),
    /// Takes in that there are more or fewer CPUs, as the scheduler knows.
    pub cpus_changed: fn(),
    /// Takes in that there is more or less memory: so many bytes.
    pub memory_changed: fn(u64),
    /// Moves pages out of memory that is to leave, as `guard::instance::Adopters` has it.
    pub move_pages: fn(),
    /// Writes back what caches hold, as `guard::instance::Adopters` has it.
    pub write_back: fn(),
    /// Takes a function that has come, as `guard::instance::Adopters` has it.
    pub add_function: fn(&FunctionPlace) -> bool,
    /// Takes a function from its driver, as `guard::instance::Adopters` has it.
    pub remove_function: fn(u32, bool) -> Result<(), Refusal>,
    /// Number of threads of programs, and memory in use in bytes.
    pub usage: fn() -> (u32, u64),
    /// Runs a program beside the first one.
    pub exec: RunProgram,
}

static DOORBELL: Event = Event::new();
/// The doorbell has rung: the descriptor may have changed.
static DESCRIPTOR: Event = Event::new();
static CONSOLE: Once<Arc<Tty>> = Once::new();

/// Takes in that the supervisor has rung. To be called by the handler of the doorbell, also before
/// anybody listens.
pub fn on_doorbell() {
    DOORBELL.set();
}

/// Obeys what the supervisor has said already (the size of the terminal, say), and starts the
/// threads that listen to it.
///
/// # Errors
/// There is no memory for them.
pub fn start(hooks: ControlHandlers) -> Result<(), NoMemory> {
    let window = guard::instance::window();
    let mut messages = MessageReader::new(&window.control_in, &window.control_in_area);
    // It may have been rung before there was anybody to hear it.
    handle_messages(&mut messages, &hooks);
    peers::start()?;
    task::spawn("descriptor", None, move || {
        loop {
            follow_descriptor(&hooks);
            DESCRIPTOR.wait();
        }
    })?;
    task::spawn("link", None, move || control_thread(&mut messages, &hooks)).map(drop)
}

/// Adopts what is new in the dynamic part of the descriptor, and tells of it. In a thread of its
/// own: a CPU that leaves may keep it waiting, and signals and streams do not wait for that.
fn follow_descriptor(hooks: &ControlHandlers) {
    let adopters = Adopters {
        prepare_cpu: task::prepare_cpu,
        cpus_added: task::cpus_added,
        drain_cpu: task::drain_cpu,
        cpus_removed: task::cpus_removed,
        move_pages: hooks.move_pages,
        write_back: hooks.write_back,
        add_function: hooks.add_function,
        remove_function: hooks.remove_function,
    };
    let (cpus, frames) = (task::cpu_count(), guard::mem::total_frames());
    match instance::adopt_epoch(&adopters) {
        Epoch::Same => {}
        Epoch::Torn => log::warn!("the descriptor is being written, or was left so: kept the old"),
        Epoch::Taken { epoch, totals } => {
            let bytes = totals.frames * PAGE_SIZE as u64;
            let mib = bytes >> 20;
            log::info!("epoch {epoch}: {} CPUs, {mib} MiB of memory", totals.cpus);
            peers::follow();
            if totals.cpus != cpus {
                (hooks.cpus_changed)();
            }
            if totals.frames != frames {
                (hooks.memory_changed)(bytes);
            }
        }
        Epoch::Refused { epoch, refusal } => log::error!("epoch {epoch} is refused: {refusal}"),
    }
}

/// Handles all control messages that have come.
fn handle_messages(messages: &mut MessageReader<'_>, hooks: &ControlHandlers) {
    while let Some(message) = messages.receive() {
        handle_message(&message, hooks);
    }
}

/// Main function of the thread that the doorbell wakes: messages, streams, terminal.
fn control_thread(messages: &mut MessageReader<'_>, hooks: &ControlHandlers) {
    loop {
        DESCRIPTOR.set();
        handle_messages(messages, hooks);
        answer_question(hooks);
        streams::notify_streams();
        exec::look_at_slots(hooks.exec);
        terminal::receive_input();
        DOORBELL.wait();
    }
}

/// Tells what only this instance knows of its use of memory, if the supervisor has asked.
fn answer_question(hooks: &ControlHandlers) {
    let (asked, report) = (&window().orders.report, &window().report);
    let question = asked.load(Ordering::Acquire);
    if question == report.answered.load(Ordering::Relaxed) {
        return;
    }
    let (threads, used) = (hooks.usage)();
    report.threads.store(threads, Ordering::Relaxed);
    report.used.store(used, Ordering::Relaxed);
    report.answered.store(question, Ordering::Release);
}

/// Handles a control message of the supervisor.
fn handle_message(message: &abi::Message, hooks: &ControlHandlers) {
    match message.kind {
        msg::SIGNAL => (hooks.signal)(message.args[0] as u32),
        msg::SHUTDOWN => (hooks.shutdown)(),
        msg::EXEC_SIGNAL => {
            let [number, signal, winsize, ..] = message.args.map(|value| value as u32);
            match signal {
                0 => exec::resize(number, winsize),
                signal => exec::signal(number, signal),
            }
        }
        msg::WINSIZE => {
            if let Some(tty) = CONSOLE.get() {
                let side = |value: u64| u16::try_from(value).unwrap_or(u16::MAX);
                tty.set_winsize(WinSize {
                    rows: side(message.args[0]),
                    cols: side(message.args[1]),
                    ..WinSize::default()
                });
            }
        }
        kind => log::debug!("the supervisor sent a message of unknown kind {kind}"),
    }
}

fn window() -> &'static Window {
    guard::instance::window()
}

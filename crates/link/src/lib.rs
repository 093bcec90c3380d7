//! An instance's end of its window: standard streams, control messages, the doorbell.
//!
//! The supervisor's doorbell wakes one thread, which reads control messages and tells readers and
//! writers of the streams to look again. Nothing in the window is believed beyond its own bounds
//! (`ring`).
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod streams;
mod terminal;

use alloc::sync::Arc;

use abi::msg;
use abi::window::Window;
use fs::tty::{Tty, WinSize};
use guard::BootToken;
use ring::MessageReader;
pub use streams::{stderr, stdin, stdout};
use task::{Event, NoMemory, Once};
pub use terminal::console;

/// Handlers of control messages, set by who knows processes.
#[derive(Clone, Copy)]
pub struct Hooks {
    /// Deliver this signal to the first program.
    pub signal: fn(u32),
    /// End all programs.
    pub shutdown: fn(),
}

static DOORBELL: Event = Event::new();
static CONSOLE: Once<Arc<Tty>> = Once::new();

fn on_doorbell() {
    DOORBELL.set();
}

/// Obeys what the supervisor has said already (the size of the terminal, say), and starts the
/// thread that listens to it.
///
/// # Errors
/// There is no memory for it.
pub fn start(boot: &BootToken, hooks: Hooks) -> Result<(), NoMemory> {
    guard::irq::set_doorbell_handler(boot, on_doorbell);
    let window = guard::instance::window();
    let mut messages = MessageReader::new(&window.control_in, &window.control_in_area);
    obey_all(&mut messages, &hooks);
    task::spawn("link", None, move || listen(&mut messages, &hooks)).map(drop)
}

fn obey_all(messages: &mut MessageReader<'_>, hooks: &Hooks) {
    while let Some(message) = messages.receive() {
        obey(&message, hooks);
    }
}

fn listen(messages: &mut MessageReader<'_>, hooks: &Hooks) {
    loop {
        obey_all(messages, hooks);
        streams::look_again();
        terminal::feed();
        DOORBELL.wait();
    }
}

fn obey(message: &abi::Message, hooks: &Hooks) {
    match message.kind {
        msg::SIGNAL => (hooks.signal)(message.args[0] as u32),
        msg::SHUTDOWN => (hooks.shutdown)(),
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

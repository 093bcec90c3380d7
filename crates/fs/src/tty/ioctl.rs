//! What `ioctl(2)` does with a terminal: `ioctl_tty(2)`.

use alloc::sync::Arc;

use abi::errno::Errno;
use linux_raw_sys::{general as sys, ioctl};

use super::pty::PacketStatus;
use super::termios::Termio;
use super::{Termios, Termios2, Tty, WinSize, job_control};
use crate::Result;
use crate::ioctl::IoctlRequest;

/// Moment at which `tcsetattr(3)` changes the settings, its `optional_actions`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TermiosAction {
    /// Now (`TCSANOW`).
    Now,
    /// When the output has left (`TCSADRAIN`).
    Drain,
    /// When the output has left; input that was not read is discarded (`TCSAFLUSH`).
    Flush,
}

impl Tty {
    pub(super) fn handle_ioctl(self: &Arc<Self>, request: &IoctlRequest<'_>) -> Result<usize> {
        match request.command {
            ioctl::TCGETS => request.write(&self.termios())?,
            ioctl::TCGETS2 => {
                let termios = self.termios();
                request.write(&Termios2 {
                    termios,
                    ispeed: termios.speed(),
                    ospeed: termios.speed(),
                })?;
            }
            ioctl::TCGETA => request.write(&Termio::from(&self.termios()))?,
            ioctl::TCSETA => self.set_termios(
                request.read::<Termio>()?.change(self.termios()),
                TermiosAction::Now,
            )?,
            ioctl::TCSETAW => self.set_termios(
                request.read::<Termio>()?.change(self.termios()),
                TermiosAction::Drain,
            )?,
            ioctl::TCSETAF => {
                self.set_termios(
                    request.read::<Termio>()?.change(self.termios()),
                    TermiosAction::Flush,
                )?;
            }
            ioctl::TIOCGLCKTRMIOS => request.write(&self.state.lock().locked)?,
            ioctl::TIOCSLCKTRMIOS if request.caller.privileged() => {
                let locked = request.read()?;
                self.state.lock().locked = locked;
            }
            ioctl::TCSETS => self.set_termios(request.read()?, TermiosAction::Now)?,
            ioctl::TCSETSW => self.set_termios(request.read()?, TermiosAction::Drain)?,
            ioctl::TCSETSF => self.set_termios(request.read()?, TermiosAction::Flush)?,
            ioctl::TCSETS2 => {
                self.set_termios(request.read::<Termios2>()?.termios, TermiosAction::Now)?;
            }
            ioctl::TCSETSW2 => {
                self.set_termios(request.read::<Termios2>()?.termios, TermiosAction::Drain)?;
            }
            ioctl::TCSETSF2 => {
                self.set_termios(request.read::<Termios2>()?.termios, TermiosAction::Flush)?;
            }
            ioctl::TIOCGWINSZ => request.write(&self.winsize())?,
            ioctl::TIOCSWINSZ => self.set_winsize(request.read::<WinSize>()?),
            ioctl::TIOCGPGRP => {
                self.require_controlling()?;
                // Without a foreground group Linux shows one that cannot exist.
                request.write(&self.foreground().map_or(0, u32::cast_signed))?;
            }
            ioctl::TIOCSPGRP => {
                self.check_foreground(sys::SIGTTOU)?;
                self.set_foreground(request.read()?)?;
            }
            ioctl::TIOCGSID => {
                self.require_controlling()?;
                request.write(&self.session().ok_or(Errno::ENOTTY)?.cast_signed())?;
            }
            ioctl::TIOCSCTTY => {
                self.set_controlling(request.arg == 1 && request.caller.privileged())?;
            }
            ioctl::TIOCNOTTY => self.disassociate()?,
            ioctl::FIONREAD => {
                let available = {
                    let state = self.state.lock();
                    state.input.available(state.input_mode())
                };
                request.write(&i32::try_from(available).unwrap_or(i32::MAX))?;
            }
            ioctl::TIOCOUTQ => request.write(&0i32)?,
            ioctl::TCFLSH => match u32::try_from(request.arg).map_err(|_| Errno::EINVAL)? {
                which @ (sys::TCIFLUSH | sys::TCOFLUSH | sys::TCIOFLUSH) => {
                    self.check_foreground(sys::SIGTTOU)?;
                    if which != sys::TCOFLUSH {
                        self.flush_input();
                        self.driver.status(PacketStatus::FLUSH_READ);
                    }
                    if which != sys::TCIFLUSH {
                        self.driver.discard();
                        self.driver.status(PacketStatus::FLUSH_WRITE);
                    }
                }
                _ => return Err(Errno::EINVAL),
            },
            // Argument 0 asks for a break, which no line here can send; any other, for what is
            // written to have left.
            ioctl::TCSBRK | ioctl::TCSBRKP => {
                self.check_foreground(sys::SIGTTOU)?;
                self.drain()?;
            }
            ioctl::TCXONC => {
                self.check_foreground(sys::SIGTTOU)?;
                self.flow(request.arg)?;
            }
            ioctl::TIOCEXCL => self.state.lock().exclusive = true,
            ioctl::TIOCNXCL => self.state.lock().exclusive = false,
            ioctl::TIOCGEXCL => request.write(&i32::from(self.state.lock().exclusive))?,
            ioctl::TIOCGETD => request.write(&0i32)?,
            ioctl::TIOCVHANGUP if request.caller.privileged() => self.hang_up(),
            ioctl::TIOCVHANGUP | ioctl::TIOCSTI | ioctl::TIOCSLCKTRMIOS => {
                return Err(Errno::EPERM);
            }
            _ => return Err(Errno::ENOTTY),
        }
        Ok(0)
    }

    /// Refuses a caller whose controlling terminal this is not.
    fn require_controlling(&self) -> Result<()> {
        match job_control::caller() {
            Some(process) if self.session() != Some(process.session) => Err(Errno::ENOTTY),
            _ => Ok(()),
        }
    }

    fn drain(&self) -> Result<()> {
        while !self.output.lock().flush(&*self.driver) {
            self.driver.wait_writable()?;
        }
        self.driver.drain()
    }

    /// Changes the settings (`tcsetattr(3)`).
    fn set_termios(&self, termios: Termios, action: TermiosAction) -> Result<()> {
        self.check_foreground(sys::SIGTTOU)?;
        if action != TermiosAction::Now {
            self.drain()?;
        }
        let (termios, mode_changed, restarted, news) = {
            let mut state = self.state.lock();
            let termios = termios.with_locked(&state.termios, &state.locked);
            let old = core::mem::replace(&mut state.termios, termios);
            let news = packet_status_change(&old, &termios);
            if action == TermiosAction::Flush {
                state.input.flush();
            }
            let mode_changed = old.local(sys::ICANON) != termios.local(sys::ICANON);
            if mode_changed {
                state.input.change_mode(termios.input_mode());
            }
            // Output that a stop character stopped goes on when those are switched off.
            let restarted = state.stopped && old.input(sys::IXON) && !termios.input(sys::IXON);
            if restarted {
                state.stopped = false;
            }
            (termios, mode_changed, restarted, news)
        };
        self.driver.configure(&termios);
        if !news.is_empty() {
            self.driver.status(news);
        }
        if restarted {
            self.writable.notify();
        }
        if mode_changed {
            self.readable.notify();
        }
        self.after_read();
        Ok(())
    }

    /// `tcflow(3)`.
    fn flow(&self, action: usize) -> Result<()> {
        let character = match u32::try_from(action).map_err(|_| Errno::EINVAL)? {
            sys::TCOOFF => {
                self.state.lock().stopped = true;
                self.driver.status(PacketStatus::STOP);
                return Ok(());
            }
            sys::TCOON => {
                self.state.lock().stopped = false;
                self.driver.status(PacketStatus::START);
                self.writable.notify();
                return Ok(());
            }
            sys::TCIOFF => sys::VSTOP,
            sys::TCION => sys::VSTART,
            _ => return Err(Errno::EINVAL),
        };
        let byte = self.termios().cc[character as usize];
        if byte != 0 {
            self.driver.write(&[byte]);
        }
        Ok(())
    }
}

/// Status that packet mode tells of a change of the settings.
fn packet_status_change(old: &Termios, new: &Termios) -> PacketStatus {
    /// Whether the customary characters, Ctrl-S and Ctrl-Q, stop and start output.
    fn stops(termios: &Termios) -> bool {
        termios.input(sys::IXON) && termios.is(sys::VSTOP, 0x13) && termios.is(sys::VSTART, 0x11)
    }
    let mut news = PacketStatus::empty();
    if stops(old) != stops(new) {
        news |= if stops(new) {
            PacketStatus::DO_STOP
        } else {
            PacketStatus::NO_STOP
        };
    }
    if old.local(sys::EXTPROC) || new.local(sys::EXTPROC) {
        news |= PacketStatus::IOCTL;
    }
    news
}

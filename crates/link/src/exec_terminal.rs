//! Terminals of programs that are run beside the first one (`skerry exec -t`): pseudo-terminals
//! whose line is the rings of the program's slot.

use alloc::sync::Arc;

use fs::Result;
use fs::poll::PollTable;
use fs::tty::pty::PtsLine;
use fs::tty::{Tty, TtyDriver, WinSize};
use task::Mutex;

use crate::exec::{self, ExecStream};

/// Bytes that are passed on at a time.
const CHUNK: usize = 256;

/// The terminal of a program.
pub(crate) struct Terminal {
    pts: PtsLine,
    input: Mutex<HeldInput>,
}

/// Standard input on its way to the terminal.
struct HeldInput {
    from: ExecStream,
    /// Bytes that were read; from `start` to `end` the terminal had no room for them.
    held: [u8; CHUNK],
    start: usize,
    end: usize,
}

/// The line of a terminal: standard output of the program.
struct Line {
    output: ExecStream,
}

/// Makes a terminal for the program of this number.
pub(crate) fn open(at: usize, number: u32, owner: (u32, u32), winsize: u32) -> Result<Arc<Tty>> {
    let stream = |stream| ExecStream { at, number, stream };
    let line = Line { output: stream(1) };
    let terminal = Arc::new(Terminal {
        pts: PtsLine::new(owner, line)?,
        input: Mutex::new(HeldInput {
            from: stream(0),
            held: [0; CHUNK],
            start: 0,
            end: 0,
        }),
    });
    terminal.resize(winsize);
    let tty = terminal.pts.tty().clone();
    exec::set_terminal(at, number, terminal);
    // What came meanwhile.
    receive_input(at);
    Ok(tty)
}

/// Passes standard input to the terminal of a slot's program, as far as it has room. Its end means
/// nothing: who is at the terminal may type nothing more.
pub(crate) fn receive_input(at: usize) {
    let Some(terminal) = exec::terminal(at) else {
        return;
    };
    let mut input = terminal.input.lock();
    let HeldInput {
        from,
        held,
        start,
        end,
    } = &mut *input;
    loop {
        while start < end {
            match terminal.pts.tty().receive(&held[*start..*end]) {
                // It calls `resume` when there is room.
                0 => return,
                taken => *start += taken,
            }
        }
        match from.pop(held) {
            Some(count) if count > 0 => (*start, *end) = (0, count),
            _ => return,
        }
    }
}

impl Terminal {
    /// Sets its size: rows in the upper and columns in the lower half.
    pub(crate) fn resize(&self, winsize: u32) {
        self.pts.tty().set_winsize(WinSize {
            rows: (winsize >> 16) as u16,
            cols: winsize as u16,
            ..WinSize::default()
        });
    }
}

impl TtyDriver for Line {
    fn write(&self, bytes: &[u8]) -> usize {
        match self.output.push(bytes) {
            Some(Ok(sent)) => sent,
            None => 0,
            // It leads nowhere any more.
            Some(Err(_)) => bytes.len(),
        }
    }

    fn wait_writable(&self) -> Result<()> {
        let changed = self.output.changed();
        changed.wait(|| self.output.has_room().then_some(()))
    }

    fn writable(&self, table: Option<&mut PollTable>) -> bool {
        if let Some(table) = table {
            table.poll_wait(self.output.changed());
        }
        self.output.has_room()
    }

    fn resume(&self) {
        receive_input(self.output.at);
    }
}

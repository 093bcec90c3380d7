//! Programs beside the first one of an instance as files: their state and their streams
//! (`dev::EXEC`).

use alloc::sync::Arc;

use abi::dev::{self, ExecControl, ExecState};
use abi::errno::Errno;
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, Result};
use task::Mutex;
use zerocopy::{FromBytes, IntoBytes};

use crate::instance::Instance;

/// The state of a program; whoever closes it hangs the program up.
pub(crate) struct ExecHandle {
    instance: Arc<Instance>,
    number: u32,
    /// The last state that was read.
    told: Mutex<Option<ExecState>>,
}

impl ExecHandle {
    pub(crate) fn new(instance: Arc<Instance>, number: u32) -> Self {
        Self {
            instance,
            number,
            told: Mutex::new(None),
        }
    }

    /// `None`: nothing new. After the end nothing follows.
    fn try_read(&self, buf: &mut [u8]) -> Option<usize> {
        let mut told = self.told.lock();
        if told.is_some_and(|told| told.state != dev::EXEC_STARTED) {
            return Some(0);
        }
        let now = self.instance.exec_state(self.number)?;
        if *told == Some(now) {
            return None;
        }
        *told = Some(now);
        let bytes = now.as_bytes();
        buf[..bytes.len()].copy_from_slice(bytes);
        Some(bytes.len())
    }
}

impl FileOps for ExecHandle {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        if buf.len() < size_of::<ExecState>() {
            return Err(Errno::EINVAL);
        }
        if file.is_nonblocking() {
            return self.try_read(buf).ok_or(Errno::EAGAIN);
        }
        self.instance.programs_changed.wait(|| self.try_read(buf))
    }

    fn write(&self, _: &File, buf: &[u8]) -> Result<usize> {
        let (call, _) = ExecControl::read_from_prefix(buf).map_err(|_| Errno::EINVAL)?;
        if call.signal > 64 {
            return Err(Errno::EINVAL);
        }
        self.instance
            .exec_signal(self.number, call.signal, call.winsize)?;
        Ok(size_of::<ExecControl>())
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.instance.programs_changed);
        }
        let told = *self.told.lock();
        let over = told.is_some_and(|told| told.state != dev::EXEC_STARTED);
        let now = self.instance.exec_state(self.number);
        let mut events = Events::WRITABLE;
        if over || now.is_some() && now != told {
            events |= Events::READABLE;
        }
        events
    }

    fn is_pollable(&self) -> bool {
        true
    }
}

impl Drop for ExecHandle {
    fn drop(&mut self) {
        self.instance.exec_left(self.number);
    }
}

/// A reader of a program's standard output or error.
pub(crate) struct ExecReader {
    instance: Arc<Instance>,
    number: u32,
    stream: usize,
}

impl ExecReader {
    pub(crate) fn new(instance: Arc<Instance>, number: u32, stream: usize) -> Self {
        Self {
            instance,
            number,
            stream,
        }
    }
}

impl FileOps for ExecReader {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let _charge = self.instance.charge();
        let mut read = || self.instance.exec_read(self.number, self.stream, buf);
        if file.is_nonblocking() {
            return read().ok_or(Errno::EAGAIN);
        }
        self.instance.programs_changed.wait(read)
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.instance.programs_changed);
        }
        let (readable, at_end) = self.instance.exec_readable(self.number, self.stream);
        let mut events = Events::empty();
        if readable {
            events |= Events::READABLE;
        }
        if at_end {
            events |= Events::HUP;
        }
        events
    }

    fn is_pollable(&self) -> bool {
        true
    }
}

/// The writer of a program's standard input; its end is the end of input.
pub(crate) struct ExecWriter {
    instance: Arc<Instance>,
    number: u32,
}

impl ExecWriter {
    pub(crate) fn new(instance: Arc<Instance>, number: u32) -> Self {
        Self { instance, number }
    }
}

impl FileOps for ExecWriter {
    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        let _charge = self.instance.charge();
        let write = || match self.instance.exec_write(self.number, buf) {
            Ok(0) if !buf.is_empty() => None,
            written => Some(written),
        };
        if file.is_nonblocking() {
            return write().unwrap_or(Err(Errno::EAGAIN));
        }
        self.instance.programs_changed.wait(write)?
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.instance.programs_changed);
        }
        if self.instance.exec_writable(self.number) {
            Events::WRITABLE
        } else {
            Events::empty()
        }
    }

    fn is_pollable(&self) -> bool {
        true
    }
}

impl Drop for ExecWriter {
    fn drop(&mut self) {
        self.instance.exec_close_input(self.number);
    }
}

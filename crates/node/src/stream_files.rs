//! An instance's streams as files (`dev::ATTACH`).

use alloc::sync::Arc;

use abi::dev;
use abi::errno::Errno;
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, Result};
use task::Mutex;

use crate::instance::Instance;

/// A reader of standard output, standard error or the kernel log.
pub(crate) struct StreamReader {
    instance: Arc<Instance>,
    stream: usize,
    /// Waits for more until the instance ends.
    follow: bool,
    position: Mutex<u64>,
    /// Key of the reader in the log, if it reads with pressure.
    backpressure_key: Option<u64>,
}

impl StreamReader {
    pub(crate) fn new(instance: Arc<Instance>, stream: usize, flags: u32) -> Self {
        let (position, backpressure_key) = {
            let mut log = instance.output(stream).lock();
            let position = if flags & dev::ATTACH_FROM_START != 0 {
                log.start()
            } else {
                log.end()
            };
            (
                position,
                (flags & dev::ATTACH_PRESSURE != 0).then(|| log.attach(position)),
            )
        };
        Self {
            instance,
            stream,
            follow: flags & dev::ATTACH_FOLLOW != 0,
            position: Mutex::new(position),
            backpressure_key,
        }
    }

    /// `None`: nothing yet, but there may be.
    fn try_read(&self, buf: &mut [u8]) -> Option<usize> {
        let mut position = self.position.lock();
        let (count, made_room, closed) = {
            let mut log = self.instance.output(self.stream).lock();
            let (count, made_room) =
                log.read_with_backpressure(&mut position, self.backpressure_key, buf);
            (count, made_room, log.closed)
        };
        if made_room {
            // The instance may wait for room.
            crate::OUTPUT_EVENT.set();
        }
        (count > 0 || closed || !self.follow).then_some(count)
    }
}

impl FileOps for StreamReader {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        if file.is_nonblocking() {
            return self.try_read(buf).ok_or(Errno::EAGAIN);
        }
        self.instance.output_changed[self.stream].wait(|| self.try_read(buf))
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.instance.output_changed[self.stream]);
        }
        let position = *self.position.lock();
        let log = self.instance.output(self.stream).lock();
        let mut events = Events::empty();
        if position < log.end() || !self.follow {
            events |= Events::READABLE;
        }
        if log.closed {
            events |= Events::READABLE | Events::HUP;
        }
        events
    }

    fn is_pollable(&self) -> bool {
        true
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        if let Some(key) = self.backpressure_key {
            self.instance.output(self.stream).lock().detach(key);
            crate::OUTPUT_EVENT.set();
        }
    }
}

/// The writer of standard input; its end is the end of input.
pub(crate) struct StdinWriter {
    instance: Arc<Instance>,
}

impl StdinWriter {
    pub(crate) fn new(instance: Arc<Instance>) -> Self {
        Self { instance }
    }
}

impl FileOps for StdinWriter {
    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let count = match self.instance.push_input(&buf[done..]) {
                Ok(count) => count,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            };
            done += count;
            if count > 0 {
                continue;
            }
            if file.is_nonblocking() {
                return if done > 0 {
                    Ok(done)
                } else {
                    Err(Errno::EAGAIN)
                };
            }
            match self
                .instance
                .input_changed
                .wait(|| self.instance.input_ready().then_some(()))
            {
                Ok(()) => {}
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.instance.input_changed);
        }
        let mut events = Events::empty();
        if self.instance.input_ready() {
            events |= Events::WRITABLE;
        }
        if self.instance.has_ended() {
            events |= Events::ERR;
        }
        events
    }

    fn is_pollable(&self) -> bool {
        true
    }
}

impl Drop for StdinWriter {
    fn drop(&mut self) {
        self.instance.close_input();
    }
}

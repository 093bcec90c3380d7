//! The kernel's log as programs read it: `syslog(2)`, `/dev/kmsg`. It is this kernel's own; the
//! supervisor also keeps what an instance logs (`skerry logs`). What was logged before the
//! personality was set up is not here.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use ::task::Mutex;
use abi::errno::Errno;
use fs::devfs::{self, CharDevice};
use fs::poll::{Events, PollTable};
use fs::{DeviceId, File, FileOps, OpenFlags, Whence};
use guard::BootToken;
use linux_raw_sys::general as sys;
use log::Record;
use uapi::user_addr::UserAddr;

use crate::state::kernel_log::{self, LOG_WAIT, with};
use crate::state::log_ring::{Line, LogRing};
use crate::{SysResult, Task, current_task, uaccess};

/// Size of the log, in bytes of text.
const LOG_BUFFER_LEN: usize = 128 << 10;
/// Longest line that a program can write to the log, in bytes.
const LINE_MAX: usize = 976;
/// Facility of lines of programs (`LOG_USER`).
const FACILITY: u32 = 1 << 3;
/// Levels that `syslog(2)` sets for the console.
const CONSOLE_LEVELS: core::ops::RangeInclusive<usize> = 1..=8;

/// `/proc/sys/kernel/printk`: the console's level, that of lines which name none, the least that
/// `syslog(2)` gives the console, and the one that the console has at first.
pub(crate) static PRINTK: [AtomicI32; 4] = [
    AtomicI32::new(7),
    AtomicI32::new(4),
    AtomicI32::new(1),
    AtomicI32::new(7),
];
/// Level that the console had before it was switched off; none if it was not.
static SAVED_CONSOLE_LEVEL: Mutex<Option<i32>> = Mutex::new(None);

/// Has what [`PRINTK`] says of the console come true.
pub(crate) fn apply_console_level() {
    let level = PRINTK[0].load(Ordering::Relaxed);
    guard::log::set_console_level(level.clamp(0, u8::MAX.into()) as u8);
}

/// Switches the console off, to the least level that it may have, or back on (`syslog(2)`).
fn switch_console(on: bool) {
    let [console, _, least, _] = &PRINTK;
    let mut saved = SAVED_CONSOLE_LEVEL.lock();
    if on {
        if let Some(level) = saved.take() {
            console.store(level, Ordering::Relaxed);
        }
    } else {
        saved.get_or_insert(console.load(Ordering::Relaxed));
        console.store(least.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    apply_console_level();
}

/// Sets the console's level (`syslog(2)`), not below the least one.
fn set_console_level(level: i32) {
    let [console, _, least, _] = &PRINTK;
    *SAVED_CONSOLE_LEVEL.lock() = None;
    console.store(level.max(least.load(Ordering::Relaxed)), Ordering::Relaxed);
    apply_console_level();
}

/// Keeps the log from now on, and makes it readable.
pub(crate) fn init(boot: &BootToken) {
    kernel_log::init(LOG_BUFFER_LEN);
    let console = kmsg::console_level_of_cmdline(guard::role::cmdline());
    PRINTK[0].store(console.into(), Ordering::Relaxed);
    guard::log::set_record_hook(boot, record);
    if let Err(error) = devfs::register("kmsg", Arc::new(KmsgDevice)) {
        log::warn!("no /dev/kmsg: {error}");
    }
}

/// Adds a line to the log. Where the caller must not sleep it is only on the console.
fn record(record: &Record<'_>) {
    // The least urgent one that Linux has is 7.
    let level = kmsg::level_number(record.level()).min(7);
    if guard::cpu::irqs_enabled() {
        kernel_log::add(
            level.into(),
            format_args!("{}: {}", record.target(), record.args()),
        );
    }
}

/// A line as `dmesg(1)` gets it from `syslog(2)`.
fn syslog_line(line: &Line) -> String {
    format!(
        "<{}>[{:5}.{:06}] {}\n",
        line.priority,
        line.us / 1_000_000,
        line.us % 1_000_000,
        line.text
    )
}

/// Lines from number `first` on that fit into `room` bytes, and the number of the next one.
fn lines(ring: &LogRing, first: u64, room: usize) -> (String, u64) {
    let mut all = String::new();
    let mut next = first.max(ring.first());
    for line in ring.from(next) {
        let text = syslog_line(&line);
        if all.len() + text.len() > room {
            break;
        }
        all += &text;
        next = line.number + 1;
    }
    (all, next)
}

/// The last lines from number `first` on that fit into `room` bytes.
fn last_lines(ring: &LogRing, first: u64, room: usize) -> String {
    let mut all: VecDeque<String> = VecDeque::new();
    let mut bytes = 0;
    for line in ring.from(first) {
        let text = syslog_line(&line);
        bytes += text.len();
        all.push_back(text);
        while bytes > room {
            bytes -= all.pop_front().map_or(bytes, |text| text.len());
        }
    }
    all.iter().map(String::as_str).collect()
}

/// `/proc/sys/kernel/dmesg_restrict`: whether only who has `CAP_SYSLOG` reads the log. So it is
/// with Debian's kernel.
pub(crate) static DMESG_RESTRICT: AtomicBool = AtomicBool::new(true);

/// Checks that somebody may control the log, and read it when it is restricted.
///
/// # Errors
/// `EPERM`.
fn check_privileged(task: &Task) -> Result<(), Errno> {
    let cred = task.cred();
    if cred.capable(sys::CAP_SYSLOG) || cred.has_sys_admin() {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// `syslog(2)`: reads or controls the kernel log.
pub fn sys_syslog(task: &Task, action: u32, to: UserAddr, len: i32) -> SysResult {
    const CLOSE: u32 = 0;
    const OPEN: u32 = 1;
    const READ: u32 = 2;
    const READ_ALL: u32 = 3;
    const READ_CLEAR: u32 = 4;
    const CLEAR: u32 = 5;
    const CONSOLE_OFF: u32 = 6;
    const CONSOLE_ON: u32 = 7;
    const CONSOLE_LEVEL: u32 = 8;
    const SIZE_UNREAD: u32 = 9;
    const SIZE_BUFFER: u32 = 10;
    if !matches!(action, READ_ALL | SIZE_BUFFER) || DMESG_RESTRICT.load(Ordering::Relaxed) {
        check_privileged(task)?;
    }
    let room = match action {
        READ | READ_ALL | READ_CLEAR if to.is_null() => return Err(Errno::EINVAL),
        READ | READ_ALL | READ_CLEAR | CONSOLE_LEVEL => {
            usize::try_from(len).map_err(|_| Errno::EINVAL)?
        }
        _ => 0,
    };
    match action {
        CLOSE | OPEN => Ok(0),
        READ | READ_ALL | READ_CLEAR if room == 0 => Ok(0),
        READ => {
            let next = || {
                with(|log| {
                    let (text, next) = lines(&log.ring, log.unread, room);
                    log.unread = next;
                    (!text.is_empty()).then_some(text)
                })
            };
            let text = LOG_WAIT.wait(|| next().transpose())??;
            uaccess::write_bytes(to, text.as_bytes())?;
            Ok(text.len())
        }
        READ_ALL | READ_CLEAR => {
            let text = with(|log| {
                let text = last_lines(&log.ring, log.uncleared, room);
                if action == READ_CLEAR {
                    log.uncleared = log.ring.next();
                }
                text
            })?;
            uaccess::write_bytes(to, text.as_bytes())?;
            Ok(text.len())
        }
        CLEAR => with(|log| log.uncleared = log.ring.next()).map(|()| 0),
        CONSOLE_OFF | CONSOLE_ON => {
            switch_console(action == CONSOLE_ON);
            Ok(0)
        }
        CONSOLE_LEVEL if CONSOLE_LEVELS.contains(&room) => {
            set_console_level(room as i32);
            Ok(0)
        }
        SIZE_UNREAD => with(|log| {
            log.ring
                .from(log.unread)
                .map(|line| syslog_line(&line).len())
                .sum()
        }),
        SIZE_BUFFER => Ok(LOG_BUFFER_LEN),
        _ => Err(Errno::EINVAL),
    }
}

/// The device `/dev/kmsg`: the log's lines, one a read.
struct KmsgDevice;

impl CharDevice for KmsgDevice {
    fn open(self: Arc<Self>, flags: OpenFlags) -> Result<Arc<dyn FileOps>, Errno> {
        if flags.is_readable()
            && DMESG_RESTRICT.load(Ordering::Relaxed)
            && let Some(caller) = current_task()
        {
            check_privileged(&caller)?;
        }
        let next = with(|log| log.ring.first())?;
        Ok(Arc::new(Reader {
            next: Mutex::new(next),
        }))
    }

    fn id(&self) -> Option<DeviceId> {
        Some(DeviceId::new(1, 11))
    }

    fn mode(&self) -> u32 {
        0o644
    }
}

/// An opening, which has its own place in the log.
struct Reader {
    next: Mutex<u64>,
}

impl Reader {
    /// Next line of the log; `EPIPE` if it has been overwritten.
    fn next_record(&self) -> Option<Result<Vec<u8>, Errno>> {
        let mut next = self.next.lock();
        let line = with(|log| {
            if *next < log.ring.first() {
                *next = log.ring.first();
                return Some(Err(Errno::EPIPE));
            }
            log.ring.from(*next).next().map(Ok)
        });
        match line {
            Err(error) | Ok(Some(Err(error))) => Some(Err(error)),
            Ok(None) => None,
            Ok(Some(Ok(line))) => {
                *next = line.number + 1;
                Some(Ok(format!(
                    "{},{},{},-;{}\n",
                    line.priority, line.number, line.us, line.text
                )
                .into_bytes()))
            }
        }
    }
}

impl FileOps for Reader {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize, Errno> {
        let line = match self.next_record() {
            Some(line) => line?,
            None if file.is_nonblocking() => return Err(Errno::EAGAIN),
            None => LOG_WAIT.wait(|| self.next_record())??,
        };
        buf.get_mut(..line.len())
            .ok_or(Errno::EINVAL)?
            .copy_from_slice(&line);
        Ok(line.len())
    }

    /// Waits for a line, as any read, and then has no room for it.
    fn read_nothing(&self, file: &File) -> Result<usize, Errno> {
        self.read(file, &mut [])
    }

    /// A program's line; `<N>` at its beginning is its priority.
    fn write(&self, _: &File, buf: &[u8]) -> Result<usize, Errno> {
        if buf.len() > LINE_MAX {
            return Err(Errno::EINVAL);
        }
        let text = String::from_utf8_lossy(buf);
        let marked = text.strip_prefix('<').and_then(|rest| rest.split_once('>'));
        let marked = marked.and_then(|(number, rest)| Some((number.parse::<u32>().ok()?, rest)));
        let unmarked = PRINTK[1].load(Ordering::Relaxed).cast_unsigned() & 7;
        let (priority, rest) = marked.unwrap_or((unmarked, &text));
        // The kernel's own facility is not a program's to use.
        kernel_log::add(
            if priority < FACILITY {
                priority | FACILITY
            } else {
                priority
            },
            format_args!("{}", rest.trim_end_matches('\n')),
        );
        Ok(buf.len())
    }

    fn seek(&self, _: &File, whence: Whence, offset: i64) -> Result<u64, Errno> {
        if offset != 0 {
            return Err(Errno::ESPIPE);
        }
        let place = with(|log| match whence {
            Whence::Set => Ok(log.ring.first()),
            Whence::Data => Ok(log.uncleared.max(log.ring.first())),
            Whence::End => Ok(log.ring.next()),
            _ => Err(Errno::EINVAL),
        })??;
        *self.next.lock() = place;
        Ok(0)
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait_events(&LOG_WAIT, Events::READABLE);
        }
        let next = *self.next.lock();
        let newer = with(|log| next < log.ring.next()).unwrap_or(false);
        let mut events = Events::WRITABLE;
        events.set(Events::READABLE, newer);
        events
    }
}

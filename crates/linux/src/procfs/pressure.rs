//! `/proc/pressure`: how long threads wait for processors, memory and devices, and triggers on it.
//!
//! A program that writes `some 150000 1000000` to an open file is told by `POLLPRI` on that file
//! when threads have waited for 150 ms within a second. While there are triggers, a thread looks
//! ten times in the shortest window, as Linux's does; without them nothing runs.

use alloc::string::ToString;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::errno::Errno;
use fs::poll::{Events, PollQueue, PollTable};
use fs::pseudo::{PseudoAttr, StaticDir};
use fs::{File, FileOps, FileType, Inode, Metadata, OpenFlags, Result, Whence};
use guard::BootToken;
use psi::{Pressure, Trigger};
use task::{CpuId, Deadline, Mutex};

use crate::current_task;
use crate::state::usage::StorageCounters;

/// Resource that threads wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    Cpu,
    Memory,
    Io,
}

static CPU: Mutex<Pressure> = Mutex::new(Pressure::new());
static IO: Mutex<Pressure> = Mutex::new(Pressure::new());

/// Time in which threads waited for a CPU: the mean over those that there are, which may have been
/// more or fewer before.
fn stalled_ns() -> u64 {
    /// The sum over all CPUs at the last look, and the mean.
    static LAST: Mutex<(u64, u64)> = Mutex::new((0, 0));
    let mut last = LAST.lock();
    let all = guard::cpu::most() as u32;
    let sum = (0..all)
        .map(|n| task::stats::cpu(CpuId(n)).stalled_ns)
        .sum::<u64>();
    last.1 += sum.saturating_sub(last.0) / task::cpu_count() as u64;
    last.0 = last.0.max(sum);
    last.1
}

impl Resource {
    /// Runs `look` on the pressure of the resource at the present time.
    fn with_pressure<R>(self, look: impl FnOnce(&mut Pressure, u64) -> R) -> R {
        match self {
            Self::Memory => guard::mem::pressure(look),
            Self::Cpu => {
                let stalled = stalled_ns();
                let mut pressure = CPU.lock();
                // A processor without a runnable thread stalls nobody, so there is no `full`.
                pressure.set_totals(stalled, 0);
                look(&mut pressure, task::now_ns())
            }
            Self::Io => look(&mut IO.lock(), task::now_ns()),
        }
    }
}

/// Has the guard ask whether threads run on while one waits for memory; before the first process.
pub(crate) fn init(boot: &BootToken) {
    guard::mem::set_others_run(boot, others_run);
    block::account::keep(&TaskAccounts);
}

/// Whether other threads run while the calling one waits.
fn others_run() -> bool {
    task::stats::runnable() > 1
}

/// Accounts of programs' threads; what the kernel's own threads read and write is nobody's, and
/// nobody waits for it.
struct TaskAccounts;

impl TaskAccounts {
    fn count(counter: impl Fn(&StorageCounters) -> &AtomicU64, bytes: u64) {
        if let Some(task) = current_task() {
            let counter = counter(&task.io_accounting.storage);
            counter.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

impl block::account::Accounts for TaskAccounts {
    fn read(&self, bytes: u64) {
        Self::count(|storage| &storage.read, bytes);
    }

    fn made_dirty(&self, bytes: u64) {
        Self::count(|storage| &storage.written, bytes);
    }

    fn gave_up(&self, bytes: u64) {
        Self::count(|storage| &storage.cancelled, bytes);
    }

    fn begins_to_wait(&self) -> bool {
        let counts = current_task().is_some();
        if counts {
            let others = others_run();
            IO.lock().begin(task::now_ns(), others);
        }
        counts
    }

    fn has_waited(&self) {
        let others = others_run();
        IO.lock().end(task::now_ns(), others);
    }
}

/// Adds the files of `/proc/pressure`.
pub(super) fn add(dir: &Arc<StaticDir>, dev: u64) {
    for name in ["cpu", "memory", "io"] {
        dir.add(name, file(name, dev));
    }
}

/// The file of one resource, for the control group.
pub(crate) fn file(name: &str, dev: u64) -> Arc<dyn Inode> {
    let resource = match name {
        "cpu" => Resource::Cpu,
        "memory" => Resource::Memory,
        _ => Resource::Io,
    };
    Arc::new(PressureFile {
        attr: PseudoAttr::new(dev, 0o666),
        resource,
    })
}

struct PressureFile {
    attr: PseudoAttr,
    resource: Resource,
}

impl Inode for PressureFile {
    fn metadata(&self) -> Metadata {
        Metadata::generated(
            self.attr.dev,
            self.attr.ino,
            FileType::Regular,
            self.attr.mode,
        )
    }

    fn kind(&self) -> FileType {
        FileType::Regular
    }

    fn truncate(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn open(self: Arc<Self>, _: OpenFlags) -> Result<Option<Arc<dyn FileOps>>> {
        let watch = PsiTrigger {
            trigger: Mutex::new(None),
            event_pending: AtomicBool::new(false),
            source: PollQueue::new(),
        };
        Ok(Some(Arc::new(OpenPressure {
            resource: self.resource,
            watch: Arc::new(watch),
        })))
    }
}

/// Trigger that an open file's program has set.
struct PsiTrigger {
    trigger: Mutex<Option<(Resource, Trigger)>>,
    event_pending: AtomicBool,
    source: PollQueue,
}

struct OpenPressure {
    resource: Resource,
    watch: Arc<PsiTrigger>,
}

impl FileOps for OpenPressure {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        file.with_offset(|offset| {
            let n = self.read_at(file, *offset, buf)?;
            *offset += n as u64;
            Ok(n)
        })
    }

    fn supports_pread(&self) -> bool {
        true
    }

    fn read_at(&self, _: &File, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let text = self.resource.with_pressure(psi::Pressure::show).to_string();
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|offset| text.as_bytes().get(offset..))
            .unwrap_or_default();
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn write(&self, _: &File, buf: &[u8]) -> Result<usize> {
        let text = core::str::from_utf8(buf).map_err(|_| Errno::EINVAL)?;
        let trigger = self
            .resource
            .with_pressure(|pressure, now| Trigger::parse(text, now, pressure))
            .ok_or(Errno::EINVAL)?;
        {
            let mut slot = self.watch.trigger.lock();
            if slot.is_some() {
                return Err(Errno::EBUSY);
            }
            *slot = Some((self.resource, trigger));
        }
        monitor(&self.watch)?;
        Ok(buf.len())
    }

    fn write_at(&self, file: &File, _: u64, buf: &[u8]) -> Result<usize> {
        self.write(file, buf)
    }

    fn seek(&self, file: &File, whence: Whence, offset: i64) -> Result<u64> {
        file.with_offset(|position| {
            *position = fs::seek_position(*position, None, whence, offset)?;
            Ok(*position)
        })
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.watch.source);
        }
        let mut events = Events::READABLE | Events::WRITABLE;
        let armed = self.watch.trigger.lock().is_some();
        if !armed {
            events |= Events::ERR | Events::PRI;
        } else if self.watch.event_pending.swap(false, Ordering::AcqRel) {
            events |= Events::PRI;
        }
        events
    }
}

/// Files with triggers, and whether a thread looks after them.
struct TriggerMonitor {
    watches: Vec<Weak<PsiTrigger>>,
    runs: bool,
}

static MONITOR: Mutex<TriggerMonitor> = Mutex::new(TriggerMonitor {
    watches: Vec::new(),
    runs: false,
});

/// Adds a file with a trigger, and sees to it that somebody looks.
fn monitor(watch: &Arc<PsiTrigger>) -> Result<()> {
    let mut monitor = MONITOR.lock();
    fallible::push(&mut monitor.watches, Arc::downgrade(watch))?;
    if !monitor.runs {
        task::spawn("pressure", None, run).map_err(|_| Errno::ENOMEM)?;
        monitor.runs = true;
    }
    Ok(())
}

/// The thread: ends with the last trigger.
fn run() {
    loop {
        let mut next = u64::MAX;
        let live: Vec<Arc<PsiTrigger>> = {
            let mut monitor = MONITOR.lock();
            monitor.watches.retain(|watch| watch.strong_count() > 0);
            monitor.runs = !monitor.watches.is_empty();
            if !monitor.runs {
                return;
            }
            monitor.watches.iter().filter_map(Weak::upgrade).collect()
        };
        for watch in live {
            let Some((resource, mut trigger)) = *watch.trigger.lock() else {
                continue;
            };
            let tell = resource.with_pressure(|pressure, now| trigger.check(now, pressure));
            *watch.trigger.lock() = Some((resource, trigger));
            next = next.min(trigger.window_ns() / 10);
            if tell {
                watch.event_pending.store(true, Ordering::Release);
                watch.source.notify();
            }
        }
        task::sleep_until(Deadline::after_ns(next.min(1_000_000_000)));
    }
}

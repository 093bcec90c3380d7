//! `/proc`: what programs read to learn about processes and the machine.
//!
//! The tree is made of the generated files of [`fs::pseudo`]: `system.rs` holds the texts about the
//! machine, `pressure.rs` those about waiting, `net.rs` those about sockets, `sysctl.rs` those
//! below `/proc/sys`, `settings.rs` and `core_dump.rs` those of them that can be changed, `pid.rs`
//! the directory of one process, `status.rs` what it does, has used and may, `fd.rs` its
//! descriptors, `maps.rs` and `pagemap.rs` its memory, `mounts.rs` its mounts, `options.rs` which
//! processes a mount shows, `pci.rs` holds the machine's functions. Texts are made when they are
//! read and are not held against changes.

mod core_dump;
mod fd;
mod ipv6_conf;
mod maps;
mod mem;
mod mounts;
mod net;
mod options;
mod pagemap;
pub(crate) mod pci;
mod pid;
mod pressure;
mod remembered;
mod settings;
mod snapshot;
mod status;
mod sysctl;
mod system;

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use ::task::Mutex;
use abi::errno::Errno;
use fs::mount::FileSystem;
use fs::pseudo::{self, DynamicDir, DynamicEntry, PseudoAttr, PseudoFs, StaticDir};
use fs::{FileType, Inode, LinkTarget, Result, StatFs};
use options::Options;
pub(crate) use pid::process_of_pid_dir;
pub(crate) use pressure::{file as resource_pressure, init as init_pressure};
pub(crate) use sysctl::add_at_path;
use uapi::pid::Pid;

use crate::process::process_table;

const MAGIC: u64 = 0x9fa0;

/// File numbers of a process's files are its id shifted by this, plus the file's place in the
/// directory.
const PID_SHIFT: u32 = 20;

/// Adds to the fixed part of a new procfs: gets the directory and the file system's device number.
type Extension = fn(&Arc<StaticDir>, u64);

static EXTENSION: ::task::Once<Extension> = ::task::Once::new();

/// Makes every procfs from now on have what `more` adds to its top directory. The first call
/// counts.
pub fn extend(more: Extension) {
    EXTENSION.call_once(|| more);
}

/// A procfs: each mount has files and options of its own.
pub struct ProcFs {
    files: Arc<PseudoFs>,
    options: options::Shared,
}

impl ProcFs {
    /// A procfs that hides nothing.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::with(Options::default())
    }

    /// A procfs with options, which have commas between them.
    ///
    /// # Errors
    /// `EINVAL`.
    pub(crate) fn with_text(text: &str) -> Result<Arc<Self>> {
        Options::default().with_text(text).map(Self::with)
    }

    fn with(options: Options) -> Arc<Self> {
        let options = Arc::new(Mutex::new(options));
        let files = new_files(options.clone());
        Arc::new(Self { files, options })
    }
}

/// Puts the settings of `/proc/sys` in force that the kernel command line has
/// (`sysctl.kernel.dmesg_restrict=0`).
pub fn apply_command_line() {
    settings::apply_command_line(guard::role::cmdline());
}

/// Checks options of a procfs.
///
/// # Errors
/// `EINVAL`.
pub(crate) fn check_options(text: &str) -> Result<()> {
    Options::default().with_text(text).map(drop)
}

impl FileSystem for ProcFs {
    fn name(&self) -> &'static str {
        self.files.name()
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.files.root()
    }

    fn statfs(&self) -> StatFs {
        self.files.statfs()
    }

    fn options(&self) -> String {
        let options = *self.options.lock();
        options.show()
    }

    fn reconfigure(&self, text: &str) -> Result<()> {
        let mut options = self.options.lock();
        *options = options.with_text(text)?;
        Ok(())
    }
}

/// Makes the directories and files of a procfs.
fn new_files(options: options::Shared) -> Arc<PseudoFs> {
    PseudoFs::new("proc", MAGIC, move |dev| {
        let fixed = StaticDir::new(dev);
        system::add(&fixed, dev);
        pressure::add(&fixed.subdir("pressure"), dev);
        sysctl::add(&fixed.subdir("sys"), dev);
        net::add(&fixed.subdir("net"), dev);
        pci::add(&fixed, dev);
        let own = |suffix: &'static str| {
            pseudo::symlink(PseudoAttr::new(dev, 0o777), move || {
                let task = crate::current_task().ok_or(Errno::ENOENT)?;
                let text = match suffix {
                    "" => format!("{}", task.pid()),
                    _ => format!("{}/task/{}", task.pid(), task.tid()),
                };
                Ok(LinkTarget::Text(text.into_bytes()))
            })
        };
        fixed.add("self", own(""));
        fixed.add("thread-self", own("task"));
        let mounts = || Ok(LinkTarget::Text(b"self/mounts".to_vec()));
        fixed.add(
            "mounts",
            pseudo::symlink(PseudoAttr::new(dev, 0o777), mounts),
        );
        if let Some(more) = EXTENSION.get() {
            more(&fixed, dev);
        }
        pseudo::dynamic_dir(Root {
            attr: PseudoAttr {
                ino: 1,
                ..PseudoAttr::new(dev, 0o555)
            },
            fixed,
            options: options.clone(),
        })
    })
}

/// The top: the fixed files, then a directory for every process.
struct Root {
    attr: PseudoAttr,
    fixed: Arc<StaticDir>,
    options: options::Shared,
}

/// Fixed names that are there where only processes are shown, too.
const OF_PIDS: [&[u8]; 2] = [b"self", b"thread-self"];

/// Keys of processes in the listing begin behind those of the fixed files.
const FIRST_PID_KEY: u64 = 1 << 16;

impl DynamicDir for Root {
    fn attr(&self) -> PseudoAttr {
        self.attr
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        match parse_pid(name) {
            Some(pid) => pid::directory(self.attr.dev, Pid::new(pid), &self.options),
            None if self.options.lock().only_pids && !OF_PIDS.contains(&name) => Err(Errno::ENOENT),
            None => self.fixed.lookup(name),
        }
    }

    fn list(&self, after: u64) -> Result<Vec<DynamicEntry>> {
        let mut entries = Vec::new();
        let options = *self.options.lock();
        if after < FIRST_PID_KEY && !options.only_pids {
            self.fixed.readdir(after, &mut |e| {
                entries.push(DynamicEntry {
                    name: e.name.to_vec(),
                    ino: e.ino,
                    kind: e.kind,
                    key: e.next,
                });
                true
            })?;
        }
        for pid in process_table::pids() {
            let key = FIRST_PID_KEY + pid.raw() as u64;
            if key > after && options.shows_pid(pid) {
                entries.push(DynamicEntry {
                    name: format!("{pid}").into_bytes(),
                    ino: (pid.raw() as u64) << PID_SHIFT,
                    kind: FileType::Directory,
                    key,
                });
            }
        }
        Ok(entries)
    }
}

/// Number of a process or thread whose directory has this name: digits, no leading zero.
fn parse_pid(name: &[u8]) -> Option<i32> {
    if name.first() == Some(&b'0') && name.len() > 1 || !name.iter().all(u8::is_ascii_digit) {
        return None;
    }
    core::str::from_utf8(name).ok()?.parse().ok()
}

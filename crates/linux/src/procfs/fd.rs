//! The descriptors of a process: `/proc/<pid>/fd`, `/proc/<pid>/fdinfo`.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;
use fs::pseudo::{self, DynamicDir, DynamicEntry, OpenedText, PseudoAttr};
use fs::{Access, Cred, File, FileType, Inode, LinkTarget, OpenFlags, Result};
use uapi::fd::Fd;

use super::parse_pid;
use super::pid::ProcessRef;
use crate::process::Process;
use crate::state::fdtable::FdTable;

/// First inode number of descriptors' files.
const FD_INO: u64 = 1 << 16;

/// The directory `/proc/<pid>/fd` or `/proc/<pid>/fdinfo`.
pub(super) struct FdDir {
    pub(super) attr: PseudoAttr,
    pub(super) process: ProcessRef,
    /// Whether it is `fdinfo`, and not `fd`.
    pub(super) info: bool,
}

impl FdDir {
    fn files(&self) -> Result<Arc<FdTable>> {
        files_of(&self.process.find())
    }
}

fn files_of(process: &Result<Arc<Process>>) -> Result<Arc<FdTable>> {
    let process = process.as_ref().map_err(|_| Errno::ENOENT)?;
    process.files().ok_or(Errno::ENOENT)
}

/// Descriptors that are listed at a time; who reads the directory asks for more. A program may have
/// many, and the list is one piece of memory.
const LISTED_AT_ONCE: usize = 512;

impl DynamicDir for FdDir {
    fn attr(&self) -> PseudoAttr {
        self.attr
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let fd = parse_pid(name).map(Fd::new).ok_or(Errno::ENOENT)?;
        let file = self.files()?.get(fd).map_err(|_| Errno::ENOENT)?;
        let flags = file.flags();
        let mode = if self.info {
            0o444
        } else {
            (u32::from(flags.is_readable()) * 0o500) | (u32::from(flags.is_writable()) * 0o300)
        };
        let attr = PseudoAttr {
            ino: self.attr.ino + FD_INO + fd.index() as u64,
            mode,
            ..self.attr
        };
        let of = self.process.clone();
        if !self.info {
            let target = move || -> Result<Arc<File>> {
                let process = of.find_accessible()?;
                files_of(&Ok(process))?.get(fd).map_err(|_| Errno::ENOENT)
            };
            let follow = target.clone();
            return Ok(pseudo::symlink_with_text(
                attr,
                move || Ok(LinkTarget::MagicLink(follow()?.path().clone())),
                move || {
                    let root = crate::current_task().map(|task| task.fs().root());
                    Ok(target()?.path().to_bytes(root.as_ref()))
                },
            ));
        }
        let show = move || {
            let table = files_of(&of.find())?;
            let file = table.get(fd).map_err(|_| Errno::ENOENT)?;
            let mut flags = file.flags();
            flags.set(
                OpenFlags::CLOEXEC,
                table.cloexec(fd).map_err(|_| Errno::ENOENT)?.is_set(),
            );
            let (mount, position) = (file.path().mount().id(), file.position());
            Ok(format!(
                "pos:\t{position}\nflags:\t0{:o}\nmnt_id:\t{mount}\nino:\t{}\n{}",
                flags.bits(),
                file.metadata().ino,
                file.ops().fdinfo()
            )
            .into_bytes())
        };
        let of = self.process.clone();
        Ok(pseudo::file_by_opening(attr, move || {
            of.find_accessible()?;
            Ok(OpenedText::new(show.clone()))
        }))
    }

    /// The threads of a process may always list its descriptors. What is known of them is for who
    /// may look into the process, whatever the mode says.
    fn check_access(&self, cred: &Cred, want: Access) -> Result<()> {
        let by_mode = cred.check(&self.attr.metadata(FileType::Directory), want);
        if self.info {
            return self.process.find_accessible().and(by_mode);
        }
        let own = || {
            let process = self.process.find();
            let caller = crate::current_task();
            process.is_ok_and(|process| {
                caller.is_some_and(|task| Arc::ptr_eq(&process, task.process()))
            })
        };
        by_mode.or_else(|error| if own() { Ok(()) } else { Err(error) })
    }

    fn list(&self, after: u64) -> Result<Vec<DynamicEntry>> {
        let kind = if self.info {
            FileType::Regular
        } else {
            FileType::Symlink
        };
        let listed = |(fd, _): (Fd, _)| DynamicEntry {
            name: format!("{fd}").into_bytes(),
            ino: self.attr.ino + FD_INO + fd.index() as u64,
            kind,
            key: fd.index() as u64 + 1,
        };
        Ok(self
            .files()?
            .list_from(after as usize, LISTED_AT_ONCE)
            .into_iter()
            .map(listed)
            .collect())
    }
}

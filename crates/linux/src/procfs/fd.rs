//! The descriptors of a process: `/proc/<pid>/fd`, `/proc/<pid>/fdinfo`.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;
use fs::pseudo::{self, DynamicDir, DynamicEntry, PseudoAttr};
use fs::{FileType, Inode, LinkTarget, OpenFlags, Result};
use uapi::fd::Fd;
use uapi::pid::Pid;

use super::parse_pid;
use crate::process::process_table;
use crate::state::fdtable::FdTable;

/// First inode number of descriptors' files.
const FD_INO: u64 = 1 << 16;

/// The directory `/proc/<pid>/fd` or `/proc/<pid>/fdinfo`.
pub(super) struct FdDir {
    pub(super) attr: PseudoAttr,
    pub(super) pid: Pid,
    /// Whether it is `fdinfo`, and not `fd`.
    pub(super) info: bool,
}

impl FdDir {
    fn files(&self) -> Result<Arc<FdTable>> {
        process_table::find(self.pid)
            .and_then(|p| p.files())
            .ok_or(Errno::ENOENT)
    }
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
            0o400
        } else {
            (u32::from(flags.is_readable()) * 0o500) | (u32::from(flags.is_writable()) * 0o300)
        };
        let attr = PseudoAttr {
            ino: self.attr.ino + FD_INO + fd.index() as u64,
            mode,
            ..self.attr
        };
        let pid = self.pid;
        let table = move || {
            process_table::find(pid)
                .and_then(|p| p.files())
                .ok_or(Errno::ENOENT)
        };
        let open = move || table()?.get(fd).map_err(|_| Errno::ENOENT);
        if !self.info {
            return Ok(pseudo::symlink_with_text(
                attr,
                move || Ok(LinkTarget::MagicLink(open()?.path().clone())),
                move || {
                    let root = crate::current_task().map(|task| task.fs().root());
                    Ok(open()?.path().to_bytes(root.as_ref()))
                },
            ));
        }
        Ok(pseudo::file(attr, move || {
            let file = open()?;
            let mut flags = file.flags();
            flags.set(
                OpenFlags::CLOEXEC,
                table()?.cloexec(fd).map_err(|_| Errno::ENOENT)?.is_set(),
            );
            let (mount, position) = (file.path().mount().id(), file.position());
            Ok(format!(
                "pos:\t{position}\nflags:\t0{:o}\nmnt_id:\t{mount}\n",
                flags.bits()
            )
            .into_bytes())
        }))
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

//! The pages of a process, one by one or by mapping:
//! `/proc/<pid>/{pagemap,clear_refs,numa_maps,map_files}`.

use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use fs::pseudo::{self, DynamicDir, DynamicEntry, PseudoAttr};
use fs::{File, FileOps, FileType, Inode, LinkTarget, Metadata, OpenFlags, Result, Whence};
use linux_raw_sys::general::CAP_CHECKPOINT_RESTORE;
use vm::{AddressSpace, PAGE_SIZE, VmaInfo};

use super::pid::{ProcessRef, accessible_space};
use super::{maps, mem};
use crate::current_task;
use crate::process::Process;
use crate::state::mempolicy;

/// `pagemap`: a word for each page. It does not tell where pages are: programs, even privileged
/// ones, cannot name physical memory.
pub(super) struct PageMap {
    pub(super) attr: PseudoAttr,
    pub(super) process: ProcessRef,
}

const PRESENT: u64 = 1 << 63;
/// Bit of a page of a file, or of a shared one.
const FILE: u64 = 1 << 61;
/// Nobody else shows it.
const EXCLUSIVE: u64 = 1 << 56;
const WORD: usize = size_of::<u64>();

impl Inode for PageMap {
    fn metadata(&self) -> Metadata {
        self.attr.metadata(FileType::Regular)
    }

    fn kind(&self) -> FileType {
        FileType::Regular
    }

    fn open(self: Arc<Self>, _: OpenFlags) -> Result<Option<Arc<dyn FileOps>>> {
        let space = self.process.space_of_opening()?;
        Ok(Some(Arc::new(PageMapOps { space })))
    }
}

struct PageMapOps {
    space: Weak<AddressSpace>,
}

impl FileOps for PageMapOps {
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
        let offset = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
        if !offset.is_multiple_of(WORD) || !buf.len().is_multiple_of(WORD) {
            return Err(Errno::EINVAL);
        }
        let Some(space) = self.space.upgrade() else {
            return Ok(0);
        };
        let all = vm::USER_END / PAGE_SIZE;
        let first = (offset / WORD).min(all);
        let range = first..(first + buf.len() / WORD).min(all);
        let words = &mut buf[..range.len() * WORD];
        words.fill(0);
        space.for_each_present_page(
            range.start * PAGE_SIZE..range.end * PAGE_SIZE,
            |va, own, exclusive| {
                let word =
                    PRESENT | if own { 0 } else { FILE } | if exclusive { EXCLUSIVE } else { 0 };
                let at = (va / PAGE_SIZE - range.start) * WORD;
                words[at..at + WORD].copy_from_slice(&word.to_ne_bytes());
            },
        );
        Ok(words.len())
    }

    fn seek(&self, file: &File, whence: Whence, offset: i64) -> Result<u64> {
        mem::seek(file, whence, offset)
    }

    fn is_pollable(&self) -> bool {
        false
    }
}

/// Carries out a write to `clear_refs`: resets the peak of memory. What pages were used is not
/// recorded.
pub(super) fn clear_refs(process: &Process, what: u32) -> Result<()> {
    const PEAK: u32 = 5;
    if what != PEAK {
        return Err(Errno::EINVAL);
    }
    let now = process.space().map_or(0, |space| space.resident() as u64);
    process.max_rss.store(now, Ordering::Relaxed);
    Ok(())
}

/// `numa_maps`: there is one node.
pub(super) fn numa_maps(space: &AddressSpace) -> Result<String> {
    maps::text_of_areas(space, |text, area| {
        let sum = space.residency_of(&area.range);
        write!(
            text,
            "{:08x} {}",
            area.range.start,
            mempolicy::policy_name(area.policy)
        )?;
        match &area.name[..] {
            b"[heap]" => text.write_str(" heap")?,
            b"[stack]" => text.write_str(" stack")?,
            name if name.starts_with(b"/") => {
                write!(text, " file={}", String::from_utf8_lossy(name))?;
            }
            _ => {}
        }
        let pages = |bytes: usize| bytes / PAGE_SIZE;
        let rows = [
            ("anon", pages(sum.anonymous)),
            ("dirty", pages(sum.private_dirty + sum.shared_dirty)),
            ("mapped", pages(sum.resident - sum.anonymous)),
            ("N0", pages(sum.resident)),
        ];
        for (name, pages) in rows.into_iter().filter(|row| row.1 > 0) {
            write!(text, " {name}={pages}")?;
        }
        text.write_str(if sum.resident > 0 {
            " kernelpagesize_kB=4\n"
        } else {
            "\n"
        })
    })
}

/// `map_files`: a link for each part of a file that is mapped, by name. One to a file that was
/// removed leads nowhere. Only who may restore processes follows them, as on Linux: they lead past
/// the directories of the file.
pub(super) struct MapFiles {
    pub(super) attr: PseudoAttr,
    pub(super) process: ProcessRef,
}

/// Areas that are listed at a time.
const LISTED_AT_ONCE: usize = 512;

impl MapFiles {
    fn space(&self) -> Result<Arc<AddressSpace>> {
        accessible_space(&self.process.find()?)?.ok_or(Errno::ENOENT)
    }
}

/// Whether a part of a file is mapped there.
fn is_of_file(area: &VmaInfo) -> bool {
    area.dev != 0
}

fn name_of(area: &VmaInfo) -> String {
    format!("{:x}-{:x}", area.range.start, area.range.end)
}

impl DynamicDir for MapFiles {
    fn attr(&self) -> PseudoAttr {
        self.attr
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let area = self
            .space()?
            .find_vma_info(|area| is_of_file(area) && name_of(area).as_bytes() == name)
            .ok_or(Errno::ENOENT)?;
        let attr = PseudoAttr {
            ino: self.attr.ino + (area.range.start / PAGE_SIZE) as u64,
            mode: 0o600,
            ..self.attr
        };
        let of = self.process.clone();
        let name = area.name.clone();
        let follow = move || {
            let caller = current_task().ok_or(Errno::ESRCH)?;
            if !caller.cred().has_sys_admin() && !caller.cred().capable(CAP_CHECKPOINT_RESTORE) {
                return Err(Errno::EPERM);
            }
            Ok(LinkTarget::Text(area.name.clone()))
        };
        let show = move || of.find_accessible().map(|_| name.clone());
        Ok(pseudo::symlink_with_text(attr, follow, show))
    }

    fn list(&self, after: u64) -> Result<Vec<DynamicEntry>> {
        let listed = |area: VmaInfo| {
            let page = (area.range.start / PAGE_SIZE) as u64;
            DynamicEntry {
                name: name_of(&area).into_bytes(),
                ino: self.attr.ino + page,
                kind: FileType::Symlink,
                key: page + 1,
            }
        };
        let space = self.space()?;
        let mut from = after as usize * PAGE_SIZE;
        loop {
            let areas = space.vma_infos_from(from, LISTED_AT_ONCE);
            let Some(last) = areas.last() else {
                return Ok(Vec::new());
            };
            from = last.range.end;
            let entries = areas.into_iter().filter(is_of_file).map(listed);
            let entries: Vec<_> = entries.filter(|listed| listed.key > after).collect();
            if !entries.is_empty() {
                return Ok(entries);
            }
        }
    }
}

//! What of a process's memory is where: `/proc/<pid>/maps`, `smaps`, `smaps_rollup`, and the sizes
//! in `status` and `statm`.

use alloc::format;
use alloc::string::String;
use core::fmt::{self, Write};
use core::ops::Range;

use abi::errno::Errno;
use fallible::Text;
use vm::{AddressSpace, PAGE_SIZE, Prot, Residency, SpaceStats, VmaFlags, VmaInfo};

use crate::process::Process;

/// A line of `maps`.
fn line(area: &VmaInfo) -> String {
    let flag = |set: bool, letter: char| if set { letter } else { '-' };
    let dev = fs::DeviceId::decode(area.dev);
    let mut line = format!(
        "{:08x}-{:08x} {}{}{}{} {:08x} {:02x}:{:02x} {} ",
        area.range.start,
        area.range.end,
        flag(area.prot.contains(Prot::READ), 'r'),
        flag(area.prot.contains(Prot::WRITE), 'w'),
        flag(area.prot.contains(Prot::EXEC), 'x'),
        if area.shared { 's' } else { 'p' },
        area.offset,
        dev.major,
        dev.minor,
        area.ino,
    );
    if !area.name.is_empty() {
        push_name(&mut line, &String::from_utf8_lossy(&area.name));
    }
    line.push('\n');
    line
}

/// Column in which names begin, if what comes before is not longer.
const NAME_COLUMN: usize = 73;

/// Adds a name to a line, in the column of names.
fn push_name(line: &mut String, name: &str) {
    while line.len() < NAME_COLUMN {
        line.push(' ');
    }
    line.push_str(name);
}

/// Areas that are described at a time.
const AREAS_AT_ONCE: usize = 64;

/// Calls `each` with the areas of a space, one after the other, and with the text so far. There may
/// be as many as a program likes, so the text may be too much for memory.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn text_of_areas(
    space: &AddressSpace,
    mut each: impl FnMut(&mut Text, &VmaInfo) -> fmt::Result,
) -> Result<String, Errno> {
    let mut text = Text::default();
    let mut from = 0;
    loop {
        let areas = space.vma_infos_from(from, AREAS_AT_ONCE);
        let Some(last) = areas.last() else {
            return Ok(text.into_string());
        };
        from = last.range.end;
        for area in &areas {
            each(&mut text, area).map_err(|_| Errno::ENOMEM)?;
        }
    }
}

/// Contents of `/proc/<pid>/maps`, a line for each area.
pub(super) fn maps(space: &AddressSpace) -> Result<String, Errno> {
    text_of_areas(space, |text, area| text.write_str(&line(area)))
}

/// The lines that `smaps` and its sum have in common, with `more` behind the first.
fn amounts(sum: &Residency, more: &[(&str, usize)]) -> String {
    let private = sum.resident - sum.shared;
    let first = [
        ("Rss", sum.resident),
        ("Pss", sum.pss),
        ("Pss_Dirty", sum.pss_dirty),
    ];
    let rows = [
        ("Shared_Clean", sum.shared - sum.shared_dirty),
        ("Shared_Dirty", sum.shared_dirty),
        ("Private_Clean", private - sum.private_dirty),
        ("Private_Dirty", sum.private_dirty),
        ("Referenced", sum.referenced),
        ("Anonymous", sum.anonymous),
        ("LazyFree", 0),
        ("AnonHugePages", sum.large),
        ("ShmemPmdMapped", 0),
        ("FilePmdMapped", 0),
        ("Shared_Hugetlb", 0),
        ("Private_Hugetlb", 0),
        ("Swap", 0),
        ("SwapPss", 0),
        ("Locked", sum.locked),
    ];
    let rows = first.iter().chain(more).chain(&rows);
    rows.fold(String::new(), |mut text, row| {
        // Writing to a string does not fail.
        let _ = push(&mut text, *row);
        text
    })
}

fn push(text: &mut impl Write, (name, bytes): (&str, usize)) -> fmt::Result {
    writeln!(text, "{:<16}{:>8} kB", format!("{name}:"), bytes >> 10)
}

/// Contents of `/proc/<pid>/smaps`: the areas with what of them is in memory, in KiB.
pub(super) fn smaps(space: &AddressSpace) -> Result<String, Errno> {
    text_of_areas(space, |text, area| {
        text.write_str(&line(area))?;
        push(text, ("Size", area.range.len()))?;
        push(text, ("KernelPageSize", PAGE_SIZE))?;
        push(text, ("MMUPageSize", PAGE_SIZE))?;
        text.write_str(&amounts(&space.residency_of(&area.range), &[]))?;
        writeln!(text, "THPeligible:    {}", u8::from(area.large))?;
        push_flags(text, area)
    })
}

/// Adds the line `VmFlags` of `smaps`, of flags in the order of their bits on Linux.
fn push_flags(text: &mut impl Write, area: &VmaInfo) -> fmt::Result {
    let names = [
        ("rd", area.prot.contains(Prot::READ)),
        ("wr", area.prot.contains(Prot::WRITE)),
        ("ex", area.prot.contains(Prot::EXEC)),
        ("sh", area.shared && area.may_write),
        ("mr", true),
        ("mw", area.may_write),
        ("me", true),
        ("ms", area.shared),
        ("gd", area.flags.contains(VmaFlags::GROWSDOWN)),
        ("lo", area.flags.contains(VmaFlags::LOCKED)),
        ("dc", area.flags.contains(VmaFlags::DONTFORK)),
        ("wf", area.flags.contains(VmaFlags::WIPEONFORK)),
        ("dd", area.flags.contains(VmaFlags::DONTDUMP)),
        ("hg", area.flags.contains(VmaFlags::LARGE)),
        ("nh", area.flags.contains(VmaFlags::NO_LARGE)),
    ];
    text.write_str("VmFlags: ")?;
    for (name, _) in names.into_iter().filter(|(_, is_set)| *is_set) {
        write!(text, "{name} ")?;
    }
    text.write_str("\n")
}

/// Contents of `/proc/<pid>/smaps_rollup`: the sums over all areas, in KiB.
pub(super) fn smaps_rollup(space: &AddressSpace) -> Result<String, Errno> {
    let mut range: Option<Range<usize>> = None;
    let mut all = Residency::default();
    text_of_areas(space, |_, area| {
        let start = range.take().map_or(area.range.start, |range| range.start);
        range = Some(start..area.range.end);
        all.add(&space.residency_of(&area.range));
        Ok(())
    })?;
    let range = range.unwrap_or_default();
    let mut text = format!(
        "{:08x}-{:08x} ---p 00000000 00:00 0 ",
        range.start, range.end
    );
    push_name(&mut text, "[rollup]\n");
    let kinds = [
        ("Pss_Anon", all.pss_by_kind.anonymous),
        ("Pss_File", all.pss_by_kind.file),
        ("Pss_Shmem", all.pss_by_kind.shared),
    ];
    text.push_str(&amounts(&all, &kinds));
    Ok(text)
}

/// The lines of `status` about memory; none for a process that has ended.
pub(super) fn status(process: &Process) -> String {
    let Some(space) = process.space() else {
        return String::new();
    };
    let (stats, kinds) = (space.stats(), space.resident_by_kind());
    let program = text_size(process);
    let rows = [
        ("VmPeak", stats.peak),
        ("VmSize", stats.size),
        ("VmLck", stats.locked),
        ("VmPin", 0),
        ("VmHWM", process.update_max_rss() as usize),
        ("VmRSS", stats.resident),
        ("RssAnon", kinds.anonymous),
        ("RssFile", kinds.file),
        ("RssShmem", kinds.shared),
        ("VmData", stats.data),
        ("VmStk", stats.stack),
        ("VmExe", program),
        ("VmLib", stats.text.saturating_sub(program)),
        // A table for every 2 MiB in use, if they are in use as a whole.
        ("VmPTE", (stats.resident / 512).next_multiple_of(PAGE_SIZE)),
        ("VmSwap", 0),
    ];
    let mut text = rows.iter().fold(String::new(), |mut text, (name, bytes)| {
        let _ = writeln!(text, "{name}:\t{:>8} kB", bytes >> 10);
        text
    });
    let _ = writeln!(
        text,
        "HugetlbPages:\t{:>8} kB\nCoreDumping:\t{}",
        0,
        u8::from(process.core_dump.is_running())
    );
    let _ = writeln!(
        text,
        "THP_enabled:\t{}",
        u8::from(space.may_have_large_pages())
    );
    text
}

/// Size of the program's own code, in bytes.
fn text_size(process: &Process) -> usize {
    let code = process.image.lock().code.clone();
    vm::page_align_up(code.end)
        .unwrap_or(0)
        .saturating_sub(vm::page_align_down(code.start))
}

/// Contents of `/proc/<pid>/statm`, in pages.
pub(super) fn statm(process: &Process) -> String {
    let Some(space) = process.space() else {
        return "0 0 0 0 0 0 0\n".into();
    };
    let (stats, kinds) = (space.stats(), space.resident_by_kind());
    let SpaceStats {
        size,
        resident,
        data,
        stack,
        ..
    } = stats;
    let [size, resident, shared, text, data] = [
        size,
        resident,
        kinds.file + kinds.shared,
        text_size(process),
        data + stack,
    ]
    .map(|bytes| bytes / PAGE_SIZE);
    format!("{size} {resident} {shared} {text} 0 {data} 0\n")
}

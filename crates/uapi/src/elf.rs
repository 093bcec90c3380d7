//! What an ELF file says about how it wants to be loaded. Nothing here loads anything.

use alloc::vec::Vec;
use core::ops::Range;

use abi::errno::Errno;
use elf::endian::LittleEndian;
use elf::file::{Class, FileHeader, parse_ident};
use elf::segment::SegmentTable;
use vm::{PAGE_SIZE, Prot, USER_END, page_align_down, page_align_up};

/// The most bytes of program headers that are read, as on Linux.
const MAX_TABLE: usize = 65_536;
/// Bytes of the file header.
pub const HEADER: usize = 64;
/// The length of a program header.
const ENTRY: usize = 56;
/// The longest name of a program interpreter.
const MAX_INTERPRETER: u64 = 4096;

/// Header of an ELF file: where its program headers are.
#[derive(Clone, Copy, Debug)]
pub struct ElfHeader {
    /// Whether it can be loaded anywhere.
    relocatable: bool,
    entry: usize,
    count: u16,
    /// Offset of the program headers in the file, and their length.
    pub table: (u64, usize),
}

/// A part of the file that becomes memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Addresses of the part that comes from the file.
    pub file: Range<usize>,
    /// End of the segment in memory; what is behind the file's part is zero.
    pub end: usize,
    /// The offset of `file.start` in the file; congruent to it by page.
    pub offset: u64,
    /// Protection of the segment's memory.
    pub prot: Prot,
}

impl Segment {
    /// The whole pages it covers.
    #[must_use]
    pub fn pages(&self) -> Range<usize> {
        page_align_down(self.file.start)..self.end.next_multiple_of(PAGE_SIZE)
    }
}

/// A program as its file describes it; addresses are without the load address.
#[derive(Clone, Debug)]
pub struct ElfProgram {
    /// Whether it can be loaded anywhere (`ET_DYN`).
    pub relocatable: bool,
    /// Address of the first instruction.
    pub entry: usize,
    /// Segments of the program, ascending.
    pub segments: Vec<Segment>,
    /// Offset and length of its interpreter's name in the file.
    pub interpreter: Option<(u64, usize)>,
    /// Address of the program headers in memory; 0 if they are not.
    pub headers: usize,
    /// Number of program headers.
    pub header_count: usize,
    /// Whether its stack is executable.
    pub executable_stack: bool,
    /// The largest alignment of a segment.
    pub align: usize,
}

impl ElfProgram {
    /// The whole pages from the first to the last segment.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        let first = self.segments.first().map_or(0, |s| s.pages().start);
        first..self.segments.last().map_or(0, |s| s.pages().end)
    }

    /// From where to where its code is, and its data, as `/proc` tells it: the highest segment is
    /// where data begin.
    #[must_use]
    pub fn code_and_data(&self) -> [Range<usize>; 2] {
        let code = || {
            self.segments
                .iter()
                .filter(|s| s.prot.contains(Prot::EXEC))
                .map(|s| &s.file)
        };
        let all = || self.segments.iter().map(|s| &s.file);
        let first = |starts: Option<usize>| starts.unwrap_or(0);
        let (code_start, code_end) = (
            first(code().map(|f| f.start).min()),
            first(code().map(|f| f.end).max()),
        );
        [
            code_start..code_end,
            first(all().map(|f| f.start).max())..first(all().map(|f| f.end).max()),
        ]
    }
}

/// Reads the file header.
///
/// # Errors
/// `ENOEXEC` if it is not a 64-bit x86 program.
pub fn header(bytes: &[u8]) -> Result<ElfHeader, Errno> {
    let bytes = bytes.get(..HEADER).ok_or(Errno::ENOEXEC)?;
    let ident = parse_ident::<LittleEndian>(bytes).map_err(|_| Errno::ENOEXEC)?;
    if ident.1 != Class::ELF64 {
        return Err(Errno::ENOEXEC);
    }
    let header =
        FileHeader::parse_tail(ident, &bytes[elf::abi::EI_NIDENT..]).map_err(|_| Errno::ENOEXEC)?;
    let kind = matches!(header.e_type, elf::abi::ET_EXEC | elf::abi::ET_DYN);
    let size = usize::from(header.e_phnum) * ENTRY;
    if !kind
        || header.e_machine != elf::abi::EM_X86_64
        || usize::from(header.e_phentsize) != ENTRY
        || size == 0
        || size > MAX_TABLE
    {
        return Err(Errno::ENOEXEC);
    }
    Ok(ElfHeader {
        relocatable: header.e_type == elf::abi::ET_DYN,
        entry: usize::try_from(header.e_entry).map_err(|_| Errno::ENOEXEC)?,
        count: header.e_phnum,
        table: (header.e_phoff, size),
    })
}

fn protection(flags: u32) -> Prot {
    let mut prot = Prot::empty();
    prot.set(Prot::READ, flags & elf::abi::PF_R != 0);
    prot.set(Prot::WRITE, flags & elf::abi::PF_W != 0);
    prot.set(Prot::EXEC, flags & elf::abi::PF_X != 0);
    prot
}

/// Reads the program headers, which `table` holds.
///
/// # Errors
/// `ENOEXEC` if they make no sense.
pub fn program(header: &ElfHeader, table: &[u8]) -> Result<ElfProgram, Errno> {
    let mut program = ElfProgram {
        relocatable: header.relocatable,
        entry: header.entry,
        segments: Vec::new(),
        interpreter: None,
        headers: 0,
        header_count: usize::from(header.count),
        executable_stack: false,
        align: PAGE_SIZE,
    };
    for entry in SegmentTable::new(LittleEndian, Class::ELF64, table) {
        match entry.p_type {
            elf::abi::PT_LOAD => {
                let start = usize::try_from(entry.p_vaddr).map_err(|_| Errno::ENOEXEC)?;
                let size = |bytes: u64| {
                    usize::try_from(bytes)
                        .ok()
                        .and_then(|b| start.checked_add(b))
                        .filter(|&end| end <= USER_END)
                };
                let (Some(file_end), Some(end)) = (size(entry.p_filesz), size(entry.p_memsz))
                else {
                    return Err(Errno::ENOEXEC);
                };
                let aligned = entry.p_offset % PAGE_SIZE as u64 == (start % PAGE_SIZE) as u64;
                let ascending = program
                    .segments
                    .last()
                    .is_none_or(|last| last.pages().end <= page_align_down(start));
                let in_file = i64::try_from(entry.p_offset).is_ok();
                if entry.p_filesz > entry.p_memsz
                    || !aligned
                    || !ascending
                    || !in_file
                    || page_align_up(end).is_none()
                {
                    return Err(Errno::ENOEXEC);
                }
                let align = usize::try_from(entry.p_align).unwrap_or(0);
                if align.is_power_of_two() {
                    program.align = program.align.max(align);
                }
                let table = entry.p_offset..entry.p_offset + entry.p_filesz;
                if table.contains(&header.table.0) {
                    program.headers = start + (header.table.0 - entry.p_offset) as usize;
                }
                let prot = protection(entry.p_flags);
                program.segments.push(Segment {
                    file: start..file_end,
                    end,
                    offset: entry.p_offset,
                    prot,
                });
            }
            elf::abi::PT_INTERP if program.interpreter.is_none() => {
                if !(2..=MAX_INTERPRETER).contains(&entry.p_filesz) {
                    return Err(Errno::ENOEXEC);
                }
                program.interpreter = Some((entry.p_offset, entry.p_filesz as usize));
            }
            elf::abi::PT_GNU_STACK => {
                program.executable_stack = entry.p_flags & elf::abi::PF_X != 0;
            }
            _ => {}
        }
    }
    if program.segments.is_empty() || program.entry >= USER_END {
        return Err(Errno::ENOEXEC);
    }
    Ok(program)
}

/// A script's interpreter and its one argument, from the file's first line.
///
/// # Errors
/// `ENOEXEC` if it is no script, or its first line is longer than `head`.
pub fn script(head: &[u8]) -> Result<(Vec<u8>, Option<Vec<u8>>), Errno> {
    let rest = head.strip_prefix(b"#!").ok_or(Errno::ENOEXEC)?;
    let line = match rest.iter().position(|&b| b == b'\n') {
        Some(end) => &rest[..end],
        // A whole file without a newline is a line, a beginning is not.
        None if rest.len() < SCRIPT_LINE - 2 => rest,
        None => return Err(Errno::ENOEXEC),
    };
    let line = line.trim_ascii();
    let split = line
        .iter()
        .position(|b| matches!(b, b' ' | b'\t'))
        .unwrap_or(line.len());
    let (name, argument) = (&line[..split], line[split..].trim_ascii());
    if name.is_empty() {
        return Err(Errno::ENOEXEC);
    }
    Ok((
        name.to_vec(),
        (!argument.is_empty()).then(|| argument.to_vec()),
    ))
}

/// Bytes of a file that are looked at to see what it is.
pub const SCRIPT_LINE: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn header_bytes(kind: u16, count: u16) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
        bytes[16..18].copy_from_slice(&kind.to_le_bytes());
        bytes[18..20].copy_from_slice(&62u16.to_le_bytes());
        bytes[24..32].copy_from_slice(&0x1040u64.to_le_bytes());
        bytes[32..40].copy_from_slice(&64u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&count.to_le_bytes());
        bytes
    }

    fn entry(kind: u32, flags: u32, words: [u64; 5]) -> Vec<u8> {
        let [offset, vaddr, filesz, memsz, align] = words;
        let mut bytes = [kind.to_le_bytes(), flags.to_le_bytes()].concat();
        for word in [offset, vaddr, vaddr, filesz, memsz, align] {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn a_position_independent_program() {
        let header = header(&header_bytes(3, 4)).unwrap();
        assert_eq!(header.table, (64, 4 * 56));
        let table = [
            entry(1, 5, [0, 0, 0x2000, 0x2000, 0x1000]),
            entry(1, 6, [0x2800, 0x4800, 0x100, 0x1000, 0x200000]),
            entry(3, 4, [0x300, 0x300, 28, 28, 1]),
            entry(0x6474_e551, 6, [0; 5]),
        ]
        .concat();
        let p = program(&header, &table).unwrap();
        assert!(p.relocatable && !p.executable_stack);
        assert_eq!(
            (p.entry, p.headers, p.header_count, p.align),
            (0x1040, 64, 4, 0x20_0000)
        );
        assert_eq!(p.interpreter, Some((0x300, 28)));
        assert_eq!(p.span(), 0..0x6000);
        assert_eq!(p.segments[1].file, 0x4800..0x4900);
        assert_eq!(p.segments[1].pages(), 0x4000..0x6000);
        assert_eq!(p.segments[1].prot, Prot::READ | Prot::WRITE);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(header(b"#!/bin/sh").is_err());
        assert!(header(&header_bytes(1, 1)).is_err());
        assert!(header(&header_bytes(2, 0)).is_err());
        let one = header(&header_bytes(2, 1)).unwrap();
        for words in [
            [0, 0x40_0000, 0x2000, 0x1000, 0],
            [0x10, 0x40_0000, 0x10, 0x10, 0],
            [0, 0x7fff_ffff_0000, 0x10, 0x10_0000, 0],
            [0, u64::MAX - 0xfff, 0x10, 0x2000, 0],
        ] {
            assert_eq!(
                program(&one, &entry(1, 5, words)).err(),
                Some(Errno::ENOEXEC),
                "{words:x?}"
            );
        }
        assert!(program(&one, &entry(6, 5, [0; 5])).is_err());
    }

    #[test]
    fn scripts() {
        assert_eq!(script(b"#!/bin/sh\necho"), Ok((b"/bin/sh".to_vec(), None)));
        assert_eq!(
            script(b"#! /usr/bin/env  -S a b \n"),
            Ok((b"/usr/bin/env".to_vec(), Some(b"-S a b".to_vec())))
        );
        assert_eq!(script(b"#!/bin/true"), Ok((b"/bin/true".to_vec(), None)));
        assert_eq!(script(b"#!\n"), Err(Errno::ENOEXEC));
        assert_eq!(
            script(&[b"#!".to_vec(), vec![b'a'; 300]].concat()),
            Err(Errno::ENOEXEC)
        );
    }
}

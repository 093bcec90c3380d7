//! Core files: the ELF header, the program headers and the notes of one, as debuggers read them
//! (`core(5)`, Linux' `binfmt_elf.c`). Pure.

use alloc::vec::Vec;
use core::ops::Range;

use abi::errno::Errno;
use fallible::TryExtend;
use zerocopy::{Immutable, IntoBytes};

use crate::siginfo::SigInfo;
use crate::user_regs::UserRegsStruct;

/// Registers and identity of a thread (`struct elf_prstatus`).
pub const NT_PRSTATUS: u32 = 1;
/// Floating-point registers (`struct user_fpregs_struct`).
pub const NT_FPREGSET: u32 = 2;
/// Name and identity of the process (`struct elf_prpsinfo`).
pub const NT_PRPSINFO: u32 = 3;
/// The auxiliary vector.
pub const NT_AUXV: u32 = 6;
/// Area of the processor's XSAVE.
pub const NT_X86_XSTATE: u32 = 0x202;
/// The `siginfo_t` of the signal.
pub const NT_SIGINFO: u32 = 0x5349_4749;
/// Files that are mapped, and where.
pub const NT_FILE: u32 = 0x4649_4c45;

/// Bytes of the file's header.
pub const EHDR: usize = 64;
/// Bytes of a program header.
pub const PHDR: usize = 56;
/// Bytes of a section header.
const SHDR: usize = 64;
/// Number of program headers that says: their number is in the first section header.
const PN_XNUM: usize = 0xffff;
/// Granularity of the parts of the file that are memory.
const PAGE: u64 = 4096;
/// Most bytes of a note about mapped files; what needs more has none.
const MAX_FILE_NOTE: usize = 4 << 20;

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;

/// A program header (`Elf64_Phdr`).
#[derive(Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
struct Phdr {
    kind: u32,
    flags: u32,
    offset: u64,
    vaddr: u64,
    paddr: u64,
    file_size: u64,
    memory_size: u64,
    align: u64,
}

/// A section header (`Elf64_Shdr`).
#[derive(Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
struct Shdr {
    name: u32,
    kind: u32,
    flags: u64,
    addr: u64,
    offset: u64,
    size: u64,
    link: u32,
    info: u32,
    align: u64,
    entry_size: u64,
}

/// The file's header (`Elf64_Ehdr`).
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct Ehdr {
    ident: [u8; 16],
    kind: u16,
    machine: u16,
    version: u32,
    entry: u64,
    program_headers: u64,
    section_headers: u64,
    flags: u32,
    size: u16,
    program_header_size: u16,
    program_header_count: u16,
    section_header_size: u16,
    section_header_count: u16,
    section_names: u16,
}

const _: () =
    assert!(size_of::<Phdr>() == PHDR && size_of::<Ehdr>() == EHDR && size_of::<Shdr>() == SHDR);

/// A part of the program's memory, as far as the file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Addresses of the memory.
    pub memory: Range<usize>,
    /// Bytes of it, from its beginning on, that are in the file.
    pub dumped: usize,
    /// Whether the program could read, write and execute it.
    pub access: [bool; 3],
}

/// Places of the parts of a core file: headers, notes, memory, and a section header if there are
/// more segments than the file's header can count.
pub struct Layout {
    segments: usize,
    notes: usize,
    /// Offset of the first segment's bytes.
    pub memory: u64,
    /// Offset behind the last segment's bytes.
    pub end: u64,
}

impl Layout {
    /// The layout of a file with these segments and so many bytes of notes.
    #[must_use]
    pub fn new(segments: &[Segment], notes: usize) -> Self {
        let headers = EHDR + PHDR * (segments.len() + 1);
        let memory = ((headers + notes) as u64).next_multiple_of(PAGE);
        let dumped: u64 = segments.iter().map(|segment| segment.dumped as u64).sum();
        Self {
            segments: segments.len(),
            notes,
            memory,
            end: memory + dumped,
        }
    }

    /// Whether the number of program headers is told by a section header.
    fn is_extended(&self) -> bool {
        self.segments + 1 >= PN_XNUM
    }

    /// The file's header.
    #[must_use]
    pub fn header(&self) -> [u8; EHDR] {
        let extended = self.is_extended();
        let header = Ehdr {
            // 64 bits, little-endian, version 1, System V.
            ident: *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0",
            // ET_CORE, EM_X86_64.
            kind: 4,
            machine: 62,
            version: 1,
            entry: 0,
            program_headers: EHDR as u64,
            section_headers: if extended { self.end } else { 0 },
            flags: 0,
            size: EHDR as u16,
            program_header_size: PHDR as u16,
            program_header_count: (self.segments + 1).min(PN_XNUM) as u16,
            section_header_size: if extended { SHDR as u16 } else { 0 },
            section_header_count: u16::from(extended),
            section_names: 0,
        };
        let mut bytes = [0; EHDR];
        bytes.copy_from_slice(header.as_bytes());
        bytes
    }

    /// The program header of the notes.
    #[must_use]
    pub fn note_header(&self) -> [u8; PHDR] {
        program_header(&Phdr {
            kind: PT_NOTE,
            offset: (EHDR + PHDR * (self.segments + 1)) as u64,
            file_size: self.notes as u64,
            align: 4,
            ..Phdr::default()
        })
    }

    /// Bytes between the notes and the first segment.
    #[must_use]
    pub fn padding(&self) -> usize {
        self.memory as usize - (EHDR + PHDR * (self.segments + 1) + self.notes)
    }

    /// The section header at the file's end, if there is one.
    #[must_use]
    pub fn trailer(&self) -> Option<[u8; SHDR]> {
        let section = Shdr {
            size: 1,
            info: (self.segments + 1) as u32,
            ..Shdr::default()
        };
        self.is_extended().then(|| {
            let mut bytes = [0; SHDR];
            bytes.copy_from_slice(section.as_bytes());
            bytes
        })
    }
}

fn program_header(header: &Phdr) -> [u8; PHDR] {
    let mut bytes = [0; PHDR];
    bytes.copy_from_slice(header.as_bytes());
    bytes
}

impl Segment {
    /// The program header of the segment, whose bytes are at `offset` in the file.
    #[must_use]
    pub fn header(&self, offset: u64) -> [u8; PHDR] {
        let flags = self.access.iter().zip([PF_R, PF_W, PF_X]);
        program_header(&Phdr {
            kind: PT_LOAD,
            flags: flags.map(|(&may, flag)| if may { flag } else { 0 }).sum(),
            offset,
            vaddr: self.memory.start as u64,
            paddr: 0,
            file_size: self.dumped as u64,
            memory_size: self.memory.len() as u64,
            align: PAGE,
        })
    }
}

/// Adds a note to those of a file.
///
/// # Errors
/// `ENOMEM`.
pub fn add_note(notes: &mut Vec<u8>, kind: u32, content: &[u8]) -> Result<(), Errno> {
    // Sets of registers that other systems do not know are Linux' own.
    let name: &[u8] = if kind == NT_X86_XSTATE {
        b"LINUX\0\0\0"
    } else {
        b"CORE\0\0\0\0"
    };
    let name_len = if kind == NT_X86_XSTATE { 6u32 } else { 5 };
    let len = u32::try_from(content.len()).map_err(|_| Errno::ENOMEM)?;
    for part in [
        name_len.as_bytes(),
        len.as_bytes(),
        kind.as_bytes(),
        name,
        content,
    ] {
        notes.try_extend(part)?;
    }
    notes.try_extend(&[0; 3][..notes.len().next_multiple_of(4) - notes.len()])
}

/// Content of `NT_PRSTATUS`, about a thread: `struct elf_prstatus`.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub struct PrStatus {
    signo: i32,
    code: i32,
    errno: i32,
    current_signal: i16,
    padding: u16,
    /// Pending signals of the thread, and those that it blocks.
    pub pending: u64,
    /// Signals that the thread blocks.
    pub blocked: u64,
    /// Number of the thread.
    pub tid: i32,
    /// Number of the parent, of the group and of the session of the process.
    pub relations: [i32; 3],
    /// User and system time of the thread, then of the children that were waited for: seconds and
    /// microseconds.
    pub times: [[i64; 2]; 4],
    regs: UserRegsStruct,
    /// Whether there is a note about floating-point registers.
    has_fpu: i32,
    padding_end: u32,
}

const _: () = assert!(size_of::<PrStatus>() == 336);

impl PrStatus {
    /// The note about a thread with these registers, in a process that a signal ends.
    #[must_use]
    pub fn new(info: &SigInfo, regs: UserRegsStruct) -> Self {
        Self {
            signo: info.signo,
            code: 0,
            errno: 0,
            current_signal: info.signo as i16,
            padding: 0,
            pending: 0,
            blocked: 0,
            tid: 0,
            relations: [0; 3],
            times: [[0; 2]; 4],
            regs,
            has_fpu: 1,
            padding_end: 0,
        }
    }
}

/// Content of `NT_PRPSINFO`, about the process: `struct elf_prpsinfo`.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub struct PrPsInfo {
    state: u8,
    /// State of the thread, as a letter.
    letter: u8,
    zombie: u8,
    /// Nice value of the process.
    pub nice: i8,
    padding: u32,
    flags: u64,
    /// Real user and group.
    pub ids: [u32; 2],
    /// Number of the process.
    pub pid: i32,
    /// Number of the parent, of the group and of the session.
    pub relations: [i32; 3],
    name: [u8; 16],
    arguments: [u8; 80],
}

const _: () = assert!(size_of::<PrPsInfo>() == 136);

impl PrPsInfo {
    /// The note about a process with a name and arguments, each of which a NUL ends; both are cut
    /// to what fits.
    #[must_use]
    pub fn new(name: &[u8], arguments: &[u8]) -> Self {
        let mut info = Self {
            state: 0,
            letter: b'R',
            zombie: 0,
            nice: 0,
            padding: 0,
            flags: 0,
            ids: [0; 2],
            pid: 0,
            relations: [0; 3],
            name: [0; 16],
            arguments: [0; 80],
        };
        for (to, &byte) in info.name[..15].iter_mut().zip(name) {
            *to = byte;
        }
        for (to, &byte) in info.arguments[..79].iter_mut().zip(arguments) {
            *to = if byte == 0 { b' ' } else { byte };
        }
        info
    }
}

/// A mapped file: its addresses, where in the file that begins (bytes), and its name.
pub struct MappedFile<'a> {
    /// Addresses.
    pub memory: Range<usize>,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Path of the file.
    pub name: &'a [u8],
}

/// The content of `NT_FILE`; empty if there would be too much of it.
///
/// # Errors
/// `ENOMEM`.
pub fn file_note<'a>(
    files: impl Iterator<Item = MappedFile<'a>> + Clone,
) -> Result<Vec<u8>, Errno> {
    let mut note = Vec::new();
    let count = files.clone().count() as u64;
    note.try_extend([count, PAGE].as_bytes())?;
    for file in files.clone() {
        let entry = [
            file.memory.start as u64,
            file.memory.end as u64,
            file.offset / PAGE,
        ];
        note.try_extend(entry.as_bytes())?;
    }
    for file in files {
        if note.len() + file.name.len() >= MAX_FILE_NOTE {
            return Ok(Vec::new());
        }
        note.try_extend(file.name)?;
        note.try_extend(&[0])?;
    }
    Ok(note)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(start: usize, len: usize, dumped: usize) -> Segment {
        Segment {
            memory: start..start + len,
            dumped,
            access: [true, false, true],
        }
    }

    fn word(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    fn half(bytes: &[u8], at: usize) -> u16 {
        u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
    }

    #[test]
    fn memory_begins_with_a_page() {
        let segments = [segment(0x1000, 8192, 4096), segment(0x8000, 4096, 0)];
        let layout = Layout::new(&segments, 100);
        assert_eq!((layout.memory, layout.end), (4096, 8192));
        assert_eq!(64 + 56 * 3 + 100 + layout.padding(), 4096);
        let header = layout.header();
        assert_eq!((half(&header, 16), half(&header, 18)), (4, 62));
        assert_eq!((word(&header, 32), half(&header, 56)), (64, 3));
        assert_eq!((word(&header, 40), half(&header, 60)), (0, 0));
        assert!(layout.trailer().is_none());
        let notes = layout.note_header();
        assert_eq!((notes[0], word(&notes, 8), word(&notes, 32)), (4, 232, 100));
        let load = segments[0].header(layout.memory);
        assert_eq!((load[0], load[4]), (1, 5));
        let fields = [8, 16, 32, 40, 48].map(|at| word(&load, at));
        assert_eq!(fields, [4096, 0x1000, 4096, 8192, 4096]);
    }

    #[test]
    fn more_segments_than_fit_are_counted_by_a_section() {
        let count = |segments: usize| {
            let segments = alloc::vec![segment(0x1000, 4096, 4096); segments];
            let layout = Layout::new(&segments, 4);
            (layout.header(), layout.trailer(), layout.end)
        };
        let (header, trailer, _) = count(0xfffd);
        assert_eq!((half(&header, 56), trailer), (0xfffe, None));
        let (header, trailer, end) = count(0xfffe);
        assert_eq!((half(&header, 56), half(&header, 60)), (0xffff, 1));
        assert_eq!(word(&header, 40), end);
        assert_eq!(trailer.unwrap()[44..48], 0xffffu32.to_le_bytes());
    }

    #[test]
    fn notes_are_padded() {
        let mut notes = Vec::new();
        add_note(&mut notes, NT_AUXV, b"abcde").unwrap();
        add_note(&mut notes, NT_X86_XSTATE, b"wxyz").unwrap();
        let expected = [
            &[5, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0][..],
            b"CORE\0\0\0\0abcde\0\0\0",
            &[6, 0, 0, 0, 4, 0, 0, 0, 2, 2, 0, 0],
            b"LINUX\0\0\0wxyz",
        ]
        .concat();
        assert_eq!(notes, expected);
    }

    #[test]
    fn names_and_arguments_are_cut() {
        let info = PrPsInfo::new(
            b"a-name-of-20-letters",
            &[b"x\0yy\0".as_slice(), &[b'z'; 99]].concat(),
        );
        let bytes = info.as_bytes();
        assert_eq!(&bytes[40..56], b"a-name-of-20-le\0");
        assert_eq!((&bytes[56..62], bytes[135]), (&b"x yy z"[..], 0));
    }

    #[test]
    fn mapped_files_are_told_with_pages_of_the_file() {
        let files = [("/lib/a", 0x1000, 0u64), ("/lib/b", 0x4000, 8192)];
        let note = file_note(files.iter().map(|&(name, start, offset)| MappedFile {
            memory: start..start + 4096,
            offset,
            name: name.as_bytes(),
        }))
        .unwrap();
        let words: Vec<u64> = (0..8).map(|i| word(&note, i * 8)).collect();
        assert_eq!(words, [2, 4096, 0x1000, 0x2000, 0, 0x4000, 0x5000, 2]);
        assert_eq!(&note[64..], b"/lib/a\0/lib/b\0");
    }

    #[test]
    fn too_long_a_note_of_files_is_left_out() {
        let name = [b'x'; 4096];
        let file = |_| MappedFile {
            memory: 0..4096,
            offset: 0,
            name: &name,
        };
        assert!(file_note((0..1100).map(file)).unwrap().is_empty());
        assert!(!file_note((0..900).map(file)).unwrap().is_empty());
    }
}

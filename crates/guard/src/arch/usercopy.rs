//! The kernel's access to a program's memory.
//!
//! Every access is a few instructions of assembly whose addresses stand in a table next to where to go on if they fault. A
//! fault on a user address first goes to the registered handler (demand paging, copy on write), in thread context with
//! interrupts on, and the instruction is tried again if that succeeds; string instructions continue where they were.
//! With interrupts off there is no handler, so that a copy from a place that must not sleep fails instead.
//!
//! Addresses are checked against [`USER_END`] first, so kernel memory is never reached; what the
//! pages allow is the processor's business (CR0.WP is set). With SMAP, user memory is open only in these instructions.

use core::arch::global_asm;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};

use zerocopy::FromBytes;

use super::features::{self, Features};
use super::user::USER_END;

/// The program's memory is not there, or not to be accessed that way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserFault;

// Each routine returns what is left to do: 0 means success. `stac` and `clac` are patched out by a branch, because they do
// not exist without SMAP.
global_asm!(
    ".macro skerry_open",
    "cmp byte ptr [rip + {smap}], 0",
    "je 99f",
    "stac",
    "99:",
    ".endm",
    ".macro skerry_close",
    "cmp byte ptr [rip + {smap}], 0",
    "je 99f",
    "clac",
    "99:",
    ".endm",
    "",
    // rdi: to, rsi: from, rdx: bytes. Eight at a time, then the rest.
    ".global skerry_user_copy",
    "skerry_user_copy:",
    "skerry_open",
    "mov rcx, rdx",
    "shr rcx, 3",
    "2:",
    "rep movsq",
    "mov ecx, edx",
    "and ecx, 7",
    "3:",
    "rep movsb",
    "skerry_close",
    "xor eax, eax",
    "ret",
    // rdi: to, rsi: bytes.
    ".global skerry_user_zero",
    "skerry_user_zero:",
    "skerry_open",
    "xor eax, eax",
    "mov rcx, rsi",
    "shr rcx, 3",
    "4:",
    "rep stosq",
    "mov ecx, esi",
    "and ecx, 7",
    "5:",
    "rep stosb",
    "skerry_close",
    "ret",
    // rdi: from, rsi: result.
    ".global skerry_user_load32",
    "skerry_user_load32:",
    "skerry_open",
    "6:",
    "mov eax, [rdi]",
    "mov [rsi], eax",
    "skerry_close",
    "xor eax, eax",
    "ret",
    ".global skerry_user_load64",
    "skerry_user_load64:",
    "skerry_open",
    "7:",
    "mov rax, [rdi]",
    "mov [rsi], rax",
    "skerry_close",
    "xor eax, eax",
    "ret",
    // rdi: to, rsi: value.
    ".global skerry_user_store32",
    "skerry_user_store32:",
    "skerry_open",
    "8:",
    "mov [rdi], esi",
    "skerry_close",
    "xor eax, eax",
    "ret",
    ".global skerry_user_store64",
    "skerry_user_store64:",
    "skerry_open",
    "9:",
    "mov [rdi], rsi",
    "skerry_close",
    "xor eax, eax",
    "ret",
    // rdi: word, esi: expected, edx: new, rcx: where to put what was found.
    ".global skerry_user_cmpxchg32",
    "skerry_user_cmpxchg32:",
    "skerry_open",
    "mov eax, esi",
    "20:",
    "lock cmpxchg [rdi], edx",
    "mov [rcx], eax",
    "skerry_close",
    "xor eax, eax",
    "ret",
    // rdi: to, rsi: from, rdx: most bytes (not 0), rcx: where to put the bytes before the NUL, or rdx if there is none.
    // First eight at a time, up to the end of the page: what is behind the NUL may not be there.
    ".global skerry_user_string",
    "skerry_user_string:",
    "skerry_open",
    "xor r8d, r8d",
    "mov r9d, esi",
    "or r9, -4096",
    "neg r9",
    "cmp r9, rdx",
    "cmova r9, rdx",
    "mov r11, {ones}",
    "24:",
    "lea r10, [r8 + 8]",
    "cmp r10, r9",
    "ja 21f",
    "25:",
    "mov rax, [rsi + r8]",
    "mov [rdi + r8], rax",
    // The lowest byte that is 0 is the first whose highest bit is set in (word - ones) & !word & (ones << 7).
    "mov r10, rax",
    "sub r10, r11",
    "not rax",
    "and rax, r10",
    "mov r10, r11",
    "shl r10, 7",
    "and rax, r10",
    "jnz 26f",
    "add r8, 8",
    "jmp 24b",
    "26:",
    "bsf rax, rax",
    "shr eax, 3",
    "add r8, rax",
    "jmp 22f",
    "21:",
    "cmp r8, rdx",
    "jae 22f",
    "27:",
    "mov al, [rsi + r8]",
    "mov [rdi + r8], al",
    "test al, al",
    "jz 22f",
    "inc r8",
    "jmp 21b",
    "22:",
    "mov [rcx], r8",
    "skerry_close",
    "xor eax, eax",
    "ret",
    // rdi: from (any address), rsi: result.
    ".global skerry_probe",
    "skerry_probe:",
    "23:",
    "mov rax, [rdi]",
    "mov [rsi], rax",
    "xor eax, eax",
    "ret",
    "skerry_user_failed:",
    "skerry_close",
    "skerry_probe_failed:",
    "mov eax, 1",
    "ret",
    "",
    ".pushsection .rodata.skerry_fixups, \"a\", @progbits",
    ".balign 8",
    ".global skerry_fixups",
    "skerry_fixups:",
    ".quad 2b, skerry_user_failed",
    ".quad 3b, skerry_user_failed",
    ".quad 4b, skerry_user_failed",
    ".quad 5b, skerry_user_failed",
    ".quad 6b, skerry_user_failed",
    ".quad 7b, skerry_user_failed",
    ".quad 8b, skerry_user_failed",
    ".quad 9b, skerry_user_failed",
    ".quad 20b, skerry_user_failed",
    ".quad 25b, skerry_user_failed",
    ".quad 27b, skerry_user_failed",
    ".quad 23b, skerry_probe_failed",
    ".popsection",
    ".purgem skerry_open",
    ".purgem skerry_close",
    smap = sym SMAP,
    ones = const 0x0101_0101_0101_0101_u64,
);

const FIXUPS: usize = 12;

/// Whether SMAP is on; read by the assembly above.
static SMAP: AtomicBool = AtomicBool::new(false);

unsafe extern "sysv64" {
    fn skerry_user_copy(to: *mut u8, from: *const u8, bytes: usize) -> usize;
    fn skerry_user_zero(to: *mut u8, bytes: usize) -> usize;
    fn skerry_user_load32(from: *const u32, result: &mut u32) -> usize;
    fn skerry_user_load64(from: *const u64, result: &mut u64) -> usize;
    fn skerry_user_store32(to: *mut u32, value: u32) -> usize;
    fn skerry_user_store64(to: *mut u64, value: u64) -> usize;
    fn skerry_user_cmpxchg32(word: *mut u32, old: u32, new: u32, found: &mut u32) -> usize;
    fn skerry_user_string(to: *mut u8, from: *const u8, most: usize, length: &mut usize) -> usize;
    fn skerry_probe(from: *const u64, result: &mut u64) -> usize;
    static skerry_fixups: [[u64; 2]; FIXUPS];
}

/// Tells the copies whether SMAP is on. Called by each CPU when it is set up, with the same answer.
pub(super) fn init_cpu() {
    SMAP.store(features::has(Features::SMAP), Ordering::Relaxed);
}

/// Where to go on after a fault at `rip`, if that is one of the accesses above.
pub(super) fn fixup(rip: u64) -> Option<u64> {
    // SAFETY: the table is defined above with this many entries and never written.
    let table = unsafe { &skerry_fixups };
    table.iter().find(|[at, _]| *at == rip).map(|[_, to]| *to)
}

#[inline(always)]
fn check(address: usize, bytes: usize) -> Result<(), UserFault> {
    match address.checked_add(bytes) {
        Some(end) if end <= USER_END => Ok(()),
        _ => Err(UserFault),
    }
}

fn done(left: usize) -> Result<(), UserFault> {
    if left == 0 { Ok(()) } else { Err(UserFault) }
}

/// Copies from a program's memory.
///
/// # Errors
/// [`UserFault`] if any of it cannot be read; `dst` may then be partly written.
#[inline]
pub fn read_bytes(dst: &mut [u8], src: usize) -> Result<(), UserFault> {
    check(src, dst.len())?;
    // SAFETY: the source is user memory, whose faults are handled; the destination is borrowed exclusively.
    done(unsafe { skerry_user_copy(dst.as_mut_ptr(), src as *const u8, dst.len()) })
}

/// Copies a value from a program's memory and shows it to `see`.
///
/// # Errors
/// As [`read_bytes`].
#[inline]
pub fn with_value<T: FromBytes, R>(src: usize, see: impl FnOnce(&T) -> R) -> Result<R, UserFault> {
    check(src, size_of::<T>())?;
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: as in `read_bytes`; the destination has the size of a `T`.
    done(unsafe { skerry_user_copy(value.as_mut_ptr().cast(), src as *const u8, size_of::<T>()) })?;
    // SAFETY: all its bytes were written, and any are a `T`.
    Ok(see(unsafe { value.assume_init_ref() }))
}

/// Copies to a program's memory.
///
/// # Errors
/// [`UserFault`] if any of it cannot be written; a part may then have been.
#[inline]
pub fn write_bytes(dst: usize, src: &[u8]) -> Result<(), UserFault> {
    check(dst, src.len())?;
    // SAFETY: the destination is user memory, which holds nothing of the kernel's; faults are handled.
    done(unsafe { skerry_user_copy(dst as *mut u8, src.as_ptr(), src.len()) })
}

/// Fills a program's memory with zeros.
///
/// # Errors
/// As [`write_bytes`].
pub fn zero(dst: usize, len: usize) -> Result<(), UserFault> {
    check(dst, len)?;
    // SAFETY: as in `write_bytes`.
    done(unsafe { skerry_user_zero(dst as *mut u8, len) })
}

/// Copies a NUL-terminated string, without the NUL, and returns its length; `buf.len()` if there is no NUL in that many
/// bytes.
///
/// # Errors
/// [`UserFault`] if a byte before the NUL cannot be read.
pub fn read_cstr(src: usize, buf: &mut [u8]) -> Result<usize, UserFault> {
    let most = buf.len().min(USER_END.saturating_sub(src));
    if most == 0 {
        return if buf.is_empty() { Ok(0) } else { Err(UserFault) };
    }
    let mut length = 0;
    // SAFETY: at most `most` bytes are read from user memory, whose faults are handled, and written to the buffer.
    done(unsafe { skerry_user_string(buf.as_mut_ptr(), src as *const u8, most, &mut length) })?;
    // A string that runs up to the end of user space is cut off by the address limit, not by the buffer.
    if length == most && most < buf.len() { Err(UserFault) } else { Ok(length) }
}

/// Reads a 32-bit word; in one access if it is aligned.
///
/// # Errors
/// As [`read_bytes`].
#[inline]
pub fn load_u32(src: usize) -> Result<u32, UserFault> {
    check(src, 4)?;
    let mut value = 0;
    // SAFETY: as in `read_bytes`.
    done(unsafe { skerry_user_load32(src as *const u32, &mut value) }).map(|()| value)
}

/// Reads a 64-bit word; in one access if it is aligned.
///
/// # Errors
/// As [`read_bytes`].
#[inline]
pub fn load_u64(src: usize) -> Result<u64, UserFault> {
    check(src, 8)?;
    let mut value = 0;
    // SAFETY: as in `read_bytes`.
    done(unsafe { skerry_user_load64(src as *const u64, &mut value) }).map(|()| value)
}

/// Writes a 32-bit word; in one access if it is aligned.
///
/// # Errors
/// As [`write_bytes`].
#[inline]
pub fn store_u32(dst: usize, value: u32) -> Result<(), UserFault> {
    check(dst, 4)?;
    // SAFETY: as in `write_bytes`.
    done(unsafe { skerry_user_store32(dst as *mut u32, value) })
}

/// Writes a 64-bit word; in one access if it is aligned.
///
/// # Errors
/// As [`write_bytes`].
#[inline]
pub fn store_u64(dst: usize, value: u64) -> Result<(), UserFault> {
    check(dst, 8)?;
    // SAFETY: as in `write_bytes`.
    done(unsafe { skerry_user_store64(dst as *mut u64, value) })
}

/// Replaces `old` by `new` in a program's 32-bit word, atomically, and returns what was there: `old` means it was replaced.
///
/// # Errors
/// As [`write_bytes`]; also if the word is not aligned.
pub fn cmpxchg_u32(addr: usize, old: u32, new: u32) -> Result<u32, UserFault> {
    check(addr, 4)?;
    if !addr.is_multiple_of(4) {
        return Err(UserFault);
    }
    let mut found = 0;
    // SAFETY: as in `write_bytes`.
    done(unsafe { skerry_user_cmpxchg32(addr as *mut u32, old, new, &mut found) }).map(|()| found)
}

/// Reads kernel memory that may not be there, for back traces.
pub(crate) fn probe(address: usize) -> Option<u64> {
    if !address.is_multiple_of(8) || address < abi::layout::DIRECT {
        return None;
    }
    let mut value = 0;
    // SAFETY: a read of kernel memory whose faults are handled. The result is only printed.
    (unsafe { skerry_probe(address as *const u64, &mut value) } == 0).then_some(value)
}

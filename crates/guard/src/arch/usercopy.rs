//! The kernel's access to a program's memory.
//!
//! Every access is a few instructions of assembly, which go on elsewhere if one of them faults. A
//! fault on a user address first goes to the registered handler (demand paging, copy on write), in
//! thread context with interrupts on, and the instruction is tried again if that succeeds; string
//! instructions continue where they were. With interrupts off there is no handler, so that a copy
//! from a place that must not sleep fails instead.
//!
//! Addresses are checked against [`USER_END`] first, so kernel memory is never reached; what the
//! pages allow is the processor's business (CR0.WP is set). With SMAP, user memory is open only in
//! these instructions.

use core::arch::global_asm;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};

use zerocopy::FromBytes;

use super::features::{self, Features};
use super::user::USER_END;
use crate::speculation;

/// The program's memory is not there, or not to be accessed that way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserFault;

// Each routine returns what is left to do: 0 means success. `stac` and `clac` are patched out by a
// branch, because they do not exist without SMAP.
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
    // Wherever an instruction from here on up to `skerry_user_failed` faults, the routine fails.
    ".global skerry_user_first",
    "skerry_user_first:",
    // rdi: to, rsi: from, rdx: bytes. Eight at a time, then the rest.
    ".global skerry_user_copy",
    "skerry_user_copy:",
    "skerry_open",
    "mov rcx, rdx",
    "shr rcx, 3",
    "rep movsq",
    "mov ecx, edx",
    "and ecx, 7",
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
    "rep stosq",
    "mov ecx, esi",
    "and ecx, 7",
    "rep stosb",
    "skerry_close",
    "ret",
    // rdi: from, rsi: result.
    ".global skerry_user_load32",
    "skerry_user_load32:",
    "skerry_open",
    "mov eax, [rdi]",
    "mov [rsi], eax",
    "skerry_close",
    "xor eax, eax",
    "ret",
    ".global skerry_user_load64",
    "skerry_user_load64:",
    "skerry_open",
    "mov rax, [rdi]",
    "mov [rsi], rax",
    "skerry_close",
    "xor eax, eax",
    "ret",
    // rdi: to, rsi: value.
    ".global skerry_user_store32",
    "skerry_user_store32:",
    "skerry_open",
    "mov [rdi], esi",
    "skerry_close",
    "xor eax, eax",
    "ret",
    ".global skerry_user_store8",
    "skerry_user_store8:",
    "skerry_open",
    "mov [rdi], sil",
    "skerry_close",
    "xor eax, eax",
    "ret",
    ".global skerry_user_store64",
    "skerry_user_store64:",
    "skerry_open",
    "mov [rdi], rsi",
    "skerry_close",
    "xor eax, eax",
    "ret",
    // rdi: word, esi: expected, edx: new, rcx: where to put what was found.
    ".global skerry_user_cmpxchg32",
    "skerry_user_cmpxchg32:",
    "skerry_open",
    "mov eax, esi",
    "lock cmpxchg [rdi], edx",
    "mov [rcx], eax",
    "skerry_close",
    "xor eax, eax",
    "ret",
    // rdi: to, rsi: from, rdx: most bytes (not 0), rcx: where to put the bytes before the NUL, or
    // rdx if there is none. First eight at a time, up to the end of the page: what is behind the
    // NUL may not be there.
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
    "mov rax, [rsi + r8]",
    "mov [rdi + r8], rax",
    // The lowest byte that is 0 is the first whose highest bit is set in (word - ones) & !word &
    // (ones << 7).
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
    // rdi: to (a multiple of 64), rsi, rdx, rcx: the words of a `SignalFrame`. XSAVE writes only
    // the first word of the header.
    ".global skerry_user_xsave",
    "skerry_user_xsave:",
    "skerry_open",
    "xor eax, eax",
    "mov [rdi + 512], rax",
    "mov [rdi + 520], rax",
    "mov [rdi + 528], rax",
    "mov [rdi + 536], rax",
    "mov [rdi + 544], rax",
    "mov [rdi + 552], rax",
    "mov [rdi + 560], rax",
    "mov [rdi + 568], rax",
    "mov [rdi + 464], rsi",
    "mov [rdi + 472], rdx",
    "mov [rdi + 480], rcx",
    "mov [rdi + 488], rax",
    "mov [rdi + 496], rax",
    "mov [rdi + 504], rax",
    "mov dword ptr [rdi + rcx], {magic2}",
    "mov eax, -1",
    "mov edx, eax",
    "xsave64 [rdi]",
    "or qword ptr [rdi + 512], {legacy}",
    "skerry_close",
    "xor eax, eax",
    "ret",
    // rdi: from, rsi, rdx, rcx: as above.
    ".global skerry_user_xrstor",
    "skerry_user_xrstor:",
    "skerry_open",
    "cmp [rdi + 464], rsi",
    "jne skerry_user_failed",
    "cmp [rdi + 480], ecx",
    "jne skerry_user_failed",
    "cmp dword ptr [rdi + rcx], {magic2}",
    "jne skerry_user_failed",
    "mov eax, -1",
    "mov edx, eax",
    "xrstor64 [rdi]",
    "skerry_close",
    "xor eax, eax",
    "ret",
    ".global skerry_user_failed",
    "skerry_user_failed:",
    "skerry_close",
    "mov eax, 1",
    "ret",
    // rdi: from (any address), rsi: result.
    ".global skerry_probe",
    "skerry_probe:",
    "mov rax, [rdi]",
    "mov [rsi], rax",
    "xor eax, eax",
    "ret",
    ".global skerry_probe_failed",
    "skerry_probe_failed:",
    "mov eax, 1",
    "ret",
    ".purgem skerry_open",
    ".purgem skerry_close",
    smap = sym SMAP,
    ones = const 0x0101_0101_0101_0101_u64,
    magic2 = const x86_spec::xsave::signal_frame::MAGIC2,
    legacy = const x86_spec::xsave::LEGACY,
);

/// Whether SMAP is on; read by the assembly above.
static SMAP: AtomicBool = AtomicBool::new(false);

unsafe extern "sysv64" {
    fn skerry_user_copy(to: *mut u8, from: *const u8, bytes: usize) -> usize;
    fn skerry_user_zero(to: *mut u8, bytes: usize) -> usize;
    fn skerry_user_load32(from: *const u32, result: &mut u32) -> usize;
    fn skerry_user_load64(from: *const u64, result: &mut u64) -> usize;
    fn skerry_user_store8(to: *mut u8, value: u8) -> usize;
    fn skerry_user_store32(to: *mut u32, value: u32) -> usize;
    fn skerry_user_store64(to: *mut u64, value: u64) -> usize;
    fn skerry_user_cmpxchg32(word: *mut u32, old: u32, new: u32, found: &mut u32) -> usize;
    fn skerry_user_string(to: *mut u8, from: *const u8, most: usize, length: &mut usize) -> usize;
    fn skerry_user_xsave(to: *mut u8, magic_and_total: u64, features: u64, size: u64) -> usize;
    fn skerry_user_xrstor(from: *const u8, magic_and_total: u64, features: u64, size: u64)
    -> usize;
    fn skerry_probe(from: *const u64, result: &mut u64) -> usize;
    static skerry_user_first: u8;
    static skerry_user_failed: u8;
    static skerry_probe_failed: u8;
}

/// Tells the copies whether SMAP is on. Called by each CPU when it is set up, with the same answer.
pub(super) fn init_cpu() {
    SMAP.store(features::has(Features::SMAP), Ordering::Relaxed);
}

/// Address of the fix-up code for a fault at `rip`, if that is one of the accesses above.
pub(crate) fn fixup(rip: u64) -> Option<u64> {
    let (first, failed) = (
        &raw const skerry_user_first as u64,
        &raw const skerry_user_failed as u64,
    );
    if (first..failed).contains(&rip) {
        Some(failed)
    } else if rip == skerry_probe as *const () as u64 {
        Some(&raw const skerry_probe_failed as u64)
    } else {
        None
    }
}

#[inline(always)]
fn check(address: usize, bytes: usize) -> Result<(), UserFault> {
    match USER_END.checked_sub(bytes) {
        Some(last) if address <= last => Ok(()),
        _ => Err(UserFault),
    }
}

/// Checks an address that is read, and returns it. In speculation that passes by the check it is
/// another one, of the program's: what is at an address of the kernel's is not read, not even to
/// leave a trace in a cache (Spectre, variant 1).
#[inline(always)]
fn check_read(address: usize, bytes: usize) -> Result<usize, UserFault> {
    match USER_END.checked_sub(bytes) {
        Some(last) if address <= last => Ok(speculation::clamp(address, last)),
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
    let src = check_read(src, dst.len())?;
    // SAFETY: the source is user memory, whose faults are handled; the destination is borrowed
    // exclusively.
    done(unsafe { skerry_user_copy(dst.as_mut_ptr(), src as *const u8, dst.len()) })
}

/// Copies a value from a program's memory and shows it to `see`.
///
/// # Errors
/// As [`read_bytes`].
#[inline]
pub fn with_value<T: FromBytes, R>(src: usize, see: impl FnOnce(&T) -> R) -> Result<R, UserFault> {
    let src = check_read(src, size_of::<T>())?;
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
    // SAFETY: the source is borrowed.
    unsafe { write_from(dst, src.as_ptr(), src.len()) }
}

/// Copies `len` bytes from `src` on to a program's memory.
///
/// # Errors
/// As [`write_bytes`].
///
/// # Safety
/// The bytes at `src` are mapped for reading until this returns. They may be changed by others
/// meanwhile, in which case the copy holds some mixture.
#[inline]
pub(crate) unsafe fn write_from(dst: usize, src: *const u8, len: usize) -> Result<(), UserFault> {
    check(dst, len)?;
    // SAFETY: the destination is user memory, which holds nothing of the kernel's; faults are
    // handled. The source is as the caller says, and read by assembly only.
    done(unsafe { skerry_user_copy(dst as *mut u8, src, len) })
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

/// Room for a short string of a program's.
pub struct ShortString<const ROOM: usize>([MaybeUninit<u8>; ROOM]);

impl<const ROOM: usize> ShortString<ROOM> {
    /// An empty buffer.
    #[inline(always)]
    #[must_use]
    pub const fn new() -> Self {
        Self([MaybeUninit::uninit(); ROOM])
    }

    /// Copies a NUL-terminated string and returns it, without the NUL; `None` if there is no room
    /// for it, or it lies at the very end of user memory.
    ///
    /// # Errors
    /// [`UserFault`] if a byte before the NUL cannot be read.
    #[inline(always)]
    pub fn read(&mut self, src: usize) -> Result<Option<&[u8]>, UserFault> {
        let Ok(src) = check_read(src, ROOM) else {
            return Ok(None);
        };
        let mut length = 0;
        // SAFETY: as in `read_cstr`, with the whole of `self` as the buffer.
        done(unsafe {
            skerry_user_string(
                self.0.as_mut_ptr().cast(),
                src as *const u8,
                ROOM,
                &mut length,
            )
        })?;
        // SAFETY: the bytes before the NUL were written.
        Ok((length < ROOM)
            .then(|| unsafe { core::slice::from_raw_parts(self.0.as_ptr().cast(), length) }))
    }
}

impl<const ROOM: usize> Default for ShortString<ROOM> {
    fn default() -> Self {
        Self::new()
    }
}

/// Copies a NUL-terminated string, without the NUL, and returns its length; `buf.len()` if there is
/// no NUL in that many bytes.
///
/// # Errors
/// [`UserFault`] if a byte before the NUL cannot be read.
pub fn read_cstr(src: usize, buf: &mut [u8]) -> Result<usize, UserFault> {
    let most = buf.len().min(USER_END.saturating_sub(src));
    if most == 0 {
        return if buf.is_empty() {
            Ok(0)
        } else {
            Err(UserFault)
        };
    }
    let src = speculation::clamp(src, USER_END - most);
    let mut length = 0;
    // SAFETY: at most `most` bytes are read from user memory, whose faults are handled, and written
    // to the buffer.
    done(unsafe { skerry_user_string(buf.as_mut_ptr(), src as *const u8, most, &mut length) })?;
    // A string that runs up to the end of user space is cut off by the address limit, not by the
    // buffer.
    if length == most && most < buf.len() {
        Err(UserFault)
    } else {
        Ok(length)
    }
}

/// Reads a 32-bit word; in one access if it is aligned.
///
/// # Errors
/// As [`read_bytes`].
#[inline]
pub fn load_u32(src: usize) -> Result<u32, UserFault> {
    let src = check_read(src, 4)?;
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
    let src = check_read(src, 8)?;
    let mut value = 0;
    // SAFETY: as in `read_bytes`.
    done(unsafe { skerry_user_load64(src as *const u64, &mut value) }).map(|()| value)
}

/// Writes a byte.
///
/// # Errors
/// As [`write_bytes`].
#[inline]
pub fn store_u8(dst: usize, value: u8) -> Result<(), UserFault> {
    check(dst, 1)?;
    // SAFETY: as in `write_bytes`.
    done(unsafe { skerry_user_store8(dst as *mut u8, value) })
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

/// Replaces `old` by `new` in a program's 32-bit word, atomically, and returns what was there:
/// `old` means it was replaced.
///
/// # Errors
/// As [`write_bytes`]; also if the word is not aligned.
pub fn cmpxchg_u32(addr: usize, old: u32, new: u32) -> Result<u32, UserFault> {
    let addr = check_read(addr, 4)?;
    if !addr.is_multiple_of(4) {
        return Err(UserFault);
    }
    let mut found = 0;
    // SAFETY: as in `write_bytes`.
    done(unsafe { skerry_user_cmpxchg32(addr as *mut u32, old, new, &mut found) }).map(|()| found)
}

/// Software-reserved bytes of a signal frame's floating-point part: `struct _fpx_sw_bytes`.
pub(super) struct SignalFrame {
    /// The first magic number, and the bytes of the whole.
    pub(super) magic_and_total: u64,
    /// The components it may have.
    pub(super) features: u64,
    /// The bytes of the processor's area.
    pub(super) size: u64,
}

/// Stores this CPU's floating-point registers in a program's memory. The address is a multiple of
/// 64.
///
/// # Errors
/// As [`write_bytes`].
pub(super) fn store_registers(to: usize, frame: &SignalFrame) -> Result<(), UserFault> {
    check(to, frame.size as usize + 4)?;
    // SAFETY: as in `write_bytes`.
    done(unsafe {
        skerry_user_xsave(
            to as *mut u8,
            frame.magic_and_total,
            frame.features,
            frame.size,
        )
    })
}

/// Loads this CPU's floating-point registers from a program's memory.
///
/// # Errors
/// As [`read_bytes`]; also if what is there is no frame like this one. The registers may have
/// changed.
pub(super) fn load_registers(from: usize, frame: &SignalFrame) -> Result<(), UserFault> {
    let from = check_read(from, frame.size as usize + 4)?;
    // SAFETY: as in `read_bytes`. The processor refuses a state that it cannot have by an
    // exception, and the kernel uses none of these registers.
    done(unsafe {
        skerry_user_xrstor(
            from as *const u8,
            frame.magic_and_total,
            frame.features,
            frame.size,
        )
    })
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

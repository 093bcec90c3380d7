//! `getrandom(2)` without the kernel, as Linux has had it since 6.11 (its `lib/vdso/getrandom.c`
//! describes the interface): each thread makes random numbers of a key that the kernel gave it, in
//! a state that the program keeps.
//!
//! Every batch of numbers begins with the key of the next one, and what is given out is erased, so
//! that a state tells nothing of what was given out before. States are in memory whose content
//! children do not see: a child finds zeros there, and asks for a key of its own.

use core::arch::asm;
use core::ptr::{addr_of, addr_of_mut};
use core::sync::atomic::{Ordering, compiler_fence};

use super::chacha::{BLOCK, block};
use super::{SYS_GETRANDOM, call, data};

const EINVAL: isize = -22;
const EFAULT: isize = -14;
const PAGE_SIZE: usize = 4096;
/// `GRND_NONBLOCK`, `GRND_RANDOM`, `GRND_INSECURE`.
const FLAGS: u32 = 7;
/// The most that one call gives: what an `int` holds, in whole pages.
const MOST: usize = 0x7fff_f000;
/// Number of batches made of one key of the kernel's.
const BATCHES: u32 = 1 << 14;
/// `PROT_READ | PROT_WRITE`, and `MAP_DROPPABLE | MAP_ANONYMOUS`.
const PROTECTION: u32 = 3;
const MAPPING: u32 = 0x28;

const KEY: usize = 32;
/// Two blocks less the next key.
const BATCH: usize = 2 * BLOCK - KEY;

/// Size and protection of states, as a program asks for them (`struct vgetrandom_opaque_params`).
#[repr(C)]
struct Parameters {
    size: u32,
    protection: u32,
    mapping: u32,
    reserved: [u32; 13],
}

/// State of the generator, which a program keeps for each thread. All zeros is a state without key.
#[repr(C)]
struct State {
    key: [u32; KEY / 4],
    batch: [u8; BATCH],
    /// Generation of the kernel's generator when the key came from it; 0 for never.
    generation: u64,
    /// Batches to be made before the next key.
    left: u32,
    /// Bytes of the batch that were given out.
    used: u32,
    /// A call is under way: another one is from a signal handler.
    busy: u64,
}

/// # Safety
/// `buffer` is good for `len` bytes, `state` for `state_len`, and no other thread uses the state.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_getrandom(buffer: *mut u8, len: usize, flags: u32, state: *mut u8, state_len: usize) -> isize {
    if state_len == usize::MAX && buffer.is_null() && len == 0 && flags == 0 {
        let parameters =
            Parameters { size: size_of::<State>() as u32, protection: PROTECTION, mapping: MAPPING, reserved: [0; 13] };
        // SAFETY: with this length the state is where the parameters are wanted.
        unsafe { state.cast::<Parameters>().write_unaligned(parameters) };
        return 0;
    }
    if state_len != size_of::<State>() {
        return EINVAL;
    }
    if state.addr() % PAGE_SIZE + state_len > PAGE_SIZE || state.addr() % align_of::<State>() != 0 {
        return EFAULT;
    }
    let state = state.cast::<State>();
    let len = len.min(MOST);
    // SAFETY: the state is this thread's, aligned, and zeros or what this function left; of the
    // buffer the caller says so. The kernel may replace the state by zeros at any time (a child's
    // memory), so nothing is borrowed.
    unsafe {
        if flags & !FLAGS != 0 || addr_of!((*state).busy).read_volatile() != 0 {
            return call(SYS_GETRANDOM, buffer.addr(), len, flags as usize);
        }
        addr_of_mut!((*state).busy).write_volatile(1);
        compiler_fence(Ordering::SeqCst);
        let filled = fill(state, buffer, len);
        compiler_fence(Ordering::SeqCst);
        addr_of_mut!((*state).busy).write_volatile(0);
        if filled { len as isize } else { call(SYS_GETRANDOM, buffer.addr(), len, flags as usize) }
    }
}

/// Fills the buffer; false if the kernel gave no key.
///
/// # Safety
/// As for the call.
unsafe fn fill(state: *mut State, buffer: *mut u8, len: usize) -> bool {
    // SAFETY: as the caller says; `used` is compared before it is an index, since the state may be
    // anything.
    unsafe {
        let current = addr_of!((*data()).generation);
        loop {
            let generation = current.read_volatile();
            if addr_of!((*state).generation).read_volatile() != generation || (*state).left == 0 {
                let key = addr_of_mut!((*state).key);
                if call(SYS_GETRANDOM, key.addr(), KEY, 0) != KEY as isize {
                    return false;
                }
                ((*state).left, (*state).used) = (BATCHES, BATCH as u32);
                addr_of_mut!((*state).generation).write_volatile(generation);
            }
            let mut done = 0;
            while done < len {
                let used = (*state).used as usize;
                if used >= BATCH {
                    refill(state);
                    continue;
                }
                let part = (BATCH - used).min(len - done);
                let from = addr_of_mut!((*state).batch).cast::<u8>().add(used);
                give(from, buffer.add(done), part);
                (*state).used = (used + part) as u32;
                done += part;
            }
            // A child that began in between has nothing but zeros here, and what it was given is
            // its parent's.
            if addr_of!((*state).generation).read_volatile() == generation && current.read_volatile() == generation {
                return true;
            }
        }
    }
}

/// Copies bytes and erases them where they were. Written so because the compiler would call a
/// library's functions for either.
///
/// # Safety
/// Both are good for `len` bytes, and do not overlap.
unsafe fn give(from: *mut u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller says; the direction is forward in every function (the ABI says so).
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _, options(nostack, preserves_flags));
        asm!("rep stosb", inout("rcx") len => _, inout("rdi") from => _, in("al") 0u8, options(nostack, preserves_flags));
    }
}

/// Makes the next key and the next batch.
///
/// # Safety
/// As for the call.
unsafe fn refill(state: *mut State) {
    // SAFETY: both parts of the state are written whole; 2 * BLOCK bytes are KEY and BATCH.
    unsafe {
        let key = (*state).key;
        let (first, second) = (block(&key, 0), block(&key, 1));
        addr_of_mut!((*state).key).copy_from_nonoverlapping(first.as_ptr().cast(), 1);
        let batch = addr_of_mut!((*state).batch).cast::<u8>();
        batch.copy_from_nonoverlapping(first.as_ptr().cast::<u8>().add(KEY), BLOCK - KEY);
        batch.add(BLOCK - KEY).copy_from_nonoverlapping(second.as_ptr().cast(), BLOCK);
        (*state).used = 0;
        (*state).left = (*state).left.saturating_sub(1);
    }
}

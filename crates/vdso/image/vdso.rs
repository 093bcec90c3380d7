//! Functions that programs call instead of the kernel (`vdso(7)`). They run in ring 3, in the
//! program that calls them.
//!
//! The contract with the kernel is `Data`, in the page before this object.
#![no_std]
#![allow(unsafe_op_in_unsafe_fn)]

#[path = "../src/chacha.rs"]
mod chacha;
#[path = "../src/data.rs"]
mod data;
mod random;

use core::arch::asm;
use core::ptr::addr_of;
use core::sync::atomic::{AtomicU32, Ordering, fence};

use data::{COARSE, Data, LSL, PROCESSOR_BITS, RDPID, RDTSCP, SECOND, SEGMENT, coarse};

const CLOCK_REALTIME: i32 = 0;
const CLOCK_MONOTONIC: i32 = 1;
const CLOCK_MONOTONIC_RAW: i32 = 4;
const CLOCK_REALTIME_COARSE: i32 = 5;
const CLOCK_MONOTONIC_COARSE: i32 = 6;
const CLOCK_BOOTTIME: i32 = 7;
const CLOCK_TAI: i32 = 11;

const SYS_GETTIMEOFDAY: usize = 96;
const SYS_CLOCK_GETTIME: usize = 228;
const SYS_CLOCK_GETRES: usize = 229;
const SYS_GETCPU: usize = 309;
const SYS_GETRANDOM: usize = 318;

#[repr(C)]
pub struct TimeSpec {
    sec: i64,
    nsec: i64,
}

#[repr(C)]
pub struct TimeVal {
    sec: i64,
    usec: i64,
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

fn data() -> *const Data {
    let data: *const Data;
    // SAFETY: computes an address. The linker script says where the symbol is.
    unsafe { asm!("lea {}, [rip + vdso_data]", out(reg) data, options(pure, nomem, nostack, preserves_flags)) };
    data
}

fn counter() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reading the counter has no effect; the fence keeps it behind earlier loads.
    unsafe { asm!("lfence", "rdtsc", out("eax") low, out("edx") high, options(nostack, preserves_flags)) };
    u64::from(high) << 32 | u64::from(low)
}

/// The system call, whose result is the function's.
fn call(number: usize, first: usize, second: usize, third: usize) -> isize {
    let result: isize;
    // SAFETY: the calls made here write to what the program's pointers point at, and to nothing of
    // this object.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") first, in("rsi") second, in("rdx") third,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Nanoseconds of the monotonic clock, and of Unix time when that was 0.
fn now() -> (u64, u64) {
    let data = data();
    // SAFETY: the kernel maps the page readable, and changes it only as the sequence says; what is
    // read in between is thrown away.
    unsafe {
        let sequence = &*addr_of!((*data).sequence).cast::<AtomicU32>();
        loop {
            let before = sequence.load(Ordering::Acquire);
            let values = Data {
                base: addr_of!((*data).base).read_volatile(),
                factor: addr_of!((*data).factor).read_volatile(),
                wall: addr_of!((*data).wall).read_volatile(),
                ..Data::NONE
            };
            let time = values.monotonic(counter());
            fence(Ordering::Acquire);
            if before & 1 == 0 && sequence.load(Ordering::Relaxed) == before {
                return (time, values.wall);
            }
        }
    }
}

/// Unix time in nanoseconds.
fn wall_now() -> u64 {
    let (time, wall) = now();
    wall.saturating_add(time)
}

/// Time of a clock that can be read here, in nanoseconds; `None` for other clocks.
fn read(clock: i32) -> Option<u64> {
    match clock {
        CLOCK_REALTIME => Some(wall_now()),
        CLOCK_REALTIME_COARSE => Some(coarse(wall_now())),
        CLOCK_TAI => {
            // SAFETY: as in `now`. It is changed by itself, so it goes with any of the rest.
            let ahead = unsafe { addr_of!((*data()).tai).read_volatile() };
            Some(wall_now().saturating_add(ahead))
        }
        CLOCK_MONOTONIC | CLOCK_MONOTONIC_RAW | CLOCK_BOOTTIME => Some(now().0),
        CLOCK_MONOTONIC_COARSE => Some(coarse(now().0)),
        _ => None,
    }
}

/// # Safety
/// As the system call of that name, but a bad pointer faults; so with all functions here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_clock_gettime(clock: i32, time: *mut TimeSpec) -> i32 {
    match read(clock) {
        Some(ns) => {
            // SAFETY: the caller's pointer.
            unsafe { time.write(TimeSpec { sec: (ns / SECOND) as i64, nsec: (ns % SECOND) as i64 }) };
            0
        }
        None => call(SYS_CLOCK_GETTIME, clock as usize, time.addr(), 0) as i32,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_clock_getres(clock: i32, resolution: *mut TimeSpec) -> i32 {
    let nsec = match clock {
        CLOCK_REALTIME | CLOCK_MONOTONIC | CLOCK_MONOTONIC_RAW | CLOCK_BOOTTIME | CLOCK_TAI => 1,
        CLOCK_REALTIME_COARSE | CLOCK_MONOTONIC_COARSE => COARSE as i64,
        _ => return call(SYS_CLOCK_GETRES, clock as usize, resolution.addr(), 0) as i32,
    };
    if !resolution.is_null() {
        // SAFETY: the caller's pointer.
        unsafe { resolution.write(TimeSpec { sec: 0, nsec }) };
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_gettimeofday(time: *mut TimeVal, zone: *mut [i32; 2]) -> i32 {
    if !zone.is_null() {
        return call(SYS_GETTIMEOFDAY, time.addr(), zone.addr(), 0) as i32;
    }
    if !time.is_null() {
        let ns = wall_now();
        // SAFETY: the caller's pointer.
        unsafe { time.write(TimeVal { sec: (ns / SECOND) as i64, usec: (ns % SECOND / 1000) as i64 }) };
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_time(time: *mut i64) -> i64 {
    let seconds = (wall_now() / SECOND) as i64;
    if !time.is_null() {
        // SAFETY: the caller's pointer.
        unsafe { time.write(seconds) };
    }
    seconds
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_getcpu(cpu: *mut u32, node: *mut u32, cache: usize) -> i32 {
    // SAFETY: the page is readable; this word never changes. The kernel says that the processor has
    // the instruction, and keeps the number where the instruction finds it.
    let number: u64 = unsafe {
        match (*data()).processor {
            RDPID => {
                let number;
                asm!("rdpid {}", out(reg) number, options(nomem, nostack, preserves_flags));
                number
            }
            RDTSCP => {
                let number: u64;
                asm!("rdtscp", out("rcx") number, out("rax") _, out("rdx") _, options(nomem, nostack, preserves_flags));
                number
            }
            LSL => {
                let number: u64;
                asm!("lsl {}, {}", out(reg) number, in(reg) u64::from(SEGMENT), options(nomem, nostack));
                number
            }
            _ => return call(SYS_GETCPU, cpu.addr(), node.addr(), cache) as i32,
        }
    };
    // SAFETY: the caller's pointers.
    unsafe {
        if !cpu.is_null() {
            cpu.write((number & ((1 << PROCESSOR_BITS) - 1)) as u32);
        }
        if !node.is_null() {
            node.write((number >> PROCESSOR_BITS) as u32);
        }
    }
    0
}

macro_rules! short_names {
    ($($short:ident = $name:ident;)*) => {
        core::arch::global_asm!($(concat!(
            ".weak ", stringify!($short), "\n.type ", stringify!($short), ", @function\n.set ", stringify!($short), ", ", stringify!($name)
        )),*);
    };
}

short_names! {
    clock_gettime = __vdso_clock_gettime;
    clock_getres = __vdso_clock_getres;
    gettimeofday = __vdso_gettimeofday;
    time = __vdso_time;
    getcpu = __vdso_getcpu;
    getrandom = __vdso_getrandom;
}

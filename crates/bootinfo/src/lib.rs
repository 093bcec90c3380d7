//! The information of boot loaders: PVH's start information (Xen's
//! `xen/include/public/arch-x86/hvm/start_info.h`) and multiboot2's (Multiboot2 specification 2.0,
//! section 3.6). Everything is copied and bounded; a loader that says nonsense is ignored.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

use core::ops::Range;

use acpi::Memory;
use arrayvec::ArrayVec;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Runs of the memory map that are considered.
const MAX_RUNS: usize = 128;
/// Bytes of the command line that are kept.
pub const MAX_CMDLINE: usize = abi::descriptor::CMDLINE_BYTES;

/// The machine as the boot loader sees it; physical addresses.
#[derive(Debug, Default)]
pub struct BootInfo {
    /// Usable memory, in the loader's order.
    pub memory: ArrayVec<Range<u64>, MAX_RUNS>,
    /// The first module: the initial RAM file system.
    pub module: Option<Range<u64>>,
    /// The command line.
    pub cmdline: ArrayVec<u8, MAX_CMDLINE>,
    /// ACPI's root pointer.
    pub rsdp: Option<u64>,
    /// Memory that the loader filled and that must not be overwritten before it is read.
    pub own: ArrayVec<Range<u64>, 8>,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    cmdline: u64,
    rsdp: u64,
    memory_map: u64,
    memory_runs: u32,
    reserved: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Module {
    at: u64,
    size: u64,
    cmdline: u64,
    reserved: u64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct MemoryRun {
    at: u64,
    size: u64,
    kind: u32,
    reserved: u32,
}

const START_MAGIC: u32 = 0x336e_c578;
const USABLE: u32 = 1;

impl BootInfo {
    /// Reads PVH's start information at a physical address; `None` if it makes no sense.
    #[must_use]
    pub fn from_pvh(memory: &impl Memory, at: u64) -> Option<Self> {
        let info: StartInfo = memory
            .get(at)
            .filter(|info: &StartInfo| info.magic == START_MAGIC)?;
        let mut result = Self {
            rsdp: (info.rsdp != 0).then_some(info.rsdp),
            ..Self::default()
        };
        if info.modules > 0 {
            let module: Module = memory.get(info.module_list)?;
            result.module = Some(module.at..module.at.checked_add(module.size)?);
        }
        result.read_cmdline(memory, info.cmdline);
        if info.version >= 1 {
            for i in 0..u64::from(info.memory_runs) {
                let run: MemoryRun =
                    memory.get(info.memory_map + i * size_of::<MemoryRun>() as u64)?;
                result.add(run);
            }
        }
        Some(result)
    }

    /// Reads multiboot2's information at a physical address; `None` if it makes no sense.
    #[must_use]
    pub fn from_multiboot2(memory: &impl Memory, at: u64) -> Option<Self> {
        const END: u32 = 0;
        const CMDLINE: u32 = 1;
        const MODULE: u32 = 3;
        const MEMORY_MAP: u32 = 6;
        const ACPI_OLD: u32 = 14;
        const ACPI_NEW: u32 = 15;
        let total = u64::from(memory.get::<u32>(at)?);
        let mut result = Self::default();
        let _ = result.own.try_push(at..at.checked_add(total)?);
        let mut next = at + 8;
        while next + 8 <= at + total {
            let [kind, size] = memory.get::<[u32; 2]>(next)?;
            let end = next
                .checked_add(u64::from(size))
                .filter(|end| size >= 8 && *end <= at + total)?;
            match kind {
                END => break,
                CMDLINE => result.read_cmdline(memory, next + 8),
                MODULE if result.module.is_none() => {
                    let [start, stop] = memory.get::<[u32; 2]>(next + 8)?;
                    result.module = Some(u64::from(start)..u64::from(stop));
                }
                MEMORY_MAP => {
                    let stride =
                        u64::from(memory.get::<u32>(next + 8)?).max(size_of::<MemoryRun>() as u64);
                    let mut run = next + 16;
                    while run + size_of::<MemoryRun>() as u64 <= end {
                        result.add(memory.get(run)?);
                        run += stride;
                    }
                }
                // The root pointer itself follows; the newer tag wins.
                ACPI_OLD if result.rsdp.is_none() => result.rsdp = Some(next + 8),
                ACPI_NEW => result.rsdp = Some(next + 8),
                _ => {}
            }
            next = end.next_multiple_of(8);
        }
        Some(result)
    }

    fn add(&mut self, run: MemoryRun) {
        if run.kind == USABLE
            && run.size > 0
            && let Some(end) = run.at.checked_add(run.size)
        {
            let _ = self.memory.try_push(run.at..end);
        }
    }

    fn read_cmdline(&mut self, memory: &impl Memory, at: u64) {
        if at == 0 {
            return;
        }
        self.cmdline = (at..)
            .map_while(|at| memory.get::<u8>(at).filter(|byte| *byte != 0))
            .take(MAX_CMDLINE)
            .collect();
    }

    /// The command line, if it is text; else nothing.
    #[must_use]
    pub fn cmdline(&self) -> &str {
        core::str::from_utf8(&self.cmdline).unwrap_or("")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bytes(Vec<u8>);

    impl Memory for Bytes {
        fn read(&self, at: u64, to: &mut [u8]) -> bool {
            let Some(from) = self.0.get(at as usize..at as usize + to.len()) else {
                return false;
            };
            to.copy_from_slice(from);
            true
        }
    }

    #[test]
    fn pvh() {
        let mut bytes = vec![0; 0x400];
        let info = StartInfo {
            magic: START_MAGIC,
            version: 1,
            flags: 0,
            modules: 1,
            module_list: 0x100,
            cmdline: 0x200,
            rsdp: 0xf0000,
            memory_map: 0x300,
            memory_runs: 2,
            reserved: 0,
        };
        bytes[..56].copy_from_slice(info.as_bytes());
        bytes[0x100..0x120].copy_from_slice(
            Module {
                at: 0x9000,
                size: 0x10,
                cmdline: 0,
                reserved: 0,
            }
            .as_bytes(),
        );
        bytes[0x200..0x206].copy_from_slice(b"quiet\0");
        let run = |at, size, kind| MemoryRun {
            at,
            size,
            kind,
            reserved: 0,
        };
        bytes[0x300..0x318].copy_from_slice(run(0, 0x9f000, 1).as_bytes());
        bytes[0x318..0x330].copy_from_slice(run(0xf0000, 0x10000, 2).as_bytes());
        let info = BootInfo::from_pvh(&Bytes(bytes), 0).unwrap();
        assert_eq!(info.memory.as_slice(), core::slice::from_ref(&(0..0x9f000)));
        assert_eq!(
            (info.module.clone(), info.rsdp),
            (Some(0x9000..0x9010), Some(0xf0000))
        );
        assert_eq!(core::str::from_utf8(&info.cmdline), Ok("quiet"));
    }

    #[test]
    fn multiboot2_tags_in_any_order_and_a_torn_one() {
        let mut bytes = vec![0; 8];
        let mut tag = |kind: u32, body: &[u8]| {
            bytes.extend(kind.to_le_bytes());
            bytes.extend((8 + body.len() as u32).to_le_bytes());
            bytes.extend(body);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        };
        tag(15, b"RSD PTR ");
        tag(1, b"a=b\0");
        let mut map = vec![24, 0, 0, 0, 0, 0, 0, 0];
        map.extend(
            MemoryRun {
                at: 0x10_0000,
                size: 0x1000,
                kind: 1,
                reserved: 0,
            }
            .as_bytes(),
        );
        tag(6, &map);
        tag(3, &[0, 0x10, 0, 0, 0, 0x20, 0, 0, 0]);
        tag(0, &[]);
        let total = bytes.len() as u32;
        bytes[..4].copy_from_slice(&total.to_le_bytes());
        let info = BootInfo::from_multiboot2(&Bytes(bytes.clone()), 0).unwrap();
        assert_eq!(
            info.memory.as_slice(),
            core::slice::from_ref(&(0x10_0000..0x10_1000))
        );
        assert_eq!(
            (info.module.clone(), info.rsdp),
            (Some(0x1000..0x2000), Some(16))
        );
        assert_eq!(info.cmdline(), "a=b");
        bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(BootInfo::from_multiboot2(&Bytes(bytes), 0).is_none());
    }
}

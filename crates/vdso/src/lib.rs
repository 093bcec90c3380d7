//! The virtual shared object of programs (vDSO; `docs/linux-personality.md`): clocks, the
//! processor's number and random numbers without a system call.
//!
//! It is an ELF file like any other, made of `image/vdso.rs` by this crate's `build.rs`, with the
//! names and versions that Linux' has, so that every C library and Go find it. The kernel maps it,
//! and the page with [`Data`] below it, into every program.
//!
//! The code in `image` runs in ring 3, with a program's rights: it is part of no kernel.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

#[cfg(test)]
mod chacha;
mod data;

pub use data::{ASK, COARSE, Data, LSL, PROCESSOR_BITS, RDPID, RDTSCP, SECOND, SEGMENT, coarse};

/// The shared object: mapped from its first byte on, readable and executable, right above the page
/// with the data.
pub const IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vdso.so"));

/// Number of pages of 4 KiB that [`IMAGE`] takes.
pub const PAGES: usize = IMAGE.len().div_ceil(4096);

#[cfg(test)]
mod tests {
    use elf::ElfBytes;
    use elf::abi;
    use elf::endian::LittleEndian;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_is_a_shared_object_as_libraries_expect_it() {
        let file = ElfBytes::<LittleEndian>::minimal_parse(IMAGE).unwrap();
        assert_eq!(
            (file.ehdr.e_type, file.ehdr.e_machine),
            (abi::ET_DYN, abi::EM_X86_64)
        );
        let segments = file.segments().unwrap();
        let load: Vec<_> = segments
            .iter()
            .filter(|s| s.p_type == abi::PT_LOAD)
            .collect();
        assert_eq!(load.len(), 1, "one mapping holds it all");
        assert_eq!(
            (load[0].p_offset, load[0].p_vaddr, load[0].p_flags),
            (0, 0, abi::PF_R | abi::PF_X)
        );
        assert!(load[0].p_memsz == load[0].p_filesz && load[0].p_memsz as usize <= IMAGE.len());
        assert!(segments.iter().any(|s| s.p_type == abi::PT_DYNAMIC));
        for entry in file.dynamic().unwrap().unwrap() {
            let relocates = [
                abi::DT_RELA,
                abi::DT_REL,
                abi::DT_JMPREL,
                abi::DT_NEEDED,
                abi::DT_TEXTREL,
            ];
            assert!(
                !relocates.contains(&entry.d_tag),
                "nobody would carry out {:#x}",
                entry.d_tag
            );
        }
    }

    #[test]
    fn all_names_have_the_version_that_is_asked_for() {
        let file = ElfBytes::<LittleEndian>::minimal_parse(IMAGE).unwrap();
        let (symbols, strings) = file.dynamic_symbol_table().unwrap().unwrap();
        let versions = file.symbol_version_table().unwrap().unwrap();
        let mut names = Vec::new();
        for (at, symbol) in symbols.iter().enumerate().skip(1) {
            assert!(!symbol.is_undefined());
            if symbol.st_symtype() == abi::STT_FUNC {
                let version = versions.get_definition(at).unwrap().unwrap();
                assert!(version.names.map(Result::unwrap).eq(["LINUX_2.6"]));
                names.push(strings.get(symbol.st_name as usize).unwrap());
            }
        }
        names.sort_unstable();
        let wanted = [
            "clock_getres",
            "clock_gettime",
            "getcpu",
            "getrandom",
            "gettimeofday",
            "time",
        ];
        let mut both: Vec<String> = wanted
            .iter()
            .flat_map(|name| [(*name).to_owned(), format!("__vdso_{name}")])
            .collect();
        both.sort_unstable();
        assert_eq!(names, both);
        // Both kinds of tables: old C libraries and Go read one, new ones the other.
        let tables: Vec<i64> = file
            .dynamic()
            .unwrap()
            .unwrap()
            .iter()
            .map(|entry| entry.d_tag)
            .collect();
        assert!(tables.contains(&abi::DT_HASH) && tables.contains(&abi::DT_GNU_HASH));
    }

    #[test]
    fn time_is_counted_as_the_kernel_counts_it() {
        let data = Data {
            sequence: 0,
            processor: ASK,
            base: 1000,
            factor: 1 << 31,
            wall: 7,
            tai: 0,
            generation: 1,
        };
        assert_eq!(
            (
                data.monotonic(999),
                data.monotonic(1000),
                data.monotonic(3000)
            ),
            (0, 0, 1000)
        );
        assert_eq!(data.monotonic(u64::MAX), (u64::MAX - 1000) / 2);
    }
    /// RFC 8439, appendix A.1, test vectors 1 to 3.
    #[test]
    fn random_numbers_are_the_stream_of_chacha20() {
        let bytes = |words: [u32; 16]| {
            words
                .into_iter()
                .flat_map(u32::to_le_bytes)
                .collect::<Vec<u8>>()
        };
        let hex = |text: &str| -> Vec<u8> {
            (0..text.len() / 2)
                .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
                .collect()
        };
        let first = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586";
        let second = "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f";
        assert_eq!(bytes(chacha::block(&[0; 8], 0)), hex(first));
        assert_eq!(bytes(chacha::block(&[0; 8], 1)), hex(second));
        let third = "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0";
        assert_eq!(
            bytes(chacha::block(&[0, 0, 0, 0, 0, 0, 0, 1 << 24], 1)),
            hex(third)
        );
        assert_eq!(first.len(), 2 * chacha::BLOCK);
    }

    proptest! {
        /// An alarm for `counter_at` is neither early, so that it has to be set again, nor a tick
        /// late; at any rate, after years.
        #[test]
        fn the_counter_reaches_a_time_at_the_first_tick_that_shows_it(
            hz in 1_000_000u64..8_000_000_000,
            base in 0u64..1 << 60,
            ns in 0u64..1 << 57,
        ) {
            let data = Data { sequence: 0, processor: ASK, base, factor: ((1_000_000_000u128 << 32) / u128::from(hz)) as u64, wall: 0, tai: 0, generation: 1 };
            let counter = data.counter_at(ns);
            prop_assert!(data.monotonic(counter) >= ns);
            prop_assert!(counter == base || data.monotonic(counter - 1) < ns);
        }
    }

    #[test]
    fn a_time_that_never_comes_is_the_end_of_the_counter() {
        let data = Data {
            sequence: 0,
            processor: ASK,
            base: 1000,
            factor: 1 << 30,
            wall: 0,
            tai: 0,
            generation: 1,
        };
        assert_eq!(
            (data.counter_at(0), data.counter_at(u64::MAX)),
            (1000, u64::MAX)
        );
    }
}

//! The multiple APIC description table (5.2.12): CPUs and interrupt controllers.

use core::mem::size_of;

use crate::layout::{Header, Memory, Tables};

/// An entry of the MADT of a kind that the boot code uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadtEntry {
    /// A CPU that may be started.
    Cpu {
        /// APIC id of the CPU.
        apic_id: u32,
    },
    /// An I/O interrupt controller.
    IoApic {
        /// Id of the I/O APIC.
        id: u8,
        /// Physical address of the registers.
        address: u32,
        /// The first global system interrupt it serves.
        gsi_base: u32,
    },
    /// An ISA interrupt that is not where it would be.
    Override {
        /// The ISA interrupt.
        source: u8,
        /// The global system interrupt it arrives at.
        gsi: u32,
        /// Polarity (bits 0 to 1) and trigger mode (bits 2 to 3), as the MPS INTI flags.
        flags: u16,
    },
}

const ENABLED: u32 = 1 << 0;

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Physical address of the local APIC's registers.
#[must_use]
pub fn local_apic_address<M: Memory>(tables: &Tables<'_, M>) -> Option<u64> {
    let (at, header) = tables.find(b"APIC")?;
    let mut fixed = [0; 8];
    (header.length as usize >= size_of::<Header>() + fixed.len()).then_some(())?;
    tables
        .memory()
        .read(at + size_of::<Header>() as u64, &mut fixed)
        .then_some(())?;
    u32_at(&fixed, 0).map(u64::from)
}

impl<M: Memory> Tables<'_, M> {
    /// Calls `each` for every entry that matters; false if there is no such table.
    pub fn for_each_madt_entry(&self, mut each: impl FnMut(MadtEntry)) -> bool {
        let Some((at, header)) = self.find(b"APIC") else {
            return false;
        };
        let end = at + u64::from(header.length);
        let mut next = at + size_of::<Header>() as u64 + 8;
        let mut entry = [0; 16];
        while next + 2 <= end {
            let mut head = [0; 2];
            if !self.memory().read(next, &mut head)
                || head[1] < 2
                || next + u64::from(head[1]) > end
            {
                break;
            }
            let length = usize::from(head[1]).min(entry.len());
            entry.fill(0);
            if self.memory().read(next, &mut entry[..length])
                && let Some(found) = parse(head[0], &entry[..length])
            {
                each(found);
            }
            next += u64::from(head[1]);
        }
        true
    }
}

fn parse(kind: u8, entry: &[u8]) -> Option<MadtEntry> {
    Some(match kind {
        0 if u32_at(entry, 4)? & ENABLED != 0 => MadtEntry::Cpu {
            apic_id: u32::from(*entry.get(3)?),
        },
        1 => MadtEntry::IoApic {
            id: *entry.get(2)?,
            address: u32_at(entry, 4)?,
            gsi_base: u32_at(entry, 8)?,
        },
        2 => MadtEntry::Override {
            source: *entry.get(3)?,
            gsi: u32_at(entry, 4)?,
            flags: u16::from_le_bytes([*entry.get(8)?, *entry.get(9)?]),
        },
        // x2APIC entries repeat nothing: firmware lists a CPU there when its id does not fit the
        // old entry.
        9 if u32_at(entry, 8)? & ENABLED != 0 => MadtEntry::Cpu {
            apic_id: u32_at(entry, 4)?,
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::machine;

    #[test]
    fn entries_are_found_and_a_torn_one_ends_the_list() {
        let mut body = vec![0, 0, 0xe0, 0xfe, 0, 0, 0, 0];
        body.extend([0, 8, 0, 5, 1, 0, 0, 0]);
        body.extend([0, 8, 1, 6, 0, 0, 0, 0]);
        body.extend([9, 16, 0, 0, 0x2c, 1, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0]);
        body.extend([1, 12, 2, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0]);
        body.extend([2, 10, 0, 9, 20, 0, 0, 0, 0x0d, 0]);
        body.extend([0, 200, 0, 7]);
        let memory = machine(&[(b"APIC", &body)]);
        let tables = Tables::new(&memory, 0x40).unwrap();
        let mut seen = Vec::new();
        assert!(tables.for_each_madt_entry(|e| seen.push(e)));
        assert_eq!(
            seen,
            [
                MadtEntry::Cpu { apic_id: 5 },
                MadtEntry::Cpu { apic_id: 300 },
                MadtEntry::IoApic {
                    id: 2,
                    address: 0xfec0_0000,
                    gsi_base: 0
                },
                MadtEntry::Override {
                    source: 9,
                    gsi: 20,
                    flags: 0x0d
                },
            ]
        );
        assert_eq!(local_apic_address(&tables), Some(0xfee0_0000));
    }

    /// The entries found in a table with this body behind its fixed part.
    fn entries(body: &[u8]) -> Vec<MadtEntry> {
        let memory = machine(&[(b"APIC", &[&[0; 8], body].concat())]);
        let mut seen = Vec::new();
        assert!(
            Tables::new(&memory, 0x40)
                .unwrap()
                .for_each_madt_entry(|entry| seen.push(entry))
        );
        seen
    }

    const CPU: [u8; 8] = [0, 8, 0, 5, 1, 0, 0, 0];

    #[test]
    fn entries_are_as_long_as_they_say() {
        let cpu = [MadtEntry::Cpu { apic_id: 5 }];
        assert_eq!(entries(&CPU), cpu);
        assert_eq!(
            entries(&[&CPU[..], &[0]].concat()),
            cpu,
            "less than the head of one is left"
        );
        // The shortest and the longest one, of a kind that is not known; and one that is longer
        // than what is read of it.
        assert_eq!(entries(&[&[0x7f, 2], &CPU[..]].concat()), cpu);
        assert_eq!(
            entries(&[&[0x7f, 255], &[0; 253][..], &CPU[..]].concat()),
            cpu
        );
        assert_eq!(
            entries(&[&[0, 20], &CPU[2..], &[0; 12][..], &CPU[..]].concat()),
            [cpu[0], cpu[0]]
        );
        // One that is shorter than its head, and one that ends a byte behind the table.
        assert_eq!(entries(&[&[0x7f, 1], &CPU[..]].concat()), []);
        assert_eq!(entries(&[&[0x7f, 0], &CPU[..]].concat()), []);
        assert_eq!(entries(&CPU[..7]), []);
    }

    #[test]
    fn an_entry_that_is_too_short_for_its_kind_is_left_out() {
        let whole: [&[u8]; 4] = [
            &CPU,
            &[9, 12, 0, 0, 0x2c, 1, 0, 0, 1, 0, 0, 0],
            &[1, 12, 2, 0, 0, 0, 0xc0, 0xfe, 24, 0, 0, 0],
            &[2, 10, 0, 9, 20, 0, 0, 0, 0x0d, 0x80],
        ];
        let found = [
            MadtEntry::Cpu { apic_id: 5 },
            MadtEntry::Cpu { apic_id: 300 },
            MadtEntry::IoApic {
                id: 2,
                address: 0xfec0_0000,
                gsi_base: 24,
            },
            MadtEntry::Override {
                source: 9,
                gsi: 20,
                flags: 0x800d,
            },
        ];
        for (entry, found) in whole.into_iter().zip(found) {
            assert_eq!(entries(entry), [found]);
            let mut short = entry[..entry.len() - 1].to_vec();
            short[1] -= 1;
            assert_eq!(entries(&[&short, entry].concat()), [found]);
        }
        // CPUs that are there and must not be started.
        assert_eq!(entries(&[0, 8, 1, 6, 2, 0, 0, 0]), []);
        assert_eq!(entries(&[9, 12, 0, 0, 0x2c, 1, 0, 0, 2, 0, 0, 0]), []);
    }

    #[test]
    fn without_a_table_there_is_nothing() {
        let memory = machine(&[(b"HPET", &[])]);
        let tables = Tables::new(&memory, 0x40).unwrap();
        assert!(!tables.for_each_madt_entry(|entry| panic!("{entry:?}")));
        assert_eq!(local_apic_address(&tables), None);
        for (length, address) in [(7, None), (8, Some(0xfee0_0000))] {
            let memory = machine(&[(b"APIC", &[0, 0, 0xe0, 0xfe, 0, 0, 0, 0][..length])]);
            assert_eq!(
                local_apic_address(&Tables::new(&memory, 0x40).unwrap()),
                address
            );
        }
    }

    #[test]
    fn what_lies_behind_a_table_is_not_its() {
        // The name of the next table would be the rest of an entry, with the bit of a CPU that can
        // be used.
        let torn = [0, 0, 0xe0, 0xfe, 0, 0, 0, 0, 0, 8, 0, 5];
        let memory = machine(&[(b"APIC", &torn), (b"WAET", &[])]);
        assert!(
            Tables::new(&memory, 0x40)
                .unwrap()
                .for_each_madt_entry(|entry| panic!("{entry:?}"))
        );
        let memory = machine(&[(b"APIC", &torn[..7]), (b"WAET", &[])]);
        assert_eq!(
            local_apic_address(&Tables::new(&memory, 0x40).unwrap()),
            None
        );
    }
}

//! QEMU's log of what was written to a disk (driver `blklogwrites`).
//!
//! The format is that of the kernel's `dm-log-writes`: a superblock (magic, version and number of
//! entries in 64 bits, size of a sector in 32), then for each entry a sector (place and length in
//! sectors, flags, and length of a mark, in 64 bits) and its data. QEMU counts an entry when the
//! request is done, and writes the superblock at flushes, so entries behind the last flush are not
//! counted.

use anyhow::{Context, Result, ensure};

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1 << 0;
const FUA: u64 = 1 << 1;
const DISCARD: u64 = 1 << 2;

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// Bytes were written, from this place on.
    Write {
        /// Place on the disk in bytes.
        at: u64,
        /// Contents.
        bytes: &'a [u8],
        /// Whether they were on the medium before the request was done.
        is_durable: bool,
    },
    /// The bytes there are not needed any more.
    Discard {
        /// Place on the disk in bytes.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// All that was written before is on the medium.
    Flush,
}

/// The entries of a log.
///
/// # Errors
/// When it is no log, or cut before the last flush.
pub fn parse(bytes: &[u8]) -> Result<Vec<Entry<'_>>> {
    let number = |at: usize| -> Result<u64> {
        let number = bytes.get(at..at + 8).context("the log is cut")?;
        Ok(u64::from_le_bytes(number.try_into()?))
    };
    ensure!(number(0)? == MAGIC, "no log of writes");
    let sector = number(24)? & 0xffff_ffff;
    ensure!(
        (512..=65536).contains(&sector) && sector.is_power_of_two(),
        "the log has no sectors"
    );
    let mut at = sector as usize;
    let mut entries = Vec::new();
    for _ in 0..number(16)? {
        let (place, sectors, flags) = (number(at)? * sector, number(at + 8)?, number(at + 16)?);
        at += sector as usize;
        let len = (sectors * sector) as usize;
        if flags & DISCARD != 0 {
            entries.push(Entry::Discard {
                at: place,
                len: len as u64,
            });
        } else if len > 0 {
            entries.push(Entry::Write {
                at: place,
                bytes: bytes.get(at..at + len).context("the log is cut")?,
                is_durable: flags & FUA != 0,
            });
            at += len;
        }
        if flags & FLUSH != 0 {
            entries.push(Entry::Flush);
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector(numbers: &[u64]) -> Vec<u8> {
        let mut bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        bytes.resize(512, 0);
        bytes
    }

    #[test]
    fn entries_are_told() {
        let parts = [
            sector(&[MAGIC, 1, 4, 512]),
            sector(&[3, 2, 0, 0]),
            vec![7; 1024],
            sector(&[0, 0, FLUSH, 0]),
            sector(&[8, 100, DISCARD, 0]),
            sector(&[9, 1, FUA, 0]),
            vec![8; 512],
            sector(&[1, 1, 0, 0]),
        ];
        let log = parts.concat();
        let write = |at, bytes, is_durable| Entry::Write {
            at,
            bytes,
            is_durable,
        };
        let wanted = [
            write(1536, &[7; 1024][..], false),
            Entry::Flush,
            Entry::Discard {
                at: 4096,
                len: 51_200,
            },
            write(4608, &[8; 512], true),
        ];
        assert_eq!(parse(&log).expect("a log"), wanted);
        assert!(parse(&log[..4000]).is_err());
        assert!(parse(&log[512..]).is_err());
    }
}

//! Damaged file systems: an image with bytes changed that are metadata.

use anyhow::{Context, Result, anyhow};
use ext4::{Ext4, NewFile, NewKind, Options, ROOT};

use crate::contents::Random;
use crate::memory::Memory;

/// The byte that all files consist of, so that blocks of metadata are those that have others.
pub const CONTENTS: u8 = 0x55;

/// Bytes of the pieces in which metadata is looked for.
const PIECE: usize = 1024;

/// The image with some files more, which are in its journal and not at their places.
///
/// # Errors
/// When ext4 cannot mount or change it.
pub fn with_journal(image: Vec<u8>) -> Result<Vec<u8>> {
    let disk = Memory::new(image);
    let mounted = Ext4::mount(disk.clone(), Options::default());
    let mut fs = mounted.map_err(|error| anyhow!("mount: {error}"))?;
    let new = |kind| NewFile {
        kind,
        mode: 0o755,
        uid: 0,
        gid: 0,
    };
    let dir = fs.create(ROOT, b"logged", &new(NewKind::Directory))?;
    for n in 0..30 {
        let name = format!("file-{n}");
        let file = fs.create(dir, name.as_bytes(), &new(NewKind::Regular))?;
        fs.write(file, 0, &[CONTENTS; 3000]).context("write")?;
        if n % 10 == 0 {
            fs.commit()?;
        }
    }
    fs.commit()?;
    Ok(disk.bytes())
}

/// Offsets of an image's metadata: of pieces that are neither zeros nor contents.
pub fn metadata(image: &[u8]) -> Vec<usize> {
    let is_metadata = |piece: &[u8]| piece.iter().any(|byte| *byte != 0 && *byte != CONTENTS);
    let pieces = image.chunks(PIECE).enumerate();
    pieces
        .filter(|(_, piece)| is_metadata(piece))
        .map(|(n, _)| n * PIECE)
        .collect()
}

/// Changes a few bytes of the metadata: bits, or to values at which sizes and counts end.
pub fn damage(image: &mut [u8], metadata: &[usize], random: &mut Random) {
    for _ in 0..1 + random.below(6) {
        let piece = metadata[random.below(metadata.len() as u64) as usize];
        let at = piece + random.below(PIECE as u64) as usize;
        let Some(bytes) = image.get_mut(at..at + 4) else {
            continue;
        };
        match random.below(8) {
            0 => bytes.fill(0xff),
            1 => bytes.fill(0),
            2 => bytes[..2].fill(0xff),
            3 => bytes[0] = random.number() as u8,
            4 => bytes.copy_from_slice(&(random.number() as u32).to_le_bytes()),
            _ => bytes[0] ^= 1 << random.below(8),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_metadata_is_damaged() {
        let mut image = vec![0; 8 * PIECE];
        image[PIECE..2 * PIECE].fill(CONTENTS);
        image[3 * PIECE + 7] = 1;
        let places = metadata(&image);
        assert_eq!(places, [3 * PIECE]);
        let before = image.clone();
        damage(&mut image, &places, &mut Random::new(&[3]));
        let differs = |n: &usize| image[*n] != before[*n];
        let differing: Vec<usize> = (0..image.len()).filter(differs).collect();
        let first = differing.first().expect("a change");
        assert!((3 * PIECE..4 * PIECE + 3).contains(first));
    }
}

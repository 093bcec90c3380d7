//! Power cuts: what `fsync` promised is there, whatever the disk had kept for itself.

use fs::OpenFlags;

use crate::disk::{World, alone, check, contents, mke2fs, replayed};

/// Numbers that look random, the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % below
    }
}

/// A run with a cut after each call, mounted again by us or after `e2fsck` replayed it.
#[test]
fn what_was_synced_survives_a_power_cut() {
    let _alone = alone();
    let mut random = Random(7);
    for options in [&["-b", "4096"][..], &["-b", "1024"]] {
        let world = World::mounted(mke2fs(options, 8 << 20));
        let log = world.create("/mnt/log").unwrap();
        let table = world.create("/mnt/table").unwrap();
        table.inode().truncate(40_000).unwrap();
        let (mut synced_log, mut log_bytes) = (Vec::new(), Vec::new());
        let mut table_bytes = vec![0; 40_000];
        let mut synced_table = None;
        for turn in 0..40_u8 {
            let line = vec![turn + 1; 100 + random.next(6000) as usize];
            log.append(&line, false).unwrap();
            log_bytes.extend(&line);
            let (at, len) = (random.next(30_000), 1 + random.next(9000));
            let bytes = vec![turn + 1; len as usize];
            table.write_at(at, &bytes).unwrap();
            table_bytes[at as usize..(at + len) as usize].copy_from_slice(&bytes);
            match random.next(5) {
                0 => {
                    log.ops().sync().unwrap();
                    synced_log = log_bytes.clone();
                }
                1 => {
                    table.ops().sync().unwrap();
                    synced_table = Some(table_bytes.clone());
                }
                2 => {
                    world.at("/mnt").unwrap().mount().fs().sync().unwrap();
                    (synced_log, synced_table) = (log_bytes.clone(), Some(table_bytes.clone()));
                }
                3 => {
                    // Written back, and not flushed.
                    log.ops().sync_range(0..u64::MAX).unwrap();
                }
                _ => {
                    let name = format!("/mnt/name{turn}");
                    drop(world.create(&name).unwrap());
                }
            }
            let part = random.next(4);
            let cut = world.disk.after_cut(|| random.next(4) < part);
            let is_ours = turn % 2 == 0;
            let image = if is_ours { cut } else { replayed(&cut) };
            let after = World::mounted(image);
            let file = after.open("/mnt/log", OpenFlags::RDONLY);
            let found = file.map_or_else(|_| Vec::new(), |file| contents(&file));
            assert!(found.len() >= synced_log.len(), "turn {turn}");
            assert!(found[..synced_log.len()] == synced_log, "turn {turn}");
            // Behind that is what was written then, or nothing, but never what others had.
            for (n, byte) in found.iter().enumerate().skip(synced_log.len()) {
                let wanted = log_bytes.get(n).copied();
                assert!(*byte == 0 || Some(*byte) == wanted, "turn {turn}");
            }
            if let Some(synced) = &synced_table {
                let file = after.open("/mnt/table", OpenFlags::RDONLY).unwrap();
                let found = contents(&file);
                assert_eq!(found.len(), synced.len());
                // What was written over since may be old or new, block by block.
                for (n, byte) in found.iter().enumerate() {
                    assert!(*byte >= synced[n], "turn {turn}, byte {n}");
                }
            }
            check(&after.finish());
        }
        drop((log, table));
        world.finish();
    }
}

#[test]
fn a_file_without_a_name_is_removed_after_a_power_cut() {
    let _alone = alone();
    let world = World::mounted(mke2fs(&[], 8 << 20));
    let free = world.at("/mnt").unwrap().mount().fs().statfs().blocks_free;
    let file = world.create("/mnt/gone").unwrap();
    file.write(&[1; 100_000]).unwrap();
    let walk = world.walk();
    fs::ops::remove(&walk, b"/mnt/gone", fs::ops::Removal::Unlink).unwrap();
    file.ops().sync().unwrap();
    assert!(contents(&file) == [1; 100_000]);
    let after = World::mounted(world.disk.after_cut(|| true));
    let now = after.at("/mnt").unwrap().mount().fs().statfs().blocks_free;
    assert_eq!(now, free);
    after.finish();
    drop(file);
    let now = world.at("/mnt").unwrap().mount().fs().statfs().blocks_free;
    assert_eq!(now, free, "the last opening was closed");
    world.finish();
}

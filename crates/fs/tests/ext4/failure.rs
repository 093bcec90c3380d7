//! A disk that fails, is full, is busy, or is not to be written.

use std::sync::atomic::{AtomicBool, Ordering};

use abi::errno::Errno;
use fs::OpenFlags;
use fs::mount::MS_RDONLY;

use crate::disk::{World, alone, check, contents, mke2fs, wait_asleep};

#[test]
fn a_full_disk_takes_what_fits_and_tells_the_writer() {
    let _alone = alone();
    for block in ["1024", "4096"] {
        let world = World::mounted(mke2fs(&["-b", block, "-m", "0"], 8 << 20));
        let mut files = Vec::new();
        let mut written = Vec::new();
        'full: for n in 0.. {
            let file = world.create(&format!("/mnt/file{n}")).unwrap();
            files.push(file.clone());
            written.push(0);
            for turn in 0..7 {
                match file.write(&vec![n as u8 + 1; 50_001 + turn]) {
                    Ok(count) => written[n] += count,
                    Err(error) => {
                        assert_eq!(error, Errno::ENOSPC);
                        break 'full;
                    }
                }
            }
        }
        for (n, file) in files.iter().enumerate() {
            assert_eq!(file.ops().sync(), Ok(()));
            assert!(contents(file) == vec![n as u8 + 1; written[n]]);
        }
        let walk = world.walk();
        fs::ops::remove(&walk, b"/mnt/file0", fs::ops::Removal::Unlink).unwrap();
        files.remove(0);
        let again = world.create("/mnt/again").unwrap();
        assert_eq!(again.write(&[9; 50_000]), Ok(50_000), "what was freed");
        drop((files, again));
        let image = world.finish();
        let world = World::mounted(image);
        let file = world.open("/mnt/file1", OpenFlags::RDONLY).unwrap();
        assert!(contents(&file) == vec![2; written[1]]);
    }
}

#[test]
fn room_of_a_removed_file_that_is_being_written_back_is_waited_for() {
    let _alone = alone();
    let world = World::mounted(mke2fs(&["-m", "0"], 8 << 20));
    let removed = world.create("/mnt/removed").unwrap();
    removed.write(&[1; 100_000]).unwrap();
    let rest = world.create("/mnt/rest").unwrap();
    while rest.write(&[2; 100_000]).is_ok() {}
    let again = world.create("/mnt/again").unwrap();
    let fs = world.at("/mnt").unwrap().mount().fs().clone();
    fs.sync().unwrap();
    removed.write_at(0, &[1; 100]).unwrap();
    world.disk.gate.close(1);
    std::thread::scope(|scope| {
        scope.spawn(|| fs.sync().unwrap());
        world.disk.gate.wait();
        let walk = world.walk();
        fs::ops::remove(&walk, b"/mnt/removed", fs::ops::Removal::Unlink).unwrap();
        drop(removed);
        let (tell, told) = std::sync::mpsc::channel();
        let again = &again;
        let writer = scope.spawn(move || {
            let number = std::fs::read_link("/proc/thread-self").unwrap();
            tell.send(number).unwrap();
            again.write(&[3; 50_000])
        });
        let number = told.recv().unwrap();
        wait_asleep(number.file_name().unwrap().to_str().unwrap());
        world.disk.gate.open();
        assert_eq!(writer.join().unwrap(), Ok(50_000));
    });
    assert_eq!(again.write(&[3; 50_000]), Ok(50_000), "all of it");
    drop((again, rest, fs));
    world.finish();
}

#[test]
fn a_failed_write_back_is_told_to_each_opener_once() {
    let _alone = alone();
    let world = World::mounted(mke2fs(&[], 8 << 20));
    let first = world.create("/mnt/file").unwrap();
    first.write(&[1; 10_000]).unwrap();
    first.ops().sync().unwrap();
    let second = world.create("/mnt/file").unwrap();
    first.write_at(0, &[2; 5000]).unwrap();
    world.disk.fails.store(true, Ordering::Relaxed);
    assert_eq!(first.ops().sync_range(0..u64::MAX), Err(Errno::EIO));
    world.disk.fails.store(false, Ordering::Relaxed);
    assert_eq!(second.ops().sync(), Err(Errno::EIO));
    assert_eq!(first.ops().sync(), Ok(()));
    assert_eq!(second.ops().sync(), Ok(()));
    // The same of the file system, by who has opened something else, too.
    let directory = world.open("/mnt", OpenFlags::RDONLY).unwrap();
    for (opener, told) in [
        (&directory, Err(Errno::EIO)),
        (&first, Err(Errno::EIO)),
        (&first, Ok(())),
        (&second, Err(Errno::EIO)),
    ] {
        assert_eq!(opener.ops().check_file_system_errors(), told);
    }
    drop(directory);
    let later = world.open("/mnt", OpenFlags::RDONLY).unwrap();
    assert_eq!(later.ops().check_file_system_errors(), Ok(()));
    drop(later);
    // The journal was not touched meanwhile: it goes on.
    assert_eq!(first.write_at(0, &[3; 5000]), Ok(5000));
    assert_eq!(first.ops().sync(), Ok(()));
    drop((first, second));
    world.finish();
}

#[test]
fn nothing_is_changed_after_the_journal_failed() {
    let _alone = alone();
    let world = World::mounted(mke2fs(&[], 8 << 20));
    let file = world.create("/mnt/file").unwrap();
    file.write(&[1; 10_000]).unwrap();
    world.disk.fails.store(true, Ordering::Relaxed);
    assert!(file.ops().sync().is_err());
    world.disk.fails.store(false, Ordering::Relaxed);
    assert_eq!(world.create("/mnt/second").err(), Some(Errno::EROFS));
    let fs = world.at("/mnt").unwrap().mount().fs().clone();
    assert!(fs.options().contains("emergency_ro"));
    assert_eq!(fs.sync(), Err(Errno::EIO));
    assert_eq!(file.ops().sync(), Err(Errno::EIO));
    drop((file, fs));
    world.unmount().unwrap();
    // What is on the disk is as before.
    let after = World::mounted(world.disk.bytes());
    check(&after.finish());
}

#[test]
fn a_disk_is_mounted_once_and_by_one_alone() {
    let _alone = alone();
    let world = World::mounted(mke2fs(&[], 8 << 20));
    assert_eq!(world.mount(MS_RDONLY).err(), Some(Errno::EBUSY));
    let file = world.create("/mnt/file").unwrap();
    assert_eq!(world.unmount(), Err(Errno::EBUSY));
    let sb = world.at("/mnt").unwrap().mount().super_block().clone();
    assert_eq!(sb.reconfigure(MS_RDONLY, ""), Err(Errno::EBUSY));
    file.write(b"text").unwrap();
    drop(file);
    let reader = world.open("/mnt/file", OpenFlags::RDONLY).unwrap();
    assert_eq!(sb.reconfigure(MS_RDONLY, ""), Ok(()));
    check(&world.disk.bytes());
    assert_eq!(world.create("/mnt/new").err(), Some(Errno::EROFS));
    assert_eq!(contents(&reader), b"text");
    assert_eq!(sb.reconfigure(MS_RDONLY, "nonsense"), Err(Errno::EINVAL));
    assert_eq!(sb.reconfigure(0, ""), Ok(()));
    drop(world.create("/mnt/new").unwrap());
    drop((reader, sb));
    world.finish();
}

#[test]
fn who_syncs_everything_is_not_in_the_way_of_the_next_mount() {
    let _alone = alone();
    let world = World::mounted(mke2fs(&[], 8 << 20));
    let is_over = AtomicBool::new(false);
    let again = || {
        let file = world.create("/mnt/file").unwrap();
        file.write(b"text").unwrap();
        drop(file);
        world.unmount()?;
        world.mount(0).map(drop)
    };
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                block::writeback::sync_all();
            }
        });
        let outcome = (0..50).try_for_each(|_| again());
        is_over.store(true, Ordering::Relaxed);
        outcome
    });
    assert_eq!(outcome, Ok(()));
    world.finish();
}

#[test]
fn what_cannot_be_mounted_is_refused() {
    let _alone = alone();
    let world = World::new(vec![0; 1 << 20]);
    assert_eq!(world.mount(0).err(), Some(Errno::EINVAL));
    let world = World::new(mke2fs(&["-O", "inline_data"], 8 << 20));
    assert_eq!(world.mount(0).err(), Some(Errno::EINVAL));
    let quota = World::new(mke2fs(&["-O", "quota"], 8 << 20));
    assert_eq!(quota.mount(0).err(), Some(Errno::EROFS));
    quota.mount(MS_RDONLY).unwrap();
    quota.finish();
}

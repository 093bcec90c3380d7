//! Disks by the names that the kernel's command line has for them.

use std::thread;

use fs::DeviceId;
use fs::block::DiskName;

use crate::disk::{World, alone, mke2fs};

fn name(text: &str) -> DiskName {
    DiskName::parse(text).unwrap()
}

fn found(text: &str) -> Option<DeviceId> {
    name(text).find().map(|disk| disk.id())
}

#[test]
fn a_disk_is_found_by_what_is_on_it() {
    let _alone = alone();
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    let world = World::new(mke2fs(&["-U", uuid, "-L", "the-root"], 8 << 20));
    let DeviceId { major, minor } = world.id;
    for text in [
        format!("{major}:{minor}"),
        format!("/dev/mem{minor}"),
        format!("UUID={}", uuid.to_uppercase()),
        "LABEL=the-root".into(),
    ] {
        assert_eq!(found(&text), Some(world.id), "{text}");
    }
    for text in [
        "LABEL=the-roo",
        "LABEL=the-root2",
        "/dev/mem",
        "PARTUUID=01-01",
    ] {
        assert_eq!(found(text), None, "{text}");
    }
    // It is let go of, so that it can be mounted; then what is on it is the file system's.
    world.mount(0).unwrap();
    assert_eq!(found("LABEL=the-root"), None);
    assert_eq!(found(&format!("/dev/mem{minor}")), Some(world.id));
}

#[test]
fn who_waits_for_a_disk_is_told_when_it_comes() {
    let _alone = alone();
    let waiter = thread::spawn(|| name("LABEL=comes-late").wait().id());
    let other = World::new(mke2fs(&["-L", "other"], 8 << 20));
    assert!(!waiter.is_finished());
    let world = World::new(mke2fs(&["-L", "comes-late"], 8 << 20));
    assert_eq!(waiter.join().unwrap(), world.id);
    drop(other);
}

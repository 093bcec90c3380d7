//! `/dev`: the memory devices, and what registering a device does.

use std::sync::Arc;

use abi::errno::Errno;
use fs::devfs::{self, CharDevice};
use fs::mount::FileSystem;
use fs::{DeviceId, File, FileOps, OpenFlags};

struct Nothing;

impl FileOps for Nothing {}

struct Device(Option<DeviceId>);

impl CharDevice for Device {
    fn open(self: Arc<Self>, _: OpenFlags) -> fs::Result<Arc<dyn FileOps>> {
        Ok(Arc::new(Nothing))
    }

    fn id(&self) -> Option<DeviceId> {
        self.0
    }
}

fn open(minor: u32) -> Arc<File> {
    let ops = devfs::open(DeviceId::new(1, minor), OpenFlags::RDWR).unwrap();
    File::anonymous("device", ops, OpenFlags::RDWR)
}

#[test]
fn memory_devices_give_and_take_what_they_are_known_for() {
    devfs::register_standard().unwrap();
    assert_eq!(devfs::register_standard(), Err(Errno::EEXIST));
    let [null, zero, full, random] = [3, 5, 7, 8].map(open);
    let mut buf = [7; 64];
    assert_eq!((null.read(&mut buf), buf), (Ok(0), [7; 64]));
    for file in [&zero, &full] {
        let mut buf = [7; 64];
        assert_eq!(
            (file.read(&mut buf[..1]), buf[..2] == [0, 7]),
            (Ok(1), true)
        );
        assert_eq!((file.read(&mut buf), buf), (Ok(64), [0; 64]));
    }
    assert_eq!(random.read(&mut buf), Ok(64));
    assert!(buf != [7; 64] && buf != [0; 64]);
    assert_eq!(
        [&null, &zero, &random].map(|file| file.write(b"abc")),
        [Ok(3); 3]
    );
    assert_eq!(full.write(b"abc"), Err(Errno::ENOSPC));
    assert_eq!(
        devfs::open(DeviceId::new(1, 77), OpenFlags::RDWR).err(),
        Some(Errno::ENXIO)
    );
    assert!(devfs::filesystem().root().lookup(b"shm").is_ok());
}

#[test]
fn a_device_that_gets_no_name_has_no_number_either() {
    let id = DeviceId::new(200, 1);
    assert_eq!(
        devfs::register("first", Arc::new(Device(None))).map(|id| id.major),
        Ok(10)
    );
    assert_eq!(
        devfs::register("first", Arc::new(Device(Some(id)))),
        Err(Errno::EEXIST),
        "the name is taken"
    );
    assert_eq!(devfs::open(id, OpenFlags::RDWR).err(), Some(Errno::ENXIO));
    assert_eq!(
        devfs::register("second", Arc::new(Device(Some(id)))),
        Ok(id)
    );
    assert_eq!(
        devfs::register("third", Arc::new(Device(Some(id)))),
        Err(Errno::EEXIST),
        "the number is"
    );
    assert!(devfs::open(id, OpenFlags::RDWR).is_ok());
    // Those without a number get one each; a name may have a directory.
    let [a, b] =
        ["sub/a", "sub/b"].map(|name| devfs::register(name, Arc::new(Device(None))).unwrap());
    assert_ne!(a, b);
    assert_eq!(
        devfs::register("first/a", Arc::new(Device(None))),
        Err(Errno::ENOTDIR)
    );
}

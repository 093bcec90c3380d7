//! Disks in memory with the file system of `mke2fs`, mounted.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use abi::errno::Errno;
use block::{BlockDevice, Limits, Operation, PageCache, Request, Transfer};
use fs::block::{Disk, DiskDriver, DiskNumbers, DiskOpener, Protection};
use fs::ioctl::IoctlRequest;
use fs::mount::{self, Namespace, SuperBlock, UnmountFlags};
use fs::path::{LookupContext, LookupFlags};
use fs::ramfs::RamFs;
use fs::{Cred, DeviceId, File, FsStruct, NewInodeKind, OpenFlags, Path, ops};

/// Held by each test: they share the limits of dirty memory.
static ALONE: Mutex<()> = Mutex::new(());

/// A test for itself.
pub fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Medium {
    /// Contents that the disk shows.
    shown: Vec<u8>,
    /// Contents of the medium for certain, and writes since.
    flushed: Vec<u8>,
    pending: Vec<(usize, Vec<u8>)>,
}

/// Holds writes up that begin with a certain byte.
#[derive(Default)]
pub struct Gate {
    /// First byte of writes that are held up, if the gate is closed, and whether one is.
    state: Mutex<(Option<u8>, bool)>,
    changed: Condvar,
}

impl Gate {
    pub fn close(&self, first: u8) {
        *self.state.lock().unwrap() = (Some(first), false);
    }

    pub fn open(&self) {
        self.state.lock().unwrap().0 = None;
        self.changed.notify_all();
    }

    /// Returns when somebody is held up.
    pub fn wait(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| !state.1).unwrap());
    }

    fn pass(&self, transfer: &Transfer<'_>) {
        let mut first = [0];
        transfer.pages[0].read(0, &mut first);
        let mut state = self.state.lock().unwrap();
        while state.0 == Some(first[0]) {
            state.1 = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap();
        }
    }
}

/// A disk in memory.
#[derive(Default)]
pub struct MemoryDisk {
    medium: Mutex<Medium>,
    pub gate: Gate,
    pub fails: AtomicBool,
    is_read_only: AtomicBool,
}

impl MemoryDisk {
    fn execute(&self, operation: &Operation<'_>) -> Result<(), Errno> {
        operation.check(self)?;
        if let Operation::Write(transfer) = operation {
            self.gate.pass(transfer);
        }
        let mut medium = self.medium.lock().unwrap();
        let is_read = matches!(operation, Operation::Read(_));
        if self.fails.load(Ordering::Relaxed) && !is_read {
            return Err(Errno::EIO);
        }
        match operation {
            Operation::Read(transfer) => transfer.for_each_page(|page, at, len| {
                page.write(0, &medium.shown[at as usize..at as usize + len]);
                Ok(())
            }),
            Operation::Write(transfer) => write(&mut medium, transfer),
            Operation::Flush => {
                medium.flushed = medium.shown.clone();
                medium.pending.clear();
                Ok(())
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Contents that the disk shows.
    pub fn bytes(&self) -> Vec<u8> {
        self.medium.lock().unwrap().shown.clone()
    }

    /// Gives the memory back: disks stay registered.
    pub fn forget(&self) {
        *self.medium.lock().unwrap() = Medium::default();
    }

    /// Contents of the medium after a power cut: of the writes since the last flush those are
    /// there that are `chosen`.
    pub fn after_cut(&self, mut chosen: impl FnMut() -> bool) -> Vec<u8> {
        let medium = self.medium.lock().unwrap();
        let mut bytes = medium.flushed.clone();
        for (at, written) in &medium.pending {
            for (n, sector) in written.chunks(512).enumerate() {
                if chosen() {
                    let at = at + 512 * n;
                    bytes[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        bytes
    }
}

fn write(medium: &mut Medium, transfer: &Transfer<'_>) -> Result<(), Errno> {
    transfer.for_each_page(|page, at, len| {
        let mut bytes = vec![0; len];
        page.read(0, &mut bytes);
        medium.shown[at as usize..at as usize + len].copy_from_slice(&bytes);
        medium.pending.push((at as usize, bytes));
        Ok(())
    })
}

impl BlockDevice for MemoryDisk {
    fn capacity(&self) -> u64 {
        self.medium.lock().unwrap().shown.len() as u64
    }

    fn limits(&self) -> Limits {
        Limits::of_blocks(512)
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::Relaxed)
    }

    fn submit(&self, batch: &mut [Request<'_>]) {
        for request in batch {
            request.outcome = self.execute(&request.operation);
        }
    }
}

impl DiskDriver for MemoryDisk {
    fn ioctl(&self, _: &DiskOpener<'_>, _: &IoctlRequest<'_>) -> fs::Result<usize> {
        Err(Errno::ENOTTY)
    }

    fn protect(&self, protection: Protection) {
        let read_only = protection == Protection::ReadOnly;
        self.is_read_only.store(read_only, Ordering::Relaxed);
    }

    fn closed(&self, _: &PageCache) {}
}

fn new_file_name() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("skerry-fs-ext4-{}-{n}", std::process::id()))
}

/// A program of e2fsprogs on an image; what it printed, and its result.
fn run(program: &str, arguments: &[&str], image: &[u8]) -> (Vec<u8>, String, i32) {
    let file = new_file_name();
    std::fs::write(&file, image).unwrap();
    let output = Command::new(format!("/usr/sbin/{program}"))
        .args(arguments)
        .arg(&file)
        .output()
        .expect("e2fsprogs are needed: make setup");
    let changed = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text += &String::from_utf8_lossy(&output.stderr);
    (changed, text, output.status.code().unwrap_or(-1))
}

/// A new file system of so many bytes.
pub fn mke2fs(options: &[&str], bytes: usize) -> Vec<u8> {
    let all = [&["-q", "-F", "-t", "ext4"], options].concat();
    let (image, text, status) = run("mke2fs", &all, &vec![0; bytes]);
    assert_eq!(status, 0, "{text}");
    image
}

/// Panics unless `e2fsck` finds nothing wrong with a file system.
pub fn check(image: &[u8]) {
    let (_, text, status) = run("e2fsck", &["-fn"], image);
    assert_eq!(status, 0, "{text}");
}

/// The file system after `e2fsck` replayed the journal.
pub fn replayed(image: &[u8]) -> Vec<u8> {
    let (image, text, status) = run("e2fsck", &["-p"], image);
    assert!(status == 0 || status == 1, "{status}: {text}");
    image
}

/// The file system after a request of `debugfs`.
pub fn debugfs(image: &[u8], request: &str) -> Vec<u8> {
    run("debugfs", &["-w", "-R", request], image).0
}

/// A mounted disk.
pub struct World {
    pub disk: Arc<MemoryDisk>,
    pub id: DeviceId,
    context: FsStruct,
    root: Cred,
}

impl World {
    pub fn new(image: Vec<u8>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let minor = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = DeviceId::new(240, minor);
        let disk = Arc::new(MemoryDisk::default());
        *disk.medium.lock().unwrap() = Medium {
            flushed: image.clone(),
            shown: image,
            pending: Vec::new(),
        };
        let place = DiskNumbers { id, minors: 1 };
        Disk::register(&format!("mem{minor}"), place, disk.clone()).unwrap();
        let ram = RamFs::new("tmpfs", None, 0o755);
        let context = FsStruct::new(Namespace::new(ram, "none"));
        let root = Cred::root();
        let world = Self {
            disk,
            id,
            context,
            root,
        };
        ops::create_node(&world.walk(), b"/mnt", NewInodeKind::Directory, 0o755).unwrap();
        world
    }

    /// The same, mounted.
    pub fn mounted(image: Vec<u8>) -> Self {
        let world = Self::new(image);
        world.mount(0).unwrap();
        world
    }

    pub fn mount(&self, bits: u32) -> fs::Result<Arc<SuperBlock>> {
        let shown = fs::ext4::mount(self.id, "", bits)?;
        let space = self.context.namespace();
        mount::mount(&space, shown.clone(), &self.at("/mnt")?, "disk", bits)?;
        Ok(shown)
    }

    pub fn unmount(&self) -> fs::Result<()> {
        let space = self.context.namespace();
        let top = self.at("/mnt")?;
        let root = self.context.root();
        mount::unmount(&space, &top, &root, UnmountFlags::empty())
    }

    /// The file system, unmounted and without a fault.
    pub fn finish(self) -> Vec<u8> {
        self.unmount().unwrap();
        let image = self.disk.bytes();
        check(&image);
        image
    }

    pub fn at(&self, name: &str) -> fs::Result<Path> {
        let walk = self.walk();
        walk.lookup(name.as_bytes(), LookupFlags::empty())
    }

    pub fn open(&self, name: &str, flags: OpenFlags) -> fs::Result<Arc<File>> {
        let walk = self.walk();
        ops::open(&walk, name.as_bytes(), flags, 0o644)
    }

    pub fn create(&self, name: &str) -> fs::Result<Arc<File>> {
        self.open(name, OpenFlags::RDWR | OpenFlags::CREAT)
    }

    pub fn walk(&self) -> LookupContext<'_> {
        self.context.lookup_context(&self.root)
    }
}

/// Returns when a thread sleeps or has ended; its number is the last part of `/proc/thread-self`.
pub fn wait_asleep(number: &str) {
    let stat = format!("/proc/self/task/{number}/stat");
    while let Ok(text) = std::fs::read_to_string(&stat)
        && let Some((_, state)) = text.rsplit_once(") ")
        && !state.starts_with(['S', 'Z', 'X'])
    {
        std::thread::yield_now();
    }
}

/// All of a file.
pub fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().size as usize + 10];
    let n = file.read_at(0, &mut bytes).unwrap();
    bytes.truncate(n);
    bytes
}

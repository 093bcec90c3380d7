//! Pseudo-terminals: what one side does and the other sees.

use std::cell::RefCell;
use std::sync::{Arc, Once};
use std::thread;

use abi::errno::Errno;
use fs::devfs;
use fs::ioctl::{IoctlCaller, IoctlRequest};
use fs::mount::{self, SuperBlock};
use fs::poll::Events;
use fs::ramfs::RamFs;
use fs::tty::{self, WinSize, pty};
use fs::{Cred, File, FsStruct, NewInodeKind, OpenFlags, ops};
use linux_raw_sys::{general as sys, ioctl};

/// A caller whose memory is one buffer at address 0.
#[derive(Default)]
struct Buffer {
    bytes: RefCell<Vec<u8>>,
    installed: RefCell<Vec<Arc<File>>>,
}

impl IoctlCaller for Buffer {
    fn read_bytes(&self, addr: usize, to: &mut [u8]) -> Result<(), Errno> {
        to.copy_from_slice(
            self.bytes
                .borrow()
                .get(addr..addr + to.len())
                .ok_or(Errno::EFAULT)?,
        );
        Ok(())
    }

    fn write_bytes(&self, _: usize, from: &[u8]) -> Result<(), Errno> {
        *self.bytes.borrow_mut() = from.to_vec();
        Ok(())
    }

    fn install(&self, file: Arc<File>, _: fs::OpenFlags) -> Result<usize, Errno> {
        self.installed.borrow_mut().push(file);
        Ok(7)
    }

    fn privileged(&self) -> bool {
        false
    }
}

fn control(file: &File, command: u32, arg: &[u8]) -> Result<Vec<u8>, Errno> {
    let caller = Buffer {
        bytes: RefCell::new(arg.to_vec()),
        ..Buffer::default()
    };
    file.ioctl(&IoctlRequest {
        command,
        arg: 0,
        caller: &caller,
    })?;
    Ok(caller.bytes.take())
}

fn tree() -> FsStruct {
    static DEVICES: Once = Once::new();
    DEVICES.call_once(|| tty::register_standard().unwrap());
    let context = FsStruct::new(mount::Namespace::new(
        RamFs::new("rootfs", None, 0o755),
        "rootfs",
    ));
    let cred = Cred::root();
    let walk = context.lookup_context(&cred);
    ops::create_node(&walk, b"/dev", NewInodeKind::Directory, 0o755).unwrap();
    let lookup = |name: &[u8]| walk.lookup(name, fs::path::LookupFlags::empty()).unwrap();
    mount::mount(
        &context.namespace(),
        SuperBlock::for_fs(devfs::filesystem(), 0),
        &lookup(b"/dev"),
        "devtmpfs",
        0,
    )
    .unwrap();
    mount::mount(
        &context.namespace(),
        SuperBlock::for_fs(pty::filesystem(), 0),
        &lookup(b"/dev/pts"),
        "devpts",
        0,
    )
    .unwrap();
    context
}

fn open(context: &FsStruct, name: &str, flags: OpenFlags) -> Result<Arc<File>, Errno> {
    let cred = Cred::root();
    ops::open(&context.lookup_context(&cred), name.as_bytes(), flags, 0)
}

const RDWR: OpenFlags = OpenFlags::RDWR.union(OpenFlags::NOCTTY);

/// A master, its unlocked slave, and the slave's name.
fn pair(context: &FsStruct) -> (Arc<File>, Arc<File>, String) {
    let master = open(context, "/dev/ptmx", RDWR).unwrap();
    let number = control(&master, ioctl::TIOCGPTN, b"").unwrap();
    let name = format!(
        "/dev/pts/{}",
        u32::from_ne_bytes(number.try_into().unwrap())
    );
    assert_eq!(
        open(context, &name, RDWR).err(),
        Some(Errno::EIO),
        "it is locked"
    );
    control(&master, ioctl::TIOCSPTLCK, &0i32.to_ne_bytes()).unwrap();
    let slave = open(context, &name, RDWR).unwrap();
    (master, slave, name)
}

fn read(file: &File) -> Result<String, Errno> {
    let mut buf = [0; 4096];
    let n = file.read(&mut buf)?;
    Ok(String::from_utf8(buf[..n].to_vec()).unwrap())
}

#[test]
fn lines_go_both_ways() {
    let context = tree();
    let (master, slave, name) = pair(&context);
    assert_eq!(slave.path().to_bytes(None), name.as_bytes());
    assert_eq!(master.write(b"typed\n"), Ok(6));
    assert_eq!(read(&slave).unwrap(), "typed\n");
    assert_eq!(read(&master).unwrap(), "typed\r\n", "the echo");
    assert_eq!(slave.write(b"shown\n"), Ok(6));
    assert_eq!(
        control(&master, ioctl::FIONREAD, b"").unwrap(),
        7i32.to_ne_bytes()
    );
    assert_eq!(read(&master).unwrap(), "shown\r\n");
    let size = WinSize {
        rows: 24,
        cols: 80,
        ..WinSize::default()
    };
    control(
        &master,
        ioctl::TIOCSWINSZ,
        zerocopy::IntoBytes::as_bytes(&size),
    )
    .unwrap();
    assert_eq!(
        control(&slave, ioctl::TIOCGWINSZ, b"").unwrap(),
        zerocopy::IntoBytes::as_bytes(&size)
    );
}

#[test]
fn the_end_of_either_side() {
    let context = tree();
    let (master, slave, name) = pair(&context);
    slave.write(b"last words").unwrap();
    drop(slave);
    assert!(master.poll(None).contains(Events::HUP | Events::IN));
    assert_eq!(read(&master).unwrap(), "last words");
    assert_eq!(read(&master), Err(Errno::EIO));
    let again = open(&context, &name, RDWR).unwrap();
    assert_eq!(
        master.poll(None) & (Events::HUP | Events::IN),
        Events::empty()
    );
    let reader = {
        let again = again.clone();
        thread::spawn(move || read(&again))
    };
    drop(master);
    assert_eq!(reader.join().unwrap(), Ok(String::new()));
    assert_eq!(again.write(b"x"), Err(Errno::EIO));
    assert_eq!(open(&context, &name, RDWR).err(), Some(Errno::ENOENT));
}

#[test]
fn much_goes_through() {
    let context = tree();
    let (master, slave, _) = pair(&context);
    let mut termios = control(&slave, ioctl::TCGETS, b"").unwrap();
    // Nothing is processed, no echo, no lines.
    termios[..8].fill(0);
    termios[12..16].fill(0);
    control(&slave, ioctl::TCSETS, &termios).unwrap();
    let data: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
    for (from, to) in [(&master, &slave), (&slave, &master)] {
        let (from, sent) = (from.clone(), data.clone());
        let sender = thread::spawn(move || from.write(&sent));
        let mut got = Vec::new();
        let mut buf = [0; 10_000];
        while got.len() < data.len() {
            let n = to.read(&mut buf).unwrap();
            got.extend_from_slice(&buf[..n]);
        }
        assert_eq!(sender.join().unwrap(), Ok(data.len()));
        assert!(got == data);
    }
}

#[test]
fn packets_tell_what_happened() {
    let context = tree();
    let (master, slave, _) = pair(&context);
    control(&master, ioctl::TIOCPKT, &1i32.to_ne_bytes()).unwrap();
    slave.write(b"data").unwrap();
    assert_eq!(read(&master).unwrap(), "\0data");
    master.write(b"\x13").unwrap();
    assert!(master.poll(None).contains(Events::PRI | Events::IN));
    assert_eq!(read(&master).unwrap().as_bytes(), [sys::TIOCPKT_STOP as u8]);
    master.write(b"\x11").unwrap();
    assert_eq!(
        read(&master).unwrap().as_bytes(),
        [sys::TIOCPKT_START as u8]
    );
    let mut termios = control(&slave, ioctl::TCGETS, b"").unwrap();
    let iflag = u32::from_ne_bytes(termios[..4].try_into().unwrap()) & !sys::IXON;
    termios[..4].copy_from_slice(&iflag.to_ne_bytes());
    control(&slave, ioctl::TCSETS, &termios).unwrap();
    assert_eq!(
        read(&master).unwrap().as_bytes(),
        [sys::TIOCPKT_NOSTOP as u8]
    );
}

#[test]
fn the_other_side_without_a_name() {
    let context = tree();
    let master = open(&context, "/dev/pts/ptmx", RDWR).unwrap();
    control(&master, ioctl::TIOCSPTLCK, &0i32.to_ne_bytes()).unwrap();
    let caller = Buffer::default();
    let request = IoctlRequest {
        command: ioctl::TIOCGPTPEER,
        arg: RDWR.bits() as usize,
        caller: &caller,
    };
    assert_eq!(master.ioctl(&request), Ok(7));
    let slave = caller.installed.take().remove(0);
    slave.write(b"x").unwrap();
    assert_eq!(read(&master).unwrap(), "x");
}

#[test]
fn what_waits_is_thrown_away_as_asked() {
    let context = tree();
    let (master, slave, _) = pair(&context);
    let flush = |file: &Arc<File>, which: u32| {
        file.ioctl(&IoctlRequest {
            command: ioctl::TCFLSH,
            arg: which as usize,
            caller: &Buffer::default(),
        })
    };
    let waits = |file: &Arc<File>| {
        i32::from_ne_bytes(
            control(file, ioctl::FIONREAD, b"")
                .unwrap()
                .try_into()
                .unwrap(),
        )
    };
    for (which, left) in [
        (sys::TCIFLUSH, (0, 3)),
        (sys::TCOFLUSH, (3, 0)),
        (sys::TCIOFLUSH, (0, 0)),
    ] {
        // The echo goes the other way, too.
        slave.write(b"out").unwrap();
        flush(&master, sys::TCIOFLUSH).unwrap();
        master.write(b"in\n").unwrap();
        flush(&master, sys::TCIFLUSH).unwrap();
        slave.write(b"out").unwrap();
        assert_eq!((waits(&master), waits(&slave)), (3, 3));
        flush(&master, which).unwrap();
        assert_eq!((waits(&master), waits(&slave)), left, "{which}");
        flush(&master, sys::TCIOFLUSH).unwrap();
    }
    assert_eq!(flush(&master, 3), Err(Errno::EINVAL));
}

#[test]
fn a_full_line_takes_more_when_the_master_has_read() {
    let context = tree();
    let (master, slave, _) = pair(&context);
    let mut termios = control(&slave, ioctl::TCGETS, b"").unwrap();
    termios[..8].fill(0);
    control(&slave, ioctl::TCSETS, &termios).unwrap();
    // Until it is full; the last byte has room as the first has.
    let mut sent = 0;
    while slave.poll(None).contains(Events::OUT) {
        sent += slave.write(b"x").unwrap();
    }
    assert_eq!(
        control(&master, ioctl::FIONREAD, b"").unwrap(),
        (sent as i32).to_ne_bytes()
    );
    assert!(sent.is_power_of_two(), "{sent} bytes are the whole of it");
    let theirs = slave.clone();
    let writer = thread::spawn(move || theirs.write(b"more"));
    let mut got = 0;
    while got < sent + 4 {
        got += read(&master).unwrap().len();
    }
    assert_eq!(writer.join().unwrap(), Ok(4));
}

/// A thread that waits in a read of the master wakes up when the slave writes, and when the slave
/// is closed.
#[test]
fn a_master_that_waits_is_told() {
    let context = tree();
    let (master, slave, _) = pair(&context);
    let reader = thread::spawn(move || {
        let first = read(&master);
        (first, read(&master))
    });
    thread::sleep(std::time::Duration::from_millis(10));
    slave.write(b"word").unwrap();
    thread::sleep(std::time::Duration::from_millis(10));
    drop(slave);
    assert_eq!(reader.join().unwrap(), (Ok("word".into()), Err(Errno::EIO)));
}

#[test]
fn devices_are_registered_once() {
    tree();
    assert_eq!(tty::register_standard(), Err(Errno::EEXIST));
}

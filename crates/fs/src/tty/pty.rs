//! Pseudo-terminals: `pty(7)`, `/dev/ptmx` and the file system `devpts`.
//!
//! A pair is a [`Tty`], the slave, whose line is a buffer that the master reads; what the master
//! writes arrives at the slave as if typed. The slave is thus a terminal like any other: line
//! editing, signals and job control are the same code. The pair's number is free again when the
//! master is closed; the slave is hung up then. Somebody else than a master can be at the other end
//! of a slave's line ([`PtsLine`]).

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::errno::Errno;
use linux_raw_sys::{general as sys, ioctl};
use task::{Mutex, Once};

use super::{Termios, Tty, TtyDriver, job_control};
use crate::devfs::{self, CharDevice};
use crate::file::{Blocking, FileOps, OpenFlags};
use crate::ioctl::IoctlRequest;
use crate::mount::{FileSystem, Mount, new_anonymous_device};
use crate::pipe::drain_into;
use crate::poll::{Events, PollQueue, PollTable};
use crate::{DeviceId, DirEntry, File, FileType, Inode, Metadata, Path, Result, SetAttr, StatFs};

/// Bytes at most that a slave has written and its master has not read.
const CAPACITY: usize = 16_384;
/// Most pairs that there may be (`/proc/sys/kernel/pty/max`), up to a million.
pub static MAX_PAIRS: AtomicU32 = AtomicU32::new(4096);
/// Numbers of slaves, as many as a major has minors.
const NUMBERS: u32 = 1 << 20;
/// The majors of slaves, of which each has 256 minors, and the master's number.
const SLAVE_MAJOR: u32 = 136;
const MASTER: DeviceId = DeviceId::new(5, 2);
const DEVPTS_MAGIC: u64 = 0x1cd1;

bitflags::bitflags! {
    /// Events at the slave, as packet mode tells the master (`TIOCPKT(2const)`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct PacketStatus: u8 {
        /// Input was thrown away.
        const FLUSH_READ = sys::TIOCPKT_FLUSHREAD as u8;
        /// Output was thrown away.
        const FLUSH_WRITE = sys::TIOCPKT_FLUSHWRITE as u8;
        /// Output was stopped.
        const STOP = sys::TIOCPKT_STOP as u8;
        /// Output goes on.
        const START = sys::TIOCPKT_START as u8;
        /// The stop and start characters do not stop any more.
        const NO_STOP = sys::TIOCPKT_NOSTOP as u8;
        /// `^S` and `^Q` stop output again.
        const DO_STOP = sys::TIOCPKT_DOSTOP as u8;
        /// The settings of a terminal with `EXTPROC` changed.
        const IOCTL = sys::TIOCPKT_IOCTL as u8;
    }
}

struct State {
    /// On its way to the master.
    data: VecDeque<u8>,
    /// `TIOCSPTLCK`: the slave cannot be opened yet.
    locked: bool,
    /// The master is closed.
    master_closed: bool,
    /// Openings of the slave, and whether there ever was one.
    open_count: usize,
    was_opened: bool,
    packet_mode: bool,
    status: PacketStatus,
}

/// Driver between the two sides of a pseudo-terminal.
struct PtyDriver {
    number: u32,
    state: Mutex<State>,
    /// Notified when the master has more to read, or has nothing to wait for any more.
    readable: PollQueue,
    /// Notified when the slave takes input again.
    resumed: PollQueue,
    /// Notified when the slave can write again.
    room: PollQueue,
}

impl PtyDriver {
    fn new(number: u32) -> Arc<Self> {
        Arc::new(Self {
            number,
            state: Mutex::new(State {
                data: VecDeque::new(),
                locked: true,
                master_closed: false,
                open_count: 0,
                was_opened: false,
                packet_mode: false,
                status: PacketStatus::empty(),
            }),
            readable: PollQueue::new(),
            resumed: PollQueue::new(),
            room: PollQueue::new(),
        })
    }

    fn has_packet_status(state: &State) -> bool {
        !state.data.is_empty() || (state.packet_mode && !state.status.is_empty())
    }

    /// Whether no file of the slave is open, after one was. One that a hang-up made useless counts
    /// until it is closed: `script` keeps one so that it sees no end.
    fn is_slave_closed(state: &State) -> bool {
        state.was_opened && state.open_count == 0
    }
}

impl TtyDriver for PtyDriver {
    fn write(&self, bytes: &[u8]) -> usize {
        let n = {
            let mut state = self.state.lock();
            if state.master_closed {
                return bytes.len();
            }
            let n = bytes.len().min(CAPACITY.saturating_sub(state.data.len()));
            state.data.extend(&bytes[..n]);
            n
        };
        if n > 0 {
            self.readable.notify_events(Events::READABLE);
        }
        n
    }

    fn wait_writable(&self) -> Result<()> {
        self.room.wait(|| {
            let state = self.state.lock();
            (state.master_closed || state.data.len() < CAPACITY).then_some(())
        })
    }

    fn writable(&self, table: Option<&mut PollTable>) -> bool {
        if let Some(table) = table {
            table.poll_wait(&self.room);
        }
        let state = self.state.lock();
        state.master_closed || state.data.len() < CAPACITY
    }

    fn resume(&self) {
        self.resumed.notify();
    }

    fn opened(&self) -> Result<()> {
        let mut state = self.state.lock();
        if state.locked || state.master_closed {
            return Err(Errno::EIO);
        }
        state.open_count += 1;
        state.was_opened = true;
        Ok(())
    }

    fn closed(&self) {
        {
            let mut state = self.state.lock();
            state.open_count -= 1;
        }
        self.readable.notify();
    }

    fn discard(&self) {
        self.state.lock().data.clear();
        self.room.notify();
    }

    fn status(&self, what: PacketStatus) {
        {
            let mut state = self.state.lock();
            if !state.packet_mode {
                return;
            }
            // A change takes back the one before.
            for pair in [
                PacketStatus::STOP | PacketStatus::START,
                PacketStatus::NO_STOP | PacketStatus::DO_STOP,
            ] {
                if what.intersects(pair) {
                    state.status.remove(pair);
                }
            }
            state.status |= what;
        }
        self.readable.notify();
    }
}

/// Table of the pseudo-terminals there are, by number.
struct PtyTable {
    fs: Arc<DevPts>,
    slaves: Mutex<BTreeMap<u32, Arc<Slave>>>,
}

fn pty_table() -> &'static PtyTable {
    static PAIRS: Once<PtyTable> = Once::new();
    PAIRS.call_once(|| PtyTable {
        fs: Arc::new(DevPts {
            root: Arc::new(DevPtsRoot {
                dev: new_anonymous_device(),
            }),
        }),
        slaves: Mutex::new(BTreeMap::new()),
    })
}

/// How many pairs there are.
pub(crate) fn count() -> u64 {
    pty_table().slaves.lock().len() as u64
}

/// The file system of `/dev/pts`, the same wherever it is mounted.
#[must_use]
pub fn filesystem() -> Arc<DevPts> {
    pty_table().fs.clone()
}

/// The slave's node, while the other end of its line lives.
struct Slave {
    tty: Arc<Tty>,
    number: u32,
    attr: Mutex<Metadata>,
}

impl Slave {
    /// A new slave of this user and group with the lowest free number, on a line that is made for
    /// that number.
    fn allocate<D: TtyDriver + 'static>(
        owner: (u32, u32),
        line: impl FnOnce(u32) -> Arc<D>,
    ) -> Result<(Arc<Self>, Arc<D>)> {
        let mut slaves = pty_table().slaves.lock();
        if slaves.len() >= MAX_PAIRS.load(Ordering::Relaxed) as usize {
            return Err(Errno::ENOSPC);
        }
        let number = (0..NUMBERS)
            .find(|n| !slaves.contains_key(n))
            .ok_or(Errno::ENOSPC)?;
        let driver = line(number);
        let id = DeviceId::new(SLAVE_MAJOR + number / 256, number % 256);
        let tty = Tty::new(
            &format!("pts/{number}"),
            id,
            driver.clone(),
            Termios::default(),
        );
        let mut meta = Metadata::generated(
            pty_table().fs.root.dev,
            u64::from(number) + 3,
            FileType::Char,
            0o620,
        );
        (meta.uid, meta.gid) = owner;
        meta.rdev = id.encode();
        meta.blksize = 1024;
        let slave = Arc::new(Self {
            tty,
            number,
            attr: Mutex::new(meta),
        });
        slaves.insert(number, slave.clone());
        Ok((slave, driver))
    }

    /// Takes the slave out of the table, and hangs it up.
    fn retire(&self) {
        let node = pty_table().slaves.lock().remove(&self.number);
        drop(node);
        self.tty.hang_up();
    }
}

impl Inode for Slave {
    fn metadata(&self) -> Metadata {
        *self.attr.lock()
    }

    fn kind(&self) -> FileType {
        FileType::Char
    }

    fn set_attr(&self, change: &SetAttr) -> Result<()> {
        change.apply_to(&mut self.attr.lock());
        Ok(())
    }

    fn open(self: Arc<Self>, flags: OpenFlags) -> Result<Option<Arc<dyn FileOps>>> {
        self.tty.open(flags).map(Some)
    }

    fn device(&self) -> Option<DeviceId> {
        Some(self.tty.id())
    }
}

/// A slave on a line of somebody else's than a master. It is hung up, and its number free again,
/// when this is dropped.
pub struct PtsLine {
    slave: Arc<Slave>,
}

impl PtsLine {
    /// A terminal of this user and group in `/dev/pts`, on this line.
    ///
    /// # Errors
    /// `ENOSPC`: there are as many pseudo-terminals as there may be.
    pub fn new<D: TtyDriver + 'static>(owner: (u32, u32), line: D) -> Result<Self> {
        let (slave, _) = Slave::allocate(owner, |_| Arc::new(line))?;
        Ok(Self { slave })
    }

    /// The terminal.
    #[must_use]
    pub fn tty(&self) -> &Arc<Tty> {
        &self.slave.tty
    }
}

impl Drop for PtsLine {
    fn drop(&mut self) {
        self.slave.retire();
    }
}

/// An open file of `/dev/ptmx`: the master's side of a pair.
struct Master {
    slave: Arc<Slave>,
    driver: Arc<PtyDriver>,
}

impl Master {
    fn driver(&self) -> &PtyDriver {
        &self.driver
    }

    /// Tries to read. With packet mode a byte in front tells whether it is data or the status of
    /// the slave.
    fn try_read(&self, buf: &mut [u8], blocking: Blocking) -> Option<Result<usize>> {
        let mut state = self.driver().state.lock();
        if !PtyDriver::has_packet_status(&state) {
            if PtyDriver::is_slave_closed(&state) {
                return Some(Err(Errno::EIO));
            }
            return blocking.would_block();
        }
        if !state.packet_mode {
            return Some(Ok(drain_into(&mut state.data, buf)));
        }
        if !state.status.is_empty() {
            buf[0] = core::mem::take(&mut state.status).bits();
            return Some(Ok(1));
        }
        buf[0] = sys::TIOCPKT_DATA as u8;
        Some(Ok(1 + drain_into(&mut state.data, &mut buf[1..])))
    }

    /// Opens the slave, as `TIOCGPTPEER` does.
    fn open_peer(&self, master: &File, flags: OpenFlags) -> Result<Arc<File>> {
        let name = format!("{}", self.driver().number);
        let here = |m: &&Arc<Mount>| m.fs().name() == "devpts";
        let path = match master.path().mount().tree_mounts().iter().find(here) {
            Some(mount) => Path::new(mount.clone(), mount.root().lookup(name.as_bytes())?),
            None => Path::pseudo(self.slave.clone(), &format!("/dev/pts/{name}")),
        };
        let opened = self.slave.tty.open(flags)?;
        Ok(File::new(path, opened, flags))
    }
}

impl FileOps for Master {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        let n = match self.try_read(buf, file.blocking()) {
            Some(result) => result?,
            None => self
                .driver()
                .readable
                .wait(|| self.try_read(buf, Blocking::Wait))??,
        };
        self.driver().room.notify_events(Events::WRITABLE);
        Ok(n)
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let n = self.slave.tty.receive(&buf[done..]);
            done += n;
            if n > 0 {
                continue;
            }
            let waited = match file.is_nonblocking() {
                true => Err(Errno::EAGAIN),
                false => self
                    .driver()
                    .resumed
                    .wait(|| self.slave.tty.takes_input().then_some(())),
            };
            match waited {
                Err(_) if done > 0 => break,
                waited => waited?,
            }
        }
        Ok(done)
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        let driver = self.driver();
        if let Some(table) = table {
            table.poll_wait(&driver.readable);
            table.poll_wait(&driver.resumed);
        }
        let mut events = Events::empty();
        events.set(Events::WRITABLE, self.slave.tty.takes_input());
        let state = driver.state.lock();
        events.set(Events::READABLE, PtyDriver::has_packet_status(&state));
        events.set(Events::PRI, state.packet_mode && !state.status.is_empty());
        events.set(Events::HUP, PtyDriver::is_slave_closed(&state));
        events
    }

    fn ioctl(&self, file: &File, request: &IoctlRequest<'_>) -> Result<usize> {
        let driver = self.driver();
        let switch = |set: fn(&mut State, bool)| -> Result<()> {
            let on = request.read::<i32>()? != 0;
            set(&mut driver.state.lock(), on);
            Ok(())
        };
        match request.command {
            ioctl::TIOCGPTN => request.write(&driver.number)?,
            ioctl::TIOCSPTLCK => switch(|state, on| state.locked = on)?,
            ioctl::TIOCGPTLCK => request.write(&i32::from(driver.state.lock().locked))?,
            ioctl::TIOCPKT => switch(|state, on| {
                state.packet_mode = on;
                state.status = PacketStatus::empty();
            })?,
            ioctl::TIOCGPKT => request.write(&i32::from(driver.state.lock().packet_mode))?,
            ioctl::TIOCGPTPEER => {
                let flags = OpenFlags::from_bits_truncate(
                    u32::try_from(request.arg).map_err(|_| Errno::EINVAL)?,
                );
                let file = self.open_peer(file, flags)?;
                return request.caller.install(file, flags);
            }
            ioctl::TIOCSIG => {
                let signal = u32::try_from(request.arg)
                    .ok()
                    .filter(|s| (1..=64).contains(s))
                    .ok_or(Errno::EINVAL)?;
                self.slave.tty.signal_foreground(signal);
            }
            ioctl::FIONREAD => {
                let n = driver.state.lock().data.len();
                request.write(&i32::try_from(n).unwrap_or(i32::MAX))?;
            }
            ioctl::TIOCOUTQ => request.write(&0i32)?,
            ioctl::TCFLSH => match u32::try_from(request.arg).map_err(|_| Errno::EINVAL)? {
                sys::TCIFLUSH => driver.discard(),
                sys::TCOFLUSH => self.slave.tty.flush_input(),
                sys::TCIOFLUSH => {
                    driver.discard();
                    self.slave.tty.flush_input();
                }
                _ => return Err(Errno::EINVAL),
            },
            // The master is in the foreground of nothing: it is asked about the slave's.
            ioctl::TIOCGPGRP => {
                request.write(&self.slave.tty.foreground().map_or(0, u32::cast_signed))?;
            }
            ioctl::TIOCGSID => {
                request.write(&self.slave.tty.session().ok_or(Errno::ENOTTY)?.cast_signed())?;
            }
            ioctl::TIOCSCTTY | ioctl::TIOCNOTTY => return Err(Errno::ENOTTY),
            _ => return self.slave.tty.handle_ioctl(request),
        }
        Ok(0)
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        let driver = self.driver();
        driver.state.lock().master_closed = true;
        self.slave.retire();
        driver.room.notify();
    }
}

/// `/dev/ptmx`: each open makes a pair.
struct PtmxDevice;

impl CharDevice for PtmxDevice {
    fn open(self: Arc<Self>, _: OpenFlags) -> Result<Arc<dyn FileOps>> {
        let (slave, driver) = Slave::allocate(job_control::owner(), PtyDriver::new)?;
        Ok(Arc::new(Master { slave, driver }))
    }

    fn id(&self) -> Option<DeviceId> {
        Some(MASTER)
    }

    fn mode(&self) -> u32 {
        0o666
    }
}

/// Registers `/dev/ptmx` and the directory that `devpts` is mounted on. Called once, at start-up.
///
/// # Errors
/// `EEXIST` when called twice.
pub fn register() -> Result<()> {
    devfs::register("ptmx", Arc::new(PtmxDevice))?;
    devfs::directory("pts", 0o755)
}

/// The file system of slaves' nodes.
pub struct DevPts {
    root: Arc<DevPtsRoot>,
}

impl FileSystem for DevPts {
    fn name(&self) -> &'static str {
        "devpts"
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn statfs(&self) -> StatFs {
        StatFs {
            magic: DEVPTS_MAGIC,
            block_size: 4096,
            ..StatFs::default()
        }
    }

    fn options(&self) -> String {
        ",mode=620,ptmxmode=666".into()
    }
}

/// Its directory: `ptmx`, and a node for every pair whose master is open.
struct DevPtsRoot {
    dev: u64,
}

const PTMX: &[u8] = b"ptmx";

impl Inode for DevPtsRoot {
    fn metadata(&self) -> Metadata {
        Metadata::generated(self.dev, 1, FileType::Directory, 0o755)
    }

    fn kind(&self) -> FileType {
        FileType::Directory
    }

    fn has_stable_names(&self) -> bool {
        false
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        if name == PTMX {
            return Ok(Arc::new(PtmxNode { dev: self.dev }));
        }
        let number = core::str::from_utf8(name)
            .ok()
            .and_then(|n| n.parse::<u32>().ok())
            .ok_or(Errno::ENOENT)?;
        if format!("{number}").as_bytes() != name {
            return Err(Errno::ENOENT);
        }
        let slave = pty_table().slaves.lock().get(&number).cloned();
        Ok(slave.ok_or(Errno::ENOENT)?)
    }

    fn readdir(&self, cursor: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let slaves: Vec<u32> = pty_table().slaves.lock().keys().copied().collect();
        if cursor < 1
            && !emit(DirEntry {
                name: PTMX,
                ino: 2,
                kind: FileType::Char,
                next: 1,
            })
        {
            return Ok(());
        }
        for number in slaves {
            let next = u64::from(number) + 2;
            let name = format!("{number}");
            let entry = DirEntry {
                name: name.as_bytes(),
                ino: u64::from(number) + 3,
                kind: FileType::Char,
                next,
            };
            if next > cursor && !emit(entry) {
                break;
            }
        }
        Ok(())
    }
}

/// `/dev/pts/ptmx`, the same as `/dev/ptmx`.
struct PtmxNode {
    dev: u64,
}

impl Inode for PtmxNode {
    fn metadata(&self) -> Metadata {
        let mut meta = Metadata::generated(self.dev, 2, FileType::Char, 0o666);
        meta.rdev = MASTER.encode();
        meta
    }

    fn kind(&self) -> FileType {
        FileType::Char
    }

    fn device(&self) -> Option<DeviceId> {
        Some(MASTER)
    }
}

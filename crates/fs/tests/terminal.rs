//! Terminals as programs see them: openings, settings, job control, a slow line.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use abi::errno::Errno;
use fs::ioctl::{IoctlCaller, IoctlRequest, KernelCaller};
use fs::poll::{Events, PollQueue};
use fs::tty::{self, CallerIds, JobControl, Termios, Tty, TtyDriver, WinSize};
use fs::{DeviceId, File, OpenFlags};
use zerocopy::{FromBytes, IntoBytes};

/// A line that keeps what is sent, and takes only so much until it is emptied.
struct Wire {
    sent: Mutex<Vec<u8>>,
    limit: AtomicUsize,
    room: PollQueue,
    resumed: AtomicUsize,
    /// Somebody has found no room and waits for it, or is about to.
    full: AtomicBool,
}

impl Wire {
    fn new() -> Arc<Self> {
        let limit = AtomicUsize::new(usize::MAX);
        Arc::new(Self {
            sent: Mutex::default(),
            limit,
            room: PollQueue::new(),
            resumed: AtomicUsize::new(0),
            full: AtomicBool::new(false),
        })
    }

    fn take(&self) -> String {
        let text = String::from_utf8(std::mem::take(&mut *self.sent.lock().unwrap())).unwrap();
        self.room.notify();
        text
    }
}

impl TtyDriver for Wire {
    fn write(&self, bytes: &[u8]) -> usize {
        let mut sent = self.sent.lock().unwrap();
        let n = bytes.len().min(
            self.limit
                .load(Ordering::Relaxed)
                .saturating_sub(sent.len()),
        );
        sent.extend(&bytes[..n]);
        n
    }

    fn wait_writable(&self) -> fs::Result<()> {
        self.full.store(true, Ordering::SeqCst);
        self.room.wait(|| {
            (self.sent.lock().unwrap().len() < self.limit.load(Ordering::Relaxed)).then_some(())
        })
    }

    fn resume(&self) {
        self.resumed.fetch_add(1, Ordering::Relaxed);
    }
}

fn terminal(termios: Termios) -> (Arc<Tty>, Arc<Wire>) {
    let wire = Wire::new();
    (
        Tty::new("tty-test", DeviceId::new(4, 200), wire.clone(), termios),
        wire,
    )
}

fn open(tty: &Arc<Tty>, flags: OpenFlags) -> Arc<File> {
    let ops = tty.open(flags).unwrap();
    File::anonymous("tty", ops, flags | OpenFlags::RDWR)
}

fn read(file: &File) -> Result<String, Errno> {
    let mut buf = [0; 4096];
    let n = file.read(&mut buf)?;
    Ok(String::from_utf8_lossy(&buf[..n]).into_owned())
}

/// A caller whose memory is one structure.
struct Memory(RefCell<Vec<u8>>);

impl IoctlCaller for Memory {
    fn read_bytes(&self, _: usize, to: &mut [u8]) -> fs::Result<()> {
        to.copy_from_slice(self.0.borrow().get(..to.len()).ok_or(Errno::EFAULT)?);
        Ok(())
    }

    fn write_bytes(&self, _: usize, from: &[u8]) -> fs::Result<()> {
        *self.0.borrow_mut() = from.to_vec();
        Ok(())
    }

    fn install(&self, _: Arc<File>, _: fs::OpenFlags) -> fs::Result<usize> {
        Err(Errno::EMFILE)
    }

    fn privileged(&self) -> bool {
        true
    }
}

fn control(file: &File, command: u32, input: &[u8]) -> Result<Vec<u8>, Errno> {
    let memory = Memory(RefCell::new(input.to_vec()));
    file.ioctl(&IoctlRequest {
        command,
        arg: 0,
        caller: &memory,
    })?;
    Ok(memory.0.into_inner())
}

const TCGETS: u32 = 0x5401;
const TCSETS: u32 = 0x5402;
const TCSETSF: u32 = 0x5404;
const TIOCSCTTY: u32 = 0x540e;
const TIOCGPGRP: u32 = 0x540f;
const TIOCSPGRP: u32 = 0x5410;
const TIOCSWINSZ: u32 = 0x5414;
const TIOCGWINSZ: u32 = 0x5413;
const FIONREAD: u32 = 0x541b;

#[test]
fn a_reader_wakes_for_a_line() {
    let (tty, wire) = terminal(Termios::default());
    let file = open(&tty, OpenFlags::NOCTTY);
    let reader = thread::spawn(move || (read(&file), read(&file)));
    thread::sleep(Duration::from_millis(10));
    assert_eq!(tty.receive(b"he"), 2);
    tty.receive(b"y\r\x04");
    assert_eq!(
        reader.join().unwrap(),
        (Ok("hey\n".into()), Ok(String::new()))
    );
    assert_eq!(wire.take(), "hey\r\n");
}

#[test]
fn settings_are_exchanged() {
    let (tty, _) = terminal(Termios::default());
    let file = open(&tty, OpenFlags::NONBLOCK);
    let mut termios = Termios::read_from_bytes(&control(&file, TCGETS, b"").unwrap()).unwrap();
    assert_eq!(termios, Termios::default());
    tty.receive(b"abc");
    assert_eq!(control(&file, FIONREAD, b"").unwrap(), 0i32.to_ne_bytes());
    assert_eq!(read(&file), Err(Errno::EAGAIN));
    termios.lflag &= !2; // ICANON
    control(&file, TCSETS, termios.as_bytes()).unwrap();
    assert_eq!(control(&file, FIONREAD, b"").unwrap(), 3i32.to_ne_bytes());
    assert!(
        file.poll(None)
            .contains(Events::READABLE | Events::WRITABLE)
    );
    assert_eq!(read(&file).unwrap(), "abc");
    tty.receive(b"gone");
    control(&file, TCSETSF, termios.as_bytes()).unwrap();
    assert_eq!(read(&file), Err(Errno::EAGAIN));
    let size = WinSize {
        rows: 24,
        cols: 80,
        ..WinSize::default()
    };
    control(&file, TIOCSWINSZ, size.as_bytes()).unwrap();
    assert_eq!(control(&file, TIOCGWINSZ, b"").unwrap(), size.as_bytes());
    assert_eq!(control(&file, 0x1234, b""), Err(Errno::ENOTTY));
    assert_eq!(
        file.ioctl(&IoctlRequest {
            command: TCGETS,
            arg: 0,
            caller: &KernelCaller
        }),
        Err(Errno::EFAULT)
    );
}

#[test]
fn minimum_and_timer() {
    let raw = |min, time| {
        let mut termios = Termios::raw();
        termios.cc[6] = min;
        termios.cc[5] = time;
        termios
    };
    let (tty, _) = terminal(raw(3, 0));
    let file = open(&tty, OpenFlags::empty());
    tty.receive(b"ab");
    assert!(!file.poll(None).contains(Events::READABLE));
    let late = tty.clone();
    let typist = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        late.receive(b"cd");
    });
    assert_eq!(read(&file).unwrap(), "abcd");
    typist.join().unwrap();
    // No minimum: what there is, at once or within the time.
    control(&file, TCSETS, raw(0, 0).as_bytes()).unwrap();
    assert_eq!(read(&file).unwrap(), "");
    control(&file, TCSETS, raw(0, 1).as_bytes()).unwrap();
    let before = task::now_ns();
    assert_eq!(read(&file).unwrap(), "");
    assert!(task::now_ns() - before >= 100_000_000);
    // Both: the timer runs from the first byte.
    control(&file, TCSETS, raw(10, 1).as_bytes()).unwrap();
    tty.receive(b"xy");
    assert_eq!(read(&file).unwrap(), "xy");
}

#[test]
fn a_slow_line_loses_no_output_and_blocks_no_input() {
    let (tty, wire) = terminal(Termios::default());
    wire.limit.store(7, Ordering::Relaxed);
    let file = open(&tty, OpenFlags::empty());
    let text: String = (0..300).map(|i| format!("line {i}\n")).collect();
    let sent = text.clone();
    let writer = thread::spawn(move || assert_eq!(file.write(sent.as_bytes()), Ok(sent.len())));
    while !wire.full.load(Ordering::SeqCst) {
        thread::yield_now();
    }
    // The writer waits; what is typed is taken all the same, and not echoed.
    assert_eq!(tty.receive(b"typed\n"), 6);
    let mut got = String::new();
    while !writer.is_finished() || !wire.sent.lock().unwrap().is_empty() {
        got.push_str(&wire.take());
        thread::yield_now();
    }
    writer.join().unwrap();
    assert_eq!(got, text.replace('\n', "\r\n"));
    // Without blocking, a part is written.
    let file = open(&tty, OpenFlags::NONBLOCK);
    assert_eq!(
        file.write(b"0123456789"),
        Ok(10),
        "expanded bytes are kept for the line"
    );
    assert_eq!(file.write(b"x"), Err(Errno::EAGAIN));
}

#[test]
fn a_full_terminal_holds_the_driver_back() {
    let (tty, wire) = terminal(Termios::raw());
    let file = open(&tty, OpenFlags::empty());
    let data: Vec<u8> = (0..200_000u32).map(|i| (i % 255) as u8).collect();
    let mut taken = tty.receive(&data);
    assert!(taken < data.len());
    assert_eq!(tty.receive(&data[taken..]), 0);
    let mut got = Vec::new();
    let mut buf = [0; 5000];
    while got.len() < data.len() {
        let n = file.read(&mut buf).unwrap();
        got.extend_from_slice(&buf[..n]);
        if wire.resumed.swap(0, Ordering::Relaxed) > 0 {
            taken += tty.receive(&data[taken..]);
        }
    }
    assert!(got == data);
}

#[test]
fn stop_and_start_hold_output() {
    let (tty, wire) = terminal(Termios::default());
    let file = open(&tty, OpenFlags::NONBLOCK);
    tty.receive(b"\x13");
    assert_eq!(file.write(b"x"), Err(Errno::EAGAIN));
    tty.receive(b"\x11");
    assert_eq!(file.write(b"x"), Ok(1));
    assert_eq!(wire.take(), "x");
}

#[test]
fn a_hang_up_ends_old_openings_only() {
    let (tty, _) = terminal(Termios::default());
    let old = open(&tty, OpenFlags::empty());
    let reader = {
        let old = old.clone();
        thread::spawn(move || read(&old))
    };
    thread::sleep(Duration::from_millis(10));
    tty.hang_up();
    assert_eq!(reader.join().unwrap(), Ok(String::new()));
    assert_eq!(old.write(b"x"), Err(Errno::EIO));
    assert!(old.poll(None).contains(Events::HUP));
    let new = open(&tty, OpenFlags::empty());
    tty.receive(b"again\n");
    assert_eq!(read(&new).unwrap(), "again\n");
}

thread_local! {
    static CALLER: Cell<Option<CallerIds>> = const { Cell::new(None) };
    static SIGNALS: RefCell<Vec<(u32, u32)>> = const { RefCell::new(Vec::new()) };
}

struct FakeJobs;

impl JobControl for FakeJobs {
    fn caller(&self) -> Option<CallerIds> {
        CALLER.get()
    }

    fn is_ignored(&self, _: u32) -> bool {
        false
    }

    fn signal_group(&self, group: u32, signal: u32) {
        SIGNALS.with_borrow_mut(|s| s.push((group, signal)));
    }

    fn signal_process(&self, pid: u32, signal: u32) {
        SIGNALS.with_borrow_mut(|s| s.push((pid, signal)));
    }

    fn is_orphaned(&self, group: u32) -> bool {
        group == 66
    }

    fn session_of(&self, group: u32) -> Option<u32> {
        (group < 1000).then_some(if group < 200 { 50 } else { 999 })
    }
}

fn signals() -> Vec<(u32, u32)> {
    SIGNALS.take()
}

#[test]
fn job_control() {
    tty::set_job_control(Arc::new(FakeJobs));
    let process = |pid, group| {
        CALLER.set(Some(CallerIds {
            pid,
            group,
            session: 50,
        }));
    };
    let (tty, _) = terminal(Termios::default());
    // A process that leads no session gets no terminal by opening one.
    process(51, 51);
    open(&tty, OpenFlags::empty());
    assert_eq!(tty.session(), None);
    assert_eq!(tty.set_controlling(false), Err(Errno::EPERM));
    process(50, 50);
    let file = open(&tty, OpenFlags::NOCTTY);
    assert_eq!(control(&file, TIOCGPGRP, b""), Err(Errno::ENOTTY));
    control(&file, TIOCSCTTY, b"").unwrap();
    assert_eq!((tty.session(), tty.foreground()), (Some(50), Some(50)));
    assert!(tty::controlling(50).is_some());
    // The foreground group gets what is typed as signals, and changes of size.
    control(&file, TIOCSPGRP, &60i32.to_ne_bytes()).unwrap();
    tty.receive(b"\x03\x1a");
    tty.set_winsize(WinSize {
        rows: 10,
        cols: 10,
        ..WinSize::default()
    });
    assert_eq!(signals(), [(60, 2), (60, 20), (60, 28)]);
    assert_eq!(
        control(&file, TIOCSPGRP, &300i32.to_ne_bytes()),
        Err(Errno::ERESTARTSYS),
        "50 is in the background now"
    );
    assert_eq!(signals(), [(50, 22)]);
    process(60, 60);
    assert_eq!(
        control(&file, TIOCSPGRP, &300i32.to_ne_bytes()),
        Err(Errno::EPERM)
    );
    assert_eq!(
        control(&file, TIOCSPGRP, &5000i32.to_ne_bytes()),
        Err(Errno::ESRCH)
    );
    // A background reader is stopped, an orphaned one refused; a background writer may write.
    process(70, 70);
    assert_eq!(read(&file), Err(Errno::ERESTARTSYS));
    assert_eq!(signals(), [(70, 21)]);
    assert_eq!(file.write(b"x"), Ok(1));
    process(66, 66);
    assert_eq!(read(&file), Err(Errno::EIO));
    assert_eq!(signals(), []);
    // The leader ends: the terminal is free, the foreground group hears of it.
    tty::session_leader_exits(50);
    assert_eq!(signals(), [(60, 1)]);
    assert_eq!((tty.session(), tty.foreground()), (None, None));
    assert!(tty::controlling(50).is_none());
    // A hang-up tells the leader.
    process(50, 50);
    open(&tty, OpenFlags::empty());
    assert_eq!(tty.session(), Some(50));
    tty.hang_up();
    assert_eq!(signals(), [(50, 1), (50, 18), (50, 1), (50, 18)]);
    assert_eq!(tty.session(), None);
}

#[test]
fn who_has_a_terminal_to_himself() {
    const TIOCEXCL: u32 = 0x540c;
    const TIOCNXCL: u32 = 0x540d;
    let (tty, _) = terminal(Termios::default());
    let file = open(&tty, OpenFlags::NOCTTY);
    control(&file, TIOCEXCL, b"").unwrap();
    assert_eq!(tty.open(OpenFlags::RDWR).err(), Some(Errno::EBUSY));
    control(&file, TIOCNXCL, b"").unwrap();
    assert!(tty.open(OpenFlags::RDWR).is_ok());
}

#[test]
fn a_minimum_of_one_waits_for_it() {
    let mut termios = Termios::raw();
    (termios.cc[6], termios.cc[5]) = (1, 0);
    let (tty, _) = terminal(termios);
    let file = open(&tty, OpenFlags::empty());
    let late = tty.clone();
    let typist = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        late.receive(b"x");
    });
    assert_eq!(read(&file).unwrap(), "x");
    typist.join().unwrap();
    // With a time, too: the first byte is waited for without one. A hang-up ends that.
    termios.cc[5] = 1;
    control(&file, TCSETS, termios.as_bytes()).unwrap();
    let late = tty.clone();
    let typist = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        late.hang_up();
    });
    assert_eq!(read(&file).unwrap(), "");
    typist.join().unwrap();
    let file = open(&tty, OpenFlags::NONBLOCK);
    assert_eq!(read(&file), Err(Errno::EAGAIN));
}

/// A terminal becomes the controlling one by being opened to read, and not otherwise.
#[test]
fn only_who_reads_it_gets_a_controlling_terminal() {
    tty::set_job_control(Arc::new(FakeJobs));
    let (tty, _) = terminal(Termios::default());
    CALLER.set(Some(CallerIds {
        pid: 70,
        group: 70,
        session: 70,
    }));
    drop(tty.open(OpenFlags::WRONLY).unwrap());
    drop(tty.open(OpenFlags::RDWR | OpenFlags::NOCTTY).unwrap());
    assert_eq!(tty.session(), None);
    drop(tty.open(OpenFlags::RDONLY).unwrap());
    assert_eq!(tty.session(), Some(70));
    // Another session's leader does not get it, unless it takes it.
    CALLER.set(Some(CallerIds {
        pid: 71,
        group: 71,
        session: 71,
    }));
    assert_eq!(
        (tty.set_controlling(false), tty.session()),
        (Err(Errno::EPERM), Some(70))
    );
    assert_eq!(
        (tty.set_controlling(true), tty.session()),
        (Ok(()), Some(71))
    );
    assert!(tty::controlling(70).is_none());
    tty::session_leader_exits(71);
    CALLER.set(None);
    assert_eq!(
        tty.set_controlling(false),
        Err(Errno::EPERM),
        "who is no process"
    );
}

//! Clean-up of what xtask started: nothing outlives it.
//!
//! Child processes are registered by id while they run. Ctrl-C, SIGTERM and SIGHUP end each of them
//! and then xtask; a returning `main` has dropped their owners, which end them too. Should xtask
//! itself be killed, the kernel ends them: they are started through `setpriv --pdeathsig`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, io, process, thread};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Processes and files to clean up.
struct Open {
    children: BTreeSet<i32>,
    directories: BTreeSet<PathBuf>,
}

static OPEN: Mutex<Open> = Mutex::new(Open {
    children: BTreeSet::new(),
    directories: BTreeSet::new(),
});

fn with_open<R>(work: impl FnOnce(&mut Open) -> R) -> R {
    work(
        &mut OPEN
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner),
    )
}

/// Starts watching for the signals that end xtask.
pub fn install() {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).expect("signals can be watched");
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            with_open(|open| {
                for pid in open.children.iter().filter_map(|&pid| Pid::from_raw(pid)) {
                    // It may have ended by itself at this moment.
                    let _ = kill_process(pid, Signal::KILL);
                }
                for directory in &open.directories {
                    let _ = fs::remove_dir_all(directory);
                }
                process::exit(128 + signal);
            });
        }
    });
}

/// A child process that ends with its owner.
pub struct Child(process::Child);

impl Child {
    /// Starts `command` such that it ends with xtask at the latest.
    ///
    /// The calling thread must live as long as the child: the kernel ends the child with it.
    pub fn spawn(command: &mut process::Command) -> io::Result<Self> {
        with_open(|open| {
            let child = command.spawn()?;
            open.children.insert(child.id() as i32);
            Ok(Self(child))
        })
    }

    /// The process, for its streams.
    pub fn process(&mut self) -> &mut process::Child {
        &mut self.0
    }

    /// Waits at most `time` for the child to end by itself; returns how it ended.
    pub fn wait(&mut self, time: Duration) -> io::Result<Option<process::ExitStatus>> {
        let deadline = Instant::now() + time;
        loop {
            if let Some(status) = self.0.try_wait()? {
                with_open(|open| open.children.remove(&(self.0.id() as i32)));
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the child, unless it has ended, and returns how it ended.
    pub fn end(&mut self) -> io::Result<process::ExitStatus> {
        with_open(|open| {
            // An error means that it has ended already.
            let _ = self.0.kill();
            open.children.remove(&(self.0.id() as i32));
            self.0.wait()
        })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// A directory of its own for one machine's files; removed with its owner.
pub struct Directory(PathBuf);

impl Directory {
    /// Makes an empty directory that no other run uses.
    pub fn create() -> io::Result<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!(
            "skerry-vm-{}-{}",
            process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        Self::create_at(env::temp_dir().join(name))
    }

    /// Makes an empty directory at a path where nothing is.
    pub fn create_at(path: PathBuf) -> io::Result<Self> {
        with_open(|open| {
            fs::create_dir(&path)?;
            open.directories.insert(path.clone());
            Ok(Self(path))
        })
    }

    /// The path of `name` in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        with_open(|open| {
            let _ = fs::remove_dir_all(&self.0);
            open.directories.remove(&self.0);
        });
    }
}

//! Files in which the tool remembers instances (`docs/cli.md#state`), below `/run/skerry`.
//!
//! The kernel's record of an instance says what it is and how it does; what it was asked for, and
//! what is to become of it when it ends, is policy and stands here. Each file is replaced as a
//! whole, so that a tool that is killed leaves the old one or the new one. Numbers of instances are
//! not used again while the machine runs, so a file whose number nobody has is left over and means
//! nothing; one of an earlier run of the machine is known by its boot id.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::autoscale::Loan;
use crate::failure::{Context, Failure, Result};
use crate::instances::CreateOptions;
use crate::restart::{Backoff, Policy};

/// Directory of the files.
const DIRECTORY: &str = "/run/skerry";
/// File with the number of this run of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Number of files that stand for the locks of all names: who waits for another name's now and then
/// loses nothing but time, and names make no files.
const NAME_LOCKS: u64 = 64;

/// A file's form that says which archive it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStamp {
    len: u64,
    modified_ns: u128,
}

impl FileStamp {
    /// The form of the file at `path`; of a folder, none: whether that has changed is not known
    /// without reading all of it.
    #[must_use]
    pub fn of(path: Option<&Path>) -> Option<Self> {
        let metadata = fs::metadata(path?).ok().filter(fs::Metadata::is_file)?;
        let since = metadata
            .modified()
            .ok()?
            .duration_since(std::time::UNIX_EPOCH);
        Some(Self {
            len: metadata.len(),
            modified_ns: since.ok()?.as_nanos(),
        })
    }
}

/// Record of one instance, as the tool remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Run of the machine that the instance belongs to.
    pub boot: String,
    /// Options that it was created with. Its name, `~` names apart, is the kernel's to say.
    pub options: CreateOptions,
    /// Form that the archive of its root file system had.
    pub rootfs: Option<FileStamp>,
    /// Policy for its end.
    pub restart: Policy,
    /// Number of restarts by that policy since somebody started it.
    pub restarts: u32,
    /// Delays of further restarts.
    pub backoff: Backoff,
    /// Somebody has stopped the instance: no policy starts it again.
    pub stopped: bool,
    /// The instance is complete and is about to be started, in the place of another one.
    pub starting: bool,
    /// An `apply` has made it that is not committed: no policy holds for it yet.
    pub staged: bool,
    /// The declared set that it belongs to (`apply`).
    pub project: Option<String>,
    /// Number of the instance whose place it took, whose logs are kept.
    pub previous: Option<u32>,
    /// Why its restart has failed last.
    pub error: Option<String>,
    /// CPUs that others have lent to it, by their names (`autoscale`).
    #[serde(default)]
    pub borrowed: BTreeMap<String, Loan>,
    /// CPUs of its own that others have by their class, by their names.
    #[serde(default)]
    pub lent: BTreeMap<String, u32>,
}

/// A lock that is held until it is dropped, or its owner dies.
#[derive(Debug)]
pub struct Lock {
    _files: Vec<LockFile>,
}

/// The files.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    boot: String,
    #[cfg(test)]
    pub(crate) fuse: crate::mock::Fuse,
}

impl Store {
    /// The machine's.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn open() -> Result<Self> {
        let boot = fs::read_to_string(BOOT_ID).context(|| format!("cannot read {BOOT_ID}"))?;
        Self::at(Path::new(DIRECTORY), boot.trim())
    }

    /// Files in a directory, which is made, of a run of the machine.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn at(directory: &Path, boot: &str) -> Result<Self> {
        // What programs are given may be secret.
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory.join("instances"))
            .and_then(|()| {
                fs::DirBuilder::new()
                    .recursive(true)
                    .create(directory.join("locks"))
            })
            .context(|| format!("cannot make {}", directory.display()))?;
        Ok(Self {
            directory: directory.to_owned(),
            boot: boot.to_owned(),
            #[cfg(test)]
            fuse: crate::mock::Fuse::default(),
        })
    }

    /// The record of an instance just created.
    #[must_use]
    pub fn record(&self, options: &CreateOptions, restart: Policy) -> Record {
        Record {
            boot: self.boot.clone(),
            options: options.clone(),
            rootfs: FileStamp::of(options.rootfs.as_deref()),
            restart,
            restarts: 0,
            backoff: Backoff::default(),
            stopped: false,
            starting: false,
            staged: false,
            project: None,
            previous: None,
            error: None,
            borrowed: BTreeMap::new(),
            lent: BTreeMap::new(),
        }
    }

    /// The run of the machine.
    #[must_use]
    pub fn boot(&self) -> &str {
        &self.boot
    }

    fn path(&self, id: u32) -> PathBuf {
        self.directory.join(format!("instances/{id}.json"))
    }

    /// Reads the record of an instance, if there is one.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(&self, id: u32) -> Result<Option<Record>> {
        let record: Option<Record> = self.read_json(&self.path(id))?;
        Ok(record.filter(|record| record.boot == self.boot))
    }

    /// Remembers something of an instance, in place of what was there.
    ///
    /// # Errors
    /// If it cannot be written; what was there is.
    pub fn write(&self, id: u32, record: &Record) -> Result<()> {
        self.write_json(&self.path(id), record)
    }

    /// Forgets what is remembered of an instance.
    pub fn remove(&self, id: u32) {
        // What is left is known to mean nothing.
        let _ = fs::remove_file(self.path(id));
    }

    /// Changes the record of an instance that has one. Its caller has the lock of the name.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn update(&self, id: u32, change: impl FnOnce(&mut Record)) -> Result<()> {
        let Some(mut record) = self.read(id)? else {
            return Ok(());
        };
        let before = record.clone();
        change(&mut record);
        if record == before {
            return Ok(());
        }
        self.write(id, &record)
    }

    /// Removes the records of instances that there are not any more. An instance's record is
    /// written after its number was given, so that `list`, which is asked after the directory was
    /// read, has the numbers of all of which it is to stay.
    ///
    /// # Errors
    /// Those of `list`, or of the directory.
    pub fn sweep(&self, list: impl FnOnce() -> Result<Vec<u32>>) -> Result<()> {
        let directory = self.directory.join("instances");
        let what = || format!("cannot read {}", directory.display());
        let mut numbers = BTreeSet::new();
        for entry in fs::read_dir(&directory).context(what)? {
            let entry = entry.context(what)?;
            let name = entry.file_name();
            let name = name.to_str().unwrap_or_default();
            if let Some(writer) = name
                .strip_suffix(".tmp")
                .and_then(|name| name.split('.').nth(1))
            {
                if !Path::new("/proc").join(writer).exists() {
                    let _ = fs::remove_file(entry.path());
                }
                continue;
            }
            let number = name.strip_suffix(".json").map(str::parse::<u32>);
            numbers.extend(number.and_then(std::result::Result::ok));
        }
        for id in list()? {
            numbers.remove(&id);
        }
        numbers.into_iter().for_each(|id| self.remove(id));
        Ok(())
    }

    /// The document called `name`, if it is there.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read_document<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        self.read_json(&self.directory.join(name))
    }

    /// Writes the document called `name`, in place of what was there.
    ///
    /// # Errors
    /// If it cannot be written; what was there is.
    pub fn write_document(&self, name: &str, value: &impl Serialize) -> Result<()> {
        self.write_json(&self.directory.join(name), value)
    }

    /// Removes the document called `name`.
    ///
    /// # Errors
    /// If it is there still.
    pub fn remove_document(&self, name: &str) -> Result<()> {
        let path = self.directory.join(name);
        self.before_change()
            .and_then(|()| match fs::remove_file(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                other => other,
            })
            .context(|| format!("cannot remove {}", path.display()))
    }

    fn read_json<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<T>> {
        let bytes = match fs::read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            other => other.context(|| format!("cannot read {}", path.display()))?,
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            Failure::new(format!(
                "{} is not of this version of skerry, or damaged ({error}): remove it",
                path.display()
            ))
        })
    }

    fn write_json(&self, path: &Path, value: &impl Serialize) -> Result<()> {
        let what = || format!("cannot write {}", path.display());
        // Of this process, which does one thing at a time.
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        let written = self.before_change().and_then(|()| {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&temporary)?;
            file.write_all(&serde_json::to_vec(value)?)?;
            fs::rename(&temporary, path)
        });
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written.context(what)
    }

    /// Called before each change, so that tests can have it fail.
    #[cfg_attr(
        not(test),
        expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "for tests")
    )]
    fn before_change(&self) -> io::Result<()> {
        #[cfg(test)]
        self.fuse.step()?;
        Ok(())
    }

    /// Waits for the locks of some names: what is done to instances of these names, by whatever
    /// process, is done one after the other.
    ///
    /// # Errors
    /// If there can be none.
    pub fn lock<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<Lock> {
        // In one order, so that no two wait for each other.
        let slots: BTreeSet<u64> = names.into_iter().map(slot).collect();
        let files = slots
            .into_iter()
            .map(|slot| self.open_lock(&slot.to_string(), FlockOperation::LockExclusive))
            .collect::<io::Result<_>>();
        Ok(Lock {
            _files: files.context(|| "cannot lock names of instances")?,
        })
    }

    /// The lock of a name, if nobody has it.
    ///
    /// # Errors
    /// If there can be none.
    pub fn try_lock(&self, name: &str) -> Result<Option<Lock>> {
        self.try_lock_role(&slot(name).to_string())
    }

    /// Waits for the lock of a role, of which there is one: `apply`, `monitor`.
    ///
    /// # Errors
    /// If there can be none.
    pub fn lock_role(&self, role: &str) -> Result<Lock> {
        let file = self.open_lock(role, FlockOperation::LockExclusive);
        Ok(Lock {
            _files: vec![file.context(|| format!("cannot lock {role}"))?],
        })
    }

    /// The lock of a role, if nobody has it.
    ///
    /// # Errors
    /// If there can be none.
    pub fn try_lock_role(&self, role: &str) -> Result<Option<Lock>> {
        match self.open_lock(role, FlockOperation::NonBlockingLockExclusive) {
            Ok(file) => Ok(Some(Lock { _files: vec![file] })),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error).context(|| format!("cannot lock {role}")),
        }
    }

    fn open_lock(&self, name: &str, operation: FlockOperation) -> io::Result<LockFile> {
        let path = self.directory.join("locks").join(name);
        loop {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)?;
            match flock(&file, operation) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other?,
            }
            // Who had it before has taken the file away: what everybody locks is another one now.
            let locked = file.metadata()?;
            let is_current = fs::metadata(&path)
                .is_ok_and(|found| (found.dev(), found.ino()) == (locked.dev(), locked.ino()));
            if is_current {
                return Ok(LockFile { path, _file: file });
            }
        }
    }
}

/// A locked file, which goes with the lock: nothing is left of a name that nobody works on.
#[derive(Debug)]
struct LockFile {
    path: PathBuf,
    _file: File,
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Still locked: nobody else takes it for the one that counts.
        let _ = fs::remove_file(&self.path);
    }
}

/// Number of the file that stands for a name's lock.
fn slot(name: &str) -> u64 {
    // Of fixed keys: all processes have the same.
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish() % NAME_LOCKS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{TestDirectory, request};

    #[test]
    fn records_are_kept_until_they_are_removed_or_their_number_is() {
        let directory = TestDirectory::new();
        let store = Store::at(&directory.0, "one").unwrap();
        assert_eq!(store.read(7).unwrap(), None);
        let mut record = store.record(&request("box", &["true"]), Policy::Always);
        store.write(7, &record).unwrap();
        store.write(8, &record).unwrap();
        assert_eq!(store.read(7).unwrap(), Some(record.clone()));
        store.update(7, |record| record.restarts = 3).unwrap();
        record.restarts = 3;
        assert_eq!(store.read(7).unwrap(), Some(record));
        store.sweep(|| Ok(vec![7, 9])).unwrap();
        assert!(store.read(7).unwrap().is_some() && store.read(8).unwrap().is_none());
        store.remove(7);
        store.update(7, |_| panic!("there is none")).unwrap();
    }

    #[test]
    fn records_of_an_earlier_run_of_the_machine_are_none() {
        let directory = TestDirectory::new();
        let store = Store::at(&directory.0, "one").unwrap();
        let record = store.record(&request("box", &["true"]), Policy::No);
        store.write(7, &record).unwrap();
        let later = Store::at(&directory.0, "two").unwrap();
        assert_eq!(later.read(7).unwrap(), None);
    }

    #[test]
    fn a_damaged_file_is_named() {
        let directory = TestDirectory::new();
        let store = Store::at(&directory.0, "one").unwrap();
        fs::write(store.path(7), "{").unwrap();
        let failure = store.read(7).unwrap_err();
        assert!(failure.message.contains("7.json") && failure.message.contains("remove it"));
    }

    #[test]
    fn a_lock_is_had_by_one() {
        let directory = TestDirectory::new();
        let store = Store::at(&directory.0, "one").unwrap();
        let lock = store.lock(["a", "b", "a"]).unwrap();
        assert!(store.try_lock("a").unwrap().is_none() && store.try_lock("b").unwrap().is_none());
        drop(lock);
        assert!(store.try_lock("a").unwrap().is_some());
        let monitor = store.try_lock_role("monitor").unwrap();
        assert!(monitor.is_some() && store.try_lock_role("monitor").unwrap().is_none());
    }
}

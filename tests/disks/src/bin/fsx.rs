//! Random operations on a file beside a model of it, by calls, past the cache, and through a
//! mapping, after the program `fsx` of the same kind.
//!
//! `fsx SEED COUNT FILE…` does so many operations on each file, all at the same time. A file is as
//! the model says after every read, and as a whole now and then; a failure tells what was done
//! last.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use disk_tests::calls::{
    DIRECT_BLOCK, Mapping, aligned, drop_caches, open_direct, write_without_flush,
};
use disk_tests::contents::{Random, filled};
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use rustix::io::Errno;

/// Most bytes of the file.
const LONGEST: u64 = 256 << 10;
/// Operations between looks at the whole file.
const WHOLE: u64 = 250;
/// Operations that a failure tells.
const TOLD: usize = 30;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [seed, count, files @ ..] = &arguments[..] else {
        bail!("usage: fsx SEED COUNT FILE…");
    };
    let (seed, count) = (seed.parse::<u64>()?, count.parse::<u64>()?);
    thread::scope(|scope| {
        let all: Vec<_> = files
            .iter()
            .enumerate()
            .map(|(n, path)| scope.spawn(move || run(seed + n as u64, count, Path::new(path))))
            .collect();
        for (one, path) in all.into_iter().zip(files) {
            one.join()
                .expect("nobody panics")
                .with_context(|| path.clone())?;
        }
        println!(
            "{count} operations on each of {} files, seed {seed}",
            files.len()
        );
        Ok(())
    })
}

/// A file with what it should have.
struct Trial {
    file: File,
    /// The same, opened with `O_DIRECT`.
    direct: File,
    mapping: Mapping,
    model: Vec<u8>,
    random: Random,
    /// Operations that were done last.
    done: VecDeque<String>,
}

fn run(seed: u64, count: u64, path: &Path) -> Result<()> {
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)?;
    let mut trial = Trial {
        direct: open_direct(path)?,
        mapping: Mapping::new(&file, LONGEST as usize)?,
        file,
        model: Vec::new(),
        random: Random::new(&[seed]),
        done: VecDeque::new(),
    };
    for number in 0..count {
        let outcome = trial.step(number, path).and_then(|()| {
            if number % WHOLE == WHOLE - 1 || number + 1 == count {
                trial.check_all()
            } else {
                Ok(())
            }
        });
        outcome.with_context(|| {
            let done = trial.done.make_contiguous().join("\n  ");
            format!("operation {number} of seed {seed}, after\n  {done}\n")
        })?;
    }
    Ok(())
}

impl Trial {
    fn size(&self) -> u64 {
        self.model.len() as u64
    }

    fn note(&mut self, what: String) {
        if self.done.len() == TOLD {
            self.done.pop_front();
        }
        self.done.push_back(what);
    }

    /// A place and a length: small or large, now and then at the boundaries of pages.
    fn range(&mut self, limit: u64) -> (u64, u64) {
        let random = &mut self.random;
        let mut at = random.below(limit.max(1));
        let mut len = 1 + random.small(65_536, 12);
        match random.below(6) {
            0 => at -= at % 4096,
            1 => {
                at -= at % 4096;
                len = len.next_multiple_of(4096);
            }
            _ => {}
        }
        (at, len.min(LONGEST - at))
    }

    /// The part of a range that the file has.
    fn within(&mut self) -> Option<(u64, u64)> {
        let size = self.size();
        let (at, len) = self.range(size);
        (at < size).then(|| (at, len.min(size - at)))
    }

    fn step(&mut self, number: u64, path: &Path) -> Result<()> {
        match self.random.below(50) {
            0..8 => self.read(),
            40..44 => self.read_direct(),
            44..50 => self.write_direct(number),
            8..13 => self.load(),
            13..20 => self.write(number),
            20..26 => self.store(number),
            26..29 => self.truncate(),
            29..31 => self.punch(),
            31..33 => self.zero(),
            33..35 => self.allocate(),
            35 => self.sync(),
            36 => self.let_go(number),
            37 => self.open_again(path),
            _ => self.append(number),
        }
    }

    fn read(&mut self) -> Result<()> {
        let (at, len) = self.range(LONGEST);
        self.note(format!("read {at} {len}"));
        let mut found = vec![0; len as usize];
        let count = self.file.read_at(&mut found, at)?;
        let wanted = self.size().saturating_sub(at).min(len);
        ensure!(count as u64 == wanted, "{count} bytes instead of {wanted}");
        self.compare(at, &found[..count])
    }

    /// A range of whole blocks or pages, and which; memory for it is aligned like that.
    fn blocks(&mut self) -> (u64, u64, u64) {
        let (at, len) = self.range(LONGEST);
        let unit = [DIRECT_BLOCK, 4096][self.random.below(2) as usize];
        let at = at - at % unit;
        (at, len.next_multiple_of(unit).min(LONGEST - at), unit)
    }

    fn read_direct(&mut self) -> Result<()> {
        let (at, len, unit) = self.blocks();
        self.note(format!("read directly {at} {len}"));
        let mut buffer = Vec::new();
        let found = aligned(&mut buffer, len, unit);
        found.fill(0x5a);
        let count = self.direct.read_at(found, at)?;
        let wanted = self.size().saturating_sub(at).min(len);
        ensure!(count as u64 == wanted, "{count} bytes instead of {wanted}");
        self.compare(at, &found[..count])
    }

    fn write_direct(&mut self, number: u64) -> Result<()> {
        let (at, len, unit) = self.blocks();
        self.note(format!("write directly {at} {len}"));
        let mut buffer = Vec::new();
        let bytes = aligned(&mut buffer, len, unit);
        bytes.copy_from_slice(&filled(number, at, len));
        self.direct.write_all_at(bytes, at)?;
        self.part(at, len).copy_from_slice(bytes);
        Ok(())
    }

    fn load(&mut self) -> Result<()> {
        let Some((at, len)) = self.within() else {
            return Ok(());
        };
        self.note(format!("load {at} {len}"));
        let mut found = vec![0; len as usize];
        self.mapping.load(at as usize, &mut found);
        self.compare(at, &found)
    }

    fn compare(&self, at: u64, found: &[u8]) -> Result<()> {
        let wanted = &self.model[(at as usize).min(self.model.len())..][..found.len()];
        match wanted.iter().zip(found).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(n) => bail!(
                "byte {} is {:#x} instead of {:#x}",
                at + n as u64,
                found[n],
                wanted[n]
            ),
        }
    }

    /// The model's part from a place on; behind the end there are zeros then.
    fn part(&mut self, at: u64, len: u64) -> &mut [u8] {
        let end = (at + len) as usize;
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        &mut self.model[at as usize..end]
    }

    fn write_at(&mut self, number: u64, at: u64, len: u64) -> Result<()> {
        let bytes = filled(number, at, len);
        self.file.write_all_at(&bytes, at)?;
        self.part(at, len).copy_from_slice(&bytes);
        Ok(())
    }

    fn write(&mut self, number: u64) -> Result<()> {
        let (at, len) = self.range(LONGEST);
        self.note(format!("write {at} {len}"));
        self.write_at(number, at, len)
    }

    fn append(&mut self, number: u64) -> Result<()> {
        let (at, len) = (self.size(), 1 + self.random.below(3000));
        self.note(format!("append {at} {len}"));
        if at + len <= LONGEST {
            self.write_at(number, at, len)?;
        }
        Ok(())
    }

    fn store(&mut self, number: u64) -> Result<()> {
        let Some((at, len)) = self.within() else {
            return Ok(());
        };
        self.note(format!("store {at} {len}"));
        let bytes = filled(number, at, len);
        self.mapping.store(at as usize, &bytes);
        self.part(at, len).copy_from_slice(&bytes);
        Ok(())
    }

    fn truncate(&mut self) -> Result<()> {
        let (size, _) = self.range(LONGEST);
        self.note(format!("truncate {size}"));
        self.file.set_len(size)?;
        self.model.resize(size as usize, 0);
        Ok(())
    }

    fn punch(&mut self) -> Result<()> {
        let (at, len) = self.range(LONGEST);
        self.note(format!("punch {at} {len}"));
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, how, at, len)?;
        let len = self.size().saturating_sub(at).min(len);
        if len > 0 {
            self.part(at, len).fill(0);
        }
        Ok(())
    }

    fn zero(&mut self) -> Result<()> {
        let (at, len) = self.range(LONGEST);
        let keeps = self.random.below(2) == 0;
        self.note(format!("zero {at} {len}, keeps the size: {keeps}"));
        let mut how = FallocateFlags::ZERO_RANGE;
        how.set(FallocateFlags::KEEP_SIZE, keeps);
        fallocate(&self.file, how, at, len)?;
        let len = if keeps {
            self.size().saturating_sub(at).min(len)
        } else {
            len
        };
        if len > 0 {
            self.part(at, len).fill(0);
        }
        Ok(())
    }

    fn allocate(&mut self) -> Result<()> {
        let (at, len) = self.range(LONGEST);
        let keeps = self.random.below(2) == 0;
        self.note(format!("allocate {at} {len}, keeps the size: {keeps}"));
        let mut how = FallocateFlags::empty();
        how.set(FallocateFlags::KEEP_SIZE, keeps);
        fallocate(&self.file, how, at, len)?;
        if !keeps {
            self.part(at, len);
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let how = self.random.below(4);
        self.note(format!("sync {how}"));
        match how {
            0 => self.file.sync_all()?,
            1 => self.file.sync_data()?,
            2 => write_without_flush(&self.file, 0, LONGEST)?,
            _ => self.mapping.sync()?,
        }
        Ok(())
    }

    /// Has the pages of the file, or all there are, go from the cache.
    fn let_go(&mut self, number: u64) -> Result<()> {
        self.note("let go".to_owned());
        if number.is_multiple_of(16) {
            return drop_caches();
        }
        Ok(fadvise(&self.file, 0, None, Advice::DontNeed)?)
    }

    fn open_again(&mut self, path: &Path) -> Result<()> {
        self.note("open again".to_owned());
        self.file = File::options().read(true).write(true).open(path)?;
        self.direct = open_direct(path)?;
        if self.random.below(2) == 0 {
            self.mapping = Mapping::new(&self.file, LONGEST as usize)?;
        }
        Ok(())
    }

    fn check_all(&mut self) -> Result<()> {
        let size = self.file.metadata()?.len();
        ensure!(
            size == self.size(),
            "{size} bytes instead of {}",
            self.size()
        );
        let mut buffer = Vec::new();
        let odd = aligned(&mut buffer, LONGEST - 1, DIRECT_BLOCK);
        for (at, len) in [(0, 100), (100, 512), (0, odd.len())] {
            // (Linux reads any part of a hole.)
            let written = self.direct.write_at(&odd[..len], at);
            let error = written.err().and_then(|error| error.raw_os_error());
            ensure!(
                error == Some(Errno::INVAL.raw_os_error()),
                "{error:?} of a direct write of {len} bytes at {at}"
            );
        }
        let mut found = vec![0; size as usize];
        self.file.read_exact_at(&mut found, 0)?;
        self.compare(0, &found).context("of the whole file")
    }
}

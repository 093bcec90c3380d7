//! Power cuts of a machine that writes to ext4 (`docs/ext4.md`, crate `disk-tests`).

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use disk_tests::contents::GARBAGE;
use disk_tests::log;
use disk_tests::power_cut::cut::{Cache, Recorded, Tried};
use disk_tests::power_cut::plan::{DIRS, NOISE, WRITERS};

use super::{images, modules, replays};
use crate::build;
use crate::cleanup::Directory;
use crate::test::{Check, Setting};
use crate::vm::{Addition, Ending, Kernel, Machine};

/// A disk: what it is called, how its file system is made, its bytes and those of a block.
struct Layout {
    name: &'static str,
    options: &'static [&'static str],
    len: u64,
    block: usize,
}

const LAYOUTS: [Layout; 2] = [
    Layout {
        name: "blocks of 4 KiB",
        options: &["-b", "4096"],
        len: 24 << 20,
        block: 4096,
    },
    Layout {
        name: "blocks of 1 KiB and a journal of 1 MiB, which wraps around",
        options: &["-b", "1024", "-J", "size=1", "-g", "2048"],
        len: 16 << 20,
        block: 1024,
    },
];

/// Cuts of a disk on which every flush is for nothing, until one must have been noticed.
const UNFLUSHED_CUTS: u64 = 40;

/// Some cuts, for every day.
pub fn short(setting: &Setting) -> Result<Vec<Check>> {
    run(setting, 25, 100, replays::DISKS)
}

/// Thousands of cuts.
pub fn long(setting: &Setting) -> Result<Vec<Check>> {
    run(setting, 200, 5000, 10 * replays::DISKS)
}

fn number(variable: &str, usual: u64) -> Result<u64> {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .with_context(|| format!("{variable} is no number")),
        Err(_) => Ok(usual),
    }
}

/// Has writers do so many steps each, and cuts the power so many times; `mounted` of the images are
/// looked at by kernels, too.
fn run(setting: &Setting, steps: u64, cuts: u64, mounted: usize) -> Result<Vec<Check>> {
    let cuts = number("POWER_CUTS", cuts)?;
    let seed = number("POWER_CUTS_SEED", 1)?;
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let mut machine = setting.machine("all");
    machine.timeout = Some(Duration::from_secs(120 + steps * 6));
    let mut disks = Vec::new();
    for (number, layout) in LAYOUTS.iter().enumerate() {
        let disk = directory.join(&format!("disk{number}"));
        let start = make(&directory, layout)?;
        fs::write(&disk, &start)?;
        let log = directory.join(&format!("log{number}"));
        fs::write(&log, [])?;
        images::attach_logged(&mut machine.hardware, &disk, &log);
        disks.push((layout, start, log));
    }
    let mut checks = vec![Check::new(
        "writers are promised that their steps are done",
        write(machine, seed, steps),
    )];
    let mut images: Vec<PathBuf> = Vec::new();
    for (layout, start, log) in &disks {
        let cuts = cuts / LAYOUTS.len() as u64;
        let each = cuts.div_ceil((mounted / LAYOUTS.len()) as u64).max(1);
        let mut keep = |turn: u64, image: &[u8]| -> Result<()> {
            if turn.is_multiple_of(each) {
                let path = directory.join(&format!("cut-{}-{turn}.img", layout.block));
                fs::write(&path, image)?;
                images.push(path);
            }
            Ok(())
        };
        let log = fs::read(log)?;
        let recorded = Recorded {
            start,
            log: &log::parse(&log)?,
            marks: images::FIRST..images::SECOND,
            file_system: images::SECOND..images::SECOND + layout.len,
            block: layout.block,
            seed,
        };
        let kept = setting.logs.join(format!("power-cut-{}", layout.block));
        checks.push(Check::new(
            format!(
                "after power cuts all that was promised is there ({})",
                layout.name
            ),
            look(
                (&recorded, log.as_slice()),
                cuts,
                Cache::Flushed,
                &kept,
                &mut keep,
            )
            .map(told),
        ));
        checks.push(Check::new(
            format!(
                "a disk that forgets what was flushed is noticed ({})",
                layout.name
            ),
            match look(
                (&recorded, log.as_slice()),
                UNFLUSHED_CUTS,
                Cache::NeverFlushed,
                &directory.join("unflushed"),
                &mut |_, _| Ok(()),
            ) {
                Ok(tried) => Err(anyhow!("not by {} cuts", tried.cuts)),
                Err(_) => Ok(String::new()),
            },
        ));
    }
    checks.push(Check::new(
        "each kernel mounts what a cut left, and they see the same",
        mount(setting, &images),
    ));
    Ok(checks)
}

/// Whoever is shown images.
type Seen<'a> = dyn FnMut(u64, &[u8]) -> Result<()> + 'a;

/// Has kernels mount images and list what there is.
fn mount(setting: &Setting, images: &[PathBuf]) -> Result<String> {
    let mut lines = 0;
    for images in images.chunks(replays::DISKS) {
        let paths: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
        let seen = replays::look(setting, &paths, &|_| Ok(()), "own() { :; }")?;
        lines += seen[0].iter().map(|seen| seen.list.len()).sum::<usize>();
    }
    Ok(format!("{} images, {lines} lines", images.len()))
}

fn told(tried: Tried) -> String {
    let Tried {
        cuts,
        windows: [looked_at, windows],
        steps,
        replays,
    } = tried;
    format!(
        "{cuts} cuts in {looked_at} of {windows} windows between flushes, {replays} journals \
         replayed, {steps} steps promised"
    )
}

/// Makes a disk: two partitions, for the marks and for a file system with the writers' directories,
/// whose free blocks are full of what no file has.
fn make(directory: &Directory, layout: &Layout) -> Result<Vec<u8>> {
    let tree = directory.join("tree");
    for writer in 0..WRITERS.len() {
        for dir in DIRS {
            fs::create_dir_all(tree.join(format!("w{writer}")).join(dir))?;
        }
    }
    fs::create_dir_all(tree.join(NOISE))?;
    let image = directory.join("file-system");
    fs::write(&image, vec![GARBAGE; layout.len as usize])?;
    images::mke2fs(&image, layout.options, &tree)?;
    images::partitioned(&image)
}

/// Has the machine write until all steps are done, and ends it without unmounting.
fn write(mut machine: Machine, seed: u64, steps: u64) -> Result<String> {
    machine.additions.push(Addition {
        host: build::disk_tests()?.program("power-cut-writers"),
        guest: "/writers".into(),
    });
    if let Kernel::Linux(image) = &machine.kernel {
        machine
            .additions
            .extend(modules::of(image, &images::MODULES)?);
    }
    let script = format!(
        "for module in /modules/*.ko; do [ ! -e $module ] || insmod $module; done
         exec /writers {seed} {steps} /dev/vda /dev/vdb"
    );
    machine.command = ["sh", "-c", &script].map(OsString::from).into();
    let ran = machine.run_collected()?;
    ensure!(
        ran.ending == Ending::Exited(0),
        "{:?}: {}",
        ran.ending,
        ran.complaints
    );
    let done = steps * (WRITERS.len() * LAYOUTS.len()) as u64;
    ensure!(
        ran.output.trim() == done.to_string(),
        "it printed {:?} instead of {done}",
        ran.output
    );
    Ok(format!("{done} steps"))
}

/// Cuts the power of a disk, and shows the images to `seen`. If something is wrong the disk, its
/// log and the image are kept in the directory `kept`.
fn look(
    (recorded, log): (&Recorded<'_>, &[u8]),
    cuts: u64,
    cache: Cache,
    kept: &Path,
    seen: &mut Seen<'_>,
) -> Result<Tried> {
    fs::create_dir_all(kept)?;
    let tried = recorded.cuts(cuts, cache, kept, seen);
    if tried.is_ok() {
        fs::remove_dir_all(kept)?;
    } else {
        fs::write(kept.join("start"), recorded.start)?;
        fs::write(kept.join("log"), log)?;
    }
    tried
}

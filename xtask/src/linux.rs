//! `cargo xtask linux`: a Linux as small as it gets, for benchmarks to compare with.
//!
//! Debian's source of Linux 6.12, configured as `tinyconfig` with what is in
//! `bench/linux/tiny.config`. It is the fair peer of a small kernel: Debian's own image is built
//! for every machine and every use.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail, ensure};

use crate::paths;

/// Debian's package `linux-source-6.12`.
const SOURCE: &str = "/usr/src/linux-source-6.12.tar.xz";

/// Where the image goes.
#[must_use]
pub fn image() -> PathBuf {
    directory().join("bzImage")
}

fn directory() -> PathBuf {
    paths::target().join("linux")
}

/// Builds the image, unless it is newer than its configuration.
///
/// # Errors
/// When the source or a tool is missing, or the build fails.
pub fn build() -> Result<PathBuf> {
    let (wanted, image) = (paths::root().join("bench/linux/tiny.config"), image());
    let changed = |path: &Path| fs::metadata(path).and_then(|data| data.modified());
    if changed(&image).is_ok_and(|built| changed(&wanted).is_ok_and(|wanted| wanted < built)) {
        return Ok(image);
    }
    ensure!(
        Path::new(SOURCE).exists(),
        "no {SOURCE} (package linux-source-6.12; `make linux` installs what is needed)"
    );
    let (source, log) = (directory().join("source"), directory().join("build.log"));
    drop(fs::remove_dir_all(&source));
    fs::create_dir_all(&source).with_context(|| format!("cannot make {}", source.display()))?;
    eprintln!(
        "xtask: building Linux in {} (some minutes)",
        source.display()
    );
    let mut tar = Command::new("tar");
    run(
        tar.args(["-xJf", SOURCE, "--strip-components=1", "-C"])
            .arg(&source),
        &log,
    )?;
    run(make(&source).arg("tinyconfig"), &log)?;
    let mut merge = Command::new("scripts/kconfig/merge_config.sh");
    run(
        merge
            .current_dir(&source)
            .args(["-m", ".config"])
            .arg(&wanted),
        &log,
    )?;
    run(make(&source).arg("olddefconfig"), &log)?;
    settled(&wanted, &source.join(".config"))?;
    run(make(&source).arg("bzImage"), &log)?;
    fs::copy(source.join("arch/x86/boot/bzImage"), &image)
        .context("Linux was built without an image")?;
    fs::remove_dir_all(&source).with_context(|| format!("cannot remove {}", source.display()))?;
    Ok(image)
}

fn make(source: &Path) -> Command {
    let mut command = Command::new("make");
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    // Cargo's own settings are none of Linux's.
    command
        .current_dir(source)
        .args(["-s", &format!("-j{jobs}")])
        .env_remove("MAKEFLAGS")
        .env_remove("MFLAGS");
    command
}

fn run(command: &mut Command, log: &Path) -> Result<()> {
    let output =
        fs::File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let status = command.stdout(output.try_clone()?).stderr(output).status();
    let name = command.get_program().to_string_lossy().into_owned();
    let status = status
        .with_context(|| format!("cannot start {name} (`make linux` installs what is needed)"))?;
    if !status.success() {
        bail!(
            "{name} failed: {}",
            fs::read_to_string(log).unwrap_or_default()
        );
    }
    Ok(())
}

/// Checks that the configuration is what was wanted: options whose conditions are not met disappear
/// without a word.
fn settled(wanted: &Path, got: &Path) -> Result<()> {
    let (wanted, got) = (fs::read_to_string(wanted)?, fs::read_to_string(got)?);
    for option in wanted.lines().filter(|line| line.starts_with("CONFIG_")) {
        let holds = match option.strip_suffix("=n") {
            Some(name) => !got.lines().any(|line| {
                line.strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with('='))
            }),
            None => got.lines().any(|line| line == option),
        };
        ensure!(holds, "Linux's configuration does not take {option}");
    }
    Ok(())
}

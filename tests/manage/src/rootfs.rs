//! The root file systems that instances are given, good and bad (`spec::Root`).

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::model::LARGE_NEEDS;
use crate::random::Random;
use crate::spec::ROOTS;

/// Makes all of them.
pub(crate) fn make() -> Result<()> {
    let roots = Path::new(ROOTS);
    let own = std::env::current_exe()?;
    for name in ["root", "large"] {
        fs::create_dir_all(roots.join(name).join("bin"))?;
        fs::copy(&own, roots.join(name).join("bin/manage")).context("cannot copy this program")?;
    }
    let mut random = Random::new(0, 0);
    let noise: Vec<u8> = (0..5000).map(|_| random.next() as u8).collect();
    for (name, bytes, mode) in [
        ("text", &b"no program\n"[..], 0o644),
        ("noise", &noise, 0o755),
    ] {
        for root in ["root", "large"] {
            let path = roots.join(root).join(name);
            fs::write(&path, bytes)?;
            fs::set_permissions(&path, Permissions::from_mode(mode))?;
        }
    }
    fs::File::create(roots.join("large/hole"))?.set_len(LARGE_NEEDS)?;
    let tar = Command::new("tar")
        .args(["cf", "root.tar", "-C", "root", "."])
        .current_dir(roots)
        .status()
        .context("tar")?;
    ensure!(tar.success(), "tar failed");
    let whole = fs::read(roots.join("root.tar"))?;
    let header = |rest: &[u8]| [b"070701", rest].concat();
    // What begins as a cpio archive goes into the instance as it is.
    let half = [header(&format!("{:0>104}", "").into_bytes()), noise.clone()].concat();
    for (name, bytes) in [
        ("text", &b"hello\n"[..]),
        ("gzip", &[0x1f, 0x8b, 8, 0, 0]),
        ("empty", &[]),
        ("half.tar", &whole[..whole.len() / 2 + 77]),
        ("header.cpio", b"070701"),
        ("noise.cpio", &header(&noise)),
        ("half.cpio", &half),
    ] {
        fs::write(roots.join(name), bytes)?;
    }
    Ok(())
}

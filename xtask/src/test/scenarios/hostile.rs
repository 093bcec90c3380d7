//! Damaged ext4 file systems in a machine.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use disk_tests::hostile::{CONTENTS, with_journal};

use super::images;
use crate::build;
use crate::cleanup::Directory;
use crate::test::batch::{self, Expect, Step};
use crate::test::{Check, Setting};
use crate::vm::Addition;

const LEN: usize = 3 << 20;

/// File systems that are damaged, by the options that make them.
const KINDS: [&[&str]; 3] = [
    &["-b", "1024", "-O", "^metadata_csum"],
    &["-b", "4096", "-O", "^metadata_csum,^has_journal"],
    &["-b", "1024"],
];

/// Some images, for every day.
pub fn short(setting: &Setting) -> Result<Vec<Check>> {
    run(setting, 40, 300)
}

/// Thousands.
pub fn long(setting: &Setting) -> Result<Vec<Check>> {
    run(setting, 2000, 9000)
}

fn run(setting: &Setting, count: u64, limit: u32) -> Result<Vec<Check>> {
    let seed: u64 = match std::env::var("HOSTILE_SEED") {
        Ok(text) => text.parse().context("HOSTILE_SEED is no number")?,
        Err(_) => 1,
    };
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let mut machine = setting.machine("all");
    machine.timeout = Some(Duration::from_secs(u64::from(limit) + 60));
    machine.hardware.disks.push(directory.join("disk"));
    fs::write(directory.join("disk"), vec![0; LEN])?;
    let tree = make_tree(&directory)?;
    fs::create_dir(directory.join("images"))?;
    for (n, options) in KINDS.iter().enumerate() {
        let image = directory.join(&format!("images/{n}"));
        fs::write(&image, vec![0; LEN])?;
        images::mke2fs(&image, options, &tree)?;
        if !options.iter().any(|option| option.contains("^has_journal")) {
            let logged = with_journal(fs::read(&image)?)?;
            fs::write(directory.join(&format!("images/{n}-logged")), logged)?;
        }
    }
    machine.additions.push(Addition {
        host: directory.join("images"),
        guest: "/images".into(),
    });
    machine.additions.push(Addition {
        host: build::disk_tests()?.program("hostile-images"),
        guest: "/hostile-images".into(),
    });
    let step = Step::new(
        "damaged file systems are refused or used, and harm nobody",
        format!(
            "/hostile-images {seed} 0 {count} /dev/vda /images/* && rmdir /mnt || exit 3
             dmesg | grep -q 'EXT4-fs error (vda): a structure is damaged' && echo named"
        ),
        Expect::Accepted(judge),
    );
    batch::run(machine, &[step.limit(limit)])
}

/// A tree with all kinds of files, whose regular ones have nothing but [`CONTENTS`].
fn make_tree(directory: &Directory) -> Result<PathBuf> {
    let tree = directory.join("tree");
    fs::create_dir_all(tree.join("many"))?;
    fs::create_dir_all(tree.join("a/b/c"))?;
    for n in 0..120 {
        let name = format!("many/{n:0width$}", width = 10 + n % 50);
        fs::write(tree.join(name), vec![CONTENTS; n * 7])?;
    }
    fs::write(tree.join("large"), vec![CONTENTS; 200_000])?;
    // Every other block of it is a hole, so that its extents need a block.
    let sparse = File::create(tree.join("sparse"))?;
    for n in 0..40 {
        sparse.write_all_at(&[CONTENTS; 1024], n * 8192)?;
    }
    for (n, target) in ["large".to_owned(), "x/".repeat(100)].iter().enumerate() {
        symlink(target, tree.join(format!("a/link-{n}")))?;
    }
    fs::hard_link(tree.join("large"), tree.join("a/b/linked"))?;
    Ok(tree)
}

fn judge(printed: &str) -> Result<String> {
    let mut lines = printed.lines();
    let mounted: u64 = lines
        .find_map(|line| line.strip_prefix("mounted "))
        .context("it did not come to its end")?
        .parse()?;
    ensure!(mounted > 20, "only {mounted} could be mounted");
    ensure!(lines.next() == Some("named"), "the log says nothing");
    let damaged = printed.contains("Structure needs cleaning");
    ensure!(damaged, "nothing was told to be damaged");
    Ok(format!("{mounted} were mounted"))
}

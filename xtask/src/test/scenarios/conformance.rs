//! Suites that others wrote for file systems, on ext4 under Skerry and Linux: pjdfstest, and
//! stress-ng's file stressors in eight processes; and very many files (`docs/ext4.md`).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::{images, replays};
use crate::cleanup::Directory;
use crate::test::{Check, Setting};
use crate::vm::{Addition, Kernel, Machine};
use crate::{build, packages, rootfs};

/// Tests of pjdfstest that end otherwise than under Linux, and why.
const EXPLAINED: [(&str, &str); 1] = [(
    "link::link_count_max",
    "the C library takes a file system for ext2, of 32,000 links, that /sys/fs/ext4 does not name",
)];

/// Tests that there are at least.
const LEAST: usize = 380;

/// Configuration of pjdfstest: what Linux has, and what ext4 does.
const CONFIGURATION: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
allow_remount = true
[dummy_auth]
entries = [["nobody", "nogroup"], ["tests", "tests"]]
"#;

/// Stressors that make, rename, link, preallocate, write and remove files, each checking itself;
/// there are eight processes.
const STRESS: &str = r#"
stress() {
    chroot /d sh -c "cd /mnt && exec stress-ng --temp-path /mnt --verify --timeout 0 \
        --dir 1 --dir-ops $1 --rename 1 --rename-ops $(($1 * 20)) --link 1 --link-ops $(($1 / 10)) \
        --fallocate 1 --fallocate-bytes 4M --fallocate-ops $(($1 / 10)) \
        --hdd 2 --hdd-bytes 4M --hdd-write-size 5000 --hdd-ops $(($1 * 20)) \
        --utime 1 --utime-ops $(($1 * 5)) --dirdeep 1 --dirdeep-ops $1 --dirdeep-inodes 500" 2>&1
}
"#;

/// Functions of the shell: one unpacks an archive of `$1` files, one makes `$1` names in a
/// directory, both on the disk `$2`.
const MANY: &str = r#"
unpacked() {
    chroot /d bash -c 'mkdir /src; cd /src; for dir in $(seq $(('$1' / 100))); do
        mkdir $dir; for n in $(seq 100); do echo "$n of $dir" > $dir/$n; done; done
        tar -cf /mnt/archive .'
    sum() { find . -type f | sort | xargs cat | md5sum; }
    cd /d/src && first=$(sum) && cd / || exit 1
    mkdir /d/mnt/out && chroot /d tar -C /mnt/out -xf /mnt/archive || exit 1
    umount /d/mnt && mount -t ext4 $2 /d/mnt || exit 1
    cd /d/mnt/out && [ "$(sum)" = "$first" ] && echo "$(find . -type f | wc -l) files"
    cd / && rm -rf /d/mnt/out /d/mnt/archive /d/src
}
names() {
    mkdir /d/mnt/names && chroot /d sh -c "cd /mnt/names && seq $1 | xargs touch" || exit 1
    umount /d/mnt && mount -t ext4 $2 /d/mnt || exit 1
    chroot /d sh -c 'cd /mnt/names && ls -f | grep -c "[0-9]" && ls | sort -n | tail -n 1'
    [ -e /d/mnt/names/$(($1 / 2)) ] && echo found
    chroot /d sh -c "cd /mnt/names && seq 1 2 $1 | xargs rm && ls -f | grep -c '[0-9]'"
}
"#;

/// The suites, with few operations.
pub fn short(setting: &Setting) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    Ok(vec![
        Check::new(
            "pjdfstest finds what it finds under Linux",
            pjdfstest(setting, &directory),
        ),
        Check::new(
            "eight processes that change a tree leave it without a fault",
            stress(setting, &directory, 100),
        ),
    ])
}

/// Many operations, and many files.
pub fn long(setting: &Setting) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    Ok(vec![
        Check::new(
            "eight processes that change a tree leave it without a fault",
            stress(setting, &directory, 3000),
        ),
        Check::new(
            "80,000 files are unpacked, and a million names are in one directory",
            many(setting, &directory, 80_000, 1_000_000),
        ),
    ])
}

/// Runs a script in a machine with a disk on `/d/mnt`, where Debian's root is, and has e2fsck look
/// at the disk; what was printed.
fn on_disk(
    machine: &mut Machine,
    disk: &Path,
    options: &[&str],
    (tree, script): (&Path, &str),
) -> Result<String> {
    images::mke2fs(disk, options, tree)?;
    machine.hardware.memory = "2G".into();
    machine.hardware.cpus = 2;
    machine.append = "supervisor_cpus=2".into();
    let drive = format!("format=raw,file={}", disk.display());
    images::attach(&mut machine.hardware, &drive);
    machine.additions.push(Addition {
        host: rootfs::cached(&[packages::BASE, packages::STRESS])?,
        guest: "/programs.tar".into(),
    });
    let script = format!(
        "{}mkdir -p /d/mnt /d/tmp /d/second && tar -xf /programs.tar -C /d || exit 1
         for dir in proc dev sys; do mkdir -p /d/$dir; mount -o bind /$dir /d/$dir; done
         mount -t tmpfs none /d/second && mount -t ext4 /dev/vda /d/mnt || exit 1
         {script}
         umount /d/mnt",
        replays::LOAD
    );
    let printed = replays::output_of(machine, &script)?;
    images::check(disk, 0)?;
    Ok(printed)
}

/// Does something with a machine of each kernel; what came of it, ours first.
fn each<T>(
    setting: &Setting,
    what: &str,
    seconds: u64,
    run: impl Fn(&mut Machine) -> Result<T>,
) -> Result<Vec<T>> {
    let mut all = Vec::new();
    for kernel in replays::kernels(setting)? {
        let mut machine = replays::machine(setting, &kernel, what, seconds)?;
        let name = match kernel {
            Kernel::Linux(_) => "Linux",
            _ => "Skerry",
        };
        all.push(run(&mut machine).context(name)?);
    }
    Ok(all)
}

fn pjdfstest(setting: &Setting, directory: &Directory) -> Result<String> {
    let program = build::pjdfstest()?;
    let tree = directory.join("empty");
    fs::create_dir_all(&tree)?;
    let configuration = directory.join("pjdfstest.toml");
    fs::write(&configuration, CONFIGURATION)?;
    let script = "cp /pjdfstest /pjdfstest.toml /d
        echo tests:x:1001:1001::/:/bin/sh >> /d/etc/passwd; echo tests:x:1001: >> /d/etc/group
        chroot /d /pjdfstest -c /pjdfstest.toml -p /mnt -s /second; true";
    let all = each(setting, "pjdfstest", 400, |machine| {
        for (host, name) in [(&program, "pjdfstest"), (&configuration, "pjdfstest.toml")] {
            machine.additions.push(Addition {
                host: host.clone(),
                guest: format!("/{name}"),
            });
        }
        let disk = images::empty(directory, "pjdfstest.img", 64 << 20)?;
        let printed = on_disk(machine, &disk, &["-b", "4096"], (tree.as_path(), script))?;
        fs::write(machine.log.with_extension("out"), &printed)?;
        let ended = ended(&printed);
        ensure!(
            ended.len() >= LEAST,
            "only {} tests ended: {printed}",
            ended.len()
        );
        Ok(ended)
    })?;
    let own = &all[0];
    if let Some(linux) = all.get(1) {
        let differing: Vec<String> = linux
            .iter()
            .filter(|(name, _)| EXPLAINED.iter().all(|(explained, _)| explained != *name))
            .filter(|(name, end)| own.get(*name) != Some(*end))
            .map(|(name, end)| format!("{name}: {:?} instead of {end}", own.get(name)))
            .collect();
        ensure!(differing.is_empty(), "{}", differing.join("; "));
        ensure!(own.len() == linux.len(), "there are other tests");
    }
    let count = |end: &str| own.values().filter(|ended| **ended == end).count();
    let failed: Vec<&str> = own
        .iter()
        .filter(|(_, ended)| **ended == "FAILED")
        .map(|(name, _)| name.as_str())
        .collect();
    Ok(format!(
        "{} hold, {} are skipped, as under Linux; {} fail {}",
        count("ok"),
        count("skipped"),
        failed.len(),
        failed.join(" ")
    ))
}

/// Names of tests and how they ended.
fn ended(printed: &str) -> BTreeMap<String, &'static str> {
    let line = |line: &str| {
        let (name, end) = line.trim_end().rsplit_once(' ')?;
        let end = ["ok", "FAILED", "skipped"]
            .into_iter()
            .find(|known| *known == end)?;
        let is_name = !name.trim_end().contains(char::is_whitespace);
        is_name.then(|| (name.trim_end().to_owned(), end))
    };
    printed.lines().filter_map(line).collect()
}

fn stress(setting: &Setting, directory: &Directory, operations: u64) -> Result<String> {
    let tree = directory.join("empty");
    fs::create_dir_all(&tree)?;
    let script = format!("{STRESS}\nstress {operations} > /out || {{ cat /out; exit 1; }}");
    each(setting, "stress", 300 + operations, |machine| {
        let disk = images::empty(directory, "stress.img", 128 << 20)?;
        on_disk(
            machine,
            &disk,
            &["-b", "4096"],
            (tree.as_path(), script.as_str()),
        )
    })?;
    Ok(String::new())
}

fn many(setting: &Setting, directory: &Directory, files: u64, names: u64) -> Result<String> {
    let tree = directory.join("empty");
    fs::create_dir_all(&tree)?;
    let script = format!("{MANY}\nunpacked {files} /dev/vda\nnames {names} /dev/vda");
    let wanted = format!("{files} files\n{names}\n{names}\nfound\n{}\n", names / 2);
    let inodes = files.max(names) + names / 10 + 1000;
    let (inodes, len) = (inodes.to_string(), inodes * 1024);
    each(setting, "many", 7200, |machine| {
        let disk = images::empty(directory, "many.img", len)?;
        let options = ["-b", "4096", "-N", inodes.as_str()];
        let printed = on_disk(machine, &disk, &options, (tree.as_path(), script.as_str()))?;
        ensure!(printed == wanted, "it printed {printed:?}");
        Ok(())
    })?;
    Ok(format!("{files} files, {names} names"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_tests_are_found() {
        let printed = "chmod::enoent          ok\nlink::eperm    FAILED\n\tnot ok\nSummary: 1 ok\n";
        let found: Vec<_> = ended(printed).into_iter().collect();
        let wanted = [("chmod::enoent", "ok"), ("link::eperm", "FAILED")];
        assert_eq!(found, wanted.map(|(name, end)| (name.to_owned(), end)));
    }
}

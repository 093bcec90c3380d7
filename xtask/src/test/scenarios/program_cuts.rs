//! Power cuts under Debian's sqlite3, git and PostgreSQL, which write to ext4 in a machine: what
//! they were promised is there, and they find nothing wrong with it (`docs/ext4.md`).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use disk_tests::log;
use disk_tests::power_cut::cut::{Cache, Judge, Recorded};
use disk_tests::power_cut::mark::Mark;

use super::{images, replays};
use crate::cleanup::Directory;
use crate::test::{Check, Setting};
use crate::vm::{Addition, Kernel, Machine};
use crate::{packages, rootfs};

const BLOCK: usize = 4096;

/// Programs that write to a disk, and what looks at it afterwards.
struct Programs {
    /// Name of the programs.
    name: &'static str,
    packages: &'static [&'static [&'static str]],
    /// Bytes of the file system.
    len: u64,
    /// Writers, each with steps and marks of its own.
    writers: usize,
    /// Script that writes, in Debian's root with the disk on `/mnt`: `$1` steps of each writer.
    write: &'static str,
    /// Script that looks, and prints a line for each writer.
    look: &'static str,
    /// Whether there is something to look at before the first step.
    is_whole_at_first: bool,
}

/// A database with a journal that is deleted, one with a log, a repository.
const FILES: Programs = Programs {
    name: "databases and a repository",
    packages: &[packages::POWER_CUTS],
    len: 48 << 20,
    writers: 3,
    write: WRITE,
    look: LOOK,
    is_whole_at_first: true,
};

/// PostgreSQL, whose server is also killed in the middle.
const SERVER: Programs = Programs {
    name: "PostgreSQL's tables",
    packages: &[packages::BASE, packages::POSTGRESQL],
    len: 96 << 20,
    writers: 1,
    write: WRITE_TABLE,
    look: LOOK_AT_TABLE,
    is_whole_at_first: false,
};

/// A mark says that a step is done (`disk_tests::power_cut::mark`), and is on the disk before the
/// next one begins: of the writer `$1`, its step `$2`.
const MARK: &str = r#"
mark() {
    printf "POWERCUT\\x$1\0\0\0\0\0\0\0\\x$(printf %x $2)\0\0\0\0\0\0\0" |
        dd of=/dev/vda1 bs=4096 seek=$1 conv=notrunc,sync oflag=direct iflag=fullblock status=none
}
"#;

/// The writers of [`FILES`]. Who commits to a repository is promised nothing of the name of its
/// branch, which git does not sync, before all is synced.
const WRITE: &str = r#"
store() {
    sqlite3 /mnt/$1.db "pragma journal_mode=$3; create table t (n integer, data text);" > /dev/null
    for n in $(seq $4); do
        sqlite3 /mnt/$1.db "pragma synchronous=full;
            insert into t values ($n, hex(randomblob(1500)));
            update t set data = hex(randomblob(700)) where n % 5 = $n % 5;" || exit 1
        mark $2 $n
    done
}
commit() {
    export HOME=/mnt GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a
    export GIT_COMMITTER_EMAIL=a
    git init -q /mnt/git && cd /mnt/git || exit 1
    git config core.fsync all && git config gc.auto 0 || exit 1
    for n in $(seq $2); do
        seq $n $((n * 40)) > file$((n % 4)); echo $n > last
        git add . && git commit -q -m $n || exit 1
        sync -f . && mark $1 $n
    done
}
store delete 0 delete $1 & first=$!
store wal 1 wal $1 & second=$!
commit 2 $1 & third=$!
wait $first && wait $second && wait $third && echo done
"#;

/// Looks at a disk on `/mnt`, and says what there is of each writer: a line each. A repository
/// without a commit may not be one yet: git syncs nothing of what it begins with.
const LOOK: &str = r#"
for name in delete wal; do
    sqlite3 /mnt/$name.db 'pragma integrity_check' | tr '\n' ' '
    sqlite3 /mnt/$name.db 'select count(*), ifnull(max(n), 0) from t' 2> /dev/null || echo '0|0'
done
if git -C /mnt/git rev-parse -q --verify HEAD > /dev/null 2>&1; then
    cd /mnt/git
    git -c safe.directory=/mnt/git fsck --strict --no-dangling --no-progress 2>&1 | tr '\n' ' '
    git() { command git -c safe.directory=/mnt/git "$@"; }
    count=$(git log --format=%s | wc -l)
    [ "$(git show HEAD:last)" = $count ] || echo -n 'another tree '
    echo "ok $count|$(git log -1 --format=%s)"
else
    echo 'ok 0|0'
fi
"#;

/// PostgreSQL as somebody else than root, for [`WRITE_TABLE`] and [`LOOK_AT_TABLE`].
const PSQL: &str = r#"
as() {
    cd /tmp; setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=/tmp PGHOST=/tmp \
        PGDATABASE=postgres PATH=$PATH:/usr/lib/postgresql/15/bin "$@"
}
start() {
    chmod 1777 /tmp
    as pg_ctl -D /mnt/data -l /tmp/log -w -t 300 -o "-k /tmp -c listen_addresses= \
        -c shared_buffers=8MB -c dynamic_shared_memory_type=mmap" start > /tmp/said 2>&1 && return
    cat /tmp/said /tmp/log; exit 1
}
"#;

/// Rows by one transaction each. In the middle the server is killed, and is started again.
const WRITE_TABLE: &str = r#"
mkdir -p /mnt/data && chown 65534:65534 /mnt/data && chmod 700 /mnt/data && chmod 1777 /tmp
as initdb -N -k --wal-segsize=1 -D /mnt/data -A trust --locale=C.UTF-8 > /tmp/said 2>&1 ||
    { cat /tmp/said; exit 1; }
start
as psql -Atqc 'create table t (n integer primary key, data text)' && sync -f /mnt || exit 1
for n in $(seq $1); do
    as psql -Atqc "insert into t values ($n, repeat(md5('$n'), 100));
        update t set data = repeat(md5(data), 100) where n % 5 = $n % 5" || exit 1
    mark 0 $n
    if [ $n = $(($1 / 2)) ]; then
        kill -9 $(head -n 1 /mnt/data/postmaster.pid)
        while pgrep -x postgres > /dev/null; do sleep 0.1; done
        start
        [ $(as psql -Atc 'select count(*) from t') = $n ] || exit 1
    fi
done
as pg_ctl -D /mnt/data -m immediate -w stop > /dev/null && echo done
"#;

/// Starts a server on what a cut left, and looks at the table and its index.
const LOOK_AT_TABLE: &str = r#"
rm -f /mnt/data/postmaster.pid
start
as psql -At -c "set enable_indexscan = off; set enable_indexonlyscan = off;
    select 'ok ' || count(*), max(n) from t where length(data) = 3200"
as pg_ctl -D /mnt/data -m fast -w stop > /dev/null
"#;

/// Some cuts, for every day.
pub fn short(setting: &Setting) -> Result<Vec<Check>> {
    run(setting, &FILES, 12, replays::DISKS as u64)
}

/// Hundreds of cuts.
pub fn long(setting: &Setting) -> Result<Vec<Check>> {
    run(setting, &FILES, 60, 40 * replays::DISKS as u64)
}

/// Cuts under PostgreSQL, which takes its time to start.
pub fn server(setting: &Setting) -> Result<Vec<Check>> {
    run(setting, &SERVER, 30, 6 * replays::DISKS as u64)
}

/// File systems after cuts, and what the writers were promised of each.
struct Cuts<'a> {
    directory: &'a Directory,
    programs: &'a Programs,
    promised: Vec<u64>,
    images: Vec<(PathBuf, Vec<u64>)>,
}

impl Judge for Cuts<'_> {
    fn promise(&mut self, mark: Mark) -> Result<()> {
        let promised = self.promised.get_mut(mark.writer as usize);
        let promised = promised.context("a mark of another writer")?;
        *promised = (*promised).max(mark.steps);
        Ok(())
    }

    fn look(&mut self, image: &[u8], _turn: u64) -> Result<bool> {
        if !self.programs.is_whole_at_first && self.promised.contains(&0) {
            return Ok(false);
        }
        let path = self
            .directory
            .join(&format!("cut{}.img", self.images.len()));
        fs::write(&path, image)?;
        self.images.push((path, self.promised.clone()));
        // It is looked at later.
        Ok(false)
    }
}

fn run(setting: &Setting, programs: &Programs, steps: u64, cuts: u64) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let mut checks = Vec::new();
    let mut found = Cuts {
        directory: &directory,
        programs,
        promised: Vec::new(),
        images: Vec::new(),
    };
    let mut windows = [0; 2];
    // One that Linux wrote for two that we wrote.
    for (kernel, cuts) in replays::kernels(setting)?
        .iter()
        .zip([cuts - cuts / 3, cuts / 3])
    {
        let who = match kernel {
            Kernel::Linux(_) => "Linux",
            _ => "Skerry",
        };
        let what = format!("{} are written under {who}", programs.name);
        let (start, log) = match write(setting, programs, kernel, &directory, steps) {
            Ok(recorded) => recorded,
            Err(error) => {
                checks.push(Check::new(what, Err(error)));
                return Ok(checks);
            }
        };
        checks.push(Check::new(what, Ok(format!("{steps} steps each"))));
        let recorded = Recorded {
            start: &start,
            log: &log::parse(&log)?,
            marks: images::FIRST..images::SECOND,
            file_system: images::SECOND..images::SECOND + programs.len,
            block: BLOCK,
            seed: 1,
        };
        found.promised = vec![0; programs.writers];
        let tried = recorded.judge(cuts, Cache::Flushed, &mut found)?;
        windows[0] += tried.windows[0];
        windows[1] += tried.windows[1];
    }
    let mut all: Result<Vec<u64>> = Ok(vec![0; programs.writers]);
    for images in found.images.chunks(replays::DISKS) {
        all = all.and_then(|before| {
            let more = look(setting, programs, images)?;
            Ok(before.iter().zip(more).map(|(a, b)| a + b).collect())
        });
    }
    let told = all.map(|steps| {
        let [looked_at, windows] = windows;
        format!(
            "{} cuts in {looked_at} of {windows} windows between flushes; {steps:?} steps found",
            found.images.len()
        )
    });
    checks.push(Check::new(
        format!(
            "after power cuts {} are whole under each kernel, and have what was promised",
            programs.name
        ),
        told,
    ));
    Ok(checks)
}

/// Has a machine of this kernel write until all steps are done; the disk before, and the log of
/// what was written.
fn write(
    setting: &Setting,
    programs: &Programs,
    kernel: &Kernel,
    directory: &Directory,
    steps: u64,
) -> Result<(Vec<u8>, Vec<u8>)> {
    let tree = directory.join("tree");
    fs::create_dir_all(&tree)?;
    let image = images::empty(directory, "file-system", programs.len)?;
    images::mke2fs(&image, &["-b", "4096"], &tree)?;
    let start = images::partitioned(&image)?;
    let (disk, log) = (directory.join("disk"), directory.join("log"));
    fs::write(&disk, &start)?;
    fs::write(&log, [])?;
    let mut machine = replays::machine(setting, kernel, "all", 120 + steps * 10)?;
    add(programs, &mut machine)?;
    images::attach_logged(&mut machine.hardware, &disk, &log);
    let script = format!(
        "{}{}mount -t ext4 /dev/vda2 /d/mnt && chroot /d bash /write {steps}",
        replays::LOAD,
        debian("/write", &[MARK, PSQL, programs.write])
    );
    let said = replays::output_of(&mut machine, &script)?;
    ensure!(said.trim() == "done", "it printed {said:?}");
    Ok((start, fs::read(&log)?))
}

fn add(programs: &Programs, machine: &mut Machine) -> Result<()> {
    machine.hardware.memory = "2G".into();
    machine.additions.push(Addition {
        host: rootfs::cached(programs.packages)?,
        guest: "/programs.tar".into(),
    });
    Ok(())
}

/// Makes Debian's root in `/d` of a machine, with a script in it.
fn debian(name: &str, parts: &[&str]) -> String {
    let script = parts.concat();
    format!(
        "mkdir -p /d/mnt /d/tmp && tar -xf /programs.tar -C /d || exit 1
         for dir in proc dev; do mount -o bind /$dir /d/$dir; done
         cat > /d{name} <<'END OF SCRIPT'\n{script}\nEND OF SCRIPT\n"
    )
}

/// Has machines mount file systems after cuts, and the programs look at what is theirs. Returns
/// how many steps of each writer the kernel under test found.
fn look(
    setting: &Setting,
    programs: &Programs,
    images: &[(PathBuf, Vec<u64>)],
) -> Result<Vec<u64>> {
    let paths: Vec<&Path> = images.iter().map(|(path, _)| path.as_path()).collect();
    let script = debian("/look", &[PSQL, programs.look]) + "own() { chroot /d bash /look; }\n";
    let prepare = |machine: &mut Machine| add(programs, machine);
    let mut counts = Vec::new();
    for seen in replays::look(setting, &paths, &prepare, &script)? {
        let mut found = vec![0; programs.writers];
        for (seen, (path, promised)) in seen.iter().zip(images) {
            ensure!(
                seen.said.len() == programs.writers,
                "it printed {:?}",
                seen.said
            );
            for (writer, line) in seen.said.iter().enumerate() {
                let steps = steps_of(line).filter(|steps| {
                    // The one that was being made may be there.
                    (promised[writer]..=promised[writer] + 1).contains(steps)
                });
                found[writer] += steps.with_context(|| {
                    format!(
                        "{}: writer {writer} was promised {} steps, and there is {line:?}",
                        path.display(),
                        promised[writer]
                    )
                })?;
            }
        }
        counts.push(found);
    }
    ensure!(
        counts.iter().all(|found| *found == counts[0]),
        "kernels found other steps: {counts:?}"
    );
    Ok(counts.swap_remove(0))
}

/// The number of steps that a line tells of, of a writer whose work is whole: as many as the number
/// of the last one.
fn steps_of(line: &str) -> Option<u64> {
    let (count, last) = line.strip_prefix("ok ")?.split_once('|')?;
    let [count, last] = [count, last].map(|text| text.trim().parse::<u64>().ok());
    count.filter(|count| last == Some(*count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_whole_is_noticed() {
        assert_eq!(steps_of("ok 12|12"), Some(12));
        for bad in [
            "ok 11|12",
            "*** in database main *** 12|12",
            "ok |",
            "",
            "another tree ok 3|3",
        ] {
            assert_eq!(steps_of(bad), None, "{bad}");
        }
    }
}

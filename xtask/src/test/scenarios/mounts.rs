//! Debian's `mount`, `findmnt`, `umount`, `unshare`, `nsenter` and `lsns`, unmodified, in an
//! instance.

use anyhow::Result;

use super::debian::instances;
use crate::packages;
use crate::test::{Check, Setting};

/// Statement, program with its arguments, and expected output.
const PROGRAMS: [(&str, &[&str], &str); 6] = [
    (
        "mount, remount, bind, move and umount",
        &[
            "bash",
            "-ec",
            r#"mkdir -p /mnt; cd /mnt; mkdir a b c; mount -t tmpfs -o size=1m,mode=750,noatime one a; findmnt -no SOURCE,FSTYPE,OPTIONS a; touch a/f; mount --bind a b; mount -o remount,bind,ro b; touch b/g 2>&1 | grep -o 'Read-only file system'; mount --move a c; ls c; findmnt -no TARGET one | sort | paste -sd,; umount b c; findmnt one || echo none"#,
        ],
        "one    tmpfs  rw,noatime,size=1024k,mode=750,inode64\nRead-only file system\nf\n/mnt/b,/mnt/c\nnone",
    ),
    (
        "recursive binds, and mounts that propagate",
        &[
            "bash",
            "-ec",
            r#"mkdir -p /mnt; cd /mnt; mkdir a b s; mount -t tmpfs one a; mount --make-shared a; mkdir a/x; mount --rbind a b; mount -t tmpfs two b/x; findmnt -no PROPAGATION a; touch a/x/f; ls b/x; mount --make-rslave b; findmnt -no PROPAGATION b | sed 's/ .*//'; umount a/x; ls b/x | wc -l; mount --make-unbindable a; mount --bind a s 2>&1 | grep -c 'wrong fs type'"#,
        ],
        "shared\nf\nprivate,slave\n0\n1",
    ),
    (
        "findmnt knows what is mounted, as a tree",
        &[
            "bash",
            "-ec",
            "findmnt -rno TARGET,FSTYPE | sort | paste -sd,; findmnt -no TARGET -R /dev | wc -l",
        ],
        "/ tmpfs,/dev devtmpfs,/dev/pts devpts,/proc proc,/sys sysfs,/sys/fs/cgroup cgroup2\n2",
    ),
    (
        "unshare makes namespaces of mounts, names and System V objects",
        &[
            "bash",
            "-ec",
            r#"mkdir -p /mnt; h=$(hostname); unshare -m -u -i bash -ec 'hostname inner; hostname; mount -t tmpfs secret /mnt; findmnt -no SOURCE /mnt; ipcmk -M 4096 > /dev/null; ipcs -m | grep -c 4096'; [ "$(hostname)" = "$h" ] && echo same; findmnt -no SOURCE /mnt || echo nothing; ipcs -m | grep -c 4096 || true; unshare -m --propagation slave true && echo slave"#,
        ],
        "inner\nsecret\n1\nsame\nnothing\n0\nslave",
    ),
    (
        "nsenter goes where another process is, and where a file says; lsns lists them",
        &[
            "bash",
            "-ec",
            r#"mkdir -p /mnt; touch /run/uts; unshare --uts=/run/uts hostname kept; nsenter --uts=/run/uts hostname; unshare -m -u sh -c 'hostname there; mount -t tmpfs there /mnt; echo ready; exec sleep 1000' > /tmp/out & pid=$!; until grep -q ready /tmp/out; do :; done; nsenter -t $pid -m -u sh -c 'hostname; findmnt -no SOURCE /mnt'; lsns -no TYPE -p $pid | sort | paste -sd,; lsns -t mnt -no NPROCS | sort -n | tail -n 2 | wc -l; kill $pid; umount /run/uts"#,
        ],
        "kept\nthere\nthere\ncgroup,ipc,mnt,net,pid,time,user,uts\n2",
    ),
    (
        "pivot_root exchanges the root",
        &[
            "bash",
            "-ec",
            r#"unshare -m bash -ec 'mkdir /new; mount --rbind / /new; mkdir -p /new/old; cd /new; pivot_root . old; umount -l /old; cd /; ls -d bin old; findmnt -no FSTYPE /; ls old | wc -l'"#,
        ],
        "bin\nold\ntmpfs\n0",
    ),
];

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    instances(
        setting,
        "mounts",
        &[packages::BASE, packages::MOUNTS],
        &PROGRAMS,
        "--cpus 1 --mem 512M",
        "2G",
    )
}

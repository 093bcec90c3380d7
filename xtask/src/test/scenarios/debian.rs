//! Debian's own programs, dynamically linked and unmodified, in an instance whose file system is
//! made of their packages.

use std::time::Duration;

use anyhow::Result;

use crate::test::batch::{self, Expect, Step};
use crate::test::{Check, Setting};
use crate::vm::Addition;
use crate::{packages, rootfs};

/// Statement, program with its arguments, and expected output.
const PROGRAMS: [(&str, &[&str], &str); 10] = [
    (
        "bash: arithmetic, arrays, functions, process substitution, traps",
        &[
            "bash",
            "-c",
            r#"set -eu; a=(5 3 9); f() { local IFS=+; echo "$(( $* ))"; }; f "${a[@]}"; while read -r x; do echo "<$x>"; done < <(printf '%s\n' "${a[@]}" | sort -n); trap 'echo bye' EXIT; [[ "skerry" =~ ^s(.*)y$ ]] && echo "${BASH_REMATCH[1]}"; coproc cat; echo there >&"${COPROC[1]}"; read -r back <&"${COPROC[0]}"; echo "$back""#,
        ],
        "17\n<3>\n<5>\n<9>\nkerr\nthere\nbye",
    ),
    (
        "coreutils, grep, sed, awk in pipes",
        &[
            "bash",
            "-c",
            r#"seq 1000 | awk '{s+=$1} END {print s}'; printf 'b\na\nc\n' | sort -r | paste -sd,; echo hello world | sed -E 's/(\w+) (\w+)/\2 \1/'; seq 20 | grep -c 1; seq 9 | split -l 3 - /tmp/part; wc -l /tmp/part* | tail -n 1; echo skerry | sha256sum | cut -c1-16; numfmt --to=iec 1048576; date -u -d @0 +%F; factor 1001; echo one two | tr a-z A-Z; stat -c %a /tmp"#,
        ],
        "500500\nc,b,a\nworld hello\n11\n 9 total\n6f1acd4405472ffa\n1.0M\n1970-01-01\n1001: 7 11 13\nONE TWO\n1777",
    ),
    (
        "find, xargs, tar, gzip, xz, cmp",
        &[
            "bash",
            "-c",
            "mkdir -p /tmp/a/b; seq 5000 > /tmp/a/b/n; ln -s n /tmp/a/b/l; find /tmp/a -type f -print0 | xargs -0 wc -l; for z in z J; do tar -C /tmp -c${z}f /tmp/a.tar a; mkdir /tmp/x$z; tar -C /tmp/x$z -xf /tmp/a.tar; cmp /tmp/a/b/n /tmp/x$z/a/b/n && readlink /tmp/x$z/a/b/l; done",
        ],
        "5000 /tmp/a/b/n\nn\nn",
    ),
    (
        "python3: subprocess, threads, files",
        &[
            "python3",
            "-c",
            r#"
import os, subprocess, threading, tempfile, time
print(subprocess.run(["sort", "-n"], input=b"10\n9\n8\n", capture_output=True).stdout.split())
total, lock = [0], threading.Lock()
def work():
    for _ in range(2000):
        with lock: total[0] += 1
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(total[0])
with tempfile.TemporaryDirectory() as d:
    with open(os.path.join(d, "f"), "w") as f: f.write("x" * 100000)
    print(os.stat(os.path.join(d, "f")).st_size, os.listdir(d))
r, w = os.pipe()
if os.fork() == 0:
    os.write(w, b"from the child"); os._exit(3)
pid, status = os.wait()
print(os.read(r, 100), os.waitstatus_to_exitcode(status))
"#,
        ],
        "[b'8', b'9', b'10']\n8000\n100000 ['f']\nb'from the child' 3",
    ),
    (
        "perl: regular expressions, fork, pipes",
        &[
            "perl",
            "-e",
            r#"print join(",", map { $_ ** 2 } grep { $_ % 2 } 1..9), "\n"; open(my $p, "-|", "seq 3") or die; print map { s/\s//r . ";" } <$p>; print "\n"; my $pid = fork // die; exit 4 if !$pid; waitpid $pid, 0; print $? >> 8, "\n""#,
        ],
        "1,9,25,49,81\n1;2;3;\n4",
    ),
    (
        "sqlite3: a database on disk, an index, a transaction rolled back, its integrity",
        &[
            "sqlite3",
            "/tmp/db",
            "pragma journal_mode=wal; create table t(a integer primary key, b text); with recursive c(n) as (select 1 union all select n+1 from c where n<20000) insert into t select n, hex(n*7) from c; create index i on t(b); begin; delete from t; rollback; select count(*), sum(a), count(distinct b) from t; pragma integrity_check;",
        ],
        "wal\n20000|200010000|20000\nok",
    ),
    (
        "ps and free see the instance only",
        &[
            "bash",
            "-c",
            "ps -e -o comm= | sort | paste -sd,; free -m | awk '/Mem/ {print ($2 < 600)}'",
        ],
        "bash,paste,ps,sort\n1",
    ),
    (
        "df shows the root, and something used of it",
        &[
            "bash",
            "-c",
            "df --output=fstype,target,used / | awk 'NR == 2 {print $1, $2, ($3 > 0)}'",
        ],
        "tmpfs / 1",
    ),
    (
        "a script is run by its interpreter",
        &[
            "bash",
            "-c",
            r#"printf '#!/usr/bin/env python3\nimport sys; print(sys.argv[1:])\n' > /tmp/s; chmod +x /tmp/s; /tmp/s a 'b c'"#,
        ],
        "['a', 'b c']",
    ),
    (
        "a program that crashes tells its shell",
        &[
            "bash",
            "-c",
            "exec 2>/dev/null; python3 -c 'import os; os.abort()'; echo $?; perl -e 'kill 9, $$'; echo $?",
        ],
        "134\n137",
    ),
];

const DEVELOPMENT: [(&str, &[&str], &str); 2] = [
    (
        "git: commits, a clone over a local path, its log and its integrity",
        &[
            "bash",
            "-ec",
            r#"cd /tmp; git config --global user.email a@b; git config --global user.name n; git init -q -b main a; cd a; seq 1000 > f; git add f; git commit -qm one; seq 50 >> f; git commit -qam two; cd ..; git clone -q a b; cd b; git log --format=%s; git fsck; wc -l f; git diff --shortstat HEAD~1"#,
        ],
        "two\none\n1050 f\n 1 file changed, 50 insertions(+)",
    ),
    (
        "gcc and make compile and link in parallel, and the program runs",
        &[
            "bash",
            "-ec",
            r#"cd /tmp; for i in 1 2 3 4; do echo "int f$i(int x) { return x * $i; }" > f$i.c; done; cat > m.c <<'END'
#include <stdio.h>
int f1(int), f2(int), f3(int), f4(int);
int main(void) { printf("%d\n", f1(f2(f3(f4(1))))); return 0; }
END
printf 'm: m.o f1.o f2.o f3.o f4.o\n\t$(CC) -o $@ $^\n' > Makefile; make -s -j4 CC=gcc CFLAGS=-O2; ./m; make -s -q && echo up to date"#,
        ],
        "24\nup to date",
    ),
];

pub fn programs(setting: &Setting) -> Result<Vec<Check>> {
    instances(
        setting,
        "programs",
        &[packages::BASE],
        &PROGRAMS,
        "--cpus 1 --mem 512M",
        "2G",
    )
}

pub fn development(setting: &Setting) -> Result<Vec<Check>> {
    instances(
        setting,
        "development",
        &[packages::BASE, packages::DEVELOPMENT],
        &DEVELOPMENT,
        "--cpus 2 --mem 1G",
        "4G",
    )
}

/// Runs each program in an instance of its own, on a file system of these packages.
pub(super) fn instances(
    setting: &Setting,
    name: &str,
    packages: &[&[&str]],
    programs: &[(&str, &[&str], &'static str)],
    size: &str,
    memory: &str,
) -> Result<Vec<Check>> {
    let mut machine = setting.machine(name);
    machine.hardware.memory = memory.into();
    machine.timeout = Some(Duration::from_secs(420));
    machine.additions.push(Addition {
        host: rootfs::cached(packages)?,
        guest: "/debian.tar".into(),
    });
    let step = |(what, command, printed): &(&str, &[&str], &'static str)| {
        let words: Vec<_> = command
            .iter()
            .map(|word| format!("'{}'", word.replace('\'', r"'\''")))
            .collect();
        let script = format!(
            "skerry run --rm {size} --rootfs /debian.tar -- {}",
            words.join(" ")
        );
        Step::new(*what, script, Expect::Text((*printed).into())).limit(120)
    };
    batch::run(machine, &programs.iter().map(step).collect::<Vec<_>>())
}

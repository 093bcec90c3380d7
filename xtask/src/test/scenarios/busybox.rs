//! Debian's busybox at work: scripts whose results are the host's, or known.

use std::time::Duration;

use Expect::{Accepted, SameAsHost, Text};
use anyhow::{Context, Result, ensure};

use crate::test::batch::{self, Expect, Step};
use crate::test::{Check, Setting};

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let mut machine = setting.machine("all");
    machine.timeout = Some(Duration::from_secs(300));
    let steps: Vec<_> = SAME
        .iter()
        .map(|(what, script)| Step::new(*what, *script, SameAsHost))
        .chain(
            FIXED
                .iter()
                .map(|(what, script, text)| Step::new(*what, *script, Text((*text).into()))),
        )
        .chain(looked_at())
        .collect();
    batch::run(machine, &steps)
}

/// Scripts that print the same wherever they run.
const SAME: &[(&str, &str)] = &[
    ("a pipe of three programs", "seq 1 1000 | grep 7 | wc -l"),
    (
        "a pipe of eight programs",
        "seq 1 3000 | sort -r | tac | sed 's/1/one/' | tr a-z A-Z | cut -c1-3 | uniq | md5sum",
    ),
    (
        "find over a tree",
        "for d in a b c/d e/f/g; do mkdir -p $d; for f in 1 2 3; do echo $d$f > $d/$f.txt; done; done; ln -s a link; find . | sort; find . -name '2.*' -exec cat {} + | sort; find . -type l; find . -type f -newer a/1.txt | wc -l >/dev/null",
    ),
    (
        "sort by number, by field, reversed, unique",
        "seq 1 500 | sort -R > in; sort -n in | md5sum; sort in | md5sum; sort -rn in | head -3; printf 'b 2\\na 3\\nc 1\\nb 2\\n' | sort -k2n -u",
    ),
    (
        "awk: floating point, arrays, functions, fields",
        "seq 1 200 | awk 'function f(x){return x*x} {s+=f($1); n[$1%7]++} END{printf \"%.6f %d\", s/7, s; for(i=0;i<7;i++) printf \" %d\", n[i]; print \"\"}'; awk 'BEGIN{for(i=1;i<=50;i++) h+=1/i; printf \"%.12f %.9e\\n\", h, h*1e40/7}'",
    ),
    (
        "tar keeps a tree",
        "mkdir -p t/x/y; seq 1 5000 > t/x/numbers; echo hi > t/x/y/hi; ln -s ../numbers t/x/y/l; chmod 750 t/x/y/hi; tar cf a.tar t; mv t old; tar xf a.tar; diff -r t old && echo same; tar tf a.tar | sort; ls -l t/x/y/hi | cut -c1-10; readlink t/x/y/l",
    ),
    (
        "gzip and gunzip",
        "seq 1 60000 > n; gzip -k n; gunzip -c n.gz | cmp - n && echo same; gzip -dc n.gz | md5sum; zcat n.gz | tail -1; bzip2 -k n; bunzip2 -c n.bz2 | cmp - n && echo same",
    ),
    (
        "tar with gzip through a pipe",
        "mkdir d; seq 1 20000 > d/n; tar cz d | (mkdir e; cd e; tar xz); cmp d/n e/d/n && echo same",
    ),
    (
        "sha256sum, sha512sum, md5sum of a megabyte",
        "seq 1 160000 | head -c 1048576 > f; sha256sum f; sha512sum < f; md5sum < f; sha256sum f > s; sha256sum -c s",
    ),
    (
        "sed, cut, tr, xargs, tee, head, tail, rev, wc",
        "seq 1 100 | sed -n '/5$/p;$s/1/X/gp' | tee copy | xargs -n 3 echo; wc copy; echo a:b:c | cut -d: -f2-; echo hello | tr a-y b-z | rev; seq 9 | tail -n +7; seq 9 | head -n -6",
    ),
    (
        "here documents, functions, arithmetic, case, loops",
        "f() { local x=$1; echo $((x * x + 0x10 % 7)); }; for i in 1 2 3; do f $i; done; case abc in a*) echo yes;; esac; i=0; while [ $i -lt 5 ]; do i=$((i+1)); done; echo $i; cat <<E\nvalue $i $(f 9)\nE\ncat <<'E'\n$i\nE\necho ${HOME#/} ${i:-x} ${u:-unset}",
    ),
    (
        "exit statuses of commands, pipes, subshells",
        "true; echo $?; false; echo $?; (exit 42); echo $?; sh -c 'exit 7' | true; echo $?; ! true; echo $?; sh -c \"sh -c 'exit 3'\"; echo $?; nonexistent-command 2>/dev/null; echo $?",
    ),
    (
        // Whether `wait` says "Terminated" depends on whether the child was dead by then: one in
        // fifty on Linux, too.
        "a killed child's status",
        "sh -c 'kill -9 $$'; echo $?; sh -c 'kill -TERM $$'; echo $?; sleep 100 & kill $!; wait $! 2>/dev/null; echo $?",
    ),
    (
        "background jobs and wait",
        "for i in 1 2 3 4 5; do (exit $i) & pids=\"$pids $!\"; done; for p in $pids; do wait $p; echo $?; done",
    ),
    (
        "traps for signals and exit",
        "trap 'echo usr1' USR1; trap 'echo bye' EXIT; kill -USR1 $$; (trap 'echo inner; exit 4' TERM; sh -c 'kill -TERM $PPID'; sleep 0.2; echo not reached); echo $?",
    ),
    (
        "a writer without reader is stopped",
        "yes | head -n 3; (yes; echo \"status $?\" >&2) 2>&1 >&- | head -c 0; seq 1 1000000 | head -1",
    ),
    (
        "hundred processes one after the other",
        "n=0; for i in $(seq 1 100); do n=$((n + $(echo 1))); done; echo $n",
    ),
    (
        "a command line of 60,000 bytes",
        "a=$(seq 1 11000 | tr '\\n' ' '); echo $a | wc -c; /bin/busybox echo $a | md5sum",
    ),
    (
        "named pipes",
        "mkfifo p; (seq 1 2000 > p) & sort -n p | tail -1; wait",
    ),
    (
        "16 MiB through a pipe",
        "dd if=/dev/zero bs=65536 count=256 2>/dev/null | md5sum",
    ),
    (
        "dd with offsets, and holes",
        "dd if=/dev/zero of=f bs=1 count=1 seek=1000000 2>/dev/null; wc -c < f; echo X | dd of=f bs=1 seek=500 conv=notrunc 2>/dev/null; md5sum < f; dd if=f bs=1 skip=499 count=3 2>/dev/null | hexdump -C",
    ),
    (
        "cp, mv, rm, ln, touch, test",
        "mkdir a; echo 1 > a/x; cp -r a b; mv b/x b/y; ln b/y b/z; ln -s y b/s; rm a/x; rmdir a; ls b; cat b/s; [ b/y -ef b/z ] && echo linked; touch -d '2020-01-02 03:04:05' b/y; date -u -r b/y +%Y-%m-%dT%H:%M:%S 2>/dev/null; [ -x b/y ] || echo not executable; chmod +x b/y; [ -x b/y ] && echo executable; stat -c '%a %h %s' b/y",
    ),
    (
        "redirections and descriptors",
        "exec 3> out; echo three >&3; exec 3>&-; cat out; { echo a; echo b >&2; } 2>err; cat err; echo more >> out; wc -l < out; cat < out 4< err 0<&4; ls nothing > all 2>&1; wc -l < all",
    ),
    (
        "cpio keeps a tree",
        "mkdir -p t/u; echo 1 > t/u/one; find t | sort | cpio -o -H newc 2>/dev/null > a.cpio; mkdir o; cd o; cpio -id < ../a.cpio 2>/dev/null; find . | sort; cat t/u/one",
    ),
    (
        "base64, hexdump, od",
        "seq 1 100 | base64 | base64 -d | md5sum; echo abc | hexdump -C; echo abc | od -c",
    ),
    (
        "expr, test, bc-like arithmetic of the shell",
        "expr 6 \\* 7; expr length abcde; [ 3 -gt 2 -a a = a ] && echo true; echo $((1 << 40)) $((-7 / 2)) $((0xff & ~0xf)); printf '%05d|%-5s|%x|%s\\n' 42 ab 255 end",
    ),
    (
        "diff, patch, cmp, comm-like",
        "seq 10 > a; sed 's/5/five/' a > b; diff a b; diff -u a b | tail -n +3 > p; cp a c; (echo '--- c'; echo '+++ c'; cat p) | patch c; cmp b c && echo patched",
    ),
    (
        "a deep directory",
        "d=x; for i in $(seq 1 60); do d=$d/dir$i; done; mkdir -p $d; echo deep > $d/f; cat $d/f; find . | wc -l; rm -rf x; ls | wc -l",
    ),
    (
        "500 files in a directory",
        "for i in $(seq 1 500); do echo $i > f$i; done; ls | wc -l; cat f* | sort -n | md5sum; rm f*; ls | wc -l",
    ),
    (
        "recursion twelve deep through sh",
        "echo 'n=$1; if [ $n -gt 0 ]; then sh r.sh $((n-1)); fi; echo $n' > r.sh; sh r.sh 12 | tr '\\n' ' '",
    ),
    (
        "several writers append to one file",
        "for i in 1 2 3 4; do (for j in $(seq 1 50); do echo $i-$j >> log; done) & done; wait; wc -l < log; sort log | md5sum",
    ),
];

/// Scripts whose result is known but not the same on the host.
const FIXED: &[(&str, &str, &str)] = &[
    (
        "time-outs",
        "exec 2>/dev/null; timeout 1 sleep 60; echo $?; timeout 20 true; echo $?",
        "143\n0",
    ),
    (
        "a sleep takes its time",
        "a=$(date +%s); sleep 2; b=$(date +%s); [ $((b-a)) -ge 2 ] && echo fine",
        "fine",
    ),
    (
        "devices",
        "echo x > /dev/null; wc -c < /dev/null; head -c 70000 /dev/zero | tr -d '\\000' | wc -c; head -c 1000 /dev/urandom | wc -c; [ \"$(head -c 16 /dev/urandom | md5sum)\" != \"$(head -c 16 /dev/urandom | md5sum)\" ] && echo differ",
        "0\n0\n1000\ndiffer",
    ),
    (
        "the first process is the agent",
        "cat /proc/1/comm; [ -d /proc/1/fd ] && echo listed",
        "init\nlisted",
    ),
    (
        "processes have their names in /proc",
        "sleep 50 & until grep -q sleep /proc/$!/comm; do :; done; tr '\\0' ' ' < /proc/$!/cmdline; echo; cat /proc/$!/comm; kill $!",
        "sleep 50 \nsleep",
    ),
    (
        "an unlinked file's space can be used by others",
        "for i in 1 2 3 4 5 6 7 8; do dd if=/dev/zero of=big bs=1048576 count=64 2>/dev/null; rm big; done; echo done",
        "done",
    ),
    (
        "uname names the kernel's interface",
        "uname -m; [ -n \"$(uname -r)\" ] && echo release",
        "x86_64\nrelease",
    ),
    (
        "who computes for a while is seen in the load",
        "timeout 6 sh -c 'while :; do :; done' 2>/dev/null; awk '{print ($1 > 0)}' /proc/loadavg",
        "1",
    ),
    (
        "64 sleeping processes at once",
        "for i in $(seq 1 64); do sleep 1 & done; wait; echo all",
        "all",
    ),
];

/// Scripts whose output is looked at.
fn looked_at() -> Vec<Step> {
    vec![
        Step::new(
            "ps lists the processes with their parents",
            "sleep 30 & until grep -q sleep /proc/$!/comm; do :; done; ps -o pid,ppid,comm; kill $!",
            Accepted(|printed| {
                ensure!(
                    printed.lines().any(|line| line.ends_with(" sleep"))
                        && printed.lines().any(|line| line.ends_with(" ps")),
                    "sleep or ps is missing"
                );
                let agent = printed
                    .lines()
                    .find(|line| line.trim_start().starts_with("1 "))
                    .context("process 1 is missing")?;
                ensure!(
                    agent.split_whitespace().nth(1) == Some("0"),
                    "the first process has a parent"
                );
                Ok(format!("{} processes", printed.lines().count() - 1))
            }),
        ),
        Step::new(
            "top shows processors, memory and processes",
            "top -b -n 1",
            Accepted(|printed| {
                for word in ["Mem:", "CPU:", "Load average:", "PID", "top"] {
                    ensure!(printed.contains(word), "{word:?} is missing");
                }
                Ok(String::new())
            }),
        ),
        Step::new(
            "free adds up",
            "free -b",
            Accepted(|printed| {
                let line = printed
                    .lines()
                    .find(|line| line.starts_with("Mem:"))
                    .context("there is no Mem: line")?;
                let numbers: Vec<u64> = line
                    .split_whitespace()
                    .skip(1)
                    .map(str::parse)
                    .collect::<Result<_, _>>()?;
                ensure!(
                    numbers[0] > 256 << 20
                        && numbers[1] + numbers[2] <= numbers[0]
                        && numbers[2] > 0,
                    "the numbers are impossible"
                );
                Ok(format!("{} MiB in all", numbers[0] >> 20))
            }),
        ),
        Step::new(
            "/proc/cpuinfo names the processors",
            "cat /proc/cpuinfo",
            Accepted(|printed| {
                for field in [
                    "processor\t: 0",
                    "vendor_id\t:",
                    "model name\t:",
                    "flags\t\t:",
                ] {
                    ensure!(printed.contains(field), "{field:?} is missing");
                }
                let count = printed
                    .lines()
                    .filter(|line| line.starts_with("processor"))
                    .count();
                Ok(format!("{count} processors"))
            }),
        ),
        Step::new(
            "the clock shows this year or a later one",
            "date +%Y",
            Accepted(|printed| {
                ensure!(printed.parse::<u32>()? >= 2025, "the year is wrong");
                Ok(printed.to_owned())
            }),
        ),
        Step::new(
            "uptime and load",
            "uptime; cat /proc/loadavg",
            Accepted(|printed| {
                ensure!(
                    printed.contains("load average:") && printed.lines().count() == 2,
                    "a line is missing"
                );
                Ok(String::new())
            }),
        ),
        Step::new(
            "mounts are listed",
            "mount",
            Accepted(|printed| {
                ensure!(
                    printed
                        .lines()
                        .any(|line| line.contains(" /proc type proc")),
                    "/proc is missing"
                );
                Ok(String::new())
            }),
        ),
        Step::new(
            "/proc/meminfo, /proc/stat, /proc/version, /proc/uptime can be read",
            "head -2 /proc/meminfo; head -1 /proc/stat; cat /proc/version; cat /proc/uptime",
            Accepted(|printed| {
                ensure!(
                    printed.contains("MemTotal:")
                        && printed.contains("cpu ")
                        && printed.lines().count() == 5,
                    "a line is missing"
                );
                Ok(String::new())
            }),
        ),
    ]
}

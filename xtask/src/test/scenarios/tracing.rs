//! Debian's strace and gdb, unmodified, in an instance: what they say of other programs, and do to
//! them.

use anyhow::Result;

use super::debian;
use crate::packages;
use crate::test::{Check, Setting};

const PACKAGES: &[&[&str]] = &[packages::BASE, packages::TRACING];

/// Statement, program with its arguments, and expected output.
const PROGRAMS: [(&str, &[&str], &str); 5] = [
    (
        "strace: calls with arguments and results, and the end",
        &[
            "bash",
            "-c",
            "strace -o /tmp/s -e trace=write,exit_group sh -c 'echo hello; exit 4'; tail -n 3 /tmp/s",
        ],
        "hello\nwrite(1, \"hello\\n\", 6)                  = 6\nexit_group(4)                           = ?\n+++ exited with 4 +++",
    ),
    (
        "strace -f follows children and what they run, also by a filter of calls",
        &[
            "bash",
            "-c",
            r#"for by in '' --seccomp-bpf; do strace -f $by -o /tmp/s -e trace=execve sh -c 'true | cat; /bin/true; /bin/false; exit 0'; grep -c 'execve("/[a-z/]*", .*= 0' /tmp/s; grep -c 'exited with 0' /tmp/s; grep -c 'exited with 1' /tmp/s; done"#,
        ],
        "4\n4\n1\n4\n4\n1",
    ),
    (
        "strace -c counts calls, and -e inject makes one fail",
        &[
            "bash",
            "-c",
            r#"strace -c -o /tmp/s cat /proc/version > /dev/null; grep -c ' openat$' /tmp/s; touch /tmp/there; strace -o /tmp/s -e inject=unlinkat:error=EROFS rm /tmp/there 2>&1 | grep -o 'Read-only.*'; test -e /tmp/there && grep -c INJECTED /tmp/s"#,
        ],
        "1\nRead-only file system\n1",
    ),
    (
        "gdb: a breakpoint, back trace, threads, a called function, steps, watchpoints in hardware and software, a changed variable",
        &[
            "bash",
            "-ec",
            r#"cd /tmp; cat > t.c <<'END'
#include <pthread.h>
#include <stdio.h>
volatile int watched, other;
static pthread_barrier_t both;
int twice(int x) { return x * 2; }
static void *work(void *arg) { pthread_barrier_wait(&both); pthread_barrier_wait(&both); return arg; }
int main(void) {
    pthread_t thread;
    pthread_barrier_init(&both, 0, 2);
    pthread_create(&thread, 0, work, 0);
    pthread_barrier_wait(&both);
    watched = twice(21);
    other = watched + 1;
    for (int i = 0; i < 3; i++) watched += other;
    pthread_barrier_wait(&both);
    pthread_join(thread, 0);
    printf("%d\n", watched);
    return 3;
}
END
gcc -g -O0 -pthread -o t t.c
cat > commands <<'END'
set pagination off
break twice
run
bt
info threads
delete
print twice(x + 29)
finish
watch watched
rwatch other
continue
continue
info breakpoints
delete
set can-use-hw-watchpoints 0
watch watched
continue
delete
stepi
print $_siginfo.si_signo
set var watched = 77
continue
END
gdb -nx -q -batch -x commands ./t > g 2>&1 < /dev/null
sed -nE 's/^#([01]) .*(twice|main) \(.*/\1 \2/p; s/^.*Thread .*\(LWP.*" .*(twice|pthread_barrier_wait) .*/thread in \1/p; /^\$[0-9]|^Value|^(Old|New) value|^(Hardware )?(read )?[Ww]atchpoint|^163$/p; s/.*breakpoint already hit (.*)/hit \1/p; s/.*(exited with code .*)]/\1/p' g"#,
        ],
        "0 twice\n1 main\nthread in twice\nthread in pthread_barrier_wait\n$1 = 100\nValue returned is $2 = 42\nHardware watchpoint 2: watched\nHardware read watchpoint 3: other\nOld value = 0\nNew value = 42\nValue = 43\nhit 1 time\nhit 1 time\nWatchpoint 4: watched\nOld value = 42\nNew value = 85\n$3 = 5\n163\nexited with code 03",
    ),
    (
        "gdb attaches to a process, looks and lets go",
        &[
            "bash",
            "-c",
            r#"sleep 1000 & p=$!; until grep -q sleep /proc/$p/comm; do :; done; gdb -nx -q -batch -p $p -ex bt -ex 'info auxv' -ex detach > /tmp/g 2>&1 < /dev/null; grep -c 'nanosleep ()' /tmp/g; grep -c AT_ENTRY /tmp/g; grep -c 'TracerPid:.0$' /proc/$p/status; kill $p; wait $p; echo $?"#,
        ],
        "3\n1\n1\n143",
    ),
];

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    debian::instances(
        setting,
        "tracing",
        PACKAGES,
        &PROGRAMS,
        "--cpus 1 --mem 1500M",
        "4G",
    )
}

#!/bin/busybox sh
# First process of a supervisor that starts again and again under instances that go on. Each start is a step, which prints what it
# sees as `NUMBER KEY: VALUE`, and has the kernel panic at the end in one way or another; the last one switches the machine off.
/bin/busybox mkdir -p /proc /tmp /bin
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /bin 2>/dev/null
step=$(cat /proc/skerry/restarts)
say() { echo "$step $1: $2"; }
free() { skerry resources --json | tr -d ' \n'; }
# Counts, and says so when a number is not there.
count='i=0; while :; do i=$((i+1)); echo $i; usleep 20000; done'
counts() { until [ "$(skerry logs $1 | tail -n 1)" -gt "$2" ] 2>/dev/null; do usleep 50000; done; }
# The numbers that are in the log follow one another.
whole() { skerry logs $1 | awk 'NR > 1 && $1 != last + 1 { print "after", last, "comes", $1; bad = 1 } { last = $1 } END { if (!bad) print "whole" }'; }
start() { skerry run -d --name $1 --cpus $2 --mem 64M -- sh -c "$count" >/dev/null; }
gone() { skerry wait $1 >/dev/null 2>&1; }
crash() { say crash "$1"; sleep 1; echo "$1" >/proc/skerry/crash-at; }

case $step in
0)
    say before "$(free)"
    start one 1
    start two 2
    counts one 20
    counts two 20
    skerry logs one | tail -n 1 >/dev/null
    say last "$(skerry logs one | tail -n 1)"
    say names "$(skerry ls -q | tr '\n' ' ')"
    say resources "$(free)"
    echo c >/proc/sysrq-trigger
    ;;
1)
    say names "$(skerry ls -q | tr '\n' ' ')"
    say resources "$(free)"
    say first "$(skerry logs one | head -n 1)"
    counts one 60
    counts two 60
    say one "$(whole one)"
    say two "$(whole two)"
    say states "$(skerry ls -a --json | tr -d ' \n' | grep -o '"state":"[a-z]*"' | tr '\n' ' ')"
    say exec "$(skerry exec one -- echo inside)"
    say new "$(skerry run --name new --cpus 1 --mem 256M -- machine-tests canary scan)"
    skerry rename one first
    skerry stop --time 0 two >/dev/null
    say stopped "$(skerry ls -a --json | tr -d ' \n' | grep -o '"state":"[a-z]*"' | tr '\n' ' ')"
    skerry prune >/dev/null
    say resources-later "$(free)"
    crash "damaged record"
    ;;
2)
    say names "$(skerry ls -q | tr '\n' ' ')"
    say numbers "$(skerry inspect --json first | tr -d ' \n' | grep -o '"id":[0-9]*')"
    skerry rm -f first >/dev/null
    say free "$(free)"
    start late 1
    say number "$(skerry inspect --json late | tr -d ' \n' | grep -o '"id":[0-9]*')"
    echo "start: granted" >/proc/skerry/crash-at
    start never 1
    ;;
3)
    say names "$(skerry ls -a -q | tr '\n' ' ')"
    echo "start: sent" >/proc/skerry/crash-at
    start begun 2
    ;;
4)
    say names "$(skerry ls -q | tr '\n' ' ')"
    counts begun 5
    say cpus "$(skerry exec begun -- nproc)"
    skerry rm -f begun >/dev/null
    echo "change: staged" >/proc/skerry/crash-at
    skerry resize --mem 128M late
    ;;
5)
    gone late
    say ended "$(skerry inspect late | grep -c 'its supervisor has started again')"
    skerry prune >/dev/null
    say free "$(free)"
    start changes 1
    counts changes 5
    skerry resize --mem 128M --cpus 2 changes
    say resources "$(free)"
    echo "change: told" >/proc/skerry/crash-at
    skerry resize --mem 192M changes
    ;;
6)
    gone changes
    skerry prune >/dev/null
    say free "$(free)"
    start changed 1
    counts changed 5
    skerry resize --mem 128M --cpus 2 changed
    # On the supervisor's other CPU.
    taskset 2 sh -c 'echo c >/proc/sysrq-trigger'
    ;;
7)
    say names "$(skerry ls -q | tr '\n' ' ')"
    say resources "$(free)"
    skerry resize --mem 64M --cpus 1 changed
    say smaller "$(free)"
    echo "halt: begun" >/proc/skerry/crash-at
    skerry stop --time 0 changed
    ;;
8)
    gone changed
    skerry prune >/dev/null
    say free "$(free)"
    start ends 2
    counts ends 5
    echo "end: proved" >/proc/skerry/crash-at
    skerry stop --time 0 ends
    ;;
9)
    gone ends
    skerry prune >/dev/null
    say free "$(free)"
    start again 2
    counts again 5
    echo "end: taken back" >/proc/skerry/crash-at
    skerry stop --time 0 again
    ;;
10)
    gone again
    skerry prune >/dev/null
    say free "$(free)"
    skerry create --name unstarted --cpus 1 --mem 64M -- true >/dev/null
    start paused 1
    counts paused 5
    skerry pause paused
    echo c >/proc/sysrq-trigger
    ;;
11)
    say names "$(skerry ls -a -q | tr '\n' ' ')"
    until skerry inspect paused | grep -q paused; do usleep 50000; done
    last=$(skerry logs paused | tail -n 1)
    skerry unpause paused
    counts paused ${last:-0}
    say one "$(whole paused)"
    # A program whose tool ends with the supervisor is told by SIGHUP; its shell would say so on standard error, which is closed.
    skerry exec paused -- sh -c 'exec 2>/dev/null; trap "echo told > /tmp/told; exit" HUP; while :; do usleep 10000; done' &
    until skerry exec paused -- ps | grep -q trap; do usleep 50000; done
    echo c >/proc/sysrq-trigger
    ;;
12)
    until [ "$(skerry exec paused -- cat /tmp/told 2>/dev/null)" = told ]; do usleep 50000; done
    say told yes
    skerry rm -f paused >/dev/null
    start grown 1
    counts grown 5
    skerry resize --mem 128M grown
    echo "change: adopted" >/proc/skerry/crash-at
    skerry resize --mem 64M grown
    ;;
13)
    gone grown
    skerry prune >/dev/null
    say free "$(free)"
    poweroff -f
    ;;
esac
sleep 1000

#!/bin/busybox sh
# First process of a supervisor that ends in each way that a kernel can, and starts again, once at the second attempt only. Each
# start is a step, as in supervisor-restart.sh. Memory that held a pattern before is nobody's to find afterwards.
/bin/busybox mkdir -p /proc /tmp /bin
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /bin 2>/dev/null
step=$(cat /proc/skerry/restarts)
say() { echo "$step $1: $2"; }
free() { skerry resources --json | tr -d ' \n'; }
counts() { until [ "$(skerry logs $1 | tail -n 1)" -gt "$2" ] 2>/dev/null; do usleep 50000; done; }
# The instance counts on, and all that it has said is there.
goes_on() {
    last=$(skerry logs kept | tail -n 1)
    counts kept ${last:-0}
    say kept "$(skerry logs kept | awk 'NR > 1 && $1 != last + 1 { bad = 1; print "after", last, "comes", $1 } { last = $1 } END { if (!bad) print "whole" }')"
}
fault() { sleep 1; echo "fault: $1" >/proc/skerry/crash-at; }

case $step in
0)
    say before "$(free)"
    skerry run -d --name kept --cpus 1 --mem 64M -- sh -c 'i=0; while :; do i=$((i+1)); echo $i; usleep 20000; done' >/dev/null
    counts kept 10
    # In an instance that ends with the supervisor, and in the supervisor's own memory.
    skerry run -d --name leaves --cpus 2 --mem 640M -- sh -c 'machine-tests canary write; exec sleep 100000' >/dev/null
    until skerry logs leaves | grep -q written; do usleep 50000; done
    say wrote "$(skerry logs leaves)"
    say left "$(machine-tests canary leave 400)"
    echo "halt: begun" >/proc/skerry/crash-at
    skerry stop --time 0 leaves
    ;;
1)
    say fresh "$(machine-tests canary fresh)"
    say waited "$(skerry wait leaves 2>&1)"
    say after "$(free)"
    say scan "$(skerry run --rm --cpus 2 --mem 1600M -- machine-tests canary scan 2>&1)"
    skerry prune >/dev/null
    goes_on
    fault overflow
    ;;
2)
    goes_on
    say refused "$(sh -c 'echo fault: hang >/proc/skerry/crash-at' 2>&1 | grep -c Invalid)"
    fault machine-check
    ;;
3)
    goes_on
    fault wild
    ;;
4)
    goes_on
    taskset 2 sh -c 'sleep 1; echo fault: overflow >/proc/skerry/crash-at'
    ;;
5)
    goes_on
    # And the next one panics before it looks after its instances.
    taskset 2 sh -c 'sleep 1; echo fault: machine-check >/proc/skerry/crash-at'
    ;;
7)
    goes_on
    skerry rm -f kept >/dev/null
    say free "$(free)"
    poweroff -f
    ;;
esac
sleep 1000

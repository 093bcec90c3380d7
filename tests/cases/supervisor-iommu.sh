#!/bin/busybox sh
# First process of a supervisor that starts again on a machine with an IOMMU of either kind, and with two disks that instances get
# (@ONE@, @TWO@), and one of the supervisor's. On the second one are words that are in no other memory. Each start is a step, as in
# supervisor-restart.sh.
/bin/busybox mkdir -p /proc /sys /tmp /bin
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox --install -s /bin 2>/dev/null
step=$(cat /proc/skerry/restarts)
say() { echo "$step $1: $2"; }
free() { skerry resources --json | tr -d ' \n'; }
counts() { until [ "$(skerry logs $1 | tail -n 1)" -gt "$2" ] 2>/dev/null; do usleep 50000; done; }
whole() { skerry logs $1 | awk 'NR > 1 && $1 != last + 1 { print "after", last, "comes", $1; bad = 1 } { last = $1 } END { if (!bad) print "whole" }'; }
# Waits until more than so many faults of the second disk were counted, where the unit notes them.
refused() { @NOTES@ until [ "$(faults strays)" -gt $1 ]; do usleep 100000; done; }
faults() { skerry inspect --json $1 | grep dma_faults | tr -dc '0-9'; }
# Writes a disk from one end to the other, again and again, reads it back from the disk each time, and counts the pieces that were
# the same; a second program keeps reading all of it.
writer() {
    skerry run -d --name $1 --cpus 1 --mem 64M --device $2 -- sh -c '
        (while :; do cat /dev/nvme0n1 >/dev/null || echo failed; done) &
        i=0
        while :; do
            i=$((i+1)); at=$((i % 31))
            dd if=/dev/urandom of=/tmp/piece bs=1M count=1 2>/dev/null
            dd if=/tmp/piece of=/dev/nvme0n1 bs=1M seek=$at conv=fsync,notrunc 2>/dev/null || echo not written
            echo 3 >/proc/sys/vm/drop_caches
            dd if=/dev/nvme0n1 of=/tmp/back bs=1M skip=$at count=1 2>/dev/null || echo not read
            cmp /tmp/piece /tmp/back && echo $i || echo differs
        done' >/dev/null
}
# Reads a disk, and has it again and again told an address that is nobody's memory.
stray() {
    skerry run -d --name $1 --cpus 1 --mem 64M --device $2 -- sh -c '
        i=0
        while :; do
            i=$((i+1))
            echo stray=50000 >/proc/skerry/fault
            dd if=/dev/nvme0n1 of=/dev/null bs=4096 skip=$((i % 8000)) count=1 2>/dev/null
            echo 3 >/proc/sys/vm/drop_caches
            dd if=/dev/nvme0n1 of=/dev/null bs=1M skip=$((i % 30)) count=1 2>/dev/null
            echo $i
        done' >/dev/null
}
devices() { skerry ls | tr -s ' ' | cut -d ' ' -f 1,2,6 | tr '\n' ';'; skerry inspect --json writes | grep unsafe_dma | tr -d ' \n'; }
# Waits until all memory is back that a function may reach.
settled() { until free | grep -q '"memory":{[^}]*"in_use":0,[^}]*"quarantined":0}'; do usleep 100000; done; }

case $step in
0)
    # Nobody has a function yet.
    say before "$(free)"
    echo mine | dd of=/dev/nvme0n1 bs=512 conv=fsync,sync 2>/dev/null
    echo c >/proc/sysrq-trigger
    ;;
1)
    writer writes @ONE@
    stray strays @TWO@
    counts writes 3
    counts strays 3
    refused 0
    say devices "$(devices)"
    say resources "$(free)"
    say last "$(skerry logs strays | tail -n 1)"
    echo c >/proc/sysrq-trigger
    ;;
2)
    say devices "$(devices)"
    say resources "$(free)"
    last=$(skerry logs writes | tail -n 1)
    counts writes $((${last:-0} + 6))
    say writes "$(whole writes)"
    # What is refused from now on is counted, for who does it.
    refused 1
    say faults "$(faults writes)"
    # The supervisor's own disk has a driver again, and what is an instance's goes to nobody else.
    say own "$(head -c 4 /dev/nvme0n1)"
    say taken "$(skerry run --rm --cpus 1 --mem 64M --device @ONE@ -- true 2>&1 | grep -c 'writes has it')"
    # Memory comes and goes, and the disk reaches it as it does.
    skerry resize writes --mem 256M >/dev/null && last=$(skerry logs writes | tail -n 1)
    counts writes $((${last:-0} + 3))
    until skerry resize --force-reclaim writes --mem 128M >/dev/null 2>&1; do usleep 100000; done
    last=$(skerry logs writes | tail -n 1)
    counts writes $((${last:-0} + 3))
    say resized "$(whole writes) $(faults writes)"
    # What has left is another one's, which finds in it what it has written.
    say next "$(skerry run --rm --cpus 1 --mem 512M -- sh -c '
        head -c 100000000 /dev/zero >/tmp/zeroes
        cmp -n 100000000 /tmp/zeroes /dev/zero && echo whole')"
    # One that is given a function, and nobody of it has run.
    skerry rm -f strays >/dev/null
    echo "start: granted" >/proc/skerry/crash-at
    stray never @TWO@
    ;;
3)
    skerry wait never >/dev/null 2>&1
    skerry prune >/dev/null
    stray strays @TWO@
    counts strays 3
    last=$(skerry logs writes | tail -n 1)
    counts writes $((${last:-0} + 3))
    say writes "$(whole writes)"
    refused 0
    # A change is under way: the instance is ended, with its disk.
    echo "change: staged" >/proc/skerry/crash-at
    skerry resize writes --mem 192M
    ;;
4)
    skerry wait writes >/dev/null 2>&1
    refused 0
    skerry prune >/dev/null
    say names "$(skerry ls -q | tr '\n' ' ')"
    writer writes @ONE@
    counts writes 3
    say writes "$(whole writes)"
    echo "end: proved" >/proc/skerry/crash-at
    skerry rm -f strays
    ;;
5)
    skerry wait strays >/dev/null 2>&1
    skerry prune >/dev/null
    last=$(skerry logs writes | tail -n 1)
    counts writes $((${last:-0} + 3))
    say writes "$(whole writes)"
    stray strays @TWO@
    counts strays 3
    refused 0
    skerry rm -f strays writes >/dev/null
    skerry prune >/dev/null
    settled
    say free "$(free)"
    poweroff -f
    ;;
esac
sleep 1000

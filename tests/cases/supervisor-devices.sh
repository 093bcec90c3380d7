#!/bin/busybox sh
# First process of a supervisor that starts again under instances which have devices. Behind root ports are two disks that
# instances get (01:00.0, 02:00.0), and one of the supervisor's (03:00.0). The first reset that each start of the supervisor sees of
# one that an instance had is not believed (`fault=unreset`). Each start is a step, as in supervisor-restart.sh.
/bin/busybox mkdir -p /proc /sys /tmp /bin
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox --install -s /bin 2>/dev/null
step=$(cat /proc/skerry/restarts)
say() { echo "$step $1: $2"; }
free() { skerry resources --json | tr -d ' \n'; }
counts() { until [ "$(skerry logs $1 | tail -n 1)" -gt "$2" ] 2>/dev/null; do usleep 50000; done; }
whole() { skerry logs $1 | awk 'NR > 1 && $1 != last + 1 { print "after", last, "comes", $1; bad = 1 } { last = $1 } END { if (!bad) print "whole" }'; }
# Writes the disk from one end to the other, again and again, reads it back from the disk each time, and counts the pieces that were
# the same; a second program keeps reading all of it.
start() {
    skerry run -d --name $1 --cpus 1 --mem 64M --unsafe-dma --device $2 -- sh -c '
        (while :; do cat /dev/vda >/dev/null || echo failed; done) &
        i=0
        while :; do
            i=$((i+1)); at=$((i % 31))
            dd if=/dev/urandom of=/tmp/piece bs=1M count=1 2>/dev/null
            dd if=/tmp/piece of=/dev/vda bs=1M seek=$at conv=fsync,notrunc 2>/dev/null || echo not written
            echo 3 >/proc/sys/vm/drop_caches
            dd if=/dev/vda of=/tmp/back bs=1M skip=$at count=1 2>/dev/null || echo not read
            cmp /tmp/piece /tmp/back && echo $i || echo differs
        done' >/dev/null
}
run() {
    skerry run -d --name $1 --cpus 1 --mem 64M -- sh -c 'echo 1; while :; do sleep 1; done' >/dev/null
    counts $1 0
}
devices() { skerry ls | tr -s ' ' | cut -d ' ' -f 1,2,6 | tr '\n' ';'; }
registers() { cat /sys/bus/pci/devices/0000:0[123]:00.0/resource | md5sum | cut -c 1-8; }
# Waits until all memory is back that a function may reach.
settled() { until free | grep -q '"quarantined":0},"iommus"'; do usleep 100000; done; }

case $step in
0)
    say before "$(free)"
    echo mine | dd of=/dev/vda bs=512 conv=fsync,sync 2>/dev/null
    start writes 01:00.0
    counts writes 5
    say devices "$(devices)"
    say registers "$(registers)"
    say resources "$(free)"
    echo c >/proc/sysrq-trigger
    ;;
1)
    say devices "$(devices)"
    say registers "$(registers)"
    say resources "$(free)"
    last=$(skerry logs writes | tail -n 1)
    counts writes $((${last:-0} + 10))
    say writes "$(whole writes)"
    # The supervisor's own disk has a driver again, and what is an instance's goes to nobody else.
    say own "$(head -c 4 /dev/vda)"
    say taken "$(skerry run --rm --cpus 1 --mem 64M --unsafe-dma --device 01:00.0 -- true 2>&1 | grep -c 'writes has it')"
    # One that is given a function, and nobody of it has run.
    echo "start: granted" >/proc/skerry/crash-at
    start never 02:00.0
    ;;
2)
    skerry wait never >/dev/null 2>&1
    settled
    skerry prune >/dev/null
    start second 02:00.0
    counts second 3
    say second "$(whole second)"
    last=$(skerry logs writes | tail -n 1)
    counts writes $((${last:-0} + 3))
    say writes "$(whole writes)"
    skerry rm -f second >/dev/null
    settled
    echo c >/proc/sysrq-trigger
    ;;
3)
    say names "$(skerry ls -q | tr '\n' ' ')"
    # Its memory waits for the proof that its disk was reset, when the supervisor ends.
    skerry rm -f writes >/dev/null
    say waits "$(free | grep -c '"quarantined":0},"iommus"')"
    echo c >/proc/sysrq-trigger
    ;;
4)
    skerry wait writes >/dev/null 2>&1
    settled
    skerry prune >/dev/null
    start more 01:00.0
    counts more 3
    say more "$(whole more)"
    echo "end: proved" >/proc/skerry/crash-at
    skerry rm -f more
    ;;
5)
    skerry wait more >/dev/null 2>&1
    settled
    start again 01:00.0
    counts again 3
    say again "$(whole again)"
    skerry rm -f again >/dev/null
    skerry prune >/dev/null
    # What has come back is scrubbed before it is free.
    until free | grep -q '"memory":{[^}]*"in_use":0,[^}]*"quarantined":0}'; do usleep 100000; done
    say free "$(free)"
    # One that is being given a disk while it runs, and was not told yet.
    run late
    echo "device: staged" >/proc/skerry/crash-at
    skerry device add --unsafe-dma late 01:00.0
    ;;
6)
    skerry wait late >/dev/null 2>&1
    settled
    skerry prune >/dev/null
    run keeps
    say added "$(skerry device add --unsafe-dma keeps 01:00.0 2>&1)"
    say written "$(skerry exec keeps sh -c 'echo kept | dd of=/dev/vda bs=512 conv=fsync,sync 2>/dev/null; echo $?')"
    echo c >/proc/sysrq-trigger
    ;;
7)
    say devices "$(devices)"
    say read "$(skerry exec keeps head -c 4 /dev/vda)"
    # The first reset that this supervisor sees is not believed.
    say stuck "$(skerry device remove keeps 01:00.0 2>&1 | grep -c 'did not prove that it was reset')"
    say removed "$(skerry device remove keeps 01:00.0 2>&1)"
    # It was told, and has not answered.
    say added "$(skerry device add --unsafe-dma keeps 02:00.0 2>&1)"
    echo "device: told" >/proc/skerry/crash-at
    skerry device remove keeps 02:00.0
    ;;
8)
    skerry wait keeps >/dev/null 2>&1
    settled
    skerry prune >/dev/null
    until free | grep -q '"memory":{[^}]*"in_use":0,[^}]*"quarantined":0}'; do usleep 100000; done
    say free "$(free)"
    poweroff -f
    ;;
esac
sleep 1000

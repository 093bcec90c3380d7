#!/bin/busybox sh
# First process of a supervisor that starts again under an instance which has a virtual function of its NVMe controller (01:00.0).
# Each start is a step, as in supervisor-restart.sh.
/bin/busybox mkdir -p /proc /sys /tmp /bin
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox --install -s /bin 2>/dev/null
step=$(cat /proc/skerry/restarts)
say() { echo "$step $1: $2"; }
counts() { until [ "$(skerry logs $1 | tail -n 1)" -gt "$2" ] 2>/dev/null; do usleep 50000; done; }
whole() { skerry logs $1 | awk 'NR > 1 && $1 != last + 1 { print "after", last, "comes", $1; bad = 1 } { last = $1 } END { if (!bad) print "whole" }'; }
# Writes a namespace again and again, reads it back from the disk each time, and counts the pieces that were the same.
start() {
    skerry run -d --name $1 --cpus 1 --mem 64M --device $2 -- sh -c '
        i=0
        while :; do
            i=$((i+1)); at=$((i % 7))
            dd if=/dev/urandom of=/tmp/piece bs=1M count=1 2>/dev/null
            dd if=/tmp/piece of=/dev/nvme0n1 bs=1M seek=$at conv=fsync,notrunc 2>/dev/null || echo not written
            echo 3 >/proc/sys/vm/drop_caches
            dd if=/dev/nvme0n1 of=/tmp/back bs=1M skip=$at count=1 2>/dev/null || echo not read
            cmp /tmp/piece /tmp/back && echo $i || echo differs
        done' >/dev/null
}
registers() { cat /sys/bus/pci/devices/0000:01:0*/resource | md5sum | cut -c 1-8; }
numbers() { cat /sys/bus/pci/devices/0000:01:00.0/sriov_numvfs; }

case $step in
0)
    echo mine | dd of=/dev/nvme0n2 bs=512 conv=fsync,sync 2>/dev/null
    start writes 01:00.1
    counts writes 5
    say registers "$(registers)"
    echo c >/proc/sysrq-trigger
    ;;
1)
    say registers "$(registers)"
    say numbers "$(numbers)"
    say own "$(head -c 4 /dev/nvme0n2)"
    say taken "$(skerry run --rm --cpus 1 --mem 64M --device 01:00.1 -- true 2>&1 | grep -c 'writes has it')"
    say other "$(skerry run --rm --cpus 1 --mem 64M --device 01:00.2 -- head -c 4 /dev/nvme0n2)"
    last=$(skerry logs writes | tail -n 1)
    counts writes $((${last:-0} + 5))
    say writes "$(whole writes)"
    skerry rm -f writes >/dev/null
    echo c >/proc/sysrq-trigger
    ;;
2)
    # Nobody had one when the supervisor ended: they were switched off and on.
    say registers "$(registers)"
    say numbers "$(numbers)"
    start again 01:00.1
    counts again 3
    say again "$(whole again)"
    skerry rm -f again >/dev/null
    poweroff -f
    ;;
esac
sleep 1000

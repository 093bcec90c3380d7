#!/bin/busybox sh
# First process of a supervisor that starts again a hundred times under instances that compute and write.
/bin/busybox mkdir -p /proc /tmp /bin
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /bin 2>/dev/null
n=$(cat /proc/skerry/restarts)
free() { skerry resources --json | tr -d ' \n'; }
if [ $n = 0 ]; then
    echo "0 before: $(free)"
    # Each checks its own work: a sum of a fixed file, over and over, and a count without a hole.
    skerry run -d --name sums --cpus 2 --mem 64M -- sh -c '
        dd if=/dev/urandom of=/tmp/f bs=64k count=8 2>/dev/null
        want=$(md5sum </tmp/f)
        (while :; do [ "$(md5sum </tmp/f)" = "$want" ] || echo wrong; done) &
        while :; do [ "$(md5sum </tmp/f)" = "$want" ] && i=$((i+1)) || echo wrong; echo $i; done' >/dev/null
    skerry run -d --name floods --cpus 1 --mem 64M -- sh -c 'i=0; while :; do i=$((i+1)); echo $i; done' >/dev/null
    until skerry logs sums | grep -q 3; do usleep 50000; done
fi
# What was in the middle of something comes to its end, in one way or another.
for other in $(skerry ls -q | grep -vx -e sums -e floods); do
    skerry wait $other >/dev/null 2>&1
    skerry rm -f $other >/dev/null
done
last=$(skerry logs sums | tail -n 1)
until [ "$(skerry logs sums | tail -n 1)" -gt "${last:-0}" ] 2>/dev/null; do usleep 20000; done
skerry logs sums | awk 'NR > 1 && $1 != last + 1 { bad = 1 } { last = $1 } END { if (bad) print "sums have a hole" }'
skerry logs sums | grep -q wrong && echo "sums are wrong"
# Paused: a flood overtakes who reads its log.
skerry pause floods >/dev/null
skerry logs floods | awk 'NR > 2 && $1 != last + 1 { bad = 1 } { last = $1 } END { if (bad) print "floods have a hole" }'
skerry unpause floods >/dev/null
[ "$(skerry ls -q | tr '\n' ' ')" = "sums floods " ] || echo "other instances: $(skerry ls -q | tr '\n' ' ')"
skerry run --rm --cpus 1 --mem 128M -- true || echo "no third instance"
echo "$n held"
if [ $n = 100 ]; then
    skerry rm -f sums floods >/dev/null
    echo "100 free: $(free)"
    poweroff -f
fi
# In the middle of something: an instance that starts and one that is looked at.
skerry run -d --rm --cpus 1 --mem 64M -- sh -c "exit 3" >/dev/null &
usleep $((n * 7919 % 200000))
taskset $((n % 2 + 1)) sh -c 'echo c >/proc/sysrq-trigger'
sleep 1000

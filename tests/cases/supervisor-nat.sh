#!/bin/busybox sh
# First process of a supervisor that starts again under instances which talk to the world by its address: `one` and `two` from the
# same port to a server of the host's, at 10.0.2.2, port OUT; `in` is visited by a published port. The host counts, and each echoes.
# Each start is a step, as in supervisor-restart.sh.
/bin/busybox mkdir -p /proc /tmp /bin /dev
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /bin 2>/dev/null
step=$(cat /proc/skerry/restarts)
say() { echo "$step $1: $2"; }
free() { skerry resources --json | tr -d ' \n'; }
last() { skerry logs $1 2>&1 | tail -n 1; }
counts() { until [ "$(last $1)" -gt "$2" ] 2>/dev/null; do usleep 50000; done; }
whole() { skerry logs $1 2>&1 | awk 'NR > 1 && $1 != last + 1 { print "after", last, "comes", $1; bad = 1 } { last = $1 } END { if (!bad) print "whole" }'; }
echoes() {
    name=$1
    shift
    skerry run -d --name $name --cpus 1 --mem 64M --net bridge $ports -- sh -c '
        echo "#!/bin/sh
            while read n; do echo \$n; echo \$n >&2; done" >/tmp/echo
        chmod +x /tmp/echo
        '"$*" >/dev/null
}
# The supervisor has its address again when somebody has given it one.
ip addr add 10.0.2.15/24 dev eth0
ip link set eth0 up
ip route add default via 10.0.2.2

case $step in
0)
    say before "$(free)"
    echoes one nc -p 7000 10.0.2.2 OUT -e /tmp/echo
    echoes two nc -p 7000 10.0.2.2 OUT -e /tmp/echo
    ports='-p 8080:80'
    echoes in nc -ll -p 80 -e /tmp/echo
    counts one 5
    counts two 5
    counts in 5
    say last "$(last one) $(last two) $(last in)"
    echo c >/proc/sysrq-trigger
    ;;
1 | 2)
    for name in one two in; do
        now=$(last $name)
        counts $name $((${now:-0} + 20))
        say $name "$(whole $name)"
    done
    [ $step = 1 ] && echo c >/proc/sysrq-trigger
    skerry rm -f one two in >/dev/null
    skerry prune >/dev/null
    until free | grep -q '"memory":{[^}]*"in_use":0,[^}]*"quarantined":0}'; do usleep 100000; done
    say free "$(free)"
    poweroff -f
    ;;
esac
sleep 1000

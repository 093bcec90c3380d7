#!/bin/busybox sh
# First process of a supervisor that starts again and again under instances that are tied to each other: by messages, groups,
# networks. Each start is a step, as in supervisor-restart.sh.
/bin/busybox mkdir -p /proc /tmp /bin /dev
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /bin 2>/dev/null
step=$(cat /proc/skerry/restarts)
say() { echo "$step $1: $2"; }
free() { skerry resources --json | tr -d ' \n'; }
numbers() { skerry logs $1 | grep '^[0-9]*$'; }
counts() { until [ "$(numbers $1 | tail -n 1)" -gt "$2" ] 2>/dev/null; do usleep 50000; done; }
whole() { numbers $1 | awk 'NR > 1 && $1 != last + 1 { print "after", last, "comes", $1; bad = 1 } { last = $1 } END { if (!bad) print "whole" }'; }
gone() { skerry wait $1 >/dev/null 2>&1; }
up() { until skerry exec $1 true 2>/dev/null; do usleep 50000; done; }
sent() { skerry inspect --json $1 | tr -d ' \n' | grep -o "\"name\":\"$2\",\"group\":null[^}]*" | grep -o '"sent":[0-9]*' | grep -o '[0-9]*'; }
# Messages have been exchanged by two peers since there were so many.
talks() { until [ "$(sent $1 $2)" -gt "$3" ] 2>/dev/null; do usleep 50000; done; }
echoes() {
    skerry run -d --name $1 --cpus 1 --mem 64M --peer asks --group g --net bridge $2 -- sh -c '
        machine-tests messages-echo /dev/skerry-peers/asks &
        machine-tests groups-echo /dev/skerry-groups/g &
        while :; do nc -l -p 5000; done' >/dev/null
}
reset_cards() { skerry logs --kernel $1 2>/dev/null | grep -c 'eth0: .*reset'; }

case $step in
0)
    say before "$(free)"
    skerry network create --subnet 10.90.0.0/24 own >/dev/null
    skerry network create gone >/dev/null
    skerry network rm gone
    skerry run -d --name asks --cpus 1 --mem 64M --peer echoes --group g --net bridge -p 8080:80 -p 127.0.0.1:8081:80 -- sh -c '
        mkdir /tmp/www; echo page >/tmp/www/index.html; httpd -p 80 -h /tmp/www
        while :; do machine-tests messages-ping /dev/skerry-peers/echoes 1000000000 sleep; usleep 50000; done' >/dev/null
    echoes echoes
    up echoes
    skerry run -d --name sends --cpus 1 --mem 64M --net bridge -- sh -c '
        i=0; while :; do i=$((i+1)); echo $i; usleep 20000; done | nc echoes 5000' >/dev/null
    skerry run -d --name other --cpus 1 --mem 64M --net own -- sleep 1000000 >/dev/null
    counts echoes 20
    talks asks echoes 20
    say names "$(skerry ls | tr -s ' ' | cut -d ' ' -f 1-6 | tr '\n' ';')"
    say networks "$(skerry network ls | tr -s ' ' | tr '\n' ';')"
    say page "$(wget -q -O - http://127.0.0.1:8080/)"
    say resources "$(free)"
    say last "$(numbers echoes | tail -n 1) $(sent asks echoes)"
    echo c >/proc/sysrq-trigger
    ;;
1)
    say names "$(skerry ls | tr -s ' ' | cut -d ' ' -f 1-6 | tr '\n' ';')"
    say networks "$(skerry network ls | tr -s ' ' | tr '\n' ';')"
    say resources "$(free)"
    say first "$(sent asks echoes)"
    talks asks echoes $(($(sent asks echoes) + 50))
    # What is said of peers by them, and what was sent over the connection.
    say told "$(skerry logs asks | grep -c .) $(skerry logs echoes | grep -c reset)"
    first=$(numbers echoes | tail -n 1)
    counts echoes $((${first:-0} + 50))
    say connection "$(whole echoes)"
    say pages "$(wget -q -O - http://127.0.0.1:8080/) $(wget -q -O - http://10.88.0.1:8080/) $(wget -q -O - http://127.0.0.1:8081/)"
    say siblings "$(skerry exec sends wget -q -O - http://asks/) $(skerry exec other ping -c 1 10.90.0.1 | grep -o '1 packets received')"
    say group "$(skerry exec asks machine-tests groups-ask /dev/skerry-groups/g 50 1)"
    say cards "$(reset_cards asks) $(reset_cards other)"
    say taken "$(skerry run --rm --cpus 1 --mem 64M --net own --ip 10.90.0.2 -- true 2>&1 | grep -c 10.90.0.2)"
    # The next one of a name is another peer, whatever supervisor has made them peers.
    skerry rm -f echoes >/dev/null
    echoes echoes
    talks asks echoes 20
    skerry rm -f echoes sends >/dev/null
    echo "start: sent" >/proc/skerry/crash-at
    echoes echoes
    ;;
2)
    # One was told of the other, and the other was not yet.
    say names "$(skerry ls -q | tr '\n' ' ')"
    talks asks echoes 20
    say group "$(skerry exec asks machine-tests groups-ask /dev/skerry-groups/g 50 1)"
    say page "$(skerry exec other true; wget -q -O - http://127.0.0.1:8080/)"
    say taken "$(skerry run --rm --net bridge -p 8080:80 --cpus 1 --mem 64M -- true 2>&1 | grep -c 'published for asks')"
    # Who stands still answers nothing: its peer goes, and the supervisor.
    skerry pause asks
    skerry rm -f echoes >/dev/null
    until skerry inspect asks | grep -q 'echoes (not there)'; do usleep 50000; done
    taskset 2 sh -c 'echo c >/proc/sysrq-trigger'
    ;;
3)
    say names "$(skerry ls -q | tr '\n' ' ')"
    skerry unpause asks
    echoes echoes
    talks asks echoes 20
    skerry exec asks true
    say paused "$(skerry inspect asks | grep -c '^peer')"
    echo "halt: begun" >/proc/skerry/crash-at
    skerry stop --time 0 echoes
    ;;
4)
    # The peer has ended with the supervisor.
    gone echoes
    skerry prune >/dev/null
    echoes echoes
    talks asks echoes 20
    say names "$(skerry ls -q | tr '\n' ' ')"
    skerry rename echoes named
    echo c >/proc/sysrq-trigger
    ;;
5)
    # By another name it is the peer that it was.
    say names "$(skerry ls -q | tr '\n' ' ')"
    now=$(sent asks echoes)
    talks asks echoes $((now + 20))
    say published "$(skerry inspect --json asks | tr -d ' \n' | grep -o '"ports":\[[^]]*')"
    # The younger one of two has the elder's pages, and they go to the next one.
    skerry rm -f asks >/dev/null
    until skerry inspect named | grep -q 'asks (not there)'; do usleep 50000; done
    skerry exec named true
    skerry run -d --name asks --cpus 1 --mem 64M --peer named -- machine-tests messages-ping /dev/skerry-peers/named 1000000000 sleep >/dev/null
    talks asks named 20
    say younger "$(skerry logs asks | grep -c .)"
    skerry rm -f asks named other >/dev/null
    say port "$(wget -q -O - http://127.0.0.1:8080/ 2>&1 | grep -c refused)"
    skerry network rm own
    skerry prune >/dev/null
    say free "$(free)"
    echo c >/proc/sysrq-trigger
    ;;
6)
    say networks "$(skerry network ls | tr -s ' ' | tr '\n' ';')"
    say free "$(free)"
    poweroff -f
    ;;
esac
sleep 1000

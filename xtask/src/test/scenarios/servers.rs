//! Debian's own servers with their own clients, over the loop of an instance: every client checks
//! what it gets.

use std::time::Duration;

use anyhow::Result;

use crate::test::batch::{self, Expect, Step};
use crate::test::{Check, Setting};
use crate::vm::Addition;
use crate::{packages, rootfs};

/// redis over IPv4, IPv6, a name and `AF_UNIX`; its benchmark, with and without pipelining; saving
/// in the background.
const REDIS: &str = r#"cd /tmp
redis-server --port 6379 --bind 127.0.0.1 ::1 --unixsocket /tmp/r --save "" --dir /tmp --logfile /tmp/log &
until redis-cli ping > /dev/null 2>&1; do sleep 0.1; done
redis-cli set a 1; redis-cli -h ::1 incr a; redis-cli -h localhost incr a; redis-cli -s /tmp/r get a
for way in "-P 1" "-P 16" "-s /tmp/r"; do
    redis-benchmark -q -n 1000 -c 20 $way -t set,get,lpush | tr "\r" "\n" | grep -c "requests per second"
done
[ $(redis-cli llen mylist) -ge 3000 ] && echo all pushed
redis-cli bgsave
until redis-cli info persistence | grep -q rdb_bgsave_in_progress:0; do sleep 0.1; done
redis-cli info persistence | grep -o rdb_last_bgsave_status:ok
redis-cli shutdown nosave; wait; echo "ended with $?"
redis-server --port 6379 --dir /tmp --save "" --logfile /tmp/log & until redis-cli ping > /dev/null 2>&1; do sleep 0.1; done
redis-cli get a; redis-cli shutdown nosave; wait"#;
const REDIS_SAYS: &str = "OK\n2\n3\n3\n3\n3\n3\nall pushed\nBackground saving started\nrdb_last_bgsave_status:ok\nended with 0\n3";

/// memcached with four threads, spoken to by the shell and by twenty connections at a time.
const MEMCACHED: &str = r#"memcached -u nobody -l 127.0.0.1,::1 -t 4 -m 32 & server=$!
until (exec 3<>/dev/tcp/127.0.0.1/11211) 2> /dev/null; do sleep 0.1; done
exec 3<>/dev/tcp/localhost/11211; printf "set k 0 0 5\r\nhello\r\nget k\r\nquit\r\n" >&3; tr -d "\r" <&3
python3 -c "
import socket, threading
right = []
def work(who):
    s = socket.create_connection((\"127.0.0.1\", 11211) if who % 2 else (\"::1\", 11211))
    f = s.makefile(\"rwb\")
    for i in range(100):
        value = (\"%d.%d\" % (who, i)).encode() * 50
        f.write(b\"set k%d 0 0 %d\r\n%s\r\nget k%d\r\n\" % (who, len(value), value, who)); f.flush()
        if [f.readline() for _ in range(4)] == [b\"STORED\r\n\", b\"VALUE k%d 0 %d\r\n\" % (who, len(value)), value + b\"\r\n\", b\"END\r\n\"]: right.append(i)
threads = [threading.Thread(target=work, args=(i,)) for i in range(20)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(right))
"
kill $server; wait"#;
const MEMCACHED_SAYS: &str = "STORED\nVALUE k 0 5\nhello\nEND\n2000";

/// nginx with two workers that share ports by `SO_REUSEPORT`, files by `sendfile`, itself as the
/// server behind a proxy.
const NGINX: &str = r#"cd /tmp; mkdir www; echo hello > www/index.html; head -c 3000000 /dev/urandom > www/big; chmod -R 755 www
cat > conf <<END
user nobody nogroup; worker_processes 2; error_log /tmp/err warn; pid /tmp/pid; events { worker_connections 256; }
http { access_log /tmp/log; sendfile on; tcp_nopush on; client_body_temp_path /tmp/b; proxy_temp_path /tmp/p;
fastcgi_temp_path /tmp/f; uwsgi_temp_path /tmp/u; scgi_temp_path /tmp/s;
server { listen 127.0.0.1:8080 reuseport; listen [::1]:8080 reuseport; root /tmp/www;
location /p/ { proxy_pass http://127.0.0.1:8080/; } } }
END
nginx -c /tmp/conf
for at in 127.0.0.1:8080 [::1]:8080 localhost:8080 localhost:8080/p; do curl -s --max-time 20 http://$at/; done
curl -s http://localhost:8080/big | cmp - www/big && echo same
curl -s http://localhost:8080/p/big | cmp - www/big && echo same through the proxy
curl -sI http://localhost:8080/none | head -n 1 | tr -d "\r"
curl -s -w "%{http_code} %{num_connects}\n" -o /dev/null http://localhost:8080/ -o /dev/null http://localhost:8080/
curl -s http://localhost:8081/; echo $?
for i in {1..20}; do curl -s http://localhost:8080/big | cmp - www/big & pids="$pids $!"; done; wait $pids && echo all the same
nginx -c /tmp/conf -s quit 2> /dev/null; while [ -e pid ]; do sleep 0.1; done; wc -l < log"#;
const NGINX_SAYS: &str = "hello\nhello\nhello\nhello\nsame\nsame through the proxy\nHTTP/1.1 404 Not Found\n200 1\n200 0\n7\nall the same\n31";

/// Script of administrators' tools: `ip` and `ss` (netlink), `ping` (ICMP), relays of socat from a
/// name to IPv6 to a program, netcat over TCP and UDP, rsync through pipes and from a daemon.
const TOOLS: &str = r#"cd /tmp
ip -br addr | tr -s " "; ip route get 127.0.0.1 | head -n 1 | tr -s " "; ip rule | wc -l; ip link set lo up && echo up
ping -q -c 2 -i 0.2 127.0.0.1 | grep -o "2 received"; ping -q -c 1 ::1 | grep -o "1 received"; ping -c 1 10.0.0.1 2>&1
socat TCP6-LISTEN:7000,fork,reuseaddr EXEC:cat & relays=$!
socat UNIX-LISTEN:/tmp/u,fork TCP6:[::1]:7000 & relays="$relays $!"
until echo hello | socat - TCP6:[::1]:7000 2> /dev/null; do sleep 0.1; done
until [ -e u ]; do sleep 0.1; done; echo through two | socat - UNIX:/tmp/u
kill $relays; wait
nc -l 127.0.0.1 7001 > tcp & nc -u -l 127.0.0.1 7002 > udp & listener=$!
until ss -Htuln | grep -q 127.0.0.1:7001 && ss -Htuln | grep -q 127.0.0.1:7002; do sleep 0.1; done
ss -Htln sport = :7001 | tr -s " "; ss -Htln sport = :9; ss -Htlnp | grep -o "nc.,pid=[0-9]*" | wc -l
echo data | nc -N 127.0.0.1 7001; echo datagram | nc -u -w 1 127.0.0.1 7002; kill $listener; wait; cat tcp udp
mkdir from; head -c 1000000 /dev/urandom > from/r; rsync -a from/ to/ && cmp from/r to/r && echo the same through pipes
printf "use chroot = no\n[m]\npath = /tmp/from\n" > conf
rsync --daemon --port 7003 --config conf --no-detach --address ::1 & daemon=$!
until rsync -q rsync://[::1]:7003/m/r r 2> /dev/null; do sleep 0.1; done; cmp from/r r && echo the same from a daemon
kill $daemon; wait"#;
const TOOLS_SAYS: &str = "lo UNKNOWN 127.0.0.1/8 ::1/128 \nlocal 127.0.0.1 dev lo table local src 127.0.0.1 \n3\nup\n2 received\n1 received\nping: connect: Network is unreachable\nhello\nthrough two\nLISTEN 0 1 127.0.0.1:7001 0.0.0.0:*\n1\ndata\ndatagram\nthe same through pipes\nthe same from a daemon";

/// tcpdump: a connection segment by segment to a file (ring of version 2), echo requests through a
/// filter (ring of version 3).
const TCPDUMP: &str = r#"cd /tmp
tcpdump -i lo -Z root -n --immediate-mode -c 9 -w cap tcp port 7100 2> log & dump=$!
until grep -q listening log; do sleep 0.1; done
socat -u TCP4-LISTEN:7100,reuseaddr STDOUT & server=$!
until ss -Htln | grep -q 0.0.0.0:7100; do sleep 0.1; done
exec 3<>/dev/tcp/127.0.0.1/7100; echo hello >&3; exec 3>&-; wait $server $dump
tcpdump -Z root -n -t -r cap 2> /dev/null | grep -o "Flags .S*F*P*R*\.*.\|length [0-9]*" | tr "\n" " "; echo
grep -o "[0-9]* packets captured\|[0-9]* packets dropped by kernel" log
tcpdump -Z root -r cap -A 2> /dev/null | grep -o hello
tcpdump -i lo -Z root -n -v -c 2 icmp > seen 2> log & dump=$!
until grep -q listening log; do sleep 0.1; done
echo other | socat - UDP4-SENDTO:127.0.0.1:9; ping -q -c 1 127.0.0.1 > /dev/null; wait $dump
grep -c "length 84" seen; grep -o "ICMP echo re[a-z]*" seen; grep -c "bad cksum" seen || true"#;
const TCPDUMP_SAYS: &str = "hello\nFlags [S] length 0 Flags [S.] length 0 Flags [.] length 0 Flags [P.] length 6 Flags [.] length 0 Flags [F.] length 0 Flags [.] length 0 Flags [F.] length 0 Flags [.] length 0 \n9 packets captured\n0 packets dropped by kernel\nhello\n2\nICMP echo request\nICMP echo reply\n0";

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let mut machine = setting.machine("all");
    machine.hardware.memory = "3G".into();
    machine.timeout = Some(Duration::from_secs(420));
    let host = rootfs::cached(&[packages::BASE, packages::SERVERS])?;
    machine.additions.push(Addition {
        host,
        guest: "/debian.tar".into(),
    });
    let step = |what: &str, script: &str, says: &'static str| {
        let script = script.replace('\'', r"'\''");
        let command =
            format!("skerry run --rm --cpus 2 --mem 1G --rootfs /debian.tar -- bash -c '{script}'");
        Step::new(what, command, Expect::Text(says.into())).limit(150)
    };
    let steps = [
        step(
            "redis: clients over IPv4, IPv6 and AF_UNIX, its benchmark, a background save that is loaded again",
            REDIS,
            REDIS_SAYS,
        ),
        step(
            "memcached: 20 clients at a time get what they set",
            MEMCACHED,
            MEMCACHED_SAYS,
        ),
        step(
            "ip, ss, ping, socat, netcat and rsync over the loop",
            TOOLS,
            TOOLS_SAYS,
        ),
        step(
            "tcpdump: a connection, echo requests",
            TCPDUMP,
            TCPDUMP_SAYS,
        ),
        step(
            "nginx: workers share ports, send files, act as proxy, to curl",
            NGINX,
            NGINX_SAYS,
        ),
    ];
    batch::run(machine, &steps)
}

# Runs in bash inside an instance of Debian's packages: SEED SECONDS WORKERS. Tasks at random, each checks its own result.
# What is printed: `FAILED …` for a wrong result, `HUNG …` with where the threads wait for a task that does not end, `left …` for what is not
# as it was, and at last `done N`.
seed=$1 seconds=$2 workers=$3
export HOME=/root GIT_CONFIG_NOSYSTEM=1 LC_ALL=C
git config --global user.email a@b; git config --global user.name n

# A task has a directory and ports of its own: `$1` is a random number, `$2` the first of ten ports. It succeeds, or says what is wrong.
same() { [ "$1" = "$2" ] || { echo "got '$1' instead of '$2'"; return 1; }; }
task_bash() {
    local i s=0 a=(); for i in {1..400}; do a+=($((i * $1 % 97))); done
    for i in "${a[@]}"; do s=$((s + i)); done
    same "$(printf '%s\n' "${a[@]}" | sort -n | awk '{s += $1} END {print s}')" $s
}
task_pipes() { same "$(seq $((20000 + $1)) | tee >(cat >/dev/null) | gzip | gzip -d | sort -rn | head -n 1)" $((20000 + $1)); }
task_tar() {
    mkdir -p a/b/c; local i; for i in {1..40}; do seq $((i * ($1 % 50))) > a/b/c/$i; done; ln -s c/1 a/b/l
    local z; for z in z J; do tar -c${z}f a.tar a; mkdir x$z; tar -C x$z -xf a.tar; diff -r a x$z/a || return; done
    zstd -q a.tar -o a.zst; same "$(zstd -qdc a.zst | sha256sum)" "$(sha256sum < a.tar)"
}
task_sqlite() {
    same "$(sqlite3 db "pragma journal_mode=wal; create table t(a integer primary key, b text); with recursive c(n) as (select 1 union all select n+1 from c where n<3000) insert into t select n, hex(n*$1) from c; create index i on t(b); begin; delete from t; rollback; select count(*), sum(a) from t; pragma integrity_check;" | paste -sd,)" "wal,3000|4501500,ok"
}
task_python() {
    same "$(python3 -c '
import os, sys, threading, subprocess
n = int(sys.argv[1]); total = [0]; lock = threading.Lock()
def work():
    for _ in range(500):
        with lock: total[0] += n
ts = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in ts]; [t.join() for t in ts]
assert total[0] == 2000 * n, total
assert subprocess.run(["sort", "-n"], input=b"3\n1\n2\n", capture_output=True).stdout == b"1\n2\n3\n"
pids = []
for i in range(8):
    pid = os.fork()
    if pid == 0: os._exit(i)
    pids.append(pid)
print([os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in pids])' $1)" "[0, 1, 2, 3, 4, 5, 6, 7]"
}
task_git() {
    git init -q -b main a && cd a && seq $1 > f && git add f && git commit -qm one && seq 50 >> f && git commit -qam two && cd .. || return
    git clone -q a b && cd b && git fsck 2>&1 && same "$(git log --format=%s | paste -sd,) $(wc -l < f)" "two,one $(($1 + 50))"
}
task_make() {
    local i; for i in 1 2 3; do echo "int f$i(int x) { return x + $i * $1; }" > f$i.c; done
    printf '#include <stdio.h>\nint f1(int), f2(int), f3(int);\nint main(void) { printf("%%d\\n", f1(f2(f3(0)))); return 0; }\n' > m.c
    printf 'm: m.o f1.o f2.o f3.o\n\t$(CC) -o $@ $^\n' > Makefile
    make -s -j3 CC=gcc CFLAGS=-O1 && same "$(./m)" $((6 * $1))
}
task_perl() { same "$(perl -e 'my $n = 0; for my $i (1..6) { my $p = fork; if (!$p) { kill "USR1", $$ if $i % 2; exit $i } waitpid $p, 0; $n += $? & 127 ? 1 : $? >> 8 } print $n')" 15; }
task_find() { mkdir -p d/{1..6}/{a..d}; touch d/{1..6}/{a..d}/f{1..5}; same "$(find d -type f -print0 | xargs -0 -n 10 -P 3 ls | wc -l)" 120; }
task_signals() {
    local i p=(); for i in {1..8}; do sleep 100 & p+=($!); done; kill "${p[@]}"
    for i in "${p[@]}"; do wait $i 2>/dev/null; same $? 143 || return; done
    (trap 'kill $!; exit 7' TERM; sleep 100 & wait) 2>/dev/null & i=$!; until grep -q 'SigCgt:.*4...$' /proc/$i/status; do :; done; kill $i; wait $i; same $? 7
}
task_redis() {
    local i server; redis-server --port $2 --bind 127.0.0.1 --unixsocket r --save "" --dir $PWD --logfile log & server=$!
    until redis-cli -s r ping > /dev/null 2>&1; do sleep 0.1; done
    for i in "-s r" "-p $2 -P 4"; do redis-benchmark -q -n 200 -c 8 $i -t incr,lpush > out || return; done
    same "$(redis-cli -p $2 get counter:__rand_int__) $(redis-cli -s r llen mylist)" "400 400" || return
    same "$(redis-cli -s r incrby a $1)" $1 && redis-cli -p $2 bgsave > out
    until redis-cli -s r info persistence | grep -q rdb_bgsave_in_progress:0; do sleep 0.1; done
    redis-cli -s r shutdown nosave; wait $server; same $? 0; [ -s dump.rdb ]
}
# Clients over TCP or a local socket, each of which gets what it has set.
task_memcached() {
    local server at=(-l 127.0.0.1 -p $2); [ $(($1 % 2)) = 0 ] || at=(-s $PWD/m -a 777)
    chmod 777 .; memcached -u nobody "${at[@]}" -t 3 -m 8 & server=$!
    same "$(python3 -c '
import socket, sys, threading, time
local, port, right = int(sys.argv[1]) % 2, int(sys.argv[2]), []
def connect():
    while True:
        s = socket.socket(socket.AF_UNIX if local else socket.AF_INET)
        try: s.connect("m" if local else ("127.0.0.1", port)); return s
        except OSError: s.close(); time.sleep(0.1)
def work(who):
    with connect() as s, s.makefile("rwb") as f:
        for i in range(40):
            value = b"%d." % (who * i) * (1 + 37 * i)
            f.write(b"set k%d 0 0 %d\r\n%s\r\nget k%d\r\n" % (who, len(value), value, who)); f.flush()
            if [f.readline() for _ in range(4)][2] == value + b"\r\n": right.append(i)
threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(right))' $1 $2)" 240 || return
    kill $server; wait $server; same $? 0
}
task_nginx() {
    mkdir www; seq $((50000 + $1)) > www/f
    cat > conf <<END
daemon off; worker_processes 2; error_log err warn; pid pid; user root; events { worker_connections 64; }
http { access_log log; sendfile on; client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
server { listen 127.0.0.1:$2 reuseport; listen unix:$PWD/n; root $PWD/www; location /p/ { proxy_pass http://127.0.0.1:$2/; } } }
END
    nginx -p $PWD -c conf & local i p=() server=$!
    until curl -s -o one --unix-socket n http://a/f; do sleep 0.1; done; cmp one www/f || return
    for i in f p/f f p/f; do curl -s http://127.0.0.1:$2/$i | cmp - www/f & p+=($!); done
    for i in "${p[@]}"; do wait $i || return; done
    nginx -p $PWD -c conf -s quit && wait $server && same $(wc -l < log) 7
}
# Go's runtime and tokio's: goroutines and tasks over epoll, timers, a client and a server of HTTP.
task_http() {
    case $(($1 % 3)) in
        0) same "$(/soak/http-static)" "ok, static" ;;
        1) same "$(/soak/http-cgo)" "ok, with libc.so.6" ;;
        2) same "$(/soak/machine-tests tokio-server)" "ok tokio-server" ;;
    esac
}
task_node() {
    cat > work.js <<'END'
const assert = require('assert'), http = require('http'), { Worker, isMainThread, parentPort } = require('worker_threads'), { execFile } = require('child_process');
if (!isMainThread) parentPort.on('message', n => { let s = 0; for (let i = 1; i <= n; i++) s += i; parentPort.postMessage(s); process.exit(); });
else (async () => {
    const server = http.createServer((q, s) => q.pipe(s)).listen('s'); await new Promise(r => server.on('listening', r));
    const ask = body => new Promise((r, j) => { const q = http.request({ socketPath: 's', method: 'POST' }, s => { let t = ''; s.on('data', c => t += c); s.on('end', () => r(t)); }); q.on('error', j); q.end(body); });
    const bodies = Array.from({ length: 8 }, (_, i) => String(i).repeat(3000 * i + 1)); assert.deepEqual(await Promise.all(bodies.map(ask)), bodies); server.close();
    const worker = new Worker(__filename); worker.postMessage(1000); assert.equal(await new Promise(r => worker.on('message', r)), 500500);
    await new Promise((r, j) => execFile('sh', ['-c', 'exit 3'], e => e && e.code === 3 ? r() : j(e)));
})().then(() => console.log('ok'), e => { console.log(e); process.exit(1); });
END
    same "$(node work.js)" ok
}
# One of what stress-ng has of each kind of waiting, waking and sharing.
task_stress() {
    local all=(futex sem sem-sysv mq msg shm shm-sysv sigq sigsuspend timer timerfd itimer eventfd epoll poll pipe sockpair sock udp mmap mremap fork vfork clone switch inotify splice tee fault fifo kill sigfd)
    local s=${all[$1 % ${#all[@]}]} port=(); case $s in sock | udp | epoll) port=(--$s-port $2) ;; esac
    stress-ng --$s 2 --$s-ops 60 --timeout 10 --verify "${port[@]}"
}
# Descriptors and credentials through local sockets, epoll, memory shared with a child, an interval timer, and streams over the loop.
task_sockets() {
    same "$(python3 -c '
import array, mmap, os, select, signal, socket, struct, sys, threading
n, port = int(sys.argv[1]), int(sys.argv[2])
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
shared, ticks = mmap.mmap(-1, 8192), []
signal.signal(signal.SIGALRM, lambda *_: ticks.append(1)); signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
r, w = os.pipe()
pid = os.fork()
if pid == 0:
    _, fds, _, _ = b.recvmsg(10, 200)
    fd, = array.array("i", fds[0][2]); os.write(fd, b"x" * n); shared[5000:5008] = struct.pack("q", n); b.send(b"done"); os._exit(0)
a.sendmsg([b"fd"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [w]))]); os.close(w)
poll = select.epoll(); poll.register(r, select.EPOLLIN); poll.register(a, select.EPOLLIN | select.EPOLLET)
got = 0
while True:
    if any(fd == r for fd, _ in poll.poll()):
        part = os.read(r, 65536); got += len(part)
        if not part: break
assert a.recv(10) == b"done" and got == n and struct.unpack("q", shared[5000:5008])[0] == n and os.waitpid(pid, 0)[1] == 0
listener = socket.create_server(("127.0.0.1", port))
def serve():
    for _ in range(5):
        c, _ = listener.accept()
        with c:
            while part := c.recv(10000): c.sendall(part)
            c.shutdown(socket.SHUT_WR)
def ask(i):
    with socket.create_connection(("127.0.0.1", port)) as s:
        data = bytes([i]) * (n * 100 + 1); t = threading.Thread(target=s.sendall, args=(data,)); t.start(); got = 0
        while got < len(data): got += len(s.recv(65536))
        t.join()
server = threading.Thread(target=serve); server.start()
clients = [threading.Thread(target=ask, args=(i,)) for i in range(5)]
[t.start() for t in clients]; [t.join() for t in clients]; server.join()
while not ticks: signal.pause()
print("ok")' $1 $2)" ok
}
tasks=(bash pipes tar sqlite python git make perl find signals redis memcached nginx http node stress sockets)

# Where everything waits that is not this script.
where() {
    local t; for t in /proc/[0-9]*/task/*; do
        echo "-- $(cut -d' ' -f1-4 $t/stat): $(tr '\0' ' ' < $t/cmdline | cut -c1-100)"; cat $t/stack
    done 2>/dev/null
}
# One task, which has 240 seconds on whatever machine this is.
run() {
    local kind=$1 number=$2 dir=/tmp/w$3 port=$((7000 + 10 * ${3/warm/99})) status
    rm -rf $dir; mkdir $dir; cd $dir
    (task_$kind $number $port) > $dir.out 2>&1 & local pid=$!
    (read -t 240 <> /tmp/never; [ $? -gt 128 ] && { echo "HUNG $kind $number"; where; touch /tmp/failed; kill -9 $pid; }) & local dog=$!
    wait $pid; status=$?
    kill $dog 2>/dev/null; wait $dog 2>/dev/null
    [ $status = 0 ] || { echo "FAILED $kind $number: status $status: $(tail -c 500 $dir.out)"; touch /tmp/failed; }
    cd /; rm -rf $dir $dir.out
}
# Processes, descriptors of the first one, memory available in MiB.
state() { echo $(ls -d /proc/[0-9]* | wc -l) $(ls /proc/1/fd | wc -l) $(awk '/^MemAvailable/ {print int($2 / 1024)}' /proc/meminfo); }

mkfifo /tmp/never; mkdir /soak; tar -x -C /soak
for kind in "${tasks[@]}"; do run $kind 7 warm; done
before=($(state))
end=$((SECONDS + seconds))
worker() {
    RANDOM=$((seed + $1)); local done=0
    while [ $SECONDS -lt $end ] && [ ! -e /tmp/failed ]; do run ${tasks[RANDOM % ${#tasks[@]}]} $((RANDOM % 1000 + 1)) $1; done=$((done + 1)); done
    echo $done > /tmp/done.$1
}
for ((w = 0; w < workers; w++)); do worker $w & done
wait
total=$(($(cat /tmp/done.* | paste -sd+))); rm -f /tmp/done.*
# What has ended is gone when its parents have been told; memory that is given back lazily is not at once.
for i in {1..50}; do after=($(state)); [ ${after[0]} -le ${before[0]} ] && [ $((before[2] - after[2])) -le 16 ] && break; sleep 0.2; done
[ ${after[0]} -le ${before[0]} ] || { echo "left ${after[0]} processes instead of ${before[0]}"; where; touch /tmp/failed; }
[ ${after[1]} -le ${before[1]} ] || { echo "left ${after[1]} descriptors instead of ${before[1]}"; touch /tmp/failed; }
[ $((before[2] - after[2])) -le 16 ] || { echo "left ${after[2]} MiB available instead of ${before[2]}"; cat /proc/skerry/memory; touch /tmp/failed; }
echo "done $total; processes, descriptors, MiB available: ${before[*]} before, ${after[*]} after"
[ ! -e /tmp/failed ]

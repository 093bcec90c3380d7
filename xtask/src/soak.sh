# Runs in bash inside an instance of Debian's packages: SEED SECONDS WORKERS. Tasks at random, each checks its own result.
# What is printed: `FAILED …` for a wrong result, `HUNG …` with where the threads wait for a task that does not end, `left …` for what is not
# as it was, and at last `done N`.
seed=$1 seconds=$2 workers=$3
export HOME=/root GIT_CONFIG_NOSYSTEM=1 LC_ALL=C
git config --global user.email a@b; git config --global user.name n

# A task has a directory of its own. It succeeds, or says what is wrong.
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
tasks=(bash pipes tar sqlite python git make perl find signals)

# Where everything waits that is not this script.
where() {
    local t; for t in /proc/[0-9]*/task/*; do
        echo "-- $(cut -d' ' -f1-4 $t/stat): $(tr '\0' ' ' < $t/cmdline | cut -c1-100)"; cat $t/stack
    done 2>/dev/null
}
# One task, which has 240 seconds on whatever machine this is.
run() {
    local kind=$1 number=$2 dir=/tmp/w$3 out status
    rm -rf $dir; mkdir $dir; cd $dir
    (task_$kind $number) > $dir.out 2>&1 & local pid=$!
    (read -t 240 <> /tmp/never; [ $? -gt 128 ] && { echo "HUNG $kind $number"; where; touch /tmp/failed; kill -9 $pid; }) & local dog=$!
    wait $pid; status=$?
    kill $dog 2>/dev/null; wait $dog 2>/dev/null
    [ $status = 0 ] || { echo "FAILED $kind $number: status $status: $(tail -c 500 $dir.out)"; touch /tmp/failed; }
    cd /; rm -rf $dir $dir.out
}
# Processes, descriptors of the first one, memory available in MiB.
state() { echo $(ls -d /proc/[0-9]* | wc -l) $(ls /proc/1/fd | wc -l) $(awk '/^MemAvailable/ {print int($2 / 1024)}' /proc/meminfo); }

mkfifo /tmp/never
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

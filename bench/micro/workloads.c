/*
 * Whole programs of Debian's, as they come: one operation is one command line in bash, from its fork to its end. The machine's
 * file system is made of their packages (`cargo xtask rootfs`), in memory.
 */
#define _GNU_SOURCE
#include "bench.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void run(const char *command)
{
    pid_t child = CHECK(fork());
    if (child == 0) {
        dup2(open("/dev/null", O_RDWR), STDIN_FILENO);
        dup2(STDIN_FILENO, STDOUT_FILENO);
        execl("/bin/bash", "bash", "-c", command, NULL);
        _exit(127);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0));
    if (status != 0)
        not_available(command, status == 127 << 8 ? ENOENT : EIO);
}

void prepare(const char *command)
{
    CHECK(access("/bin/bash", X_OK));
    setenv("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", 1);
    setenv("LC_ALL", "C", 1);
    run(command);
}

/* Measures a command; what it needs is made by another one before. */
static void workload(const char *before, const char *command)
{
    prepare(before);
    MEASURE_BATCHES(1, {
        const uint64_t start = now();
        run(command);
        timing_end(&timing, now() - start);
    });
}

/* A dynamically linked shell that does nothing. */
static void bash(void)
{
    workload("true", "true");
}

/* Fifty programs, one after the other. */
static void spawn(void)
{
    workload("true", "for ((i = 0; i < 50; i++)); do /bin/true; done");
}

/* All files of the machine: names, and what stat tells of each. */
static void find(void)
{
    workload("true", "find / -xdev -size +100000k");
}

/* Fifty files of 1 MiB into an archive. */
static void tar(void)
{
    workload("mkdir /tmp/files && yes | head -c 1M > /tmp/files/0 && for ((i = 1; i < 50; i++)); do cp /tmp/files/0 /tmp/files/$i; done",
             "tar -C /tmp -cf /tmp/archive.tar files");
}

/* A database of 10,000 rows: insertions in one transaction, an index, queries, the check of its integrity. */
static void sqlite(void)
{
    workload("true", "rm -f /tmp/data.db; sqlite3 /tmp/data.db \"create table t(a integer primary key, b, c); insert into t "
                     "with recursive n(i) as (select 1 union all select i + 1 from n where i < 10000) select i, i * 7919 % 10007, 'row ' || i "
                     "from n; create index x on t(b); select count(*), sum(b) from t where b between 1000 and 9000; update t set c = c || '!' "
                     "where a % 3 = 0; pragma integrity_check\"");
}

/* A thousand requests of each kind by eight clients to a server over a local socket. */
static void redis(void)
{
    workload("redis-server --port 0 --unixsocket /tmp/redis.sock --save '' & until redis-cli -s /tmp/redis.sock ping; do :; done",
             "redis-benchmark -s /tmp/redis.sock -q -n 1000 -c 8 -t set,get,lpush");
}

const struct metric workload_metrics[] = {
    {"work-bash", bash}, {"work-spawn", spawn},   {"work-find", find},
    {"work-tar", tar},   {"work-sqlite", sqlite}, {"work-redis", redis},
    {0},
};

/*
 * Scaling, after the tests of will-it-scale: the same operation by 1, 2, 4, 8 workers at once, each on a processor of its own (what
 * starts them and waits has the first) and with objects of its own, as processes (pN) and as threads (tN). Nothing is shared but the kernel and, between threads, the process.
 *
 * A figure is the whole time, from the workers' start until the last is done, divided by the operations of all. In instructions, with
 * all processors in lock-step, it stays the same if nothing is lost by working together; in time it falls.
 */
#define _GNU_SOURCE
#include "bench.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST = 8, PAGE = 4096, FAULTS = 128 };

/* A worker's own objects, a cache line apart from its neighbour's. */
struct worker {
    _Alignas(128) uint32_t word;
    int pipe[2];
    char file[32];
};

/* What main and workers share; both sides sleep on its words. */
struct shared {
    _Alignas(128) uint32_t round; /* counts up when there is work */
    uint64_t operations;          /* for each worker in this round */
    _Alignas(128) uint32_t left;  /* workers that are not done */
    long failed;
    struct worker workers[MOST];
};

static struct shared *shared;

typedef long operation(struct worker *, uint64_t count);

/* getppid: nothing but the entry to the kernel. */
static long getppids(struct worker *worker, uint64_t count)
{
    long failed = 0;
    (void)worker;
    for (; count; count--)
        failed |= sys0(SYS_getppid);
    return failed;
}

/* Opens and closes a file; one file for each worker, all in one directory. */
static long opens(struct worker *worker, uint64_t count)
{
    long failed = 0;
    for (; count; count--) {
        long fd = sys3(SYS_open, (long)worker->file, O_RDWR | O_CREAT, 0600);
        failed |= fd | sys3(SYS_close, fd, 0, 0);
    }
    return failed;
}

static char *map(long length)
{
    return (char *)sys6(SYS_mmap, 0, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* Maps and unmaps 128 MiB. */
static long mmaps(struct worker *worker, uint64_t count)
{
    long failed = 0;
    (void)worker;
    for (; count; count--) {
        long at = (long)map(128 << 20);
        failed |= at | sys3(SYS_munmap, at, 128 << 20, 0);
    }
    return failed;
}

/* Writes fresh anonymous pages; one operation is one page, with its share in mapping and unmapping 128 of them. */
static long faults(struct worker *worker, uint64_t count)
{
    long failed = 0;
    (void)worker;
    for (; count >= FAULTS; count -= FAULTS) {
        char *at = map(FAULTS * PAGE);
        if ((long)at < 0)
            return (long)at;
        for (volatile char *page = at; page != at + FAULTS * PAGE; page += PAGE)
            *page = 1;
        failed |= sys3(SYS_munmap, (long)at, FAULTS * PAGE, 0);
    }
    return failed;
}

/* Wakes a futex of its own that nobody waits for. */
static long futexes(struct worker *worker, uint64_t count)
{
    long failed = 0;
    for (; count; count--)
        failed |= sys3(SYS_futex, (long)&worker->word, FUTEX_WAKE, 1);
    return failed;
}

/* Writes a byte into a pipe of its own and reads it again. */
static long pipes(struct worker *worker, uint64_t count)
{
    long failed = 0;
    char byte = 0;
    for (; count; count--) {
        failed |= sys3(SYS_write, worker->pipe[1], (long)&byte, 1);
        failed |= sys3(SYS_read, worker->pipe[0], (long)&byte, 1);
    }
    return failed;
}

/* Frees one of 256 blocks and allocates another of 16 bytes to 16 KiB in its place: the C library's heap under threads. */
static long mallocs(struct worker *worker, uint64_t count)
{
    static _Thread_local void *blocks[256];
    for (; count; count--) {
        const uint32_t random = worker->word = worker->word * 1664525 + 1013904223;
        void **block = &blocks[random >> 24];
        free(*block);
        *block = malloc(16 + (random & 0x3fff) / (1 + (random >> 14 & 0xff)));
        if (!*block)
            return -ENOMEM;
    }
    return 0;
}

static void futex_wait(uint32_t *word, uint32_t value)
{
    sys4(SYS_futex, (long)word, FUTEX_WAIT, value, 0);
}

static operation *working; /* what the workers do */

/* A worker: sleeps until there is a round, works, and tells when it is the last. */
static void *work(void *number)
{
    struct worker *worker = &shared->workers[(long)number];
    pin((int)(long)number + 1);
    for (uint32_t done = 0;; done++) {
        while (__atomic_load_n(&shared->round, __ATOMIC_ACQUIRE) == done)
            futex_wait(&shared->round, done);
        long failed = working(worker, shared->operations);
        if (failed < 0)
            __atomic_store_n(&shared->failed, failed, __ATOMIC_RELAXED);
        if (__atomic_sub_fetch(&shared->left, 1, __ATOMIC_ACQ_REL) == 0)
            sys3(SYS_futex, (long)&shared->left, FUTEX_WAKE, 1);
    }
    return NULL;
}

static void start(long number, int threads)
{
    struct worker *worker = &shared->workers[number];
    snprintf(worker->file, sizeof worker->file, "/tmp/scale-%ld", number);
    CHECK(pipe(worker->pipe));
    if (threads) {
        pthread_t thread;
        int error = pthread_create(&thread, NULL, work, (void *)number);
        if (error)
            not_available("pthread_create", error);
    } else if (CHECK(fork()) == 0) {
        work((void *)number);
    }
}

static void scale(operation *operation, int workers, int threads)
{
    shared = CHECK(mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    working = operation;
    pin(0); /* out of the workers' way */
    for (long number = 0; number < workers; number++)
        start(number, threads);
    /* Rounds that are long beside waking the workers, which is in them. */
    for (struct timing timing = timing_begin_long(FAULTS); timing_next(&timing);) {
        /* The timing counts the operations of all workers. */
        const uint64_t each = (timing.operations / (uint64_t)workers + FAULTS - 1) / FAULTS * FAULTS;
        timing.operations = each * (uint64_t)workers;
        shared->operations = each;
        __atomic_store_n(&shared->left, workers, __ATOMIC_RELAXED);
        const uint64_t begin = now();
        __atomic_add_fetch(&shared->round, 1, __ATOMIC_RELEASE);
        sys3(SYS_futex, (long)&shared->round, FUTEX_WAKE, MOST);
        uint32_t left;
        while ((left = __atomic_load_n(&shared->left, __ATOMIC_ACQUIRE)) != 0)
            futex_wait(&shared->left, left);
        RESULT(shared->failed);
        timing_end(&timing, now() - begin);
    }
    exit(0); /* workers that are processes are ended with the process group */
}

#define METRIC(name, operation, kind, threads, workers)                                                                          \
    static void name##_##kind##workers(void)                                                                                     \
    {                                                                                                                            \
        scale(operation, workers, threads);                                                                                      \
    }
#define METRICS(name, operation, kind, threads)                                                                                  \
    METRIC(name, operation, kind, threads, 1)                                                                                    \
    METRIC(name, operation, kind, threads, 2)                                                                                    \
    METRIC(name, operation, kind, threads, 4)                                                                                    \
    METRIC(name, operation, kind, threads, 8)
#define ENTRIES(name, kind)                                                                                                      \
    {"scale-" #name "-" #kind "1", name##_##kind##1}, {"scale-" #name "-" #kind "2", name##_##kind##2},                          \
        {"scale-" #name "-" #kind "4", name##_##kind##4}, {"scale-" #name "-" #kind "8", name##_##kind##8}

METRICS(getppid, getppids, p, 0)
METRICS(getppid, getppids, t, 1)
METRICS(open, opens, p, 0)
METRICS(open, opens, t, 1)
METRICS(mmap, mmaps, p, 0)
METRICS(mmap, mmaps, t, 1)
METRICS(fault, faults, p, 0)
METRICS(fault, faults, t, 1)
METRICS(futex, futexes, p, 0)
METRICS(futex, futexes, t, 1)
METRICS(pipe, pipes, p, 0)
METRICS(pipe, pipes, t, 1)
METRICS(malloc, mallocs, t, 1)

const struct metric scale_metrics[] = {
    ENTRIES(getppid, p), ENTRIES(getppid, t), ENTRIES(open, p),  ENTRIES(open, t),  ENTRIES(mmap, p),
    ENTRIES(mmap, t),    ENTRIES(fault, p),   ENTRIES(fault, t), ENTRIES(futex, p), ENTRIES(futex, t),
    ENTRIES(pipe, p),    ENTRIES(pipe, t),    ENTRIES(malloc, t), {0},
};

/*
 * Ping-pong: two threads of one process pass the turn to and fro, each sleeping until it is its turn. One operation is a round
 * trip: two wake-ups and two switches. `-apart` puts them on two processors.
 */
#define _GNU_SOURCE
#include "bench.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static int cpu_of_other; /* where the other thread runs */

static void *other_pinned(void *body)
{
    pin(cpu_of_other);
    ((void (*)(void))body)();
    return NULL;
}

/* Starts the other thread, and puts both where they belong; the process's end ends it. */
static void start_other(void (*body)(void), int apart)
{
    pthread_t thread;
    cpu_of_other = apart;
    if (!pin(0))
        not_available("sched_setaffinity to processor 0", errno);
    if (apart) {
        if (!pin(1))
            not_available("sched_setaffinity to processor 1", errno);
        pin(0);
    }
    int error = pthread_create(&thread, NULL, other_pinned, (void *)body);
    if (error)
        not_available("pthread_create", error);
}

static int there[2], back[2]; /* there[1] is written here and there[0] read by the other; back, the other way round */

static void other_bytes(void)
{
    char byte;
    while (sys3(SYS_read, there[0], (long)&byte, 1) == 1)
        sys3(SYS_write, back[1], (long)&byte, 1);
}

static void bytes(int apart)
{
    char byte = 0;
    start_other(other_bytes, apart);
    MEASURE({
        RESULT(sys3(SYS_write, there[1], (long)&byte, 1));
        RESULT(sys3(SYS_read, back[0], (long)&byte, 1));
    });
    exit(0);
}

/* A byte through one pipe and back through another. */
static void pipes(int apart)
{
    CHECK(pipe(there));
    CHECK(pipe(back));
    bytes(apart);
}

/* A byte through a pair of stream sockets and back. */
static void unix_sockets(int apart)
{
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    there[1] = back[0] = pair[0];
    there[0] = back[1] = pair[1];
    bytes(apart);
}

static uint32_t turn; /* 0: ours, 1: the other's */

static inline void pass_futex(uint32_t from)
{
    __atomic_store_n(&turn, !from, __ATOMIC_SEQ_CST);
    sys3(SYS_futex, (long)&turn, FUTEX_WAKE_PRIVATE, 1);
    while (__atomic_load_n(&turn, __ATOMIC_SEQ_CST) == !from)
        sys4(SYS_futex, (long)&turn, FUTEX_WAIT_PRIVATE, !from, 0);
}

static void other_futex(void)
{
    while (__atomic_load_n(&turn, __ATOMIC_SEQ_CST) == 0)
        sys4(SYS_futex, (long)&turn, FUTEX_WAIT_PRIVATE, 0, 0);
    for (;;)
        pass_futex(1);
}

/* A word in memory, with a futex call to wake and one to wait. */
static void futexes(int apart)
{
    start_other(other_futex, apart);
    MEASURE(pass_futex(0));
    exit(0);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t passed = PTHREAD_COND_INITIALIZER;

static void pass_condvar(uint32_t from)
{
    pthread_mutex_lock(&mutex);
    turn = !from;
    pthread_cond_signal(&passed);
    while (turn == !from)
        pthread_cond_wait(&passed, &mutex);
    pthread_mutex_unlock(&mutex);
}

static void other_condvar(void)
{
    pthread_mutex_lock(&mutex);
    while (turn == 0)
        pthread_cond_wait(&passed, &mutex);
    pthread_mutex_unlock(&mutex);
    for (;;)
        pass_condvar(1);
}

/* The C library's condition variable and mutex. */
static void condvars(int apart)
{
    start_other(other_condvar, apart);
    MEASURE(pass_condvar(0));
    exit(0);
}

static void pipe_same(void) { pipes(0); }
static void pipe_apart(void) { pipes(1); }
static void unix_same(void) { unix_sockets(0); }
static void unix_apart(void) { unix_sockets(1); }
static void futex_same(void) { futexes(0); }
static void futex_apart(void) { futexes(1); }
static void condvar_same(void) { condvars(0); }
static void condvar_apart(void) { condvars(1); }

const struct metric switch_metrics[] = {
    {"futex-same", futex_same},     {"futex-apart", futex_apart},     {"condvar-same", condvar_same},
    {"condvar-apart", condvar_apart}, {"pipe-same", pipe_same},         {"pipe-apart", pipe_apart},
    {"unix-same", unix_same},       {"unix-apart", unix_apart},       {0},
};

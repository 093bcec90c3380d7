/*
 * Ping-pong: two threads of one process pass the turn to and fro, each sleeping until it is its turn. One operation is a round
 * trip: two wake-ups and two switches. `-apart` puts them on two processors.
 */
#define _GNU_SOURCE
#include "bench.h"

#include <linux/futex.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
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

/* Connects two sockets over the loopback interface. */
static void connect_tcp(int *near, int *far)
{
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    const int listener = CHECK(socket(AF_INET, SOCK_STREAM, 0)), one = 1;
    ioctl(listener, SIOCSIFFLAGS, &lo); /* where the system has not done it */
    CHECK(bind(listener, (struct sockaddr *)&address, size));
    CHECK(listen(listener, 1));
    CHECK(getsockname(listener, (struct sockaddr *)&address, &size));
    *near = CHECK(socket(AF_INET, SOCK_STREAM, 0));
    CHECK(connect(*near, (struct sockaddr *)&address, size));
    *far = CHECK(accept(listener, NULL, NULL));
    CHECK(setsockopt(*near, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    CHECK(setsockopt(*far, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
}

/* A byte through a TCP connection on the loopback interface and back. */
static void tcp(int apart)
{
    int near, far;
    connect_tcp(&near, &far);
    there[1] = back[0] = near;
    there[0] = back[1] = far;
    bytes(apart);
}

static char buffer[65536];

static void other_stream(void)
{
    static char received[sizeof buffer];
    while (sys3(SYS_read, there[0], (long)received, sizeof received) > 0)
        ;
}

/* 64 KiB through such a connection, which the other thread reads in pieces of that size. */
static void tcp_stream(void)
{
    connect_tcp(&there[1], &there[0]);
    start_other(other_stream, 0);
    MEASURE(RESULT(sys3(SYS_write, there[1], (long)buffer, sizeof buffer)));
    exit(0);
}

enum { POLLED = 1000 };
static struct pollfd polled[POLLED];

static void other_poll(void)
{
    uint64_t value = 1;
    while (sys3(SYS_read, there[0], (long)&value, sizeof value) == sizeof value)
        sys3(SYS_write, polled[POLLED / 2].fd, (long)&value, sizeof value);
}

/* Has the other thread write to one of a thousand eventfds, polls all until it has, and reads that one. */
static void poll_wake(void)
{
    uint64_t value = 1;
    for (int i = 0; i < POLLED; i++)
        polled[i] = (struct pollfd){.fd = CHECK(eventfd(0, 0)), .events = POLLIN};
    there[0] = CHECK(eventfd(0, 0));
    start_other(other_poll, 0);
    MEASURE({
        RESULT(sys3(SYS_write, there[0], (long)&value, sizeof value));
        RESULT(sys3(SYS_poll, (long)polled, POLLED, -1));
        RESULT(sys3(SYS_read, polled[POLLED / 2].fd, (long)&value, sizeof value));
    });
    exit(0);
}

static void other_yield(void)
{
    for (;;)
        sys0(SYS_sched_yield);
}

/* Lets the other thread run, which does the same: one operation is one call, from its begin to its end. */
static void yields(void)
{
    start_other(other_yield, 0);
    MEASURE(RESULT(sys0(SYS_sched_yield)));
    exit(0);
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
static void tcp_same(void) { tcp(0); }
static void tcp_apart(void) { tcp(1); }
static void futex_same(void) { futexes(0); }
static void futex_apart(void) { futexes(1); }
static void condvar_same(void) { condvars(0); }
static void condvar_apart(void) { condvars(1); }

const struct metric switch_metrics[] = {
    {"futex-same", futex_same},     {"futex-apart", futex_apart},     {"condvar-same", condvar_same},
    {"condvar-apart", condvar_apart}, {"pipe-same", pipe_same},         {"pipe-apart", pipe_apart},
    {"unix-same", unix_same},       {"unix-apart", unix_apart},       {"tcp-same", tcp_same},
    {"tcp-apart", tcp_apart},       {"tcp-stream", tcp_stream},       {"yield-same", yields},
    {"poll-wake-1000", poll_wake},  {0},
};

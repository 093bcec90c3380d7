/* System calls that never wait: what entering the kernel costs, and its shortest paths. */
#define _GNU_SOURCE
#include "bench.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* getpid: enters the kernel, reads a value that does not change, and returns. */
static void null_call(void)
{
    MEASURE(RESULT(sys0(SYS_getpid)));
}

/* getppid: the same with a value that can change at any time. */
static void get_parent(void)
{
    MEASURE(RESULT(sys0(SYS_getppid)));
}

/* Wakes a futex nobody waits for: what an uncontended unlock with a stale flag costs. */
static void futex_wake(void)
{
    uint32_t word = 0;
    MEASURE(RESULT(sys3(SYS_futex, (long)&word, FUTEX_WAKE_PRIVATE, 1)));
}

/* Reads the monotonic clock, as the C library does: without a system call where the kernel maps one that needs none. */
static void clock_read(void)
{
    struct timespec time;
    MEASURE(RESULT(clock_gettime(CLOCK_MONOTONIC, &time)));
}

static void handler(int signal)
{
    (void)signal;
}

/* A signal to oneself: sending, the handler's frame, the handler, and the return from it. */
static void signal_self(void)
{
    struct sigaction action = {.sa_handler = handler};
    CHECK(sigaction(SIGUSR1, &action, NULL));
    const pid_t pid = getpid();
    MEASURE(RESULT(sys3(SYS_kill, pid, SIGUSR1, 0)));
}

/* Adds an eventfd to an epoll set of one and removes it again. */
static void epoll_add_del(void)
{
    const int epoll = CHECK(epoll_create1(0)), fd = CHECK(eventfd(0, 0));
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    MEASURE({
        RESULT(sys4(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, fd, (long)&event));
        RESULT(sys4(SYS_epoll_ctl, epoll, EPOLL_CTL_DEL, fd, (long)&event));
    });
}

/* A thousand eventfds in one epoll set: one is written to, waited for, and read. */
static void epoll_1000(void)
{
    enum { COUNT = 1000 };
    static int fds[COUNT];
    const int epoll = CHECK(epoll_create1(0));
    for (int i = 0; i < COUNT; i++) {
        fds[i] = CHECK(eventfd(0, 0));
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fds[i]};
        CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &event));
    }
    const int fd = fds[COUNT / 2];
    uint64_t value = 1;
    struct epoll_event events[8];
    MEASURE({
        RESULT(sys3(SYS_write, fd, (long)&value, sizeof value));
        RESULT(sys4(SYS_epoll_wait, epoll, (long)events, 8, -1));
        RESULT(sys3(SYS_read, fd, (long)&value, sizeof value));
    });
}

/* Asks a thousand eventfds, none of which can be read, without waiting. */
static void poll_1000(void)
{
    enum { COUNT = 1000 };
    static struct pollfd fds[COUNT];
    for (int i = 0; i < COUNT; i++)
        fds[i] = (struct pollfd){.fd = CHECK(eventfd(0, 0)), .events = POLLIN};
    MEASURE(RESULT(sys3(SYS_poll, (long)fds, COUNT, 0)));
}

const struct metric call_metrics[] = {
    {"null-call", null_call},
    {"getppid", get_parent},
    {"futex-wake", futex_wake},
    {"clock", clock_read},
    {"signal", signal_self},
    {"epoll-add-del", epoll_add_del},
    {"epoll-1-of-1000", epoll_1000},
    {"poll-1000", poll_1000},
    {0},
};

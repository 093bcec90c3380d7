/*
 * What one program's operations cost while others work, and the others.
 *
 *     isolation work WHEN CPU     each kind of operation, on that processor; WHEN is alone or beside
 *     isolation storm CPU...      processes, memory and files by turns, on each of these, for ever
 *
 * Each operation stands between two marks, at which a plugin of QEMU's (bench/profile/samples.c) counts what the marking processor
 * executes, and nothing else: no clock is read, and the host has no say. The mark that begins one has the number of its kind.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(call)                                                                                                              \
    ({                                                                                                                           \
        __typeof__(call) result_ = (call);                                                                                       \
        if ((long)result_ == -1)                                                                                                 \
            fail(#call);                                                                                                         \
        result_;                                                                                                                 \
    })

/* A no-operation with an address that the plugin knows; its last byte is the kind, 0 at the end. */
#define MARK(kind) __asm__ volatile("nopl %c0(%%rax)" ::"i"(0x0049414d + ((kind) << 24)) : "memory")

enum { PAGE = 4096, TURNS = 100000 };

_Noreturn static void fail(const char *what)
{
    fprintf(stderr, "isolation: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    CHECK(sched_setaffinity(0, sizeof set, &set));
}

/* Nothing but turns of a loop: what else is executed meanwhile is a detour. */
static void spin(void)
{
    uint64_t turns = TURNS;
    __asm__ volatile("1: dec %0\n jnz 1b" : "+r"(turns));
}

/* A file of a page that is made, written, renamed, read and removed. */
static void file(void)
{
    static char page[PAGE];
    char name[32], other[32];
    snprintf(name, sizeof name, "/tmp/file-%d", getpid());
    snprintf(other, sizeof other, "/tmp/file-%d-", getpid());
    const int fd = CHECK(open(name, O_RDWR | O_CREAT, 0600));
    CHECK(pwrite(fd, page, sizeof page, 0));
    CHECK(rename(name, other));
    CHECK(pread(fd, page, sizeof page, 0));
    CHECK(close(fd));
    CHECK(unlink(other));
}

/* Sixteen pages of memory that are mapped, written to and given back. */
static void memory(void)
{
    char *pages = CHECK(mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (size_t at = 0; at < 16 * PAGE; at += PAGE)
        pages[at] = 1;
    CHECK(munmap(pages, 16 * PAGE));
}

/* A process that ends at once. */
static void process(void)
{
    const pid_t child = CHECK(fork());
    if (child == 0)
        _exit(0);
    CHECK(waitpid(child, NULL, 0));
}

#define MEASURE(count, kind, operation)                                                                                          \
    for (int left = (count) + (count) / 10; left > 0; left--) {                                                                  \
        /* The first ones warm up. */                                                                                            \
        if (left <= (count))                                                                                                     \
            MARK(kind);                                                                                                          \
        operation();                                                                                                             \
        MARK(0);                                                                                                                 \
    }

static void work(int beside)
{
    if (beside) {
        MEASURE(25000, 5, spin);
        MEASURE(10000, 6, file);
        MEASURE(10000, 7, memory);
        MEASURE(2000, 8, process);
    } else {
        MEASURE(25000, 1, spin);
        MEASURE(10000, 2, file);
        MEASURE(10000, 3, memory);
        MEASURE(2000, 4, process);
    }
}

/* Processes, memory and files by turns, for ever. */
static void storm(int cpu)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(cpu);
    for (;;) {
        for (int turn = 0; turn < 4; turn++)
            process();
        for (int turn = 0; turn < 64; turn++)
            memory();
        for (int turn = 0; turn < 64; turn++)
            file();
    }
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "work") == 0) {
        pin(atoi(argv[3]));
        work(strcmp(argv[2], "beside") == 0);
        return 0;
    }
    if (argc > 2 && strcmp(argv[1], "storm") == 0) {
        for (int at = 2; at < argc; at++)
            if (CHECK(fork()) == 0)
                storm(atoi(argv[at]));
        puts("storming");
        fflush(stdout);
        for (;;)
            pause();
    }
    fputs("usage: isolation work alone|beside CPU | isolation storm CPU...\n", stderr);
    return 2;
}

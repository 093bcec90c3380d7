/*
 * The benchmark: the first process of a machine, the same file on every system. It reads /bench.conf (the clock, then the
 * metrics' names, one per line; none means all), runs each in a process of its own, and writes on the console
 *
 *     bench: NAME MEDIAN LEAST MOST OPERATIONS-PER-BATCH
 *     bench: NAME n/a ERRNO-NAME CALL
 *
 * so that a metric that fails, ends by a signal or hangs does not lose the others. It powers off at the end.
 */
#define _GNU_SOURCE
#include "bench.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

/* Batches that count; the median of an odd number is one of them. */
enum { BATCHES = 9 };
/* A batch lasts this long at least: instructions; nanoseconds, which others on the host disturb. */
static const uint64_t INSTRUCTIONS_ENOUGH = 200000, NANOSECONDS_ENOUGH = 2000000;
/* Seconds of the machine's time that one metric may take. */
enum { TIME_LIMIT = 60 };

static const struct metric *const parts[] = {call_metrics, file_metrics, memory_metrics, process_metrics,
                                             switch_metrics, time_metrics, task_metrics, scale_metrics,
                                             workload_metrics, net_metrics, disk_metrics};

static int instructions;        /* the clock counts instructions */
static const char *current;     /* the metric of this process */
static double loop_overhead;    /* of one turn of an empty loop */
static double samples[BATCHES]; /* per operation */

uint64_t now(void)
{
    if (instructions)
        return __rdtsc();
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

void not_available(const char *what, int error)
{
    const char *name = strerrorname_np(error);
    printf("bench: %s n/a %s %s\n", current, name ? name : "EUNKNOWN", what);
    exit(0);
}

static uint64_t long_enough(void)
{
    return instructions ? INSTRUCTIONS_ENOUGH : NANOSECONDS_ENOUGH;
}

struct timing timing_begin(uint64_t operations)
{
    if (operations == 0)
        return (struct timing){.operations = 1, .long_enough = long_enough(), .batch = -64};
    return (struct timing){.operations = operations, .batch = -1};
}

struct timing timing_begin_long(uint64_t operations)
{
    return (struct timing){.operations = operations, .long_enough = 20 * long_enough(), .batch = -64};
}

int timing_next(struct timing *timing)
{
    if (timing->batch == BATCHES - 1 && current)
        MARK_START();
    return timing->batch < BATCHES;
}

static int ascending(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

void timing_end(struct timing *timing, uint64_t elapsed)
{
    MARK_STOP();
    if (timing->failed < 0)
        not_available("in the loop", (int)-timing->failed);
    if (timing->batch < -1) {
        /* The batch grows until it is long enough twice running; the second warms up what the first did not. */
        if (elapsed < timing->long_enough) {
            timing->operations *= 2;
            timing->batch = -64;
        } else if (++timing->batch == -62) {
            timing->batch = -1;
        }
        return;
    }
    if (timing->batch >= 0)
        samples[timing->batch] = (double)elapsed / (double)timing->operations - loop_overhead;
    if (++timing->batch == BATCHES) {
        qsort(samples, BATCHES, sizeof *samples, ascending);
        if (current)
            printf("bench: %s %.3f %.3f %.3f %lu\n", current, samples[BATCHES / 2], samples[0], samples[BATCHES - 1],
                   (unsigned long)timing->operations);
    }
}

int pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return sched_setaffinity(0, sizeof set, &set) == 0;
}

void load_modules(void)
{
    for (int n = 0;; n++) {
        char path[32];
        snprintf(path, sizeof path, "/modules/%02d.ko", n);
        const int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return;
        if (syscall(SYS_finit_module, fd, "", 0) != 0 && errno != EEXIST)
            not_available(path, errno);
        close(fd);
    }
}

/* Runs a metric in a process of its own. */
static void run(const struct metric *metric)
{
    tcdrain(STDOUT_FILENO); /* what was printed is not to be sent while the next metric runs */
    pid_t child = fork();
    if (child == 0) {
        current = metric->name;
        setpgid(0, 0);
        metric->run();
        exit(0);
    }
    if (child < 0) {
        printf("bench: %s n/a %s fork\n", metric->name, strerrorname_np(errno));
        return;
    }
    sigset_t ended;
    sigemptyset(&ended);
    sigaddset(&ended, SIGCHLD);
    const struct timespec limit = {.tv_sec = TIME_LIMIT};
    int status = 0, late = 0;
    /* A left-over SIGCHLD of an earlier child ends the wait early. */
    while (waitpid(child, &status, WNOHANG) != child && !late)
        late = sigtimedwait(&ended, NULL, &limit) < 0 && errno == EAGAIN;
    if (late) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        printf("bench: %s n/a ETIME no end after %d s\n", metric->name, TIME_LIMIT);
    } else if (WIFSIGNALED(status)) {
        printf("bench: %s n/a EINTR ended by signal %d\n", metric->name, WTERMSIG(status));
    }
    kill(-child, SIGKILL); /* what it has left running */
    while (waitpid(-1, NULL, 0) > 0) {
    }
}

static const struct metric *find(const char *name)
{
    for (size_t part = 0; part < sizeof parts / sizeof *parts; part++)
        for (const struct metric *metric = parts[part]; metric->name; metric++)
            if (strcmp(metric->name, name) == 0)
                return metric;
    return NULL;
}

/* Seconds since the start, and those that all processors together were idle. */
static int uptime(double *since, double *idle)
{
    FILE *file = fopen("/proc/uptime", "r");
    const int got = file ? fscanf(file, "%lf %lf", since, idle) : 0;
    if (file)
        fclose(file);
    return got == 2;
}

/* Waits until the machine has nothing to do: after the start a kernel may put its house in order,
 * and who counts the instructions of all would count those. */
static void settle(void)
{
    const double cpus = (double)sysconf(_SC_NPROCESSORS_ONLN);
    double since, idle, now, later;
    for (int tries = 0; tries < 100 && uptime(&since, &idle); tries++) {
        usleep(200000);
        if (!uptime(&now, &later) || later - idle > 0.9 * cpus * (now - since))
            break;
    }
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    mount("proc", "/proc", "proc", 0, NULL); /* where the system has not done it */
    mount("tmpfs", "/tmp", "tmpfs", 0, NULL);
    sigset_t block;
    sigemptyset(&block);
    sigaddset(&block, SIGCHLD);
    sigprocmask(SIG_BLOCK, &block, NULL);

    /* Read as a whole: a child that ends would put back the offset that it shares. */
    static char conf[4096];
    const int fd = open("/bench.conf", O_RDONLY);
    if (fd < 0 || read(fd, conf, sizeof conf - 1) < 0)
        perror("bench: /bench.conf");
    close(fd);
    char *rest = conf, *line = strsep(&rest, "\n");
    instructions = strcmp(line, "instructions") == 0;
    int named = 0;
    settle();
    MEASURE();
    loop_overhead = samples[BATCHES / 2];
    printf("\nbench: start\n");
    while ((line = strsep(&rest, "\n")) && *line) {
        const struct metric *metric = find(line);
        named = 1;
        if (metric)
            run(metric);
        else
            printf("bench: %s n/a ENOENT no such metric\n", line);
    }
    for (size_t part = 0; !named && part < sizeof parts / sizeof *parts; part++)
        for (const struct metric *metric = parts[part]; metric->name; metric++)
            run(metric);
    printf("bench: end\n");
    tcdrain(STDOUT_FILENO);
    reboot(RB_POWER_OFF);
    return 1;
}

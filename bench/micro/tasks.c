/*
 * The prime-counting experiment of multicore IncludeOS (sections III and IV): n equal tasks, each counting the primes below a number
 * by trial division, as tasks of tools/tasks, as threads made and joined, and as processes forked and waited for. One operation is
 * all n tasks, with what it takes to start and to collect them. With n from 1 to twice the processors, time shows how tasks
 * spread, and instructions what the spreading costs.
 */
#define _GNU_SOURCE
#include "bench.h"

#include "tasks.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BELOW = 4000, PRIMES = 550, MOST_TASKS = 8 };

/* A result, in a cache line of its own. */
struct slot {
    _Alignas(64) unsigned long primes;
};

static unsigned long count_primes(void)
{
    unsigned long found = 1; /* 2 */
    for (unsigned number = 3; number < BELOW; number += 2) {
        unsigned divisor = 3;
        while (divisor * divisor <= number && number % divisor != 0)
            divisor += 2;
        found += divisor * divisor > number;
    }
    return found;
}

static void check(const struct slot *results, unsigned slots, unsigned n)
{
    unsigned long sum = 0;
    for (unsigned i = 0; i < slots; i++)
        sum += results[i].primes;
    if (sum != (unsigned long)n * PRIMES)
        not_available("a wrong number of primes", EIO);
}

static void task(unsigned i, unsigned slot, void *results)
{
    (void)i;
    ((struct slot *)results)[slot].primes += count_primes();
}

static void as_tasks(unsigned n)
{
    const unsigned slots = tasks_slots();
    struct slot *results = CHECK(mmap(NULL, slots * sizeof *results, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    MEASURE({
        for (unsigned i = 0; i < slots; i++)
            results[i].primes = 0;
        RESULT(-tasks_run(n, task, results));
        check(results, slots, n);
    });
    exit(0);
}

static void *thread(void *result)
{
    ((struct slot *)result)->primes = count_primes();
    return NULL;
}

static void as_threads(unsigned n)
{
    static struct slot results[MOST_TASKS];
    pthread_t threads[MOST_TASKS];
    MEASURE({
        for (unsigned i = 0; i < n; i++)
            RESULT(-pthread_create(&threads[i], NULL, thread, &results[i]));
        for (unsigned i = 0; i < n; i++)
            RESULT(-pthread_join(threads[i], NULL));
        check(results, n, n);
    });
}

static void as_processes(unsigned n)
{
    struct slot *results =
        CHECK(mmap(NULL, MOST_TASKS * sizeof *results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    MEASURE({
        for (unsigned i = 0; i < n; i++) {
            if (CHECK(fork()) == 0) {
                results[i].primes = count_primes();
                _exit(0);
            }
        }
        for (unsigned i = 0; i < n; i++)
            CHECK(wait(NULL));
        check(results, n, n);
    });
}

static void tasks_1(void) { as_tasks(1); }
static void tasks_2(void) { as_tasks(2); }
static void tasks_4(void) { as_tasks(4); }
static void tasks_8(void) { as_tasks(8); }
static void threads_1(void) { as_threads(1); }
static void threads_2(void) { as_threads(2); }
static void threads_4(void) { as_threads(4); }
static void threads_8(void) { as_threads(8); }
static void processes_1(void) { as_processes(1); }
static void processes_2(void) { as_processes(2); }
static void processes_4(void) { as_processes(4); }
static void processes_8(void) { as_processes(8); }

const struct metric task_metrics[] = {
    {"primes-tasks-1", tasks_1},         {"primes-tasks-2", tasks_2},         {"primes-tasks-4", tasks_4},
    {"primes-tasks-8", tasks_8},         {"primes-threads-1", threads_1},     {"primes-threads-2", threads_2},
    {"primes-threads-4", threads_4},     {"primes-threads-8", threads_8},     {"primes-processes-1", processes_1},
    {"primes-processes-2", processes_2}, {"primes-processes-4", processes_4}, {"primes-processes-8", processes_8},
    {0},
};

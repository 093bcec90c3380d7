#define _GNU_SOURCE
#include "tasks.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST_CPUS = 1024, CACHE_LINE = 64 };

/* A processor's worker, in a cache line of its own. */
struct worker {
    _Alignas(CACHE_LINE) _Atomic uint32_t runs; /* how often it was woken for a run; it sleeps on this word */
    int cpu;
    int made;
    unsigned slot;
};

static struct worker *workers;
static unsigned count;
static enum tasks_policy policy;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

/* The run under way. */
static struct {
    void (*task)(unsigned, unsigned, void *);
    void *argument;
    unsigned n;
    _Alignas(CACHE_LINE) _Atomic unsigned next; /* the first task nobody has taken */
    _Alignas(CACHE_LINE) _Atomic uint32_t busy; /* workers that may still take one; the caller sleeps on this word */
} run;

/* The slot in which this thread runs a task; -1 for threads that do not. */
static _Thread_local int my_slot = -1;

static void futex(_Atomic uint32_t *word, int operation, uint32_t value)
{
    syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

static void work(unsigned slot)
{
    for (unsigned i; (i = atomic_fetch_add_explicit(&run.next, 1, memory_order_relaxed)) < run.n;)
        run.task(i, slot, run.argument);
}

static void *worker_main(void *argument)
{
    struct worker *me = argument;
    my_slot = (int)me->slot;
    for (uint32_t done = 0;; done++) {
        while (atomic_load_explicit(&me->runs, memory_order_acquire) == done)
            futex(&me->runs, FUTEX_WAIT_PRIVATE, done);
        work(me->slot);
        if (atomic_fetch_sub_explicit(&run.busy, 1, memory_order_acq_rel) == 1)
            futex(&run.busy, FUTEX_WAKE_PRIVATE, 1);
    }
    return NULL;
}

/* The lowest numbered processor of the same core. */
static int core_of(int cpu)
{
    char path[96];
    int first = cpu;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *file = fopen(path, "re");
    if (file) {
        if (fscanf(file, "%d", &first) != 1)
            first = cpu;
        fclose(file);
    }
    return first;
}

/* Processors by core; within a core by number. */
static int by_core(const void *a, const void *b)
{
    const struct worker *x = a, *y = b;
    int difference = core_of(x->cpu) - core_of(y->cpu);
    return difference ? difference : x->cpu - y->cpu;
}

/* One processor of each core first, then the second of each: `slot` holds the place within the core. */
static int by_place(const void *a, const void *b)
{
    const struct worker *x = a, *y = b;
    return x->slot != y->slot ? (int)x->slot - (int)y->slot : x->cpu - y->cpu;
}

static void find_cpus(void)
{
    cpu_set_t *allowed = CPU_ALLOC(MOST_CPUS);
    const size_t size = CPU_ALLOC_SIZE(MOST_CPUS);
    workers = aligned_alloc(CACHE_LINE, MOST_CPUS * sizeof *workers);
    if (allowed && workers && sched_getaffinity(0, size, allowed) == 0)
        for (int cpu = 0; cpu < MOST_CPUS; cpu++)
            if (CPU_ISSET_S(cpu, size, allowed))
                workers[count++] = (struct worker){.cpu = cpu};
    CPU_FREE(allowed);
    qsort(workers, count, sizeof *workers, by_core);
    if (policy == TASKS_SIBLINGS_LAST) {
        for (unsigned i = 1; i < count; i++)
            workers[i].slot = core_of(workers[i].cpu) == core_of(workers[i - 1].cpu) ? workers[i - 1].slot + 1 : 0;
        qsort(workers, count, sizeof *workers, by_place);
    }
    for (unsigned i = 0; i < count; i++)
        workers[i].slot = i;
}

/* Makes a worker's thread, pinned to its processor, if there is none yet. */
static int make(struct worker *worker)
{
    cpu_set_t *where = CPU_ALLOC(MOST_CPUS);
    const size_t size = CPU_ALLOC_SIZE(MOST_CPUS);
    pthread_attr_t attributes;
    pthread_t thread;
    if (worker->made)
        return 0;
    if (!where)
        return ENOMEM;
    CPU_ZERO_S(size, where);
    CPU_SET_S(worker->cpu, size, where);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int error = pthread_attr_setaffinity_np(&attributes, size, where);
    if (!error)
        error = pthread_create(&thread, &attributes, worker_main, worker);
    pthread_attr_destroy(&attributes);
    CPU_FREE(where);
    worker->made = !error;
    return error;
}

unsigned tasks_slots(void)
{
    pthread_once(&once, find_cpus);
    return count ? count : 1;
}

void tasks_set_policy(enum tasks_policy wanted)
{
    policy = wanted;
}

int tasks_run(unsigned n, void (*task)(unsigned, unsigned, void *), void *argument)
{
    const unsigned slots = tasks_slots();
    if (my_slot >= 0) {
        for (unsigned i = 0; i < n; i++)
            task(i, (unsigned)my_slot, argument);
        return 0;
    }
    int error = 0;
    pthread_mutex_lock(&one_at_a_time);
    if (n == 1) {
        my_slot = 0;
        task(0, 0, argument);
        my_slot = -1;
    } else if (n > 1) {
        unsigned wanted = n < slots ? n : slots, ready = 0;
        while (ready < wanted && (error = count ? make(&workers[ready]) : ENOMEM) == 0)
            ready++;
        run.task = task;
        run.argument = argument;
        run.n = n;
        atomic_store_explicit(&run.next, 0, memory_order_relaxed);
        atomic_store_explicit(&run.busy, ready, memory_order_relaxed);
        for (unsigned i = 0; i < ready; i++) {
            atomic_fetch_add_explicit(&workers[i].runs, 1, memory_order_release);
            futex(&workers[i].runs, FUTEX_WAKE_PRIVATE, 1);
        }
        for (uint32_t busy; (busy = atomic_load_explicit(&run.busy, memory_order_acquire)) != 0;)
            futex(&run.busy, FUTEX_WAIT_PRIVATE, busy);
        if (ready)
            error = 0;
    }
    pthread_mutex_unlock(&one_at_a_time);
    return error;
}

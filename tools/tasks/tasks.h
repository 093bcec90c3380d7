/*
 * Tasks spread over the processors, without preemption: as in multicore IncludeOS (section III), for programs.
 *
 * There is a worker for each processor that the process may use, pinned there and asleep, so that its processor halts. A run
 * wakes as many as there are tasks for, each takes one task after the other and runs it to its end, and sleeps again. Workers are
 * made when they are first needed. Linked with -pthread.
 */
#pragma once

/* Which processors are used first, where two are siblings of one core. */
enum tasks_policy {
    TASKS_SIBLINGS_LAST, /* one of each core first: fastest; the default */
    TASKS_SIBLINGS_FIRST /* whole cores first: the others stay asleep */
};

/*
 * Number of slots: of processors that the process might use when first asked. A task gets the number of its processor's slot,
 * in which nothing else runs at the same time; results are best kept in an array with one cache line for each slot.
 */
unsigned tasks_slots(void);

/* Says which processors are used first; to be called before anything else here. */
void tasks_set_policy(enum tasks_policy policy);

/*
 * Calls task(i, slot, argument) for each i from 0 to n-1, and returns when all have returned. A single task is run where the
 * caller is, and so are those that a task runs itself. One run at a time: others wait. Returns 0, or an errno if not a single
 * worker could be made; then no task was run.
 */
int tasks_run(unsigned n, void (*task)(unsigned i, unsigned slot, void *argument), void *argument);

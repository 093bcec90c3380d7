/* What the benchmark's parts share: system calls without a library around them, and how an operation is measured. */
#pragma once

#include <errno.h>
#include <stdint.h>
#include <sys/syscall.h>

/* One figure: its name on the command line and in every table, and what measures it. */
struct metric {
    const char *name;
    void (*run)(void);
};

/* Each file's metrics, ended by one without a name. */
extern const struct metric call_metrics[], disk_metrics[], file_metrics[], memory_metrics[], net_metrics[], process_metrics[], scale_metrics[], switch_metrics[],
    task_metrics[], time_metrics[], workload_metrics[];

/* Ends the metric: the system cannot run it. `what` is the call, `error` its errno. */
_Noreturn void not_available(const char *what, int error);

/* Marks the part of a run that bench/profile counts: a no-operation, known by its address. */
#define MARK_START() __asm__ volatile("nopl 0x0152414d(%%rax)" ::: "memory")
#define MARK_STOP() __asm__ volatile("nopl 0x0052414d(%%rax)" ::: "memory")

/* A raw system call's or a library call's result, or the end of the metric. */
#define CHECK(call)                                                                                                              \
    ({                                                                                                                           \
        __typeof__(call) result_ = (call);                                                                                       \
        if ((long)result_ == -1)                                                                                                 \
            not_available(#call, errno);                                                                                         \
        result_;                                                                                                                 \
    })

/* The clock of this run: instructions (the time-stamp counter under -icount) or nanoseconds. */
uint64_t now(void);

/* One system call by its instruction; the result is negative for an error, as the kernel returns it. */
static inline long sys6(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static inline long sys4(long number, long a, long b, long c, long d)
{
    register long r10 __asm__("r10") = d;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}

static inline long sys3(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

static inline long sys0(long number)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number) : "rcx", "r11", "memory");
    return result;
}

/* A measurement under way: batches of operations, as many operations in each as make the batch long enough. */
struct timing {
    uint64_t operations; /* in this batch */
    long failed;         /* negative once an operation's result was */
    uint64_t long_enough; /* what a batch is to take */
    int batch;            /* batches done; below zero while their size is sought */
};

/* Batches of this many operations, or 0 for as many as take long enough. */
struct timing timing_begin(uint64_t operations);
/* Batches twenty times as long, beginning the search with this many operations. */
struct timing timing_begin_long(uint64_t operations);
/* Whether another batch is to be run. */
int timing_next(struct timing *);
/* The batch is over, and took this long without what does not belong to it. */
void timing_end(struct timing *, uint64_t elapsed);

/*
 * Measures one operation, given as statements that see `timing`. The loop around it is measured at the start and subtracted.
 * A system call's result goes into RESULT(), which costs one instruction.
 */
#define RESULT(value) (timing.failed |= (value))
#define MEASURE(...)                                                                                                             \
    for (struct timing timing = timing_begin(0); timing_next(&timing);) {                                                        \
        const uint64_t operations_ = timing.operations, start_ = now();                                                          \
        for (uint64_t i_ = operations_; i_ != 0; i_--) {                                                                         \
            __asm__ volatile("" ::: "memory");                                                                                   \
            __VA_ARGS__;                                                                                                         \
        }                                                                                                                        \
        timing_end(&timing, now() - start_);                                                                                     \
    }

/* Measures whole batches of this many operations; the statements call timing_end(&timing, …) themselves. */
#define MEASURE_BATCHES(count, ...)                                                                                              \
    for (struct timing timing = timing_begin(count); timing_next(&timing);) {                                                    \
        __VA_ARGS__                                                                                                              \
    }

/* Loads the modules that a kernel needs for its devices, if there are any. */
void load_modules(void);

/* Runs a command line in bash, in a system's usual environment, which stays; a command that fails ends the metric. */
void prepare(const char *command);

/* Runs this thread on one processor only; false if there is no such processor. */
int pin(int cpu);

/* Timers, and a machine with nothing to do. */
#define _GNU_SOURCE
#include "bench.h"

#include <stdio.h>
#include <time.h>

/* How late a sleep until a point of time ends, the point being 200 microseconds ahead; in nanoseconds of the machine's clock. */
static void timer_latency(void)
{
    enum { SLEEPS = 50, AHEAD = 200000 };
    MEASURE_BATCHES(SLEEPS, {
        int64_t late = 0;
        for (int i = 0; i < SLEEPS; i++) {
            struct timespec until, woken;
            clock_gettime(CLOCK_MONOTONIC, &until);
            until.tv_nsec += AHEAD;
            until.tv_sec += until.tv_nsec / 1000000000;
            until.tv_nsec %= 1000000000;
            RESULT(sys4(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, (long)&until, 0));
            clock_gettime(CLOCK_MONOTONIC, &woken);
            late += (woken.tv_sec - until.tv_sec) * 1000000000 + woken.tv_nsec - until.tv_nsec;
        }
        timing_end(&timing, (uint64_t)late);
    });
}

/* Ten seconds in which no program has anything to do. The plugin of bench/profile counts how often a processor is woken. */
static void idle(void)
{
    const struct timespec second = {.tv_sec = 1}, ten = {.tv_sec = 10};
    CHECK(nanosleep(&second, NULL)); /* what the boot has left to do */
    MARK_START();
    CHECK(nanosleep(&ten, NULL));
    MARK_STOP();
    printf("bench: idle-wake-ups 0 0 0 1\n");
}

const struct metric time_metrics[] = {
    {"timer-latency", timer_latency},
    {"idle-wake-ups", idle},
    {0},
};

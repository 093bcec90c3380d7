/* Processes and threads: from the call that makes one to having waited for its end. */
#define _GNU_SOURCE
#include "bench.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void *nothing(void *argument)
{
    return argument;
}

/* A thread that does nothing, and joining it; the C library keeps its stack for the next. */
static void thread_join(void)
{
    MEASURE({
        pthread_t thread;
        int error = pthread_create(&thread, NULL, nothing, NULL);
        if (error)
            not_available("pthread_create", error);
        pthread_join(thread, NULL);
    });
}

/* A child that ends at once, and waiting for it. */
static void fork_exit(void)
{
    MEASURE({
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        RESULT(child);
        RESULT(sys4(SYS_wait4, child, 0, 0, 0));
    });
}

/* A child that becomes a static program of two instructions that ends at once, and waiting for it. */
static void fork_exec(void)
{
    static char *const arguments[] = {"/nothing", NULL};
    static char *const environment[] = {NULL};
    CHECK(access("/nothing", X_OK));
    MEASURE({
        pid_t child = fork();
        if (child == 0) {
            sys3(SYS_execve, (long)"/nothing", (long)arguments, (long)environment);
            _exit(1);
        }
        int status = 0;
        RESULT(child);
        RESULT(sys4(SYS_wait4, child, (long)&status, 0, 0));
        if (status != 0)
            not_available("execve", ENOEXEC);
    });
}

const struct metric process_metrics[] = {
    {"thread-join", thread_join},
    {"fork-exit", fork_exit},
    {"fork-exec", fork_exec},
    {0},
};

/* Files and directories; all of them lie in memory. */
#define _GNU_SOURCE
#include "bench.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads one byte of /dev/zero. */
static void read_byte(void)
{
    const int fd = CHECK(open("/dev/zero", O_RDONLY));
    char byte;
    MEASURE(RESULT(sys3(SYS_read, fd, (long)&byte, 1)));
}

/* Writes one byte to /dev/zero. */
static void write_byte(void)
{
    const int fd = CHECK(open("/dev/zero", O_WRONLY));
    char byte = 0;
    MEASURE(RESULT(sys3(SYS_write, fd, (long)&byte, 1)));
}

static const char file[] = "/tmp/file";

static void make_file(void)
{
    const int fd = CHECK(open(file, O_RDWR | O_CREAT, 0644));
    close(fd);
}

/* Opens and closes a file in tmpfs, by a path of two names. */
static void open_close(void)
{
    make_file();
    MEASURE({
        long fd = sys3(SYS_open, (long)file, O_RDONLY, 0);
        RESULT(fd);
        RESULT(sys3(SYS_close, fd, 0, 0));
    });
}

/* Asks for the attributes of the same file by its path. */
static void stat_path(void)
{
    struct stat attributes;
    make_file();
    MEASURE(RESULT(sys3(SYS_stat, (long)file, (long)&attributes, 0)));
}

const struct metric file_metrics[] = {
    {"read-byte", read_byte},
    {"write-byte", write_byte},
    {"open-close", open_close},
    {"stat", stat_path},
    {0},
};

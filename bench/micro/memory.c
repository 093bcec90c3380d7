/* Address spaces: mapping, faults, protection. */
#define _GNU_SOURCE
#include "bench.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 256 };

static void map_unmap(long length)
{
    MEASURE({
        long at = sys6(SYS_mmap, 0, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        RESULT(at);
        RESULT(sys3(SYS_munmap, at, length, 0));
    });
}

/* Maps and unmaps one anonymous page without touching it. */
static void mmap_4k(void)
{
    map_unmap(PAGE);
}

/* The same with 128 MiB. */
static void mmap_128m(void)
{
    map_unmap(128 << 20);
}

/* Touches the pages of fresh mappings, one after the other; a batch is one mapping, and only the touching counts. */
static void touch(int fd, int flags, int write)
{
    MEASURE_BATCHES(PAGES, {
        char *at = CHECK(mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, flags, fd, 0));
        uint64_t start = now();
        for (volatile char *page = at; page != at + PAGES * PAGE; page += PAGE) {
            if (write)
                *page = 1;
            else
                (void)*page;
        }
        timing_end(&timing, now() - start);
        CHECK(munmap(at, PAGES * PAGE));
    });
}

/* The first read of an anonymous page: the page of zeros is mapped. */
static void fault_read(void)
{
    touch(-1, MAP_PRIVATE | MAP_ANONYMOUS, 0);
}

/* The first write of an anonymous page: a frame is cleared and mapped. */
static void fault_write(void)
{
    touch(-1, MAP_PRIVATE | MAP_ANONYMOUS, 1);
}

/* The first write of each page of memory for which large pages were asked: one operation is one page of 4 KiB. */
static void fault_large(void)
{
    enum { LARGE = 2 << 20 };
    MEASURE_BATCHES(LARGE / PAGE, {
        char *around = CHECK(mmap(NULL, 2 * LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        char *at = (char *)(((uintptr_t)around + LARGE - 1) & -(uintptr_t)LARGE);
        CHECK(madvise(around, 2 * LARGE, MADV_HUGEPAGE));
        uint64_t start = now();
        for (volatile char *page = at; page != at + LARGE; page += PAGE)
            *page = 1;
        timing_end(&timing, now() - start);
        CHECK(munmap(around, 2 * LARGE));
    });
}

/* The first read of a page of a file that is in memory, mapped shared. */
static void fault_file(void)
{
    static char page[PAGE];
    const int fd = CHECK(open("/tmp/mapped", O_RDWR | O_CREAT, 0644));
    for (int i = 0; i < PAGES; i++)
        CHECK(write(fd, page, PAGE));
    touch(fd, MAP_SHARED, 0);
}

/* Makes a page that is in use read-only and writable again; one operation is one call. */
static void protect(void)
{
    char *at = CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    int protection = PROT_READ;
    *at = 1;
    MEASURE({
        RESULT(sys3(SYS_mprotect, (long)at, PAGE, protection));
        protection ^= PROT_WRITE;
    });
}

enum { BLOCK = 1 << 20, AREA = 32 << 20 };

/* Blocks of 1 MiB, taken in turn from an area that no cache of the emulated machine's time holds. */
static char *area(void)
{
    char *at = CHECK(mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    memset(at, 1, AREA);
    return at;
}

/* Reads a MiB word by word. */
static void memory_read(void)
{
    const char *start = area();
    size_t at = 0;
    uint64_t sum = 0;
    MEASURE({
        const uint64_t *words = (const uint64_t *)(start + at);
        for (size_t i = 0; i < BLOCK / sizeof *words; i++)
            sum += words[i];
        __asm__ volatile("" : "+r"(sum));
        at = (at + BLOCK) % AREA;
    });
}

/* Writes a MiB. */
static void memory_write(void)
{
    char *start = area();
    size_t at = 0;
    MEASURE({
        memset(start + at, 2, BLOCK);
        at = (at + BLOCK) % AREA;
    });
}

/* Copies a MiB. */
static void memory_copy(void)
{
    char *start = area();
    size_t at = 0;
    MEASURE({
        memcpy(start + at, start + (at + AREA / 2) % AREA, BLOCK);
        at = (at + BLOCK) % AREA;
    });
}

const struct metric memory_metrics[] = {
    {"mmap-4k", mmap_4k},       {"mmap-128m", mmap_128m},   {"fault-read", fault_read},
    {"fault-write", fault_write}, {"fault-large", fault_large}, {"fault-file", fault_file}, {"mprotect", protect},
    {"memory-read", memory_read}, {"memory-write", memory_write}, {"memory-copy", memory_copy},
    {0},
};

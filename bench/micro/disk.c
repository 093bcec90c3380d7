/*
 * Disks: one of virtio (vda), one with an ext4 file system (vdb), and one of NVMe.
 *
 * Who waits for a disk sleeps, and the clock of instructions goes on in what runs instead. So a process of the lowest class spins
 * all the time and counts its turns, and those are left out. What remains is what the kernel and this program execute: the call,
 * the driver, the interrupt, and the switches to that process and back.
 */
#define _GNU_SOURCE
#include "bench.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCK = 4096 };
/* Operations of a batch, of each thread. */
enum { BATCH = 64 };
/* Threads that have a request each. */
enum { DEPTH = 32 };
/* Looks for a disk that a module brings, a tenth of a second each. */
enum { PATIENCE = 300 };

#define VIRTIO "/dev/vda"
#define EXT4 "/dev/vdb"
#define NVME "/dev/nvme0n1"
#define ROOT "/tmp/ext4"

/* Turns of the process that spins, of two instructions. */
static volatile uint64_t *turns;

/* Instructions since some moment, without those that were spun. */
static uint64_t worked(void)
{
    return now() - 2 * *turns;
}

/* Brings the disks, and begins to spin beside. */
static void begin(const char *disk)
{
    load_modules();
    mkdir("/dev", 0755);
    mount("devtmpfs", "/dev", "devtmpfs", 0, NULL); /* where the system has not done it */
    for (int look = 0; access(disk, F_OK) != 0; look++) {
        if (look == PATIENCE)
            not_available(disk, ENODEV);
        usleep(100000);
    }
    turns = CHECK(mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    *turns = 0;
    if (CHECK(fork()) == 0) {
        const struct sched_param none = {0};
        CHECK(sched_setscheduler(0, SCHED_IDLE, &none));
        __asm__ volatile("1: incq (%0)\n jmp 1b" : : "r"(turns) : "memory");
    }
}

/* Measures batches of an operation that sees `n`, its number in the batch; `after` each batch, other things are done. */
#define MEASURE_DISK(operation, after)                                                                                           \
    MEASURE_BATCHES(BATCH, {                                                                                                     \
        const uint64_t start = worked();                                                                                         \
        for (long n = 0; n < BATCH; n++)                                                                                         \
            RESULT(operation);                                                                                                   \
        timing_end(&timing, worked() - start);                                                                                   \
        after;                                                                                                                   \
    })

static char *buffer(void)
{
    char *bytes = aligned_alloc(BLOCK, BLOCK);
    if (!bytes)
        not_available("aligned_alloc", ENOMEM);
    memset(bytes, 7, BLOCK);
    return bytes;
}

/* The result of a call that was to transfer a block: negative if it did not. */
static long whole(long result)
{
    return result == BLOCK || result < 0 ? result : -EIO;
}

/* Transfers a block at a time, one after the other. */
static void transfer(const char *disk, long call, int flags)
{
    begin(disk);
    char *bytes = buffer();
    const int fd = CHECK(open(disk, O_RDWR | flags));
    MEASURE_DISK(whole(sys4(call, fd, (long)bytes, BLOCK, n * BLOCK)), );
}

static void virtio_read(void) { transfer(VIRTIO, SYS_pread64, O_DIRECT); }
static void virtio_write(void) { transfer(VIRTIO, SYS_pwrite64, O_DIRECT); }
static void nvme_read(void) { transfer(NVME, SYS_pread64, O_DIRECT); }
static void nvme_write(void) { transfer(NVME, SYS_pwrite64, O_DIRECT); }

/* Threads that transfer together, a batch each. */
static struct {
    const char *disk;
    long call;
    uint32_t round, left; /* futexes: batches begun; threads that have not ended theirs */
    long failed;
} deep;

static void *transfer_beside(void *number)
{
    char *bytes = buffer();
    const int fd = CHECK(open(deep.disk, O_RDWR | O_DIRECT));
    const long first = (long)number * BATCH;
    for (uint32_t round = 0;; round++) {
        while (__atomic_load_n(&deep.round, __ATOMIC_ACQUIRE) == round)
            sys4(SYS_futex, (long)&deep.round, FUTEX_WAIT_PRIVATE, round, 0);
        long failed = 0;
        for (long n = 0; n < BATCH; n++)
            failed |= whole(sys4(deep.call, fd, (long)bytes, BLOCK, (first + n) * BLOCK));
        __atomic_fetch_or(&deep.failed, failed, __ATOMIC_RELAXED);
        if (__atomic_sub_fetch(&deep.left, 1, __ATOMIC_ACQ_REL) == 0)
            sys3(SYS_futex, (long)&deep.left, FUTEX_WAKE_PRIVATE, 1);
    }
    return NULL;
}

/* As many requests at once as there are threads. */
static void transfer_deep(const char *disk, long call)
{
    begin(disk);
    deep.disk = disk;
    deep.call = call;
    for (long n = 0; n < DEPTH; n++) {
        pthread_t thread;
        if ((errno = pthread_create(&thread, NULL, transfer_beside, (void *)n)) != 0)
            not_available("pthread_create", errno);
    }
    MEASURE_BATCHES(DEPTH * BATCH, {
        const uint64_t start = worked();
        deep.left = DEPTH;
        __atomic_fetch_add(&deep.round, 1, __ATOMIC_RELEASE);
        sys3(SYS_futex, (long)&deep.round, FUTEX_WAKE_PRIVATE, DEPTH);
        for (uint32_t left; (left = __atomic_load_n(&deep.left, __ATOMIC_ACQUIRE)) != 0;)
            sys4(SYS_futex, (long)&deep.left, FUTEX_WAIT_PRIVATE, left, 0);
        RESULT(deep.failed);
        timing_end(&timing, worked() - start);
    })
}

static void virtio_read_deep(void) { transfer_deep(VIRTIO, SYS_pread64); }
static void virtio_write_deep(void) { transfer_deep(VIRTIO, SYS_pwrite64); }
static void nvme_read_deep(void) { transfer_deep(NVME, SYS_pread64); }
static void nvme_write_deep(void) { transfer_deep(NVME, SYS_pwrite64); }

/* The name of file `n`. */
static const char *name(long n)
{
    static char text[8];
    text[0] = 'f';
    text[1] = (char)('a' + n / 26);
    text[2] = (char)('a' + n % 26);
    return text;
}

static long unlink_one(long n)
{
    return sys3(SYS_unlink, (long)name(n), 0, 0);
}

/* Mounts the file system, without the files that an earlier metric has left. */
static void mount_ext4(void)
{
    begin(EXT4);
    mkdir(ROOT, 0755);
    umount(ROOT); /* an earlier metric's */
    CHECK(mount(EXT4, ROOT, "ext4", 0, ""));
    CHECK(chdir(ROOT));
    for (long n = 0; n < BATCH; n++)
        unlink_one(n);
}

/* A file with a batch of blocks, all of them in the cache. */
static int cached(const char *path, const char *bytes)
{
    const int fd = CHECK(open(path, O_RDWR | O_CREAT, 0644));
    for (int n = 0; n < BATCH; n++)
        CHECK(pwrite(fd, bytes, BLOCK, (off_t)n * BLOCK));
    return fd;
}

static void ext4_read(void)
{
    mount_ext4();
    char *bytes = buffer();
    const int fd = cached("read", bytes);
    MEASURE_DISK(whole(sys4(SYS_pread64, fd, (long)bytes, BLOCK, n * BLOCK)), );
}

static void ext4_write(void)
{
    mount_ext4();
    char *bytes = buffer();
    const int fd = cached("written", bytes);
    MEASURE_DISK(whole(sys4(SYS_pwrite64, fd, (long)bytes, BLOCK, n * BLOCK)), );
}

/* Touches each page of a file that is in the cache and has been mapped anew. */
static void ext4_touch(int to_write)
{
    mount_ext4();
    char *bytes = buffer();
    const int fd = cached("mapped", bytes);
    MEASURE_BATCHES(BATCH, {
        volatile char *map = CHECK(mmap(NULL, BATCH * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
        const uint64_t start = worked();
        for (long n = 0; n < BATCH; n++) {
            if (to_write)
                map[n * BLOCK] = 7;
            else
                RESULT(map[n * BLOCK] - 7);
        }
        timing_end(&timing, worked() - start);
        CHECK(munmap((void *)map, BATCH * BLOCK));
    })
}

static void ext4_fault(void) { ext4_touch(0); }
static void ext4_fault_write(void) { ext4_touch(1); }

static long create(long n)
{
    const long fd = sys3(SYS_open, (long)name(n), O_WRONLY | O_CREAT | O_EXCL, 0644);
    return fd < 0 ? fd : sys3(SYS_close, fd, 0, 0);
}

/* Does it to each file of a batch. */
static void for_all(long (*what)(long))
{
    for (long n = 0; n < BATCH; n++)
        if (what(n) < 0)
            not_available("between batches", EIO);
}

static void ext4_create(void)
{
    mount_ext4();
    MEASURE_DISK(create(n), for_all(unlink_one));
}

static void ext4_unlink(void)
{
    mount_ext4();
    for_all(create);
    MEASURE_DISK(unlink_one(n), for_all(create));
}

static void ext4_rename(void)
{
    mount_ext4();
    create(0);
    static const char *const names[] = {"faa", "other"};
    MEASURE_DISK(sys3(SYS_rename, (long)names[n % 2], (long)names[1 - n % 2], 0), );
}

/* Writes a page of a file again, and has it on the medium. */
static void ext4_fsync(void)
{
    mount_ext4();
    char *bytes = buffer();
    const int fd = cached("synced", bytes);
    MEASURE_DISK(whole(sys4(SYS_pwrite64, fd, (long)bytes, BLOCK, 0)) | sys3(SYS_fsync, fd, 0, 0), );
}

/* Makes a file longer by a page, and has it on the medium. */
static void ext4_append(void)
{
    mount_ext4();
    char *bytes = buffer();
    const int fd = CHECK(open("appended", O_WRONLY | O_CREAT | O_TRUNC, 0644));
    MEASURE_DISK(whole(sys4(SYS_pwrite64, fd, (long)bytes, BLOCK, n * BLOCK)) | sys3(SYS_fsync, fd, 0, 0),
                 CHECK(ftruncate(fd, 0)));
}

/* Mounts the file system and takes it away again. */
static void ext4_mount(void)
{
    enum { TIMES = 4 };
    mount_ext4();
    CHECK(chdir("/"));
    CHECK(umount(ROOT));
    MEASURE_BATCHES(TIMES, {
        const uint64_t start = worked();
        for (int n = 0; n < TIMES; n++) {
            CHECK(mount(EXT4, ROOT, "ext4", 0, ""));
            CHECK(umount(ROOT));
        }
        timing_end(&timing, worked() - start);
    })
}

/* Runs an applet of busybox with three words at most. */
static void busybox(const char *applet, const char *first, const char *second, const char *third)
{
    const pid_t child = CHECK(fork());
    if (child == 0) {
        execl("/bin/busybox", "busybox", applet, first, second, third, NULL);
        _exit(127);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0));
    if (status != 0)
        not_available(applet, status == 127 << 8 ? ENOENT : EIO);
}

/* Unpacks an archive of small files in directories, and has all of it on the medium: per file. */
static void ext4_untar(void)
{
    enum { DIRECTORIES = 8, FILES = 32 };
    mount_ext4();
    char *bytes = buffer();
    CHECK(chdir("/tmp"));
    mkdir("tree", 0755);
    for (int directory = 0; directory < DIRECTORIES; directory++) {
        char path[32];
        snprintf(path, sizeof path, "tree/%d", directory);
        CHECK(mkdir(path, 0755));
        for (int file = 0; file < FILES; file++) {
            snprintf(path, sizeof path, "tree/%d/%d", directory, file);
            const int fd = CHECK(open(path, O_WRONLY | O_CREAT, 0644));
            for (int part = 0; part <= file % 4; part++)
                CHECK(write(fd, bytes, 3000));
            CHECK(close(fd));
        }
    }
    busybox("tar", "cf", "archive.tar", "tree");
    CHECK(chdir(ROOT));
    MEASURE_BATCHES(DIRECTORIES * FILES, {
        const uint64_t start = worked();
        busybox("tar", "xf", "/tmp/archive.tar", NULL);
        sync();
        timing_end(&timing, worked() - start);
        busybox("rm", "-r", "tree", NULL);
        sync();
    })
}

const struct metric disk_metrics[] = {
    {"disk-virtio-read", virtio_read},
    {"disk-virtio-write", virtio_write},
    {"disk-virtio-read-32", virtio_read_deep},
    {"disk-virtio-write-32", virtio_write_deep},
    {"disk-nvme-read", nvme_read},
    {"disk-nvme-write", nvme_write},
    {"disk-nvme-read-32", nvme_read_deep},
    {"disk-nvme-write-32", nvme_write_deep},
    {"disk-ext4-read", ext4_read},
    {"disk-ext4-write", ext4_write},
    {"disk-ext4-fault", ext4_fault},
    {"disk-ext4-fault-write", ext4_fault_write},
    {"disk-ext4-create", ext4_create},
    {"disk-ext4-unlink", ext4_unlink},
    {"disk-ext4-rename", ext4_rename},
    {"disk-ext4-fsync", ext4_fsync},
    {"disk-ext4-append", ext4_append},
    {"disk-ext4-mount", ext4_mount},
    {"disk-ext4-untar", ext4_untar},
    {0},
};

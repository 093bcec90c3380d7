/*
 * A plugin for QEMU that counts, for each pair of marks of bench/isolation, the instructions that the marking processor executes
 * between them; what the other processors execute does not count. At the end it writes lines of `KIND COUNT`, in the order in which
 * the operations ended, to the file given as out=FILE.
 *
 * Instructions are counted by the block, before it is executed: one that an exception leaves half-way counts as a whole. Of a repeated
 * string instruction each turn counts under -icount, and without it only some. Nothing is shared by processors but the list of samples, and only one marks at a time.
 */
#include "qemu.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROCESSORS = 64, MOST = 1 << 20 };

/* A processor's own line of the cache. */
static struct processor {
    uint64_t executed, began;
    uintptr_t kind;
    char apart[40];
} processors[PROCESSORS];

static struct sample {
    uint64_t count;
    uintptr_t kind;
} samples[MOST];
static size_t taken;
static const char *out;

static void executed(unsigned vcpu, void *data)
{
    processors[vcpu % PROCESSORS].executed += (uintptr_t)data;
}

static void marked(unsigned vcpu, void *data)
{
    struct processor *own = &processors[vcpu % PROCESSORS];
    const uintptr_t kind = (uintptr_t)data;
    if (kind) {
        own->kind = kind;
        own->began = own->executed;
    } else if (own->kind) {
        const size_t at = __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
        if (at < MOST)
            samples[at] = (struct sample){.count = own->executed - own->began, .kind = own->kind};
        own->kind = 0;
    }
}

static void translated(plugin_id id, struct qemu_plugin_tb *tb)
{
    (void)id;
    static const uint8_t mark[] = {0x0f, 0x1f, 0x80, 0x4d, 0x41, 0x49}; /* the address's last byte is the kind */
    const size_t length = qemu_plugin_tb_n_insns(tb);
    size_t before = 0;
    for (size_t i = 0; i < length; i++, before++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        uint8_t bytes[7] = {0};
        qemu_plugin_insn_data(insn, bytes, sizeof bytes);
        if (memcmp(bytes, mark, sizeof mark) != 0)
            continue;
        if (before)
            qemu_plugin_register_vcpu_insn_exec_cb(insn, executed, NO_REGISTERS, (void *)before);
        qemu_plugin_register_vcpu_insn_exec_cb(insn, marked, NO_REGISTERS, (void *)(uintptr_t)bytes[6]);
        before = (size_t)-1;
    }
    if (before == length)
        qemu_plugin_register_vcpu_tb_exec_cb(tb, executed, NO_REGISTERS, (void *)length);
    else if (before)
        qemu_plugin_register_vcpu_insn_exec_cb(qemu_plugin_tb_get_insn(tb, length - 1), executed, NO_REGISTERS, (void *)before);
}

static void finished(plugin_id id, void *data)
{
    (void)id, (void)data;
    FILE *file = fopen(out, "w");
    if (!file) {
        perror(out);
        return;
    }
    for (size_t at = 0; at < taken && at < MOST; at++)
        fprintf(file, "%" PRIuPTR " %" PRIu64 "\n", samples[at].kind, samples[at].count);
    fclose(file);
}

EXPORT int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
    (void)info;
    if (argc != 1 || strncmp(argv[0], "out=", 4) != 0)
        return 1;
    out = strdup(argv[0] + 4);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, finished, NULL);
    return 0;
}

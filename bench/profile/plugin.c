/*
 * A plugin for QEMU that counts, between two marks in the benchmark, how often each instruction is executed, and how often a
 * processor wakes from sleep. At the end it writes `resumed COUNT` and lines of `ADDRESS COUNT` to the file given as out=FILE,
 * with a third word `rep` for string instructions that are repeated: each turn of theirs is counted.
 *
 * The counts of instructions are exact with one processor; with more, which then run at the same time, some are lost.
 *
 * A mark is a no-operation with an address that means something here: nopl START(%rax) or nopl STOP(%rax); see bench/micro/bench.h.
 */
#include "qemu.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One instruction by its address; the same one may be translated many times. */
struct count {
    uint64_t address, executed;
    int repeats;
    struct count *next;
};

enum { BUCKETS = 1 << 16 };
static struct count *buckets[BUCKETS];
static int counting;
static uint64_t wake_ups;
static const char *out;

static struct count *find(uint64_t address)
{
    struct count **bucket = &buckets[(address ^ address >> 16) % BUCKETS];
    for (struct count *count = *bucket; count; count = count->next)
        if (count->address == address)
            return count;
    struct count *count = calloc(1, sizeof *count);
    if (!count)
        abort();
    *count = (struct count){.address = address, .next = *bucket};
    return *bucket = count;
}

static void executed(unsigned vcpu, void *data)
{
    (void)vcpu;
    struct count *count = data;
    count->executed += counting;
}

static void marked(unsigned vcpu, void *data)
{
    (void)vcpu;
    counting = data != NULL;
}

static void resumed(plugin_id id, unsigned vcpu)
{
    (void)id, (void)vcpu;
    __atomic_fetch_add(&wake_ups, (uint64_t)counting, __ATOMIC_RELAXED);
}

/* rep movs and rep stos, of any width. */
static int repeats(const uint8_t *bytes)
{
    const uint8_t code = (bytes[1] & 0xf0) == 0x40 ? bytes[2] : bytes[1]; /* past a REX prefix */
    return bytes[0] == 0xf3 && (code == 0xa4 || code == 0xa5 || code == 0xaa || code == 0xab);
}

static void translated(plugin_id id, struct qemu_plugin_tb *tb)
{
    (void)id;
    static const uint8_t mark[] = {0x0f, 0x1f, 0x80, 0x4d, 0x41, 0x52}; /* the address's last byte tells which */
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        uint8_t bytes[7] = {0};
        qemu_plugin_insn_data(insn, bytes, sizeof bytes);
        if (memcmp(bytes, mark, sizeof mark) == 0)
            qemu_plugin_register_vcpu_insn_exec_cb(insn, marked, NO_REGISTERS, bytes[6] ? &counting : NULL);
        else {
            struct count *count = find(qemu_plugin_insn_vaddr(insn));
            count->repeats = repeats(bytes);
            qemu_plugin_register_vcpu_insn_exec_cb(insn, executed, NO_REGISTERS, count);
        }
    }
}

static void finished(plugin_id id, void *data)
{
    (void)id, (void)data;
    FILE *file = fopen(out, "w");
    if (!file) {
        perror(out);
        return;
    }
    fprintf(file, "resumed %" PRIu64 "\n", wake_ups);
    for (size_t bucket = 0; bucket < BUCKETS; bucket++)
        for (struct count *count = buckets[bucket]; count; count = count->next)
            if (count->executed)
                fprintf(file, "%" PRIx64 " %" PRIu64 "%s\n", count->address, count->executed, count->repeats ? " rep" : "");
    fclose(file);
}

EXPORT int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
    (void)info;
    if (argc != 1 || strncmp(argv[0], "out=", 4) != 0)
        return 1;
    out = strdup(argv[0] + 4);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_vcpu_resume_cb(id, resumed);
    qemu_plugin_register_atexit_cb(id, finished, NULL);
    return 0;
}

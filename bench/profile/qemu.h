/*
 * Of QEMU's interface to plugins what these use. Its header is not in its package, so the functions are declared here as its
 * documentation (docs/devel/tcg-plugins) has them.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef uint64_t plugin_id;
enum { NO_REGISTERS = 0 }; /* QEMU_PLUGIN_CB_NO_REGS */

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *), int, void *);
void qemu_plugin_register_vcpu_resume_cb(plugin_id, void (*)(plugin_id, unsigned));
void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *, void *, size_t);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, void (*)(unsigned, void *), int, void *);

#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = 2;

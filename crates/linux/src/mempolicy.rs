//! Where memory comes from: `mbind(2)`, `set_mempolicy(2)` and their relatives. An instance's memory is one node, so that there is
//! nothing to choose: what is asked for is checked, and remembered for the thread or the memory.

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use vm::PAGE_SIZE;

use crate::uaccess::UserPtr;
use crate::{SysResult, Task, process_table};

const MPOL_DEFAULT: u32 = 0;
const MPOL_PREFERRED: u32 = 1;
const MPOL_BIND: u32 = 2;
const MPOL_LOCAL: u32 = 4;
const MPOL_PREFERRED_MANY: u32 = 5;
const MODE_FLAGS: u32 = 0xe000;
const MPOL_F_NODE: u32 = 1;
const MPOL_F_ADDR: u32 = 2;
const MPOL_F_MEMS_ALLOWED: u32 = 4;
/// Strict, move, move what others use, too.
const MPOL_MF_VALID: u32 = 7;
const MPOL_MF_MOVE_ALL: u32 = 4;
/// The most bits of a mask of nodes.
const MOST_NODES: usize = 4096 * 8;

/// The policy of a thread.
#[derive(Clone, Copy, Default)]
pub(crate) struct MemoryPolicy {
    mode: u32,
    /// Whether the one node is in its mask.
    node: bool,
}

impl MemoryPolicy {
    /// As areas remember it.
    fn word(self) -> u32 {
        self.mode | if self.node { NODE } else { 0 }
    }

    fn of_word(word: u32) -> Self {
        Self { mode: word & !NODE, node: word & NODE != 0 }
    }
}

/// How `numa_maps` tells a policy that memory has.
pub(crate) fn shown(word: u32) -> &'static str {
    let policy = MemoryPolicy::of_word(word);
    match (policy.mode & !MODE_FLAGS, policy.node) {
        (MPOL_PREFERRED, true) => "prefer:0",
        (MPOL_BIND, _) => "bind:0",
        (3, _) => "interleave:0",
        (MPOL_PREFERRED_MANY, _) => "prefer (many):0",
        (MPOL_LOCAL | MPOL_PREFERRED, _) => "local",
        _ => "default",
    }
}

/// A bit that no mode has.
const NODE: u32 = 1 << 31;

/// Whether a mask of nodes has the one there is.
///
/// # Errors
/// `EINVAL` if it has others.
fn read_mask(mask: usize, bits: usize) -> Result<bool, Errno> {
    if mask == 0 || bits <= 1 {
        return Ok(false);
    }
    // The number of bits counts one more than there are.
    let bits = bits - 1;
    if bits > MOST_NODES {
        return Err(Errno::EINVAL);
    }
    let mut node = false;
    for word in 0..bits.div_ceil(64) {
        let mut value = UserPtr::<u64>::new(mask).add(word).read()?;
        if bits - word * 64 < 64 {
            value &= (1 << (bits - word * 64)) - 1;
        }
        if word == 0 {
            node = value & 1 != 0;
            value &= !1;
        }
        if value != 0 {
            return Err(Errno::EINVAL);
        }
    }
    Ok(node)
}

fn write_mask(mask: usize, bits: usize, node: bool) -> Result<(), Errno> {
    if mask == 0 {
        return Ok(());
    }
    if bits == 0 || bits > MOST_NODES {
        return Err(Errno::EINVAL);
    }
    for word in 0..bits.div_ceil(64) {
        UserPtr::<u64>::new(mask).add(word).write(&u64::from(word == 0 && node))?;
    }
    Ok(())
}

/// A policy as a call gives it.
fn read_policy(mode: u32, mask: usize, bits: usize) -> Result<MemoryPolicy, Errno> {
    let node = read_mask(mask, bits)?;
    let fits = match mode & !MODE_FLAGS {
        MPOL_DEFAULT | MPOL_LOCAL => !node,
        MPOL_PREFERRED => true,
        2..=MPOL_PREFERRED_MANY => node,
        _ => false,
    };
    if fits { Ok(MemoryPolicy { mode, node }) } else { Err(Errno::EINVAL) }
}

/// `set_mempolicy(2)`
pub fn sys_set_mempolicy(task: &Task, mode: u32, mask: usize, bits: usize) -> SysResult {
    *task.memory_policy.lock() = read_policy(mode, mask, bits)?;
    Ok(0)
}

/// `get_mempolicy(2)`
pub fn sys_get_mempolicy(task: &Task, mode: UserPtr<u32>, mask: usize, bits: usize, addr: usize, flags: u32) -> SysResult {
    if flags & !(MPOL_F_NODE | MPOL_F_ADDR | MPOL_F_MEMS_ALLOWED) != 0 || flags & MPOL_F_ADDR == 0 && addr != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & MPOL_F_MEMS_ALLOWED != 0 {
        if flags != MPOL_F_MEMS_ALLOWED {
            return Err(Errno::EINVAL);
        }
        return write_mask(mask, bits, true).map(|()| 0);
    }
    let policy = if flags & MPOL_F_ADDR != 0 {
        let policies = task.process().memory()?.policies(addr - addr % PAGE_SIZE, PAGE_SIZE).map_err(|_| Errno::EFAULT)?;
        MemoryPolicy::of_word(*policies.first().ok_or(Errno::EFAULT)?)
    } else {
        *task.memory_policy.lock()
    };
    // Asked for a node, there is one answer.
    mode.write_optional(&if flags & MPOL_F_NODE != 0 { 0 } else { policy.mode })?;
    write_mask(mask, bits, policy.node)?;
    Ok(0)
}

/// `mbind(2)`
pub fn sys_mbind(task: &Task, addr: usize, len: usize, mode: u32, mask: usize, bits: usize, flags: u32) -> SysResult {
    if flags & !MPOL_MF_VALID != 0 || !addr.is_multiple_of(PAGE_SIZE) {
        return Err(Errno::EINVAL);
    }
    if flags & MPOL_MF_MOVE_ALL != 0 && !task.cred().capable(sys::CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    let policy = read_policy(mode, mask, bits)?;
    let len = len.checked_next_multiple_of(PAGE_SIZE).ok_or(Errno::EINVAL)?;
    if len > 0 {
        task.process().memory()?.set_policy(addr, len, policy.word())?;
    }
    Ok(0)
}

/// `set_mempolicy_home_node(2)`: it is the one there is.
pub fn sys_set_mempolicy_home_node(task: &Task, addr: usize, len: usize, node: usize, flags: usize) -> SysResult {
    if flags != 0 || node != 0 || !addr.is_multiple_of(PAGE_SIZE) {
        return Err(Errno::EINVAL);
    }
    let end = addr.checked_add(len).ok_or(Errno::EINVAL)?;
    let policies = task.process().memory()?.policies(addr, end - addr)?;
    if len == 0 {
        return Ok(0);
    }
    let modes = policies.iter().map(|&word| MemoryPolicy::of_word(word).mode & !MODE_FLAGS).filter(|mode| *mode != MPOL_DEFAULT);
    let mut result = Err(Errno::ENOENT);
    for mode in modes {
        if !matches!(mode, MPOL_BIND | MPOL_PREFERRED_MANY) {
            return Err(Errno::EOPNOTSUPP);
        }
        result = Ok(0);
    }
    result
}

/// `migrate_pages(2)`: they are where they can be.
pub fn sys_migrate_pages(task: &Task, pid: i32, bits: usize, from: usize, to: usize) -> SysResult {
    read_mask(from, bits)?;
    let allowed = read_mask(to, bits)?;
    if pid != 0 && pid != task.pid() {
        let process = process_table::find_any(pid)?;
        if !task.cred().may_trace(&process.credentials(), process.is_dumpable()) {
            return Err(Errno::EPERM);
        }
    }
    if allowed || task.cred().capable(sys::CAP_SYS_NICE) { Ok(0) } else { Err(Errno::EPERM) }
}

/// `move_pages(2)`: tells for each page whether it is there.
pub fn sys_move_pages(
    task: &Task,
    pid: i32,
    count: usize,
    pages: UserPtr<u64>,
    nodes: UserPtr<i32>,
    status: UserPtr<i32>,
    flags: u32,
) -> SysResult {
    if flags & !(MPOL_MF_VALID & !1) != 0 {
        return Err(Errno::EINVAL);
    }
    let process = if pid == 0 { task.process().clone() } else { process_table::find_any(pid)? };
    if pid != 0 && pid != task.pid() && !task.cred().may_trace(&process.credentials(), process.is_dumpable()) {
        return Err(Errno::EPERM);
    }
    let space = process.memory()?;
    for i in 0..count {
        if task.must_end() {
            return Err(Errno::EINTR);
        }
        let addr = pages.add(i).read()? as usize;
        if !nodes.is_null() && nodes.add(i).read()? != 0 {
            return Err(Errno::ENODEV);
        }
        let found = match space.present_pages(addr - addr % PAGE_SIZE, PAGE_SIZE) {
            Ok(there) if there == [1] => 0,
            Ok(there) if there.is_empty() => -Errno::EFAULT.raw(),
            Ok(_) => -Errno::ENOENT.raw(),
            Err(_) => -Errno::EFAULT.raw(),
        };
        status.add(i).write(&found)?;
    }
    Ok(0)
}

/// `pkey_alloc(2)`: the processor's protection keys are not used, as on one that has none.
pub fn sys_pkey_alloc(_: &Task, flags: u64, rights: u64) -> SysResult {
    if flags != 0 || rights & !3 != 0 { Err(Errno::EINVAL) } else { Err(Errno::ENOSPC) }
}

/// `pkey_free(2)`: there is none to give back.
pub fn sys_pkey_free(_: &Task, _key: i32) -> SysResult {
    Err(Errno::EINVAL)
}

/// `pkey_mprotect(2)`: without a key, or with that of all memory, it is `mprotect(2)`.
pub fn sys_pkey_mprotect(task: &Task, addr: usize, len: usize, prot: u32, key: i32) -> SysResult {
    if key == -1 || key == 0 { crate::mm::sys_mprotect(task, addr, len, prot) } else { Err(Errno::EINVAL) }
}

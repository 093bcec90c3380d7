//! Where memory comes from: `mbind(2)`, `set_mempolicy(2)` and their relatives. An instance's
//! memory is one node, so that there is nothing to choose: what is asked for is checked, and
//! remembered for the thread or the memory.

use alloc::sync::Arc;

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use uapi::pid::Tid;
use uapi::user_addr::UserAddr;
use vm::{AccessKind, AddressSpace, PAGE_SIZE};

use crate::mm::mmap;
use crate::process::{access, process_table};
use crate::state::credentials::TraceCreds;
use crate::state::mempolicy::{
    MODE_FLAGS, MPOL_BIND, MPOL_DEFAULT, MPOL_F_NUMA_BALANCING, MPOL_F_RELATIVE_NODES,
    MPOL_F_STATIC_NODES, MPOL_INTERLEAVE, MPOL_PREFERRED_MANY, MemoryPolicy, Nodes,
};
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task};

const MPOL_F_NODE: u32 = 1;
const MPOL_F_ADDR: u32 = 2;
const MPOL_F_MEMS_ALLOWED: u32 = 4;
/// Strict, move, move what others use, too.
const MPOL_MF_VALID: u32 = 7;
const MPOL_MF_MOVE: u32 = 2;
const MPOL_MF_MOVE_ALL: u32 = 4;
/// Most nodes that a mask may name, as Debian's Linux has it.
const MAX_NODES: usize = 1024;
/// Most bits of a mask of nodes: a page of them.
const MAX_MASK_BITS: usize = PAGE_SIZE * 8;

impl Nodes {
    /// Reads a mask with so many bits and one; those that no node can have must be 0.
    ///
    /// # Errors
    /// `EFAULT`, `EINVAL`.
    fn read(mask: UserAddr, bits: usize) -> Result<Self, Errno> {
        let bits = bits.wrapping_sub(1);
        let mut nodes = Self::default();
        if bits == 0 || mask.is_null() {
            return Ok(nodes);
        }
        if bits > MAX_MASK_BITS {
            return Err(Errno::EINVAL);
        }
        // What is too much is looked at first, from the end.
        for word in (0..bits.div_ceil(64)).rev() {
            let mut value = UserPtr::<u64>::new(mask).add(word).read()?;
            if word >= MAX_NODES / 64 {
                if value != 0 {
                    return Err(Errno::EINVAL);
                }
                continue;
            }
            if bits - word * 64 < 64 {
                value &= (1 << (bits - word * 64)) - 1;
            }
            if word == 0 {
                nodes.first = value;
            } else {
                nodes.others |= value != 0;
            }
        }
        Ok(nodes)
    }
}

/// Gives a program a mask of so many bits and one; behind the first ones there is nothing in it.
fn write_mask(mask: UserAddr, bits: usize, nodes: u64) -> Result<(), Errno> {
    let bytes = bits.wrapping_sub(1).div_ceil(64) * 8;
    if bytes > PAGE_SIZE {
        return Err(Errno::EINVAL);
    }
    let zeros = [0; 64];
    for at in (8..bytes).step_by(zeros.len()) {
        uaccess::write_bytes(mask.wrapping_add(at), &zeros[..zeros.len().min(bytes - at)])?;
    }
    uaccess::write_bytes(mask, &nodes.to_ne_bytes()[..bytes.min(8)])
}

/// Refuses modes that there are not, and flags that do not go with them.
fn check_mode(mode: u32) -> Result<(), Errno> {
    let (kind, flags) = (mode & !MODE_FLAGS, mode & MODE_FLAGS);
    let both = MPOL_F_STATIC_NODES | MPOL_F_RELATIVE_NODES;
    let wrong = kind > MPOL_PREFERRED_MANY
        || flags & both == both
        || flags & MPOL_F_NUMA_BALANCING != 0 && kind != MPOL_BIND;
    if wrong { Err(Errno::EINVAL) } else { Ok(()) }
}

/// `set_mempolicy(2)`: sets the caller's memory policy.
pub fn sys_set_mempolicy(task: &Task, mode: u32, mask: UserAddr, bits: usize) -> SysResult {
    check_mode(mode)?;
    *task.memory_policy.lock() = MemoryPolicy::new(mode, &Nodes::read(mask, bits)?)?;
    Ok(0)
}

/// `get_mempolicy(2)`: stores the memory policy of the caller or of an address.
pub fn sys_get_mempolicy(
    task: &Task,
    mode: UserPtr<u32>,
    mask: UserAddr,
    bits: usize,
    addr: UserAddr,
    flags: u64,
) -> SysResult {
    if !mask.is_null() && bits == 0 {
        return Err(Errno::EINVAL);
    }
    let known = MPOL_F_NODE | MPOL_F_ADDR | MPOL_F_MEMS_ALLOWED;
    let flags = u32::try_from(flags)
        .ok()
        .filter(|flags| flags & !known == 0)
        .ok_or(Errno::EINVAL)?;
    let (told, nodes) = policy_of(task, addr, flags)?;
    mode.write_optional(&told)?;
    if !mask.is_null() {
        write_mask(mask, bits, nodes)?;
    }
    Ok(0)
}

/// Answer of `get_mempolicy(2)`: a mode or a node, and the mask.
fn policy_of(task: &Task, addr: UserAddr, flags: u32) -> Result<(u32, u64), Errno> {
    if flags & MPOL_F_MEMS_ALLOWED != 0 {
        return if flags == MPOL_F_MEMS_ALLOWED {
            Ok((0, 1))
        } else {
            Err(Errno::EINVAL)
        };
    }
    let node = flags & MPOL_F_NODE != 0;
    if flags & MPOL_F_ADDR == 0 {
        let policy = *task.memory_policy.lock();
        // Where the next page will be from is known of those that take turns.
        if !addr.is_null() || node && policy.kind() != MPOL_INTERLEAVE {
            return Err(Errno::EINVAL);
        }
        return Ok((if node { 0 } else { policy.mode }, policy.nodes));
    }
    let space = task.process().require_space()?;
    let page = addr.page_align_down().raw();
    let policies = space
        .mempolicies(page, PAGE_SIZE)
        .map_err(|_| Errno::EFAULT)?;
    let policy = MemoryPolicy::of_word(*policies.first().ok_or(Errno::EFAULT)?);
    if !node {
        return Ok((policy.mode, policy.nodes));
    }
    // The page is brought in to see where it is.
    space
        .check_access(page, PAGE_SIZE, AccessKind::Read)
        .and_then(|()| space.populate(page, PAGE_SIZE, AccessKind::Read))
        .map_err(|_| Errno::EFAULT)?;
    Ok((0, policy.nodes))
}

/// The range of pages that some bytes are in. What ends beyond the last address is nothing when it
/// is rounded up, as on Linux.
///
/// # Errors
/// `EINVAL` if it does not begin with a page or goes round.
fn pages(addr: UserAddr, len: usize) -> Result<(usize, usize), Errno> {
    let len = vm::page_align_up(len).unwrap_or(0);
    let sound = addr.is_aligned(PAGE_SIZE) && addr.checked_add(len).is_some();
    if sound {
        Ok((addr.raw(), len))
    } else {
        Err(Errno::EINVAL)
    }
}

/// `mbind(2)`: sets the memory policy of a range.
pub fn sys_mbind(
    task: &Task,
    addr: UserAddr,
    len: usize,
    mode: u32,
    mask: UserAddr,
    bits: usize,
    flags: u32,
) -> SysResult {
    check_mode(mode)?;
    let nodes = Nodes::read(mask, bits)?;
    if flags & !MPOL_MF_VALID != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & MPOL_MF_MOVE_ALL != 0 && !task.cred().capable(sys::CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    let (addr, len) = pages(addr, len)?;
    if len > 0 {
        let policy = MemoryPolicy::new(mode, &nodes)?;
        // What goes back to the default may have holes.
        task.process().require_space()?.set_mempolicy(
            addr,
            len,
            policy.word(),
            policy == MemoryPolicy::default(),
        )?;
    }
    Ok(0)
}

/// `set_mempolicy_home_node(2)`: it is the one there is.
pub fn sys_set_mempolicy_home_node(
    task: &Task,
    addr: UserAddr,
    len: usize,
    node: usize,
    flags: usize,
) -> SysResult {
    if flags != 0 || node != 0 {
        return Err(Errno::EINVAL);
    }
    let (addr, len) = pages(addr, len)?;
    if len == 0 {
        return Ok(0);
    }
    let policies = task.process().require_space()?.mempolicies(addr, len)?;
    let kinds = policies
        .iter()
        .map(|&word| MemoryPolicy::of_word(word).kind())
        .filter(|kind| *kind != MPOL_DEFAULT);
    let mut result = Err(Errno::ENOENT);
    for kind in kinds {
        if !matches!(kind, MPOL_BIND | MPOL_PREFERRED_MANY) {
            return Err(Errno::EOPNOTSUPP);
        }
        result = Ok(0);
    }
    result
}

/// Memory of the process of a number, the caller's for `None`, if the caller may ask about it.
fn target_space(task: &Task, pid: Option<Tid>) -> Result<Option<Arc<AddressSpace>>, Errno> {
    let process = match pid {
        None => task.process().clone(),
        Some(tid) => process_table::find_by_tid(tid)?,
    };
    access::traceable_space(task, &process, TraceCreds::Real)
}

/// `migrate_pages(2)`: they are where they can be.
pub fn sys_migrate_pages(
    task: &Task,
    pid: Option<Tid>,
    bits: usize,
    from: UserAddr,
    to: UserAddr,
) -> SysResult {
    Nodes::read(from, bits)?;
    let to = Nodes::read(to, bits)?;
    let space = target_space(task, pid)?;
    if (to.others || to.first & !1 != 0) && !task.cred().capable(sys::CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    if to.first & 1 != 0 && space.is_some() {
        Ok(0)
    } else {
        Err(Errno::EINVAL)
    }
}

/// `move_pages(2)`: tells for each page whether it is there.
pub fn sys_move_pages(
    task: &Task,
    pid: Option<Tid>,
    count: usize,
    pages: UserPtr<u64>,
    nodes: UserPtr<i32>,
    status: UserPtr<i32>,
    flags: u32,
) -> SysResult {
    if flags & !(MPOL_MF_MOVE | MPOL_MF_MOVE_ALL) != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & MPOL_MF_MOVE_ALL != 0 && !task.cred().capable(sys::CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    let space = target_space(task, pid)?.ok_or(Errno::EINVAL)?;
    for i in 0..count {
        if task.must_exit() {
            return Err(Errno::EINTR);
        }
        let addr = pages.add(i).read()? as usize;
        if !nodes.is_null() && nodes.add(i).read()? != 0 {
            return Err(Errno::ENODEV);
        }
        let found = match space.is_page_present(addr) {
            Ok(true) => 0,
            Ok(false) => -Errno::ENOENT.raw(),
            Err(error) => -error.raw(),
        };
        status.add(i).write(&found)?;
    }
    Ok(0)
}

/// `pkey_alloc(2)`: the processor's protection keys are not used, as on one that has none.
pub fn sys_pkey_alloc(_: &Task, flags: u64, rights: u64) -> SysResult {
    if flags != 0 || rights & !3 != 0 {
        Err(Errno::EINVAL)
    } else {
        Err(Errno::ENOSPC)
    }
}

/// `pkey_free(2)`: there is none to give back.
pub fn sys_pkey_free(_: &Task, _key: i32) -> SysResult {
    Err(Errno::EINVAL)
}

/// `pkey_mprotect(2)`: without a key it is `mprotect(2)`.
pub fn sys_pkey_mprotect(
    task: &Task,
    addr: UserAddr,
    len: usize,
    prot: u32,
    key: i32,
) -> SysResult {
    let key = if key == -1 {
        Ok(())
    } else {
        Err(Errno::EINVAL)
    };
    mmap::protect(task, addr, len, prot, key)
}

//! Restartable sequences: `rseq(2)`.
//!
//! A thread says where the kernel may write the number of its processor, and where it notes which
//! sequence of instructions it is in. When it has lost the processor, has moved, was sent for
//! ([`guard`]'s barriers), or a signal is to be handled, it goes on at the sequence's abort
//! address. The scheduler notes that
//! ([`Thread::set_rseq_tracking`](::task::Thread::set_rseq_tracking)); the check is on the way back
//! to ring 3.

use abi::errno::Errno;
use guard::user::UserRegs;
use linux_raw_sys::general as sys;
use uapi::rseq_cs::RseqCs;
use uapi::sigframe::LastFault;
use uapi::siginfo::SigInfo;
use uapi::user_addr::UserAddr;
use vm::USER_END;

use crate::process::send_signal;
use crate::state::rseq::Registration;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

/// Flag of `rseq(2)` that ends a registration (`RSEQ_FLAG_UNREGISTER`).
const UNREGISTER: u32 = 1;
/// `struct rseq` as first published, and its alignment.
pub(crate) const SIZE: u32 = 32;
/// Bytes of `struct rseq` that are used: up to the number of the memory node.
pub(crate) const FEATURES: u64 = 24;
/// Offset of the field `rseq_cs` in `struct rseq`.
const RSEQ_CS_OFFSET: usize = 8;
/// Offset of the number of the memory node.
const NODE: usize = 20;
/// Processor's number without a registration (`RSEQ_CPU_ID_UNINITIALIZED`).
const CPU_ID_UNINITIALIZED: u32 = u32::MAX;

/// `rseq(2)`: registers or unregisters restartable sequences of the thread.
pub fn sys_rseq(task: &Task, addr: UserAddr, len: u32, flags: u32, signature: u32) -> SysResult {
    let mut own = task.rseq.lock();
    let same = own.addr == addr && own.len == len;
    if flags == UNREGISTER {
        if own.addr.is_null() || !same {
            return Err(Errno::EINVAL);
        }
        if own.signature != signature {
            return Err(Errno::EPERM);
        }
        *own = Registration::default();
        drop(own);
        task.thread().set_rseq_tracking(false);
        return write(addr, 0, CPU_ID_UNINITIALIZED).map(|()| 0);
    }
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    if !own.addr.is_null() {
        return Err(match same {
            false => Errno::EINVAL,
            true if own.signature != signature => Errno::EPERM,
            true => Errno::EBUSY,
        });
    }
    if len < SIZE || !addr.is_aligned(SIZE as usize) {
        return Err(Errno::EINVAL);
    }
    if addr.is_null() || !addr.access_ok(len as usize) {
        return Err(Errno::EFAULT);
    }
    *own = Registration {
        addr,
        len,
        signature,
    };
    drop(own);
    // Before it goes on it is told where it is.
    task.thread().set_rseq_tracking(true);
    Ok(0)
}

/// Writes the processor's number and the node's.
fn write(addr: UserAddr, start: u32, cpu: u32) -> Result<(), Errno> {
    UserPtr::<[u32; 2]>::new(addr).write(&[start, cpu])?;
    UserPtr::<u32>::new(addr.wrapping_add(NODE)).write(&0)
}

/// Begins a thread's tracking with the registration that it inherited.
pub(crate) fn start_program(task: &Task) {
    let registered = !task.rseq.lock().addr.is_null();
    task.thread().set_rseq_tracking(registered);
}

/// Ends the registration of a thread whose memory is another.
pub(crate) fn on_exec(task: &Task) {
    *task.rseq.lock() = Registration::default();
    task.thread().set_rseq_tracking(false);
}

/// Sends a thread that was preempted or migrated in a restartable sequence to the sequence's abort
/// address, on its way back to ring 3.
#[cold]
pub(crate) fn handle_notify_resume(task: &Task, regs: &mut UserRegs) {
    let own = *task.rseq.lock();
    if own.addr.is_null() {
        return;
    }
    let cpu = guard::cpu::current().0;
    if abort(&own, regs)
        .and_then(|()| write(own.addr, cpu, cpu))
        .is_err()
    {
        let fault = LastFault::default();
        send_signal::force(task, SigInfo::kernel(sys::SIGSEGV as i32), fault);
    }
}

/// Sends a thread that is in a sequence to its abort address.
fn abort(own: &Registration, regs: &mut UserRegs) -> Result<(), Errno> {
    let place = UserPtr::<u64>::new(own.addr.wrapping_add(RSEQ_CS_OFFSET));
    let at = place.read()?;
    if at == 0 {
        return Ok(());
    }
    let section = UserPtr::<RseqCs>::new(at.into()).read()?;
    section.check(USER_END as u64)?;
    if UserPtr::<u32>::new((section.abort - size_of::<u32>() as u64).into()).read()?
        != own.signature
    {
        return Err(Errno::EINVAL);
    }
    if section.contains(regs.rip) {
        regs.rip = section.abort;
    }
    // Also what was left behind in an orderly way is over.
    place.write(&0)
}

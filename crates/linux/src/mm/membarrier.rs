//! Barriers in all threads of a program, or of all programs: `membarrier(2)`.
//!
//! A barrier is a shootdown that drops nothing of importance: every processor that runs the program
//! is interrupted, and has answered when it is over.

use abi::errno::Errno;
use linux_raw_sys::general::membarrier_cmd as cmd;

use crate::process::process_table;
use crate::{SysResult, Task};

const QUERY: u32 = cmd::MEMBARRIER_CMD_QUERY as u32;
const GLOBAL: u32 = cmd::MEMBARRIER_CMD_GLOBAL as u32;
const GLOBAL_EXPEDITED: u32 = cmd::MEMBARRIER_CMD_GLOBAL_EXPEDITED as u32;
const PRIVATE: u32 = cmd::MEMBARRIER_CMD_PRIVATE_EXPEDITED as u32;
const CORE: u32 = cmd::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE as u32;
const RSEQ: u32 = cmd::MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ as u32;
/// Commands that need a registration, each of which is the next bit.
const REGISTERED: u32 = GLOBAL_EXPEDITED | PRIVATE | CORE | RSEQ;
/// Only threads on this processor: more is done than that.
const FLAG_CPU: u32 = 1;

/// `membarrier(2)`: runs a memory barrier on all CPUs that need one.
pub fn sys_membarrier(task: &Task, command: u32, flags: u32, _cpu: i32) -> SysResult {
    if flags != 0 && (command != RSEQ || flags != FLAG_CPU) {
        return Err(Errno::EINVAL);
    }
    let space = task.process().require_space()?;
    match command {
        QUERY => return Ok((GLOBAL | REGISTERED | REGISTERED << 1) as usize),
        GLOBAL | GLOBAL_EXPEDITED => {
            let asked = |space: &vm::AddressSpace| {
                command == GLOBAL || space.registered_membarriers() & (GLOBAL_EXPEDITED << 1) != 0
            };
            let spaces = process_table::processes_where(|_, _| true)
                .into_iter()
                .filter_map(|process| process.space());
            spaces
                .filter(|space| asked(space))
                .for_each(|space| space.membarrier());
        }
        PRIVATE | CORE | RSEQ => {
            if space.registered_membarriers() & (command << 1) == 0 {
                return Err(Errno::EPERM);
            }
            if command == RSEQ {
                // Those in ring 3 see it on their way back from the barrier's interrupt.
                task.process()
                    .tasks()
                    .iter()
                    .filter_map(|task| task.started_thread())
                    .for_each(|thread| thread.set_rseq_event());
            }
            space.membarrier();
        }
        _ if (REGISTERED << 1) & command == command && command.is_power_of_two() => {
            space.register_membarrier(command);
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

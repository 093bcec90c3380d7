//! System V semaphores: sets, and operations on them.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use ::task::{Mutex, WaitQueue};
use abi::errno::Errno;
use uapi::pid::{Pid, Tid};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::state::ipc::{self, IPC_NOWAIT, IpcObject, IpcPerm, IpcTable};

/// An operation is taken back when the process ends.
pub(crate) const SEM_UNDO: u32 = 0x1000;

/// Most semaphores of one set, operations of one call, and the highest value (Linux' `SEMMSL`,
/// `SEMOPM`, `SEMVMX`). There are fewer sets than on Linux: all of them are the kernel's memory.
pub(crate) const MAX_SETS: usize = 512;

pub(crate) const MAX_VALUE: i32 = 32_767;

/// State of a set as `IPC_STAT` stores it: Linux' `struct semid64_ds`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SemidDs {
    pub(crate) owner: IpcPerm,
    pub(crate) otime: i64,
    pub(crate) unused: u64,
    pub(crate) changed: i64,
    pub(crate) unused_too: u64,
    pub(crate) count: u64,
    pub(crate) unused_last: [u64; 2],
}

/// An operation of `semop(2)`: `struct sembuf`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SemBuf {
    pub(crate) number: u16,
    pub(crate) change: i16,
    pub(crate) flags: i16,
}

impl SemBuf {
    pub(crate) fn has(self, flag: u32) -> bool {
        self.flags as u32 & flag != 0
    }
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Semaphore {
    pub(crate) value: i32,
    /// The process that changed it last.
    pub(crate) pid: Pid,
}

pub(crate) struct State {
    pub(crate) info: SemidDs,
    pub(crate) semaphores: Vec<Semaphore>,
    /// Adjustments that are added when a process ends, by process.
    pub(crate) sem_adj: BTreeMap<Pid, Vec<i32>>,
    /// Semaphore that each thread waits for, and whether it is to become zero.
    pub(crate) waiting: BTreeMap<Tid, (usize, bool)>,
    pub(crate) removed: bool,
}

/// Why a call cannot be done now: a semaphore, and whether it has to become zero.
pub(crate) struct Blocked(pub(crate) usize, pub(crate) bool);

impl State {
    /// Performs all operations of `semop(2)`, or none.
    pub(crate) fn perform_operations(
        &mut self,
        operations: &[SemBuf],
        pid: Pid,
    ) -> Result<Option<Blocked>, Errno> {
        let before = self.semaphores.clone();
        for operation in operations {
            let number = usize::from(operation.number);
            let change = i32::from(operation.change);
            let value = self.semaphores[number].value;
            let new = value + change;
            let result = if change == 0 && value != 0 || new < 0 {
                // `IPC_NOWAIT` counts of the operation that cannot be done.
                if operation.has(IPC_NOWAIT) {
                    Err(Errno::EAGAIN)
                } else {
                    Ok(Some(Blocked(number, change == 0)))
                }
            } else if new > MAX_VALUE {
                Err(Errno::ERANGE)
            } else {
                self.semaphores[number] = Semaphore { value: new, pid };
                continue;
            };
            self.semaphores = before;
            return result;
        }
        let count = self.semaphores.len();
        for operation in operations
            .iter()
            .filter(|operation| operation.has(SEM_UNDO) && operation.change != 0)
        {
            let undo = self.sem_adj.entry(pid).or_insert_with(|| vec![0; count]);
            undo[usize::from(operation.number)] -= i32::from(operation.change);
        }
        self.info.otime = ipc::now();
        Ok(None)
    }
}

/// A set of semaphores.
pub(crate) struct SemArray {
    pub(crate) _counted: census::Semaphores,
    pub(crate) state: Mutex<State>,
    pub(crate) changed: WaitQueue,
}

impl IpcObject for SemArray {
    fn owner(&self) -> IpcPerm {
        self.state.lock().info.owner
    }
}

/// All sets of a namespace.
pub(crate) type Sets = IpcTable<SemArray>;

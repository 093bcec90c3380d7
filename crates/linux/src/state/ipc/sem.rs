//! System V semaphores: sets, and operations on them.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use ::task::{Deadline, Mutex, WaitError, WaitQueue};
use abi::errno::Errno;
use uapi::pid::Pid;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::state::ipc::{self, IPC_NOWAIT, IpcObject, IpcPerm, IpcTable};

/// An operation is taken back when the process ends.
pub(crate) const SEM_UNDO: u32 = 0x1000;

/// The highest value (Linux' `SEMVMX`).
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

/// Change of a semaphore that a call waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Awaited {
    /// To zero.
    Zero,
    /// To more than it is.
    Increase,
}

/// A semaphore that keeps a call from being done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Blocked {
    /// Index of the semaphore in its set.
    pub(crate) number: usize,
    pub(crate) until: Awaited,
}

/// A call that waits, as whoever does its operations for it sees it.
#[derive(Default)]
pub(crate) struct SemWaiter {
    outcome: Mutex<Option<Result<(), Errno>>>,
    done: WaitQueue,
}

impl SemWaiter {
    fn finish(&self, outcome: Result<(), Errno>) {
        *self.outcome.lock() = Some(outcome);
        self.done.wake_all();
    }

    /// Waits until the operations are done, or cannot be.
    ///
    /// # Errors
    /// As `WaitQueue::wait_interruptible`.
    pub(crate) fn wait(&self, deadline: Option<Deadline>) -> Result<Result<(), Errno>, WaitError> {
        self.done
            .wait_interruptible(deadline, || *self.outcome.lock())
    }

    /// Outcome of the call, if there is one.
    pub(crate) fn outcome(&self) -> Option<Result<(), Errno>> {
        *self.outcome.lock()
    }
}

/// A call in the queue of a set.
struct PendingCall {
    waiter: Arc<SemWaiter>,
    operations: Vec<SemBuf>,
    pid: Pid,
    blocked: Blocked,
}

/// Semaphores of a set, and who waits for them.
pub(crate) struct State {
    pub(crate) info: SemidDs,
    pub(crate) semaphores: Vec<Semaphore>,
    /// Adjustments that are added when a process ends, by process.
    sem_adj: BTreeMap<Pid, Vec<i32>>,
    /// Calls that wait, in order.
    pending: VecDeque<PendingCall>,
    removed: bool,
}

impl State {
    /// A set whose semaphores are zero.
    pub(crate) fn new(info: SemidDs, semaphores: Vec<Semaphore>) -> Self {
        Self {
            info,
            semaphores,
            sem_adj: BTreeMap::new(),
            pending: VecDeque::new(),
            removed: false,
        }
    }

    /// Makes room for the adjustments of a process.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn prepare_undo(&mut self, pid: Pid) -> Result<(), Errno> {
        if !self.sem_adj.contains_key(&pid) {
            let mut undo = fallible::with_capacity(self.semaphores.len())?;
            undo.resize(self.semaphores.len(), 0);
            self.sem_adj.insert(pid, undo);
        }
        Ok(())
    }

    /// Does or takes back (`sign` -1) an operation on the values. Whether it can be done was
    /// looked at.
    fn apply(&mut self, operation: SemBuf, pid: Pid, sign: i32) {
        let number = usize::from(operation.number);
        let change = sign * i32::from(operation.change);
        self.semaphores[number].value += change;
        if operation.has(SEM_UNDO)
            && let Some(undo) = self.sem_adj.get_mut(&pid)
        {
            undo[number] -= change;
        }
    }

    /// Why an operation cannot be done now: `None` if it can.
    fn check(&self, operation: SemBuf, pid: Pid) -> Option<Result<Blocked, Errno>> {
        let number = usize::from(operation.number);
        let change = i32::from(operation.change);
        let value = self.semaphores[number].value;
        let new = value + change;
        if change == 0 && value != 0 || new < 0 {
            // `IPC_NOWAIT` counts of the operation that cannot be done.
            return Some(if operation.has(IPC_NOWAIT) {
                Err(Errno::EAGAIN)
            } else {
                let until = if change == 0 {
                    Awaited::Zero
                } else {
                    Awaited::Increase
                };
                Ok(Blocked { number, until })
            });
        }
        let undo = self
            .sem_adj
            .get(&pid)
            .filter(|_| operation.has(SEM_UNDO))
            .map_or(0, |undo| undo[number] - change);
        (new > MAX_VALUE || !(-MAX_VALUE - 1..=MAX_VALUE).contains(&undo))
            .then_some(Err(Errno::ERANGE))
    }

    /// Performs all operations of `semop(2)`, or none.
    fn perform_operations(
        &mut self,
        operations: &[SemBuf],
        pid: Pid,
    ) -> Result<Option<Blocked>, Errno> {
        for (done, &operation) in operations.iter().enumerate() {
            if let Some(refused) = self.check(operation, pid) {
                for &before in operations[..done].iter().rev() {
                    self.apply(before, pid, -1);
                }
                return refused.map(Some);
            }
            self.apply(operation, pid, 1);
        }
        for operation in operations {
            self.semaphores[usize::from(operation.number)].pid = pid;
        }
        self.info.otime = ipc::now();
        Ok(None)
    }

    /// Performs the operations of a call, and those of the calls that can be done after it. `None`:
    /// they cannot be done now, and `waiter` hears when they are.
    ///
    /// # Errors
    /// Those of `semop(2)`.
    pub(crate) fn operate(
        &mut self,
        operations: Vec<SemBuf>,
        pid: Pid,
        waiter: &Arc<SemWaiter>,
    ) -> Option<Result<(), Errno>> {
        if self.removed {
            return Some(Err(Errno::EIDRM));
        }
        match self.perform_operations(&operations, pid) {
            Ok(None) => {
                if alters(&operations) {
                    self.serve_pending();
                }
                Some(Ok(()))
            }
            Ok(Some(blocked)) => {
                if self.pending.try_reserve(1).is_err() {
                    return Some(Err(Errno::ENOMEM));
                }
                self.pending.push_back(PendingCall {
                    waiter: waiter.clone(),
                    operations,
                    pid,
                    blocked,
                });
                None
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// Does the operations of calls that wait, as far as they can be done now, in order: whoever
    /// came first is served first, and nobody can take away what he was given.
    pub(crate) fn serve_pending(&mut self) {
        let mut at = 0;
        while at < self.pending.len() {
            let blocked = self.pending[at].blocked;
            let value = self.semaphores[blocked.number].value;
            // Most wait for what has not changed. (Several operations may be on one semaphore.)
            if self.pending[at].operations.len() == 1
                && (value == 0) != (blocked.until == Awaited::Zero)
            {
                at += 1;
                continue;
            }
            let Some(mut call) = self.pending.remove(at) else {
                return;
            };
            match self.perform_operations(&call.operations, call.pid) {
                Ok(Some(blocked)) => {
                    call.blocked = blocked;
                    // There is room: it was taken out a moment ago.
                    self.pending.insert(at, call);
                    at += 1;
                }
                Ok(None) => {
                    call.waiter.finish(Ok(()));
                    // Others that came before may go on by this.
                    if alters(&call.operations) {
                        at = 0;
                    }
                }
                Err(error) => call.waiter.finish(Err(error)),
            }
        }
    }

    /// Takes a call out of the queue whose caller does not wait any more.
    pub(crate) fn withdraw(&mut self, waiter: &Arc<SemWaiter>) {
        self.pending
            .retain(|call| !Arc::ptr_eq(&call.waiter, waiter));
    }

    /// Number of calls that wait for this semaphore.
    pub(crate) fn waiting(&self, number: usize, until: Awaited) -> usize {
        let is_it = |call: &&PendingCall| call.blocked == Blocked { number, until };
        self.pending.iter().filter(is_it).count()
    }

    /// Ends the set: all calls that wait fail.
    pub(crate) fn remove(&mut self) {
        self.removed = true;
        for call in self.pending.drain(..) {
            call.waiter.finish(Err(Errno::EIDRM));
        }
    }

    /// Sets one semaphore, or all, to values of whoever has this number: nobody adjusts them later.
    pub(crate) fn set_values(&mut self, first: usize, values: &[i32], pid: Pid) {
        for (number, &value) in (first..).zip(values) {
            self.semaphores[number] = Semaphore { value, pid };
            self.sem_adj.values_mut().for_each(|undo| undo[number] = 0);
        }
        self.info.changed = ipc::now();
        self.serve_pending();
    }

    /// Adds the adjustments of a process that has ended, as far as they can be.
    pub(crate) fn undo(&mut self, pid: Pid) {
        let Some(undo) = self.sem_adj.remove(&pid) else {
            return;
        };
        for (semaphore, change) in self
            .semaphores
            .iter_mut()
            .zip(undo)
            .filter(|(_, change)| *change != 0)
        {
            *semaphore = Semaphore {
                value: (semaphore.value + change).clamp(0, MAX_VALUE),
                pid,
            };
        }
        self.serve_pending();
    }
}

/// Whether any of the operations changes a semaphore.
pub(crate) fn alters(operations: &[SemBuf]) -> bool {
    operations.iter().any(|operation| operation.change != 0)
}

/// A set of semaphores.
pub(crate) struct SemArray {
    pub(crate) _counted: census::Semaphores,
    pub(crate) state: Mutex<State>,
}

impl IpcObject for SemArray {
    fn owner(&self) -> IpcPerm {
        self.state.lock().info.owner
    }
}

/// All sets of a namespace.
pub(crate) type Sets = IpcTable<SemArray>;

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    const fn operation(number: u16, change: i16, flags: u32) -> SemBuf {
        SemBuf {
            number,
            change,
            flags: flags as i16,
        }
    }

    const UP: SemBuf = operation(0, 1, 0);
    const DOWN: SemBuf = operation(0, -1, 0);
    const TRY: SemBuf = operation(0, -1, IPC_NOWAIT);
    const ZERO: SemBuf = operation(0, 0, 0);

    fn set(values: &[i32]) -> State {
        let mut info = SemidDs::new_zeroed();
        info.count = values.len() as u64;
        let semaphores = values.iter().map(|&value| Semaphore {
            value,
            pid: Pid::NONE,
        });
        State::new(info, semaphores.collect())
    }

    /// Makes a call of process `pid`; what becomes of it is the waiter's outcome.
    fn call(state: &mut State, pid: i32, operations: &[SemBuf]) -> Arc<SemWaiter> {
        let waiter = Arc::<SemWaiter>::default();
        if let Some(done) = state.operate(operations.to_vec(), Pid::new(pid), &waiter) {
            waiter.finish(done);
        }
        waiter
    }

    fn values(state: &State) -> Vec<i32> {
        state.semaphores.iter().map(|one| one.value).collect()
    }

    #[test]
    fn what_is_given_to_a_waiter_cannot_be_taken_back() {
        let mut state = set(&[0]);
        let waits = [1, 2].map(|pid| call(&mut state, pid, &[DOWN]));
        assert_eq!(
            (
                state.waiting(0, Awaited::Increase),
                state.waiting(0, Awaited::Zero)
            ),
            (2, 0)
        );
        assert_eq!(call(&mut state, 3, &[UP]).outcome(), Some(Ok(())));
        assert_eq!(waits[0].outcome(), Some(Ok(())));
        assert_eq!(state.semaphores[0].pid, Pid::new(1));
        assert_eq!(
            call(&mut state, 3, &[TRY]).outcome(),
            Some(Err(Errno::EAGAIN)),
            "the token is the first waiter's"
        );
        assert_eq!(waits[1].outcome(), None);
        call(&mut state, 3, &[UP]);
        assert_eq!(waits[1].outcome(), Some(Ok(())));
        assert_eq!(
            (values(&state), state.waiting(0, Awaited::Increase)),
            (vec![0], 0)
        );
    }

    #[test]
    fn calls_are_served_in_order_and_by_what_others_do() {
        let mut state = set(&[0, 0]);
        let two = call(&mut state, 1, &[operation(0, -2, 0)]);
        let passes_on = call(&mut state, 2, &[DOWN, operation(1, 1, 0)]);
        let gets_it = call(&mut state, 3, &[operation(1, -1, 0)]);
        call(&mut state, 4, &[UP]);
        assert_eq!(two.outcome(), None, "one is not enough");
        assert_eq!(passes_on.outcome(), Some(Ok(())));
        assert_eq!(gets_it.outcome(), Some(Ok(())));
        assert_eq!(values(&state), [0, 0]);
        call(&mut state, 4, &[operation(0, 2, 0)]);
        assert_eq!(two.outcome(), Some(Ok(())));
    }

    #[test]
    fn zero_is_waited_for_also_behind_other_operations() {
        let mut state = set(&[2]);
        let zero = call(&mut state, 1, &[ZERO]);
        let last = call(&mut state, 2, &[DOWN, ZERO]);
        assert_eq!(
            (state.waiting(0, Awaited::Zero), values(&state)),
            (2, vec![2])
        );
        call(&mut state, 3, &[DOWN]);
        assert_eq!(last.outcome(), Some(Ok(())));
        assert_eq!(zero.outcome(), Some(Ok(())));
    }

    #[test]
    fn a_call_that_does_not_wait_any_more_gets_nothing() {
        let mut state = set(&[0]);
        let gone = call(&mut state, 1, &[DOWN]);
        let stays = call(&mut state, 2, &[DOWN]);
        state.withdraw(&gone);
        call(&mut state, 3, &[UP]);
        assert_eq!((gone.outcome(), stays.outcome()), (None, Some(Ok(()))));
        let last = call(&mut state, 1, &[DOWN]);
        state.remove();
        assert_eq!(last.outcome(), Some(Err(Errno::EIDRM)));
        assert_eq!(
            call(&mut state, 1, &[UP]).outcome(),
            Some(Err(Errno::EIDRM))
        );
    }

    #[test]
    fn nothing_is_done_of_a_call_that_fails() {
        let mut state = set(&[1, MAX_VALUE]);
        let undone = operation(0, -1, SEM_UNDO);
        state.prepare_undo(Pid::new(1)).unwrap();
        assert_eq!(
            call(&mut state, 1, &[undone, operation(1, 1, 0)]).outcome(),
            Some(Err(Errno::ERANGE))
        );
        assert_eq!(values(&state), [1, MAX_VALUE]);
        call(&mut state, 1, &[undone]);
        let waits = call(&mut state, 2, &[DOWN]);
        state.undo(Pid::new(1));
        assert_eq!(waits.outcome(), Some(Ok(())), "by what the end gives back");
        assert_eq!(values(&state)[0], 0);
        let waits = call(&mut state, 2, &[DOWN]);
        state.set_values(0, &[1], Pid::new(3));
        assert_eq!(waits.outcome(), Some(Ok(())), "by SETVAL");
    }
}

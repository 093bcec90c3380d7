//! Execution contexts of the kernel: a stack and where it stopped.
//!
//! [`switch`] can be called from safe code because it checks what it relies on: that interrupts are
//! off, that `prev` is the context running here, and that `next` runs nowhere. A context is marked
//! running before its stack is used and unmarked after the last use, so two CPUs cannot be on one
//! stack.
//!
//! A stack is freed only if nothing ever ran on it. One that was left in the middle of a function
//! holds what others may still point to, such as a waiter in the queue of a lock, and that function
//! has been promised that its frame stays until it returns.

use core::arch::naked_asm;
use core::cell::UnsafeCell;
use core::mem::ManuallyDrop;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{cpu, usercopy};
use crate::stack::{KernelStack, STACK_SIZE};
use crate::{rcu, symbols};

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A stack with a saved position, or the one in use.
pub struct Context {
    /// Never reused; 0 is nobody.
    id: u64,
    running: AtomicBool,
    /// Stack pointer while not running.
    rsp: UnsafeCell<usize>,
    /// `None` for the stack the CPU came up on, which is never freed.
    stack: Option<ManuallyDrop<KernelStack>>,
}

// SAFETY: `rsp` is touched only by the CPU that set `running` from false to true, until it clears
// it (with the ordering of x86 stores after the last access); everything else is immutable or
// atomic.
unsafe impl Sync for Context {}
// SAFETY: as above; a context is not tied to a CPU.
unsafe impl Send for Context {}

/// Initial stack of a new context: popped by `switch_stacks`, from the lowest address up.
#[repr(C)]
struct Start {
    r15: usize,
    r14: usize,
    r13: usize,
    r12: usize,
    rbx: usize,
    rbp: usize,
    rip: usize,
    /// Ends back traces, and aligns the stack for the call.
    end: [usize; 2],
}

/// Least bytes of a stack that are in use when `switch_stacks` saves the stack pointer: the two
/// words at its end, the addresses to which `entry` and `switch_stacks` return, six registers.
const LEAST_USED: usize = size_of::<[usize; 2 + 2 + 6]>();
const _: () = assert!(LEAST_USED > size_of::<Start>());

impl Context {
    /// A context that will call `entry(arg)` on `stack` when first switched to, with interrupts
    /// off. From then on the stack is in use for good.
    #[must_use]
    pub fn new(stack: KernelStack, entry: extern "sysv64" fn(usize) -> !, arg: usize) -> Self {
        let start = Start {
            r15: 0,
            r14: 0,
            r13: entry as usize,
            r12: arg,
            rbx: 0,
            rbp: 0,
            rip: start_context as *const () as usize,
            end: [0; 2],
        };
        let rsp = Self::start_of(&stack);
        // SAFETY: the stack is mapped, larger than this, and owned by us; its top is 16-byte
        // aligned.
        unsafe { (rsp as *mut Start).write(start) };
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            running: AtomicBool::new(false),
            rsp: UnsafeCell::new(rsp),
            stack: Some(ManuallyDrop::new(stack)),
        }
    }

    /// Stack pointer of a context that never ran. Afterwards it is further down
    /// ([`LEAST_USED`]).
    fn start_of(stack: &KernelStack) -> usize {
        stack.top() - size_of::<Start>()
    }

    /// Adopts what runs on this CPU, on the stack it came up on, which nobody frees.
    ///
    /// # Panics
    /// If this CPU's running context was adopted or made before.
    #[must_use]
    pub fn boot() -> Self {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let adopted =
            cpu::area()
                .context
                .compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed);
        assert!(adopted.is_ok(), "boot context adopted twice");
        cpu::area().boot_context.store(id, Ordering::Relaxed);
        Self {
            id,
            running: AtomicBool::new(true),
            rsp: UnsafeCell::new(0),
            stack: None,
        }
    }

    /// Adopts what runs on this CPU as the same context as the last time that it came up, for a CPU
    /// that left and is back. It left while that context ran, which nobody has continued since.
    ///
    /// # Panics
    /// If it is not the one, or this CPU's running context was adopted before.
    pub fn adopt_again(&self) {
        let area = cpu::area();
        let is_own = area.boot_context.load(Ordering::Relaxed) == self.id;
        let running = &area.context;
        assert!(
            is_own && running.load(Ordering::Relaxed) == 0,
            "not the context that this CPU left in"
        );
        running.store(self.id, Ordering::Relaxed);
    }

    /// Whether a CPU is on this context's stack. Stays true until the CPU that switches away has
    /// left it.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Shows where the context stopped, from the innermost function outwards: the name, and the
    /// distance from its start. Nothing if it runs. Should it begin to run while this looks, what
    /// is shown may be wrong.
    pub fn backtrace(&self, mut show: impl FnMut(&str, u32)) {
        let Some(stack) = self.stack.as_ref().filter(|_| !self.is_running()) else {
            return;
        };
        let inside = stack.top() - STACK_SIZE..stack.top();
        // SAFETY: a word of our own. Another CPU may write it at this moment; it is checked below
        // like everything that is read.
        let rsp = unsafe { ptr::read_volatile(self.rsp.get()) };
        // Where `switch_stacks` leaves RBP, with the return address above it.
        let mut frame = rsp + 5 * size_of::<usize>();
        while inside.contains(&frame) {
            let (Some(next), Some(rip)) = (
                usercopy::probe(frame),
                usercopy::probe(frame + size_of::<usize>()),
            ) else {
                return;
            };
            // The call comes before the address it returns to.
            if symbols::lookup(rip.wrapping_sub(1), &mut show).is_none() || next as usize <= frame {
                return;
            }
            frame = next as usize;
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // A stack in use is leaked, whether a CPU is on it or a function is suspended there.
        if let Some(stack) = &mut self.stack
            && !*self.running.get_mut()
            && *self.rsp.get_mut() == Self::start_of(stack)
        {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(stack) };
        }
    }
}

/// Leaves `prev`, which runs here, and continues `next`. Returns when somebody switches back to
/// `prev`, perhaps on another CPU.
///
/// # Panics
/// If interrupts are on, within `CpuLocal::with`, if `prev` does not run here, or if `next` runs
/// anywhere.
pub fn switch(prev: &Context, next: &Context) {
    cpu::assert_not_pinned();
    assert!(!cpu::irqs_enabled(), "context switch with interrupts on");
    let running = &cpu::area().context;
    assert!(
        running.load(Ordering::Relaxed) == prev.id,
        "switch from a context that does not run here"
    );
    assert!(
        !next.running.swap(true, Ordering::Acquire),
        "switch to a running context"
    );
    running.store(next.id, Ordering::Relaxed);
    rcu::quiescent_state();
    // SAFETY: interrupts are off. `prev` is the running context, so saving the stack pointer there
    // is right, and its flag is cleared after this stack's last use. `next` was not running and is
    // now marked as ours; its stack pointer was saved by `switch_stacks` or made by `new`, on a
    // stack that lives as long as the context.
    unsafe { switch_stacks(prev.rsp.get(), *next.rsp.get(), prev.running.as_ptr()) };
}

/// Saves the callee-saved registers and the stack pointer, changes stacks, declares the old one
/// free, and goes on.
///
/// # Safety
/// See [`switch`].
#[unsafe(naked)]
unsafe extern "sysv64" fn switch_stacks(save: *mut usize, load: usize, running: *mut bool) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        // Stores are not reordered with earlier loads and stores on x86, so whoever sees this sees
        // the saved pointer.
        "mov byte ptr [rdx], 0",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// First instructions of a new context: R13 is the entry, R12 its argument.
#[unsafe(naked)]
unsafe extern "sysv64" fn start_context() {
    naked_asm!("mov rdi, r12", "call r13", "ud2")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::host;

    /// A context on a new stack, whose stack pointer is so far below the start.
    fn context(below: usize) -> Context {
        let stack = KernelStack::new().unwrap();
        Context {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            running: AtomicBool::new(false),
            rsp: UnsafeCell::new(Context::start_of(&stack) - below),
            stack: Some(ManuallyDrop::new(stack)),
        }
    }

    fn bottom(context: &Context) -> usize {
        context.stack.as_ref().unwrap().bottom()
    }

    #[test]
    fn a_stack_that_was_used_is_never_used_again() {
        host::set_up();
        let unused = context(0);
        let suspended = context(LEAST_USED - size_of::<Start>());
        let running = context(0);
        running.running.store(true, Ordering::Relaxed);
        let [free, taken, in_use] = [&unused, &suspended, &running].map(bottom);
        drop((unused, suspended, running));
        let later: Vec<_> = (0..8).map_while(|_| KernelStack::new()).collect();
        let seen = |at| later.iter().any(|stack| stack.bottom() == at);
        assert_eq!([free, taken, in_use].map(seen), [true, false, false]);
    }
}

//! An instance that is paused: its threads have no CPU time meanwhile, and get the slices that they
//! had begun.

use guard::timer::now_ns;

use super::cpu::{CPUS, Cpu};

/// This CPU is about to stand still, or goes on; called in an interrupt handler.
pub(super) fn on_pause(begins: bool) {
    CPUS.with(|cpu| {
        if begins {
            cpu.stop_clocks(now_ns());
        } else {
            cpu.restart_clocks(now_ns());
        }
    });
}

impl Cpu {
    fn is_idle(&self) -> bool {
        core::ptr::eq(self.current(), self.idle())
    }

    fn stop_clocks(&self, now: u64) {
        let usage = self.shared.usage;
        if self.is_idle() {
            usage.end_idle(now);
        }
        usage.begin_pause(now);
        self.paused_since.set(now);
        self.shared.note_stall(false, now);
        if let Some(own) = self.run_context.borrow().as_deref() {
            own.thread.pause_cpu_clock(now);
        }
    }

    fn restart_clocks(&self, now: u64) {
        let (usage, stood_ns) = (
            self.shared.usage,
            now.saturating_sub(self.paused_since.get()),
        );
        usage.end_pause(now);
        // What it idled before is in the sum.
        let since = if self.is_idle() {
            usage.begin_idle(now);
            now
        } else {
            self.running_since.get() + stood_ns
        };
        self.note_running_since(since);
        let queue = &mut *self.queue.borrow_mut();
        queue.skip(stood_ns);
        self.shared.note_stall(queue.waiting() != 0, now);
        if let Some(own) = self.run_context.borrow().as_deref() {
            own.thread.start_cpu_clock(now);
        }
    }
}

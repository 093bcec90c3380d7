//! Pausing an instance: its CPUs stand still until they are told to go on (`pause` is the
//! instance's part).
//!
//! The order is a number in the window, and each CPU says which one it obeys. So an order that is
//! followed by others before a CPU has seen it is not confused with them. NMIs are sent again at
//! each look: one may have come while its CPU was on its way into the instance. What CPUs say is
//! the instance's word: one that lies is shown as paused, and works.

use core::sync::atomic::Ordering;

use abi::window::Orders;

use super::Partition;
use crate::arch::apic;

/// State of an instance's CPUs as to the last order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Nobody stands still, nor is to.
    Off,
    /// Some have not obeyed yet.
    Pending,
    /// All stand still.
    On,
}

impl Partition {
    /// Orders all CPUs of the instance to stand still, or to go on. It is done when
    /// [`Self::look_at_pause`] says so, which is to be called then, and when the doorbell rings.
    /// False, and no change, if that was ordered last.
    pub fn set_pause(&mut self, on: bool) -> bool {
        if self.asks_to_pause() == on || !self.started || self.halting {
            return false;
        }
        // 0 is no order; an order to go on is even.
        self.pause = self.pause.checked_add(1).unwrap_or(2);
        true
    }

    /// Whether the instance's CPUs are to stand still.
    #[must_use]
    pub fn asks_to_pause(&self) -> bool {
        Orders::asks_to_pause(self.pause)
    }

    /// Looks which CPUs have obeyed the last order, and sends it again to the others.
    pub fn look_at_pause(&mut self) -> Pause {
        if self.pause == 0 || self.halting {
            return Pause::Off;
        }
        let window = self.window();
        // The supervisor's word, whatever the instance has written there.
        window.orders.pause.store(self.pause, Ordering::Release);
        let wanted = if self.asks_to_pause() { self.pause } else { 0 };
        let mut is_done = true;
        for (cpu, heart) in self.cpus.iter().zip(&window.heartbeats) {
            // Who was not sent yet is in the park page, and looks when it comes.
            if cpu.recovery.is_none() && heart.stands_still.load(Ordering::Acquire) != wanted {
                apic::send_nmi(cpu.apic_id);
                is_done = false;
            }
        }
        match (is_done, self.asks_to_pause()) {
            (false, _) => Pause::Pending,
            (true, true) => Pause::On,
            (true, false) => Pause::Off,
        }
    }
}

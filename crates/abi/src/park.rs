//! The park mailbox: how a CPU that nobody uses is handed to an instance (decision 004).
//!
//! Each CPU has one [`Slot`] in supervisor-owned memory. A parked CPU halts in the park page and
//! looks at its slot after every NMI, and once when it comes in. The protocol is *stage, then
//! claim*:
//!
//! 1. the publisher fills `cr3`, `rip`, `arg` and a new `epoch`, stores [`ticket`]`(epoch)` in
//!    `ready` (release) and sends an NMI;
//! 2. the parked CPU sees `ready != 0` (acquire), copies the fields into registers, and claims them
//!    with a compare-exchange of `ready` from the value it saw to 0. If it fails, the publication
//!    was revoked and it looks again;
//! 3. after a claim it stores `claimed = epoch`.
//!
//! The publisher can revoke until the claim (compare-exchange to 0 by itself), so each publication
//! is either taken once or not at all. `ready` holds a number and not just 1 because a CPU that has
//! copied a publication which is then revoked and replaced would otherwise claim the new one and
//! obey the old. A publication with `rip == RIP_STAY` does nothing but be claimed: it proves that
//! the CPU sits in the park page. `ring::mailbox` holds the publisher's side and the model-checked
//! logic; the parked side is assembly in `guard`.

use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// `ready`: nothing published.
pub const EMPTY: u32 = 0;

/// The value of `ready` that announces publication `epoch`; never [`EMPTY`].
#[must_use]
pub const fn ticket(epoch: u64) -> u32 {
    let low = epoch as u32;
    if low == EMPTY { u32::MAX } else { low }
}

/// `state`: never seen, or started and not back yet.
pub const STATE_AWAY: u32 = 0;
/// `state`: sits in the park page. A hint (written by the CPU itself); proof is a claim.
pub const STATE_PARKED: u32 = 1;

/// A `rip` that means: claim and stay parked.
pub const RIP_STAY: u64 = 0;

/// One CPU's mailbox; one cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Slot {
    /// Unclaimed publication: its [`ticket`], or [`EMPTY`]; the only word both sides change.
    pub ready: AtomicU32,
    /// `STATE_*`, written by the parked CPU.
    pub state: AtomicU32,
    /// Page-table root to load, physical.
    pub cr3: AtomicU64,
    /// Address to jump to under that root, or [`RIP_STAY`].
    pub rip: AtomicU64,
    /// Given to the entry in `rdi`.
    pub arg: AtomicU64,
    /// Number of this publication; never reused.
    pub epoch: AtomicU64,
    /// The last claimed publication, written by the parked CPU.
    pub claimed: AtomicU64,
    /// Number of times that the CPU entered the park page, written by the parked CPU.
    pub parks: AtomicU32,
    /// Number of machine checks that it took there, written by the parked CPU.
    pub machine_checks: AtomicU32,
    /// The CPU's APIC id; written once.
    pub apic_id: AtomicU32,
    /// Number of times that the CPU came in through a reset, written by the parked CPU.
    pub resets: AtomicU32,
}

impl Slot {
    /// An empty slot.
    #[must_use]
    pub const fn new(apic_id: u32) -> Self {
        Self {
            ready: AtomicU32::new(EMPTY),
            state: AtomicU32::new(STATE_AWAY),
            cr3: AtomicU64::new(0),
            rip: AtomicU64::new(0),
            arg: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            claimed: AtomicU64::new(0),
            parks: AtomicU32::new(0),
            machine_checks: AtomicU32::new(0),
            apic_id: AtomicU32::new(apic_id),
            resets: AtomicU32::new(0),
        }
    }
}

// The park assembly uses these offsets.
const _: () = {
    assert!(size_of::<Slot>() == 64);
    assert!(offset_of!(Slot, ready) == 0);
    assert!(offset_of!(Slot, state) == 4);
    assert!(offset_of!(Slot, cr3) == 8);
    assert!(offset_of!(Slot, rip) == 16);
    assert!(offset_of!(Slot, arg) == 24);
    assert!(offset_of!(Slot, epoch) == 32);
    assert!(offset_of!(Slot, claimed) == 40);
    assert!(offset_of!(Slot, parks) == 48);
    assert!(offset_of!(Slot, machine_checks) == 52);
    assert!(offset_of!(Slot, apic_id) == 56);
    assert!(offset_of!(Slot, resets) == 60);
};

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn a_new_slot_is_empty() {
        let slot = Slot::new(7);
        assert_eq!(slot.ready.load(Relaxed), EMPTY);
        assert_eq!(slot.state.load(Relaxed), STATE_AWAY);
        assert_eq!(slot.apic_id.load(Relaxed), 7);
    }

    #[test]
    fn a_ticket_is_never_empty() {
        assert_eq!(
            [ticket(1), ticket(u64::from(u32::MAX)), ticket(1 << 32 | 7)],
            [1, u32::MAX, 7]
        );
        assert_eq!([ticket(0), ticket(1 << 32)], [u32::MAX; 2]);
    }
}

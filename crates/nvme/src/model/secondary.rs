//! The model's controllers of virtual functions.

use alloc::vec;
use alloc::vec::Vec;

use crate::PAGE;
use crate::command::Command;
use crate::completion::Status;
use crate::secondary::{ONLINE, OWN_SHARE, RESOURCES, SHARE};

/// Controllers of virtual functions, of a model.
#[derive(Debug)]
pub struct Secondary {
    /// Queues and interrupts that there are to share out.
    pub total: [u16; 2],
    /// Queues and interrupts, of those to share out, that the controller has itself.
    pub own: [u16; 2],
    /// The same from its function's next reset on.
    next_own: [u16; 2],
    /// Queues and interrupts of each, whose numbers begin with 1.
    pub shares: Vec<[u16; 2]>,
    /// Whether each is online.
    pub online: Vec<bool>,
}

const INVALID: Status = Status { kind: 0, code: 2 };

impl Secondary {
    /// A number of secondary controllers without resources, where the primary has all of `total`.
    #[must_use]
    pub fn new(count: u16, total: [u16; 2]) -> Self {
        let count = usize::from(count);
        Self {
            total,
            own: total,
            next_own: total,
            shares: vec![[0; 2]; count],
            online: vec![false; count],
        }
    }

    /// Takes in that the controller was stopped: all are offline.
    pub(super) fn stopped(&mut self) {
        self.shares.fill([0; 2]);
        self.online.fill(false);
    }

    /// Takes in that the controller's function was reset.
    pub(super) fn function_reset(&mut self) {
        self.own = self.next_own;
    }

    /// Writes down what there is to share out, as the controller says it.
    pub(super) fn primary(&self, bytes: &mut [u8; PAGE]) {
        for (kind, at) in [32, 64].into_iter().enumerate() {
            bytes[at..at + 2].copy_from_slice(&self.total[kind].to_le_bytes());
            bytes[at + 8..at + 10].copy_from_slice(&self.own[kind].to_le_bytes());
        }
    }

    /// The list of them, of which it tells two at a time.
    pub(super) fn list(&self, first: u16, bytes: &mut [u8; PAGE]) {
        let numbers = 1..=self.shares.len() as u16;
        let told = numbers.filter(|number| *number >= first).take(2);
        for (place, number) in (32..).step_by(32).zip(told) {
            bytes[0] += 1;
            bytes[place..place + 2].copy_from_slice(&number.to_le_bytes());
            bytes[place + 8..place + 10].copy_from_slice(&number.to_le_bytes());
        }
    }

    /// Does a Virtualization Management command.
    pub(super) fn manage(&mut self, command: &Command) -> Status {
        let word = command.word(10);
        let (number, action) = (usize::from((word >> 16) as u16), word as u8 & 0xf);
        let kind = RESOURCES
            .iter()
            .position(|kind| *kind == (word >> 8) as u8 & 7);
        let (Some(kind), count) = (kind, command.word(11) as u16) else {
            return INVALID;
        };
        if number == 0 {
            if action != OWN_SHARE || count > self.total[kind] {
                return INVALID;
            }
            self.next_own[kind] = count;
            return Status::SUCCESS;
        }
        let Some(online) = self.online.get_mut(number - 1) else {
            return INVALID;
        };
        let share = &mut self.shares[number - 1];
        match action {
            SHARE if !*online => share[kind] = count,
            ONLINE if share[0] >= 2 && share[1] >= 1 => *online = true,
            _ => return INVALID,
        }
        let given: u16 = self.shares.iter().map(|share| share[kind]).sum();
        if given > self.total[kind] - self.own[kind] {
            self.shares[number - 1][kind] = 0;
            return INVALID;
        }
        Status::SUCCESS
    }
}

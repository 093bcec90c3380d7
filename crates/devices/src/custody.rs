//! The steps by which a function comes to an instance and leaves it, whatever carries them out:
//! after each of them, done or failed, one word says who has the function.
//!
//! | a function that is | can be | or if that fails, is |
//! |---|---|---|
//! | nobody's | taken: reset, held back, given interrupts | nobody's, or in quarantine |
//! | an instance's | stopped: held back, and reset | that instance's still |
//! | an instance's | dropped: stopped, and nobody's | in quarantine |
//! | in quarantine | recovered: reset, and nobody's | in quarantine still |
//!
//! In quarantine is what did not prove that it was reset: it may not reach memory, as far as that
//! can be had without its help, and nobody gets it.

use core::sync::atomic::{AtomicBool, Ordering};

use lfmutex::Mutex;

use crate::Owner;
use crate::config::{Before, Ownership};

/// Effects of the steps on a function, and on the unit before it.
pub(crate) trait Effects {
    /// Hold of a unit on the function.
    type Hold;
    /// Reason why there is none.
    type Error;

    /// Owner of the function.
    fn ownership(&self) -> &Ownership;

    /// The function has an owner from here on, who alone uses it: notes what a reset clears.
    fn taken(&mut self);

    /// Stops and resets the function; true if it has proved that. Sleeps.
    fn reset(&self) -> bool;

    /// Has the unit hold the function back, which passed until now; `None` if nothing is to.
    fn hold(&self) -> Result<Option<Self::Hold>, Self::Error>;

    /// Gives a function that is held back what else it needs.
    fn equip(&self, hold: &mut Self::Hold) -> Result<(), Self::Error>;

    /// Has a function that the unit has hold of reach nothing; true if it is seen that it does.
    fn hold_back(&self, hold: &Self::Hold) -> bool;

    /// Has the unit let go of the function, which passes then if it `may_pass`; true if it does.
    fn release(&self, hold: Self::Hold, may_pass: bool) -> bool;

    /// Has the function reach nothing, as far as that can be had of it and of its unit, whoever has
    /// hold of it, and says so.
    fn isolate(&self);

    /// Has a function pass that was reset, whatever its unit does with it; true if it does, or no
    /// unit has it.
    fn pass(&self) -> bool;
}

/// Reason why a function is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken<E> {
    /// Somebody has it.
    Taken(Owner),
    /// The function did not prove that it was reset, and is in quarantine.
    NotReset,
    /// The unit before the function does not hold it back, for this reason.
    NotHeld(E),
}

/// A function that an instance has. Dropped, it is nobody's, or in quarantine.
pub(crate) struct Custody<E: Effects> {
    effects: E,
    /// Flag: no instance has had it since it was reset.
    is_quiet: AtomicBool,
    /// Held by who resets it.
    resetting: Mutex<()>,
    /// Hold of the unit, until it is dropped, if there is one.
    hold: Option<E::Hold>,
}

impl<E: Effects> Custody<E> {
    /// Takes the function for an instance: it is reset, unless it is known to be, and held back.
    pub(crate) fn take(effects: E, instance: u32) -> Result<Self, NotTaken<E::Error>> {
        let mut effects = effects;
        let before = effects.ownership().take(Owner::Instance(instance));
        let before = before.map_err(NotTaken::Taken)?;
        effects.taken();
        // Of one that is known to have been reset nothing was told since.
        if before == Before::Unknown && !effects.reset() {
            quarantine(&effects);
            return Err(NotTaken::NotReset);
        }
        let hold = match effects.hold() {
            Ok(hold) => hold,
            Err(error) => {
                // What a unit does that did not answer is not known until it has.
                if effects.pass() {
                    effects.ownership().leave_reset();
                } else {
                    quarantine(&effects);
                }
                return Err(NotTaken::NotHeld(error));
            }
        };
        let mut custody = Self::of(effects, hold, true);
        let Self { effects, hold, .. } = &mut custody;
        if let Some(hold) = hold {
            effects.equip(hold).map_err(NotTaken::NotHeld)?;
        }
        Ok(custody)
    }

    /// A function that an instance has and uses.
    pub(crate) fn of_before(effects: E, hold: Option<E::Hold>) -> Self {
        Self::of(effects, hold, false)
    }

    fn of(effects: E, hold: Option<E::Hold>, is_quiet: bool) -> Self {
        Self {
            effects,
            is_quiet: AtomicBool::new(is_quiet),
            resetting: Mutex::new(()),
            hold,
        }
    }

    pub(crate) fn effects(&self) -> &E {
        &self.effects
    }

    /// Hold of the unit, if there is one.
    pub(crate) fn hold(&self) -> Option<&E::Hold> {
        self.hold.as_ref()
    }

    /// The instance uses it from here on.
    pub(crate) fn begin(&self) {
        self.is_quiet.store(false, Ordering::Release);
    }

    /// Has it reach nothing: it is held back, and reset if the instance has used it. True if one of
    /// both is seen.
    pub(crate) fn stop(&self) -> bool {
        let is_blocked = (self.hold.as_ref()).is_some_and(|hold| self.effects.hold_back(hold));
        self.reset() || is_blocked
    }

    fn reset(&self) -> bool {
        let _one = self.resetting.lock();
        let is_quiet = self.is_quiet.load(Ordering::Acquire) || self.effects.reset();
        self.is_quiet.store(is_quiet, Ordering::Release);
        is_quiet
    }
}

impl<E: Effects> Drop for Custody<E> {
    fn drop(&mut self) {
        // It is blocked before it is reset: what it does meanwhile meets nobody's memory.
        self.stop();
        let is_quiet = *self.is_quiet.get_mut();
        let is_free = match self.hold.take() {
            Some(hold) => self.effects.release(hold, is_quiet),
            None => is_quiet,
        };
        if is_free && is_quiet {
            self.effects.ownership().leave_reset();
        } else {
            quarantine(&self.effects);
        }
    }
}

/// Puts a function into quarantine, which the caller has.
pub(crate) fn quarantine(effects: &impl Effects) {
    // Before it is in a state from which somebody may take it.
    effects.isolate();
    effects.ownership().leave_to(Some(Owner::Quarantine));
}

/// Tries again to reset a function that is in quarantine; it is nobody's then, and that owner's
/// meanwhile. False if it is in quarantine still; true, with nothing done, if it was not there.
pub(crate) fn recover(effects: impl Effects, owner: Owner) -> bool {
    let mut effects = effects;
    if !effects.ownership().take_from_quarantine(owner) {
        return true;
    }
    effects.taken();
    let is_free = effects.reset() && effects.pass();
    if is_free {
        effects.ownership().leave_reset();
    } else {
        quarantine(&effects);
    }
    is_free
}

#[cfg(test)]
mod tests;

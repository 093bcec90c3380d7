use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use super::*;

/// Step that may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Reset,
    Hold,
    Equip,
    HoldBack,
    Release,
    Pass,
}

const STEPS: [Step; 6] = [
    Step::Reset,
    Step::Hold,
    Step::Equip,
    Step::HoldBack,
    Step::Release,
    Step::Pass,
];

/// Kind of an entry of the unit, as the function's effects leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Passes,
    Held,
    /// Nobody knows: the unit did not answer.
    Unknown,
}

/// A function, the unit before it, and what an instance has had it do.
struct Machine {
    ownership: Ownership,
    /// The steps that fail, each the next time that it is come to.
    failing: RefCell<Vec<Step>>,
    is_confined: bool,
    entry: Cell<Entry>,
    /// Flag: it was told of memory since it was reset.
    is_told: Cell<bool>,
    is_master: Cell<bool>,
    resets: Cell<usize>,
    holds: Cell<usize>,
    messages: Cell<usize>,
}

/// Hold of the unit, which is counted.
struct Counted<'a> {
    machine: &'a Machine,
    has_messages: bool,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let less = |count: &Cell<usize>, by| count.set(count.get() - by);
        less(&self.machine.holds, 1);
        less(&self.machine.messages, self.has_messages.into());
    }
}

impl Machine {
    fn new(is_confined: bool) -> Self {
        Self {
            ownership: Ownership::default(),
            failing: RefCell::default(),
            is_confined,
            entry: Cell::new(Entry::Passes),
            is_told: Cell::new(true),
            is_master: Cell::new(true),
            resets: Cell::new(0),
            holds: Cell::new(0),
            messages: Cell::new(0),
        }
    }

    fn does(&self, step: Step) -> bool {
        let mut failing = self.failing.borrow_mut();
        let at = failing.iter().position(|other| *other == step);
        at.map(|at| failing.remove(at)).is_none()
    }

    fn fail(&self, steps: &[Step]) {
        *self.failing.borrow_mut() = steps.to_vec();
    }

    /// Whether the function is in one place, and what that place promises holds.
    fn check(&self) {
        let owner = self.ownership.now();
        match owner {
            None => {
                assert_eq!((self.holds.get(), self.messages.get()), (0, 0), "leaked");
                assert_eq!(self.entry.get(), Entry::Passes, "nobody's and held");
                let is_known = self.resets.get() > 0;
                assert!(!is_known || !self.is_told.get(), "free, and not reset");
            }
            Some(Owner::Quarantine) => {
                assert_eq!((self.holds.get(), self.messages.get()), (0, 0), "leaked");
                assert!(!self.is_master.get(), "in quarantine, and a bus master");
                let passes = self.is_confined && self.entry.get() != Entry::Held;
                assert!(
                    !passes,
                    "in quarantine, and its unit lets something through"
                );
            }
            Some(_) => {}
        }
    }
}

impl<'a> Effects for &'a Machine {
    type Hold = Counted<'a>;
    type Error = Step;

    fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    fn taken(&mut self) {
        assert!(self.ownership.now().is_some());
    }

    fn reset(&self) -> bool {
        let is_reset = self.does(Step::Reset);
        if is_reset {
            self.is_master.set(false);
            self.is_told.set(false);
            self.resets.set(self.resets.get() + 1);
        }
        is_reset
    }

    fn hold(&self) -> Result<Option<Counted<'a>>, Step> {
        if !self.is_confined {
            return Ok(None);
        }
        assert!(!self.is_told.get(), "it is held before it is quiet");
        if !self.does(Step::Hold) {
            // It may have done half of it.
            self.entry.set(Entry::Unknown);
            return Err(Step::Hold);
        }
        self.entry.set(Entry::Held);
        self.holds.set(self.holds.get() + 1);
        Ok(Some(Counted {
            machine: self,
            has_messages: false,
        }))
    }

    fn equip(&self, hold: &mut Counted<'a>) -> Result<(), Step> {
        if !self.does(Step::Equip) {
            return Err(Step::Equip);
        }
        hold.has_messages = true;
        self.messages.set(self.messages.get() + 1);
        Ok(())
    }

    fn hold_back(&self, _: &Counted<'a>) -> bool {
        let is_held = self.does(Step::HoldBack);
        let entry = if is_held { Entry::Held } else { Entry::Unknown };
        self.entry.set(entry);
        is_held
    }

    fn release(&self, hold: Counted<'a>, may_pass: bool) -> bool {
        drop(hold);
        let passes = may_pass && self.does(Step::Release);
        self.entry
            .set(if passes { Entry::Passes } else { Entry::Held });
        passes
    }

    fn isolate(&self) {
        self.is_master.set(false);
        if self.is_confined {
            self.entry.set(Entry::Held);
        }
    }

    fn pass(&self) -> bool {
        assert!(!self.is_told.get(), "what was not reset passes");
        let passes = self.does(Step::Pass);
        if passes {
            self.entry.set(Entry::Passes);
        }
        passes
    }
}

/// Gives the function to an instance, which uses it, and takes it back; how far that came.
fn change(machine: &Machine) -> Result<bool, NotTaken<Step>> {
    let custody = Custody::take(machine, 7)?;
    assert_eq!(machine.ownership.now(), Some(Owner::Instance(7)));
    custody.begin();
    machine.is_told.set(true);
    machine.is_master.set(true);
    let is_stopped = custody.stop();
    let reaches = machine.is_master.get() && machine.entry.get() != Entry::Held;
    assert!(!is_stopped || !reaches || !machine.is_told.get());
    machine.check();
    Ok(is_stopped)
}

/// Three steps fail, of each kind and in each order: the function is in one place afterwards,
/// nothing is leaked, and when nothing fails any more the next change works.
#[test]
fn every_step_may_fail_and_the_next_change_works() {
    for is_confined in [false, true] {
        for first in STEPS {
            for second in STEPS {
                for third in STEPS {
                    let machine = Machine::new(is_confined);
                    machine.fail(&[first, second, third]);
                    for _ in 0..3 {
                        let _ = change(&machine);
                        machine.check();
                        let _ = recover(&machine, Owner::Instance(9));
                        machine.check();
                    }
                    machine.fail(&[]);
                    assert!(recover(&machine, Owner::Instance(9)));
                    assert_eq!(machine.ownership.now(), None);
                    assert_eq!(change(&machine), Ok(true), "{first:?} {second:?} {third:?}");
                    machine.check();
                    assert_eq!(machine.ownership.now(), None);
                }
            }
        }
    }
}

#[test]
fn each_step_on_the_way_in_says_why_it_failed() {
    for (step, why, owner) in [
        (Step::Reset, NotTaken::NotReset, Some(Owner::Quarantine)),
        (Step::Hold, NotTaken::NotHeld(Step::Hold), None),
        (Step::Equip, NotTaken::NotHeld(Step::Equip), None),
    ] {
        let machine = Machine::new(true);
        machine.fail(&[step]);
        assert_eq!(change(&machine), Err(why));
        assert_eq!(machine.ownership.now(), owner);
        machine.check();
    }
    let machine = Machine::new(true);
    machine.ownership.leave_to(Some(Owner::Driver));
    assert_eq!(change(&machine), Err(NotTaken::Taken(Owner::Driver)));
    assert_eq!(machine.ownership.now(), Some(Owner::Driver));
}

#[test]
fn only_what_is_not_known_to_be_reset_is_reset_on_the_way_in() {
    let machine = Machine::new(true);
    drop(Custody::take(&machine, 1).ok().unwrap());
    assert_eq!(machine.resets.get(), 1, "of nobody knows whom");
    drop(Custody::take(&machine, 1).ok().unwrap());
    assert_eq!(machine.resets.get(), 1, "nobody has used it");
    assert_eq!(change(&machine), Ok(true));
    assert_eq!(machine.resets.get(), 2, "once, on the way out");
    // What somebody let go of in a state that is not known.
    assert_eq!(machine.ownership.take(Owner::Driver), Ok(Before::Reset));
    machine.ownership.leave_to(None);
    drop(Custody::take(&machine, 1).ok().unwrap());
    assert_eq!(machine.resets.get(), 3);
}

#[test]
fn one_that_cannot_be_reset_is_stopped_if_it_is_held_back_and_goes_into_quarantine() {
    for is_confined in [false, true] {
        let machine = Machine::new(is_confined);
        let custody = Custody::take(&machine, 1).ok().unwrap();
        custody.begin();
        machine.is_told.set(true);
        machine.fail(&[Step::Reset; 4]);
        assert_eq!(custody.stop(), is_confined);
        assert_eq!(machine.ownership.now(), Some(Owner::Instance(1)));
        drop(custody);
        assert_eq!(machine.ownership.now(), Some(Owner::Quarantine));
        machine.check();
        // Nobody gets it, and who asks has it reset again.
        let refused = Custody::take(&machine, 2).err();
        assert_eq!(refused, Some(NotTaken::Taken(Owner::Quarantine)));
        assert!(!recover(&machine, Owner::Instance(2)));
        assert_eq!(machine.ownership.now(), Some(Owner::Quarantine));
        machine.fail(&[Step::Pass]);
        assert!(!recover(&machine, Owner::Instance(2)));
        machine.check();
        assert!(recover(&machine, Owner::Instance(2)));
        assert_eq!(change(&machine), Ok(true));
    }
}

#[test]
fn one_of_a_kernel_before_this_one_is_reset_when_it_leaves() {
    let machine = Machine::new(true);
    machine.ownership.leave_to(Some(Owner::Instance(3)));
    machine.holds.set(1);
    machine.entry.set(Entry::Held);
    let hold = Counted {
        machine: &machine,
        has_messages: false,
    };
    drop(Custody::of_before(&machine, Some(hold)));
    assert_eq!((machine.resets.get(), machine.ownership.now()), (1, None));
    machine.check();
}

/// Effects on a function that threads share: each of them tells how many have it.
struct Shared {
    ownership: Ownership,
    users: AtomicUsize,
    resets: AtomicUsize,
}

impl Effects for Arc<Shared> {
    type Hold = ();
    type Error = ();

    fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    fn taken(&mut self) {}

    fn reset(&self) -> bool {
        assert_eq!(self.users.fetch_add(1, Ordering::SeqCst), 0, "two have it");
        thread::yield_now();
        self.users.fetch_sub(1, Ordering::SeqCst);
        // Each third one fails.
        !self.resets.fetch_add(1, Ordering::SeqCst).is_multiple_of(3)
    }

    fn hold(&self) -> Result<Option<()>, ()> {
        Ok(Some(()))
    }

    fn equip(&self, (): &mut ()) -> Result<(), ()> {
        Ok(())
    }

    fn hold_back(&self, (): &()) -> bool {
        true
    }

    fn release(&self, (): (), may_pass: bool) -> bool {
        may_pass
    }

    fn isolate(&self) {}

    fn pass(&self) -> bool {
        true
    }
}

/// Tools that race for one function: one of them has it at a time, whatever fails, and it comes to
/// each of them in the end.
#[test]
fn one_of_several_tools_gets_it() {
    const TOOLS: u32 = 4;
    const TIMES: usize = 200;
    let shared = Arc::new(Shared {
        ownership: Ownership::default(),
        users: AtomicUsize::new(0),
        resets: AtomicUsize::new(0),
    });
    let barrier = Arc::new(Barrier::new(TOOLS as usize));
    let tool = |id: u32| {
        let (shared, barrier) = (shared.clone(), barrier.clone());
        thread::spawn(move || {
            barrier.wait();
            let mut times = 0;
            while times < TIMES {
                recover(shared.clone(), Owner::Instance(id));
                match Custody::take(shared.clone(), id) {
                    Ok(custody) => {
                        assert_eq!(shared.ownership.now(), Some(Owner::Instance(id)));
                        custody.begin();
                        custody.stop();
                        times += 1;
                    }
                    Err(NotTaken::Taken(Owner::Driver | Owner::Elsewhere)) => unreachable!(),
                    Err(_) => thread::yield_now(),
                }
            }
        })
    };
    let tools: Vec<_> = (1..=TOOLS).map(tool).collect();
    for tool in tools {
        tool.join().unwrap();
    }
    let left = shared.ownership.now();
    assert!(matches!(left, None | Some(Owner::Quarantine)), "{left:?}");
}

/// An instance that ends while its function leaves: both threads stop it, one at a time, and when
/// both have let go of it, it is somewhere, once.
#[test]
fn an_end_beside_a_function_that_leaves_stops_it_once() {
    for round in 0..100 {
        let shared = Arc::new(Shared {
            ownership: Ownership::default(),
            users: AtomicUsize::new(0),
            resets: AtomicUsize::new(1 + round),
        });
        let Ok(custody) = Custody::take(shared.clone(), 1) else {
            continue;
        };
        custody.begin();
        let (before, custody) = (shared.resets.load(Ordering::SeqCst), Arc::new(custody));
        let threads = [custody.clone(), custody]
            .map(|custody| thread::spawn(move || assert!(custody.stop(), "it is held back")));
        for thread in threads {
            thread.join().unwrap();
        }
        let resets = shared.resets.load(Ordering::SeqCst) - before;
        assert!(
            (1..=2).contains(&resets),
            "{resets}: the second one after one that failed"
        );
        assert_eq!(shared.ownership.now(), None);
    }
}

//! Steps of a reset, in their order.

use super::*;

/// A function of which is noted what was written.
struct Recorded {
    function: Resettable,
    written: RefCell<Vec<(u16, u32)>>,
}

impl Recorded {
    fn new(function: Resettable) -> Self {
        Self {
            function,
            written: RefCell::default(),
        }
    }

    /// Values that were written to a register.
    fn written(&self, offset: u16) -> Vec<u32> {
        let written = self.written.borrow();
        let all = written.iter().filter(|(at, _)| *at == offset);
        all.map(|(_, value)| *value).collect()
    }
}

impl ConfigRegisters for &Recorded {
    fn read(&self, offset: u16) -> u32 {
        (&self.function).read(offset)
    }

    fn write(&self, offset: u16, value: u32) {
        self.written.borrow_mut().push((offset, value));
        (&self.function).write(offset, value);
    }
}

#[test]
fn one_that_keeps_its_state_keeps_its_power() {
    let function = Recorded::new(Resettable::new(0, 8));
    let saved = Saved::of(&&function);
    let reset = reset(&&function, Layout::Device, &saved, |_| ());
    assert_eq!(reset, Err(NotReset));
    assert_eq!(function.written(0x54), Vec::<u32>::new());
    // Its power goes and comes, and nothing else of the register changes.
    let function = Recorded::new(Resettable::new(0, 0x100));
    let saved = Saved::of(&&function);
    assert_eq!(
        super::reset(&&function, Layout::Device, &saved, |_| ()),
        Ok(())
    );
    assert_eq!(function.written(0x54), [0x103, 0x100]);
}

/// A function is reset when all that it has asked for has come, or after a bounded time, and asks
/// for nothing more meanwhile.
#[test]
fn what_is_pending_comes_first() {
    const PENDING: u32 = 1 << 21;
    for done_after in [0, 1, 7, u32::MAX] {
        let function = Recorded::new(Resettable::new(1 << 28, 0));
        (&function).write(4, 7);
        let saved = Saved::of(&&function);
        let mut waits = 0;
        if done_after > 0 {
            function.function.model.set(0x48, PENDING | 0x2010);
        }
        let mut wait = |ms: u32| {
            let begun = function.written(0x48).iter().any(|to| to & 1 << 15 != 0);
            if !begun {
                waits += ms;
                assert_eq!((&function).read(4) & 4, 0, "it may ask for more");
                if waits == done_after {
                    function.function.model.set(0x48, 0x2010);
                }
            }
        };
        let reset = reset(&&function, Layout::Device, &saved, &mut wait);
        assert_eq!(reset, Ok(()));
        assert_eq!(waits, done_after.min(100));
    }
}

#[test]
fn all_of_its_addresses_are_there_again() {
    let mut resettable = Resettable::new(1 << 28, 0);
    let bars = [0x14, 0x18, 0x1c, 0x20, 0x24];
    for bar in bars {
        let at = 0xfd00_0000 | u32::from(bar) << 12;
        resettable.model = resettable.model.with_bar(bar, at, 0xffff_f000);
    }
    let saved = Saved::of(&&resettable);
    for bar in bars {
        resettable.model.set(bar, 0);
    }
    assert_eq!(reset(&&resettable, Layout::Device, &saved, |_| ()), Ok(()));
    for bar in bars {
        assert_eq!((&resettable).read(bar), 0xfd00_0000 | u32::from(bar) << 12);
    }
    // One of them is known otherwise, and one that there is not is nobody's.
    let saved = saved.with_bar(2, 0xfc00_0000).with_bar(6, 1);
    assert_eq!(reset(&&resettable, Layout::Device, &saved, |_| ()), Ok(()));
    assert_eq!((&resettable).read(0x18), 0xfc00_0000);
}

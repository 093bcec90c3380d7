//! Keeping functions apart (access control services; PCI Express Base 5.0, 6.12 and 7.7.8): what
//! one sends goes up to where it is translated, and not to a neighbour whose addresses it names.

use crate::function::{CAPABILITY_EXPRESS, capability};
use crate::{CONFIG_BYTES, ConfigRegisters, EXTENDED_CONFIG_BYTES};

/// Kind of the extended capability.
const ACCESS_CONTROL: u32 = 0x000d;
/// Bits for it to validate the sender, to redirect requests and completions, to forward up.
const WANTED: u32 = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 4;
/// Offset of what it can do, in the lower half, and of what it does, in the upper.
const CONTROL: u16 = 4;
/// Kinds of ports, in the capability of PCI Express (7.5.3.2): to the root; of a switch, up and
/// down.
const ROOT_PORT: u32 = 4;
const UPSTREAM_PORT: u32 = 5;
const DOWNSTREAM_PORT: u32 = 6;

/// Offset of the first extended capability of a kind (7.6.3).
pub(crate) fn extended_capability(registers: &impl ConfigRegisters, kind: u32) -> Option<u16> {
    let mut at = CONFIG_BYTES;
    // No more than fit, whatever the list says.
    for _ in 0..(EXTENDED_CONFIG_BYTES - CONFIG_BYTES) / 8 {
        let head = registers.read(at);
        if head == 0 || head == u32::MAX {
            return None;
        }
        if head & 0xffff == kind {
            return Some(at);
        }
        at = (head >> 20) as u16 & !3;
        if at < CONFIG_BYTES {
            return None;
        }
    }
    None
}

/// Whether a function has means to keep others apart from it.
pub fn has_access_control(registers: &impl ConfigRegisters) -> bool {
    capability(registers, CAPABILITY_EXPRESS).is_some()
        && extended_capability(registers, ACCESS_CONTROL).is_some()
}

/// Has a port, or a function of several, lead all up that it can take itself; false if it has no
/// such means, or does not do it.
pub fn redirect(registers: &impl ConfigRegisters) -> bool {
    if capability(registers, CAPABILITY_EXPRESS).is_none() {
        return false;
    }
    let Some(at) = extended_capability(registers, ACCESS_CONTROL) else {
        return false;
    };
    let able = registers.read(at + CONTROL) & 0xffff;
    let wanted = able & WANTED;
    registers.write(at + CONTROL, able | wanted << 16);
    registers.read(at + CONTROL) >> 16 & WANTED == wanted
}

/// Whether a bridge leads all up that comes from behind it, in the name of who sends it, which it
/// is made to: false of one to conventional PCI.
pub fn leads_up(registers: &impl ConfigRegisters) -> bool {
    let Some(express) = capability(registers, CAPABILITY_EXPRESS) else {
        return false;
    };
    match registers.read(express) >> 20 & 0xf {
        ROOT_PORT | DOWNSTREAM_PORT => redirect(registers),
        // Its neighbours are the ports below it, which lead up.
        UPSTREAM_PORT => true,
        _ => false,
    }
}

/// Whether a bridge passes on what comes from behind it in the name of who sends it: false of one
/// to conventional PCI.
pub fn keeps_names(registers: &impl ConfigRegisters) -> bool {
    capability(registers, CAPABILITY_EXPRESS).is_some_and(|express| {
        let kind = registers.read(express) >> 20 & 0xf;
        matches!(kind, ROOT_PORT | UPSTREAM_PORT | DOWNSTREAM_PORT)
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Configuration space in which only what access control does can be written.
    struct Space(RefCell<Vec<u32>>, Option<u16>);

    impl ConfigRegisters for Space {
        fn read(&self, offset: u16) -> u32 {
            self.0.borrow()[usize::from(offset / 4)]
        }
        fn write(&self, offset: u16, value: u32) {
            if self.1 == Some(offset) {
                let mut words = self.0.borrow_mut();
                let word = &mut words[usize::from(offset / 4)];
                *word = *word & 0xffff | value & 0xffff_0000;
            }
        }
    }

    /// A port of a kind with its list of extended capabilities.
    fn space(kind: u32, list: &[(u16, u32)], writable: Option<u16>) -> Space {
        let mut words = vec![0; 1024];
        words[0] = 0x0001_8086;
        words[1] = 1 << 20;
        words[0x34 / 4] = 0x40;
        words[0x40 / 4] = kind << 20 | 0x10;
        for (at, word) in list {
            words[usize::from(at / 4)] = *word;
        }
        Space(RefCell::new(words), writable)
    }

    const WITH: [(u16, u32); 3] = [
        (0x100, 0x1500_0001 | 1 << 16),
        (0x150, 0x000d | 1 << 16),
        (0x154, 0x1f),
    ];

    #[test]
    fn ports_are_made_to_lead_up() {
        for kind in [ROOT_PORT, DOWNSTREAM_PORT] {
            let port = space(kind, &WITH, Some(0x154));
            assert!(leads_up(&port));
            assert_eq!(port.read(0x154), 0x1d_001f);
            // One that does not do as it is told, and one that cannot be told.
            assert!(!leads_up(&space(kind, &WITH, None)));
            assert!(!leads_up(&space(kind, &[], Some(0x154))));
        }
        assert!(leads_up(&space(UPSTREAM_PORT, &[], None)));
        assert!(keeps_names(&space(UPSTREAM_PORT, &[], None)));
    }

    #[test]
    fn other_bridges_do_not() {
        for kind in [0, 1, 7, 8, 9] {
            assert!(!leads_up(&space(kind, &WITH, Some(0x154))), "{kind}");
            assert!(!keeps_names(&space(kind, &WITH, Some(0x154))), "{kind}");
        }
        let conventional = space(ROOT_PORT, &WITH, Some(0x154));
        conventional.0.borrow_mut()[0x40 / 4] = 0x01;
        assert!(!leads_up(&conventional) && !keeps_names(&conventional));
    }

    #[test]
    fn a_list_without_end_ends() {
        let circle = space(ROOT_PORT, &[(0x100, 0x1000_0001), (0x154, 0x1f)], None);
        assert!(!leads_up(&circle));
        let ones = space(ROOT_PORT, &[(0x100, u32::MAX)], None);
        assert!(!leads_up(&ones));
    }
}

//! A device of the tests over PCI: registers that do what section 4.1.4.3 says, or what a test has
//! them do instead.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::vec::Vec;

use virtqueue::{Address, Areas, bring_up};

use super::*;

/// Places of the structures.
const COMMON_AT: u32 = 0x1000;
const NOTIFY_AT: u32 = 0x3000;
const DEVICE_AT: u32 = 0x2000;

#[derive(Default)]
struct State {
    features: u64,
    selected: u32,
    driver_features: u64,
    status: u8,
    queue: u16,
    sizes: [u16; 2],
    messages: [u16; 2],
    config_message: u16,
    enabled: [u16; 2],
    areas: [[u32; 6]; 2],
    notified: Vec<(usize, u16)>,
    config: Vec<u8>,
    /// The device does not stop when it is told to.
    is_stuck: bool,
    /// The device cannot be stopped by others either.
    resists: bool,
    forced: u32,
    /// The device has no room for messages.
    refuses_messages: bool,
    looks: u32,
}

#[derive(Clone)]
struct Window {
    state: Rc<RefCell<State>>,
    offset: u32,
    len: u32,
}

impl Window {
    fn at(&self, at: usize, bytes: usize) -> u32 {
        assert!(at.is_multiple_of(bytes) && at + bytes <= self.len as usize);
        self.offset + at as u32
    }
}

impl Registers for Window {
    fn read8(&self, at: usize) -> u8 {
        let state = self.state.borrow();
        match self.at(at, 1) {
            at if at == COMMON_AT + 0x14 => state.status,
            at if at >= DEVICE_AT => state.config[(at - DEVICE_AT) as usize],
            _ => 0,
        }
    }

    fn read16(&self, at: usize) -> u16 {
        let state = self.state.borrow();
        let queue = usize::from(state.queue);
        match self.at(at, 2) - COMMON_AT {
            0x10 => state.config_message,
            0x12 => 2,
            0x18 => state.sizes[queue],
            0x1a => state.messages[queue],
            0x1c => state.enabled[queue],
            0x1e => 3 * state.queue,
            _ => 0,
        }
    }

    fn read32(&self, at: usize) -> u32 {
        let state = self.state.borrow();
        match self.at(at, 4) {
            at if at == COMMON_AT + 4 => (state.features >> (32 * state.selected)) as u32,
            at if at >= DEVICE_AT => {
                let at = (at - DEVICE_AT) as usize;
                u32::from_le_bytes(state.config[at..at + 4].try_into().unwrap())
            }
            _ => 0,
        }
    }

    fn write8(&self, at: usize, value: u8) {
        let mut state = self.state.borrow_mut();
        assert_eq!(self.at(at, 1), COMMON_AT + 0x14);
        if value != 0 || !state.is_stuck {
            state.status = value;
        }
    }

    fn write16(&self, at: usize, value: u16) {
        let mut state = self.state.borrow_mut();
        let at = self.at(at, 2);
        if at >= NOTIFY_AT {
            state.notified.push(((at - NOTIFY_AT) as usize, value));
            return;
        }
        let queue = usize::from(state.queue);
        match at - COMMON_AT {
            0x10 if state.refuses_messages => state.config_message = 0xffff,
            0x10 => state.config_message = value,
            0x16 => state.queue = value,
            0x18 => state.sizes[queue] = value,
            0x1a if state.refuses_messages => state.messages[queue] = 0xffff,
            0x1a => state.messages[queue] = value,
            0x1c => state.enabled[queue] = value,
            0x3a => state.enabled[queue] = 0,
            _ => {}
        }
    }

    fn write32(&self, at: usize, value: u32) {
        let mut state = self.state.borrow_mut();
        let queue = usize::from(state.queue);
        match self.at(at, 4) - COMMON_AT {
            0 | 8 => state.selected = value,
            0xc => state.driver_features |= u64::from(value) << (32 * state.selected),
            area @ 0x20..0x38 => state.areas[queue][(area - 0x20) as usize / 4] = value,
            _ => {}
        }
    }
}

struct Board {
    config: BTreeMap<u16, u32>,
    config_message: Option<u16>,
    state: Rc<RefCell<State>>,
}

impl Function for Board {
    type Registers = Window;

    fn config(&self, at: u16) -> u32 {
        self.config.get(&at).copied().unwrap_or(0)
    }

    fn registers(&self, bar: u8, offset: u32, len: u32) -> Option<Window> {
        let end = offset.checked_add(len)?;
        (bar == 4 && len > 0 && end <= 0x4000).then(|| Window {
            state: self.state.clone(),
            offset,
            len,
        })
    }

    fn message_of(&self, queue: u16) -> u16 {
        queue + 1
    }

    fn message_of_config(&self) -> Option<u16> {
        self.config_message
    }

    fn force_reset(&self) -> bool {
        let mut state = self.state.borrow_mut();
        state.forced += 1;
        state.status = 0;
        !state.resists
    }

    fn pause(&self, _: u32) {
        self.state.borrow_mut().looks += 1;
    }
}

/// Capabilities one after the other: kind, register, offset, length and multiplier.
fn board(structures: &[(u8, u32, u32, u32)]) -> Board {
    let mut config = BTreeMap::from([(4, 1 << 20), (0x34, 0x40)]);
    for (n, (kind, bar, offset, len)) in structures.iter().enumerate() {
        let at = 0x40 + 0x14 * n as u16;
        let next = if n + 1 < structures.len() {
            at + 0x14
        } else {
            0
        };
        config.insert(at, u32::from(*kind) << 24 | u32::from(next) << 8 | 0x09);
        config.insert(at + 4, *bar);
        config.insert(at + 8, *offset);
        config.insert(at + 12, *len);
        config.insert(at + 16, 4);
    }
    let state = State {
        features: 1 << 40 | 1 << 32 | 1 << 29 | 3,
        sizes: [16, 8],
        config: (0..20).collect(),
        ..State::default()
    };
    Board {
        config,
        config_message: None,
        state: Rc::new(RefCell::new(state)),
    }
}

fn usual() -> Board {
    board(&[
        (COMMON, 5, COMMON_AT, 0x3c),
        (COMMON, 4, COMMON_AT, 0x3c),
        (3, 4, 0, 4),
        (DEVICE, 4, DEVICE_AT, 18),
        (NOTIFY, 4, NOTIFY_AT, 0x100),
        (5, 0, 0, 0),
    ])
}

fn setup(size: u16) -> Setup {
    Setup {
        size,
        areas: Areas::at(Address::new(0x12_3456_7000), size),
        features: Features::VERSION_1,
    }
}

#[test]
fn kinds_are_told_by_number() {
    assert_eq!(kind(0x1af4, 0x1042), Some(2));
    assert_eq!(kind(0x1af4, 0x1001), Some(2));
    assert_eq!(kind(0x1af4, 0x1005), Some(4));
    for (vendor, device) in [
        (0x1af4, 0x1040),
        (0x1af4, 0x1100),
        (0x1b36, 0x1042),
        (0x1af4, 0),
    ] {
        assert_eq!(kind(vendor, device), None);
    }
}

#[test]
fn a_device_is_brought_up_and_its_queues_told() {
    let pci = Pci::new(usual()).unwrap();
    let state = pci.function().state.clone();
    let features = bring_up(&pci, 1 << 29 | 1 << 40, 1).unwrap();
    assert_eq!(features, 1 << 40 | 1 << 32 | 1 << 29 | 1);
    assert_eq!(state.borrow().driver_features, features);
    assert_eq!(
        (pci.queues(), pci.queue_size(1), pci.queue_size(2)),
        (2, 8, 0)
    );
    pci.notify(1);
    pci.enable_queue(1, &setup(4)).unwrap();
    pci.notify(1);
    let state = state.borrow();
    assert_eq!(
        state.notified,
        [(12, 1)],
        "before it is enabled nobody is told"
    );
    assert_eq!(
        (state.sizes[1], state.messages[1], state.enabled[1]),
        (4, 2, 1)
    );
    let areas = setup(4).areas;
    let low = |address: Address| address.number() as u32;
    assert_eq!(
        state.areas[1],
        [
            low(areas.descriptors),
            0x12,
            low(areas.driver),
            0x12,
            low(areas.device),
            0x12
        ]
    );
}

#[test]
fn what_cannot_be_is_an_error() {
    let pci = Pci::new(usual()).unwrap();
    assert_eq!(
        pci.enable_queue(1, &setup(16)),
        Err(TransportError::NoQueue)
    );
    assert_eq!(pci.enable_queue(2, &setup(1)), Err(TransportError::NoQueue));
    pci.function().state.borrow_mut().refuses_messages = true;
    assert_eq!(
        pci.enable_queue(0, &setup(16)),
        Err(TransportError::NoMessage)
    );
    let mut bytes = [0; 11];
    assert_eq!(pci.read_config(6, &mut bytes), Ok(()));
    assert_eq!(bytes.to_vec(), (6..17).collect::<Vec<u8>>());
    assert_eq!(
        pci.read_config(8, &mut bytes),
        Err(TransportError::NoConfig)
    );
    assert_eq!(
        pci.read_config(usize::MAX, &mut bytes),
        Err(TransportError::NoConfig)
    );
}

#[test]
fn a_queue_whose_notification_is_elsewhere_is_none() {
    let pci = Pci::new(board(&[
        (COMMON, 4, COMMON_AT, 0x38),
        (NOTIFY, 4, NOTIFY_AT, 12),
    ]))
    .unwrap();
    assert_eq!(pci.enable_queue(0, &setup(4)), Ok(()));
    assert_eq!(pci.enable_queue(1, &setup(4)), Err(TransportError::NoQueue));
    // Without the registers for it there is no reset of single queues.
    assert_eq!(pci.device_features() & Features::RING_RESET.bits(), 0);
    assert_eq!(pci.reset_queue(0), Err(TransportError::NoQueue));
}

#[test]
fn a_device_that_does_not_stop_is_made_to() {
    let pci = Pci::new(usual()).unwrap();
    let state = pci.function().state.clone();
    state.borrow_mut().status = 15;
    assert_eq!(pci.reset(), Ok(()));
    assert_eq!((state.borrow().forced, state.borrow().looks), (0, 0));
    state.borrow_mut().status = 15;
    state.borrow_mut().is_stuck = true;
    assert_eq!(pci.reset(), Ok(()));
    assert_eq!((state.borrow().forced, state.borrow().looks), (1, LOOKS));
    state.borrow_mut().status = 15;
    state.borrow_mut().resists = true;
    assert_eq!(pci.reset(), Err(TransportError::Stuck));
}

#[test]
fn changes_of_the_configuration_are_told_by_the_message_that_is_theirs() {
    for message in [None, Some(3)] {
        let pci = Pci::new(Board {
            config_message: message,
            ..usual()
        })
        .unwrap();
        let state = pci.function().state.clone();
        assert_eq!(pci.reset(), Ok(()));
        assert_eq!(state.borrow().config_message, message.unwrap_or(0xffff));
        state.borrow_mut().refuses_messages = true;
        let expected = message.map_or(Ok(()), |_| Err(TransportError::NoMessage));
        assert_eq!(pci.reset(), expected);
    }
}

#[test]
fn a_function_without_the_structures_is_no_device() {
    let whole = (COMMON, 4, COMMON_AT, 0x38);
    let notify = (NOTIFY, 4, NOTIFY_AT, 0x100);
    for structures in [
        &[][..],
        &[whole],
        &[notify],
        &[(COMMON, 4, COMMON_AT, 0x37), notify],
        &[(COMMON, 4, 0x3fff, 0x38), notify],
        &[(COMMON, 4, u32::MAX, 0x38), notify],
        &[whole, (NOTIFY, 4, NOTIFY_AT, 1)],
    ] {
        assert!(Pci::new(board(structures)).is_err(), "{structures:?}");
    }
    // A list of capabilities that is a circle ends.
    let mut circle = board(&[(3, 4, 0, 4)]);
    circle.config.insert(0x40, 0x03_00_40_09);
    assert!(Pci::new(circle).is_err());
}

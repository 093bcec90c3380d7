//! Functions of known layout, and machines that answer with anything.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// Registers with bits that can be changed, and the others.
#[derive(Clone, Default)]
struct Model {
    values: RefCell<BTreeMap<u16, u32>>,
    writable: BTreeMap<u16, u32>,
    /// Whether a register was changed while the function answered at its addresses.
    moved_while_on: Cell<bool>,
    /// Number of writes so far.
    writes: Cell<usize>,
}

impl Model {
    fn new(vendor: u32, device: u32, class: u32, header: u32) -> Self {
        let model = Self::default();
        model.set(0, device << 16 | vendor);
        model.set(8, class << 8 | 3);
        model.set(0xc, header << 16);
        model
    }

    fn set(&self, offset: u16, value: u32) {
        self.values.borrow_mut().insert(offset, value);
    }

    fn with(self, offset: u16, value: u32) -> Self {
        self.set(offset, value);
        self
    }

    /// A register of which `mask` can be written.
    fn with_bar(mut self, offset: u16, value: u32, mask: u32) -> Self {
        self.set(offset, value);
        self.writable.insert(offset, mask);
        self
    }
}

impl ConfigRegisters for &Model {
    fn read(&self, offset: u16) -> u32 {
        assert!(offset.is_multiple_of(4) && offset < EXTENDED_CONFIG_BYTES);
        self.values.borrow().get(&offset).copied().unwrap_or(0)
    }

    fn write(&self, offset: u16, value: u32) {
        self.writes.set(self.writes.get() + 1);
        let mask = match offset {
            4 => 0xffff,
            _ => self.writable.get(&offset).copied().unwrap_or(0),
        };
        let is_on = self.read(4) & 3 != 0;
        let before = self.read(offset);
        if offset != 4 && is_on && mask != 0 {
            self.moved_while_on.set(true);
        }
        self.set(offset, before & !mask | value & mask);
    }
}

fn read(model: &Model) -> Option<Function> {
    let all = || -> Vec<u32> { (0..1024).map(|n| (&model).read(4 * n)).collect() };
    let before = all();
    let function = Function::read(Address::new(0, 1, 2, 3), None, &model, false);
    assert_eq!(all(), before, "something stayed changed");
    function
}

/// A machine of one function at 1:0.0, with registers that are known or not.
struct OneFunction<'a>(&'a Model, Option<[Option<Bar>; 6]>);

impl<'a> Machine for OneFunction<'a> {
    type Registers = &'a Model;

    fn registers(&self, address: Address) -> Option<&'a Model> {
        (address == Address::new(0, 1, 0, 0)).then_some(self.0)
    }

    fn known_bars(&self, _: Address) -> Option<[Option<Bar>; 6]> {
        self.1
    }
}

#[test]
fn a_scan_writes_nothing_to_a_function_whose_registers_are_known() {
    let model = Model::new(0x1af4, 0x1042, 0x01_0000, 0).with_bar(0x10, 0xfe00_0000, 0xffff_f000);
    let scanned = |bars| {
        let mut found = Vec::new();
        let all = scan(&OneFunction(&model, bars), 0, 1, 1, |function, _| {
            found.push(function);
            Some(())
        });
        assert_eq!((all, found.len()), (Some(()), 1));
        found[0].bars
    };
    let sized = scanned(None);
    assert_eq!(sized[0].map(|bar| bar.size), Some(4096));
    // It is on, and does what it does.
    model.set(4, 6);
    let before = model.writes.get();
    assert_eq!(scanned(Some(sized)), sized);
    assert_eq!(model.writes.get(), before);
}

#[test]
fn a_bridge_stays_on_while_something_behind_it_is_in_use() {
    let bridge = || Model::new(0x1b36, 0xc, 0x06_0400, 1).with_bar(0x10, 0xfe00_0000, 0xffff_f000);
    for is_in_use in [false, true] {
        let model = bridge();
        model.set(4, 7);
        let address = Address::new(0, 0, 1, 0);
        let function = Function::read(address, None, &&model, is_in_use).unwrap();
        assert_eq!(function.bars[0].map(|bar| bar.size), Some(4096));
        assert_eq!(
            (model.moved_while_on.get(), (&model).read(4)),
            (is_in_use, 7)
        );
    }
    // A device is switched off, whatever is in use.
    let model = Model::new(0x1af4, 0x1042, 0x01_0000, 0).with_bar(0x10, 0xfe00_0000, 0xffff_f000);
    model.set(4, 7);
    Function::read(Address::new(0, 1, 0, 0), None, &&model, true).unwrap();
    assert!(!model.moved_while_on.get());
}

#[test]
fn addresses_read_as_on_linux() {
    assert_eq!(Address::new(1, 0xab, 0x1f, 7).to_string(), "0001:ab:1f.7");
    let address = Address::new(0, 0, 33, 9);
    assert_eq!(
        (address.device(), address.function(), address.devfn()),
        (1, 1, 9)
    );
}

#[test]
fn addresses_are_read_as_they_are_printed() {
    let is = |text: &str, address| assert_eq!(text.parse(), Ok(address), "{text}");
    is("0000:00:03.0", Address::new(0, 0, 3, 0));
    is("00:03.0", Address::new(0, 0, 3, 0));
    is("ffff:AB:1f.7", Address::new(0xffff, 0xab, 0x1f, 7));
    for text in [
        "",
        "3",
        "00:03",
        "03.0",
        "0:03.0",
        "00:3.0",
        "00:03.8",
        "00:20.0",
        "000:00:03.0",
        "00000:00:03.0",
        "0000:00:03.0 ",
        "0000:00:03.00",
        "+000:00:03.0",
        "0000:00:00:03.0",
        "00:0\u{e9}.0",
    ] {
        assert_eq!(text.parse::<Address>(), Err(NoAddress), "{text}");
    }
    for number in [0, 0x18, 0xffff_abff, u32::MAX] {
        let address = Address::from_number(number);
        assert_eq!(address.number(), number);
        assert_eq!(address.to_string().parse(), Ok(address));
    }
}

#[test]
fn a_header_is_read_without_writing_where_registers_are_known() {
    let model = Model::new(0x1af4, 0x1042, 0x01_0000, 0).with_bar(0x10, 0xfe00_0000, 0xffff_f000);
    let sized = read(&model).unwrap();
    // Whatever is written to a function that is on is noticed.
    model.set(4, 2);
    let before = model.values.borrow().clone();
    let function = Function::with_bars(sized.address, None, sized.bars, &&model);
    assert_eq!(function, Some(sized));
    assert!(!model.moved_while_on.get() && *model.values.borrow() == before);
    model.set(0, u32::MAX);
    assert_eq!(
        Function::with_bars(sized.address, None, sized.bars, &&model),
        None
    );
}

#[test]
fn a_device_says_what_it_is() {
    let model = Model::new(0x8086, 0x10c9, 0x02_0000, 0x80)
        .with(0x2c, 0x1100_1af4)
        .with(0x3c, 0x0000_010b);
    let function = read(&model).unwrap();
    assert_eq!((function.vendor, function.device), (0x8086, 0x10c9));
    assert_eq!((function.class, function.revision), (0x02_0000, 3));
    assert_eq!(function.subsystem, (0x1af4, 0x1100));
    assert_eq!((function.interrupt_pin, function.interrupt_line), (1, 11));
    assert_eq!((function.layout, function.buses), (Layout::Device, None));
    assert!(function.is_multi_function);
    assert_eq!(function.config_bytes, CONFIG_BYTES);
}

#[test]
fn nothing_is_where_nothing_answers() {
    for identity in [0, u32::MAX, 0xffff, 0xffff_0001, 0x1234_0000] {
        let model = Model::default().with(0, identity);
        assert_eq!(read(&model), None, "{identity:x}");
    }
}

#[test]
fn registers_have_the_size_that_stays_zero() {
    let model = Model::new(0x1af4, 0x1041, 0x02_0000, 0)
        .with(4, 7)
        // Ports of which only 16 bits can be set, memory, nothing, prefetchable memory of 64 bits.
        .with_bar(0x10, 0xc041, 0x0000_ffe0)
        .with_bar(0x14, 0xfe64_4000, 0xffff_f000)
        .with_bar(0x1c, 0, 0)
        .with_bar(0x20, 0x8000_000c, 0xffff_c000)
        .with_bar(0x24, 0x12, 0xffff_ffff)
        .with_bar(0x30, 0xfeb0_0001, 0xfffc_0001);
    let function = read(&model).unwrap();
    let bar = |kind, prefetchable, address, size, flags| {
        Some(Bar {
            kind,
            prefetchable,
            address,
            size,
            flags,
        })
    };
    let all = [
        bar(BarKind::Ports, false, 0xc040, 0x20, 1),
        bar(BarKind::Memory32, false, 0xfe64_4000, 0x1000, 0),
        None,
        None,
        bar(BarKind::Memory64, true, 0x12_8000_0000, 0x4000, 0xc),
        None,
    ];
    assert_eq!(function.bars, all);
    assert_eq!(
        function.rom,
        bar(BarKind::Rom, true, 0xfeb0_0000, 0x4_0000, 1)
    );
    assert!(!model.moved_while_on.get());
    // The bridge to the processors is not switched off for that.
    let host = Model::new(0x8086, 0x29c0, 0x06_0000, 0)
        .with(4, 7)
        .with_bar(0x10, 0xe000_0000, 0xf000_0000);
    assert_eq!(read(&host).unwrap().bars[0].unwrap().size, 1 << 28);
    assert!(host.moved_while_on.get());
}

/// A register of 64 bits that is the last one, whose bits have holes, or that covers everything
/// above 4 GiB.
#[test]
fn registers_that_make_no_sense_are_none() {
    let bars = |model: &Model| read(model).unwrap().bars;
    let device = || Model::new(1 << 8, 1, 0, 0);
    let last = device().with_bar(0x24, 4, 0xffff_f000);
    assert_eq!(bars(&last)[5].unwrap().kind, BarKind::Memory32);
    assert_eq!(bars(&device().with_bar(0x10, 0, 0xff00_f000)), [None; 6]);
    assert_eq!(bars(&device().with(0x10, u32::MAX)), [None; 6]);
    let huge = device().with_bar(0x10, 4, 0).with_bar(0x14, 0, 0xffff_fff0);
    assert_eq!(bars(&huge)[0].unwrap().size, 1 << 36);
}

#[test]
fn a_bridge_passes_ranges_on() {
    let model = Model::new(0x1b36, 0xc, 0x06_0400, 1)
        .with(4, 0x0010_0000)
        .with(0x18, 0x0005_0200)
        .with(0x1c, 0x0000_2111)
        .with(0x20, 0xfe50_fe40)
        .with(0x24, 0xfff1_8001)
        .with(0x28, 1)
        .with(0x2c, 2)
        .with(0x30, 0x0001_0000)
        .with(0x34, 0x40)
        .with(0x40, 0x0000_480d)
        .with(0x44, 0x5678_1234)
        .with(0x48, 0x0000_0010)
        .with(0x100, 0x1481_0001);
    let function = read(&model).unwrap();
    assert_eq!(
        (function.layout, function.buses),
        (Layout::Bridge, Some((2, 5)))
    );
    assert_eq!(function.subsystem, (0x1234, 0x5678));
    assert_eq!(function.config_bytes, EXTENDED_CONFIG_BYTES);
    let window = |kind, first, last| Some(Window { kind, first, last });
    let all = [
        window(WindowKind::Ports, 0x1000, 0x1_2fff),
        window(WindowKind::Memory, 0xfe40_0000, 0xfe5f_ffff),
        window(WindowKind::Prefetchable64, 0x1_8000_0000, 0x2_ffff_ffff),
    ];
    assert_eq!(function.windows, all);
    // Closed: the first address is behind the last.
    let closed = Model::new(0x1b36, 0xc, 0x06_0400, 1)
        .with(0x1c, 0x0000_00f0)
        .with(0x20, 0x0000_fff0)
        .with(0x24, 0x0001_fff1);
    assert_eq!(read(&closed).unwrap().windows, [None; 3]);
}

/// A conventional function shows its first registers again where extended ones would be, or
/// nothing.
#[test]
fn extended_registers_are_only_where_they_are() {
    let express = || {
        Model::new(0x1af4, 0x1042, 0x01_0000, 0)
            .with(4, 0x0010_0000)
            .with(0x34, 0x40)
            .with(0x40, 0x0000_0010)
    };
    let bytes = |model: Model| read(&model).unwrap().config_bytes;
    assert_eq!(bytes(express()), EXTENDED_CONFIG_BYTES);
    assert_eq!(bytes(express().with(0x100, u32::MAX)), CONFIG_BYTES);
    assert_eq!(bytes(express().with(0x100, 0x1042_1af4)), CONFIG_BYTES);
    // No list; a list in a loop; one that leads into the header.
    assert_eq!(bytes(express().with(4, 0)), CONFIG_BYTES);
    assert_eq!(bytes(express().with(0x40, 0x4005)), CONFIG_BYTES);
    assert_eq!(bytes(express().with(0x34, 0x3c)), CONFIG_BYTES);
}

struct Tree(BTreeMap<Address, Model>);

impl<'a> Machine for &'a Tree {
    type Registers = Option<&'a Model>;

    fn registers(&self, address: Address) -> Option<Option<&'a Model>> {
        Some(self.0.get(&address))
    }
}

impl ConfigRegisters for Option<&Model> {
    fn read(&self, offset: u16) -> u32 {
        self.map_or(u32::MAX, |model| model.read(offset))
    }

    fn write(&self, offset: u16, value: u32) {
        if let Some(model) = self {
            model.write(offset, value);
        }
    }
}

fn bridge(primary: u32, secondary: u32, last: u32) -> Model {
    Model::new(0x1b36, 0xc, 0x06_0400, 1).with(0x18, last << 16 | secondary << 8 | primary)
}

fn tree(functions: impl IntoIterator<Item = ((u8, u8, u8), Model)>) -> Tree {
    let at = |((bus, device, number), model)| (Address::new(0, bus, device, number), model);
    Tree(functions.into_iter().map(at).collect())
}

fn found(tree: &Tree, first: u8, last: u8) -> Vec<(String, Option<String>)> {
    let mut found = Vec::new();
    let all = scan(&tree, 0, first, last, |function, _| {
        let upstream = function.upstream.map(|address| address.to_string());
        found.push((function.address.to_string(), upstream));
        Some(())
    });
    assert_eq!(all, Some(()));
    found
}

#[test]
fn functions_behind_bridges_are_found_once() {
    let device = |header| Model::new(0x8086, 1, 0, header);
    let tree = tree([
        ((0, 0, 0), device(0)),
        // Not one of many: the second function is not looked for.
        ((0, 0, 1), device(0)),
        ((0, 2, 0), bridge(0, 1, 3)),
        ((0, 3, 0), bridge(0, 1, 3)),
        ((0, 0x1f, 0), device(0x80)),
        ((0, 0x1f, 3), device(0)),
        ((1, 0, 0), bridge(1, 3, 3)),
        // Leads back, and to a bus that is not of this window.
        ((3, 0, 0), bridge(3, 0, 0)),
        ((3, 1, 0), bridge(3, 9, 9)),
        ((3, 2, 7), device(0)),
        ((9, 0, 0), device(0)),
    ]);
    let some = |text: &str| Some(text.to_owned());
    let expected = [
        ("0000:00:00.0", None),
        ("0000:00:02.0", None),
        ("0000:00:03.0", None),
        ("0000:00:1f.0", None),
        ("0000:00:1f.3", None),
        ("0000:01:00.0", some("0000:00:02.0")),
        ("0000:03:00.0", some("0000:01:00.0")),
        ("0000:03:01.0", some("0000:01:00.0")),
    ]
    .map(|(address, upstream)| (address.to_owned(), upstream));
    assert_eq!(found(&tree, 0, 8), expected);
    assert_eq!(found(&tree, 4, 8), []);
}

#[test]
fn a_scan_ends_where_it_is_told() {
    let device = || Model::new(0x8086, 1, 0, 0);
    let tree = tree([((0, 0, 0), device()), ((0, 1, 0), device())]);
    let mut count = 0;
    let ended = scan(&&tree, 0, 0, 0, |_, _| {
        count += 1;
        None
    });
    assert_eq!((ended, count), (None, 1));
}

/// A machine in which every register holds something that only its place decides, written or not.
struct Noise {
    seed: u64,
    /// Whether all bits of each register can be written; otherwise as many as noise says.
    keeps: bool,
    written: RefCell<BTreeMap<(Address, u16), u32>>,
}

struct NoiseRegisters<'a>(&'a Noise, Address);

impl NoiseRegisters<'_> {
    fn noise(&self, offset: u16, salt: u64) -> u32 {
        let place = u64::from(self.1.bus) << 32 | u64::from(self.1.devfn()) << 16;
        let mut x = self.0.seed ^ salt ^ place ^ u64::from(offset);
        for _ in 0..3 {
            x = (x ^ x >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        (x >> 32) as u32
    }
}

impl ConfigRegisters for NoiseRegisters<'_> {
    fn read(&self, offset: u16) -> u32 {
        assert!(offset.is_multiple_of(4) && offset < EXTENDED_CONFIG_BYTES);
        let own = self.noise(offset, 0);
        // Few header types, so that there are bridges.
        let own = if offset == 0xc {
            own & 0xff81_ffff
        } else {
            own
        };
        let written = self.0.written.borrow();
        written.get(&(self.1, offset)).copied().unwrap_or(own)
    }

    fn write(&self, offset: u16, value: u32) {
        if self.0.keeps {
            let mask = self.noise(offset, 1 << 60);
            let value = self.read(offset) & !mask | value & mask;
            self.0.written.borrow_mut().insert((self.1, offset), value);
        }
    }
}

impl<'a> Machine for &'a Noise {
    type Registers = NoiseRegisters<'a>;

    fn registers(&self, address: Address) -> Option<NoiseRegisters<'a>> {
        Some(NoiseRegisters(self, address))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever devices answer, a scan ends, finds each function at most once and within its
    /// window, and what it says of registers can be computed with.
    #[test]
    fn any_machine_is_scanned(seed: u64, keeps: bool, first: u8, more in 0u8..8) {
        let noise = Noise { seed, keeps, written: RefCell::default() };
        let last = first.saturating_add(more);
        let mut seen = BTreeSet::new();
        let ended = scan(&&noise, 7, first, last, |function, _| {
            assert!(seen.insert(function.address));
            assert!((first..=last).contains(&function.address.bus));
            for bar in function.bars.iter().chain([&function.rom]).flatten() {
                assert!(bar.size.is_power_of_two());
                assert!(bar.address.is_multiple_of(bar.size));
            }
            for window in function.windows.iter().flatten() {
                assert!(window.first < window.last);
            }
            assert!(function.upstream.is_none_or(|bridge| seen.contains(&bridge)));
            Some(())
        });
        prop_assert_eq!(ended, Some(()));
    }
}

/// A function that can be stopped and reset.
struct Resettable {
    model: Model,
    /// Whether it does nothing when it is told to reset itself, or loses its power.
    is_deaf: bool,
}

impl Resettable {
    const BAR: u32 = 0xfe00_0000;

    fn new(express: u32, power: u32) -> Self {
        let mut model = Model::new(0x1af4, 0x1042, 0x01_0000, 0)
            .with(4, 1 << 20 | 7)
            .with(0x34, 0x40)
            .with(0x40, 0x0050_0010)
            .with(0x44, express)
            .with(0x48, 0x2010)
            .with(0x50, 0x0003_0001)
            .with(0x54, power)
            .with_bar(0x10, Self::BAR, 0xffff_f000);
        model.set(0x40, 0x0000_5010);
        for (at, mask) in [(0x48, 0xffff), (0x54, 0xffff), (0x3c, 0xff)] {
            model.writable.insert(at, mask);
        }
        Self {
            model,
            is_deaf: false,
        }
    }

    /// Forgets what a reset forgets.
    fn forget(&self) {
        self.model.set(4, 1 << 20);
        self.model.set(0x10, 0);
        self.model.set(0x48, 0);
    }
}

impl ConfigRegisters for &Resettable {
    fn read(&self, offset: u16) -> u32 {
        (&self.model).read(offset)
    }

    fn write(&self, offset: u16, value: u32) {
        let was_off = self.read(0x54) & 3 == 3;
        (&self.model).write(offset, value);
        let by_itself = offset == 0x48 && value & 1 << 15 != 0;
        let by_power = offset == 0x54 && was_off && value & 3 == 0 && value & 8 == 0;
        if (by_itself || by_power) && !self.is_deaf {
            self.forget();
        }
    }
}

fn reset_of(function: &Resettable) -> Result<u32, NotReset> {
    let saved = Saved::of(&function);
    let mut waited = 0;
    reset(&function, Layout::Device, &saved, |ms| waited += ms)?;
    assert_eq!((&function).read(0x10), Resettable::BAR);
    assert_eq!(
        (&function).read(4) & 7,
        0,
        "it answers at nothing and reaches no memory"
    );
    Ok(waited)
}

#[test]
fn a_function_is_reset_by_what_it_can() {
    let by_itself = Resettable::new(1 << 28, 8);
    assert_eq!(reset_of(&by_itself), Ok(100));
    assert_eq!((&by_itself).read(0x48), 0x2010);
    assert_eq!(reset_of(&Resettable::new(0, 0)), Ok(20));
    assert_eq!(reset_of(&Resettable::new(0, 8)), Err(NotReset));
    for (express, power, can) in [
        (1 << 28, 8, true),
        (0, 0, true),
        (1 << 28, 0, true),
        (0, 8, false),
    ] {
        let function = Resettable::new(express, power);
        assert_eq!(can_reset(&&function, Layout::Device), can);
        assert!(!can_reset(&&function, Layout::Bridge));
    }
    for express in [0, 1 << 28] {
        let deaf = Resettable {
            is_deaf: true,
            ..Resettable::new(express, 0)
        };
        assert_eq!(
            reset_of(&deaf),
            Err(NotReset),
            "it remembers what it was told"
        );
    }
}

/// A function whose line cannot be switched off, as of a virtual one: what proves its reset is that
/// its messages are not masked any more.
#[test]
fn a_function_without_a_line_is_reset_by_what_it_has() {
    struct Virtual(Resettable, u32);
    impl ConfigRegisters for &Virtual {
        fn read(&self, offset: u16) -> u32 {
            (&self.0).read(offset)
        }
        fn write(&self, offset: u16, value: u32) {
            let kept = if offset == 4 {
                value & !(1 << 10)
            } else {
                value
            };
            (&self.0).write(offset, kept);
            if offset == 0x48 && value & 1 << 15 != 0 && !self.0.is_deaf {
                self.0.model.set(0x60, self.1);
            }
        }
    }
    for (mask, is_deaf, wanted) in [
        (0xc000 << 16, false, Ok(())),
        (0xc000 << 16, true, Err(NotReset)),
        // Nothing of it stays set.
        (0, false, Err(NotReset)),
    ] {
        let mut function = Virtual(Resettable::new(1 << 28, 8), 0x0003_0011);
        function.0.is_deaf = is_deaf;
        function.0.model = function.0.model.with_bar(0x60, 0x0003_0011, mask);
        function.0.model.set(0x50, 0x0003_6001);
        let saved = Saved::of(&&function);
        assert_eq!(
            reset(&&function, Layout::Device, &saved, |_| ()),
            wanted,
            "{mask:x} {is_deaf}"
        );
    }
}

#[test]
fn a_function_that_is_not_there_any_more_reaches_nothing() {
    let function = Resettable::new(1 << 28, 0);
    let saved = Saved::of(&&function);
    function.model.set(0, u32::MAX);
    assert_eq!(reset(&&function, Layout::Device, &saved, |_| ()), Ok(()));
    assert_eq!(
        reset(&&function, Layout::Bridge, &saved, |_| ()),
        Err(NotReset)
    );
}

#[test]
fn a_function_that_does_not_answer_after_its_reset_is_not_reset() {
    let function = Resettable::new(1 << 28, 0);
    let saved = Saved::of(&&function);
    let late = |ms| {
        if ms == 100 {
            function.model.set(0, 0x1042_0001);
        }
    };
    assert_eq!(
        reset(&&function, Layout::Device, &saved, late),
        Err(NotReset)
    );
}

#[test]
fn messages_are_found_and_their_table_kept_from_others() {
    let model = Model::new(0x1af4, 0x1042, 0x01_0000, 0)
        .with(4, 1 << 20)
        .with(0x34, 0x98)
        .with(0x98, 0x0003_0011)
        .with(0x9c, 0x1001)
        .with_bar(0xa0, 0x0801, 0);
    let msix = Msix::find(&&model).unwrap();
    assert_eq!(msix.entries, 4);
    assert_eq!(
        (msix.table.bar, msix.table.offset, msix.table.len),
        (1, 0x1000, 64)
    );
    assert_eq!(
        (msix.pending.bar, msix.pending.offset, msix.pending.len),
        (1, 0x800, 8)
    );
    for (bar, offset, len, meets) in [
        (1, 0, 0x1000, false),
        (1, 0, 0x1001, true),
        (1, 0x103f, 1, true),
        (1, 0x1040, u64::MAX, false),
        (1, 0, u64::MAX, true),
        (0, 0x1000, 64, false),
    ] {
        assert_eq!(
            msix.table.meets(bar, offset, len),
            meets,
            "{bar} {offset:x} {len:x}"
        );
    }
}

#[test]
fn one_message_is_told_and_enabled() {
    for (wide, data_at) in [(0, 0x48), (1 << 7, 0x4c)] {
        let model = Model::new(0x1022, 0x1234, 0x08_0600, 0)
            .with(4, 1 << 4 << 16)
            .with(0x34, 0x40)
            .with_bar(0x40, (wide | 0x35) << 16 | 0x05, 0x71 << 16)
            .with_bar(0x44, 0, !3)
            .with_bar(0x48, 0, u32::MAX)
            .with_bar(0x4c, 0xabcd_0000, 0xffff);
        let msi = Msi::find(&&model).unwrap();
        msi.enable(&&model, 0xfee0_1000, 0x4041);
        let read = |at| (&model).read(at);
        assert_eq!(
            read(0x40),
            (wide | 0x05) << 16 | 0x05,
            "one of several, enabled"
        );
        assert_eq!(read(0x44), 0xfee0_1000);
        assert_eq!(read(data_at) & 0xffff, 0x4041);
        assert_eq!(read(0x4c) >> 16, 0xabcd);
    }
    assert_eq!(Msi::find(&&Model::new(1, 2, 3, 0)), None);
}

mod resets;

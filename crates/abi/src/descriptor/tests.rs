use std::boxed::Box;

use super::*;

fn sample() -> Box<Descriptor> {
    let mut d = Box::new(Descriptor::empty());
    d.tsc_hz = 1_000_000_000;
    d.lapic_hz = 1_000_000_000;
    assert!(d.push_cpu(CpuEntry {
        apic_id: 3,
        slot: 1
    }));
    assert!(d.push_range(MemRange {
        first_frame: 0,
        phys: 0x20_0000,
        count: 512
    }));
    assert!(d.push_range(MemRange {
        first_frame: 512,
        phys: 0x100_0000,
        count: 512
    }));
    assert!(d.push_ports(PortRange {
        base: 0x3f8,
        len: 8
    }));
    d
}

#[test]
fn a_good_one_is_accepted() {
    let mut d = sample();
    d.set_label("räder");
    d.set_cmdline("trace");
    d.initramfs_frame = 500;
    d.initramfs_len = 20 * 4096;
    assert_eq!(d.validate(), Ok(()));
    assert_eq!((d.label(), d.cmdline()), ("räder", "trace"));
    assert_eq!(d.phys_of(513), Some(0x100_1000));
    assert_eq!(d.phys_of(1024), None);
    assert_eq!(d.total_frames(), 1024);
}

#[test]
fn ports_are_checked_as_a_whole() {
    let d = sample();
    assert!(d.owns_ports(0x3f8, 8) && d.owns_ports(0x3ff, 1));
    assert!(!d.owns_ports(0x3f8, 9) && !d.owns_ports(0x3f7, 2) && !d.owns_ports(0x3f8, 0));
    assert!(!d.owns_ports(0xffff, 2));
}

#[test]
fn each_fault_is_named() {
    let broken = |f: &dyn Fn(&mut Descriptor)| {
        let mut d = sample();
        f(&mut d);
        d.validate().unwrap_err()
    };
    assert_eq!(broken(&|d| d.magic = 0), Invalid::Magic);
    assert_eq!(broken(&|d| d.version = 9), Invalid::Version(9));
    assert_eq!(broken(&|d| d.size = 1), Invalid::Size(1));
    assert_eq!(broken(&|d| d.role = 7), Invalid::Role(7));
    assert_eq!(broken(&|d| d.ncpus = 257), Invalid::Count("cpus"));
    assert_eq!(broken(&|d| d.ncpus = 0), Invalid::Count("cpus"));
    assert_eq!(broken(&|d| d.tsc_hz = 0), Invalid::Clock);
    assert_eq!(
        broken(&|d| assert!(d.push_cpu(CpuEntry {
            apic_id: 3,
            slot: 2
        }))),
        Invalid::DuplicateCpu(3)
    );
    assert_eq!(broken(&|d| d.ranges[1].phys = 0x30_0000), Invalid::Range(1));
    assert_eq!(
        broken(&|d| d.ranges[1].first_frame = 511),
        Invalid::Range(1)
    );
    assert_eq!(broken(&|d| d.ranges[1].count = u64::MAX), Invalid::Range(1));
    assert_eq!(
        broken(&|d| d.boot_blob_len = 5 << 20),
        Invalid::Outside("boot blob")
    );
    assert_eq!(broken(&|d| d.ports[0].len = 0x1_0000), Invalid::Port(0));
    assert_eq!(
        broken(&|d| {
            d.label[0] = 0xff;
            d.label_len = 1;
        }),
        Invalid::Text("label")
    );
}

#[test]
fn counts_beyond_the_tables_are_clamped_before_validation() {
    let mut d = sample();
    d.nranges = u32::MAX;
    d.label_len = u32::MAX;
    assert_eq!(d.ranges().len(), MAX_RANGES);
    assert_eq!(d.label(), core::str::from_utf8(&d.label).unwrap());
}

#[test]
fn long_text_is_cut_at_a_character() {
    let mut d = sample();
    let long: std::string::String = "ü".repeat(LABEL_BYTES);
    d.set_label(&long);
    assert_eq!(d.label().chars().count(), LABEL_BYTES / 2);
}

/// Checks the last allowed value of each number that is validated, and the next one.
#[test]
fn bounds_are_where_they_should_be() {
    type Change<'a> = &'a dyn Fn(&mut Descriptor);
    let verdict = |change: Change<'_>| {
        let mut d = sample();
        change(&mut d);
        d.validate()
    };
    let good: [Change<'_>; 19] = [
        &|d| d.role = ROLE_SUBOS,
        &|d| d.limit_cpus = MAX_CPUS as u64,
        &|d| d.limit_frames = MAX_FRAMES,
        &|d| d.nreserved = MAX_RESERVED as u32,
        &|d| d.nports = MAX_PORTS as u32,
        &|d| d.nirqs = MAX_IRQS as u32,
        &|d| d.nioapics = MAX_IOAPICS as u32,
        &|d| d.cmdline_len = CMDLINE_BYTES as u32,
        &|d| d.label_len = LABEL_BYTES as u32,
        &|d| {
            d.ports[0] = PortRange {
                base: 0xffff,
                len: 1,
            }
        },
        &|d| d.boot_blob_len = 1024 * 4096,
        &|d| (d.boot_blob_frame, d.boot_blob_len) = (1023, 4096),
        &|d| (d.initramfs_frame, d.initramfs_len) = (1023, 1),
        &|d| (d.image_frame, d.image_frames) = (511, 2),
        &|d| (d.image_frame, d.image_frames) = (u64::MAX, 0),
        &|d| {
            assert!(d.push_reserved(Reserved {
                first_frame: 1023,
                count: 1,
                kind: 0
            }));
        },
        // Beside the other one, on either side, and at the end of the address space.
        &|d| d.ranges[1].phys = 0x40_0000,
        &|d| d.ranges[1].phys = 0,
        &|d| d.ranges[1].phys = (1 << 52) - 512 * 4096,
    ];
    for (n, change) in good.into_iter().enumerate() {
        assert_eq!(verdict(change), Ok(()), "{n}");
    }
    let bad: [(Change<'_>, Invalid); 30] = [
        (&|d| d.role = 2, Invalid::Role(2)),
        (&|d| d.nranges = 0, Invalid::Count("ranges")),
        (
            &|d| d.nranges = MAX_RANGES as u32 + 1,
            Invalid::Count("ranges"),
        ),
        (
            &|d| d.nreserved = MAX_RESERVED as u32 + 1,
            Invalid::Count("reserved"),
        ),
        (
            &|d| d.nports = MAX_PORTS as u32 + 1,
            Invalid::Count("ports"),
        ),
        (&|d| d.nirqs = MAX_IRQS as u32 + 1, Invalid::Count("irqs")),
        (
            &|d| d.nioapics = MAX_IOAPICS as u32 + 1,
            Invalid::Count("ioapics"),
        ),
        (
            &|d| d.cmdline_len = CMDLINE_BYTES as u32 + 1,
            Invalid::Count("cmdline"),
        ),
        (
            &|d| d.label_len = LABEL_BYTES as u32 + 1,
            Invalid::Count("label"),
        ),
        (&|d| d.lapic_hz = 0, Invalid::Clock),
        (&|d| d.limit_frames = MAX_FRAMES + 1, Invalid::Limit),
        (&|d| d.limit_cpus = MAX_CPUS as u64 + 1, Invalid::Limit),
        (
            &|d| {
                d.ports[0] = PortRange {
                    base: 0xffff,
                    len: 2,
                }
            },
            Invalid::Port(0),
        ),
        (
            &|d| d.boot_blob_len = 1024 * 4096 + 1,
            Invalid::Outside("boot blob"),
        ),
        (
            &|d| (d.boot_blob_frame, d.boot_blob_len) = (1024, 1),
            Invalid::Outside("boot blob"),
        ),
        (
            &|d| (d.initramfs_frame, d.initramfs_len) = (1023, 4097),
            Invalid::Outside("initramfs"),
        ),
        (
            &|d| (d.image_frame, d.image_frames) = (1020, 5),
            Invalid::Outside("image"),
        ),
        (
            &|d| (d.image_frame, d.image_frames) = (u64::MAX, 2),
            Invalid::Outside("image"),
        ),
        (
            &|d| {
                assert!(d.push_reserved(Reserved {
                    first_frame: 1023,
                    count: 2,
                    kind: 0
                }));
            },
            Invalid::Outside("reservation"),
        ),
        (&|d| d.ranges[1].count = 0, Invalid::Range(1)),
        (&|d| d.ranges[1].phys += 1, Invalid::Range(1)),
        (&|d| d.ranges[1].phys = 0x3f_f000, Invalid::Range(1)),
        (&|d| d.ranges[1].phys = 0x1000, Invalid::Range(1)),
        (&|d| d.ranges[1].phys = 0x20_0000, Invalid::Range(1)),
        (
            &|d| d.ranges[1].phys = (1 << 52) - 511 * 4096,
            Invalid::Range(1),
        ),
        (&|d| d.ranges[1].phys = u64::MAX - 4095, Invalid::Range(1)),
        (&|d| d.ranges[1].first_frame = u64::MAX, Invalid::Range(1)),
        (
            &|d| d.ranges[1].first_frame = (1 << 34) - 511,
            Invalid::Range(1),
        ),
        (&|d| d.ranges[0].first_frame = 1, Invalid::Range(1)),
        (
            &|d| {
                d.cmdline[0] = 0xff;
                d.cmdline_len = 1;
            },
            Invalid::Text("command line"),
        ),
    ];
    for (n, (change, fault)) in bad.into_iter().enumerate() {
        assert_eq!(verdict(change), Err(fault), "{n}");
    }
    // The last frame number there is. A gap in the numbers is allowed, but nothing may lie in
    // it.
    let mut d = sample();
    d.ranges[1].first_frame = (1 << 34) - 512;
    assert_eq!(d.validate(), Ok(()));
    assert_eq!([d.phys_of(511), d.phys_of(512)], [Some(0x3f_f000), None]);
    (d.image_frame, d.image_frames) = (511, 2);
    assert_eq!(d.validate(), Err(Invalid::Outside("image")));
}

#[test]
fn tables_take_so_many_and_no_more() {
    let mut d = Box::new(Descriptor::empty());
    let count = |push: &mut dyn FnMut(u32) -> bool| (0..1000).take_while(|n| push(*n)).count();
    assert_eq!(
        count(&mut |n| d.push_cpu(CpuEntry {
            apic_id: n,
            slot: n
        })),
        MAX_CPUS
    );
    assert_eq!(
        count(&mut |n| d.push_range(MemRange {
            first_frame: n.into(),
            phys: 0,
            count: 1
        })),
        MAX_RANGES
    );
    assert_eq!(
        count(&mut |n| d.push_reserved(Reserved {
            first_frame: n.into(),
            count: 1,
            kind: 0
        })),
        MAX_RESERVED
    );
    assert_eq!(
        count(&mut |n| d.push_ports(PortRange { base: n, len: 1 })),
        MAX_PORTS
    );
    assert_eq!(
        count(&mut |n| d.push_irq(IrqLine {
            isa: n as u8,
            gsi: 100 + n,
            ..IrqLine::default()
        })),
        MAX_IRQS
    );
    assert_eq!(
        count(&mut |n| d.push_ioapic(IoApic {
            phys: n.into(),
            gsi_base: n,
            id: n
        })),
        MAX_IOAPICS
    );
    assert_eq!(
        (d.cpus().len(), d.reserved().len(), d.ioapics().len()),
        (MAX_CPUS, MAX_RESERVED, MAX_IOAPICS)
    );
    assert!(d.cpus().iter().zip(0..).all(|(cpu, n)| cpu.apic_id == n));
    assert_eq!(d.isa_irq(9).map(|line| line.gsi), Some(109));
    assert!(d.isa_irq(200).is_none());
    assert_eq!(d.total_frames(), MAX_RANGES as u64);
}

#[test]
fn flags_roles_and_ports_are_told_as_they_are() {
    let mut d = sample();
    assert!(d.is_supervisor());
    d.role = ROLE_SUBOS;
    assert!(!d.is_supervisor());
    d.flags = FLAG_X2APIC | FLAG_COM1;
    assert!(
        d.has(FLAG_COM1) && d.has(FLAG_X2APIC | FLAG_COM1) && !d.has(FLAG_COM1 | FLAG_NO_MWAIT)
    );
    // The last port there is.
    d.ports[0] = PortRange {
        base: 0xfff0,
        len: 0x20,
    };
    assert!(d.owns_ports(0xffff, 1) && !d.owns_ports(0xffff, 2));
    // Text is told as far as it is text.
    d.label[0] = 0xff;
    d.label_len = 1;
    assert_eq!(d.label(), "");
}

/// The faults in words: each names what is wrong, with its numbers.
#[test]
fn faults_are_told_in_words() {
    use std::string::ToString;
    let told = [
        (Invalid::Magic, "magic"),
        (Invalid::Version(9), "version 9"),
        (Invalid::Size(7), "7 bytes"),
        (Invalid::Role(5), "role 5"),
        (Invalid::Count("ranges"), "count of ranges"),
        (Invalid::DuplicateCpu(12), "APIC id 12"),
        (Invalid::Range(3), "memory range 3"),
        (Invalid::Outside("image"), "image outside"),
        (Invalid::Port(2), "port range 2"),
        (Invalid::Clock, "clock"),
        (Invalid::Limit, "limit"),
        (Invalid::Text("label"), "label is no"),
    ];
    for (fault, words) in told {
        assert!(fault.to_string().contains(words), "{fault}");
    }
}

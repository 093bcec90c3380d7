//! `/sys/bus/pci` and `/sys/devices/pci*`: functions of the machine, with what they say of
//! themselves.

use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt::Write;

use devices::PciDevice;
use fs::LinkTarget;
use fs::pseudo::{self, PseudoAttr, StaticDir};
use guard::cpu;
use pci::{Bar, Function, Window, WindowKind};
use task::Mutex;

use super::sysfs::cpu_list;
use crate::procfs::pci::{config_file, irq, resource_flags};

/// Lines of a `resource` file between the ROM and the windows of a bridge: those of virtual
/// functions.
const VIRTUAL_FUNCTION_LINES: usize = 6;
/// Lines for windows of a bridge, one more than there can be.
const WINDOW_LINES: usize = 4;

/// Adds the directories of all functions, and the links to them.
pub(super) fn add(root: &Arc<StaticDir>, dev: u64) {
    ROOTS.lock().push((dev, Arc::downgrade(root)));
    devices::pci_devices().for_each(|device| add_device(root, device, dev));
}

/// All file systems of this kind, with their device numbers.
static ROOTS: Mutex<Vec<(u64, Weak<StaticDir>)>> = Mutex::new(Vec::new());

/// Takes in that a function has come.
pub fn function_came(device: &'static PciDevice) {
    for (dev, root) in ROOTS.lock().iter() {
        if let Some(root) = root.upgrade() {
            add_device(&root, device, *dev);
        }
    }
    crate::procfs::pci::function_came(device);
}

/// Takes in that a function has left. Who still has a file of it open reads nothing there.
pub fn function_left(device: &'static PciDevice) {
    let name = format!("{}", device.function().address);
    for (_, root) in ROOTS.lock().iter() {
        if let Some(root) = root.upgrade() {
            root.subdir("bus/pci/devices").remove(&name);
            let path = path(device.function());
            let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            root.subdir(parent).remove(&name);
        }
    }
    crate::procfs::pci::function_left(device);
}

fn add_device(root: &Arc<StaticDir>, device: &'static PciDevice, dev: u64) {
    let path = path(device.function());
    add_function(&root.subdir(&path), device, dev, &path);
    let name = format!("{}", device.function().address);
    let links = root.subdir("bus/pci/devices");
    links.add(&name, link(dev, format!("../../../{path}")));
}

/// Directory of a function, from the top: below the bridges that lead to it.
fn path(function: &Function) -> String {
    let upstream = function.upstream.and_then(devices::pci_device);
    let address = function.address;
    match upstream {
        Some(bridge) => format!("{}/{address}", path(bridge.function())),
        None => format!(
            "devices/pci{:04x}:{:02x}/{address}",
            address.segment, address.bus
        ),
    }
}

fn link(dev: u64, target: String) -> Arc<dyn fs::Inode> {
    pseudo::symlink(PseudoAttr::new(dev, 0o777), move || {
        Ok(LinkTarget::Text(target.clone().into_bytes()))
    })
}

fn add_function(dir: &Arc<StaticDir>, device: &'static PciDevice, dev: u64, path: &str) {
    let function = device.function();
    dir.add("config", config_file(device, dev));
    let up = "../".repeat(path.split('/').count());
    dir.add("subsystem", link(dev, format!("{up}bus/pci")));
    let (board_vendor, board) = function.subsystem;
    let modalias = modalias(function);
    let uevent = format!(
        "PCI_CLASS={:X}\nPCI_ID={:04X}:{:04X}\nPCI_SUBSYS_ID={board_vendor:04X}:{board:04X}\n\
         PCI_SLOT_NAME={}\nMODALIAS={modalias}",
        function.class, function.vendor, function.device, function.address,
    );
    let files = [
        ("vendor", format!("{:#06x}", function.vendor)),
        ("device", format!("{:#06x}", function.device)),
        ("subsystem_vendor", format!("{board_vendor:#06x}")),
        ("subsystem_device", format!("{board:#06x}")),
        ("class", format!("{:#08x}", function.class)),
        ("revision", format!("{:#04x}", function.revision)),
        ("irq", format!("{}", irq(function))),
        ("numa_node", "-1".into()),
        ("local_cpulist", cpu_list(0..cpu::count())),
        ("modalias", modalias),
        ("uevent", uevent),
    ];
    for (name, text) in files {
        dir.add(name, pseudo::constant(dev, format!("{text}\n")));
    }
    add_virtual(dir, device, dev);
    dir.add("resource", pseudo::constant(dev, resources(function)));
    if let Some((first, last)) = function.buses {
        let buses = [
            ("secondary_bus_number", first),
            ("subordinate_bus_number", last),
        ];
        for (name, bus) in buses {
            dir.add(name, pseudo::constant(dev, format!("{bus}\n")));
        }
    }
}

/// Adds files about virtual functions, and the links between them and the physical one.
fn add_virtual(dir: &Arc<StaticDir>, device: &PciDevice, dev: u64) {
    if let Some(physical) = device.function().physical {
        dir.add("physfn", link(dev, format!("../{physical}")));
    }
    let Some(offered) = &device.function().offered else {
        return;
    };
    let files = [
        ("sriov_totalvfs", format!("{}", offered.total)),
        ("sriov_numvfs", format!("{}", offered.count)),
        ("sriov_offset", format!("{}", offered.first)),
        ("sriov_stride", format!("{}", offered.stride)),
        ("sriov_vf_device", format!("{:x}", offered.device)),
        // No driver of this kernel takes one.
        ("sriov_drivers_autoprobe", "0".into()),
    ];
    for (name, text) in files {
        dir.add(name, pseudo::constant(dev, format!("{text}\n")));
    }
    for (n, place) in device.function().virtual_places().enumerate() {
        dir.add(&format!("virtfn{n}"), link(dev, format!("../{place}")));
    }
}

/// Name by which a loader of modules looks for a driver.
fn modalias(function: &Function) -> String {
    let (board_vendor, board) = function.subsystem;
    let [_, base, sub, interface] = function.class.to_be_bytes();
    format!(
        "pci:v{:08X}d{:08X}sv{board_vendor:08X}sd{board:08X}bc{base:02X}sc{sub:02X}i{interface:02X}",
        function.vendor, function.device,
    )
}

/// First and last address and flags of all registers, one a line; of a bridge also of its windows.
fn resources(function: &Function) -> String {
    const NONE: (u64, u64, u64) = (0, 0, 0);
    let of_bar = |bar: &Option<Bar>| {
        bar.as_ref().map_or(NONE, |bar| {
            let last = bar.address.saturating_add(bar.size - 1);
            (bar.address, last, resource_flags(bar))
        })
    };
    let bars = function.bars.iter().chain([&function.rom]).map(of_bar);
    let windows = function.windows.iter().map(|window| {
        window.as_ref().map_or(NONE, |window| {
            (window.first, window.last, window_flags(window))
        })
    });
    let windows = windows.chain([NONE]);
    let shown = if function.buses.is_some() {
        WINDOW_LINES
    } else {
        0
    };
    let lines = bars
        .chain([NONE; VIRTUAL_FUNCTION_LINES])
        .chain(windows.take(shown));
    lines.fold(String::new(), |mut text, (first, last, flags)| {
        let _ = writeln!(text, "{first:#018x} {last:#018x} {flags:#018x}");
        text
    })
}

/// Flags of a bridge's window, as Linux shows them.
fn window_flags(window: &Window) -> u64 {
    match window.kind {
        WindowKind::Ports => 0x100,
        WindowKind::Memory => 0x200,
        WindowKind::Prefetchable32 => 0x2200,
        WindowKind::Prefetchable64 => 0x10_2201,
    }
}

//! Names of PCI functions, after the devices that they are.

use std::path::Path;
use std::{fs, io};

use pci::Address;

/// Folder of the machine's functions.
const FUNCTIONS: &str = "/sys/bus/pci/devices";

/// A function that a driver knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Address of the function.
    pub address: Address,
    /// The name that its device has where the drivers leave none alone.
    pub name: String,
    /// Whether the supervisor has a device of that name, this one or another.
    pub is_used: bool,
}

/// Facts by which a driver knows a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Address of the function.
    pub address: Address,
    /// Class, as three bytes.
    pub class: u32,
    /// Vendor.
    pub vendor: u16,
    /// Device, by the vendor's count.
    pub device: u16,
}

/// Kinds of devices that have names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    VirtioDisk,
    Nvme,
    Card,
}

impl Kind {
    fn of(identity: Identity) -> Option<Self> {
        match identity {
            Identity {
                vendor: 0x1af4,
                device: 0x1001 | 0x1042,
                ..
            } => Some(Self::VirtioDisk),
            Identity {
                class: 0x01_08_02, ..
            } => Some(Self::Nvme),
            Identity { class, .. } if class >> 16 == 0x02 => Some(Self::Card),
            _ => None,
        }
    }

    /// Name of the device with this number among those of the kind.
    fn name(self, number: usize) -> String {
        match self {
            Self::VirtioDisk => format!("vd{}", letters(number)),
            Self::Nvme => format!("nvme{number}"),
            Self::Card => format!("eth{number}"),
        }
    }
}

/// Letters of a disk, as Linux counts: `a` to `z`, `aa`, and so on.
fn letters(number: usize) -> String {
    let last = char::from(b'a' + (number % 26) as u8);
    match (number / 26).checked_sub(1) {
        Some(rest) => letters(rest) + &last.to_string(),
        None => last.into(),
    }
}

/// Functions of this machine that have names, by their addresses.
///
/// # Errors
/// As of [`identities`].
pub fn of_this_machine() -> io::Result<Vec<Function>> {
    Ok(named(identities()?, |name| {
        let places = ["/dev", "/sys/class/net"];
        places
            .iter()
            .any(|place| Path::new(place).join(name).exists())
    }))
}

/// All functions of this machine, by their addresses.
///
/// # Errors
/// When the functions cannot be read; that there are none is no error.
pub fn identities() -> io::Result<Vec<Identity>> {
    let entries = match fs::read_dir(FUNCTIONS) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut identities = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let number = |file: &str| {
            let text = fs::read_to_string(path.join(file)).ok()?;
            u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
        };
        let name = path.file_name().and_then(|name| name.to_str());
        let address = name.and_then(|name| name.parse().ok());
        // One that goes away meanwhile has no files.
        if let (Some(address), Some(class), Some(vendor), Some(device)) =
            (address, number("class"), number("vendor"), number("device"))
        {
            identities.push(Identity {
                address,
                class,
                vendor: vendor as u16,
                device: device as u16,
            });
        }
    }
    identities.sort_unstable();
    Ok(identities)
}

/// The functions that have names. Those of a kind are counted in the order of their addresses,
/// whoever has them: a name does not change when one is given away.
fn named(mut identities: Vec<Identity>, is_used: impl Fn(&str) -> bool) -> Vec<Function> {
    identities.sort_unstable();
    let mut before: Vec<Kind> = Vec::new();
    let mut functions = Vec::new();
    for identity in identities {
        if let Some(kind) = Kind::of(identity) {
            let name = kind.name(before.iter().filter(|&&other| other == kind).count());
            before.push(kind);
            functions.push(Function {
                address: identity.address,
                is_used: is_used(&name),
                name,
            });
        }
    }
    functions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(bus: u8, class: u32, vendor: u16, device: u16) -> Identity {
        Identity {
            address: Address::new(0, bus, 0, 0),
            class,
            vendor,
            device,
        }
    }

    #[test]
    fn devices_of_a_kind_are_counted_by_address() {
        let all = vec![
            identity(9, 0x01_08_02, 0x1b36, 0x0010),
            identity(1, 0x06_04_00, 0x1b36, 0x000c),
            identity(2, 0x01_00_00, 0x1af4, 0x1042),
            identity(3, 0x02_00_00, 0x1af4, 0x1041),
            identity(4, 0x01_08_02, 0x1b36, 0x0010),
            identity(5, 0x01_00_00, 0x1af4, 0x1001),
            identity(6, 0x00_ff_00, 0x1af4, 0x1044),
            identity(7, 0x02_00_00, 0x8086, 0x10c9),
            // Not one of NVMe, but of something older.
            identity(8, 0x01_08_01, 0x1b36, 0x0010),
        ];
        let functions = named(all, |name| name == "vdb");
        let shown: Vec<_> = functions
            .iter()
            .map(|it| format!("{} {} {}", it.address, it.name, it.is_used))
            .collect();
        assert_eq!(
            shown,
            [
                "0000:02:00.0 vda false",
                "0000:03:00.0 eth0 false",
                "0000:04:00.0 nvme0 false",
                "0000:05:00.0 vdb true",
                "0000:07:00.0 eth1 false",
                "0000:09:00.0 nvme1 false",
            ]
        );
    }

    #[test]
    fn disks_have_letters_as_on_linux() {
        let names = [0, 25, 26, 51, 52, 701, 702].map(letters);
        assert_eq!(names, ["a", "z", "aa", "az", "ba", "zz", "aaa"]);
    }
}

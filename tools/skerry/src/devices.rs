//! PCI functions for instances.

use std::io;

use abi::dev::{self, AddDevice, Status};
use pci::Address;

use crate::device::Device;
use crate::failure::{Context, Failure, Result, plain};
use crate::functions::{self, Function};
use crate::instances::{has_ended, label};

/// Reads which functions are meant: by their addresses, as `lspci` shows them, or by the names of
/// their devices in the machine.
///
/// # Errors
/// If one is none, or is there twice, or if a name may mean two.
pub fn parse(texts: &[String]) -> Result<Vec<Address>> {
    let is_name = |text: &String| !text.contains([':', '.']);
    let functions = if texts.iter().any(is_name) {
        functions::of_this_machine().context(|| "cannot read the machine's PCI functions")?
    } else {
        Vec::new()
    };
    parse_among(texts, &functions)
}

/// The same in a machine with these functions.
fn parse_among(texts: &[String], functions: &[Function]) -> Result<Vec<Address>> {
    let mut addresses = Vec::with_capacity(texts.len());
    for text in texts {
        let address = if text.contains([':', '.']) {
            text.parse().map_err(|_| {
                Failure::new(format!(
                    "{text:?} is no address of a PCI function: give one like 0000:01:00.0, as \
                     `lspci -D` shows it"
                ))
            })?
        } else {
            find(text, functions)?
        };
        if addresses.contains(&address) {
            return Err(Failure::new(format!("--device {address} is given twice")));
        }
        addresses.push(address);
    }
    Ok(addresses)
}

/// The function whose device has a name.
fn find(name: &str, functions: &[Function]) -> Result<Address> {
    let free: Vec<String> = functions
        .iter()
        .filter(|function| !function.is_used)
        .map(|function| format!("{} ({})", function.name, function.address))
        .collect();
    let others = if free.is_empty() {
        String::new()
    } else {
        format!("{}, or ", free.join(", "))
    };
    let remedy = format!("give {others}an address, as `lspci -D` shows it");
    match functions.iter().find(|function| function.name == name) {
        // Where drivers leave some alone, those that they have are counted otherwise.
        Some(function) if function.is_used => Err(Failure::new(format!(
            "{name:?} is a device that the supervisor has itself, and cannot be given by that \
             name: {remedy}"
        ))),
        Some(function) => Ok(function.address),
        None => Err(Failure::new(format!(
            "there is no PCI function with a device {name:?}: {remedy}"
        ))),
    }
}

/// Gives functions to a created instance.
///
/// # Errors
/// The first one that it does not get, and why.
pub fn add(device: &dyn Device, id: u32, functions: &[Address], unsafe_dma: bool) -> Result<()> {
    for address in functions {
        let mut call = AddDevice {
            id,
            flags: if unsafe_dma {
                dev::DEVICE_UNSAFE_DMA
            } else {
                0
            },
            function: address.number(),
            ..AddDevice::default()
        };
        device.add_device(&mut call).map_err(|error| {
            let owner = owner(device, &call);
            Failure::new(refusal(*address, &call, owner.as_ref(), &error))
        })?;
    }
    Ok(())
}

/// The instance that a refusal names, if it names one that there still is.
pub(crate) fn owner(device: &dyn Device, call: &AddDevice) -> Option<Status> {
    let names = matches!(call.reason, dev::REASON_OWNER | dev::REASON_QUARANTINE);
    let id = Some(call.owner).filter(|id| names && *id != 0);
    device.status(id?).ok()
}

/// Message for a function that an instance does not get: the reason and the remedy.
pub(crate) fn refusal(
    address: Address,
    call: &AddDevice,
    owner: Option<&Status>,
    error: &io::Error,
) -> String {
    let why = why(address, call, owner, error);
    format!("cannot give {address} to an instance: {why}")
}

/// The reason for which an instance does not get a function, and the remedy.
pub(crate) fn why(
    address: Address,
    call: &AddDevice,
    owner: Option<&Status>,
    error: &io::Error,
) -> String {
    match call.reason {
        dev::REASON_IOMMU => "no IOMMU confines it, so the instance could have it read and write \
                              all memory, the supervisor's too: give --unsafe-dma if it is \
                              trusted with that"
            .into(),
        dev::REASON_DMA_RESERVED => {
            "the firmware has it use memory of its own (RMRR), so the IOMMU \
                                     cannot keep it from that: give --unsafe-dma if it is trusted \
                                     with all memory"
                .into()
        }
        dev::REASON_DMA_SHARED => "a bridge or a function beside it may take what it sends, or \
                                   send in its name, so the IOMMU does not confine it: put it \
                                   behind a port with access control (ACS), or give --unsafe-dma \
                                   if it is trusted with all memory"
            .into(),
        dev::REASON_DMA_BYPASSES => "this virtual device reaches memory without the IOMMU: have \
                                     the host put it behind it (QEMU: iommu_platform=on), or give \
                                     --unsafe-dma if it is trusted with all memory"
            .into(),
        dev::REASON_DMA_INTERRUPTS => "the IOMMU does not remap interrupts, so the instance could \
                                       have it interrupt every CPU: switch that on in the \
                                       firmware (QEMU: intremap=on), or give --unsafe-dma if it \
                                       is trusted with that and with all memory"
            .into(),
        dev::REASON_DMA_UNANSWERED => "the IOMMU does not answer, or has no domain or entries for \
                                       interrupts left: see the kernel's log"
            .into(),
        dev::REASON_DMA_MIXED => "others of the instance are confined and this one cannot be, or \
                                  the other way: give them to two instances, or all with \
                                  --unsafe-dma, first the one that cannot"
            .into(),
        dev::REASON_NO_FUNCTION => "there is no such PCI function: `lspci -D` lists them".into(),
        dev::REASON_BRIDGE => "it is a bridge: give what is behind it".into(),
        dev::REASON_DRIVER => format!(
            "a driver of the supervisor has it: start the machine with pci.hide={address} on the \
             kernel's command line, so that none takes it"
        ),
        dev::REASON_OWNER => match owner {
            Some(status) if has_ended(status) => format!(
                "{} had it, and it did not prove yet that it was reset: that is tried again",
                label(status)
            ),
            Some(status) => format!("{} has it: stop that instance first", label(status)),
            None => format!("instance {} has it", call.owner),
        },
        dev::REASON_NO_RESET => "it cannot be reset, neither by itself (FLR) nor by its power \
                                 state, so nothing would prove that it is quiet (QEMU: put it \
                                 behind a pcie-root-port)"
            .into(),
        dev::REASON_NOT_RESET => "it did not prove that it was reset, and is in quarantine: give \
                                  it again later, which tries that again, or start the machine \
                                  anew"
            .into(),
        dev::REASON_QUARANTINE => match owner {
            Some(status) if !has_ended(status) => {
                let name = label(status);
                format!(
                    "{name} has let go of it, and it did not prove that it was reset: `skerry \
                     device remove {name} {address}` tries that again, or stop {name}"
                )
            }
            Some(status) => format!(
                "{} had it, and it did not prove yet that it was reset: that is tried again",
                label(status)
            ),
            None => "it is in quarantine, as it did not prove that it was reset: giving it to an \
                     instance tries that again; if it never does, start the machine anew"
                .into(),
        },
        dev::REASON_NO_MESSAGES => "it has no MSI-X, and other interrupts are not given".into(),
        dev::REASON_NO_REGISTERS => "it has no registers in memory, or shares a page of them with \
                                     something else"
            .into(),
        dev::REASON_PHYSICAL => "its virtual functions are on, and would go with it: give one of \
                                 these, or start the machine without pci.sriov for it"
            .into(),
        dev::REASON_DEVICES => format!("{} devices are the most", dev::MAX_DEVICES),
        _ => plain(error),
    }
}

/// Functions of an instance for people, and whether something confines their DMA.
#[must_use]
pub fn shown(status: &Status) -> String {
    let addresses: Vec<String> = addresses(status).collect();
    match (addresses.as_slice(), is_unsafe(status)) {
        ([], _) => String::new(),
        (all, true) => format!("{} (unsafe DMA)", all.join(" ")),
        (all, false) => all.join(" "),
    }
}

/// Addresses of the functions that an instance has or had.
pub fn addresses(status: &Status) -> impl Iterator<Item = String> {
    let all = status.devices().iter();
    all.map(|number| Address::from_number(*number).to_string())
}

/// Whether nothing confines the DMA of an instance's devices.
#[must_use]
pub fn is_unsafe(status: &Status) -> bool {
    status.device_flags & dev::DEVICE_UNSAFE_DMA != 0
}

/// Times that an instance's devices were refused memory, for people; empty if never.
#[must_use]
pub fn faults(status: &Status) -> String {
    match status.dma_faults {
        0 => String::new(),
        count => count.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::instances;
    use crate::mock::{Mock, request};

    fn create(mock: &Mock, name: &str, devices: &[&str], unsafe_dma: bool) -> Result<Status> {
        let mut options = request(name, &["sleep", "9"]);
        options.devices = devices.iter().map(|text| (*text).into()).collect();
        options.unsafe_dma = unsafe_dma;
        instances::create(mock, &options, SystemTime::now())
    }

    #[test]
    fn an_instance_has_what_it_was_given_and_says_so() {
        let mock = Mock::new(4, 1 << 30);
        let one = create(&mock, "one", &["0000:01:00.0", "02:00.0"], true).unwrap();
        assert_eq!(shown(&one), "0000:01:00.0 0000:02:00.0 (unsafe DMA)");
        let two = create(&mock, "two", &[], false).unwrap();
        assert_eq!((shown(&two).as_str(), is_unsafe(&two)), ("", false));
    }

    #[test]
    fn a_name_means_one_function_or_none() {
        let function = |bus, name: &str, is_used| Function {
            address: Address::new(0, bus, 0, 0),
            name: name.into(),
            is_used,
        };
        let functions = [
            function(1, "vda", true),
            function(2, "vdb", false),
            function(3, "nvme0", false),
        ];
        let parse = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).into()).collect();
            parse_among(&texts, &functions).map_err(|failure| failure.message)
        };
        let address = |bus| Address::new(0, bus, 0, 0);
        assert_eq!(
            parse(&["nvme0", "01:00.0", "vdb"]).unwrap(),
            [3, 1, 2].map(address)
        );
        for (texts, why) in [
            (
                &["vdb", "0000:02:00.0"][..],
                "--device 0000:02:00.0 is given twice",
            ),
            (&["vda"], "that the supervisor has itself"),
            (
                &["nvme1"],
                "there is no PCI function with a device \"nvme1\": give vdb (0000:02:00.0), \
                 nvme0 (0000:03:00.0), or an address",
            ),
            (&[""], "there is no PCI function with a device \"\""),
        ] {
            let message = parse(texts).unwrap_err();
            assert!(message.contains(why), "{message}");
        }
        let none = find("vda", &[]).unwrap_err().message;
        assert!(none.contains("\"vda\": give an address"), "{none}");
    }

    #[test]
    fn what_is_refused_says_why_and_leaves_nothing() {
        let mock = Mock::new(4, 1 << 30);
        create(&mock, "one", &["01:00.0"], true).unwrap();
        let refused = |devices: &[&str], unsafe_dma| {
            let failure = create(&mock, "two", devices, unsafe_dma).unwrap_err();
            assert_eq!(instances::all(&mock).unwrap().len(), 1, "{failure}");
            failure.message
        };
        for (devices, unsafe_dma, why) in [
            (&["1:0.0"][..], true, "is no address of a PCI function"),
            (&["02:00.0", "0000:02:00.0"], true, "is given twice"),
            (&["02:00.0"], false, "give --unsafe-dma"),
            (&["02:00.0", "01:00.0"], true, "one has it"),
            (&["09:00.0"], true, "there is no such PCI function"),
        ] {
            let message = refused(devices, unsafe_dma);
            assert!(message.contains(why), "{message}");
        }
    }

    #[test]
    fn each_reason_has_words_of_its_own() {
        let error = io::Error::from_raw_os_error(libc::EIO);
        let mut said: Vec<String> = (dev::REASON_IOMMU..=dev::REASON_DEVICES)
            .chain(dev::REASON_DMA_RESERVED..=dev::REASON_DMA_INTERRUPTS)
            .chain([
                dev::REASON_NONE,
                dev::REASON_PHYSICAL,
                dev::REASON_QUARANTINE,
            ])
            .map(|reason| {
                let call = AddDevice {
                    reason,
                    ..AddDevice::default()
                };
                refusal(Address::new(0, 1, 0, 0), &call, None, &error)
            })
            .collect();
        said.sort();
        said.dedup();
        assert_eq!(said.len(), 19);
    }
}

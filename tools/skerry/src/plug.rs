//! PCI functions that come to a running instance and leave it, and a list of all that the machine
//! has (`docs/devices.md`).

use std::io;
use std::time::{Duration, Instant};

use abi::dev::{self, AddDevice, Status};
use abi::live::Refusal;
use pci::Address;
use serde::Serialize;

use crate::device::Device;
use crate::devices::{self, refusal};
use crate::failure::{Context, Failure, Result, plain};
use crate::functions::{self, Function};
use crate::instances::{self, label};
use crate::resize::{self, Settled};

/// Direction of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The instance gets it; `is_unsafe`: though nothing confines its DMA.
    In {
        /// See there.
        is_unsafe: bool,
    },
    /// The instance gives it back; `is_forced`: whoever uses it there.
    Out {
        /// See there.
        is_forced: bool,
    },
}

/// Options of a change.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Direction.
    pub way: Way,
    /// Time limit for the instance's answer; none without.
    pub limit: Option<Duration>,
    /// Whether the change is only tried.
    pub dry_run: bool,
}

/// Record of a change.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// Name of the instance.
    name: String,
    /// Address of the function.
    device: String,
    /// Number of the change; `null` if nothing was changed.
    epoch: Option<u64>,
    /// Time until the instance had it, or until it was free, in microseconds.
    took_us: u64,
    /// Time of these in which the supervisor has reset the function.
    reset_us: u64,
}

/// Gives a running instance a function, or has it give one back, and waits until it uses it, or the
/// function is free.
///
/// # Errors
/// Why nothing was changed; or, of an instance that does not answer in time, that nothing is known
/// yet.
pub fn change(
    device: &dyn Device,
    status: &Status,
    function: &str,
    options: Options,
) -> Result<Change> {
    let texts = [function.to_owned()];
    let address = match options.way {
        Way::In { .. } => devices::parse(&texts)?[0],
        Way::Out { .. } => owned(status, function)?,
    };
    // The call gives one that was created a function from its start on, and takes none from it.
    if status.state == dev::STATE_CREATED {
        return Err(Failure::new(format!(
            "{} does not run: give it devices with --device when it is created",
            label(status)
        )));
    }
    let begun = Instant::now();
    let mut call = AddDevice {
        id: status.id,
        flags: flags(options),
        function: address.number(),
        ..AddDevice::default()
    };
    let told = match options.way {
        Way::In { .. } => device.add_device(&mut call),
        Way::Out { .. } => device.remove_device(&mut call),
    };
    told.map_err(|error| Failure::new(refused(device, status, address, &call, &error)))?;
    let epoch = (call.epoch != 0).then_some(call.epoch);
    let settled_us = match epoch {
        Some(epoch) => settle(device, status, address, epoch, options)? / 1000,
        None => 0,
    };
    Ok(Change {
        name: label(status).to_owned(),
        device: address.to_string(),
        epoch,
        took_us: u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX),
        reset_us: u64::from(call.reset_us) + settled_us,
    })
}

fn flags(options: Options) -> u32 {
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    let of_way = match options.way {
        Way::In { is_unsafe } => flag(is_unsafe, dev::DEVICE_UNSAFE_DMA),
        Way::Out { is_forced } => flag(is_forced, dev::DEVICE_FORCE),
    };
    of_way | flag(options.dry_run, dev::DEVICE_DRY_RUN)
}

/// The function that an instance has, by its address or the name of its device in the machine.
fn owned(status: &Status, text: &str) -> Result<Address> {
    if text.contains([':', '.']) {
        return Ok(devices::parse(&[text.to_owned()])?[0]);
    }
    let all = functions::of_this_machine().context(|| "cannot read the machine's PCI functions")?;
    owned_among(status, text, &all)
}

/// The same in a machine with these functions: of two that have the name it is the instance's.
fn owned_among(status: &Status, name: &str, all: &[Function]) -> Result<Address> {
    let is_its = |one: &&Function| status.devices().contains(&one.address.number());
    let mut its = all.iter().filter(is_its);
    let found = its.clone().find(|one| one.name == name);
    found.map(|one| one.address).ok_or_else(|| {
        let names = its
            .by_ref()
            .map(|one| format!("{} ({})", one.name, one.address));
        let names = names.collect::<Vec<_>>().join(", ");
        let has = if names.is_empty() {
            "none".into()
        } else {
            names
        };
        Failure::new(format!(
            "{} has no device {name:?}: it has {has}",
            label(status)
        ))
    })
}

/// Message for a change that was not begun.
fn refused(
    device: &dyn Device,
    status: &Status,
    address: Address,
    call: &AddDevice,
    error: &io::Error,
) -> String {
    let name = label(status);
    match call.reason {
        dev::REASON_NOT_ITS => format!("{name} does not have {address}: `skerry device ls`"),
        dev::REASON_PAUSED => format!("{name} is paused: `skerry unpause {name}` first"),
        dev::REASON_PENDING => {
            format!("{name} has not answered the last change yet: try again when it has")
        }
        dev::REASON_NONE if error.raw_os_error() == Some(libc::ESRCH) => {
            format!("{name} does not run: only a running instance gets devices and gives them back")
        }
        dev::REASON_NONE => format!("cannot change {name}: {}", plain(error)),
        _ => {
            let owner = devices::owner(device, call);
            refusal(address, call, owner.as_ref(), error)
        }
    }
}

/// Waits for the instance's answer, and that the function is where it is to be. Returns the time in
/// which one that has left was reset by the supervisor (ns).
fn settle(
    device: &dyn Device,
    status: &Status,
    address: Address,
    epoch: u64,
    options: Options,
) -> Result<u64> {
    let name = label(status);
    let reset_ns = match resize::wait_settled(device, status, epoch, options.limit)? {
        Settled::Taken { scrub_ns } => scrub_ns,
        Settled::Refused(why) => {
            return Err(Failure::new(match options.way {
                Way::In { .. } => format!("{name} has refused {address}: {}", why_refused(why)),
                Way::Out { .. } => format!("{name} keeps {address}: {}", why_refused(why)),
            }));
        }
    };
    let is_out = matches!(options.way, Way::Out { .. });
    let still = is_out
        && device.status(status.id).is_ok_and(|now| {
            now.state == dev::STATE_RUNNING && now.devices().contains(&address.number())
        });
    if still {
        return Err(Failure::new(format!(
            "{name} does not use {address} any more, and it did not prove that it was reset: \
             remove it again, or stop {name}"
        )));
    }
    Ok(reset_ns)
}

/// An instance's reason, and the remedy where there is one.
fn why_refused(refusal: Option<Refusal>) -> String {
    match refusal {
        None => "it does not say why".into(),
        Some(refusal @ Refusal::Mounted(_)) => format!("{refusal}: unmount it, or give --force"),
        Some(refusal @ Refusal::Open(_)) => format!("{refusal}: end it, or give --force"),
        Some(refusal @ Refusal::Up(_)) => format!("{refusal}: take it down, or give --force"),
        Some(refusal @ Refusal::NotReset) => {
            format!("{refusal}, and is in quarantine there: remove it again, or stop the instance")
        }
        Some(refusal) => refusal.to_string(),
    }
}

/// A function of the machine, as `device ls` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// Address of the function.
    pub address: String,
    /// Name of its device in the machine; `null` if it has none.
    pub name: Option<String>,
    /// Class of the function, in hexadecimal digits.
    pub class: String,
    /// Vendor and device, in hexadecimal digits.
    pub id: String,
    /// Instance that has it.
    pub instance: Option<String>,
    /// Whether an instance could have it now, behind an IOMMU.
    pub available: bool,
    /// Whether an instance could have it now with `--unsafe-dma`.
    pub available_unsafe: bool,
    /// Whether it is in quarantine, as it did not prove that it was reset.
    pub quarantined: bool,
    /// Why it is not available.
    pub why: Option<String>,
}

/// All functions of the machine, by address.
///
/// # Errors
/// When they cannot be read.
pub fn list(device: &dyn Device) -> Result<Vec<Listed>> {
    let all = functions::identities().context(|| "cannot read the machine's PCI functions")?;
    let names =
        functions::of_this_machine().context(|| "cannot read the machine's PCI functions")?;
    let owners = instances::all(device)?;
    let mut listed = Vec::with_capacity(all.len());
    for identity in all {
        let number = identity.address.number();
        let name = names.iter().find(|one| one.address == identity.address);
        let could = |flags: u32| {
            let mut call = AddDevice {
                flags: flags | dev::DEVICE_DRY_RUN,
                function: number,
                ..AddDevice::default()
            };
            let error = device.add_device(&mut call).err()?;
            let owner = devices::owner(device, &call);
            let why = devices::why(identity.address, &call, owner.as_ref(), &error);
            Some((call.reason, why))
        };
        let (reason, why) = could(0).unzip();
        let owner = owners
            .iter()
            .find(|status| !instances::has_ended(status) && status.devices().contains(&number));
        listed.push(Listed {
            address: identity.address.to_string(),
            name: name.map(|one| one.name.clone()),
            class: format!("{:06x}", identity.class),
            id: format!("{:04x}:{:04x}", identity.vendor, identity.device),
            instance: owner.map(|status| label(status).to_owned()),
            available: why.is_none(),
            available_unsafe: why.is_none() || could(dev::DEVICE_UNSAFE_DMA).is_none(),
            quarantined: reason == Some(dev::REASON_QUARANTINE),
            why,
        });
    }
    Ok(listed)
}

/// Functions as rows of a table.
#[must_use]
pub fn rows(all: &[Listed]) -> Vec<Vec<String>> {
    let heading = ["ADDRESS", "NAME", "CLASS", "ID", "INSTANCE", "AVAILABLE"];
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "--".into());
    let rows = all.iter().map(|one| {
        let available = match (&one.why, one.available_unsafe) {
            (None, _) => "yes".into(),
            (Some(why), true) => format!("with --unsafe-dma: {why}"),
            (Some(why), false) => format!("no: {why}"),
        };
        vec![
            one.address.clone(),
            or_none(&one.name),
            one.class.clone(),
            one.id.clone(),
            or_none(&one.instance),
            available,
        ]
    });
    std::iter::once(heading.map(String::from).to_vec())
        .chain(rows)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::instances::{create, find, start};
    use crate::mock::{Mock, request};

    const IN: Options = Options {
        way: Way::In { is_unsafe: true },
        limit: None,
        dry_run: false,
    };
    const OUT: Options = Options {
        way: Way::Out { is_forced: false },
        ..IN
    };

    fn running(mock: &Mock, program: &str) -> Status {
        let created = create(mock, &request(program, &[program]), SystemTime::now()).unwrap();
        start(mock, &created).unwrap();
        find(mock, program).unwrap()
    }

    #[test]
    fn a_function_goes_in_and_out_and_into_another_one() {
        let mock = Mock::new(4, 1 << 30);
        let (one, two) = (running(&mock, "one"), running(&mock, "two"));
        let its = |name| devices::shown(&find(&mock, name).unwrap());
        for (own, other) in [(&one, &two), (&two, &one)] {
            let tried = Options {
                dry_run: true,
                ..IN
            };
            let change = super::change(&mock, own, "01:00.0", tried).unwrap();
            assert_eq!((change.epoch, its(label(own))), (None, String::new()));
            let change = super::change(&mock, own, "01:00.0", IN).unwrap();
            assert!(change.epoch.is_some());
            assert_eq!(change.reset_us, 7);
            assert_eq!(its(label(own)), "0000:01:00.0 (unsafe DMA)");
            let taken = super::change(&mock, other, "01:00.0", IN).unwrap_err();
            assert!(taken.message.contains("has it"), "{taken}");
            super::change(&mock, &find(&mock, label(own)).unwrap(), "01:00.0", OUT).unwrap();
            assert_eq!(its(label(own)), "");
        }
    }

    #[test]
    fn what_is_refused_says_why_and_changes_nothing() {
        let mock = Mock::new(4, 1 << 30);
        let own = running(&mock, "one");
        let safe = Options {
            way: Way::In { is_unsafe: false },
            ..IN
        };
        let say = |status: &Status, function: &str, options| {
            super::change(&mock, status, function, options)
                .unwrap_err()
                .message
        };
        assert!(say(&own, "01:00.0", safe).contains("give --unsafe-dma"));
        assert!(say(&own, "01:00.0", OUT).contains("one does not have 0000:01:00.0"));
        assert!(say(&own, "09:00.0", IN).contains("no such PCI function"));
        assert!(say(&own, "vda", OUT).contains("it has none"));
        let refuses = running(&mock, "refuse");
        let message = say(&refuses, "01:00.0", IN);
        assert!(
            message.contains("refuse has refused 0000:01:00.0"),
            "{message}"
        );
        assert_eq!(devices::shown(&find(&mock, "refuse").unwrap()), "");
        let ignores = running(&mock, "ignore");
        let message = say(&ignores, "02:00.0", IN);
        assert!(message.contains("has not answered yet"), "{message}");
        let mock = Mock::new(4, 1 << 30);
        let created = create(&mock, &request("new", &["new"]), SystemTime::now()).unwrap();
        let refused = super::change(&mock, &created, "03:00.0", OUT).unwrap_err();
        assert!(refused.message.contains("new does not run"), "{refused}");
    }

    #[test]
    fn one_that_does_not_run_yet_is_refused_and_gets_nothing() {
        let mock = Mock::new(4, 1 << 30);
        let created = create(&mock, &request("new", &["new"]), SystemTime::now()).unwrap();
        for (options, dry_run) in [(IN, false), (IN, true), (OUT, false)] {
            let options = Options { dry_run, ..options };
            let refused = super::change(&mock, &created, "03:00.0", options).unwrap_err();
            assert!(refused.message.contains("new does not run"), "{refused}");
        }
        let now = find(&mock, "new").unwrap();
        assert_eq!(now.devices(), &[0_u32; 0]);
    }

    #[test]
    fn each_user_has_a_remedy() {
        for refusal in [Refusal::mounted(1), Refusal::open(2), Refusal::up(3)] {
            assert!(why_refused(Some(refusal)).ends_with("or give --force"));
        }
        assert!(why_refused(Some(Refusal::NotReset)).contains("reset"));
    }
}

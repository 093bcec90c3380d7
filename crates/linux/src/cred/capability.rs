//! Capabilities: `capget(2)`, `capset(2)`, and what `prctl(2)` does with them.

use abi::errno::Errno;
use linux_raw_sys::{general as sys, prctl as pr};
use uapi::pid::Tid;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::process::process_table;
use crate::state::credentials::{Capabilities, Credentials, NO_CAP_AMBIENT_RAISE};
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

/// The header of `capget(2)`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CapUserHeader {
    _version: u32,
    pid: i32,
}

const VERSION_1: u32 = 0x1998_0330;
const VERSION_2: u32 = 0x2007_1026;
const VERSION_3: u32 = 0x2008_0522;

/// `struct __user_cap_data_struct`: 32 capabilities of each set.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CapUserData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// The number of [`CapUserData`] that the header's version has. `None`: there is no such version,
/// and the header names the preferred one now.
fn read_version(header: UserPtr<CapUserHeader>) -> Result<Option<usize>, Errno> {
    let version = UserPtr::<u32>::new(header.addr());
    match version.read()? {
        VERSION_1 => Ok(Some(1)),
        VERSION_2 | VERSION_3 => Ok(Some(2)),
        _ => {
            version.write(&VERSION_3)?;
            Ok(None)
        }
    }
}

/// Reads the header: which thread, and how many [`CapUserData`] there are.
fn read_header(header: UserPtr<CapUserHeader>) -> Result<(Option<Tid>, usize), Errno> {
    let words = read_version(header)?.ok_or(Errno::EINVAL)?;
    Ok((Tid::of_argument(header.read()?.pid), words))
}

/// `capget(2)`: stores the capabilities of a thread, the caller's for number 0.
pub fn sys_capget(
    task: &Task,
    header: UserPtr<CapUserHeader>,
    data: UserPtr<CapUserData>,
) -> SysResult {
    if data.is_null() {
        // Asks which version to use; the thread does not matter.
        return read_version(header).map(|_| 0);
    }
    let (tid, words) = read_header(header)?;
    let caps = match tid {
        None => task.cred().caps,
        Some(tid) if !tid.is_valid() => return Err(Errno::EINVAL),
        Some(tid) => {
            process_table::find_task(tid)
                .ok_or(Errno::ESRCH)?
                .cred()
                .caps
        }
    };
    for word in 0..words {
        let half = |set: u64| (set >> (32 * word)) as u32;
        data.add(word).write(&CapUserData {
            effective: half(caps.effective),
            permitted: half(caps.permitted),
            inheritable: half(caps.inheritable),
        })?;
    }
    Ok(0)
}

/// `capset(2)`: of the caller only.
pub fn sys_capset(
    task: &Task,
    header: UserPtr<CapUserHeader>,
    data: UserPtr<CapUserData>,
) -> SysResult {
    let (tid, words) = read_header(header)?;
    if tid.is_some_and(|tid| tid != task.tid()) {
        return Err(Errno::EPERM);
    }
    let (mut effective, mut permitted, mut inheritable) = (0, 0, 0);
    for word in 0..words {
        let data = data.add(word).read()?;
        let half = |bits: u32| u64::from(bits) << (32 * word);
        effective |= half(data.effective);
        permitted |= half(data.permitted);
        inheritable |= half(data.inheritable);
    }
    task.set_cred(task.cred().with_sets(permitted, effective, inheritable)?);
    Ok(0)
}

/// The bit of a capability.
fn bit(capability: usize) -> Result<u64, Errno> {
    if capability <= sys::CAP_LAST_CAP as usize {
        Ok(1 << capability)
    } else {
        Err(Errno::EINVAL)
    }
}

fn change(task: &Task, caps: Capabilities) -> SysResult {
    task.set_cred(Credentials {
        caps,
        ..(*task.cred()).clone()
    });
    Ok(0)
}

/// Whether a capability is in the bounding set (`PR_CAPBSET_READ`): 1 or 0.
pub(crate) fn is_in_bounding(task: &Task, capability: usize) -> SysResult {
    Ok(usize::from(
        task.cred().caps.bounding & bit(capability)? != 0,
    ))
}

/// Removes a capability from the bounding set (`PR_CAPBSET_DROP`).
pub(crate) fn drop_from_bounding(task: &Task, capability: usize) -> SysResult {
    let cred = task.cred();
    if !cred.capable(sys::CAP_SETPCAP) {
        return Err(Errno::EPERM);
    }
    change(
        task,
        Capabilities {
            bounding: cred.caps.bounding & !bit(capability)?,
            ..cred.caps
        },
    )
}

/// Reads, raises, lowers or clears ambient capabilities (`PR_CAP_AMBIENT`).
pub(crate) fn ambient(task: &Task, action: usize, capability: usize) -> SysResult {
    let cred = task.cred();
    let caps = cred.caps;
    match u32::try_from(action).map_err(|_| Errno::EINVAL)? {
        pr::PR_CAP_AMBIENT_CLEAR_ALL if capability == 0 => {
            change(task, Capabilities { ambient: 0, ..caps })
        }
        pr::PR_CAP_AMBIENT_IS_SET => Ok(usize::from(caps.ambient & bit(capability)? != 0)),
        pr::PR_CAP_AMBIENT_LOWER => change(
            task,
            Capabilities {
                ambient: caps.ambient & !bit(capability)?,
                ..caps
            },
        ),
        pr::PR_CAP_AMBIENT_RAISE => {
            let bit = bit(capability)?;
            if caps.permitted & caps.inheritable & bit == 0
                || cred.securebits & NO_CAP_AMBIENT_RAISE != 0
            {
                return Err(Errno::EPERM);
            }
            change(
                task,
                Capabilities {
                    ambient: caps.ambient | bit,
                    ..caps
                },
            )
        }
        _ => Err(Errno::EINVAL),
    }
}

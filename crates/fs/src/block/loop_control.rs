//! `/dev/loop-control`: making loop devices, finding one that is free.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use abi::errno::Errno;
use linux_raw_sys::loop_device as lo;
use task::Mutex;

use super::loop_device::LoopDevice;
use super::{Disk, DiskNumbers, disk_name};
use crate::devfs::{self, CharDevice};
use crate::ioctl::IoctlRequest;
use crate::{DeviceId, File, FileOps, OpenFlags, Result};

/// Major number of loop devices.
const MAJOR: u32 = 7;
/// The number of `/dev/loop-control`.
const CONTROL: DeviceId = DeviceId::new(10, 237);
/// Devices there are from the beginning (Linux `CONFIG_BLK_DEV_LOOP_MIN_COUNT`).
const AT_START: u32 = 8;
/// Numbers that a minor has room for.
const MAX_DEVICES: u32 = 1 << 20;

static DEVICES: Mutex<BTreeMap<u32, Arc<LoopDevice>>> = Mutex::new(BTreeMap::new());

/// Makes device `number`.
fn add(devices: &mut BTreeMap<u32, Arc<LoopDevice>>, number: u32) -> Result<usize> {
    if number >= MAX_DEVICES {
        return Err(Errno::ENOSPC);
    }
    if devices.contains_key(&number) {
        return Err(Errno::EEXIST);
    }
    let device = LoopDevice::new(number)?;
    let id = DeviceId::new(MAJOR, number);
    let place = DiskNumbers { id, minors: 1 };
    Disk::register(&disk_name("loop", number), place, device.clone())?;
    devices.insert(number, device);
    Ok(number as usize)
}

/// The least number that no device has.
fn unused(devices: &BTreeMap<u32, Arc<LoopDevice>>) -> u32 {
    (0..)
        .zip(devices.keys())
        .find(|(number, used)| number != *used)
        .map_or(devices.len() as u32, |(number, _)| number)
}

/// Registers `/dev/loop-control` and the first devices.
///
/// # Errors
/// `EEXIST` when called twice, `ENOMEM`.
pub fn register_standard() -> Result<()> {
    devfs::register("loop-control", Arc::new(LoopControl))?;
    let mut devices = DEVICES.lock();
    (0..AT_START).try_for_each(|number| add(&mut devices, number).map(drop))
}

struct LoopControl;

impl CharDevice for LoopControl {
    fn open(self: Arc<Self>, _: OpenFlags) -> Result<Arc<dyn FileOps>> {
        Ok(self)
    }

    fn id(&self) -> Option<DeviceId> {
        Some(CONTROL)
    }
}

impl FileOps for LoopControl {
    fn ioctl(&self, _: &File, request: &IoctlRequest<'_>) -> Result<usize> {
        let mut devices = DEVICES.lock();
        match request.command {
            lo::LOOP_CTL_ADD => {
                let number = u32::try_from(request.arg as i32);
                let number = number.unwrap_or_else(|_| unused(&devices));
                add(&mut devices, number)
            }
            lo::LOOP_CTL_GET_FREE => {
                let free = devices.iter().find(|(_, device)| !device.is_bound());
                match free.map(|(number, _)| *number) {
                    Some(number) => Ok(number as usize),
                    None => {
                        let number = unused(&devices);
                        add(&mut devices, number)
                    }
                }
            }
            _ => Err(Errno::ENOSYS),
        }
    }
}

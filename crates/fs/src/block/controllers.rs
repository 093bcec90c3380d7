//! Controllers of disks: what programs are told of one in `/sys`.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;
use task::Mutex;

use crate::Result;

/// A controller of NVMe disks as `/sys/class/nvme` has it: texts without the ends of lines.
pub struct NvmeController {
    /// Name of the controller, and of its node in `/dev`.
    pub name: String,
    /// Number in the name.
    pub index: u32,
    /// Number of its node, `major:minor`.
    pub node: String,
    /// Address of the PCI function that it is.
    pub address: String,
    /// Serial number, as the controller says it, with its blanks.
    pub serial: String,
    /// Model, with its blanks.
    pub model: String,
    /// Revision of the firmware when the controller was found, likewise.
    pub firmware: String,
    /// Name of the subsystem.
    pub subsystem: String,
    /// Kind of controller.
    pub kind: &'static str,
    /// Number of the controller in its subsystem.
    pub number: u16,
    /// Number of queue pairs, the admin queue's among them.
    pub queues: usize,
    /// Entries of a queue.
    pub entries: u16,
    /// Names of its disks.
    pub disks: Vec<String>,
}

static CONTROLLERS: Mutex<Vec<Arc<NvmeController>>> = Mutex::new(Vec::new());

/// Makes a controller known.
///
/// # Errors
/// `ENOMEM`.
pub fn register_controller(controller: NvmeController) -> Result<()> {
    let mut all = CONTROLLERS.lock();
    all.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    all.push(Arc::new(controller));
    Ok(())
}

/// Makes the controller of a name unknown.
pub fn unregister_controller(name: &str) {
    CONTROLLERS.lock().retain(|known| known.name != name);
}

/// All controllers, in the order in which they were found.
#[must_use]
pub fn controllers() -> Vec<Arc<NvmeController>> {
    CONTROLLERS.lock().clone()
}

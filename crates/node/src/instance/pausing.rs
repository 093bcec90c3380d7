//! Pausing: all CPUs of an instance stand still until they are told to go on.
//!
//! The wish is the record's from the call on, whatever becomes of the tool; the record says that
//! the instance is paused when each CPU has said that it stands still.

use abi::dev;
use abi::errno::Errno;
use fs::Result;
use guard::partition::{Partition, Pause};

use super::{Instance, InstanceState};

impl Instance {
    /// Has all its CPUs stand still. The node thread sees whether they do.
    ///
    /// # Errors
    /// `ESRCH`: it does not run. `EAGAIN`: its program has not begun. `EALREADY`: it is paused, or
    /// is to be. `EBUSY`: it has not answered the last change.
    pub(crate) fn pause(&self) -> Result<()> {
        let mut record = self.record.lock();
        let record = &mut *record;
        let changes = record.resizing.staging || record.resizing.pending.is_some();
        let is_up = record.status.start_to_user_ns != 0;
        let is_asked = record.status.paused != dev::PAUSED_NO;
        let partition = record.running_partition().ok_or(Errno::ESRCH)?;
        if is_asked {
            return Err(Errno::EALREADY);
        }
        if !is_up {
            return Err(Errno::EAGAIN);
        }
        // CPUs on their way in or out are told by another way.
        if changes {
            return Err(Errno::EBUSY);
        }
        if !partition.set_pause(true) {
            return Err(Errno::ESRCH);
        }
        record.status.paused = dev::PAUSED_ASKED;
        self.follow_pause(record);
        crate::request();
        Ok(())
    }

    /// Has its CPUs go on.
    ///
    /// # Errors
    /// `ESRCH`: it does not run. `EALREADY`: it is not paused.
    pub(crate) fn unpause(&self) -> Result<()> {
        let mut record = self.record.lock();
        let record = &mut *record;
        let was = record.status.paused;
        let partition = record.running_partition().ok_or(Errno::ESRCH)?;
        if was == dev::PAUSED_NO {
            return Err(Errno::EALREADY);
        }
        if !partition.set_pause(false) {
            return Err(Errno::ESRCH);
        }
        record.status.paused = dev::PAUSED_NO;
        if was == dev::PAUSED_YES {
            self.tell(dev::EVENT_UNPAUSE, 0);
        }
        self.follow_pause(record);
        self.state_changed.notify();
        crate::request();
        Ok(())
    }

    /// Whether no CPU of it is on its way to stand still.
    pub(crate) fn pause_is_over(&self) -> bool {
        self.status().paused != dev::PAUSED_ASKED
    }

    /// Looks whether all its CPUs have done as they were told. True if not: it is to be looked at
    /// again soon.
    pub(super) fn follow_pause(&self, record: &mut InstanceState) -> bool {
        let Some(partition) = record.partition.as_mut() else {
            return false;
        };
        match partition.look_at_pause() {
            Pause::Pending => return true,
            Pause::On if record.status.paused == dev::PAUSED_ASKED => {
                record.status.paused = dev::PAUSED_YES;
                self.tell(dev::EVENT_PAUSE, 0);
                self.state_changed.notify();
            }
            Pause::On | Pause::Off => {}
        }
        false
    }
}

impl InstanceState {
    /// The partition of an instance that runs and does not end.
    fn running_partition(&mut self) -> Option<&mut Partition> {
        let runs = self.status.state == dev::STATE_RUNNING && !self.reclaiming;
        self.partition
            .as_mut()
            .filter(|_| runs && self.halting_since == 0)
    }
}

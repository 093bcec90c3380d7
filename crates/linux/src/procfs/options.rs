//! Options of a mount of `/proc` (`proc(5)`): which processes somebody finds there.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use ::task::Mutex;
use abi::errno::Errno;
use uapi::pid::Pid;

use super::pid::accessible_space;
use crate::current_task;
use crate::process::{Process, process_table};

/// Part of other users' processes that is hidden (`hidepid=`), from the least on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub(super) enum HidePid {
    /// Nothing.
    Off,
    /// Directories of others' processes cannot be entered.
    NoAccess,
    /// Others' processes are not found, either.
    Invisible,
    /// Nobody is found whom the caller may not look into, whatever group it is in.
    NotPtraceable,
}

impl HidePid {
    /// Names and numbers that the option takes.
    const NAMES: [(Self, &str, &str); 4] = [
        (Self::Off, "off", "0"),
        (Self::NoAccess, "noaccess", "1"),
        (Self::Invisible, "invisible", "2"),
        (Self::NotPtraceable, "ptraceable", "4"),
    ];

    fn parse(text: &str) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(_, name, number)| text == *name || text == *number)
            .map(|(value, _, _)| *value)
    }

    fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }
}

/// Options of one mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Options {
    pub(super) hide_pid: HidePid,
    /// Group from whose members nothing is hidden, but by [`HidePid::NotPtraceable`].
    gid: u32,
    /// Whether only processes are shown (`subset=pid`).
    pub(super) only_pids: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            hide_pid: HidePid::Off,
            gid: 0,
            only_pids: false,
        }
    }
}

impl Options {
    /// With what a text says, options with commas between them.
    ///
    /// # Errors
    /// `EINVAL`.
    pub(super) fn with_text(self, text: &str) -> Result<Self, Errno> {
        text.split(',')
            .filter(|option| !option.is_empty())
            .try_fold(self, |options, option| {
                options.with_option(option).ok_or(Errno::EINVAL)
            })
    }

    fn with_option(mut self, option: &str) -> Option<Self> {
        match option.split_once('=')? {
            ("hidepid", value) => self.hide_pid = HidePid::parse(value)?,
            ("gid", value) => self.gid = value.parse().ok().filter(|id| *id != u32::MAX)?,
            ("subset", "pid") => self.only_pids = true,
            _ => return None,
        }
        Some(self)
    }

    /// The options as `/proc/mounts` shows them.
    pub(super) fn show(self) -> String {
        let mut text = String::new();
        if self.gid != 0 {
            text += &format!(",gid={}", self.gid);
        }
        if self.hide_pid != HidePid::Off {
            text += &format!(",hidepid={}", self.hide_pid.name());
        }
        if self.only_pids {
            text += ",subset=pid";
        }
        text
    }

    /// Whether the caller may do with a process what is forbidden from `least` on (Linux
    /// `has_pid_permissions`).
    fn permits(self, process: &Arc<Process>, least: HidePid) -> bool {
        let accessible = || accessible_space(process).is_ok();
        match self.hide_pid {
            HidePid::NotPtraceable => accessible(),
            hide if hide < least => true,
            _ => {
                current_task().is_some_and(|task| task.fs_cred().in_group(self.gid)) || accessible()
            }
        }
    }

    /// Whether the caller finds the process of a number.
    pub(super) fn shows_pid(self, pid: Pid) -> bool {
        self.hide_pid == HidePid::Off
            || process_table::find(pid).is_some_and(|process| self.shows(&process))
    }

    /// Whether the caller finds a process.
    pub(super) fn shows(self, process: &Arc<Process>) -> bool {
        self.permits(process, HidePid::Invisible)
    }

    /// Checks that the caller may enter the directory of a process.
    ///
    /// # Errors
    /// `EPERM`; `ENOENT` if it is not to know that there is one.
    pub(super) fn check_enter(self, process: &Arc<Process>) -> Result<(), Errno> {
        if self.permits(process, HidePid::NoAccess) {
            Ok(())
        } else if self.hide_pid == HidePid::Invisible {
            Err(Errno::ENOENT)
        } else {
            Err(Errno::EPERM)
        }
    }
}

/// The options of a mount, which a remount changes.
pub(super) type Shared = Arc<Mutex<Options>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_shown() {
        let read = |text| Options::default().with_text(text);
        let shown = |text| read(text).map(Options::show);
        assert_eq!(shown(""), Ok("".into()));
        assert_eq!(
            shown("hidepid=2,gid=7"),
            Ok(",gid=7,hidepid=invisible".into())
        );
        assert_eq!(shown("hidepid=noaccess"), Ok(",hidepid=noaccess".into()));
        assert_eq!(
            shown("subset=pid,hidepid=4"),
            Ok(",hidepid=ptraceable,subset=pid".into())
        );
        assert_eq!(shown("hidepid=1,hidepid=off"), Ok("".into()));
        for wrong in [
            "hidepid=3",
            "hidepid=5",
            "hidepid",
            "gid=-1",
            "gid=4294967295",
            "subset=x",
            "x",
        ] {
            assert_eq!(read(wrong), Err(Errno::EINVAL), "{wrong}");
        }
        assert!(HidePid::Off < HidePid::NoAccess && HidePid::NoAccess < HidePid::Invisible);
        for (place, (value, ..)) in HidePid::NAMES.iter().enumerate() {
            assert_eq!(*value as usize, place);
        }
    }
}

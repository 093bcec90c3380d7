//! Tokens for calls that are safe for memory and yet not for everybody: setting the guard's hooks,
//! ending the machine, failing on purpose (`docs/guard.md`, "Calls that need a token").

/// The tokens of this kernel, one of each. The guard hands them to the kernel's entry on the first
/// CPU, once; from there they are passed on to the callers that need them.
///
/// They are empty: a call that asks for one costs nothing more, and nobody else can make one.
///
/// ```compile_fail
/// let token = guard::PowerToken(());
/// guard::power::off(&token);
/// ```
#[derive(Debug)]
pub struct Authority {
    /// Token for start-up.
    pub boot: BootToken,
    /// Token for `reboot(2)`.
    pub power: PowerToken,
    /// Token for the tests' files in `/proc/skerry`.
    pub faults: FaultToken,
}

/// The right to set the guard's hooks and to start further CPUs. Start-up borrows it to the crates
/// that set hooks and drops it before the first program runs.
#[derive(Debug)]
pub struct BootToken(());

/// The right to switch the machine off or reset it (`power`).
#[derive(Debug)]
pub struct PowerToken(());

/// The right to make this instance fail on purpose, and to search its memory (`faults`).
#[derive(Debug)]
pub struct FaultToken(());

impl Authority {
    /// All tokens, for the start of the kernel: called once.
    pub(crate) const fn new() -> Self {
        Self {
            boot: BootToken(()),
            power: PowerToken(()),
            faults: FaultToken(()),
        }
    }
}

//! Checks that need the machine to themselves: they change what others look at, or look at what
//! others change.

/// Prefix of the names of such checks, and the reason.
const EXCLUSIVE: &[(&str, &str)] = &[
    (
        "net-admin-",
        "settings of the whole machine, and counts of all sockets",
    ),
    ("core-dumps-", "settings of the whole machine"),
    ("receive-options-lost-are-counted", "counts of all sockets"),
    ("go-timers", "how late a timer is"),
    (
        "loop-devices-",
        "numbers of loop devices, and how much memory may be dirty in the whole machine",
    ),
    ("klog-", "there is one kernel log"),
    (
        "large-pages-",
        "settings of the whole machine, and whether there is a large page",
    ),
    ("leaks-", "counts of all there is in the machine"),
    ("af-packet-", "whatever passes the loop"),
    ("raw-sockets-", "whatever passes the loop"),
    ("meminfo-", "counts of the whole machine"),
    ("mounts-", "changes of the tree that all see"),
    ("namespaces-", "changes of the tree that all see"),
    ("mount-api-", "changes of the tree that all see"),
    (
        "pressure-",
        "whether anybody waits for memory or processors",
    ),
    ("proc-small-files", "counts of the whole machine"),
    ("scheduling-", "who runs where, and before whom"),
    ("ptys-", "numbers of terminals"),
    ("settings-", "settings of the whole machine"),
    ("shootdowns-", "a processor whose thread nothing interrupts"),
    (
        "sockets-rings-are-freed",
        "descriptors that are under way in the whole machine",
    ),
    (
        "sockets-deep-nesting-is-freed",
        "descriptors that are under way in the whole machine",
    ),
    ("sysv-info-", "all objects of System V IPC"),
    ("time-clock-is-set", "the time of day"),
    (
        "clock-without-leap-seconds",
        "the clock without leap seconds",
    ),
    ("clock-discipline-is-remembered", "how the clock is kept"),
    ("time-of-day", "the time of day"),
    ("topology-siblings-used-", "which processors idle"),
    (
        "transfers-of-recorded-events",
        "what the whole machine records",
    ),
    (
        "transfers-while-calls-are-recorded",
        "what the whole machine records",
    ),
    ("paths-proc-of-the-machine", "counts of the whole machine"),
    (
        "users-exclusive-",
        "settings of the whole machine, and the next process's number",
    ),
    ("rusage-", "shares of the processors' time"),
];

/// Whether nothing else may run beside this check.
pub fn is_exclusive(name: &str) -> bool {
    EXCLUSIVE
        .iter()
        .any(|(beginning, _)| name.starts_with(beginning))
}

//! Lists of Debian's packages that scenarios and the soak share, so that they share archives, too.

/// Packages that every script may call.
pub const BASE: &[&str] = &[
    "bash",
    "coreutils",
    "diffutils",
    "findutils",
    "grep",
    "gzip",
    "mawk",
    "perl-base",
    "procps",
    "python3-minimal",
    "sed",
    "sqlite3",
    "tar",
    "xz-utils",
    "zstd",
];

/// Packages that mount and make namespaces, beside [`BASE`].
pub const MOUNTS: &[&str] = &["hostname", "mount", "util-linux"];

/// Packages for developing software, beside [`BASE`].
pub const DEVELOPMENT: &[&str] = &["gcc", "git", "libc6-dev", "make"];

/// Programs that trace others, beside [`BASE`].
pub const TRACING: &[&str] = &["gdb", "strace"];

/// The listing of PCI functions.
pub const PCI: &[&str] = &["pciutils"];

/// Tools for disks: loop devices, partitions, file systems.
pub const DISKS: &[&str] = &["e2fsprogs", "fdisk", "mount", "util-linux"];

/// A small system whose root is a disk.
pub const ROOT: &[&str] = &["bash", "coreutils", "grep", "mount", "sqlite3"];

/// Programs that use disks, beside [`DISKS`]: what measures them, a database, a shell.
pub const DISK_USERS: &[&str] = &[
    "bash",
    "coreutils",
    "diffutils",
    "fio",
    "grep",
    "hdparm",
    "sqlite3",
];

/// The tool for NVMe controllers.
pub const NVME: &[&str] = &["nvme-cli"];

/// The loader of a kernel by the one that runs.
pub const KEXEC: &[&str] = &["kexec-tools"];

/// Servers and their clients, beside [`BASE`].
pub const SERVERS: &[&str] = &[
    "curl",
    "iproute2",
    "iputils-ping",
    "memcached",
    "netcat-openbsd",
    "net-tools",
    "nginx-light",
    "redis-server",
    "redis-tools",
    "rsync",
    "socat",
    "tcpdump",
];

/// Tools that look at networks and configure them, by themselves.
pub const NETWORK_TOOLS: &[&str] = &[
    "bash",
    "coreutils",
    "ethtool",
    "gawk",
    "grep",
    "iproute2",
    "iputils-arping",
    "iputils-ping",
    "isc-dhcp-client",
    "mtr-tiny",
    "net-tools",
    "netcat-openbsd",
    "sed",
    "socat",
    "tcpdump",
    "traceroute",
];

/// Programs that keep what they were told through power cuts.
pub const POWER_CUTS: &[&str] = &["bash", "coreutils", "git", "sqlite3"];

/// A server of the web and its client, by themselves.
pub const WEB_WIRE: &[&str] = &["coreutils", "curl", "nginx-light", "sed"];

/// Servers and clients of which one machine has the ones and another the others, by themselves.
pub const PEERS: &[&str] = &[
    "bash",
    "coreutils",
    "curl",
    "grep",
    "iperf3",
    "iproute2",
    "iputils-ping",
    "mtr-tiny",
    "nginx-light",
    "openssh-client",
    "openssh-server",
    "redis-server",
    "redis-tools",
    "rsync",
    "traceroute",
    "util-linux",
    "wrk",
];

/// Python with the tests of its library, and the names of services that they look up, beside
/// [`BASE`].
pub const PYTHON: &[&str] = &["libpython3.11-testsuite", "netbase", "python3"];

/// stress-ng, beside [`BASE`].
pub const STRESS: &[&str] = &["stress-ng"];

/// Node.js, Debian's own, beside [`BASE`].
pub const NODE: &[&str] = &["nodejs=18*"];

/// OpenJDK with its compiler, beside [`BASE`].
pub const JAVA: &[&str] = &["openjdk-17-jdk-headless"];

/// PostgreSQL, and what runs it as somebody else than root, beside [`BASE`].
pub const POSTGRESQL: &[&str] = &["postgresql-15", "util-linux"];

/// Servers of the web and of databases with their clients, beside [`BASE`].
pub const WEB: &[&str] = &[
    "apache2-bin",
    "apache2-utils",
    "curl",
    "haproxy",
    "lighttpd",
    "mariadb-client",
    "mariadb-server",
    "nginx-light",
    "openssh-client",
    "openssh-server",
    "openssl",
    "php8.2-fpm",
    "php8.2-mysql",
];

/// Languages that are interpreted or compiled while they run, beside [`BASE`].
pub const LANGUAGES: &[&str] = &[
    "bc",
    "erlang-base",
    "gawk",
    "guile-3.0",
    "jq",
    "lua5.4",
    "mono-mcs",
    "perl",
    "php8.2-cli",
    "r-base-core",
    "ruby",
    "tcl",
];

/// Programs that want a terminal, and what looks at processes, beside [`BASE`].
pub const SCREEN: &[&str] = &[
    "bsdutils",
    "expect",
    "fish",
    "htop",
    "less",
    "libc-bin",
    "lsof",
    "nano",
    "ncurses-base",
    "psmisc",
    "tmux",
    "util-linux",
    "vim",
    "zsh",
];

//! Lists of Debian's packages that scenarios and the soak share, so that they share archives, too.

/// What every script may call.
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

/// What it takes to develop software, beside [`BASE`].
pub const DEVELOPMENT: &[&str] = &["gcc", "git", "libc6-dev", "make"];

/// Programs that trace others, and what makes one for them, beside [`BASE`].
pub const TRACING: &[&str] = &["gcc", "gdb", "libc6-dev", "strace"];

/// Servers and their clients, beside [`BASE`].
pub const SERVERS: &[&str] = &[
    "curl",
    "iproute2",
    "iputils-ping",
    "memcached",
    "netcat-openbsd",
    "nginx-light",
    "redis-server",
    "redis-tools",
    "rsync",
    "socat",
];

//! Debian's own programs, dynamically linked and unmodified, all cases of a scenario in one
//! instance whose file system is made of their packages: compilers, debuggers, servers, language
//! runtimes, databases.

use anyhow::Result;

use crate::test::cases::{self, Instance};
use crate::test::{Check, Setting};
use crate::{build, packages};

const DEVELOPMENT: &str = include_str!("../../../../tests/cases/debian/development.cases");
const TRACING: &str = include_str!("../../../../tests/cases/debian/tracing.cases");
const SERVERS: &str = include_str!("../../../../tests/cases/debian/servers.cases");
const MOUNTS: &str = include_str!("../../../../tests/cases/debian/mounts.cases");
const RUNTIMES: &str = include_str!("../../../../tests/cases/debian/runtimes.cases");
const JAVA: &str = include_str!("../../../../tests/cases/debian/java.cases");
const POSTGRESQL: &str = include_str!("../../../../tests/cases/debian/postgresql.cases");
const WEB: &str = include_str!("../../../../tests/cases/debian/web.cases");
const LANGUAGES: &str = include_str!("../../../../tests/cases/debian/languages.cases");
const RESIZED: &str = include_str!("../../../../tests/cases/debian/resized.cases");
const SCREEN: &str = include_str!("../../../../tests/cases/debian/screen.cases");

/// git, gcc, make; strace and gdb, and what they say of other programs, and do to them.
pub fn development(setting: &Setting) -> Result<Vec<Check>> {
    let packages = [packages::BASE, packages::DEVELOPMENT, packages::TRACING];
    let mut all = cases::parse(DEVELOPMENT);
    all.extend(cases::parse(TRACING));
    cases::check(
        setting.machine("all"),
        &instance(&packages, 1536, 150),
        &all,
    )
}

/// Servers with their own clients, over the loop: every client checks what it gets.
pub fn servers(setting: &Setting) -> Result<Vec<Check>> {
    cases::check(
        setting.machine("all"),
        &instance(&[packages::BASE, packages::SERVERS], 1024, 150),
        &cases::parse(SERVERS),
    )
}

/// `mount`, `findmnt`, `umount`, `unshare`, `nsenter` and `lsns`.
pub fn mounts(setting: &Setting) -> Result<Vec<Check>> {
    cases::check(
        setting.machine("all"),
        &instance(&[packages::BASE, packages::MOUNTS], 768, 150),
        &cases::parse(MOUNTS),
    )
}

/// Language runtimes: servers with their clients.
pub fn runtimes(setting: &Setting) -> Result<Vec<Check>> {
    let [plain, cgo] = build::go_http()?;
    let files = [plain, cgo, build::dynamic_test_program()?];
    let instance = Instance {
        files: &files,
        ..instance(&[packages::BASE, packages::NODE], 1024, 200)
    };
    cases::check(setting.machine("all"), &instance, &cases::parse(RUNTIMES))
}

/// OpenJDK.
pub fn java(setting: &Setting) -> Result<Vec<Check>> {
    cases::check(
        setting.machine("all"),
        &instance(&[packages::BASE, packages::JAVA], 2048, 600),
        &cases::parse(JAVA),
    )
}

/// PostgreSQL.
pub fn postgresql(setting: &Setting) -> Result<Vec<Check>> {
    let instance = instance(&[packages::BASE, packages::POSTGRESQL], 2048, 600);
    cases::check(setting.machine("all"), &instance, &cases::parse(POSTGRESQL))
}

/// redis, PostgreSQL and OpenJDK in an instance that is resized all the while.
pub fn resized(setting: &Setting) -> Result<Vec<Check>> {
    let mut cases = cases::parse(RESIZED);
    let resizing = cases.remove(0);
    let packages = [
        packages::BASE,
        packages::SERVERS,
        packages::POSTGRESQL,
        packages::JAVA,
    ];
    let instance = Instance {
        cpus: 8,
        beside: Some(&resizing),
        ..instance(&packages, 1536, 900)
    };
    cases::check(setting.machine("all"), &instance, &cases)
}

/// Servers of the web and of databases.
pub fn web(setting: &Setting) -> Result<Vec<Check>> {
    cases::check(
        setting.machine("all"),
        &instance(&[packages::BASE, packages::WEB], 2048, 300),
        &cases::parse(WEB),
    )
}

/// Languages.
pub fn languages(setting: &Setting) -> Result<Vec<Check>> {
    cases::check(
        setting.machine("all"),
        &instance(&[packages::BASE, packages::LANGUAGES], 2048, 300),
        &cases::parse(LANGUAGES),
    )
}

/// Programs that want a terminal.
pub fn screen(setting: &Setting) -> Result<Vec<Check>> {
    cases::check(
        setting.machine("all"),
        &instance(&[packages::BASE, packages::SCREEN], 1024, 120),
        &cases::parse(SCREEN),
    )
}

fn instance<'a>(packages: &'a [&'a [&'a str]], memory: u32, limit: u32) -> Instance<'a> {
    Instance {
        packages,
        cpus: 2,
        memory,
        files: &[],
        limit,
        patience: 4 * u64::from(limit),
        beside: None,
    }
}

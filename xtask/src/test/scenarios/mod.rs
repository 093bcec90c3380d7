//! Tests in booted machines. Each scenario boots one or more machines and reports what it saw.

mod boot;
mod busybox;
mod conformance;
mod connections;
mod debian;
mod devices;
mod diff;
mod direct;
mod disk;
mod disk_errors;
mod disk_tools;
mod fsx;
mod fuzz;
mod hostile;
pub mod images;
mod iommu;
mod ipv6;
mod json;
mod memory;
pub mod modules;
mod network_tools;
mod networks;
mod nginx;
pub mod nvme;
mod observe;
mod page_cache;
mod pair;
mod partitions;
mod pause;
mod peers;
mod perturbed;
mod poison;
mod power_cuts;
mod program_cuts;
mod programs;
mod python;
mod replays;
mod resize;
mod restart;
mod root_disk;
mod scheduler;
mod shell;
mod soak;
mod stress;
mod supervisor;
mod terminal;
mod topology;
mod virtual_functions;
mod wire;

pub use diff::{fixed_programs, is_steady};

use super::Place::{AnyMachine, SkerryMachine};
use super::Test;

/// All scenarios, the longest first: some run at a time, and the short ones fill the gaps.
pub fn tests() -> Vec<Test> {
    vec![
        Test {
            name: "machine/diff",
            place: SkerryMachine,
            run: diff::run,
        },
        Test {
            name: "machine/programs-1",
            place: AnyMachine,
            run: programs::on_one,
        },
        Test {
            name: "machine/programs-4",
            place: AnyMachine,
            run: programs::on_four,
        },
        Test {
            name: "machine/fuzz",
            place: SkerryMachine,
            run: fuzz::run,
        },
        Test {
            name: "machine/life",
            place: SkerryMachine,
            run: partitions::life,
        },
        Test {
            name: "machine/messages",
            place: SkerryMachine,
            run: partitions::messages,
        },
        Test {
            name: "machine/faults",
            place: SkerryMachine,
            run: partitions::faults,
        },
        Test {
            name: "machine/runtimes",
            place: SkerryMachine,
            run: debian::runtimes,
        },
        Test {
            name: "machine/churn",
            place: SkerryMachine,
            run: partitions::churn,
        },
        Test {
            name: "machine/hunts",
            place: SkerryMachine,
            run: fuzz::short_hunts,
        },
        Test {
            name: "machine/manage",
            place: SkerryMachine,
            run: fuzz::manage,
        },
        Test {
            name: "machine/python",
            place: SkerryMachine,
            run: python::short,
        },
        Test {
            name: "machine/scheduler",
            place: SkerryMachine,
            run: scheduler::run,
        },
        Test {
            name: "machine/servers",
            place: SkerryMachine,
            run: debian::servers,
        },
        Test {
            name: "machine/shell",
            place: SkerryMachine,
            run: shell::run,
        },
        Test {
            name: "machine/memory",
            place: SkerryMachine,
            run: memory::run,
        },
        Test {
            name: "machine/development",
            place: SkerryMachine,
            run: debian::development,
        },
        Test {
            name: "machine/devices",
            place: SkerryMachine,
            run: devices::run,
        },
        Test {
            name: "machine/device-changes",
            place: SkerryMachine,
            run: devices::changes,
        },
        Test {
            name: "machine/virtual-functions",
            place: SkerryMachine,
            run: virtual_functions::run,
        },
        Test {
            name: "machine/iommu",
            place: SkerryMachine,
            run: iommu::run,
        },
        Test {
            name: "machine/networks",
            place: SkerryMachine,
            run: networks::run,
        },
        Test {
            name: "machine/mounts",
            place: SkerryMachine,
            run: debian::mounts,
        },
        Test {
            name: "machine/busybox",
            place: AnyMachine,
            run: busybox::run,
        },
        Test {
            name: "machine/disk",
            place: AnyMachine,
            run: disk::run,
        },
        Test {
            name: "machine/disk-tools",
            place: AnyMachine,
            run: disk_tools::run,
        },
        Test {
            name: "machine/nvme",
            place: AnyMachine,
            run: nvme::run,
        },
        Test {
            name: "machine/nvme-instance",
            place: SkerryMachine,
            run: nvme::instance,
        },
        Test {
            name: "machine/root-disk",
            place: SkerryMachine,
            run: root_disk::run,
        },
        Test {
            name: "machine/disk-errors",
            place: AnyMachine,
            run: disk_errors::run,
        },
        Test {
            name: "machine/direct-transfers",
            place: AnyMachine,
            run: direct::run,
        },
        Test {
            name: "machine/fsx",
            place: AnyMachine,
            run: fsx::short,
        },
        Test {
            name: "machine/hostile-images",
            place: SkerryMachine,
            run: hostile::short,
        },
        Test {
            name: "machine/power-cuts",
            place: AnyMachine,
            run: power_cuts::short,
        },
        Test {
            name: "machine/program-cuts",
            place: AnyMachine,
            run: program_cuts::short,
        },
        Test {
            name: "machine/ext4-conformance",
            place: AnyMachine,
            run: conformance::short,
        },
        Test {
            name: "machine/page-cache",
            place: AnyMachine,
            run: page_cache::run,
        },
        Test {
            name: "machine/wire",
            place: AnyMachine,
            run: wire::run,
        },
        Test {
            name: "machine/network-tools",
            place: AnyMachine,
            run: network_tools::run,
        },
        Test {
            name: "machine/nginx",
            place: SkerryMachine,
            run: nginx::short,
        },
        Test {
            name: "machine/peers",
            place: SkerryMachine,
            run: peers::short,
        },
        Test {
            name: "machine/ipv6",
            place: SkerryMachine,
            run: ipv6::run,
        },
        Test {
            name: "machine/stress-ng",
            place: SkerryMachine,
            run: stress::short,
        },
        Test {
            name: "machine/terminal",
            place: AnyMachine,
            run: terminal::run,
        },
        Test {
            name: "machine/boot",
            place: SkerryMachine,
            run: boot::small,
        },
        Test {
            name: "machine/topology",
            place: SkerryMachine,
            run: topology::run,
        },
        Test {
            name: "machine/observe",
            place: SkerryMachine,
            run: observe::run,
        },
        Test {
            name: "machine/reserve",
            place: SkerryMachine,
            run: partitions::reserve,
        },
        Test {
            name: "machine/four",
            place: SkerryMachine,
            run: partitions::four,
        },
        Test {
            name: "machine/iso",
            place: SkerryMachine,
            run: boot::iso,
        },
        Test {
            name: "machine/64-processors",
            place: SkerryMachine,
            run: boot::large,
        },
        Test {
            name: "long/connections",
            place: SkerryMachine,
            run: connections::run,
        },
        Test {
            name: "long/nginx",
            place: SkerryMachine,
            run: nginx::long,
        },
        Test {
            name: "long/peers",
            place: SkerryMachine,
            run: peers::long,
        },
        Test {
            name: "long/diff",
            place: SkerryMachine,
            run: diff::long,
        },
        Test {
            name: "long/memory",
            place: SkerryMachine,
            run: memory::long,
        },
        Test {
            name: "long/manage",
            place: SkerryMachine,
            run: fuzz::long_manage,
        },
        Test {
            name: "long/hunts",
            place: SkerryMachine,
            run: fuzz::long_hunts,
        },
        Test {
            name: "long/messages",
            place: SkerryMachine,
            run: partitions::long_messages,
        },
        Test {
            name: "long/ends",
            place: SkerryMachine,
            run: partitions::long_ends,
        },
        Test {
            name: "machine/restart",
            place: SkerryMachine,
            run: supervisor::restart,
        },
        Test {
            name: "long/iommu-ends",
            place: SkerryMachine,
            run: iommu::long_ends,
        },
        Test {
            name: "machine/restart-ties",
            place: SkerryMachine,
            run: supervisor::ties,
        },
        Test {
            name: "machine/restart-faults",
            place: SkerryMachine,
            run: supervisor::faults,
        },
        Test {
            name: "machine/restart-devices",
            place: SkerryMachine,
            run: supervisor::devices,
        },
        Test {
            name: "machine/restart-virtual",
            place: SkerryMachine,
            run: supervisor::virtual_functions,
        },
        Test {
            name: "machine/restart-iommu",
            place: SkerryMachine,
            run: supervisor::confined,
        },
        Test {
            name: "machine/restart-nat",
            place: SkerryMachine,
            run: supervisor::nat,
        },
        Test {
            name: "long/restarts",
            place: SkerryMachine,
            run: supervisor::hundred,
        },
        Test {
            name: "long/kexec",
            place: SkerryMachine,
            run: restart::run,
        },
        Test {
            name: "long/programs-2",
            place: AnyMachine,
            run: programs::on_two,
        },
        Test {
            name: "long/programs",
            place: AnyMachine,
            run: programs::long,
        },
        Test {
            name: "long/fsx",
            place: AnyMachine,
            run: fsx::long,
        },
        Test {
            name: "long/hostile-images",
            place: SkerryMachine,
            run: hostile::long,
        },
        Test {
            name: "long/power-cuts",
            place: AnyMachine,
            run: power_cuts::long,
        },
        Test {
            name: "long/program-cuts",
            place: AnyMachine,
            run: program_cuts::long,
        },
        Test {
            name: "long/server-cuts",
            place: AnyMachine,
            run: program_cuts::server,
        },
        Test {
            name: "long/ext4-conformance",
            place: AnyMachine,
            run: conformance::long,
        },
        Test {
            name: "long/scheduler",
            place: SkerryMachine,
            run: scheduler::long,
        },
        Test {
            name: "long/perturbed",
            place: SkerryMachine,
            run: perturbed::run,
        },
        Test {
            name: "long/poison",
            place: SkerryMachine,
            run: poison::run,
        },
        Test {
            name: "long/sqlite",
            place: SkerryMachine,
            run: shell::sqlite,
        },
        Test {
            name: "long/python",
            place: SkerryMachine,
            run: python::long,
        },
        Test {
            name: "long/stress-ng",
            place: SkerryMachine,
            run: stress::long,
        },
        Test {
            name: "long/java",
            place: SkerryMachine,
            run: debian::java,
        },
        Test {
            name: "long/postgresql",
            place: SkerryMachine,
            run: debian::postgresql,
        },
        Test {
            name: "long/resized",
            place: SkerryMachine,
            run: debian::resized,
        },
        Test {
            name: "long/web",
            place: SkerryMachine,
            run: debian::web,
        },
        Test {
            name: "long/languages",
            place: SkerryMachine,
            run: debian::languages,
        },
        Test {
            name: "long/screen",
            place: SkerryMachine,
            run: debian::screen,
        },
        Test {
            name: "long/soak",
            place: SkerryMachine,
            run: soak::long,
        },
    ]
}

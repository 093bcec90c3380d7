//! The first thread: what each role starts, and the first program.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use abi::boot::{self, Boot};
use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use abi::live::Refusal;
use fs::{Cred, File, FsStruct, OpenFlags, PATH_MAX};
use guard::device::FunctionPlace;
use guard::{Authority, BootToken, partition, role};
use linux::mount::root;
use linux::{Hooks, InitProgram};
use pci::Address;
use task::Group;

use crate::exec_program;
use crate::proc_skerry;

/// The first program (process 1) with its standard streams.
struct InitProcess {
    program: InitProgram,
    stdio: [Arc<File>; 3],
}

/// Sets everything up, and ends; the first program goes on.
pub(crate) fn main(authority: Authority) {
    let Authority {
        boot,
        power,
        faults,
    } = authority;
    if role::is_supervisor() {
        // So are all threads that it starts, process 1 among them, and those that these start.
        task::current().set_group(Group::Management);
    }
    guard::boot::start_further_cpus(&boot);

    proc_skerry::init(faults);
    let context = match crate::root::make_root_fs() {
        Ok(context) => context,
        Err(error) if role::is_supervisor() => panic!("no root file system: {error}"),
        Err(error) => {
            log::error!("cannot use the root file system: {error}");
            guard::instance::exit(125);
        }
    };

    if role::cmdline_value("tasks") == Some("siblings-first") {
        parallel::prefer(parallel::Siblings::First);
    }
    linux::init(
        &boot,
        power,
        Hooks {
            init_exited: on_init_exit,
        },
    );
    linux::procfs::apply_command_line();
    let (InitProcess { program, stdio }, context) = if role::is_supervisor() {
        init_supervisor(boot, context)
    } else {
        init_instance(boot, context)
    };

    if let Err(error) = linux::spawn_init(&program, Arc::new(context), stdio) {
        let name = String::from_utf8_lossy(&program.path);
        if role::is_supervisor() {
            panic!("cannot run {name}: {error}");
        }
        // The conventions of shells and docker: not found, or found and not executable.
        let code = if error == Errno::ENOENT { 127 } else { 126 };
        log::error!("cannot run {name}: {error}");
        guard::instance::exit(code);
    }
}

/// Ends the instance, or panics on the supervisor, as process 1 ended with a status as shells show
/// it. What an instance has written to the disk that is its root is there then.
fn on_init_exit(status: i32) {
    if role::is_supervisor() {
        panic!("the first program ended, with status {status}");
    }
    root::finish();
    guard::instance::exit(status as u32);
}

/// Registers the serial ports, disks and `/dev/skerry`; returns the supervisor's first program, and
/// the file system that it sees: that of a disk, or, if that cannot be had, the archive's, from
/// which the machine can be repaired.
fn init_supervisor(boot: BootToken, archive: FsStruct) -> (InitProcess, FsStruct) {
    const FRAMES_PER_MIB: u64 = (1 << 20) / PAGE_SIZE as u64;
    let memory = guard::mem::stats();
    log::info!(
        "Skerry {}: {} CPUs, {} of them the supervisor's; {} MiB of memory, {} MiB free; up {} us after entry",
        env!("CARGO_PKG_VERSION"),
        partition::machine_cpus(),
        guard::cpu::count(),
        memory.total / FRAMES_PER_MIB,
        memory.free / FRAMES_PER_MIB,
        guard::timer::now_ns() / 1000,
    );

    for (number, tty) in drivers::uart::init() {
        if number == 0 {
            fs::tty::set_console(tty);
        }
    }

    start_devices(&boot);

    let host = linux::network_host();
    if let Err(error) = node::init(&boot, host, drivers::virtio_pci::bypasses_iommu) {
        log::error!("no instances can be made: {error}");
    }

    let asked = role::cmdline_value("init");
    let on_disk = crate::root::root_on_disk().and_then(|disk| {
        disk.map(|disk| Ok((first_program(&disk, asked)?, disk)))
            .transpose()
    });
    let (path, context) = match on_disk {
        Ok(None) => (asked.unwrap_or("/init"), archive),
        Ok(Some(found)) => found,
        Err(error) => {
            log::error!("cannot use the root file system: {error}");
            log::error!("the archive's /init runs in its place");
            ("/init", archive)
        }
    };
    let console = open_file(&context, b"/dev/console")
        .unwrap_or_else(|| open_file(&context, b"/dev/null").expect("made at start"));
    let program = InitProgram {
        path: path.into(),
        args: vec![path.into()],
        env: vec![
            b"HOME=/root".to_vec(),
            b"PATH=/bin:/sbin:/usr/bin:/usr/sbin".to_vec(),
            b"TERM=linux".to_vec(),
        ],
        cwd: b"/".to_vec(),
        terminal: None,
    };
    let stdio = [console.clone(), console.clone(), console];
    (InitProcess { program, stdio }, context)
}

/// Path of the first program on a disk: the one that was asked for, or the first of those that
/// Linux tries.
///
/// # Errors
/// If there is none.
fn first_program(context: &FsStruct, asked: Option<&'static str>) -> Result<&'static str, String> {
    let programs = root::init_programs(asked);
    let mut all = programs.iter().copied();
    all.find(|path| exists(context, path.as_bytes()))
        .ok_or_else(|| format!("there is no {} on it: give init=", programs.join(", ")))
}

fn exists(context: &FsStruct, file: &[u8]) -> bool {
    context
        .lookup_context(&Cred::root())
        .lookup(file, fs::path::LookupFlags::empty())
        .is_ok()
}

/// Starts the drivers of PCI functions (the machine's, or those that an instance was given), and of
/// an instance's network, and sets an interface up as the command line says.
fn start_devices(boot: &BootToken) {
    devices::init(boot);
    drivers::window_net::probe(linux::network_host());
    drivers::virtio_pci::probe(linux::network_host());
    drivers::nvme_pci::probe();
    if let Some(value) = role::cmdline_value("ip") {
        linux::configure_network(value);
    }
}

/// Takes a function that has come to this instance, and starts its driver. False without memory, or
/// if it does not answer.
fn add_function(place: &FunctionPlace) -> bool {
    let Some(device) = devices::add_function(place) else {
        return false;
    };
    linux::kernfs::pci::function_came(device);
    drivers::hotplug::came(device);
    true
}

/// Takes a function of this instance from its driver, by its number.
fn remove_function(number: u32, force: bool) -> Result<(), Refusal> {
    // One that never answered is none.
    let Some(device) = devices::pci_device(Address::from_number(number)) else {
        return Ok(());
    };
    drivers::hotplug::remove(device, force)?;
    linux::kernfs::pci::function_left(device);
    Ok(())
}

/// The supervisor has rung an instance's doorbell, whatever for.
fn on_doorbell() {
    link::on_doorbell();
    drivers::window_net::on_doorbell();
}

pub(crate) fn open_file(context: &FsStruct, name: &[u8]) -> Option<Arc<File>> {
    fs::ops::open(
        &context.lookup_context(&Cred::root()),
        name,
        OpenFlags::RDWR | OpenFlags::NOCTTY,
        0,
    )
    .ok()
}

/// Starts an instance's streams; returns the first program that it was created with, and the file
/// system that it sees, the archive's or that of a disk.
fn init_instance(token: BootToken, archive: FsStruct) -> (InitProcess, FsStruct) {
    let boot = match Boot::parse(guard::instance::boot_blob()) {
        Ok(boot) => boot,
        Err(error) => {
            log::error!("nothing to run: {error:?}");
            guard::instance::exit(126);
        }
    };
    if linux::system::sysinfo::set_hostname(boot.hostname.as_bytes()).is_err() {
        log::warn!("the host name is too long: {}", boot.hostname);
    }
    // The network card's driver waits for it.
    guard::irq::set_doorbell_handler(&token, on_doorbell);
    guard::irq::set_peer_handler(&token, link::on_peer_doorbell);
    start_devices(&token);
    let context = match crate::root::root_on_disk() {
        Ok(disk) => disk.unwrap_or(archive),
        Err(error) => {
            log::error!("cannot use the root file system: {error}");
            guard::instance::exit(125);
        }
    };
    let args: Vec<Vec<u8>> = boot.arguments().map(<[u8]>::to_vec).collect();
    let env: Vec<Vec<u8>> = boot.variables().map(<[u8]>::to_vec).collect();
    let path = search_path(&context, &args[0], &env);
    // Before the supervisor is listened to: its first word may be the terminal's size.
    let terminal = (boot.flags & boot::FLAG_TERMINAL != 0).then(|| link::console().clone());
    let hooks = link::ControlHandlers {
        signal: |signal| linux::signal_init(signal as i32),
        shutdown: || linux::signal_init(15),
        cpus_changed: linux::kernfs::sysfs::update_cpus,
        memory_changed: fs::block::writeback::set_memory,
        move_pages: linux::mm::leaving::move_pages,
        write_back: linux::mm::leaving::write_back,
        add_function,
        remove_function,
        usage: || {
            let threads = linux::process::process_table::thread_count();
            (threads as u32, linux::system::sysinfo::used_bytes())
        },
        exec: exec_program::run,
    };
    let listening = link::start(hooks);
    if listening.is_err() {
        panic!("no memory to listen to the supervisor");
    }
    let stdio = if terminal.is_some() {
        let console = open_file(&context, b"/dev/console").expect("the console was just made");
        [console.clone(), console.clone(), console]
    } else {
        [link::stdin(), link::stdout(), link::stderr()]
    };
    let program = InitProgram {
        path,
        args,
        env,
        cwd: boot.cwd.into(),
        terminal,
    };
    (InitProcess { program, stdio }, context)
}

/// Looks for the program's file in `PATH`, as a shell does.
pub(crate) fn search_path(context: &FsStruct, name: &[u8], env: &[Vec<u8>]) -> Vec<u8> {
    if name.contains(&b'/') {
        return name.to_vec();
    }
    let path = env
        .iter()
        .find_map(|variable| variable.strip_prefix(b"PATH="))
        .unwrap_or(b"/bin:/sbin:/usr/bin:/usr/sbin");
    let found = path
        .split(|byte| *byte == b':')
        // A longer name is that of no file.
        .filter(|dir| dir.len() + name.len() < PATH_MAX)
        .map(|dir| [dir, b"/", name].concat())
        .find(|file| exists(context, file));
    found.unwrap_or_else(|| name.to_vec())
}

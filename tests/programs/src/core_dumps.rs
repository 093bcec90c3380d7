//! Core dumps: what a process leaves of itself, where that goes, and who leaves nothing.

use std::io::Read;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{arch, fs, io, mem, process, ptr, thread};

use anyhow::{Context, Result, ensure};
use elf::ElfBytes;
use elf::abi::PT_LOAD;
use elf::endian::LittleEndian;
use elf::segment::ProgramHeader;

use crate::calls::{call, is};
use crate::credentials::become_user;
use crate::text_busy::Place;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    (
        "core-dumps-hold-threads-and-memory",
        hold_threads_and_memory,
    ),
    (
        "core-dumps-hold-what-the-filter-says",
        hold_what_the_filter_says,
    ),
    ("core-dumps-have-the-name-wanted", have_the_name_wanted),
    ("core-dumps-are-not-of-everybody", are_not_of_everybody),
    ("core-dumps-go-to-a-program", go_to_a_program),
    ("core-dumps-end-by-a-kill", end_by_a_kill),
];

const NT_PRSTATUS: u64 = 1;
const NT_FPREGSET: u64 = 2;
const NT_PRPSINFO: u64 = 3;
const NT_AUXV: u64 = 6;
const NT_X86_XSTATE: u64 = 0x202;
const NT_SIGINFO: u64 = 0x5349_4749;
const NT_FILE: u64 = 0x4649_4c45;

const PAGE: usize = 4096;
/// Value of a register of the thread that faults.
const R12: u64 = 0x1234_5678_9abc_def0;
/// Address at which it faults.
const FAULT: u64 = 0x18;

/// Settings of the machine, which are put back at the end.
struct Settings([(&'static str, Vec<u8>); 4]);

impl Settings {
    fn keep() -> Result<Self> {
        let names = [
            "kernel/core_pattern",
            "kernel/core_uses_pid",
            "kernel/core_pipe_limit",
            "fs/suid_dumpable",
        ];
        let mut kept = names.map(|name| (name, Vec::new()));
        for (name, text) in &mut kept {
            *text = fs::read(Path::new("/proc/sys").join(*name)).context(*name)?;
        }
        Ok(Self(kept))
    }

    fn set(&self, name: &str, value: &str) -> Result<()> {
        fs::write(Path::new("/proc/sys").join(name), value).context(name.to_owned())
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        for (name, text) in &self.0 {
            let _ = fs::write(Path::new("/proc/sys").join(name), text);
        }
    }
}

/// Sets the limit of core files.
fn limit(bytes: u64) -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the structure is valid.
    checked(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &limit) }).map(drop)
}

/// Runs something in a child, which it ends.
fn start(child: impl FnOnce() -> Result<()>) -> Result<i32> {
    // SAFETY: this program has one thread when it forks.
    let pid = checked(unsafe { libc::fork() })?;
    if pid == 0 {
        if let Err(error) = child() {
            eprintln!("{error:#}");
        }
        // SAFETY: the child ends here, which is a failure of the check.
        unsafe { libc::_exit(99) };
    }
    Ok(pid)
}

/// Waits for the end of a child; returns how it ended (`CLD_*`) and the signal.
fn wait(pid: i32) -> Result<(i32, i32)> {
    // SAFETY: all zeros is a valid `siginfo_t`, which the call fills.
    unsafe {
        let mut info: libc::siginfo_t = mem::zeroed();
        let flags = libc::WEXITED | libc::WNOWAIT;
        checked(libc::waitid(libc::P_PID, pid as u32, &mut info, flags))?;
        let mut status = 0;
        checked(libc::waitpid(pid, &mut status, 0))?;
        ensure!(
            libc::WCOREDUMP(status) == (info.si_code == libc::CLD_DUMPED),
            "status {status:#x} but code {}",
            info.si_code
        );
        Ok((info.si_code, info.si_status()))
    }
}

fn ends_with(child: impl FnOnce() -> Result<()>, code: i32, what: &str) -> Result<i32> {
    let pid = start(child)?;
    let end = wait(pid)?;
    ensure!(
        end == (code, libc::SIGABRT) || end == (code, libc::SIGSEGV),
        "{what}: ended by {end:?}"
    );
    Ok(pid)
}

fn abort() -> Result<()> {
    process::abort()
}

/// A page of anonymous memory with these words at its beginning.
fn map(words: &[u8], sharing: i32) -> io::Result<usize> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, which nobody else knows, and which is large enough.
    unsafe {
        let at = libc::mmap(
            ptr::null_mut(),
            PAGE,
            prot,
            libc::MAP_ANONYMOUS | sharing,
            -1,
            0,
        );
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        ptr::copy_nonoverlapping(words.as_ptr(), at.cast(), words.len());
        Ok(at as usize)
    }
}

/// Places in the memory of a child: what each holds, and how much of it a dump has.
struct Memory {
    plain: usize,
    inaccessible: usize,
    shared: usize,
    left_out: usize,
}

impl Memory {
    fn new() -> Result<Self> {
        let memory = Self {
            plain: map(b"plain memory", libc::MAP_PRIVATE)?,
            inaccessible: map(b"inaccessible memory", libc::MAP_PRIVATE)?,
            shared: map(b"shared memory", libc::MAP_SHARED)?,
            left_out: map(b"a secret", libc::MAP_PRIVATE)?,
        };
        is(
            call!(SYS_mprotect, memory.inaccessible, PAGE, libc::PROT_NONE),
            0,
            "mprotect",
        )?;
        is(
            call!(SYS_madvise, memory.left_out, PAGE, libc::MADV_DONTDUMP),
            0,
            "madvise",
        )?;
        Ok(memory)
    }
}

/// A core file.
struct Core {
    bytes: Vec<u8>,
}

impl Core {
    fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| path.display().to_string())?;
        ensure!(bytes[16..20] == [4, 0, 62, 0], "not a core file of x86-64");
        Ok(Self { bytes })
    }

    fn elf(&self) -> Result<ElfBytes<'_, LittleEndian>> {
        Ok(ElfBytes::minimal_parse(&self.bytes)?)
    }

    fn segments(&self) -> Result<Vec<ProgramHeader>> {
        let elf = self.elf()?;
        let table = elf.segments().context("program headers")?;
        Ok(table.iter().collect())
    }

    /// Kinds and contents of the notes, in order.
    fn notes(&self) -> Result<Vec<(u64, Vec<u8>)>> {
        let head = self.segments()?[0];
        let begin = head.p_offset as usize;
        let mut rest = &self.bytes[begin..begin + head.p_filesz as usize];
        let mut notes = Vec::new();
        while rest.len() >= 12 {
            let [name_len, len, kind] = [0, 4, 8].map(|at| half(rest, at) as usize);
            let name: &[u8] = if kind as u64 == NT_X86_XSTATE {
                b"LINUX\0"
            } else {
                b"CORE\0"
            };
            let content = 12 + name_len.next_multiple_of(4);
            ensure!(rest[12..].starts_with(name), "the name of note {kind}");
            notes.push((kind as u64, rest[content..content + len].to_vec()));
            rest = rest
                .get(content + len.next_multiple_of(4)..)
                .unwrap_or_default();
        }
        ensure!(rest.is_empty(), "behind the notes");
        Ok(notes)
    }

    fn note(&self, kind: u64) -> Result<Vec<u8>> {
        let found = self.notes()?.into_iter().find(|note| note.0 == kind);
        Ok(found.with_context(|| format!("no note {kind:#x}"))?.1)
    }

    /// The segment in which an address is.
    fn segment_at(&self, addr: usize) -> Result<ProgramHeader> {
        self.segments()?
            .into_iter()
            .find(|segment| {
                segment.p_type == PT_LOAD
                    && (segment.p_vaddr..segment.p_vaddr + segment.p_memsz).contains(&(addr as u64))
            })
            .with_context(|| format!("nothing is told of {addr:#x}"))
    }

    /// Whether the memory at an address is in the file.
    fn has(&self, addr: usize) -> Result<bool> {
        let segment = self.segment_at(addr)?;
        Ok((addr as u64) < segment.p_vaddr + segment.p_filesz)
    }

    /// Memory at an address.
    fn memory(&self, addr: usize, len: usize) -> Result<&[u8]> {
        ensure!(self.has(addr)?, "{addr:#x} is not in the file");
        let segment = self.segment_at(addr)?;
        let at = (addr as u64 - segment.p_vaddr + segment.p_offset) as usize;
        self.bytes
            .get(at..at + len)
            .with_context(|| format!("the file ends before {addr:#x}"))
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn half(bytes: &[u8], at: usize) -> i32 {
    i32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Ends the process by a fault, with a known register.
fn fault() {
    // SAFETY: the write faults, and nothing comes after it.
    unsafe {
        arch::asm!(
            "mov r12, {value}",
            "mov qword ptr [{addr}], r12",
            value = in(reg) R12,
            addr = in(reg) FAULT,
            out("r12") _,
        );
    }
}

fn hold_threads_and_memory() -> Result<()> {
    const THREADS: usize = 3;
    let place = Place::new("core-threads")?;
    let settings = Settings::keep()?;
    settings.set("kernel/core_uses_pid", "0")?;
    let pattern = format!("{}/core.%p", place.0.display());
    settings.set("kernel/core_pattern", &pattern)?;
    let memory = Memory::new()?;
    let tids = map(&[], libc::MAP_SHARED)? as *mut i32;
    let child = || {
        limit(libc::RLIM_INFINITY)?;
        let last_steps = AtomicUsize::new(0);
        thread::scope(|scope| {
            for n in 0..THREADS {
                let (last_steps, tids) = (&last_steps, tids as usize);
                scope.spawn(move || {
                    // SAFETY: each thread has a word of the page that is shared.
                    unsafe { *(tids as *mut i32).add(n) = libc::gettid() };
                    last_steps.fetch_add(1, Ordering::SeqCst);
                    loop {
                        // SAFETY: the call only waits.
                        unsafe { libc::pause() };
                    }
                });
            }
            while last_steps.load(Ordering::SeqCst) < THREADS {
                thread::yield_now();
            }
            // Whoever sleeps now is in the call.
            for n in 0..THREADS {
                // SAFETY: the thread has written its word.
                let tid = unsafe { *tids.add(n) };
                while !fs::read_to_string(format!("/proc/self/task/{tid}/stat"))
                    .is_ok_and(|text| text.contains(") S "))
                {
                    thread::yield_now();
                }
            }
            fault();
        });
        Ok(())
    };
    let pid = ends_with(child, libc::CLD_DUMPED, "a fault")?;
    let path = place.0.join(format!("core.{pid}"));
    ensure!(fs::metadata(&path)?.mode() & 0o7777 == 0o600, "its mode");
    let core = Core::read(&path)?;

    // What the threads did: the one that faulted comes first.
    let notes = core.notes()?;
    let kinds: Vec<u64> = notes.iter().map(|note| note.0).collect();
    ensure!(
        kinds.starts_with(&[
            NT_PRSTATUS,
            NT_PRPSINFO,
            NT_SIGINFO,
            NT_AUXV,
            NT_FILE,
            NT_FPREGSET
        ]),
        "notes {kinds:?}"
    );
    let status: Vec<_> = notes.iter().filter(|note| note.0 == NT_PRSTATUS).collect();
    ensure!(status.len() == THREADS + 1, "{} threads", status.len());
    let first = &status[0].1;
    ensure!(first.len() == 336, "{} bytes of status", first.len());
    ensure!(
        (half(first, 0), half(first, 32)) == (libc::SIGSEGV, pid),
        "signal {} of thread {}",
        half(first, 0),
        half(first, 32)
    );
    ensure!(half(first, 36) as u32 == process::id(), "its parent");
    // Registers begin at byte 112: r15, r14, r13, r12, ….
    ensure!(
        word(first, 112 + 3 * 8) == R12,
        "r12 is {:#x}",
        word(first, 112 + 3 * 8)
    );
    let mut seen: Vec<i32> = status[1..].iter().map(|note| half(&note.1, 32)).collect();
    // SAFETY: the words were written before the child ended.
    let mut expected: Vec<i32> = (0..THREADS).map(|n| unsafe { *tids.add(n) }).collect();
    seen.sort_unstable();
    expected.sort_unstable();
    ensure!(seen == expected, "threads {seen:?}, not {expected:?}");
    for note in &status[1..] {
        // orig_rax: they wait in pause(2), which is 34.
        ensure!(word(&note.1, 112 + 15 * 8) == 34, "a thread's call");
    }
    for (kind, count) in [(NT_FPREGSET, THREADS + 1), (NT_PRPSINFO, 1), (NT_AUXV, 1)] {
        let found = notes.iter().filter(|note| note.0 == kind).count();
        ensure!(found == count, "{found} notes {kind}");
    }
    ensure!(core.note(NT_FPREGSET)?.len() == 512, "size of FP registers");
    ensure!(core.note(NT_X86_XSTATE)?.len() >= 576, "size of XSAVE");

    // The process.
    let about = core.note(NT_PRPSINFO)?;
    ensure!(about.len() == 136 && half(&about, 24) == pid, "{about:?}");
    let arguments = String::from_utf8_lossy(&about[56..]).into_owned();
    let own = fs::read("/proc/self/cmdline")?;
    ensure!(
        arguments.as_bytes()[..8] == own[..8],
        "arguments {arguments}"
    );
    let info = core.note(NT_SIGINFO)?;
    ensure!(
        (half(&info, 0), half(&info, 8), word(&info, 16)) == (libc::SIGSEGV, 1, FAULT),
        "siginfo {:?}",
        &info[..24]
    );
    ensure!(
        core.note(NT_AUXV)? == fs::read("/proc/self/auxv")?,
        "the auxiliary vector"
    );
    let files = core.note(NT_FILE)?;
    let program = fs::read_link("/proc/self/exe")?;
    let program = program.to_str().context("its name")?;
    ensure!(
        word(&files, 8) == PAGE as u64
            && String::from_utf8_lossy(&files).contains(&format!("{program}\0")),
        "mapped files"
    );

    // Memory.
    ensure!(
        core.memory(memory.plain, 12)? == b"plain memory",
        "plain memory"
    );
    ensure!(
        core.memory(memory.inaccessible, 19)? == b"inaccessible memory",
        "inaccessible memory"
    );
    ensure!(
        core.memory(memory.shared, 13)? == b"shared memory",
        "shared memory"
    );
    ensure!(!core.has(memory.left_out)?, "MADV_DONTDUMP");
    let header = core.segments()?[0];
    ensure!(header.p_type == elf::abi::PT_NOTE, "the first segment");
    ensure!(
        core.segments()?[1].p_offset % PAGE as u64 == 0,
        "where memory begins"
    );
    let code = core.segment_at(hold_threads_and_memory as *const () as usize)?;
    ensure!(
        code.p_filesz == 0 && code.p_flags == 5,
        "the program's code: {} bytes, {:#x}",
        code.p_filesz,
        code.p_flags
    );
    Ok(())
}

fn hold_what_the_filter_says() -> Result<()> {
    let place = Place::new("core-filter")?;
    let settings = Settings::keep()?;
    settings.set("kernel/core_uses_pid", "0")?;
    let path = place.0.join("core");
    settings.set("kernel/core_pattern", path.to_str().context("path")?)?;
    let filter = "/proc/self/coredump_filter";
    let shown = fs::read_to_string(filter)?;
    ensure!(shown == "00000033\n", "the filter is {shown}");
    let memory = Memory::new()?;
    let code = hold_what_the_filter_says as *const () as usize;
    // Private, shared, and the program's code.
    let wanted: [(&str, [bool; 3]); 4] = [
        ("0", [false; 3]),
        ("0x1", [true, false, false]),
        ("2", [false, true, false]),
        ("0x5", [true, false, true]),
    ];
    for (value, expected) in wanted {
        let child = || {
            limit(libc::RLIM_INFINITY)?;
            fs::write(filter, value)?;
            abort()
        };
        ends_with(child, libc::CLD_DUMPED, value)?;
        let core = Core::read(&path)?;
        let seen = [memory.plain, memory.shared, code].map(|addr| core.has(addr).unwrap_or(false));
        ensure!(seen == expected, "filter {value}: {seen:?}");
    }
    // Children have it.
    let child = || {
        fs::write(filter, "0x7f")?;
        let inner = start(|| {
            let shown = fs::read_to_string(filter)?;
            process::exit(i32::from(shown != "0000007f\n"))
        })?;
        let (code, status) = wait(inner)?;
        process::exit(i32::from(code != libc::CLD_EXITED || status != 0))
    };
    let end = wait(start(child)?)?;
    ensure!(end == (libc::CLD_EXITED, 0), "inherited filter: {end:?}");
    Ok(())
}

fn have_the_name_wanted() -> Result<()> {
    let place = Place::new("core-names")?;
    let settings = Settings::keep()?;
    settings.set("kernel/core_uses_pid", "0")?;
    let dir = place.0.clone();
    let child = || {
        limit(libc::RLIM_INFINITY)?;
        std::env::set_current_dir(&dir)?;
        // SAFETY: the name ends with NUL.
        unsafe { libc::prctl(libc::PR_SET_NAME, c"a/b".as_ptr()) };
        abort()
    };
    let host = fs::read_to_string("/proc/sys/kernel/hostname")?;
    let host = host.trim();
    let program = fs::read_link("/proc/self/exe")?;
    let program = program.to_str().context("its name")?;
    let escaped = program.replace('/', "!");
    let base = program.rsplit('/').next().unwrap_or_default();
    type Name<'a> = Box<dyn Fn(i32) -> String + 'a>;
    let names: [(&str, &str, Name<'_>); 6] = [
        ("core", "0", Box::new(|_| "core".into())),
        ("core", "1", Box::new(|pid| format!("core.{pid}"))),
        ("x.%p", "1", Box::new(|pid| format!("x.{pid}"))),
        (
            "%e-%s-%u-%g-%d-%%%q",
            "0",
            Box::new(|_| "a!b-6-0-0-1-%".into()),
        ),
        ("%E", "0", Box::new(move |_| escaped.clone())),
        (
            "%f.%h.%P.%i.%c",
            "0",
            Box::new(move |pid| format!("{base}.{host}.{pid}.{pid}.{}", u64::MAX)),
        ),
    ];
    for (pattern, uses_pid, name) in &names {
        settings.set("kernel/core_pattern", pattern)?;
        settings.set("kernel/core_uses_pid", uses_pid)?;
        let pid = ends_with(child, libc::CLD_DUMPED, pattern)?;
        let path = place.0.join(name(pid));
        let found: Vec<_> = fs::read_dir(&place.0)?
            .filter_map(|entry| Some(entry.ok()?.file_name()))
            .collect();
        Core::read(&path).with_context(|| format!("{pattern}: there is {found:?}"))?;
        fs::remove_file(path)?;
    }
    // A file that is there is replaced, and a link not followed.
    settings.set("kernel/core_pattern", "core")?;
    let (path, other) = (place.0.join("core"), place.0.join("other"));
    fs::write(&other, "precious")?;
    symlink(&other, &path)?;
    ends_with(child, libc::CLD_DUMPED, "a link")?;
    ensure!(fs::read(&other)? == b"precious", "the link was followed");
    ensure!(fs::symlink_metadata(&path)?.is_file(), "it is a link still");
    Core::read(&path)?;
    let shown = fs::read_to_string("/proc/sys/kernel/core_pattern")?;
    ensure!(shown == "core\n", "core_pattern shows {shown:?}");
    Ok(())
}

fn are_not_of_everybody() -> Result<()> {
    let place = Place::new("core-nobody")?;
    let settings = Settings::keep()?;
    settings.set("kernel/core_uses_pid", "0")?;
    let path = place.0.join("core");
    settings.set("kernel/core_pattern", path.to_str().context("path")?)?;
    let dumps = |what: &str, expected: bool, child: &dyn Fn() -> Result<()>| -> Result<()> {
        let code = if expected {
            libc::CLD_DUMPED
        } else {
            libc::CLD_KILLED
        };
        ends_with(
            || {
                limit(libc::RLIM_INFINITY)?;
                child()?;
                abort()
            },
            code,
            what,
        )?;
        ensure!(path.exists() == expected, "{what}: whether there is a file");
        let _ = fs::remove_file(&path);
        Ok(())
    };
    dumps("limit 0", false, &|| Ok(limit(0)?))?;
    dumps("limit 4095", false, &|| Ok(limit(4095)?))?;
    dumps("PR_SET_DUMPABLE 0", false, &|| {
        is(call!(SYS_prctl, libc::PR_SET_DUMPABLE, 0), 0, "prctl")
    })?;
    dumps("a mask that its owner may not read", false, &|| {
        call!(SYS_umask, 0o700);
        Ok(())
    })
    .or_else(|_| {
        // Linux leaves an empty file.
        ensure!(fs::metadata(&path)?.len() == 0, "a mask is ignored");
        Ok(fs::remove_file(&path)?)
    })?;
    // Who changes who he is has secrets of his former self.
    dumps("another user", false, &|| become_user(1234))?;
    settings.set("fs/suid_dumpable", "2")?;
    dumps("another user, for root", true, &|| become_user(1234))?;
    settings.set("kernel/core_pattern", "core")?;
    let dir = place.0.clone();
    dumps("another user, wherever he is", false, &|| {
        std::env::set_current_dir(&dir)?;
        become_user(1234)
    })?;
    // A short file is one, too.
    settings.set("kernel/core_pattern", path.to_str().context("path")?)?;
    ends_with(
        || {
            limit(8192)?;
            abort()
        },
        libc::CLD_DUMPED,
        "limit 8192",
    )?;
    let len = fs::metadata(&path)?.len();
    ensure!((64..=8192).contains(&len), "{len} bytes of 8192");
    for text in ["3", "-1", "x"] {
        ensure!(
            settings.set("fs/suid_dumpable", text).is_err(),
            "suid_dumpable takes {text}"
        );
    }
    Ok(())
}

/// The pattern by which this program takes a dump.
fn pattern_of(what: &str, dir: &Path) -> Result<String> {
    let program = fs::read_link("/proc/self/exe")?;
    let pattern = format!(
        "|{} core-dump-{what} {} %p %s %e",
        program.display(),
        dir.display()
    );
    ensure!(pattern.len() < 128, "{pattern} is too long");
    Ok(pattern)
}

/// Takes a dump: `core-dump-take DIR PID SIGNAL NAME`.
pub fn take(arguments: &[&str]) -> ExitCode {
    let all = || -> Result<()> {
        let mut core = Vec::new();
        io::stdin().read_to_end(&mut core)?;
        let dir = PathBuf::from(arguments[0]);
        // Rust's library opens those below.
        let descriptors = (3..20).filter(|fd| call!(SYS_fcntl, *fd, libc::F_GETFD) >= 0);
        // SAFETY: the calls only return numbers.
        let (uid, parent) = unsafe { (libc::geteuid(), libc::getppid()) };
        let text = format!(
            "{:?} {uid} {} {} {:?}",
            &arguments[1..],
            parent != 1,
            descriptors.count(),
            std::env::current_dir()?
        );
        fs::write(dir.join("core"), core)?;
        fs::write(dir.join("about"), text)?;
        Ok(())
    };
    ExitCode::from(u8::from(all().is_err()))
}

fn go_to_a_program() -> Result<()> {
    let place = Place::new("cd")?;
    let settings = Settings::keep()?;
    settings.set("kernel/core_pattern", &pattern_of("take", &place.0)?)?;
    // The process ends when the program has.
    settings.set("kernel/core_pipe_limit", "4")?;
    let memory = Memory::new()?;
    for bytes in [0, libc::RLIM_INFINITY] {
        let child = || {
            limit(bytes)?;
            // SAFETY: the name ends with NUL.
            unsafe { libc::prctl(libc::PR_SET_NAME, c"two words".as_ptr()) };
            abort()
        };
        let pid = ends_with(child, libc::CLD_DUMPED, "a program takes it")?;
        let about = fs::read_to_string(place.0.join("about"))?;
        let expected = format!("[\"{pid}\", \"6\", \"two words\"] 0 true 0 \"/\"");
        ensure!(about == expected, "the program saw {about}");
        let core = Core::read(&place.0.join("core"))?;
        ensure!(
            core.memory(memory.plain, 12)? == b"plain memory",
            "memory through a pipe"
        );
        fs::remove_file(place.0.join("about"))?;
    }
    // Programs that take dumps have this limit, and end without.
    ends_with(
        || {
            limit(1)?;
            abort()
        },
        libc::CLD_KILLED,
        "limit 1",
    )?;
    settings.set("kernel/core_pattern", "|/nowhere/at/all %p")?;
    ends_with(abort, libc::CLD_KILLED, "a program that is not there")?;
    Ok(())
}

/// Takes a dump, but does not read it: `core-dump-ignore DIR …`.
pub fn ignore(arguments: &[&str]) -> ExitCode {
    let begun = PathBuf::from(arguments[0]).join("begun");
    let new = begun.with_extension("new");
    let told = fs::write(&new, process::id().to_string()).and_then(|()| fs::rename(&new, &begun));
    while told.is_ok() {
        // SAFETY: the call only waits.
        unsafe { libc::pause() };
    }
    ExitCode::FAILURE
}

fn end_by_a_kill() -> Result<()> {
    let place = Place::new("ck")?;
    let settings = Settings::keep()?;
    settings.set("kernel/core_pattern", &pattern_of("ignore", &place.0)?)?;
    settings.set("kernel/core_pipe_limit", "0")?;
    // More than a pipe holds.
    let large = vec![7u8; 1 << 20];
    let pid = start(abort)?;
    let begun = place.0.join("begun");
    while !begun.exists() {
        thread::yield_now();
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    ensure!(status.contains("CoreDumping:\t1\n"), "{status}");
    is(call!(SYS_kill, pid, libc::SIGTERM), 0, "SIGTERM")?;
    let mut info: libc::siginfo_t = {
        // SAFETY: all zeros is valid.
        unsafe { mem::zeroed() }
    };
    is(
        call!(
            SYS_waitid,
            libc::P_PID,
            pid,
            &raw mut info,
            libc::WEXITED | libc::WNOHANG,
            0
        ),
        0,
        "waitid",
    )?;
    ensure!(info.si_signo == 0, "it has ended without SIGKILL");
    is(call!(SYS_kill, pid, libc::SIGKILL), 0, "SIGKILL")?;
    let end = wait(pid)?;
    ensure!(end == (libc::CLD_KILLED, libc::SIGKILL), "{end:?}");
    let helper: i32 = fs::read_to_string(&begun)?.parse()?;
    is(call!(SYS_kill, helper, libc::SIGKILL), 0, "the program")?;
    drop(large);
    Ok(())
}

//! Lists of System V's semaphores, message queues and shared memory, as `ipcs` looks.

use std::fs;
use std::io;
use std::mem::zeroed;

use anyhow::{Context, Result, ensure};

use crate::calls::{call, fails, is};
use crate::credentials::{OTHER, become_user, in_child};
use crate::settings::of_own_objects;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("sysv-info-semaphores", semaphores),
    ("sysv-info-message-queues", message_queues),
    ("sysv-info-shared-memory", shared_memory),
    ("sysv-info-numbers", numbers),
];

const IPC_INFO: i32 = 3;
const SEM_STAT: i32 = 18;
const SEM_INFO: i32 = 19;
const SEM_STAT_ANY: i32 = 20;
const MSG_STAT: i32 = 11;
const MSG_INFO: i32 = 12;
const SHM_STAT: i32 = 13;
const SHM_INFO: i32 = 14;

/// The line of `/proc/sysvipc/NAME` for an object, as numbers (the mode is octal).
fn line(name: &str, id: i32) -> Result<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/sysvipc/{name}"))?;
    let lines = text.lines().map(|line| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    });
    let titles = lines.clone().next().context("no title")?;
    let found = lines
        .skip(1)
        .find(|fields| fields.get(1) == Some(&id.to_string()))
        .with_context(|| format!("{id} is not in {text}"))?;
    ensure!(
        titles.len() == found.len() && titles[0] == "key",
        "titles do not fit: {text}"
    );
    Ok(found)
}

fn is_refused(result: io::Result<i32>, errno: i32, what: &str) -> Result<()> {
    let code = result.err().and_then(|e| e.raw_os_error());
    ensure!(code == Some(errno), "{what}: {code:?}");
    Ok(())
}

fn semaphores() -> Result<()> {
    // SAFETY: the calls take numbers, or valid places of the right size.
    unsafe {
        let id = checked(libc::semget(libc::IPC_PRIVATE, 7, 0o600))?;
        let mut limits = [0i32; 10];
        let highest = checked(libc::semctl(0, 0, IPC_INFO, limits.as_mut_ptr()))?;
        ensure!(
            limits[4] > 0 && limits[1] > 0 && limits[5] == 500 && limits[8] == 32_767,
            "{limits:?}"
        );
        ensure!(
            checked(libc::semctl(0, 0, SEM_INFO, limits.as_mut_ptr()))? == highest,
            "two answers"
        );
        ensure!(limits[7] >= 1 && limits[9] >= 7, "{limits:?}");
        let mut info: libc::semid_ds = zeroed();
        let place = (0..=highest)
            .find(|&at| libc::semctl(at, 0, SEM_STAT, &raw mut info) == id)
            .context("no place has it")?;
        ensure!(
            info.sem_nsems == 7 && info.sem_perm.mode & 0o777 == 0o600,
            "another set"
        );
        is_refused(
            checked(libc::semctl(highest + 1000, 0, SEM_STAT, &raw mut info)),
            libc::EINVAL,
            "beyond",
        )?;
        in_child(|| {
            become_user(OTHER)?;
            is_refused(
                checked(libc::semctl(place, 0, SEM_STAT, &raw mut info)),
                libc::EACCES,
                "another user's",
            )?;
            ensure!(
                checked(libc::semctl(place, 0, SEM_STAT_ANY, &raw mut info))? == id,
                "SEM_STAT_ANY finds another"
            );
            Ok(())
        })?;
        let line = line("sem", id)?;
        ensure!(line[2] == "600" && line[3] == "7", "{line:?}");
        checked(libc::semctl(id, 0, libc::IPC_RMID))?;
        is_refused(
            checked(libc::semctl(id, 0, libc::IPC_STAT, &raw mut info)),
            libc::EINVAL,
            "removed",
        )?;
        let next = checked(libc::semget(libc::IPC_PRIVATE, 1, 0o600))?;
        checked(libc::semctl(next, 0, libc::IPC_RMID))?;
        ensure!(next != id, "a number is given out again at once");
    }
    Ok(())
}

fn message_queues() -> Result<()> {
    // SAFETY: the calls take numbers, or valid places of the right size.
    unsafe {
        let id = checked(libc::msgget(libc::IPC_PRIVATE, 0o640))?;
        let message = [1i64, 2, 3];
        checked(libc::msgsnd(id, message.as_ptr().cast(), 16, 0))?;
        let mut limits = [0i32; 8];
        let highest = checked(libc::msgctl(0, IPC_INFO, limits.as_mut_ptr().cast()))?;
        ensure!(
            limits[2] == 8192 && limits[3] == 16_384 && limits[4] > 0,
            "{limits:?}"
        );
        checked(libc::msgctl(0, MSG_INFO, limits.as_mut_ptr().cast()))?;
        ensure!(
            limits[0] >= 1 && limits[1] >= 1 && limits[6] >= 16,
            "{limits:?}"
        );
        let mut info: libc::msqid_ds = zeroed();
        let found = (0..=highest).any(|at| libc::msgctl(at, MSG_STAT, &raw mut info) == id);
        ensure!(found && info.msg_qnum == 1, "no place has it");
        let line = line("msg", id)?;
        ensure!(
            line[2..5] == ["640", "16", "1"] && line[5] == std::process::id().to_string(),
            "{line:?}"
        );
        checked(libc::msgctl(id, libc::IPC_RMID, std::ptr::null_mut()))?;
    }
    Ok(())
}

fn shared_memory() -> Result<()> {
    // SAFETY: the calls take numbers, or valid places of the right size; the memory is used while
    // it is attached.
    unsafe {
        let id = checked(libc::shmget(libc::IPC_PRIVATE, 10_000, 0o600))?;
        let at = libc::shmat(id, std::ptr::null(), 0);
        ensure!(at as isize != -1, "it cannot be attached");
        at.cast::<u8>().write(1);
        let mut limits = [0u64; 9];
        let highest = checked(libc::shmctl(0, IPC_INFO, limits.as_mut_ptr().cast()))?;
        ensure!(
            limits[0] > 1 << 40 && limits[1] == 1 && limits[2] == 4096,
            "{limits:?}"
        );
        let mut usage = [0u64; 6];
        checked(libc::shmctl(0, SHM_INFO, usage.as_mut_ptr().cast()))?;
        ensure!(
            usage[0] as u32 >= 1 && usage[1] >= 3 && usage[2] >= 1 && usage[2] <= usage[1],
            "{usage:?}"
        );
        let mut info: libc::shmid_ds = zeroed();
        let found = (0..=highest).any(|at| libc::shmctl(at, SHM_STAT, &raw mut info) == id);
        ensure!(
            found && info.shm_segsz == 10_000 && info.shm_nattch == 1,
            "no place has it"
        );
        let fields = line("shm", id)?;
        ensure!(
            fields[2..4] == ["600", "10000"] && fields[6] == "1",
            "{fields:?}"
        );
        checked(libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()))?;
        ensure!(line("shm", id)?[6] == "1", "removed, and attached");
        checked(libc::shmdt(at))?;
        ensure!(line("shm", id).is_err(), "it is still there");
    }
    Ok(())
}

/// Bits of a number that are the index, which is 0 to 63 in turn while there are few objects.
const INDEX_BITS: u32 = 15;
const CYCLE: i64 = 64;

/// A kind of object: its name, and how one is made, removed, looked at by number or index, and
/// counted.
type Kind = (
    &'static str,
    fn() -> i64,
    fn(i64) -> i64,
    fn(i64, *mut u64) -> i64,
    fn(*mut u64) -> i64,
);

const KINDS: [Kind; 3] = [
    (
        "queue",
        || call!(SYS_msgget, libc::IPC_PRIVATE, 0o600),
        |id| call!(SYS_msgctl, id, libc::IPC_RMID, 0),
        |id, info| call!(SYS_msgctl, id, MSG_STAT, info),
        |info| call!(SYS_msgctl, 0, IPC_INFO, info),
    ),
    (
        "set",
        || call!(SYS_semget, libc::IPC_PRIVATE, 1, 0o600),
        |id| call!(SYS_semctl, id, 0, libc::IPC_RMID),
        |id, info| call!(SYS_semctl, id, 0, SEM_STAT, info),
        |info| call!(SYS_semctl, 0, 0, IPC_INFO, info),
    ),
    (
        "segment",
        || call!(SYS_shmget, libc::IPC_PRIVATE, 1, 0o600),
        |id| call!(SYS_shmctl, id, libc::IPC_RMID, 0),
        |id, info| call!(SYS_shmctl, id, SHM_STAT, info),
        |info| call!(SYS_shmctl, 0, IPC_INFO, info),
    ),
];

/// A number is not given out again soon: the next object has the next index, and a number behind
/// each round is of the next sequence. What was removed is nothing (`EINVAL`), not even when
/// another object has its index.
fn numbers() -> Result<()> {
    of_own_objects(|| {
        let mut place = [0u64; 32];
        let info = place.as_mut_ptr();
        for (kind, make, remove, stat, count) in KINDS {
            is(count(info), 0, &format!("highest index of no {kind}"))?;
            let stays = make();
            is(stays, 0, &format!("the first {kind}"))?;
            for round in 0..3 {
                for index in 0..CYCLE {
                    if index == 0 {
                        continue;
                    }
                    let id = make();
                    is(id, round << INDEX_BITS | index, &format!("the next {kind}"))?;
                    is(count(info), index, "the highest index")?;
                    is(stat(index, info), id, "what is at its index")?;
                    is(remove(id), 0, "IPC_RMID")?;
                    fails(remove(id), libc::EINVAL, "IPC_RMID again")?;
                    fails(stat(index, info), libc::EINVAL, "what was there")?;
                    is(count(info), 0, "the highest index that is left")?;
                }
            }
            // More than 42 objects make the round longer.
            let many: Vec<i64> = (0..70).map(|_| make()).collect();
            let first = many[0];
            is(
                first,
                3 << INDEX_BITS | 1,
                &format!("a {kind} of the fourth round"),
            )?;
            is(
                many[69],
                3 << INDEX_BITS | 70,
                &format!("the last {kind} of many"),
            )?;
            let old = first - (1 << INDEX_BITS);
            fails(remove(old), libc::EINVAL, "an index in an older sequence")?;
            is(stat(old, info), first, "which counts for nothing in *_STAT")?;
            for id in many.into_iter().chain([stays]) {
                is(remove(id), 0, "IPC_RMID of many")?;
            }
        }
        removed_and_used()
    })
}

/// A segment that was removed is found by its number as long as it is mapped, and a call that waits
/// at what is removed learns that.
fn removed_and_used() -> Result<()> {
    let id = call!(SYS_shmget, 0x1234, 1, libc::IPC_CREAT | 0o600);
    let at = call!(SYS_shmat, id, 0, 0);
    ensure!(id >= 0 && at > 0, "{id}, {at}");
    is(call!(SYS_shmctl, id, libc::IPC_RMID, 0), 0, "IPC_RMID")?;
    fails(call!(SYS_shmget, 0x1234, 0, 0), libc::ENOENT, "its key")?;
    let again = call!(SYS_shmat, id, 0, 0);
    ensure!(again > 0, "attaching what is removed and mapped: {again}");
    is(
        call!(SYS_shmctl, id, libc::IPC_RMID, 0),
        0,
        "IPC_RMID again",
    )?;
    for addr in [at, again] {
        is(call!(SYS_shmdt, addr), 0, "shmdt")?;
    }
    for result in [
        call!(SYS_shmat, id, 0, 0),
        call!(SYS_shmctl, id, libc::IPC_RMID, 0),
    ] {
        fails(result, libc::EINVAL, "what is gone")?;
    }
    let queue = call!(SYS_msgget, libc::IPC_PRIVATE, 0o600);
    let set = call!(SYS_semget, libc::IPC_PRIVATE, 1, 0o600);
    let down = [0i16, -1, 0];
    let mut message = [0u64; 4];
    let waiters: [&mut dyn FnMut() -> i64; 2] = [
        &mut || call!(SYS_msgrcv, queue, message.as_mut_ptr(), 8, 0, 0),
        &mut || call!(SYS_semop, set, down.as_ptr(), 1),
    ];
    let removals: [fn(i64) -> i64; 2] = [KINDS[0].2, KINDS[1].2];
    for ((wait, remove), id) in waiters.into_iter().zip(removals).zip([queue, set]) {
        let parent = std::process::id();
        // SAFETY: this program has one thread; the child ends by itself.
        let child = checked(unsafe { libc::fork() })?;
        if child == 0 {
            asleep(parent);
            let removed = remove(id) == 0;
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!removed)) };
        }
        fails(wait(), libc::EIDRM, "waiting at what is removed")?;
        let mut status = -1;
        is(
            call!(SYS_wait4, child, &raw mut status, 0, 0),
            child.into(),
            "wait4",
        )?;
        is(status.into(), 0, "the child")?;
    }
    Ok(())
}

/// Waits until a process sleeps.
fn asleep(pid: u32) {
    let sleeps = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| rest.starts_with(" S"))
    };
    while !sleeps() {
        std::thread::yield_now();
    }
}

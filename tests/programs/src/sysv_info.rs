//! Lists of System V's semaphores, message queues and shared memory, as `ipcs` looks.

use std::fs;
use std::io;
use std::mem::zeroed;

use anyhow::{Context, Result, ensure};

use crate::credentials::{OTHER, become_user, in_child};
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("sysv-info-semaphores", semaphores),
    ("sysv-info-message-queues", message_queues),
    ("sysv-info-shared-memory", shared_memory),
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

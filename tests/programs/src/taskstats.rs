//! Accounting of tasks by generic netlink: the family `TASKSTATS` of `linux/taskstats.h`.

use std::os::fd::{FromRawFd, OwnedFd};

use anyhow::{Context, Result, ensure};

use crate::sockets::{recv, send};
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[("taskstats-tell-a-process-and-its-parent", who)];

/// Bytes of the headers of a message: netlink's and generic netlink's.
const HEADERS: usize = 20;
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const TASKSTATS_CMD_GET: u8 = 1;
const TASKSTATS_CMD_ATTR_PID: u16 = 1;
const TASKSTATS_TYPE_STATS: u16 = 3;
const TASKSTATS_TYPE_AGGR_PID: u16 = 4;
/// Offsets in `struct taskstats`.
const AC_UID: usize = 120;
const AC_PID: usize = 128;
const AC_PPID: usize = 132;

/// Sends a command with one attribute; returns the attributes of the answer.
fn ask(netlink: &OwnedFd, family: u16, command: u8, kind: u16, value: &[u8]) -> Result<Vec<u8>> {
    let length = HEADERS + 4 + value.len().next_multiple_of(4);
    let mut message = (length as u32).to_ne_bytes().to_vec();
    message.extend(family.to_ne_bytes());
    message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    // The sender's number and its port: both are for the sender's own use.
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend((4 + value.len() as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(length, 0);
    send(netlink, &message, 0)?;
    let mut answer = vec![0; 8192];
    let length = recv(netlink, &mut answer, 0)?;
    answer.truncate(length);
    let kind = u16::from_ne_bytes([answer[4], answer[5]]);
    ensure!(
        kind != libc::NLMSG_ERROR as u16,
        "error {:?}",
        &answer[16..20]
    );
    Ok(answer.split_off(HEADERS))
}

/// The value of the first attribute of a kind.
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while let [a, b, c, d, ..] = *attributes {
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let value = attributes.get(4..length)?;
        if u16::from_ne_bytes([c, d]) & 0x3fff == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
    None
}

fn who() -> Result<()> {
    // SAFETY: the new number belongs to nobody else; the other calls are plain ones.
    let (netlink, me, parent, user) = unsafe {
        let netlink = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_GENERIC);
        (
            OwnedFd::from_raw_fd(checked(netlink)?),
            libc::getpid(),
            libc::getppid(),
            libc::getuid(),
        )
    };
    let family = ask(
        &netlink,
        GENL_ID_CTRL,
        CTRL_CMD_GETFAMILY,
        CTRL_ATTR_FAMILY_NAME,
        b"TASKSTATS\0",
    )?;
    let family = attribute(&family, CTRL_ATTR_FAMILY_ID).context("the family has no number")?;
    let family = u16::from_ne_bytes(family.try_into()?);
    let answer = ask(
        &netlink,
        family,
        TASKSTATS_CMD_GET,
        TASKSTATS_CMD_ATTR_PID,
        &me.to_ne_bytes(),
    )?;
    let stats = attribute(&answer, TASKSTATS_TYPE_AGGR_PID)
        .and_then(|all| attribute(all, TASKSTATS_TYPE_STATS))
        .context("no statistics")?;
    for (name, at, expected) in [
        ("ac_pid", AC_PID, me.cast_unsigned()),
        ("ac_ppid", AC_PPID, parent.cast_unsigned()),
        ("ac_uid", AC_UID, user),
    ] {
        let value = u32::from_ne_bytes(stats[at..at + 4].try_into()?);
        ensure!(value == expected, "{name} is {value}, not {expected}");
    }
    Ok(())
}

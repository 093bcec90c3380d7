//! `NETLINK_GENERIC`: families that are found by name (`genl(8)`): the one that finds them, and the
//! one that tells what processes use (`Documentation/accounting/taskstats.rst`).

use alloc::vec::Vec;

use abi::errno::Errno;
use fs::Result;
use task::Once;

use super::message::{NLM_F_DUMP, NLM_F_MULTI, Reply};
use crate::socket::caller_ucred;

/// The family that finds families, and the one of what processes use.
const GENL_ID_CTRL: u16 = 0x10;
const TASKSTATS_FAMILY: u16 = 0x11;
/// Commands of the controller: a family is there; which there are.
const CTRL_CMD_NEWFAMILY: u8 = 1;
const CTRL_CMD_GETFAMILY: u8 = 3;
/// Commands about what processes use: it is asked for, and told.
const TASKSTATS_CMD_GET: u8 = 1;
const TASKSTATS_CMD_NEW: u8 = 2;
/// Attributes: the number and the name of a family.
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// A nested attribute.
const NLA_F_NESTED: u16 = 0x8000;

/// A family: number, name, version, and the most attributes a message has.
const FAMILIES: [(u16, &str, u32, u32); 2] = [
    (GENL_ID_CTRL, "nlctrl", 2, 10),
    (TASKSTATS_FAMILY, "TASKSTATS", 1, 4),
];

/// Tells what a thread or, if the second argument says so, a process uses, as `struct taskstats`.
type TaskstatsProvider = fn(i32, bool) -> Option<Vec<u8>>;

static TASKSTATS_PROVIDER: Once<TaskstatsProvider> = Once::new();

/// Sets the function that tells what threads and processes use. The first call counts.
pub fn set_taskstats_provider(accounts: TaskstatsProvider) {
    TASKSTATS_PROVIDER.call_once(|| accounts);
}

fn encode_attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = [
        &(4 + value.len() as u16).to_ne_bytes()[..],
        &kind.to_ne_bytes(),
        value,
    ]
    .concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The value of the first attribute of a kind.
fn find_attribute(mut rest: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some((header, _)) = rest.split_first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & !NLA_F_NESTED;
        let value = rest.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    None
}

impl Reply {
    fn push_family(&mut self, flags: u16, family: (u16, &str, u32, u32)) {
        const VERSION: u16 = 3;
        const HEADER_SIZE: u16 = 4;
        const MAX_ATTRIBUTES: u16 = 5;
        let (number, name, version, most) = family;
        let name = [name.as_bytes(), &[0]].concat();
        let attributes: [(u16, &[u8]); 5] = [
            (CTRL_ATTR_FAMILY_NAME, &name),
            (CTRL_ATTR_FAMILY_ID, &number.to_ne_bytes()),
            (VERSION, &version.to_ne_bytes()),
            (HEADER_SIZE, &[0; 4]),
            (MAX_ATTRIBUTES, &most.to_ne_bytes()),
        ];
        self.push_message(
            GENL_ID_CTRL,
            flags,
            &[CTRL_CMD_NEWFAMILY, 2, 0, 0],
            &attributes,
        );
    }
}

/// Answers a request; whether that is a list.
///
/// # Errors
/// `ENOENT` for a family or number that there is not, `EOPNOTSUPP` for other commands, `EINVAL`,
/// `EPERM`, `ESRCH`.
pub(super) fn handle_message(reply: &mut Reply, body: &[u8]) -> Result<bool> {
    let ([command, _, _, _], attributes) = body.split_first_chunk().ok_or(Errno::EINVAL)?;
    let lists = reply.request.flags & NLM_F_DUMP == NLM_F_DUMP;
    match (reply.request.kind, *command) {
        (GENL_ID_CTRL, CTRL_CMD_GETFAMILY) if lists => {
            FAMILIES
                .into_iter()
                .for_each(|family| reply.push_family(NLM_F_MULTI, family));
            Ok(true)
        }
        (GENL_ID_CTRL, CTRL_CMD_GETFAMILY) => {
            let number = find_attribute(attributes, CTRL_ATTR_FAMILY_ID)
                .and_then(|value| value.first_chunk())
                .map(|value| u16::from_ne_bytes(*value));
            let name = find_attribute(attributes, CTRL_ATTR_FAMILY_NAME)
                .map(|name| name.split(|&b| b == 0).next().unwrap_or_default());
            if number.is_none() && name.is_none() {
                return Err(Errno::EINVAL);
            }
            let meant = |family: &(u16, &str, u32, u32)| {
                Some(family.0) == number || Some(family.1.as_bytes()) == name
            };
            reply.push_family(0, FAMILIES.into_iter().find(meant).ok_or(Errno::ENOENT)?);
            Ok(false)
        }
        (TASKSTATS_FAMILY, TASKSTATS_CMD_GET) => push_taskstats(reply, attributes).map(|()| false),
        (GENL_ID_CTRL | TASKSTATS_FAMILY, _) => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::ENOENT),
    }
}

/// Adds the resource usage of a thread (attribute 1) or a process (2).
fn push_taskstats(reply: &mut Reply, attributes: &[u8]) -> Result<()> {
    const OF_THREAD: u16 = 1;
    const OF_PROCESS: u16 = 2;
    const FIGURES: u16 = 3;
    /// Attributes that hold a number and the figures.
    const WITH_NUMBER: u16 = 3;
    if caller_ucred().uid != 0 {
        return Err(Errno::EPERM);
    }
    let number = |kind: u16| {
        find_attribute(attributes, kind)
            .and_then(|value| value.first_chunk())
            .map(|value| i32::from_ne_bytes(*value))
    };
    let (kind, id) = match (number(OF_THREAD), number(OF_PROCESS)) {
        (Some(id), _) => (OF_THREAD, id),
        (None, Some(id)) => (OF_PROCESS, id),
        (None, None) => return Err(Errno::EINVAL),
    };
    let figures = TASKSTATS_PROVIDER
        .get()
        .and_then(|accounts| accounts(id, kind == OF_PROCESS))
        .ok_or(Errno::ESRCH)?;
    let inner = [
        encode_attribute(kind, &id.to_ne_bytes()),
        encode_attribute(FIGURES, &figures),
    ]
    .concat();
    reply.push_message(
        TASKSTATS_FAMILY,
        0,
        &[TASKSTATS_CMD_NEW, 1, 0, 0],
        &[(WITH_NUMBER + kind, &inner)],
    );
    Ok(())
}

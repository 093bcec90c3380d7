//! `/dev/nvme0`, and what a namespace does beside reading and writing: commands that programs pass
//! to the controller (`docs/nvme.md`, "Commands of programs").

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use arrayvec::ArrayVec;
use fs::devfs::CharDevice;
use fs::ioctl::IoctlRequest;
use fs::{File, FileOps, OpenFlags};
use nvme::{Answer, CommandSet, Data, Forbidden, Identity, Namespace, Passed, Plan, Wanted};
use virtqueue::Address;
use vm::Page;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Attached, Device, NvmeDisk, Part, Parts, Queues, Shared, submit};
use crate::gate::Close;
use crate::lanes::{Lent, MAX_PIECES, NotOffered, PartPages, Tag};

/// Requests of Linux' `nvme_ioctl.h`.
mod request {
    pub const ID: u32 = 0x4e40;
    pub const ADMIN: u32 = 0xc048_4e41;
    pub const TRANSFER: u32 = 0x4030_4e42;
    pub const NVM: u32 = 0xc048_4e43;
    pub const RESET: u32 = 0x4e44;
    pub const ADMIN_64: u32 = 0xc050_4e47;
    pub const NVM_64: u32 = 0xc050_4e48;
}

/// Looks, about a millisecond each, after which the controller is reset if a command has had no
/// answer and says nothing of a time, as Linux does; and at most.
const LOOKS: u32 = 60_000;
const MOST_LOOKS: u32 = 600_000;
/// Looks between two resets of a controller that does not stop.
const LOOKS_AGAIN: u32 = 1000;
/// Bytes that are copied between a program and a page at a time.
const COPIED: usize = 512;

/// `struct nvme_passthru_cmd`, up to where the two kinds of it differ.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Command {
    code: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    words: [u32; 2],
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    further_words: [u32; 6],
    timeout_ms: u32,
    /// The result in one kind, nothing in the other.
    last: u32,
}

/// Places of the result in `struct nvme_passthru_cmd` and `struct nvme_passthru_cmd64`.
const RESULT: usize = 68;
const RESULT_64: usize = 72;
const _: () = assert!(size_of::<Command>() == RESULT_64);

/// `struct nvme_user_io`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct UserTransfer {
    code: u8,
    flags: u8,
    control: u16,
    blocks: u16,
    reserved: u16,
    metadata: u64,
    addr: u64,
    first: u64,
    hints: u32,
    reference_tag: u32,
    tag: u16,
    tag_mask: u16,
    padding: u32,
}

const _: () = assert!(size_of::<UserTransfer>() == 48);

/// Place for the answer to a command in a queue that is shared with others.
#[derive(Default)]
pub struct Note(AtomicU64);

impl Note {
    const IS_SET: u64 = 1 << 63;

    pub fn set(&self, answer: Option<Answer>) {
        if let Some(Answer { word, field }) = answer {
            let value = Self::IS_SET | u64::from(field) << 32 | u64::from(word);
            self.0.store(value, Ordering::Release);
        }
    }

    fn answer(&self) -> Option<Answer> {
        let value = self.0.load(Ordering::Acquire);
        (value & Self::IS_SET != 0).then_some(Answer {
            word: value as u32,
            field: (value >> 32) as u16,
        })
    }
}

/// Data of a command, in pages of its own.
struct Buffer(Vec<Page>);

impl Buffer {
    /// Pages for `bytes`, with what a program has at `addr` if the controller is to read it.
    fn new(plan: &Plan, request: &IoctlRequest<'_>, addr: u64, len: usize) -> Result<Self, Errno> {
        let count = plan.bytes.div_ceil(PAGE_SIZE);
        let mut pages = Vec::new();
        pages.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
        for _ in 0..count {
            pages.push(Page::zeroed().ok_or(Errno::ENOMEM)?);
        }
        let buffer = Self(pages);
        if plan.is_read {
            buffer.for_each_part(len.min(plan.bytes), |page, at, done, part| {
                let user = usize::try_from(addr + done).map_err(|_| Errno::EFAULT)?;
                request.caller.read_bytes(user, part)?;
                page.write(at, part);
                Ok(())
            })?;
        }
        Ok(buffer)
    }

    /// Copies what the controller has written to a program.
    fn copy_out(
        &self,
        plan: &Plan,
        request: &IoctlRequest<'_>,
        addr: u64,
        len: usize,
    ) -> Result<(), Errno> {
        if !plan.is_written {
            return Ok(());
        }
        self.for_each_part(len.min(plan.bytes), |page, at, done, part| {
            let user = usize::try_from(addr + done).map_err(|_| Errno::EFAULT)?;
            page.read(at, part);
            request.caller.write_bytes(user, part)
        })
    }

    /// Calls `each` with a page, a place in it, that place in the data, and room for a part.
    fn for_each_part(
        &self,
        len: usize,
        mut each: impl FnMut(&Page, usize, u64, &mut [u8]) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut room = [0; COPIED];
        let mut done = 0;
        while done < len {
            let part = (len - done).min(COPIED);
            let page = &self.0[done / PAGE_SIZE];
            each(page, done % PAGE_SIZE, done as u64, &mut room[..part])?;
            done += part;
        }
        Ok(())
    }

    /// Lends all pages; `None` without memory for their list.
    fn lend<L: Lent>(&self) -> Option<(PartPages<L>, ArrayVec<Address, MAX_PIECES>)> {
        let (mut lent, mut places) = (PartPages::default(), ArrayVec::new());
        for page in &self.0 {
            if !lent.has_room() {
                lent.into_iter().for_each(Lent::completed);
                return None;
            }
            let page = L::lend(page);
            places.push(page.address());
            lent.push(page);
        }
        Some((lent, places))
    }
}

/// A controller as `/dev/nvme0`.
pub struct Control<P: Parts> {
    lanes: Shared<P>,
}

impl<P: Parts> Control<P> {
    pub(super) const fn new(lanes: Shared<P>) -> Self {
        Self { lanes }
    }

    /// Description of the controller by itself.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.lanes.identity
    }

    /// The way to the controller.
    #[must_use]
    pub fn gate(&self) -> Arc<dyn Close> {
        self.lanes.clone()
    }

    /// A request of a program's.
    ///
    /// # Errors
    /// `ENOTTY` for a request that Linux' driver does not have; otherwise the errors of that
    /// driver.
    pub fn request(&self, request: &IoctlRequest<'_>) -> fs::Result<usize> {
        ioctl(&self.lanes, None, request)
    }

    /// Number of queue pairs, beside the admin queue's.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.lanes.queues
    }
}

/// The error for a command that is not passed.
fn refusal(why: Forbidden) -> Errno {
    match why {
        Forbidden::Kernels => Errno::EPERM,
        Forbidden::Disks | Forbidden::Unknown => Errno::EOPNOTSUPP,
        Forbidden::TooLong => Errno::EINVAL,
    }
}

impl<P: Parts> Device<P> {
    fn most(&self) -> usize {
        self.controller.identity().transfer
    }

    /// Waits for the admin queue's answer to a command that is over, or was stopped.
    fn await_passed(&self, lanes: &Queues<P>, looks: u32) -> Result<Answer, Errno> {
        let mut next_reset = looks;
        let mut is_broken = false;
        let mut n = 0u32;
        loop {
            let passed = self.controller.passed(&mut self.admin.lock());
            match passed {
                Ok(Passed::Over(answer)) => return Ok(answer),
                Ok(Passed::Stopped) => return Err(Errno::EINTR),
                Ok(Passed::Underway) => {}
                Err(rule) if !is_broken => {
                    log::error!("{}: {rule}", self.name);
                    (is_broken, next_reset) = (true, n);
                }
                Err(_) => {}
            }
            if n >= next_reset {
                log::warn!("{}: a program's command has no answer", self.name);
                lanes.renew();
                next_reset = n.saturating_add(LOOKS_AGAIN);
            }
            self.controller.pause(n);
            n = n.saturating_add(1);
        }
    }
}

/// Passes an admin command; its answer.
fn pass_admin<P: Parts>(
    lanes: &Queues<P>,
    plan: &Plan,
    buffer: &Buffer,
    looks: u32,
) -> Result<Answer, Errno> {
    let device = lanes.hardware();
    let _one = device.passing.lock();
    let (lent, places) = buffer.lend::<P::Lent>().ok_or(Errno::ENOMEM)?;
    let given = device
        .controller
        .pass(&mut device.admin.lock(), plan, &places);
    let answer = match given {
        Ok(()) => device.await_passed(lanes, looks),
        Err(error) => {
            log::warn!("{}: a program's command: {error}", device.name);
            Err(Errno::EIO)
        }
    };
    // It is over, or was stopped, or was never heard of.
    lent.into_iter().for_each(Lent::completed);
    answer
}

/// Passes a command of the NVM command set; its answer.
fn pass_nvm<P: Parts>(lanes: &Queues<P>, plan: &Plan, buffer: &Buffer) -> Result<Answer, Errno> {
    let note = Arc::new(Note::default());
    let outcome = lanes.run(|queue, tag: Tag| -> Result<(), NotOffered> {
        let no_memory = NotOffered::Over(Err(Errno::ENOMEM));
        let (pages, places) = buffer.lend::<P::Lent>().ok_or(no_memory)?;
        let mut value = Part::new(tag, pages);
        value.note = Some(note.clone());
        submit(queue, plan.command(), Data::Pages(&places), value)
    });
    match note.answer() {
        Some(answer) => Ok(answer),
        None => Err(outcome.err().unwrap_or(Errno::EIO)),
    }
}

/// Refuses who is no administrator.
fn require_privilege(request: &IoctlRequest<'_>) -> fs::Result<()> {
    if request.caller.privileged() {
        Ok(())
    } else {
        Err(Errno::EACCES)
    }
}

/// `NVME_IOCTL_ADMIN_CMD` and the like; the status that the controller answers. `namespace` is the
/// one that the file is of, `result` the place of the result and its bytes.
fn pass<P: Parts>(
    lanes: &Queues<P>,
    namespace: Option<&Namespace>,
    request: &IoctlRequest<'_>,
    is_admin: bool,
    (result, result_len): (usize, usize),
) -> fs::Result<usize> {
    require_privilege(request)?;
    let command: Command = request.read()?;
    // Fused commands and other kinds of lists are not for programs, on Linux neither.
    if command.flags != 0 {
        return Err(Errno::EINVAL);
    }
    // No namespace that is used has metadata.
    if command.metadata_len != 0 {
        return Err(Errno::EINVAL);
    }
    let mut words = [0; 8];
    words[..2].copy_from_slice(&command.words);
    words[2..].copy_from_slice(&command.further_words);
    let wanted = Wanted {
        code: command.code,
        namespace: command.namespace,
        words,
    };
    let device = lanes.hardware();
    let set = match (is_admin, namespace, &device.namespaces[..]) {
        (true, ..) => CommandSet::Admin,
        (false, Some(own), _) if own.id == command.namespace => CommandSet::Nvm(own.block_bits),
        (false, Some(_), _) => return Err(Errno::EINVAL),
        // As on Linux: where there is no doubt which one is meant.
        (false, None, [only]) if only.id == command.namespace => CommandSet::Nvm(only.block_bits),
        (false, None, _) => return Err(Errno::EINVAL),
    };
    let answer = do_wanted(lanes, &wanted, set, request, &command)?;
    let bytes = u64::from(answer.word).to_le_bytes();
    let at = request.arg.checked_add(result).ok_or(Errno::EFAULT)?;
    request.caller.write_bytes(at, &bytes[..result_len])?;
    Ok(usize::from(answer.field))
}

/// Has the controller do a command, with its data from and to the program.
fn do_wanted<P: Parts>(
    lanes: &Queues<P>,
    wanted: &Wanted,
    set: CommandSet,
    request: &IoctlRequest<'_>,
    command: &Command,
) -> fs::Result<Answer> {
    let plan = wanted.plan(set, lanes.hardware().most()).map_err(refusal)?;
    let (addr, len) = (command.addr, command.data_len as usize);
    if addr.checked_add(len as u64).is_none() {
        return Err(Errno::EFAULT);
    }
    let buffer = Buffer::new(&plan, request, addr, len)?;
    let answer = match set {
        CommandSet::Admin => {
            let looks = match command.timeout_ms {
                0 => LOOKS,
                ms => ms.min(MOST_LOOKS),
            };
            pass_admin(lanes, &plan, &buffer, looks)?
        }
        CommandSet::Nvm(_) => pass_nvm(lanes, &plan, &buffer)?,
    };
    buffer.copy_out(&plan, request, addr, len)?;
    Ok(answer)
}

/// `NVME_IOCTL_SUBMIT_IO`: reads, writes or compares blocks.
fn transfer<P: Parts>(
    lanes: &Queues<P>,
    namespace: &Namespace,
    request: &IoctlRequest<'_>,
) -> fs::Result<usize> {
    require_privilege(request)?;
    let user: UserTransfer = request.read()?;
    // Writing, reading, comparing: the three that Linux takes.
    if user.flags != 0 || !matches!(user.code, 1 | 2 | 5) {
        return Err(Errno::EINVAL);
    }
    let count = u32::from(user.blocks);
    let words = [
        user.first as u32,
        (user.first >> 32) as u32,
        u32::from(user.control) << 16 | count,
        user.hints,
        user.reference_tag,
        u32::from(user.tag_mask) << 16 | u32::from(user.tag),
    ];
    let command = Command {
        code: user.code,
        flags: 0,
        reserved: 0,
        namespace: namespace.id,
        words: [0; 2],
        metadata: 0,
        addr: user.addr,
        metadata_len: 0,
        data_len: (count + 1) << namespace.block_bits,
        further_words: words,
        timeout_ms: 0,
        last: 0,
    };
    let wanted = Wanted {
        code: user.code,
        namespace: namespace.id,
        words: [
            0, 0, words[0], words[1], words[2], words[3], words[4], words[5],
        ],
    };
    let set = CommandSet::Nvm(namespace.block_bits);
    let answer = do_wanted(lanes, &wanted, set, request, &command)?;
    Ok(usize::from(answer.field))
}

/// The requests that a controller and its namespaces know.
///
/// # Errors
/// `ENOTTY` for others; `EACCES` without `CAP_SYS_ADMIN`; `EPERM` and `EOPNOTSUPP` for commands
/// that are not passed; `EINVAL` for those that make no sense; `EINTR` if the controller was reset
/// before it had done a command; `EIO` if it does not come back; `ENODEV` when it has left.
fn ioctl<P: Parts>(
    attached: &Attached<P>,
    namespace: Option<&Namespace>,
    request: &IoctlRequest<'_>,
) -> fs::Result<usize> {
    let lanes = &*attached.get()?;
    let (short, long) = ((RESULT, 4), (RESULT_64, 8));
    match (request.command, namespace) {
        (request::ID, Some(namespace)) => Ok(namespace.id as usize),
        (request::ADMIN, _) => pass(lanes, namespace, request, true, short),
        (request::ADMIN_64, _) => pass(lanes, namespace, request, true, long),
        (request::NVM, _) => pass(lanes, namespace, request, false, short),
        (request::NVM_64, Some(_)) => pass(lanes, namespace, request, false, long),
        (request::TRANSFER, Some(namespace)) => transfer(lanes, namespace, request),
        (request::RESET, None) => {
            require_privilege(request)?;
            lanes.renew();
            Ok(0)
        }
        _ => Err(Errno::ENOTTY),
    }
}

impl<P: Parts> NvmeDisk<P> {
    /// A request that the block layer does not know.
    ///
    /// # Errors
    /// `ENOTTY` for a request that Linux' driver does not have either; otherwise the errors of that
    /// driver.
    pub fn ioctl(&self, request: &IoctlRequest<'_>) -> fs::Result<usize> {
        ioctl(&self.lanes, Some(&self.namespace), request)
    }
}

/// A namespace as `/dev/ng0n1`: its requests without the disk.
pub struct Generic<P: Parts> {
    lanes: Shared<P>,
    namespace: Namespace,
}

impl<P: Parts> NvmeDisk<P> {
    /// The namespace as a device that only takes requests.
    #[must_use]
    pub fn generic(&self) -> Generic<P> {
        Generic {
            lanes: self.lanes.clone(),
            namespace: self.namespace,
        }
    }
}

impl<P: Parts> CharDevice for Generic<P> {
    fn open(self: Arc<Self>, _: OpenFlags) -> fs::Result<Arc<dyn FileOps>> {
        Ok(self)
    }
}

impl<P: Parts> FileOps for Generic<P> {
    fn read(&self, _: &File, _: &mut [u8]) -> fs::Result<usize> {
        Err(Errno::EINVAL)
    }

    fn write(&self, _: &File, _: &[u8]) -> fs::Result<usize> {
        Err(Errno::EINVAL)
    }

    fn ioctl(&self, _: &File, request: &IoctlRequest<'_>) -> fs::Result<usize> {
        ioctl(&self.lanes, Some(&self.namespace), request)
    }
}

impl<P: Parts> CharDevice for Control<P> {
    fn open(self: Arc<Self>, _: OpenFlags) -> fs::Result<Arc<dyn FileOps>> {
        Ok(self)
    }
}

impl<P: Parts> FileOps for Control<P> {
    fn read(&self, _: &File, _: &mut [u8]) -> fs::Result<usize> {
        Err(Errno::EINVAL)
    }

    fn write(&self, _: &File, _: &[u8]) -> fs::Result<usize> {
        Err(Errno::EINVAL)
    }

    fn ioctl(&self, _: &File, request: &IoctlRequest<'_>) -> fs::Result<usize> {
        self.request(request)
    }
}

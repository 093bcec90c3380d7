//! Virtio disks as block devices (`docs/virtio.md`, "The disk in the kernel").

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use arrayvec::ArrayVec;
use block::{BlockDevice, Limits, Operation as Wanted, Request, Transfer};
use virtio::blk::{Completion, Disk, Failure, Operation, Properties, Queue, Refusal, Shape};
use virtio::blk::{StartError, Unmap};
use virtqueue::{Address, BringUpError, Piece, TransportError};

use crate::gate::{Close, Gate};
use crate::lanes::{
    Broken, Ended, Hardware, InFlight, Lanes, Lent, MAX_LANES, MAX_PIECES, NotOffered, PartPages,
    QUEUE_SIZE, Stuck, Tag, fail, lend,
};
use crate::virtio_parts::Parts;

#[cfg(test)]
mod tests;

/// Parts of the machine that a disk's driver has.
pub trait DiskParts: Parts {
    /// A page that the device was told of.
    type Lent: Lent + Send;

    /// Number of the processor that the thread is on.
    fn cpu() -> usize;
}

type DiskQueue<P> = Queue<<P as Parts>::Memory, InFlight<<P as DiskParts>::Lent>>;

/// The device of a disk.
struct Device<P: DiskParts> {
    name: String,
    disk: Disk<P::Transport>,
}

/// A virtio disk.
pub struct VirtioDisk<P: DiskParts> {
    lanes: Arc<Gate<Lanes<Device<P>, P::Interrupt>>>,
    properties: Properties,
    queues: usize,
}

/// Why there is no disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoDisk {
    /// The device, or its memory, does not do.
    Start(StartError),
    /// A request of the device's is shorter than a page.
    SmallRequests,
    /// There is no memory.
    NoMemory,
}

impl core::fmt::Display for NoDisk {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Start(error) => error.fmt(f),
            Self::SmallRequests => f.write_str("its requests are shorter than a page"),
            Self::NoMemory => f.write_str("no memory"),
        }
    }
}

impl<P: DiskParts> VirtioDisk<P> {
    /// Brings a disk up, with a queue for each of `interrupts` as far as the device has so many.
    /// `memory` makes room for a queue.
    ///
    /// # Errors
    /// [`NoDisk`]; the device was reset then, if it could be.
    pub fn start(
        name: String,
        transport: P::Transport,
        interrupts: Vec<P::Interrupt>,
        memory: impl FnMut(u64) -> Option<(P::Memory, Address)>,
    ) -> Result<Self, NoDisk> {
        let shape = Shape {
            queues: interrupts.len().min(MAX_LANES) as u16,
            size: QUEUE_SIZE,
            pieces: MAX_PIECES as u16,
        };
        let (disk, queues) = Disk::start(transport, shape, memory).map_err(NoDisk::Start)?;
        let pieces = queues.first().map_or(0, Queue::max_pieces);
        if u64::from(pieces) * u64::from(piece_limit(disk.properties())) < PAGE_SIZE as u64 {
            return Err(NoDisk::SmallRequests);
        }
        let properties = *disk.properties();
        let device = Device { name, disk };
        let lanes = Lanes::new(device, queues, interrupts).ok_or(NoDisk::NoMemory)?;
        Ok(Self {
            properties,
            queues: lanes.queues(),
            lanes: Arc::new(Gate::new(lanes)),
        })
    }

    /// The way to the device: when it is closed, requests fail with `EIO`, as those of a disk that
    /// was pulled out, and the device is let go of when the last one that is under way is over.
    #[must_use]
    pub fn gate(&self) -> Arc<dyn Close>
    where
        P: 'static,
        P::Transport: Send + Sync,
        P::Memory: Send,
        P::Interrupt: Send + Sync,
    {
        self.lanes.clone()
    }

    /// Number of queues.
    #[must_use]
    pub const fn queues(&self) -> usize {
        self.queues
    }

    /// The device's properties.
    #[must_use]
    pub const fn properties(&self) -> &Properties {
        &self.properties
    }
}

impl<P: DiskParts> Device<P> {
    /// Offers a transfer from byte `done` of it on: as many pages as fit into a request of the
    /// device's, and those that are one behind the other in memory in one piece.
    fn offer_transfer(
        &self,
        queue: &mut DiskQueue<P>,
        transfer: &Transfer<'_>,
        done: u64,
        tag: Tag,
        operation: impl Fn(u64) -> Operation,
    ) -> Result<u64, NotOffered> {
        let limit = piece_limit(self.disk.properties());
        let most = usize::from(queue.max_pieces()).min(MAX_PIECES);
        let mut pieces = ArrayVec::<Piece, MAX_PIECES>::new();
        let fits = |page: &P::Lent, len| add(&mut pieces, page.address(), len, limit, most);
        let (pages, len) = lend::<P::Lent>(transfer, done, fits);
        let operation = operation(transfer.offset + done);
        submit(queue, operation, &pieces, InFlight { tag, pages }).map(|()| len as u64)
    }

    /// Offers a part of a range, from byte `done` of it on, as long as the device takes.
    fn offer_range(
        &self,
        queue: &mut DiskQueue<P>,
        (offset, len): (u64, u64),
        most: u64,
        done: u64,
        tag: Tag,
        operation: impl Fn(u64, u64) -> Operation,
    ) -> Result<u64, NotOffered> {
        let most = most - most % u64::from(self.disk.properties().block);
        if most == 0 {
            return Err(NotOffered::Over(Err(Errno::EOPNOTSUPP)));
        }
        let part = (len - done).min(most);
        let pages = PartPages::default();
        let operation = operation(offset + done, part);
        submit(queue, operation, &[], InFlight { tag, pages }).map(|()| part)
    }
}

/// Submits a part of a request, whose pages are given back if that fails.
fn submit<M: virtqueue::Memory, L: Lent>(
    queue: &mut Queue<M, InFlight<L>>,
    operation: Operation,
    pieces: &[Piece],
    value: InFlight<L>,
) -> Result<(), NotOffered> {
    let Err(refused) = queue.submit(operation, pieces, value) else {
        return Ok(());
    };
    refused.value.give_back();
    Err(match refused.why {
        Refusal::Full => NotOffered::Full,
        Refusal::Broken(_) => NotOffered::Broken,
        Refusal::Unsupported => NotOffered::Over(Err(Errno::EOPNOTSUPP)),
        Refusal::ReadOnly => NotOffered::Over(Err(Errno::EROFS)),
        // The request was checked: these are a device that is gone, or smaller now.
        Refusal::Unaligned | Refusal::BeyondEnd | Refusal::TooLarge | Refusal::Gone => {
            NotOffered::Over(Err(Errno::EIO))
        }
    })
}

/// The end of a part of a request, whose pages are given back.
fn ended<L: Lent>(completion: Completion<InFlight<L>>) -> Ended {
    let tag = completion.value.give_back();
    let outcome = completion
        .outcome
        .map(drop)
        .map_err(|failure| match failure {
            Failure::Unsupported => Errno::EOPNOTSUPP,
            Failure::Io | Failure::Status(_) | Failure::Short(_) | Failure::Gone => Errno::EIO,
        });
    Ended { tag, outcome }
}

impl<P: DiskParts> Hardware for Device<P> {
    type Queue = DiskQueue<P>;
    type Target = ();
    type Rule = virtqueue::Rule;

    fn name(&self) -> &str {
        &self.name
    }

    fn cpu() -> usize {
        P::cpu()
    }

    fn offer(
        &self,
        queue: &mut DiskQueue<P>,
        (): &(),
        wanted: &Wanted<'_>,
        done: u64,
        tag: Tag,
    ) -> Result<u64, NotOffered> {
        let properties = self.disk.properties();
        match *wanted {
            Wanted::Read(transfer) => {
                let read = |offset| Operation::Read { offset };
                self.offer_transfer(queue, &transfer, done, tag, read)
            }
            Wanted::Write(transfer) => {
                let write = |offset| Operation::Write { offset };
                self.offer_transfer(queue, &transfer, done, tag, write)
            }
            // A device of virtio has none.
            Wanted::WriteThrough(_) => Err(NotOffered::Over(Err(Errno::EOPNOTSUPP))),
            // There is nothing that could be lost.
            Wanted::Flush if !properties.has_cache => Err(NotOffered::Over(Ok(()))),
            Wanted::Flush => {
                let pages = PartPages::default();
                submit(queue, Operation::Flush, &[], InFlight { tag, pages }).map(|()| 0)
            }
            Wanted::Discard { offset, len } => {
                let most = properties.discard.map_or(0, |ranges| ranges.max);
                let discard = |offset, len| Operation::Discard { offset, len };
                self.offer_range(queue, (offset, len), most, done, tag, discard)
            }
            Wanted::WriteZeroes { offset, len } => {
                let most = properties.write_zeroes.map_or(0, |ranges| ranges.max);
                let zero = |offset, len| Operation::WriteZeroes {
                    offset,
                    len,
                    unmap: Unmap::Forbidden,
                };
                self.offer_range(queue, (offset, len), most, done, tag, zero)
            }
        }
    }

    fn notify(&self, queue: &mut DiskQueue<P>) -> Result<(), Broken> {
        self.disk.notify(queue).map_err(|_| Broken)
    }

    fn take(&self, queue: &mut DiskQueue<P>) -> Result<Option<Ended>, Broken> {
        let completion = queue.complete().map_err(|_| Broken)?;
        Ok(completion.map(ended))
    }

    fn arm(&self, queue: &mut DiskQueue<P>) -> Result<bool, Broken> {
        let left = queue.want_interrupt().map_err(|_| Broken)?;
        Ok(left == virtqueue::Left::Something)
    }

    /// Says so, and nothing else: a slow device may still do it.
    fn late(&self, _: &mut DiskQueue<P>, _: Tag, looks: u8) -> Result<(), Broken> {
        log::warn!("{}: a request had no answer at {looks} looks", self.name);
        Ok(())
    }

    fn broken(queue: &DiskQueue<P>) -> Option<virtqueue::Rule> {
        queue.broken()
    }

    fn in_flight(queue: &DiskQueue<P>) -> usize {
        queue.in_flight().into()
    }

    /// Nobody asks for a reset of a virtio disk.
    fn forgive(_: &mut DiskQueue<P>) {}

    fn needs_reset(&self) -> bool {
        self.disk.needs_reset()
    }

    fn recover(
        &self,
        queues: &mut [&mut DiskQueue<P>],
        note: &mut dyn FnMut(Ended),
    ) -> Result<(), Stuck> {
        let result = self
            .disk
            .recover(queues, |completion| note(ended(completion)));
        self.stopped(result)
    }

    fn end(
        &self,
        queues: &mut [&mut DiskQueue<P>],
        note: &mut dyn FnMut(Ended),
    ) -> Result<(), Stuck> {
        let over = |completion| note(ended(completion));
        self.stopped(self.disk.end(queues, over))
    }
}

impl<P: DiskParts> Device<P> {
    /// Says what went wrong with a reset, and whether the disk has stopped.
    fn stopped(&self, result: Result<(), StartError>) -> Result<(), Stuck> {
        let Err(error) = result else {
            return Ok(());
        };
        log::error!("{}: {error}", self.name);
        let stuck = StartError::BringUp(BringUpError::Transport(TransportError::Stuck));
        if error == stuck { Err(Stuck) } else { Ok(()) }
    }
}

/// Bytes of a piece, at most.
fn piece_limit(properties: &Properties) -> u32 {
    properties.piece.min(1 << 30)
}

/// Adds the bytes at an address to a request's pieces, in pieces of up to `limit` bytes; nothing,
/// and `false`, if there would be more pieces than `most`.
fn add(
    pieces: &mut ArrayVec<Piece, MAX_PIECES>,
    at: Address,
    len: usize,
    limit: u32,
    most: usize,
) -> bool {
    let mut left = len as u32;
    let mut at = at;
    let before = pieces.len();
    let last_len = pieces.last().map(|last| last.len);
    if let Some(last) = pieces.last_mut()
        && last.at.plus(u64::from(last.len)) == at
    {
        let more = left.min(limit - last.len);
        last.len += more;
        left -= more;
        at = at.plus(u64::from(more));
    }
    while left > 0 {
        let len = left.min(limit);
        if pieces.len() == most {
            pieces.truncate(before);
            if let (Some(last), Some(len)) = (pieces.last_mut(), last_len) {
                last.len = len;
            }
            return false;
        }
        pieces.push(Piece { at, len });
        left -= len;
        at = at.plus(u64::from(len));
    }
    true
}

impl<P: DiskParts> BlockDevice for VirtioDisk<P> {
    fn capacity(&self) -> u64 {
        self.properties().capacity
    }

    fn limits(&self) -> Limits {
        let properties = self.properties();
        Limits {
            logical_block: properties.block,
            physical_block: properties.physical_block,
            min_io: properties.physical_block,
            optimal_io: properties.optimal_io,
        }
    }

    fn is_read_only(&self) -> bool {
        self.properties().read_only
    }

    fn submit(&self, batch: &mut [Request<'_>]) {
        match self.lanes.get() {
            Some(lanes) => lanes.submit(self, &(), batch),
            None => fail(batch),
        }
    }
}

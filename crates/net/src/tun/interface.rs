//! An interface of `/dev/net/tun`, as the host below the sockets has it.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi::errno::Errno;
use fs::Result;
use fs::poll::{Events, PollQueue};
use linux_raw_sys::if_tun::{IFF_MULTI_QUEUE, IFF_PERSIST, IFF_TAP};
use task::Mutex;

use super::header::LEAST_VNET_LEN;
use crate::socket::{
    DeviceDetails, Frame, FrameRefused, NetDevice, TunDetails, caller_administers_networks,
    caller_groups, caller_ucred,
};

/// Frames that wait to be read from a queue. Further ones wait before the interface, as before any
/// card.
const FRAMES: usize = 64;
/// Bytes beyond which no further frame waits there.
const BYTES: usize = 1 << 20;
/// Queues of an interface (Linux `MAX_TAP_QUEUES`).
const QUEUES: usize = 256;

#[derive(Default)]
struct Waiting {
    /// Frames; never more than [`FRAMES`], for which there is room from the start.
    frames: VecDeque<Frame>,
    /// Bytes of them.
    bytes: usize,
    /// A frame was refused for want of room.
    has_refused: bool,
}

/// The frames that one opening reads.
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    pub(super) readable: PollQueue,
}

impl Queue {
    /// An empty queue.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn new() -> Result<Self> {
        let mut frames = VecDeque::new();
        frames
            .try_reserve_exact(FRAMES)
            .map_err(|_| Errno::ENOMEM)?;
        Ok(Self {
            waiting: Mutex::new(Waiting {
                frames,
                ..Waiting::default()
            }),
            readable: PollQueue::new(),
        })
    }

    fn push(&self, frame: Frame) -> core::result::Result<(), FrameRefused> {
        {
            let mut waiting = self.waiting.lock();
            if waiting.frames.len() == FRAMES || waiting.bytes >= BYTES {
                waiting.has_refused = true;
                return Err(FrameRefused::NoRoom(frame));
            }
            waiting.bytes += frame.data.len();
            waiting.frames.push_back(frame);
        }
        self.readable.notify_events(Events::IN);
        Ok(())
    }

    /// The frame that has waited longest, and whether the host is to hear that there is room.
    pub(super) fn pop(&self) -> Option<(Frame, bool)> {
        let mut waiting = self.waiting.lock();
        let frame = waiting.frames.pop_front()?;
        waiting.bytes -= frame.data.len();
        Some((frame, core::mem::take(&mut waiting.has_refused)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.lock().frames.is_empty()
    }

    /// Bytes of the frames that wait.
    pub(super) fn bytes(&self) -> usize {
        self.waiting.lock().bytes
    }

    /// Lets all frames go.
    fn clear(&self) {
        let mut waiting = self.waiting.lock();
        waiting.frames.clear();
        waiting.bytes = 0;
        waiting.has_refused = false;
    }
}

/// Settings that programs have made.
struct Settings {
    /// `IFF_*` of `linux/if_tun.h`, without the kind.
    flags: u32,
    /// The user who may attach to it besides who administers networks; none: all may.
    owner: Option<u32>,
    /// The group of which one has to be, likewise.
    group: Option<u32>,
    vnet_len: usize,
    send_buffer: i32,
    is_vnet_little_endian: bool,
}

/// An interface of `/dev/net/tun`.
pub(super) struct TunInterface {
    /// The interface's number; 0 until the host has it.
    pub(super) index: AtomicU32,
    /// `IFF_TUN` or `IFF_TAP`.
    pub(super) kind: u32,
    settings: Mutex<Settings>,
    queues: Mutex<Vec<Arc<Queue>>>,
    /// The host has it no more.
    is_gone: AtomicBool,
}

impl TunInterface {
    pub(super) fn new(kind: u32, flags: u32) -> Self {
        Self {
            index: AtomicU32::new(0),
            kind,
            settings: Mutex::new(Settings {
                flags,
                owner: None,
                group: None,
                vnet_len: LEAST_VNET_LEN,
                send_buffer: i32::MAX,
                is_vnet_little_endian: false,
            }),
            queues: Mutex::new(Vec::new()),
            is_gone: AtomicBool::new(false),
        }
    }

    pub(super) fn is_tap(&self) -> bool {
        self.kind == IFF_TAP
    }

    pub(super) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Flags that programs have set, without the kind.
    pub(super) fn flags(&self) -> u32 {
        self.settings.lock().flags
    }

    /// The flags, and the bytes of a header of virtio.
    pub(super) fn format(&self) -> (u32, usize) {
        let settings = self.settings.lock();
        (settings.flags, settings.vnet_len)
    }

    /// Sets the flags; whether it stays is not among them.
    pub(super) fn set_flags(&self, flags: u32) {
        let mut settings = self.settings.lock();
        settings.flags = flags | settings.flags & IFF_PERSIST;
    }

    /// Whether the interface stays when nobody has it open.
    pub(super) fn is_persistent(&self) -> bool {
        self.flags() & IFF_PERSIST != 0
    }

    pub(super) fn set_persistent(&self, is_set: bool) {
        let flags = &mut self.settings.lock().flags;
        *flags = if is_set {
            *flags | IFF_PERSIST
        } else {
            *flags & !IFF_PERSIST
        };
    }

    /// Sets who may attach to it.
    pub(super) fn set_owner(&self, uid: u32) {
        self.settings.lock().owner = Some(uid).filter(|uid| *uid != u32::MAX);
    }

    /// Sets of which group one may attach to it.
    pub(super) fn set_group(&self, gid: u32) {
        self.settings.lock().group = Some(gid).filter(|gid| *gid != u32::MAX);
    }

    pub(super) fn set_vnet_len(&self, len: usize) {
        self.settings.lock().vnet_len = len;
    }

    /// The number that `TUNSETSNDBUF` has set, which limits nothing: what is written has passed the
    /// protocol when the call returns.
    pub(super) fn send_buffer(&self) -> i32 {
        self.settings.lock().send_buffer
    }

    pub(super) fn set_send_buffer(&self, bytes: i32) {
        self.settings.lock().send_buffer = bytes;
    }

    /// The answer that `TUNSETVNETLE` has set: headers of virtio are in this order in any case.
    pub(super) fn is_vnet_little_endian(&self) -> bool {
        self.settings.lock().is_vnet_little_endian
    }

    pub(super) fn set_vnet_little_endian(&self, is_set: bool) {
        self.settings.lock().is_vnet_little_endian = is_set;
    }

    /// Checks that the caller may attach to it.
    ///
    /// # Errors
    /// `EPERM`.
    pub(super) fn check_caller(&self) -> Result<()> {
        let (owner, group) = {
            let settings = self.settings.lock();
            (settings.owner, settings.group)
        };
        let caller = caller_ucred();
        let is_owner = owner.is_none_or(|owner| owner == caller.uid);
        let is_member =
            group.is_none_or(|group| group == caller.gid || caller_groups().contains(&group));
        if is_owner && is_member || caller_administers_networks() {
            Ok(())
        } else {
            Err(Errno::EPERM)
        }
    }

    /// Adds a queue. Returns how many there are then.
    ///
    /// # Errors
    /// `EBUSY` if there is one and can be no more, `E2BIG`, `ENOMEM`.
    pub(super) fn attach(&self, queue: &Arc<Queue>) -> Result<usize> {
        let most = if self.flags() & IFF_MULTI_QUEUE != 0 {
            QUEUES
        } else {
            1
        };
        let mut queues = self.queues.lock();
        if queues.len() >= most {
            return Err(if most == 1 {
                Errno::EBUSY
            } else {
                Errno::E2BIG
            });
        }
        fallible::push(&mut queues, queue.clone())?;
        Ok(queues.len())
    }

    /// Takes a queue out, and lets its frames go. Returns how many queues are left. If the
    /// interface stays, the host is to hear that there is room.
    pub(super) fn detach(&self, queue: &Arc<Queue>) -> usize {
        let mut queues = self.queues.lock();
        queues.retain(|known| !Arc::ptr_eq(known, queue));
        let left = queues.len();
        drop(queues);
        queue.clear();
        left
    }

    /// The queue of a frame: frames of one flow stay in order.
    fn queue_of(&self, frame: &Frame) -> Option<Arc<Queue>> {
        let queues = self.queues.lock();
        let number = match queues.len() {
            0 => return None,
            1 => 0,
            count => flow_hash(frame, self.is_tap()) as usize % count,
        };
        Some(queues[number].clone())
    }
}

/// A number that all frames of a flow have.
fn flow_hash(frame: &Frame, is_tap: bool) -> u32 {
    let link_len = if is_tap { 14 } else { 0 };
    let packet = frame.data.get(link_len..).unwrap_or_default();
    // Addresses and, of packets without options or parts, ports.
    let fields = match packet.first().map_or(0, |first| first >> 4) {
        4 => packet.get(12..24),
        6 => packet.get(8..44),
        _ => None,
    };
    let bytes = fields.unwrap_or(&frame.data[..frame.data.len().min(link_len)]);
    // FNV-1a.
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

impl NetDevice for TunInterface {
    fn drains(&self) -> bool {
        false
    }

    fn transmit(&self, frame: Frame) -> core::result::Result<(), FrameRefused> {
        match self.queue_of(&frame) {
            Some(queue) if !self.is_gone() => queue.push(frame),
            _ => Err(FrameRefused::Lost),
        }
    }

    fn set_hardware_address(&self, _: [u8; 6]) -> Result<()> {
        Ok(())
    }

    fn details(&self) -> DeviceDetails {
        let queues = self.queues.lock().len() as u32;
        let settings = self.settings.lock();
        DeviceDetails {
            driver: Some("tun"),
            bus: if self.is_tap() { "tap" } else { "tun" }.into(),
            tun: Some(TunDetails {
                flags: self.kind | settings.flags,
                owner: settings.owner,
                group: settings.group,
                queues,
            }),
            ..DeviceDetails::default()
        }
    }

    fn removed(&self) {
        self.is_gone.store(true, Ordering::Release);
        for queue in self.queues.lock().iter() {
            queue.clear();
            queue.readable.notify();
        }
    }
}

//! An opening of `/dev/net/tun`.

use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use fs::ioctl::IoctlRequest;
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, Result};
use linux_raw_sys::if_tun::{
    IFF_ATTACH_QUEUE, IFF_DETACH_QUEUE, IFF_MULTI_QUEUE, IFF_NO_PI, IFF_NOFILTER, IFF_VNET_HDR,
    TUN_F_CSUM, TUN_F_TSO_ECN, TUN_F_TSO4, TUN_F_TSO6, TUN_F_UFO,
};
use linux_raw_sys::ioctl as nr;
use task::Mutex;

use super::header::{LEAST_VNET_LEN, MOST_VNET_LEN, MissingChecksum, PI_LEN, packet_info};
use super::interface::{Queue, TunInterface};
use super::{FEATURES, KINDS, MAX_MTU, TunDriver};
use crate::inet::frame::{ETH_P_IP, ETH_P_IPV6};
use crate::socket::if_req::IfReq;
use crate::socket::interface::ETHERNET_HEADER_LEN;
use crate::socket::{Frame, Interface};

/// Bytes that one `write(2)` may have: a frame, and both headers before it.
const MAX_WRITE: usize = MAX_MTU as usize + ETHERNET_HEADER_LEN + PI_LEN + LEAST_VNET_LEN;
/// The off-loading that a program can say it does: it is never asked to.
const OFFLOADS: usize = (TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN | TUN_F_UFO) as usize;

/// The interface that an opening has.
#[derive(Clone)]
enum Attachment {
    /// No interface.
    None,
    /// An interface that the opening reads and writes.
    To(Arc<TunInterface>),
    /// An interface that the opening's queue was taken from (`IFF_DETACH_QUEUE`), and may be given
    /// back to.
    Detached(Arc<TunInterface>),
}

/// An opening of `/dev/net/tun`.
pub(super) struct TunFile {
    driver: Arc<TunDriver>,
    queue: Arc<Queue>,
    attachment: Mutex<Attachment>,
}

impl TunFile {
    /// An opening without an interface.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn new(driver: Arc<TunDriver>) -> Result<Self> {
        Ok(Self {
            driver,
            queue: Arc::new(Queue::new()?),
            attachment: Mutex::new(Attachment::None),
        })
    }

    /// The interface.
    ///
    /// # Errors
    /// `EBADFD`: it has none, or that has gone.
    fn tun(&self) -> Result<Arc<TunInterface>> {
        match &*self.attachment.lock() {
            Attachment::To(tun) if !tun.is_gone() => Ok(tun.clone()),
            _ => Err(Errno::EBADFD),
        }
    }

    /// The interface as the host shows it.
    fn shown(&self, tun: &TunInterface) -> Result<Interface> {
        let index = tun.index.load(Ordering::Relaxed);
        self.driver.host.interface(index).ok_or(Errno::EBADFD)
    }

    fn is_up(&self, tun: &TunInterface) -> bool {
        let index = tun.index.load(Ordering::Relaxed);
        self.driver.host.is_up(index)
    }

    /// Gives a frame to a program, with what comes before it. Returns the bytes.
    fn deliver(tun: &TunInterface, frame: &Frame, buf: &mut [u8]) -> Result<usize> {
        let (flags, vnet_len) = tun.format();
        let has_info = flags & IFF_NO_PI == 0;
        let info_len = if has_info { PI_LEN } else { 0 };
        let vnet_len = if flags & IFF_VNET_HDR == 0 {
            0
        } else {
            vnet_len
        };
        if buf.len() < info_len + vnet_len {
            return Err(Errno::EINVAL);
        }
        let (before, room) = buf.split_at_mut(info_len + vnet_len);
        before.fill(0);
        if has_info {
            let is_cut = room.len() < frame.data.len();
            let protocol = protocol(tun, &frame.data);
            before[..PI_LEN].copy_from_slice(&packet_info(is_cut, protocol));
        }
        let len = room.len().min(frame.data.len());
        room[..len].copy_from_slice(&frame.data[..len]);
        Ok(info_len + vnet_len + len)
    }

    /// `TUNSETIFF`.
    fn set_interface(&self, request: &IoctlRequest<'_>) -> Result<usize> {
        let mut asked = IfReq::read(request)?;
        let mut attachment = self.attachment.lock();
        match &*attachment {
            Attachment::To(tun) if !tun.is_gone() => return Err(Errno::EEXIST),
            Attachment::Detached(tun) if !tun.is_gone() => return Err(Errno::EINVAL),
            _ => {}
        }
        let tun = self
            .driver
            .attach(asked.name()?, asked.flags(), &self.queue)?;
        let shown = self.shown(&tun);
        *attachment = Attachment::To(tun);
        asked.set_name(&shown?.name);
        asked.write(request)?;
        Ok(0)
    }

    /// `TUNSETQUEUE`.
    fn set_queue(&self, request: &IoctlRequest<'_>) -> Result<usize> {
        let flags = IfReq::read(request)?.flags();
        let mut attachment = self.attachment.lock();
        *attachment = match (&*attachment, flags) {
            (Attachment::Detached(tun), _) if flags & IFF_ATTACH_QUEUE != 0 => {
                tun.check_caller()?;
                tun.attach(&self.queue)?;
                Attachment::To(tun.clone())
            }
            (Attachment::To(tun), _)
                if flags & IFF_DETACH_QUEUE != 0 && tun.flags() & IFF_MULTI_QUEUE != 0 =>
            {
                tun.detach(&self.queue);
                self.driver.host.has_room(tun.index.load(Ordering::Relaxed));
                Attachment::Detached(tun.clone())
            }
            _ => return Err(Errno::EINVAL),
        };
        Ok(0)
    }

    /// Requests of an opening that has an interface.
    fn configure(&self, tun: &TunInterface, request: &IoctlRequest<'_>) -> Result<usize> {
        let number = || request.read::<i32>();
        let host = &self.driver.host;
        let index = tun.index.load(Ordering::Relaxed);
        match request.command {
            nr::TUNGETIFF => {
                let mut answer = IfReq::zeroed();
                answer.set_name(&self.shown(tun)?.name);
                let flags = (tun.kind | tun.flags() | IFF_NOFILTER) as u16;
                answer.set_value(&flags.to_ne_bytes());
                answer.write(request)?;
            }
            // Checksums of what is written are looked at in any case.
            nr::TUNSETNOCSUM => {}
            nr::TUNSETPERSIST => tun.set_persistent(request.arg != 0),
            nr::TUNSETOWNER => tun.set_owner(request.arg as u32),
            nr::TUNSETGROUP => tun.set_group(request.arg as u32),
            nr::TUNSETOFFLOAD if request.arg & !OFFLOADS == 0 => {}
            nr::TUNGETSNDBUF => request.write(&tun.send_buffer())?,
            nr::TUNSETSNDBUF => {
                let bytes = number()?;
                if bytes <= 0 {
                    return Err(Errno::EINVAL);
                }
                tun.set_send_buffer(bytes);
            }
            nr::TUNGETVNETHDRSZ => request.write(&(tun.format().1 as i32))?,
            nr::TUNSETVNETHDRSZ => {
                let len = usize::try_from(number()?).unwrap_or(0);
                if !(LEAST_VNET_LEN..=MOST_VNET_LEN).contains(&len) {
                    return Err(Errno::EINVAL);
                }
                tun.set_vnet_len(len);
            }
            nr::TUNGETVNETLE => request.write(&i32::from(tun.is_vnet_little_endian()))?,
            nr::TUNSETVNETLE => tun.set_vnet_little_endian(number()? != 0),
            nr::TUNSETCARRIER => host.set_carrier(index, number()? != 0),
            nr::SIOCGIFHWADDR => {
                let shown = self.shown(tun)?;
                // The name stays what it was: on Linux nobody looks at it.
                let mut answer = IfReq::read(request)?;
                answer.set_hardware_address(&shown);
                answer.write(request)?;
            }
            nr::SIOCSIFHWADDR => {
                let (_, address) = IfReq::read(request)?.hardware_address();
                host.set_hardware_address(index, address)?;
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }
}

/// The protocol of a frame, as Ethernet numbers it.
fn protocol(tun: &TunInterface, frame: &[u8]) -> u16 {
    if tun.is_tap() {
        return frame
            .get(12..14)
            .map_or(0, |word| u16::from_be_bytes([word[0], word[1]]));
    }
    match frame.first().map_or(0, |first| first >> 4) {
        4 => ETH_P_IP,
        6 => ETH_P_IPV6,
        _ => 0,
    }
}

impl FileOps for TunFile {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        let tun = self.tun()?;
        let attempt = || match self.queue.pop() {
            Some(popped) => Some(Ok(popped)),
            None => tun.is_gone().then_some(Err(Errno::EBADFD)),
        };
        let (frame, has_refused) = match attempt() {
            Some(popped) => popped?,
            None if file.is_nonblocking() => return Err(Errno::EAGAIN),
            None => self.queue.readable.wait(attempt)??,
        };
        if has_refused {
            self.driver.host.has_room(tun.index.load(Ordering::Relaxed));
        }
        Self::deliver(&tun, &frame, buf)
    }

    fn write(&self, _: &File, buf: &[u8]) -> Result<usize> {
        let tun = self.tun()?;
        if !self.is_up(&tun) {
            return Err(Errno::EIO);
        }
        if buf.len() > MAX_WRITE {
            return Err(Errno::EMSGSIZE);
        }
        let (flags, vnet_len) = tun.format();
        let mut packet = buf;
        if flags & IFF_NO_PI == 0 {
            packet = packet.get(PI_LEN..).ok_or(Errno::EINVAL)?;
        }
        let mut missing = None;
        if flags & IFF_VNET_HDR != 0 {
            let (header, rest) = packet.split_at_checked(vnet_len).ok_or(Errno::EINVAL)?;
            missing = MissingChecksum::parse(header, rest.len())?;
            packet = rest;
        }
        let least = if tun.is_tap() { ETHERNET_HEADER_LEN } else { 1 };
        if packet.len() < least || !tun.is_tap() && protocol(&tun, packet) == 0 {
            return Err(Errno::EINVAL);
        }
        let index = tun.index.load(Ordering::Relaxed);
        match missing {
            None => self.driver.host.receive(index, packet),
            Some(missing) => {
                let mut whole = fallible::copy_of(packet)?;
                missing.fill(&mut whole);
                self.driver.host.receive(index, &whole);
            }
        }
        Ok(buf.len())
    }

    fn max_write(&self) -> usize {
        MAX_WRITE + 1
    }

    fn memory(&self) -> usize {
        self.queue.bytes()
    }

    fn is_spliceable(&self) -> bool {
        false
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.queue.readable);
        }
        let Ok(tun) = self.tun() else {
            return Events::ERR;
        };
        let mut events = Events::empty();
        events.set(Events::READABLE, !self.queue.is_empty());
        events.set(Events::WRITABLE, self.is_up(&tun));
        events
    }

    fn fdinfo(&self) -> String {
        let shown = self.tun().and_then(|tun| self.shown(&tun));
        let name = shown.as_ref().map_or("", |shown| &*shown.name);
        alloc::format!("iff:\t{name}\n")
    }

    fn ioctl(&self, _: &File, request: &IoctlRequest<'_>) -> Result<usize> {
        match request.command {
            nr::TUNSETIFF => self.set_interface(request),
            nr::TUNSETQUEUE => self.set_queue(request),
            nr::TUNGETFEATURES => request.write(&(KINDS | FEATURES)).map(|()| 0),
            _ => self.configure(&*self.tun()?, request),
        }
    }

    fn release(&self, _: &File) {
        let attachment = core::mem::replace(&mut *self.attachment.lock(), Attachment::None);
        if let Attachment::To(tun) | Attachment::Detached(tun) = attachment {
            self.driver.detach(&tun, &self.queue);
        }
    }
}

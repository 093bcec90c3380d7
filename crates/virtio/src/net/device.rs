//! The device's end of a network card.

use alloc::vec::Vec;

use virtqueue::{Chain, DeviceQueue, Error, Features, Memory};

use super::properties::encode;
use super::{ETHERNET, HEADER, Header, MAC, feature};

/// A chain that the driver has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collected {
    /// A frame.
    Frame,
    /// Bytes that are no frame of this card, or something that was not offered is to be done with
    /// them.
    Lost,
}

/// The device's end of a network card: frames go to the driver through one queue, and come from it
/// through the other.
#[derive(Debug)]
pub struct Port {
    mac: [u8; MAC],
    mtu: u16,
    /// Buffers that were taken for a frame for which they are not enough yet.
    taken: Vec<Chain>,
}

/// Features that the device offers.
const FEATURES: u64 = Features::VERSION_1
    .union(Features::EVENT_IDX)
    .union(Features::PACKED)
    .bits()
    | feature::ALL;

impl Port {
    /// A card with an address, for frames of this length.
    #[must_use]
    pub const fn new(mac: [u8; MAC], mtu: u16) -> Self {
        Self {
            mac,
            mtu,
            taken: Vec::new(),
        }
    }

    /// Features that the device offers.
    #[must_use]
    pub const fn features(&self) -> u64 {
        FEATURES
    }

    /// The device's configuration.
    #[must_use]
    pub fn config(&self, is_link_up: bool) -> [u8; 12] {
        encode(self.mac, self.mtu, is_link_up)
    }

    /// Forgets what it has of the queue to the driver, which was reset.
    pub fn reset(&mut self) {
        self.taken.clear();
    }

    /// Gives a frame to the driver, in as many buffers as it takes if `features`, which were
    /// negotiated, have it so. `false` if there are too few: the frame is lost, and the caller may
    /// wish to be notified of more.
    ///
    /// # Errors
    /// If the driver broke a rule, or there is no memory.
    pub fn deliver<M: Memory>(
        &mut self,
        queue: &mut DeviceQueue<M>,
        features: u64,
        frame: &[u8],
    ) -> Result<bool, Error> {
        let bytes = (HEADER + frame.len()) as u64;
        let room = |chains: &[Chain]| chains.iter().map(Chain::writable_len).sum::<u64>();
        let most = if features & feature::MERGE == 0 {
            1
        } else {
            usize::from(u16::MAX)
        };
        while room(&self.taken) < bytes || self.taken.is_empty() {
            if self.taken.len() == most {
                return Ok(false);
            }
            let Some(chain) = queue.take()? else {
                return Ok(false);
            };
            self.taken.try_reserve(1).map_err(|_| Error::NoMemory)?;
            self.taken.push(chain);
        }
        // Those that the frame needs, of those that were taken for this and a longer one.
        let mut count = 1;
        while room(&self.taken[..count]) < bytes {
            count += 1;
        }
        let header = Header {
            buffers: count as u16,
            ..Header::default()
        };
        let mut rest = frame;
        for (n, chain) in self.taken.drain(..count).enumerate() {
            let header = header.to_bytes();
            let head: &[u8] = if n == 0 { &header } else { &[] };
            let len = usize::try_from(chain.writable_len()).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at((len - head.len()).min(rest.len()));
            // A driver whose buffers go away has them unwritten.
            let memory = queue.memory();
            let _ = chain.write(memory, 0, head);
            let _ = chain.write(memory, head.len() as u64, now);
            let written = (head.len() + now.len()) as u32;
            queue.finish(chain, written)?;
            rest = later;
        }
        Ok(true)
    }

    /// Takes one chain that the driver sends, and copies its frame in place of what was in `frame`,
    /// in which nothing grows that has room for the longest ([`Self::max_frame`]). `None` if the
    /// driver has sent no more.
    ///
    /// # Errors
    /// If the driver broke a rule, or there is no memory.
    pub fn collect<M: Memory>(
        &self,
        queue: &mut DeviceQueue<M>,
        frame: &mut Vec<u8>,
    ) -> Result<Option<Collected>, Error> {
        let Some(chain) = queue.take()? else {
            return Ok(None);
        };
        let copied = self.copy(queue.memory(), &chain, frame);
        queue.finish(chain, 0)?;
        copied.map(Some)
    }

    /// Bytes of a frame, at most.
    #[must_use]
    pub fn max_frame(&self) -> usize {
        usize::from(self.mtu) + ETHERNET + super::TAG
    }

    fn copy(
        &self,
        memory: &impl Memory,
        chain: &Chain,
        frame: &mut Vec<u8>,
    ) -> Result<Collected, Error> {
        let len = chain.readable_len().checked_sub(HEADER as u64);
        let len = len.and_then(|len| usize::try_from(len).ok());
        let Some(len) = len.filter(|len| (ETHERNET..=self.max_frame()).contains(len)) else {
            return Ok(Collected::Lost);
        };
        let mut bytes = [0; HEADER];
        frame.clear();
        frame.try_reserve_exact(len).map_err(|_| Error::NoMemory)?;
        frame.resize(len, 0);
        let is_read = chain.read(memory, 0, &mut bytes).is_ok()
            && chain.read(memory, HEADER as u64, frame).is_ok()
            && Header::from_bytes(bytes).check().is_ok();
        Ok(match is_read {
            true => Collected::Frame,
            false => Collected::Lost,
        })
    }
}

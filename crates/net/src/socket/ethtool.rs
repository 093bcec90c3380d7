//! `SIOCETHTOOL`: what `ethtool(8)` asks of an interface's driver (Linux `uapi/linux/ethtool.h`).

use alloc::vec::Vec;

use abi::errno::Errno;
use fs::Result;
use fs::ioctl::IoctlRequest;
use linux_raw_sys::net::net_device_flags::{IFF_LOWER_UP, IFF_RUNNING};

use super::core_stack::CoreStack;
use super::credentials::caller_administers_networks;
use super::device::DeviceDetails;
use super::if_req::IfReq;
use super::interface::Interface;

/// Requests (`ETHTOOL_*`).
const GDRVINFO: u32 = 0x03;
const GLINK: u32 = 0x0a;
const GRINGPARAM: u32 = 0x10;
const GRXCSUM: u32 = 0x14;
const GTXCSUM: u32 = 0x16;
const GSG: u32 = 0x18;
const GSTRINGS: u32 = 0x1b;
const GSTATS: u32 = 0x1d;
const GTSO: u32 = 0x1e;
const GPERMADDR: u32 = 0x20;
const GUFO: u32 = 0x21;
const GGSO: u32 = 0x23;
const GFLAGS: u32 = 0x25;
const GGRO: u32 = 0x2b;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const SFEATURES: u32 = 0x3b;
const GCHANNELS: u32 = 0x3c;
const GET_TS_INFO: u32 = 0x41;
const GLINKSETTINGS: u32 = 0x4c;
/// Requests that everybody may make, and are not carried out.
const FREE: [u32; 4] = [0x01, 0x0e, 0x12, 0x27];

/// Sets of names (`ETH_SS_*`).
const SET_STATISTICS: u32 = 1;
const SET_FEATURES: u32 = 4;
/// Bytes of a name.
const NAME: usize = 32;

/// Work that a card may do for the stack, by Linux' names. No driver does any of it, and none of it
/// can be turned on: checksums are made and looked at here, and frames are as the wire has them.
const FEATURES: [&str; 16] = [
    "rx-checksum",
    "tx-checksum-ipv4",
    "tx-checksum-ip-generic",
    "tx-checksum-ipv6",
    "tx-scatter-gather",
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-udp-segmentation",
    "tx-generic-segmentation",
    "rx-gro",
    "rx-lro",
    "rx-vlan-hw-parse",
    "tx-vlan-hw-insert",
    "rx-vlan-filter",
    "rx-ntuple-filter",
    "rx-hashing",
];
/// Words of 32 features.
const FEATURE_WORDS: usize = FEATURES.len().div_ceil(32);

/// Words of a mask of ways to be linked, of which there are none.
const LINK_MODE_WORDS: i8 = 3;
/// `SOF_TIMESTAMPING_RX_SOFTWARE` and `SOF_TIMESTAMPING_SOFTWARE`.
const TIMESTAMPS: u32 = 1 << 3 | 1 << 4;

/// A structure that is built word by word.
#[derive(Default)]
struct Answer(Vec<u8>);

impl Answer {
    fn word(&mut self, word: u32) -> &mut Self {
        self.0.extend_from_slice(&word.to_ne_bytes());
        self
    }

    fn words(&mut self, words: &[u32]) -> &mut Self {
        words.iter().for_each(|word| {
            self.word(*word);
        });
        self
    }

    /// Adds a text with zeroes behind it, of which it has one at least.
    fn text(&mut self, text: &str) -> &mut Self {
        let end = self.0.len() + NAME;
        let text = text.as_bytes();
        self.0.extend_from_slice(&text[..text.len().min(NAME - 1)]);
        self.0.resize(end, 0);
        self
    }
}

/// Carries out a request.
///
/// # Errors
/// `EOPNOTSUPP` for what a device does not have, `EPERM`, `EFAULT`, `EINVAL`.
pub(super) fn ioctl(
    stack: &CoreStack,
    interface: &Interface,
    asked: &IfReq,
    request: &IoctlRequest<'_>,
) -> Result<usize> {
    let at = usize::from_ne_bytes(*asked.value().first_chunk().expect("room for a pointer"));
    // The command, and the three words behind it, which not all requests have.
    let mut words = [0; 4];
    let read = |n: usize| {
        let mut bytes = [0; 4];
        let at = at.checked_add(4 * n).ok_or(Errno::EFAULT)?;
        request.caller.read_bytes(at, &mut bytes)?;
        Ok::<_, Errno>(u32::from_ne_bytes(bytes))
    };
    words[0] = read(0)?;
    let command = words[0];
    for (n, word) in words.iter_mut().enumerate().take(fixed_words(command)) {
        *word = read(n)?;
    }
    let device = stack.device(interface.index);
    let mut answer = Answer::default();
    answer.word(command);
    match command {
        GDRVINFO => driver(interface, &device, &mut answer)?,
        GLINK => {
            let is_up = interface.has_flag(IFF_RUNNING) && interface.has_flag(IFF_LOWER_UP);
            answer.word(is_up.into());
        }
        GLINKSETTINGS => link_settings(&device, (words[3] >> 24) as i8, &mut answer)?,
        GRINGPARAM => {
            let [receive, send] = device.ring.ok_or(Errno::EOPNOTSUPP)?;
            let one = [receive, 0, 0, send];
            answer.words(&one).words(&one);
        }
        GCHANNELS => {
            device.ring.ok_or(Errno::EOPNOTSUPP)?;
            let one = [0, 0, 0, 1];
            answer.words(&one).words(&one);
        }
        GRXCSUM | GTXCSUM | GSG | GTSO | GUFO | GGSO | GFLAGS | GGRO => {
            answer.word(0);
        }
        GSSET_INFO => {
            let mask = u64::from(words[2]) | u64::from(words[3]) << 32;
            set_sizes(interface, &device, mask, &mut answer);
        }
        GSTRINGS => {
            let names = names(interface, &device, words[1])?;
            answer.words(&[words[1], names.len() as u32]);
            names.iter().for_each(|name| {
                answer.text(name);
            });
        }
        GSTATS => {
            let all = statistics(interface, &device);
            if all.is_empty() {
                return Err(Errno::EOPNOTSUPP);
            }
            answer.word(all.len() as u32);
            for (_, value) in all {
                answer.0.extend_from_slice(&value.to_ne_bytes());
            }
        }
        GPERMADDR => {
            let address = device.permanent_address.unwrap_or_default();
            if (words[1] as usize) < address.len() {
                return Err(Errno::EINVAL);
            }
            answer.word(address.len() as u32);
            answer.0.extend_from_slice(&address);
        }
        GFEATURES => {
            // Available, requested, active, and those that never change.
            answer.word(FEATURE_WORDS as u32);
            let blocks = FEATURE_WORDS.min(words[1] as usize);
            for block in 0..blocks {
                let left = FEATURES.len() - 32 * block;
                let all = u32::MAX >> (32 - left.min(32));
                answer.words(&[0, 0, 0, all]);
            }
        }
        GET_TS_INFO => {
            answer.words(&[TIMESTAMPS, u32::MAX, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        _ if FREE.contains(&command) => return Err(Errno::EOPNOTSUPP),
        _ if !caller_administers_networks() => return Err(Errno::EPERM),
        // None of them changes: `ETHTOOL_F_UNSUPPORTED`.
        SFEATURES => return Ok(1),
        _ => return Err(Errno::EOPNOTSUPP),
    }
    request.caller.write_bytes(at, &answer.0)?;
    Ok(0)
}

/// Words of a request that count, its command among them.
fn fixed_words(command: u32) -> usize {
    match command {
        GPERMADDR | GFEATURES | GSTRINGS => 2,
        GLINKSETTINGS | GSSET_INFO => 4,
        _ => 1,
    }
}

/// `struct ethtool_drvinfo`.
fn driver(interface: &Interface, device: &DeviceDetails, answer: &mut Answer) -> Result<()> {
    let driver = device.driver.ok_or(Errno::EOPNOTSUPP)?;
    let statistics = statistics(interface, device).len();
    answer
        .text(driver)
        .text(env!("CARGO_PKG_VERSION"))
        .text("")
        .text(&device.bus)
        .text("")
        .words(&[0, 0, 0])
        .words(&[0, statistics as u32, 0, 0, 0]);
    Ok(())
}

/// `struct ethtool_link_settings`. Who says another number of words for the masks hears the right
/// one as less than zero, and asks again.
fn link_settings(device: &DeviceDetails, asked: i8, answer: &mut Answer) -> Result<()> {
    const UNKNOWN: u8 = 0xff;
    const PORT_OTHER: u8 = 0xff;
    device.ring.ok_or(Errno::EOPNOTSUPP)?;
    let is_known = asked == LINK_MODE_WORDS;
    let (speed, duplex, port, words) = if is_known {
        (u32::MAX, UNKNOWN, PORT_OTHER, LINK_MODE_WORDS)
    } else {
        (0, 0, 0, -LINK_MODE_WORDS)
    };
    answer
        .word(speed)
        .word(u32::from_ne_bytes([duplex, port, 0, 0]))
        .word(u32::from_ne_bytes([0, 0, 0, words.cast_unsigned()]))
        .words(&[0; 8]);
    if is_known {
        // What is supported, advertised, and advertised by the peer.
        (0..3 * LINK_MODE_WORDS).for_each(|_| {
            answer.word(0);
        });
    }
    Ok(())
}

/// The names of a driver's statistics of its queues, as virtio_net has them.
const QUEUE_STATISTICS: [&str; 6] = [
    "rx_queue_0_packets",
    "rx_queue_0_bytes",
    "rx_queue_0_drops",
    "tx_queue_0_packets",
    "tx_queue_0_bytes",
    "tx_queue_0_drops",
];

/// The statistics of a device with their names.
fn statistics(interface: &Interface, device: &DeviceDetails) -> Vec<(&'static str, u64)> {
    let (received, sent) = (&interface.received, &interface.sent);
    let of_queues = [
        received.packets,
        received.bytes,
        received.dropped,
        sent.packets,
        sent.bytes,
        sent.dropped,
    ];
    let of_queues = QUEUE_STATISTICS.into_iter().zip(of_queues);
    let of_queues = of_queues.filter(|_| device.ring.is_some());
    of_queues.chain(device.statistics.iter().copied()).collect()
}

/// The names of a set.
fn names(interface: &Interface, device: &DeviceDetails, set: u32) -> Result<Vec<&'static str>> {
    let names: Vec<_> = match set {
        SET_STATISTICS => statistics(interface, device)
            .into_iter()
            .map(|(name, _)| name)
            .collect(),
        SET_FEATURES => FEATURES.to_vec(),
        _ => return Err(Errno::EOPNOTSUPP),
    };
    if names.is_empty() {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(names)
}

/// `struct ethtool_sset_info`: of the sets in a mask those that there are, and their sizes.
fn set_sizes(interface: &Interface, device: &DeviceDetails, mask: u64, answer: &mut Answer) {
    let mut found = 0_u64;
    let mut sizes = Vec::new();
    for set in [SET_STATISTICS, SET_FEATURES] {
        if mask >> set & 1 != 0
            && let Ok(names) = names(interface, device, set)
        {
            found |= 1 << set;
            sizes.push(names.len() as u32);
        }
    }
    let [low, high] = [found as u32, (found >> 32) as u32];
    answer.words(&[0, low, high]).words(&sizes);
}

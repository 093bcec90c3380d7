//! Segments of open connections that come together (`docs/ip.md`, "Bursts").

use alloc::sync::Arc;
use core::mem;
use core::net::{IpAddr, SocketAddr};

use ::tcp::{Arrival, Ends};

use super::super::Host;
use super::super::input::Arrived;
use super::arrival_of;
use super::connection::WireConnection;
use crate::inet::tcp::News;
use crate::inet::with_link;
use crate::socket::tap::PACKET_HOST;

/// Segments that are answered together at most: 45 KiB of a card of Ethernet's. Linux' limit is
/// 64 KiB.
const MOST: u32 = 32;

/// The connection that the last segment of a burst was for, and what it has left to be done. That
/// is done when this is dropped.
pub(in crate::inet::host) struct Held {
    ends: Ends,
    connection: Arc<WireConnection>,
    /// Segments that were not answered, and of which nobody was told.
    segments: u32,
    news: News,
}

impl Held {
    /// Takes a segment. Returns whether others can be for the connection.
    fn arrive(&mut self, arrival: &Arrival<'_>) -> bool {
        let may_wait = self.segments + 1 < MOST;
        let earlier = mem::take(&mut self.news);
        let Some(after) = self.connection.arrive_behind(earlier, arrival, may_wait) else {
            self.segments = 0;
            return false;
        };
        self.segments = match after.put_off {
            Some(news) => {
                self.news = news;
                self.segments + 1
            }
            None => 0,
        };
        after.is_open
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.segments > 0 {
            self.connection.send_behind(self.news);
        }
    }
}

impl Host {
    /// Takes a segment that has come in, if it is of an open connection that has taken one from the
    /// same host by the same interface since the tables have changed: for whom it is need not be
    /// looked up then. Returns whether it was; else nothing has happened. Its packet is whole, and
    /// is not translated.
    pub(in crate::inet::host) fn receive_if_open(
        &self,
        arrived: &Arrived<'_>,
        (source, destination): (IpAddr, IpAddr),
        tos: u8,
        bytes: &[u8],
    ) -> bool {
        let is_elsewhere = matches!(destination, IpAddr::V4(to) if !arrived.view.is_own(to));
        if arrived.packet_type != PACKET_HOST || is_elsewhere {
            return false;
        }
        let Some(&[a, b, c, d]) = bytes.first_chunk() else {
            return false;
        };
        let index = arrived.interface.index;
        let ends = Ends {
            local: SocketAddr::new(destination, u16::from_be_bytes([c, d])),
            remote: with_link(SocketAddr::new(source, u16::from_be_bytes([a, b])), index),
        };
        let mut held = arrived.held.borrow_mut();
        if held.as_ref().is_none_or(|held| held.ends != ends) {
            let table = &self.tcp.table;
            let place = table.place(&ends);
            let Some(connection) = table.open(place, &ends) else {
                arrived.place.set(Some(place));
                return false;
            };
            if !connection.is_admitted(arrived.view.version(), index) {
                return false;
            }
            *held = Some(Held {
                ends,
                connection,
                segments: 0,
                news: News::default(),
            });
        }
        if let Some(segment) = self.verify_segment(source, destination, bytes)
            && let Some(one) = &mut *held
            && !one.arrive(&arrival_of(segment, tos))
        {
            *held = None;
        }
        true
    }
}

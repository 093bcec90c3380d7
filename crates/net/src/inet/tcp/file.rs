//! A TCP socket as a file, and what system calls do with it.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, Result};
use linux_raw_sys::net;

use super::{TcpSocket, note_reset, reset_as_eof};
use crate::inet::bind_table::BindAddress;
use crate::inet::inet_socket::Family;
use crate::inet::option_table::{IPV6, TCP};
use crate::inet::options::{self, SOL_SOCKET};
use crate::socket::byte_stream::Senders;
use crate::socket::endpoint::{FIN_RECEIVED, RCV_SHUTDOWN, SEND_SHUTDOWN};
use crate::{
    Address, Caller, MsgFlags, OptionAccess, OutgoingMessage, ReceivedMessage, Socket, SocketOps,
    SocketType, WaitPolicy,
};

impl FileOps for TcpSocket {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        let wait = self.endpoint.options.receive_wait(file.is_nonblocking());
        if self.endpoint.options.receive_low_water() <= 1
            && let Some(connection) = self.connection.load()
            && let Some(n) = self.stream(&connection).receive_fast(buf, wait)?
        {
            return Ok(n);
        }
        self.receive_message(buf, MsgFlags::empty(), wait)
            .map(|incoming| incoming.copied)
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        if let Some(connection) = self.connection.load()
            && self.endpoint.options.tx_timestamp_flags(&[]) == 0
            && !self.has_taps()
            && !self.cork.is_active()
            && let Some(n) = self.stream(&connection).send_fast(buf)
        {
            self.check_user_timeout(&connection);
            return Ok(n);
        }
        self.send(
            OutgoingMessage::plain(buf),
            MsgFlags::empty(),
            self.endpoint.options.send_wait(file.is_nonblocking()),
        )
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.endpoint.readable);
            table.poll_wait(&self.endpoint.writable);
        }
        if self.in_listen_state() {
            let any = self.backlog().is_some_and(|(waiting, _)| waiting > 0);
            return if any {
                Events::READABLE
            } else {
                Events::empty()
            };
        }
        let writable = Events::WRITABLE;
        let failed = self.endpoint.has_error();
        let told = self.endpoint.options.error_queue.has_entries();
        let mut events = if failed || told {
            Events::ERR
        } else {
            Events::empty()
        };
        let Some(connection) = self.connection.load() else {
            if self.state.lock().connecting.is_some() {
                return events;
            }
            events.set(
                Events::READABLE | Events::RDHUP,
                failed || self.endpoint.is_shut_down(RCV_SHUTDOWN),
            );
            return events | Events::HUP | writable;
        };
        let shut = |what| self.endpoint.is_shut_down(what);
        events.set(Events::HUP, shut(RCV_SHUTDOWN | SEND_SHUTDOWN));
        let least = self.endpoint.options.receive_low_water();
        let (news, urgent) = {
            let queue = self.endpoint.queue.lock();
            let hole = if queue.urgent.is_some() {
                queue.urgent_skip(self.endpoint.is_oob_inline())
            } else {
                0
            };
            (queue.bytes.len() >= least + hole, queue.has_urgent())
        };
        events.set(Events::PRI, urgent);
        events.set(Events::READABLE | Events::RDHUP, shut(RCV_SHUTDOWN));
        events.set(Events::READABLE, shut(RCV_SHUTDOWN) || news);
        // As Linux does, so that whoever is told can write more than a little.
        let room = {
            let mut queue = connection.peer.endpoint.queue.lock();
            let charged = queue.charged_bytes;
            charged * 3 <= self.stream(&connection).send_limit * 2
                && queue.memory.covers(charged + 1)
        };
        events.set(writable, room || shut(SEND_SHUTDOWN));
        events
    }

    fn release(&self, _: &File) {
        self.close();
    }
}

impl SocketOps for TcpSocket {
    fn family(&self) -> u32 {
        self.common.family().number()
    }

    fn socket_type(&self) -> SocketType {
        SocketType::Stream
    }

    fn protocol_number(&self) -> i32 {
        net::IPPROTO_TCP as i32
    }

    fn is_listening(&self) -> bool {
        self.in_listen_state()
    }

    fn bind(&self, caller: &Caller<'_>, address: &Address) -> Result<()> {
        let meant = self.common.check_bind_address(caller, address)?;
        let mut state = self.state.lock();
        if state.binding.is_some() || self.connection.load().is_some() {
            return Err(Errno::EINVAL);
        }
        self.common.bind_to_link(&self.endpoint.options, meant)?;
        let address = BindAddress::new(meant.ip(), self.common.is_v6_only());
        state.binding = Some(self.bind_port(address, meant.port())?);
        state.any_address = address.ip.is_unspecified().then_some(address);
        state.port_locked = true;
        Ok(())
    }

    fn connect(&self, _: &Caller<'_>, address: &Address, wait: WaitPolicy) -> Result<()> {
        self.connect_to(address, wait)
    }

    fn connect_for_message(&self, address: Option<&Address>, wait: WaitPolicy) -> Result<()> {
        self.connect_by_message(address, wait)
    }

    fn listen(&self, backlog: usize) -> Result<()> {
        self.start_listening(backlog)
    }

    fn accept(&self, wait: WaitPolicy) -> Result<Socket> {
        self.accept_connection(wait)
    }

    fn local_address(&self) -> Address {
        self.common.user_address(self.addresses().0)
    }

    fn peer_address(&self) -> Result<Address> {
        let connection = self.connection.load().ok_or(Errno::ENOTCONN)?;
        if self.endpoint.is_shut_down(SEND_SHUTDOWN | FIN_RECEIVED) {
            return Err(Errno::ENOTCONN);
        }
        Ok(self.common.user_address(connection.remote))
    }

    fn shutdown(&self, receiving: bool, sending: bool) -> Result<()> {
        if self.in_listen_state() {
            if receiving {
                self.stop_listening();
            }
            return Ok(());
        }
        let halves = (u8::from(receiving) * RCV_SHUTDOWN) | (u8::from(sending) * SEND_SHUTDOWN);
        let Some(connection) = self.connection.load() else {
            // Linux does it, and says so all the same.
            if self.state.lock().connecting.is_none() {
                self.endpoint.shutdown(halves);
            }
            return Err(Errno::ENOTCONN);
        };
        if self.endpoint.is_shut_down(SEND_SHUTDOWN | FIN_RECEIVED) {
            return Err(Errno::ENOTCONN);
        }
        if sending {
            self.push_held();
            self.tap_fin(&connection);
        }
        self.endpoint.shutdown(halves);
        if sending {
            connection
                .peer
                .with_engine(&self.endpoint, |engine| engine.shutdown());
        }
        Ok(())
    }

    fn wait_for_send_space(&self, wait: WaitPolicy) -> Result<()> {
        self.stream(&*self.wait_connected(wait)?)
            .wait_for_send_space(wait)
    }

    fn send(
        &self,
        message: OutgoingMessage<'_>,
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<usize> {
        // Linux does not tell one that never was connected from one that is no more.
        let connection = self.wait_connected(wait).map_err(|e| {
            if e == Errno::ENOTCONN {
                Errno::EPIPE
            } else {
                e
            }
        })?;
        let len = message.data.len();
        let result = if self.cork.is_active() || flags.contains(MsgFlags::MORE) {
            self.send_corked(&connection, message, flags, wait)
        } else {
            self.send_message(&connection, message, flags, wait)
        };
        self.check_user_timeout(&connection);
        match result {
            Err(Errno::EPIPE) if !self.endpoint.is_shut_down(SEND_SHUTDOWN) => {
                // The peer is gone. That is learnt from its answer to what is sent now.
                note_reset(&self.endpoint);
                self.endpoint.notify_all();
                Ok(len)
            }
            result => result,
        }
    }

    fn receive(
        &self,
        buf: &mut [u8],
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<ReceivedMessage> {
        self.receive_message(buf, flags, wait)
    }

    fn receive_to_vec(
        &self,
        limit: usize,
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<(Vec<u8>, ReceivedMessage)> {
        if self.is_shut_unconnected(flags) {
            return Ok((Vec::new(), ReceivedMessage::default()));
        }
        let connection = self.connection_for_receive(flags, wait)?;
        let pair = self.stream(&connection);
        let (data, mut got) = reset_as_eof(
            pair.receive_to_vec(limit, flags, Senders::Any, wait),
            (Vec::new(), ReceivedMessage::default()),
        )?;
        self.add_inq_message(&mut got);
        Ok((data, got))
    }

    fn receive_error_queue(&self, limit: usize) -> Result<(Vec<u8>, ReceivedMessage)> {
        self.common
            .receive_error_queue(&self.endpoint.options, limit)
    }

    fn complete_zerocopy(&self) {
        let options = &self.endpoint.options;
        options.error_queue.push_zerocopy(options.receive_buffer());
        self.endpoint.readable.notify_events(Events::ERR);
    }

    fn supports_zerocopy(&self) -> bool {
        true
    }

    fn initial_timestamp_key(&self) -> Result<u32> {
        let connection = self.connection.load().ok_or(Errno::EINVAL)?;
        Ok(self.bytes_sent(&connection) as u32)
    }

    fn take_error(&self) -> Option<Errno> {
        self.endpoint.take_error()
    }

    fn set_error(&self, error: Errno) {
        self.endpoint.set_error(error);
    }

    fn receive_queue_bytes(&self) -> usize {
        let queue = self.endpoint.queue.lock();
        queue.readable_len(self.endpoint.is_oob_inline())
    }

    fn send_queue_bytes(&self) -> usize {
        match self.connection.load() {
            // What fits into the receiver's buffer has been acknowledged.
            Some(connection) => {
                let peer = &connection.peer;
                let charged = peer.endpoint.queue.lock().charged_bytes;
                charged.saturating_sub(peer.endpoint.options.receive_buffer()) + self.cork.held()
            }
            None => 0,
        }
    }

    fn unsent_bytes(&self) -> usize {
        let below = self.connection.load().map_or(0, |connection| {
            let peer = &connection.peer;
            peer.with_engine(&self.endpoint, |engine| engine.not_sent())
        });
        below + self.cork.held()
    }

    fn at_mark(&self) -> Result<bool> {
        Ok(self.endpoint.queue.lock().at_mark())
    }

    fn attach_file(&self, file: &Arc<File>) {
        self.common.attach_file(file);
        self.endpoint.attach_file(file);
    }

    fn check_option(&self, level: u32, option: u32, access: OptionAccess) -> Result<()> {
        options::check(&self.common, options::Transport::Tcp, level, option, access)
    }

    fn option(&self, level: u32, option: u32) -> Result<Vec<u8>> {
        if (level, option) == (IPV6, net::IPV6_ADDRFORM) {
            return options::address_form(&self.common, self.addresses().1);
        }
        options::get(&self.common, Some(self), self.addresses().1, level, option)
    }

    fn set_option(&self, level: u32, option: u32, value: &[u8]) -> Result<()> {
        if (level, option) == (IPV6, net::IPV6_ADDRFORM) && self.common.family() == Family::V6 {
            return self.common.set_address_form(value, self.addresses().1);
        }
        let bound = self.state.lock().binding.is_some();
        options::set(&self.common, Some(self), bound, level, option, value)?;
        if level == TCP {
            self.on_cork_option(option);
        }
        self.tell_engine((level, option));
        Ok(())
    }

    fn on_socket_option(&self, option: u32) {
        self.tell_engine((SOL_SOCKET, option));
    }
}

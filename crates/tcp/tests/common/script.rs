//! An engine that is driven segment by segment, with exact times.

use tcp::{
    Arrival, Config, Connection, Flags, Header, MILLISECOND, Nanos, Options, Outgoing, Segment,
    Seq, State,
};

use super::Program;

/// First sequence numbers of the peer and of the engine in scripts.
pub const PEER: u32 = 1000;
pub const OWN: u32 = u32::MAX - 5000;
pub const MSS: usize = 1000;

/// An engine and its program, driven by a script.
pub struct Script {
    pub now: Nanos,
    pub connection: Connection,
    pub program: Program,
}

/// A segment of the peer: flags, sequence and acknowledgement from the beginnings on.
pub fn header(flags: Flags, seq: u32, ack: u32) -> Header {
    Header {
        source: 80,
        destination: 5000,
        seq: Seq(PEER).plus(seq),
        ack: Seq(OWN).plus(ack),
        flags,
        window: 60_000,
        ..Header::default()
    }
}

pub fn syn_options() -> Options {
    Options {
        mss: Some(MSS as u16),
        window_scale: Some(0),
        sack_permitted: true,
        ..Options::default()
    }
}

/// No timestamps, so that segments are whole numbers long; nothing is acknowledged quickly.
pub fn config() -> Config {
    Config {
        timestamps: false,
        quick_acks: 0,
        mss: MSS as u16,
        window_scale: Some(0),
        ..Config::default()
    }
}

impl Script {
    pub fn new(connection: Connection) -> Self {
        Self {
            now: 0,
            connection,
            program: Program::new(0, 50_000),
        }
    }

    pub fn connect(config: Config) -> Self {
        Self::new(Connection::connect(config, 0, (5000, 80), Seq(OWN), 0))
    }

    /// An established connection that this end began; the round trip is 100 ms.
    pub fn established(config: Config) -> Self {
        let mut script = Self::connect(config);
        script.one();
        script.at(100 * MILLISECOND);
        let mut answer = header(Flags::SYN | Flags::ACK, 0, 1);
        answer.options = syn_options();
        script.arrive(answer, &[]);
        let ack = script.one();
        assert_eq!(script.flags(&ack), (Flags::ACK, 1, 1));
        script.nothing();
        script
    }

    pub fn at(&mut self, now: Nanos) {
        assert!(now >= self.now);
        self.now = now;
    }

    pub fn after(&mut self, time: Nanos) {
        self.now += time;
    }

    pub fn arrive(&mut self, header: Header, payload: &[u8]) {
        let segment = Segment { header, payload };
        self.connection
            .arrive(self.now, &Arrival::from(segment), &mut self.program);
    }

    /// The peer's bytes from a place of its stream on.
    pub fn data(&mut self, place: u64, length: usize) {
        let bytes: Vec<u8> = (place..place + length as u64)
            .map(|place| super::byte_at(1, place))
            .collect();
        let ack = self.acknowledged();
        self.arrive(header(Flags::ACK, place as u32 + 1, ack), &bytes);
    }

    /// The number that the peer has acknowledged up to.
    pub fn acknowledged(&self) -> u32 {
        (self.connection.info().acknowledged as u32) + 1
    }

    pub fn ack(&mut self, ack: u32) {
        self.arrive(header(Flags::ACK, 1, ack), &[]);
    }

    pub fn sack(&mut self, ack: u32, blocks: &[(u32, u32)]) {
        let mut header = header(Flags::ACK, 1, ack);
        for (left, right) in blocks {
            header
                .options
                .sack
                .push((Seq(OWN).plus(*left), Seq(OWN).plus(*right)));
        }
        self.arrive(header, &[]);
    }

    pub fn next(&mut self) -> Option<Outgoing> {
        self.connection
            .next(self.now, &mut self.program, &mut [0; 4096])
    }

    /// Flags, sequence and acknowledgement of a segment, from the beginnings on.
    pub fn flags(&self, outgoing: &Outgoing) -> (Flags, u32, u32) {
        let header = &outgoing.header;
        (
            header.flags,
            header.seq.0.wrapping_sub(OWN),
            header.ack.0.wrapping_sub(PEER),
        )
    }

    pub fn one(&mut self) -> Outgoing {
        self.next().expect("a segment is due")
    }

    pub fn nothing(&mut self) {
        let next = self.next();
        assert_eq!(next, None, "nothing is due");
    }

    /// Sequence numbers and lengths of all that is due.
    pub fn all(&mut self) -> Vec<(u32, usize)> {
        std::iter::from_fn(|| self.next())
            .map(|outgoing| (outgoing.header.seq.0.wrapping_sub(OWN), outgoing.payload))
            .collect()
    }

    /// Lets time pass to the next deadline, which is this one.
    pub fn wait_until(&mut self, at: Nanos) {
        assert_eq!(self.connection.deadline(), Some(at));
        self.now = at;
    }

    pub fn write(&mut self, bytes: u64) {
        self.program.written += bytes;
    }

    pub fn state(&self) -> State {
        self.connection.state()
    }
}

//! A controller of ours, over any memory: the other half for tests of drivers. It does what the
//! standard says, or what nobody should ([`Lie`]).

mod secondary;

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

pub use secondary::Secondary;
use virtqueue::{Address, Memory, Unreachable};

use crate::command::{Command, DEALLOCATE, NUMBER_OF_QUEUES, admin, cns, nvm};
use crate::completion::{self, Status};
use crate::registers::{at, cc, csts};
use crate::runs::Descriptor;
use crate::{MAX_PAGES, PAGE};

/// Wrong answers of a controller to its next command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Completes a command of this identifier, too.
    Id(u16),
    /// Completes it twice.
    Twice,
    /// Says that it was of this queue.
    Queue(u16),
    /// Does nothing, and completes it with this last word, but for the phase.
    Status(u16),
    /// Never completes it.
    Silence,
    /// Says that it has failed as a whole, and does nothing from then on.
    Fatal,
}

/// Blocks of a namespace.
pub struct Blocks {
    /// Bytes of a block, as a power of two.
    pub block_bits: u8,
    /// The bytes.
    pub data: Vec<u8>,
    /// Bytes as they were before what was not flushed: it is lost with the power.
    pub unflushed: Vec<(usize, Vec<u8>)>,
    /// A block that cannot be read or written.
    pub bad: Option<u64>,
}

impl Blocks {
    /// A namespace of `blocks` blocks of zeros.
    #[must_use]
    pub fn zeroed(block_bits: u8, blocks: usize) -> Self {
        Self {
            block_bits,
            data: vec![0; blocks << block_bits],
            unflushed: Vec::new(),
            bad: None,
        }
    }

    /// Cuts the power: what was not flushed is as it was before.
    pub fn cut(&mut self) {
        while let Some((at, before)) = self.unflushed.pop() {
            self.data[at..at + before.len()].copy_from_slice(&before);
        }
    }

    fn range(&self, first: u64, count: u64) -> Result<core::ops::Range<usize>, Status> {
        let blocks = self.data.len() as u64 >> self.block_bits;
        let end = first.checked_add(count).filter(|end| *end <= blocks);
        let end = end.ok_or(Status {
            kind: 0,
            code: 0x80,
        })?;
        if self.bad.is_some_and(|bad| (first..end).contains(&bad)) {
            return Err(Status {
                kind: 2,
                code: 0x81,
            });
        }
        let byte = |block: u64| (block << self.block_bits) as usize;
        Ok(byte(first)..byte(end))
    }

    /// Changes bytes that are not lost with the power: nor are they what a cut makes of the others.
    fn change_for_good(&mut self, range: core::ops::Range<usize>, bytes: &[u8]) {
        self.data[range.clone()].copy_from_slice(bytes);
        for (at, before) in &mut self.unflushed {
            for (byte, place) in before.iter_mut().zip(*at..) {
                if range.contains(&place) {
                    *byte = bytes[place - range.start];
                }
            }
        }
    }

    fn change(&mut self, range: core::ops::Range<usize>, bytes: &[u8]) {
        let before = self.data[range.clone()].to_vec();
        self.unflushed.push((range.start, before));
        self.data[range].copy_from_slice(bytes);
    }
}

/// Changes an answer to an Identify command: its structure, the namespace, the bytes.
pub type Tamper = Box<dyn FnMut(u8, u32, &mut [u8; PAGE]) + Send>;

#[derive(Clone, Copy)]
struct Ring {
    base: Address,
    entries: u16,
    /// The place that is read or written next.
    place: u16,
    /// The other end's.
    doorbell: u16,
    phase: bool,
    /// The completion queue of a submission queue, or the message of a completion queue.
    partner: u16,
}

const MAX_QUEUES: usize = 8;

/// A controller.
pub struct Model<M> {
    memory: M,
    registers: [u32; 14],
    submissions: [Option<Ring>; MAX_QUEUES],
    completions: [Option<Ring>; MAX_QUEUES],
    /// Namespaces, from number 1 on.
    pub namespaces: Vec<Blocks>,
    /// Queue pairs that it has beside its own.
    pub queues: u16,
    /// Wrong answer to its next command for a namespace.
    pub lie: Option<Lie>,
    /// Number of resets that it does not do.
    pub deaf: u32,
    /// Whether it is never ready.
    pub is_lame: bool,
    /// Whether the next admin command has no answer.
    pub is_admin_silent: bool,
    /// Changes in what it says of itself.
    pub tamper: Option<Tamper>,
    /// Controllers of virtual functions.
    pub secondary: Option<Secondary>,
    /// Value of `MDTS`.
    pub transfer_bits: u8,
    /// Whether it takes data by runs of memory.
    pub takes_runs: bool,
    /// Commands whose data it was told of by runs.
    pub by_runs: u32,
    /// Times that it was switched on.
    pub starts: u32,
    /// Commands that it was told to abort.
    pub aborts: u32,
    /// Commands that it has and does not complete: queue and identifier.
    silent: Vec<(u16, u16)>,
    /// Whether it completed what it does not have, since it was switched on.
    has_lied: bool,
}

impl<M: Memory> Model<M> {
    /// A controller with these namespaces, of queues of so many entries.
    pub fn new(memory: M, namespaces: Vec<Blocks>, queues: u16, entries: u16) -> Self {
        let mut registers = [0; 14];
        // The shortest time, and the NVM command set.
        registers[0] = u32::from(entries - 1) | 1 << 24;
        registers[1] = 1 << 5;
        Self {
            memory,
            registers,
            submissions: [None; MAX_QUEUES],
            completions: [None; MAX_QUEUES],
            namespaces,
            queues,
            lie: None,
            deaf: 0,
            is_lame: false,
            is_admin_silent: false,
            tamper: None,
            secondary: None,
            transfer_bits: 5,
            takes_runs: false,
            by_runs: 0,
            starts: 0,
            aborts: 0,
            silent: Vec::new(),
            has_lied: false,
        }
    }

    /// Bytes of its registers.
    #[must_use]
    pub const fn bytes() -> usize {
        at::DOORBELLS + 8 * MAX_QUEUES
    }

    /// Reads a register.
    #[must_use]
    pub fn read(&self, at: usize) -> u32 {
        self.registers.get(at / 4).copied().unwrap_or(0)
    }

    /// Has a register read as a number from now on.
    pub fn set(&mut self, at: usize, value: u32) {
        self.registers[at / 4] = value;
    }

    fn has(&self, bit: u32) -> bool {
        self.registers[at::CSTS / 4] & bit != 0
    }

    /// Resets it over the bus; whether it did.
    pub fn force_reset(&mut self) -> bool {
        if self.deaf > 0 {
            self.deaf -= 1;
            return false;
        }
        self.registers[at::CC / 4] = 0;
        self.stop();
        if let Some(secondary) = &mut self.secondary {
            secondary.function_reset();
        }
        true
    }

    fn stop(&mut self) {
        self.registers[at::CSTS / 4] = 0;
        self.submissions = [None; MAX_QUEUES];
        self.completions = [None; MAX_QUEUES];
        self.silent.clear();
        self.has_lied = false;
        if let Some(secondary) = &mut self.secondary {
            secondary.stopped();
        }
    }

    fn start(&mut self) {
        self.starts += 1;
        let of = |base: usize, entries: u32| Ring {
            base: Address::new(
                u64::from(self.registers[base / 4 + 1]) << 32 | u64::from(self.registers[base / 4]),
            ),
            entries: (entries & 0xfff) as u16 + 1,
            place: 0,
            doorbell: 0,
            phase: true,
            partner: 0,
        };
        let sizes = self.registers[at::AQA / 4];
        self.submissions[0] = Some(of(at::ASQ, sizes));
        self.completions[0] = Some(of(at::ACQ, sizes >> 16));
        if !self.is_lame {
            self.registers[at::CSTS / 4] = csts::READY;
        }
    }

    /// Writes a register.
    pub fn write(&mut self, at: usize, value: u32) {
        if at >= at::DOORBELLS {
            let number = (at - at::DOORBELLS) / 8;
            let rings = if (at - at::DOORBELLS).is_multiple_of(8) {
                &mut self.submissions
            } else {
                &mut self.completions
            };
            if let Some(Some(ring)) = rings.get_mut(number) {
                assert!(value < ring.entries.into(), "a doorbell beyond its queue");
                ring.doorbell = value as u16;
            }
            return;
        }
        let before = self.read(at);
        if at == at::CC {
            let (was_on, is_on) = (before & cc::ENABLE != 0, value & cc::ENABLE != 0);
            if was_on && !is_on {
                if self.deaf > 0 {
                    return;
                }
                self.stop();
            }
            self.registers[at / 4] = value;
            if is_on && !was_on {
                self.start();
            }
        } else if let Some(register) = self.registers.get_mut(at / 4)
            && at > at::CSTS
        {
            *register = value;
        }
    }

    /// Does what is in its queues, up to `most` commands of each; the messages that it sends.
    ///
    /// # Errors
    /// If it was told of memory that it does not reach.
    pub fn serve(&mut self, most: usize) -> Result<u64, Unreachable> {
        let mut messages = 0;
        for number in 0..MAX_QUEUES {
            for _ in 0..most {
                if self.has(csts::FATAL) {
                    return Ok(messages);
                }
                let Some(Some(ring)) = self.submissions.get_mut(number) else {
                    break;
                };
                if ring.place == ring.doorbell {
                    break;
                }
                let at = ring
                    .base
                    .plus(u64::from(ring.place) * Command::BYTES as u64);
                ring.place = (ring.place + 1) % ring.entries;
                let mut bytes = [0; Command::BYTES];
                self.memory.read(at, &mut bytes)?;
                let command = Command::from_bytes(bytes);
                messages |= self.execute(number as u16, &command)?;
            }
        }
        Ok(messages)
    }

    fn execute(&mut self, queue: u16, command: &Command) -> Result<u64, Unreachable> {
        let lie = if queue == 0 { None } else { self.lie.take() };
        let mut said_queue = queue;
        self.has_lied |= lie.is_some();
        match lie {
            Some(Lie::Silence) => {
                self.silent.push((queue, command.id()));
                return Ok(0);
            }
            Some(Lie::Fatal) => {
                self.registers[at::CSTS / 4] |= csts::FATAL;
                return Ok(0);
            }
            Some(Lie::Status(word)) => return self.complete(queue, queue, command.id(), 0, word),
            Some(Lie::Queue(other)) => said_queue = other,
            _ => {}
        }
        if queue == 0 && core::mem::take(&mut self.is_admin_silent) {
            return Ok(0);
        }
        let (status, word) = if queue == 0 {
            self.administrate(command)?
        } else {
            (self.transfer(command)?, 0)
        };
        let mut messages = self.complete(queue, said_queue, command.id(), word, status.word())?;
        match lie {
            Some(Lie::Id(id)) => {
                messages |= self.complete(queue, queue, id, 0, 0)?;
            }
            Some(Lie::Twice) => {
                messages |= self.complete(queue, queue, command.id(), 0, 0)?;
            }
            _ => {}
        }
        Ok(messages)
    }

    /// Writes a completion; its message.
    fn complete(
        &mut self,
        queue: u16,
        said_queue: u16,
        id: u16,
        word: u32,
        status: u16,
    ) -> Result<u64, Unreachable> {
        let Some(submission) = self.submissions[usize::from(queue)] else {
            return Ok(0);
        };
        let Some(Some(ring)) = self.completions.get_mut(usize::from(submission.partner)) else {
            return Ok(0);
        };
        let next = (ring.place + 1) % ring.entries;
        if next == ring.doorbell {
            assert!(self.has_lied, "the completion queue is full");
            return Ok(0);
        }
        let at = ring.base.plus(u64::from(ring.place) * completion::BYTES);
        let mut entry = [0; completion::STATUS as usize];
        entry[..4].copy_from_slice(&word.to_le_bytes());
        entry[8..10].copy_from_slice(&submission.place.to_le_bytes());
        entry[10..12].copy_from_slice(&said_queue.to_le_bytes());
        entry[12..14].copy_from_slice(&id.to_le_bytes());
        self.memory.write(at, &entry)?;
        let status = status & !1 | u16::from(ring.phase);
        self.memory.store16(at.plus(completion::STATUS), status)?;
        ring.place = next;
        if next == 0 {
            ring.phase = !ring.phase;
        }
        Ok(1 << ring.partner)
    }

    fn administrate(&mut self, command: &Command) -> Result<(Status, u32), Unreachable> {
        let word = command.word(10);
        let number = usize::from(word as u16);
        let invalid = Status { kind: 1, code: 1 };
        let ring = |partner| Ring {
            base: Address::new(command.data()[0]),
            entries: (word >> 16) as u16 + 1,
            place: 0,
            doorbell: 0,
            phase: true,
            partner,
        };
        let is_free = (1..=usize::from(self.queues)).contains(&number);
        let partner = (command.word(11) >> 16) as u16;
        match command.code() {
            admin::IDENTIFY => return Ok((self.identify(command)?, 0)),
            admin::SET_FEATURES if word == NUMBER_OF_QUEUES => {
                let less = u32::from(self.queues - 1);
                return Ok((Status::SUCCESS, less << 16 | less));
            }
            admin::CREATE_COMPLETION_QUEUE if is_free && self.completions[number].is_none() => {
                self.completions[number] = Some(ring(partner));
            }
            admin::CREATE_SUBMISSION_QUEUE
                if is_free && self.submissions[number].is_none() && partner == number as u16 =>
            {
                self.submissions[number] = Some(ring(partner));
            }
            admin::VIRTUALIZATION_MANAGEMENT => {
                let managed = self.secondary.as_mut().map(|all| all.manage(command));
                return Ok((managed.unwrap_or(invalid), 0));
            }
            admin::ABORT => {
                self.aborts += 1;
                let wanted = (number as u16, (word >> 16) as u16);
                let found = self.silent.iter().position(|silent| *silent == wanted);
                if let Some(found) = found {
                    self.silent.swap_remove(found);
                    let aborted = Status { kind: 0, code: 7 };
                    self.complete(wanted.0, wanted.0, wanted.1, 0, aborted.word())?;
                }
                return Ok((Status::SUCCESS, found.is_none().into()));
            }
            _ => return Ok((invalid, 0)),
        }
        Ok((Status::SUCCESS, 0))
    }

    fn identify(&mut self, command: &Command) -> Result<Status, Unreachable> {
        let mut bytes = [0; PAGE];
        let structure = command.word(10) as u8;
        let mut put = |at: usize, number: &[u8]| {
            bytes[at..at + number.len()].copy_from_slice(number);
        };
        match structure {
            cns::CONTROLLER => {
                put(4, b"OURS                ");
                put(77, &[self.transfer_bits]);
                put(512, &[0x66, 0x44]);
                put(516, &(self.namespaces.len() as u32).to_le_bytes());
                put(520, &[1 << 2 | 1 << 3]);
                put(525, &[1]);
                put(536, &[self.takes_runs.into()]);
            }
            cns::NAMESPACES => {
                for n in 0..self.namespaces.len() {
                    put(4 * n, &(n as u32 + 1).to_le_bytes());
                }
            }
            cns::PRIMARY | cns::SECONDARIES => match &self.secondary {
                Some(secondary) if structure == cns::PRIMARY => secondary.primary(&mut bytes),
                Some(secondary) => secondary.list((command.word(10) >> 16) as u16, &mut bytes),
                None => return Ok(Status { kind: 0, code: 2 }),
            },
            _ => {
                let Some(blocks) = self.blocks(command.namespace()) else {
                    return Ok(Status { kind: 0, code: 0xb });
                };
                let count = blocks.data.len() as u64 >> blocks.block_bits;
                let format = u32::from(blocks.block_bits) << 16;
                put(0, &count.to_le_bytes());
                put(128, &format.to_le_bytes());
            }
        }
        if let Some(tamper) = &mut self.tamper {
            tamper(structure, command.namespace(), &mut bytes);
        }
        let page = Address::new(command.data()[0]);
        self.memory.write(page, &bytes)?;
        Ok(Status::SUCCESS)
    }

    fn blocks(&mut self, id: u32) -> Option<&mut Blocks> {
        self.namespaces.get_mut((id as usize).checked_sub(1)?)
    }

    /// The pieces of a command's data.
    fn pieces(
        &mut self,
        command: &Command,
        len: usize,
    ) -> Result<Vec<(Address, usize)>, Unreachable> {
        if command.is_by_runs() {
            return self.runs(command, len);
        }
        let pages = self.pages(command, len)?;
        let pieces = pages.into_iter().enumerate();
        Ok(pieces
            .map(|(n, page)| (page, PAGE.min(len - n * PAGE)))
            .collect())
    }

    /// The runs of a command's data (section 4.4).
    fn runs(
        &mut self,
        command: &Command,
        len: usize,
    ) -> Result<Vec<(Address, usize)>, Unreachable> {
        assert!(self.takes_runs, "runs for one that does not take them");
        let [at, rest] = command.data();
        let (first_len, kind) = (rest as u32, (rest >> 56) as u8);
        let mut runs = Vec::new();
        if kind == Descriptor::LAST_SEGMENT {
            assert!(first_len as usize <= 8 * MAX_PAGES && at.is_multiple_of(8));
            for n in 0..u64::from(first_len) / Descriptor::BYTES as u64 {
                let mut entry = [0; Descriptor::BYTES];
                let place = Address::new(at).plus(n * Descriptor::BYTES as u64);
                self.memory.read(place, &mut entry)?;
                let [
                    a,
                    b,
                    c,
                    d,
                    e,
                    f,
                    g,
                    h,
                    i,
                    j,
                    k,
                    l,
                    0,
                    0,
                    0,
                    Descriptor::DATA,
                ] = entry
                else {
                    panic!("no run of data: {entry:?}");
                };
                let run_len = u32::from_le_bytes([i, j, k, l]);
                let run = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
                runs.push((Address::new(run), run_len as usize));
            }
            assert!(runs.len() > 1);
        } else {
            assert_eq!(kind, Descriptor::DATA);
            runs.push((Address::new(at), first_len as usize));
        }
        let told: usize = runs.iter().map(|(_, len)| len).sum();
        assert_eq!(told, len, "other bytes than the command's");
        self.by_runs += 1;
        Ok(runs)
    }

    /// The pages of a command's data (section 4.3).
    fn pages(&self, command: &Command, len: usize) -> Result<Vec<Address>, Unreachable> {
        let [first, second] = command.data();
        let count = len.div_ceil(PAGE);
        let mut pages = vec![Address::new(first)];
        match count {
            0 | 1 => {}
            2 => pages.push(Address::new(second)),
            _ => {
                let list = Address::new(second);
                let within = second as usize % PAGE;
                assert!(
                    within + 8 * (count - 1) <= PAGE,
                    "the list goes on elsewhere"
                );
                for n in 0..count as u64 - 1 {
                    let mut entry = [0; 8];
                    self.memory.read(list.plus(8 * n), &mut entry)?;
                    pages.push(Address::new(u64::from_le_bytes(entry)));
                }
            }
        }
        for page in &pages {
            if !page.number().is_multiple_of(PAGE as u64) {
                return Err(Unreachable(*page));
            }
        }
        Ok(pages)
    }

    fn transfer(&mut self, command: &Command) -> Result<Status, Unreachable> {
        let first = u64::from(command.word(11)) << 32 | u64::from(command.word(10));
        let count = u64::from(command.word(12) as u16) + 1;
        let transfer = PAGE << self.transfer_bits;
        let id = command.namespace();
        let Some(blocks) = self.blocks(id) else {
            return Ok(Status { kind: 0, code: 0xb });
        };
        let bits = blocks.block_bits;
        let range = blocks.range(first, count);
        match command.code() {
            nvm::FLUSH => blocks.unflushed.clear(),
            nvm::WRITE_ZEROES => match range {
                Ok(range) => {
                    let zeros = vec![0; range.len()];
                    blocks.change(range, &zeros);
                }
                Err(status) => return Ok(status),
            },
            nvm::DATASET_MANAGEMENT if command.word(11) & DEALLOCATE != 0 => {
                let mut bytes = [0; 16];
                let at = Address::new(command.data()[0]);
                self.memory.read(at, &mut bytes)?;
                let [_, _, _, _, a, b, c, d, rest @ ..] = bytes;
                let count = u32::from_le_bytes([a, b, c, d]);
                let Some(blocks) = self.blocks(id) else {
                    return Ok(Status { kind: 0, code: 0xb });
                };
                match blocks.range(u64::from_le_bytes(rest), count.into()) {
                    // Whatever they read as.
                    Ok(range) => {
                        let other = vec![0xdd; range.len()];
                        blocks.change(range, &other);
                    }
                    Err(status) => return Ok(status),
                }
            }
            code @ (nvm::READ | nvm::WRITE) => {
                let range = match range {
                    Ok(range) if count << bits <= transfer as u64 => range,
                    Ok(_) => return Ok(Status { kind: 0, code: 2 }),
                    Err(status) => return Ok(status),
                };
                let pieces = self.pieces(command, range.len())?;
                let mut bytes = self.namespaces[id as usize - 1].data[range.clone()].to_vec();
                let mut rest = &mut bytes[..];
                for (at, len) in pieces {
                    let part = rest.split_off_mut(..len).unwrap_or_default();
                    if code == nvm::READ {
                        self.memory.write(at, part)?;
                    } else {
                        self.memory.read(at, part)?;
                    }
                }
                if code == nvm::WRITE {
                    let blocks = &mut self.namespaces[id as usize - 1];
                    let is_through = command.word(12) & 1 << 30 != 0;
                    if is_through {
                        blocks.change_for_good(range, &bytes);
                    } else {
                        blocks.change(range, &bytes);
                    }
                }
            }
            _ => return Ok(Status::INVALID_OPCODE),
        }
        Ok(Status::SUCCESS)
    }
}

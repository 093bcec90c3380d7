//! Instances: the record of each, its partition while it has one, and its way from creation to the
//! end.
//!
//! A record lives until it is destroyed; the partition only from creation to the end of life. State
//! changes: created → running → exited, panicked, halted or failed. The instance's own word (its
//! window) starts an end; the record changes when CPUs and memory are back, or known to be lost.

mod adopted;
mod devices;
mod exec;
mod pausing;
mod peers;
mod ports;
mod refused;
mod resizing;
mod usage;

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ::devices::Domain;
use abi::dev::{self, Status};
use abi::errno::Errno;
use abi::keep::KeptLease;
use abi::layout::PAGE_SIZE;
use abi::msg::{self, Message};
use abi::window::{KLOG_BYTES, STREAM_BYTES, State};
pub(crate) use devices::{adopt as adopt_devices, check as check_device};
use exec::Programs;
pub(crate) use exec::{ExecError, Program};
use fs::Result;
use fs::poll::PollQueue;
use guard::machine_check::BadPage;
use guard::mem::{Scrub, Scrubbing};
use guard::partition::{HaltProgress, HaltReport, Health, LoadError, Note, Partition, quarantine};
use guard::timer;
pub(crate) use refused::Refused;
use resizing::Resizing;
pub(crate) use resizing::{Extent, Outcome, ResizeError, Wanted};
use ring::{Consumer, LogReader, MessageWriter, Producer};
use task::{Mutex, Policy, Thread};
use usage::Account;
pub(crate) use usage::{Charge, supervisors_stats};

use crate::TABLE;
use crate::brief::lock_briefly;
use crate::label::Label;
use crate::network::Lease;
use crate::peers::{Names, Pairing, part_from};
use crate::stream_log::{self, DrainExtent, Popped, StreamLog};

/// Streams of an instance, by `dev::STREAM_*` less 1, that it writes.
const OUTPUTS: usize = 3;
/// The kernel log, the last of them.
const KLOG: usize = dev::STREAM_KLOG as usize - 1;

/// Policy for a CPU of an instance that hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnHang {
    /// Nobody looks.
    Ignore,
    /// The record says so, and the log.
    Report,
    /// The instance is halted besides.
    Stop,
}

/// An instance, from its creation until it is forgotten.
pub(crate) struct Instance {
    id: u32,
    /// Changed while the table is locked, so that no two have the same.
    label: Mutex<Label>,
    record: Mutex<InstanceState>,
    /// Standard output, standard error, kernel log.
    outputs: [Mutex<StreamLog>; OUTPUTS],
    /// Notified when a log grows or is closed.
    pub(crate) output_changed: [PollQueue; OUTPUTS],
    /// Notified when there is room for standard input, and at the end.
    pub(crate) input_changed: PollQueue,
    /// Notified when the state changes.
    pub(crate) state_changed: PollQueue,
    /// Notified when something of a program beside the first one may have changed: its state, or
    /// its rings.
    pub(crate) programs_changed: PollQueue,
    on_hang: OnHang,
    /// Address and port in the network of instances, if the instance has a network.
    network: Option<Lease>,
    peer_names: Names,
    halt_wanted: AtomicBool,
    /// Somebody waits for the end.
    waited_for: AtomicBool,
    /// CPU time that the supervisor has spent on it, in nanoseconds.
    charged_ns: Arc<AtomicU64>,
}

struct InstanceState {
    partition: Option<Partition>,
    /// Domain that confines its functions; `None` if it has none, or nothing does.
    domain: Option<Domain>,
    status: Status,
    /// Private positions in the window's rings.
    positions: [u64; OUTPUTS],
    stdin_position: u64,
    control_position: u64,
    start_tsc: u64,
    halting_since: u64,
    /// The CPUs are back or lost, and the memory is being taken back.
    reclaiming: bool,
    /// Why it is halted, if that is not somebody's wish.
    halt_reason: Option<String>,
    /// Takes the memory back.
    reclaimer: Option<Arc<Thread>>,
    resizing: Resizing,
    account: Account,
    /// Programs beside the first one.
    programs: Programs,
}

/// Outcome of draining the rings of all outputs.
struct DrainSummary {
    /// The logs that grew.
    grown: [bool; OUTPUTS],
    /// A ring may hold more.
    more: bool,
}

/// A call of LOAD that is refused.
pub(crate) struct Refusal {
    /// Error of the call.
    pub errno: Errno,
    /// The least memory that would do, in bytes, where there is too little; else 0.
    pub needed: u64,
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self { errno, needed: 0 }
    }
}

impl From<LoadError> for Refusal {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Started => Errno::EBUSY.into(),
            LoadError::NoRoom { needed } => Self {
                errno: Errno::ENOMEM,
                needed,
            },
            LoadError::AlreadySet | LoadError::PastEnd => Errno::EINVAL.into(),
            LoadError::NotKept => Errno::ENOMEM.into(),
        }
    }
}

impl Instance {
    /// A record around a partition just created.
    ///
    /// # Errors
    /// `ENOMEM`: no memory for its logs. The partition has been given back.
    #[expect(
        clippy::large_types_passed_by_value,
        reason = "once an instance; it moves into the record"
    )]
    #[inline(never)]
    pub(crate) fn new(
        label: Label,
        partition: Partition,
        status: Status,
        on_hang: OnHang,
        (network, peer_names): (Option<Lease>, Names),
    ) -> Result<Arc<Self>> {
        let log = || StreamLog::new().map(Mutex::new);
        Ok(Arc::new(Self {
            outputs: [log()?, log()?, log()?],
            id: partition.id(),
            label: Mutex::new(label),
            record: Mutex::new(InstanceState {
                partition: Some(partition),
                domain: None,
                status,
                positions: [0; OUTPUTS],
                stdin_position: 0,
                control_position: 0,
                start_tsc: 0,
                halting_since: 0,
                reclaiming: false,
                halt_reason: None,
                reclaimer: None,
                resizing: Resizing {
                    staging: false,
                    pending: None,
                    last: 0,
                    scrubbed: (0, 0),
                    refused: [None; 4],
                },
                account: Account::default(),
                programs: Programs::default(),
            }),
            output_changed: Default::default(),
            input_changed: PollQueue::new(),
            state_changed: PollQueue::new(),
            programs_changed: PollQueue::new(),
            on_hang,
            network,
            peer_names,
            halt_wanted: AtomicBool::new(false),
            waited_for: AtomicBool::new(false),
            charged_ns: Arc::default(),
        }))
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn label(&self) -> Label {
        *lock_briefly(&self.label)
    }

    /// Gives it another name. Its caller has the table, and has seen that nobody has that name.
    pub(crate) fn set_label(&self, label: Label) {
        *lock_briefly(&self.label) = label;
    }

    /// Has its name be that for a supervisor that starts again, too.
    pub(crate) fn note_label(&self) {
        let mut record = lock_briefly(&self.record);
        let label = self.label();
        if let Some(partition) = &mut record.partition {
            partition.note_label(label.0);
        }
    }

    /// Address of the instance in a network of instances, if it has one.
    pub(crate) fn network(&self) -> Option<&Lease> {
        self.network.as_ref()
    }

    pub(crate) fn status(&self) -> Status {
        let label = self.label();
        let mut status = lock_briefly(&self.record).status;
        status.label = label.0;
        if let Some(network) = &self.network {
            status.network = network.counters();
        }
        status
    }

    /// Adds an event of this instance to the list ([`crate::events`]).
    pub(crate) fn tell(&self, kind: u32, value: u64) {
        crate::events::add(self.id, self.label(), kind, value, 0);
    }

    /// Tells of an event by which it has what its status says.
    pub(crate) fn tell_resources(&self, kind: u32, status: &Status) {
        crate::events::add(self.id, self.label(), kind, status.mem, status.cpus);
    }

    /// True when its program has begun, or never will.
    pub(crate) fn is_up(&self) -> bool {
        let status = &lock_briefly(&self.record).status;
        status.start_to_user_ns != 0 || status.state > dev::STATE_RUNNING
    }

    /// True when its CPUs are to be taken away, or are being.
    pub(crate) fn is_halted(&self) -> bool {
        self.halt_wanted.load(Ordering::Acquire)
    }

    /// True when it will not run (any more).
    pub(crate) fn has_ended(&self) -> bool {
        lock_briefly(&self.record).status.state > dev::STATE_RUNNING
    }

    pub(crate) fn output(&self, stream: usize) -> &Mutex<StreamLog> {
        &self.outputs[stream]
    }

    /// Drops all but the last words of its logs if it has ended.
    pub(crate) fn cut_logs(&self) {
        if self.has_ended() {
            self.outputs.iter().for_each(|log| log.lock().cut());
        }
    }

    /// Runs `f` on the partition while it is only created.
    pub(crate) fn load(
        &self,
        f: impl FnOnce(&mut Partition) -> core::result::Result<(), LoadError>,
    ) -> core::result::Result<(), Refusal> {
        let mut record = self.record.lock();
        if record.status.state != dev::STATE_CREATED {
            return Err(Errno::EBUSY.into());
        }
        Ok(f(record.partition.as_mut().ok_or(Errno::EBUSY)?)?)
    }

    /// Starts the instance's CPUs.
    pub(crate) fn start(&self) -> Result<()> {
        let mut pairing = Pairing::begin(self);
        let offers = pairing.offer()?;
        let doorbell;
        {
            let mut record = self.record.lock();
            let record = &mut *record;
            if record.status.state != dev::STATE_CREATED {
                return Err(Errno::EBUSY);
            }
            let partition = record.partition.as_mut().ok_or(Errno::EBUSY)?;
            record.start_tsc = timer::tsc();
            offers.into_iter().for_each(|(offer, peer)| {
                partition.join(offer, peer);
            });
            partition.note(Note {
                label: self.label().0,
                unwatched: self.on_hang == OnHang::Ignore,
                stop_when_hung: self.on_hang == OnHang::Stop,
                created_ns: record.status.created_ns,
                started_ns: timer::wall_ns(),
                lease: self
                    .network
                    .as_ref()
                    .map_or_else(KeptLease::default, |lease| lease.kept(&record.status)),
            });
            partition.start().map_err(|error| {
                record.status.set_detail(&format!("{error}"));
                Errno::ENOMEM
            })?;
            doorbell = partition.doorbell_apic_id();
            record.account_cpus();
            record.status.state = dev::STATE_RUNNING;
            record.status.started_ns = timer::wall_ns();
            self.tell(dev::EVENT_START, 0);
        }
        pairing.complete(doorbell);
        self.state_changed.notify();
        // From now on the rings want to be read.
        crate::request();
        Ok(())
    }

    /// Sends a control message, and rings.
    pub(crate) fn send(&self, message: Message) -> Result<()> {
        let mut record = self.record.lock();
        let record = &mut *record;
        // Before its start it is told what its terminal is like; everything else is for one that
        // runs.
        let early = message.kind == msg::WINSIZE && record.status.state == dev::STATE_CREATED;
        if record.status.state != dev::STATE_RUNNING && !early {
            return Err(Errno::ESRCH);
        }
        let partition = record.partition.as_ref().ok_or(Errno::ESRCH)?;
        let window = partition.window();
        let mut writer = MessageWriter::new(
            &window.control_in,
            &window.control_in_area,
            record.control_position,
        );
        // An instance that does not read its messages is one for force.
        writer.send(&message).then_some(()).ok_or(Errno::EAGAIN)?;
        record.control_position = writer.position();
        if !early {
            partition.ring();
        }
        Ok(())
    }

    /// Rings its doorbell, if it runs.
    pub(crate) fn ring(&self) {
        if let Some(partition) = &lock_briefly(&self.record).partition {
            partition.ring();
        }
    }

    /// Delivers a signal to its first program.
    pub(crate) fn signal(&self, signal: u32) -> Result<()> {
        self.send(Message::new(msg::SIGNAL, &[u64::from(signal)]))
    }

    /// Takes its CPUs away, whatever it does. The node thread carries it out.
    pub(crate) fn halt(&self) -> Result<()> {
        if self.record.lock().status.state != dev::STATE_RUNNING {
            return Err(Errno::ESRCH);
        }
        self.halt_wanted.store(true, Ordering::Release);
        self.hurry();
        crate::request();
        Ok(())
    }

    /// Whether a page is of its memory.
    pub(crate) fn holds(&self, page: &BadPage) -> bool {
        let record = self.record.lock();
        let partition = record.partition.as_ref();
        partition.is_some_and(|partition| partition.holds(page))
    }

    /// Takes its CPUs away because hardware has lost a page of its memory, which nobody gets any
    /// more.
    pub(crate) fn end_for_bad_memory(&self, page: &BadPage) {
        const REASON: &str = "its memory has an uncorrected error";
        log::error!("instance {} ({}) ends: {REASON}", self.id, self.label());
        let mut record = self.record.lock();
        record.halt_reason = Some(String::from(REASON));
        if let Some(partition) = &mut record.partition {
            partition.retire(page);
        }
        drop(record);
        self.halt_wanted.store(true, Ordering::Release);
        crate::request();
    }

    /// Looks at the heartbeats, and does what is to be done about what they tell. Returns in how
    /// many nanoseconds to look again.
    fn check_health(&self, record: &mut InstanceState) -> u64 {
        let Some(partition) = record
            .partition
            .as_mut()
            .filter(|_| self.on_hang != OnHang::Ignore)
        else {
            return u64::MAX;
        };
        let (health, next) = partition.check_health(self.on_hang == OnHang::Stop);
        let (number, detail) = match health {
            Health::Good => (dev::HEALTH_GOOD, String::new()),
            Health::Unresponsive { cpu } => (
                dev::HEALTH_UNRESPONSIVE,
                format!("CPU {cpu} does not answer: its host may have stopped it"),
            ),
            Health::Hung(hang) => (dev::HEALTH_HUNG, format!("{hang}")),
        };
        if number == record.status.health {
            return next;
        }
        record.status.health = number;
        self.tell(dev::EVENT_HEALTH, u64::from(number));
        record.status.set_detail(&detail);
        if health == Health::Good {
            log::info!("instance {} ({}) goes on", self.id, self.label());
        } else {
            log::warn!("instance {} ({}): {detail}", self.id, self.label());
        }
        if number == dev::HEALTH_HUNG && self.on_hang == OnHang::Stop {
            record.halt_reason = Some(detail);
            self.halt_wanted.store(true, Ordering::Release);
        }
        next
    }

    /// Writes to its standard input what fits; `EPIPE` when it has ended.
    pub(crate) fn push_input(&self, bytes: &[u8]) -> Result<usize> {
        let record = &mut *lock_briefly(&self.record);
        let partition = match &record.partition {
            Some(partition) if record.status.state <= dev::STATE_RUNNING => partition,
            _ => return Err(Errno::EPIPE),
        };
        let window = partition.window();
        let mut producer =
            Producer::resume(&window.stdin, &window.stdin_area, record.stdin_position);
        let count = producer.push(bytes);
        record.stdin_position = producer.position();
        if count > 0 && producer.take_wanted() {
            partition.ring();
        }
        Ok(count)
    }

    /// Whether [`Self::push_input`] would take a byte, or fail.
    pub(crate) fn input_ready(&self) -> bool {
        let record = lock_briefly(&self.record);
        match &record.partition {
            Some(partition) if record.status.state <= dev::STATE_RUNNING => {
                let window = partition.window();
                Producer::resume(&window.stdin, &window.stdin_area, record.stdin_position).free()
                    > 0
            }
            _ => true,
        }
    }

    /// No more standard input will come.
    pub(crate) fn close_input(&self) {
        let record = lock_briefly(&self.record);
        if let Some(partition) = &record.partition {
            let window = partition.window();
            Producer::resume(&window.stdin, &window.stdin_area, record.stdin_position).close();
            partition.ring();
        }
    }

    /// Moves things on: CPUs, the end. Returns in how many nanoseconds it is to be looked at again,
    /// whatever happens.
    pub(crate) fn service(self: &Arc<Self>) -> Option<u64> {
        let _charge = self.charge();
        let mut record = self.record.lock();
        if record.status.state != dev::STATE_RUNNING || record.reclaiming {
            return None;
        }
        let record_ref = &mut *record;
        let partition = record_ref.partition.as_mut()?;
        partition.admit_further_cpus();
        record_ref.account_cpus();
        self.settle(record_ref);
        record_ref.partition.as_mut()?.publish_peers();
        let obeys_late = self.follow_pause(record_ref);
        let partition = record_ref.partition.as_mut()?;
        if record_ref.status.start_to_user_ns == 0 {
            let first_user = partition
                .window()
                .status
                .first_user_tsc
                .load(Ordering::Relaxed);
            if first_user != 0 {
                record_ref.status.start_to_user_ns =
                    timer::ticks_to_ns(first_user.saturating_sub(record_ref.start_tsc)).max(1);
                self.state_changed.notify();
            }
        }
        let reports_end = partition.reports_end();
        let next_look = if reports_end || self.halt_wanted.load(Ordering::Acquire) {
            0
        } else if partition.awaits_cpus() {
            crate::HALT_POLL_NS
        } else {
            self.check_health(record_ref)
        };
        if !reports_end && !self.halt_wanted.load(Ordering::Acquire) {
            let booting = record_ref.status.start_to_user_ns == 0;
            let poll = if booting {
                crate::BOOT_POLL_NS
            } else {
                crate::RUN_POLL_NS
            };
            let pause = if obeys_late {
                crate::PAUSE_POLL_NS
            } else {
                poll
            };
            return Some(poll.min(next_look).min(pause));
        }
        let partition = record_ref.partition.as_mut()?;
        if record_ref.halting_since == 0 {
            record_ref.halting_since = timer::now_ns().max(1);
            partition.begin_halt();
        }
        let HaltProgress::Done(report) = partition.halt_step() else {
            return Some(crate::HALT_POLL_NS);
        };
        record.reclaiming = true;
        let has_devices = record.status.device_count > 0;
        drop(record);
        // Scrubbing takes a while, and the other instances must not wait for it.
        let this = self.clone();
        match task::spawn("reclaim", None, move || this.finish(report)) {
            // To stop devices takes a while, too: it is tried again when there is memory for a
            // thread.
            Err(_) if has_devices => {
                self.record.lock().reclaiming = false;
                return Some(crate::QUARANTINE_POLL_NS);
            }
            Ok(reclaimer) => {
                let mut record = self.record.lock();
                if record.status.state == dev::STATE_RUNNING {
                    record.reclaimer = Some(reclaimer);
                }
                drop(record);
                if self.waited_for.load(Ordering::SeqCst) {
                    self.hurry();
                }
            }
            Err(_) => self.finish(report),
        }
        None
    }

    /// Somebody waits for the end: what is left to do for it is done before all that programs do.
    pub(crate) fn hurry(&self) {
        self.waited_for.store(true, Ordering::SeqCst);
        let reclaimer = lock_briefly(&self.record).reclaimer.clone();
        if let Some(reclaimer) = reclaimer {
            reclaimer.set_policy(Policy::Fifo(crate::MANAGEMENT_PRIORITY));
        }
    }

    /// Moves what is in the rings into the logs, and tells readers and writers. True if there may
    /// be more, for which nobody will ring.
    pub(crate) fn move_output(&self) -> bool {
        let _charge = self.charge();
        let drained = self.drain(DrainExtent::LogRoom);
        for (changed, grown) in self.output_changed.iter().zip(drained.grown) {
            if grown {
                changed.notify();
            }
        }
        self.input_changed.notify();
        self.programs_changed.notify();
        drained.more
    }

    /// Moves what is in the rings into the logs. From each ring at most what it holds: an instance
    /// that writes without end, or says so, must not keep the others waiting.
    fn drain(&self, extent: DrainExtent) -> DrainSummary {
        let mut drained = DrainSummary {
            grown: [false; OUTPUTS],
            more: false,
        };
        let mut ring_back = false;
        for stream in 0..KLOG {
            let one = stream_log::drain(STREAM_BYTES, &self.outputs[stream], extent, |buf| {
                self.pop(stream, buf)
            });
            drained.grown[stream] = one.grown;
            drained.more |= one.more;
            ring_back |= one.made_room;
        }
        drained.grown[KLOG] = self.drain_klog();
        if ring_back && let Some(partition) = &lock_briefly(&self.record).partition {
            partition.ring();
        }
        drained
    }

    /// Takes what fits into `buf`, a page at most, out of the ring of standard output or error.
    fn pop(&self, stream: usize, buf: &mut [u8]) -> Popped {
        let record = &mut *lock_briefly(&self.record);
        let Some(partition) = &record.partition else {
            return Popped::NOTHING;
        };
        let window = partition.window();
        let (header, area) = match stream {
            0 => (&window.stdout, &window.stdout_area[..]),
            _ => (&window.stderr, &window.stderr_area[..]),
        };
        let mut consumer = Consumer::resume(header, area, record.positions[stream]);
        let popped = stream_log::pop(&mut consumer, buf);
        record.positions[stream] = consumer.position();
        popped
    }

    /// Moves what is in the ring of the kernel log into its log. True if that grew.
    fn drain_klog(&self) -> bool {
        let (mut budget, mut grown) = (KLOG_BYTES, false);
        let mut buf = [0; PAGE_SIZE];
        while budget > 0 {
            let mut log = self.outputs[KLOG].lock();
            let (count, lost) = {
                let record = &mut *lock_briefly(&self.record);
                let Some(partition) = &record.partition else {
                    break;
                };
                let window = partition.window();
                let mut reader =
                    LogReader::new(&window.klog, &window.klog_area, record.positions[KLOG]);
                let read = reader.read(&mut buf[..PAGE_SIZE.min(budget)]);
                record.positions[KLOG] = reader.position();
                read
            };
            if lost > 0 {
                log.push(format!("({lost} bytes of the log were overwritten)\n").as_bytes());
            }
            log.push(&buf[..count]);
            grown |= count > 0;
            budget -= count;
            if count == 0 {
                break;
            }
        }
        grown
    }

    /// All CPUs are back or lost, and nobody writes any more: takes what was written last, then the
    /// memory, and makes the record's last entries.
    fn finish(self: &Arc<Self>, report: HaltReport) {
        let charge = self.charge();
        self.drain(DrainExtent::All);
        let partition = {
            let mut record = self.record.lock();
            // Nobody writes its counters any more.
            record.read_usage();
            record.status.paused = dev::PAUSED_NO;
            let Some(partition) = record.partition.take() else {
                return;
            };
            record.domain = None;
            partition
        };
        part_from(self);
        drop(charge);
        let (said, code) = {
            let window = partition.window();
            (
                window.state(),
                window.status.exit_code.load(Ordering::Relaxed),
            )
        };
        let bytes = partition.memory_bytes();
        let this = self.clone();
        let is_waited_for = move || this.waited_for.load(Ordering::Relaxed);
        let reclaimed = partition.reclaim();
        let unproven = reclaimed.as_ref().err().copied();
        if unproven.is_some() {
            // The node thread looks at quarantine again while there is something, and now there is.
            crate::request();
        }
        let scrub = reclaimed
            .ok()
            .map(|memory| scrub(memory, &self.charged_ns, is_waited_for));
        let mut record = self.record.lock();
        record.reclaimer = None;
        let halting_since = record.halting_since;
        let halt_reason = record.halt_reason.take();
        let status = &mut record.status;
        status.state = match said {
            Some(State::Exited) => dev::STATE_EXITED,
            Some(State::Panicked) => dev::STATE_PANICKED,
            _ => dev::STATE_HALTED,
        };
        // The instance's own word: only what an exit status can be.
        status.exit_code = match status.state {
            dev::STATE_EXITED => (code & 0xff) as i32,
            _ => 137,
        };
        status.ended_ns = timer::wall_ns();
        status.reset_cpus = report.reset;
        status.lost_cpus = report.missing;
        status.lost_devices = unproven.map_or(0, |unproven| unproven.functions as u32);
        match scrub {
            Some(scrub) => {
                status.scrubbed_bytes = scrub.bytes;
                status.scrub_ns = scrub.ns;
            }
            None => status.leaked = bytes,
        }
        status.reclaim_ns = timer::now_ns()
            .saturating_sub(halting_since)
            .saturating_sub(status.scrub_ns);
        let what = match status.state {
            dev::STATE_EXITED => format!("exited with status {}", status.exit_code),
            dev::STATE_PANICKED => String::from("its kernel panicked: see its kernel log"),
            _ => halt_reason.map_or_else(
                || String::from("halted by force"),
                |reason| format!("halted: {reason}"),
            ),
        };
        let missing = unproven.map_or_else(String::new, |unproven| {
            format!(
                "; {unproven}: they and {} MiB are in quarantine",
                bytes >> 20
            )
        });
        let (kind, value) = match status.state {
            dev::STATE_EXITED => (dev::EVENT_EXIT, status.exit_code as u64),
            dev::STATE_PANICKED => (dev::EVENT_PANIC, 0),
            _ => (dev::EVENT_HALT, 0),
        };
        record.status.set_detail(&format!("{what}{missing}"));
        self.tell(kind, value);
        drop(record);
        log::info!("instance {} ({}) {what}{missing}", self.id, self.label());
        self.close();
    }

    /// Makes the entries for what came back from quarantine: all of it.
    fn leave_quarantine(&self, scrub: Scrub) {
        let mut record = self.record.lock();
        let status = &mut record.status;
        (status.lost_cpus, status.lost_devices, status.leaked) = (0, 0, 0);
        status.scrubbed_bytes = scrub.bytes;
        status.scrub_ns = scrub.ns;
        status.set_detail("ended; some of what it had was in quarantine for a while");
        self.tell(dev::EVENT_RELEASE, scrub.bytes);
    }

    /// Closes all logs: nothing will be written or read any more. Nor is there anything to look
    /// after, or a network.
    fn close(&self) {
        TABLE.lock().active.remove(&self.id);
        if let Some(network) = &self.network {
            network.give_back();
        }
        for output in &self.outputs {
            output.lock().closed = true;
        }
        self.output_changed.iter().for_each(PollQueue::notify);
        self.input_changed.notify();
        self.state_changed.notify();
        self.programs_changed.notify();
    }

    /// Gives everything back of an instance that is not running; `EBUSY` if it is.
    pub(crate) fn destroy(&self) -> Result<()> {
        let mut record = self.record.lock();
        if record.status.state == dev::STATE_RUNNING {
            return Err(Errno::EBUSY);
        }
        let partition = record.partition.take();
        record.domain = None;
        if record.status.state == dev::STATE_CREATED {
            record.status.state = dev::STATE_FAILED;
        }
        drop(record);
        // Of one that was never started: its CPUs are in the park page, its memory was never
        // granted, its devices never handed over.
        drop(partition);
        self.close();
        Ok(())
    }
}

/// Looks at what is in quarantine, and takes back what has come. Returns in how many nanoseconds it
/// is to be looked at again.
pub(crate) fn service_quarantine() -> Option<u64> {
    while let Some(released) = quarantine::release() {
        let instance = crate::instances().find(|instance| instance.id == released.id());
        let take_back = move || {
            let charged = instance.as_ref().map(|instance| &instance.charged_ns);
            let charged = charged.cloned().unwrap_or_default();
            // Else it is in quarantine again.
            let Some(memory) = released.reclaim() else {
                return;
            };
            let scrub = scrub(memory, &charged, || false);
            if let Some(instance) = instance {
                instance.leave_quarantine(scrub);
            }
        };
        // If there is no thread for it, it is in quarantine again, and tried again then.
        if task::spawn("reclaim", None, take_back).is_err() {
            break;
        }
    }
    (!quarantine::is_empty()).then_some(crate::QUARANTINE_POLL_NS)
}

/// Zeroes an instance's memory, with all CPUs of the supervisor at it, and frees it. While somebody
/// waits for that it goes before what programs do.
fn scrub(
    memory: Scrubbing,
    charged_ns: &Arc<AtomicU64>,
    is_waited_for: impl Fn() -> bool + Send + Sync + 'static,
) -> Scrub {
    let memory = Arc::new(memory);
    let (shared, charged_ns) = (memory.clone(), charged_ns.clone());
    parallel::run(memory.pieces(), move |_| {
        let _charge = Charge::new(&*charged_ns);
        let _raised = is_waited_for().then(|| task::raise(crate::MANAGEMENT_PRIORITY));
        shared.scrub_next()
    });
    Arc::into_inner(memory)
        .expect("the tasks are over and their closure is gone")
        .finish()
}

//! Instances: the record of each, its partition while it has one, and its way from creation to the
//! end.
//!
//! A record lives until it is destroyed; the partition only from creation to the end of life. State
//! changes: created → running → exited, panicked, halted or failed. The instance's own word (its
//! window) starts an end; the record changes when CPUs and memory are back, or known to be lost.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::dev::{self, Status};
use abi::errno::Errno;
use abi::msg::{self, Message};
use abi::window::State;
use fs::Result;
use fs::poll::PollQueue;
use guard::machine_check::BadPage;
use guard::mem::{Scrub, Scrubbing};
use guard::partition::{HaltProgress, HaltReport, Partition, quarantine};
use guard::timer;
use ring::{Consumer, LogReader, MessageWriter, Producer};
use task::Mutex;

use crate::stream_log::{self, DrainExtent, StreamLog};

/// Streams of an instance, by `dev::STREAM_*`, that it writes.
const OUTPUTS: usize = 3;

/// An instance, from its creation until it is forgotten.
pub(crate) struct Instance {
    id: u32,
    label: String,
    record: Mutex<InstanceState>,
    /// Standard output, standard error, kernel log.
    outputs: [Mutex<StreamLog>; OUTPUTS],
    /// Notified when a log grows or is closed.
    pub(crate) output_changed: [PollQueue; OUTPUTS],
    /// Notified when there is room for standard input, and at the end.
    pub(crate) input_changed: PollQueue,
    /// Notified when the state changes.
    pub(crate) state_changed: PollQueue,
    halt_wanted: AtomicBool,
}

struct InstanceState {
    partition: Option<Partition>,
    status: Status,
    /// Private positions in the window's rings.
    positions: [u64; OUTPUTS],
    stdin_position: u64,
    control_position: u64,
    start_tsc: u64,
    halting_since: u64,
    /// The CPUs are back or lost, and the memory is being taken back.
    reclaiming: bool,
    /// Hardware has lost some of its memory.
    bad_memory: bool,
}

/// Outcome of draining the rings of all outputs.
struct DrainSummary {
    /// The logs that grew.
    grown: [bool; OUTPUTS],
    /// A ring may hold more.
    more: bool,
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
    pub(crate) fn new(label: String, partition: Partition, status: Status) -> Result<Arc<Self>> {
        let log = || StreamLog::new().map(Mutex::new);
        Ok(Arc::new(Self {
            outputs: [log()?, log()?, log()?],
            id: partition.id(),
            label,
            record: Mutex::new(InstanceState {
                partition: Some(partition),
                status,
                positions: [0; OUTPUTS],
                stdin_position: 0,
                control_position: 0,
                start_tsc: 0,
                halting_since: 0,
                reclaiming: false,
                bad_memory: false,
            }),
            output_changed: Default::default(),
            input_changed: PollQueue::new(),
            state_changed: PollQueue::new(),
            halt_wanted: AtomicBool::new(false),
        }))
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    pub(crate) fn status(&self) -> Status {
        self.record.lock().status
    }

    /// True when it will not run (any more).
    pub(crate) fn has_ended(&self) -> bool {
        self.record.lock().status.state > dev::STATE_RUNNING
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
    pub(crate) fn load<R>(&self, f: impl FnOnce(&mut Partition) -> Result<R>) -> Result<R> {
        let mut record = self.record.lock();
        if record.status.state != dev::STATE_CREATED {
            return Err(Errno::EBUSY);
        }
        f(record.partition.as_mut().ok_or(Errno::EBUSY)?)
    }

    /// Starts the instance's CPUs.
    pub(crate) fn start(&self) -> Result<()> {
        {
            let mut record = self.record.lock();
            let record = &mut *record;
            if record.status.state != dev::STATE_CREATED {
                return Err(Errno::EBUSY);
            }
            let partition = record.partition.as_mut().ok_or(Errno::EBUSY)?;
            record.start_tsc = timer::tsc();
            partition.start().map_err(|error| {
                record.status.set_detail(&format!("{error}"));
                Errno::ENOMEM
            })?;
            record.status.state = dev::STATE_RUNNING;
            record.status.started_ns = timer::wall_ns();
        }
        self.state_changed.notify();
        // From now on the rings want to be read.
        crate::WORK_EVENT.set();
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
        crate::WORK_EVENT.set();
        Ok(())
    }

    /// Whether a page is of its memory.
    pub(crate) fn holds(&self, page: &BadPage) -> bool {
        let record = self.record.lock();
        let partition = record.partition.as_ref();
        partition.is_some_and(|partition| partition.holds(page))
    }

    /// Takes its CPUs away because hardware has lost some of its memory.
    pub(crate) fn end_for_bad_memory(&self) {
        log::error!(
            "instance {} ({}) ends: its memory has an uncorrected error",
            self.id,
            self.label
        );
        self.record.lock().bad_memory = true;
        self.halt_wanted.store(true, Ordering::Release);
        crate::WORK_EVENT.set();
    }

    /// Writes to its standard input what fits; `EPIPE` when it has ended.
    pub(crate) fn push_input(&self, bytes: &[u8]) -> Result<usize> {
        let mut record = self.record.lock();
        let record = &mut *record;
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
        let record = self.record.lock();
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
        let record = self.record.lock();
        if let Some(partition) = &record.partition {
            let window = partition.window();
            Producer::resume(&window.stdin, &window.stdin_area, record.stdin_position).close();
            partition.ring();
        }
    }

    /// Moves things on: rings, CPUs, the end. Returns in how many nanoseconds it is to be looked at
    /// again, whatever happens.
    pub(crate) fn service(self: &Arc<Self>) -> Option<u64> {
        let mut record = self.record.lock();
        if record.status.state != dev::STATE_RUNNING || record.reclaiming {
            return None;
        }
        let drained = self.drain(&mut record, DrainExtent::LogRoom);
        let record_ref = &mut *record;
        let partition = record_ref.partition.as_mut()?;
        partition.admit_further_cpus();
        if record_ref.status.start_to_user_ns == 0 {
            let first_user = partition
                .window()
                .status
                .first_user_tsc
                .load(Ordering::Relaxed);
            if first_user != 0 {
                record_ref.status.start_to_user_ns =
                    timer::ticks_to_ns(first_user.saturating_sub(record_ref.start_tsc));
            }
        }
        let ends = partition.reports_end() || self.halt_wanted.load(Ordering::Acquire);
        if ends {
            if record_ref.halting_since == 0 {
                record_ref.halting_since = timer::now_ns().max(1);
                partition.begin_halt();
            }
            if let HaltProgress::Done(report) = partition.halt_step() {
                record.reclaiming = true;
                drop(record);
                // Scrubbing takes a while, and the other instances must not wait for it.
                let this = self.clone();
                if task::spawn("reclaim", None, move || this.finish(report)).is_err() {
                    self.finish(report);
                }
                return None;
            }
        }
        let booting = record.status.start_to_user_ns == 0;
        drop(record);
        for (changed, grown) in self.output_changed.iter().zip(drained.grown) {
            if grown {
                changed.notify();
            }
        }
        self.input_changed.notify();
        if drained.more {
            crate::WORK_EVENT.set();
        }
        Some(match (ends, booting) {
            (true, _) => crate::HALT_POLL_NS,
            (false, true) => crate::BOOT_POLL_NS,
            (false, false) => crate::RUN_POLL_NS,
        })
    }

    /// Moves what is in the rings into the logs. From each ring at most what it holds: an instance
    /// that writes without end, or says so, must not keep the others waiting.
    fn drain(&self, record: &mut InstanceState, extent: DrainExtent) -> DrainSummary {
        let mut drained = DrainSummary {
            grown: [false; OUTPUTS],
            more: false,
        };
        let Some(partition) = &record.partition else {
            return drained;
        };
        let window = partition.window();
        let mut ring_back = false;
        let rings = [
            (&window.stdout, &window.stdout_area[..]),
            (&window.stderr, &window.stderr_area[..]),
        ];
        for (stream, (header, area)) in rings.into_iter().enumerate() {
            let mut consumer = Consumer::resume(header, area, record.positions[stream]);
            let one = stream_log::drain(&mut consumer, area.len(), &self.outputs[stream], extent);
            drained.grown[stream] = one.grown;
            drained.more |= one.more;
            ring_back |= one.made_room;
            record.positions[stream] = consumer.position();
        }
        let klog = dev::STREAM_KLOG as usize - 1;
        let mut reader = LogReader::new(&window.klog, &window.klog_area, record.positions[klog]);
        let mut budget = window.klog_area.len();
        let mut buf = [0; 4096];
        while budget > 0 {
            let (count, lost) = reader.read(&mut buf[..4096.min(budget)]);
            let mut log = self.outputs[klog].lock();
            if lost > 0 {
                log.push(format!("({lost} bytes of the log were overwritten)\n").as_bytes());
            }
            log.push(&buf[..count]);
            drained.grown[klog] |= count > 0;
            budget -= count;
            if count == 0 {
                break;
            }
        }
        record.positions[klog] = reader.position();
        if ring_back {
            partition.ring();
        }
        drained
    }

    /// All CPUs are back or lost, and nobody writes any more: takes what was written last, then the
    /// memory, and makes the record's last entries.
    fn finish(&self, report: HaltReport) {
        let mut record = self.record.lock();
        self.drain(&mut record, DrainExtent::All);
        let Some(partition) = record.partition.take() else {
            return;
        };
        drop(record);
        let (said, code) = {
            let window = partition.window();
            (
                window.state(),
                window.status.exit_code.load(Ordering::Relaxed),
            )
        };
        let bytes = partition.memory_bytes();
        let scrub = partition.reclaim().map(scrub);
        let mut record = self.record.lock();
        let halting_since = record.halting_since;
        let bad_memory = record.bad_memory;
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
            _ if bad_memory => String::from("halted: its memory has an uncorrected error"),
            _ => String::from("halted by force"),
        };
        let missing = if report.missing > 0 {
            format!(
                "; {} CPUs did not come back: they and {} MiB are in quarantine",
                report.missing,
                bytes >> 20
            )
        } else {
            String::new()
        };
        record.status.set_detail(&format!("{what}{missing}"));
        drop(record);
        log::info!("instance {} ({}) {what}{missing}", self.id, self.label);
        self.close();
    }

    /// Makes the entries for what came back from quarantine: all of it.
    fn leave_quarantine(&self, scrub: Scrub) {
        let mut record = self.record.lock();
        let status = &mut record.status;
        (status.lost_cpus, status.leaked) = (0, 0);
        status.scrubbed_bytes = scrub.bytes;
        status.scrub_ns = scrub.ns;
        status.set_detail("ended; some of its CPUs were in quarantine for a while");
    }

    /// Closes all logs: nothing will be written or read any more.
    fn close(&self) {
        for output in &self.outputs {
            output.lock().closed = true;
        }
        self.output_changed.iter().for_each(PollQueue::notify);
        self.input_changed.notify();
        self.state_changed.notify();
    }

    /// Gives everything back of an instance that is not running; `EBUSY` if it is.
    pub(crate) fn destroy(&self) -> Result<()> {
        let mut record = self.record.lock();
        if record.status.state == dev::STATE_RUNNING {
            return Err(Errno::EBUSY);
        }
        // Of one that was never started: its CPUs are in the park page, its memory was never
        // granted.
        drop(record.partition.take());
        if record.status.state == dev::STATE_CREATED {
            record.status.state = dev::STATE_FAILED;
        }
        drop(record);
        self.close();
        Ok(())
    }
}

/// Looks at what is in quarantine, and takes back what has come. Returns in how many nanoseconds it
/// is to be looked at again.
pub(crate) fn service_quarantine() -> Option<u64> {
    while let Some(released) = quarantine::release() {
        let instance = crate::instances().find(|instance| instance.id == released.id);
        let take_back = move || {
            let scrub = scrub(released.memory);
            if let Some(instance) = instance {
                instance.leave_quarantine(scrub);
            }
        };
        // If there is no thread for it, the memory is free all the same, and zeroed when it is
        // given out.
        let _ = task::spawn("reclaim", None, take_back);
    }
    (!quarantine::is_empty()).then_some(crate::QUARANTINE_POLL_NS)
}

/// Zeroes an instance's memory, with all CPUs of the supervisor at it, and frees it.
fn scrub(memory: Scrubbing) -> Scrub {
    let memory = Arc::new(memory);
    let shared = memory.clone();
    parallel::run(memory.pieces(), move |_| shared.scrub_next());
    Arc::into_inner(memory)
        .expect("the tasks are over and their closure is gone")
        .finish()
}

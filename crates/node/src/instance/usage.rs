//! What an instance has used, and what the supervisor has done for it.
//!
//! CPU times and counts are the instance's own counters, which are read where they stand, at no
//! cost to it. They are its word: what is told of them never becomes less, adds up, and is no more
//! than its CPUs can have done since they were given. Memory in use and threads are put together by
//! the instance when it is asked; nobody waits for the answer here.

use alloc::sync::Arc;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::Window;
use abi::dev::{self, Stats, Status};
use abi::usage::CpuTimes;
use guard::partition::Partition;
use guard::{cpu, mem, timer, usage};

use super::{Instance, InstanceState, KLOG};

/// CPU time of the calling thread that is charged to an instance, until it is dropped.
pub(crate) struct Charge<A: Deref<Target = AtomicU64>> {
    to: A,
    begun_ns: u64,
}

impl<A: Deref<Target = AtomicU64>> Charge<A> {
    pub(crate) fn new(to: A) -> Self {
        let begun_ns = task::current().cpu_time_ns();
        Self { to, begun_ns }
    }
}

impl<A: Deref<Target = AtomicU64>> Drop for Charge<A> {
    fn drop(&mut self) {
        let now_ns = task::current().cpu_time_ns();
        self.to
            .fetch_add(now_ns.saturating_sub(self.begun_ns), Ordering::Relaxed);
    }
}

/// Accounts of an instance.
#[derive(Clone, Copy, Default)]
pub(super) struct Account {
    /// The last figures that were told.
    told: CpuTimes,
    /// CPU time that it was given, in nanoseconds, up to `at_ns`.
    given_ns: u64,
    at_ns: u64,
    /// Number of the last question for what it puts together itself.
    asked: u32,
    /// The last answer: number of the question, threads, memory in use.
    answered: u32,
    threads: u32,
    used: u64,
}

impl Account {
    /// The account of an instance that has outlived its supervisor: it has had its CPUs since its
    /// start, as far as anybody knows.
    pub(super) fn adopted(window: &Window, status: &Status) -> Self {
        let passed = timer::wall_ns().saturating_sub(status.started_ns);
        let asked = window.orders.report.load(Ordering::Relaxed);
        Self {
            given_ns: passed.saturating_mul(u64::from(status.cpus)),
            at_ns: timer::now_ns(),
            asked,
            answered: asked,
            ..Self::default()
        }
    }
}

impl InstanceState {
    /// Takes in that its CPUs were its own until now. Before their number changes, and from time to
    /// time.
    pub(super) fn account_cpus(&mut self) {
        let (account, now) = (&mut self.account, timer::now_ns());
        let partition = self.partition.as_ref();
        let cpus = partition.map_or(0, Partition::cpu_count);
        if self.status.state == dev::STATE_RUNNING && account.at_ns != 0 {
            let passed = now.saturating_sub(account.at_ns);
            account.given_ns += passed * u64::from(cpus);
        }
        account.at_ns = now;
    }

    /// Takes in what the instance's counters say, and its last answer.
    pub(super) fn read_usage(&mut self) {
        self.account_cpus();
        let account = &mut self.account;
        let Some(partition) = &self.partition else {
            return;
        };
        let (window, now) = (partition.window(), timer::now_ns());
        // All numbers that it can have had, so that what CPUs did counts that have left.
        let cpus = &window.usage[..partition.cpu_limit() as usize];
        let mut now_told = CpuTimes::default();
        cpus.iter().for_each(|cpu| now_told.add(&cpu.read(now)));
        account.told = account.told.next(now_told, account.given_ns);
        let report = &window.report;
        let answered = report.answered.load(Ordering::Acquire);
        if answered == account.asked && answered != account.answered {
            account.answered = answered;
            account.threads = report.threads.load(Ordering::Relaxed);
            account.used = report.used.load(Ordering::Relaxed);
        }
    }
}

impl Instance {
    /// Charges what the calling thread does to this instance, until the result is dropped.
    pub(crate) fn charge(&self) -> Charge<Arc<AtomicU64>> {
        Charge::new(self.charged_ns.clone())
    }

    /// Charges what the calling thread has done since it had that CPU time to this instance.
    pub(crate) fn charge_since(&self, begun_ns: u64) {
        let to = self.charged_ns.clone();
        drop(Charge { to, begun_ns });
    }

    /// Figures of what it has used so far; `ask` has it put together the rest for the next look, if
    /// it runs.
    pub(crate) fn stats(&self, ask: bool) -> Stats {
        let mut record = self.record.lock();
        let record = &mut *record;
        record.read_usage();
        let runs = record.status.state == dev::STATE_RUNNING && !record.reclaiming;
        // One that stands still does not answer, and finds no queue of questions afterwards.
        if ask
            && runs
            && record.status.paused == dev::PAUSED_NO
            && let Some(partition) = &record.partition
        {
            let asked = record.account.asked.wrapping_add(1).max(1);
            record.account.asked = asked;
            let question = &partition.window().orders.report;
            question.store(asked, Ordering::Release);
            partition.ring();
        }
        let Account {
            told,
            asked,
            answered,
            threads,
            used,
            ..
        } = record.account;
        let [stdout, stderr, _] = record.positions;
        Stats {
            id: self.id,
            cpus: record.status.cpus,
            threads,
            asked,
            answered,
            supervisor_ns: self.charged_ns.load(Ordering::Relaxed),
            messages: record.control_position,
            input_bytes: record.stdin_position,
            output_bytes: stdout.saturating_add(stderr),
            log_bytes: record.positions[KLOG],
            mem: record.status.mem,
            mem_used: used.min(record.status.mem),
            ..of_times(&told)
        }
    }
}

/// Figures of what the supervisor has used so far.
pub(crate) fn supervisors_stats() -> Stats {
    let (now, memory) = (timer::now_ns(), mem::stats());
    let mut times = CpuTimes::default();
    let cpus = (0..cpu::most() as u32).map(cpu::CpuId);
    cpus.for_each(|cpu| times.add(&usage::of(cpu).read(now)));
    let bytes = |frames: u64| frames * abi::layout::PAGE_SIZE as u64;
    let own = memory.total.saturating_sub(memory.granted + memory.leaked);
    Stats {
        cpus: cpu::count() as u32,
        mem: bytes(own),
        mem_used: bytes(own.saturating_sub(memory.free)),
        ..of_times(&CpuTimes::default().next(times, u64::MAX))
    }
}

fn of_times(times: &CpuTimes) -> Stats {
    Stats {
        up_ns: times.up_ns,
        user_ns: times.busy_ns().saturating_sub(times.system_ns),
        system_ns: times.system_ns,
        idle_ns: times.idle_ns,
        paused_ns: times.paused_ns,
        switches: times.switches,
        interrupts: times.interrupts,
        ..Stats::default()
    }
}

//! Running a model as often as it takes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use crate::plan::{self, Plan, Random, Search, Turn, Way};
use crate::run::Run;
use crate::{Seat, sit};

/// Environment: a schedule to be replayed, as a failure prints it. For one test, named on the
/// command line.
pub const SCHEDULE: &str = "EXPLORE_SCHEDULE";
/// Environment: so many pre-emptions, instead of what models ask for.
pub const PREEMPTIONS: &str = "EXPLORE_PREEMPTIONS";
/// Environment: so many random schedules for each model.
pub const RANDOM: &str = "EXPLORE_RANDOM";
/// Environment: where random schedules begin.
pub const SEED: &str = "EXPLORE_SEED";

/// Settings of an exploration: schedules, steps, seed.
#[derive(Clone, Debug)]
pub struct Model {
    preemptions: u32,
    random: u64,
    seed: u64,
    schedule: Option<String>,
}

/// Figures of a check: number of schedules, length of the longest, time of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of schedules, random ones included.
    pub schedules: u64,
    /// Decision points of the longest one.
    pub steps: u32,
    /// Time it took.
    pub time: Duration,
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is no number")),
    )
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

impl Model {
    /// All schedules with at most two pre-emptions, and 200 random ones.
    #[must_use]
    pub fn new() -> Self {
        Self {
            preemptions: 2,
            random: 200,
            seed: 1,
            schedule: None,
        }
    }

    /// Limits the number of pre-emptions in a schedule.
    #[must_use]
    pub fn preemptions(mut self, most: u32) -> Self {
        self.preemptions = most;
        self
    }

    /// Sets how many random schedules are run after the bounded ones.
    #[must_use]
    pub fn random(mut self, count: u64) -> Self {
        self.random = count;
        self
    }

    /// Only this schedule, as a failure prints it.
    #[must_use]
    pub fn schedule(mut self, schedule: &str) -> Self {
        self.schedule = Some(schedule.into());
        self
    }

    /// Explores, as the environment says where it says anything.
    ///
    /// # Panics
    /// With what failed, the schedule, and each thread's last steps.
    pub fn check(mut self, body: impl Fn() + Send + Sync + 'static) -> Report {
        self.preemptions = number(PREEMPTIONS).map_or(self.preemptions, |most| most as u32);
        self.random = number(RANDOM).unwrap_or(self.random);
        self.seed = number(SEED).unwrap_or(self.seed);
        self.schedule = std::env::var(SCHEDULE).ok().or(self.schedule);
        self.explore(body)
            .unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Explores, whatever the environment says.
    ///
    /// # Errors
    /// What failed, as [`Self::check`] says it.
    pub fn explore(&self, body: impl Fn() + Send + Sync + 'static) -> Result<Report, String> {
        // One model at a time: of two, each could wait for a lock of the process that a thread of
        // the other has without having the turn.
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut explorer = Explorer {
            body: Arc::new(body),
            workers: Workers::default(),
            report: Report::default(),
        };
        let begun = Instant::now();
        if let Some(schedule) = &self.schedule {
            let turns =
                plan::parse(schedule).ok_or_else(|| format!("{schedule:?} is no schedule"))?;
            explorer.run(Way::Replay(turns))?;
        } else {
            // What is made once in a process is made by the first run, which is not part of the
            // search.
            explorer.run(Way::Replay(Vec::new()))?;
            explorer.search(self.preemptions)?;
            for seed in 0..self.random {
                let steps = explorer.report.steps;
                explorer.run(Way::Random(Random::new(
                    self.seed.wrapping_add(seed << 32),
                    steps,
                )))?;
            }
        }
        explorer.report.time = begun.elapsed();
        eprintln!("{:?}", explorer.report);
        Ok(explorer.report)
    }
}

struct Explorer {
    body: Arc<dyn Fn() + Send + Sync>,
    workers: Workers,
    report: Report,
}

impl Explorer {
    /// All schedules up to a bound, those with fewer pre-emptions first.
    fn search(&mut self, preemptions: u32) -> Result<(), String> {
        for bound in 0..=preemptions {
            let mut search = Search::new(bound);
            loop {
                let Way::Search(mut used) = self.run(Way::Search(search))? else {
                    return Ok(());
                };
                if !used.next() {
                    break;
                }
                search = used;
            }
        }
        Ok(())
    }

    fn run(&mut self, way: Way) -> Result<Way, String> {
        let run = Arc::new(Run::new(Plan::new(way), self.workers.clone()));
        let body = self.body.clone();
        let first = run.begin("main");
        start(&run, first, move || body());
        let (plan, failure) = run.wait();
        self.report.schedules += 1;
        self.report.steps = self.report.steps.max(plan.step);
        match failure {
            None => Ok(plan.way),
            Some(why) => {
                let schedule: Vec<String> = plan.turns.iter().map(Turn::to_string).collect();
                Err(format!(
                    "{why}schedule {} of this model: {SCHEDULE}='{}'",
                    self.report.schedules,
                    schedule.join(" ")
                ))
            }
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The threads that models run on: the same for each run.
#[derive(Clone, Default)]
pub(crate) struct Workers(Arc<Mutex<Vec<mpsc::Sender<Job>>>>);

impl Workers {
    fn give(&self, number: usize, job: Job) {
        let mut workers = self.0.lock().expect("nobody panics who has it");
        while workers.len() <= number {
            let (give, take) = mpsc::channel::<Job>();
            std::thread::spawn(move || take.into_iter().for_each(|job| job()));
            workers.push(give);
        }
        workers[number]
            .send(job)
            .expect("a worker ends with its explorer");
    }
}

/// Lets a thread of a run begin, when it gets the turn.
pub(crate) fn start(run: &Arc<Run>, number: usize, body: impl FnOnce() + Send + 'static) {
    let seat = Seat {
        run: run.clone(),
        me: number,
    };
    let job = move || {
        let run = seat.run.clone();
        run.await_turn(number);
        sit(Some(seat));
        let result = catch_unwind(AssertUnwindSafe(body));
        sit(None);
        let message = result.err().map(|panic| {
            match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
                (Some(text), _) => (*text).to_owned(),
                (_, Some(text)) => text.clone(),
                _ => "without a message".to_owned(),
            }
        });
        run.ended(number, message.as_deref());
    };
    run.workers.give(number, Box::new(job));
}

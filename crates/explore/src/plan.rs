//! Choice of the thread that goes on at a decision point: by depth-first search, at random, or as a
//! failed schedule says.

use std::fmt;

/// Possible next step: a thread that runs, or a deadline that passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The number of the thread that runs next.
    pub(crate) thread: usize,
    /// Before that, time passes up to its deadline.
    pub(crate) time: bool,
    /// Whether this is a pre-emption: another thread could have gone on, or time passes although
    /// some thread could run.
    pub(crate) preempts: bool,
}

/// A choice other than the first one, at a step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    step: u32,
    thread: usize,
    time: bool,
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}{}",
            self.step,
            self.thread,
            if self.time { "t" } else { "" }
        )
    }
}

/// The turns of a schedule as [`crate::SCHEDULE`] has them: `step:thread`, with `t` behind it if
/// time passes.
pub(crate) fn parse(schedule: &str) -> Option<Vec<Turn>> {
    let turn = |word: &str| {
        let (step, thread) = word.split_once(':')?;
        let (thread, time) = thread
            .strip_suffix('t')
            .map_or((thread, false), |thread| (thread, true));
        Some(Turn {
            step: step.parse().ok()?,
            thread: thread.parse().ok()?,
            time,
        })
    };
    schedule.split_whitespace().map(turn).collect()
}

/// Way of making the choices of a run.
pub(crate) enum Way {
    /// The first choice, but at the steps named.
    Replay(Vec<Turn>),
    /// See [`Search`].
    Search(Search),
    /// See [`Random`].
    Random(Random),
}

/// The choices of a run: how they are made, and which were made.
pub(crate) struct Plan {
    pub(crate) way: Way,
    pub(crate) turns: Vec<Turn>,
    pub(crate) step: u32,
}

impl Plan {
    pub(crate) fn new(way: Way) -> Self {
        Self {
            way,
            turns: Vec::new(),
            step: 0,
        }
    }

    /// Makes one; `Err` says why it cannot.
    pub(crate) fn choose(&mut self, choices: &[Choice]) -> Result<Choice, String> {
        let step = self.step;
        self.step += 1;
        let at = match &mut self.way {
            Way::Replay(turns) => match turns.iter().find(|turn| turn.step == step) {
                None => 0,
                Some(turn) => choices
                    .iter()
                    .position(|choice| (choice.thread, choice.time) == (turn.thread, turn.time))
                    .ok_or_else(|| {
                        format!(
                            "the schedule does not fit: at step {step} there is no choice {turn}"
                        )
                    })?,
            },
            Way::Search(search) => search.choose(choices)?,
            Way::Random(random) => random.choose(step, choices),
        };
        let choice = choices[at];
        if at != 0 {
            self.turns.push(Turn {
                step,
                thread: choice.thread,
                time: choice.time,
            });
        }
        Ok(choice)
    }
}

/// Depth-first search through all schedules with at most so many pre-emptions.
pub(crate) struct Search {
    /// Decisions with more than one outcome: the outcome taken, and how many there are.
    path: Vec<(usize, usize)>,
    /// Position of this run in the list.
    at: usize,
    bound: u32,
    left: u32,
}

impl Search {
    pub(crate) fn new(bound: u32) -> Self {
        Self {
            path: Vec::new(),
            at: 0,
            bound,
            left: bound,
        }
    }

    fn choose(&mut self, choices: &[Choice]) -> Result<usize, String> {
        // Those that pre-empt are the last.
        let count = choices
            .iter()
            .filter(|choice| !choice.preempts || self.left > 0)
            .count();
        if count == 1 {
            return Ok(0);
        }
        let chosen = match self.path.get(self.at) {
            Some((chosen, before)) if *before == count => *chosen,
            Some(_) => {
                return Err(
                    "the model is not deterministic: the same choices led elsewhere".into(),
                );
            }
            None => {
                self.path.push((0, count));
                0
            }
        };
        self.at += 1;
        self.left -= u32::from(choices[chosen].preempts);
        Ok(chosen)
    }

    /// Goes to the next schedule; false if that was the last one.
    pub(crate) fn next(&mut self) -> bool {
        (self.at, self.left) = (0, self.bound);
        while let Some((chosen, count)) = self.path.pop() {
            if chosen + 1 < count {
                self.path.push((chosen + 1, count));
                return true;
            }
        }
        false
    }
}

/// PCT: the thread with the highest priority goes on; at a few random steps it becomes the lowest,
/// or time passes.
pub(crate) struct Random {
    state: u64,
    priorities: Vec<u64>,
    changes: Vec<u32>,
    lowest: u64,
}

/// Most changes of priority in a run.
const CHANGES: u64 = 6;

impl Random {
    /// A random plan for a run of about `steps` steps.
    pub(crate) fn new(seed: u64, steps: u32) -> Self {
        let mut random = Self {
            state: seed,
            priorities: Vec::new(),
            changes: Vec::new(),
            lowest: CHANGES + 1,
        };
        let count = 1 + random.draw() % CHANGES;
        random.changes = (0..count)
            .map(|_| (random.draw() % u64::from(steps.max(1))) as u32)
            .collect();
        random
    }

    /// SplitMix64.
    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn priority(&mut self, thread: usize) -> u64 {
        while self.priorities.len() <= thread {
            let drawn = self.draw() | 1 << 63;
            self.priorities.push(drawn);
        }
        self.priorities[thread]
    }

    fn choose(&mut self, step: u32, choices: &[Choice]) -> usize {
        let highest = |random: &mut Self| {
            let ready = (0..choices.len()).filter(|&at| !choices[at].time);
            ready
                .max_by_key(|&at| random.priority(choices[at].thread))
                .unwrap_or(0)
        };
        let at = highest(self);
        if !self.changes.contains(&step) {
            return at;
        }
        if let Some(time) = choices.iter().position(|choice| choice.time)
            && self.draw().is_multiple_of(2)
        {
            return time;
        }
        self.lowest -= 1;
        self.priorities[choices[at].thread] = self.lowest;
        highest(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_reads_as_it_is_printed() {
        let turns = parse("3:1 14:0t").unwrap();
        assert_eq!(
            turns.iter().map(Turn::to_string).collect::<Vec<_>>(),
            ["3:1", "14:0t"]
        );
        assert_eq!(parse("3:x"), None);
    }

    #[test]
    fn a_search_visits_all_schedules_within_its_bound() {
        // Two choices at each of four steps, of which the second pre-empts: C(4,0) + C(4,1) +
        // C(4,2).
        let choices = [
            Choice {
                thread: 0,
                time: false,
                preempts: false,
            },
            Choice {
                thread: 1,
                time: false,
                preempts: true,
            },
        ];
        let mut search = Search::new(2);
        let mut seen = std::collections::BTreeSet::new();
        loop {
            let schedule: Vec<usize> = (0..4).map(|_| search.choose(&choices).unwrap()).collect();
            assert!(seen.insert(schedule), "a schedule came twice");
            if !search.next() {
                break;
            }
        }
        assert_eq!(seen.len(), 11);
    }
}

//! The events of all instances: they come in order, without holes, and tell the same as `ls`.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::model::{Entry, Verdict};

/// A line of `events --json`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Event {
    sequence: u64,
    event: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    id: u32,
    cpus: Option<u32>,
    memory: Option<u64>,
}

/// Where an instance is in its life, by its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Created,
    Running,
    Paused,
    Ended,
}

/// The life of an instance as its events tell it.
#[derive(Clone, Debug)]
struct Life {
    name: String,
    state: State,
    has: (u32, u64),
}

/// All that was told.
#[derive(Debug, Default)]
pub(crate) struct Events {
    last: u64,
    lives: BTreeMap<u32, Life>,
}

impl Events {
    /// Begins behind these, which are of instances that are gone.
    pub(crate) fn after(told: &[Event]) -> Self {
        Self {
            last: told.last().map_or(0, |event| event.sequence),
            lives: BTreeMap::new(),
        }
    }

    /// Whether these leave none out, beginning with one that is known.
    pub(crate) fn reaches_back(&self, told: &[Event]) -> bool {
        told.first()
            .is_none_or(|event| event.sequence <= self.last + 1)
    }

    /// Takes in those that are new.
    pub(crate) fn add(&mut self, told: &[Event]) -> Verdict {
        let known = self.last;
        for event in told.iter().filter(|event| event.sequence > known) {
            if event.sequence != self.last + 1 {
                return Err(format!("{event:?} comes after number {}", self.last));
            }
            self.last = event.sequence;
            self.add_one(event)?;
        }
        let names: BTreeSet<&str> = self.lives.values().map(|life| life.name.as_str()).collect();
        if names.len() != self.lives.len() {
            return Err(format!("two instances have one name: {:?}", self.lives));
        }
        Ok(())
    }

    fn add_one(&mut self, event: &Event) -> Verdict {
        use State::{Created, Ended, Paused, Running};
        let amounts = (event.cpus.unwrap_or(0), event.memory.unwrap_or(0));
        let kind = event.event.as_str();
        let wrong = |life: &dyn std::fmt::Debug| Err(format!("{event:?} of {life:?}"));
        if kind == "create" {
            let life = Life {
                name: event.name.clone(),
                state: Created,
                has: amounts,
            };
            return match self.lives.insert(event.id, life) {
                None => Ok(()),
                before => wrong(&before),
            };
        }
        let Some(life) = self.lives.get_mut(&event.id) else {
            return wrong(&None::<Life>);
        };
        if kind == "rename" {
            life.name.clone_from(&event.name);
        } else if life.name != event.name {
            return wrong(life);
        }
        life.state = match (kind, life.state) {
            ("rename", state) => state,
            ("start", Created) => Running,
            ("resize", Running) => {
                life.has = amounts;
                Running
            }
            ("pause", Running) => Paused,
            ("unpause", Paused) => Running,
            ("refuse" | "health", state @ (Running | Paused)) => state,
            ("exit" | "panic" | "halt", Running | Paused) => Ended,
            ("remove", Created | Ended) => {
                self.lives.remove(&event.id);
                return Ok(());
            }
            _ => return wrong(life),
        };
        Ok(())
    }

    /// Checks that they tell what `ls` has shown before; `is_settled`: no change of the instance of
    /// that name is on its way.
    pub(crate) fn tell(&self, entries: &[Entry], is_settled: impl Fn(&str) -> bool) -> Verdict {
        for entry in entries {
            let life = self.lives.get(&entry.id);
            let fits = life.is_some_and(|life| {
                let is_state = match entry.state.as_str() {
                    "created" => life.state == State::Created,
                    // What runs may end at any time.
                    "running" => matches!(life.state, State::Running | State::Ended),
                    "paused" => life.state == State::Paused,
                    _ => life.state == State::Ended,
                };
                let has = life.has == (entry.cpus, entry.memory);
                life.name == entry.name && (is_state && has || !is_settled(&entry.name))
            });
            if !fits {
                return Err(format!("its events tell {life:?} of {entry:?}"));
            }
        }
        if self.lives.len() != entries.len() {
            return Err(format!("the events tell of {:?}", self.lives));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events of instance 1, numbered from 1 on.
    fn told(kinds: &[(&str, &str)]) -> Vec<Event> {
        let event = |(index, (kind, name)): (usize, &(&str, &str))| Event {
            sequence: index as u64 + 1,
            event: (*kind).into(),
            name: (*name).into(),
            id: 1,
            cpus: Some(1),
            memory: Some(index as u64),
        };
        kinds.iter().enumerate().map(event).collect()
    }

    #[test]
    fn a_life_is_told_in_order() {
        let kinds = [
            ("create", "a"),
            ("start", "a"),
            ("resize", "a"),
            ("pause", "a"),
            ("rename", "b"),
            ("unpause", "b"),
            ("exit", "b"),
            ("remove", "b"),
        ];
        let all = told(&kinds);
        let mut events = Events::default();
        events.add(&all[..3]).unwrap();
        events.add(&all).unwrap();
        events.tell(&[], |_| true).unwrap();
        for left_out in 0..kinds.len() - 1 {
            let mut holed = kinds.to_vec();
            holed.remove(left_out);
            // One that is paused may be halted, and amounts may stay the same.
            let may_be_missing = matches!(kinds[left_out].0, "resize" | "unpause");
            let judged = Events::default().add(&told(&holed));
            assert_eq!(judged.is_ok(), may_be_missing, "{left_out}");
        }
        let mut early = Events::default();
        assert!(early.add(&all[1..]).is_err(), "a hole");
    }

    #[test]
    fn one_name_is_one_instances() {
        let mut all = told(&[("create", "a"), ("create", "a")]);
        all[1].id = 2;
        assert!(
            Events::default()
                .add(&all)
                .unwrap_err()
                .contains("one name")
        );
    }
}

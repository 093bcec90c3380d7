//! The difference between what is declared and what there is.

use std::collections::BTreeMap;
use std::io::{self, Write};

use abi::dev::{self, Status};
use serde::Serialize;
use serde_json::Value;

use super::file::{Project, Wanted};
use crate::failure::{Failure, Result};
use crate::instances::{CreateOptions, label};
use crate::managed::is_aside;
use crate::state::{FileStamp, Record};
use crate::{show, size};

/// Kind of a change to one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The instance is as declared.
    Nothing,
    /// There is none.
    Create,
    /// The instance was created and not started.
    Start,
    /// Only what the tool does with it is another thing: restart policy, class, range of CPUs.
    Update,
    /// The instance gets more CPUs or memory, and runs on.
    Resize,
    /// A new one takes its place.
    Replace,
    /// The instance is not declared any more.
    Remove,
    /// The instance is not declared any more, and stays unless `--prune` is given.
    Keep,
}

/// A field that is to be another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Field {
    field: String,
    from: Value,
    to: Value,
}

/// A difference.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// Name of the instance.
    pub name: String,
    /// Kind of the change.
    pub action: Action,
    /// Fields that differ.
    pub fields: Vec<Field>,
    /// Number of the instance that there is.
    #[serde(skip)]
    pub id: Option<u32>,
}

/// All differences, in the order of names.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Name of the set.
    pub project: String,
    /// The changes, also those that are none.
    pub changes: Vec<Change>,
}

/// Value of a field as the file has it.
fn as_declared(field: &str, value: &Value) -> Value {
    match (field, value) {
        ("smt", Value::Bool(shared)) => (if *shared { "allow" } else { "deny" }).into(),
        ("mem", Value::Number(bytes)) => size::option(bytes.as_u64().unwrap_or(0)).into(),
        _ => value.clone(),
    }
}

/// CPUs that an instance is to have of its own: what it has, as far as that is in the range.
pub(super) fn own_cpus(wanted: &Wanted, record: &Record) -> u32 {
    let options = &wanted.options;
    let least = options.cpu_range.map_or(options.cpus, |range| range.least);
    record.options.cpus.clamp(least, options.cpus)
}

/// Fields in which an instance differs from what is wanted, its policy apart.
fn differences(wanted: &Wanted, record: &Record) -> Vec<Field> {
    // A range is what was declared as the number; how many of it there are is no difference.
    let fields = |options: &CreateOptions| match serde_json::to_value(options) {
        Ok(Value::Object(mut fields)) => {
            match fields.remove("cpu_range") {
                None | Some(Value::Null) => None,
                Some(range) => fields.insert("cpus".into(), range),
            };
            fields
        }
        _ => serde_json::Map::new(),
    };
    let (from, to) = (fields(&record.options), fields(&wanted.options));
    let mut differences: Vec<_> = to
        .iter()
        .filter(|(name, to)| from.get(*name) != Some(to))
        .map(|(name, to)| Field {
            field: name.clone(),
            from: as_declared(name, from.get(name).unwrap_or(&Value::Null)),
            to: as_declared(name, to),
        })
        .collect();
    let stamp = FileStamp::of(wanted.options.rootfs.as_deref());
    if stamp != record.rootfs && from.get("rootfs") == to.get("rootfs") {
        differences.push(Field {
            field: "rootfs".into(),
            from: to["rootfs"].clone(),
            to: "the file has changed".into(),
        });
    }
    differences
}

/// The change that makes an instance as it is wanted, whose fields are other ones.
fn change(wanted: &Wanted, status: &Status, record: &Record, fields: &[Field]) -> Action {
    let adjustable = |field: &Field| matches!(field.field.as_str(), "cpus" | "mem" | "class");
    let (cpus, memory) = (own_cpus(wanted, record), wanted.options.memory);
    let has = &record.options;
    if !fields.iter().all(adjustable) || cpus < has.cpus || memory < has.memory {
        return Action::Replace;
    }
    if (cpus, memory) == (has.cpus, has.memory) {
        return Action::Update;
    }
    match status.state {
        dev::STATE_RUNNING => Action::Resize,
        _ => Action::Replace,
    }
}

fn compare(wanted: &Wanted, status: &Status, record: &Record) -> (Action, Vec<Field>) {
    let mut fields = differences(wanted, record);
    let action = match status.state {
        dev::STATE_CREATED | dev::STATE_FAILED if !fields.is_empty() => Action::Replace,
        dev::STATE_CREATED => Action::Start,
        dev::STATE_FAILED => Action::Replace,
        _ if !fields.is_empty() => change(wanted, status, record, &fields),
        _ if wanted.restart != record.restart => Action::Update,
        _ => Action::Nothing,
    };
    if wanted.restart != record.restart {
        fields.push(Field {
            field: "restart".into(),
            from: record.restart.to_string().into(),
            to: wanted.restart.to_string().into(),
        });
    }
    (action, fields)
}

impl Plan {
    /// The differences between a project and the instances that there are, with what is remembered
    /// of each.
    ///
    /// # Errors
    /// If an instance has a declared name that is none of the project's.
    pub fn new(
        project: &Project,
        present: &[(Status, Option<Record>)],
        prune: bool,
    ) -> Result<Self> {
        let mut changes = BTreeMap::new();
        let mut there = |name: &str, id, action, fields| {
            let change = Change {
                name: name.to_owned(),
                action,
                fields,
                id,
            };
            changes.insert(name.to_owned(), change);
        };
        for (name, wanted) in &project.instances {
            let Some((status, record)) = present.iter().find(|(one, _)| label(one) == name) else {
                there(name, None, Action::Create, Vec::new());
                continue;
            };
            let of_project = |record: &&Record| record.project.as_ref() == Some(&project.name);
            let Some(record) = record.as_ref().filter(of_project) else {
                let owner = record.as_ref().and_then(|record| record.project.as_deref());
                return Err(Failure::new(format!(
                    "there is an instance called {name} that {}: choose another name, or remove \
                     it with `skerry rm {name}`",
                    owner.map_or("no file has declared".into(), |owner| format!(
                        "belongs to the project {owner}"
                    ))
                )));
            };
            let (action, fields) = compare(wanted, status, record);
            there(name, Some(status.id), action, fields);
        }
        for (status, record) in present {
            let of_project = record.as_ref().and_then(|record| record.project.as_ref());
            let declared = project.instances.contains_key(label(status));
            if of_project == Some(&project.name) && !declared && !is_aside(status) {
                let action = if prune { Action::Remove } else { Action::Keep };
                there(label(status), Some(status.id), action, Vec::new());
            }
        }
        Ok(Self {
            project: project.name.clone(),
            changes: changes.into_values().collect(),
        })
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let idle = |change: &Change| matches!(change.action, Action::Nothing | Action::Keep);
        self.changes.iter().all(idle)
    }

    /// The changes of a kind.
    pub fn of(&self, action: Action) -> impl Iterator<Item = &Change> {
        self.changes
            .iter()
            .filter(move |change| change.action == action)
    }

    /// Prints it for people.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut rows = vec![["NAME", "CHANGE", "WHAT"].map(String::from).to_vec()];
        for change in &self.changes {
            let fields = change.fields.iter().map(|field| {
                let text = |value: &Value| match value {
                    Value::String(text) => text.clone(),
                    Value::Null => "none".into(),
                    other => other.to_string(),
                };
                format!(
                    "{} {} -> {}",
                    field.field,
                    text(&field.from),
                    text(&field.to)
                )
            });
            let what = match change.action {
                Action::Keep => "not declared any more: --prune removes it".into(),
                _ => fields.collect::<Vec<_>>().join(", "),
            };
            let action = format!("{:?}", change.action).to_lowercase();
            rows.push(vec![change.name.clone(), action, what]);
        }
        show::table(&rows, out)
    }
}

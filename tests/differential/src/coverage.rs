//! Which errors and which flags of the specification have been seen.

use crate::program::{Step, Value};
use crate::spec::{Pointer, Spec, Target, Type};

/// Something of a call that should be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The call's index in the specification.
    pub call: usize,
    /// What it is.
    pub subject: Subject,
}

/// What can be seen of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// It returned this error.
    Error(i32),
    /// An argument or a field, by its path within the call, had this member of a set: label, number, whether it is one of several bits.
    Value {
        /// `flags`, `vector.length`.
        path: String,
        /// The member's name.
        label: String,
        /// Its value.
        number: i64,
        /// Whether it may be combined with others.
        combined: bool,
    },
}

/// Everything that should be seen, in an order that depends on the specification only.
pub fn items(spec: &Spec) -> Vec<Item> {
    let mut items = Vec::new();
    for (index, call) in spec.calls.iter().enumerate() {
        items.extend(call.errors.iter().map(|&error| Item { call: index, subject: Subject::Error(error) }));
        for (name, kind) in &call.arguments {
            of_kind(spec, kind, name, &mut |path, label, number, combined| {
                items.push(Item { call: index, subject: Subject::Value { path, label, number, combined } });
            });
        }
    }
    items
}

fn of_kind(spec: &Spec, kind: &Type, path: &str, add: &mut impl FnMut(String, String, i64, bool)) {
    match kind {
        Type::Sets(names) => {
            for set in names.iter().map(|name| spec.set(name)) {
                set.members.iter().for_each(|(label, number)| add(path.to_owned(), label.clone(), *number, set.combined));
            }
        }
        Type::Pointer(Pointer { target: Target::Structure(name), .. }) => {
            for field in &spec.structure(name).fields {
                if let Some(kind) = &field.kind {
                    of_kind(spec, kind, &format!("{path}.{}", field.name), add);
                }
            }
        }
        Type::Pointer(Pointer { target: Target::Scalar(_, names), .. }) => of_kind(spec, &Type::Sets(names.clone()), path, add),
        _ => {}
    }
}

/// Whether a step with this result shows the item. A flag counts as seen when a call that has it succeeds; one with which no call can succeed
/// counts by the error that it causes, which has an item of its own.
pub fn shows(spec: &Spec, item: &Item, step: &Step, result: i64) -> bool {
    match &item.subject {
        Subject::Error(error) => result == -i64::from(*error),
        Subject::Value { path, number, combined, .. } => {
            let call = &spec.calls[item.call];
            let mut parts = path.split('.');
            let name = parts.next().unwrap_or("");
            let Some(at) = call.arguments.iter().position(|(known, _)| known == name) else { return false };
            let Some(value) = step.arguments.get(at) else { return false };
            let has = |value: i64| if *combined && *number != 0 { value & number == *number } else { value == *number };
            match (parts.next(), value) {
                (None, Value::Number(value)) => has(*value),
                (None, Value::Memory(memory)) => {
                    memory.fields.iter().any(|(_, _, value)| matches!(value, Value::Number(value) if has(*value)))
                }
                (Some(field), Value::Memory(memory)) => {
                    let Type::Pointer(Pointer { target: Target::Structure(name), .. }) = &call.arguments[at].1 else {
                        return false;
                    };
                    let structure = spec.structure(name);
                    let Some(field) = structure.fields.iter().find(|known| known.name == field) else { return false };
                    let here = |offset: usize| offset % structure.size.max(1) == field.offset;
                    memory
                        .fields
                        .iter()
                        .any(|(offset, _, value)| here(*offset) && matches!(value, Value::Number(value) if has(*value)))
                }
                _ => false,
            }
        }
    }
}

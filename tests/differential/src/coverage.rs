//! Coverage of the specification: errors, flags and boundaries that have been seen.

use crate::interruptions::Interruption;
use crate::program::{Memory, Place, Step, Value};
use crate::spec::{Call, Pointer, ResultKind, Spec, Structure, Target, Type};

/// Something of a call that should be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The call's index in the specification.
    pub call: usize,
    /// Subject of the item.
    pub subject: Subject,
}

/// Fact about a call that can be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The call returned this error.
    Error(i32),
    /// An argument or a field had this member of a set.
    Value(Member),
    /// The argument of this index was at this edge.
    Boundary(usize, Edge),
    /// An ordinary user made it.
    Ordinary,
    /// The call waited, and a signal met it in this way.
    Met(Interruption),
}

/// A member of a set, where the set is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where: an argument, and the fields within it: `flags`, `vector.length`.
    pub path: String,
    /// The member's name; a number where it has none.
    pub label: String,
    /// Value of the flag or boundary.
    pub number: i64,
    /// The bits that say whether it is this one.
    pub mask: i64,
    /// Whether it is there to be refused, so that any result counts and not only success.
    pub refused: bool,
}

impl Member {
    /// Whether it is a value at an edge, and not something that the manual has a name for.
    pub fn is_number(&self) -> bool {
        !self.label.starts_with(|c: char| c.is_ascii_alphabetic())
    }
}

/// Edges of memory and lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// A pointer that cannot be used.
    Unusable,
    /// 0 for a pointer that need not be there.
    Absent,
    /// Memory that ends exactly before a hole.
    EndsAtHole,
    /// Memory whose end is in a hole.
    InHole,
    /// A length of 0.
    Empty,
    /// A length around a page.
    Page,
    /// A length of more than 64 KiB that there may be.
    Long,
    /// A length that cannot be.
    Absurd,
    /// Fewer bytes were moved than asked for.
    Partly,
}

impl Edge {
    /// Words for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unusable => "bad",
            Self::Absent => "null",
            Self::EndsAtHole => "ends at a hole",
            Self::InHole => "in a hole",
            Self::Empty => "0",
            Self::Page => "a page",
            Self::Long => "long",
            Self::Absurd => "absurd",
            Self::Partly => "partly",
        }
    }
}

/// Result of a call that a signal interrupted.
const INTERRUPTED: i64 = -4;

/// Everything that should be seen, in an order that depends on the specification only. Steps of the
/// executor are no system calls.
pub fn items(spec: &Spec) -> Vec<Item> {
    let mut items = Vec::new();
    for (index, call) in spec
        .calls
        .iter()
        .enumerate()
        .filter(|(_, call)| call.number >= 0)
    {
        items.extend(call.errors.iter().map(|&error| Item {
            call: index,
            subject: Subject::Error(error),
        }));
        for (at, (name, kind)) in call.arguments.iter().enumerate() {
            members(spec, call, kind, name, &mut |member| {
                items.push(Item {
                    call: index,
                    subject: Subject::Value(member),
                });
            });
            let edges = edges(call, at).into_iter();
            items.extend(edges.map(|edge| Item {
                call: index,
                subject: Subject::Boundary(at, edge),
            }));
        }
        items.push(Item {
            call: index,
            subject: Subject::Ordinary,
        });
        if spec.waits(call) {
            items.extend(Interruption::ALL.map(|way| Item {
                call: index,
                subject: Subject::Met(way),
            }));
        }
    }
    items
}

fn members(spec: &Spec, call: &Call, kind: &Type, path: &str, add: &mut impl FnMut(Member)) {
    match kind {
        Type::Sets(names) => {
            for set in names.iter().map(|name| spec.set(name)) {
                let all = set.members.iter().fold(0, |all, (_, number)| all | number);
                for (label, number) in &set.members {
                    let refused = !label.starts_with(|c: char| c.is_ascii_uppercase())
                        || call.refused.contains(label);
                    let (path, label) = (path.to_owned(), label.clone());
                    let mask = match (set.combined, names.len()) {
                        (true, _) if *number != 0 => *number,
                        (false, 2..) => all,
                        _ => -1,
                    };
                    add(Member {
                        path,
                        label,
                        number: *number,
                        mask,
                        refused,
                    });
                }
            }
        }
        Type::Pointer(Pointer {
            target: Target::Structure(name),
            input: true,
            ..
        }) => {
            for field in &spec.structure(name).fields {
                if let Some(kind) = &field.kind {
                    members(spec, call, kind, &format!("{path}.{}", field.name), add);
                }
            }
        }
        Type::Pointer(Pointer {
            target: Target::Scalar(_, names),
            input: true,
            ..
        }) => {
            members(spec, call, &Type::Sets(names.clone()), path, add);
        }
        _ => {}
    }
}

/// The edges of an argument.
fn edges(call: &Call, at: usize) -> Vec<Edge> {
    let mut edges = Vec::new();
    match &call.arguments[at].1 {
        Type::Pointer(pointer) => {
            edges.push(Edge::Unusable);
            edges.extend(pointer.optional.then_some(Edge::Absent));
            edges.extend([Edge::EndsAtHole, Edge::InHole]);
        }
        Type::Path(_) => edges.push(Edge::Unusable),
        Type::Size => {
            edges.extend([Edge::Empty, Edge::Page, Edge::Long, Edge::Absurd]);
            edges.extend(
                matches!(call.answer, ResultKind::Exact | ResultKind::Room).then_some(Edge::Partly),
            );
        }
        Type::Count => edges.extend([Edge::Empty, Edge::Absurd]),
        _ => {}
    }
    edges
}

/// Whether a step by an ordinary user or root, with this result, shows the item. A flag counts as
/// seen when a call that has it succeeds; one that is there to be refused, and an edge, when the
/// call was made. A call that was interrupted had found nothing to refuse. The ways are those that
/// the step met while it waited.
pub fn shows(
    spec: &Spec,
    item: &Item,
    step: &Step,
    ordinary: bool,
    result: i64,
    ways: &[Interruption],
) -> bool {
    let call = &spec.calls[item.call];
    let failed = (-4095..0).contains(&result) && result != INTERRUPTED;
    match &item.subject {
        Subject::Error(error) => result == -i64::from(*error),
        Subject::Ordinary => ordinary,
        Subject::Met(way) => ways.contains(way),
        Subject::Boundary(at, edge) => is_at(*edge, step, *at, result),
        Subject::Value(member) if failed && !member.refused => false,
        Subject::Value(member) => {
            let mut parts = member.path.split('.');
            let name = parts.next().unwrap_or("");
            let Some(at) = call.arguments.iter().position(|(known, _)| known == name) else {
                return false;
            };
            let (Some(value), parts) = (step.arguments.get(at), parts.collect::<Vec<_>>()) else {
                return false;
            };
            has(spec, member, &call.arguments[at].1, value, &parts)
        }
    }
}

/// Whether a value of this kind, or what it points to along the path, has the member.
fn has(spec: &Spec, member: &Member, kind: &Type, value: &Value, path: &[&str]) -> bool {
    match (value, path) {
        (Value::Number(value), []) => same(value & member.mask, member.number),
        (Value::Memory(memory), []) => memory
            .fields
            .iter()
            .any(|(_, _, value)| has(spec, member, kind, value, &[])),
        (Value::Memory(memory), [name, rest @ ..]) => {
            let Type::Pointer(Pointer {
                target: Target::Structure(structure),
                ..
            }) = kind
            else {
                return false;
            };
            let structure: &Structure = spec.structure(structure);
            let Some(field) = structure.fields.iter().find(|field| field.name == *name) else {
                return false;
            };
            let Some(kind) = &field.kind else {
                return false;
            };
            let here = |offset: usize| offset % structure.size.max(1) == field.offset;
            memory
                .fields
                .iter()
                .any(|(offset, _, value)| here(*offset) && has(spec, member, kind, value, rest))
        }
        _ => false,
    }
}

/// Whether two numbers are the same for a kernel that looks at 32 bits of them, if one has no more.
fn same(one: i64, two: i64) -> bool {
    one == two
        || one as i32 == two as i32
            && (i64::from(one as i32) == one || one >> 32 == 0)
            && (i64::from(two as i32) == two || two >> 32 == 0)
}

fn is_at(edge: Edge, step: &Step, at: usize, result: i64) -> bool {
    let place = |wanted: fn(&Memory) -> bool| matches!(step.arguments.get(at), Some(Value::Memory(memory)) if wanted(memory));
    let number = |wanted: &dyn Fn(i64) -> bool| matches!(step.arguments.get(at), Some(Value::Number(number)) if wanted(*number));
    match edge {
        Edge::Unusable => matches!(step.arguments.get(at), Some(Value::BadAddress(_))),
        Edge::Absent => number(&|number| number == 0),
        Edge::EndsAtHole => place(|memory| memory.place == Place::Cut(0)),
        Edge::InHole => place(|memory| matches!(memory.place, Place::Cut(1..))),
        Edge::Empty => number(&|number| number == 0),
        Edge::Page => number(&|number| (4095..=4097).contains(&number)),
        Edge::Long => number(&|number| (65536..0x4000_0000).contains(&number)),
        Edge::Absurd => number(&|number| !(0..0x7fff_0000).contains(&number)),
        Edge::Partly => result > 0 && number(&|number| result < number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(spec: &Spec, step: &str, result: i64) -> Vec<String> {
        let step: Step = step.parse().expect("it is a step");
        let items = items(spec);
        let shown = items
            .iter()
            .filter(|item| shows(spec, item, &step, false, result, &[]));
        let name = |item: &Item| match &item.subject {
            Subject::Error(error) => crate::errno::name(*error).to_owned(),
            Subject::Value(member) => format!("{}={}", member.path, member.label),
            Subject::Boundary(at, edge) => format!("{at} {}", edge.name()),
            Subject::Ordinary => "ordinary".into(),
            Subject::Met(way) => way.name().into(),
        };
        shown.map(name).collect()
    }

    #[test]
    fn what_counts_as_seen() {
        let text = "flags f = A:1 B:2 beyond:4\nstruct s 16: 0:8 inner in t, 8:4 kind f\nstruct t 8: 0:8 value f\n\
                    1 f(a: f, b: in s, c: out bytes, d: size) ! EPERM ~ B";
        let spec = Spec::parse(&[("area", text)]).expect("it is right");
        assert_eq!(
            seen(&spec, "0 f(1, null, &4096%9?, 4096)", 4000),
            ["a=A", "1 bad", "2 in a hole", "3 a page", "3 partly"]
        );
        // Of a call that failed only what was there to be refused has been seen.
        assert_eq!(
            seen(&spec, "0 f(7, &16{0:8=&8{0:8=1} 8:4=1}, null, 0)", -1),
            ["EPERM", "a=B", "a=beyond", "2 bad", "3 0"]
        );
        assert_eq!(
            seen(&spec, "0 f(0, &16{0:8=&8{0:8=1} 8:4=2}, null, 5)", 5),
            ["b.inner.value=A", "b.kind=B", "2 bad"]
        );
    }
}

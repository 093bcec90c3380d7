//! The changes themselves: what a tired developer gets wrong, found in the syntax tree.

use std::fmt;
use std::ops::Range;

use serde::Serialize;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Block, Expr, File, Item, Lit, Pat, ReturnType, Signature, Stmt, Type};

use super::cfg::Build;
use super::errnos;

/// Kinds of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operator {
    /// `<` for `<=`, `==` for `!=`, a negation forgotten.
    Comparison,
    /// One too many or too few: a constant, a length, a step.
    OffByOne,
    /// A wake-up is left out: a waiter is not told.
    DroppedWake,
    /// Something taken is not given back.
    DroppedRelease,
    /// An error is passed over.
    DroppedError,
    /// A flag makes no difference.
    FlagIgnored,
    /// A check, a part of a condition or a limit is missing.
    CheckRemoved,
    /// Two neighbouring stores in the other order.
    StoresExchanged,
    /// A function that does nothing.
    EarlyReturn,
    /// Another error's number.
    WrongErrno,
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Comparison => "comparison",
            Self::OffByOne => "off by one",
            Self::DroppedWake => "dropped wake",
            Self::DroppedRelease => "dropped release",
            Self::DroppedError => "dropped error",
            Self::FlagIgnored => "flag ignored",
            Self::CheckRemoved => "check removed",
            Self::StoresExchanged => "stores exchanged",
            Self::EarlyReturn => "early return",
            Self::WrongErrno => "wrong errno",
        })
    }
}

/// One change, by places in the file's text (as in `Place`).
pub struct Change {
    /// The operator that makes the change.
    pub operator: Operator,
    /// The change as a developer would have written it.
    pub change: (Range<usize>, String),
    /// With both in one program.
    pub edits: Vec<(Range<usize>, String)>,
}

/// Whether the mutant is in force, in the program.
const IS: &str = "mutant::is({})";

/// Methods and functions that tell somebody who may be waiting.
const WAKES: &[&str] = &[
    "wake",
    "notify",
    "signal",
    "kick",
    "ring",
    "raise",
    "unpark",
    "interrupt",
    "post",
    "broadcast",
    "set_signal_pending",
    "set_notify_resume",
];
/// Functions that give something back, or take it out of where it was.
const RELEASES: &[&str] = &[
    "release",
    "put",
    "free",
    "remove",
    "give_back",
    "uncharge",
    "drop",
    "unlock",
    "unlink",
    "clear",
    "close",
    "fetch_sub",
    "unmap",
    "detach",
    "cancel",
    "discard",
    "forget",
    "evict",
    "retain",
    "truncate",
    "reset",
    "leave",
    "unregister",
    "disarm",
    "end",
];
/// Methods that store, besides assignments.
const STORES: &[&str] = &[
    "store",
    "set",
    "insert",
    "push",
    "push_back",
    "replace",
    "fetch_or",
    "fetch_and",
    "fetch_add",
];

/// The files that a file names as its modules.
pub fn modules(file: &File, build: Build) -> Vec<String> {
    let named = |item: &Item| match item {
        Item::Mod(module) if module.content.is_none() && build.compiles(&module.attrs) => {
            Some(module.ident.to_string())
        }
        _ => None,
    };
    file.items.iter().filter_map(named).collect()
}

/// All changes that the operators find in a file.
pub fn places(file: &File, text: &str, build: Build) -> Vec<Change> {
    let mut finder = Finder {
        text,
        build,
        found: Vec::new(),
    };
    if build.compiles(&file.attrs) {
        finder.visit_file(file);
    }
    finder.found
}

struct Finder<'t> {
    text: &'t str,
    build: Build,
    found: Vec<Change>,
}

fn at(node: &impl Spanned) -> Range<usize> {
    node.span().byte_range()
}

impl Finder<'_> {
    fn text(&self, node: &impl Spanned) -> &str {
        &self.text[at(node)]
    }

    /// An expression that would read otherwise.
    fn expression(&mut self, operator: Operator, range: Range<usize>, instead: String) {
        let both = format!(
            "(if {IS} {{ {instead} }} else {{ {} }})",
            &self.text[range.clone()]
        );
        self.found.push(Change {
            operator,
            edits: vec![(range.clone(), both)],
            change: (range, instead),
        });
    }

    /// Statements that would read otherwise.
    fn statement(&mut self, operator: Operator, range: Range<usize>, instead: String) {
        let both = format!(
            "if {IS} {{ {instead} }} else {{ {} }}",
            &self.text[range.clone()]
        );
        self.found.push(Change {
            operator,
            edits: vec![(range.clone(), both)],
            change: (range, instead),
        });
    }

    /// A statement that would be missing.
    fn dropped(&mut self, operator: Operator, range: Range<usize>) {
        let edits = vec![
            (range.start..range.start, format!("if !{IS} {{ ")),
            (range.end..range.end, " }".to_owned()),
        ];
        self.found.push(Change {
            operator,
            edits,
            change: (range, String::new()),
        });
    }

    fn binary(&mut self, expression: &syn::ExprBinary) {
        let (left, right) = (&*expression.left, &*expression.right);
        let whole = at(expression);
        let mark = at(&expression.op);
        let with = |mark: &str| format!("{} {mark} {}", self.text(left), self.text(right));
        let other = match expression.op {
            BinOp::Lt(_) => Some("<="),
            BinOp::Le(_) => Some("<"),
            BinOp::Gt(_) => Some(">="),
            BinOp::Ge(_) => Some(">"),
            BinOp::Eq(_) => Some("!="),
            BinOp::Ne(_) => Some("=="),
            _ => None,
        };
        let masked = |side: &Expr| matches!(bare(side), Expr::Binary(inner) if matches!(inner.op, BinOp::BitAnd(_)));
        let zero = self.text(right) == "0";
        match (&expression.op, other) {
            (BinOp::Ne(_), _) if zero && masked(left) => {
                self.expression(Operator::FlagIgnored, whole, "false".into());
            }
            (BinOp::Eq(_), _) if zero && masked(left) => {
                self.expression(Operator::FlagIgnored, whole, "true".into());
            }
            (_, Some(other)) => {
                let text = with(other);
                let both = format!(
                    "(if {IS} {{ {text} }} else {{ {} }})",
                    &self.text[whole.clone()]
                );
                self.found.push(Change {
                    operator: Operator::Comparison,
                    edits: vec![(whole, both)],
                    change: (mark, other.to_owned()),
                });
            }
            (BinOp::And(_), _) if !has_let(left) && !has_let(right) => {
                self.half(expression, "||", IS);
            }
            (BinOp::Or(_), _) => self.half(expression, "&&", "!mutant::is({})"),
            _ => {}
        }
        let counted = matches!(
            expression.op,
            BinOp::Add(_) | BinOp::Sub(_) | BinOp::AddAssign(_) | BinOp::SubAssign(_)
        );
        let compared = matches!(
            expression.op,
            BinOp::Lt(_) | BinOp::Le(_) | BinOp::Gt(_) | BinOp::Ge(_) | BinOp::Eq(_)
        );
        if counted || compared || matches!(expression.op, BinOp::Mul(_) | BinOp::Div(_)) {
            self.number(left, counted);
            self.number(right, counted);
        }
    }

    /// The right half of a condition would be missing.
    fn half(&mut self, expression: &syn::ExprBinary, mark: &str, guard: &str) {
        let right = at(&*expression.right);
        let missing = at(&*expression.left).end..right.end;
        let edits = vec![
            (right.start..right.start, format!("({guard} {mark} (")),
            (right.end..right.end, "))".to_owned()),
        ];
        self.found.push(Change {
            operator: Operator::CheckRemoved,
            edits,
            change: (missing, String::new()),
        });
    }

    /// An operand that could be one too large or too small.
    fn number(&mut self, operand: &Expr, counted: bool) {
        let instead = match operand {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Int(number) => match number.base10_parse::<u64>() {
                    Ok(1) if counted => format!("0{}", number.suffix()),
                    Ok(0) if counted => return,
                    Ok(0) => format!("1{}", number.suffix()),
                    Ok(value) => format!("{}{}", value - 1, number.suffix()),
                    Err(_) => return,
                },
                _ => return,
            },
            Expr::Path(path) if is_constant(&path.path) && !is_errno(&path.path) => {
                format!("({} - 1)", self.text(operand))
            }
            Expr::MethodCall(call) if call.method == "len" && call.args.is_empty() && !counted => {
                format!("({} + 1)", self.text(operand))
            }
            _ => return,
        };
        self.expression(Operator::OffByOne, at(operand), instead);
    }

    fn method(&mut self, call: &syn::ExprMethodCall) {
        let whole = at(call);
        match (
            call.method.to_string().as_str(),
            call.args.len(),
            call.args.first(),
        ) {
            ("contains" | "intersects", 1, Some(Expr::Path(path))) if is_constant(&path.path) => {
                self.expression(Operator::FlagIgnored, whole, "false".into());
            }
            ("min" | "max", 1, Some(_)) => {
                let (limited, text) = (at(&*call.receiver), self.text(&*call.receiver).to_owned());
                let both = format!(
                    "(if {IS} {{ {text} }} else {{ {} }})",
                    &self.text[whole.clone()]
                );
                self.found.push(Change {
                    operator: Operator::CheckRemoved,
                    change: (limited.end..whole.end, String::new()),
                    edits: vec![(whole, both)],
                });
            }
            _ => {}
        }
    }

    /// A statement by itself.
    fn single(&mut self, statement: &Stmt) {
        match statement {
            Stmt::Expr(Expr::Try(tried), Some(_)) if tried.attrs.is_empty() => {
                let text = format!("let _ = {};", self.text(&*tried.expr));
                self.statement(Operator::DroppedError, at(statement), text);
            }
            Stmt::Expr(expression, Some(_)) => match called(expression) {
                Some(name) if starts(&name, WAKES) => {
                    self.dropped(Operator::DroppedWake, at(statement));
                }
                Some(name) if starts(&name, RELEASES) => {
                    self.dropped(Operator::DroppedRelease, at(statement));
                }
                _ => {}
            },
            Stmt::Expr(Expr::If(condition), _)
                if condition.else_branch.is_none()
                    && condition.attrs.is_empty()
                    && leaves(&condition.then_branch) =>
            {
                let range = at(&*condition.cond);
                let (open, close) = if has_let(&condition.cond) {
                    (" && ", "")
                } else {
                    (" && (", ")")
                };
                let edits = vec![
                    (range.start..range.start, format!("!{IS}{open}")),
                    (range.end..range.end, close.to_owned()),
                ];
                self.found.push(Change {
                    operator: Operator::CheckRemoved,
                    edits,
                    change: (at(statement), String::new()),
                });
            }
            _ => {}
        }
    }

    /// A function that would return at once.
    fn function(&mut self, signature: &Signature, block: &Block) {
        let Some(first) = block.stmts.first() else {
            return;
        };
        let value = match &signature.output {
            ReturnType::Default => "return;",
            ReturnType::Type(_, kind) if returns_nothing(kind) => "return Ok(());",
            ReturnType::Type(..) => return,
        };
        if signature.constness.is_some()
            || signature.unsafety.is_some()
            || signature.ident == "main"
        {
            return;
        }
        let start = at(first).start;
        let edits = vec![(start..start, format!("if {IS} {{ {value} }} "))];
        self.found.push(Change {
            operator: Operator::EarlyReturn,
            edits,
            change: (start..start, format!("{value} ")),
        });
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if self.build.compiles(&item.attrs) && item.sig.constness.is_none() {
            self.function(&item.sig, &item.block);
            self.visit_block(&item.block);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if self.build.compiles(&item.attrs) && item.sig.constness.is_none() {
            self.function(&item.sig, &item.block);
            self.visit_block(&item.block);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = item
            .default
            .as_ref()
            .filter(|_| self.build.compiles(&item.attrs))
        {
            self.function(&item.sig, block);
            self.visit_block(block);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if self.build.compiles(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let shown = item
            .trait_
            .as_ref()
            .and_then(|(_, path, _)| path.segments.last())
            .is_some_and(|last| last.ident == "Debug");
        if self.build.compiles(&item.attrs) && !shown {
            for inner in &item.items {
                self.visit_impl_item(inner);
            }
        }
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        if self.build.compiles(&item.attrs) {
            for inner in &item.items {
                self.visit_trait_item(inner);
            }
        }
    }

    // What is computed when the program is built cannot ask.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_pat(&mut self, _: &'ast Pat) {}
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if self.build.compiles(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_block(&mut self, block: &'ast Block) {
        self.block(block);
        visit::visit_block(self, block);
    }

    fn visit_expr(&mut self, expression: &'ast Expr) {
        match expression {
            Expr::Block(block) if !self.build.compiles(&block.attrs) => return,
            Expr::Binary(binary) => self.binary(binary),
            Expr::MethodCall(call) => self.method(call),
            Expr::Unary(unary) if matches!(unary.op, syn::UnOp::Not(_)) => {
                let instead = self.text(&*unary.expr).to_owned();
                self.expression(Operator::Comparison, at(expression), instead);
            }
            Expr::Path(path) if is_errno(&path.path) => {
                let name = path
                    .path
                    .segments
                    .last()
                    .map(|last| last.ident.to_string())
                    .unwrap_or_default();
                if let Some(other) = errnos::neighbour(&name) {
                    let before = self.text(expression).trim_end_matches(&name);
                    self.expression(
                        Operator::WrongErrno,
                        at(expression),
                        format!("{before}{other}"),
                    );
                }
            }
            _ => {}
        }
        visit::visit_expr(self, expression);
    }
}

impl Finder<'_> {
    /// The statements of a block, by themselves and two by two.
    fn block(&mut self, block: &Block) {
        for statement in &block.stmts {
            self.single(statement);
        }
        for pair in block.stmts.windows(2) {
            // Stores that have nothing to do with each other may stand in any order.
            let (Some(first), Some(second)) = (stored(&pair[0]), stored(&pair[1])) else {
                continue;
            };
            let dependent = names(self.text(&pair[1]), self.text(first))
                || names(self.text(&pair[0]), self.text(second));
            if dependent && !self.are_flags_of_one_set(&pair[0], &pair[1]) {
                let range = at(&pair[0]).start..at(&pair[1]).end;
                let text = format!("{} {}", self.text(&pair[1]), self.text(&pair[0]));
                self.statement(Operator::StoresExchanged, range, text);
            }
        }
    }

    /// Whether two statements set different flags of a set, which they may do in any order.
    fn are_flags_of_one_set(&self, first: &Stmt, second: &Stmt) -> bool {
        let flag = |statement: &Stmt| {
            let Stmt::Expr(Expr::MethodCall(call), Some(_)) = statement else {
                return None;
            };
            let Expr::Path(path) = call.args.first()? else {
                return None;
            };
            is_constant(&path.path).then(|| self.text(path))
        };
        flag(first)
            .zip(flag(second))
            .is_some_and(|(first, second)| first != second)
    }
}

/// Whether a text has a place in it, and not only one whose name begins with the place's.
fn names(text: &str, place: &str) -> bool {
    let goes_on = |end: usize| text[end..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
    text.match_indices(place)
        .any(|(at, _)| !goes_on(at + place.len()))
}

/// An expression without the parentheses around it.
fn bare(expression: &Expr) -> &Expr {
    match expression {
        Expr::Paren(inner) => bare(&inner.expr),
        other => other,
    }
}

/// Whether a condition binds names.
fn has_let(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

/// Name of the function that a statement calls.
fn called(expression: &Expr) -> Option<String> {
    match expression {
        Expr::MethodCall(call) => Some(call.method.to_string()),
        Expr::Call(call) => match &*call.func {
            Expr::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        },
        _ => None,
    }
}

fn starts(name: &str, words: &[&str]) -> bool {
    words.iter().any(|word| {
        name == *word
            || name.starts_with(&format!("{word}_"))
            || name.ends_with(&format!("_{word}"))
    })
}

/// Whether a block does nothing but leave.
fn leaves(block: &Block) -> bool {
    matches!(
        block.stmts.as_slice(),
        [Stmt::Expr(
            Expr::Return(_) | Expr::Continue(_) | Expr::Break(_),
            _
        )]
    )
}

/// Where a statement stores something.
fn stored(statement: &Stmt) -> Option<&Expr> {
    match statement {
        Stmt::Expr(Expr::Assign(assignment), Some(_)) => Some(&assignment.left),
        Stmt::Expr(Expr::Binary(binary), Some(_)) => matches!(
            binary.op,
            BinOp::AddAssign(_) | BinOp::SubAssign(_) | BinOp::BitOrAssign(_)
        )
        .then_some(&*binary.left),
        Stmt::Expr(Expr::MethodCall(call), Some(_)) => STORES
            .iter()
            .any(|name| call.method == name)
            .then_some(&*call.receiver),
        _ => None,
    }
}

/// Whether a path names a constant.
fn is_constant(path: &syn::Path) -> bool {
    let name = path
        .segments
        .last()
        .map(|last| last.ident.to_string())
        .unwrap_or_default();
    name.len() > 1
        && name
            .chars()
            .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

fn is_errno(path: &syn::Path) -> bool {
    let mut names = path.segments.iter().rev().map(|segment| &segment.ident);
    names.next().is_some() && names.next().is_some_and(|name| name == "Errno")
}

/// Whether a function's result is `Result<(), …>`.
fn returns_nothing(kind: &Type) -> bool {
    let Type::Path(path) = kind else { return false };
    let Some(last) = path
        .path
        .segments
        .last()
        .filter(|last| last.ident == "Result")
    else {
        return false;
    };
    let syn::PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return false;
    };
    matches!(arguments.args.first(), Some(syn::GenericArgument::Type(Type::Tuple(tuple))) if tuple.elems.is_empty())
}

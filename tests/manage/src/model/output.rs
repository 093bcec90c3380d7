//! Judgement of what programs have written.

use super::{End, Instance, Phase, Verdict, is_among};
use crate::numbered_lines::{self, place};
use crate::spec::Program;

impl Instance {
    /// Checks the program's output; `all`: nothing is left out at the beginning.
    pub(super) fn check(&self, out: &[u8], err: &[u8], all: bool) -> Verdict {
        let Some(spec) = &self.spec else {
            return Ok(());
        };
        let ends = match &self.phase {
            Phase::Created => {
                numbered_lines::same(b"", out)?;
                return numbered_lines::same(b"", err);
            }
            Phase::Running { .. } => &[][..],
            Phase::Ended(ends) => ends,
        };
        if matches!(ends, [End::Any]) {
            return Ok(());
        }
        let by_itself = matches!(ends, [end] if is_among(&spec.ends().0, *end));
        match &spec.program {
            // While it is written, more may be dropped than is read.
            Program::Endless => place(spec.seed, out, ends.is_empty()).map(drop),
            Program::Sleep | Program::Trap(_) | Program::Fault(_) => {
                let text = String::from_utf8_lossy(out);
                let rest = match text.strip_prefix("ready\n") {
                    Some(rest) => rest,
                    None if self.ready || by_itself => {
                        return Err(format!("it was ready, and its output is {text:?}"));
                    }
                    None if text.is_empty() => "",
                    None => return Err(format!("its output is {text:?}")),
                };
                let told = matches!(spec.program, Program::Trap(code) if matches!(ends, [End::Exited(end)] if *end == code));
                let as_told = if told {
                    rest.starts_with("signal ") && rest.lines().count() == 1
                } else {
                    rest.is_empty()
                };
                if as_told || matches!(spec.program, Program::Trap(_)) && !told && ends.len() != 1 {
                    Ok(())
                } else {
                    Err(format!("its output is {text:?}"))
                }
            }
            program => {
                let whole = program
                    .output(spec.seed, &self.input)
                    .ok_or("a program without a known output")?;
                for (whole, seen) in whole.iter().zip([out, err]) {
                    if all && by_itself {
                        numbered_lines::same(whole, seen)?;
                    } else if by_itself {
                        numbered_lines::is_end_of(whole, seen)?;
                    } else if !whole.windows(seen.len().max(1)).any(|piece| piece == seen)
                        && !seen.is_empty()
                    {
                        return Err(format!(
                            "{} bytes that are no piece of what is written",
                            seen.len()
                        ));
                    }
                }
                Ok(())
            }
        }
    }
}

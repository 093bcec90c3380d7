//! Which trees a power cut in the middle of a step may leave.

use anyhow::{Context, Result, ensure};

use super::plan::{NOISE_FILES, NOISE_LONGEST, Op, Plan, Tree, temporary};
use crate::contents::filled;

/// Looks at what is there of a writer's files: what was promised when its steps so far were done,
/// changed by any part of the next one.
///
/// # Errors
/// The file that is not as it should be.
pub fn judge(plan: &Plan, next: &Op, found: &Tree) -> Result<()> {
    let old = plan.tree();
    let excepted: Vec<String> = match next {
        Op::Rename { from, to } => {
            let mut after = plan.clone();
            after.apply(next);
            let pair = |tree: &Tree| [from, to].map(|path| tree.get(path).cloned());
            let now = pair(found);
            ensure!(
                now == pair(old) || now == pair(after.tree()),
                "{from} and {to} are neither as before nor as after a rename"
            );
            vec![from.clone(), to.clone()]
        }
        Op::Replace { path, len, key } => {
            let part = temporary(path);
            if let Some(bytes) = found.get(&part) {
                grown(&[], (0, &filled(*key, 0, *len)), bytes).with_context(|| part.clone())?;
            }
            replaced(old.get(path), &filled(*key, 0, *len), found.get(path))
                .with_context(|| path.clone())?;
            vec![path.clone(), part]
        }
        Op::Publish { path, len, key } => {
            replaced(old.get(path), &filled(*key, 0, *len), found.get(path))
                .with_context(|| path.clone())?;
            vec![path.clone()]
        }
        Op::Remove { path } | Op::RemoveDir { path } => {
            let now = found.get(path);
            ensure!(
                now.is_none() || now == old.get(path),
                "{path} is neither removed nor as before"
            );
            vec![path.clone()]
        }
        Op::MakeDir { path } => vec![path.clone()],
        Op::Create { path, len, key, .. } => {
            if let Some(bytes) = found.get(path) {
                grown(&[], (0, &filled(*key, 0, *len)), bytes).with_context(|| path.clone())?;
            }
            vec![path.clone()]
        }
        Op::Write { path, .. }
        | Op::Truncate { path, .. }
        | Op::Punch { path, .. }
        | Op::Allocate { path, .. } => {
            let now = found.get(path);
            let now = now.with_context(|| format!("{path} is not there"))?;
            changed(&old[path], next, now).with_context(|| path.clone())?;
            vec![path.clone()]
        }
    };
    let is_expected = |path: &&String| !excepted.contains(path);
    for path in old.keys().filter(is_expected) {
        let now = found.get(path);
        let now = now.with_context(|| format!("{path} is not there"))?;
        same(&old[path], now).with_context(|| path.clone())?;
    }
    for path in found.keys().filter(is_expected) {
        ensure!(old.contains_key(path), "{path} should not be there");
    }
    Ok(())
}

/// The same bytes.
fn same(wanted: &[u8], found: &[u8]) -> Result<()> {
    ensure!(
        wanted.len() == found.len(),
        "{} bytes instead of {}",
        found.len(),
        wanted.len()
    );
    match wanted.iter().zip(found).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => wrong_byte(at, found[at], wanted.len()),
    }
}

fn wrong_byte(at: usize, byte: u8, len: usize) -> Result<()> {
    anyhow::bail!("byte {at} of {len} is {byte:#x}")
}

/// As before, or another file.
fn replaced(old: Option<&Vec<u8>>, new: &[u8], found: Option<&Vec<u8>>) -> Result<()> {
    ensure!(
        found == old || found.map(Vec::as_slice) == Some(new),
        "neither as before nor as replaced"
    );
    Ok(())
}

/// Bytes that were changed by a call that was under way.
fn changed(old: &[u8], op: &Op, found: &[u8]) -> Result<()> {
    match op {
        Op::Write { at, len, key, .. } => grown(old, (*at, &filled(*key, *at, *len)), found),
        // The old or the new length. What is cut off may be zeros before the length has changed.
        Op::Truncate { len, .. } => {
            let len = *len as usize;
            ensure!(
                found.len() == old.len() || found.len() == len,
                "{} bytes instead of {} or {len}",
                found.len(),
                old.len()
            );
            let cut = old.len().saturating_sub(len);
            let mut before = old.to_vec();
            before.resize(found.len(), 0);
            grown(&before, (len as u64, &vec![0; cut]), found)
        }
        Op::Punch { at, len, .. } => {
            let len = (*len).min((old.len() as u64).saturating_sub(*at));
            grown(old, (*at, &vec![0; len as usize]), found)
        }
        Op::Allocate { at, len, .. } => {
            let end = (at + len) as usize;
            ensure!(
                found.len() == old.len() || found.len() == end.max(old.len()),
                "{} bytes instead of {} or {end}",
                found.len(),
                old.len()
            );
            let mut wanted = old.to_vec();
            wanted.resize(found.len(), 0);
            same(&wanted, found)
        }
        _ => unreachable!("other operations do not change bytes"),
    }
}

/// Bytes over which others were written, from a place on: each is as before or new, and where there
/// were none, zero or new.
fn grown(old: &[u8], (at, new): (u64, &[u8]), found: &[u8]) -> Result<()> {
    let at = at as usize;
    let end = if new.is_empty() { 0 } else { at + new.len() };
    ensure!(
        (old.len()..=old.len().max(end)).contains(&found.len()),
        "{} bytes instead of {} to {end}",
        found.len(),
        old.len()
    );
    for (n, byte) in found.iter().enumerate() {
        let before = old.get(n).copied().unwrap_or(0);
        let after = n.checked_sub(at).and_then(|n| new.get(n));
        if *byte != before && Some(byte) != after {
            return wrong_byte(n, *byte, found.len());
        }
    }
    Ok(())
}

/// Looks at the files of the writer that was promised nothing: bytes are what it wrote there, or
/// zero, never what somebody else had.
///
/// # Errors
/// The file that is not as it may be.
pub fn judge_noise(found: &Tree) -> Result<()> {
    for (path, bytes) in found {
        let number = path.strip_prefix('n').and_then(|text| text.parse().ok());
        let number = number.filter(|n| *n < NOISE_FILES);
        let key: u64 = number.with_context(|| format!("{path} should not be there"))?;
        ensure!(
            bytes.len() as u64 <= NOISE_LONGEST,
            "{path} has {} bytes",
            bytes.len()
        );
        let wanted = filled(key, 0, bytes.len() as u64);
        for (n, (now, wanted)) in bytes.iter().zip(&wanted).enumerate() {
            if *now != 0 && now != wanted {
                return wrong_byte(n, *now, bytes.len()).with_context(|| path.clone());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::power_cut::plan::WRITERS;

    /// The paths at which two trees differ.
    fn differing(a: &Tree, b: &Tree) -> Vec<String> {
        let paths = a.keys().chain(b.keys());
        let differing = paths.filter(|path| a.get(*path) != b.get(*path));
        differing.cloned().collect()
    }

    #[test]
    fn only_the_step_under_way_may_be_missing() {
        let mut missed = 0;
        for writer in 0..WRITERS.len() {
            let mut plan = Plan::new(5, writer);
            let mut before = plan.tree().clone();
            for _ in 0..200 {
                let op = plan.next();
                judge(&plan, &op, plan.tree()).expect("before");
                let mut after = plan.clone();
                after.apply(&op);
                judge(&plan, &op, after.tree()).expect("after");
                let last = differing(&before, plan.tree());
                let now = differing(plan.tree(), after.tree());
                if !last.is_empty() && !now.is_empty() && last.iter().all(|p| !now.contains(p)) {
                    assert!(judge(&plan, &op, &before).is_err(), "{op:?}");
                    missed += 1;
                }
                before = plan.tree().clone();
                plan = after;
            }
        }
        assert!(missed > 300, "{missed}");
    }

    #[test]
    fn torn_and_foreign_bytes_are_noticed() {
        let old = vec![1; 10];
        let new = [2; 10];
        for (found, is_right) in [
            (&[1, 1, 1, 1, 1, 1, 1, 1, 1, 1][..], true),
            (&[1, 1, 1, 1, 1, 2, 1, 2, 2, 2, 2, 0, 2], true),
            (&[1, 1, 1, 1, 1, 0, 1, 2, 2, 2], false),
            (&[1, 2, 1, 1, 1, 2, 1, 2, 2, 2], false),
            (&[1, 1, 1, 1, 1, 2, 1, 2, 2], false),
            (&[1, 1, 1, 1, 1, 2, 1, 2, 2, 2, 0xee], false),
            (&[1; 16], false),
        ] {
            assert_eq!(grown(&old, (5, &new), found).is_ok(), is_right, "{found:?}");
        }
        let mut noise = Tree::from([("n1".to_owned(), filled(1, 0, 100))]);
        judge_noise(&noise).expect("what was written");
        noise.get_mut("n1").expect("a file")[7] = crate::contents::GARBAGE;
        assert!(judge_noise(&noise).is_err());
    }
}

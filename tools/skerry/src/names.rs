//! Names of instances.

use std::hash::{BuildHasher, RandomState};

use crate::failure::{Failure, Result};

const ADJECTIVES: [&str; 32] = [
    "bare", "bold", "bright", "brisk", "calm", "clear", "cold", "craggy", "deep", "far", "foggy",
    "grey", "high", "keen", "lone", "mossy", "north", "outer", "pale", "quiet", "rough", "salty",
    "sheer", "sharp", "silent", "steep", "still", "stony", "storm", "wet", "wild", "windy",
];
const NOUNS: [&str; 32] = [
    "auk", "bay", "beacon", "bird", "cape", "cliff", "coast", "cove", "crag", "eider", "fjord",
    "gannet", "gull", "haven", "holm", "islet", "kelp", "ledge", "limpet", "otter", "petrel",
    "puffin", "reef", "rock", "sound", "seal", "shoal", "skua", "spray", "stack", "tern", "wave",
];

/// A name for an instance whose user gave none.
#[must_use]
pub fn generate() -> String {
    let random = RandomState::new().hash_one(0) as usize;
    format!("{}-{}", ADJECTIVES[random % 32], NOUNS[random / 32 % 32])
}

/// Longest name: what fits into the kernel's record.
const LONGEST: usize = abi::dev::LABEL_BYTES - 1;

/// Checks a name the user gave.
///
/// # Errors
/// Says what names look like.
pub fn check(name: &str) -> Result<()> {
    let good = name.len() <= LONGEST
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
    if good {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{name:?} cannot be a name: use up to {LONGEST} letters, digits, '_', '.' and '-', a letter or digit first"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_generated_is_a_name() {
        for _ in 0..100 {
            check(&generate()).unwrap();
        }
        assert!(
            ADJECTIVES
                .iter()
                .flat_map(|a| NOUNS.iter().map(move |n| a.len() + n.len()))
                .all(|len| len < 16)
        );
    }

    #[test]
    fn names_are_checked() {
        for good in ["a", "web-1", "0.x_Y", &"a".repeat(63)] {
            check(good).unwrap();
        }
        for bad in ["", "-a", ".a", "a b", "ä", "a/b", &"a".repeat(64)] {
            assert!(check(bad).unwrap_err().message.contains("letters"), "{bad}");
        }
    }
}

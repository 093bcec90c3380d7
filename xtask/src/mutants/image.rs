//! The kernel image with all mutants, and the choice in it.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use object::{Object, ObjectSection, ObjectSymbol};

use super::compile::{self, Built};
use super::tree::{Mutant, Tree};
use crate::{build, ksyms};

/// The choice, in the image.
const SYMBOL: &str = "SKERRY_MUTANT";
/// The kernel is for trials: it is built quickly.
const PROFILE: &str = "quick";

/// A kernel with all mutants.
pub struct Image {
    bytes: Vec<u8>,
    choice: usize,
    directory: PathBuf,
}

impl Image {
    /// Builds it, with as many of the mutants as are Rust; these are returned, too.
    ///
    /// # Errors
    /// When it does not build.
    pub fn build(tree: &Tree, mutants: Vec<Mutant>) -> Result<(Self, Vec<Mutant>)> {
        let Built { mutants, .. } = compile::compile(tree, mutants, true, |cargo| {
            cargo.args([
                "build",
                "--keep-going",
                "--profile",
                PROFILE,
                "-p",
                "skerry-kernel",
                "--target",
                build::KERNEL_TARGET,
            ]);
        })?;
        let linked = tree
            .target
            .join(build::KERNEL_TARGET)
            .join(PROFILE)
            .join("skerry-kernel");
        let mut bytes =
            fs::read(&linked).with_context(|| format!("cannot read {}", linked.display()))?;
        ksyms::fill(&mut bytes)?;
        let choice =
            choice(&bytes).with_context(|| format!("{} has no {SYMBOL}", linked.display()))?;
        let directory = tree.target.join("images");
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        Ok((
            Self {
                bytes,
                choice,
                directory,
            },
            mutants,
        ))
    }

    /// The image with this choice.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn with(&self, choice: u32) -> Result<Chosen> {
        let mut bytes = self.bytes.clone();
        bytes[self.choice..self.choice + 4].copy_from_slice(&choice.to_le_bytes());
        let path = self
            .directory
            .join(format!("{choice}-{}.elf", std::process::id()));
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Chosen(path))
    }
}

/// An image that goes with its owner.
pub struct Chosen(pub PathBuf);

impl Drop for Chosen {
    fn drop(&mut self) {
        // It lies in the target directory; nobody misses the room.
        let _ = fs::remove_file(&self.0);
    }
}

/// Where the choice is in the file.
fn choice(bytes: &[u8]) -> Option<usize> {
    let file = object::File::parse(bytes).ok()?;
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(SYMBOL))?;
    let section = file.section_by_index(symbol.section_index()?).ok()?;
    let (offset, _) = section.file_range()?;
    Some((offset + symbol.address() - section.address()) as usize)
}

//! Manual pages and shell completions, made of the command line itself.

use std::io::{self, Write};
use std::path::Path;

use clap::{CommandFactory, ValueEnum};

use crate::arguments::Cli;
use crate::failure::{Context, Result};

/// Shells for which there are completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// Bash.
    Bash,
    /// Elvish.
    Elvish,
    /// Fish.
    Fish,
    /// PowerShell.
    Powershell,
    /// Zsh.
    Zsh,
}

/// Prints the completions for a shell.
///
/// # Errors
/// Those of `out`.
pub fn completion(shell: Shell, out: &mut dyn Write) -> io::Result<()> {
    use clap_complete::aot;
    let shell = match shell {
        Shell::Bash => aot::Shell::Bash,
        Shell::Elvish => aot::Shell::Elvish,
        Shell::Fish => aot::Shell::Fish,
        Shell::Powershell => aot::Shell::PowerShell,
        Shell::Zsh => aot::Shell::Zsh,
    };
    let mut text = Vec::new();
    aot::generate(shell, &mut Cli::command(), "skerry", &mut text);
    out.write_all(&text)
}

/// Writes the manual pages, `skerry.1` and `skerry-COMMAND.1`, into a folder that exists.
///
/// # Errors
/// Names the folder.
pub fn manual(folder: &Path) -> Result<()> {
    clap_mangen::generate_to(Cli::command(), folder)
        .context(|| format!("cannot write manual pages into {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shell_has_completions_that_know_the_commands() {
        for shell in Shell::value_variants() {
            let mut out = Vec::new();
            completion(*shell, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            for word in [
                "resize", "events", "on-hang", "apply", "restart", "dry-run", "network", "device",
            ] {
                assert!(text.contains(word), "{shell:?} {word}");
            }
        }
    }
}

//! Failures of commands: one line that names the thing and the remedy, and an exit status.

use std::fmt;
use std::io;

/// Exit status of `run` and of everything that stands for a program, if it is Skerry that failed
/// (as in `docker run`).
pub const STATUS_TOOL_FAILED: u8 = 125;

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    /// The error and its remedy; empty if everything has been said.
    pub message: String,
    /// The exit status.
    pub status: u8,
}

/// Result of a command.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure with exit status 1.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            status: 1,
        }
    }

    /// The failure as one of a command whose exit status is otherwise its program's, unless it
    /// stands for one of those.
    #[must_use]
    pub fn ours(self) -> Self {
        let status = if self.status == 1 {
            STATUS_TOOL_FAILED
        } else {
            self.status
        };
        Self { status, ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Says what was attempted when something goes wrong.
pub trait Context<T> {
    /// Turns the error into a failure that begins with `what`.
    ///
    /// # Errors
    /// The failure.
    fn context<S: fmt::Display>(self, what: impl FnOnce() -> S) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn context<S: fmt::Display>(self, what: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|error| Failure::new(format!("{}: {}", what(), plain(&error))))
    }
}

/// An error's text without Rust's "(os error 2)".
#[must_use]
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_for_people() {
        let failed: io::Result<()> = Err(io::Error::from_raw_os_error(2));
        let failure = failed.context(|| "cannot open x").unwrap_err();
        assert_eq!(
            (failure.message.as_str(), failure.status),
            ("cannot open x: No such file or directory", 1)
        );
        assert_eq!(failure.ours().status, 125);
    }
}

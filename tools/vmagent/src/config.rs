//! Requests of the host to the agent: a file in the initial RAM file system.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Where the file is, in the machine.
pub const PATH: &str = "/etc/vmagent/run";

/// One run. As a file it is NUL-separated: the mode, the nonce, then the command's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Give the command the line itself as its controlling terminal, of this many rows and columns.
    pub terminal: Option<(u16, u16)>,
    /// Marks where frames begin. Random text without NUL.
    pub nonce: String,
    /// The program and its arguments; never empty.
    pub command: Vec<OsString>,
}

impl Config {
    /// The file's contents.
    pub fn encode(&self) -> Vec<u8> {
        let mode = match self.terminal {
            Some((rows, columns)) => format!("terminal {rows} {columns}"),
            None => "pipes".to_owned(),
        };
        let mut bytes = Vec::new();
        bytes.extend_from_slice(mode.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(self.nonce.as_bytes());
        for word in &self.command {
            bytes.push(0);
            bytes.extend_from_slice(word.as_bytes());
        }
        bytes
    }

    /// Reads a file's contents; `None` if they are not what [`encode`](Self::encode) makes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut parts = bytes.split(|&byte| byte == 0);
        let mode = std::str::from_utf8(parts.next()?).ok()?;
        let mut words = mode.split(' ');
        let terminal = match words.next()? {
            "pipes" => None,
            "terminal" => Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?)),
            _ => return None,
        };
        let nonce = String::from_utf8(parts.next()?.to_vec()).ok()?;
        let command: Vec<_> = parts
            .map(|word| OsString::from_vec(word.to_vec()))
            .collect();
        if command.is_empty() {
            return None;
        }
        Some(Self {
            terminal,
            nonce,
            command,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for terminal in [None, Some((24, 80))] {
            let command = ["sh", "-c", "", "echo 'a b'\n"]
                .map(OsString::from)
                .to_vec();
            let config = Config {
                terminal,
                nonce: "abc123".into(),
                command,
            };
            assert_eq!(Config::decode(&config.encode()), Some(config));
        }
    }

    #[test]
    fn an_empty_command_is_refused() {
        assert_eq!(Config::decode(b"pipes\0nonce"), None);
        assert_eq!(Config::decode(b""), None);
        assert_eq!(Config::decode(b"other\0nonce\0true"), None);
    }
}

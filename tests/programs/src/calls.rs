//! System calls by number, and their results as the kernel gives them.

use anyhow::{Result, ensure};

/// Outcome of a call: its result, or the negated error.
pub fn outcome(result: i64) -> i64 {
    if result < 0 {
        -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    } else {
        result
    }
}

/// Makes a system call. The arguments are numbers, or addresses of places that are as large as the
/// call takes them to be.
pub fn make(number: i64, arguments: &[usize]) -> i64 {
    let mut six = [0; 6];
    six[..arguments.len()].copy_from_slice(arguments);
    // SAFETY: the caller vouches for the arguments, as the comment above says.
    outcome(unsafe { libc::syscall(number, six[0], six[1], six[2], six[3], six[4], six[5]) })
}

/// Makes a system call with arguments that are numbers or pointers, and returns its result or the
/// negated error.
macro_rules! call {
    ($number:ident $(, $argument:expr)* $(,)?) => {
        crate::calls::make(libc::$number, &[$($argument as usize),*])
    };
}
pub(crate) use call;

/// Checks that a call came out as it should.
pub fn is(got: i64, expected: i64, what: &str) -> Result<()> {
    ensure!(
        got == expected,
        "{what}: {}, not {}",
        shown(got),
        shown(expected)
    );
    Ok(())
}

/// Checks that a call failed with this error.
pub fn fails(got: i64, errno: i32, what: &str) -> Result<()> {
    is(got, -i64::from(errno), what)
}

fn shown(result: i64) -> String {
    match i32::try_from(-result) {
        Ok(errno @ 1..4096) => std::io::Error::from_raw_os_error(errno).to_string(),
        _ => result.to_string(),
    }
}

/// A descriptor that is closed at the end.
pub struct Fd(pub i32);

impl Fd {
    /// Takes the descriptor that a call returned.
    ///
    /// # Errors
    /// That of the call.
    pub fn new(result: i64, what: &str) -> Result<Self> {
        ensure!(result >= 0, "{what}: {}", shown(result));
        Ok(Self(result as i32))
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        call!(SYS_close, self.0);
    }
}

/// The two ends of a pipe.
pub fn pipe(flags: i32) -> Result<[Fd; 2]> {
    let mut fds = [-1; 2];
    is(call!(SYS_pipe2, fds.as_mut_ptr(), flags), 0, "pipe2")?;
    Ok(fds.map(Fd))
}

/// Two sockets that are connected.
pub fn pair(kind: i32) -> Result<[Fd; 2]> {
    let mut fds = [-1; 2];
    is(
        call!(SYS_socketpair, libc::AF_UNIX, kind, 0, fds.as_mut_ptr()),
        0,
        "socketpair",
    )?;
    Ok(fds.map(Fd))
}

//! Linux error numbers, the one error type of everything that ends in a system call.

use core::fmt;

/// A Linux error number (`errno(3)`), always positive.
///
/// As wide as a `usize`, so that a function returns `Result<usize, Errno>` in two registers instead
/// of in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Errno(isize);

macro_rules! errnos {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Self = Self($value);)*

            /// The symbolic name (`"ENOENT"`), or `"E?"` for a number Linux does not define here.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self.0 { $($value => stringify!($name),)* _ => "E?" }
            }

            /// The message for this error, as `strerror(3)` has it.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self.0 { $($value => $text,)* _ => "Unknown error" }
            }
        }
    };
}

errnos! {
    EPERM = 1, "Operation not permitted";
    ENOENT = 2, "No such file or directory";
    ESRCH = 3, "No such process";
    EINTR = 4, "Interrupted system call";
    EIO = 5, "Input/output error";
    ENXIO = 6, "No such device or address";
    E2BIG = 7, "Argument list too long";
    ENOEXEC = 8, "Exec format error";
    EBADF = 9, "Bad file descriptor";
    ECHILD = 10, "No child processes";
    EAGAIN = 11, "Resource temporarily unavailable";
    ENOMEM = 12, "Cannot allocate memory";
    EACCES = 13, "Permission denied";
    EFAULT = 14, "Bad address";
    ENOTBLK = 15, "Block device required";
    EBUSY = 16, "Device or resource busy";
    EEXIST = 17, "File exists";
    EXDEV = 18, "Invalid cross-device link";
    ENODEV = 19, "No such device";
    ENOTDIR = 20, "Not a directory";
    EISDIR = 21, "Is a directory";
    EINVAL = 22, "Invalid argument";
    ENFILE = 23, "Too many open files in system";
    EMFILE = 24, "Too many open files";
    ENOTTY = 25, "Inappropriate ioctl for device";
    ETXTBSY = 26, "Text file busy";
    EFBIG = 27, "File too large";
    ENOSPC = 28, "No space left on device";
    ESPIPE = 29, "Illegal seek";
    EROFS = 30, "Read-only file system";
    EMLINK = 31, "Too many links";
    EPIPE = 32, "Broken pipe";
    EDOM = 33, "Numerical argument out of domain";
    ERANGE = 34, "Numerical result out of range";
    EDEADLK = 35, "Resource deadlock avoided";
    ENAMETOOLONG = 36, "File name too long";
    ENOLCK = 37, "No locks available";
    ENOSYS = 38, "Function not implemented";
    ENOTEMPTY = 39, "Directory not empty";
    ELOOP = 40, "Too many levels of symbolic links";
    ENOMSG = 42, "No message of desired type";
    EIDRM = 43, "Identifier removed";
    ENODATA = 61, "No data available";
    ETIME = 62, "Timer expired";
    ENONET = 64, "Machine is not on the network";
    EPROTO = 71, "Protocol error";
    EOVERFLOW = 75, "Value too large for defined data type";
    EBADFD = 77, "File descriptor in bad state";
    EILSEQ = 84, "Invalid or incomplete multibyte or wide character";
    ENOTSOCK = 88, "Socket operation on non-socket";
    EDESTADDRREQ = 89, "Destination address required";
    EMSGSIZE = 90, "Message too long";
    EPROTOTYPE = 91, "Protocol wrong type for socket";
    ENOPROTOOPT = 92, "Protocol not available";
    EPROTONOSUPPORT = 93, "Protocol not supported";
    ESOCKTNOSUPPORT = 94, "Socket type not supported";
    EOPNOTSUPP = 95, "Operation not supported";
    EPFNOSUPPORT = 96, "Protocol family not supported";
    EAFNOSUPPORT = 97, "Address family not supported by protocol";
    EADDRINUSE = 98, "Address already in use";
    EADDRNOTAVAIL = 99, "Cannot assign requested address";
    ENETDOWN = 100, "Network is down";
    ENETUNREACH = 101, "Network is unreachable";
    ECONNABORTED = 103, "Software caused connection abort";
    ECONNRESET = 104, "Connection reset by peer";
    ENOBUFS = 105, "No buffer space available";
    EISCONN = 106, "Transport endpoint is already connected";
    ENOTCONN = 107, "Transport endpoint is not connected";
    ETOOMANYREFS = 109, "Too many references: cannot splice";
    ETIMEDOUT = 110, "Connection timed out";
    ECONNREFUSED = 111, "Connection refused";
    EHOSTDOWN = 112, "Host is down";
    EHOSTUNREACH = 113, "No route to host";
    EALREADY = 114, "Operation already in progress";
    EINPROGRESS = 115, "Operation now in progress";
    ESTALE = 116, "Stale file handle";
    EUCLEAN = 117, "Structure needs cleaning";
    ECANCELED = 125, "Operation canceled";
    EOWNERDEAD = 130, "Owner died";
    ERESTARTSYS = 512, "(internal) restart if the handler has SA_RESTART, or there is none";
    ERESTARTNOINTR = 513, "(internal) restart always";
    ERESTARTNOHAND = 514, "(internal) restart if no handler runs";
    ERESTART_RESTARTBLOCK = 516, "(internal) restart by restart_syscall(2)";
}

impl Errno {
    /// The error number of a raw value, for numbers that come from elsewhere.
    #[must_use]
    pub const fn from_raw(number: i32) -> Self {
        Self(number as isize)
    }

    /// The number, positive.
    #[must_use]
    pub const fn raw(self) -> i32 {
        self.0 as i32
    }

    /// True for the codes that never leave the kernel: they say how an interrupted call is
    /// restarted.
    #[must_use]
    pub const fn is_restart(self) -> bool {
        matches!(
            self,
            Self::ERESTARTSYS
                | Self::ERESTARTNOINTR
                | Self::ERESTARTNOHAND
                | Self::ERESTART_RESTARTBLOCK
        )
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl core::error::Error for Errno {}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::Errno;

    #[test]
    fn numbers_names_and_words() {
        let told = |number| {
            let error = Errno::from_raw(number);
            (
                std::format!("{error:?}"),
                error.to_string(),
                error.raw(),
                error.is_restart(),
            )
        };
        assert_eq!(
            told(2),
            (
                "ENOENT".into(),
                "No such file or directory".into(),
                2,
                false
            )
        );
        assert_eq!(told(4000).0, "E?");
        assert_eq!(
            [125, 130, 511, 512, 513, 514, 516].map(|n| told(n).3),
            [false, false, false, true, true, true, true]
        );
        assert_eq!(Errno::ERESTARTSYS.raw(), 512);
    }
}

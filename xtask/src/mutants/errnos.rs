//! Errors that are taken for each other.

/// Each error, and the one that somebody might have written for it.
const NEIGHBOURS: &[(&str, &str)] = &[
    ("E2BIG", "EINVAL"),
    ("EACCES", "EPERM"),
    ("EADDRINUSE", "EADDRNOTAVAIL"),
    ("EADDRNOTAVAIL", "EADDRINUSE"),
    ("EAGAIN", "EINTR"),
    ("EBADF", "EINVAL"),
    ("EBUSY", "EEXIST"),
    ("ECHILD", "ESRCH"),
    ("ECONNREFUSED", "ECONNRESET"),
    ("EEXIST", "EBUSY"),
    ("EFAULT", "EINVAL"),
    ("EINTR", "EAGAIN"),
    ("EINVAL", "EOPNOTSUPP"),
    ("EISDIR", "EINVAL"),
    ("ELOOP", "EINVAL"),
    ("EMFILE", "ENFILE"),
    ("EMSGSIZE", "EINVAL"),
    ("ENAMETOOLONG", "EINVAL"),
    ("ENODATA", "EINVAL"),
    ("ENODEV", "ENXIO"),
    ("ENOENT", "ENOTDIR"),
    ("ENOMEM", "ENOSPC"),
    ("ENOSPC", "ENOMEM"),
    ("ENOSYS", "EINVAL"),
    ("ENOTCONN", "EPIPE"),
    ("ENOTDIR", "ENOENT"),
    ("ENOTTY", "EINVAL"),
    ("ENXIO", "ENODEV"),
    ("EOPNOTSUPP", "EINVAL"),
    ("EOVERFLOW", "EINVAL"),
    ("EPERM", "EACCES"),
    ("EPIPE", "ENOTCONN"),
    ("ERANGE", "EINVAL"),
    ("EROFS", "EACCES"),
    ("ESPIPE", "EINVAL"),
    ("ESRCH", "ECHILD"),
    ("ETIMEDOUT", "EAGAIN"),
];

/// The error that stands in the place of `right`.
pub fn neighbour(right: &str) -> Option<&'static str> {
    NEIGHBOURS
        .iter()
        .find(|(is, _)| *is == right)
        .map(|(_, wrong)| *wrong)
}

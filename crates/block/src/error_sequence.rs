//! Errors that nobody waited for: each opener is told once (Linux `errseq_t`, since 4.13).

use abi::errno::Errno;

/// Errors of one file or device, as far as they were recorded.
#[derive(Debug)]
pub struct ErrorSequence {
    /// Number of errors that somebody was told of, the last one included.
    count: u64,
    last: Option<Errno>,
    /// Whether the last one was told to anybody.
    is_seen: bool,
}

/// Place in an [`ErrorSequence`] up to which an opener was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCursor(u64);

impl ErrorSequence {
    /// A sequence without any error so far.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            count: 0,
            last: None,
            is_seen: true,
        }
    }

    /// Notes an error. One that follows another nobody was told of takes its place.
    pub const fn record(&mut self, error: Errno) {
        if self.is_seen {
            self.count += 1;
            self.is_seen = false;
        }
        self.last = Some(error);
    }

    /// The place of a new opener: one that nobody was told of is told to it.
    #[must_use]
    pub const fn sample(&self) -> ErrorCursor {
        ErrorCursor(if self.is_seen {
            self.count
        } else {
            self.count - 1
        })
    }

    /// Tells an opener of the last error since it was told last, and moves its place.
    ///
    /// # Errors
    /// That error.
    pub const fn check_and_advance(&mut self, cursor: &mut ErrorCursor) -> Result<(), Errno> {
        if cursor.0 == self.count {
            return Ok(());
        }
        cursor.0 = self.count;
        self.is_seen = true;
        match self.last {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opener_is_told_once() {
        let mut errors = ErrorSequence::none();
        let (mut first, mut second) = (errors.sample(), errors.sample());
        assert_eq!(errors.check_and_advance(&mut first), Ok(()));
        errors.record(Errno::EIO);
        errors.record(Errno::ENOSPC);
        for cursor in [&mut first, &mut second] {
            assert_eq!(errors.check_and_advance(cursor), Err(Errno::ENOSPC));
            assert_eq!(errors.check_and_advance(cursor), Ok(()));
        }
    }

    #[test]
    fn a_new_opener_is_told_what_nobody_else_was() {
        let mut errors = ErrorSequence::none();
        errors.record(Errno::EIO);
        let mut late = errors.sample();
        assert_eq!(errors.check_and_advance(&mut late), Err(Errno::EIO));
        let mut later = errors.sample();
        assert_eq!(errors.check_and_advance(&mut later), Ok(()));
        errors.record(Errno::EIO);
        assert_eq!(errors.check_and_advance(&mut late), Err(Errno::EIO));
        assert_eq!(errors.check_and_advance(&mut later), Err(Errno::EIO));
    }
}

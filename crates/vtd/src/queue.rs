//! Requests to forget what was read of tables (6.5.2): a ring of 16-byte descriptors.

/// Descriptors in a queue of one page.
pub const ENTRIES: usize = 256;

/// Requests that are under way are waited for, both kinds.
const DRAIN: u64 = 1 << 6 | 1 << 7;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptor {
    /// Forget all entries for functions.
    AllContexts,
    /// Forget the entry for one function, that was of a domain.
    Context {
        /// The domain.
        domain: u16,
        /// Bus, and device and function.
        function: u16,
    },
    /// Forget all translations.
    AllTranslations,
    /// Forget the translations of a domain.
    Translations {
        /// The domain.
        domain: u16,
    },
    /// Forget all entries for interrupts.
    AllInterrupts,
    /// Forget entries for interrupts.
    Interrupts {
        /// The first, a multiple of their number.
        first: u16,
        /// Their number, as a power of two.
        order: u8,
    },
    /// Write a number when all requests before are done.
    Wait {
        /// Address of the machine, a multiple of 4.
        at: u64,
        /// The number.
        value: u32,
    },
}

impl Descriptor {
    /// The descriptor as it stands in the queue.
    #[must_use]
    pub const fn words(self) -> [u64; 2] {
        match self {
            Self::AllContexts => [0x1 | 1 << 4, 0],
            Self::Context { domain, function } => [
                0x1 | 3 << 4 | (domain as u64) << 16 | (function as u64) << 32,
                0,
            ],
            Self::AllTranslations => [0x2 | 1 << 4 | DRAIN, 0],
            Self::Translations { domain } => [0x2 | 2 << 4 | DRAIN | (domain as u64) << 16, 0],
            Self::AllInterrupts => [0x4, 0],
            Self::Interrupts { first, order } => [
                0x4 | 1 << 4 | (order as u64) << 27 | (first as u64) << 32,
                0,
            ],
            Self::Wait { at, value } => [0x5 | 1 << 5 | (value as u64) << 32, at],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_those_of_the_standard() {
        for (descriptor, words) in [
            (Descriptor::AllContexts, [0x11, 0]),
            (
                Descriptor::Context {
                    domain: 0x12,
                    function: 0x0308,
                },
                [0x0308_0012_0031, 0],
            ),
            (Descriptor::AllTranslations, [0xd2, 0]),
            (Descriptor::Translations { domain: 0x12 }, [0x12_00e2, 0]),
            (Descriptor::AllInterrupts, [0x4, 0]),
            (
                Descriptor::Interrupts {
                    first: 0x120,
                    order: 4,
                },
                [0x120_2000_0014, 0],
            ),
            (
                Descriptor::Wait {
                    at: 0x7000,
                    value: 9,
                },
                [0x9_0000_0025, 0x7000],
            ),
        ] {
            assert_eq!(descriptor.words(), words, "{descriptor:?}");
        }
    }
}

//! The atomics, each use of which is a decision point for threads of a model that is explored. In
//! one order for all: what weaker orders allow is for the model checker loom to find.

use core::sync::atomic;
pub use core::sync::atomic::{Ordering, fence};

macro_rules! atomics {
    ($($name:ident $value:ty),*) => {$(
        /// An atomic like that of the core library, with a decision point in each operation.
        #[derive(Debug, Default)]
        pub struct $name(atomic::$name);

        impl $name {
            /// An atomic with a value.
            #[must_use]
            pub const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }
            /// Reads the value atomically.
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                explore::point("load");
                self.0.load(order)
            }
            /// Writes the value atomically.
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                explore::point("store");
                self.0.store(value, order);
            }
            /// Changes the value, and returns what it was.
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                explore::point("swap");
                self.0.swap(value, order)
            }
            /// Changes the value if it is `old`.
            ///
            /// # Errors
            /// The value, if it is another one.
            #[track_caller]
            pub fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                explore::point("compare and exchange");
                self.0.compare_exchange(old, new, success, failure)
            }
            /// Sets bits, and returns what it was.
            #[track_caller]
            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                explore::point("fetch or");
                self.0.fetch_or(value, order)
            }
        }
    )*};
}

macro_rules! counters {
    ($($name:ident $value:ty),*) => {$(
        impl $name {
            /// Adds, and returns what it was.
            #[track_caller]
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                explore::point("fetch add");
                self.0.fetch_add(value, order)
            }
            /// Subtracts, and returns what it was.
            #[track_caller]
            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                explore::point("fetch sub");
                self.0.fetch_sub(value, order)
            }
        }
    )*};
}

atomics!(AtomicBool bool, AtomicU8 u8, AtomicU32 u32, AtomicI32 i32, AtomicU64 u64, AtomicUsize usize);
counters!(AtomicU8 u8, AtomicU32 u32, AtomicI32 i32, AtomicU64 u64, AtomicUsize usize);

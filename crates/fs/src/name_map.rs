//! Maps from names: directories of many entries are searched with one comparison of bytes.
//!
//! Hashes depend on a secret of this kernel's run, so a program cannot make names that fall
//! together on purpose.

use alloc::sync::Arc;
use core::hash::BuildHasher;

use foldhash::SharedSeed;
use foldhash::fast::{FoldHasher, SeedableRandomState};
use task::Once;

/// A map whose keys are names.
pub(crate) type NameMap<V> = hashbrown::HashMap<Arc<[u8]>, V, NameHash>;

/// Hashes names.
#[derive(Clone, Copy, Default)]
pub(crate) struct NameHash;

static SECRET: Once<SharedSeed> = Once::new();
static STATE: Once<SeedableRandomState> = Once::new();

impl BuildHasher for NameHash {
    type Hasher = FoldHasher<'static>;

    fn build_hasher(&self) -> Self::Hasher {
        let state = STATE.call_once(|| {
            let random = || {
                let mut bytes = [0; 8];
                crate::devfs::fill_random(&mut bytes);
                u64::from_le_bytes(bytes)
            };
            SeedableRandomState::with_seed(
                random(),
                SECRET.call_once(|| SharedSeed::from_u64(random())),
            )
        });
        state.build_hasher()
    }
}

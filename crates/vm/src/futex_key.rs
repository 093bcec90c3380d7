//! Identities of futex words: the same for all who see the same word, private or shared.

use alloc::sync::Arc;

use abi::errno::Errno;

use crate::object::Backing;
use crate::vma::Prot;
use crate::{AddressSpace, PAGE_SIZE};

/// Key of a word of memory: the same for all who see the same word.
#[derive(Clone)]
pub struct FutexKey {
    space: u64,
    index: u64,
    /// Keeps what `index` counts in from being replaced by something else at its address.
    object: Option<Arc<dyn Backing>>,
}

impl FutexKey {
    /// A word that only this address space sees ([`AddressSpace::id`]).
    #[inline]
    #[must_use]
    pub fn private(space: u64, addr: usize) -> Self {
        Self {
            space,
            index: addr as u64,
            object: None,
        }
    }

    /// Numbers that tell the key from all others, as long as it exists.
    #[inline]
    #[must_use]
    pub fn word(&self) -> FutexWord {
        let object = self
            .object
            .as_ref()
            .map_or(0, |object| Arc::as_ptr(object).cast::<u8>().addr());
        FutexWord {
            space: self.space,
            index: self.index,
            object: object as u64,
        }
    }
}

/// Numbers of a [`FutexKey`]: they name the same word as long as somebody holds the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FutexWord {
    /// The address space ([`AddressSpace::id`]); 0 if the word is an object's.
    pub space: u64,
    /// Address of the word in its space, or its place in its object.
    pub index: u64,
    /// Address of the object; 0 if the word is one address space's.
    pub object: u64,
}

impl AddressSpace {
    /// The identity of the word at `addr`, which is to be written, too, if it `changes`, for who
    /// does not say that it is private to this address space. Of memory that is, it is another word
    /// than the one of [`FutexKey::private`] all the same, as on Linux: who waits and who wakes
    /// must say the same.
    ///
    /// # Errors
    /// `EFAULT` if nothing is mapped there, or it cannot be written: anonymous memory of which that
    /// is true never changes.
    pub fn futex_key(&self, addr: usize, changes: bool) -> Result<FutexKey, Errno> {
        // Words lie at multiples of four, so no address is this.
        let own = FutexKey::private(self.id(), addr | 1);
        let state = self.state.read();
        let (start, area) = state.vmas.find(addr).ok_or(Errno::EFAULT)?;
        if !area.prot.contains(Prot::WRITE) && (changes || area.mapped.is_none()) {
            return Err(Errno::EFAULT);
        }
        match &area.mapped {
            Some(source) if area.is_shared() => {
                let index = source.page_offset * PAGE_SIZE as u64 + (addr - start) as u64;
                Ok(FutexKey {
                    space: 0,
                    index,
                    object: Some(source.object.backing.clone()),
                })
            }
            _ => Ok(own),
        }
    }
}

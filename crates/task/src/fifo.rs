//! A queue of thread numbers linked through the threads' own links, so that putting a thread into
//! it allocates nothing.

use core::sync::atomic::{AtomicU32, Ordering};

use ring::NIL;

/// Used by one CPU with interrupts off; the links are atomics only because wake lists share them.
#[derive(Debug)]
pub(crate) struct Fifo {
    head: u32,
    tail: u32,
    len: u32,
}

impl Fifo {
    pub(crate) const fn new() -> Self {
        Self {
            head: NIL,
            tail: NIL,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn push_back<'a>(&mut self, number: u32, next: impl Fn(u32) -> &'a AtomicU32) {
        next(number).store(NIL, Ordering::Relaxed);
        if self.tail == NIL {
            self.head = number;
        } else {
            next(self.tail).store(number, Ordering::Relaxed);
        }
        self.tail = number;
        self.len += 1;
    }

    pub(crate) fn pop<'a>(&mut self, next: impl Fn(u32) -> &'a AtomicU32) -> Option<u32> {
        let number = self.head;
        if number == NIL {
            return None;
        }
        self.head = next(number).load(Ordering::Relaxed);
        if self.head == NIL {
            self.tail = NIL;
        }
        self.len -= 1;
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out() {
        let links: Vec<AtomicU32> = (0..8).map(|_| AtomicU32::new(NIL)).collect();
        let next = |n: u32| &links[n as usize];
        let mut queue = Fifo::new();
        for n in [4, 2, 7] {
            queue.push_back(n, next);
        }
        assert_eq!(queue.len(), 3);
        let all: Vec<u32> = core::iter::from_fn(|| queue.pop(next)).collect();
        assert_eq!(all, [4, 2, 7]);
        queue.push_back(5, next);
        assert_eq!((queue.pop(next), queue.pop(next)), (Some(5), None));
        assert!(queue.is_empty());
    }
}

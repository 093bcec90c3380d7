//! Sizes of objects.

use core::alloc::Layout;

/// Every size that is handed out. Each is a multiple of 16; a multiple of a larger power of two is
/// aligned to it.
pub(crate) const SIZES: [usize; CLASSES] = [
    16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024, 1280,
    1536, 2048,
];

/// Number of size classes.
pub const CLASSES: usize = 22;
/// Of these, how many are small: [`SMALL_LARGEST`] bytes and less.
pub(crate) const SMALL: usize = 12;
const SMALL_LARGEST: usize = 256;
/// The largest object.
pub const LARGEST: usize = 2048;

/// The class for each multiple of 16.
const CLASS_OF: [u8; LARGEST / 16 + 1] = {
    let mut table = [0; LARGEST / 16 + 1];
    let (mut size, mut class) = (0, 0);
    while size <= LARGEST {
        if size > SIZES[class] {
            class += 1;
        }
        table[size / 16] = class as u8;
        size += 16;
    }
    table
};

/// The class whose objects suit a layout; `None` if it is too large.
#[inline]
#[must_use]
pub fn class_of(layout: Layout) -> Option<usize> {
    let size = if layout.align() <= 16 {
        layout.size()
    } else {
        layout.size().max(layout.align()).next_power_of_two()
    };
    (size <= LARGEST).then(|| usize::from(CLASS_OF[size.div_ceil(16)]))
}

/// The ordinary order of a class's slabs: 4 KiB for small objects, 16 KiB for larger ones, so that
/// what is left over is little.
pub(crate) const fn order(class: usize) -> u8 {
    if class < SMALL { 0 } else { 2 }
}

const _: () = assert!(SIZES[SMALL - 1] == SMALL_LARGEST && SIZES[CLASSES - 1] == LARGEST);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_class_is_large_enough_and_aligned(size in 0usize..3000, shift in 0u32..13) {
            let layout = Layout::from_size_align(size, 1 << shift).unwrap();
            match class_of(layout) {
                Some(class) => {
                    let got = SIZES[class];
                    prop_assert!(got >= size && got.is_multiple_of(layout.align()));
                    // Nothing smaller would do, but for alignments that the sizes between powers of
                    // two do not have.
                    prop_assert!(class == 0 || SIZES[class - 1] < size || layout.align() > 16);
                }
                None => prop_assert!(size > LARGEST || layout.align() > LARGEST || layout.align() > 16 && size > LARGEST / 2),
            }
        }
    }
}

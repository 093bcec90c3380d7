//! The stream of ChaCha20 (RFC 8439, section 2.3), by which programs make random numbers of a key
//! that the kernel gave them.

/// Bytes of a block.
pub const BLOCK: usize = 64;

/// Block `counter` of the stream of a key whose nonce is zero.
#[inline]
#[must_use]
pub fn block(key: &[u32; 8], counter: u32) -> [u32; 16] {
    /// "expand 32-byte k".
    const CONSTANT: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];
    let [a, b, c, d, e, f, g, h] = *key;
    let start = [
        CONSTANT[0],
        CONSTANT[1],
        CONSTANT[2],
        CONSTANT[3],
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        h,
        counter,
        0,
        0,
        0,
    ];
    let mut state = start;
    for _ in 0..10 {
        quarter(&mut state, [0, 4, 8, 12]);
        quarter(&mut state, [1, 5, 9, 13]);
        quarter(&mut state, [2, 6, 10, 14]);
        quarter(&mut state, [3, 7, 11, 15]);
        quarter(&mut state, [0, 5, 10, 15]);
        quarter(&mut state, [1, 6, 11, 12]);
        quarter(&mut state, [2, 7, 8, 13]);
        quarter(&mut state, [3, 4, 9, 14]);
    }
    let mut at = 0;
    state.map(|word| {
        at += 1;
        word.wrapping_add(start[at - 1])
    })
}

/// The quarter round (section 2.1) of four of the state's words.
#[inline(always)]
fn quarter(state: &mut [u32; 16], [a, b, c, d]: [usize; 4]) {
    let mut mix = |to: usize, from: usize, turned: usize, by: u32| {
        state[to] = state[to].wrapping_add(state[from]);
        state[turned] = (state[turned] ^ state[to]).rotate_left(by);
    };
    mix(a, b, d, 16);
    mix(c, d, b, 12);
    mix(a, b, d, 8);
    mix(c, d, b, 7);
}

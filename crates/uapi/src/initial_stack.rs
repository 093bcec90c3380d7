//! What a program finds on its stack when it starts: arguments, environment, auxiliary vector
//! (System V ABI, 3.4.1).

use alloc::vec::Vec;

use abi::errno::Errno;

/// Keys of the auxiliary vector are `AT_*`.
pub type AuxEntry = (u32, u64);

/// Strings and random bytes that the auxiliary vector points to.
pub struct Strings<'a> {
    /// The arguments, without NULs.
    pub args: &'a [Vec<u8>],
    /// Strings of the environment, `NAME=value`.
    pub env: &'a [Vec<u8>],
    /// The name the program was started by (`AT_EXECFN`).
    pub name: &'a [u8],
    /// Name of the platform (`AT_PLATFORM`).
    pub platform: &'a [u8],
    /// Random bytes for the program (`AT_RANDOM`).
    pub random: [u8; 16],
}

/// The top of a new stack.
pub struct InitialStack {
    /// Stack pointer: the lowest address of `bytes`.
    pub sp: u64,
    /// Contents of the stack's top.
    pub bytes: Vec<u8>,
    /// From where to where the argument strings are.
    pub args: core::ops::Range<usize>,
    /// From where to where the environment strings are.
    pub env: core::ops::Range<usize>,
    /// The auxiliary vector: pairs of type and value, 16 bytes each.
    pub aux: Vec<u8>,
}

/// Lays the stack out so that it ends at `top`. `aux` is the rest of the auxiliary vector.
///
/// # Errors
/// `ENOMEM`: a program may be given megabytes of strings.
pub fn build(top: u64, strings: &Strings<'_>, aux: &[AuxEntry]) -> Result<InitialStack, Errno> {
    use linux_raw_sys::auxvec::{AT_EXECFN, AT_NULL, AT_PLATFORM, AT_RANDOM};
    let all = || strings.args.iter().chain(strings.env);
    let (count, bytes) = all().fold((0, 0), |(count, bytes), s| (count + 1, bytes + s.len()));
    let others = strings.platform.len() + strings.random.len() + strings.name.len();
    // Each with its end; and what the end of the stack is filled up with.
    let mut text: Vec<u8> = fallible::with_capacity(bytes + count + others + 32)?;
    // The strings come last in memory: their addresses follow from the end.
    let put = |text: &mut Vec<u8>, bytes: &[u8]| {
        let at = text.len() as u64;
        text.extend_from_slice(bytes);
        text.push(0);
        at
    };
    let platform = put(&mut text, strings.platform);
    let random = text.len() as u64;
    text.extend_from_slice(&strings.random);
    let args_start = text.len();
    let mut args: Vec<u64> = fallible::with_capacity(strings.args.len())?;
    args.extend(strings.args.iter().map(|a| put(&mut text, a)));
    let args_end = text.len();
    let mut env: Vec<u64> = fallible::with_capacity(strings.env.len())?;
    env.extend(strings.env.iter().map(|e| put(&mut text, e)));
    let env_end = text.len();
    let name = put(&mut text, strings.name);
    // The last word of a stack is zero.
    text.resize((text.len() + 8).next_multiple_of(16), 0);
    let base = top - text.len() as u64;

    // The number of arguments, two zeros, and four pairs of our own.
    let mut words: Vec<u64> = fallible::with_capacity(count + 2 * aux.len() + 11)?;
    words.push(args.len() as u64);
    words.extend(args.iter().map(|at| base + at));
    words.push(0);
    words.extend(env.iter().map(|at| base + at));
    words.push(0);
    let own = [
        (AT_PLATFORM, base + platform),
        (AT_RANDOM, base + random),
        (AT_EXECFN, base + name),
        (AT_NULL, 0),
    ];
    let aux_start = words.len() * 8;
    for &(key, value) in aux.iter().chain(&own) {
        words.extend([u64::from(key), value]);
    }
    let sp = (base - words.len() as u64 * 8) & !15;
    let mut bytes: Vec<u8> = fallible::with_capacity((top - sp) as usize)?;
    bytes.extend(words.iter().flat_map(|w| w.to_le_bytes()));
    let aux = bytes[aux_start..].to_vec();
    // What aligning the stack pointer costs lies between the vector and the strings.
    bytes.resize((base - sp) as usize, 0);
    bytes.extend_from_slice(&text);
    let at = |offset: usize| base as usize + offset;
    Ok(InitialStack {
        sp,
        bytes,
        args: at(args_start)..at(args_end),
        env: at(args_end)..at(env_end),
        aux,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_where_its_pointer_says() {
        let args = [b"prog".to_vec(), b"-x".to_vec(), Vec::new()];
        let env = [b"A=1".to_vec()];
        let strings = Strings {
            args: &args,
            env: &env,
            name: b"/bin/prog",
            platform: b"x86_64",
            random: *b"0123456789abcdef",
        };
        let image = build(0x7fff_0000, &strings, &[(6, 4096)]).unwrap();
        assert_eq!(image.sp % 16, 0);
        assert_eq!(image.sp + image.bytes.len() as u64, 0x7fff_0000);
        let word = |i: usize| u64::from_le_bytes(image.bytes[i * 8..i * 8 + 8].try_into().unwrap());
        let string = |addr: u64| {
            let rest = &image.bytes[(addr - image.sp) as usize..];
            rest[..rest.iter().position(|&b| b == 0).unwrap()].to_vec()
        };
        assert_eq!(word(0), 3);
        assert_eq!(
            (string(word(1)), string(word(2)), string(word(3)), word(4)),
            (b"prog".to_vec(), b"-x".to_vec(), vec![], 0)
        );
        assert_eq!((string(word(5)), word(6)), (b"A=1".to_vec(), 0));
        assert_eq!((word(7), word(8)), (6, 4096));
        let aux: Vec<(u64, u64)> = (0..5).map(|i| (word(7 + 2 * i), word(8 + 2 * i))).collect();
        let find = |key: u32| aux.iter().find(|e| e.0 == u64::from(key)).unwrap().1;
        assert_eq!(string(find(31)), b"/bin/prog");
        assert_eq!(string(find(15)), b"x86_64");
        assert_eq!(&string(find(25))[..16], b"0123456789abcdef");
        assert_eq!(aux[4], (0, 0));
        assert_eq!(image.aux, image.bytes[7 * 8..17 * 8]);
        let at = |addr: usize| (addr as u64 - image.sp) as usize;
        assert_eq!(
            &image.bytes[at(image.args.start)..at(image.args.end)],
            b"prog\0-x\0\0"
        );
        assert_eq!(
            &image.bytes[at(image.env.start)..at(image.env.end)],
            b"A=1\0"
        );
    }
}

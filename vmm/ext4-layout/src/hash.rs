//! The hash by which Linux finds a name in a large folder: half of MD4, as in Linux's `fs/ext4/hash.c`.

/// The number of this hash in the superblock and in a folder.
pub(crate) const HALF_MD4: u8 = 1;
/// The number that stands for the end of a folder, and that no name may have.
const END: u32 = 0x7fff_ffff << 1;

/// The hash of a name. Bytes count as unsigned numbers; the superblock says so. The lowest bit is 0.
pub(crate) fn hash(seed: [u32; 4], name: &[u8]) -> u32 {
    let mut state = match seed {
        [0, 0, 0, 0] => [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476],
        seed => seed,
    };
    let mut rest = name;
    while !rest.is_empty() {
        mix(&mut state, words(rest));
        rest = &rest[rest.len().min(32)..];
    }
    match state[1] & !1 {
        END => END - 2,
        hash => hash,
    }
}

/// The first 32 bytes of a name as numbers. The length fills the place after a shorter name.
fn words(name: &[u8]) -> [u32; 8] {
    let length = name.len() as u32;
    let fill = (length | length << 8) & 0xffff;
    let fill = fill | fill << 16;
    let mut words = [fill; 8];
    for (at, bytes) in name.chunks(4).take(8).enumerate() {
        words[at] = bytes.iter().fold(fill, |word, &byte| (word << 8).wrapping_add(byte.into()));
    }
    words
}

fn mix(state: &mut [u32; 4], words: [u32; 8]) {
    let choose = |x: u32, y: u32, z: u32| z ^ (x & (y ^ z));
    let majority = |x: u32, y: u32, z: u32| (x & y).wrapping_add((x ^ y) & z);
    let parity = |x: u32, y: u32, z: u32| x ^ y ^ z;
    let mut mixed = *state;
    round(&mut mixed, words, choose, 0, [3, 7, 11, 19], [0, 1, 2, 3, 4, 5, 6, 7]);
    round(&mut mixed, words, majority, 0x5a82_7999, [3, 5, 9, 13], [1, 3, 5, 7, 0, 2, 4, 6]);
    round(&mut mixed, words, parity, 0x6ed9_eba1, [3, 9, 11, 15], [3, 7, 2, 6, 1, 5, 0, 4]);
    for (state, mixed) in state.iter_mut().zip(mixed) {
        *state = state.wrapping_add(mixed);
    }
}

fn round(
    state: &mut [u32; 4],
    words: [u32; 8],
    combine: impl Fn(u32, u32, u32) -> u32,
    constant: u32,
    shifts: [u32; 4],
    order: [usize; 8],
) {
    for (step, word) in order.into_iter().enumerate() {
        let [a, b, c, d] = *state;
        let sum = a.wrapping_add(combine(b, c, d)).wrapping_add(words[word]).wrapping_add(constant);
        // The next step has d in the place of a, a in the place of b, and so on.
        *state = [d, sum.rotate_left(shifts[step % 4]), b, c];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The UUID 01020304-0506-0708-090a-0b0c0d0e0f10.
    const SEED: [u32; 4] = [0x0403_0201, 0x0807_0605, 0x0c0b_0a09, 0x100f_0e0d];
    const LONG: &[u8] = b"a longer name of more than thirty-two bytes, so that it has two parts";

    #[test]
    fn hashes_are_those_of_debugfs() {
        // debugfs -R "dx_hash -h half_md4 [-s UUID] NAME"
        for (seed, name, expected) in [
            ([0; 4], &b"a"[..], 0xd5fa_7d7a),
            (SEED, b"a", 0x8d08_ec4c),
            ([0; 4], b"hello", 0x1746_da32),
            (SEED, b"hello", 0xe2dd_f968),
            ([0; 4], LONG, 0x40a6_d5dc),
            (SEED, LONG, 0x2d14_bd04),
        ] {
            assert_eq!(hash(seed, name), expected, "{}", String::from_utf8_lossy(name));
        }
    }
}

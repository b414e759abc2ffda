//! Byte vectors seen as lanes of integers.

/// A lane type.
pub(crate) trait Lane: Copy + 'static {
    /// Size in bytes.
    const BYTES: usize;
    /// All bits clear.
    const ZERO: Self;
    /// All bits set.
    const ONES: Self;
    /// Lane `index` of a vector.
    fn get(vector: &[u8], index: usize) -> Self;
    /// Replaces lane `index`.
    fn put(self, vector: &mut [u8], index: usize);
}

macro_rules! lane {
    ($($type:ty),*) => {$(
        impl Lane for $type {
            const BYTES: usize = size_of::<$type>();
            const ZERO: $type = 0;
            const ONES: $type = !0;
            #[inline(always)]
            fn get(vector: &[u8], index: usize) -> $type {
                let mut bytes = [0; Self::BYTES];
                bytes.copy_from_slice(&vector[index * Self::BYTES..(index + 1) * Self::BYTES]);
                <$type>::from_le_bytes(bytes)
            }
            #[inline(always)]
            fn put(self, vector: &mut [u8], index: usize) {
                vector[index * Self::BYTES..(index + 1) * Self::BYTES].copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
lane!(u8, i8, u16, i16, u32, i32, u64, i64);

/// Builds a vector from a function of the lane number.
#[inline(always)]
pub(crate) fn build<L: Lane, const N: usize>(mut lane: impl FnMut(usize) -> L) -> [u8; N] {
    let mut out = [0; N];
    for index in 0..N / L::BYTES {
        lane(index).put(&mut out, index);
    }
    out
}

/// Applies a function to each lane.
#[inline(always)]
pub(crate) fn map<L: Lane, const N: usize>(a: [u8; N], f: impl Fn(L) -> L) -> [u8; N] {
    build(|index| f(L::get(&a, index)))
}

/// Combines two vectors lane by lane.
#[inline(always)]
pub(crate) fn zip<L: Lane, const N: usize>(a: [u8; N], b: [u8; N], f: impl Fn(L, L) -> L) -> [u8; N] {
    build(|index| f(L::get(&a, index), L::get(&b, index)))
}

/// Combines two vectors lane by lane into lanes of all ones or all zeros.
#[inline(always)]
pub(crate) fn test<L: Lane, const N: usize>(a: [u8; N], b: [u8; N], holds: impl Fn(L, L) -> bool) -> [u8; N] {
    zip(a, b, |x, y| if holds(x, y) { L::ONES } else { L::ZERO })
}

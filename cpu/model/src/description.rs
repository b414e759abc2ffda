//! The parts of a CPU model: its instructions, and its answers to CPUID.

use iced_x86::CpuidFeature as F;

use crate::features::Features;

/// An answer of CPUID: the values of EAX, EBX, ECX and EDX.
pub type Leaf = [u32; 4];

/// A leaf of CPUID: the number of the leaf, the subleaf (`None` if the leaf has no subleaves), and the answer.
pub type NumberedLeaf = (u32, Option<u32>, Leaf);

/// A CPU model. No model's description is made from a newer one. So a feature of a new model cannot get into an old
/// model.
pub struct Description {
    /// The features whose instructions the CPU executes. CPUID may hide some of these features.
    pub features: Features,
    /// All leaves of CPUID that are not zero, in ascending order. The answers are those for a local APIC that is
    /// on, and for CR4.OSXSAVE = 0.
    pub cpuid: &'static [NumberedLeaf],
    /// The bits of CR4 that software can set. Setting any other bit raises #GP.
    pub cr4: u64,
    /// Additional model-specific registers that read as zero and ignore writes.
    pub inert_msrs: &'static [u32],
}

/// A word with these bits set.
pub(crate) const fn bits(numbers: &[u32]) -> u32 {
    let mut word = 0;
    let mut index = 0;
    while index < numbers.len() {
        word |= 1 << numbers[index];
        index += 1;
    }
    word
}

/// The 32-bit word at byte `at` of a text, in little-endian order.
pub(crate) const fn word(text: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([text[at], text[at + 1], text[at + 2], text[at + 3]])
}

/// The answer of a range's first leaf: the number of the range's highest leaf, and the vendor's name.
pub(crate) const fn vendor(highest: u32) -> Leaf {
    let name = b"AuthenticAMD";
    [highest, word(name, 0), word(name, 8), word(name, 4)]
}

/// The answer of one of the three leaves with the brand string. `text` is this leaf's third of the string.
pub(crate) const fn brand(text: &[u8; 16]) -> Leaf {
    [word(text, 0), word(text, 4), word(text, 8), word(text, 12)]
}

/// Features whose instructions are hints of newer processors, or read the shadow stack's pointer. The encodings are
/// reserved NOPs, and WBINVD with a prefix. Programs need not check CPUID before they use these instructions,
/// because no processor leaves these encodings undefined (SDM vol. 2, table A-3).
pub(crate) const HINTS: Features = Features::of(&[F::CET_SS, F::CLDEMOTE, F::PREFETCHITI, F::WBNOINVD]);

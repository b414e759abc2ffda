//! Sets of instruction-set features. The features have the names of `iced-x86`, which says for each instruction
//! which features it needs.

use iced_x86::CpuidFeature;

const WORD_BITS: usize = u64::BITS as usize;
const WORDS: usize = 4;

/// The instruction-set features of a CPU model. An instruction that needs a feature outside this set raises #UD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features([u64; WORDS]);

impl Features {
    /// The set of the given features.
    pub const fn of(features: &[CpuidFeature]) -> Features {
        let mut words = [0; WORDS];
        let mut index = 0;
        while index < features.len() {
            let number = features[index] as usize;
            words[number / WORD_BITS] |= 1 << (number % WORD_BITS);
            index += 1;
        }
        Features(words)
    }

    /// The features of this set, together with the given features.
    pub const fn with(self, features: Features) -> Features {
        let mut words = self.0;
        let mut index = 0;
        while index < WORDS {
            words[index] |= features.0[index];
            index += 1;
        }
        Features(words)
    }

    /// Whether all of these features are in the set.
    pub fn include(&self, needed: &[CpuidFeature]) -> bool {
        needed
            .iter()
            .map(|&feature| feature as usize)
            .all(|number| self.0[number / WORD_BITS] >> (number % WORD_BITS) & 1 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_has_a_place_of_its_own() {
        for feature in CpuidFeature::values() {
            let set = Features::of(&[feature]);
            for other in CpuidFeature::values() {
                assert_eq!(set.include(&[other]), feature == other, "{other:?} in a set of {feature:?}");
            }
        }
    }

    #[test]
    fn an_instruction_needs_all_its_features() {
        let set = Features::of(&[CpuidFeature::AES, CpuidFeature::SSE2]);
        assert!(set.include(&[]) && set.include(&[CpuidFeature::SSE2, CpuidFeature::AES]));
        assert!(!set.include(&[CpuidFeature::AVX, CpuidFeature::AES]));
    }
}

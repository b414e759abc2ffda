//! How late simulated overflows come: as late as real processors have shown, and later.

/// The behaviour of a simulated counter's overflows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// The largest number of branches that a normal overflow comes late. Nine in ten come within a
    /// twentieth of this number.
    pub largest_skid: u64,
    /// One overflow in this many is lost.
    pub lost_one_in: u64,
    /// One overflow in this many comes later than normal ones.
    pub overshoot_one_in: u64,
    /// The largest number of branches that an overshooting overflow comes late.
    pub largest_overshoot: u64,
}

impl Default for Behaviour {
    fn default() -> Behaviour {
        Behaviour { largest_skid: 2_000, lost_one_in: 40, overshoot_one_in: 60, largest_overshoot: 100_000 }
    }
}

/// Pseudo-random lateness with a seed.
pub(crate) struct Skid {
    behaviour: Behaviour,
    random: u64,
}

impl Skid {
    pub(crate) fn new(behaviour: Behaviour, seed: u64) -> Skid {
        Skid { behaviour, random: seed }
    }

    /// Branches by which the next overflow is late; `None` if it never comes.
    pub(crate) fn next(&mut self) -> Option<u64> {
        let Behaviour { largest_skid, lost_one_in, overshoot_one_in, largest_overshoot } = self.behaviour;
        if self.below(lost_one_in) == 0 {
            return None;
        }
        if self.below(overshoot_one_in) == 0 {
            let largest = largest_overshoot >> self.below(6);
            return Some(self.below(largest) + 1);
        }
        let largest = match self.below(100) {
            0..90 => largest_skid / 20,
            90..98 => largest_skid / 4,
            _ => largest_skid,
        };
        Some(self.below(largest + 1))
    }

    /// A number below `limit`, which is at least 1 (SplitMix64).
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflows_come_as_badly_as_announced() {
        let behaviour = Behaviour::default();
        let mut skid = Skid::new(behaviour, 1);
        let late: Vec<Option<u64>> = (0..100_000).map(|_| skid.next()).collect();
        let lost = late.iter().filter(|late| late.is_none()).count();
        let beyond = late.iter().flatten().filter(|&&late| late > behaviour.largest_skid).count();
        let small = late.iter().flatten().filter(|&&late| late <= behaviour.largest_skid / 20).count();
        assert!((2_000..3_000).contains(&lost), "{lost} lost");
        assert!((1_000..2_000).contains(&beyond), "{beyond} beyond the ordinary");
        assert!((80_000..95_000).contains(&small), "{small} early");
        let largest = late.iter().flatten().max().copied();
        assert!(largest.is_some_and(|largest| (90_000..=100_000).contains(&largest)), "{largest:?}");
    }
}

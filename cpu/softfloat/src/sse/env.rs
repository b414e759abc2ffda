//! MXCSR for the duration of one instruction. SDM vol. 1, 10.2.3 and 11.5.

use crate::env::{ALL_FLAGS, IE, OE, PE, PRE_COMPUTATION, Rounding, UE};

const DAZ: u32 = 1 << 6;
const MASKS_SHIFT: u32 = 7;
const RC_SHIFT: u32 = 13;
const RC: u32 = 3 << RC_SHIFT;
const FTZ: u32 = 1 << 15;
const PRECISION_MASK: u32 = PE << MASKS_SHIFT;

/// The environment of one SSE or AVX instruction: the old MXCSR, and the exceptions that the instruction raises.
///
/// All lanes of the instruction share the environment. [`SseEnv::finish`] returns the MXCSR to store.
#[derive(Clone, Copy, Debug)]
pub struct SseEnv {
    mxcsr: u32,
    raised: u32,
}

/// An unmasked exception: #XM must be delivered, and the destination does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmasked {
    /// MXCSR with the instruction's flags, which hardware sets before it delivers #XM.
    pub mxcsr: u32,
}

impl SseEnv {
    /// An environment for one instruction that executes under `mxcsr`.
    #[inline]
    pub const fn new(mxcsr: u32) -> SseEnv {
        SseEnv { mxcsr, raised: 0 }
    }

    /// Flags raised by this instruction so far, even if MXCSR had them already.
    ///
    /// A fast path may omit PE if PE is masked *and* already set, because nothing can observe it then.
    #[inline]
    pub const fn raised(&self) -> u32 {
        self.raised
    }

    /// MXCSR after the instruction, or [`Unmasked`] if #XM must be delivered instead of writing a result.
    ///
    /// As on hardware, an unmasked pre-computation exception (#I, #D, #Z) in any lane hides overflow, underflow and
    /// precision flags of all lanes. These flags are never computed then (SDM vol. 1, 11.5.2).
    #[inline]
    pub const fn finish(self) -> Result<u32, Unmasked> {
        let unmasked = self.raised & !(self.mxcsr >> MASKS_SHIFT) & ALL_FLAGS;
        if unmasked == 0 {
            return Ok(self.mxcsr | self.raised);
        }
        let visible = if unmasked & PRE_COMPUTATION != 0 { PRE_COMPUTATION } else { ALL_FLAGS };
        Err(Unmasked { mxcsr: self.mxcsr | (self.raised & visible) })
    }

    /// MXCSR.RC.
    #[inline]
    pub const fn rounding(&self) -> Rounding {
        Rounding::from_bits(self.mxcsr >> RC_SHIFT)
    }

    /// This environment with another rounding mode and with FTZ off, for instructions with a mode in `imm8`.
    #[inline]
    pub(crate) const fn overridden(self, mode: Rounding) -> SseEnv {
        SseEnv { mxcsr: (self.mxcsr & !(RC | FTZ)) | (mode as u32) << RC_SHIFT, ..self }
    }

    /// Whether a normal result of normal operands neither depends on MXCSR nor changes it. The rounding mode must be
    /// nearest. PE is the only flag that such an operation may raise, and it must be masked and already set.
    #[inline(always)]
    pub(crate) const fn is_plain(&self) -> bool {
        self.mxcsr & (RC | PRECISION_MASK | PE) == PRECISION_MASK | PE
    }

    #[inline]
    pub(crate) const fn daz(&self) -> bool {
        self.mxcsr & DAZ != 0
    }

    /// Whether tiny results become zero. FTZ works only while underflow is masked.
    #[inline]
    pub(crate) const fn flushes_to_zero(&self) -> bool {
        self.mxcsr & FTZ != 0 && self.masks(UE)
    }

    #[inline]
    pub(crate) const fn underflow_masked(&self) -> bool {
        self.masks(UE)
    }

    #[inline]
    pub(crate) const fn overflow_masked(&self) -> bool {
        self.masks(OE)
    }

    #[inline]
    pub(crate) fn raise(&mut self, flags: u32) {
        self.raised |= flags;
    }

    #[inline]
    pub(crate) fn raise_if(&mut self, condition: bool, flag: u32) {
        self.raised |= if condition { flag } else { 0 };
    }

    /// Raises #I and returns the given masked response.
    #[inline]
    pub(crate) fn invalid<T>(&mut self, response: T) -> T {
        self.raise(IE);
        response
    }

    #[inline]
    const fn masks(&self, flag: u32) -> bool {
        self.mxcsr & (flag << MASKS_SHIFT) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{DE, ZE};
    use crate::sse;

    const ALL_MASKED: u32 = 0x1f80;

    fn unmask(flags: u32) -> u32 {
        ALL_MASKED & !(flags << MASKS_SHIFT)
    }

    #[test]
    fn masked_exceptions_accumulate() {
        let mut env = SseEnv::new(ALL_MASKED | DE);
        sse::div(&mut env, 1f64.to_bits(), 0);
        sse::div(&mut env, 1f64.to_bits(), 3f64.to_bits());
        assert_eq!(env.raised(), ZE | PE);
        assert_eq!(env.finish(), Ok(ALL_MASKED | DE | ZE | PE));
    }

    #[test]
    fn an_unmasked_pre_computation_exception_hides_the_results_of_other_lanes() {
        let mut env = SseEnv::new(unmask(ZE));
        sse::div(&mut env, 1f32.to_bits(), 3f32.to_bits());
        sse::div(&mut env, 1f32.to_bits(), 0f32.to_bits());
        assert_eq!(env.finish(), Err(Unmasked { mxcsr: unmask(ZE) | ZE }));
    }

    #[test]
    fn an_unmasked_post_computation_exception_reports_all_flags() {
        let mut env = SseEnv::new(unmask(PE));
        sse::add(&mut env, 1f32.to_bits(), 1);
        assert_eq!(env.finish(), Err(Unmasked { mxcsr: unmask(PE) | PE | DE }));
    }

    #[test]
    fn unmasked_underflow_reports_exact_tiny_results_and_disables_ftz() {
        let (smallest_normal, half) = (1u64 << 52, 0.5f64.to_bits());
        for mxcsr in [unmask(UE), unmask(UE) | FTZ] {
            let mut env = SseEnv::new(mxcsr);
            sse::mul(&mut env, smallest_normal, half);
            assert_eq!(env.finish(), Err(Unmasked { mxcsr: mxcsr | UE }));
        }
        let mut env = SseEnv::new(ALL_MASKED);
        assert_eq!(sse::mul(&mut env, smallest_normal, half), 1 << 51);
        assert_eq!(env.raised(), 0);
    }

    #[test]
    fn unmasked_overflow_is_inexact_only_if_rounding_was() {
        let mut env = SseEnv::new(unmask(OE));
        sse::mul(&mut env, f64::MAX.to_bits(), 2f64.to_bits());
        assert_eq!(env.raised(), OE);
        let mut env = SseEnv::new(ALL_MASKED);
        assert_eq!(sse::mul(&mut env, f64::MAX.to_bits(), 2f64.to_bits()), f64::INFINITY.to_bits());
        assert_eq!(env.raised(), OE | PE);
    }
}

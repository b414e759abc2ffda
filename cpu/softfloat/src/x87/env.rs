//! The control word for the duration of one instruction. SDM vol. 1, 8.1.3 to 8.1.5 and 8.4, 8.5.

use crate::env::{ALL_FLAGS, DE, IE, PRE_COMPUTATION, Rounding};

/// Condition code C0 in the status word.
pub const C0: u16 = 1 << 8;
/// Condition code C1 in the status word.
pub const C1: u16 = 1 << 9;
/// Condition code C2 in the status word.
pub const C2: u16 = 1 << 10;
/// Condition code C3 in the status word.
pub const C3: u16 = 1 << 14;

/// The environment of one x87 instruction: the control word, and the exceptions that the instruction raises.
#[derive(Clone, Copy, Debug)]
pub struct X87Env {
    control: u16,
    raised: u32,
    c1: bool,
}

impl X87Env {
    /// An environment for one instruction that executes under a control word.
    #[inline]
    pub const fn new(control: u16) -> X87Env {
        X87Env { control, raised: 0, c1: false }
    }

    /// Exception flags raised by the instruction, to be or-ed into the status word.
    #[inline]
    pub const fn raised(&self) -> u32 {
        self.raised
    }

    /// The raised flags whose exceptions are unmasked. If there are any, ES is set and #MF becomes pending.
    #[inline]
    pub const fn unmasked(&self) -> u32 {
        self.raised & !(self.control as u32) & ALL_FLAGS
    }

    /// Whether an unmasked #I, #D or #Z keeps the instruction from storing a result and from popping.
    ///
    /// In this case, functions that return an `Option` return `None`. Comparisons still return their
    /// outcome: the processor writes condition codes and EFLAGS, but does not pop. FLD of a binary32 or
    /// binary64 denormal pushes in spite of an unmasked #D.
    #[inline]
    pub const fn is_abandoned(&self) -> bool {
        self.unmasked() & PRE_COMPUTATION != 0
    }

    /// C1 after the instruction: whether the result's magnitude was rounded up. FPREM, FPREM1 and FXAM define
    /// C1 themselves and return it with the other condition codes.
    #[inline]
    pub const fn c1(&self) -> bool {
        self.c1
    }

    /// The rounding control.
    #[inline]
    pub const fn rounding(&self) -> Rounding {
        Rounding::from_bits(self.control as u32 >> 10)
    }

    /// Number of significand bits under the precision control. The reserved encoding acts as 64.
    #[inline]
    pub(crate) const fn precision(&self) -> u32 {
        match (self.control >> 8) & 3 {
            0 => 24,
            2 => 53,
            _ => 64,
        }
    }

    #[inline]
    pub(crate) const fn masks(&self, flag: u32) -> bool {
        self.control as u32 & flag != 0
    }

    #[inline]
    pub(crate) fn raise(&mut self, flags: u32) {
        self.raised |= flags;
    }

    #[inline]
    pub(crate) fn set_c1(&mut self, up: bool) {
        self.c1 = up;
    }

    /// Raises a pre-computation exception; `None` if it is unmasked, which ends the instruction.
    #[inline]
    pub(crate) fn before(&mut self, flag: u32) -> Option<()> {
        self.raised |= flag;
        self.masks(flag).then_some(())
    }

    /// Raises #D through [`X87Env::before`] if `denormal` is true.
    #[inline]
    pub(crate) fn note_denormal(&mut self, denormal: bool) -> Option<()> {
        if denormal { self.before(DE) } else { Some(()) }
    }

    /// Raises #IA with `response` as its masked response.
    #[inline]
    pub(crate) fn invalid<T>(&mut self, response: T) -> Option<T> {
        self.before(IE)?;
        Some(response)
    }
}

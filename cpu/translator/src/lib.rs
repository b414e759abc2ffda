//! Translates x86-64 guest code to x86-64 host code, block by block.
//!
//! ```
//! use iced_x86::{Decoder, DecoderOptions, Instruction};
//! use translator::{Parts, Source, Translator, Undefined};
//!
//! // inc rax; jmp back to it
//! let bytes = [0x48, 0xff, 0xc0, 0xeb, 0xfb];
//! let instructions: Vec<Instruction> = Decoder::with_ip(64, &bytes, 0x1000, DecoderOptions::NONE).into_iter().collect();
//! let source = Source { rip: 0x1000, instructions: &instructions, second_page: None };
//!
//! // There is no translator on hosts that are not x86-64.
//! if let Some(mut translator) = Translator::new(Undefined::AsOnTheHost, Parts::ALL) {
//!     let translation = translator.translate(&source).expect("both instructions can be translated");
//!     assert!(translator.place(&translation, 0x1000, 1).is_some());
//! }
//! ```
//!
//! The translator stands beside the interpreter. The interpreter decodes blocks, executes those that are not worth
//! translating, and finishes what generated code leaves.
//!
//! Generated code counts steps and conditional branches exactly. A block is charged as a whole when it is entered, and
//! left before its first instruction if not all of it may run. If it is left in the middle, the steps that did not run
//! are given back. Wherever a block can be left, registers, flags and memory are those of that very instruction.
//!
//! Generated code is left for addresses that the TLB does not map, instructions that are not translated, faults, and
//! targets that are not known yet. Then [`Translator::run`] returns and says where the guest is, and the caller goes on
//! from there.
//!
//! On hosts that are not x86-64 the interface is the same, and [`Translator::new`] returns `None`.

mod frame;
mod jumps;
#[cfg(not(target_arch = "x86_64"))]
mod other;
mod parts;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub use frame::{FlagImage, Frame, SECOND_SLOT, SLOTS, TlbSlot, TlbSlots};
use iced_x86::Instruction;
#[cfg(not(target_arch = "x86_64"))]
pub use other::{Translation, Translator};
pub use parts::{Part, Parts};
#[cfg(target_arch = "x86_64")]
pub use x86_64::{Translation, Translator};

/// Longest block that can be translated, in instructions.
pub const MAX_INSTRUCTIONS: usize = 48;

/// Most steps that one run of generated code may take.
pub const MAX_STEPS: u64 = 1 << 23;

/// What becomes of flags and registers that an instruction of the host leaves undefined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undefined {
    /// They are what the host's processor makes them.
    AsOnTheHost,
    /// They are inverted, at a cost: for tests that nothing of it gets into the guest's state, whatever the processor.
    Inverted,
}

/// A block of straight-line code in 64-bit mode.
pub struct Source<'a> {
    /// Address of its first instruction.
    pub rip: u64,
    /// Its instructions, decoded at their addresses. In place of one that is not what it seems stands an invalid one.
    pub instructions: &'a [Instruction],
    /// Where the page is mapped that its last instruction ends in, if that is not the one that the block begins in. It is
    /// executed as long as that page is mapped so; else the block is left before its first instruction.
    pub second_page: Option<TlbSlot>,
}

impl Source<'_> {
    /// Address behind an instruction.
    pub(crate) fn rip_behind(&self, n: usize) -> u64 {
        self.instructions[n].next_ip()
    }
}

/// What a run works on.
pub struct Guest<'a> {
    /// The registers.
    pub frame: &'a mut Frame,
    /// The arithmetic flags.
    pub flags: &'a mut FlagImage,
    /// The other bits of RFLAGS.
    pub system_flags: &'a mut u64,
    /// What SWAPGS exchanges the base of GS with.
    pub kernel_gs_base: &'a mut u64,
    /// The slots of the privilege in force.
    pub slots: &'a TlbSlots,
    /// Those that would be in force if RFLAGS.AC were clear, and if it were set, where the code is privileged.
    pub slots_by_ac: [&'a TlbSlots; 2],
    /// Whether the code is of privilege level 0.
    pub privileged: bool,
    /// Whether an interrupt waits for RFLAGS.IF.
    pub interrupts_wait: bool,
    /// Whether instructions on XMM registers fault.
    pub vectors_blocked: bool,
}

/// Translated code that can be entered. It may be gone when it is: then nothing runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    number: u32,
    generation: u32,
}

/// A way from one translated block to the next that can be made direct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    number: u32,
    edge: u8,
    generation: u32,
}

/// Where generated code was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Before a block at this address, because not all of it may run.
    Block(u64),
    /// At the end of a block, or before one whose code is gone: the next address, and what can be linked to its code.
    Edge(u64, Option<Link>),
    /// Before an instruction, which the interpreter is to execute.
    Instruction {
        /// Address of the first instruction of its block.
        rip: u64,
        /// What the caller calls that block.
        token: u32,
        /// Its number in the block.
        number: usize,
        /// Where generated code goes on if nothing special happens.
        resume: Option<Resume>,
        /// Why it was left, if that is all: the TLB lacks a page.
        missed: Option<Miss>,
    },
}

/// An access for which the TLB had no slot, or which crosses pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// Its address.
    pub address: u64,
    /// Whether it writes.
    pub writes: bool,
    /// Where generated code tries the instruction again.
    pub again: Resume,
}

/// Where generated code goes on behind an instruction, or at one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    number: u32,
    /// Offset of the code.
    offset: usize,
    generation: u32,
    /// Steps of the block that are left.
    pub steps: u64,
}

/// What a run of generated code came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Steps completed.
    pub steps: u64,
    /// Conditional branches among them.
    pub branches: u64,
    /// The last of them was an STI that set RFLAGS.IF: no interrupt may come before the next instruction is done.
    pub shadow: bool,
    /// Where it was left.
    pub at: At,
}

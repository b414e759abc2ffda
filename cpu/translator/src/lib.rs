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
//! The translator works beside the interpreter. The interpreter decodes blocks, executes blocks that are not worth
//! translating, and executes instructions that generated code exits for.
//!
//! Generated code counts steps and conditional branches exactly. Entering a block charges all its steps, and the
//! block exits before its first instruction if the budget is too small. If a block exits in the middle, the steps
//! that did not run are added to the budget again. At every exit, registers, flags and memory are exact for that
//! instruction.
//!
//! Generated code exits for addresses that the TLB does not map, instructions that are not translated, faults, and
//! targets that are not known yet. Then [`Translator::run`] returns the place ([`At`]) that the guest has reached,
//! and the caller continues from this place.
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

/// The largest number of steps that one run of generated code may take.
pub const MAX_STEPS: u64 = 1 << 23;

/// How to treat flags and registers that an instruction of the host leaves undefined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undefined {
    /// Keep the values of the host's processor.
    AsOnTheHost,
    /// Invert undefined results, which makes code slower. Tests use this mode to show that no undefined value
    /// reaches the guest's state on any processor.
    Inverted,
}

/// A block of straight-line code in 64-bit mode.
pub struct Source<'a> {
    /// Address of the block's first instruction.
    pub rip: u64,
    /// The block's instructions, decoded at their addresses. Where the interpreter executes something other than the
    /// instruction's bytes say, the list has an invalid instruction.
    pub instructions: &'a [Instruction],
    /// The TLB slot of the block's second page, if its last instruction ends in another page. If that page is mapped
    /// differently later, the block exits before its first instruction.
    pub second_page: Option<TlbSlot>,
}

impl Source<'_> {
    /// Address after an instruction.
    pub(crate) fn rip_behind(&self, n: usize) -> u64 {
        self.instructions[n].next_ip()
    }
}

/// The guest's state that a run of generated code reads and changes.
pub struct Guest<'a> {
    /// The registers.
    pub frame: &'a mut Frame,
    /// The arithmetic flags.
    pub flags: &'a mut FlagImage,
    /// The bits of RFLAGS that are not arithmetic flags.
    pub system_flags: &'a mut u64,
    /// The value that SWAPGS exchanges with the base of GS.
    pub kernel_gs_base: &'a mut u64,
    /// The TLB slots of the current privilege.
    pub slots: &'a TlbSlots,
    /// For privileged code, the slots while RFLAGS.AC is clear, and while it is set.
    pub slots_by_ac: [&'a TlbSlots; 2],
    /// Whether the code runs at privilege level 0.
    pub privileged: bool,
    /// Whether an interrupt is pending until RFLAGS.IF is set.
    pub interrupts_wait: bool,
    /// Whether instructions on XMM registers fault.
    pub vectors_blocked: bool,
}

/// Translated code that can be entered. If the code has been dropped since, [`Translator::run`] executes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    number: u32,
    generation: u32,
}

/// An exit from one translated block to the next that can be linked directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    number: u32,
    edge: u8,
    generation: u32,
}

/// Where generated code exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Generated code exited before a block at this address, because the budget does not allow the whole block.
    Block(u64),
    /// Generated code exited at the end of a block, or before a block whose code was dropped. The fields are the
    /// next guest address, and the link to its code, if the exit can be linked.
    Edge(u64, Option<Link>),
    /// Generated code exited before an instruction that the interpreter must execute.
    Instruction {
        /// Address of the first instruction of the instruction's block.
        rip: u64,
        /// The token that the caller gave the block of `rip`.
        token: u32,
        /// Number of the instruction in the block.
        number: usize,
        /// Where generated code can continue after the interpreter has executed the instruction.
        resume: Option<Resume>,
        /// The TLB miss, if the miss is the only reason for the exit.
        missed: Option<Miss>,
    },
}

/// An access that missed in the TLB, or that crosses pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// The address of the access.
    pub address: u64,
    /// Whether the access writes.
    pub writes: bool,
    /// The place where generated code tries the instruction again.
    pub again: Resume,
}

/// A place, at or after an instruction, where generated code can continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    number: u32,
    /// Offset of the code.
    offset: usize,
    generation: u32,
    /// The number of steps of the block that remain from this place on.
    pub steps: u64,
}

/// The result of a run of generated code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Steps completed.
    pub steps: u64,
    /// The number of conditional branches among these steps.
    pub branches: u64,
    /// Whether the last step was an STI that set RFLAGS.IF. After such an STI, no interrupt may come before
    /// the next instruction completes.
    pub shadow: bool,
    /// Where generated code exited.
    pub at: At,
}

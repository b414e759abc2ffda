//! The running CPU without its decoded code: registers, modes and all other state that handlers change.

use cpu_model::registers::{cr0, cr4, efer};
use cpu_model::{CpuModel, Quirks, Topology};
use guest_ram::GuestRam;
use translator::Frame;

use crate::attention;
use crate::code_lines::CodeLines;
use crate::debug_points::DebugPoints;
use crate::exception::{Break, Exception, Res};
use crate::flags::{self, LazyFlags};
use crate::mmu::tlb::Mmu;
use crate::observing::Observing;
use crate::slots::{HIGH_BYTE, REG_BLOCK_RIP, SEG_NONE};
use crate::state::{CpuState, SegReg, Segment};

/// The default operand and address size of the running code segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CodeSize {
    /// Real mode, or a 16-bit segment.
    Bits16 = 0,
    /// A 32-bit segment, in legacy or compatibility mode.
    Bits32 = 1,
    /// 64-bit mode.
    Bits64 = 2,
}

impl CodeSize {
    /// The size in bits.
    pub fn bits(self) -> u32 {
        match self {
            CodeSize::Bits16 => 16,
            CodeSize::Bits32 => 32,
            CodeSize::Bits64 => 64,
        }
    }
}

/// The state that instruction handlers work on: registers, modes, translations.
pub struct Core {
    /// The part that generated code accesses too. `regs` holds general registers 0 to 15, then the constant zero
    /// ([`crate::slots::REG_ZERO`]) and the running block's RIP. `seg_base` holds segment bases by slot. The base
    /// in slot 6 is always zero; in 64-bit mode the bases of ES, CS, SS and DS are zero too.
    pub frame: Frame,
    /// The six arithmetic flags.
    pub flags: LazyFlags,
    /// All bits of RFLAGS but the six arithmetic flags, which are zero in this field.
    pub rflags: u64,
    /// Address of the next instruction. The field is valid between blocks, and after an instruction that sets RIP.
    pub rip: u64,
    /// The step count at the start of the running block. Between blocks, the exact step count.
    pub block_steps: u64,
    /// Index of the running instruction in its block. `block_steps + index` is the number of steps before this
    /// instruction.
    pub index: u64,
    /// The number of retired conditional branches.
    pub branches: u64,
    /// The number of entered system calls.
    pub system_calls: u64,
    /// Step count at which the current run ends. Repeated string instructions check this limit themselves.
    pub budget_end: u64,
    /// Number of task switches whose faults are being delivered. Zero between two steps.
    pub faulting_tasks: u32,
    /// Whether to leave the block after the running instruction.
    pub break_block: bool,
    /// The conditions that the run loop handles before the next instruction, as bits of [`attention`].
    pub attention: u32,
    /// Whether an interrupt or NMI waited when signals were last sampled.
    pub interrupts_wait: bool,
    /// Whether the running processor executed PAUSE and so gives up the rest of its turn.
    pub yields: bool,
    /// Number of the running processor.
    pub processor: usize,
    /// Number of processors.
    pub processors: usize,
    /// The sockets, cores and threads that CPUID reports. With `None`, CPUID reports only the number of processors.
    pub(crate) topology: Option<Topology>,
    /// Privilege level.
    pub cpl: u8,
    /// Code size of the running segment.
    pub code_size: CodeSize,
    /// The bits of RSP that form the stack pointer. Stack addresses wrap around at this width.
    pub stack_mask: u64,
    /// Base and limit of the last code segment that was not 64-bit. The current value of `code_segments` identifies
    /// this segment.
    last_code_segment: (u64, u32),
    /// Counts the changes of `last_code_segment`. The count is a part of [`Core::code_tag`], so the code cache does
    /// not find jumps that were remembered for another segment.
    code_segments: u64,
    /// The exception of the last [`Break::Fault`].
    pub exception: Exception,
    /// Address translation.
    pub mmu: Mmu,
    /// The CPU model, which decides which instructions exist and what CPUID returns.
    pub(crate) model: CpuModel,
    /// The CPU model's differences from other processors in the execution of instructions.
    pub(crate) quirks: Quirks,
    /// Guest memory.
    pub ram: GuestRam,
    /// The architectural state. While the CPU runs, `gpr`, `xmm`, `rip` and `rflags` of this state are stale: `frame`,
    /// `flags`, `rflags` and `rip` of `Core` hold the current values.
    pub state: CpuState,
    /// RAM pages whose decoded code must be dropped before the next instruction.
    pub stale_code: Vec<u64>,
    /// Which lines of which pages hold decoded code.
    pub(crate) code_lines: CodeLines,
    /// The debugger's and the guest's break- and watchpoints.
    pub debug: DebugPoints,
    /// The kinds of happenings that the observer wants to see.
    pub(crate) observing: Observing,
}

impl Core {
    /// A CPU in reset state on the given RAM.
    pub fn new(ram: GuestRam) -> Core {
        let mut core = Core {
            frame: Frame::default(),
            flags: LazyFlags::default(),
            rflags: 2,
            rip: 0,
            block_steps: 0,
            index: 0,
            branches: 0,
            system_calls: 0,
            budget_end: 0,
            faulting_tasks: 0,
            break_block: false,
            attention: attention::SIGNALS,
            interrupts_wait: false,
            yields: false,
            processor: 0,
            processors: 1,
            topology: None,
            cpl: 0,
            code_size: CodeSize::Bits16,
            stack_mask: 0xffff,
            last_code_segment: (0, 0),
            code_segments: 0,
            exception: Exception::default(),
            mmu: Mmu::new(&ram),
            model: CpuModel::default(),
            quirks: Quirks::of(CpuModel::default()),
            state: CpuState::reset(),
            stale_code: Vec::new(),
            code_lines: CodeLines::new(&ram),
            debug: DebugPoints::default(),
            observing: Observing::default(),
            ram,
        };
        core.load_state(&CpuState::reset());
        core
    }

    /// Switches to another CPU model.
    pub(crate) fn set_model(&mut self, model: CpuModel) {
        self.model = model;
        self.quirks = Quirks::of(model);
        self.update_mmu_index();
    }

    /// The whole architectural state in canonical form: two CPUs that would behave equally from now on give equal
    /// values.
    pub fn save_state(&self) -> CpuState {
        let mut state = self.state.clone();
        state.gpr.copy_from_slice(&self.frame.regs[..16]);
        state.xmm = self.frame.xmm;
        state.rip = self.rip;
        state.rflags = self.rflags_bits();
        state
    }

    /// Replaces the whole state. Drops translations and code derived from the old state.
    pub fn load_state(&mut self, state: &CpuState) {
        self.load_registers(state);
        self.mmu.flush_all();
    }

    /// Replaces the whole state but keeps translations and code, for callers that did not replace RAM.
    pub(crate) fn load_registers(&mut self, state: &CpuState) {
        self.state = state.clone();
        self.frame.regs = [0; 32];
        self.frame.regs[..16].copy_from_slice(&state.gpr);
        self.frame.xmm = state.xmm;
        self.rip = state.rip;
        self.index = 0;
        self.set_rflags(state.rflags);
        self.attention |= attention::SIGNALS;
        if state.interrupt_shadow {
            self.attention |= attention::SHADOW;
        }
        if state.halted || state.shut_down {
            self.attention |= attention::HALTED;
        } else {
            self.attention &= !attention::HALTED;
        }
        for index in 0..6 {
            self.segment_changed(index);
        }
        self.mode_changed();
        self.paging_changed();
        self.update_debug_attention();
    }

    /// The number of steps before the running instruction.
    #[inline(always)]
    pub fn steps(&self) -> u64 {
        self.block_steps + self.index
    }

    /// The number of steps up to the end of the run, including the running step. A repeated string instruction may
    /// execute at most this number of iterations.
    #[inline(always)]
    pub fn remaining_steps(&self) -> u64 {
        self.budget_end.saturating_sub(self.steps())
    }

    /// The complete value of RFLAGS.
    #[inline]
    pub fn rflags_bits(&self) -> u64 {
        self.rflags | self.flags.bits()
    }

    /// Sets RFLAGS as given (bit 1 becomes 1, and reserved bits become 0) and updates every field that depends on
    /// RFLAGS.
    pub fn set_rflags(&mut self, value: u64) {
        const KNOWN: u64 = flags::ARITHMETIC
            | flags::TF
            | flags::IF
            | flags::DF
            | flags::IOPL
            | flags::NT
            | flags::RF
            | flags::VM
            | flags::AC
            | flags::VIF
            | flags::VIP
            | flags::ID;
        let old = self.rflags;
        self.flags = LazyFlags::from_bits(value);
        self.rflags = value & KNOWN & !flags::ARITHMETIC | 2;
        let changed = old ^ self.rflags;
        if self.rflags & flags::IF != 0 && changed & flags::IF != 0 {
            self.attention |= attention::SIGNALS;
        }
        if changed & flags::AC != 0 {
            self.update_mmu_index();
        }
        if changed & (flags::TF | flags::RF) != 0 {
            self.update_debug_attention();
        }
        if changed & flags::VM != 0 {
            self.mode_changed();
        }
        self.break_block = true;
    }

    /// Whether the CPU executes in long mode (64-bit or compatibility).
    #[inline(always)]
    pub fn long_mode(&self) -> bool {
        self.state.msrs.efer & efer::LMA != 0
    }

    /// Whether the CPU executes 64-bit code.
    #[inline(always)]
    pub fn is_64bit(&self) -> bool {
        self.code_size == CodeSize::Bits64
    }

    /// Whether the CPU is in protected mode, and not in virtual-8086 mode.
    #[inline(always)]
    pub fn protected_mode(&self) -> bool {
        self.state.cr0 & cr0::PE != 0 && self.rflags & flags::VM == 0
    }

    /// A segment register with its hidden part.
    pub fn segment(&self, register: SegReg) -> &Segment {
        &self.state.segments[register as usize]
    }

    /// Loads a segment register's visible and hidden parts, without any checks.
    pub fn set_segment(&mut self, register: SegReg, segment: Segment) {
        self.state.segments[register as usize] = segment;
        self.segment_changed(register as usize);
        if matches!(register, SegReg::Cs | SegReg::Ss) {
            self.mode_changed();
        }
    }

    fn segment_changed(&mut self, index: usize) {
        self.frame.seg_base[index] = self.state.segments[index].base;
        self.frame.selectors[index] = self.state.segments[index].selector;
        self.refresh_bases();
    }

    /// Derives the segment bases in `frame` from the segment registers. In 64-bit mode the bases of ES, CS, SS and
    /// DS are zero.
    fn refresh_bases(&mut self) {
        let flat = self.code_size == CodeSize::Bits64;
        for index in 0..4 {
            self.frame.seg_base[index] = if flat { 0 } else { self.state.segments[index].base };
        }
        self.frame.seg_base[SEG_NONE as usize] = 0;
    }

    /// Must be called whenever CS, SS, CR0.PE, EFER.LMA or EFLAGS.VM may have changed.
    pub fn mode_changed(&mut self) {
        let (cs, ss) = (self.state.segments[1], self.state.segments[2]);
        self.code_size = if self.long_mode() && cs.long() {
            CodeSize::Bits64
        } else if cs.big() {
            CodeSize::Bits32
        } else {
            CodeSize::Bits16
        };
        self.cpl = if self.state.cr0 & cr0::PE == 0 {
            0
        } else if self.rflags & flags::VM != 0 {
            3
        } else {
            ss.dpl()
        };
        self.stack_mask = match (self.code_size, ss.big()) {
            (CodeSize::Bits64, _) => u64::MAX,
            (_, true) => 0xffff_ffff,
            (_, false) => 0xffff,
        };
        if self.code_size != CodeSize::Bits64 && self.last_code_segment != (cs.base, cs.limit) {
            self.last_code_segment = (cs.base, cs.limit);
            self.code_segments += 1;
        }
        self.refresh_bases();
        self.update_mmu_index();
        self.break_block = true;
    }

    /// A number that identifies the code size and, outside 64-bit mode, the code segment. Both decide which block
    /// belongs to a RIP.
    #[inline(always)]
    pub(crate) fn code_tag(&self) -> u64 {
        let segment = if self.is_64bit() { 0 } else { self.code_segments };
        segment << 3 | self.code_size as u64
    }

    /// Must be called whenever CR0, CR3, CR4 or EFER may have changed in a way that matters to paging.
    pub fn paging_changed(&mut self) {
        self.mmu.select_context(&self.state);
        self.update_mmu_index();
        self.break_block = true;
    }

    /// Must be called whenever CPL, CR0.AM, CR4.SMAP or RFLAGS.AC may have changed.
    pub fn update_mmu_index(&mut self) {
        let smap = self.state.cr4 & cr4::SMAP != 0 && self.rflags & flags::AC == 0;
        self.mmu.set_index(self.cpl == 3, smap, self.alignment_matters());
    }

    /// Whether data accesses of the running code must be aligned (SDM vol. 3, 6.15, "Interrupt 17").
    pub(crate) fn alignment_matters(&self) -> bool {
        self.cpl == 3
            && self.rflags & flags::AC != 0
            && self.state.cr0 & cr0::AM != 0
            && !self.quirks.no_alignment_checks
    }

    /// Must be called whenever TF, RF, DR7 or `pending_debug` may have changed.
    pub fn update_debug_attention(&mut self) {
        let wanted = self.rflags & (flags::TF | flags::RF) != 0
            || self.state.pending_debug != 0
            || self.state.dr7 & 0xff != 0;
        if wanted {
            self.attention |= attention::DEBUG;
        } else {
            self.attention &= !attention::DEBUG;
        }
        self.break_block = true;
    }

    /// Requests sampling of the interrupt lines before the next instruction, and ends the block. Must be called after
    /// every bus access.
    #[inline]
    pub fn bus_was_used(&mut self) {
        self.attention |= attention::SIGNALS;
        if self.ram.flags().any_foreign_writes() {
            self.attention |= attention::FOREIGN_WRITES;
        }
        self.break_block = true;
    }

    /// Begins an interrupt shadow (STI): no interrupt is delivered before the end of the next instruction. With
    /// `mov_ss`, no debug trap is raised either.
    pub fn set_interrupt_shadow(&mut self, mov_ss: bool) {
        self.state.interrupt_shadow = true;
        self.state.mov_ss_shadow = mov_ss;
        self.attention |= attention::SHADOW | attention::SIGNALS;
        self.break_block = true;
    }

    /// Records an exception with an error code. Returns the [`Break`] that reports the exception.
    #[cold]
    pub fn fault_with_code(&mut self, vector: u8, code: u32) -> Break {
        self.exception = Exception { vector, error_code: Some(code), ..Exception::default() };
        Break::Fault
    }

    /// Records an exception without an error code. Returns the [`Break`] that reports the exception.
    #[cold]
    pub fn fault(&mut self, vector: u8) -> Break {
        self.exception = Exception { vector, ..Exception::default() };
        Break::Fault
    }

    /// Raises #GP(code).
    #[cold]
    pub fn gp(&mut self, code: u32) -> Break {
        self.fault_with_code(crate::exception::GP, code)
    }

    /// Raises #UD.
    #[cold]
    pub fn ud(&mut self) -> Break {
        self.fault(crate::exception::UD)
    }

    /// Raises #GP(0) if the privilege level is not 0.
    #[inline]
    pub fn require_cpl0(&mut self) -> Res<()> {
        if self.cpl == 0 { Ok(()) } else { Err(self.gp(0)) }
    }

    /// The RIP after an instruction, wrapped to the width of the code segment.
    #[inline(always)]
    pub(crate) fn next_rip(&self, block_rip: u64, offset: u16) -> u64 {
        self.wrap_rip(block_rip.wrapping_add(u64::from(offset)))
    }

    /// Wraps an instruction pointer to the code segment's width. A far transfer can set a 32-bit EIP in 16-bit
    /// code. Such an EIP is kept, and the limit check of the fetch then faults.
    #[inline(always)]
    pub fn wrap_rip(&self, rip: u64) -> u64 {
        match self.code_size {
            CodeSize::Bits64 => rip,
            _ => rip & 0xffff_ffff,
        }
    }

    /// The RIP at which the running block starts.
    #[inline(always)]
    pub fn block_rip(&self) -> u64 {
        self.frame.regs[REG_BLOCK_RIP as usize]
    }

    /// The value of a 64-bit register.
    #[inline(always)]
    pub fn reg64(&self, register: u8) -> u64 {
        self.frame.regs[(register & 31) as usize]
    }

    /// Writes a 64-bit register.
    #[inline(always)]
    pub fn set_reg64(&mut self, register: u8, value: u64) {
        self.frame.regs[(register & 31) as usize] = value;
    }

    /// The value of a 32-bit register.
    #[inline(always)]
    pub fn reg32(&self, register: u8) -> u32 {
        self.frame.regs[(register & 31) as usize] as u32
    }

    /// Writes a 32-bit register; the upper half becomes zero.
    #[inline(always)]
    pub fn set_reg32(&mut self, register: u8, value: u32) {
        self.frame.regs[(register & 31) as usize] = u64::from(value);
    }

    /// The value of a 16-bit register.
    #[inline(always)]
    pub fn reg16(&self, register: u8) -> u16 {
        self.frame.regs[(register & 31) as usize] as u16
    }

    /// Writes a 16-bit register; the other bits of the 64-bit register stay.
    #[inline(always)]
    pub fn set_reg16(&mut self, register: u8, value: u16) {
        let slot = &mut self.frame.regs[(register & 31) as usize];
        *slot = *slot & !0xffff | u64::from(value);
    }

    /// The value of an 8-bit register. A number with [`HIGH_BYTE`] means AH, CH, DH or BH.
    #[inline(always)]
    pub fn reg8(&self, register: u8) -> u8 {
        (self.frame.regs[(register & 31) as usize] >> ((register & HIGH_BYTE) >> 3)) as u8
    }

    /// Writes an 8-bit register; the other bits of the 64-bit register stay.
    #[inline(always)]
    pub fn set_reg8(&mut self, register: u8, value: u8) {
        let shift = (register & HIGH_BYTE) >> 3;
        let slot = &mut self.frame.regs[(register & 31) as usize];
        *slot = *slot & !(0xff << shift) | u64::from(value) << shift;
    }
}

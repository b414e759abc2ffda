//! The architectural state of the CPU as plain data. Debuggers show this state, and `CpuStateV1` is its form for
//! storing and hashing. The future behaviour of a CPU depends only on this state, RAM, the devices and the step
//! count.

/// Index of a segment register, in instruction encoding order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the architecture's")]
pub enum SegReg {
    Es = 0,
    Cs = 1,
    Ss = 2,
    Ds = 3,
    Fs = 4,
    Gs = 5,
}

/// A segment register with its hidden part, also used for LDTR and TR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The visible part: the selector.
    pub selector: u16,
    /// Base address.
    pub base: u64,
    /// Limit in bytes (granularity already applied).
    pub limit: u32,
    /// Descriptor bits 40 to 55, as in the second word of a descriptor shifted right by 8. Bits 0-3: type; 4: S; 5-6:
    /// DPL; 7: P; 12: AVL; 13: L; 14: D/B; 15: G.
    pub attributes: u16,
}

impl Segment {
    /// The four-bit segment type.
    pub fn kind(&self) -> u8 {
        (self.attributes & 0xf) as u8
    }
    /// Descriptor privilege level.
    pub fn dpl(&self) -> u8 {
        (self.attributes >> 5 & 3) as u8
    }
    /// Present bit; a null or unusable segment has it clear.
    pub fn present(&self) -> bool {
        self.attributes & 0x80 != 0
    }
    /// Whether the segment is a 64-bit code segment (the L bit).
    pub fn long(&self) -> bool {
        self.attributes & 1 << 13 != 0
    }
    /// The D/B bit: 32-bit code, a 32-bit stack pointer, or an upper bound of 4 GiB.
    pub fn big(&self) -> bool {
        self.attributes & 1 << 14 != 0
    }
}

/// GDTR or IDTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the architecture's")]
pub struct TableRegister {
    pub base: u64,
    pub limit: u16,
}

/// x87 and MMX state. Registers are physical (R0 to R7); MMX registers are their mantissas.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the architecture's")]
pub struct FpuState {
    pub mantissas: [u64; 8],
    pub sign_exponents: [u16; 8],
    pub control: u16,
    /// Status word with TOP in bits 11-13.
    pub status: u16,
    /// One bit per physical register, set when it is *not* empty (the FXSAVE abridged tag).
    pub valid: u8,
    pub opcode: u16,
    pub instruction_pointer: u64,
    pub data_pointer: u64,
    pub instruction_selector: u16,
    pub data_selector: u16,
}

/// Model-specific registers that belong to the CPU itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the architecture's")]
pub struct Msrs {
    pub efer: u64,
    pub star: u64,
    pub lstar: u64,
    pub cstar: u64,
    pub sfmask: u64,
    pub kernel_gs_base: u64,
    pub sysenter_cs: u64,
    pub sysenter_esp: u64,
    pub sysenter_eip: u64,
    pub tsc_aux: u64,
    /// The guest's TSC minus the raw TSC. Writes to IA32_TSC and IA32_TSC_ADJUST change this difference.
    pub tsc_offset: u64,
    pub tsc_adjust: u64,
    pub pat: u64,
    pub mtrr_def_type: u64,
    pub mtrr_fixed: [u64; 11],
    pub mtrr_variable: [u64; 16],
    pub misc_enable: u64,
    pub mcg_status: u64,
    /// IA32_DEBUGCTL: BTF (bit 1) turns TF into a trap on taken branches.
    pub debugctl: u64,
}

/// The complete architectural state of one CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the architecture's")]
pub struct CpuState {
    /// RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8 to R15.
    pub gpr: [u64; 16],
    pub rip: u64,
    pub rflags: u64,
    /// ES, CS, SS, DS, FS, GS.
    pub segments: [Segment; 6],
    pub ldtr: Segment,
    pub tr: Segment,
    pub gdtr: TableRegister,
    pub idtr: TableRegister,
    pub cr0: u64,
    pub cr2: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub xcr0: u64,
    /// Page-directory-pointer entries, which PAE paging loads with CR3 and caches.
    pub pdptes: [u64; 4],
    pub dr: [u64; 4],
    pub dr6: u64,
    pub dr7: u64,
    pub xmm: [u128; 16],
    /// Upper halves of YMM registers: zero until AVX is implemented.
    pub ymm_high: [u128; 16],
    pub mxcsr: u32,
    pub fpu: FpuState,
    pub msrs: Msrs,
    /// The CPU executed HLT and no interrupt has arrived yet.
    pub halted: bool,
    /// The CPU shut down after a triple fault. Only a reset ends this state.
    pub shut_down: bool,
    /// Interrupts are delayed until the next instruction has completed (after STI, MOV SS, POP SS).
    pub interrupt_shadow: bool,
    /// Debug traps are delayed too (after MOV SS, POP SS).
    pub mov_ss_shadow: bool,
    /// NMIs are blocked until IRET.
    pub nmi_blocked: bool,
    /// Pending debug traps (DR6 bits), to be raised before the next instruction.
    pub pending_debug: u64,
}

/// Counts since power-on. The counts belong to the machine and are not CPU registers, so loading another
/// state keeps them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Steps: completed instructions, single iterations of repeated string instructions, and deliveries of
    /// exceptions and interrupts.
    pub steps: u64,
    /// Retired conditional branches (Jcc, LOOPcc, JrCXZ), taken or not.
    pub branches: u64,
    /// System calls entered: completed SYSCALL, SYSENTER and INT 80h.
    pub system_calls: u64,
}

impl CpuState {
    /// State after reset (SDM vol. 3, table 10-1), with CS:IP at the reset vector.
    pub fn reset() -> CpuState {
        let data = Segment { selector: 0, base: 0, limit: 0xffff, attributes: 0x93 };
        let code = Segment { selector: 0xf000, base: 0xffff_0000, limit: 0xffff, attributes: 0x9b };
        let mut gpr = [0; 16];
        gpr[2] = cpu_model::SIGNATURE as u64;
        CpuState {
            gpr,
            rip: 0xfff0,
            rflags: 2,
            segments: [data, code, data, data, data, data],
            ldtr: Segment { attributes: 0x82, limit: 0xffff, ..Segment::default() },
            tr: Segment { attributes: 0x8b, limit: 0xffff, ..Segment::default() },
            gdtr: TableRegister { base: 0, limit: 0xffff },
            idtr: TableRegister { base: 0, limit: 0xffff },
            cr0: 0x6000_0010,
            cr2: 0,
            cr3: 0,
            cr4: 0,
            xcr0: 1,
            pdptes: [0; 4],
            dr: [0; 4],
            dr6: 0xffff_0ff0,
            dr7: 0x400,
            xmm: [0; 16],
            ymm_high: [0; 16],
            mxcsr: 0x1f80,
            fpu: FpuState {
                mantissas: [0; 8],
                sign_exponents: [0; 8],
                control: 0x40,
                status: 0,
                valid: 0xff,
                opcode: 0,
                instruction_pointer: 0,
                data_pointer: 0,
                instruction_selector: 0,
                data_selector: 0,
            },
            msrs: Msrs { pat: 0x0007_0406_0007_0406, misc_enable: 1, ..Msrs::default() },
            halted: false,
            shut_down: false,
            interrupt_shadow: false,
            mov_ss_shadow: false,
            nmi_blocked: false,
            pending_debug: 0,
        }
    }
}

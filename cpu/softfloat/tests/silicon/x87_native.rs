//! The processor's own x87 instructions under a given control word. Unmasked exceptions stay pending, and FNSAVE
//! stores the whole x87 state without waiting for them.

use softfloat::x87::{F80, X87Env};
use std::arch::asm;

/// The state before an instruction, except its operands.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    /// The control word.
    pub control: u16,
    /// Condition codes in the status word, to show which ones the instruction clears or leaves unchanged.
    pub codes: u16,
}

impl Before {
    pub fn env(self) -> X87Env {
        X87Env::new(self.control)
    }
}

/// The state after an instruction.
pub struct State {
    pub status: u16,
    /// ST(0) to ST(7).
    pub registers: [F80; 8],
    /// The memory operand.
    pub memory: [u8; 10],
}

impl State {
    pub fn top(&self) -> u16 {
        (self.status >> 11) & 7
    }
}

/// An instruction, run with `a` in ST(0), `b` in ST(1) and a 10-byte memory operand.
pub type Instruction = fn(Before, F80, F80, [u8; 10]) -> State;

macro_rules! instructions {
    ($($name:ident, $op:literal;)*) => {
        $(pub fn $name(before: Before, a: F80, b: F80, mut memory: [u8; 10]) -> State {
            let (st0, st1) = (a.to_bytes(), b.to_bytes());
            let mut area = [0u8; 108];
            // SAFETY: reads the two operands and the control word, and writes the memory operand and the save
            // area. The operands and the save area have sufficient size. Every x87 register is declared as
            // clobbered. FNSAVE, which does not wait, leaves the x87 initialised, so no exception stays
            // pending. One of the instructions needs RCX and the stack.
            unsafe {
                asm!(
                    "fninit",
                    "fld tbyte ptr [{st1}]",
                    "fld tbyte ptr [{st0}]",
                    "fnstenv [{area}]",
                    "or word ptr [{area} + 4], {codes:x}",
                    "fldenv [{area}]",
                    "fldcw word ptr [{control}]",
                    $op,
                    "fnsave [{area}]",
                    st0 = in(reg) st0.as_ptr(),
                    st1 = in(reg) st1.as_ptr(),
                    control = in(reg) &raw const before.control,
                    codes = in(reg) before.codes,
                    area = in(reg) area.as_mut_ptr(),
                    in("rax") memory.as_mut_ptr(),
                    out("rcx") _,
                    out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                    out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                );
            }
            let register = |index: usize| {
                let start = 28 + 10 * index;
                F80::from_bytes(area[start..start + 10].try_into().expect("ten bytes"))
            };
            State {
                status: u16::from_le_bytes([area[4], area[5]]),
                registers: std::array::from_fn(register),
                memory,
            }
        })*
    };
}

instructions! {
    fadd, "fadd st(0), st(1)";
    fsub, "fsub st(0), st(1)";
    fsubr, "fsubr st(0), st(1)";
    fmul, "fmul st(0), st(1)";
    fdiv, "fdiv st(0), st(1)";
    fdivr, "fdivr st(0), st(1)";
    fadd_m32, "fadd dword ptr [rax]";
    fsubr_m32, "fsubr dword ptr [rax]";
    fmul_m64, "fmul qword ptr [rax]";
    fdiv_m64, "fdiv qword ptr [rax]";
    fiadd_m32, "fiadd dword ptr [rax]";
    fidiv_m16, "fidiv word ptr [rax]";
    fsqrt, "fsqrt";
    fabs, "fabs";
    fchs, "fchs";
    fprem, "fprem";
    fprem1, "fprem1";
    frndint, "frndint";
    fscale, "fscale";
    fxtract, "fxtract";
    fcom, "fcom st(1)";
    fucom, "fucom st(1)";
    fcom_m32, "fcom dword ptr [rax]";
    fcom_m64, "fcom qword ptr [rax]";
    ftst, "ftst";
    fcomp, "fcomp st(1)";
    fcomip, "mov ecx, 0x8d7\npush rcx\npopfq\nfcomip st(0), st(1)\npushfq\npop rcx\nmov [rax], cl";
    fxam, "fxam";
    fld_m32, "fld dword ptr [rax]";
    fld_m64, "fld qword ptr [rax]";
    fld_m80, "fld tbyte ptr [rax]";
    fild_m64, "fild qword ptr [rax]";
    fbld, "fbld tbyte ptr [rax]";
    fst_m32, "fst dword ptr [rax]";
    fst_m64, "fst qword ptr [rax]";
    fstp_m80, "fstp tbyte ptr [rax]";
    fist_m16, "fist word ptr [rax]";
    fist_m32, "fist dword ptr [rax]";
    fistp_m64, "fistp qword ptr [rax]";
    fisttp_m16, "fisttp word ptr [rax]";
    fisttp_m32, "fisttp dword ptr [rax]";
    fisttp_m64, "fisttp qword ptr [rax]";
    fbstp, "fbstp tbyte ptr [rax]";
    fldz, "fldz";
    fld1, "fld1";
    fldl2t, "fldl2t";
    fldl2e, "fldl2e";
    fldpi, "fldpi";
    fldlg2, "fldlg2";
    fldln2, "fldln2";
    f2xm1, "f2xm1";
    fyl2x, "fyl2x";
    fyl2xp1, "fyl2xp1";
    fsin, "fsin";
    fcos, "fcos";
    fsincos, "fsincos";
    fptan, "fptan";
    fpatan, "fpatan";
}

//! Compares two outcomes and describes the differences.

use crate::allowed::{self, Uses};
use crate::case::Case;
use crate::layout::pad_at;
use crate::open::{self, Compared};
use crate::soft::KERNEL;
use crate::state::{FxImage, Outcome, Registers};

/// The RFLAGS bits that are compared: the arithmetic flags, DF, NT, AC and ID. The operating system sets IF and
/// IOPL, and RF is set in the RFLAGS that an exception reports.
pub const COMPARED_FLAGS: u64 = 0x8d5 | 0x400 | 0x4000 | 0x4_0000 | 0x20_0000;

/// The first address that Linux does not give to processes.
const USER_END: u64 = 0x7fff_ffff_f000;

/// The processor's and the software CPU's results of one case.
pub struct Pair<'a> {
    /// The processor's outcome.
    pub native: &'a Outcome,
    /// The software CPU's outcome.
    pub soft: &'a Outcome,
    /// The processor's writable data.
    pub native_data: &'a [u8],
    /// The software CPU's writable data.
    pub soft_data: &'a [u8],
}

/// The result of comparing one case.
pub enum Verdict {
    /// The outcomes are equal, except for differences that [`allowed`] permits. If only defined results are
    /// compared, results in [`open`] may differ, too.
    Equal,
    /// The software CPU does not know the instruction.
    NotOffered,
    /// The outcomes are different. The text has one line for each difference.
    Different(Vec<String>),
}

/// Compares the two outcomes of a case. Counts in `uses` how often a rule allowed a difference.
pub fn compare(case: &Case, pair: &Pair<'_>, compared: Compared, uses: &mut Uses) -> Verdict {
    if pair.native == pair.soft && pair.native_data == pair.soft_data {
        return Verdict::Equal;
    }
    if pair.soft.fault.is_some_and(|f| f.vector == 6) && pair.native.fault.is_none_or(|f| f.vector != 6) {
        return Verdict::NotOffered;
    }
    let (mut soft, mut soft_data) = (pair.soft.clone(), pair.soft_data.to_vec());
    mask_uncompared(pair.native, &mut soft);
    allowed::apply(case, pair, &mut soft, uses);
    if compared == Compared::Defined {
        if let Some(name) = open::whole(case, pair) {
            *uses.entry(name.to_string()).or_default() += 1;
            return Verdict::Equal;
        }
        open::apply(case, pair, &mut soft, &mut soft_data);
    }
    let lines = differences(pair, &soft, &soft_data);
    if lines.is_empty() { Verdict::Equal } else { Verdict::Different(lines) }
}

/// Copies all parts that are not compared from `native` to `soft`.
fn mask_uncompared(native: &Outcome, soft: &mut Outcome) {
    if let (Some(native), Some(soft)) = (native.fault, &mut soft.fault) {
        // Linux reports all page faults on kernel addresses as protection faults. The guest's kernel is at
        // addresses where this process has no memory.
        let guest_kernel = (KERNEL..KERNEL + 0x20_0000).contains(&soft.address);
        if soft.vector == 14 && (soft.address >= USER_END || guest_kernel) {
            soft.code = soft.code & !1 | native.code & 1;
        }
    }
    // The processor's outcome does not say to which case the reached landing pad belongs. A branch can reach a pad
    // of another case by chance.
    let [to, from] = [soft.registers.rip, native.registers.rip].map(pad_at);
    if to.is_some() && to == from {
        soft.registers.rip = native.registers.rip;
    }
    let flags = soft.registers.rflags & COMPARED_FLAGS | native.registers.rflags & !COMPARED_FLAGS;
    soft.registers.rflags = flags;
    soft.registers.fx.take_uncompared(&native.registers.fx);
}

fn differences(pair: &Pair<'_>, soft: &Outcome, soft_data: &[u8]) -> Vec<String> {
    let native = pair.native;
    let mut lines = Vec::new();
    if native.fault != soft.fault {
        lines.push(format!("exception: real {:x?}, soft {:x?}", native.fault, soft.fault));
    }
    register_differences(&native.registers, &soft.registers, &mut lines);
    fx_differences(&native.registers.fx, &soft.registers.fx, &mut lines);
    if pair.native_data != soft_data {
        let at = pair.native_data.iter().zip(soft_data).position(|(a, b)| a != b).unwrap_or(0);
        let end = (at + 16).min(soft_data.len());
        let address = crate::layout::DATA + at as u64;
        lines.push(format!(
            "memory at {address:#x}: real {:02x?}, soft {:02x?}",
            &pair.native_data[at..end],
            &soft_data[at..end]
        ));
    }
    lines
}

fn register_differences(native: &Registers, soft: &Registers, lines: &mut Vec<String>) {
    const NAMES: [&str; 16] = [
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
        "r14", "r15",
    ];
    for (n, name) in NAMES.iter().enumerate() {
        line(lines, name, native.gpr[n], soft.gpr[n]);
    }
    line(lines, "rip", native.rip, soft.rip);
    if native.rflags != soft.rflags {
        let names = flag_names(native.rflags ^ soft.rflags);
        lines.push(format!("rflags: real {:#x}, soft {:#x} ({names})", native.rflags, soft.rflags));
    }
}

fn flag_names(bits: u64) -> String {
    const NAMES: [(u64, &str); 10] = [
        (1, "CF"),
        (4, "PF"),
        (0x10, "AF"),
        (0x40, "ZF"),
        (0x80, "SF"),
        (0x400, "DF"),
        (0x800, "OF"),
        (0x4000, "NT"),
        (0x4_0000, "AC"),
        (0x20_0000, "ID"),
    ];
    let names = NAMES.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name);
    names.collect::<Vec<_>>().join(" ")
}

fn line<T: PartialEq + std::fmt::LowerHex>(lines: &mut Vec<String>, name: &str, native: T, soft: T) {
    if native != soft {
        lines.push(format!("{name}: real {native:#x}, soft {soft:#x}"));
    }
}

fn fx_differences(native: &FxImage, soft: &FxImage, lines: &mut Vec<String>) {
    line(lines, "x87 control", native.control(), soft.control());
    line(lines, "x87 status", native.status(), soft.status());
    line(lines, "x87 tags", native.tags(), soft.tags());
    line(lines, "x87 opcode", native.opcode(), soft.opcode());
    line(lines, "x87 instruction pointer", native.instruction_pointer(), soft.instruction_pointer());
    line(lines, "x87 data pointer", native.data_pointer(), soft.data_pointer());
    line(lines, "mxcsr", native.mxcsr(), soft.mxcsr());
    for n in 0..8 {
        let wide = |fx: &FxImage| u128::from(fx.sign_exponent(n)) << 64 | u128::from(fx.mantissa(n));
        line(lines, &format!("st{n}"), wide(native), wide(soft));
    }
    for n in 0..16 {
        line(lines, &format!("xmm{n}"), native.xmm(n), soft.xmm(n));
    }
}

//! A cell is one byte of a register or of physical memory. Values are followed cell by cell.

use cpu::CpuState;
use iced_x86::Register;

/// A register whose value can be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reg {
    /// A general register, by its number in instruction encodings.
    General(u8),
    /// An XMM register.
    Vector(u8),
}

/// One byte of a register or of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cell {
    /// A byte of a processor's register.
    Register {
        /// The processor's number.
        processor: usize,
        /// The register.
        register: Reg,
        /// The byte's number, from the lowest byte on.
        byte: u8,
    },
    /// The byte at a guest-physical address.
    Memory(u64),
}

/// Names of the general registers with 8 bytes.
const WHOLE: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];
/// Names of the lowest byte, the lowest two bytes and the lowest four bytes of the first eight general registers.
const PARTS: [[&str; 8]; 3] = [
    ["al", "cl", "dl", "bl", "spl", "bpl", "sil", "dil"],
    ["ax", "cx", "dx", "bx", "sp", "bp", "si", "di"],
    ["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi"],
];
/// Names of the second byte of the first four general registers.
const SECOND: [&str; 4] = ["ah", "ch", "dh", "bh"];

impl Reg {
    /// The register that contains one of the decoder's registers, and the number of the first byte in it. `None` if the
    /// register cannot be followed.
    pub fn of(register: Register) -> Option<(Reg, u8)> {
        let second = matches!(register, Register::AH | Register::CH | Register::DH | Register::BH);
        let full = register.full_register();
        if full.is_gpr64() {
            Some((Reg::General(full.number() as u8), u8::from(second)))
        } else {
            register.is_vector_register().then(|| (Reg::Vector(register.number() as u8), 0))
        }
    }

    /// The register and its bytes (the first byte and their number) by a name such as `eax`, `ah`, `xmm3` or `xmm3[8..16]`.
    /// Of an XMM register, a name without a range means the lowest eight bytes.
    pub fn named(name: &str) -> Option<(Reg, u8, u8)> {
        match name.strip_suffix(']').and_then(|name| name.split_once('[')) {
            Some((whole, range)) => Reg::range_named(whole, range),
            None => Reg::simply_named(name),
        }
    }

    /// The bytes of a range, such as `8..16`, in a whole register. At most eight bytes can be followed.
    fn range_named(whole: &str, range: &str) -> Option<(Reg, u8, u8)> {
        let (register, _, 8) = Reg::simply_named(whole)? else { return None };
        let (first, end) = range.split_once("..")?;
        let (first, end) = (first.parse::<u8>().ok()?, end.parse::<u8>().ok()?);
        let size = match register {
            Reg::General(_) => 8,
            Reg::Vector(_) => 16,
        };
        let bytes = end.checked_sub(first)?;
        (end <= size && (1..=8).contains(&bytes)).then_some((register, first, bytes))
    }

    fn simply_named(name: &str) -> Option<(Reg, u8, u8)> {
        let at = |names: &[&str]| names.iter().position(|known| *known == name).map(|number| number as u8);
        if let Some(number) = at(&WHOLE) {
            return Some((Reg::General(number), 0, 8));
        }
        if let Some(number) = at(&SECOND) {
            return Some((Reg::General(number), 1, 1));
        }
        for (names, bytes) in PARTS.iter().zip([1, 2, 4]) {
            if let Some(number) = at(names) {
                return Some((Reg::General(number), 0, bytes));
            }
        }
        let numbered = |digits: &str| digits.parse::<u8>().ok().filter(|number| *number < 16);
        if let Some(number) = name.strip_prefix("xmm").and_then(numbered) {
            return Some((Reg::Vector(number), 0, 8));
        }
        let rest = name.strip_prefix('r')?;
        [("b", 1), ("l", 1), ("w", 2), ("d", 4)].iter().find_map(|(end, bytes)| {
            let number = rest.strip_suffix(end).and_then(numbered).filter(|number| *number >= 8)?;
            Some((Reg::General(number), 0, *bytes))
        })
    }

    /// The name of some bytes of the register, such as `eax`, `ah` or `xmm3[8..16]`.
    pub fn name(self, first: u8, bytes: u8) -> String {
        let whole = match self {
            Reg::General(number) => WHOLE[usize::from(number & 15)].to_string(),
            Reg::Vector(number) => format!("xmm{number}"),
        };
        match (self, first, bytes) {
            (Reg::General(_), 0, 8) => whole,
            (Reg::General(number @ 0..4), 1, 1) => SECOND[usize::from(number)].to_string(),
            (Reg::General(number @ 0..8), 0, 1 | 2 | 4) => {
                PARTS[bytes.ilog2() as usize][usize::from(number)].to_string()
            }
            (Reg::General(_), 0, 1) => whole + "b",
            (Reg::General(_), 0, 2) => whole + "w",
            (Reg::General(_), 0, 4) => whole + "d",
            _ => format!("{whole}[{first}..{}]", u16::from(first) + u16::from(bytes)),
        }
    }

    /// A byte of the register in a processor's state.
    pub fn byte_in(self, state: &CpuState, byte: u8) -> u8 {
        match self {
            Reg::General(number) => {
                state.gpr.get(usize::from(number)).map_or(0, |value| byte_of(u128::from(*value), byte))
            }
            Reg::Vector(number) => {
                state.xmm.get(usize::from(number)).map_or(0, |value| byte_of(*value, byte))
            }
        }
    }
}

fn byte_of(value: u128, byte: u8) -> u8 {
    value.checked_shr(u32::from(byte) * 8).unwrap_or(0) as u8
}

/// A number with these bytes, the lowest first. Bytes after the eighth are ignored.
pub fn number_of(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_a_register_is_known_and_named_back() {
        let more = ["r8d", "r8w", "r8b", "r15d", "r15w", "r15b"];
        let all = WHOLE.iter().chain(PARTS.iter().flatten()).chain(&SECOND).chain(&more);
        for name in all {
            let (register, first, bytes) = Reg::named(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(register.name(first, bytes), *name);
        }
        assert_eq!(Reg::named("xmm3"), Some((Reg::Vector(3), 0, 8)));
        assert_eq!(Reg::Vector(3).name(8, 8), "xmm3[8..16]");
        for part in ["rax[4..8]", "r9[2..3]", "xmm3[8..16]", "xmm3[14..16]"] {
            let (register, first, bytes) = Reg::named(part).unwrap_or_else(|| panic!("{part}"));
            assert_eq!(register.name(first, bytes), part);
        }
        for wrong in [
            "rax[4..9]",
            "rax[4..4]",
            "rax[5..4]",
            "eax[0..2]",
            "xmm3[7..16]",
            "rax[]",
            "rax[0..2",
            "xmm3[+1..2]x",
        ] {
            assert_eq!(Reg::named(wrong), None, "{wrong}");
        }
        for wrong in ["", "r", "r16", "xmm16", "rip", "r7d", "ymm0", "raxx", "r8x"] {
            assert_eq!(Reg::named(wrong), None, "{wrong}");
        }
    }
}

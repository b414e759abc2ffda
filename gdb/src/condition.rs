//! Conditions of breakpoints, which the target evaluates during a run in place of gdb after every stop. A condition is
//! bytecode of gdb's agent expressions, on registers and memory only.
//!
//! The module follows the appendix "The GDB Agent Expression Mechanism" of the gdb manual. Not supported are
//! floating point, tracing, state variables and printing, which gdb does not use for conditions. If such an
//! instruction occurs, the condition counts as true and gdb evaluates it itself.

use crate::registers::RegisterNumber;
use crate::registers::Registers;

/// The largest number of values on the stack.
const MAX_DEPTH: usize = 64;
/// The largest number of executed bytecode instructions. Without a limit, a condition could loop forever.
const MAX_INSTRUCTIONS: usize = 4096;

/// One condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition(Vec<u8>);

/// Reads guest-virtual memory as a debugger. Returns the number of bytes read.
pub type ReadMemory<'a> = dyn Fn(u64, &mut [u8]) -> usize + 'a;

impl Condition {
    /// A condition with this bytecode, which need not be valid.
    pub fn new(bytecode: impl Into<Vec<u8>>) -> Condition {
        Condition(bytecode.into())
    }

    /// Whether the condition is true. A condition that cannot be evaluated counts as true (unmapped memory, division by
    /// zero, invalid code). So the run stops, and the user sees where the evaluation fails.
    pub fn holds(&self, registers: &mut Registers, memory: &ReadMemory<'_>) -> bool {
        let mut evaluation =
            Evaluation { code: &self.0, at: 0, stack: Vec::with_capacity(16), registers, memory };
        evaluation.run().is_none_or(|value| value != 0)
    }
}

struct Evaluation<'a> {
    code: &'a [u8],
    at: usize,
    stack: Vec<u64>,
    registers: &'a mut Registers,
    memory: &'a ReadMemory<'a>,
}

impl Evaluation<'_> {
    /// The top of the stack at the end; `None` if the stack is empty or the evaluation fails.
    fn run(&mut self) -> Option<u64> {
        for _ in 0..MAX_INSTRUCTIONS {
            match self.operand(1)? as u8 {
                0x27 => return self.pop(),
                code => self.execute(code)?,
            }
        }
        None
    }

    /// Executes one instruction. The manual lists the opcodes. This function and its helpers return `None` if the
    /// evaluation fails.
    fn execute(&mut self, code: u8) -> Option<()> {
        match code {
            0x02 => self.binary(|a, b| Some(a.wrapping_add(b))),
            0x03 => self.binary(|a, b| Some(a.wrapping_sub(b))),
            0x04 => self.binary(|a, b| Some(a.wrapping_mul(b))),
            0x05 => self.binary(|a, b| (b != 0).then(|| (a as i64).wrapping_div(b as i64) as u64)),
            0x06 => self.binary(u64::checked_div),
            0x07 => self.binary(|a, b| (b != 0).then(|| (a as i64).wrapping_rem(b as i64) as u64)),
            0x08 => self.binary(u64::checked_rem),
            0x09 => self.binary(|a, b| Some(if b < 64 { a << b } else { 0 })),
            0x0a => self.binary(|a, b| Some(((a as i64) >> b.min(63)) as u64)),
            0x0b => self.binary(|a, b| Some(if b < 64 { a >> b } else { 0 })),
            0x0e => self.unary(|a| u64::from(a == 0)),
            0x0f => self.binary(|a, b| Some(a & b)),
            0x10 => self.binary(|a, b| Some(a | b)),
            0x11 => self.binary(|a, b| Some(a ^ b)),
            0x12 => self.unary(|a| !a),
            0x13 => self.binary(|a, b| Some(u64::from(a == b))),
            0x14 => self.binary(|a, b| Some(u64::from((a as i64) < (b as i64)))),
            0x15 => self.binary(|a, b| Some(u64::from(a < b))),
            0x16 => self.extend(|value, unused| ((value << unused) as i64 >> unused) as u64),
            0x17 => self.load(1),
            0x18 => self.load(2),
            0x19 => self.load(4),
            0x1a => self.load(8),
            0x20 => {
                let target = self.operand(2)? as usize;
                if self.pop()? != 0 {
                    self.at = target;
                }
                Some(())
            }
            0x21 => {
                self.at = self.operand(2)? as usize;
                Some(())
            }
            0x22 => self.constant(1),
            0x23 => self.constant(2),
            0x24 => self.constant(4),
            0x25 => self.constant(8),
            0x26 => self.register(),
            0x28 => self.pick(0),
            0x29 => self.pop().map(|_| ()),
            0x2a => self.extend(|value, unused| value << unused >> unused),
            0x2b => self.rotate(2),
            0x32 => {
                let depth = self.operand(1)?;
                self.pick(depth as usize)
            }
            0x33 => self.rotate(3),
            _ => None,
        }
    }

    /// The number in the next `length` bytes of the code, most significant byte first.
    fn operand(&mut self, length: usize) -> Option<u64> {
        let bytes = self.code.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn push(&mut self, value: u64) -> Option<()> {
        (self.stack.len() < MAX_DEPTH).then(|| self.stack.push(value))
    }

    fn pop(&mut self) -> Option<u64> {
        self.stack.pop()
    }

    fn unary(&mut self, operation: fn(u64) -> u64) -> Option<()> {
        let value = self.pop()?;
        self.push(operation(value))
    }

    fn binary(&mut self, operation: fn(u64, u64) -> Option<u64>) -> Option<()> {
        let (right, left) = (self.pop()?, self.pop()?);
        self.push(operation(left, right)?)
    }

    fn constant(&mut self, length: usize) -> Option<()> {
        let value = self.operand(length)?;
        self.push(value)
    }

    /// Extends the lowest bits of the top value to 64 bits. `operation` gets the value and the number of bits above the
    /// lowest ones.
    fn extend(&mut self, operation: fn(u64, u32) -> u64) -> Option<()> {
        let bits = self.operand(1)? as u32;
        let value = self.pop()?;
        self.push(match bits {
            0 => 0,
            1..64 => operation(value, 64 - bits),
            _ => value,
        })
    }

    fn load(&mut self, length: usize) -> Option<()> {
        let address = self.pop()?;
        let mut bytes = [0; 8];
        let count = (self.memory)(address, &mut bytes[..length]);
        (count >= length).then_some(())?;
        self.push(u64::from_le_bytes(bytes))
    }

    /// Pushes a register's lowest 64 bits.
    fn register(&mut self) -> Option<()> {
        let number = RegisterNumber::from_index(self.operand(2)? as usize)?;
        let mut bytes = [0; 16];
        number.read(self.registers, &mut bytes)?;
        let [low @ .., _, _, _, _, _, _, _, _] = bytes;
        self.push(u64::from_le_bytes(low))
    }

    fn pick(&mut self, depth: usize) -> Option<()> {
        let index = self.stack.len().checked_sub(depth + 1)?;
        self.push(self.stack[index])
    }

    /// Moves the top value below the `count - 1` values under it.
    fn rotate(&mut self, count: usize) -> Option<()> {
        let from = self.stack.len().checked_sub(count)?;
        self.stack[from..].rotate_right(1);
        Some(())
    }
}

/// Parses a breakpoint packet with conditions (`Z0,ADDR,KIND;X...`). Returns the breakpoint's address,
/// whether it is a hardware breakpoint, and the conditions. `None` if the packet is of another kind or
/// invalid.
pub(crate) fn parse_packet(body: &[u8]) -> Option<(u64, bool, Vec<Condition>)> {
    let text = str::from_utf8(body).ok()?;
    let hardware = match text.get(..3)? {
        "Z0," => false,
        "Z1," => true,
        _ => return None,
    };
    let (place, rest) = text[3..].split_once(';')?;
    let (address, _kind) = place.split_once(',')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let conditions = rest.split(';').next()?;
    Some((address, hardware, parse_conditions(conditions)?))
}

fn parse_conditions(mut text: &str) -> Option<Vec<Condition>> {
    let mut conditions = Vec::new();
    while !text.is_empty() {
        let (length, rest) = text.strip_prefix('X')?.split_once(',')?;
        let digits = usize::from_str_radix(length, 16).ok()?.checked_mul(2)?;
        let (hex, rest) = rest.split_at_checked(digits)?;
        let bytes =
            hex.as_bytes().chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok());
        conditions.push(Condition(bytes.collect::<Option<Vec<u8>>>()?));
        text = rest;
    }
    (!conditions.is_empty()).then_some(conditions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(code: &[u8]) -> Option<u64> {
        let mut registers = Registers { rbx: 0x1122_3344_5566_7788, eflags: 0x246, ..Registers::default() };
        let memory = |address: u64, bytes: &mut [u8]| {
            bytes.iter_mut().zip(address..).for_each(|(byte, at)| *byte = at as u8 | 0x80);
            if address < 0x1000 { bytes.len() } else { 0 }
        };
        Evaluation { code, at: 0, stack: Vec::new(), registers: &mut registers, memory: &memory }.run()
    }

    #[test]
    fn instructions_do_what_the_manual_says() {
        let table: &[(&[u8], u64)] = &[
            (&[0x22, 7, 0x22, 3, 0x02, 0x27], 10),
            (&[0x22, 3, 0x22, 7, 0x03, 0x27], 4u64.wrapping_neg()),
            (&[0x22, 0xf9, 0x16, 8, 0x22, 2, 0x05, 0x27], 3u64.wrapping_neg()),
            (&[0x22, 9, 0x22, 2, 0x06, 0x27], 4),
            (&[0x22, 0xf9, 0x16, 8, 0x22, 4, 0x07, 0x27], 3u64.wrapping_neg()),
            (&[0x22, 9, 0x22, 5, 0x08, 0x27], 4),
            (&[0x22, 1, 0x22, 64, 0x09, 0x27], 0),
            (&[0x22, 0x80, 0x16, 8, 0x22, 200, 0x0a, 0x27], u64::MAX),
            (&[0x22, 0, 0x0e, 0x27], 1),
            (&[0x22, 0x0f, 0x12, 0x2a, 8, 0x27], 0xf0),
            (&[0x22, 0x80, 0x16, 8, 0x22, 1, 0x14, 0x27], 1),
            (&[0x22, 0x80, 0x16, 8, 0x22, 1, 0x15, 0x27], 0),
            (&[0x22, 0x10, 0x19, 0x27], 0x9392_9190),
            (&[0x22, 1, 0x20, 0, 8, 0x22, 5, 0x27, 0x22, 6, 0x27], 6),
            (&[0x21, 0, 5, 0x22, 5, 0x22, 6, 0x27], 6),
            (&[0x24, 1, 2, 3, 4, 0x27], 0x0102_0304),
            (&[0x26, 0, 1, 0x27], 0x1122_3344_5566_7788),
            (&[0x26, 0, 17, 0x27], 0x246),
            (&[0x22, 1, 0x22, 2, 0x2b, 0x03, 0x27], 1),
            (&[0x22, 1, 0x22, 2, 0x22, 3, 0x33, 0x29, 0x27], 1),
            (&[0x22, 7, 0x22, 8, 0x32, 1, 0x27], 7),
            (&[0x22, 7, 0x28, 0x04, 0x27], 49),
            (&[0x22, 6, 0x22, 7, 0x04, 0x27], 42),
            (&[0x22, 5, 0x22, 3, 0x09, 0x27], 40),
            (&[0x22, 1, 0x22, 63, 0x09, 0x27], 1 << 63),
            (&[0x22, 0x80, 0x16, 8, 0x22, 3, 0x0a, 0x27], 16_u64.wrapping_neg()),
            (&[0x22, 40, 0x22, 3, 0x0b, 0x27], 5),
            (&[0x22, 0xff, 0x16, 8, 0x22, 63, 0x0b, 0x27], 1),
            (&[0x22, 0xff, 0x22, 64, 0x0b, 0x27], 0),
            (&[0x22, 3, 0x0e, 0x27], 0),
            (&[0x22, 0b1100, 0x22, 0b1010, 0x0f, 0x27], 0b1000),
            (&[0x22, 0b1100, 0x22, 0b1010, 0x10, 0x27], 0b1110),
            (&[0x22, 0b1100, 0x22, 0b1010, 0x11, 0x27], 0b0110),
            (&[0x22, 5, 0x22, 5, 0x13, 0x27], 1),
            (&[0x22, 5, 0x22, 6, 0x13, 0x27], 0),
            (&[0x22, 5, 0x22, 5, 0x14, 0x27], 0),
            (&[0x22, 5, 0x22, 5, 0x15, 0x27], 0),
            (&[0x22, 5, 0x22, 6, 0x15, 0x27], 1),
            // Both extensions by no bits, by some, and by all.
            (&[0x22, 0xff, 0x16, 0, 0x27], 0),
            (&[0x22, 0x7f, 0x16, 8, 0x27], 0x7f),
            (&[0x25, 0x80, 2, 3, 4, 5, 6, 7, 8, 0x16, 64, 0x27], 0x8002_0304_0506_0708),
            (&[0x25, 0x80, 2, 3, 4, 5, 6, 7, 8, 0x2a, 63, 0x27], 0x0002_0304_0506_0708),
            (&[0x25, 0x80, 2, 3, 4, 5, 6, 7, 8, 0x2a, 64, 0x27], 0x8002_0304_0506_0708),
            (&[0x22, 0x10, 0x17, 0x27], 0x90),
            (&[0x22, 0x10, 0x18, 0x27], 0x9190),
            (&[0x22, 0x10, 0x1a, 0x27], 0x9796_9594_9392_9190),
            (&[0x23, 1, 2, 0x27], 0x0102),
            (&[0x25, 1, 2, 3, 4, 5, 6, 7, 8, 0x27], 0x0102_0304_0506_0708),
            // A condition of zero does not jump.
            (&[0x22, 0, 0x20, 0, 8, 0x22, 5, 0x27, 0x22, 6, 0x27], 5),
            (&[0x22, 7, 0x22, 8, 0x32, 0, 0x27], 8),
        ];
        for (code, expected) in table {
            assert_eq!(value(code), Some(*expected), "{code:x?}");
        }
    }

    #[test]
    fn what_cannot_be_evaluated_counts_as_true() {
        let nonsense: &[&[u8]] = &[
            &[],
            &[0x27],
            &[0x02, 0x27],
            &[0x22],
            &[0x22, 1, 0x22, 0, 0x06, 0x27],
            &[0x23, 0x10, 0x00, 0x17, 0x27],
            &[0x21, 0, 0],
            &[0x22, 1, 0x21, 0, 0],
            &[0x26, 0xff, 0xff, 0x27],
            &[0x01, 0x27],
            &[0x21, 0xff, 0xff],
            &[0x22, 1, 0x32, 9, 0x27],
            &[0x22, 1, 0x32, 1, 0x27],
            &[0x22, 1, 0x22, 0, 0x05, 0x27],
            &[0x22, 1, 0x22, 0, 0x07, 0x27],
            &[0x22, 1, 0x22, 0, 0x08, 0x27],
            &[0x22, 1, 0x2b, 0x27],
            &[0x22, 1, 0x22, 2, 0x33, 0x27],
            &[0x29, 0x27],
            &[0x20, 0, 0],
            &[0x25, 1, 2, 3, 4, 5, 6, 7],
        ];
        for code in nonsense {
            assert_eq!(value(code), None, "{code:x?}");
        }
        assert!(Condition::new([0x27]).holds(&mut Registers::default(), &|_, _| 0));
        assert!(!Condition::new([0x22, 0, 0x27]).holds(&mut Registers::default(), &|_, _| 0));
    }

    #[test]
    fn the_stack_and_the_number_of_instructions_have_limits() {
        let deep = |depth: usize| [[0x22, 9].repeat(depth), vec![0x27]].concat();
        assert_eq!((value(&deep(64)), value(&deep(65))), (Some(9), None));
        // Each jump leads to the instruction behind it.
        let long = |jumps: u16| {
            let jump = |number: u16| [&[0x21][..], &(3 * (number + 1)).to_be_bytes()].concat();
            [(0..jumps).flat_map(jump).collect(), vec![0x22, 9, 0x27]].concat()
        };
        assert_eq!((value(&long(4094)), value(&long(4095))), (Some(9), None));
    }

    #[test]
    fn any_bytes_can_be_evaluated() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..20_000 {
            let code: Vec<u8> = (0..24)
                .map(|_| {
                    seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    let byte = (seed >> 56) as u8;
                    // Mostly opcodes that exist.
                    if seed >> 40 & 3 == 0 { byte } else { byte % 0x34 }
                })
                .collect();
            value(&code);
        }
    }

    #[test]
    fn packets_are_read() {
        let one = |code: &[u8]| vec![Condition::new(code)];
        assert_eq!(parse_packet(b"Z0,1000,1;X3,220127"), Some((0x1000, false, one(&[0x22, 1, 0x27]))));
        assert_eq!(parse_packet(b"Z1,ff,1;X1,27;cmds:0"), Some((0xff, true, one(&[0x27]))));
        assert_eq!(parse_packet(b"Z0,1,1;X1,27X1,28").map(|(_, _, all)| all.len()), Some(2));
        for body in [
            "Z0,1000,1",
            "Z0,1,1;",
            "Z0,1,1;X5,27",
            "Z0,1,1;Xffffffffffffffff,27",
            "Z2,1,1;X1,27",
            "Z0,1;X1,zz",
        ] {
            assert_eq!(parse_packet(body.as_bytes()), None, "{body}");
        }
    }
}

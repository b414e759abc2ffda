//! Random code from instructions of all families. Most instructions change the code's own bytes, page tables, segments
//! or flags, and most operands have the addresses of such data.

use crate::layout::*;
use seeded::Rng;

/// The default operand and address size of the code that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    /// Real mode, virtual-8086 mode and 16-bit segments.
    B16,
    /// 32-bit segments.
    B32,
    /// 64-bit mode.
    B64,
}

/// Writes instructions of one width.
pub struct Writer {
    /// The random generator that makes every choice.
    pub rng: Rng,
    /// The code's default operand and address size.
    pub bits: Bits,
    /// Whether page-table entries are 4 bytes wide.
    pub narrow_tables: bool,
    /// The written bytes.
    pub out: Vec<u8>,
}

/// Page-table entry bits: present, writable, user, accessed, dirty.
pub const OPEN: u64 = 0x67;
const NO_EXECUTE: u64 = 1 << 63;

/// How an instruction's memory operand is encoded.
struct Memory {
    /// Whether the memory operand needs the address-size prefix.
    prefixed: bool,
    /// The bytes of the encoding: ModRM without its register field, SIB, displacement.
    bytes: Vec<u8>,
}

type Template = fn(&mut Writer);

/// All templates of instructions. The number before a template is its weight in the random choice.
const TEMPLATES: &[(u64, Template)] = &[
    (30, Writer::arithmetic),
    (16, Writer::load_immediate),
    (12, Writer::rewrite_table),
    (9, Writer::rewrite_code),
    (4, Writer::rewrite_descriptor),
    (12, Writer::branch),
    (8, Writer::stack),
    (12, Writer::neighbours),
    (10, Writer::late_flags),
    (9, Writer::string),
    (12, Writer::system),
    (3, Writer::control_register),
    (3, Writer::switch_spaces),
    (3, Writer::debug_register),
    (2, Writer::model_specific),
    (4, Writer::segment_register),
    (2, Writer::far_transfer),
    (4, Writer::input_output),
    (5, Writer::floating_point),
    (2, Writer::trap_flag),
    (4, Writer::noise),
];

impl Writer {
    /// Writes `length` bytes of random instructions. The last instruction may be cut off.
    pub fn fill(&mut self, length: usize) {
        let all = TEMPLATES.iter().map(|t| t.0).sum::<u64>();
        while self.out.len() < length {
            let mut left = self.rng.below(all);
            let chosen = TEMPLATES.iter().find(|(weight, _)| {
                let here = left < *weight;
                left = left.wrapping_sub(*weight);
                here
            });
            chosen.expect("the weights add up").1(self);
        }
        self.out.truncate(length);
    }

    /// Writes an exception handler. The handler removes the error code from the stack if `error_code` is true. Then
    /// the handler may change the return address, and returns.
    pub fn handler(&mut self, error_code: bool) {
        if error_code {
            // Remove the error code from the stack by LEA, which does not change the flags.
            match self.bits {
                Bits::B64 => self.put(&[0x48, 0x8d, 0x64, 0x24, 8]),
                Bits::B32 => self.put(&[0x8d, 0x64, 0x24, 4]),
                Bits::B16 => self.put(&[0x83, 0xc4, 2]),
            }
        }
        match self.rng.below(20) {
            0..=8 => self.skip_return(),
            9..=14 => self.redirect_return(),
            15 => self.arithmetic(),
            16 => self.system(),
            17 => self.put(&[0xf4]),
            _ => {}
        }
        self.put(if self.bits == Bits::B64 { &[0x48, 0xcf] } else { &[0xcf] });
    }

    /// Makes the handler skip some bytes of the interrupted code.
    fn skip_return(&mut self) {
        let distance = 1 + self.rng.below(7) as u8;
        match self.bits {
            Bits::B64 => self.put(&[0x48, 0x83, 0x04, 0x24, distance]),
            Bits::B32 => self.put(&[0x83, 0x04, 0x24, distance]),
            Bits::B16 => self.put(&[0x55, 0x89, 0xe5, 0x83, 0x46, 2, distance, 0x5d]),
        }
    }

    /// Makes the handler return to a random address in the code.
    fn redirect_return(&mut self) {
        let place = self.code_address() as u32;
        match self.bits {
            Bits::B64 => self.put(&[0x48, 0xc7, 0x04, 0x24]),
            Bits::B32 => self.put(&[0xc7, 0x04, 0x24]),
            Bits::B16 => {
                self.put(&[0x55, 0x89, 0xe5, 0xc7, 0x46, 2]);
                self.put(&(place as u16).to_le_bytes());
                return self.put(&[0x5d]);
            }
        }
        self.put(&place.to_le_bytes());
    }

    fn put(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    fn byte(&mut self) -> u8 {
        self.rng.bits() as u8
    }

    fn register(&mut self) -> u8 {
        self.rng.below(8) as u8
    }

    /// A general register other than the stack pointer.
    fn free_register(&mut self) -> u8 {
        self.rng.pick(&[0, 1, 2, 3, 5, 6, 7])
    }

    /// An address inside the code, often near a page's end. Sometimes the address is in the alias, a second mapping
    /// of the same RAM ([`ALIAS`]).
    pub fn code_address(&mut self) -> u64 {
        let page = CODE + self.rng.below((CODE_END - CODE) / PAGE) * PAGE;
        let offset =
            if self.rng.percent(20) { PAGE - 1 - self.rng.below(24) } else { self.rng.below(PAGE / 16) * 16 };
        page + offset + if self.bits != Bits::B16 && self.rng.percent(15) { ALIAS } else { 0 }
    }

    /// The address of a page-table entry, mostly the entry of a page with code.
    fn entry_address(&mut self) -> u64 {
        let table = LEAVES[self.rng.below(8) as usize / 7];
        let page = match self.rng.below(10) {
            0..=4 => (CODE + self.rng.below(CODE_END - CODE)) / PAGE,
            5 => self.rng.below(2 * RAM_BYTES / PAGE),
            6 => HANDLERS / PAGE + self.rng.below(2),
            7 => (DATA + self.rng.below(RAM_BYTES - DATA)) / PAGE,
            8 => (TABLES + self.rng.below(TABLES_END - TABLES)) / PAGE,
            _ => (ALIAS + CODE + self.rng.below(CODE_END - CODE)) / PAGE,
        };
        if self.rng.percent(3) {
            // Return the address of an entry in a higher-level table, which the two address spaces may share.
            return self.rng.pick(&[ROOTS[0], ROOTS[1], MIDDLES[0], DIRECTORIES[0], DIRECTORIES[0] + 8]);
        }
        if self.rng.percent(6) {
            return TABLES + self.rng.below((TABLES_END - TABLES) / 8) * 8;
        }
        table + page * if self.narrow_tables { 4 } else { 8 }
    }

    /// Returns a random page-table entry.
    fn entry(&mut self) -> u64 {
        let page = match self.rng.below(10) {
            0..=6 => CODE + self.rng.below(CODE_END - CODE),
            7 => TABLES + self.rng.below(TABLES_END - TABLES),
            8 => RAM_BYTES + self.rng.below(RAM_BYTES),
            _ => self.rng.below(RAM_BYTES),
        };
        let rights = match self.rng.below(12) {
            0 => OPEN & !2,
            1 => OPEN & !4,
            2 => OPEN & !1,
            3 => OPEN & !0x60,
            4 => OPEN & !0x40,
            5 => OPEN | NO_EXECUTE,
            6 => OPEN | 1 << 7,
            _ => OPEN,
        };
        page & !(PAGE - 1) | rights
    }

    /// Returns a random descriptor: code, data or a gate, with unusual limits and rights.
    fn descriptor(&mut self) -> u64 {
        let code = 0x00cf_9b00_0000_ffff;
        match self.rng.below(8) {
            0 => code,
            1 => 0x00af_9b00_0000_ffff,
            2 => 0x000f_9b00_0000_0000 | self.rng.below(RAM_BYTES) & 0xffff | 1 << 48,
            3 => 0x004f_9b00_0000_0000 | self.code_address() & 0xffff,
            4 => 0x00cf_9300_0000_ffff,
            5 => 0x0040_9700_0000_0000 | self.rng.below(0x1_0000),
            6 => code ^ 1 << self.rng.below(64),
            _ => self.rng.bits() & 0x00ff_ff00_ffff_ffff | 0x9b << 40,
        }
    }

    /// Returns a value to load into a register: an address, a page-table entry, a descriptor, a selector, a
    /// boundary value or a random number.
    pub fn value(&mut self) -> u64 {
        match self.rng.below(16) {
            0 | 1 => self.code_address(),
            2 => self.entry_address(),
            3 => self.entry(),
            4 => DATA + self.rng.below(RAM_BYTES - DATA),
            5 => DATA + (1 + self.rng.below(6)) * PAGE - 1 - self.rng.below(20),
            6 => GDT + self.rng.below(0x100),
            7 => self.rng.pick(&selector::ALL).into(),
            8 => self.rng.below(32),
            9 => self.rng.below(0x1_0000),
            10 => self.rng.pick(&[0, 1, u64::MAX, 1 << 31, 1 << 63, 0x7fff_ffff, 0xffff_8000_0000_0000]),
            11 => self.descriptor(),
            12 => RAM_BYTES + self.rng.below(RAM_BYTES),
            13 => self.rng.pick(&STACKS) - self.rng.below(64),
            14 => self.rng.below(2 * RAM_BYTES) & !(PAGE - 1),
            _ => self.rng.bits(),
        }
    }

    /// Returns a random memory operand: relative to a register, or at an absolute address in the code, the tables
    /// or the data.
    fn memory(&mut self) -> Memory {
        if self.rng.percent(35) {
            let address = if self.rng.percent(30) { self.entry_address() } else { self.value() };
            return self.absolute(address);
        }
        match self.bits {
            Bits::B16 if self.rng.percent(60) => {
                let rm = self.register();
                if self.rng.percent(50) || rm == 6 {
                    return Memory { prefixed: false, bytes: vec![0x40 | rm, self.byte()] };
                }
                Memory { prefixed: false, bytes: vec![rm] }
            }
            bits => {
                let rm = self.rng.pick(&[0, 1, 2, 3, 6, 7]);
                let bytes = match self.rng.below(4) {
                    0 => vec![0x40 | rm, self.byte()],
                    1 => vec![0x04, self.byte() & 0xf8 & !7 | 3],
                    _ => vec![rm],
                };
                Memory { prefixed: bits == Bits::B16, bytes }
            }
        }
    }

    fn absolute(&mut self, address: u64) -> Memory {
        let place = (address as u32).to_le_bytes();
        match self.bits {
            Bits::B64 => Memory { prefixed: false, bytes: [&[0x04, 0x25], &place[..]].concat() },
            Bits::B32 => Memory { prefixed: false, bytes: [&[0x05], &place[..]].concat() },
            Bits::B16 if address < 0x1_0000 => {
                Memory { prefixed: false, bytes: [&[0x06], &place[..2]].concat() }
            }
            Bits::B16 => Memory { prefixed: true, bytes: [&[0x05], &place[..]].concat() },
        }
    }

    /// Writes an instruction with a ModRM byte: operand register and memory, or two registers.
    fn modrm(&mut self, wide: bool, opcode: &[u8], register: u8, memory: Option<Memory>) {
        let memory =
            memory.unwrap_or_else(|| Memory { prefixed: false, bytes: vec![0xc0 | self.register()] });
        if memory.prefixed {
            self.put(&[0x67]);
        }
        if self.rng.percent(4) {
            let prefix = self.rng.pick(&[0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0xf0]);
            self.put(&[prefix]);
        }
        // The bits of a REX prefix and the operand-size prefix choose the width.
        match self.bits {
            Bits::B64 if wide => self.put(&[0x48]),
            Bits::B16 if wide => self.put(&[0x66]),
            _ if self.rng.percent(12) => self.put(&[0x66]),
            Bits::B64 if self.rng.percent(25) => {
                let rex = 0x40 | self.byte() & 0xf;
                self.put(&[rex]);
            }
            _ => {}
        }
        self.put(opcode);
        let mut bytes = memory.bytes;
        bytes[0] |= (register & 7) << 3;
        self.put(&bytes);
    }

    fn some_operand(&mut self) -> Option<Memory> {
        self.rng.percent(45).then(|| self.memory())
    }

    fn arithmetic(&mut self) {
        let (register, operand) = (self.register(), self.some_operand());
        match self.rng.below(16) {
            0..=5 => {
                let opcode = (self.byte() & 7) << 3 | self.byte() & 3;
                self.modrm(false, &[opcode], register, operand);
            }
            6 => {
                let opcode = self.rng.pick(&[0x80, 0x83]);
                self.modrm(false, &[opcode], register, operand);
                let immediate = self.byte();
                self.put(&[immediate]);
            }
            7 => {
                let opcode = self.rng.pick(&[0xd0, 0xd1, 0xd2, 0xd3]);
                self.modrm(false, &[opcode], register, operand);
            }
            8 => {
                let opcode = self.rng.pick(&[0xfe, 0xff]);
                self.modrm(false, &[opcode], register & 1, operand);
            }
            9 => {
                let opcode = self.rng.pick(&[0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x8b]);
                self.modrm(false, &[opcode], register, operand);
            }
            10 => {
                let opcode = self.rng.pick(&[0xb0, 0xb1, 0xc0, 0xc1, 0xa3, 0xab, 0xb3, 0xbb]);
                self.modrm(false, &[0x0f, opcode], register, operand);
            }
            11 => {
                let opcode = self.rng.pick(&[0xb6, 0xb7, 0xbe, 0xbf, 0xaf, 0xbc, 0xbd]);
                self.modrm(false, &[0x0f, opcode], register, operand);
            }
            12 => {
                let opcode = self.rng.pick(&[0x40, 0x90]) | self.byte() & 15;
                self.modrm(false, &[0x0f, opcode], register, operand);
            }
            13 => {
                let opcode = self.rng.pick(&[0xf6, 0xf7]);
                self.modrm(false, &[opcode], register | 2, operand);
            }
            14 => {
                let memory = self.memory();
                self.modrm(false, &[0x8d], register, Some(memory));
            }
            _ => {
                let memory = self.memory();
                self.modrm(false, &[0x0f, 0xc7], 1, Some(memory));
            }
        }
    }

    fn immediate(&mut self, register: u8, value: u64) {
        match self.bits {
            Bits::B64 => {
                self.put(&[0x48, 0xb8 | register]);
                self.put(&value.to_le_bytes());
            }
            bits => {
                if bits == Bits::B16 {
                    self.put(&[0x66]);
                }
                self.put(&[0xb8 | register]);
                self.put(&(value as u32).to_le_bytes());
            }
        }
    }

    fn load_immediate(&mut self) {
        let (register, value) = (self.free_register(), self.value());
        self.immediate(register, value);
    }

    /// Writes an instruction that stores a register, or a part of a register, at an address.
    fn store(&mut self, address: u64, register: u8) {
        let memory = self.absolute(address);
        match self.rng.below(10) {
            0 => self.modrm(false, &[0x88], register, Some(memory)),
            1 => self.modrm(true, &[0x87], register, Some(memory)),
            2 => self.modrm(true, &[0x0f, 0xb1], register, Some(memory)),
            _ => self.modrm(true, &[0x89], register, Some(memory)),
        }
    }

    fn rewrite_table(&mut self) {
        let (register, address) = (self.free_register(), self.entry_address());
        match self.rng.below(8) {
            // Change one bit of the entry: a right, accessed, dirty, or a bit of the page's number.
            0 => {
                let memory = self.absolute(address);
                let which = self.rng.pick(&[5, 6, 7]);
                self.modrm(true, &[0x0f, 0xba], which, Some(memory));
                let bit = self.rng.pick(&[0, 1, 2, 5, 6, 12, 13, 63]);
                self.put(&[bit]);
            }
            // Copy the value of another page-table entry.
            1 => {
                let from = self.entry_address();
                let memory = self.absolute(from);
                self.modrm(true, &[0x8b], register, Some(memory));
                self.store(address, register);
            }
            _ => {
                let value = self.entry();
                self.immediate(register, value);
                self.store(address, register);
            }
        }
    }

    /// Writes instructions that overwrite code, mostly the running code.
    fn rewrite_code(&mut self) {
        let register = self.free_register();
        match self.rng.below(4) {
            0 if self.bits == Bits::B64 => {
                // mov [rip+n], reg8/32
                let opcode = self.rng.pick(&[0x88, 0x89]);
                let distance = i32::from(self.byte() as i8) / 2;
                self.put(&[opcode, 0x05 | register << 3]);
                self.put(&distance.to_le_bytes());
            }
            _ => {
                let address = self.code_address() + self.rng.below(64);
                if self.rng.percent(60) {
                    let bytes =
                        self.rng.pick(&[0x9090_9090, 0xc3c3_4040, 0x9040_4890, 0x0000_feeb, 0xfb9c_4090]);
                    self.immediate(register, bytes);
                }
                self.store(address, register);
            }
        }
    }

    fn rewrite_descriptor(&mut self) {
        let (register, value) = (self.free_register(), self.descriptor());
        self.immediate(register, value);
        let address = match self.rng.below(4) {
            0 => TSS + self.rng.below(0x68),
            1 => IDT + self.rng.below(0x100) * 8,
            _ => GDT + u64::from(self.rng.pick(&selector::ALL) & !7),
        };
        self.store(address, register);
    }

    fn branch(&mut self) {
        match self.rng.below(12) {
            0..=4 => {
                let (condition, distance) = (self.byte() & 15, self.short_distance());
                self.put(&[0x70 | condition, distance]);
            }
            5 => {
                let distance = self.short_distance();
                self.put(&[0xeb, distance]);
            }
            6 => {
                let (opcode, distance) = (0xe0 | self.byte() & 3, self.short_distance());
                self.put(&[opcode, distance]);
            }
            7 | 8 => {
                // Write a jump or call through a register to an address in the code.
                let (register, place) = (self.free_register(), self.code_address());
                self.immediate(register, place);
                let how = self.rng.pick(&[0x20, 0x10]);
                self.put(&[0xff, 0xc0 | how | register]);
            }
            9 => {
                let distance = (self.rng.below(512) as i64 - 256) as i32;
                let opcode = self.rng.pick(&[0xe8, 0xe9]);
                self.put(&[opcode]);
                let bytes = distance.to_le_bytes();
                self.put(if self.bits == Bits::B16 { &bytes[..2] } else { &bytes });
            }
            10 => self.put(&[0xc3]),
            _ => {
                let (condition, distance) = (self.byte() & 15, (self.rng.below(300) as i64 - 100) as i32);
                self.put(&[0x0f, 0x80 | condition]);
                let bytes = distance.to_le_bytes();
                self.put(if self.bits == Bits::B16 { &bytes[..2] } else { &bytes });
            }
        }
    }

    /// The distance of a short jump, mostly forward, because a backward jump makes a loop.
    fn short_distance(&mut self) -> u8 {
        if self.rng.percent(75) { self.rng.below(24) as u8 } else { (256 - self.rng.below(48)) as u8 }
    }

    fn stack(&mut self) {
        match self.rng.below(12) {
            0..=2 => {
                let register = self.register();
                self.put(&[0x50 | register]);
            }
            3 | 4 => {
                let register = self.free_register();
                self.put(&[0x58 | register]);
            }
            5 => self.put(&[0x9c]),
            6 => self.put(&[0x9d]),
            7 => self.put(&[0xc9]),
            8 => {
                let (size, level) = (self.rng.below(64) as u8, self.rng.below(4) as u8);
                self.put(&[0xc8, size, 0, level]);
            }
            9 => {
                let opcode = self.rng.pick(&[0x60, 0x61]);
                self.put(&[opcode]);
            }
            10 => {
                let (which, memory) = (self.rng.pick(&[2, 4, 6]), self.memory());
                self.modrm(false, &[0xff], which, Some(memory));
            }
            _ => {
                let place = self.rng.pick(&STACKS) - self.rng.below(256);
                self.immediate(4, place);
            }
        }
    }

    /// Writes accesses close to each other, through one register, or through two registers with almost the same
    /// value. Between the accesses the code changes the register, the page-table entry or the access rights. The
    /// accesses are often at a page's end.
    fn neighbours(&mut self) {
        if self.bits != Bits::B64 {
            return self.stack();
        }
        let on_stack = self.rng.percent(30);
        let place = if on_stack {
            self.rng.pick(&STACKS) - self.rng.below(0x200)
        } else {
            let end = DATA + (1 + self.rng.below(6)) * PAGE;
            let place =
                if self.rng.percent(30) { end - self.rng.below(300) } else { end - self.rng.below(PAGE) };
            place + if self.rng.percent(25) { ALIAS } else { 0 }
        };
        let place = if self.rng.percent(70) { place & !7 } else { place };
        let mut base =
            if on_stack { 4 } else { self.rng.pick(&[0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15]) };
        self.put(&[0x48 | base >> 3, 0xb8 | base & 7]);
        self.put(&place.to_le_bytes());
        for _ in 0..3 + self.rng.below(10) {
            match self.rng.below(24) {
                0..=12 => self.neighbour(base),
                13 | 14 => {
                    let (opcode, register) = (self.rng.pick(&[0x50, 0x58]), self.free_register());
                    self.put(&[opcode | register]);
                }
                15 | 16 => {
                    // Continue with another register, which gets the same address or an address some bytes away: MOV or
                    // LEA, of 64 or 32 bits.
                    let to = self.rng.pick(&[0, 3, 5, 6, 9, 12]);
                    let rex = if self.rng.percent(90) { 0x48 } else { 0x40 };
                    if self.rng.percent(50) {
                        self.put(&[rex | base >> 3 << 2 | to >> 3, 0x89, 0xc0 | (base & 7) << 3 | to & 7]);
                    } else {
                        let distance = self.byte();
                        self.based(rex, &[0x8d], to, base, None, i32::from(distance as i8));
                    }
                    base = to;
                }
                17 | 18 => {
                    let (which, distance) = (self.rng.pick(&[0, 5]), self.byte() & 0xbf);
                    self.put(&[0x48 | base >> 3, 0x83, 0xc0 | which << 3 | base & 7, distance]);
                }
                19 => {
                    let which = self.rng.below(2) as u8;
                    self.put(&[0x48 | base >> 3, 0xff, 0xc0 | which << 3 | base & 7]);
                }
                20 => {
                    let page = place / PAGE + self.rng.below(2);
                    let value = if self.rng.percent(60) {
                        DATA + self.rng.below(RAM_BYTES - DATA) & !(PAGE - 1) | OPEN
                    } else {
                        self.entry()
                    };
                    let register = self.rng.pick(&[0, 2, 6]);
                    self.immediate(register, value);
                    self.store(LEAVES[0] + page * 8, register);
                }
                21 => {
                    let bytes: &[u8] = self.rng.pick(&[
                        &[0x0f, 0x01, 0xca],
                        &[0x0f, 0x01, 0xcb],
                        &[0xfa],
                        &[0xfb],
                        &[0x0f, 0x31],
                        &[0x90],
                        &[0x0f, 0x01, 0xf8],
                    ]);
                    self.put(bytes);
                }
                22 => {
                    let bytes: &[u8] =
                        self.rng.pick(&[&[0xf7, 0xe3], &[0x48, 0x98], &[0x48, 0x99], &[0x48, 0x93], &[0xc9]]);
                    self.put(bytes);
                }
                _ => self.arithmetic(),
            }
        }
    }

    /// Writes a loop in which an instruction sets flags from registers. Other instructions keep the flags, may change
    /// those registers and may fault. Then a branch uses the flags. A translator that computes flags late must still
    /// have the operands.
    fn late_flags(&mut self) {
        if self.bits != Bits::B64 {
            return self.branch();
        }
        let place = DATA + (1 + self.rng.below(6)) * PAGE - self.rng.below(64);
        let base = self.rng.pick(&[3, 6, 13]);
        self.put(&[0x48 | base >> 3, 0xb8 | base & 7]);
        self.put(&place.to_le_bytes());
        // Use few registers, so that the instructions before the branch often change an operand of the flags.
        let operands: &[u8] = self.rng.pick(&[&[0, 1][..], &[2, 7], &[0, 5, 8], &[1, 3, 6, 10]]);
        let rounds = 1 + self.rng.below(4) as u8;
        self.put(&[0x41, 0xb9, rounds, 0, 0, 0]);
        let loop_start = self.out.len();
        for _ in 0..1 + self.rng.below(3) {
            for _ in 0..self.rng.below(3) {
                self.keeps_flags(base, operands);
            }
            if self.rng.percent(30) {
                self.sets_some_flags(operands);
            }
            self.sets_flags(base, operands);
            for _ in 0..self.rng.below(4) {
                self.keeps_flags(base, operands);
            }
            match self.rng.below(8) {
                0..=3 => {
                    let (condition, distance) = (self.byte() & 15, self.rng.below(12) as u8);
                    self.put(&[0x70 | condition, distance]);
                }
                4 => self.put(&[0xeb, 0]),
                _ => {}
            }
        }
        if self.rng.percent(30) {
            let distance = self.rng.pick(&[64, 0x800, 0x1000]);
            self.based(0x48, &[0x8d], base, base, None, distance);
        }
        // sub r9d, 1; jne
        self.put(&[0x41, 0x83, 0xe9, 1]);
        let back = loop_start as i64 - self.out.len() as i64 - 2;
        if let Ok(back) = i8::try_from(back) {
            self.put(&[0x75, back as u8]);
        }
    }

    /// Writes an instruction that sets some, all or none of the flags.
    fn sets_some_flags(&mut self, operands: &[u8]) {
        let (operand, rex) = (self.rng.pick(operands), self.rng.pick(&[0x40, 0x48]));
        let register = operand & 7;
        let rex = rex | operand >> 3;
        match self.rng.below(4) {
            0 => {
                let which = self.rng.below(2) as u8;
                self.put(&[rex, 0xff, 0xc0 | which << 3 | register]);
            }
            1 => {
                let (which, count) = (self.rng.below(2) as u8, self.byte());
                self.put(&[rex, 0xc1, 0xc0 | which << 3 | register, count]);
            }
            2 => {
                let which = self.rng.pick(&[4, 5, 7]);
                self.put(&[rex, 0xd3, 0xc0 | which << 3 | register]);
            }
            _ => {
                let (which, bit) = (self.rng.pick(&[4, 5, 6, 7]), self.byte());
                self.put(&[rex, 0x0f, 0xba, 0xc0 | which << 3 | register, bit]);
            }
        }
    }

    /// Writes an instruction that sets all flags from registers, constants or memory.
    fn sets_flags(&mut self, base: u8, operands: &[u8]) {
        let (first, second) = (self.rng.pick(operands), self.rng.pick(operands));
        let rex = self.rng.pick(&[0x40, 0x48, 0x48]);
        let prefix: &[u8] = if rex == 0x40 && self.rng.percent(25) { &[0x66] } else { &[] };
        let wide = u8::from(self.rng.percent(80));
        let both = rex | first >> 3 << 2 | second >> 3;
        match self.rng.below(10) {
            0..=3 => {
                let which = self.rng.pick(&[0, 1, 4, 5, 5, 6, 7, 7]);
                self.put(prefix);
                self.put(&[both, which << 3 | wide, 0xc0 | (first & 7) << 3 | second & 7]);
            }
            4 | 5 => {
                let (which, value) = (self.rng.pick(&[0, 1, 4, 5, 5, 6, 7, 7]), self.byte());
                self.put(prefix);
                self.put(&[rex | second >> 3, 0x83, 0xc0 | which << 3 | second & 7, value]);
            }
            6 => {
                let (which, value) = (self.rng.pick(&[0, 5, 7]), self.rng.bits() as i32);
                self.put(&[rex | second >> 3, 0x81, 0xc0 | which << 3 | second & 7]);
                self.put(&value.to_le_bytes());
            }
            7 => {
                self.put(prefix);
                self.put(&[both, 0x84 | wide, 0xc0 | (first & 7) << 3 | second & 7]);
            }
            8 => {
                let which = self.rng.pick(&[0, 1, 4, 5, 6, 7]);
                self.based(rex, &[which << 3 | 3], first, base, None, 0);
            }
            _ => {
                let (which, count) = (self.rng.pick(&[0, 1, 4, 5, 7]), self.byte());
                self.put(&[rex | second >> 3, 0xc1, 0xc0 | which << 3 | second & 7, count]);
            }
        }
    }

    /// Writes an instruction that does not change the flags.
    fn keeps_flags(&mut self, base: u8, operands: &[u8]) {
        let (first, second) = (self.rng.pick(operands), self.rng.pick(operands));
        let rex = self.rng.pick(&[0x40, 0x48]);
        let both = rex | first >> 3 << 2 | second >> 3;
        let other = self.rng.pick(&[11, 12, 14, 15]);
        let distance = self.rng.below(80) as i32 - 8;
        match self.rng.below(15) {
            0 => self.put(&[both, 0x89, 0xc0 | (first & 7) << 3 | second & 7]),
            1 => self.put(&[rex | 4 | second >> 3, 0x89, 0xc0 | (other & 7) << 3 | second & 7]),
            2 => self.put(&[rex | first >> 3 << 2 | 1, 0x89, 0xc0 | (first & 7) << 3 | other & 7]),
            3 | 4 => self.based(rex, &[0x8b], other, base, None, distance),
            5 => self.based(rex, &[0x8b], first, base, None, distance),
            6 | 7 => self.based(rex, &[0x89], first, base, None, distance),
            8 => {
                let condition = self.byte() & 15;
                self.put(&[both, 0x0f, 0x40 | condition, 0xc0 | (first & 7) << 3 | second & 7]);
            }
            9 => {
                let condition = self.byte() & 15;
                self.put(&[rex | second >> 3, 0x0f, 0x90 | condition, 0xc0 | second & 7]);
            }
            10 => self.based(rex, &[0x8d], first, second, None, distance),
            // PUSHF and LAHF store the current flags. PUSHF, LAHF and CPUID are never translated.
            11 => self.put(&[0x9c]),
            12 => self.put(&[0x9f]),
            13 => self.put(&[0x0f, 0xa2]),
            _ => {
                let bytes: &[u8] = self.rng.pick(&[
                    &[0x50],
                    &[0x52],
                    &[0x5a],
                    &[0x90],
                    &[0x0f, 0x31],
                    &[0x0f, 0xc8],
                    &[0xf7, 0xf9],
                ]);
                self.put(bytes);
            }
        }
    }

    /// Writes one memory access at some distance from the address in a register.
    fn neighbour(&mut self, base: u8) {
        let distance = match self.rng.below(8) {
            0 => self.rng.below(600) as i32 - 300,
            1 => 0,
            _ => (self.rng.below(24) as i32 - 8) * 8,
        };
        let index = self.rng.percent(12).then(|| (self.rng.pick(&[1, 2, 9]), self.rng.below(4) as u8));
        let (register, rex) = (self.rng.below(16) as u8, self.rng.pick(&[0x48, 0x48, 0x40]));
        match self.rng.below(12) {
            0..=2 => self.based(rex, &[0x8b], register, base, index, distance),
            3..=5 => self.based(rex, &[0x89], register, base, index, distance),
            6 => {
                let opcode = (self.byte() & 7) << 3 | self.byte() & 3;
                self.based(rex, &[opcode], register, base, index, distance);
            }
            7 => {
                let opcode = self.rng.pick(&[0xb6, 0xbf, 0x44, 0x94, 0xc1, 0xb1, 0xaf, 0xbc]);
                self.based(rex, &[0x0f, opcode], register, base, index, distance);
            }
            8 => {
                let (opcode, which) = (self.rng.pick(&[0xff, 0xf7, 0xd1]), self.byte() & 7);
                // Mostly choose one of the opcode's first two operations (INC, DEC or TEST), because jumps, calls
                // and divisions end too many programs.
                let which = if opcode == 0xd1 { which } else { self.rng.pick(&[0, 1, which]) };
                self.based(rex, &[opcode], which, base, index, distance);
                if opcode == 0xf7 && which < 2 {
                    let immediate = self.rng.bits() as u32;
                    self.put(&immediate.to_le_bytes());
                }
            }
            9 => {
                self.based(rex, &[0x0f, 0xba], 4 | register, base, index, distance);
                let bit = self.byte() & 63;
                self.put(&[bit]);
            }
            10 => self.based(rex, &[0x87], register, base, index, distance),
            _ => {
                let opcode = self.rng.pick(&[0x10, 0x11, 0x28, 0x29, 0x6f, 0xef]);
                if opcode > 0x29 {
                    self.put(&[0x66]);
                }
                self.based(rex, &[0x0f, opcode], register, base, index, distance);
            }
        }
    }

    /// Writes an instruction with a REX prefix, a register operand, and a memory operand with base, index and
    /// displacement.
    fn based(
        &mut self,
        rex: u8,
        opcode: &[u8],
        register: u8,
        base: u8,
        index: Option<(u8, u8)>,
        distance: i32,
    ) {
        let (index, scale) = index.unwrap_or((4, 0));
        self.put(&[rex | register >> 3 << 2 | index >> 3 << 1 | base >> 3]);
        self.put(opcode);
        let short = i8::try_from(distance);
        let mode = if short.is_ok() { 0x40 } else { 0x80 };
        if index == 4 && base & 7 != 4 {
            self.put(&[mode | (register & 7) << 3 | base & 7]);
        } else {
            self.put(&[mode | (register & 7) << 3 | 4, scale << 6 | (index & 7) << 3 | base & 7]);
        }
        match short {
            Ok(short) => self.put(&[short as u8]),
            Err(_) => self.put(&distance.to_le_bytes()),
        }
    }

    fn string(&mut self) {
        if self.rng.percent(60) {
            let count = if self.rng.percent(80) { self.rng.below(40) } else { self.rng.below(2000) };
            self.immediate(1, count);
        }
        for register in [6, 7] {
            if self.rng.percent(50) {
                let place = self.value();
                self.immediate(register, place);
            }
        }
        if self.rng.percent(15) {
            let direction = self.rng.pick(&[0xfc, 0xfc, 0xfd]);
            self.put(&[direction]);
        }
        match self.rng.below(4) {
            0 => {}
            1 => self.put(&[0xf2]),
            _ => self.put(&[0xf3]),
        }
        if self.rng.percent(15) {
            let prefix = self.rng.pick(&[0x66, 0x67, 0x64]);
            self.put(&[prefix]);
        }
        if self.bits == Bits::B64 && self.rng.percent(40) {
            self.put(&[0x48]);
        }
        let opcode = self
            .rng
            .pick(&[0xa4, 0xa5, 0xaa, 0xab, 0xa4, 0xa5, 0xa6, 0xa7, 0xac, 0xad, 0xae, 0xaf, 0x6c, 0x6e]);
        self.put(&[opcode]);
    }

    fn system(&mut self) {
        let bytes: &[u8] = match self.rng.below(28) {
            0 | 1 => &[0xfb],
            2 => &[0xfa],
            3 => &[0xf4],
            4 => &[0xcd, 0x80],
            5 => &[0xcc],
            6 => &[0xf1],
            7 => &[0xce],
            8 | 9 => &[0xcf],
            10 => &[0x48, 0xcf],
            11 => &[0x0f, 0x05],
            12 => &[0x48, 0x0f, 0x07],
            13 => &[0x0f, 0x34],
            14 => &[0x48, 0x0f, 0x35],
            15 => &[0x0f, 0x31],
            16 => &[0x0f, 0xa2],
            17 => &[0x0f, 0x01, 0xf8],
            18 => &[0x0f, 0x01, 0xca],
            19 => &[0x0f, 0x01, 0xcb],
            20 => &[0x0f, 0x06],
            21 => &[0x0f, 0x09],
            22 => &[0x0f, 0x0b],
            23 => &[0x9b],
            24 => {
                let memory = self.memory();
                return self.modrm(false, &[0x0f, 0x01], 7, Some(memory));
            }
            25 => {
                // SGDT, SIDT, LGDT, LIDT, SMSW, LMSW.
                let (which, memory) = (self.rng.pick(&[0, 1, 2, 3, 4, 6]), self.memory());
                return self.modrm(false, &[0x0f, 0x01], which, Some(memory));
            }
            26 => {
                // SLDT, STR, LLDT, LTR, VERR, VERW.
                let which = self.rng.below(6) as u8;
                let (register, value) = (self.free_register(), self.rng.pick(&selector::ALL));
                self.immediate(register, value.into());
                return self.put(&[0x0f, 0x00, 0xc0 | which << 3 | register]);
            }
            _ => {
                let vector = self.byte();
                return self.put(&[0xcd, vector]);
            }
        };
        self.put(bytes);
    }

    fn control_register(&mut self) {
        let (number, value) = match self.rng.below(8) {
            0 | 1 => (0, self.rng.pick(&[0x8001_0033, 0x8000_0033, 0x8005_0033, 0x33, 0x8001_003b, 0x32])),
            2..=4 => (3, self.rng.pick(&[ROOTS[0], ROOTS[1], ROOTS[1], MIDDLES[0], MIDDLES[1]])),
            5 | 6 => (
                4,
                self.rng.pick(&[0x620, 0x630, 0x6a0, 0x10_0620, 0x20_0620, 0x30_0620, 0x610, 0x600, 0x628]),
            ),
            _ => (8, self.rng.below(16)),
        };
        let register = self.free_register();
        self.immediate(register, value);
        if number == 8 {
            // Write MOV CR8: in 64-bit code with a REX prefix, in other code as AMD's LOCK MOV CR0.
            let prefix = if self.bits == Bits::B64 { 0x44 } else { 0xf0 };
            return self.put(&[prefix, 0x0f, 0x22, 0xc0 | register]);
        }
        self.put(&[0x0f, 0x22, 0xc0 | number << 3 | register]);
    }

    /// Writes code that switches between address spaces, and accesses memory after each switch. A root is the
    /// top-level page table of an address space. Before half of the switches, the code changes an entry of the
    /// current root or of another root.
    fn switch_spaces(&mut self) {
        if self.bits != Bits::B64 {
            return self.control_register();
        }
        let register = self.free_register();
        for _ in 0..2 + self.rng.below(3) {
            if self.rng.percent(50) {
                let (root, middle) = (self.rng.pick(&ROOTS), self.rng.pick(&MIDDLES));
                self.immediate(register, middle | 0x27);
                let memory = self.absolute(root);
                self.modrm(true, &[0x89], register, Some(memory));
            }
            let root = self.rng.pick(&ROOTS);
            self.immediate(register, root);
            self.put(&[0x0f, 0x22, 0xc0 | 3 << 3 | register]);
            let place = DATA + self.rng.below(2 * RAM_BYTES - DATA);
            let (opcode, memory) = (self.rng.pick(&[0x8b, 0x8b, 0x89]), self.absolute(place));
            self.modrm(true, &[opcode], register, Some(memory));
        }
    }

    fn debug_register(&mut self) {
        let (register, number) = (self.free_register(), self.rng.pick(&[0, 1, 2, 3, 6, 7, 7, 7]));
        let value = match number {
            6 => 0xffff_0ff0 | self.rng.bits() & 0xe00f,
            7 => 0x400 | self.rng.bits() & 0xffff_00ff | if self.rng.percent(10) { 0x2000 } else { 0 },
            _ => self.value(),
        };
        self.immediate(register, value);
        self.put(&[0x0f, 0x23, 0xc0 | number << 3 | register]);
    }

    fn model_specific(&mut self) {
        let (index, value) = match self.rng.below(8) {
            0 => (0xc000_0080, self.rng.pick(&[0xd01, 0x501, 0x801, 0x901, 0x1])),
            1 => (0xc000_0081, 0x0018_0008_u64 << 32 | self.code_address()),
            2 => (self.rng.pick(&[0xc000_0082, 0xc000_0083]), self.code_address()),
            3 => (0xc000_0084, self.rng.bits() & 0x4_7fd5),
            4 => (self.rng.pick(&[0xc000_0100, 0xc000_0101, 0xc000_0102]), self.value()),
            5 => (self.rng.pick(&[0x174, 0x175, 0x176]), self.rng.pick(&[8, 0x40, CODE, STACKS[0]])),
            6 => (0x1d9, self.rng.below(4)),
            _ => (self.rng.pick(&[0x10, 0x1b, 0x3b, 0x277, 0x1a0]), self.value()),
        };
        self.immediate(1, index);
        self.immediate(0, value & 0xffff_ffff);
        self.immediate(2, value >> 32);
        let opcode = self.rng.pick(&[0x30, 0x30, 0x32]);
        self.put(&[0x0f, opcode]);
    }

    fn segment_register(&mut self) {
        let (register, number) = (self.free_register(), self.rng.pick(&[0, 2, 2, 3, 4, 5]));
        match self.rng.below(4) {
            0 => {
                self.put(&[0x1e, 0x1f]);
            }
            1 => {
                let memory = self.memory();
                let opcode = self.rng.pick(&[0xb2, 0xb4, 0xb5]);
                self.modrm(false, &[0x0f, opcode], register, Some(memory));
            }
            _ => {
                let mut value = u64::from(self.rng.pick(&selector::ALL));
                if self.bits == Bits::B16 && self.rng.percent(50) {
                    value = self.rng.below(RAM_BYTES) >> 4;
                } else if self.rng.percent(40) {
                    value = u64::from(self.rng.pick(&[selector::KERNEL_DS, selector::USER_DS]));
                }
                self.immediate(register, value);
                self.put(&[0x8e, 0xc0 | number << 3 | register]);
                if number == 2 && self.rng.percent(50) {
                    let place = self.rng.pick(&STACKS);
                    self.immediate(4, place);
                }
            }
        }
    }

    fn far_transfer(&mut self) {
        let to = self.rng.pick(&selector::ALL);
        let place = self.code_address();
        match (self.bits, self.rng.below(3)) {
            (Bits::B16, 0) => {
                let opcode = self.rng.pick(&[0xea, 0x9a]);
                self.put(&[opcode]);
                self.put(&(place as u16).to_le_bytes());
                let segment = if self.rng.percent(50) { 0 } else { to };
                self.put(&segment.to_le_bytes());
            }
            (Bits::B32, 0) => {
                let opcode = self.rng.pick(&[0xea, 0x9a]);
                self.put(&[opcode]);
                self.put(&(place as u32).to_le_bytes());
                self.put(&to.to_le_bytes());
            }
            (_, 1) => {
                // Pushes a far address, and jumps there by RETF.
                let register = self.free_register();
                self.immediate(register, to.into());
                self.put(&[0x50 | register]);
                self.immediate(register, place);
                self.put(&[0x50 | register, 0xcb]);
            }
            _ => {
                let which = self.rng.pick(&[3, 5]);
                let memory = self.memory();
                self.modrm(false, &[0xff], which, Some(memory));
            }
        }
    }

    fn input_output(&mut self) {
        if self.rng.percent(70) {
            let port = self.rng.below(8);
            self.immediate(2, port);
        }
        let bytes = match self.rng.below(4) {
            0 => [0xee, 0x90],
            1 => [0xef, 0x90],
            2 => [0xed, 0x90],
            _ => [0xe6, self.byte() & 7],
        };
        self.put(&bytes);
    }

    fn floating_point(&mut self) {
        let (register, memory) = (self.register(), self.memory());
        match self.rng.below(7) {
            0 | 1 => {
                let opcode =
                    self.rng.pick(&[0x10, 0x11, 0x28, 0x29, 0x6f, 0x7f, 0x7e, 0xd6, 0xef, 0xfe, 0x58, 0x59]);
                self.modrm(false, &[0x0f, opcode], register, Some(memory));
            }
            2 => {
                self.put(&[0xf3]);
                let opcode = self.rng.pick(&[0x10, 0x11, 0x6f, 0x7f, 0x58]);
                self.modrm(false, &[0x0f, opcode], register, Some(memory));
            }
            3 | 4 => {
                let opcode = 0xd8 | self.byte() & 7;
                self.modrm(false, &[opcode], register, Some(memory));
            }
            5 => {
                let (opcode, operand) = (0xd8 | self.byte() & 7, 0xc0 | self.byte() & 0x3f);
                self.put(&[opcode, operand]);
            }
            _ => {
                let which = self.rng.below(4) as u8;
                self.modrm(false, &[0x0f, 0xae], which, Some(memory));
            }
        }
    }

    /// Writes code that sets flags which change how the CPU continues: TF, IF, RF, NT, IOPL, AC.
    fn trap_flag(&mut self) {
        let bit = self.rng.pick(&[0x100, 0x100, 0x200, 0x1_0000, 0x4000, 0x3000, 0x4_0000, 0x200]);
        self.put(&[0x9c]);
        match self.bits {
            Bits::B64 => self.put(&[0x48, 0x81, 0x0c, 0x24]),
            Bits::B32 => self.put(&[0x81, 0x0c, 0x24]),
            Bits::B16 => {
                self.put(&[0x55, 0x89, 0xe5, 0x81, 0x4e, 2]);
                self.put(&(bit as u16).to_le_bytes());
                return self.put(&[0x5d, 0x9d]);
            }
        }
        self.put(&u32::to_le_bytes(bit));
        self.put(&[0x9d]);
    }

    fn noise(&mut self) {
        for _ in 0..1 + self.rng.below(6) {
            let byte = self.byte();
            self.put(&[byte]);
        }
    }
}

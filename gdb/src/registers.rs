//! The registers that gdb sees: a plain struct, and a table with gdb's numbers, names and encodings.
//!
//! The order of [`TABLE`] is gdb's numbering. [`crate::description`] turns the same table into XML for gdb. Names,
//! order within a feature and sizes follow the gdb manual's section "i386 Features".

use std::num::NonZeroUsize;

use gdbstub::arch;

/// One CPU's registers, as far as a debugger needs them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "registers keep the names that the processor manuals give them")]
pub struct Registers {
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rbp: u64,
    pub rsp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rip: u64,
    /// The low half of RFLAGS; the high half is reserved.
    pub eflags: u32,
    pub cs: u16,
    pub ss: u16,
    pub ds: u16,
    pub es: u16,
    pub fs: u16,
    pub gs: u16,
    pub fs_base: u64,
    pub gs_base: u64,
    /// IA32_KERNEL_GS_BASE, which SWAPGS exchanges with the base of GS.
    pub k_gs_base: u64,
    pub cr0: u64,
    pub cr2: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub cr8: u64,
    pub efer: u64,
    /// ST(0) to ST(7), counted from the top of the stack, each an 80-bit number, least significant byte
    /// first.
    pub st: [[u8; 10]; 8],
    pub fctrl: u16,
    pub fstat: u16,
    /// The full tag word with two bits per register, not FXSAVE's abridged one.
    pub ftag: u16,
    /// Bits 32 to 47 of the address of the last x87 instruction; outside 64-bit mode its code selector.
    pub fiseg: u16,
    /// Bits 0 to 31 of the address of the last x87 instruction.
    pub fioff: u32,
    /// Bits 32 to 47 of the address of the last x87 operand; outside 64-bit mode its data selector.
    pub foseg: u16,
    /// Bits 0 to 31 of the address of the last x87 operand.
    pub fooff: u32,
    pub fop: u16,
    pub xmm: [u128; 16],
    pub mxcsr: u32,
}

/// The field of [`Registers`] that holds a register's value. The field's type decides the register's size.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// A field of 16 bits, which the protocol transfers as four bytes.
    Word(fn(&mut Registers) -> &mut u16),
    Double(fn(&mut Registers) -> &mut u32),
    Quad(fn(&mut Registers) -> &mut u64),
    Extended(fn(&mut Registers) -> &mut [u8; 10]),
    Vector(fn(&mut Registers) -> &mut u128),
}

impl Place {
    /// Number of bytes that the register has in the protocol.
    pub(crate) const fn size_bytes(self) -> usize {
        match self {
            Place::Word(_) | Place::Double(_) => 4,
            Place::Quad(_) => 8,
            Place::Extended(_) => 10,
            Place::Vector(_) => 16,
        }
    }

    /// Copies the value to the front of `out`, least significant byte first. The rest of `out` does not change.
    ///
    /// # Panics
    /// If `out` is shorter than the register.
    fn load(self, registers: &mut Registers, out: &mut [u8]) {
        let out = &mut out[..self.size_bytes()];
        match self {
            Place::Word(place) => out.copy_from_slice(&u32::from(*place(registers)).to_le_bytes()),
            Place::Double(place) => out.copy_from_slice(&place(registers).to_le_bytes()),
            Place::Quad(place) => out.copy_from_slice(&place(registers).to_le_bytes()),
            Place::Extended(place) => out.copy_from_slice(place(registers)),
            Place::Vector(place) => out.copy_from_slice(&place(registers).to_le_bytes()),
        }
    }

    /// Takes the value from `bytes`. Does nothing and returns `None` if the number of bytes is wrong.
    fn store(self, registers: &mut Registers, bytes: &[u8]) -> Option<()> {
        match self {
            // Drop the upper 16 bits: the processor's register has only 16.
            Place::Word(place) => *place(registers) = u32::from_le_bytes(bytes.try_into().ok()?) as u16,
            Place::Double(place) => *place(registers) = u32::from_le_bytes(bytes.try_into().ok()?),
            Place::Quad(place) => *place(registers) = u64::from_le_bytes(bytes.try_into().ok()?),
            Place::Extended(place) => *place(registers) = bytes.try_into().ok()?,
            Place::Vector(place) => *place(registers) = u128::from_le_bytes(bytes.try_into().ok()?),
        }
        Some(())
    }
}

/// One of gdb's named sets of registers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feature {
    Core,
    Sse,
    Segments,
    System,
}

/// The data about a register for gdb.
pub(crate) struct RegisterEntry {
    pub(crate) name: &'static str,
    pub(crate) feature: Feature,
    /// A type that gdb knows, or that [`crate::description`] defines.
    pub(crate) gdb_type: &'static str,
    /// The group of `info registers GROUP`, if it does not follow from the type.
    pub(crate) group: Option<&'static str>,
    pub(crate) place: Place,
}

/// `entry!(feature, name, type, [group,] place, field)`.
macro_rules! entry {
    ($feature:ident, $name:literal, $type:literal, $place:ident, $($field:tt)+) => {
        entry!(@ None, $feature, $name, $type, $place, $($field)+)
    };
    ($group:literal: $feature:ident, $name:literal, $type:literal, $place:ident, $($field:tt)+) => {
        entry!(@ Some($group), $feature, $name, $type, $place, $($field)+)
    };
    (@ $group:expr, $feature:ident, $name:literal, $type:literal, $place:ident, $($field:tt)+) => {
        RegisterEntry {
            name: $name,
            feature: Feature::$feature,
            gdb_type: $type,
            group: $group,
            place: Place::$place(|registers| &mut registers.$($field)+),
        }
    };
}

/// All registers in gdb's order, grouped by feature.
#[rustfmt::skip]
pub(crate) static TABLE: &[RegisterEntry] = &[
    entry!(Core, "rax", "int64", Quad, rax),
    entry!(Core, "rbx", "int64", Quad, rbx),
    entry!(Core, "rcx", "int64", Quad, rcx),
    entry!(Core, "rdx", "int64", Quad, rdx),
    entry!(Core, "rsi", "int64", Quad, rsi),
    entry!(Core, "rdi", "int64", Quad, rdi),
    entry!(Core, "rbp", "data_ptr", Quad, rbp),
    entry!(Core, "rsp", "data_ptr", Quad, rsp),
    entry!(Core, "r8", "int64", Quad, r8),
    entry!(Core, "r9", "int64", Quad, r9),
    entry!(Core, "r10", "int64", Quad, r10),
    entry!(Core, "r11", "int64", Quad, r11),
    entry!(Core, "r12", "int64", Quad, r12),
    entry!(Core, "r13", "int64", Quad, r13),
    entry!(Core, "r14", "int64", Quad, r14),
    entry!(Core, "r15", "int64", Quad, r15),
    entry!(Core, "rip", "code_ptr", Quad, rip),
    entry!(Core, "eflags", "ttvm_eflags", Double, eflags),
    entry!(Core, "cs", "int32", Word, cs),
    entry!(Core, "ss", "int32", Word, ss),
    entry!(Core, "ds", "int32", Word, ds),
    entry!(Core, "es", "int32", Word, es),
    entry!(Core, "fs", "int32", Word, fs),
    entry!(Core, "gs", "int32", Word, gs),
    entry!(Core, "st0", "i387_ext", Extended, st[0]),
    entry!(Core, "st1", "i387_ext", Extended, st[1]),
    entry!(Core, "st2", "i387_ext", Extended, st[2]),
    entry!(Core, "st3", "i387_ext", Extended, st[3]),
    entry!(Core, "st4", "i387_ext", Extended, st[4]),
    entry!(Core, "st5", "i387_ext", Extended, st[5]),
    entry!(Core, "st6", "i387_ext", Extended, st[6]),
    entry!(Core, "st7", "i387_ext", Extended, st[7]),
    entry!("float": Core, "fctrl", "int", Word, fctrl),
    entry!("float": Core, "fstat", "int", Word, fstat),
    entry!("float": Core, "ftag", "int", Word, ftag),
    entry!("float": Core, "fiseg", "int", Word, fiseg),
    entry!("float": Core, "fioff", "int", Double, fioff),
    entry!("float": Core, "foseg", "int", Word, foseg),
    entry!("float": Core, "fooff", "int", Double, fooff),
    entry!("float": Core, "fop", "int", Word, fop),
    entry!(Sse, "xmm0", "vec128", Vector, xmm[0]),
    entry!(Sse, "xmm1", "vec128", Vector, xmm[1]),
    entry!(Sse, "xmm2", "vec128", Vector, xmm[2]),
    entry!(Sse, "xmm3", "vec128", Vector, xmm[3]),
    entry!(Sse, "xmm4", "vec128", Vector, xmm[4]),
    entry!(Sse, "xmm5", "vec128", Vector, xmm[5]),
    entry!(Sse, "xmm6", "vec128", Vector, xmm[6]),
    entry!(Sse, "xmm7", "vec128", Vector, xmm[7]),
    entry!(Sse, "xmm8", "vec128", Vector, xmm[8]),
    entry!(Sse, "xmm9", "vec128", Vector, xmm[9]),
    entry!(Sse, "xmm10", "vec128", Vector, xmm[10]),
    entry!(Sse, "xmm11", "vec128", Vector, xmm[11]),
    entry!(Sse, "xmm12", "vec128", Vector, xmm[12]),
    entry!(Sse, "xmm13", "vec128", Vector, xmm[13]),
    entry!(Sse, "xmm14", "vec128", Vector, xmm[14]),
    entry!(Sse, "xmm15", "vec128", Vector, xmm[15]),
    entry!("vector": Sse, "mxcsr", "ttvm_mxcsr", Double, mxcsr),
    entry!(Segments, "fs_base", "uint64", Quad, fs_base),
    entry!(Segments, "gs_base", "uint64", Quad, gs_base),
    entry!("system": System, "k_gs_base", "uint64", Quad, k_gs_base),
    entry!("system": System, "cr0", "ttvm_cr0", Quad, cr0),
    entry!("system": System, "cr2", "uint64", Quad, cr2),
    entry!("system": System, "cr3", "uint64", Quad, cr3),
    entry!("system": System, "cr4", "ttvm_cr4", Quad, cr4),
    entry!("system": System, "cr8", "uint64", Quad, cr8),
    entry!("system": System, "efer", "ttvm_efer", Quad, efer),
];

/// A register's number: its index in [`TABLE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegisterNumber(usize);

impl RegisterNumber {
    /// The frame registers, which gdb needs at every stop.
    pub(crate) const RBP: Self = Self(6);
    pub(crate) const RSP: Self = Self(7);
    pub(crate) const RIP: Self = Self(16);

    /// The register with this number, if there is one.
    pub(crate) fn from_index(index: usize) -> Option<Self> {
        (index < TABLE.len()).then_some(Self(index))
    }

    fn place(self) -> Place {
        TABLE[self.0].place
    }

    /// Copies the register's bytes to the front of `out` and returns their number, or `None` if `out` is too short.
    pub(crate) fn read(self, registers: &mut Registers, out: &mut [u8]) -> Option<usize> {
        let size = self.place().size_bytes();
        let out = out.get_mut(..size)?;
        self.place().load(registers, out);
        Some(size)
    }

    /// Sets the register from its exact number of bytes. Returns `None` for any other number.
    pub(crate) fn write(self, registers: &mut Registers, bytes: &[u8]) -> Option<()> {
        self.place().store(registers, bytes)
    }
}

impl arch::RegId for RegisterNumber {
    fn from_raw_id(id: usize) -> Option<(Self, Option<NonZeroUsize>)> {
        let entry = TABLE.get(id)?;
        Some((Self(id), NonZeroUsize::new(entry.place.size_bytes())))
    }

    fn to_raw_id(&self) -> Option<usize> {
        Some(self.0)
    }
}

impl arch::Registers for Registers {
    type ProgramCounter = u64;

    fn pc(&self) -> u64 {
        self.rip
    }

    fn gdb_serialize(&self, mut write_byte: impl FnMut(Option<u8>)) {
        // The table has one accessor for reads and writes, which needs a mutable register file.
        let mut registers = self.clone();
        for entry in TABLE {
            let mut bytes = [0; 16];
            entry.place.load(&mut registers, &mut bytes);
            bytes[..entry.place.size_bytes()].iter().for_each(|byte| write_byte(Some(*byte)));
        }
    }

    fn gdb_deserialize(&mut self, mut bytes: &[u8]) -> Result<(), ()> {
        for entry in TABLE {
            let (value, rest) = bytes.split_at_checked(entry.place.size_bytes()).ok_or(())?;
            entry.place.store(self, value).ok_or(())?;
            bytes = rest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use gdbstub::arch::{RegId, Registers as _};

    use super::*;

    fn distinct() -> Registers {
        let mut registers = Registers::default();
        for (number, entry) in TABLE.iter().enumerate() {
            let bytes: Vec<u8> = (0..entry.place.size_bytes()).map(|k| (number * 16 + k) as u8 | 1).collect();
            entry.place.store(&mut registers, &bytes).unwrap();
        }
        registers
    }

    fn serialized(registers: &Registers) -> Vec<u8> {
        let mut bytes = Vec::new();
        registers.gdb_serialize(|byte| bytes.push(byte.unwrap()));
        bytes
    }

    #[test]
    fn no_two_registers_share_a_place() {
        let mut registers = distinct();
        for (number, entry) in TABLE.iter().enumerate() {
            let mut bytes = [0; 16];
            entry.place.load(&mut registers, &mut bytes);
            assert_eq!(bytes[0], (number * 16) as u8 | 1, "{}", entry.name);
        }
    }

    #[test]
    fn all_registers_survive_the_wire() {
        let before = distinct();
        let bytes = serialized(&before);
        let mut after = Registers::default();
        after.gdb_deserialize(&bytes).unwrap();
        assert_eq!(after, before);
        assert_eq!(after.gdb_deserialize(&bytes[1..]), Err(()));
    }

    #[test]
    fn single_registers_agree_with_the_whole_file() {
        let mut registers = distinct();
        let whole = serialized(&registers);
        let mut offset = 0;
        for (number, entry) in TABLE.iter().enumerate() {
            let (register, size) = RegisterNumber::from_raw_id(number).unwrap();
            let size = size.unwrap().get();
            let mut bytes = [0; 16];
            assert_eq!(register.read(&mut registers, &mut bytes), Some(size));
            assert_eq!(bytes[..size], whole[offset..][..size], "{}", entry.name);
            offset += size;
        }
        assert_eq!(offset, whole.len());
        assert_eq!(RegisterNumber::from_raw_id(TABLE.len()), None);
    }

    #[test]
    fn wrong_sizes_are_refused() {
        let mut registers = Registers { rax: 5, ..Registers::default() };
        assert_eq!(RegisterNumber(0).write(&mut registers, &[1; 4]), None);
        assert_eq!(RegisterNumber(0).read(&mut registers, &mut [0; 7]), None);
        assert_eq!(registers.rax, 5);
    }

    #[test]
    fn the_named_numbers_are_those_registers() {
        let names = [RegisterNumber::RBP, RegisterNumber::RSP, RegisterNumber::RIP]
            .map(|number| TABLE[number.0].name);
        assert_eq!(names, ["rbp", "rsp", "rip"]);
    }
}

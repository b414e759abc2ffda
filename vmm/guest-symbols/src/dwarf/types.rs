//! Types: each record of the kernel's type information becomes an entry of one unit.
//!
//! The type information of a hostile guest may contain anything. The number of entries and the bytes of their names
//! have limits. Beyond a limit, the unit has no types at all. Debuggers follow chains of types (a pointer to a constant
//! of a typedef of ...) by recursion. A chain that is longer than [`MAX_CHAIN`] or circular has no entries, and
//! references to such a chain become `void`.

use std::collections::BTreeSet;

use gimli::write::{AttributeValue, Dwarf, EndianVec, LineProgram, Sections, Unit, UnitEntryId, UnitId};
use gimli::{
    DW_AT_bit_size, DW_AT_byte_size, DW_AT_const_value, DW_AT_count, DW_AT_data_bit_offset,
    DW_AT_data_member_location, DW_AT_declaration, DW_AT_encoding, DW_AT_language, DW_AT_name,
    DW_AT_producer, DW_AT_prototyped, DW_AT_type, DW_ATE_boolean, DW_ATE_float, DW_ATE_signed,
    DW_ATE_signed_char, DW_ATE_unsigned, DW_ATE_unsigned_char, DW_LANG_C11, DW_TAG_array_type,
    DW_TAG_base_type, DW_TAG_const_type, DW_TAG_enumeration_type, DW_TAG_enumerator, DW_TAG_formal_parameter,
    DW_TAG_member, DW_TAG_pointer_type, DW_TAG_restrict_type, DW_TAG_structure_type, DW_TAG_subrange_type,
    DW_TAG_subroutine_type, DW_TAG_typedef, DW_TAG_union_type, DW_TAG_unspecified_parameters,
    DW_TAG_volatile_type, DwAt, DwTag, Encoding, Format, LittleEndian,
};

use super::written::written;
use crate::btf::{Btf, Member, Shape, Type};

/// The largest number of entries, including members and parameters. A kernel has fewer entries.
const MAX_ENTRIES: usize = 1 << 20;
/// The largest number of bytes of names. A name that is used several times is counted each time. A kernel has fewer
/// bytes of names.
const MAX_NAMES_BYTES: usize = 32 << 20;
/// The largest number of types in a chain.
const MAX_CHAIN: usize = 64;
/// The encoding of all units.
pub(super) const ENCODING: Encoding = Encoding { format: Format::Dwarf32, version: 4, address_size: 8 };
/// The size of a pointer in bytes.
const POINTER_BYTES: u8 = 8;

/// The types of a kernel, as a unit of debug information.
pub(crate) struct TypeUnit {
    dwarf: Dwarf,
    unit: UnitId,
    /// The DWARF entry of each type, in the order of the types' numbers from 1 on.
    entries: Vec<Option<UnitEntryId>>,
    entries_left: usize,
    name_bytes_left: usize,
}

/// All types of a kernel. Returns `None` if there are more types than any kernel has.
pub(super) fn of(btf: &Btf<'_>) -> Option<TypeUnit> {
    within(btf, MAX_ENTRIES, MAX_NAMES_BYTES)
}

/// Does the same as [`of`], with other limits on the number of entries and on the bytes of names.
pub(crate) fn within(btf: &Btf<'_>, entries: usize, name_bytes: usize) -> Option<TypeUnit> {
    let mut unit = TypeUnit::new("vmlinux", entries, name_bytes)?;
    unit.add_all(btf, btf.numbers(), |found| found)?;
    Some(unit)
}

/// The kernel's types that its modules refer to. Structures and unions are only declared, because the file with the
/// kernel's types defines them. [`TypeUnit::add_module`] adds the modules' own types.
pub(crate) fn for_modules(btf: &Btf<'_>, modules: &[Btf<'_>]) -> Option<TypeUnit> {
    let mut unit = TypeUnit::new("modules", MAX_ENTRIES, MAX_NAMES_BYTES)?;
    let is_whole =
        |number| !matches!(btf.full(number).map(|found| found.shape), Some(Shape::Structure { .. }));
    let own = modules.iter().flat_map(|module| module.numbers().flat_map(|number| module.references(number)));
    let mut open: Vec<u32> = own.collect();
    let mut wanted = BTreeSet::new();
    while let Some(number) = open.pop() {
        if btf.numbers().contains(&number) && wanted.insert(number) && is_whole(number) {
            open.extend(btf.references(number));
        }
    }
    unit.add_all(btf, wanted.iter().copied(), |found| match found.shape {
        Shape::Structure { is_union, .. } => Type { shape: Shape::Forward { is_union }, ..found },
        _ => found,
    })?;
    Some(unit)
}

fn tag(shape: &Shape<'_>) -> Option<DwTag> {
    Some(match shape {
        Shape::Integer { .. } | Shape::Float(_) => DW_TAG_base_type,
        Shape::Pointer(_) => DW_TAG_pointer_type,
        Shape::Typedef(_) => DW_TAG_typedef,
        Shape::Const(_) => DW_TAG_const_type,
        Shape::Volatile(_) => DW_TAG_volatile_type,
        Shape::Restrict(_) => DW_TAG_restrict_type,
        Shape::Array { .. } => DW_TAG_array_type,
        Shape::Structure { is_union: false, .. } | Shape::Forward { is_union: false } => {
            DW_TAG_structure_type
        }
        Shape::Structure { is_union: true, .. } | Shape::Forward { is_union: true } => DW_TAG_union_type,
        Shape::Enumeration { .. } => DW_TAG_enumeration_type,
        Shape::Prototype { .. } => DW_TAG_subroutine_type,
        Shape::Tagged(_) | Shape::Function(_) | Shape::Variable(_) | Shape::Other => return None,
    })
}

/// Whether the chain that begins with a type ends within [`MAX_CHAIN`] types.
fn is_grounded(btf: &Btf<'_>, number: u32) -> bool {
    let mut at = number;
    (0..MAX_CHAIN).any(|_| match btf.leads_to(at) {
        Some(after) => {
            at = after;
            false
        }
        None => true,
    })
}

impl TypeUnit {
    fn new(name: &str, entries: usize, name_bytes: usize) -> Option<TypeUnit> {
        let mut dwarf = Dwarf::new();
        let unit = dwarf.units.add(Unit::new(ENCODING, LineProgram::none()));
        let mut unit =
            TypeUnit { dwarf, unit, entries: Vec::new(), entries_left: entries, name_bytes_left: name_bytes };
        let root = unit.root();
        unit.set(root, DW_AT_language, AttributeValue::Language(DW_LANG_C11));
        unit.name(root, Some(name))?;
        let producer = unit.dwarf.strings.add("ttvm");
        unit.set(root, DW_AT_producer, AttributeValue::StringRef(producer));
        Some(unit)
    }

    /// Adds the types of a module to the types of its kernel. The types of a previous module can no longer be referred
    /// to.
    pub fn add_module(&mut self, btf: &Btf<'_>) -> Option<()> {
        self.entries.truncate(btf.base_count() as usize);
        self.add_all(btf, btf.numbers(), |found| found)
    }

    /// Adds the types with these numbers. `described` may change a type before it is added.
    fn add_all<'a>(
        &mut self,
        btf: &Btf<'a>,
        numbers: impl Iterator<Item = u32> + Clone,
        described: impl Fn(Type<'a>) -> Type<'a>,
    ) -> Option<()> {
        let root = self.root();
        let found = |number| btf.full(number).map(&described);
        // Types refer to later types, so all entries are made first.
        for number in numbers.clone() {
            self.entries.resize(number as usize - 1, None);
            let tag = found(number).filter(|_| is_grounded(btf, number)).and_then(|found| tag(&found.shape));
            let entry = tag.map(|tag| self.add(root, tag));
            self.entries.push(entry.map_or(Some(None), |entry| entry.map(Some))?);
        }
        for number in numbers {
            if let (Some(found), Some(entry)) = (found(number), self.entries[number as usize - 1]) {
                self.describe(btf, entry, &found)?;
            }
        }
        Some(())
    }

    /// Writes the unit, and returns the sections for an ELF file.
    pub fn sections(mut self) -> Vec<(&'static str, Vec<u8>)> {
        let mut sections = Sections::new(EndianVec::new(LittleEndian));
        self.dwarf
            .write(&mut sections)
            .expect("vectors take any number of bytes, and all references are known");
        written(&sections)
    }

    pub fn root(&self) -> UnitEntryId {
        self.dwarf.units.get(self.unit).root()
    }

    /// Makes a new entry. `None` if the limit of entries is reached.
    pub fn add(&mut self, parent: UnitEntryId, tag: DwTag) -> Option<UnitEntryId> {
        self.entries_left = self.entries_left.checked_sub(1)?;
        Some(self.dwarf.units.get_mut(self.unit).add(parent, tag))
    }

    pub fn set(&mut self, entry: UnitEntryId, attribute: DwAt, value: AttributeValue) {
        self.dwarf.units.get_mut(self.unit).get_mut(entry).set(attribute, value);
    }

    /// Sets the name of an entry, if there is a name. `None` if the limit of names' bytes is reached.
    pub fn name(&mut self, entry: UnitEntryId, name: Option<&str>) -> Option<()> {
        let Some(name) = name else { return Some(()) };
        self.name_bytes_left = self.name_bytes_left.checked_sub(name.len())?;
        let text = self.dwarf.strings.add(name);
        self.set(entry, DW_AT_name, AttributeValue::StringRef(text));
        Some(())
    }

    /// Sets the type of an entry, unless the type is void.
    pub fn refer(&mut self, btf: &Btf<'_>, entry: UnitEntryId, number: u32) {
        if let Some(kind) = self.entry(btf, number) {
            self.set(entry, DW_AT_type, AttributeValue::UnitRef(kind));
        }
    }

    /// Returns the DWARF entry of a type. A tag that compilers ignore has no entry, so the result is the entry of the
    /// tagged type.
    pub fn entry(&self, btf: &Btf<'_>, number: u32) -> Option<UnitEntryId> {
        let mut at = number;
        for _ in 0..MAX_CHAIN {
            match self.entries.get(at.checked_sub(1)? as usize)? {
                Some(entry) => return Some(*entry),
                None => at = btf.leads_to(at)?,
            }
        }
        None
    }

    /// Sets the number of elements of an array type.
    pub fn count(&mut self, array: UnitEntryId, count: u64) -> Option<()> {
        let range = self.add(array, DW_TAG_subrange_type)?;
        self.set(range, DW_AT_count, AttributeValue::Udata(count));
        Some(())
    }

    /// A pointer to the type of an entry, or to void.
    pub fn pointer(&mut self, to: Option<UnitEntryId>) -> Option<UnitEntryId> {
        let root = self.root();
        let pointer = self.add(root, DW_TAG_pointer_type)?;
        self.set(pointer, DW_AT_byte_size, AttributeValue::Data1(POINTER_BYTES));
        if let Some(to) = to {
            self.set(pointer, DW_AT_type, AttributeValue::UnitRef(to));
        }
        Some(pointer)
    }

    /// An array of the type of an entry.
    pub fn array(&mut self, of: UnitEntryId, count: u64) -> Option<UnitEntryId> {
        let root = self.root();
        let array = self.add(root, DW_TAG_array_type)?;
        self.set(array, DW_AT_type, AttributeValue::UnitRef(of));
        self.count(array, count)?;
        Some(array)
    }

    /// Adds parameters to a function or a function type.
    pub fn parameters(
        &mut self,
        btf: &Btf<'_>,
        parent: UnitEntryId,
        parameters: &[(Option<&str>, u32)],
    ) -> Option<()> {
        for (number, &(name, kind)) in parameters.iter().enumerate() {
            if kind == 0 && number + 1 == parameters.len() {
                self.add(parent, DW_TAG_unspecified_parameters)?;
                continue;
            }
            let parameter = self.add(parent, DW_TAG_formal_parameter)?;
            self.name(parameter, name)?;
            self.refer(btf, parameter, kind);
        }
        Some(())
    }

    /// Fills in the entry of a type.
    fn describe(&mut self, btf: &Btf<'_>, entry: UnitEntryId, of: &Type<'_>) -> Option<()> {
        self.name(entry, of.name)?;
        let size = |size: u32| AttributeValue::Udata(size.into());
        match &of.shape {
            &Shape::Integer { size: bytes, is_signed, is_bool, .. } => {
                let encoding = match (is_bool, bytes, is_signed) {
                    (true, ..) => DW_ATE_boolean,
                    (_, 1, true) => DW_ATE_signed_char,
                    (_, 1, false) => DW_ATE_unsigned_char,
                    (_, _, true) => DW_ATE_signed,
                    (_, _, false) => DW_ATE_unsigned,
                };
                self.set(entry, DW_AT_encoding, AttributeValue::Encoding(encoding));
                self.set(entry, DW_AT_byte_size, size(bytes));
            }
            &Shape::Float(bytes) => {
                self.set(entry, DW_AT_encoding, AttributeValue::Encoding(DW_ATE_float));
                self.set(entry, DW_AT_byte_size, size(bytes));
            }
            &Shape::Pointer(to) => {
                self.set(entry, DW_AT_byte_size, AttributeValue::Data1(POINTER_BYTES));
                self.refer(btf, entry, to);
            }
            &Shape::Typedef(to) | &Shape::Const(to) | &Shape::Volatile(to) | &Shape::Restrict(to) => {
                self.refer(btf, entry, to);
            }
            &Shape::Array { element, count } => {
                self.refer(btf, entry, element);
                self.count(entry, count.into())?;
            }
            Shape::Structure { is_union, size: bytes, members } => {
                self.set(entry, DW_AT_byte_size, size(*bytes));
                for member in members {
                    self.member(btf, entry, member, *is_union)?;
                }
            }
            Shape::Forward { .. } => self.set(entry, DW_AT_declaration, AttributeValue::FlagPresent),
            Shape::Enumeration { size: bytes, is_signed, values } => {
                self.set(entry, DW_AT_byte_size, size(*bytes));
                for &(name, value) in values {
                    let enumerator = self.add(entry, DW_TAG_enumerator)?;
                    self.name(enumerator, name)?;
                    let value = match is_signed {
                        true => AttributeValue::Sdata(value),
                        false => AttributeValue::Udata(value as u64),
                    };
                    self.set(enumerator, DW_AT_const_value, value);
                }
            }
            Shape::Prototype { result, parameters } => {
                self.set(entry, DW_AT_prototyped, AttributeValue::FlagPresent);
                self.refer(btf, entry, *result);
                self.parameters(btf, entry, parameters)?;
            }
            Shape::Tagged(_) | Shape::Function(_) | Shape::Variable(_) | Shape::Other => {}
        }
        Some(())
    }

    fn member(
        &mut self,
        btf: &Btf<'_>,
        structure: UnitEntryId,
        member: &Member<'_>,
        in_union: bool,
    ) -> Option<()> {
        let entry = self.add(structure, DW_TAG_member)?;
        self.name(entry, member.name)?;
        self.refer(btf, entry, member.kind);
        if let Some(bits) = member.bit_size.or_else(|| btf.narrow_bits(member.kind)) {
            self.set(entry, DW_AT_bit_size, AttributeValue::Data1(bits));
            self.set(entry, DW_AT_data_bit_offset, AttributeValue::Udata(member.bit_offset.into()));
        } else if !in_union || member.bit_offset != 0 {
            let offset = AttributeValue::Udata((member.bit_offset / 8).into());
            self.set(entry, DW_AT_data_member_location, offset);
        }
        Some(())
    }
}

//! The kernel's type information: fields of its structures by name, and complete types.
//!
//! Follows `Documentation/bpf/btf.rst`: a header, type records that are numbered in order from one, and strings. The
//! contents are not trusted: an offset outside of the contents gives `None`.

use std::ops::RangeInclusive;

use super::guest_view::is_text;

/// The magic number of type information.
const MAGIC: u16 = 0xeb9f;
/// The largest depth of nested anonymous structures in which a field is found.
const MAX_DEPTH: usize = 8;
/// The longest accepted name, `KSYM_NAME_LEN` of Linux.
const MAX_NAME_BYTES: usize = 512;

const INT: u32 = 1;
const POINTER: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FORWARD: u32 = 7;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNCTION: u32 = 12;
const PROTOTYPE: u32 = 13;
const VARIABLE: u32 = 14;
const SECTION: u32 = 15;
const FLOAT: u32 = 16;
const DECLARATION_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;

/// Type information of the kernel or a module. A module's types are numbered after the last type of the kernel, and the
/// offsets of its names begin after the kernel's names.
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Offset of each record in `types`. The first record has number 1, or in a module the number after the last record
    /// of `base`.
    records: Vec<u32>,
    base: Option<&'a Btf<'a>>,
}

/// A field of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The field's distance from the start of the structure, in bytes.
    pub offset: u64,
    /// The number of the field's type.
    pub kind: u32,
}

/// A type, or another item with a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Type<'a> {
    /// The type's name, if it is printable.
    pub name: Option<&'a str>,
    /// The type's description.
    pub shape: Shape<'a>,
}

/// The description of a type, read from a record. Numbers refer to other types; 0 is `void`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape<'a> {
    /// An integer. `bits` is smaller than the size only in bit fields of the old encoding.
    Integer {
        /// The type's size in bytes.
        size: u32,
        /// The type's size in bits.
        bits: u8,
        /// Whether the integer can be below zero.
        is_signed: bool,
        /// Whether the integer is `_Bool`.
        is_bool: bool,
    },
    /// A floating-point number of this size in bytes.
    Float(u32),
    /// A pointer to a type.
    Pointer(u32),
    /// Another name for a type.
    Typedef(u32),
    /// A type that is `const`.
    Const(u32),
    /// A type that is `volatile`.
    Volatile(u32),
    /// A pointer that is `restrict`.
    Restrict(u32),
    /// A type with a tag that compilers ignore.
    Tagged(u32),
    /// An array.
    Array {
        /// The type of the array's elements.
        element: u32,
        /// The number of elements.
        count: u32,
    },
    /// A structure, or a union.
    Structure {
        /// Whether the type is a union.
        is_union: bool,
        /// The type's size in bytes.
        size: u32,
        /// The type's members.
        members: Vec<Member<'a>>,
    },
    /// A structure or union that is only declared.
    Forward {
        /// Whether the type is a union.
        is_union: bool,
    },
    /// An enumeration.
    Enumeration {
        /// The type's size in bytes.
        size: u32,
        /// Whether values may be negative.
        is_signed: bool,
        /// The names and values of the enumeration's constants.
        values: Vec<(Option<&'a str>, i64)>,
    },
    /// The signature of a function.
    Prototype {
        /// The type of the function's result.
        result: u32,
        /// Names and types of the function's parameters. The last type is void if the function is variadic.
        parameters: Vec<(Option<&'a str>, u32)>,
    },
    /// A function with a prototype.
    Function(u32),
    /// A variable of a type.
    Variable(u32),
    /// A record of another kind.
    Other,
}

/// A member of a structure or union.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    /// The member's name.
    pub name: Option<&'a str>,
    /// The number of the member's type.
    pub kind: u32,
    /// The member's distance from the start of the structure, in bits.
    pub bit_offset: u32,
    /// The member's number of bits, if it is a bit field.
    pub bit_size: Option<u8>,
}

impl<'a> Btf<'a> {
    /// Reads the header and finds all records.
    pub fn parse(bytes: &'a [u8]) -> Option<Btf<'a>> {
        Btf::parse_with(bytes, None)
    }

    /// Does the same as [`Btf::parse`] for a module's type information, which refers to the kernel's types.
    pub fn parse_module(bytes: &'a [u8], kernel: &'a Btf<'a>) -> Option<Btf<'a>> {
        Btf::parse_with(bytes, Some(kernel))
    }

    fn parse_with(bytes: &'a [u8], base: Option<&'a Btf<'a>>) -> Option<Btf<'a>> {
        let (magic, version) = (bytes.first_chunk::<2>()?, *bytes.get(2)?);
        if u16::from_le_bytes(*magic) != MAGIC || version != 1 {
            return None;
        }
        let header = |number: usize| u32_at(bytes, 4 + 4 * number).map(|value| value as usize);
        let part = |start: usize, size: usize| bytes.get(header(0)?..)?.get(start..)?.get(..size);
        let types = part(header(1)?, header(2)?)?;
        let strings = part(header(3)?, header(4)?)?;
        let (mut records, mut at) = (Vec::new(), 0);
        while at < types.len() {
            records.push(u32::try_from(at).ok()?);
            at += record_bytes(u32_at(types, at + 4)?)?;
        }
        Some(Btf { types, strings, records, base })
    }

    /// The number of types of the kernel, if this is a module's type information.
    pub fn base_count(&self) -> u32 {
        self.base.map_or(0, |base| base.records.len() as u32)
    }

    /// The number of the structure with this name.
    pub fn structure(&self, name: &str) -> Option<u32> {
        let wanted = |&kind: &u32| {
            self.record(kind).is_some_and(|record| record.kind == STRUCT && self.is_named(record.name, name))
        };
        self.numbers().find(wanted)
    }

    /// A field of a structure, or of an anonymous structure inside it.
    pub fn field(&self, structure: u32, name: &str) -> Option<Field> {
        self.field_within(structure, name, MAX_DEPTH)
    }

    /// The size of a structure in bytes.
    pub fn size(&self, structure: u32) -> Option<u64> {
        self.record(structure).filter(Record::has_fields).map(|record| u64::from(record.size))
    }

    /// The element type's number and the element count of an array.
    pub fn array(&self, kind: u32) -> Option<(u32, u32)> {
        let record = self.record(kind).filter(|record| record.kind == ARRAY)?;
        Some((u32_at(record.types, record.rest)?, u32_at(record.types, record.rest + 8)?))
    }

    /// The numbers of all types, from one on. For a module, only its own types.
    pub fn numbers(&self) -> RangeInclusive<u32> {
        self.base_count() + 1..=self.base_count().saturating_add(self.records.len() as u32)
    }

    /// Whether a type has this name.
    pub(crate) fn has_name(&self, number: u32, name: &str) -> bool {
        self.record(number).is_some_and(|record| self.is_named(record.name, name))
    }

    /// A complete type. `None` if no type has this number.
    pub fn full(&self, number: u32) -> Option<Type<'a>> {
        let record = self.record(number)?;
        let other = record.size;
        let shape = match record.kind {
            INT => self.integer(&record)?,
            FLOAT => Shape::Float(record.size),
            POINTER => Shape::Pointer(other),
            TYPEDEF => Shape::Typedef(other),
            CONST => Shape::Const(other),
            VOLATILE => Shape::Volatile(other),
            RESTRICT => Shape::Restrict(other),
            TYPE_TAG => Shape::Tagged(other),
            ARRAY => {
                let (element, count) = self.array(number)?;
                Shape::Array { element, count }
            }
            STRUCT | UNION => {
                let members = self.parts(&record, 3).map(|part| self.member(part, record.flag)).collect();
                Shape::Structure { is_union: record.kind == UNION, size: record.size, members }
            }
            FORWARD => Shape::Forward { is_union: record.flag },
            ENUM => {
                let value = |[name, value, ..]: [u32; 3]| {
                    let value = if record.flag { i64::from(value as i32) } else { value.into() };
                    (self.name(name), value)
                };
                self.enumeration(&record, self.parts(&record, 2).map(value).collect())
            }
            ENUM64 => {
                let value = |[name, low, high]: [u32; 3]| {
                    (self.name(name), (u64::from(high) << 32 | u64::from(low)) as i64)
                };
                self.enumeration(&record, self.parts(&record, 3).map(value).collect())
            }
            PROTOTYPE => {
                let parameters = self.parts(&record, 2).map(|[name, kind, ..]| (self.name(name), kind));
                Shape::Prototype { result: other, parameters: parameters.collect() }
            }
            FUNCTION => Shape::Function(other),
            VARIABLE => Shape::Variable(other),
            _ => Shape::Other,
        };
        Some(Type { name: self.name(record.name), shape })
    }

    /// The number of the type that another type is built from: a pointer's target, an array's element, a function's
    /// result. `None` for a type that is not built from another type.
    pub fn leads_to(&self, number: u32) -> Option<u32> {
        let record = self.record(number)?;
        match record.kind {
            POINTER | TYPEDEF | CONST | VOLATILE | RESTRICT | TYPE_TAG | PROTOTYPE => Some(record.size),
            ARRAY => u32_at(record.types, record.rest),
            _ => None,
        }
    }

    /// The numbers of all types that a type refers to.
    pub fn references(&self, number: u32) -> Vec<u32> {
        let mut found: Vec<u32> = self.leads_to(number).into_iter().collect();
        match self.full(number).map(|found| found.shape) {
            Some(Shape::Structure { members, .. }) => found.extend(members.iter().map(|member| member.kind)),
            Some(Shape::Prototype { parameters, .. }) => {
                found.extend(parameters.iter().map(|&(_, kind)| kind))
            }
            _ => {}
        }
        found
    }

    /// The number of bits of an integer type with fewer bits than its bytes have. The old encoding of bit fields has
    /// such types. `None` for other types.
    pub fn narrow_bits(&self, number: u32) -> Option<u8> {
        let record = self.record(number).filter(|record| record.kind == INT)?;
        let Shape::Integer { size, bits, is_bool: false, .. } = self.integer(&record)? else { return None };
        (u32::from(bits) < size.saturating_mul(8)).then_some(bits)
    }

    fn integer(&self, record: &Record<'_>) -> Option<Shape<'a>> {
        let bits = u32_at(record.types, record.rest)?;
        Some(Shape::Integer {
            size: record.size,
            bits: bits as u8,
            is_signed: bits >> 24 & 1 != 0,
            is_bool: bits >> 24 & 4 != 0,
        })
    }

    fn enumeration(&self, record: &Record<'_>, values: Vec<(Option<&'a str>, i64)>) -> Shape<'a> {
        Shape::Enumeration { size: record.size, is_signed: record.flag, values }
    }

    fn member(&self, [name, kind, offset]: [u32; 3], with_bit_fields: bool) -> Member<'a> {
        let (bit_offset, width) = match with_bit_fields {
            true => (offset & 0x00ff_ffff, (offset >> 24) as u8),
            false => (offset, 0),
        };
        Member { name: self.name(name), kind, bit_offset, bit_size: (width != 0).then_some(width) }
    }

    /// The parts of a record, such as the members of a structure. A part has `words` words, and is padded with zeroes
    /// to three words.
    fn parts(&self, record: &Record<'a>, words: usize) -> impl Iterator<Item = [u32; 3]> + use<'a> {
        let (start, types) = (record.rest, record.types);
        (0..record.count).map_while(move |number| {
            let mut part = [0; 3];
            for (word, value) in part.iter_mut().enumerate().take(words) {
                *value = u32_at(types, start + 4 * (words * number + word))?;
            }
            Some(part)
        })
    }

    /// The bytes of the string table from an offset on.
    fn text(&self, at: u32) -> Option<&'a [u8]> {
        let mut at = at as usize;
        if let Some(base) = self.base {
            match at.checked_sub(base.strings.len()) {
                Some(behind) => at = behind,
                None => return base.strings.get(at..),
            }
        }
        self.strings.get(at..)
    }

    fn name(&self, at: u32) -> Option<&'a str> {
        let text = self.text(at)?;
        let end = text.iter().take(MAX_NAME_BYTES).position(|&byte| byte == 0)?;
        // Names of integer types contain blanks: "long unsigned int".
        let is_word = |word: &str| !word.is_empty() && is_text(word.as_bytes());
        let is_name = |text: &&str| text.split(' ').all(is_word);
        str::from_utf8(&text[..end]).ok().filter(is_name)
    }

    fn field_within(&self, structure: u32, name: &str, depth: usize) -> Option<Field> {
        let record = self.record(structure).filter(Record::has_fields)?;
        (0..record.count).find_map(|number| {
            let at = record.rest + 12 * number;
            let (its_name, kind) = (u32_at(record.types, at)?, u32_at(record.types, at + 4)?);
            // If the structure has bit fields, the upper byte is the member's width.
            let mask = if record.flag { 0x00ff_ffff } else { u32::MAX };
            let offset = u64::from((u32_at(record.types, at + 8)? & mask) / 8);
            if self.is_named(its_name, name) {
                return Some(Field { offset, kind });
            }
            if its_name != 0 || depth == 0 {
                return None;
            }
            let inner = self.field_within(kind, name, depth - 1)?;
            Some(Field { offset: offset + inner.offset, kind: inner.kind })
        })
    }

    fn record(&self, kind: u32) -> Option<Record<'a>> {
        if let Some(base) = self.base.filter(|_| kind <= self.base_count()) {
            return base.record(kind);
        }
        let at = *self.records.get((kind - self.base_count()).checked_sub(1)? as usize)? as usize;
        let (types, info) = (self.types, u32_at(self.types, at + 4)?);
        Some(Record {
            types,
            name: u32_at(types, at)?,
            kind: kind_of(info),
            count: count_of(info),
            flag: info >> 31 != 0,
            size: u32_at(types, at + 8)?,
            rest: at + 12,
        })
    }

    fn is_named(&self, at: u32, name: &str) -> bool {
        let text = self.text(at).and_then(|text| text.strip_prefix(name.as_bytes()));
        text.is_some_and(|after| after.first() == Some(&0))
    }
}

/// `struct btf_type`.
struct Record<'a> {
    /// The bytes of all type records, including this record.
    types: &'a [u8],
    name: u32,
    kind: u32,
    count: usize,
    /// In a structure: whether it may have bit fields. In an enumeration: whether values may be negative.
    flag: bool,
    size: u32,
    /// Offset in `types` of the parts after the record's first three words.
    rest: usize,
}

impl Record<'_> {
    fn has_fields(&self) -> bool {
        matches!(self.kind, STRUCT | UNION)
    }
}

/// The kind of a record, from its second word. Before Linux 7, the two highest of these bits are zero.
fn kind_of(info: u32) -> u32 {
    info >> 24 & 0x7f
}

/// The number of members or other parts of a record, from its second word. Before Linux 7 the number has 16
/// bits, and the other bits are zero.
fn count_of(info: u32) -> usize {
    (info & 0x00ff_ffff) as usize
}

/// The size of a record, from its second word.
fn record_bytes(info: u32) -> Option<usize> {
    let count = count_of(info);
    let rest = match kind_of(info) {
        INT | VARIABLE | DECLARATION_TAG => 4,
        POINTER | FORWARD | TYPEDEF | VOLATILE | CONST | RESTRICT | FUNCTION | FLOAT | TYPE_TAG => 0,
        ARRAY => 12,
        STRUCT | UNION | SECTION | ENUM64 => 12 * count,
        ENUM | PROTOTYPE => 8 * count,
        _ => return None,
    };
    Some(12 + rest)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

//! As much of the kernel's type information as it takes to find fields of its structures.
//!
//! Follows `Documentation/bpf/btf.rst`: a header, type records that are numbered from one in the order in
//! which they come, and texts. Nothing in it is trusted: positions that lead outside give `None`.

/// The bytes that type information begins with.
const MAGIC: u16 = 0xeb9f;
/// Structures without a name are looked into down to this depth.
const MAX_DEPTH: usize = 8;

const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;

/// Type information.
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where in `types` each record begins; that of type 1 is the first.
    records: Vec<u32>,
}

/// A field of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its distance from the beginning of the structure, in bytes.
    pub offset: u64,
    /// The number of its type.
    pub kind: u32,
}

impl<'a> Btf<'a> {
    /// Reads the header and finds all records.
    pub fn parse(bytes: &'a [u8]) -> Option<Btf<'a>> {
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
        Some(Btf { types, strings, records })
    }

    /// The number of the structure with this name.
    pub fn structure(&self, name: &str) -> Option<u32> {
        let wanted = |&kind: &u32| {
            self.record(kind).is_some_and(|record| record.kind == STRUCT && self.is_named(record.name, name))
        };
        (1..=self.records.len() as u32).find(wanted)
    }

    /// A field of a structure, also when it lies in a part of it that has no name.
    pub fn field(&self, structure: u32, name: &str) -> Option<Field> {
        self.field_within(structure, name, MAX_DEPTH)
    }

    /// The size of a structure in bytes.
    pub fn size(&self, structure: u32) -> Option<u64> {
        self.record(structure).filter(Record::has_fields).map(|record| u64::from(record.size))
    }

    /// What an array consists of: the number of the type, and how many.
    pub fn array(&self, kind: u32) -> Option<(u32, u32)> {
        let record = self.record(kind).filter(|record| record.kind == ARRAY)?;
        Some((u32_at(self.types, record.rest)?, u32_at(self.types, record.rest + 8)?))
    }

    fn field_within(&self, structure: u32, name: &str, depth: usize) -> Option<Field> {
        let record = self.record(structure).filter(Record::has_fields)?;
        (0..record.count).find_map(|number| {
            let at = record.rest + 12 * number;
            let (its_name, kind) = (u32_at(self.types, at)?, u32_at(self.types, at + 4)?);
            // With bit fields in the structure, the upper byte is a width.
            let mask = if record.bit_fields { 0x00ff_ffff } else { u32::MAX };
            let offset = u64::from((u32_at(self.types, at + 8)? & mask) / 8);
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

    fn record(&self, kind: u32) -> Option<Record> {
        let at = *self.records.get(kind.checked_sub(1)? as usize)? as usize;
        let info = u32_at(self.types, at + 4)?;
        Some(Record {
            name: u32_at(self.types, at)?,
            kind: kind_of(info),
            count: count_of(info),
            bit_fields: info >> 31 != 0,
            size: u32_at(self.types, at + 8)?,
            rest: at + 12,
        })
    }

    fn is_named(&self, at: u32, name: &str) -> bool {
        let text = self.strings.get(at as usize..).and_then(|text| text.strip_prefix(name.as_bytes()));
        text.is_some_and(|after| after.first() == Some(&0))
    }
}

/// `struct btf_type`.
struct Record {
    name: u32,
    kind: u32,
    count: usize,
    bit_fields: bool,
    size: u32,
    /// Where what depends on the kind begins.
    rest: usize,
}

impl Record {
    fn has_fields(&self) -> bool {
        matches!(self.kind, STRUCT | UNION)
    }
}

/// What a record is, by its second word: the bits that Linux 7 uses, two of which were zero before.
fn kind_of(info: u32) -> u32 {
    info >> 24 & 0x7f
}

/// How many fields or other parts a record has, by its second word: 16 bits before Linux 7, the others zero.
fn count_of(info: u32) -> usize {
    (info & 0x00ff_ffff) as usize
}

/// The size of a record, by its second word.
fn record_bytes(info: u32) -> Option<usize> {
    let count = count_of(info);
    let rest = match kind_of(info) {
        // INT, VAR, DECL_TAG
        1 | 14 | 17 => 4,
        // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG
        2 | 7..=12 | 16 | 18 => 0,
        ARRAY => 12,
        // and DATASEC, ENUM64
        STRUCT | UNION | 15 | 19 => 12 * count,
        // ENUM, FUNC_PROTO
        6 | 13 => 8 * count,
        _ => return None,
    };
    Some(12 + rest)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

//! Converts types from DWARF to BTF.

use std::collections::{HashMap, VecDeque};

use gimli::constants as dw;
use gimli::{AttributeValue, DebugInfoOffset, Dwarf, Operation, Unit, UnitRef};

use super::entries::{Definition, Entry, Reader, name_of, reference};
use super::records::{Kind, MAX_BIT_OFFSET, Records};

/// The largest number of converted types.
const MAX_TYPES: usize = 1 << 20;
/// The size in bytes of a pointer.
const POINTER_BYTES: u32 = 8;
/// The bits of an integer's second word that say how the integer is encoded.
const SIGNED: u32 = 1 << 24;
const BOOL: u32 = 4 << 24;

/// Converts the types at `roots`, and all types to which they refer. Returns the type information, and the numbers of the
/// roots.
pub(super) fn types(
    dwarf: &Dwarf<Reader<'_>>,
    definitions: &HashMap<String, Vec<Definition>>,
    roots: &[DebugInfoOffset],
) -> (Vec<u8>, Vec<u32>) {
    let mut converter = Converter {
        dwarf,
        definitions,
        units: UnitsByOffset::of(dwarf),
        records: Records::default(),
        numbers: HashMap::new(),
        waiting: VecDeque::new(),
        count: 0,
    };
    let numbers = roots.iter().map(|&root| converter.number(Some(root))).collect();
    while let Some(item) = converter.waiting.pop_front() {
        converter.convert(&item);
    }
    (converter.records.finish(), numbers)
}

/// The units with debug information, parsed when they are needed.
struct UnitsByOffset<'a> {
    headers: Vec<(usize, gimli::UnitHeader<Reader<'a>>)>,
    parsed: HashMap<usize, Unit<Reader<'a>>>,
}

impl<'a> UnitsByOffset<'a> {
    fn of(dwarf: &Dwarf<Reader<'a>>) -> UnitsByOffset<'a> {
        let (mut headers, mut all) = (Vec::new(), dwarf.units());
        while let Ok(Some(header)) = all.next() {
            headers.extend(header.debug_info_offset().map(|at| (at.0, header)));
        }
        UnitsByOffset { headers, parsed: HashMap::new() }
    }

    /// The unit that has an offset of the debug information.
    fn with(&mut self, dwarf: &Dwarf<Reader<'a>>, at: DebugInfoOffset) -> Option<&Unit<Reader<'a>>> {
        let number = self.headers.partition_point(|(start, _)| *start <= at.0).checked_sub(1)?;
        let (start, header) = self.headers[number];
        if let std::collections::hash_map::Entry::Vacant(free) = self.parsed.entry(start) {
            free.insert(dwarf.unit(header).ok()?);
        }
        self.parsed.get(&start)
    }
}

/// A type with a number whose record is not written yet.
enum Item {
    At(DebugInfoOffset),
    /// The inner dimensions of an array: the element's number, and the counts from the outermost on.
    Array(u32, Vec<u32>),
}

struct Converter<'d, 'a> {
    dwarf: &'d Dwarf<Reader<'a>>,
    definitions: &'d HashMap<String, Vec<Definition>>,
    units: UnitsByOffset<'a>,
    records: Records,
    numbers: HashMap<DebugInfoOffset, u32>,
    /// The types without a record, in the order of their numbers.
    waiting: VecDeque<Item>,
    /// The number of types that have a number.
    count: usize,
}

/// An entry of the debug information, as a record needs it. References are places, not yet numbers.
struct Described {
    tag: dw::DwTag,
    name: Option<String>,
    size: u32,
    encoding: Option<dw::DwAte>,
    is_declaration: bool,
    refers_to: Option<DebugInfoOffset>,
    children: Vec<Child>,
}

struct Child {
    tag: dw::DwTag,
    name: Option<String>,
    refers_to: Option<DebugInfoOffset>,
    /// A member's offset in bits.
    bit_offset: u64,
    bit_size: u8,
    /// The value of an enumeration's constant, or the number of elements of an array's dimension.
    value: i64,
}

impl Converter<'_, '_> {
    /// The number of a type. A type that has none gets the next number.
    fn number(&mut self, at: Option<DebugInfoOffset>) -> u32 {
        let Some(at) = at else { return 0 };
        if let Some(&number) = self.numbers.get(&at) {
            return number;
        }
        let number = self.new_number(Item::At(at));
        self.numbers.insert(at, number);
        number
    }

    fn new_number(&mut self, item: Item) -> u32 {
        if self.count >= MAX_TYPES {
            return 0;
        }
        self.count += 1;
        self.waiting.push_back(item);
        self.count as u32
    }

    /// Writes one record, so that the numbers of the following records stay right.
    fn convert(&mut self, item: &Item) {
        match item {
            Item::Array(element, counts) => self.array(*element, counts),
            Item::At(at) => match self.definition(*at) {
                Some(described) => self.describe(&described),
                None => self.records.add(Kind::Forward, false, None, 0, &[], 0),
            },
        }
    }

    /// The entry at a place. If it is only a declaration, takes the definition of the same name, if there is one.
    fn definition(&mut self, at: DebugInfoOffset) -> Option<Described> {
        let described = self.described(at)?;
        let defined = described.name.as_ref().filter(|_| described.is_declaration).and_then(|name| {
            self.definitions.get(name)?.iter().find(|definition| definition.tag == described.tag)
        });
        match defined {
            Some(definition) => self.described(definition.at),
            None => Some(described),
        }
    }

    fn described(&mut self, at: DebugInfoOffset) -> Option<Described> {
        let unit = self.units.with(self.dwarf, at)?;
        described(unit.unit_ref(self.dwarf), at)
    }

    fn describe(&mut self, it: &Described) {
        let name = it.name.as_deref();
        let refer = |kind| (kind, it.refers_to);
        let (kind, to) = match it.tag {
            dw::DW_TAG_base_type => return self.base(it),
            dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type => {
                return self.structure(it);
            }
            dw::DW_TAG_enumeration_type => return self.enumeration(it),
            dw::DW_TAG_subroutine_type => return self.prototype(it),
            dw::DW_TAG_array_type => {
                let counts = it.children.iter().filter(|child| child.tag == dw::DW_TAG_subrange_type);
                let counts: Vec<u32> = counts.map(|child| u32::try_from(child.value).unwrap_or(0)).collect();
                let element = self.number(it.refers_to);
                return self.array(element, &counts);
            }
            dw::DW_TAG_typedef => refer(Kind::Typedef),
            dw::DW_TAG_const_type => refer(Kind::Const),
            dw::DW_TAG_restrict_type => refer(Kind::Restrict),
            // An atomic variable is as volatile as any.
            dw::DW_TAG_volatile_type | dw::DW_TAG_atomic_type => refer(Kind::Volatile),
            dw::DW_TAG_pointer_type
            | dw::DW_TAG_reference_type
            | dw::DW_TAG_rvalue_reference_type
            | dw::DW_TAG_ptr_to_member_type => refer(Kind::Pointer),
            _ => return self.records.add(Kind::Forward, false, name, 0, &[], 0),
        };
        let to = self.number(to);
        let name = name.filter(|_| kind == Kind::Typedef);
        self.records.add(kind, false, name, to, &[], 0);
    }

    fn base(&mut self, it: &Described) {
        let name = it.name.as_deref();
        let encoding = match it.encoding {
            Some(dw::DW_ATE_float | dw::DW_ATE_decimal_float) => {
                return self.records.add(Kind::Float, false, name, it.size, &[], 0);
            }
            Some(dw::DW_ATE_signed | dw::DW_ATE_signed_char) => SIGNED,
            Some(dw::DW_ATE_boolean) => BOOL,
            _ => 0,
        };
        let bits = it.size.saturating_mul(8).min(u8::MAX.into());
        self.records.add(Kind::Integer, false, name, it.size, &[encoding | bits], 0);
    }

    fn array(&mut self, element: u32, counts: &[u32]) {
        let (count, inner) = counts.split_first().map_or((0, &[][..]), |(&first, rest)| (first, rest));
        let element =
            if inner.is_empty() { element } else { self.new_number(Item::Array(element, inner.to_vec())) };
        self.records.add(Kind::Array, false, None, 0, &[element, 0, count], 0);
    }

    fn structure(&mut self, it: &Described) {
        let is_union = it.tag == dw::DW_TAG_union_type;
        let name = it.name.as_deref();
        if it.is_declaration {
            return self.records.add(Kind::Forward, is_union, name, 0, &[], 0);
        }
        let members = || {
            it.children
                .iter()
                .filter(|child| [dw::DW_TAG_member, dw::DW_TAG_inheritance].contains(&child.tag))
        };
        let has_bit_fields = members().any(|member| member.bit_size > 0);
        let mut words = Vec::new();
        for member in members() {
            let most = if has_bit_fields { MAX_BIT_OFFSET } else { u32::MAX.into() };
            let Some(offset) = Some(member.bit_offset).filter(|&offset| offset <= most) else { continue };
            let kind = self.number(member.refers_to);
            words.extend([
                self.records.name(member.name.as_deref()),
                kind,
                u32::from(member.bit_size) << 24 | offset as u32,
            ]);
        }
        let kind = if is_union { Kind::Union } else { Kind::Structure };
        self.records.add(kind, has_bit_fields, name, it.size, &words, 3);
    }

    fn enumeration(&mut self, it: &Described) {
        let name = it.name.as_deref();
        let size = if it.size == 0 { 4 } else { it.size };
        let constants = || it.children.iter().filter(|child| child.tag == dw::DW_TAG_enumerator);
        let is_signed = constants().any(|constant| constant.value < 0);
        let fits = |constant: &Child| {
            if is_signed {
                i32::try_from(constant.value).is_ok()
            } else {
                u32::try_from(constant.value).is_ok()
            }
        };
        let is_small = constants().all(fits);
        let mut words = Vec::new();
        for constant in constants() {
            words.extend([self.records.name(constant.name.as_deref()), constant.value as u32]);
            words.extend((!is_small).then_some((constant.value >> 32) as u32));
        }
        let (kind, part_words) = if is_small { (Kind::Enumeration, 2) } else { (Kind::Enumeration64, 3) };
        self.records.add(kind, is_signed, name, size, &words, part_words);
    }

    fn prototype(&mut self, it: &Described) {
        let result = self.number(it.refers_to);
        let mut words = Vec::new();
        for child in &it.children {
            match child.tag {
                dw::DW_TAG_formal_parameter => {
                    let kind = self.number(child.refers_to);
                    words.extend([self.records.name(child.name.as_deref()), kind]);
                }
                dw::DW_TAG_unspecified_parameters => words.extend([0, 0]),
                _ => {}
            }
        }
        self.records.add(Kind::Prototype, false, None, result, &words, 2);
    }
}

fn described(unit: UnitRef<'_, Reader<'_>>, at: DebugInfoOffset) -> Option<Described> {
    let at = at.to_unit_offset(&unit.header)?;
    let mut tree = unit.entries_tree(Some(at)).ok()?;
    let node = tree.root().ok()?;
    let entry = node.entry();
    let number = |name| entry.attr(name).and_then(gimli::Attribute::udata_value);
    let encoding = match entry.attr_value(dw::DW_AT_encoding) {
        Some(AttributeValue::Encoding(encoding)) => Some(encoding),
        _ => None,
    };
    let is_pointer = entry.tag == dw::DW_TAG_pointer_type;
    let mut described = Described {
        tag: entry.tag,
        name: name_of(unit, entry),
        size: number(dw::DW_AT_byte_size)
            .and_then(|size| u32::try_from(size).ok())
            .unwrap_or(if is_pointer { POINTER_BYTES } else { 0 }),
        encoding,
        is_declaration: entry.attr(dw::DW_AT_declaration).is_some(),
        refers_to: reference(unit.unit, entry),
        children: Vec::new(),
    };
    let mut children = node.children();
    while let Ok(Some(node)) = children.next() {
        described.children.extend(child(unit, node.entry()));
    }
    Some(described)
}

/// A member, constant, dimension or parameter. `None` for a static member, which is not in the structure.
fn child<'a>(unit: UnitRef<'_, Reader<'a>>, entry: &Entry<'a>) -> Option<Child> {
    let number = |name| entry.attr(name).and_then(gimli::Attribute::udata_value);
    let is_static = entry.tag == dw::DW_TAG_member && entry.attr(dw::DW_AT_declaration).is_some();
    if is_static {
        return None;
    }
    let bit_size = number(dw::DW_AT_bit_size).and_then(|bits| u8::try_from(bits).ok()).unwrap_or(0);
    Some(Child {
        tag: entry.tag,
        name: name_of(unit, entry),
        refers_to: reference(unit.unit, entry),
        bit_offset: bit_offset(unit, entry, bit_size)?,
        bit_size,
        value: match entry.tag {
            dw::DW_TAG_subrange_type => element_count(entry),
            _ => constant(entry),
        },
    })
}

/// A member's distance from the start of its structure, in bits.
fn bit_offset<'a>(unit: UnitRef<'_, Reader<'a>>, entry: &Entry<'a>, bit_size: u8) -> Option<u64> {
    let number = |name| entry.attr(name).and_then(gimli::Attribute::udata_value);
    if let Some(bits) = number(dw::DW_AT_data_bit_offset) {
        return Some(bits);
    }
    let bytes = match entry.attr(dw::DW_AT_data_member_location) {
        None => 0,
        Some(location) => match (location.udata_value(), location.exprloc_value()) {
            (Some(bytes), _) => bytes,
            // Before DWARF 3, the offset is an expression.
            (None, Some(expression)) => match expression.operations(unit.encoding()).next().ok()?? {
                Operation::PlusConstant { value } => value,
                _ => return None,
            },
            _ => return None,
        },
    };
    let start = bytes.checked_mul(8)?;
    // Before DWARF 4, a bit field is counted from the highest bit of its storage.
    match (number(dw::DW_AT_bit_offset), number(dw::DW_AT_byte_size)) {
        (Some(from_top), Some(storage_bytes)) => {
            let storage_bits = storage_bytes.checked_mul(8)?;
            start.checked_add(storage_bits.checked_sub(from_top)?.checked_sub(bit_size.into())?)
        }
        _ => Some(start),
    }
}

fn element_count(entry: &Entry<'_>) -> i64 {
    let number = |name| entry.attr(name).and_then(gimli::Attribute::udata_value);
    let count = number(dw::DW_AT_count).or_else(|| number(dw::DW_AT_upper_bound)?.checked_add(1));
    count.and_then(|count| i64::try_from(count).ok()).unwrap_or(0)
}

/// The value of an enumeration's constant.
fn constant(entry: &Entry<'_>) -> i64 {
    match entry.attr(dw::DW_AT_const_value).map(|value| (value.value(), value.udata_value())) {
        Some((AttributeValue::Sdata(value), _)) => value,
        // Compilers use forms without a sign only for values above zero.
        Some((_, Some(value))) => value as i64,
        _ => 0,
    }
}

//! Variables and values as text, by the kernel's type information. The information has the names of types and
//! fields. Numbers, texts and structures are shown as a person reads them.
//!
//! The guest's memory and its types are not trusted: every text, array and depth has a limit.

use super::GuestView;
use super::btf::{Btf, Member, Shape};
use super::guest_view::KernelView;
use super::modules::{self, Missing};
use super::symbols::Symbols;

/// The longest text that is shown.
const MOST_TEXT_BYTES: usize = 128;
/// The largest number of elements of an array that are shown.
const MOST_ELEMENTS: u64 = 16;
/// The largest depth of structures inside structures that is shown.
const MOST_DEPTH: usize = 2;
/// The largest number of typedefs and qualifiers around a type, and of anonymous structures inside one another.
const MOST_STEPS: usize = 32;
/// The largest size in bytes of a variable whose value is shown.
pub const MOST_VALUE_BYTES: u64 = 4096;

/// The type information of the guest's kernel and of its modules, as bytes.
pub struct TypeBytes {
    kernel: Vec<u8>,
    modules: Vec<Vec<u8>>,
}

impl TypeBytes {
    /// Reads the type information of the guest's current kernel, which has these symbols.
    pub fn of_guest(guest: &dyn GuestView, symbols: &Symbols) -> Result<TypeBytes, Missing> {
        KernelView::first_with(guest, |view| {
            let address_of = |name: &'static str| symbols.address_of(name);
            let kernel = modules::types(view, &address_of)?;
            let found = Btf::parse(&kernel).ok_or(Missing::Types)?;
            let modules = modules::types_of_modules(view, &address_of, &found);
            Ok(TypeBytes { kernel, modules })
        })
    }

    /// Type information that is in the caller's memory already.
    pub fn of_bytes(kernel: Vec<u8>) -> TypeBytes {
        TypeBytes { kernel, modules: Vec::new() }
    }

    /// The kernel's types.
    pub fn kernel(&self) -> Result<Btf<'_>, Missing> {
        Btf::parse(&self.kernel).ok_or(Missing::Types)
    }

    /// The types of all modules, which refer to the kernel's types.
    pub fn modules<'a>(&'a self, kernel: &'a Btf<'a>) -> Vec<Btf<'a>> {
        self.modules.iter().filter_map(|bytes| Btf::parse_module(bytes, kernel)).collect()
    }
}

/// A function's signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The number of the result's type; 0 is `void`.
    pub result: u32,
    /// Names and types of the parameters. A variadic function ends with a parameter of type 0.
    pub parameters: Vec<(Option<String>, u32)>,
}

/// A type, or a pointer to a pointer to a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedType {
    /// The number of the type; 0 is `void`.
    pub number: u32,
    /// The number of asterisks after the type's name.
    pub pointers: usize,
}

/// A variable or a part of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The address of the variable's first byte.
    pub address: u64,
    /// The variable's size in bytes.
    pub size: u64,
    /// The variable's type.
    pub kind: NamedType,
    /// The first bit and the number of bits, if the variable is a bit field.
    pub bits: Option<(u32, u8)>,
}

/// A function that reads guest memory, and returns the number of bytes that it could read from the first byte on.
pub type ReadMemory<'a> = dyn Fn(u64, &mut [u8]) -> usize + 'a;

impl Btf<'_> {
    /// The signatures of all functions whose name is wanted.
    pub fn signatures(&self, is_wanted: &dyn Fn(&str) -> bool) -> Vec<(String, Signature)> {
        let found = self.numbers().filter_map(|number| {
            let found = self.full(number)?;
            let (Shape::Function(prototype), Some(name)) = (found.shape, found.name) else { return None };
            is_wanted(name).then_some(())?;
            let Shape::Prototype { result, parameters } = self.full(prototype)?.shape else { return None };
            let owned = |(name, kind): (Option<&str>, u32)| (name.map(str::to_string), kind);
            Some((
                name.to_string(),
                Signature { result, parameters: parameters.into_iter().map(owned).collect() },
            ))
        });
        found.collect()
    }

    /// Finds a type by its name in C, such as `struct file *`, `u64`, or `unsigned long`. The word `struct` may be left
    /// out.
    pub fn type_named(&self, name: &str) -> Option<NamedType> {
        let pointers = name.chars().filter(|&letter| letter == '*').count();
        let words = words_of_type(name);
        if words == ["void"] {
            return Some(NamedType { number: 0, pointers });
        }
        let number = match words[..] {
            [kind @ ("struct" | "union" | "enum"), name] => {
                self.numbers().find(|&number| match self.full_if_named(number, name) {
                    Some(Shape::Structure { is_union, .. }) => {
                        kind == if is_union { "union" } else { "struct" }
                    }
                    Some(Shape::Enumeration { .. }) => kind == "enum",
                    _ => false,
                })
            }
            [] => None,
            _ => {
                let name = spelled_as_in_btf(&words);
                let find = |is_wanted: fn(&Shape<'_>) -> bool| {
                    self.numbers().find(|&number| {
                        self.full_if_named(number, &name).is_some_and(|shape| is_wanted(&shape))
                    })
                };
                find(|shape| matches!(shape, Shape::Integer { .. } | Shape::Typedef(_) | Shape::Float(_)))
                    .or_else(|| find(|shape| matches!(shape, Shape::Structure { .. })))
            }
        };
        number.map(|number| NamedType { number, pointers })
    }

    /// A type's name in C, such as `struct file *`.
    pub fn spelled(&self, kind: NamedType) -> String {
        let name = self.spelled_within(kind.number, MOST_STEPS);
        match kind.pointers {
            0 => name,
            count if name.ends_with('*') => name + &"*".repeat(count),
            count => name + " " + &"*".repeat(count),
        }
    }

    fn spelled_within(&self, number: u32, steps: usize) -> String {
        let (Some(found), Some(steps)) = (self.full(number), steps.checked_sub(1)) else {
            return if number == 0 { "void".to_string() } else { "?".to_string() };
        };
        let name = || found.name.unwrap_or("{...}");
        match found.shape {
            Shape::Pointer(to) => {
                let target = self.spelled_within(to, steps);
                if matches!(self.full(to).map(|target| target.shape), Some(Shape::Prototype { .. })) {
                    return "function *".to_string();
                }
                if target.ends_with('*') { target + "*" } else { target + " *" }
            }
            Shape::Const(of) => format!("const {}", self.spelled_within(of, steps)),
            Shape::Volatile(of) | Shape::Restrict(of) | Shape::Tagged(of) => self.spelled_within(of, steps),
            Shape::Array { element, count } => {
                let element = self.spelled_within(element, steps);
                // In C, the outermost dimension comes first.
                let (base, inner) = element.split_at(element.find('[').unwrap_or(element.len()));
                format!("{base}[{count}]{inner}")
            }
            Shape::Structure { is_union, .. } | Shape::Forward { is_union } => {
                format!("{} {}", if is_union { "union" } else { "struct" }, name())
            }
            Shape::Enumeration { .. } => format!("enum {}", name()),
            _ => name().to_string(),
        }
    }

    /// The size of a type in bytes. `None` for `void` and for a type that is only declared.
    pub fn size_of(&self, kind: NamedType) -> Option<u64> {
        if kind.pointers > 0 {
            return Some(8);
        }
        match self.meaning(kind.number)?.1 {
            Shape::Integer { size, .. } | Shape::Float(size) => Some(size.into()),
            Shape::Structure { size, .. } | Shape::Enumeration { size, .. } => Some(size.into()),
            Shape::Pointer(_) => Some(8),
            Shape::Array { element, count } => {
                // An array of an array of itself would have no end.
                let element = (element != kind.number).then(|| NamedType::from(element))?;
                self.size_of(element)?.checked_mul(count.into())
            }
            _ => None,
        }
    }

    /// The type without its typedefs and qualifiers, and the number of this type.
    fn meaning(&self, mut number: u32) -> Option<(u32, Shape<'_>)> {
        for _ in 0..MOST_STEPS {
            match self.full(number)?.shape {
                Shape::Typedef(of)
                | Shape::Const(of)
                | Shape::Volatile(of)
                | Shape::Restrict(of)
                | Shape::Tagged(of)
                | Shape::Variable(of) => number = of,
                shape => return Some((number, shape)),
            }
        }
        None
    }

    fn full_if_named(&self, number: u32, name: &str) -> Option<Shape<'_>> {
        if !self.has_name(number, name) {
            return None;
        }
        Some(self.full(number)?.shape)
    }

    /// Follows `path` from a variable: `.field`, `->field` and `[number]`, one after the other.
    pub fn follow(
        &self,
        mut variable: Variable,
        path: &str,
        read: &ReadMemory<'_>,
    ) -> Result<Variable, String> {
        let mut rest = path;
        while !rest.is_empty() {
            if let Some(inner) = rest.strip_prefix('[') {
                let (number, after) = inner.split_once(']').ok_or("a '[' has no ']'")?;
                let number = number.trim().parse().map_err(|_| format!("'{number}' is no array index"))?;
                variable = self.element(variable, number, read)?;
                rest = after;
                continue;
            }
            let (follows, after) = match (rest.strip_prefix("->"), rest.strip_prefix('.')) {
                (Some(after), _) => (true, after),
                (_, Some(after)) => (false, after),
                _ => return Err(format!("'{rest}' is no field: write .FIELD, ->FIELD or [NUMBER]")),
            };
            let end = after.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
            let (name, after) = after.split_at(end.unwrap_or(after.len()));
            if follows {
                // In C, an array stands for the address of its first element.
                variable = self.element(variable, 0, read)?;
            }
            variable = self.field_of(variable, name)?;
            rest = after;
        }
        Ok(variable)
    }

    fn field_of(&self, variable: Variable, name: &str) -> Result<Variable, String> {
        let spelled = self.spelled(variable.kind);
        let none = || format!("'{spelled}' has no field '{name}'");
        if variable.kind.pointers > 0 {
            return Err(format!("'{spelled}' is a pointer: write -> in place of ."));
        }
        let (structure, shape) = self.meaning(variable.kind.number).ok_or_else(none)?;
        if matches!(shape, Shape::Pointer(_)) {
            return Err(format!("'{spelled}' is a pointer: write -> in place of ."));
        }
        let (bit, member) = self.member_named(structure, name, MOST_STEPS).ok_or_else(none)?;
        let kind = NamedType::from(member.kind);
        let size =
            self.size_of(kind).ok_or_else(|| format!("the size of '{}' is not known", self.spelled(kind)))?;
        // For a bit field, the variable covers the unit of the type's size that contains the field.
        let (byte, bits) = match member.bit_size {
            Some(width) if size > 0 => {
                let first = bit / (8 * size) * size;
                (first, Some(((bit - 8 * first) as u32, width)))
            }
            _ => (bit / 8, None),
        };
        Ok(Variable { address: variable.address.wrapping_add(byte), size, kind, bits })
    }

    /// A member by its name, also in anonymous structures, with its distance in bits from the structure's start.
    fn member_named(&self, structure: u32, name: &str, steps: usize) -> Option<(u64, Member<'_>)> {
        let Shape::Structure { members, .. } = self.meaning(structure)?.1 else { return None };
        let steps = steps.checked_sub(1)?;
        members.iter().find_map(|member| {
            let bit = u64::from(member.bit_offset);
            match member.name {
                Some(its) if its == name => Some((bit, *member)),
                Some(_) => None,
                None => {
                    self.member_named(member.kind, name, steps).map(|(inner, member)| (bit + inner, member))
                }
            }
        })
    }

    /// The variable to which a pointer points.
    pub fn target(&self, pointer: Variable, read: &ReadMemory<'_>) -> Result<Variable, String> {
        let spelled = self.spelled(pointer.kind);
        let kind = match (pointer.kind.pointers, self.meaning(pointer.kind.number)) {
            (0, Some((_, Shape::Pointer(to)))) => NamedType::from(to),
            (0, _) => return Err(format!("'{spelled}' is no pointer")),
            (count, _) => NamedType { pointers: count - 1, ..pointer.kind },
        };
        let mut bytes = [0; 8];
        if read(pointer.address, &mut bytes) != bytes.len() {
            return Err(format!("the pointer at {:#x} is not mapped", pointer.address));
        }
        let address = u64::from_le_bytes(bytes);
        if address == 0 {
            return Err(format!("the pointer at {:#x} is NULL", pointer.address));
        }
        let size =
            self.size_of(kind).ok_or_else(|| format!("the size of '{}' is not known", self.spelled(kind)))?;
        Ok(Variable { address, size, kind, bits: None })
    }

    fn element(&self, variable: Variable, number: u64, read: &ReadMemory<'_>) -> Result<Variable, String> {
        let array = match self.meaning(variable.kind.number) {
            Some((_, Shape::Array { element, count })) if variable.kind.pointers == 0 => {
                Some((element, count))
            }
            _ => None,
        };
        let first = match array {
            // An array of length zero at the end of a structure has its elements after the structure.
            Some((_, count)) if count > 0 && number >= count.into() => {
                return Err(format!("'{}' has no element {number}", self.spelled(variable.kind)));
            }
            Some((element, _)) => {
                let kind = NamedType::from(element);
                let size = self.size_of(kind).ok_or("the size of the elements is not known")?;
                Variable { address: variable.address, size, kind, bits: None }
            }
            None => self.target(variable, read)?,
        };
        Ok(Variable { address: first.address.wrapping_add(first.size.wrapping_mul(number)), ..first })
    }

    /// A value as text. `bytes` are the value's bytes, of which some may be missing.
    pub fn shown(&self, variable: &Variable, bytes: &[u8], describe: &Describe<'_>) -> String {
        self.shown_within(variable.kind, variable.bits, bytes, describe, MOST_DEPTH)
    }

    fn shown_within(
        &self,
        kind: NamedType,
        bits: Option<(u32, u8)>,
        bytes: &[u8],
        describe: &Describe<'_>,
        depth: usize,
    ) -> String {
        let number = || number_of(bytes, bits);
        if kind.pointers > 0 {
            return describe.pointer(number(), self.is_char(kind));
        }
        let unknown = || format!("{:#x}", number());
        let Some((meaning, shape)) = self.meaning(kind.number) else { return unknown() };
        match shape {
            Shape::Integer { is_bool: true, .. } => (number() != 0).to_string(),
            Shape::Integer { size, is_signed, .. } => {
                let width = bits.map_or(8 * size.min(8), |(_, width)| width.into());
                if is_signed { signed(number(), width).to_string() } else { number().to_string() }
            }
            Shape::Enumeration { size, values, .. } => {
                let value = signed(number(), 8 * size.min(8));
                let is_it = |known: i64| known == value || known as u64 == number();
                let known = values.iter().find(|&&(_, known)| is_it(known)).and_then(|&(name, _)| name);
                known.map_or_else(|| value.to_string(), str::to_string)
            }
            Shape::Pointer(to) => {
                describe.pointer(number(), self.is_char(NamedType { number: to, pointers: 1 }))
            }
            Shape::Float(4) => f32::from_bits(number() as u32).to_string(),
            Shape::Float(8) => f64::from_bits(number()).to_string(),
            Shape::Array { element, count } => self.shown_array(element, count, bytes, describe, depth),
            Shape::Structure { members, .. } => match depth.checked_sub(1) {
                Some(depth) => self.shown_members(&members, bytes, describe, depth),
                None => format!("{{{}}}", self.spelled(meaning.into())),
            },
            _ => unknown(),
        }
    }

    fn shown_members(
        &self,
        members: &[Member<'_>],
        bytes: &[u8],
        describe: &Describe<'_>,
        depth: usize,
    ) -> String {
        let shown = members.iter().map(|member| {
            let kind = NamedType::from(member.kind);
            let size = self.size_of(kind).unwrap_or(0).min(MOST_VALUE_BYTES) as usize;
            let first = match member.bit_size {
                Some(_) if size > 0 => member.bit_offset as usize / (8 * size) * size,
                _ => member.bit_offset as usize / 8,
            };
            let bits = member.bit_size.map(|width| (member.bit_offset - 8 * first as u32, width));
            let part = bytes.get(first..bytes.len().min(first.saturating_add(size))).unwrap_or_default();
            let value = self.shown_within(kind, bits, part, describe, depth);
            member.name.map_or_else(|| value.clone(), |name| format!("{name} = {value}"))
        });
        format!("{{{}}}", shown.collect::<Vec<_>>().join(", "))
    }

    fn shown_array(
        &self,
        element: u32,
        count: u32,
        bytes: &[u8],
        describe: &Describe<'_>,
        depth: usize,
    ) -> String {
        let kind = NamedType::from(element);
        if self.is_char(NamedType { pointers: 1, ..kind }) {
            return quoted(bytes);
        }
        let Some(size) = self.size_of(kind).filter(|&size| size > 0) else { return "{}".to_string() };
        let elements = bytes.chunks_exact(size.min(MOST_VALUE_BYTES) as usize).take(MOST_ELEMENTS as usize);
        let mut shown: Vec<String> =
            elements.map(|bytes| self.shown_within(kind, None, bytes, describe, depth)).collect();
        if u64::from(count) > shown.len() as u64 {
            shown.push("...".to_string());
        }
        format!("{{{}}}", shown.join(", "))
    }

    /// Whether a pointer points to characters.
    fn is_char(&self, pointer: NamedType) -> bool {
        let is_byte = |number| {
            matches!(self.meaning(number), Some((_, Shape::Integer { size: 1, is_bool: false, .. })))
        };
        let is_named_char = |number| {
            let meaning = self.meaning(number).and_then(|(number, _)| self.full(number));
            meaning.is_some_and(|found| found.name == Some("char"))
        };
        pointer.pointers == 1 && is_byte(pointer.number) && is_named_char(pointer.number)
    }
}

impl From<u32> for NamedType {
    fn from(number: u32) -> NamedType {
        NamedType { number, pointers: 0 }
    }
}

/// The functions with which values are described.
pub struct Describe<'a> {
    /// Reads guest memory, for texts.
    pub read: &'a ReadMemory<'a>,
    /// The symbol at an address, with the offset of the address in it.
    pub symbol: &'a dyn Fn(u64) -> Option<String>,
}

impl Describe<'_> {
    fn pointer(&self, address: u64, to_text: bool) -> String {
        if address == 0 {
            return "NULL".to_string();
        }
        if to_text {
            let mut bytes = [0; MOST_TEXT_BYTES];
            let count = (self.read)(address, &mut bytes);
            if count > 0 {
                return format!("{address:#x} {}", quoted(&bytes[..count]));
            }
        }
        match (self.symbol)(address) {
            Some(symbol) => format!("{address:#x} <{symbol}>"),
            None => format!("{address:#x}"),
        }
    }
}

/// The names of integer types in BTF have another order of words than people write.
fn spelled_as_in_btf(words: &[&str]) -> String {
    let has = |word| words.contains(&word);
    let longs = words.iter().filter(|&&word| word == "long").count();
    let is_integer =
        words.iter().all(|word| ["unsigned", "signed", "long", "int", "short", "char"].contains(word));
    if !is_integer {
        return words.join(" ");
    }
    match (longs, has("unsigned")) {
        (0, unsigned) if has("char") => if unsigned { "unsigned char" } else { "char" }.to_string(),
        (0, unsigned) if has("short") => {
            if unsigned { "short unsigned int" } else { "short int" }.to_string()
        }
        (0, unsigned) => if unsigned { "unsigned int" } else { "int" }.to_string(),
        (1, unsigned) => if unsigned { "long unsigned int" } else { "long int" }.to_string(),
        (_, unsigned) => if unsigned { "long long unsigned int" } else { "long long int" }.to_string(),
    }
}

/// The words of a type's name in C, without qualifiers and asterisks.
fn words_of_type(name: &str) -> Vec<&str> {
    let words = name.split(|letter: char| letter.is_whitespace() || letter == '*');
    words.filter(|word| !word.is_empty() && !["const", "volatile"].contains(word)).collect()
}

/// A type's name as compilers write it into debug information, without `struct`, `union` and `enum`.
pub(crate) fn plain_name(name: &str) -> String {
    match words_of_type(name)[..] {
        ["struct" | "union" | "enum", name] => name.to_string(),
        ref words => spelled_as_in_btf(words),
    }
}

/// A number in the guest's byte order, or some of its bits.
fn number_of(bytes: &[u8], bits: Option<(u32, u8)>) -> u64 {
    let mut all = [0; 8];
    let count = bytes.len().min(8);
    all[..count].copy_from_slice(&bytes[..count]);
    let number = u64::from_le_bytes(all);
    match bits {
        Some((first, width)) if width < 64 => number.checked_shr(first).unwrap_or(0) & ((1 << width) - 1),
        _ => number,
    }
}

/// A number of this many bits, with a sign.
fn signed(number: u64, width: u32) -> i64 {
    let unused = 64_u32.saturating_sub(width.max(1)).min(63);
    (number << unused) as i64 >> unused
}

/// A text up to its NUL, in quotes.
fn quoted(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0);
    let shown = &bytes[..end.unwrap_or(bytes.len()).min(MOST_TEXT_BYTES)];
    let rest = if end.is_none() && bytes.len() >= MOST_TEXT_BYTES { "..." } else { "" };
    let shown = shown.escape_ascii().to_string().replace("\\'", "'");
    format!("\"{shown}\"{rest}")
}

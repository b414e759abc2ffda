//! Finds the memory of a variable that a person named: a symbol or an address, with a length or a type.

use guest_symbols::Symbols;
use guest_symbols::btf::Btf;
use guest_symbols::typed::{NamedType, TypeBytes, Variable};
use history::timeline::number;
use machine::Processor;
use machine::position::Instructions;

use crate::debug_files::DebugFiles;

/// The length in bytes of a variable for which the user gives no type and no length. A smaller symbol has its own
/// length.
const DEFAULT_BYTES: u64 = 8;

/// The syntax of a variable.
pub const VARIABLES: &str = "\
Variables:
  SYMBOL, ADDRESS          eight bytes, or a smaller symbol's size, as a number
  ADDRESS:16               this number of bytes
  (TYPE)SYMBOL.FIELD       a type of the guest's kernel, then .FIELD, ->FIELD and [NUMBER] as in C, as in
                           (task_struct)init_task.comm or (list_head)modules.next
  VARIABLE.FIELD           with --symbols FILE: a variable of FILE, which has the variable's type, as in
                           table[3].next->value. Types of FILE may stand in (TYPE), too";

/// The names that a variable's text may use.
#[derive(Clone, Copy)]
pub struct Names<'a> {
    /// The symbols of the guest's kernel.
    pub symbols: Option<&'a Symbols>,
    /// The types of the guest's kernel, if it has type information.
    pub types: Option<&'a Btf<'a>>,
    /// The files that the user named.
    pub files: &'a DebugFiles,
}

/// A variable that was found.
pub struct Found {
    /// The variable's address, size and type.
    pub variable: Variable,
    /// Whose types the variable's type is one of.
    pub origin: TypeOrigin,
}

/// The origin of a type.
pub enum TypeOrigin {
    /// The variable has no type.
    None,
    /// The kernel's type information.
    Kernel,
    /// A file's debug information.
    File(TypeBytes),
}

/// Whether a text of a variable names a type.
pub fn names_type(text: &str) -> bool {
    text.trim_start().starts_with('(')
}

/// Whether a text of a variable names a type, or follows fields.
pub fn is_typed(text: &str) -> bool {
    names_type(text) || text.contains('[') || text.contains("->")
}

/// Whether a text begins with a variable of the files.
pub fn is_of_files(text: &str, files: &DebugFiles) -> bool {
    let (base, path) = split_path(text);
    files.have(base) && !path.starts_with([':', '+'])
}

/// Parses a variable, and follows its fields and pointers in the memory that the processor sees now. The error is a sentence.
pub fn find(text: &str, processor: &Processor<'_, Instructions>, names: Names<'_>) -> Result<Found, String> {
    let wrong = |why: String| format!("'{text}': {why}");
    if let Some(inner) = text.strip_prefix('(') {
        return cast(inner, processor, names).map_err(wrong);
    }
    if is_of_files(text, names.files) {
        return of_files(text, processor, names).map_err(wrong);
    }
    if is_typed(text) {
        let (base, _) = split_path(text);
        let why =
            format!("the type of '{base}' is not known: write (TYPE){text}, or give a file with --symbols");
        return Err(wrong(why));
    }
    let variable = untyped(text, names.symbols).ok_or_else(|| wrong(unknown(text, names.files)))?;
    Ok(Found { variable, origin: TypeOrigin::None })
}

/// A variable after a type: `TYPE)BASE.FIELD`.
fn cast(inner: &str, processor: &Processor<'_, Instructions>, names: Names<'_>) -> Result<Found, String> {
    let (name, rest) = inner.split_once(')').ok_or("a '(' has no ')'")?;
    let (base, path) = split_path(rest.trim());
    let address = address_of(base, processor, names)?;
    if let Some(converted) = names.files.type_named(name) {
        return in_file(converted.bytes, converted.kind, address, path, processor);
    }
    let no_types = "the guest's kernel has no type information (CONFIG_DEBUG_INFO_BTF): write ADDRESS:LENGTH";
    let types = names.types.ok_or(no_types)?;
    let no_type = || format!("the guest's kernel{} has no type '{name}'", names.files.alternatives());
    let kind = types.type_named(name).ok_or_else(no_type)?;
    let variable = follow(types, kind, address, path, processor)?;
    Ok(Found { variable, origin: TypeOrigin::Kernel })
}

/// A variable of the files: `NAME`, `NAME.FIELD`, `NAME[3]`, `NAME->FIELD`.
fn of_files(text: &str, processor: &Processor<'_, Instructions>, names: Names<'_>) -> Result<Found, String> {
    let (base, path) = split_path(text);
    let placed = names.files.variable(base, processor, names.symbols)?;
    let placed = placed.ok_or_else(|| unknown(base, names.files))?;
    match placed.kind {
        Some(converted) => in_file(converted.bytes, converted.kind, placed.address, path, processor),
        None if path.is_empty() => {
            let size =
                placed.size.filter(|&size| size > 0).map_or(DEFAULT_BYTES, |size| size.min(DEFAULT_BYTES));
            let kind = NamedType { number: 0, pointers: 0 };
            let variable = Variable { address: placed.address, size, kind, bits: None };
            Ok(Found { variable, origin: TypeOrigin::None })
        }
        None => Err(format!("the type of '{base}' is not known: its file has no debug information")),
    }
}

fn in_file(
    bytes: TypeBytes,
    kind: NamedType,
    address: u64,
    path: &str,
    processor: &Processor<'_, Instructions>,
) -> Result<Found, String> {
    let types = bytes.kernel().map_err(|missing| missing.to_string())?;
    let variable = follow(&types, kind, address, path, processor)?;
    Ok(Found { variable, origin: TypeOrigin::File(bytes) })
}

fn follow(
    types: &Btf<'_>,
    kind: NamedType,
    address: u64,
    path: &str,
    processor: &Processor<'_, Instructions>,
) -> Result<Variable, String> {
    // A type that is only declared has no size, but a pointer or a field may follow.
    let size = types.size_of(kind).unwrap_or(0);
    let read = |address: u64, to: &mut [u8]| processor.peek(address, to);
    types.follow(Variable { address, size, kind, bits: None }, path, &read)
}

/// Splits a variable's text before the first field, index or length.
fn split_path(text: &str) -> (&str, &str) {
    let end = text.find(|letter| ".[-:+".contains(letter)).unwrap_or(text.len());
    let (base, path) = text.split_at(end);
    (base.trim(), path)
}

fn unknown(name: &str, files: &DebugFiles) -> String {
    format!("'{name}' is neither an address nor a symbol of the guest's kernel{}", files.alternatives())
}

/// The address that a name or a number means.
fn address_of(base: &str, processor: &Processor<'_, Instructions>, names: Names<'_>) -> Result<u64, String> {
    let of_files = names.files.variable(base, processor, names.symbols)?.map(|placed| placed.address);
    let of_kernel = || place(base, names.symbols).map(|(address, _)| address);
    of_files.or_else(of_kernel).ok_or_else(|| unknown(base, names.files))
}

/// The address that a symbol's name or a number gives, and the symbol's size if `text` is a name.
fn place(text: &str, symbols: Option<&Symbols>) -> Option<(u64, Option<u64>)> {
    if let Some(address) = number(text) {
        return Some((address, None));
    }
    let symbol = symbols?.named(text)?;
    Some((symbol.address, Some(symbol.size)))
}

/// A variable without a type: an address or a symbol, with or without a length.
fn untyped(text: &str, symbols: Option<&Symbols>) -> Option<Variable> {
    let (base, length) = match text.split_once(':') {
        Some((base, length)) => (base, Some(number(length)?)),
        None => (text, None),
    };
    let (address, symbol_size) = place(base, symbols)?;
    let size = length.unwrap_or_else(|| {
        symbol_size.filter(|&size| size > 0).map_or(DEFAULT_BYTES, |size| size.min(DEFAULT_BYTES))
    });
    Some(Variable { address, size, kind: NamedType { number: 0, pointers: 0 }, bits: None })
}

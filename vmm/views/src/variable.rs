//! Finds the memory of a variable that a person named: a symbol or an address, with a length or a type of the guest's kernel.

use guest_symbols::Symbols;
use guest_symbols::btf::Btf;
use guest_symbols::typed::{NamedType, Variable};
use history::timeline::number;
use machine::Processor;
use machine::position::Instructions;

/// The length in bytes of a variable for which the user gives no type and no length. A smaller symbol has its own
/// length.
const DEFAULT_BYTES: u64 = 8;

/// The syntax of a variable.
pub const VARIABLES: &str = "\
Variables:
  SYMBOL, ADDRESS          eight bytes, or a smaller symbol's size, as a number
  ADDRESS:16               this number of bytes
  (TYPE)SYMBOL.FIELD       a type of the guest's kernel, then .FIELD, ->FIELD and [NUMBER] as in C, as in
                           (task_struct)init_task.comm or (list_head)modules.next";

/// Whether the text of a variable names a type.
pub fn is_typed(text: &str) -> bool {
    text.starts_with('(')
}

/// Parses a variable, and follows its fields and pointers in the memory that the processor sees now. `types` are the types
/// of the guest's kernel, if the kernel has type information. The error is a sentence.
pub fn find(
    text: &str,
    processor: &Processor<'_, Instructions>,
    symbols: Option<&Symbols>,
    types: Option<&Btf<'_>>,
) -> Result<Variable, String> {
    let wrong = |why: String| format!("'{text}': {why}");
    let Some(inner) = text.strip_prefix('(') else {
        return untyped(text, symbols).ok_or_else(|| wrong(unknown(text)));
    };
    let no_close = || wrong("a '(' has no ')'".to_string());
    let (name, rest) = inner.split_once(')').ok_or_else(no_close)?;
    let no_types = "the guest's kernel has no type information (CONFIG_DEBUG_INFO_BTF): write ADDRESS:LENGTH";
    let types = types.ok_or_else(|| wrong(no_types.to_string()))?;
    let kind =
        types.type_named(name).ok_or_else(|| wrong(format!("the guest's kernel has no type '{name}'")))?;
    let end = rest.find(|letter| ".[-".contains(letter)).unwrap_or(rest.len());
    let (base, path) = rest.trim().split_at(end.min(rest.trim().len()));
    let (address, _) = place(base, symbols).ok_or_else(|| wrong(unknown(base)))?;
    // A type that is only declared has no size, but a pointer or a field may follow.
    let size = types.size_of(kind).unwrap_or(0);
    let read = |address: u64, to: &mut [u8]| processor.peek(address, to);
    types.follow(Variable { address, size, kind, bits: None }, path, &read).map_err(wrong)
}

fn unknown(name: &str) -> String {
    format!("'{name}' is neither an address nor a symbol of the guest's kernel")
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

//! Functions of the guest's kernel with their prototypes: arguments and results as text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Formatter, Result as Written};

use guest_symbols::Symbol;
use guest_symbols::btf::Btf;
use guest_symbols::typed::{Describe, MOST_VALUE_BYTES, NamedType, Signature, Variable};
use schemars::JsonSchema;
use serde::Serialize;

use crate::guest_kernel::GuestKernel;
use crate::system_calls::result_in_words;

/// The most arguments that are shown for a function whose prototype is not known: the six registers of the calling
/// convention.
const REGISTERS: [(usize, &str); 6] = [(7, "rdi"), (6, "rsi"), (2, "rdx"), (1, "rcx"), (8, "r8"), (9, "r9")];
/// The most parameters of a function that are shown.
const MOST_PARAMETERS: usize = 32;
/// An argument of a call.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Argument {
    /// The parameter's name, or a register's name if the prototype is not known.
    pub name: String,
    /// The parameter's type, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The value as text.
    pub value: String,
}

/// The name and the signature of a function.
struct Function {
    name: String,
    /// The signature, and the index of its type information in [`Functions::types`].
    signature: Option<(usize, Signature)>,
}

/// Some functions of one kernel.
pub(crate) struct Functions<'a> {
    functions: BTreeMap<u64, Function>,
    /// The types of the kernel and of its modules.
    types: Vec<Btf<'a>>,
}

impl<'a> Functions<'a> {
    /// The functions of these symbols, with their prototypes from the kernel's types (the first) and its modules' types.
    pub fn of(symbols: Vec<&Symbol>, types: Vec<Btf<'a>>) -> Functions<'a> {
        let names: BTreeSet<&str> = symbols.iter().map(|symbol| symbol.name.as_str()).collect();
        let mut signatures: BTreeMap<String, (usize, Signature)> = BTreeMap::new();
        // If the kernel and a module have a function of the same name, the kernel's signature replaces the module's
        // signature.
        for (number, types) in types.iter().enumerate().rev() {
            let found = types.signatures(&|name| names.contains(name));
            signatures.extend(found.into_iter().map(|(name, signature)| (name, (number, signature))));
        }
        let function = |symbol: &Symbol| {
            let signature = signatures.get(&symbol.name).cloned();
            (symbol.address, Function { name: symbol.name.clone(), signature })
        };
        Functions { functions: symbols.into_iter().map(function).collect(), types }
    }

    /// A function of which only the address is known.
    pub fn without_name(address: u64) -> Functions<'a> {
        let function = Function { name: format!("{address:#x}"), signature: None };
        Functions { functions: [(address, function)].into(), types: Vec::new() }
    }

    /// The addresses of all functions.
    pub fn addresses(&self) -> impl Iterator<Item = u64> {
        self.functions.keys().copied()
    }

    /// The name of the function at an address.
    pub fn name(&self, address: u64) -> Option<&str> {
        self.functions.get(&address).map(|function| function.name.as_str())
    }

    fn signature(&self, address: u64) -> Option<(&Btf<'a>, &Signature)> {
        let (number, signature) = self.functions.get(&address)?.signature.as_ref()?;
        Some((self.types.get(*number)?, signature))
    }

    /// The arguments of the function at an address, which is about to execute its first instruction, by the calling convention
    /// of System V for x86-64. `gpr` are the registers.
    pub fn arguments(&self, address: u64, gpr: &[u64; 16], describe: &Describe<'_>) -> Vec<Argument> {
        let Some((types, signature)) = self.signature(address) else {
            let register = |&(number, name): &(usize, &str)| Argument {
                name: name.to_string(),
                kind: None,
                value: format!("{:#x}", gpr[number]),
            };
            return REGISTERS.iter().map(register).collect();
        };
        let (mut registers, mut on_stack) =
            (REGISTERS.iter().map(|&(number, _)| gpr[number]), gpr[4].wrapping_add(8));
        let mut found = Vec::new();
        for (number, (name, kind)) in signature.parameters.iter().take(MOST_PARAMETERS).enumerate() {
            let (kind, name) =
                (NamedType::from(*kind), name.clone().unwrap_or_else(|| format!("arg{number}")));
            if kind.number == 0 {
                found.push(Argument { name: "...".to_string(), kind: None, value: String::new() });
                break;
            }
            let size = types.size_of(kind).unwrap_or(8);
            let words = size.div_ceil(8).max(1);
            // A structure of more than two words, and an argument that needs more registers than are left, is on the stack.
            let in_registers = words <= 2 && registers.len() as u64 >= words;
            let bytes: Vec<u8> = if in_registers {
                registers.by_ref().take(words as usize).flat_map(u64::to_le_bytes).collect()
            } else {
                let mut bytes = vec![0; (8 * words).min(MOST_VALUE_BYTES) as usize];
                let count = (describe.read)(on_stack, &mut bytes);
                bytes.truncate(count);
                on_stack = on_stack.wrapping_add(8 * words);
                bytes
            };
            let bytes = &bytes[..bytes.len().min(size as usize)];
            let value = types.shown(&Variable { address: 0, size, kind, bits: None }, bytes, describe);
            found.push(Argument { name, kind: Some(types.spelled(kind)), value });
        }
        found
    }

    /// The result of the function at an address as text, from the value of RAX. `None` if the function has no result.
    pub fn result(&self, address: u64, value: u64, symbol: &dyn Fn(u64) -> Option<String>) -> Option<String> {
        let Some((types, signature)) = self.signature(address) else { return Some(format!("{value:#x}")) };
        let kind = NamedType::from(signature.result);
        let size = types.size_of(kind)?;
        let number = if size == 4 { value as i32 as u64 } else { value };
        // A number from -4095 to -1 is an error, for pointers too.
        if size >= 4 && (-4095..0).contains(&(number as i64)) {
            return Some(result_in_words(number, false));
        }
        let describe = Describe { read: &|_, _| 0, symbol };
        let variable = Variable { address: 0, size, kind, bits: None };
        Some(types.shown(&variable, &value.to_le_bytes()[..size.min(8) as usize], &describe))
    }
}

/// The symbol at an address, with the offset in it.
pub(crate) fn symbol_at(kernel: Option<&GuestKernel>, address: u64) -> Option<String> {
    let (name, offset) = kernel?.symbols.name_of(address)?;
    Some(if offset == 0 { name.to_string() } else { format!("{name}+{offset:#x}") })
}

impl Display for Argument {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let Argument { name, value, .. } = self;
        if value.is_empty() { f.write_str(name) } else { write!(f, "{name} = {value}") }
    }
}

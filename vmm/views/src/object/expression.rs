//! Parses the texts that people write for the address of an object.

use std::fmt::{Display, Formatter, Result as Written};

use guest_symbols::{GuestView, KernelView, Symbols};
use history::replay::registers;
use history::timeline::number;
use machine::Processor;
use machine::position::Instructions;

/// The notations of an address, for messages.
pub const ADDRESSES: &str = "ADDRESS, REGISTER or SYMBOL, each with +OFFSET or -OFFSET, or * before it for a stored pointer, or phys:ADDRESS";

/// An address in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Virtual(u64),
    Physical(u64),
}

impl Address {
    /// The address that a text means for a processor at its machine's present place.
    pub fn parse(
        text: &str,
        processor: &Processor<'_, Instructions>,
        symbols: &Symbols,
    ) -> Result<Address, String> {
        let text = text.trim();
        match text.strip_prefix("phys:") {
            Some(address) => number(address).map(Address::Physical).ok_or_else(|| unknown(text)),
            None => pointer(text, processor, symbols).map(Address::Virtual),
        }
    }

    /// The physical address. `None` if the address is not mapped.
    pub fn physical(self, guest: &dyn GuestView) -> Option<u64> {
        match self {
            Address::Virtual(address) => KernelView::all(guest).find_map(|view| view.physical(address)),
            Address::Physical(address) => Some(address),
        }
    }
}

impl Display for Address {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        match self {
            Address::Virtual(address) => write!(f, "{address:#x}"),
            Address::Physical(address) => write!(f, "phys:{address:#x}"),
        }
    }
}

fn unknown(text: &str) -> String {
    format!("'{text}' is no address: write {ADDRESSES}")
}

fn pointer(text: &str, processor: &Processor<'_, Instructions>, symbols: &Symbols) -> Result<u64, String> {
    let Some(pointer) = text.strip_prefix('*') else { return place(text, processor, symbols) };
    let at = place(pointer.trim(), processor, symbols)?;
    let mut bytes = [0; 8];
    if processor.peek(at, &mut bytes) != bytes.len() {
        return Err(format!("there is no memory at {at:#x} at this position: choose another position"));
    }
    Ok(u64::from_le_bytes(bytes))
}

fn place(text: &str, processor: &Processor<'_, Instructions>, symbols: &Symbols) -> Result<u64, String> {
    let unknown = || unknown(text);
    let sign = text.rfind(['+', '-']).filter(|&at| at > 0);
    let (base, offset) = match sign {
        Some(at) => (&text[..at], number(&text[at + 1..]).ok_or_else(unknown)?),
        None => (text, 0),
    };
    let named = base.strip_prefix('$').unwrap_or(base);
    let register = registers::named(processor.state()).into_iter().find(|(name, _)| *name == named);
    let base = register
        .map(|(_, value)| value)
        .or_else(|| number(base))
        .or_else(|| symbols.address_of(base))
        .ok_or_else(unknown)?;
    let is_minus = sign.is_some_and(|at| text.as_bytes()[at] == b'-');
    Ok(if is_minus { base.wrapping_sub(offset) } else { base.wrapping_add(offset) })
}

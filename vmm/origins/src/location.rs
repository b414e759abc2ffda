//! Parses the texts that people write for the location of a value.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::Arc;

use guest_symbols::Symbols;
use guest_symbols::typed::{TypeBytes, Variable};
use history::timeline::number;
use machine::error::Error;
use machine::position::Instructions;
use machine::{Machine, Processor};
use views::debug_files::DebugFiles;
use views::guest_kernel::GuestKernels;
use views::processors;
use views::variable::{self, Names};

use crate::cell::{Cell, Reg};

/// The largest number of bytes that are followed at once.
pub const MOST_BYTES: u64 = 8;

/// The notations of a [`Location`], for messages.
pub const LOCATIONS: &str = "a register (rax, eax, xmm3), ADDRESS[:LENGTH], SYMBOL[+OFFSET][:LENGTH], phys:ADDRESS[:LENGTH] or \
    (TYPE)SYMBOL.FIELD";

/// The location of a value: a register, or some bytes of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    place: Place,
    /// The length in bytes that the text gives.
    length: Option<u64>,
    text: String,
    /// Files whose variables and types the text may name.
    files: Arc<DebugFiles>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Register(Reg, u8, u8),
    Linear(u64),
    Physical(u64),
    Symbol {
        name: String,
        offset: u64,
    },
    /// A variable with a type, in the notation of [`variable::VARIABLES`].
    Typed,
}

/// The bytes that a location means at one place of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The bytes, the lowest first.
    pub cells: Vec<Cell>,
    /// The virtual address of the first byte, if the location is in memory and has a virtual address.
    pub linear: Option<u64>,
}

impl FromStr for Location {
    type Err = String;

    fn from_str(text: &str) -> Result<Location, String> {
        let wrong = || format!("'{text}' is no location: write {LOCATIONS}");
        if let Some((register, first, bytes)) = Reg::named(text.strip_prefix('$').unwrap_or(text)) {
            return Ok(Location {
                place: Place::Register(register, first, bytes),
                length: None,
                text: register.name(first, bytes),
                files: Arc::default(),
            });
        }
        if variable::is_typed(text) {
            return Ok(Location {
                place: Place::Typed,
                length: None,
                text: text.to_string(),
                files: Arc::default(),
            });
        }
        let (physical, rest) = match text.strip_prefix("phys:") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (at, length) = match rest.rsplit_once(':') {
            Some((at, length)) => (at, Some(number(length).ok_or_else(wrong)?)),
            None => (rest, None),
        };
        if length.is_some_and(|length| !(1..=MOST_BYTES).contains(&length)) {
            return Err(format!(
                "'{text}' has a length that cannot be followed: write 1 to {MOST_BYTES} bytes"
            ));
        }
        let place = match number(at).filter(|_| !at.starts_with('+')) {
            Some(address) if physical => Place::Physical(address),
            Some(address) => Place::Linear(address),
            None if physical => return Err(wrong()),
            None => symbol(at).ok_or_else(wrong)?,
        };
        Ok(Location { place, length, text: text.to_string(), files: Arc::default() })
    }
}

fn symbol(text: &str) -> Option<Place> {
    let (name, offset) = match text.rsplit_once('+') {
        Some((name, offset)) => (name, number(offset)?),
        None => (text, 0),
    };
    let begins = name.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_');
    let is_name =
        begins && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_.$".contains(letter));
    is_name.then(|| Place::Symbol { name: name.to_string(), offset })
}

impl Display for Location {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Location {
    /// The same location, whose text may name variables and types of these files.
    #[must_use]
    pub fn with_files(self, files: Arc<DebugFiles>) -> Location {
        Location { files, ..self }
    }

    /// The bytes that the location means for a processor at the machine's present place, with their values. Without a
    /// processor's number, takes the running processor.
    pub fn values(
        &self,
        machine: &Machine<Instructions>,
        processor: Option<usize>,
        kernels: &GuestKernels,
    ) -> Result<Vec<(Cell, u8)>, Error> {
        let processor = match processor {
            Some(number) => processors::find(machine, number)?,
            None => machine.running_processor(),
        };
        let kernel = kernels.at(machine);
        let found = self.find(&processor, kernel.map(|kernel| &*kernel.symbols)).map_err(Error::Position)?;
        let value = |cell: &Cell| match cell {
            Cell::Register { register, byte, .. } => register.byte_in(processor.state(), *byte),
            Cell::Memory(address) => {
                let mut byte = [0];
                machine.read_physical(*address, &mut byte);
                byte[0]
            }
        };
        Ok(found.cells.iter().map(|cell| (*cell, value(cell))).collect())
    }

    /// The bytes that the location means for a processor at its machine's present place.
    pub fn find(
        &self,
        processor: &Processor<'_, Instructions>,
        symbols: Option<&Symbols>,
    ) -> Result<Found, String> {
        let length = self.length.unwrap_or(MOST_BYTES);
        match &self.place {
            Place::Register(register, first, bytes) => {
                let (processor, register) = (processor.number(), *register);
                let cell = |byte| Cell::Register { processor, register, byte };
                Ok(Found { cells: (*first..first + bytes).map(cell).collect(), linear: None })
            }
            Place::Physical(address) => {
                let bytes = (0..length).map_while(|at| address.checked_add(at));
                let found = Found { cells: bytes.map(Cell::Memory).collect(), linear: None };
                self.must_be_ram(processor, found)
            }
            Place::Linear(address) => self.linear(processor, *address, length),
            Place::Symbol { .. } if variable::is_of_files(&self.text, &self.files) => {
                self.variable(processor, symbols)
            }
            Place::Symbol { name, offset } => {
                let none = || format!("the guest's kernel has no symbol {name} at this position");
                let symbol = symbols.and_then(|symbols| symbols.named(name)).ok_or_else(none)?;
                let rest = symbol.size.saturating_sub(*offset);
                let length = self.length.unwrap_or(if rest == 0 { MOST_BYTES } else { rest.min(MOST_BYTES) });
                self.linear(processor, symbol.address.wrapping_add(*offset), length)
            }
            Place::Typed => self.variable(processor, symbols),
        }
    }

    /// The bytes of a variable with a type.
    fn variable(
        &self,
        processor: &Processor<'_, Instructions>,
        symbols: Option<&Symbols>,
    ) -> Result<Found, String> {
        let typed = symbols.filter(|_| variable::names_type(&self.text));
        let bytes = typed.and_then(|symbols| TypeBytes::of_guest(processor.machine(), symbols).ok());
        let types = bytes.as_ref().and_then(|bytes| bytes.kernel().ok());
        let names = Names { symbols, types: types.as_ref(), files: &self.files };
        let Variable { address, size, .. } = variable::find(&self.text, processor, names)?.variable;
        if !(1..=MOST_BYTES).contains(&size) {
            return Err(format!("'{self}' has {size} bytes: name a part with 1 to {MOST_BYTES} bytes"));
        }
        self.linear(processor, address, size)
    }

    fn linear(
        &self,
        processor: &Processor<'_, Instructions>,
        address: u64,
        length: u64,
    ) -> Result<Found, String> {
        let physical = |at| processor.peek_address(address.wrapping_add(at));
        let cells: Option<Vec<Cell>> = (0..length).map(|at| physical(at).map(Cell::Memory)).collect();
        let none = || {
            format!("{address:#x} is not mapped at this position; choose another position, or phys:ADDRESS")
        };
        self.must_be_ram(processor, Found { cells: cells.ok_or_else(none)?, linear: Some(address) })
    }

    fn must_be_ram(&self, processor: &Processor<'_, Instructions>, found: Found) -> Result<Found, String> {
        let is_ram = |cell: &Cell| match cell {
            Cell::Memory(address) => processor.machine().read_physical(*address, &mut [0]) == 1,
            Cell::Register { .. } => true,
        };
        let refused = || format!("{self} is not in the guest's memory; choose an address in RAM");
        found.cells.iter().all(is_ram).then_some(found).ok_or_else(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_parsed() {
        let parsed = |text: &str| text.parse::<Location>().map(|location| (location.place, location.length));
        assert_eq!(parsed("eax"), Ok((Place::Register(Reg::General(0), 0, 4), None)));
        assert_eq!(parsed("$r9"), Ok((Place::Register(Reg::General(9), 0, 8), None)));
        assert_eq!(parsed("0x1000:4"), Ok((Place::Linear(0x1000), Some(4))));
        assert_eq!(parsed("phys:0x1000"), Ok((Place::Physical(0x1000), None)));
        let symbol = |name: &str, offset| Place::Symbol { name: name.to_string(), offset };
        assert_eq!(parsed("jiffies_64"), Ok((symbol("jiffies_64", 0), None)));
        assert_eq!(parsed("init_task+0x10:2"), Ok((symbol("init_task", 0x10), Some(2))));
        let typed = "(task_struct)init_task.comm[3]";
        assert_eq!(parsed(typed), Ok((Place::Typed, None)));
        for wrong in ["", "0x1000:0", "0x1000:9", "0x1000:x", "phys:jiffies", "a b", "1x", "+8", "jiffies+x"]
        {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}

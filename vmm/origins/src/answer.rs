//! The result: a chain of links from a value back to its origin, as plain data and as text.

use std::fmt::{Display, Formatter, Result as Written};

use schemars::JsonSchema;
use serde::Serialize;
use views::visible::in_a_line;

use crate::cell::Cell;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Answer {
    /// The location of the value, as the user wrote it.
    pub location: String,
    /// The position of the value: the number of instructions before it.
    pub instruction: u64,
    /// The value in hex.
    pub value: String,
    /// The number of bytes.
    pub bytes: usize,
    /// The writes from the last one back to the first one.
    pub links: Vec<Link>,
    /// Where the chain ends.
    pub end: End,
    /// Steps executed to find the chain.
    pub replayed: u64,
}

/// A write of the value.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Link {
    /// The number of instructions executed before the writing step.
    pub instruction: u64,
    /// The guest's time at the step.
    pub guest_seconds: f64,
    /// The number of the processor, if the machine has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor: Option<usize>,
    /// The thread's number, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The thread's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The instruction's address in hex.
    pub rip: String,
    /// The kernel's function at this address, and the offset in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The disassembled instruction, or the delivered interrupt.
    pub code: String,
    /// The written bytes.
    pub to: Span,
    /// The bytes that were copied, if the step copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Span>,
    /// The value in hex.
    pub value: String,
}

/// Some bytes of registers or memory.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Span {
    /// The location of the bytes as text.
    pub text: String,
    /// The number of bytes.
    pub bytes: usize,
    /// The virtual address of the first byte in hex, if the bytes are in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The physical address of the first byte in hex, if the bytes are in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub physical: Option<String>,
}

/// Where the chain ends.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct End {
    /// The kind of the chain's end.
    pub kind: EndKind,
    /// A description of the chain's end.
    pub text: String,
    /// The number of the log's event from which the value came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<u64>,
    /// The parts of the value that different steps wrote.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
}

/// A part of a value that was put together from parts.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Part {
    /// The number of the part's first byte, counted from the value's lowest byte.
    pub first: usize,
    /// The number of bytes.
    pub bytes: usize,
    /// The step that wrote the part; `None` if the part is unchanged since the start of the recording.
    pub instruction: Option<u64>,
    /// The part's bytes.
    pub span: Span,
    /// The part's value in hex.
    pub value: String,
}

/// The kind of a chain's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndKind {
    /// An instruction computed the value.
    Computed,
    /// An instruction has the value as a constant.
    Constant,
    /// The value came from outside the machine, or from a device.
    Outside,
    /// The value has not changed since the start of the recording.
    Start,
    /// Different steps wrote parts of the value.
    Parts,
    /// The value came from a register that is not followed.
    Unfollowed,
    /// The chain has more links than the requested maximum.
    Limit,
    /// The poll function ended the search.
    Interrupted,
    /// No known rule explains the value.
    Unexplained,
}

impl Span {
    /// Describes some bytes. `linear` is the virtual address of the first one.
    pub(crate) fn of(cells: &[Cell], linear: Option<u64>) -> Span {
        let runs = runs(cells);
        let physical = match cells.first() {
            Some(Cell::Memory(address)) => Some(*address),
            _ => None,
        };
        let texts: Vec<String> = runs
            .iter()
            .map(|(first, bytes, is_reversed)| {
                let text = match first {
                    Cell::Register { register, byte, .. } => register.name(*byte, *bytes as u8),
                    Cell::Memory(address) => match linear.filter(|_| runs.len() == 1) {
                        Some(linear) => format!("[{linear:#x}] (physical {address:#x})"),
                        None => format!("physical {address:#x}"),
                    },
                };
                if *is_reversed { format!("{text}, reversed") } else { text }
            })
            .collect();
        Span {
            text: texts.join(" and "),
            bytes: cells.len(),
            address: linear.filter(|_| physical.is_some()).map(|address| format!("{address:#x}")),
            physical: physical.map(|address| format!("{address:#x}")),
        }
    }
}

/// Consecutive bytes: the lowest byte, the number of bytes, and whether they are in reverse order.
fn runs(cells: &[Cell]) -> Vec<(Cell, usize, bool)> {
    let mut found: Vec<(Cell, usize, bool)> = Vec::new();
    for cell in cells {
        match found.last_mut() {
            Some((first, bytes, false)) if next(*first, *bytes) == Some(*cell) => *bytes += 1,
            Some((first, bytes, is_reversed))
                if (*is_reversed || *bytes == 1) && next(*cell, 1) == Some(*first) =>
            {
                (*first, *bytes, *is_reversed) = (*cell, *bytes + 1, true);
            }
            _ => found.push((*cell, 1, false)),
        }
    }
    found
}

fn next(cell: Cell, bytes: usize) -> Option<Cell> {
    Some(match cell {
        Cell::Register { processor, register, byte } => {
            Cell::Register { processor, register, byte: byte.checked_add(u8::try_from(bytes).ok()?)? }
        }
        Cell::Memory(address) => Cell::Memory(address.checked_add(bytes as u64)?),
    })
}

impl Display for Answer {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let plural = if self.bytes == 1 { "" } else { "s" };
        write!(
            f,
            "{} at insn:{} is {} ({} byte{plural})",
            self.location, self.instruction, self.value, self.bytes
        )?;
        for link in &self.links {
            write!(f, "\n{link}")?;
        }
        write!(f, "\n{}", self.end)
    }
}

impl Display for Link {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        write!(f, "insn:{}", self.instruction)?;
        if let (Some(pid), Some(name)) = (self.pid, &self.name) {
            write!(f, "  {pid} ({name})")?;
        }
        if let Some(processor) = self.processor {
            write!(f, "  on processor {processor}")?;
        }
        // The function's name comes from the guest's memory.
        write!(f, "  {}  {}", in_a_line(self.function.as_ref().unwrap_or(&self.rip)), self.code)?;
        match &self.from {
            Some(from) => write!(f, "\n    {} <- {}", self.to.text, from.text)?,
            None => write!(f, "\n    {}", self.to.text)?,
        }
        write!(f, "  {}", self.value)
    }
}

impl Display for End {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        write!(f, "{}", self.text)?;
        for part in &self.parts {
            let last = part.first + part.bytes - 1;
            let bytes =
                if part.bytes == 1 { format!("byte {last}") } else { format!("bytes {}-{last}", part.first) };
            let writer = part.instruction.map_or_else(
                || "unchanged since the start".to_string(),
                |step| format!("written by insn:{step}"),
            );
            write!(f, "\n    {bytes}  {}  {}  {writer}", part.span.text, part.value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Reg;

    #[test]
    fn bytes_are_named_in_runs() {
        let register = |byte| Cell::Register { processor: 0, register: Reg::General(0), byte };
        let named = |cells: &[Cell]| Span::of(cells, None).text;
        assert_eq!(named(&[register(0), register(1), register(2), register(3)]), "eax");
        assert_eq!(named(&[register(1), register(0)]), "ax, reversed");
        assert_eq!(named(&[register(0), Cell::Memory(16), Cell::Memory(17)]), "al and physical 0x10");
        let memory = Span::of(&[Cell::Memory(16), Cell::Memory(17)], Some(0x1000));
        assert_eq!(memory.text, "[0x1000] (physical 0x10)");
        assert_eq!((memory.bytes, memory.physical.as_deref()), (2, Some("0x10")));
    }
}

//! The result: where a value went, as plain data and as text.

use std::fmt::{Display, Formatter, Result as Written};

use schemars::JsonSchema;
use serde::Serialize;
use views::moment::Moment;
use views::visible::in_a_line;

use crate::answer::Span;

/// Where a value went.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Onward {
    /// The location of the value, as the user wrote it.
    pub location: String,
    /// The position of the value: the number of instructions before it.
    pub instruction: u64,
    /// The value in hex.
    pub value: String,
    /// The number of bytes.
    pub bytes: usize,
    /// The copies and uses of the value, in the order of the run.
    pub passages: Vec<Passage>,
    /// Why the search ended.
    pub end: End,
    /// The position at which the search ended.
    pub end_instruction: u64,
    /// The bytes that hold the value at the end of the search.
    pub left: Vec<Span>,
    /// Whether more bytes hold the value than `left` has.
    pub has_more_left: bool,
    /// Steps executed to find the passages.
    pub replayed: u64,
}

/// A step that copied or used the value.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Passage {
    /// The kind of the copy or use.
    pub kind: Kind,
    /// The position of the step, and its thread.
    #[serde(flatten)]
    pub moment: Moment,
    /// The instruction's address in hex.
    pub rip: String,
    /// The kernel's function at this address, and the offset in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The disassembled instruction.
    pub code: String,
    /// The bytes with the value that the step read.
    pub from: Span,
    /// The bytes to which the step copied the value, or in which it put the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Span>,
    /// The device that got the value, and the place at the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The value in hex.
    pub value: String,
    /// How often the same instruction did the same.
    pub times: u64,
}

/// A kind of copy or use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The step copied bytes of the value.
    Copied,
    /// The step computed something from the value.
    Computed,
    /// The step compared the value with another.
    Compared,
    /// The value was part of the address of an operand in memory.
    Address,
    /// The step jumped to the value.
    Jumped,
    /// A device got the value.
    Sent,
}

/// Why a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// The search came to the last position to search.
    Searched,
    /// No byte holds the value any more.
    Gone,
    /// There are more passages than the requested maximum.
    Limit,
    /// The poll function ended the search.
    Interrupted,
}

impl Kind {
    fn text(self) -> &'static str {
        match self {
            Kind::Copied => "copied",
            Kind::Computed => "computed with",
            Kind::Compared => "compared",
            Kind::Address => "used as an address",
            Kind::Jumped => "jumped to",
            Kind::Sent => "sent",
        }
    }
}

impl Display for Onward {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let plural = if self.bytes == 1 { "" } else { "s" };
        let (location, at) = (&self.location, self.instruction);
        write!(f, "{location} at insn:{at} is {} ({} byte{plural})", self.value, self.bytes)?;
        for passage in &self.passages {
            write!(f, "\n{passage}")?;
        }
        let at = self.end_instruction;
        match self.end {
            End::Searched => write!(f, "\nat insn:{at} the value is in:")?,
            End::Gone => return write!(f, "\nall copies are overwritten at insn:{at}"),
            End::Limit => write!(f, "\nthe search ended at insn:{at}; raise --limit; the value is in:")?,
            End::Interrupted => write!(f, "\ninterrupted at insn:{at}; the value is in:")?,
        }
        self.left.iter().try_for_each(|span| write!(f, "\n    {}", span.text))?;
        if self.has_more_left { write!(f, "\n    and in more places") } else { Ok(()) }
    }
}

impl Display for Passage {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        // The function's name comes from the guest's memory.
        let place = in_a_line(self.function.as_ref().unwrap_or(&self.rip));
        write!(f, "{}  {place}  {}\n    {}: {}", self.moment, self.code, self.kind.text(), self.from.text)?;
        self.to.iter().try_for_each(|to| write!(f, " -> {}", to.text))?;
        self.device.iter().try_for_each(|device| write!(f, " -> {device}"))?;
        write!(f, "  {}", self.value)?;
        if self.times > 1 { write!(f, "  {} times", self.times) } else { Ok(()) }
    }
}

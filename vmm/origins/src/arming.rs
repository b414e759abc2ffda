//! Where a call came from: from a callback of the guest's kernel back to the place that armed it.

mod walk;

use std::fmt::{Display, Formatter, Result as Written};

use machine::position::Instructions;
use schemars::JsonSchema;
use serde::Serialize;
use views::guest_kernel::Backtrace;
use views::moment::Moment;
use views::visible::in_a_line;

use crate::answer::Answer;
use crate::callback::Kind;

/// The number of functions of a backtrace in the text.
const SHOWN_FRAMES: usize = 6;

/// A question: which place of the run made the kernel execute a function?
#[derive(Clone, Copy, Debug)]
pub struct WhoArmed<'a> {
    /// The function, which must be in the kernel's stack. By default, the innermost function of a known kind, or the
    /// innermost function that was called through a pointer.
    pub function: Option<&'a str>,
    /// The number of the processor that executes the function. By default, the running processor.
    pub processor: Option<usize>,
    /// The position at which the kernel executes the function.
    pub at: Instructions,
    /// The largest number of links.
    pub limit: usize,
}

/// Where a call came from.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Arming {
    /// The position of the question.
    #[serde(flatten)]
    pub at: Moment,
    /// The callbacks, from the last one back to the first one.
    pub links: Vec<Link>,
    /// Where the chain ends.
    pub end: End,
    /// Steps executed to find the chain.
    pub replayed: u64,
}

/// A callback and the place that armed it.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Link {
    /// The kind of the callback.
    pub kind: Kind,
    /// The function's name.
    pub function: String,
    /// The function that called the callback.
    pub caller: String,
    /// The function's first argument in hex: for most kinds the address of the timer, work item and so on.
    pub argument: String,
    /// The call of the callback.
    pub called: Moment,
    /// The step that armed the callback, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub armed: Option<Moment>,
    /// The function that armed the callback: the innermost one that is not part of the kernel's own functions for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The kernel's stack at the step that armed the callback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backtrace: Option<Backtrace>,
    /// For a function pointer, the chain of its writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pointer: Option<Answer>,
}

/// Where the chain ends.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct End {
    /// The kind of the chain's end.
    pub kind: EndKind,
    /// A description of the chain's end.
    pub text: String,
}

/// The kind of a chain's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndKind {
    /// A program, which entered the kernel.
    Program,
    /// An interrupt or exception.
    Interrupt,
    /// The beginning of a kernel stack.
    Stack,
    /// The callback arms itself again each time.
    Itself,
    /// A function pointer, whose writes the last link has.
    Pointer,
    /// The recording does not have the step that armed the callback.
    Unknown,
    /// The chain has more links than the requested maximum.
    Limit,
    /// The poll function ended the search.
    Interrupted,
}

impl Display for Arming {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        writeln!(f, "at {}", self.at)?;
        for link in &self.links {
            writeln!(f, "{link}")?;
        }
        // The text may have names from the guest's memory.
        let text = in_a_line(&self.end.text);
        match self.end.kind {
            EndKind::Unknown | EndKind::Limit | EndKind::Interrupted => write!(f, "{text}"),
            _ => write!(f, "from {text}"),
        }
    }
}

impl Display for Link {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        // The functions' names come from the guest's memory.
        let (function, caller) = (in_a_line(&self.function), in_a_line(&self.caller));
        let what = self.kind.words();
        write!(f, "{what} {function}({}), called by {caller} at {}", self.argument, self.called)?;
        if let (Some(armed), Some(by)) = (&self.armed, &self.by) {
            write!(f, "\n  {} by {} at {armed}", self.kind.armed(), in_a_line(by))?;
        }
        if let Some(backtrace) = &self.backtrace {
            for call in backtrace.frames.iter().take(SHOWN_FRAMES) {
                write!(f, "\n    {}", in_a_line(call.name()))?;
            }
            if backtrace.frames.len() > SHOWN_FRAMES {
                write!(f, "\n    ...")?;
            }
        }
        for line in self.pointer.iter().map(Answer::to_string).collect::<String>().lines() {
            write!(f, "\n  {line}")?;
        }
        Ok(())
    }
}

//! Where a value came from: the chain of writes from a value back through copies.
//!
//! [`WhoSet`] starts at a register or some bytes of memory, and finds the step that last wrote them. If this step
//! only moved bytes, the search continues with the bytes that the step read. The chain ends where an instruction
//! computed the value, where an instruction has the value as a constant, or where the value came from outside.
//! Memory is followed by physical address, so copies through other mappings, pipes and page tables do not break the
//! chain.
//!
//! ```no_run
//! # use machine::position::Instructions;
//! # fn f(timeline: &mut history::timeline::Timeline) -> Result<(), Box<dyn std::error::Error>> {
//! let location = "jiffies_64".parse()?;
//! let who = origins::WhoSet { location: &location, processor: None, at: Instructions(1_000_000), limit: 100 };
//! println!("{}", who.run(timeline, &mut || false)?);
//! # Ok(()) }
//! ```
//!
//! `location` parses what a person writes, and `cell` defines the followed bytes. `rules` says what an instruction
//! moves, `seen` replays one step and applies the rules, and `writers` finds the step that last wrote some bytes.
//! `outside` names devices and events. `chain` follows a value from write to write, and `answer` has the result.
//!
//! [`WhoArmed`] asks the same of a call. The answer goes from a callback of the kernel, such as a timer's function, back
//! to the place that armed the callback. `arming` follows the chain of callbacks. `callback` says what the kernel does for
//! each kind of callback, and `call_site` finds the instruction that called.
//!
//! [`WhereTo`] goes the other way: from a value to its copies and uses. `where_to` has the search, and `queues` reads
//! the requests in the queues of virtio devices.
//!
//! Devices write memory without a trace in the CPU. A device's write is found by the change of the bytes. So a
//! device's write of the same value as before is not found, and the chain continues with the earlier writer.

#![forbid(unsafe_code)]

mod answer;
mod arming;
mod call_site;
mod callback;
mod cell;
mod chain;
mod location;
mod outside;
mod queues;
mod rules;
mod seen;
mod where_to;
mod writers;

pub use answer::{Answer, End, EndKind, Link, Part, Span};
pub use arming::{Arming, End as ArmingEnd, EndKind as ArmingEndKind, Link as ArmingLink, WhoArmed};
pub use callback::Kind;
pub use chain::WhoSet;
pub use location::{LOCATIONS, Location};
pub use where_to::{End as OnwardEnd, Kind as PassageKind, Onward, Passage, WhereTo};

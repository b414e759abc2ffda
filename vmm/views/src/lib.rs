//! The views of a machine and of a recording for people, as plain data, and exports to the formats of other tools.
//!
//! ```
//! use std::path::Path;
//!
//! use history::timeline::Timeline;
//! use machine::error::Error;
//! use machine::position::Instructions;
//!
//! /// Writes a core file of the guest at a position, for gdb or crash.
//! fn dump(timeline: &mut Timeline, at: Instructions, to: &Path) -> Result<(), Error> {
//!     timeline.seek(at, &mut || false)?;
//!     views::core_file::write(timeline.machine(), to)?;
//!     Ok(())
//! }
//! ```
//!
//! [`state`] describes the machine at one place, and [`hits`] lists the places of events. Both views can be serialized,
//! and both have a text for people. [`calls`] lists the calls of a function, and [`values`] all values of a variable. [`tree`] shows
//! the calls of a thread as a tree. [`difference`] compares two states. [`object`] shows the objects at an address.
//! [`board`] shows chips and devices, and [`disk`] the guest's disk. [`processors`] lists the processors, a line for each. [`reports`] lists the guest
//! kernel's panics, oopses and warnings. [`guest_kernel`] names the running thread and its callers. [`core_file`]
//! writes the machine for debuggers, and [`trace`] writes the activity of threads for Perfetto. Perfetto's format has
//! hundreds of messages. The crate defines only the ten messages that a trace needs, with `prost`.

#![forbid(unsafe_code)]

pub mod board;
pub mod calls;
pub mod console;
pub mod core_file;
mod core_notes;
pub mod debug_files;
pub mod difference;
pub mod disk;
pub mod filters;
mod functions;
pub mod guest_kernel;
pub mod hits;
pub mod memory;
pub mod moment;
pub mod object;
mod perfetto;
mod place;
pub mod processors;
pub mod profile;
pub mod reports;
mod returns;
mod saved_registers;
pub mod state;
pub mod system_calls;
pub mod tasks;
pub mod trace;
pub mod tree;
pub mod values;
pub mod variable;
pub mod visible;

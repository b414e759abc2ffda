//! Tests of the library, with guests of a few instructions.

mod arming;
mod devices;
mod flows;
mod onward;
mod others;

use machine::position::Instructions;
use origins::{Location, WhereTo};

/// The question for all uses of a value between two positions.
fn onward_from(location: &Location, at: Instructions, until: Instructions) -> WhereTo<'_> {
    WhereTo {
        location,
        processor: None,
        at,
        until,
        through_computations: false,
        with_registers: false,
        limit: 100,
    }
}

//! What differs between machines whose positions are counted in instructions and in exits: all of it is here.
//!
//! A count of instructions names one place between two instructions. A count of exits names everything that
//! lies between two of them. If the guest was stopped there, an event says where, and an engine that counts
//! no instructions finds the place by what the event says.

use std::time::Duration;

use crate::checks::Intervals;
use crate::engine::EngineKind;
use crate::position::{Count, Exits, Instructions};

/// What a machine's positions are counted in.
pub trait Unit: Count {
    /// Whether a count names one place, or what lies between two.
    const NAMES_ONE_PLACE: bool;
    /// How often a recorder takes which check.
    const CHECKS: Intervals;

    /// Where a machine is that has executed `instructions` and made `exits`.
    fn here(instructions: Instructions, exits: Exits) -> Self;

    /// A limit of this unit as limits of both.
    fn limits(self) -> (Instructions, Exits);

    /// Whether an engine can run machines so that they are counted in this.
    fn is_counted_by(engine: EngineKind) -> bool {
        engine.counts_instructions || !Self::NAMES_ONE_PLACE
    }

    /// What the cost of a checkpoint is compared with: `executed`, or guest time (`passed_ns`) where that
    /// passes with the host's.
    fn cost(executed: u64, passed_ns: u64) -> u64;

    /// Distance between two looks at the keyboard while the guest is busy; 0 where the keyboard is looked at
    /// each time that the machine asks, because it asks seldom.
    const KEYBOARD_LOOKS: u64;
    /// How long typed bytes are held back from a guest that has just begun to listen, because its driver may
    /// still be starting and would throw them away. Where instructions are counted the machine asks so seldom
    /// that the driver is done.
    const DRIVER_STARTS: Duration;
}

impl Unit for Instructions {
    const NAMES_ONE_PLACE: bool = true;
    const CHECKS: Intervals = Intervals::OF_INSTRUCTIONS;
    const KEYBOARD_LOOKS: u64 = 2_000_000;
    const DRIVER_STARTS: Duration = Duration::ZERO;

    fn here(instructions: Instructions, _exits: Exits) -> Instructions {
        instructions
    }

    fn limits(self) -> (Instructions, Exits) {
        (self, Exits::MAX)
    }

    fn cost(executed: u64, _passed_ns: u64) -> u64 {
        executed
    }
}

impl Unit for Exits {
    const NAMES_ONE_PLACE: bool = false;
    const CHECKS: Intervals = Intervals::OF_EXITS;
    const KEYBOARD_LOOKS: u64 = 0;
    const DRIVER_STARTS: Duration = Duration::from_millis(20);

    fn here(_instructions: Instructions, exits: Exits) -> Exits {
        exits
    }

    fn limits(self) -> (Instructions, Exits) {
        (Instructions::MAX, self)
    }

    fn cost(_executed: u64, passed_ns: u64) -> u64 {
        passed_ns
    }
}

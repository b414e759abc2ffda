//! The differences between machines that count instructions and machines that count exits. These machines
//! differ in nothing else.
//!
//! A count of instructions identifies one place between two instructions. A count of exits stands for all places
//! between two exits. If the guest was stopped at one of them, an event describes the place. An engine that counts no
//! instructions finds it by this description.

use std::time::Duration;

use crate::checks::Intervals;
use crate::engine::EngineKind;
use crate::position::{Count, Exits, Instructions};

/// The unit of a machine's positions.
pub trait Unit: Count {
    /// Whether a count identifies one place. Otherwise it stands for all places between two exits.
    const NAMES_ONE_PLACE: bool;
    /// How often a recorder takes each kind of check.
    const CHECKS: Intervals;

    /// The count of a machine that has executed `instructions` and made `exits`.
    fn here(instructions: Instructions, exits: Exits) -> Self;

    /// Converts a limit in this unit to limits in both units.
    fn limits(self) -> (Instructions, Exits);

    /// Whether an engine can run machines that count in this unit.
    fn is_counted_by(engine: EngineKind) -> bool {
        engine.counts_instructions || !Self::NAMES_ONE_PLACE
    }

    /// The earnings of a run towards a checkpoint's cost: `executed` instructions, or guest time
    /// (`passed_ns`) if that passes with the host's.
    fn cost(executed: u64, passed_ns: u64) -> u64;

    /// Distance between two looks at the keyboard while the guest is busy. Zero where the machine asks so seldom that
    /// each time is a look.
    const KEYBOARD_LOOKS: u64;
    /// How long typed bytes are held back from a guest that has just begun to listen. The guest's driver may
    /// still be starting, and would throw the bytes away. A machine that counts instructions asks so seldom that the
    /// driver is ready.
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

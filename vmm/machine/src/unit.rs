//! The differences between machines that count instructions and machines that count exits. The two kinds of
//! machines have no other differences.
//!
//! A count of instructions identifies one place between two instructions. A count of exits stands for all places
//! between two exits. If the guest was stopped between two exits, an event describes the place. An engine that counts
//! no instructions finds the place by this description.

use std::time::Duration;

use crate::checks::Intervals;
use crate::engine::EngineKind;
use crate::position::{Count, Exits, Instructions};

/// The unit of a machine's positions.
pub trait Unit: Count {
    /// Whether a count identifies one place. If false, a count stands for all places between two exits.
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

    /// The length of a part of a run, to compare with the cost of a checkpoint. For machines that count instructions,
    /// this is `executed`. For machines that count exits, this is guest time, `passed_ns`, which passes like host time.
    fn cost(executed: u64, passed_ns: u64) -> u64;

    /// Distance between two reads of the keyboard while the guest is busy. Zero means that the keyboard is read
    /// each time the machine asks its inputs, because this happens seldom.
    const KEYBOARD_LOOKS: u64;
    /// How long typed bytes wait after the guest has begun to read the console. The guest's driver may still be
    /// starting, and would throw the bytes away. In a machine that counts instructions no wait is needed: the
    /// keyboard is read so seldom that the driver is ready by then.
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

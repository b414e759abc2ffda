//! The devices as a driver sees them: through ports, device memory and rings, the way Linux does it.

mod block;
mod console_and_rng;
mod driver;
mod fuzz;
mod hostile;
mod interrupts;
mod memory_disk;
mod network;
mod save_restore;
mod summary;
mod transport;

use driver::{Driver, NONE, Pc, Ring};
use memory_disk::MemoryDisk;

use super::{Block, Console, Net, Rng};
use crate::pci::{PciBus, PciRevision};

const BLOCK_SLOT: usize = 1;
const CONSOLE_SLOT: usize = 2;
const RNG_SLOT: usize = 3;

const DISK_SECTORS: u64 = 4096;

/// A bus with one device of each kind.
fn bus() -> PciBus {
    bus_of(PciRevision::default())
}

fn bus_of(revision: PciRevision) -> PciBus {
    let mut bus = PciBus::new().with_revision(revision);
    assert_eq!(bus.add(Block::new(MemoryDisk::new(DISK_SECTORS))), BLOCK_SLOT);
    assert_eq!(bus.add(Console::new(80, 25)), CONSOLE_SLOT);
    assert_eq!(bus.add(Rng::new([7; 32])), RNG_SLOT);
    bus
}

/// A machine with one device of each kind.
fn pc() -> Pc {
    Pc::new(bus())
}

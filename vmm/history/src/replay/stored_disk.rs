//! Lets the disk blocks that a replay has written lie in the recording's checkpoints, as they do while it is recorded. A replay
//! that held all of them in memory would need as much as the disk is large.

use std::sync::Arc;

use checkpoint::Store;

use machine::Machine;
use machine::error::Error;
use machine::unit::Unit;
use recording::Recording;
use recording::checkpoints::must_fit;

/// So many written blocks are held in memory before a replay looks for them in the checkpoints: 256 MiB. Reading a block from
/// there takes several times as long as copying it.
const MOST_HELD: usize = 65_536;

/// See the module.
pub(super) struct StoredDisk {
    most_held: usize,
    /// Position behind the last checkpoint that was looked at.
    next: u64,
    /// There are no checkpoints, or they cannot be read.
    given_up: bool,
}

impl Default for StoredDisk {
    fn default() -> StoredDisk {
        StoredDisk::beyond(MOST_HELD)
    }
}

impl StoredDisk {
    /// Lets blocks lie in checkpoints once more than `most_held` are held in memory.
    pub fn beyond(most_held: usize) -> StoredDisk {
        StoredDisk { most_held, next: 0, given_up: false }
    }

    /// To be called now and then, while the machine stands still. What a checkpoint that the replay has passed cannot give is
    /// held in memory, which is no error: a replay needs nothing but the log.
    pub fn look<C: Unit>(&mut self, recording: &Recording<C>, machine: &mut Machine<C>) {
        if self.given_up || machine.written_blocks() <= self.most_held {
            return;
        }
        if let Err(error) = self.adopt(recording, machine) {
            log::warn!("{error}; the replay goes on, and holds in memory what the guest writes to its disk");
            self.given_up = true;
        }
    }

    fn adopt<C: Unit>(&mut self, recording: &Recording<C>, machine: &mut Machine<C>) -> Result<(), Error> {
        let Some(store) = store_of(recording, machine)? else {
            self.given_up = true;
            return Ok(());
        };
        let passed = store.entry_at_or_before(machine.moment().count.number());
        let Some(entry) = passed.filter(|entry| entry.position >= self.next) else { return Ok(()) };
        self.next = entry.position + 1;
        machine.adopt_written_blocks(&store.maps_at(entry.position)?.disk)
    }
}

/// The store that the machine reads from: the recording's, if it had none.
fn store_of<C: Unit>(
    recording: &Recording<C>,
    machine: &mut Machine<C>,
) -> Result<Option<Arc<Store>>, Error> {
    if let Some(store) = machine.store() {
        return Ok(Some(store.clone()));
    }
    let Some(store) = recording.checkpoints()? else { return Ok(None) };
    must_fit(&store, machine)?;
    machine.attach_store(store.clone());
    Ok(Some(store))
}

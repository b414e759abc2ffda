//! Lets a replay read written disk blocks from the recording's checkpoints, instead of holding them in memory. A
//! recorder does the same. A replay that held all written blocks would need as much memory as the disk's size.

use std::sync::Arc;

use checkpoint::Store;

use machine::Machine;
use machine::error::Error;
use machine::unit::Unit;
use recording::Recording;
use recording::checkpoints::must_fit;

/// When this number of written blocks (256 MiB) is in memory, a replay looks for these blocks in the checkpoints. The
/// limit is high, because reading a block from the store takes several times as long as copying it.
const MOST_HELD: usize = 65_536;

/// Replaces a replay's disk blocks in memory by the same blocks in checkpoints.
pub(super) struct StoredDisk {
    most_held: usize,
    /// The position after the last checkpoint that was read.
    next: u64,
    /// Whether the recording has no checkpoints, or they cannot be read.
    given_up: bool,
}

impl Default for StoredDisk {
    fn default() -> StoredDisk {
        StoredDisk::beyond(MOST_HELD)
    }
}

impl StoredDisk {
    /// Uses the checkpoints once memory holds more than `most_held` blocks.
    pub fn beyond(most_held: usize) -> StoredDisk {
        StoredDisk { most_held, next: 0, given_up: false }
    }

    /// Frees memory if too many blocks are in memory. The replay regularly calls this function, while the machine does
    /// not run. A block stays in memory if no checkpoint up to the replay's position has it. Such a block is no error,
    /// because a replay needs only the log.
    pub fn look<C: Unit>(&mut self, recording: &Recording<C>, machine: &mut Machine<C>) {
        if self.given_up || machine.written_blocks() <= self.most_held {
            return;
        }
        if let Err(error) = self.adopt(recording, machine) {
            log::warn!("{error}; the replay goes on, and holds the guest's disk writes in memory");
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

/// Returns the store of checkpoints that is attached to the machine. If none is attached, attaches the recording's
/// store first.
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

#[cfg(test)]
mod tests {
    use checkpoint::{PAGE_BYTES, Space};
    use devices::virtio::BlockBackend;
    use machine::config::{MachineConfig, MachineOptions};
    use machine::inputs::PowerOn;
    use machine::position::Instructions;

    use super::*;

    /// A recording, and a machine with a disk. For each checkpoint, `checkpoints` has the position, and its disk
    /// blocks with the byte that fills the block.
    fn example(
        directory: &std::path::Path,
        checkpoints: &[(u64, &[(u64, u8)])],
    ) -> (Recording<Instructions>, Machine<Instructions>) {
        let (recording, _) = tiny_guest::record_calls(directory, "r.ttvm", 10, None);
        let image = directory.join("disk");
        std::fs::write(&image, vec![1; 8 * PAGE_BYTES]).unwrap();
        let options = MachineOptions {
            kernel: tiny_guest::write_kernel(directory, 10_000),
            disk: Some(image),
            memory_bytes: 4 << 20,
            ..MachineOptions::default()
        };
        let (config, images) = MachineConfig::from_options(&options).unwrap();
        let power_on = PowerOn { unix_seconds: 0, seed: [1; 32], columns: 80, rows: 25 };
        let mut machine = Machine::<Instructions>::new(&config, &images, &power_on).unwrap();
        let (ram, disk) = machine.page_counts();
        let store = Store::create(directory.join("store"), ram, disk).unwrap();
        for (position, blocks) in checkpoints {
            let mut draft = store.add(*position, *position).unwrap();
            for (block, byte) in *blocks {
                draft.page(Space::Disk, *block, &[*byte; PAGE_BYTES]).unwrap();
            }
            draft.finish(&[], &[]).unwrap();
        }
        machine.attach_store(Arc::new(store));
        (recording, machine)
    }

    fn write(machine: &mut Machine<Instructions>, block: u64, byte: u8) {
        machine.disk_mut().unwrap().write(8 * block, &[byte; PAGE_BYTES]).unwrap();
    }

    fn go(machine: &mut Machine<Instructions>, place: u64) {
        machine.run(Instructions(place), &mut tiny_guest::Script(Vec::new())).unwrap();
        assert_eq!(machine.moment().count, Instructions(place));
    }

    #[test]
    fn blocks_lie_in_each_checkpoint_that_the_replay_passes() {
        let directory = tempfile::tempdir().unwrap();
        // Two checkpoints one step apart, and a third one.
        let checkpoints: [(u64, &[(u64, u8)]); 3] =
            [(1_000, &[(3, 7)]), (1_001, &[(5, 8)]), (9_000, &[(3, 9), (6, 2)])];
        let (recording, mut machine) = example(directory.path(), &checkpoints);
        let mut disk = StoredDisk::beyond(0);
        let mut held = |machine: &mut Machine<Instructions>| {
            disk.look(&recording, machine);
            machine.written_blocks()
        };
        write(&mut machine, 3, 7);
        go(&mut machine, 999);
        assert_eq!(held(&mut machine), 1, "it has not come to the first");
        go(&mut machine, 1_000);
        assert_eq!(held(&mut machine), 0);
        // A checkpoint is not read a second time.
        write(&mut machine, 3, 6);
        write(&mut machine, 3, 7);
        assert_eq!(held(&mut machine), 1);
        write(&mut machine, 5, 8);
        go(&mut machine, 1_001);
        assert_eq!(held(&mut machine), 0, "the second has both");
        write(&mut machine, 3, 9);
        write(&mut machine, 6, 1);
        go(&mut machine, 8_999);
        assert_eq!(held(&mut machine), 2);
        go(&mut machine, 10_000);
        assert_eq!(held(&mut machine), 1, "the third has another version of block 6");
    }

    #[test]
    fn few_blocks_are_held_in_memory() {
        let directory = tempfile::tempdir().unwrap();
        let (recording, mut machine) = example(directory.path(), &[(0, &[(3, 7), (5, 8)])]);
        let mut disk = StoredDisk::beyond(1);
        write(&mut machine, 3, 7);
        disk.look(&recording, &mut machine);
        assert_eq!(machine.written_blocks(), 1);
        write(&mut machine, 5, 8);
        disk.look(&recording, &mut machine);
        assert_eq!(machine.written_blocks(), 0);
    }

    #[test]
    fn without_checkpoints_blocks_are_held_in_memory() {
        let directory = tempfile::tempdir().unwrap();
        let (recording, mut machine) = example(directory.path(), &[]);
        let mut disk = StoredDisk::beyond(0);
        write(&mut machine, 3, 7);
        disk.look(&recording, &mut machine);
        assert_eq!(machine.written_blocks(), 1);
    }
}

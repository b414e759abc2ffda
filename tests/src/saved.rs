//! A machine as bytes: everything that a new process needs, besides the images, to continue a run.

use std::path::Path;

use checkpoint::MemoryImage;
use guest_ram::PAGE_SIZE;
use serde::{Deserialize, Serialize};
use vmm::disk::DiskVersion;
use vmm::machine::{Machine, MachineState};

/// State, RAM and disk of a machine.
#[derive(Serialize, Deserialize)]
pub struct Saved {
    state: MachineState,
    /// Pages that are not zero, by number.
    pages: Vec<(u64, Vec<u8>)>,
    blocks: Vec<(u64, Vec<u8>)>,
}

impl Saved {
    /// Saves a machine where it stands.
    pub fn of(machine: &mut Machine) -> Saved {
        let blocks = machine.disk_version().iter().map(|(&number, block)| (number, block.to_vec())).collect();
        let mut buffer = vec![0; PAGE_SIZE as usize];
        let mut pages = Vec::new();
        for page in 0..machine.ram().flags().pages() {
            machine.ram().read_bytes(page * PAGE_SIZE, &mut buffer);
            if buffer.iter().any(|&byte| byte != 0) {
                pages.push((page, buffer.clone()));
            }
        }
        Saved { state: machine.state(), pages, blocks }
    }

    /// Puts this into another machine of the same description.
    pub fn restore(&self, machine: &mut Machine) {
        let mut contents = self.pages.iter().peekable();
        let memory = MemoryImage::zeroed(machine.ram().flags().pages()).next(
            |_| true,
            |page, to| match contents.next_if(|(number, _)| *number == page) {
                Some((_, bytes)) => to.copy_from_slice(bytes),
                None => to.fill(0),
            },
        );
        let disk: DiskVersion =
            self.blocks.iter().map(|(number, block)| (*number, block.as_slice().into())).collect();
        machine.restore(&self.state, &memory, &disk).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Writes it to a file.
    pub fn write(&self, path: &Path) {
        let bytes = postcard::to_stdvec(self).expect("plain data in memory always serializes");
        std::fs::write(path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Reads it from a file.
    pub fn read(path: &Path) -> Saved {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        postcard::from_bytes(&bytes).expect("it was written by this program")
    }
}

/// A machine's state after a trip through bytes.
pub fn through_bytes(state: &MachineState) -> MachineState {
    let bytes = postcard::to_stdvec(state).expect("plain data in memory always serializes");
    postcard::from_bytes(&bytes).expect("it was just written")
}

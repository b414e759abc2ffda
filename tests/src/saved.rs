//! Saves a machine as bytes. With these bytes and the machine's images, a new process can continue the run.

use std::path::Path;
use std::sync::Arc;

use checkpoint::{Maps, PAGE_BYTES, PageMap, PageRef};
use machine::position::Instructions;
use machine::{Format, Machine, MachineState};
use serde::{Deserialize, Serialize};

/// State, RAM and disk of a machine.
#[derive(Serialize, Deserialize)]
pub struct Saved {
    /// The machine's state in format 6, which describes any number of processors.
    state: Vec<u8>,
    /// The number and contents of each page.
    pages: Vec<(u64, Vec<u8>)>,
    blocks: Vec<(u64, Vec<u8>)>,
}

impl Saved {
    /// Saves a machine at its present position.
    pub fn of(machine: &mut Machine<Instructions>) -> Saved {
        let maps = machine.maps().expect("the software engine knows what was written");
        let held = |map: &PageMap| {
            let contents = |version: &PageRef| match version {
                PageRef::Base => None,
                PageRef::Zero => Some(vec![0; PAGE_BYTES]),
                PageRef::Held(page) => Some(page.to_vec()),
                PageRef::Stored(blob) => panic!("{blob} lies in a store: no test's machine has one"),
            };
            map.iter_not_base().filter_map(|(page, version)| Some((page, contents(version)?))).collect()
        };
        Saved {
            state: machine.state().to_bytes(Format::V6),
            pages: held(&maps.ram),
            blocks: held(&maps.disk),
        }
    }

    /// Restores the saved state in another machine of the same description.
    pub fn restore(&self, machine: &mut Machine<Instructions>) {
        let (ram_pages, disk_blocks) = machine.page_counts();
        let mut maps = Maps { ram: PageMap::zeroed(ram_pages), disk: PageMap::new(disk_blocks) };
        for (map, contents) in [(&mut maps.ram, &self.pages), (&mut maps.disk, &self.blocks)] {
            for (page, bytes) in contents {
                let page_bytes = bytes.as_slice().try_into().expect("pages have one size");
                map.set(*page, PageRef::Held(Arc::new(page_bytes)));
            }
        }
        let state = MachineState::from_bytes(Format::V6, &self.state).expect("this program wrote it");
        machine.restore(&state, &maps).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Writes the saved machine to a file.
    pub fn write(&self, path: &Path) {
        let bytes = postcard::to_stdvec(self).expect("plain data in memory always serializes");
        std::fs::write(path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Reads a saved machine from a file.
    pub fn read(path: &Path) -> Saved {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        postcard::from_bytes(&bytes).expect("it was written by this program")
    }
}

/// A machine's state, serialized and read back.
pub fn through_bytes(state: &MachineState) -> MachineState {
    MachineState::from_bytes(Format::V6, &state.to_bytes(Format::V6)).expect("it was just written")
}

//! The DWARF sections' bytes, for an ELF file.

use gimli::write::{self, EndianVec};
use gimli::{LittleEndian, SectionId};

/// Names of sections, and their bytes.
pub(crate) type Sections = Vec<(&'static str, Vec<u8>)>;

/// The sections that were written, without empty ones.
pub(super) fn written(sections: &write::Sections<EndianVec<LittleEndian>>) -> Sections {
    let mut all = Vec::new();
    let take = |id: SectionId, bytes: &EndianVec<LittleEndian>| {
        if !bytes.slice().is_empty() {
            all.push((id.name(), bytes.slice().to_vec()));
        }
        Ok::<(), write::Error>(())
    };
    sections.for_each(take).expect("taking bytes does not fail");
    all
}

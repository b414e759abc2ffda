//! Moves ELF files of kernels to other addresses.

use std::ops::Range;

use object::LittleEndian;
use object::elf::{FileHeader64, SHT_SYMTAB, SectionHeader64, Sym64};
use object::pod::{from_bytes, slice_from_bytes_mut};

type Header = FileHeader64<LittleEndian>;
type Section = SectionHeader64<LittleEndian>;
type Symbol = Sym64<LittleEndian>;

/// Subtracts `distance` from the addresses of all sections and symbols of a 64-bit ELF file whose addresses are in
/// `range`. The file must be valid.
pub fn move_down(file: &mut [u8], range: Range<u64>, distance: u64) {
    let moved = |address: u64| if range.contains(&address) { address - distance } else { address };
    let (header, _) = from_bytes::<Header>(file).expect("the file is a good one");
    let (start, count) = (header.e_shoff.get(LittleEndian) as usize, header.e_shnum.get(LittleEndian).into());
    let (sections, _) = slice_from_bytes_mut::<Section>(&mut file[start..], count).expect("it is a good one");
    let mut tables = Vec::new();
    for section in sections {
        section.sh_addr.set(LittleEndian, moved(section.sh_addr.get(LittleEndian)));
        if section.sh_type.get(LittleEndian) == SHT_SYMTAB {
            tables.push((
                section.sh_offset.get(LittleEndian) as usize,
                section.sh_size.get(LittleEndian) as usize,
            ));
        }
    }
    for (start, size) in tables {
        let count = size / size_of::<Symbol>();
        let (symbols, _) =
            slice_from_bytes_mut::<Symbol>(&mut file[start..], count).expect("it is a good one");
        for symbol in symbols {
            symbol.st_value.set(LittleEndian, moved(symbol.st_value.get(LittleEndian)));
        }
    }
}

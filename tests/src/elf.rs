//! ELF files of kernels, moved to other addresses.

use std::ops::Range;

/// `SHT_SYMTAB`.
const SYMTAB: u8 = 2;

/// Moves down all sections and symbols of a 64-bit ELF file whose addresses are in `range`. The file must be a good one.
pub fn move_down(file: &mut [u8], range: Range<u64>, distance: u64) {
    let (start, count) = (u64_at(file, 40) as usize, usize::from(u16::from_le_bytes([file[60], file[61]])));
    let move_one = |file: &mut [u8], at: usize| {
        let address = u64_at(file, at);
        if range.contains(&address) {
            file[at..at + 8].copy_from_slice(&(address - distance).to_le_bytes());
        }
    };
    for header in (0..count).map(|number| start + 64 * number) {
        move_one(file, header + 16);
        if file[header + 4] == SYMTAB {
            let (from, size) = (u64_at(file, header + 24) as usize, u64_at(file, header + 32) as usize);
            (from..from + size).step_by(24).for_each(|symbol| move_one(file, symbol + 8));
        }
    }
}

fn u64_at(file: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*file[at..].first_chunk().expect("the file is a good one"))
}

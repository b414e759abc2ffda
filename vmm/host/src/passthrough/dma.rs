//! A copy of guest RAM for a function, the shadow, and the copying between shadow and RAM.
//!
//! Each page that the function may see exists three times: in RAM, in the shadow and in the base. Only the guest and
//! events change RAM; the function also changes the shadow. The base has the contents of RAM and shadow when they were
//! last equal. A difference between shadow and base is the function's write. A difference between RAM and base is the
//! guest's write. So the bytes that one side wrote are copied to the other side, even if both sides write to one page.

use std::collections::BTreeMap;

use devices::passthrough::DmaV1;
use guest_ram::RamView;
use vfio::{Area, CHUNK_BYTES, PAGE_BYTES};

use super::order::{New, named_first};

/// The largest number of passes over memory. Passes are repeated until a pass finds no new write.
const MOST_PASSES: usize = 16;

/// A page in the shadow.
struct Page {
    /// The number of addresses at which the function sees the page, and the number of addresses at which the function
    /// may write the page.
    uses: u32,
    writable: u32,
    since: u64,
}

/// A copy of guest RAM for a function.
pub(super) struct Shadow {
    area: Area,
    base: Vec<u8>,
    /// The pages, by offset in RAM.
    pages: BTreeMap<u64, Page>,
    /// The pages, by the time when the function first saw them. Rings come before the buffers whose addresses they
    /// contain.
    by_age: BTreeMap<u64, u64>,
    next_age: u64,
}

impl Shadow {
    /// Makes a shadow for a RAM of `bytes` bytes, in which the function sees no pages yet.
    pub fn new(bytes: u64) -> std::io::Result<Shadow> {
        Ok(Shadow {
            area: Area::new(bytes as usize)?,
            base: vec![0; bytes as usize],
            pages: BTreeMap::new(),
            by_age: BTreeMap::new(),
            next_age: 0,
        })
    }

    /// The shadow's memory, to map for the function.
    pub fn area(&self) -> &Area {
        &self.area
    }

    /// Shows a page to the function at one more address.
    pub fn show(&mut self, ram: &RamView, offset: u64, may_write: bool) {
        if !self.pages.contains_key(&offset) {
            let mut page = [0; PAGE_BYTES];
            ram.read_bytes(offset, &mut page);
            self.area.write_page(offset as usize, &page);
            self.base[range(offset)].copy_from_slice(&page);
            self.by_age.insert(self.next_age, offset);
            self.pages.insert(offset, Page { uses: 0, writable: 0, since: self.next_age });
            self.next_age += 1;
        }
        let page = self.pages.get_mut(&offset).expect("it was just put there");
        page.uses += 1;
        page.writable += u32::from(may_write);
    }

    /// Hides a page from the function at one of its addresses. Before this call, the caller must call
    /// [`Shadow::take_written`], so that no write of the function is lost.
    pub fn hide(&mut self, offset: u64, may_write: bool) {
        let Some(page) = self.pages.get_mut(&offset) else { return };
        page.uses -= 1;
        page.writable -= u32::from(may_write);
        if page.uses == 0 {
            self.by_age.remove(&page.since);
            self.pages.remove(&offset);
        }
    }

    /// Returns the function's writes to memory since the last call.
    ///
    /// The function may be writing during this call: first data and then the descriptor that announces the data. So
    /// memory is read again until a pass finds no new write. Then the call has also found all data that the function
    /// wrote before a found descriptor.
    pub fn take_written(&mut self, ram: &RamView) -> Vec<DmaV1> {
        let mut writes = Vec::new();
        for _ in 0..MOST_PASSES {
            let before = writes.len();
            for &offset in self.by_age.values() {
                if self.pages[&offset].writable > 0 {
                    take_page(&self.area, &mut self.base, ram, offset, &mut writes);
                }
            }
            if writes.len() == before {
                break;
            }
        }
        writes
    }

    /// Copies the guest's writes to the shadow, where the function sees them. Before this call, the caller must
    /// call [`Shadow::take_written`] and apply the returned writes to RAM.
    ///
    /// The function may be reading during this call, from a ring to the buffers whose addresses the ring contains. So
    /// the data at an address is shown before the chunk that contains the address ([`named_first`]). Otherwise buffers
    /// come before rings, which are older. All new data is listed before the first chunk is shown. `offset_of` maps the
    /// function's addresses to offsets in RAM.
    pub fn show_written(&mut self, ram: &RamView, offset_of: impl Fn(u64) -> Option<u64>) {
        for New { at, chunk } in named_first(self.news(ram), offset_of) {
            let base = &mut self.base[at..at + CHUNK_BYTES];
            let written = std::array::from_fn(|byte| (chunk[byte] != base[byte]).then_some(chunk[byte]));
            self.area.merge_chunk(at, written);
            base.copy_from_slice(&chunk);
        }
    }

    /// The chunks that the guest has written: buffers before rings, and each page from its end.
    fn news(&self, ram: &RamView) -> Vec<New> {
        let mut page = [0; PAGE_BYTES];
        let mut news = Vec::new();
        for &offset in self.by_age.values().rev() {
            ram.read_bytes(offset, &mut page);
            let base = &self.base[range(offset)];
            if page != *base {
                news.extend(chunks_that_differ(offset, &page, base).rev());
            }
        }
        news
    }
}

/// The chunks that differ from the base, for the page at `offset` of RAM.
fn chunks_that_differ<'a>(
    offset: u64,
    page: &'a [u8],
    base: &'a [u8],
) -> impl DoubleEndedIterator<Item = New> + use<'a> {
    let chunks = page.as_chunks().0.iter().zip(base.chunks_exact(CHUNK_BYTES)).enumerate();
    chunks
        .filter(|(_, (chunk, base))| chunk[..] != **base)
        .map(move |(number, (chunk, _))| New { at: offset as usize + number * CHUNK_BYTES, chunk: *chunk })
}

/// Adds the function's writes to the page at `offset` to `writes`, one for each run of consecutive bytes.
fn take_page(area: &Area, base: &mut [u8], ram: &RamView, offset: u64, writes: &mut Vec<DmaV1>) {
    let mut page = [0; PAGE_BYTES];
    area.read_page(offset as usize, &mut page);
    let base = &mut base[range(offset)];
    if page == *base {
        return;
    }
    let gpa = ram.layout().gpa_of(offset);
    let mut at = 0;
    while let Some(start) = (at..PAGE_BYTES).find(|&at| page[at] != base[at]) {
        let end = (start..PAGE_BYTES).find(|&at| page[at] == base[at]).unwrap_or(PAGE_BYTES);
        writes.push(DmaV1 { gpa: gpa + start as u64, bytes: page[start..end].to_vec() });
        at = end;
    }
    base.copy_from_slice(&page);
}

fn range(offset: u64) -> std::ops::Range<usize> {
    offset as usize..offset as usize + PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use guest_ram::GuestRam;

    use super::*;

    const PAGE: u64 = 0x3000;

    fn shadow() -> (GuestRam, Shadow) {
        let ram = GuestRam::new(1 << 20).unwrap();
        ram.fill(PAGE, 0x11, PAGE_BYTES);
        let mut shadow = Shadow::new(ram.size_bytes()).unwrap();
        shadow.show(&ram.view(), PAGE, true);
        (ram, shadow)
    }

    fn write(at: u64, bytes: &[u8]) -> DmaV1 {
        DmaV1 { gpa: PAGE + at, bytes: bytes.to_vec() }
    }

    /// Simulates a write of the function within a chunk.
    fn device_writes(shadow: &Shadow, at: u64, bytes: &[u8]) {
        let (chunk, mut written) = (at as usize & !(CHUNK_BYTES - 1), [None; CHUNK_BYTES]);
        for (byte, to) in bytes.iter().zip(&mut written[at as usize - chunk..]) {
            *to = Some(*byte);
        }
        shadow.area.merge_chunk(chunk, written);
    }

    #[test]
    fn what_the_function_writes_is_taken_once_byte_by_byte() {
        let (ram, mut shadow) = shadow();
        assert_eq!(shadow.take_written(&ram.view()), []);
        device_writes(&shadow, PAGE + 5, &[0xAA]);
        device_writes(&shadow, PAGE + 8, &[2, 0x11, 3, 4]);
        assert_eq!(shadow.take_written(&ram.view()), [write(5, &[0xAA]), write(8, &[2]), write(10, &[3, 4])]);
        assert_eq!(shadow.take_written(&ram.view()), []);
    }

    #[test]
    fn both_may_write_to_one_page_and_to_one_word() {
        let (ram, mut shadow) = shadow();
        ram.store_u8(PAGE, 1);
        ram.store_u32(PAGE + 0x100, 0xDDCC_BBAA);
        device_writes(&shadow, PAGE + 3, &[0x44]);
        shadow.show_written(&ram.view(), |_| None);
        assert_eq!(shadow.area.load(PAGE as usize) as u32, 0x4411_1101);
        assert_eq!(shadow.area.load(PAGE as usize + 0x100) as u32, 0xDDCC_BBAA);
        assert_eq!(
            shadow.take_written(&ram.view()),
            [write(3, &[0x44])],
            "and nothing of what the guest wrote"
        );
    }

    #[test]
    fn buffers_are_shown_before_the_ring_that_names_them_wherever_they_lie() {
        let (ram, mut shadow) = shadow();
        let (below, above) = (PAGE - 0x1000, PAGE + 0x1000);
        for buffer in [below, above] {
            shadow.show(&ram.view(), buffer, true);
        }
        for at in [PAGE, PAGE + 0x20, PAGE + 0x24, below, above + 0x10] {
            ram.store_u32(at, 7);
        }
        let order: Vec<_> = shadow.news(&ram.view()).iter().map(|new| new.at as u64).collect();
        assert_eq!(order, [above + 0x10, below, PAGE + 0x20, PAGE]);
        shadow.show_written(&ram.view(), |_| None);
        assert_eq!(shadow.news(&ram.view()).len(), 0);
        assert_eq!(shadow.area.load(PAGE as usize + 0x20), 7 << 32 | 7);
    }

    #[test]
    fn pages_that_are_not_shown_or_read_only_give_nothing() {
        let (ram, mut shadow) = shadow();
        shadow.show(&ram.view(), 0x5000, false);
        device_writes(&shadow, 0x5000, &[9]);
        device_writes(&shadow, 0x6000, &[9]);
        assert_eq!(shadow.take_written(&ram.view()), []);
        shadow.show(&ram.view(), 0x5000, true);
        assert_eq!(shadow.take_written(&ram.view()), [DmaV1 { gpa: 0x5000, bytes: vec![9] }]);
        shadow.hide(PAGE, true);
        device_writes(&shadow, PAGE, &[9]);
        assert_eq!(shadow.take_written(&ram.view()), []);
        shadow.show(&ram.view(), PAGE, true);
        assert_eq!(shadow.take_written(&ram.view()), [], "a page is as it is in RAM when it is shown again");
    }
}

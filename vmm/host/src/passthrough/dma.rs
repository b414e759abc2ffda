//! The shadow of RAM that a function sees, and the copying between the two.
//!
//! Three copies are kept of each page that the function may see: RAM, which only the guest and events change; the shadow,
//! which the function changes too; and the base, which is what both were when they were last alike. What differs between
//! shadow and base the function wrote; what differs between RAM and base the guest wrote. So each side's bytes go to the
//! other, even where both write to one page.

use std::collections::BTreeMap;

use devices::passthrough::DmaV1;
use guest_ram::RamView;
use vfio::{Area, CHUNK_BYTES, PAGE_BYTES};

use super::order::{New, named_first};

/// How often memory is looked through until nothing new is found.
const MOST_PASSES: usize = 16;

/// A page in the shadow.
struct Page {
    /// Addresses at which the function sees it, and at how many of them it may write it.
    uses: u32,
    writable: u32,
    since: u64,
}

/// See the module.
pub(super) struct Shadow {
    area: Area,
    base: Vec<u8>,
    /// By offset in RAM.
    pages: BTreeMap<u64, Page>,
    /// Pages by the time since when the function sees them: rings come before the buffers that they name.
    by_age: BTreeMap<u64, u64>,
    next_age: u64,
}

impl Shadow {
    /// A shadow of this much RAM, in which nothing is seen yet.
    pub fn new(bytes: u64) -> std::io::Result<Shadow> {
        Ok(Shadow {
            area: Area::new(bytes as usize)?,
            base: vec![0; bytes as usize],
            pages: BTreeMap::new(),
            by_age: BTreeMap::new(),
            next_age: 0,
        })
    }

    /// The memory to map.
    pub fn area(&self) -> &Area {
        &self.area
    }

    /// The function is about to see a page at one more address.
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

    /// The function no longer sees a page at one of its addresses. What it wrote there must have been taken.
    pub fn hide(&mut self, offset: u64, may_write: bool) {
        let Some(page) = self.pages.get_mut(&offset) else { return };
        page.uses -= 1;
        page.writable -= u32::from(may_write);
        if page.uses == 0 {
            self.by_age.remove(&page.since);
            self.pages.remove(&offset);
        }
    }

    /// What the function has written since it was last asked.
    ///
    /// The function may be writing right now, first data and then the descriptor that says so. So memory is looked through
    /// again until a pass finds nothing: then all that was written before anything that was found is found too.
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

    /// Shows the function what the guest has written. What was taken of the function's writes is to be in RAM.
    ///
    /// The function may be reading right now, from the ring that it found something in to the buffers that this names. So
    /// what is named is shown first ([`named_first`]), buffers before rings, which are older, and all in one go when it is
    /// known what is new. `offset_of` knows which offset in RAM the function sees at an address.
    pub fn show_written(&mut self, ram: &RamView, offset_of: impl Fn(u64) -> Option<u64>) {
        for New { at, chunk } in named_first(self.news(ram), offset_of) {
            let base = &mut self.base[at..at + CHUNK_BYTES];
            let written = std::array::from_fn(|byte| (chunk[byte] != base[byte]).then_some(chunk[byte]));
            self.area.merge_chunk(at, written);
            base.copy_from_slice(&chunk);
        }
    }

    /// What the guest has written, buffers before rings and each page from its end.
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

/// The chunks of the page at `offset` of RAM in which it differs from its base.
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

/// Adds what the function wrote to a page, each stretch of bytes for itself.
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

    /// The function writes within a chunk.
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

//! Decoded code: blocks of straight-line ops. A block is keyed by the physical address and the mode that it was decoded
//! for. A store to a block's bytes drops all blocks of the page.

use std::ops::RangeInclusive;

use guest_ram::{GuestRam, PAGE_SIZE, PageFlags};
use rustc_hash::FxHashMap;
use translator::{Entry, Translation, Translator};

use crate::code_lines::CodeLines;
use crate::op::Op;

/// Limit for the bytes of stored translations. At the limit, all translations are dropped.
const MOST_KEPT: usize = 96 << 20;
/// The largest number of guest addresses for which one block may have placed code. A page can be mapped at many
/// guest addresses.
const MOST_PLACES: usize = 4;
/// Longest block, in instructions. The translator accepts every block up to this length.
pub(crate) const MAX_OPS: usize = translator::MAX_INSTRUCTIONS;
/// Limit for the number of blocks. At the limit all blocks are dropped; hot code is soon decoded again.
const MAX_BLOCKS: usize = 1 << 18;
/// Least number of dropped translations before the code buffer is emptied. A dropped translation keeps its room in the
/// buffer. The buffer is emptied once half of the placed translations are dropped, and at least this number. Hot code
/// is then placed again.
const MOST_GONE: u32 = 1 << 14;
/// Number of slots in the table `jumps`, which finds a block by RIP and `Core::code_tag`.
const JUMP_SLOTS: usize = 1 << 15;
/// Number of neighbouring slots of `jumps` that serve the addresses of one page.
const JUMP_SLOTS_OF_PAGE: usize = 64;

/// Size of a line in bytes. For each line, the code cache lists the blocks that touch the line.
const LINE_BYTES: u64 = 64;
/// The number of lines in a page.
const LINES: usize = (PAGE_SIZE / LINE_BYTES) as usize;

/// Number of a block in the [`CodeCache`].
pub(crate) type BlockNumber = u32;

/// A run of instructions that ends at a branch, at a mode-changing instruction or at the page's end.
pub(crate) struct Block {
    pub ops: Box<[Op]>,
    /// Whether the last op sets RIP itself.
    pub sets_rip: bool,
    /// The number of code bytes in the block.
    pub length: u16,
    /// The number of the second RAM page of a block whose single instruction crosses into this page; `None` for all
    /// other blocks.
    pub second_page: Option<u64>,
    /// Whether a breakpoint may be set at the block's first instruction, or an observer may want the fetch of this
    /// instruction.
    pub check_first: bool,
    /// How often the interpreter has executed the block. The count ends when the block is translated.
    pub heat: u32,
    /// Whether the block is never translated, because a translation would not make the guest faster.
    pub interpreted: bool,
    /// Distinguishes the block from earlier blocks with the same number.
    serial: u32,
    /// The block's translation, if the translation is valid wherever the block is mapped.
    translation: Option<Translation>,
    /// Guest addresses (RIP) for which the translation is placed in the code buffer, and the placed code.
    placed: Vec<(u64, Entry)>,
    key: BlockKey,
}

impl Block {
    /// RAM offset of the block's first byte.
    pub fn start(&self) -> u64 {
        self.key.0 >> 4
    }
}

/// What identifies a block: the RAM offset of its first byte, and the mode that the block was decoded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockKey(u64);

impl BlockKey {
    /// The key of the code at a RAM offset, decoded in a mode. Only the four low bits of `mode` are used.
    pub fn new(ram_offset: u64, mode: u8) -> BlockKey {
        BlockKey(ram_offset << 4 | u64::from(mode & 15))
    }

    fn page(self) -> u64 {
        (self.0 >> 4) / PAGE_SIZE
    }
}

#[derive(Clone, Copy)]
struct JumpSlot {
    rip: u64,
    tag: u64,
    block: BlockNumber,
    serial: u32,
}

/// All decoded code, with its translations.
pub(crate) struct CodeCache {
    /// The translator, on hosts that have one.
    pub translator: Option<Translator>,
    /// Translations placed since the code buffer was last emptied.
    made: u32,
    /// How many of the placed translations were dropped.
    gone: u32,
    /// Total size in bytes of the translations that are stored in blocks.
    kept: usize,
    blocks: Vec<Option<Block>>,
    free: Vec<BlockNumber>,
    by_key: FxHashMap<BlockKey, BlockNumber>,
    by_page: FxHashMap<u64, Vec<BlockNumber>>,
    /// Blocks of all pages with their serial numbers, by the lines that they touch. Dropped blocks may still be listed.
    by_line: Vec<Vec<(BlockNumber, u32)>>,
    /// Number of entries in `by_line`.
    in_lines: usize,
    jumps: Box<[JumpSlot]>,
    /// The last serial number given to a block.
    serial: u32,
}

const NO_JUMP: JumpSlot = JumpSlot { rip: 1, tag: u64::MAX, block: 0, serial: 0 };

impl CodeCache {
    pub fn new() -> CodeCache {
        CodeCache {
            translator: None,
            made: 0,
            gone: 0,
            kept: 0,
            blocks: Vec::new(),
            free: Vec::new(),
            by_key: FxHashMap::default(),
            by_page: FxHashMap::default(),
            by_line: vec![Vec::new(); LINES],
            in_lines: 0,
            jumps: vec![NO_JUMP; JUMP_SLOTS].into_boxed_slice(),
            serial: 0,
        }
    }

    /// The block with this number. The block must exist.
    #[inline(always)]
    pub fn block(&self, number: BlockNumber) -> &Block {
        self.blocks[number as usize].as_ref().expect("only live blocks are remembered")
    }

    /// The code that was placed for this block at this RIP, if the code is still valid.
    #[inline(always)]
    pub fn placed(&self, number: BlockNumber, rip: u64) -> Option<Entry> {
        let (_, entry) = self.block(number).placed.iter().find(|(at, _)| *at == rip)?;
        self.translator.as_ref()?.is_alive(*entry).then_some(*entry)
    }

    /// Returns the block with this number, for changes. The block must exist.
    #[inline(always)]
    pub fn block_mut(&mut self, number: BlockNumber) -> &mut Block {
        self.blocks[number as usize].as_mut().expect("only live blocks are remembered")
    }

    #[inline(always)]
    fn jump_index(rip: u64) -> usize {
        (rip >> 6 ^ rip & (JUMP_SLOTS_OF_PAGE as u64 - 1)) as usize & (JUMP_SLOTS - 1)
    }

    /// The block that was last remembered for this RIP and this `Core::code_tag`, if the block still exists. The
    /// caller must check that RIP is still mapped to the block's bytes.
    #[inline(always)]
    pub fn jump(&self, rip: u64, tag: u64) -> Option<BlockNumber> {
        let slot = &self.jumps[Self::jump_index(rip)];
        let stands = || self.stands(slot.block, slot.serial);
        (slot.rip == rip && slot.tag == tag && stands()).then_some(slot.block)
    }

    /// Whether the block with this number still has this serial number.
    #[inline(always)]
    fn stands(&self, number: BlockNumber, serial: u32) -> bool {
        self.blocks.get(number as usize).and_then(Option::as_ref).is_some_and(|block| block.serial == serial)
    }

    /// Remembers that a RIP and a `Core::code_tag` lead to a block.
    pub fn remember_jump(&mut self, rip: u64, tag: u64, block: BlockNumber) {
        let serial = self.block(block).serial;
        self.jumps[Self::jump_index(rip)] = JumpSlot { rip, tag, block, serial };
    }

    /// The block with a key.
    pub fn find(&self, key: BlockKey) -> Option<BlockNumber> {
        self.by_key.get(&key).copied()
    }

    /// Adds a decoded block and flags its pages as code.
    pub fn insert(
        &mut self,
        ram: &GuestRam,
        lines: &mut CodeLines,
        block: NewBlock,
    ) -> (BlockNumber, Flagged) {
        if self.by_key.len() >= MAX_BLOCKS {
            self.clear(ram, lines);
        }
        let in_page = block.start % PAGE_SIZE;
        let first_length = u64::from(block.length).min(PAGE_SIZE - in_page);
        let mut flagged = Flagged::default();
        let page = block.key.page();
        lines.add(page, in_page, first_length);
        flagged.note(ram, page);
        if let Some(second) = block.second_page {
            lines.add(second, 0, u64::from(block.length) - first_length);
            flagged.note(ram, second);
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            (self.blocks.len() - 1) as BlockNumber
        });
        self.by_key.insert(block.key, number);
        self.by_page.entry(page).or_default().push(number);
        if let Some(second) = block.second_page {
            self.by_page.entry(second).or_default().push(number);
        }
        let serial = self.next_serial();
        for line in lines_touched(block.start, block.length) {
            self.by_line[line].push((number, serial));
            self.in_lines += 1;
        }
        let sets_rip = block.ops.last().is_some_and(|op| op.flags & Op::SETS_RIP != 0);
        self.blocks[number as usize] = Some(Block {
            ops: block.ops.into_boxed_slice(),
            sets_rip,
            length: block.length,
            second_page: block.second_page,
            check_first: block.check_first,
            heat: 0,
            interpreted: false,
            translation: None,
            placed: Vec::new(),
            serial,
            key: block.key,
        });
        if self.in_lines > 4 * self.by_key.len() + LINES * LINES {
            self.tidy_lines();
        }
        (number, flagged)
    }

    /// Removes dropped blocks from the lists in `by_line`.
    fn tidy_lines(&mut self) {
        let mut lines = std::mem::take(&mut self.by_line);
        lines.iter_mut().for_each(|list| list.retain(|&(number, serial)| self.stands(number, serial)));
        self.in_lines = lines.iter().map(Vec::len).sum();
        self.by_line = lines;
    }

    fn next_serial(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        if self.serial == 0 {
            // Serial numbers start again at zero, so forget the jumps that were remembered with old serial numbers.
            self.jumps.fill(NO_JUMP);
        }
        self.serial
    }

    /// Drops all code that came from a RAM page.
    pub fn drop_page(&mut self, ram: &GuestRam, lines: &mut CodeLines, page: u64) {
        let Some(numbers) = self.by_page.remove(&page) else { return };
        numbers.into_iter().for_each(|number| self.drop_block(number));
        lines.clear_page(page);
        ram.flags().clear(page, PageFlags::CODE);
    }

    /// Drops all blocks, in any page, that contain the byte at this page offset or end right before it.
    pub fn drop_offset(&mut self, offset: u16) {
        let offset = u64::from(offset);
        let line = (offset / LINE_BYTES) as usize;
        let mut list = std::mem::take(&mut self.by_line[line]);
        let before = list.len();
        list.retain(|&(number, serial)| {
            if !self.stands(number, serial) {
                return false;
            }
            let block = self.block(number);
            let start = block.start() % PAGE_SIZE;
            let has_it = (start..=start + u64::from(block.length)).contains(&offset);
            if has_it {
                self.drop_block(number);
            }
            !has_it
        });
        self.in_lines -= before - list.len();
        self.by_line[line] = list;
    }

    /// Drops a block and its translations. The block's pages stay flagged as code.
    fn drop_block(&mut self, number: BlockNumber) {
        let Some(block) = self.blocks[number as usize].take() else { return };
        self.by_key.remove(&block.key);
        self.free.push(number);
        self.kept -= block.translation.as_ref().map_or(0, Translation::size);
        block.placed.iter().for_each(|&(_, entry)| self.forget_placed(entry));
        for page in [Some(block.key.page()), block.second_page].into_iter().flatten() {
            if let Some(list) = self.by_page.get_mut(&page) {
                list.retain(|&n| n != number);
            }
        }
    }

    /// Drops all blocks and all placed code.
    pub fn clear(&mut self, ram: &GuestRam, lines: &mut CodeLines) {
        if self.blocks.is_empty() {
            return;
        }
        for &page in self.by_page.keys() {
            lines.clear_page(page);
            ram.flags().clear(page, PageFlags::CODE);
        }
        self.blocks.clear();
        self.kept = 0;
        self.free.clear();
        self.by_key.clear();
        self.by_page.clear();
        self.by_line.iter_mut().for_each(Vec::clear);
        self.in_lines = 0;
        self.drop_placed();
        self.jumps.fill(NO_JUMP);
    }

    /// Places a block's translation at an address; `None` if the translation is not valid there.
    pub fn place(&mut self, number: BlockNumber, rip: u64, translation: &Translation) -> Option<Entry> {
        let translator = self.translator.as_ref()?;
        if translator.is_full() || self.gone >= MOST_GONE.max(self.made / 2) {
            self.drop_placed();
        }
        let entry = self.translator.as_mut()?.place(translation, rip, number)?;
        self.made += 1;
        let placed = &mut self.block_mut(number).placed;
        placed.retain(|(at, _)| *at != rip);
        let oldest = (placed.len() == MOST_PLACES).then(|| placed.remove(0));
        placed.push((rip, entry));
        // When the block is dropped, only the code in the list `placed` is forgotten. So forget the code that was
        // just removed from the list.
        if let Some((_, oldest)) = oldest {
            self.forget_placed(oldest);
        }
        Some(entry)
    }

    /// A block's translation, if it has a translation that is valid wherever the block is mapped.
    pub fn translation(&self, number: BlockNumber) -> Option<&Translation> {
        self.block(number).translation.as_ref()
    }

    /// Keeps a block's translation.
    pub fn keep(&mut self, number: BlockNumber, translation: Translation) {
        if self.kept >= MOST_KEPT {
            // Placed code holds references to the translations, so drop the placed code too.
            self.drop_placed();
            self.blocks.iter_mut().flatten().for_each(|block| block.translation = None);
            self.kept = 0;
        }
        self.kept += translation.size();
        let old = self.block_mut(number).translation.replace(translation);
        self.kept -= old.map_or(0, |old| old.size());
    }

    /// Drops one piece of placed code.
    fn forget_placed(&mut self, entry: Entry) {
        let Some(translator) = &mut self.translator else { return };
        self.gone += u32::from(translator.is_alive(entry));
        translator.forget(entry);
    }

    fn drop_placed(&mut self) {
        if let Some(translator) = &mut self.translator {
            translator.clear();
        }
        (self.made, self.gone) = (0, 0);
    }
}

/// The lines of the block's first page that contain bytes of the block, or the byte after the block.
fn lines_touched(start: u64, length: u16) -> RangeInclusive<usize> {
    let first = start % PAGE_SIZE;
    let last = (first + u64::from(length)).min(PAGE_SIZE - 1);
    (first / LINE_BYTES) as usize..=(last / LINE_BYTES) as usize
}

/// A decoded block that is not yet in the cache.
pub(crate) struct NewBlock {
    pub key: BlockKey,
    /// RAM offset of the first byte.
    pub start: u64,
    pub ops: Vec<Op>,
    pub length: u16,
    pub second_page: Option<u64>,
    pub check_first: bool,
}

/// Pages that had no decoded code before. From now on, stores to these pages must leave the fast path.
#[derive(Default)]
pub(crate) struct Flagged {
    pages: [Option<u64>; 2],
}

impl Flagged {
    fn note(&mut self, ram: &GuestRam, page: u64) {
        if !ram.flags().has(page, PageFlags::CODE) {
            ram.flags().set(page, PageFlags::CODE);
            let slot = usize::from(self.pages[0].is_some());
            self.pages[slot] = Some(page);
        }
    }

    pub fn pages(self) -> impl Iterator<Item = u64> {
        self.pages.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};
    use translator::Source;

    use super::*;

    /// Adds a block at the beginning of a page, and translates it.
    fn add(cache: &mut CodeCache, ram: &GuestRam, lines: &mut CodeLines, page: u64) -> BlockNumber {
        let (start, rip) = (page * PAGE_SIZE, 0x1000 * page);
        let key = BlockKey::new(start, 0);
        let block =
            NewBlock { key, start, ops: Vec::new(), length: 2, second_page: None, check_first: false };
        let (number, _) = cache.insert(ram, lines, block);
        translate(cache, number, rip);
        number
    }

    fn translate(cache: &mut CodeCache, number: BlockNumber, rip: u64) {
        let jump_to_itself = [0xeb, 0xfe];
        let instructions = [Decoder::with_ip(64, &jump_to_itself, rip, DecoderOptions::NONE).decode()];
        let source = Source { rip, instructions: &instructions, second_page: None };
        let translator = cache.translator.as_mut().expect("there is one");
        let translation = translator.translate(&source).expect("a jump can be translated");
        cache.place(number, rip, &translation).expect("there is room");
        cache.keep(number, translation);
    }

    /// RAM, and a code cache for blocks in this RAM.
    struct Bench {
        ram: GuestRam,
        lines: CodeLines,
        cache: CodeCache,
    }

    impl Bench {
        fn new() -> Bench {
            let ram = GuestRam::new(8 * PAGE_SIZE).unwrap();
            Bench { lines: CodeLines::new(&ram), ram, cache: CodeCache::new() }
        }

        /// A `Bench` whose code cache has a translator; `None` on hosts without a translator.
        fn translating() -> Option<Bench> {
            let mut bench = Bench::new();
            bench.cache.translator =
                Some(Translator::new(translator::Undefined::AsOnTheHost, translator::Parts::ALL)?);
            Some(bench)
        }

        /// Adds a block of `length` bytes at a RAM offset. Returns the block's number, and the block's pages that
        /// had no code before.
        fn add(&mut self, start: u64, length: u16) -> (BlockNumber, Vec<u64>) {
            let end = start + u64::from(length) - 1;
            let second_page = (end / PAGE_SIZE != start / PAGE_SIZE).then_some(end / PAGE_SIZE);
            let key = BlockKey::new(start, 0);
            let block = NewBlock { key, start, ops: Vec::new(), length, second_page, check_first: false };
            let (number, flagged) = self.cache.insert(&self.ram, &mut self.lines, block);
            (number, flagged.pages().collect())
        }

        fn drop_page(&mut self, page: u64) {
            self.cache.drop_page(&self.ram, &mut self.lines, page);
        }

        fn is_code(&self, page: u64) -> bool {
            self.ram.flags().has(page, PageFlags::CODE)
        }

        fn check_count(&self) {
            assert_eq!(self.cache.in_lines, self.cache.by_line.iter().map(Vec::len).sum::<usize>());
        }
    }

    #[test]
    fn a_block_is_found_by_its_place_and_mode() {
        let mut bench = Bench::new();
        let (number, pages) = bench.add(0x1010, 5);
        assert_eq!(pages, [1]);
        assert_eq!(bench.add(0x1020, 5).1, [0; 0], "the page is one with code already");
        assert_eq!(bench.cache.find(BlockKey::new(0x1010, 0)), Some(number));
        assert_eq!(bench.cache.find(BlockKey::new(0x1010, 1)), None);
        assert_eq!(bench.cache.find(BlockKey::new(0x1011, 0)), None);
        assert_eq!(bench.cache.block(number).start(), 0x1010);
        assert!(bench.is_code(1) && !bench.is_code(2));
    }

    #[test]
    fn a_jump_leads_to_its_block_as_long_as_that_stands() {
        let mut bench = Bench::new();
        let (number, _) = bench.add(0x1010, 5);
        bench.cache.remember_jump(0x4010, 7, number);
        assert_eq!(bench.cache.jump(0x4010, 7), Some(number));
        assert_eq!(bench.cache.jump(0x4010, 8), None);
        assert_eq!(bench.cache.jump(0x4011, 7), None);
        bench.drop_page(1);
        assert_eq!(bench.cache.jump(0x4010, 7), None);
        // The new block gets the number of the dropped block.
        assert_eq!(bench.add(0x2010, 5).0, number);
        assert_eq!(bench.cache.jump(0x4010, 7), None);
    }

    #[test]
    fn jumps_of_a_page_lie_side_by_side() {
        let slots: std::collections::BTreeSet<usize> = (0x7000..0x7040).map(CodeCache::jump_index).collect();
        assert_eq!(slots.len(), JUMP_SLOTS_OF_PAGE, "of one line, each has its own");
        assert!(
            slots.last().expect("there are some") - slots.first().expect("there are some")
                < JUMP_SLOTS_OF_PAGE
        );
        assert_ne!(CodeCache::jump_index(0x10_0000), CodeCache::jump_index(0x18_0000));
    }

    #[test]
    fn when_serial_numbers_begin_anew_no_jump_is_remembered() {
        let mut bench = Bench::new();
        let (number, _) = bench.add(0x1010, 5);
        bench.cache.remember_jump(0x4010, 7, number);
        bench.cache.serial = u32::MAX - 1;
        bench.add(0x2010, 5);
        assert_eq!(bench.cache.jump(0x4010, 7), Some(number));
        bench.add(0x3010, 5);
        assert_eq!(bench.cache.jump(0x4010, 7), None);
    }

    #[test]
    fn a_page_takes_its_blocks_with_it() {
        for dropped in [1, 2] {
            let mut bench = Bench::new();
            bench.add(0x1010, 5);
            // The block's last two bytes are in the next page.
            assert_eq!(bench.add(0x1ffe, 4).1, [2]);
            bench.add(0x2010, 5);
            let touches = |bench: &Bench| {
                [(1, 0x1f, 1), (2, 0, 1), (2, 1, 1)].map(|(p, o, l)| bench.lines.touches(p, o, l))
            };
            assert_eq!(touches(&bench), [true, true, true]);
            bench.drop_page(dropped);
            let found = [0x1010, 0x1ffe, 0x2010].map(|at| bench.cache.find(BlockKey::new(at, 0)).is_some());
            assert_eq!(found, [dropped != 1, false, dropped != 2]);
            assert_eq!([bench.is_code(1), bench.is_code(2)], [dropped != 1, dropped != 2]);
            assert_eq!(touches(&bench), [dropped != 1, dropped != 2, dropped != 2]);
            // Dropping one page has also removed the block that crosses pages from the other page's list.
            bench.drop_page(3 - dropped);
            assert!(bench.cache.by_key.is_empty() && bench.cache.by_page.is_empty());
        }
    }

    #[test]
    fn blocks_are_dropped_by_an_offset_in_any_page() {
        // A page offset, and for each of three blocks whether the block is dropped. The blocks are at 0x10-0x14, at
        // 0x3e-0x45, and from 0xffe into the next page.
        let cases = [
            (0x0f, [false, false, false]),
            (0x10, [true, false, false]),
            (0x15, [true, false, false]),
            (0x16, [false, false, false]),
            (0x3d, [false, false, false]),
            (0x3f, [false, true, false]),
            (0x40, [false, true, false]),
            (0x46, [false, true, false]),
            (0x47, [false, false, false]),
            (0xfff, [false, false, true]),
        ];
        for (offset, dropped) in cases {
            let mut bench = Bench::new();
            let starts = [0x1010, 0x203e, 0x3ffe];
            for (start, length) in starts.into_iter().zip([5, 8, 4]) {
                bench.add(start, length);
            }
            bench.cache.drop_offset(offset);
            let gone = starts.map(|start| bench.cache.find(BlockKey::new(start, 0)).is_none());
            assert_eq!(gone, dropped, "{offset:#x}");
            bench.check_count();
            // The blocks that were not dropped are dropped by the offsets of their first bytes.
            for start in starts {
                bench.cache.drop_offset((start % PAGE_SIZE) as u16);
            }
            assert!(bench.cache.by_key.is_empty(), "{offset:#x}");
        }
    }

    #[test]
    fn lists_by_lines_forget_what_has_gone() {
        let mut bench = Bench::new();
        bench.add(0x2010, 5);
        for _ in 0..2 * LINES * LINES {
            bench.add(0x1010, 5);
            bench.drop_page(1);
            bench.check_count();
            assert!(bench.cache.in_lines <= LINES * LINES + 8, "{} in the lists", bench.cache.in_lines);
        }
        bench.cache.drop_offset(0x10);
        assert_eq!(bench.cache.find(BlockKey::new(0x2010, 0)), None, "what stands was not forgotten");
        bench.add(0x3010, 5);
        let Bench { ram, lines, cache } = &mut bench;
        cache.clear(ram, lines);
        bench.check_count();
        assert!(!bench.is_code(3) && bench.cache.find(BlockKey::new(0x3010, 0)).is_none());
    }

    #[test]
    fn one_translation_serves_at_every_address() {
        let Some(Bench { ram, mut lines, mut cache }) = Bench::translating() else { return };
        let number = add(&mut cache, &ram, &mut lines, 1);
        let translation = cache.translation(number).expect("it serves anywhere").clone();
        let places =
            [0x7f12_3456_7000, 0x7f12_0000_0000, 0x5555_0000_2000, 0x7f00_0000_0000, 0x7f12_3456_7000];
        // A translation that was made for a low address is not valid at a high address, whose encoding is longer.
        assert!(cache.place(number, places[0], &translation).is_none());
        translate(&mut cache, number, places[0]);
        let translation = cache.translation(number).expect("it serves anywhere").clone();
        for place in places {
            let entry = cache.place(number, place, &translation);
            assert!(entry.is_some() && cache.placed(number, place) == entry, "{place:#x}");
        }
        assert_eq!(cache.block(number).placed.len(), MOST_PLACES);
        assert!(cache.placed(number, 0x1000).is_none(), "the oldest goes");
        // The translation outlives its placed code.
        cache.drop_placed();
        assert!(places.iter().all(|&place| cache.placed(number, place).is_none()));
        assert!(cache.place(number, places[1], &translation).is_some());
    }

    #[test]
    fn translations_that_are_kept_have_a_limit() {
        let Some(Bench { ram, mut lines, mut cache }) = Bench::translating() else { return };
        let [first, second] = [1, 2].map(|page| add(&mut cache, &ram, &mut lines, page));
        let size = |cache: &CodeCache, number| cache.translation(number).map_or(0, Translation::size);
        assert_eq!(cache.kept, size(&cache, first) + size(&cache, second));
        translate(&mut cache, second, 0x7f00_0000_2000);
        assert_eq!(cache.kept, size(&cache, first) + size(&cache, second), "it has one");
        cache.kept += MOST_KEPT;
        translate(&mut cache, second, 0x2000);
        assert!(cache.translation(first).is_none() && cache.placed(first, 0x1000).is_none());
        assert_eq!(cache.kept, size(&cache, second));
        cache.drop_page(&ram, &mut lines, 2);
        assert_eq!(cache.kept, 0);
    }

    #[test]
    fn translations_that_are_gone_do_not_pile_up() {
        let Some(Bench { ram, mut lines, mut cache }) = Bench::translating() else { return };
        let kept = add(&mut cache, &ram, &mut lines, 1);
        let mut dropped = 0;
        for _ in 0..3 * MOST_GONE {
            add(&mut cache, &ram, &mut lines, 2);
            cache.drop_page(&ram, &mut lines, 2);
            assert!(cache.gone <= cache.made && cache.made <= MOST_GONE + 1, "{} {}", cache.gone, cache.made);
            if cache.placed(kept, 0x1000).is_none() {
                dropped += 1;
                translate(&mut cache, kept, 0x1000);
            }
        }
        assert_eq!(dropped, 2);
        // `drop_placed` has dropped the block's code and reset the counts. So dropping the block afterwards does
        // not count this code.
        let gone = cache.gone;
        cache.drop_placed();
        cache.drop_page(&ram, &mut lines, 1);
        assert!(gone > 0 && cache.gone == 0);
    }
}

//! The translator for x86-64 hosts.

mod asm;
mod bits;
mod block;
mod exits;
mod fork_mark;
mod forms;
mod groups;
mod integer;
mod kind;
mod memory;
mod privileged;
mod recipe;
mod relocation;
mod undefined;
mod vectors;

use std::num::NonZeroU32;
use std::sync::Arc;

use asm::{Asm, B1, B8, R15, RAX, RBP, RBX, RDI, RSI, Reg, cc};
use exits::{BRANCH_BITS, EDGE_ON, EDGE_TAKEN, ENTRY, MAX_BLOCKS, cost};
use memory::CodeMemory;
use recipe::Recipes;
use relocation::Place;

use crate::frame::{Frame, TlbSlot};
use crate::jumps::{JumpSlot, Jumps};
use crate::{
    At, Entry, Guest, Left, Link, MAX_INSTRUCTIONS, MAX_STEPS, Miss, Part, Parts, Resume, Source, Undefined,
};

/// The largest number of code bytes. When the bytes are used up, all code is dropped and translated again.
const CODE_BYTES: usize = 64 << 20;
/// The largest number of code bytes of one block.
const BLOCK_BYTES: usize = 32 << 10;
/// Registers of the host that the calling convention requires generated code to preserve.
const CALLEE_SAVED: [Reg; 6] = [RBX, RBP, Reg(12), Reg(13), Reg(14), R15];

/// A translated block.
struct Block {
    rip: u64,
    token: u32,
    /// Host address minus virtual address of the block's guest bytes, once known.
    addend: Option<u64>,
    /// Offset of the block's code.
    entry: u32,
    /// Offset of the exit before the block's first instruction.
    dead: u32,
    instructions: u8,
    branches: u8,
    alive: bool,
    /// Registers that a recipe must not need if it is in place of the flags when the block is entered. `None` if the
    /// block accepts no recipe.
    changes: Option<u16>,
    /// Targets of the edges, relative to `rip`: next, and taken. `linkable` says which of the edges can be linked.
    ahead: [u64; 2],
    linkable: [bool; 2],
    /// The places where the block can be entered again.
    reentries: Arc<[block::Reentry]>,
    /// The code that was written for the block.
    written: Arc<block::Written>,
}

/// The code of a block, which can be placed wherever the guest maps the block's bytes.
#[derive(Clone)]
pub struct Translation {
    written: Arc<block::Written>,
    /// The guest address for which the block was translated.
    rip: u64,
    /// Value of [`Translator::cookbook`] at translation.
    cookbook: u32,
}

/// Translates blocks, and runs them.
pub struct Translator {
    code: CodeMemory,
    /// The code that blocks jump to.
    site: block::Site,
    /// Offset of the first block.
    first: usize,
    blocks: Vec<Block>,
    /// Counts how often all code was dropped.
    generation: u32,
    /// Remembered targets.
    jumps: Jumps,
    /// The recipes that the frame can hold in place of flags.
    recipes: Recipes,
    /// Counts how often all recipes were dropped.
    cookbook: u32,
    /// Buffer for code that is being relocated.
    placed: Vec<u8>,
}

impl Translation {
    /// Approximate size in bytes.
    pub fn size(&self) -> usize {
        size_of::<block::Written>() + self.written.code.len() + self.written.relocations.size()
    }
}

impl Block {
    /// Whether the block can be entered with a recipe that needs the given registers.
    fn takes(&self, recipe: u16) -> bool {
        self.changes.is_some_and(|changes| changes & recipe == 0)
    }
}

impl Translator {
    /// A translator without code. `None` if the host does not let a program generate code. `undefined` is the treatment
    /// of undefined results, `parts` the optimisations to use.
    pub fn new(undefined: Undefined, parts: Parts) -> Option<Translator> {
        let mut code = CodeMemory::new(CODE_BYTES)?;
        let site = glue(&mut code, undefined, parts);
        let first = code.next();
        Some(Translator {
            code,
            site,
            first,
            blocks: Vec::new(),
            generation: 0,
            jumps: Jumps::new(),
            recipes: Recipes::default(),
            cookbook: 0,
            placed: Vec::new(),
        })
    }

    /// The treatment of results that the host's instructions leave undefined.
    pub fn undefined(&self) -> Undefined {
        self.site.undefined
    }

    /// The optimisations in use.
    pub fn parts(&self) -> Parts {
        self.site.parts
    }

    /// Translates a block; `None` if the interpreter would have to execute most of the block's instructions anyway.
    pub fn translate(&mut self, source: &Source<'_>) -> Option<Translation> {
        let count = source.instructions.len();
        if count == 0 || count > MAX_INSTRUCTIONS {
            return None;
        }
        let written = block::write(source, &self.site, &mut self.recipes)?;
        let is_short = written.code.len() <= BLOCK_BYTES;
        is_short.then(|| Translation { written: written.into(), rip: source.rip, cookbook: self.cookbook })
    }

    /// Whether a translation is valid wherever the guest maps the block's bytes.
    pub fn is_movable(&self, translation: &Translation) -> bool {
        let may_move = self.site.parts.has(Part::Places) && translation.written.movable;
        may_move && translation.cookbook == self.cookbook
    }

    /// Places a block's translation at an address. `None` if the translation is not valid at that address, or if there
    /// is no room: see [`Translator::is_full`]. `token` is the caller's name for the block.
    pub fn place(&mut self, translation: &Translation, rip: u64, token: u32) -> Option<Entry> {
        let written = &translation.written;
        let by = rip.wrapping_sub(translation.rip);
        let can_move = by == 0 || written.movable && written.relocations.can_move(by);
        if self.is_full() || translation.cookbook != self.cookbook || !can_move {
            return None;
        }
        let (offset, number) = (self.code.next(), self.blocks.len() as u32);
        self.placed.clear();
        self.placed.extend_from_slice(&written.code);
        written.relocations.apply(&mut self.placed, &Place { by, number, offset });
        self.code.append(&self.placed);
        self.blocks.push(Block {
            rip,
            token,
            addend: None,
            entry: offset as u32,
            dead: (offset + written.dead) as u32,
            instructions: written.instructions,
            branches: written.branches as u8,
            alive: true,
            changes: written.changes,
            ahead: written.edges.map(|edge| edge.ahead),
            linkable: written.edges.map(|edge| edge.displacement.is_some()),
            reentries: written.reentries.clone(),
            written: written.clone(),
        });
        Some(Entry { number, generation: self.generation })
    }

    /// Whether a translation, moved to the address of `source`, equals the translation of `source`. `None` if
    /// the translation cannot be moved there.
    pub fn moves_rightly(&mut self, translation: &Translation, source: &Source<'_>) -> Option<bool> {
        let by = source.rip.wrapping_sub(translation.rip);
        let Translation { written, .. } = translation;
        if !self.is_movable(translation) || !written.relocations.can_move(by) {
            return None;
        }
        let Some(own) = block::write(source, &self.site, &mut self.recipes) else { return Some(false) };
        let mut moved = written.code.clone();
        written.relocations.apply(&mut moved, &Place { by, number: 0, offset: 0 });
        let same_but_for_addresses = |other: &block::Written| {
            let (a, b) = (written, other);
            (a.edges, &a.reentries, a.dead, a.changes, a.movable, a.branches)
                == (b.edges, &b.reentries, b.dead, b.changes, b.movable, b.branches)
        };
        Some(moved == own.code && same_but_for_addresses(&own))
    }

    /// The remembered code of the block at an address, if it has at most `most` instructions. `page` is the TLB slot of
    /// the address.
    #[inline]
    pub fn find(&self, rip: u64, page: &TlbSlot, most: u64) -> Option<Entry> {
        let found = self.jumps.find(rip, page.addend())?;
        let entry = Entry { number: found.number, generation: self.generation };
        (u64::from(found.instructions) <= most && self.is_alive(entry)).then_some(entry)
    }

    /// Whether nothing more can be translated before [`Translator::clear`].
    pub fn is_full(&self) -> bool {
        self.code.room() < BLOCK_BYTES || self.blocks.len() as u32 >= MAX_BLOCKS || self.recipes.are_many()
    }

    /// Drops all code.
    pub fn clear(&mut self) {
        self.code.truncate(self.first);
        self.blocks.clear();
        self.generation += 1;
        self.jumps.clear();
        if self.recipes.are_many() {
            self.recipes.clear();
            self.cookbook += 1;
        }
    }

    /// Drops a block's code. Jumps to that code exit from generated code from now on.
    pub fn forget(&mut self, entry: Entry) {
        if entry.generation != self.generation {
            return;
        }
        let block = &mut self.blocks[entry.number as usize];
        block.alive = false;
        let (from, to, rip) = (block.entry, block.dead, block.rip);
        self.jump(from as usize, to as usize);
        self.jumps.forget(rip, entry.number);
    }

    /// Whether a block's code still exists.
    pub fn is_alive(&self, entry: Entry) -> bool {
        entry.generation == self.generation && self.blocks[entry.number as usize].alive
    }

    /// Writes a jump.
    fn jump(&mut self, from: usize, to: usize) {
        let mut code = [0xe9, 0, 0, 0, 0];
        code[1..].copy_from_slice(&distance(from + 1, to));
        self.code.write(from, &code);
    }

    /// Links an exit of one block directly to another block's code. `page` is the TLB slot of the other block.
    pub fn link(&mut self, link: Link, to: Entry, page: &TlbSlot) {
        let may_link = self.site.parts.has(Part::Links);
        if !may_link || link.generation != self.generation || !self.is_alive(to) {
            return;
        }
        let to = &self.blocks[to.number as usize];
        let (target, rip) = (to.entry as usize, to.rip);
        let from = &self.blocks[link.number as usize];
        if link.edge == ENTRY {
            // Redirects links from dropped code to its replacement.
            if !from.alive && from.rip == rip && from.addend == Some(page.addend()) {
                self.replace(link.number, target, to.changes);
            }
            return;
        }
        let edge = from.written.edges[usize::from(link.edge == EDGE_TAKEN)];
        let place = |at: NonZeroU32| from.entry as usize + at.get() as usize;
        let [displacement, twin, addend] =
            [edge.displacement, edge.twin, edge.addend].map(|at| at.map(place));
        let leads_on = from.rip.wrapping_add(edge.ahead);
        let mut leads_to = target;
        if let (Some(recipe), Some(settle)) = (edge.recipe, edge.settle)
            && !to.takes(recipe)
        {
            let [settle, jump] = settle.map(&place);
            self.code.write(jump, &distance(jump, target));
            leads_to = settle;
        }
        for offset in [displacement, twin].into_iter().flatten() {
            assert_eq!(leads_on, rip, "a block is linked to one that does not follow it");
            self.code.write(offset, &distance(offset, leads_to));
        }
        if let Some(offset) = addend {
            self.code.write(offset, &page.addend().to_le_bytes());
        }
    }

    /// Redirects jumps to a dropped block to its replacement. If the replacement accepts fewer recipes than the old
    /// block, an entry with a recipe exits from generated code instead.
    fn replace(&mut self, old: u32, target: usize, changes: Option<u16>) {
        let old = &self.blocks[old as usize];
        let (entry, dead) = (old.entry as usize, old.dead as usize);
        let no_worse = old.changes.is_none_or(|old| changes.is_some_and(|new| new & !old == 0));
        if no_worse {
            return self.jump(entry, target);
        }
        let mut asm = Asm::new(Undefined::AsOnTheHost);
        asm.test_imm(B1, block::FLAGS, recipe::IS_RECIPE as i32);
        let has_recipe = asm.jcc(cc::NE);
        asm.lead_to(has_recipe, dead - entry);
        let on = asm.jmp();
        asm.lead_to(on, (target as i64 - entry as i64) as usize);
        assert!(asm.bytes().len() <= dead - entry, "the way out is overwritten");
        self.code.write(entry, asm.bytes());
    }

    /// Remembers a block's code as the target for the block's address. The entry is valid while the TLB maps the
    /// block's page as `page` does.
    #[inline]
    pub fn remember(&mut self, entry: Entry, page: &TlbSlot) {
        if !self.is_alive(entry) {
            return;
        }
        let block = &mut self.blocks[entry.number as usize];
        block.addend = Some(page.addend());
        if !self.site.parts.has(Part::Jumps) {
            return;
        }
        self.jumps.remember(JumpSlot {
            rip: block.rip,
            addend: page.addend(),
            target: self.code.address(block.entry as usize),
            number: entry.number,
            instructions: block.instructions.into(),
        });
    }

    /// Runs a block and its successors for up to `steps` steps.
    #[inline]
    pub fn run(&mut self, entry: Entry, guest: Guest<'_>, steps: u64) -> Option<Left> {
        if !self.is_alive(entry) {
            return None;
        }
        let address = self.code.address(self.blocks[entry.number as usize].entry as usize);
        Some(self.enter(address, guest, steps.min(MAX_STEPS), 0))
    }

    /// Continues at or after an instruction inside a block, for up to `steps` steps. `steps` must be enough for the
    /// rest of the block.
    #[inline]
    pub fn resume(&mut self, resume: Resume, guest: Guest<'_>, steps: u64) -> Option<Left> {
        if resume.generation != self.generation || steps < resume.steps {
            return None;
        }
        let block = &self.blocks[resume.number as usize];
        let address = self.code.address(resume.offset);
        let charged = cost(resume.steps as usize, block.branches.into());
        Some(self.enter(address, guest, steps.min(MAX_STEPS), charged))
    }

    #[inline]
    fn enter(&mut self, address: u64, guest: Guest<'_>, steps: u64, charged: i64) -> Left {
        let Guest { frame, flags, slots, .. } = guest;
        let counter = (steps as i64) << BRANCH_BITS;
        frame.counter = counter - charged;
        frame.flags = flags.0;
        frame.vectors_blocked = guest.vectors_blocked.into();
        frame.slots = slots;
        frame.slots_by_ac = guest.slots_by_ac.map(std::ptr::from_ref);
        frame.system_flags = *guest.system_flags;
        frame.kernel_gs_base = *guest.kernel_gs_base;
        frame.privileged = guest.privileged.into();
        frame.interrupts_wait = guest.interrupts_wait.into();
        frame.jumps = self.jumps.as_ptr();
        // SAFETY: `block` wrote the code at `address` for this frame's layout. The code accesses the frame,
        // the slots and the jump table, which all outlive the call. The code accesses RAM through slots,
        // which only `TlbSlot::map` makes. The code follows the calling convention: see `glue`.
        let code = unsafe {
            let enter: extern "sysv64" fn(*mut Frame, u64) -> u32 = std::mem::transmute(self.code.address(0));
            enter(frame, address)
        };
        *flags = self.recipes.flags(frame.flags, &frame.regs);
        *guest.system_flags = frame.system_flags;
        *guest.kernel_gs_base = frame.kernel_gs_base;
        let shadow = std::mem::take(&mut frame.shadow) != 0;
        let missed = std::mem::take(&mut frame.missed);
        self.left(code, [counter, frame.counter], shadow, missed)
    }

    /// Decodes an exit's code and the counter.
    fn left(&self, code: u32, [before, counter]: [i64; 2], shadow: bool, missed: [u64; 2]) -> Left {
        let number = code >> 6;
        let code = (code & 63) as u8;
        let block = &self.blocks[number as usize];
        let count = usize::from(block.instructions);
        let mut counter = counter;
        let at = match code {
            ENTRY if block.alive => At::Block(block.rip),
            ENTRY => At::Edge(block.rip, Some(Link { number, edge: code, generation: self.generation })),
            EDGE_TAKEN | EDGE_ON => {
                let edge = usize::from(code == EDGE_TAKEN);
                let link = Link { number, edge: code, generation: self.generation };
                At::Edge(block.rip.wrapping_add(block.ahead[edge]), block.linkable[edge].then_some(link))
            }
            n => {
                let left = count - usize::from(n);
                counter += cost(left, block.branches.into());
                let reentry = block.reentries.iter().find(|reentry| reentry.instruction == n);
                let at = |offset: NonZeroU32, steps| Resume {
                    number,
                    offset: block.entry as usize + offset.get() as usize,
                    generation: self.generation,
                    steps,
                };
                let resume = reentry
                    .and_then(|reentry| reentry.behind)
                    .filter(|_| left > 1)
                    .map(|offset| at(offset, left as u64 - 1));
                let access = missed.iter().position(|&address| address != 0);
                let again = reentry.and_then(|reentry| reentry.at);
                let missed = access.zip(again).map(|(access, again)| Miss {
                    address: missed[access],
                    writes: access == 1,
                    again: at(again, left as u64),
                });
                At::Instruction { rip: block.rip, token: block.token, number: n.into(), resume, missed }
            }
        };
        debug_assert!(counter >= 0, "more steps than were allowed");
        let steps = (before >> BRANCH_BITS) - (counter >> BRANCH_BITS);
        Left { steps: steps as u64, branches: counter as u64 & ((1 << BRANCH_BITS) - 1), shadow, at }
    }
}

/// The displacement at offset `at` for a jump to offset `to`.
fn distance(at: usize, to: usize) -> [u8; 4] {
    ((to as i64 - (at as i64 + 4)) as i32).to_le_bytes()
}

/// Writes the entry to generated code at offset 0, the lookup of targets, and the common exit.
fn glue(code: &mut CodeMemory, undefined: Undefined, parts: Parts) -> block::Site {
    let mut asm = Asm::new(undefined);
    let push = |asm: &mut Asm, reg: Reg, opcode: u8| {
        if reg.0 >= 8 {
            asm.byte(0x41);
        }
        asm.byte(opcode | reg.0 & 7);
    };
    CALLEE_SAVED.iter().for_each(|&reg| push(&mut asm, reg, 0x50));
    asm.lea(B8, RBP, asm::at(RDI, Frame::ANCHOR as i32));
    asm.load(B8, RAX, RSI);
    asm.load(B8, R15, block::COUNTER);
    for (home, place) in block::pinned() {
        asm.load(B8, home, place);
    }
    asm.jmp_to(RAX);
    let lookup = asm.here();
    block::jump_or_exit(&mut asm);
    let exit = asm.here();
    for (home, place) in block::pinned() {
        asm.store(B8, place, home);
    }
    asm.store(B8, block::COUNTER, R15);
    CALLEE_SAVED.iter().rev().for_each(|&reg| push(&mut asm, reg, 0x58));
    asm.byte(0xc3);
    code.append(asm.bytes());
    block::Site { exit, lookup, undefined, parts }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;

    /// The translation of a loop that loads from and stores to a structure, under flags that have a recipe.
    fn written(parts: Parts) -> Option<block::Written> {
        // mov ebx, [rsi]; cmp ebx, ecx; mov ebx, [rdi+8]; mov [rdi+16], ebx; mov ebx, [rdi+24]; je to the first
        let code =
            [0x8b, 0x1e, 0x39, 0xcb, 0x39, 0xd1, 0x8b, 0x5f, 8, 0x89, 0x5f, 16, 0x8b, 0x5f, 24, 0x74, 0xef];
        let instructions: Vec<_> =
            Decoder::with_ip(64, &code, 0x1000, DecoderOptions::NONE).into_iter().collect();
        let source = Source { rip: 0x1000, instructions: &instructions, second_page: None };
        let mut translator = Translator::new(Undefined::AsOnTheHost, parts)?;
        block::write(&source, &translator.site, &mut translator.recipes)
    }

    #[test]
    fn code_is_another_without_a_part() {
        let Some(all) = written(Parts::ALL) else { return };
        for part in [Part::Groups, Part::Twins, Part::ExpectedAddends, Part::Recipes] {
            let other = written(Parts::ALL.without(part)).expect("the host lets it make code");
            assert!(other.code != all.code, "{part:?}");
        }
        let other = written(Parts::ALL.without(Part::Reentries)).expect("the host lets it make code");
        assert!(other.code == all.code && other.reentries.is_empty() && !all.reentries.is_empty());
    }
}

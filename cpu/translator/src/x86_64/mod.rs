//! The translator for x86-64 hosts.

mod asm;
mod bits;
mod block;
mod exits;
mod forms;
mod groups;
mod integer;
mod kind;
mod memory;
mod privileged;
mod recipe;
mod undefined;
mod vectors;

use std::num::NonZeroU32;

use asm::{Asm, B1, B8, R15, RAX, RBP, RBX, RDI, RSI, Reg, cc};
use exits::{BRANCH_BITS, EDGE_ON, EDGE_TAKEN, ENTRY, MAX_BLOCKS, cost};
use memory::CodeMemory;
use recipe::Recipes;

use crate::frame::{Frame, TlbSlot};
use crate::jumps::{JumpSlot, Jumps};
use crate::{At, Entry, Guest, Left, Link, MAX_INSTRUCTIONS, MAX_STEPS, Miss, Resume, Source, Undefined};

/// Bytes of code, at most; when they are used up all is translated anew.
const CODE_BYTES: usize = 64 << 20;
/// Bytes that the longest block may take.
const BLOCK_BYTES: usize = 32 << 10;
/// Registers of the host that belong to the caller.
const CALLEE_SAVED: [Reg; 6] = [RBX, RBP, Reg(12), Reg(13), Reg(14), R15];

/// A translated block.
struct Block {
    rip: u64,
    token: u32,
    /// Host address minus virtual address of its bytes, once that is known.
    addend: Option<u64>,
    /// Offset of its code.
    entry: u32,
    /// Offset of the way out before its first instruction.
    dead: u32,
    instructions: u8,
    branches: u8,
    alive: bool,
    /// Whether it can be entered with a recipe in place of the flags, and what registers that must not need.
    changes: Option<u16>,
    /// The ways to the next blocks: on, and taken.
    edges: [block::Edge; 2],
    /// Where it can be entered again.
    reentries: Box<[block::Reentry]>,
}

/// Translates blocks, and runs them.
pub struct Translator {
    code: CodeMemory,
    undefined: Undefined,
    /// Offsets of what looks for a target, of what ends a run, and of the first block.
    lookup: usize,
    exit: usize,
    first: usize,
    blocks: Vec<Block>,
    /// Counts how often everything was dropped.
    generation: u32,
    /// Remembered targets.
    jumps: Jumps,
    /// What stands in the frame for flags.
    recipes: Recipes,
}

impl Block {
    /// Whether it can be entered with a recipe that needs some registers.
    fn takes(&self, recipe: u16) -> bool {
        self.changes.is_some_and(|changes| changes & recipe == 0)
    }
}

impl Translator {
    /// A translator without code; `None` where the host does not let a program make code. `undefined` says what becomes of
    /// what the host's instructions leave undefined.
    pub fn new(undefined: Undefined) -> Option<Translator> {
        let mut code = CodeMemory::new(CODE_BYTES)?;
        let (lookup, exit) = glue(&mut code, undefined);
        let first = code.next();
        let (blocks, jumps, recipes) = (Vec::new(), Jumps::new(), Recipes::default());
        Some(Translator { code, undefined, lookup, exit, first, blocks, generation: 0, jumps, recipes })
    }

    /// What becomes of what the host's instructions leave undefined.
    pub fn undefined(&self) -> Undefined {
        self.undefined
    }

    /// Translates a block; `None` if that is not worth it, or there is no room: see [`Translator::is_full`].
    pub fn translate(&mut self, source: &Source<'_>) -> Option<Entry> {
        let count = source.instructions.len();
        if count == 0 || count > MAX_INSTRUCTIONS || self.is_full() {
            return None;
        }
        let entry = self.code.next();
        let number = self.blocks.len() as u32;
        let [base, exit, lookup] = [entry, self.exit, self.lookup].map(|offset| self.code.address(offset));
        let site = block::Site { number, base, exit, lookup, undefined: self.undefined };
        let written = block::write(source, &site, &mut self.recipes)?;
        if written.code.len() > BLOCK_BYTES {
            return None;
        }
        self.code.append(&written.code);
        self.blocks.push(Block {
            rip: source.rip,
            token: source.token,
            addend: None,
            entry: entry as u32,
            dead: (entry + written.dead) as u32,
            instructions: count as u8,
            branches: written.branches as u8,
            alive: true,
            changes: written.changes,
            edges: written.edges.map(|edge| edge.moved(entry)),
            reentries: written.reentries.iter().map(|reentry| reentry.moved(entry)).collect(),
        });
        Some(Entry { number, generation: self.generation })
    }

    /// The code of the block at an address, whose page is in a slot of the TLB, if it is remembered and has at most so many
    /// instructions.
    #[inline]
    pub fn find(&self, rip: u64, page: &TlbSlot, most: u64) -> Option<Entry> {
        let found = self.jumps.find(rip, page.addend())?;
        let entry = Entry { number: found.number, generation: self.generation };
        (u64::from(found.instructions) <= most && self.is_alive(entry)).then_some(entry)
    }

    /// Whether nothing more can be translated before [`Translator::clear`].
    pub fn is_full(&self) -> bool {
        self.code.room() < BLOCK_BYTES || self.blocks.len() as u32 >= MAX_BLOCKS
    }

    /// Drops all code.
    pub fn clear(&mut self) {
        self.code.truncate(self.first);
        self.blocks.clear();
        self.generation += 1;
        self.jumps.clear();
        self.recipes.clear();
    }

    /// Drops a block's code. Ways that lead to it lead out of generated code from now on.
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

    /// Whether a block's code still stands.
    pub fn is_alive(&self, entry: Entry) -> bool {
        entry.generation == self.generation && self.blocks[entry.number as usize].alive
    }

    /// Writes a jump.
    fn jump(&mut self, from: usize, to: usize) {
        let mut code = [0xe9, 0, 0, 0, 0];
        code[1..].copy_from_slice(&distance(from + 1, to));
        self.code.write(from, &code);
    }

    /// Lets one block's code lead straight to another's, whose page is in a slot of the TLB.
    pub fn link(&mut self, link: Link, to: Entry, page: &TlbSlot) {
        if link.generation != self.generation || !self.is_alive(to) {
            return;
        }
        let to = &self.blocks[to.number as usize];
        let (target, rip) = (to.entry as usize, to.rip);
        let from = &self.blocks[link.number as usize];
        if link.edge == ENTRY {
            // Ways that lead to code which is gone lead to that which has replaced it.
            if !from.alive && from.rip == rip && from.addend == Some(page.addend()) {
                self.replace(link.number, target, to.changes);
            }
            return;
        }
        let edge = from.edges[usize::from(link.edge == EDGE_TAKEN)];
        let [displacement, twin, addend] =
            [edge.displacement, edge.twin, edge.addend].map(|at| at.map(|at| at.get() as usize));
        let mut leads_to = target;
        if let (Some(recipe), Some(settle)) = (edge.recipe, edge.settle)
            && !to.takes(recipe)
        {
            let [settle, jump] = settle.map(|at| at.get() as usize);
            self.code.write(jump, &distance(jump, target));
            leads_to = settle;
        }
        for offset in [displacement, twin].into_iter().flatten() {
            assert_eq!(edge.target, rip, "a block is linked to one that does not follow it");
            self.code.write(offset, &distance(offset, leads_to));
        }
        if let Some(offset) = addend {
            self.code.write(offset, &page.addend().to_le_bytes());
        }
    }

    /// Lets the ways to a block that is gone lead to what has replaced it. What led there with a recipe in place of the flags
    /// leads out of generated code, unless that can do with all recipes that the old one could do with.
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

    /// Remembers that a block's address leads to its code, as long as its page is mapped as in this slot of the TLB.
    #[inline]
    pub fn remember(&mut self, entry: Entry, page: &TlbSlot) {
        if !self.is_alive(entry) {
            return;
        }
        let block = &mut self.blocks[entry.number as usize];
        block.addend = Some(page.addend());
        self.jumps.remember(JumpSlot {
            rip: block.rip,
            addend: page.addend(),
            target: self.code.address(block.entry as usize),
            number: entry.number,
            instructions: block.instructions.into(),
        });
    }

    /// Runs a block and what follows it for up to `steps` steps.
    #[inline]
    pub fn run(&mut self, entry: Entry, guest: Guest<'_>, steps: u64) -> Option<Left> {
        if !self.is_alive(entry) {
            return None;
        }
        let address = self.code.address(self.blocks[entry.number as usize].entry as usize);
        Some(self.enter(address, guest, steps.min(MAX_STEPS), 0))
    }

    /// Goes on behind an instruction that the interpreter has executed, or at one, for up to `steps` steps, which must be
    /// enough for the rest of its block.
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
        // SAFETY: the code behind `address` was written by `block`, for this frame's layout. It reads and writes the frame,
        // the slots, the jump table, which all outlive the call, and RAM through slots, which only `TlbSlot::map` makes. It
        // keeps to the calling convention: `glue`.
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

    /// What the code of an exit and the counter mean.
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
                let edge = block.edges[usize::from(code == EDGE_TAKEN)];
                let link = Link { number, edge: code, generation: self.generation };
                At::Edge(edge.target, edge.displacement.map(|_| link))
            }
            n => {
                let left = count - usize::from(n);
                counter += cost(left, block.branches.into());
                let reentry = block.reentries.iter().find(|reentry| reentry.instruction == n);
                let at = |offset: NonZeroU32, steps| Resume {
                    number,
                    offset: offset.get() as usize,
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

/// The displacement at one offset that leads to another.
fn distance(at: usize, to: usize) -> [u8; 4] {
    ((to as i64 - (at as i64 + 4)) as i32).to_le_bytes()
}

/// Writes how generated code is entered, at offset 0, how it looks for a target, and how it is left: returns the offsets of
/// both.
fn glue(code: &mut CodeMemory, undefined: Undefined) -> (usize, usize) {
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
    (lookup, exit)
}

//! The translator for x86-64 hosts.

mod asm;
mod block;
mod exits;
mod forms;
mod integer;
mod kind;
mod memory;
mod vectors;

use asm::{Asm, B8, R15, RAX, RBP, RBX, RDI, RSI, Reg};
use exits::{BRANCH_BITS, EDGE_ON, EDGE_TAKEN, ENTRY, MAX_BLOCKS, cost};
use memory::CodeMemory;

use crate::frame::{FlagImage, Frame};
use crate::jumps::{self, JUMP_SLOTS, JumpSlot};
use crate::{At, Entry, Guest, Left, Link, MAX_INSTRUCTIONS, MAX_STEPS, Resume, Source};

/// Bytes of code, at most; when they are used up all is translated anew.
const CODE_BYTES: usize = 64 << 20;
/// Bytes that the longest block may take.
const BLOCK_BYTES: usize = 32 << 10;
/// Registers of the host that belong to the caller.
const CALLEE_SAVED: [Reg; 6] = [RBX, RBP, Reg(12), Reg(13), Reg(14), R15];

/// A translated block.
struct Block {
    rip: u64,
    ram_offset: u64,
    token: u32,
    /// Offset of its code.
    entry: usize,
    /// Offset of the way out before its first instruction.
    dead: usize,
    instructions: u8,
    branches: u8,
    alive: bool,
    /// The ways to the next blocks: on, and taken.
    edges: [block::Edge; 2],
    /// Instructions behind which it can be entered again, and the offset of the code there.
    resumes: Box<[(u8, usize)]>,
}

/// Slots of the table that finds translated code by what it is a translation of.
const FOUND_SLOTS: usize = 1 << 16;

/// Translated code by what it is a translation of.
#[derive(Clone, Copy)]
struct Found {
    rip: u64,
    ram_offset: u64,
    number: u32,
    instructions: u32,
}

const NOT_FOUND: Found = Found { rip: 1, ram_offset: u64::MAX, number: 0, instructions: 0 };

/// Translates blocks, and runs them.
pub struct Translator {
    code: CodeMemory,
    /// Offset of what ends a run, and of the first block.
    exit: usize,
    first: usize,
    blocks: Vec<Block>,
    /// Blocks that stand; in each slot one of those that could be there.
    found: Box<[Found]>,
    /// Counts how often everything was dropped.
    generation: u32,
    /// Remembered targets for each address space.
    jumps: Vec<Box<[JumpSlot]>>,
    /// The tag that is 0 in the slots of remembered targets.
    first_tag: u64,
}

impl Translator {
    /// A translator without code; `None` where the host does not let a program make code.
    pub fn new() -> Option<Translator> {
        let mut code = CodeMemory::new(CODE_BYTES)?;
        let exit = glue(&mut code);
        let first = code.next();
        Some(Translator {
            code,
            exit,
            first,
            blocks: Vec::new(),
            found: vec![NOT_FOUND; FOUND_SLOTS].into_boxed_slice(),
            generation: 0,
            jumps: Vec::new(),
            first_tag: 0,
        })
    }

    /// Translates a block; `None` if that is not worth it, or there is no room: see [`Translator::is_full`].
    pub fn translate(&mut self, source: &Source<'_>) -> Option<Entry> {
        let count = source.instructions.len();
        if count == 0 || count > MAX_INSTRUCTIONS || self.is_full() {
            return None;
        }
        let entry = self.code.next();
        let number = self.blocks.len() as u32;
        let site = block::Site { number, base: self.code.address(entry), exit: self.code.address(self.exit) };
        let written = block::write(source, &site)?;
        if written.code.len() > BLOCK_BYTES {
            return None;
        }
        self.code.append(&written.code);
        self.blocks.push(Block {
            rip: source.rip,
            ram_offset: source.ram_offset,
            token: source.token,
            entry,
            dead: entry + written.dead,
            instructions: count as u8,
            branches: written.branches as u8,
            alive: true,
            edges: written.edges.map(|edge| block::Edge {
                displacement: edge.displacement.map(|offset| entry + offset),
                ..edge
            }),
            resumes: written.resumes.iter().map(|&(n, offset)| (n, entry + offset)).collect(),
        });
        Some(Entry { number, generation: self.generation })
    }

    /// The code of the block at an address, whose first byte is at a RAM offset, if it is known and has at most so many
    /// instructions.
    #[inline]
    pub fn find(&self, rip: u64, ram_offset: u64, most: u64) -> Option<Entry> {
        let found = &self.found[found_slot(rip)];
        let is_it =
            found.rip == rip && found.ram_offset == ram_offset && u64::from(found.instructions) <= most;
        is_it.then_some(Entry { number: found.number, generation: self.generation })
    }

    /// Lets [`Translator::find`] know a block.
    fn make_known(&mut self, number: u32) {
        let block = &self.blocks[number as usize];
        self.found[found_slot(block.rip)] = Found {
            rip: block.rip,
            ram_offset: block.ram_offset,
            number,
            instructions: block.instructions.into(),
        };
    }

    /// Whether nothing more can be translated before [`Translator::clear`].
    pub fn is_full(&self) -> bool {
        self.code.room() < BLOCK_BYTES || self.blocks.len() as u32 >= MAX_BLOCKS
    }

    /// Drops all code.
    pub fn clear(&mut self) {
        self.code.truncate(self.first);
        self.blocks.clear();
        self.found.fill(NOT_FOUND);
        self.generation += 1;
        self.forget_targets();
    }

    /// Drops a block's code. Ways that lead to it lead out of generated code from now on.
    pub fn forget(&mut self, entry: Entry) {
        if entry.generation != self.generation {
            return;
        }
        let block = &mut self.blocks[entry.number as usize];
        block.alive = false;
        let (from, to, rip) = (block.entry, block.dead, block.rip);
        self.jump(from, to);
        let found = &mut self.found[found_slot(rip)];
        if found.number == entry.number {
            *found = NOT_FOUND;
        }
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

    /// Lets one block's code lead straight to another's.
    pub fn link(&mut self, link: Link, to: Entry) {
        if link.generation != self.generation || !self.is_alive(to) {
            return;
        }
        let (target, rip) = (self.blocks[to.number as usize].entry, self.blocks[to.number as usize].rip);
        let from = &self.blocks[link.number as usize];
        let edge = from.edges[usize::from(link.edge == EDGE_TAKEN)];
        if let Some(offset) = edge.displacement {
            assert_eq!(edge.target, rip, "a block is linked to one that does not follow it");
            self.code.write(offset, &distance(offset, target));
        }
    }

    /// Remembers which code an address leads to in an address space, as long as `tag` is in force there.
    pub fn remember(&mut self, context: usize, tag: u64, entry: Entry) {
        if !self.is_alive(entry) {
            return;
        }
        let block = &self.blocks[entry.number as usize];
        let (rip, target) = (block.rip, block.entry as u32);
        self.make_known(entry.number);
        let tag = self.short_tag(tag);
        jumps::remember(self.table(context), JumpSlot { rip, tag, target });
    }

    /// A tag in fewer bits. When they are used up, everything remembered is forgotten.
    fn short_tag(&mut self, tag: u64) -> u32 {
        match tag.checked_sub(self.first_tag).map(u32::try_from) {
            Some(Ok(short)) if short != u32::MAX => short,
            _ => {
                self.first_tag = tag;
                self.forget_targets();
                0
            }
        }
    }

    fn forget_targets(&mut self) {
        self.jumps.iter_mut().for_each(|table| table.fill(JumpSlot::EMPTY));
    }

    /// Forgets what addresses in a page lead to in an address space: the page may not be executable there any more, or be
    /// another.
    pub fn forget_page(&mut self, context: usize, page: u64) {
        if let Some(table) = self.jumps.get_mut(context) {
            jumps::forget_page(table, page);
        }
    }

    fn table(&mut self, context: usize) -> &mut [JumpSlot] {
        while self.jumps.len() <= context {
            self.jumps.push(vec![JumpSlot::EMPTY; JUMP_SLOTS].into_boxed_slice());
        }
        &mut self.jumps[context]
    }

    /// Runs a block and what follows it for up to `steps` steps. `vectors_blocked` says that instructions on XMM registers
    /// fault; `context` and `tag` are those of [`Translator::remember`].
    pub fn run(&mut self, entry: Entry, guest: Guest<'_>, steps: u64) -> Option<Left> {
        if !self.is_alive(entry) {
            return None;
        }
        let address = self.code.address(self.blocks[entry.number as usize].entry);
        Some(self.enter(address, guest, steps.min(MAX_STEPS), 0))
    }

    /// Goes on behind an instruction that the interpreter has executed, for up to `steps` steps, which must be enough for the
    /// rest of its block.
    pub fn resume(&mut self, resume: Resume, guest: Guest<'_>, steps: u64) -> Option<Left> {
        if resume.generation != self.generation || steps < resume.steps {
            return None;
        }
        let block = &self.blocks[resume.number as usize];
        let (_, offset) = block.resumes.iter().find(|(n, _)| *n == resume.instruction)?;
        let address = self.code.address(*offset);
        let charged = cost(resume.steps as usize, block.branches.into());
        Some(self.enter(address, guest, steps.min(MAX_STEPS), charged))
    }

    fn enter(&mut self, address: u64, guest: Guest<'_>, steps: u64, charged: i64) -> Left {
        let Guest { frame, slots, context, tag, vectors_blocked, flags } = guest;
        let counter = (steps as i64) << BRANCH_BITS;
        frame.counter = counter - charged;
        frame.flags = flags.0;
        frame.vectors_blocked = vectors_blocked.into();
        frame.slots = slots;
        frame.jumps = self.table(context).as_ptr();
        frame.tag = self.short_tag(tag).into();
        frame.code = self.code.address(0);
        // SAFETY: the code behind `address` was written by `block`, for this frame's layout. It reads and writes the frame,
        // the slots, the jump table, which all outlive the call, and RAM through slots, which only `TlbSlot::map` makes. It
        // keeps to the calling convention: `glue`.
        let code = unsafe {
            let enter: extern "sysv64" fn(*mut Frame, u64) -> u32 = std::mem::transmute(self.code.address(0));
            enter(frame, address)
        };
        *flags = FlagImage(frame.flags);
        self.left(code, counter, frame.counter)
    }

    /// What the code of an exit and the counter mean.
    fn left(&self, code: u32, before: i64, counter: i64) -> Left {
        let number = code >> 6;
        let code = (code & 63) as u8;
        let block = &self.blocks[number as usize];
        let count = usize::from(block.instructions);
        let mut counter = counter;
        let at = match code {
            ENTRY => At::Block(block.rip),
            EDGE_TAKEN | EDGE_ON => {
                let edge = block.edges[usize::from(code == EDGE_TAKEN)];
                let link = Link { number, edge: code, generation: self.generation };
                At::Edge(edge.target, edge.displacement.map(|_| link))
            }
            n => {
                let left = count - usize::from(n);
                counter += cost(left, block.branches.into());
                let resumes = block.resumes.iter().any(|(at, _)| *at == n) && left > 1;
                let resume = resumes.then_some(Resume {
                    number,
                    instruction: n,
                    generation: self.generation,
                    steps: left as u64 - 1,
                });
                At::Instruction { rip: block.rip, token: block.token, number: n.into(), resume }
            }
        };
        debug_assert!(counter >= 0, "more steps than were allowed");
        let steps = (before >> BRANCH_BITS) - (counter >> BRANCH_BITS);
        Left { steps: steps as u64, branches: counter as u64 & ((1 << BRANCH_BITS) - 1), at }
    }
}

fn found_slot(rip: u64) -> usize {
    (rip ^ rip >> 16) as usize & (FOUND_SLOTS - 1)
}

/// The displacement at one offset that leads to another.
fn distance(at: usize, to: usize) -> [u8; 4] {
    ((to as i64 - (at as i64 + 4)) as i32).to_le_bytes()
}

/// Writes how generated code is entered, at offset 0, and how it is left: returns that offset.
fn glue(code: &mut CodeMemory) -> usize {
    let mut asm = Asm::new();
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
    let exit = asm.here();
    for (home, place) in block::pinned() {
        asm.store(B8, place, home);
    }
    asm.store(B8, block::COUNTER, R15);
    CALLEE_SAVED.iter().rev().for_each(|&reg| push(&mut asm, reg, 0x58));
    asm.byte(0xc3);
    code.append(asm.bytes());
    exit
}

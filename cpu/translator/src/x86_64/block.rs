//! Translates one block: guest registers and flags, memory accesses, the places where it is left.
//!
//! Registers of the host: RBP is the frame's, R15 the counter's, RAX, RCX and RDX are scratch, RSP stays as it is, and the
//! others hold ten of the guest's. The guest's other six are in the frame.
//!
//! Flags: an instruction that sets flags leaves them in the host's register. They are written to the frame right behind it
//! if they may be looked at where the register no longer has them, or where the block can be left: wherever it can, the
//! frame has them all.

use std::mem::offset_of;
use std::num::NonZeroU32;

use iced_x86::{Instruction, OpKind, Register};

use super::asm::{
    Asm, B1, B4, B8, CH, DH, Fixup, Mem, Place, R15, RAX, RBP, RCX, RDX, Reg, Size, alu, at, cc,
};
use super::exits::{EDGE_ON, EDGE_TAKEN, ENTRY, cost, exit_code};
use super::groups::{Groups, Role};
use super::kind::{Effect, Kind, is_high_byte, kind_of, looked_at, set};
use crate::Source;
use crate::frame::{Frame, SECOND_SLOT, SLOTS, TlbSlot, TlbSlots};
use crate::jumps::{JUMP_BITS, JUMP_FACTOR, JumpSlot};

/// An instruction cannot be written after all; it is left to the interpreter.
#[derive(Debug)]
pub(super) struct Cannot;

/// Where a field of the frame lies from the frame pointer.
pub(super) const fn field(offset: usize) -> Mem {
    Mem { base: RBP, index: None, disp: offset as i32 - Frame::ANCHOR as i32 }
}

const FLAGS: Mem = field(offset_of!(Frame, flags));
/// The byte that LAHF gave.
const FLAGS_HIGH: Mem = field(offset_of!(Frame, flags) + 1);
pub(super) const SLOTS_POINTER: Mem = field(offset_of!(Frame, slots));
const JUMPS_POINTER: Mem = field(offset_of!(Frame, jumps));
pub(super) const SYSTEM_FLAGS: Mem = field(offset_of!(Frame, system_flags));
pub(super) const KERNEL_GS_BASE: Mem = field(offset_of!(Frame, kernel_gs_base));
pub(super) const GS_BASE: Mem = field(offset_of!(Frame, seg_base) + 8 * 5);
pub(super) const PRIVILEGED: Mem = field(offset_of!(Frame, privileged));
pub(super) const INTERRUPTS_WAIT: Mem = field(offset_of!(Frame, interrupts_wait));
pub(super) const SHADOW: Mem = field(offset_of!(Frame, shadow));
const SPARE: Mem = field(offset_of!(Frame, spare));
const VECTORS_BLOCKED: Mem = field(offset_of!(Frame, vectors_blocked));

/// Parts of a slot for a remembered target.
const JUMP_RIP: i32 = offset_of!(JumpSlot, rip) as i32;
const JUMP_ADDEND: i32 = offset_of!(JumpSlot, addend) as i32;
const JUMP_TARGET: i32 = offset_of!(JumpSlot, target) as i32;

/// In what the addresses of the two slots differ that may hold a page.
const SECOND_BIT: i32 = (SECOND_SLOT * size_of::<TlbSlot>()) as i32;

/// RCX becomes where the first slot for the target in RAX lies, as [`crate::jumps::slot_of`] has it.
fn jump_slot(asm: &mut Asm) {
    const SLOT_SHIFT: u32 = size_of::<JumpSlot>().trailing_zeros();
    asm.multiply(RCX, RAX, JUMP_FACTOR);
    asm.shift_imm(B4, 5, RCX, (32 - JUMP_BITS - SLOT_SHIFT) as u8);
    asm.alu_imm(B4, alu::AND, RCX, -1 << SLOT_SHIFT);
    asm.alu(B8, alu::ADD, RCX, JUMPS_POINTER);
}

/// A register becomes where the first slot of the TLB for the linear address in RAX lies in an array of slots, if that array
/// were the first. Clobbers flags.
fn slot_address(asm: &mut Asm, to: Reg) {
    const SLOT_SHIFT: u8 = 12 - size_of::<TlbSlot>().trailing_zeros() as u8;
    asm.load(B4, to, RAX);
    asm.shift_imm(B4, 5, to, SLOT_SHIFT);
    asm.alu_imm(B4, alu::AND, to, ((SLOTS - 1) * size_of::<TlbSlot>()) as i32);
    asm.alu(B8, alu::ADD, to, SLOTS_POINTER);
}

/// Writes what jumps to the target in RAX if it is remembered, and its page mapped as it was then; if not, EAX becomes the
/// exit's code, which the frame has, and what is behind is executed.
pub(super) fn jump_or_exit(asm: &mut Asm) {
    jump_slot(asm);
    asm.alu(B8, alu::CMP, RAX, at(RCX, JUMP_RIP));
    let first = asm.jcc(cc::E);
    asm.alu_imm(B8, alu::XOR, RCX, size_of::<JumpSlot>() as i32);
    asm.alu(B8, alu::CMP, RAX, at(RCX, JUMP_RIP));
    let unknown = asm.jcc(cc::NE);
    asm.land(first);
    slot_address(asm, RDX);
    asm.alu_imm(B8, alu::AND, RAX, -4096);
    asm.alu(B8, alu::CMP, RAX, at(RDX, TlbSlots::EXEC + TlbSlot::PAGE));
    let mapped = asm.jcc(cc::E);
    asm.alu_imm(B8, alu::XOR, RDX, SECOND_BIT);
    asm.alu(B8, alu::CMP, RAX, at(RDX, TlbSlots::EXEC + TlbSlot::PAGE));
    let not_mapped = asm.jcc(cc::NE);
    asm.land(mapped);
    asm.load(B8, RAX, at(RCX, JUMP_ADDEND));
    asm.alu(B8, alu::CMP, RAX, at(RDX, TlbSlots::EXEC + TlbSlot::ADDEND));
    let mapped_elsewhere = asm.jcc(cc::NE);
    asm.jmp_to(at(RCX, JUMP_TARGET));
    [unknown, not_mapped, mapped_elsewhere].into_iter().for_each(|fixup| asm.land(fixup));
    asm.load(B4, RAX, SPARE);
}

/// Where the address goes for which the TLB has no slot.
fn missed(write: bool) -> Mem {
    field(offset_of!(Frame, missed) + 8 * usize::from(write))
}

/// Where the slots of privileged code are while RFLAGS.AC is clear, and while it is set.
pub(super) fn slots_by_ac(ac: bool) -> Mem {
    field(offset_of!(Frame, slots_by_ac) + 8 * usize::from(ac))
}

/// Where the addend of a group of accesses is kept.
fn addend(slot: u8) -> Mem {
    field(offset_of!(Frame, addends) + 8 * usize::from(slot))
}

/// A guest's XMM register.
pub(super) fn vector_place(number: u8) -> Mem {
    field(offset_of!(Frame, xmm) + 16 * usize::from(number))
}

/// Where the guest's general registers are while generated code runs.
const HOMES: [Option<Reg>; 16] = [
    Some(Reg(3)),
    Some(Reg(6)),
    Some(Reg(7)),
    Some(Reg(8)),
    Some(Reg(9)),
    Some(Reg(10)),
    Some(Reg(11)),
    Some(Reg(12)),
    Some(Reg(13)),
    None,
    None,
    None,
    Some(Reg(14)),
    None,
    None,
    None,
];

/// A general register's number in instructions, whatever part of it is named.
pub(super) fn number_of(register: Register) -> usize {
    register.full_register().number()
}

/// The guest's registers that have one of the host's, with it and their place in the frame.
pub(super) fn pinned() -> impl Iterator<Item = (Reg, Mem)> {
    (0..16).filter_map(|n| HOMES[n].map(|home| (home, in_frame(n))))
}

fn in_frame(n: usize) -> Mem {
    field(offset_of!(Frame, regs) + 8 * n)
}

/// The counter's place while generated code does not run.
pub(super) const COUNTER: Mem = field(offset_of!(Frame, counter));

/// What a written block needs to be entered, left and linked.
pub(super) struct Written {
    pub code: Vec<u8>,
    /// Where the block is left before its first instruction.
    pub dead: usize,
    /// The ways to the next blocks: on, and taken.
    pub edges: [Edge; 2],
    /// Where the block can be entered again.
    pub reentries: Vec<Reentry>,
    /// Conditional branches at its end.
    pub branches: u64,
}

/// Where a block can be entered again that was left at an instruction.
#[derive(Clone, Copy)]
pub(super) struct Reentry {
    pub instruction: u8,
    /// Offset of the code of the instruction itself, if it expects no flags in the host's register and can be tried again.
    pub at: Option<NonZeroU32>,
    /// Offset of the code behind it, if no flags are expected in the host's register there: else the interpreter executes
    /// the rest as well.
    pub behind: Option<NonZeroU32>,
}

impl Reentry {
    /// In a block that lies at an offset.
    pub fn moved(self, to: usize) -> Reentry {
        Reentry { at: moved(self.at, to), behind: moved(self.behind, to), ..self }
    }
}

/// An offset in a block that lies at an offset.
fn moved(offset: Option<NonZeroU32>, to: usize) -> Option<NonZeroU32> {
    offset?.checked_add(to as u32)
}

/// An offset that code can be entered at: a block's first bytes are none.
fn short(offset: usize) -> Option<NonZeroU32> {
    NonZeroU32::new(u32::try_from(offset).ok()?)
}

/// A way to the next block.
#[derive(Clone, Copy, Default)]
pub(super) struct Edge {
    /// Where it leads.
    pub target: u64,
    /// Offset of the displacement of a jump that can be led straight to the code of that block.
    pub displacement: Option<NonZeroU32>,
    /// The same of the block's twin.
    pub twin: Option<NonZeroU32>,
    /// Of one in another page, offset of the addend under which the TLB must map that page for it.
    pub addend: Option<NonZeroU32>,
}

impl Edge {
    /// In a block that lies at an offset.
    pub fn moved(self, to: usize) -> Edge {
        let [displacement, twin, addend] =
            [self.displacement, self.twin, self.addend].map(|at| moved(at, to));
        Edge { displacement, twin, addend, ..self }
    }
}

/// A way out of the block, written behind it.
enum Way {
    /// To the interpreter, which executes the instruction.
    Instruction(usize),
    /// Before the first instruction, because not all may run.
    Budget,
    /// To a known address in the same page: which edge.
    Edge(u8),
    /// To a known address in another page.
    Far(u8, u64),
    /// To the second slot that a target can be in, whose first is at RCX: back to an offset if it is there, else to the
    /// interpreter, which executes the instruction.
    SecondSlot(usize, usize),
    /// To the second slot that the target's page, in RAX, can be in, whose first is at RDX: as the former.
    SecondOfTarget(usize, usize),
    /// To the second slot that a page can be in, whose first, with its array's place, is at RCX and an offset.
    SecondPage { slots: i32, found: usize, instruction: usize, write: bool },
    /// The same for a group of accesses, and if the page is not there either, to the instruction in the block's twin.
    SecondPageOfGroup { slots: i32, found: usize, instruction: usize },
}

/// A block being written.
pub(super) struct BlockWriter<'a> {
    pub asm: Asm,
    source: &'a Source<'a>,
    number: u32,
    /// Host addresses of where the code will be, and of where all generated code is left.
    base: u64,
    exit: u64,
    lookup: u64,
    ways: Vec<(Way, Vec<Fixup>)>,
    /// Jumps out of the instruction being written.
    leaving: Vec<Fixup>,
    /// There are others out of it, which lead elsewhere first.
    leaves_later: bool,
    /// Flags that the host's register has, and the frame.
    in_host: u8,
    in_frame: u8,
    /// Flags that may be looked at behind the instruction being written.
    needed: u8,
    /// Its number.
    number_in_block: usize,
    edges: [Edge; 2],
    branches: u64,
    vectors_checked: bool,
    pub privilege_checked: bool,
    ended: bool,
    /// What the instruction's access has to do with the checks of others.
    role: Role,
    /// The block's code is being written once more, with a check of every access: see [`super::groups`].
    twin: bool,
    /// Where the instructions are in the twin that the block goes on with there.
    in_twin: Vec<usize>,
}

/// Where a block's code goes, and what it jumps to.
pub(super) struct Site {
    pub number: u32,
    pub base: u64,
    pub exit: u64,
    /// [`jump_or_exit`]'s.
    pub lookup: u64,
}

/// Translates a block; `None` if that is not worth it.
pub(super) fn write(source: &Source<'_>, site: &Site) -> Option<Written> {
    let kinds: Vec<Option<Kind>> = source.instructions.iter().map(kind_of).collect();
    let groups = Groups::of(source, kinds.iter().copied());
    let plan = plan(source, &kinds, &groups.roles);
    let inline = plan.iter().filter(|step| step.kind.is_some()).count();
    if 2 * inline < source.instructions.len() || inline == 0 {
        return None;
    }
    let mut writer = BlockWriter {
        asm: Asm::new(),
        source,
        number: site.number,
        base: site.base,
        exit: site.exit,
        lookup: site.lookup,
        ways: Vec::new(),
        leaving: Vec::new(),
        leaves_later: false,
        in_host: 0,
        in_frame: set::ALL,
        needed: 0,
        number_in_block: 0,
        edges: [Edge::default(); 2],
        branches: u64::from(plan.last().is_some_and(|step| matches!(step.kind, Some(Kind::JumpIf(_))))),
        vectors_checked: false,
        privilege_checked: false,
        ended: false,
        role: Role::Alone,
        twin: false,
        in_twin: vec![0; source.instructions.len()],
    };
    let twin = groups.first().map(|first| (first, self::plan(source, &kinds, &Groups::none(source).roles)));
    writer.block(&plan, twin.as_ref().map(|(first, plan)| (*first, &plan[..])), &groups).ok()
}

/// What is known of an instruction before it is written.
struct Step {
    kind: Option<Kind>,
    role: Role,
    /// Flags that may be looked at behind it, but where the host's register has them.
    needed: u8,
}

impl Step {
    fn effect(&self, instruction: &Instruction, needed: u8) -> Option<Effect> {
        self.kind?.effect(instruction, needed, matches!(self.role, Role::Later { .. }))
    }
}

/// Decides for each instruction, from the last to the first, whether it is translated, and which of its flags are needed.
fn plan(source: &Source<'_>, kinds: &[Option<Kind>], roles: &[Role]) -> Vec<Step> {
    let mut steps: Vec<Step> =
        kinds.iter().zip(roles).map(|(&kind, &role)| Step { kind, role, needed: 0 }).collect();
    let mut needed = set::ALL;
    for n in (0..steps.len()).rev() {
        let instruction = &source.instructions[n];
        steps[n].needed = needed;
        if steps[n].kind == Some(Kind::InterruptFlag(true)) {
            let next = steps.get(n + 1).and_then(|step| step.kind);
            steps[n].kind = steps[n].kind.filter(|_| next.is_some_and(Kind::follows_sti));
        }
        let effect = steps[n].effect(instruction, needed);
        let Some(effect) = effect else {
            steps[n].kind = None;
            needed = set::ALL;
            continue;
        };
        let from_host = effect.reads != 0 && !effect.exits && host_reaches(source, &steps, n, effect.reads);
        needed &= !effect.kills;
        if !from_host {
            needed |= effect.reads;
        }
        if effect.exits {
            needed = set::ALL;
        }
    }
    steps
}

/// Whether flags that an instruction looks at are in the host's register when it is reached.
fn host_reaches(source: &Source<'_>, steps: &[Step], reader: usize, reads: u8) -> bool {
    for n in (0..reader).rev() {
        // Whatever is needed behind it, an effect's `in_host` and `transparent` are the same; only whether it has one may
        // depend on that.
        let effect = steps[n].effect(&source.instructions[n], set::ALL);
        match effect {
            Some(effect) if effect.transparent && effect.reads == 0 => {}
            Some(effect) if !effect.transparent => {
                return matches!(steps[n].kind, Some(Kind::Alu(_) | Kind::Test | Kind::Neg))
                    && effect.in_host & reads == reads;
            }
            _ => return false,
        }
    }
    false
}

/// Where an instruction's code is, as far as it can be entered there.
#[derive(Clone, Copy, Default)]
struct Entrance {
    /// It can be left to the interpreter.
    exits: bool,
    /// As [`Reentry::at`] and [`Reentry::behind`].
    at: Option<NonZeroU32>,
    behind: Option<NonZeroU32>,
}

impl BlockWriter<'_> {
    /// Writes the block, and its twin from an instruction on if it has one.
    fn block(
        &mut self,
        plan: &[Step],
        twin: Option<(usize, &[Step])>,
        groups: &Groups,
    ) -> Result<Written, Cannot> {
        let count = self.source.instructions.len();
        self.asm.alu_imm(B8, alu::SUB, R15, cost(count, self.branches) as i32);
        let out_of_budget = self.asm.jcc(cc::S);
        self.ways.push((Way::Budget, vec![out_of_budget]));
        let mut entrances = self.instructions(plan, 0)?;
        if let Some((first, plan)) = twin {
            (self.twin, self.in_frame) = (true, set::ALL);
            let of_twin = self.instructions(plan, first)?;
            for (n, (entrance, twin)) in entrances.iter_mut().zip(of_twin).enumerate() {
                entrance.exits |= twin.exits;
                // What has been checked before does not hold any more.
                if !groups.can_begin_at(n) {
                    entrance.at = twin.at;
                }
                if !groups.can_begin_at(n + 1) {
                    entrance.behind = twin.behind;
                }
            }
        }
        let reentry = |(n, entrance): (usize, Entrance)| Reentry {
            instruction: n as u8,
            at: entrance.at,
            behind: entrance.behind,
        };
        let reentries =
            entrances.into_iter().enumerate().filter(|(_, entrance)| entrance.exits).map(reentry).collect();
        let dead = self.ways_out();
        Ok(Written {
            code: self.asm.bytes().to_vec(),
            dead,
            edges: self.edges,
            reentries,
            branches: self.branches,
        })
    }

    /// Writes the instructions from one on.
    fn instructions(&mut self, plan: &[Step], first: usize) -> Result<Vec<Entrance>, Cannot> {
        let count = self.source.instructions.len();
        let mut entrances = vec![Entrance::default(); count];
        self.ended = false;
        for (n, step) in plan.iter().enumerate().skip(first) {
            let instruction = self.source.instructions[n];
            (self.needed, self.number_in_block, self.role) = (step.needed, n, step.role);
            if self.twin {
                // The block goes on here where it has the flags in the frame; what it has looked at is not known.
                (self.vectors_checked, self.privilege_checked) = (false, false);
                if step.effect(&instruction, step.needed).is_none_or(|effect| effect.exits) {
                    self.in_host = 0;
                }
                self.in_twin[n] = self.asm.here();
            }
            let again =
                |kind: Kind| kind.begins_with_its_access() && (self.in_host == 0 || !kind.may_use_flags());
            let start = step.kind.is_some_and(again).then(|| self.asm.here()).and_then(short);
            match step.kind {
                Some(kind) => {
                    let effect = step.effect(&instruction, step.needed).ok_or(Cannot)?;
                    self.instruction(&instruction, kind, effect)?;
                    if n > 0 && plan[n - 1].kind == Some(Kind::InterruptFlag(true)) {
                        self.end_shadow();
                    }
                }
                None => {
                    debug_assert_eq!(self.in_frame, set::ALL, "flags are lost at {instruction}");
                    let jump = self.asm.jmp();
                    self.leaving.push(jump);
                    (self.in_host, self.in_frame, self.vectors_checked) = (0, set::ALL, false);
                    self.ended = n + 1 == count;
                }
            }
            let leaves_later = std::mem::take(&mut self.leaves_later);
            let leaving = std::mem::take(&mut self.leaving);
            let exits = !leaving.is_empty() || leaves_later;
            if !leaving.is_empty() {
                self.ways.push((Way::Instruction(n), leaving));
            }
            let behind = (self.in_host == 0 && !self.ended).then(|| self.asm.here()).and_then(short);
            entrances[n] = Entrance { exits, at: start, behind };
        }
        if !self.ended {
            let on = self.source.rip_behind(count - 1);
            let jump = self.asm.jmp();
            self.edge(EDGE_ON, on, jump);
        }
        Ok(entrances)
    }

    /// Writes the ways out; returns where the one before the first instruction is.
    fn ways_out(&mut self) -> usize {
        let count = self.source.instructions.len();
        let mut dead = 0;
        for (way, fixups) in std::mem::take(&mut self.ways) {
            for fixup in fixups {
                self.asm.land(fixup);
            }
            match way {
                Way::Instruction(n) => self.leave(n as u8),
                Way::Budget => {
                    self.asm.alu_imm(B8, alu::ADD, R15, cost(count, self.branches) as i32);
                    dead = self.asm.here();
                    self.leave(ENTRY);
                }
                Way::Edge(edge) => self.leave(edge),
                Way::Far(edge, target) => {
                    self.jump_if_linked(edge, target);
                    self.asm.store_imm(B4, SPARE, exit_code(self.number, edge) as i32);
                    self.asm.constant(RAX, target);
                    self.jump_to_glue(self.lookup);
                }
                Way::SecondSlot(found, n) => {
                    self.asm.alu_imm(B8, alu::XOR, RCX, size_of::<JumpSlot>() as i32);
                    self.asm.alu(B8, alu::CMP, RAX, at(RCX, JUMP_RIP));
                    let back = self.asm.jcc(cc::E);
                    self.asm.lead_to(back, found);
                    self.leave(n as u8);
                }
                Way::SecondOfTarget(found, n) => {
                    self.asm.alu_imm(B8, alu::XOR, RDX, SECOND_BIT);
                    self.asm.alu(B8, alu::CMP, RAX, at(RDX, TlbSlots::EXEC + TlbSlot::PAGE));
                    let back = self.asm.jcc(cc::E);
                    self.asm.lead_to(back, found);
                    self.leave(n as u8);
                }
                Way::SecondPage { slots, found, instruction, write } => {
                    self.asm.alu_imm(B8, alu::XOR, RCX, SECOND_BIT);
                    self.asm.alu(B8, alu::CMP, RDX, at(RCX, slots + TlbSlot::PAGE));
                    let back = self.asm.jcc(cc::E);
                    self.asm.lead_to(back, found);
                    self.asm.store(B8, missed(write), RAX);
                    self.leave(instruction as u8);
                }
                Way::SecondPageOfGroup { slots, found, instruction } => {
                    self.asm.alu_imm(B8, alu::XOR, RCX, SECOND_BIT);
                    self.asm.alu(B8, alu::CMP, RDX, at(RCX, slots + TlbSlot::PAGE));
                    let back = self.asm.jcc(cc::E);
                    self.asm.lead_to(back, found);
                    let on = self.asm.jmp();
                    self.asm.lead_to(on, self.in_twin[instruction]);
                }
            }
        }
        dead
    }

    /// Jumps straight to the code of a target in another page that the edge has been linked to, if that page is mapped as it
    /// was then.
    fn jump_if_linked(&mut self, edge: u8, target: u64) {
        debug_assert_eq!(self.in_frame, set::ALL, "flags are lost where the block is left");
        let slot = (target >> 12) as usize % SLOTS;
        let place = TlbSlots::EXEC + (slot * size_of::<TlbSlot>()) as i32;
        self.asm.load(B8, RDX, SLOTS_POINTER);
        self.asm.constant(RAX, target & !0xfff);
        self.asm.alu(B8, alu::CMP, RAX, at(RDX, place + TlbSlot::PAGE));
        let another = self.asm.jcc(cc::NE);
        // No page has the addend that is there at first.
        let addend = self.asm.constant_told_later();
        self.asm.alu(B8, alu::CMP, RAX, at(RDX, place + TlbSlot::ADDEND));
        let same = self.asm.jcc(cc::E);
        let edge = &mut self.edges[usize::from(edge == EDGE_TAKEN)];
        (edge.displacement, edge.addend) = (short(same.offset()), short(addend));
        self.asm.land(another);
        self.in_host = 0;
    }

    /// Leaves generated code.
    fn leave(&mut self, code: u8) {
        self.asm.constant(RAX, u64::from(exit_code(self.number, code)));
        self.jump_to_glue(self.exit);
    }

    /// Jumps to what does not belong to a block.
    fn jump_to_glue(&mut self, to: u64) {
        let fixup = self.asm.jmp();
        self.asm.lead_to(fixup, to.wrapping_sub(self.base) as i64 as usize);
    }

    /// Lets a jump lead to the code of a guest address.
    pub fn edge(&mut self, edge: u8, target: u64, jump: Fixup) {
        let same_page = (target ^ self.source.rip) & !0xfff == 0;
        let displacement = same_page.then(|| jump.offset()).and_then(short);
        let leads_there = |(way, _): &&mut (Way, Vec<Fixup>)| match *way {
            Way::Edge(other) | Way::Far(other, _) => other == edge,
            _ => false,
        };
        if self.twin
            && let Some((_, jumps)) = self.ways.iter_mut().find(leads_there)
        {
            jumps.push(jump);
            self.edges[usize::from(edge == EDGE_TAKEN)].twin = displacement;
            return;
        }
        self.edges[usize::from(edge == EDGE_TAKEN)] = Edge { target, displacement, ..Edge::default() };
        let way = if same_page { Way::Edge(edge) } else { Way::Far(edge, target) };
        self.ways.push((way, vec![jump]));
    }

    /// The block ends here: everything behind is reached by jumps only.
    pub fn ends(&mut self) {
        self.ended = true;
    }

    /// Jumps to the guest's address in RAX, or leaves the instruction to the interpreter if it is not known where that is.
    /// `commit` writes what is to happen before the jump; it must leave RCX alone.
    pub fn jump_to_rax(&mut self, commit: impl FnOnce(&mut Self)) {
        jump_slot(&mut self.asm);
        debug_assert_eq!(self.in_frame, set::ALL, "flags are lost where the block is left");
        self.asm.alu(B8, alu::CMP, RAX, at(RCX, JUMP_RIP));
        let other = self.asm.jcc(cc::NE);
        self.ways.push((Way::SecondSlot(self.asm.here(), self.number_in_block), vec![other]));
        // The TLB must map the target's page as it did when the target was remembered.
        slot_address(&mut self.asm, RDX);
        self.asm.alu_imm(B8, alu::AND, RAX, -4096);
        self.asm.alu(B8, alu::CMP, RAX, at(RDX, TlbSlots::EXEC + TlbSlot::PAGE));
        let other_page = self.asm.jcc(cc::NE);
        self.ways.push((Way::SecondOfTarget(self.asm.here(), self.number_in_block), vec![other_page]));
        self.asm.load(B8, RAX, at(RCX, JUMP_ADDEND));
        self.asm.alu(B8, alu::CMP, RAX, at(RDX, TlbSlots::EXEC + TlbSlot::ADDEND));
        self.leave_if(cc::NE);
        commit(self);
        self.asm.jmp_to(at(RCX, JUMP_TARGET));
        self.ends();
    }

    /// The interpreter executes the instruction if a condition holds.
    pub fn leave_if(&mut self, cc: u8) {
        debug_assert_eq!(self.in_frame, set::ALL, "flags are lost where the block is left");
        let jump = self.asm.jcc(cc);
        self.leaving.push(jump);
        self.in_host = 0;
    }

    /// The interpreter executes the instruction if XMM registers must not be used.
    pub fn leave_if_vectors_are_blocked(&mut self) {
        if !self.vectors_checked {
            self.asm.alu_imm(B4, alu::CMP, VECTORS_BLOCKED, 0);
            self.leave_if(cc::NE);
            self.vectors_checked = true;
        }
    }

    // Registers.

    /// Where a guest's register is.
    pub fn place(n: usize) -> Place {
        HOMES[n].map_or_else(|| in_frame(n).into(), Place::Reg)
    }

    /// Where a guest's register is, by its name.
    pub fn general(&self, register: Register) -> Place {
        Self::place(number_of(register))
    }

    /// A guest's register in one of the host's: its own, or `scratch`.
    pub fn in_register(&mut self, n: usize, scratch: Reg) -> Reg {
        match Self::place(n) {
            Place::Reg(reg) => reg,
            Place::Mem(mem) => {
                self.asm.load(B8, scratch, mem);
                scratch
            }
        }
    }

    /// An operand's register in one of the host's: the guest's own, or a scratch register, RDX for the `first` of an
    /// instruction's operands and RCX for others. AH to BH come as DH and CH, beside which only RAX to RDX can be named:
    /// `beside_high` says that the other operand is one of them.
    pub fn operand_register(&mut self, register: Register, first: bool, beside_high: bool) -> Reg {
        let scratch = if first { RDX } else { RCX };
        let n = number_of(register);
        if is_high_byte(register) {
            self.asm.load(B8, scratch, Self::place(n));
            return if first { DH } else { CH };
        }
        if beside_high {
            self.asm.load(B8, scratch, Self::place(n));
            return scratch;
        }
        self.in_register(n, scratch)
    }

    /// Writes an operand's register back that [`BlockWriter::operand_register`] gave as the first.
    pub fn write_back(&mut self, register: Register, from: Reg) {
        self.set_all(number_of(register), if from == DH { RDX } else { from });
    }

    /// Sets all of a guest's register.
    pub fn set_all(&mut self, n: usize, from: Reg) {
        if Self::place(n) != Place::Reg(from) {
            self.asm.store(B8, Self::place(n), from);
        }
    }

    /// Sets a guest's register as the architecture does: 32 bits clear the others, fewer leave them.
    pub fn set_sized(&mut self, size: Size, n: usize, from: Reg) {
        match (size, Self::place(n)) {
            (B4, Place::Mem(mem)) => {
                self.asm.load(B4, RAX, from);
                self.asm.store(B8, mem, RAX);
            }
            (_, place) => self.asm.store(size, place, from),
        }
    }

    /// Sets a guest's register by its name.
    pub fn set_general(&mut self, register: Register, from: Reg) {
        let size = Size::of(register.size()).unwrap_or(B8);
        self.set_sized(size, number_of(register), from);
    }

    // Memory.

    /// The linear address of the memory operand in RAX.
    pub fn linear(&mut self, instruction: &Instruction) -> Result<(), Cannot> {
        self.effective(instruction, RAX)?;
        let base = match instruction.memory_segment() {
            Register::FS => 4,
            Register::GS => 5,
            _ => return Ok(()),
        };
        self.asm.alu(B8, alu::ADD, RAX, field(offset_of!(Frame, seg_base) + 8 * base));
        self.in_host = 0;
        Ok(())
    }

    /// The effective address of the memory operand in a register; clobbers RAX and RCX. Leaves the flags alone.
    pub fn effective(&mut self, instruction: &Instruction, to: Reg) -> Result<(), Cannot> {
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let displacement = instruction.memory_displacement64();
        if base == Register::RIP || base == Register::None && index == Register::None {
            self.asm.constant(to, displacement);
            return Ok(());
        }
        let disp = i32::try_from(displacement as i64).map_err(|_| Cannot)?;
        let shift = instruction.memory_index_scale().trailing_zeros() as u8;
        if base == Register::None {
            // Without a base there would have to be a displacement of four bytes: shift instead.
            let index = self.in_register(number_of(index), RCX);
            if shift == 0 {
                self.asm.lea(B8, to, at(index, disp));
            } else {
                self.asm.constant(RAX, disp as i64 as u64);
                self.asm.lea(B8, to, Mem { base: RAX, index: Some((index, shift)), disp: 0 });
            }
            return Ok(());
        }
        let base = self.in_register(number_of(base), RAX);
        let index = match index {
            Register::None => None,
            index => Some((self.in_register(number_of(index), RCX), shift)),
        };
        if index.is_none() && disp == 0 {
            if base != to {
                self.asm.load(B8, to, base);
            }
            return Ok(());
        }
        self.asm.lea(B8, to, Mem { base, index, disp });
        Ok(())
    }

    /// Makes the linear address in RAX the host's, or leaves the instruction to the interpreter. Clobbers RCX and RDX.
    pub fn check(&mut self, bytes: i32, write: bool) {
        let slots = self.compare_page(bytes, write);
        let other = self.asm.jcc(cc::NE);
        let way = Way::SecondPage { slots, found: self.asm.here(), instruction: self.number_in_block, write };
        self.ways.push((way, vec![other]));
        self.leaves_later = true;
        self.asm.alu(B8, alu::ADD, RAX, at(RCX, slots + TlbSlot::ADDEND));
        self.in_host = 0;
    }

    /// RCX becomes where the slot is, and an offset, that may have the page of so many bytes at the linear address in RAX, RDX
    /// that page; the host's flags say whether it does. Returns the offset.
    fn compare_page(&mut self, bytes: i32, write: bool) -> i32 {
        debug_assert_eq!(self.in_frame, set::ALL, "flags are lost where the block is left");
        slot_address(&mut self.asm, RCX);
        // The page of the last byte: another than that of the first has another tag.
        if bytes == 1 {
            self.asm.load(B8, RDX, RAX);
        } else {
            self.asm.lea(B8, RDX, at(RAX, bytes - 1));
        }
        self.asm.alu_imm(B8, alu::AND, RDX, -4096);
        let slots = if write { TlbSlots::WRITE } else { TlbSlots::READ };
        self.asm.alu(B8, alu::CMP, RDX, at(RCX, slots + TlbSlot::PAGE));
        slots
    }

    /// The memory operand, which may be RAX's and other registers' but for RCX and RDX. Clobbers RCX and RDX.
    pub fn operand(&mut self, i: &Instruction, size: Size, write: bool) -> Result<Mem, Cannot> {
        self.operand_of(i, size.bytes(), write)
    }

    /// As [`BlockWriter::operand`], of so many bytes.
    pub fn operand_of(&mut self, i: &Instruction, bytes: i32, write: bool) -> Result<Mem, Cannot> {
        let Some(addend) = self.checked(bytes, write)? else {
            self.linear(i)?;
            return self.access(bytes, write);
        };
        let disp = i32::try_from(i.memory_displacement64() as i64);
        let has_high_byte =
            (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Register && is_high_byte(i.op_register(n)));
        if i.memory_base().is_gpr64()
            && i.memory_index() == Register::None
            && !has_high_byte
            && let (Place::Reg(base), Ok(disp)) = (self.general(i.memory_base()), disp)
        {
            self.asm.load(B8, RAX, addend);
            return Ok(Mem { base: RAX, index: Some((base, 0)), disp });
        }
        self.effective(i, RAX)?;
        self.asm.load(B8, RCX, addend);
        self.asm.lea(B8, RAX, Mem { base: RAX, index: Some((RCX, 0)), disp: 0 });
        Ok(at(RAX, 0))
    }

    /// The eight bytes on the stack that are at a register's address and a displacement. Clobbers as
    /// [`BlockWriter::operand`].
    pub fn stack_operand(&mut self, register: usize, disp: i32, write: bool) -> Result<Mem, Cannot> {
        let addend = self.checked(8, write)?;
        let base = self.in_register(register, RCX);
        if let Some(addend) = addend {
            self.asm.load(B8, RAX, addend);
            let host = Mem { base: RAX, index: Some((base, 0)), disp };
            if base != RCX {
                return Ok(host);
            }
            self.asm.lea(B8, RAX, host);
            return Ok(at(RAX, 0));
        }
        if disp == 0 {
            self.asm.load(B8, RAX, base);
        } else {
            self.asm.lea(B8, RAX, at(base, disp));
        }
        self.access(8, write)
    }

    /// Where the addend is for an access that has been checked.
    fn checked(&self, bytes: i32, write: bool) -> Result<Option<Mem>, Cannot> {
        match self.role {
            Role::Later { slot, bytes: checked, write: writable } => {
                // Nothing may be accessed but what the check was for.
                if bytes > checked || write && !writable {
                    return Err(Cannot);
                }
                Ok(Some(addend(slot)))
            }
            _ => Ok(None),
        }
    }

    /// What is at the linear address in RAX, after a check for it or for its group.
    fn access(&mut self, bytes: i32, write: bool) -> Result<Mem, Cannot> {
        let Role::First { slot, below, bytes: of_group, write: group_writes } = self.role else {
            self.check(bytes, write);
            return Ok(at(RAX, 0));
        };
        if bytes + below > of_group || write && !group_writes {
            return Err(Cannot);
        }
        if below != 0 {
            self.asm.lea(B8, RAX, at(RAX, -below));
        }
        let slots = self.compare_page(of_group, group_writes);
        let other = self.asm.jcc(cc::NE);
        let instruction = self.number_in_block;
        self.ways.push((Way::SecondPageOfGroup { slots, found: self.asm.here(), instruction }, vec![other]));
        self.asm.load(B8, RDX, at(RCX, slots + TlbSlot::ADDEND));
        self.asm.store(B8, addend(slot), RDX);
        self.asm.alu(B8, alu::ADD, RAX, RDX);
        self.in_host = 0;
        Ok(at(RAX, below))
    }

    /// Keeps RCX across another access.
    pub fn keep(&mut self) {
        self.asm.store(B8, SPARE, RCX);
    }

    /// What was kept.
    pub fn kept(&mut self, to: Reg) {
        self.asm.load(B8, to, SPARE);
    }

    /// RAX becomes what was kept, and is kept in its place. Clobbers RDX.
    pub fn load_kept_keep_rax(&mut self) {
        self.asm.load(B8, RDX, SPARE);
        self.asm.store(B8, SPARE, RAX);
        self.asm.load(B8, RAX, RDX);
    }

    // Flags.

    /// The flags that may be looked at behind the instruction being written.
    pub fn needed(&self) -> u8 {
        self.needed
    }

    /// What was written has clobbered the host's flags.
    pub fn clobbered(&mut self) {
        self.in_host = 0;
    }

    /// The instruction has set flags in the host's register; they go to the frame if they are needed there.
    pub fn flags_set(&mut self, effect: &Effect) {
        self.in_frame &= !effect.kills;
        self.in_host = effect.in_host;
        if self.needed & effect.kills == 0 {
            return;
        }
        self.asm.byte(0x9f);
        if effect.in_host == set::ALL {
            self.asm.setcc(0, RAX);
        } else {
            // AF is zero; so is OF after what gets here.
            self.asm.raw(&[0xb0, 2]);
        }
        self.asm.store(B4, FLAGS, RAX);
        self.in_frame = set::ALL;
    }

    /// As [`BlockWriter::flags_set`] after a shift, for which AL holds OF.
    pub fn shift_flags_set(&mut self, effect: &Effect) {
        self.in_frame &= !effect.kills;
        self.in_host = effect.in_host;
        if self.needed & effect.kills == 0 {
            return;
        }
        self.asm.byte(0x9f);
        self.asm.lea(B4, RAX, at(RAX, 2));
        self.asm.store(B4, FLAGS, RAX);
        self.in_frame = set::ALL;
    }

    /// AH and AL are what the frame is to hold; the host's register is of no use any more.
    pub fn flags_from_eax(&mut self) {
        self.asm.store(B4, FLAGS, RAX);
        (self.in_host, self.in_frame) = (0, set::ALL);
    }

    /// The instruction has set flags in the host's register, and those in the frame are not up to date.
    pub fn some_flags_set(&mut self, effect: &Effect) {
        self.in_frame &= !effect.kills;
        self.in_host = effect.in_host;
    }

    /// Some of the flags are wrong in the frame, and nothing will look at them there.
    pub fn flags_lost(&mut self, kills: u8) {
        self.in_frame &= !kills;
        self.in_host = 0;
    }

    /// Writes CF, which the host's register holds, to the frame, and leaves the others there. Clobbers RAX and RCX.
    pub fn carry_to_frame(&mut self) {
        self.asm.setcc(cc::B, RCX);
        self.asm.load(B4, RAX, FLAGS);
        self.asm.alu_imm(B4, alu::AND, RAX, !0x100);
        self.asm.extend(0xb6, B4, RCX, B1, RCX);
        self.asm.shift_imm(B4, 4, RCX, 8);
        self.asm.alu(B4, alu::OR, RAX, RCX);
        self.asm.store(B4, FLAGS, RAX);
        self.in_frame |= set::C;
        self.in_host = 0;
    }

    /// Writes CF and OF, which the host's register holds, to the frame. Clobbers RAX, RCX and RDX.
    pub fn carry_and_overflow_to_frame(&mut self) {
        self.asm.setcc(0, RDX);
        self.carry_to_frame();
        self.asm.alu_imm(B4, alu::AND, RAX, !1);
        self.asm.extend(0xb6, B4, RDX, B1, RDX);
        self.asm.alu(B4, alu::OR, RAX, RDX);
        self.asm.store(B4, FLAGS, RAX);
        self.in_frame |= set::O;
    }

    /// Brings CF into the host's register.
    pub fn need_carry(&mut self) {
        if self.in_host & set::C == 0 {
            debug_assert_ne!(self.in_frame & set::C, 0, "the carry is lost");
            self.asm.bit_test(FLAGS, 8);
        }
    }

    /// Makes the host's register tell a condition; returns by which condition. Clobbers RAX.
    pub fn condition(&mut self, cc: u8) -> u8 {
        let flags = looked_at(cc);
        if self.in_host & flags == flags {
            return cc;
        }
        debug_assert_eq!(self.in_frame & flags, flags, "a condition's flags are lost");
        self.in_host = 0;
        let negated = cc & 1;
        let mask = match cc >> 1 {
            0 => {
                self.asm.test_imm(B1, FLAGS, 1);
                return cc::NE ^ negated;
            }
            1 => 0x01,
            2 => 0x40,
            3 => 0x41,
            4 => 0x80,
            5 => 0x04,
            _ => {
                self.asm.load(B4, RAX, FLAGS);
                self.asm.alu_imm(B1, alu::AND, RAX, 1);
                self.asm.alu_imm(B1, alu::ADD, RAX, 0x7f);
                self.asm.byte(0x9e);
                return cc;
            }
        };
        self.asm.test_imm(B1, FLAGS_HIGH, mask);
        cc::NE ^ negated
    }
}

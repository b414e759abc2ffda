//! Translates one block: the order of its code, its entry and its exits.
//!
//! Registers of the host: RBP points to the frame and R15 holds the counter. RAX, RCX and RDX are scratch,
//! and RSP does not change. The other host registers hold ten of the guest's registers; the guest's other six
//! registers are in the frame.
//!
//! Flags: an instruction that sets flags leaves them in the host's flags register. Code right after the
//! instruction writes the flags to the frame, if a later reader or exit may need them there. This write to the frame is
//! not needed if registers still hold the values that the flags can be computed from. The rule for computing the flags
//! is a *recipe* (`recipe.rs`). The block then exits, or ends, with the recipe in the frame instead of the flags.

mod flags;
mod operands;
mod plan;

use std::mem::offset_of;
use std::num::NonZeroU32;
use std::sync::Arc;

use iced_x86::{Instruction, OpKind, Register};

use self::plan::{Known, Step, changed_under_first_flags, plan};
use super::asm::{Asm, B4, B8, Fixup, Mem, R15, RAX, RBP, RCX, RDX, RORX, Reg, alu, at, cc};
use super::exits::{EDGE_ON, EDGE_TAKEN, ENTRY, cost, exit_code};
use super::groups::{Groups, Role};
use super::kind::{Kind, kind_of, set};
use super::recipe::{Recipe, Recipes};
use super::relocation::{self, Relocations};
use super::undefined::assert_all_inverted;
use crate::frame::{EXPECTED, Frame, SECOND_SLOT, SLOTS, TlbSlot, TlbSlots};
use crate::jumps::{JUMP_BITS, JUMP_FACTOR, JumpSlot};
use crate::{Part, Parts, Source, Undefined};

/// The error for a block with an instruction that turns out not to be translatable. The interpreter will execute the
/// block.
#[derive(Debug)]
pub(super) struct Cannot;

/// A field of the frame, addressed from the frame pointer.
pub(super) const fn field(offset: usize) -> Mem {
    Mem { base: RBP, index: None, disp: offset as i32 - Frame::ANCHOR as i32 }
}

pub(super) const FLAGS: Mem = field(offset_of!(Frame, flags));
/// The byte of [`Frame::flags`] to which generated code writes AH after LAHF.
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

/// Fields of a slot for a remembered target.
const JUMP_RIP: i32 = offset_of!(JumpSlot, rip) as i32;
const JUMP_ADDEND: i32 = offset_of!(JumpSlot, addend) as i32;
const JUMP_TARGET: i32 = offset_of!(JumpSlot, target) as i32;

/// The bit in which the addresses of a page's two slots differ.
const SECOND_BIT: i32 = (SECOND_SLOT * size_of::<TlbSlot>()) as i32;

/// Writes code that sets RCX to the address of the first slot for the target in RAX, as [`crate::jumps::slot_of`]
/// computes the address.
fn jump_slot(asm: &mut Asm) {
    const SLOT_SHIFT: u32 = size_of::<JumpSlot>().trailing_zeros();
    asm.multiply(RCX, RAX, JUMP_FACTOR);
    asm.shift_imm(B4, 5, RCX, (32 - JUMP_BITS - SLOT_SHIFT) as u8);
    asm.alu_imm(B4, alu::AND, RCX, -1 << SLOT_SHIFT);
    asm.alu(B8, alu::ADD, RCX, JUMPS_POINTER);
}

/// Writes code that sets a register to the address of the first TLB slot for the linear address in RAX. The slot is in
/// the first array of slots; an offset selects the other arrays. Clobbers flags.
fn slot_address(asm: &mut Asm, to: Reg) {
    const SLOT_SHIFT: u8 = 12 - size_of::<TlbSlot>().trailing_zeros() as u8;
    if is_x86_feature_detected!("bmi2") {
        asm.vex_imm(B4, RORX, to.0, RAX, SLOT_SHIFT);
    } else {
        asm.load(B4, to, RAX);
        asm.shift_imm(B4, 5, to, SLOT_SHIFT);
    }
    asm.alu_imm(B4, alu::AND, to, ((SLOTS - 1) * size_of::<TlbSlot>()) as i32);
    asm.alu(B8, alu::ADD, to, SLOTS_POINTER);
}

/// Writes code that looks up the target in RAX in the jump table. If the target is found and its page is still mapped
/// as before, the code jumps to the target. Otherwise the code loads EAX with the exit's code from the frame, and falls
/// through.
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

/// The field for an address that missed in the TLB.
fn missed(write: bool) -> Mem {
    field(offset_of!(Frame, missed) + 8 * usize::from(write))
}

/// The field that points to the slots of privileged code while RFLAGS.AC is clear, or while it is set.
pub(super) fn slots_by_ac(ac: bool) -> Mem {
    field(offset_of!(Frame, slots_by_ac) + 8 * usize::from(ac))
}

/// The field with the addend of a group of accesses.
fn addend(slot: u8) -> Mem {
    field(offset_of!(Frame, addends) + 8 * usize::from(slot))
}

/// The field with the addend that an access expects.
fn expected(number: usize) -> Mem {
    field(offset_of!(Frame, expected) + 8 * (number % EXPECTED))
}

/// The field with a segment register's selector.
pub(super) fn selector(register: u8) -> Mem {
    field(offset_of!(Frame, selectors) + size_of::<u16>() * usize::from(register))
}

/// The field with a guest's XMM register.
pub(super) fn vector_place(number: u8) -> Mem {
    field(offset_of!(Frame, xmm) + 16 * usize::from(number))
}

/// The host registers of the guest's general registers while generated code runs.
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

/// The guest's registers that have a host register: the host register, and the guest register's field in the frame.
pub(super) fn pinned() -> impl Iterator<Item = (Reg, Mem)> {
    (0..16).filter_map(|n| HOMES[n].map(|home| (home, in_frame(n))))
}

fn in_frame(n: usize) -> Mem {
    field(offset_of!(Frame, regs) + 8 * n)
}

/// The field that holds the counter while generated code does not run.
pub(super) const COUNTER: Mem = field(offset_of!(Frame, counter));

/// A written block, with the data to enter, exit and link it.
pub(super) struct Written {
    /// The block's code, written for offset 0 and block number 0.
    pub code: Box<[u8]>,
    /// The places in the code that change when it moves.
    pub relocations: Relocations,
    pub instructions: u8,
    /// Whether the code is valid wherever the guest's code is mapped.
    pub movable: bool,
    /// Offset of the exit before the block's first instruction.
    pub dead: usize,
    /// The exits to the next blocks: fall-through, and taken.
    pub edges: [Edge; 2],
    /// The places where the block can be entered again.
    pub reentries: Arc<[Reentry]>,
    /// The number of conditional branches at the block's end.
    pub branches: u64,
    /// The registers that the block changes while the flags at entry are still in force: see
    /// [`changed_under_first_flags`].
    pub changes: Option<u16>,
}

/// Where a block can be entered again after it exited at an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Reentry {
    pub instruction: u8,
    /// Offset of the instruction's own code, if the code expects no flags in the host's register and can be tried
    /// again.
    pub at: Option<NonZeroU32>,
    /// Offset of the code after the instruction, if that code expects no flags in the host's register.
    /// Without such code, the interpreter executes the rest too.
    pub behind: Option<NonZeroU32>,
}

/// An offset at which code can be entered, in four bytes. `None` for offset 0, where nothing but the block's entry is.
fn short(offset: usize) -> Option<NonZeroU32> {
    NonZeroU32::new(u32::try_from(offset).ok()?)
}

/// An exit to the next block.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Edge {
    /// Target address minus the block's address.
    pub ahead: u64,
    /// Offset of the displacement of a jump that can be linked to the code of the next block.
    pub displacement: Option<NonZeroU32>,
    /// As `displacement`, but for the jump in the block's twin, the copy of the block that checks every access.
    pub twin: Option<NonZeroU32>,
    /// For a target in another page: offset of the addend with which the TLB must map that page.
    pub addend: Option<NonZeroU32>,
    /// The registers that the flags' recipe needs, if the exit may be taken with a recipe in the frame.
    pub recipe: Option<u16>,
    /// Offsets of the code that writes the flags in place of their recipe, and of the displacement of the jump after
    /// that code.
    pub settle: Option<[NonZeroU32; 2]>,
}

/// An exit of the block. The exit's code is written after the block.
enum Way {
    /// An exit to the interpreter, which executes the instruction with this number in the block.
    Instruction(usize),
    /// An exit before the block's first instruction, because the budget does not allow the whole block.
    Budget,
    /// An exit to a known address in the same page. The field is the number of the edge.
    Edge(u8),
    /// An exit to a known address in another page. The fields are the number of the edge, and the address.
    Far(u8, u64),
    /// Code that looks at the second slot of a target in the jump table. RCX is the address of the first slot. If
    /// the second slot has the target, the code continues at the offset in the first field. Otherwise the code
    /// exits to the interpreter, which executes the instruction with the number in the second field.
    SecondSlot(usize, usize),
    /// Code that looks at the second TLB slot of the target's page. RAX holds the page, and RDX the address of its
    /// first slot. The fields have the same meaning as in [`Way::SecondSlot`].
    SecondOfTarget(usize, usize),
    /// Code that looks at the second TLB slot of a page. The first slot is at RCX plus the offset `slots`, which
    /// selects the array of slots. If the second slot holds the page, the code continues at the offset `found`.
    /// Otherwise the code exits to the interpreter.
    SecondPage { slots: i32, found: usize, instruction: usize, write: bool },
    /// As [`Way::SecondPage`], for a group of accesses. If the second slot does not hold the page either, the code
    /// continues at the same instruction of the block's twin, which checks each access.
    SecondPageOfGroup { slots: i32, found: usize, instruction: usize },
    /// Loads the slot's addend, which differs from the expected addend, and stores it as the expected addend. Then
    /// continues at the offset `back`.
    OtherAddend { slots: i32, place: Mem, back: usize },
}

/// A block being written.
pub(super) struct BlockWriter<'a> {
    pub asm: Asm,
    source: &'a Source<'a>,
    site: &'a Site,
    /// Each exit, the jumps that lead to it, and the recipe of the flags if the frame does not have them at this exit.
    ways: Vec<(Way, Vec<Fixup>, Option<Recipe>)>,
    /// Jumps from the current instruction to its exit.
    leaving: Vec<Fixup>,
    /// Whether the current instruction can also exit after the page's second TLB slot has missed too.
    leaves_later: bool,
    /// Flags that are valid in the host's register. The next field has the flags that are valid in the frame.
    in_host: u8,
    in_frame: u8,
    /// Whether the recipe of the current instruction's flags needs a saved operand.
    keeps: bool,
    /// The recipe of the flags, if they are not in the frame before the current instruction.
    unsettled: Option<Recipe>,
    /// The recipe of the flags at the block's end, if they may not be in the frame there.
    at_end: Option<Recipe>,
    recipes: &'a mut Recipes,
    /// Flags that may be read after the current instruction.
    needed: u8,
    /// Number of the current instruction.
    number_in_block: usize,
    edges: [Edge; 2],
    branches: u64,
    vectors_checked: bool,
    ended: bool,
    /// How the current instruction's access shares checks with others.
    role: Role,
    /// Whether the block's twin is being written, with a check of every access: see [`super::groups`].
    twin: bool,
    /// Number of loads so far that use an expected addend.
    expecting: usize,
    /// Offsets of the instructions in the twin, where the block can continue.
    in_twin: Vec<usize>,
}

/// Offsets of the code outside blocks that blocks jump to, and the settings of the translator.
pub(super) struct Site {
    /// Offset of the common exit of all generated code.
    pub exit: usize,
    /// Offset of the code of [`jump_or_exit`].
    pub lookup: usize,
    /// The treatment of results that the host's instructions leave undefined.
    pub undefined: Undefined,
    /// The optimisations that blocks may use.
    pub parts: Parts,
}

/// Translates a block; `None` if the interpreter would have to execute most of the block's instructions anyway.
pub(super) fn write(source: &Source<'_>, site: &Site, recipes: &mut Recipes) -> Option<Written> {
    let kinds: Vec<Option<Kind>> = source.instructions.iter().map(kind_of).collect();
    let has = |part| site.parts.has(part);
    let groups =
        if has(Part::Groups) { Groups::of(source, kinds.iter().copied()) } else { Groups::none(source) };
    let known = if has(Part::Recipes) { Known::of(source, &kinds) } else { Known::nothing(source) };
    let steps = plan(source, &kinds, &groups.roles, &known);
    let inline = steps.iter().filter(|step| step.kind.is_some()).count();
    if 2 * inline < source.instructions.len() || inline == 0 {
        return None;
    }
    let writer = BlockWriter {
        asm: Asm::of_block_at(source.rip, site.undefined),
        source,
        site,
        ways: Vec::new(),
        leaving: Vec::new(),
        leaves_later: false,
        in_host: 0,
        in_frame: set::ALL,
        keeps: false,
        unsettled: None,
        at_end: known.at_end.map(|(_, recipe)| recipe),
        recipes,
        needed: 0,
        number_in_block: 0,
        edges: [Edge::default(); 2],
        branches: u64::from(steps.last().is_some_and(|step| matches!(step.kind, Some(Kind::JumpIf(_))))),
        vectors_checked: false,
        ended: false,
        role: Role::Alone,
        twin: false,
        expecting: 0,
        in_twin: vec![0; source.instructions.len()],
    };
    let first = groups.first().filter(|_| has(Part::Twins));
    let twin = first.map(|first| (first, plan(source, &kinds, &Groups::none(source).roles, &known)));
    let checked = twin.as_ref().map_or(&steps, |(_, plan)| plan);
    let changes = changed_under_first_flags(source, checked);
    let written =
        writer.block(&steps, twin.as_ref().map(|(first, plan)| (*first, &plan[..])), &groups).ok()?;
    let movable = is_movable(source, &kinds);
    if site.undefined == Undefined::Inverted {
        assert_all_inverted(&written.code);
    }
    Some(Written { changes, movable, ..written })
}

/// In a block without a twin, removes the entrances to code that relies on earlier checks of pages.
fn forget_checked(entrances: &mut [Entrance], groups: &Groups) {
    for (n, entrance) in entrances.iter_mut().enumerate() {
        entrance.at = entrance.at.filter(|_| groups.can_begin_at(n));
        entrance.behind = entrance.behind.filter(|_| groups.can_begin_at(n + 1));
    }
}

/// Whether a block's code would be the same, except for relocations, wherever the guest's code is mapped.
fn is_movable(source: &Source<'_>, kinds: &[Option<Kind>]) -> bool {
    let relative = |i: &Instruction| i.memory_base() == Register::RIP;
    // Accesses of a group share one TLB check (`groups.rs`), so the differences between their addresses must not
    // change. If the code moves, addresses relative to RIP move with the code, and absolute addresses do not.
    let absolute = |i: &Instruction| {
        let has_memory = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
        has_memory && i.memory_base() == Register::None && i.memory_index() == Register::None
    };
    let has = |what: &dyn Fn(&Instruction) -> bool| source.instructions.iter().any(what);
    // A target that is not canonical from this address may be canonical if the block moves to another address.
    let branches_nowhere =
        source.instructions.iter().zip(kinds).any(|(i, kind)| {
            kind.is_none() && (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::NearBranch64)
        });
    source.second_page.is_none() && !branches_nowhere && !(has(&relative) && has(&absolute))
}

/// Where an instruction's code can be entered, and whether the code can exit.
#[derive(Clone, Copy, Default)]
struct Entrance {
    /// Whether the instruction's code can exit to the interpreter.
    exits: bool,
    /// The offset for [`Reentry::at`]. The next field is the offset for [`Reentry::behind`].
    at: Option<NonZeroU32>,
    behind: Option<NonZeroU32>,
}

impl BlockWriter<'_> {
    /// Writes the block and its exits. If the block has a twin, writes the twin from the given instruction on.
    fn block(
        mut self,
        plan: &[Step],
        twin: Option<(usize, &[Step])>,
        groups: &Groups,
    ) -> Result<Written, Cannot> {
        let count = self.source.instructions.len();
        self.asm.alu_imm(B8, alu::SUB, R15, cost(count, self.branches) as i32);
        let out_of_budget = self.asm.jcc(cc::S);
        self.way(Way::Budget, vec![out_of_budget]);
        if let Some(page) = self.source.second_page {
            self.leave_unless_mapped(&page);
        }
        let mut entrances = self.instructions(plan, 0)?;
        if twin.is_none() {
            forget_checked(&mut entrances, groups);
        }
        if let Some((first, plan)) = twin {
            (self.twin, self.in_frame) = (true, set::ALL);
            let of_twin = self.instructions(plan, first)?;
            for (n, (entrance, twin)) in entrances.iter_mut().zip(of_twin).enumerate() {
                entrance.exits |= twin.exits;
                // After an exit from the block, earlier checks of pages are not valid any more.
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
        let may_reenter = self.site.parts.has(Part::Reentries);
        let entrances =
            entrances.into_iter().enumerate().filter(|(_, entrance)| may_reenter && entrance.exits);
        let reentries = entrances.map(reentry).collect();
        let dead = self.ways_out();
        let (code, relocations) = self.asm.finish();
        Ok(Written {
            code: code.into_boxed_slice(),
            relocations,
            instructions: count as u8,
            movable: false,
            dead,
            edges: self.edges,
            reentries,
            branches: self.branches,
            changes: None,
        })
    }

    /// Writes the instructions from number `first` on.
    fn instructions(&mut self, plan: &[Step], first: usize) -> Result<Vec<Entrance>, Cannot> {
        let count = self.source.instructions.len();
        let mut entrances = vec![Entrance::default(); count];
        self.ended = false;
        for (n, step) in plan.iter().enumerate().skip(first) {
            let instruction = self.source.instructions[n];
            (self.needed, self.number_in_block, self.role) = (step.needed, n, step.role);
            self.unsettled = step.before.filter(|_| self.in_frame != set::ALL);
            self.keeps = step.keeps;
            if self.twin {
                // Execution can arrive at this instruction of the twin from outside, with its flags in the frame. So
                // nothing is known about earlier checks.
                self.vectors_checked = false;
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
                    let recipe = step.at_end.filter(|_| step.needed == 0);
                    // Store the recipe before the instruction that sets the flags, so that this instruction stands
                    // right before the branch that reads them.
                    let (before, behind) = if effect.exits { (None, recipe) } else { (recipe, None) };
                    before.into_iter().for_each(|recipe| self.name_recipe(recipe));
                    self.instruction(&instruction, kind, effect)?;
                    behind.into_iter().for_each(|recipe| self.name_recipe(recipe));
                    if n > 0 && plan[n - 1].kind == Some(Kind::InterruptFlag(true)) {
                        self.end_shadow();
                    }
                }
                None => {
                    debug_assert!(self.can_be_left(), "flags are lost at {instruction}");
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
                self.way(Way::Instruction(n), leaving);
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

    /// Writes the exits. Returns the offset of the exit before the first instruction.
    fn ways_out(&mut self) -> usize {
        let count = self.source.instructions.len();
        let mut dead = 0;
        for (way, fixups, recipe) in std::mem::take(&mut self.ways) {
            if let (Way::Edge(edge), Some(recipe)) = (&way, self.at_end) {
                self.settle(*edge, recipe);
            }
            for fixup in fixups {
                self.asm.land(fixup);
            }
            self.unsettled = recipe;
            match way {
                Way::Instruction(n) => self.leave_at(n),
                Way::Budget => {
                    self.asm.alu_imm(B8, alu::ADD, R15, cost(count, self.branches) as i32);
                    dead = self.asm.here();
                    self.leave(ENTRY);
                }
                Way::Edge(edge) => self.leave(edge),
                Way::Far(edge, target) => {
                    self.jump_if_linked(edge, target);
                    self.asm.store_imm(B4, SPARE, exit_code(0, edge) as i32);
                    self.asm.relocate(relocation::Kind::Number);
                    self.asm.address(RAX, target);
                    self.jump_to_glue(self.site.lookup);
                }
                Way::SecondSlot(found, n) => {
                    self.asm.alu_imm(B8, alu::XOR, RCX, size_of::<JumpSlot>() as i32);
                    self.asm.alu(B8, alu::CMP, RAX, at(RCX, JUMP_RIP));
                    let back = self.asm.jcc(cc::E);
                    self.asm.lead_to(back, found);
                    self.leave_at(n);
                }
                Way::SecondOfTarget(found, n) => {
                    self.asm.alu_imm(B8, alu::XOR, RDX, SECOND_BIT);
                    self.asm.alu(B8, alu::CMP, RAX, at(RDX, TlbSlots::EXEC + TlbSlot::PAGE));
                    let back = self.asm.jcc(cc::E);
                    self.asm.lead_to(back, found);
                    self.leave_at(n);
                }
                Way::SecondPage { slots, found, instruction, write } => {
                    self.asm.alu_imm(B8, alu::XOR, RCX, SECOND_BIT);
                    self.asm.alu(B8, alu::CMP, RDX, at(RCX, slots + TlbSlot::PAGE));
                    let back = self.asm.jcc(cc::E);
                    self.asm.lead_to(back, found);
                    self.asm.store(B8, missed(write), RAX);
                    self.leave_at(instruction);
                }
                Way::OtherAddend { slots, place, back } => {
                    self.asm.load(B8, RDX, at(RCX, slots + TlbSlot::ADDEND));
                    self.asm.store(B8, place, RDX);
                    let on = self.asm.jmp();
                    self.asm.lead_to(on, back);
                }
                Way::SecondPageOfGroup { slots, found, instruction } => {
                    self.asm.alu_imm(B8, alu::XOR, RCX, SECOND_BIT);
                    self.asm.alu(B8, alu::CMP, RDX, at(RCX, slots + TlbSlot::PAGE));
                    let back = self.asm.jcc(cc::E);
                    self.asm.lead_to(back, found);
                    if self.twin {
                        let on = self.asm.jmp();
                        self.asm.lead_to(on, self.in_twin[instruction]);
                    } else {
                        self.leave_at(instruction);
                    }
                }
            }
        }
        dead
    }

    /// Exits before the block's first instruction unless its second page is still mapped as it was at translation.
    fn leave_unless_mapped(&mut self, slot: &TlbSlot) {
        let page = slot.page().unwrap_or_default();
        let place = self.slot_of(page);
        let mut elsewhere = Vec::new();
        for (value, field) in [(page, TlbSlot::PAGE), (slot.addend(), TlbSlot::ADDEND)] {
            self.asm.constant(RAX, value);
            self.asm.alu(B8, alu::CMP, RAX, at(RDX, place + field));
            elsewhere.push(self.asm.jcc(cc::NE));
        }
        self.way(Way::Instruction(0), elsewhere);
    }

    /// Writes code that sets RDX. RDX plus the returned offset is then the address of the first slot for fetches from
    /// the page.
    fn slot_of(&mut self, page: u64) -> i32 {
        self.asm.load(B8, RDX, SLOTS_POINTER);
        let slot = (page >> 12) as usize % SLOTS;
        TlbSlots::EXEC + (slot * size_of::<TlbSlot>()) as i32
    }

    /// Jumps directly to the linked code of a target in another page, if that page is still mapped as it was when
    /// linked.
    fn jump_if_linked(&mut self, edge: u8, target: u64) {
        debug_assert_eq!(self.in_frame, set::ALL, "flags are lost where the block is left");
        let place = self.slot_of(target);
        self.asm.address(RAX, target & !0xfff);
        self.asm.compare_slot(RAX, at(RDX, place + TlbSlot::PAGE));
        let another = self.asm.jcc(cc::NE);
        // Until the exit is linked, the constant equals no page's addend.
        let addend = self.asm.constant_told_later();
        self.asm.compare_slot(RAX, at(RDX, place + TlbSlot::ADDEND));
        let same = self.asm.jcc(cc::E);
        let edge = &mut self.edges[usize::from(edge == EDGE_TAKEN)];
        (edge.displacement, edge.addend) = (short(same.offset()), short(addend));
        self.asm.land(another);
        self.in_host = 0;
    }

    /// Writes code that computes the flags from their recipe, for an edge whose target does not accept a recipe, and
    /// then jumps to the target.
    fn settle(&mut self, edge: u8, recipe: Recipe) {
        let here = self.asm.here();
        self.follow_recipe(recipe);
        let jump = self.asm.jmp();
        self.asm.land(jump);
        let edge = &mut self.edges[usize::from(edge == EDGE_TAKEN)];
        edge.settle = short(here).zip(short(jump.offset())).map(|(here, jump)| [here, jump]);
        edge.recipe = Some(recipe.registers());
    }

    /// Adds an exit of the current instruction.
    fn way(&mut self, way: Way, from: Vec<Fixup>) {
        self.ways.push((way, from, self.unsettled));
    }

    /// Whether an exit before the current instruction is possible: the flags are in the frame, or have a recipe.
    fn can_be_left(&self) -> bool {
        self.in_frame == set::ALL || self.unsettled.is_some()
    }

    /// Exits from generated code before an instruction.
    fn leave_at(&mut self, n: usize) {
        if let Some(recipe) = self.unsettled {
            self.name_recipe(recipe);
        }
        self.leave(n as u8);
    }

    /// Exits from generated code.
    fn leave(&mut self, code: u8) {
        self.asm.constant(RAX, u64::from(exit_code(0, code)));
        self.asm.relocate(relocation::Kind::Number);
        self.jump_to_glue(self.site.exit);
    }

    /// Jumps to code outside blocks.
    fn jump_to_glue(&mut self, to: usize) {
        let fixup = self.asm.jmp();
        self.asm.relocate(relocation::Kind::Glue);
        self.asm.lead_to(fixup, to);
    }

    /// Makes a jump lead to the code of a guest address.
    pub fn edge(&mut self, edge: u8, target: u64, jump: Fixup) {
        let same_page = (target ^ self.source.rip) & !0xfff == 0;
        let displacement = same_page.then(|| jump.offset()).and_then(short);
        let leads_there = |(way, ..): &&mut (Way, Vec<Fixup>, Option<Recipe>)| match *way {
            Way::Edge(other) | Way::Far(other, _) => other == edge,
            _ => false,
        };
        if self.twin
            && let Some((_, jumps, _)) = self.ways.iter_mut().find(leads_there)
        {
            jumps.push(jump);
            self.edges[usize::from(edge == EDGE_TAKEN)].twin = displacement;
            return;
        }
        let ahead = target.wrapping_sub(self.source.rip);
        self.edges[usize::from(edge == EDGE_TAKEN)] = Edge { ahead, displacement, ..Edge::default() };
        let way = if same_page { Way::Edge(edge) } else { Way::Far(edge, target) };
        self.way(way, vec![jump]);
    }

    /// Ends the block: later code is reached by jumps only.
    pub fn ends(&mut self) {
        self.ended = true;
    }

    /// Jumps to the guest address in RAX, or exits to the interpreter if this address's code is not known. `commit`
    /// writes code to run before the jump. `commit` must not change RCX.
    pub fn jump_to_rax(&mut self, commit: impl FnOnce(&mut Self)) {
        jump_slot(&mut self.asm);
        debug_assert_eq!(self.in_frame, set::ALL, "flags are lost where the block is left");
        self.asm.alu(B8, alu::CMP, RAX, at(RCX, JUMP_RIP));
        let other = self.asm.jcc(cc::NE);
        self.way(Way::SecondSlot(self.asm.here(), self.number_in_block), vec![other]);
        // The TLB must map the target's page as it did when the target was remembered.
        slot_address(&mut self.asm, RDX);
        self.asm.alu_imm(B8, alu::AND, RAX, -4096);
        self.asm.alu(B8, alu::CMP, RAX, at(RDX, TlbSlots::EXEC + TlbSlot::PAGE));
        let other_page = self.asm.jcc(cc::NE);
        self.way(Way::SecondOfTarget(self.asm.here(), self.number_in_block), vec![other_page]);
        self.asm.load(B8, RAX, at(RCX, JUMP_ADDEND));
        self.asm.alu(B8, alu::CMP, RAX, at(RDX, TlbSlots::EXEC + TlbSlot::ADDEND));
        self.leave_if(cc::NE);
        commit(self);
        self.asm.jmp_to(at(RCX, JUMP_TARGET));
        self.ends();
    }

    /// Exits to the interpreter if a condition holds.
    pub fn leave_if(&mut self, cc: u8) {
        debug_assert!(self.can_be_left(), "flags are lost where the block is left");
        let jump = self.asm.jcc(cc);
        self.leaving.push(jump);
        self.in_host = 0;
    }

    /// Exits to the interpreter if XMM registers must not be used.
    pub fn leave_if_vectors_are_blocked(&mut self) {
        if !self.vectors_checked {
            self.asm.alu_imm(B4, alu::CMP, VECTORS_BLOCKED, 0);
            self.leave_if(cc::NE);
            self.vectors_checked = true;
        }
    }
}

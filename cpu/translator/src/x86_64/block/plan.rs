//! Decisions about a block before it is written.

use iced_x86::Instruction;

use crate::Source;
use crate::x86_64::groups::{Role, Values};
use crate::x86_64::kind::{Effect, Kind, set};
use crate::x86_64::recipe::Recipe;

/// Decisions about an instruction before it is written.
pub(super) struct Step {
    pub kind: Option<Kind>,
    pub role: Role,
    /// Flags that may be read from the frame after the instruction.
    pub needed: u8,
    /// The recipe of the flags before the instruction, if the flags have a recipe. With a recipe, an exit to
    /// the interpreter does not need the flags in the frame.
    pub before: Option<Recipe>,
    /// The recipe of the flags at the block's end, if this instruction set them last.
    pub at_end: Option<Recipe>,
    /// Whether an operand of the instruction must be saved for the recipe of its flags.
    pub keeps: bool,
}

impl Step {
    pub fn effect(&self, instruction: &Instruction, needed: u8) -> Option<Effect> {
        self.kind?.effect(instruction, needed, matches!(self.role, Role::Later { .. }))
    }

    /// Whether an exit before the instruction completes needs the flags in the frame. If the check of a group's
    /// first access fails, the block continues in its twin. The twin has no recipes, so it needs the flags.
    fn exits_need_flags(&self) -> bool {
        self.before.is_none() || matches!(self.role, Role::First { .. })
    }
}

/// Decides which instructions are translated and which of their flags are needed. Goes from the last instruction to the
/// first.
pub(super) fn plan(
    source: &Source<'_>,
    kinds: &[Option<Kind>],
    roles: &[Role],
    recipes: &Known,
) -> Vec<Step> {
    let step = |(n, (&kind, &role))| Step {
        kind,
        role,
        needed: 0,
        before: recipes.before[n],
        at_end: recipes.at_end.filter(|&(last, _)| last == n).map(|(_, recipe)| recipe),
        keeps: recipes.keeps[n],
    };
    let mut steps: Vec<Step> = kinds.iter().zip(roles).enumerate().map(step).collect();
    let mut needed = if recipes.at_end.is_some() { 0 } else { set::ALL };
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
            needed = if steps[n].exits_need_flags() { set::ALL } else { 0 };
            continue;
        };
        let from_host = effect.reads != 0 && !effect.exits && host_reaches(source, &steps, n, effect.reads);
        needed &= !effect.kills;
        if !from_host {
            needed |= effect.reads;
        }
        if effect.exits && steps[n].exits_need_flags() {
            needed = set::ALL;
        }
    }
    steps
}

/// Whether the flags that the instruction `reader` reads are still in the host's register when execution reaches
/// `reader`.
fn host_reaches(source: &Source<'_>, steps: &[Step], reader: usize, reads: u8) -> bool {
    for n in (0..reader).rev() {
        // `in_host` and `transparent` of an effect do not depend on the needed flags. Only the existence of
        // the effect may depend on the needed flags.
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

/// The places in a block where the flags have a recipe.
pub(super) struct Known {
    /// The recipe of the flags before each instruction.
    before: Vec<Option<Recipe>>,
    /// Whether an instruction's recipe needs its saved operand at an exit.
    keeps: Vec<bool>,
    /// The recipe at the block's end and the instruction that set the flags, if both edges stay in the page.
    pub at_end: Option<(usize, Recipe)>,
}

impl Known {
    /// The result for a block without recipes.
    pub fn nothing(source: &Source<'_>) -> Known {
        let count = source.instructions.len();
        Known { before: vec![None; count], keeps: vec![false; count], at_end: None }
    }

    /// Follows the registers' values through a block, and finds the places where a recipe of the flags holds.
    pub fn of(source: &Source<'_>, kinds: &[Option<Kind>]) -> Known {
        let mut values = Values::default();
        // The instruction that last set the flags, its recipe, and the registers' values at that time.
        let mut last: Option<(usize, Recipe, Values)> = None;
        let holds = |last: &Option<(usize, Recipe, Values)>, now: &Values| {
            let (n, recipe, then) = last.as_ref()?;
            then.same_in(now, recipe.registers()).then_some((*n, *recipe))
        };
        let mut before = Vec::with_capacity(kinds.len());
        let mut keeps = vec![false; kinds.len()];
        for (n, (instruction, &kind)) in source.instructions.iter().zip(kinds).enumerate() {
            let held = holds(&last, &values);
            let effect = kind.and_then(|kind| kind.effect(instruction, set::ALL, false));
            if let Some((of, recipe)) = held
                && effect.is_none_or(|effect| effect.exits)
            {
                keeps[of] = recipe.is_kept();
            }
            before.push(held.map(|(_, recipe)| recipe));
            let Some(kind) = kind else {
                (last, values) = (None, Values::default());
                continue;
            };
            values.follow(instruction, kind);
            if kind.may_set_flags(instruction) {
                last = Recipe::of(instruction, kind).map(|recipe| (n, recipe, values.clone()));
            }
        }
        let at_end =
            holds(&last, &values).filter(|(_, recipe)| !recipe.is_kept() && stays_in_page(source, kinds));
        Known { before, keeps, at_end }
    }
}

/// Whether all edges of a block lead to known addresses in its own page.
fn stays_in_page(source: &Source<'_>, kinds: &[Option<Kind>]) -> bool {
    let (Some(last), Some(&Some(kind))) = (source.instructions.last(), kinds.last()) else { return false };
    let near = |target: u64| (target ^ source.rip) & !0xfff == 0;
    match kind {
        Kind::Jump => near(last.near_branch64()),
        Kind::JumpIf(_) => near(last.near_branch64()) && near(last.next_ip()),
        Kind::JumpIndirect | Kind::Call | Kind::CallIndirect | Kind::Return => false,
        _ => near(last.next_ip()),
    }
}

/// The registers, as bits, that a block changes before its last exit at which the flags from its entry are still in
/// force. `None` if generated code reads those flags, or if they may still be in force at the block's end. `steps`
/// must be a plan in which every access is checked.
pub(super) fn changed_under_first_flags(source: &Source<'_>, steps: &[Step]) -> Option<u16> {
    let (first, mut values) = (Values::default(), Values::default());
    let mut changed = 0;
    for (step, instruction) in steps.iter().zip(source.instructions) {
        let effect = step.effect(instruction, step.needed);
        if effect.is_none_or(|effect| effect.exits) {
            changed = first.changed_in(&values);
        }
        // After an instruction that the interpreter has executed, the flags are in the frame.
        let (Some(kind), Some(effect)) = (step.kind, effect) else { return Some(changed) };
        if effect.reads != 0 {
            return None;
        }
        if effect.kills == set::ALL {
            return Some(changed);
        }
        if kind.may_set_flags(instruction) && step.needed != 0 {
            // Writing the instruction's flags would also write the flags that it does not change.
            return None;
        }
        values.follow(instruction, kind);
    }
    None
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;
    use crate::x86_64::groups::Groups;
    use crate::x86_64::kind::kind_of;

    const CMP: [u8; 3] = [0x48, 0x39, 0xca]; // cmp rdx, rcx
    const LOAD: [u8; 2] = [0x8b, 0x06]; // mov eax, [rsi]

    fn with_source<T>(rip: u64, code: &[u8], then: impl FnOnce(&Source<'_>, &[Option<Kind>]) -> T) -> T {
        let instructions: Vec<Instruction> =
            Decoder::with_ip(64, code, rip, DecoderOptions::NONE).into_iter().collect();
        let kinds: Vec<Option<Kind>> = instructions.iter().map(kind_of).collect();
        then(&Source { rip, instructions: &instructions, second_page: None }, &kinds)
    }

    /// Whether the flags have a recipe before each instruction, and at the end.
    fn known(rip: u64, code: &[u8]) -> (Vec<bool>, bool) {
        with_source(rip, code, |source, kinds| {
            let known = Known::of(source, kinds);
            (known.before.iter().map(Option::is_some).collect(), known.at_end.is_some())
        })
    }

    fn needed(code: &[u8]) -> Vec<u8> {
        with_source(0x1000, code, |source, kinds| {
            let known = Known::of(source, kinds);
            let steps = plan(source, kinds, &Groups::none(source).roles, &known);
            steps.iter().map(|step| step.needed).collect()
        })
    }

    fn changes(code: &[u8]) -> Option<u16> {
        with_source(0x1000, code, |source, kinds| {
            let known = Known::of(source, kinds);
            changed_under_first_flags(source, &plan(source, kinds, &Groups::none(source).roles, &known))
        })
    }

    #[test]
    fn a_recipe_holds_as_long_as_its_registers() {
        let kept: [&[u8]; 4] = [&[0x89, 0xd0], &[0x89, 0x16], &[0x0f, 0x94, 0xc0], &[0x50]];
        for between in kept {
            assert_eq!(
                known(0x1000, &[&CMP, between, &LOAD].concat()),
                (vec![false, true, true], true),
                "{between:x?}"
            );
        }
        let lost: [&[u8]; 9] = [
            &[0x89, 0xc2],          // mov edx, eax
            &[0xb1, 1],             // mov cl, 1
            &[0x8b, 0x16],          // mov edx, [rsi]
            &[0x48, 0x8d, 0x52, 8], // lea rdx, [rdx+8]
            &[0x0f, 0x44, 0xc8],    // cmove ecx, eax
            &[0x87, 0xc1],          // xchg ecx, eax
            &[0x59],                // pop rcx
            &[0x99],                // cdq
            &[0x0f, 0xa2],          // cpuid
        ];
        for between in lost {
            assert_eq!(
                known(0x1000, &[&CMP, between, &LOAD].concat()),
                (vec![false, true, false], false),
                "{between:x?}"
            );
        }
    }

    #[test]
    fn other_flags_have_no_recipe() {
        // inc edi; rol edi, 3; shl edi, cl; bt edi, 3; imul edi, eax
        let setters: [&[u8]; 5] =
            [&[0xff, 0xc7], &[0xc1, 0xc7, 3], &[0xd3, 0xe7], &[0x0f, 0xba, 0xe7, 3], &[0x0f, 0xaf, 0xf8]];
        for setter in setters {
            assert_eq!(
                known(0x1000, &[&CMP, setter, &LOAD].concat()),
                (vec![false, true, false], false),
                "{setter:x?}"
            );
        }
    }

    #[test]
    fn the_operand_of_a_shift_is_kept_where_the_block_can_be_left() {
        let (shr, mov) = ([0xc1, 0xea, 2], [0x89, 0xc2]); // shr edx, 2; mov edx, eax
        let keeps = |code: &[u8]| {
            with_source(0x1000, code, |source, kinds| {
                let known = Known::of(source, kinds);
                assert!(known.at_end.is_none());
                known.keeps
            })
        };
        assert_eq!(keeps(&[&shr[..], &mov, &LOAD].concat()), [true, false, false]);
        assert_eq!(keeps(&[&shr[..], &[0x0f, 0xa2]].concat()), [true, false]);
        assert_eq!(keeps(&[&shr[..], &mov].concat()), [false, false]);
        assert_eq!(keeps(&[&shr[..], &shr, &LOAD].concat()), [false, true, false]);
        assert_eq!(keeps(&[&shr[..], &[0xff, 0xc7], &LOAD].concat()), [false; 3]);
        assert_eq!(keeps(&[&CMP[..], &LOAD, &shr].concat()), [false; 3]);
    }

    #[test]
    fn only_ways_in_the_page_are_taken_with_a_recipe() {
        // cmp rdx, rcx; je
        let je = |distance: u8| [&CMP[..], &[0x74, distance]].concat();
        assert!(known(0x1000, &je(0x10)).1);
        assert!(!known(0x1000, &je(0xf0)).1, "back to the page before");
        assert!(!known(0x1ffb, &je(0xf0)).1, "on to the next page");
        assert!(!known(0x1000, &[&CMP[..], &[0xc3]].concat()).1);
        assert!(!known(0x1000, &[&CMP[..], &[0xe8, 0, 0, 0, 0]].concat()).1);
        assert!(!known(0x1000, &[&CMP[..], &[0xff, 0xe0]].concat()).1);
    }

    #[test]
    fn flags_with_a_recipe_are_not_written() {
        assert_eq!(
            needed(&[&CMP[..], &LOAD, &[0x74, 0x10]].concat())[0],
            set::Z,
            "the branch looks at them behind the load"
        );
        assert_eq!(needed(&[&LOAD[..], &CMP, &[0x74, 0x10]].concat()), [0, 0, 0]);
        assert_eq!(needed(&[&CMP[..], &LOAD].concat()), [0, 0]);
        // mov edx, eax overwrites a compared register.
        assert_eq!(needed(&[&CMP[..], &[0x89, 0xc2], &LOAD].concat()), [set::ALL; 3]);
    }

    #[test]
    fn what_a_block_changes_under_the_flags_that_it_is_entered_with() {
        let mov = [0x89, 0xc3]; // mov ebx, eax
        assert_eq!(changes(&[&mov[..], &CMP].concat()), Some(0), "it cannot be left behind the MOV");
        assert_eq!(changes(&[&mov[..], &LOAD, &CMP].concat()), Some(1 << 3));
        assert_eq!(changes(&[&LOAD[..], &mov, &LOAD, &CMP].concat()), Some(1 | 1 << 3));
        assert_eq!(changes(&[&LOAD[..], &CMP].concat()), Some(0));
        assert_eq!(
            changes(&[&mov[..], &[0x0f, 0xa2], &LOAD].concat()),
            Some(1 << 3),
            "CPUID is the interpreter's"
        );
    }

    #[test]
    fn what_cannot_be_entered_with_a_recipe() {
        let none: [&[u8]; 6] = [
            &[0x74, 0x10],             // je
            &[0x11, 0xc8, 0x74, 0x10], // adc eax, ecx; je
            &[0x89, 0xc3],             // mov ebx, eax
            &[0xff, 0xc3],             // inc ebx
            &[0xd3, 0xe3],             // shl ebx, cl
            &[0x0f, 0x94, 0xc0],       // sete al
        ];
        for code in none {
            assert_eq!(changes(code), None, "{code:x?}");
        }
        // `rol ebx, 3` does not change SF, ZF, AF and PF. A load, which may exit, needs these flags. Without a
        // load, nothing needs these flags.
        let rol = [0xc1, 0xc3, 3];
        assert_eq!(changes(&[&rol[..], &LOAD, &CMP].concat()), None);
        assert_eq!(changes(&[&rol[..], &CMP].concat()), Some(0));
    }
}

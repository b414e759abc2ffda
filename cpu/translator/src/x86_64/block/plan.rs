//! What is decided of a block before it is written.

use iced_x86::Instruction;

use crate::Source;
use crate::x86_64::groups::Role;
use crate::x86_64::kind::{Effect, Kind, set};

/// What is known of an instruction before it is written.
pub(super) struct Step {
    pub kind: Option<Kind>,
    pub role: Role,
    /// Flags that may be looked at behind it, but where the host's register has them.
    pub needed: u8,
}

impl Step {
    pub fn effect(&self, instruction: &Instruction, needed: u8) -> Option<Effect> {
        self.kind?.effect(instruction, needed, matches!(self.role, Role::Later { .. }))
    }
}

/// Decides for each instruction, from the last to the first, whether it is translated, and which of its flags are needed.
pub(super) fn plan(source: &Source<'_>, kinds: &[Option<Kind>], roles: &[Role]) -> Vec<Step> {
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

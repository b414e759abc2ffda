//! Changes that a debugger or a test makes to a machine. These changes are not part of the recorded run.

use cpu::CpuState;
use vm_memory::{Bytes, GuestAddress};

use crate::outcome::Outcome;
use crate::run::Machine;
use crate::unit::Unit;

impl<U: Unit> Machine<U> {
    /// Flips one bit of RAM, as failing memory does. Tests check that a replay notices the flip.
    pub fn flip_ram_bit(&mut self, offset: u64, bit: u8) {
        let offset = offset % self.ram().size_bytes();
        let gpa = GuestAddress(self.ram().layout().gpa_of(offset));
        let byte = self.ram().load_u8(offset) ^ (1 << (bit % 8));
        self.ram().memory().write_obj(byte, gpa).expect("the offset lies inside RAM");
    }

    /// Replaces the CPU's registers, for a debugger. From here on the run differs from the recorded one.
    pub fn change_registers(&mut self, state: &CpuState) {
        self.engine.set_state(state, self.engine.counts());
    }

    /// Whether all bytes of a range of linear addresses are mapped to RAM.
    pub fn can_change_memory(&self, address: u64, length: usize) -> bool {
        linear_pieces(address, length).all(|(at, _)| self.ram_offset(at).is_some())
    }

    /// Writes memory at a linear address, for a debugger. Ignores access rights, and skips addresses that are not
    /// mapped to RAM. From here on the run differs from the recorded one.
    pub fn change_memory(&mut self, address: u64, bytes: &[u8]) {
        for (at, piece) in linear_pieces(address, bytes.len()) {
            if let Some(offset) = self.ram_offset(at) {
                self.ram().replace_bytes(offset, &bytes[piece]);
            }
        }
        // `set_state` makes the engine check its derived data, such as decoded code, against RAM.
        let state = self.engine.state();
        self.engine.set_state(&state, self.engine.counts());
    }

    fn ram_offset(&self, linear: u64) -> Option<u64> {
        self.engine.cpu().core().peek_address(linear).and_then(|gpa| self.ram().layout().offset_of(gpa))
    }

    /// Lets a machine continue after its run has ended. The end must have come from outside, or by a panic or the
    /// debug-exit port, so that the guest itself can continue.
    pub fn go_on_after_end(&mut self) {
        self.outcome.take_if(|outcome| {
            outcome.is_from_outside() || matches!(outcome, Outcome::Panic | Outcome::DebugExit { .. })
        });
    }
}

/// Cuts a range of linear addresses at page boundaries. Yields each piece's address, and its range of indices in the
/// `length` bytes.
fn linear_pieces(address: u64, length: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let at = address.wrapping_add(from as u64);
        let to = length.min(from + (guest_ram::PAGE_SIZE - at % guest_ram::PAGE_SIZE) as usize);
        let piece = from..to;
        from = to;
        (!piece.is_empty()).then_some((at, piece))
    })
}

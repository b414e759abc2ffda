//! Changes of a machine that are not part of its run: those of a debugger, and those of a test.

use cpu::CpuState;
use vm_memory::{Bytes, GuestAddress};

use crate::outcome::Outcome;
use crate::run::Machine;
use crate::unit::Unit;

impl<U: Unit> Machine<U> {
    /// Changes one bit of RAM, as failing memory does: for tests of what notices it.
    pub fn flip_ram_bit(&mut self, offset: u64, bit: u8) {
        let offset = offset % self.ram().size_bytes();
        let gpa = GuestAddress(self.ram().layout().gpa_of(offset));
        let byte = self.ram().load_u8(offset) ^ (1 << (bit % 8));
        self.ram().memory().write_obj(byte, gpa).expect("the offset lies inside RAM");
    }

    /// Replaces the CPU's registers, for a debugger: from here on the run is another one.
    pub fn change_registers(&mut self, state: &CpuState) {
        self.engine.set_state(state, self.engine.counts());
    }

    /// Whether all bytes of a range of linear addresses are mapped to RAM.
    pub fn can_change_memory(&self, address: u64, length: usize) -> bool {
        linear_pieces(address, length).all(|(at, _)| self.ram_offset(at).is_some())
    }

    /// Writes memory at a linear address, for a debugger: with no regard for rights, and what is not mapped
    /// to RAM stays as it is. From here on the run is another one.
    pub fn change_memory(&mut self, address: u64, bytes: &[u8]) {
        for (at, piece) in linear_pieces(address, bytes.len()) {
            if let Some(offset) = self.ram_offset(at) {
                self.ram().replace_bytes(offset, &bytes[piece]);
            }
        }
        // The engine looks at what it derived from RAM when its state is replaced.
        let state = self.engine.state();
        self.engine.set_state(&state, self.engine.counts());
    }

    fn ram_offset(&self, linear: u64) -> Option<u64> {
        self.engine.cpu().core().peek_address(linear).and_then(|gpa| self.ram().layout().offset_of(gpa))
    }

    /// Lets a machine go on whose run was ended from outside, not by itself: after a panic the kernel still
    /// runs.
    pub fn go_on_after_end(&mut self) {
        self.outcome.take_if(|outcome| {
            outcome.is_from_outside() || matches!(outcome, Outcome::Panic | Outcome::DebugExit { .. })
        });
    }
}

/// A range of linear addresses cut at page boundaries: the address of each piece, and which bytes of the
/// range it is.
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

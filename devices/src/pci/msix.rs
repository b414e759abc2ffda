//! The MSI-X table and pending bit array of one function.
//!
//! The enable and function-mask bits are in the capability, in configuration space. Callers pass the bits as
//! a [`Control`], so there is only one copy.
//!
//! PCI Local Bus Specification 3.0, section 6.8.2 and 6.8.3.

use serde::{Deserialize, Serialize};

use super::error::StateError;

/// Largest number of vectors of a function, because the pending bits are one qword.
pub(crate) const MAX_VECTORS: usize = 64;
/// Offset of the pending bit array in the MSI-X BAR; the table is at 0.
pub(crate) const PBA_OFFSET: u32 = 0x800;
/// Size of the BAR that holds table and pending bits.
pub(crate) const MSIX_BAR_BYTES: u32 = 0x1000;

const ENTRY_BYTES: usize = 16;
const ENTRY_MASKED: u32 = 1;

/// The control bits for all vectors of a function.
#[derive(Clone, Copy)]
pub(crate) struct Control {
    enabled: bool,
    masked: bool,
}

impl Control {
    /// Bits of the message control register that the guest may write: function mask and enable.
    pub const WRITABLE: u16 = 1 << 14 | 1 << 15;

    /// Combines the message control register and the bus master bit. A message is a memory write, so a function without
    /// bus mastering holds its messages back as if all vectors were masked.
    pub fn new(message_control: u16, bus_master: bool) -> Control {
        Control {
            enabled: message_control & 1 << 15 != 0,
            masked: message_control & 1 << 14 != 0 || !bus_master,
        }
    }

    /// Whether MSI-X replaces INTx.
    pub fn enabled(self) -> bool {
        self.enabled
    }

    fn delivers(self) -> bool {
        self.enabled && !self.masked
    }
}

/// A message-signalled interrupt: a dword written to a local APIC's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msi {
    /// Guest-physical address of the write.
    pub address: u64,
    /// The dword written.
    pub data: u32,
}

/// One entry of the table, as its four dwords.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MsixEntryV1 {
    /// Message address, low dword (bits 0 and 1 are zero).
    pub address_low: u32,
    /// Message address, high dword.
    pub address_high: u32,
    /// Message data.
    pub data: u32,
    /// Vector control; bit 0 masks the vector, and the other bits are zero.
    pub control: u32,
}

impl MsixEntryV1 {
    fn message(&self) -> Msi {
        let address = u64::from(self.address_high) << 32 | u64::from(self.address_low);
        Msi { address, data: self.data }
    }
}

/// Saved MSI-X table and pending bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MsixStateV1 {
    /// The table.
    pub entries: Vec<MsixEntryV1>,
    /// Pending bit array, bit n for vector n.
    pub pending: u64,
}

/// The message-signalled interrupts of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessagesSummary {
    /// Whether the messages replace the interrupt line.
    pub is_enabled: bool,
    /// Whether all messages are masked.
    pub is_masked: bool,
    /// The messages, by their numbers.
    pub messages: Vec<MessageSummary>,
}

/// A message-signalled interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageSummary {
    /// The message.
    pub message: Msi,
    /// Whether this message is masked.
    pub is_masked: bool,
    /// Whether the message waits until it is unmasked.
    pub is_pending: bool,
}

/// The MSI-X table and the pending bits of one function.
pub(crate) struct Msix {
    entries: Vec<MsixEntryV1>,
    pending: u64,
}

impl Msix {
    /// A table of masked vectors.
    pub fn new(vectors: usize) -> Msix {
        assert!((1..=MAX_VECTORS).contains(&vectors));
        let entry = MsixEntryV1 { address_low: 0, address_high: 0, data: 0, control: ENTRY_MASKED };
        Msix { entries: vec![entry; vectors], pending: 0 }
    }

    /// Requests a vector: sends its message, or stores the request in the pending bits while the vector is masked.
    pub fn fire(&mut self, vector: u16, control: Control, out: &mut Vec<Msi>) {
        if control.enabled() && usize::from(vector) < self.entries.len() {
            self.pending |= 1 << vector;
            self.send_pending(control, out);
        }
    }

    /// Must be called after a change of [`Control`]. Sends the pending messages that are no longer masked. If MSI-X is
    /// off, drops all pending messages.
    pub fn control_changed(&mut self, control: Control, out: &mut Vec<Msi>) {
        if !control.enabled() {
            self.pending = 0;
        }
        self.send_pending(control, out);
    }

    /// Drops every pending request (the device was reset).
    pub fn clear_pending(&mut self) {
        self.pending = 0;
    }

    /// Reads the table from byte `offset` on. The table may be anywhere in a BAR.
    pub fn read_table(&self, offset: usize, data: &mut [u8]) {
        for (at, byte) in (offset..).zip(data) {
            *byte = self.table_byte(at);
        }
    }

    /// Reads the pending bits from byte `offset` on. The pending bits may be anywhere in a BAR.
    pub fn read_pending(&self, offset: usize, data: &mut [u8]) {
        for (at, byte) in (offset..).zip(data) {
            *byte = self.pending.to_le_bytes().get(at).copied().unwrap_or(0);
        }
    }

    /// Reads the MSI-X BAR; unused places read zero.
    pub fn read(&self, offset: usize, data: &mut [u8]) {
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = self.byte_at(offset + i);
        }
    }

    /// Writes the MSI-X BAR. Software must use aligned dwords or qwords. Other accesses and writes outside the table
    /// are ignored.
    pub fn write(&mut self, offset: usize, data: &[u8], control: Control, out: &mut Vec<Msi>) {
        let aligned = matches!(data.len(), 4 | 8) && offset.is_multiple_of(data.len());
        if !aligned || offset + data.len() > self.entries.len() * ENTRY_BYTES {
            log::debug!("MSI-X: ignored a {}-byte write at {offset:#x}", data.len());
            return;
        }
        for (i, dword) in data.chunks_exact(4).enumerate() {
            let value = u32::from_le_bytes([dword[0], dword[1], dword[2], dword[3]]);
            self.write_dword(offset + 4 * i, value);
        }
        self.send_pending(control, out);
    }

    /// The messages, decoded.
    pub fn summary(&self, control: Control) -> MessagesSummary {
        let message = |(vector, entry): (usize, &MsixEntryV1)| MessageSummary {
            message: entry.message(),
            is_masked: entry.control & ENTRY_MASKED != 0,
            is_pending: self.pending & 1 << vector != 0,
        };
        MessagesSummary {
            is_enabled: control.enabled,
            is_masked: control.masked,
            messages: self.entries.iter().enumerate().map(message).collect(),
        }
    }

    /// The saved state.
    pub fn state(&self) -> MsixStateV1 {
        MsixStateV1 { entries: self.entries.clone(), pending: self.pending }
    }

    /// A table with as many vectors as this one, and with saved contents.
    pub fn restored(&self, state: &MsixStateV1) -> Result<Msix, StateError> {
        if state.entries.len() != self.entries.len() {
            return Err(StateError::new("the MSI-X table has another size"));
        }
        if state.entries.iter().any(|e| e.address_low & 3 != 0 || e.control & !ENTRY_MASKED != 0) {
            return Err(StateError::new("an MSI-X table entry has reserved bits set"));
        }
        if state.entries.len() < MAX_VECTORS && state.pending >> state.entries.len() != 0 {
            return Err(StateError::new("an MSI-X vector that does not exist is pending"));
        }
        Ok(Msix { entries: state.entries.clone(), pending: state.pending })
    }

    fn send_pending(&mut self, control: Control, out: &mut Vec<Msi>) {
        if !control.delivers() || self.pending == 0 {
            return;
        }
        for (vector, entry) in self.entries.iter().enumerate() {
            if self.pending & 1 << vector != 0 && entry.control & ENTRY_MASKED == 0 {
                self.pending &= !(1 << vector);
                out.push(entry.message());
            }
        }
    }

    fn byte_at(&self, offset: usize) -> u8 {
        let pba = PBA_OFFSET as usize;
        if (pba..pba + 8).contains(&offset) {
            return self.pending.to_le_bytes()[offset - pba];
        }
        self.table_byte(offset)
    }

    fn table_byte(&self, offset: usize) -> u8 {
        let Some(entry) = self.entries.get(offset / ENTRY_BYTES) else { return 0 };
        let dwords = [entry.address_low, entry.address_high, entry.data, entry.control];
        dwords[offset % ENTRY_BYTES / 4].to_le_bytes()[offset % 4]
    }

    fn write_dword(&mut self, offset: usize, value: u32) {
        let entry = &mut self.entries[offset / ENTRY_BYTES];
        match offset % ENTRY_BYTES {
            0 => entry.address_low = value & !3,
            4 => entry.address_high = value,
            8 => entry.data = value,
            _ => entry.control = value & ENTRY_MASKED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFF: Control = Control { enabled: false, masked: false };
    const ON: Control = Control { enabled: true, masked: false };
    const FUNCTION_MASKED: Control = Control { enabled: true, masked: true };

    fn table() -> Msix {
        let mut msix = Msix::new(3);
        for vector in 0..3 {
            let at = vector * 16;
            msix.write(at, &0x1_FEE0_0003_u64.to_le_bytes(), ON, &mut Vec::new());
            msix.write(at + 8, &[vector as u8, 0, 0, 0, 0xFE, 0xFF, 0xFF, 0xFF], ON, &mut Vec::new());
        }
        msix
    }

    fn pending(msix: &Msix) -> u8 {
        let mut data = [0xFF; 8];
        msix.read(PBA_OFFSET as usize, &mut data);
        data[0]
    }

    #[test]
    fn an_unmasked_vector_sends_its_message_once() {
        let (mut msix, mut out) = (table(), Vec::new());
        msix.fire(2, ON, &mut out);
        assert_eq!(out, [Msi { address: 0x1_FEE0_0000, data: 2 }]);
        msix.fire(3, ON, &mut out);
        msix.fire(1, OFF, &mut out);
        assert_eq!((out.len(), pending(&msix)), (1, 0));
    }

    #[test]
    fn a_masked_vector_is_pending_until_unmasked() {
        let (mut msix, mut out) = (table(), Vec::new());
        msix.write(16 + 12, &[1, 0, 0, 0], ON, &mut out);
        msix.fire(1, ON, &mut out);
        msix.fire(1, ON, &mut out);
        assert_eq!((out.len(), pending(&msix)), (0, 2));
        let shown = msix.summary(ON).messages;
        let expected = MessageSummary {
            message: Msi { address: 0x1_FEE0_0000, data: 1 },
            is_masked: true,
            is_pending: true,
        };
        assert_eq!((shown[1], shown[0].is_pending), (expected, false));
        msix.write(16 + 12, &[0, 0, 0, 0], ON, &mut out);
        assert_eq!((out.as_slice(), pending(&msix)), (&[Msi { address: 0x1_FEE0_0000, data: 1 }][..], 0));
    }

    #[test]
    fn the_function_mask_holds_back_all_vectors() {
        let (mut msix, mut out) = (table(), Vec::new());
        msix.fire(0, FUNCTION_MASKED, &mut out);
        msix.fire(2, FUNCTION_MASKED, &mut out);
        assert_eq!((out.len(), pending(&msix)), (0, 5));
        msix.control_changed(ON, &mut out);
        assert_eq!((out.iter().map(|m| m.data).collect::<Vec<_>>(), pending(&msix)), (vec![0, 2], 0));
    }

    #[test]
    fn disabling_withdraws_pending_requests() {
        let (mut msix, mut out) = (table(), Vec::new());
        msix.fire(0, FUNCTION_MASKED, &mut out);
        msix.control_changed(OFF, &mut out);
        msix.control_changed(ON, &mut out);
        assert_eq!((out.len(), pending(&msix)), (0, 0));
    }

    #[test]
    fn odd_accesses_change_nothing() {
        let mut msix = table();
        let before = msix.state();
        for (offset, length) in [(0, 1), (2, 4), (4, 8), (48, 4), (0xFFC, 8), (PBA_OFFSET as usize, 8)] {
            msix.write(offset, &vec![0xFF; length], ON, &mut Vec::new());
        }
        assert_eq!(msix.state(), before);
    }

    #[test]
    fn impossible_states_are_refused() {
        let mut msix = table();
        msix.fire(1, FUNCTION_MASKED, &mut Vec::new());
        let good = msix.state();
        assert_eq!(good.pending, 2);
        assert_eq!(msix.restored(&good).unwrap().state(), good);
        let short = MsixStateV1 { entries: vec![], ..good.clone() };
        let ghost = MsixStateV1 { pending: 8, ..good.clone() };
        let mut reserved = good;
        reserved.entries[0].control = 2;
        for bad in [short, ghost, reserved] {
            assert!(msix.restored(&bad).is_err(), "{bad:?}");
        }
    }
}

//! The small ports: system control (0x61, 0x92, keyboard reset, 0xCF9), POST code, debug console, debug exit
//! and pvpanic. Each port has a byte or two of state, so all share a file.
//!
//! Port 0x61 drives the gate of timer channel 2, which belongs to another chip: the wiring passes the level on. Not
//! modelled: the keyboard controller except for its reset pulse, the speaker, and NMI sources. The A20 bit is stored
//! and has no effect.

use serde::{Deserialize, Serialize};

/// A request from the guest to the machine's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Switch the machine off (ACPI S5).
    PowerOff,
    /// Reset the machine.
    Reset,
    /// The guest reports its own crash.
    Panicked(PanicKind),
    /// The guest asks to keep the recording of this run.
    KeepRecording,
    /// End the run with this exit code.
    DebugExit {
        /// The value written, shifted left by one, plus one.
        code: u32,
    },
}

/// Which debug ports the machine has. Kernel developers know these ports from QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DebugPorts {
    /// Whether port 0xE9 shows each written byte on the host.
    pub console: bool,
    /// The port that ends the run with exit code `(value << 1) | 1`, if any.
    pub exit: Option<u16>,
}

/// [`DebugPorts`] in a machine's description, version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebugPortsV1 {
    /// [`DebugPorts::console`].
    pub console: bool,
    /// [`DebugPorts::exit`].
    pub exit: Option<u16>,
}

impl From<DebugPortsV1> for DebugPorts {
    fn from(DebugPortsV1 { console, exit }: DebugPortsV1) -> DebugPorts {
        DebugPorts { console, exit }
    }
}

/// How the guest describes its crash (pvpanic).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PanicKind {
    /// The guest has panicked and stops.
    Panicked,
    /// The guest has panicked and continues in a crash kernel.
    CrashLoaded,
}

/// Features of pvpanic: panicked, crash loaded.
pub const PVPANIC_FEATURES: u8 = 0x03;
/// The bit of the pvpanic port that asks to keep the recording. QEMU's pvpanic device has no such event, and
/// the feature bits do not show this bit.
const PVPANIC_KEEP: u8 = 0x80;
/// The value that a read of the debug console gives. A guest recognises the console by this value.
pub const DEBUG_CONSOLE_PRESENT: u8 = 0xE9;

const PORT_B_WRITABLE: u8 = 0x0F;
const PORT_B_GATE2: u8 = 0x01;
const PORT_B_REFRESH: u8 = 0x10;
const PORT_B_OUTPUT2: u8 = 0x20;
/// Time between two changes of the memory refresh signal on port 0x61.
const REFRESH_HALF_PERIOD_NS: u64 = 15_085;

const PORT_92_RESET: u8 = 0x01;
const PORT_92_A20: u8 = 0x02;

/// Status of a keyboard controller after its self test, with no output and an empty input buffer. If a driver waits
/// until the input buffer is empty before it sends the reset command, the wait ends at once.
const KEYBOARD_STATUS: u8 = 0x04;

const RESET_CPU: u8 = 0x04;
const RESET_WRITABLE: u8 = 0x0E;

/// The saved state of [`MiscPorts`], version 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MiscPortsStateV1 {
    port_b: u8,
    port_92: u8,
    post_code: u8,
    reset_control: u8,
}

/// The registers of the small ports, and the requests and output that the owner has not taken yet.
#[derive(Clone, Debug)]
pub struct MiscPorts {
    s: MiscPortsStateV1,
    requests: Vec<Request>,
    debug_output: Vec<u8>,
}

impl Default for MiscPorts {
    fn default() -> MiscPorts {
        MiscPorts::new()
    }
}

impl MiscPorts {
    /// The ports after reset, A20 on.
    pub fn new() -> MiscPorts {
        MiscPorts::restore(&MiscPortsStateV1 {
            port_b: 0,
            port_92: PORT_92_A20,
            post_code: 0,
            reset_control: 0,
        })
    }

    /// Reads port 0x61; `output2` is the output of timer channel 2.
    pub fn read_port_b(&self, output2: bool, now_ns: u64) -> u8 {
        let refresh = !(now_ns / REFRESH_HALF_PERIOD_NS).is_multiple_of(2);
        self.s.port_b | if refresh { PORT_B_REFRESH } else { 0 } | if output2 { PORT_B_OUTPUT2 } else { 0 }
    }

    /// Writes port 0x61 and returns the level of timer channel 2's gate.
    pub fn write_port_b(&mut self, value: u8) -> bool {
        self.s.port_b = value & PORT_B_WRITABLE;
        value & PORT_B_GATE2 != 0
    }

    /// Reads port 0x92.
    pub fn read_port_92(&self) -> u8 {
        self.s.port_92
    }

    /// Writes port 0x92: a rising bit 0 resets the machine.
    pub fn write_port_92(&mut self, value: u8) {
        if value & !self.s.port_92 & PORT_92_RESET != 0 {
            self.requests.push(Request::Reset);
        }
        self.s.port_92 = value & (PORT_92_RESET | PORT_92_A20);
    }

    /// Reads the keyboard controller's status.
    pub fn read_keyboard_status(&self) -> u8 {
        KEYBOARD_STATUS
    }

    /// Writes a keyboard controller command. 0xF0 to 0xFF pulse the output lines whose bit is clear; line 0 is the
    /// reset line.
    pub fn write_keyboard_command(&mut self, value: u8) {
        if value & 0xF1 == 0xF0 {
            self.requests.push(Request::Reset);
        }
    }

    /// Reads the last POST code.
    pub fn read_post_code(&self) -> u8 {
        self.s.post_code
    }

    /// Writes a POST code.
    pub fn write_post_code(&mut self, value: u8) {
        self.s.post_code = value;
    }

    /// Reads the reset control register.
    pub fn read_reset_control(&self) -> u8 {
        self.s.reset_control
    }

    /// Writes the reset control register: a rising bit 2 resets the machine.
    pub fn write_reset_control(&mut self, value: u8) {
        if value & !self.s.reset_control & RESET_CPU != 0 {
            self.requests.push(Request::Reset);
        }
        self.s.reset_control = value & RESET_WRITABLE;
    }

    /// Writes a byte to the debug console.
    pub fn write_debug_console(&mut self, value: u8) {
        self.debug_output.push(value);
    }

    /// Writes the debug-exit port.
    pub fn write_debug_exit(&mut self, value: u32) {
        self.requests.push(Request::DebugExit { code: value << 1 | 1 });
    }

    /// Writes the pvpanic port. Each bit is one report or request.
    pub fn write_pvpanic(&mut self, value: u8) {
        let bits = [
            (PVPANIC_KEEP, Request::KeepRecording),
            (0x01, Request::Panicked(PanicKind::Panicked)),
            (0x02, Request::Panicked(PanicKind::CrashLoaded)),
        ];
        let asked = bits.into_iter().filter(|(bit, _)| value & bit != 0);
        self.requests.extend(asked.map(|(_, request)| request));
    }

    /// Adds a request from another chip.
    pub fn request(&mut self, request: Request) {
        self.requests.push(request);
    }

    /// Takes the requests since the last call, oldest first. Requests and output are not part of the state.
    pub fn take_requests(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.requests)
    }

    /// Whether a request waits to be taken.
    pub fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Takes the bytes written to the debug console since the last call.
    pub fn take_debug_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.debug_output)
    }

    /// The ports' state.
    pub fn save(&self) -> MiscPortsStateV1 {
        self.s.clone()
    }

    /// Builds the ports from a saved state. Every state is possible.
    pub fn restore(state: &MiscPortsStateV1) -> MiscPorts {
        MiscPorts { s: state.clone(), requests: Vec::new(), debug_output: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes values to a port one after the other, and counts the resets that they request.
    fn resets(write: fn(&mut MiscPorts, u8), values: &[u8]) -> usize {
        let mut ports = MiscPorts::new();
        values.iter().for_each(|&value| write(&mut ports, value));
        let requests = ports.take_requests();
        assert!(requests.iter().all(|&request| request == Request::Reset));
        requests.len()
    }

    #[test]
    fn resets_come_from_three_ports_and_only_on_the_right_values() {
        for (values, expected) in
            [(&[0x02, 0x06][..], 1), (&[0x06], 1), (&[0x0E, 0x0E], 1), (&[0x02, 0x0A], 0)]
        {
            assert_eq!(resets(MiscPorts::write_reset_control, values), expected, "CF9 {values:02x?}");
        }
        for (values, expected) in
            [(&[0x02][..], 0), (&[0x03], 1), (&[0x01, 0x01], 1), (&[0x01, 0x00, 0x01], 2)]
        {
            assert_eq!(resets(MiscPorts::write_port_92, values), expected, "92 {values:02x?}");
        }
        for (values, expected) in [(&[0xFE][..], 1), (&[0xFF], 0), (&[0xF0], 1), (&[0xAA, 0xD1, 0x20], 0)] {
            assert_eq!(resets(MiscPorts::write_keyboard_command, values), expected, "64 {values:02x?}");
        }
    }

    #[test]
    fn port_b_shows_the_refresh_toggle_and_channel_2() {
        let mut ports = MiscPorts::new();
        assert!(ports.write_port_b(0xF1));
        assert_eq!(ports.read_port_b(false, 0), 0x01);
        assert_eq!(ports.read_port_b(true, REFRESH_HALF_PERIOD_NS), 0x31);
        assert_eq!(ports.read_port_b(false, 2 * REFRESH_HALF_PERIOD_NS), 0x01);
        assert!(!ports.write_port_b(0x02));
    }

    #[test]
    fn pvpanic_and_debug_exit_become_requests_in_order() {
        let mut ports = MiscPorts::new();
        ports.write_pvpanic(0x7c);
        ports.write_pvpanic(0x80);
        ports.write_pvpanic(0x03);
        ports.write_debug_exit(0x10);
        ports.write_debug_exit(u32::MAX);
        let expected = [
            Request::KeepRecording,
            Request::Panicked(PanicKind::Panicked),
            Request::Panicked(PanicKind::CrashLoaded),
            Request::DebugExit { code: 0x21 },
            Request::DebugExit { code: u32::MAX },
        ];
        assert_eq!(ports.take_requests(), expected);
        assert!(!ports.has_requests());
    }
}

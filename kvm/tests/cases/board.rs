//! The machine around the CPU. The board answers every access with known values, logs all accesses, and
//! interrupts as a case demands.

use std::fmt;

use cpu::{Bus, BusSignals};

use crate::machine::{MMIO, MMIO_BYTES};

/// An OUT to this port requests an interrupt with the written vector. This OUT is not logged.
const INTERRUPT_PORT: u16 = 0xf0;
/// An OUT to this port requests an NMI. This OUT is not logged.
const NMI_PORT: u16 = 0xf1;
/// A read at or above this offset of the device's memory requests an interrupt.
const INTERRUPTING_READS: u64 = 0xf00;
const READ_VECTOR: u8 = 0x40;
/// The value of the first IN. Each further IN reads a value that is higher by one in each byte.
const FIRST_INPUT: u32 = 0x8877_6655;
const EACH_BYTE: u32 = 0x0101_0101;
/// The board's only model-specific register, the APIC base.
const APIC_BASE: u32 = 0x1b;
pub const APIC_BASE_VALUE: u64 = 0xfee0_0900;

/// An access by the CPU.
#[derive(Clone, PartialEq, Eq)]
pub enum Access {
    In { port: u16, size_bytes: u8 },
    Out { port: u16, size_bytes: u8, value: u32 },
    Read { gpa: u64, size_bytes: usize },
    Write { gpa: u64, bytes: Vec<u8> },
}

/// Formats the access as the table does.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Access::In { port, size_bytes } => write!(f, "in:{port:x}.{size_bytes}"),
            Access::Out { port, size_bytes, value } => write!(f, "out:{port:x}.{size_bytes}={value:x}"),
            Access::Read { gpa, size_bytes } => {
                write!(f, "read:mmio+{:x}.{size_bytes}", gpa.wrapping_sub(MMIO))
            }
            Access::Write { gpa, bytes } => {
                write!(f, "write:mmio+{:x}=", gpa.wrapping_sub(MMIO))?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

/// The board of a case: answers and logs accesses, and interrupts as the case demands.
pub struct TestBoard {
    pub accesses: Vec<Access>,
    pub interrupt: Option<u8>,
    pub nmi: bool,
    pub cr8: u64,
    /// The content of device memory for reads. Writes do not change this content.
    pub device: Vec<u8>,
    inputs: u32,
}

impl TestBoard {
    /// Initially each byte of device memory is the low byte of its address.
    pub fn new() -> TestBoard {
        let device = (0..MMIO_BYTES).map(|at| at as u8).collect();
        TestBoard { accesses: Vec::new(), interrupt: None, nmi: false, cr8: 0, device, inputs: 0 }
    }
}

impl Bus for TestBoard {
    fn port_read(&mut self, _: u64, port: u16, size_bytes: u8) -> u32 {
        self.accesses.push(Access::In { port, size_bytes });
        let value = FIRST_INPUT.wrapping_add(EACH_BYTE.wrapping_mul(self.inputs));
        self.inputs += 1;
        value
    }
    fn port_write(&mut self, _: u64, port: u16, size_bytes: u8, value: u32) {
        match port {
            INTERRUPT_PORT => self.interrupt = Some(value as u8),
            NMI_PORT => self.nmi = true,
            _ => self.accesses.push(Access::Out { port, size_bytes, value }),
        }
    }
    fn mmio_read(&mut self, _: u64, gpa: u64, data: &mut [u8]) {
        self.accesses.push(Access::Read { gpa, size_bytes: data.len() });
        let offset = gpa.wrapping_sub(MMIO);
        for (byte, at) in data.iter_mut().zip(offset as usize..) {
            *byte = self.device.get(at).copied().unwrap_or(0xff);
        }
        if (INTERRUPTING_READS..0x1000).contains(&offset) {
            self.interrupt = Some(READ_VECTOR);
        }
    }
    fn mmio_write(&mut self, _: u64, gpa: u64, data: &[u8]) {
        self.accesses.push(Access::Write { gpa, bytes: data.to_vec() });
    }
    fn signals(&mut self) -> BusSignals {
        BusSignals { interrupt: self.interrupt.is_some(), nmi: self.nmi, stop: false }
    }
    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        self.interrupt.take()
    }
    fn take_nmi(&mut self) -> bool {
        std::mem::take(&mut self.nmi)
    }
    fn read_msr(&mut self, _: u64, index: u32) -> Option<u64> {
        (index == APIC_BASE).then_some(APIC_BASE_VALUE)
    }
    fn write_msr(&mut self, _: u64, _: u32, _: u64) -> Option<()> {
        None
    }
    fn cr8(&mut self) -> u64 {
        self.cr8
    }
    fn set_cr8(&mut self, _: u64, value: u64) {
        self.cr8 = value;
    }
    fn tsc(&mut self, steps: u64) -> u64 {
        steps
    }
}

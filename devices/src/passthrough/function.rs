//! A PCI function of the host. The function's configuration space and interrupts are a model; everything
//! behind its BARs is the real device.
//!
//! The header is emulated and has the real function's identity. The guest moves BARs only in the model. Of the
//! capabilities the guest sees MSI and MSI-X, both emulated, if the real function has them. All other registers
//! after the header are the real function's, because a driver may use them without a capability. Memory BARs are 32
//! bits wide in the model, whatever their real width. There is no expansion ROM, and no extended configuration
//! space.
//!
//! The interrupt line stays raised until the guest next touches one of the function's BARs, as an interrupt handler
//! does. The host then unmasks the real line, which interrupts again if the device still raises it.

use serde::{Deserialize, Serialize};

use super::ask::{AskV1, InterruptModeV1, RegionV1};
use super::written::{WrittenV1, number};
use crate::pci::config::{ConfigSpace, Identity};
use crate::pci::error::StateError;
use crate::pci::msix::{Control, MAX_VECTORS, Msi, Msix};
use crate::pci::{FunctionSummary, MessageSummary, MessagesSummary};
use crate::virtio::state::{DeviceStateV1, QueueStateV1, TransportStateV1, VirtioFunctionStateV1};

const CAP_MSI: u8 = 0x05;
const CAP_MSIX: u8 = 0x11;
const COMMAND: usize = 0x04;
/// Bits of the command register that are also written to the real function: I/O, memory, bus master.
const COMMAND_FOLLOWED: u16 = 0b111;
const HEADER_BYTES: usize = 0x40;
const MSI_BYTES: usize = 14;
const MSIX_BYTES: usize = 12;
const MSI_ENABLE: u16 = 1;
/// Message control bit: the address has 64 bits.
const MSI_64: u16 = 1 << 7;
/// Largest memory BAR: a quarter of the window.
const MAX_BAR_BYTES: u32 = 0x1000_0000;
const MAX_PORTS: u32 = 256;

/// A base address register of the real function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BarDescriptionV1 {
    /// The BAR's number.
    pub index: u8,
    /// The BAR's size, a power of two.
    pub size_bytes: u32,
    /// Whether the BAR is an I/O port BAR.
    pub is_ports: bool,
}

/// Where the real function has its MSI-X structures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MsixDescriptionV1 {
    /// Offset of the MSI-X capability in configuration space.
    pub capability: u8,
    /// Number of messages, at most 64: a function that has more is shown with 64.
    pub vectors: u16,
    /// The BAR with the table, and the table's offset.
    pub table: (u8, u32),
    /// The BAR with the pending bits, and their offset.
    pub pending: (u8, u32),
}

/// A machine's description of a PCI function of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciDescriptionV1 {
    /// Vendor.
    pub vendor: u16,
    /// Device.
    pub device: u16,
    /// Revision.
    pub revision: u8,
    /// Class, subclass and programming interface.
    pub class: u32,
    /// Subsystem's vendor.
    pub subsystem_vendor: u16,
    /// Subsystem.
    pub subsystem: u16,
    /// The function's BARs.
    pub bars: Vec<BarDescriptionV1>,
    /// Whether the function has an interrupt line.
    pub has_line: bool,
    /// Offset of the function's MSI capability.
    pub msi: Option<u8>,
    /// The function's MSI-X structures.
    pub msix: Option<MsixDescriptionV1>,
}

impl PciDescriptionV1 {
    /// Checks that a function with this description can exist. Descriptions may come from untrusted files.
    pub fn validate(&self) -> Result<(), String> {
        let mut seen = [false; 6];
        for bar in &self.bars {
            let most = if bar.is_ports { MAX_PORTS } else { MAX_BAR_BYTES };
            let least = if bar.is_ports { 4 } else { 16 };
            let known = seen.get_mut(usize::from(bar.index)).ok_or("a BAR with a number above 5")?;
            if std::mem::replace(known, true) {
                return Err(format!("BAR {} twice", bar.index));
            }
            if !bar.size_bytes.is_power_of_two() || !(least..=most).contains(&bar.size_bytes) {
                return Err(format!(
                    "BAR {} of {:#x} bytes; the most is {most:#x}",
                    bar.index, bar.size_bytes
                ));
            }
        }
        let capability = |at: u8, bytes: usize| {
            let at = usize::from(at);
            at >= HEADER_BYTES && at.is_multiple_of(4) && at + bytes <= 256
        };
        let (msi, msix) = (self.msi, self.msix.as_ref());
        let misplaced = msi.is_some_and(|at| !capability(at, MSI_BYTES))
            || msix.is_some_and(|msix| !capability(msix.capability, MSIX_BYTES));
        let overlap = msi.zip(msix).is_some_and(|(msi, msix)| {
            let (msi, msix) = (usize::from(msi), usize::from(msix.capability));
            msi < msix + MSIX_BYTES && msix < msi + MSI_BYTES
        });
        if misplaced || overlap {
            return Err("an interrupt capability where none can be".to_string());
        }
        let Some(msix) = msix else { return Ok(()) };
        let vectors = usize::from(msix.vectors);
        let fits = |(index, offset): (u8, u32), bytes: u32| {
            let mut bars = self.bars.iter().filter(|bar| bar.index == index && !bar.is_ports);
            bars.any(|bar| {
                offset.is_multiple_of(8) && offset.checked_add(bytes).is_some_and(|end| end <= bar.size_bytes)
            })
        };
        if !(1..=MAX_VECTORS).contains(&vectors)
            || !fits(msix.table, 16 * vectors as u32)
            || !fits(msix.pending, 8)
        {
            return Err("an MSI-X table that lies in none of its BARs".to_string());
        }
        Ok(())
    }
}

/// The target of an access to a function's memory or ports.
enum Hit {
    Outside(AskV1),
    MsixTable(usize),
    MsixPending(usize),
}

/// A passed-through PCI function: its emulated configuration space and interrupts.
pub(crate) struct PassedFunction {
    device: u8,
    config: ConfigSpace,
    bars: Vec<BarDescriptionV1>,
    msi_at: Option<usize>,
    msix_description: Option<MsixDescriptionV1>,
    msix: Option<Msix>,
    has_line: bool,
    line: bool,
    written: WrittenV1,
}

/// Checked contents for [`PassedFunction::install`].
pub(crate) struct PassedParts {
    config: ConfigSpace,
    msix: Option<Msix>,
    line: bool,
    written: WrittenV1,
}

impl PassedFunction {
    /// Makes the function as firmware leaves it. The function's BARs go to `memory` and `ports`; `line` is
    /// its interrupt.
    pub fn new(
        device: u8,
        description: &PciDescriptionV1,
        memory: &mut u32,
        ports: &mut u32,
        line: u8,
    ) -> PassedFunction {
        let mut config = ConfigSpace::new(&Identity {
            vendor: description.vendor,
            device: description.device,
            revision: description.revision,
            class: description.class,
            subsystem_vendor: description.subsystem_vendor,
            subsystem: description.subsystem,
        });
        // Large BARs go first, so that alignment leaves no gaps.
        let mut bars = description.bars.clone();
        bars.sort_by_key(|bar| std::cmp::Reverse(bar.size_bytes));
        for bar in &bars {
            let next = if bar.is_ports { &mut *ports } else { &mut *memory };
            let base = next.next_multiple_of(bar.size_bytes);
            *next = base + bar.size_bytes;
            if bar.is_ports {
                config.add_port_bar(bar.index.into(), bar.size_bytes, base);
            } else {
                config.add_memory_bar(bar.index.into(), bar.size_bytes, base);
            }
        }
        if description.has_line {
            config.add_interrupt_pin(line);
        }
        let msi_at = description.msi.map(|at| {
            let writable = [
                &MSI_ENABLE.to_le_bytes()[..],
                &[0xFC, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF],
            ]
            .concat();
            let mut body = MSI_64.to_le_bytes().to_vec();
            body.resize(MSI_BYTES - 2, 0);
            config.add_capability_at(at.into(), CAP_MSI, &body, &writable)
        });
        if let Some(msix) = &description.msix {
            let mut body = (msix.vectors - 1).to_le_bytes().to_vec();
            body.extend((msix.table.1 | u32::from(msix.table.0)).to_le_bytes());
            body.extend((msix.pending.1 | u32::from(msix.pending.0)).to_le_bytes());
            config.add_capability_at(
                msix.capability.into(),
                CAP_MSIX,
                &body,
                &Control::WRITABLE.to_le_bytes(),
            );
        }
        PassedFunction {
            device,
            config,
            bars,
            msi_at,
            msix: description.msix.as_ref().map(|msix| Msix::new(msix.vectors.into())),
            msix_description: description.msix.clone(),
            has_line: description.has_line,
            line: false,
            written: WrittenV1::default(),
        }
    }

    /// The question for a read of configuration space, if only the real function knows the answer.
    pub fn config_ask(&self, register: usize, size: usize) -> Option<AskV1> {
        let emulated = register < HEADER_BYTES || self.capability_at(register, size);
        let (offset, size_bytes) = (register as u32, size as u8);
        (!emulated).then_some(AskV1::Read {
            device: self.device,
            region: RegionV1::Config,
            offset,
            size_bytes,
        })
    }

    fn capability_at(&self, register: usize, size: usize) -> bool {
        let msix = self.msix_description.as_ref().map(|msix| (usize::from(msix.capability), MSIX_BYTES));
        let mut capabilities = self.msi_at.map(|at| (at, MSI_BYTES)).into_iter().chain(msix);
        capabilities.any(|(at, bytes)| {
            register < at.next_multiple_of(4) + bytes.next_multiple_of(4) && register + size > at
        })
    }

    /// Reads emulated configuration space for the guest.
    pub fn config_read(&self, register: usize, data: &mut [u8]) {
        self.config.read(register, data, self.line && self.mode() == InterruptModeV1::Line);
    }

    /// Writes configuration space for the guest. The range lies inside configuration space.
    pub fn config_write(&mut self, register: usize, data: &[u8], out: &mut Vec<Msi>, told: &mut Vec<AskV1>) {
        if self.config_ask(register, data.len()).is_some() {
            return self.tell(RegionV1::Config, register as u32, data, told);
        }
        let before = (self.mode(), self.config.u16_at(COMMAND) & COMMAND_FOLLOWED);
        self.config.write(register, data);
        let command = self.config.u16_at(COMMAND) & COMMAND_FOLLOWED;
        if command != before.1 {
            self.tell(RegionV1::Config, COMMAND as u32, &command.to_le_bytes(), told);
        }
        let mode = self.mode();
        if mode != before.0 {
            self.line = false;
            told.push(AskV1::Interrupts { device: self.device, mode });
        }
        let control = self.msix_control();
        if let (Some(msix), Some(control)) = (&mut self.msix, control) {
            msix.control_changed(control, out);
        }
    }

    /// The question for a read of memory or of a port. Returns `None` if the function does not own the address, or if
    /// the model knows the answer.
    pub fn read_ask(&self, is_ports: bool, address: u64, size: usize) -> Option<AskV1> {
        match self.decode(is_ports, address, size)? {
            Hit::Outside(ask) => Some(ask),
            Hit::MsixTable(_) | Hit::MsixPending(_) => None,
        }
    }

    /// Reads emulated memory for the guest. Returns false if the model does not know the answer.
    pub fn mmio_read(&self, gpa: u64, data: &mut [u8]) -> bool {
        let Some(msix) = &self.msix else { return false };
        match self.decode(false, gpa, data.len()) {
            Some(Hit::MsixTable(offset)) => msix.read_table(offset, data),
            Some(Hit::MsixPending(offset)) => msix.read_pending(offset, data),
            _ => return false,
        }
        true
    }

    /// Writes memory or a port for the guest. Returns false if the address is in none of the function's BARs.
    pub fn write(
        &mut self,
        is_ports: bool,
        address: u64,
        data: &[u8],
        out: &mut Vec<Msi>,
        told: &mut Vec<AskV1>,
    ) -> bool {
        match self.decode(is_ports, address, data.len()) {
            Some(Hit::Outside(AskV1::Read { region, offset, .. })) => {
                self.tell(region, offset, data, told);
                self.line = false;
            }
            Some(Hit::MsixTable(offset)) => {
                let control = self.msix_control();
                if let (Some(msix), Some(control)) = (&mut self.msix, control) {
                    msix.write(offset, data, control, out);
                }
            }
            Some(_) => {}
            None => return false,
        }
        true
    }

    /// Must be called after the guest has read from the real device. A read of a BAR lowers the interrupt line.
    pub fn was_read(&mut self, region: RegionV1) {
        if matches!(region, RegionV1::Bar(_)) {
            self.line = false;
        }
    }

    /// Passes an interrupt of the real function on to the guest.
    pub fn interrupt(&mut self, vector: u16, out: &mut Vec<Msi>) {
        match self.mode() {
            InterruptModeV1::Off => {}
            InterruptModeV1::Line => self.line = true,
            InterruptModeV1::Msi => {
                let Some(at) = self.msi_at.filter(|_| self.config.bus_master()) else { return };
                out.push(self.msi_message(at));
            }
            InterruptModeV1::Msix(_) => {
                let control = self.msix_control();
                if let (Some(msix), Some(control)) = (&mut self.msix, control) {
                    msix.fire(vector, control, out);
                }
            }
        }
    }

    /// Level of the INTx line.
    pub fn irq_level(&self) -> bool {
        self.line && self.mode() == InterruptModeV1::Line
    }

    /// The message of the MSI capability at `at`.
    fn msi_message(&self, at: usize) -> Msi {
        let address = u64::from(self.config.u32_at(at + 8)) << 32 | u64::from(self.config.u32_at(at + 4));
        Msi { address, data: self.config.u16_at(at + 12).into() }
    }

    /// The function's state, decoded.
    pub fn summary(&self, slot: usize) -> FunctionSummary {
        let msi = self.msi_at.map(|at| MessagesSummary {
            is_enabled: self.mode() == InterruptModeV1::Msi,
            is_masked: !self.config.bus_master(),
            messages: vec![MessageSummary {
                message: self.msi_message(at),
                is_masked: false,
                is_pending: false,
            }],
        });
        FunctionSummary {
            is_line_up: self.irq_level(),
            msi,
            msix: self.msix.as_ref().zip(self.msix_control()).map(|(msix, control)| msix.summary(control)),
            ..self.config.summary(slot)
        }
    }

    /// The saved state.
    pub fn state(&self) -> VirtioFunctionStateV1 {
        let msix = self.msix.as_ref().map_or_else(no_msix, Msix::state);
        let device = DeviceStateV1::PassedFunction { line: self.line, written: self.written };
        VirtioFunctionStateV1 { config: self.config.bytes(), msix, ..bare_state(device) }
    }

    /// Checks a saved state without changing anything.
    pub fn check(&self, state: &VirtioFunctionStateV1) -> Result<PassedParts, StateError> {
        let DeviceStateV1::PassedFunction { line, written } = state.device else {
            return Err(StateError::new("it is not of a passed-through PCI function"));
        };
        check_bare(state)?;
        let config = self.config.restored(&state.config)?;
        let msix = match &self.msix {
            Some(msix) => Some(msix.restored(&state.msix)?),
            None if state.msix != no_msix() => return Err(StateError::new("the function has no MSI-X")),
            None => None,
        };
        Ok(PassedParts { config, msix, line, written })
    }

    /// Installs the contents that [`PassedFunction::check`] accepted.
    pub fn install(&mut self, parts: PassedParts) {
        let PassedParts { config, msix, line, written } = parts;
        (self.config, self.msix, self.line, self.written) = (config, msix, line, written);
    }

    fn tell(&mut self, region: RegionV1, offset: u32, data: &[u8], told: &mut Vec<AskV1>) {
        let (device, size_bytes, value) = (self.device, data.len() as u8, number(data));
        let ask = AskV1::Write { device, region, offset, size_bytes, value };
        self.written.note(&ask);
        told.push(ask);
    }

    fn decode(&self, is_ports: bool, address: u64, size: usize) -> Option<Hit> {
        let decodes = if is_ports { self.config.ports_enabled() } else { self.config.memory_enabled() };
        if !decodes {
            return None;
        }
        let (bar, offset) = self.bars.iter().filter(|bar| bar.is_ports == is_ports).find_map(|bar| {
            let offset = address.checked_sub(self.config.any_bar_base(bar.index.into()))?;
            let end = offset.checked_add(size as u64)?;
            (end <= u64::from(bar.size_bytes)).then_some((bar.index, offset as u32))
        })?;
        if let Some(msix) = &self.msix_description {
            let within = |(index, start): (u8, u32), bytes: u32| {
                let at = offset.checked_sub(start)?;
                (bar == index && at < bytes).then_some(at as usize)
            };
            if let Some(at) = within(msix.table, 16 * u32::from(msix.vectors)) {
                return Some(Hit::MsixTable(at));
            }
            if let Some(at) = within(msix.pending, 8) {
                return Some(Hit::MsixPending(at));
            }
        }
        let (device, region, size_bytes) = (self.device, RegionV1::Bar(bar), size as u8);
        Some(Hit::Outside(AskV1::Read { device, region, offset, size_bytes }))
    }

    fn msix_control(&self) -> Option<Control> {
        let msix = self.msix_description.as_ref()?;
        let control = self.config.u16_at(usize::from(msix.capability) + 2);
        Some(Control::new(control, self.config.bus_master()))
    }

    fn mode(&self) -> InterruptModeV1 {
        let msi = self.msi_at.is_some_and(|at| self.config.u16_at(at + 2) & MSI_ENABLE != 0);
        match &self.msix_description {
            Some(msix) if self.msix_control().is_some_and(Control::enabled) => {
                InterruptModeV1::Msix(msix.vectors)
            }
            _ if msi => InterruptModeV1::Msi,
            _ if self.has_line && !self.config.intx_disabled() => InterruptModeV1::Line,
            _ => InterruptModeV1::Off,
        }
    }
}

fn no_msix() -> crate::pci::MsixStateV1 {
    crate::pci::MsixStateV1 { entries: Vec::new(), pending: 0 }
}

/// The state of a bus device that has no virtio transport and no queues.
pub(crate) fn bare_state(device: DeviceStateV1) -> VirtioFunctionStateV1 {
    let (config, queues) = (Vec::new(), Vec::<QueueStateV1>::new());
    VirtioFunctionStateV1 { config, msix: no_msix(), transport: TransportStateV1::default(), queues, device }
}

/// Checks that a state has no virtio transport and no queues. Configuration and messages are allowed.
pub(crate) fn check_bare(state: &VirtioFunctionStateV1) -> Result<(), StateError> {
    if state.transport == TransportStateV1::default() && state.queues.is_empty() {
        return Ok(());
    }
    Err(StateError::new("it has a virtio transport"))
}

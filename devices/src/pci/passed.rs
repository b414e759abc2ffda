//! The passed-through devices of a bus ([`crate::passthrough`]).

use super::error::StateError;
use super::msix::Msi;
use super::summary::FunctionSummary;
use crate::passthrough::function::{PassedFunction, PassedParts, bare_state, check_bare};
use crate::passthrough::ports::PassedPorts;
use crate::passthrough::translation::Translation;
use crate::passthrough::{AskV1, DeviceInputV1, PciDescriptionV1, WrittenV1};
use crate::virtio::state::{DeviceStateV1, VirtioFunctionStateV1};

/// The first address for BARs of passed-through functions. Lower addresses are for the BARs of the other functions
/// on the bus.
const FIRST_MEMORY: u32 = 0xC100_0000;
const FIRST_PORT: u32 = 0xC000;

/// A passed-through device. The index in `PassedThrough::devices` is the device's number.
enum Passed {
    Function { slot: usize, function: Box<PassedFunction> },
    Ports(PassedPorts),
}

/// The passed-through devices of a bus, the IOMMU, and the collected writes of the guest.
#[derive(Default)]
pub(super) struct PassedThrough {
    devices: Vec<Passed>,
    /// The IOMMU; `None` if no PCI function is passed through.
    translation: Option<Translation>,
    told: Vec<AskV1>,
    memory_taken: u32,
    ports_taken: u32,
}

/// Checked contents for [`PassedThrough::install`].
pub(super) struct Parts {
    devices: Vec<DeviceParts>,
    translation: Option<Translation>,
}

enum DeviceParts {
    Function(Box<PassedParts>),
    Ports { line: Option<bool>, written: WrittenV1 },
}

impl PassedThrough {
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    pub fn function_count(&self) -> usize {
        self.functions().count()
    }

    pub fn add_function(&mut self, slot: usize, description: &PciDescriptionV1, line: u8) {
        self.translation.get_or_insert_default();
        let mut memory = FIRST_MEMORY + self.memory_taken;
        let mut ports = FIRST_PORT + self.ports_taken;
        let device = self.devices.len() as u8;
        let function = PassedFunction::new(device, description, &mut memory, &mut ports, line);
        (self.memory_taken, self.ports_taken) = (memory - FIRST_MEMORY, ports - FIRST_PORT);
        self.devices.push(Passed::Function { slot, function: Box::new(function) });
    }

    pub fn add_ports(&mut self, first: u16, last: u16, irq: Option<u8>) {
        self.devices.push(Passed::Ports(PassedPorts::new(self.devices.len() as u8, first, last, irq)));
    }

    fn functions(&self) -> impl Iterator<Item = (usize, &PassedFunction)> {
        self.devices.iter().filter_map(|device| match device {
            Passed::Function { slot, function } => Some((*slot, &**function)),
            Passed::Ports(_) => None,
        })
    }

    pub fn function_in(&self, slot: usize) -> Option<&PassedFunction> {
        self.functions().find_map(|(this, function)| (this == slot).then_some(function))
    }

    pub fn config_write(&mut self, slot: usize, register: usize, data: &[u8], out: &mut Vec<Msi>) {
        for device in &mut self.devices {
            if let Passed::Function { slot: this, function } = device
                && *this == slot
            {
                function.config_write(register, data, out, &mut self.told);
            }
        }
    }

    pub fn has_translation_at(&self, gpa: u64, size: usize) -> bool {
        self.translation.is_some() && Translation::has(gpa, size)
    }

    pub fn translation_read(&self, gpa: u64, data: &mut [u8]) -> bool {
        self.translation.as_ref().is_some_and(|translation| translation.read(gpa, data))
    }

    pub fn translation_write(&mut self, gpa: u64, data: &[u8]) -> bool {
        self.translation.as_mut().is_some_and(|translation| translation.write(gpa, data, &mut self.told))
    }

    pub fn mmio_read(&self, gpa: u64, data: &mut [u8]) -> bool {
        self.functions().any(|(_, function)| function.mmio_read(gpa, data))
    }

    pub fn mmio_read_ask(&self, gpa: u64, size: usize) -> Option<AskV1> {
        self.functions().find_map(|(_, function)| function.read_ask(false, gpa, size))
    }

    pub fn port_read_ask(&self, port: u16, size: u8) -> Option<AskV1> {
        self.devices.iter().find_map(|device| match device {
            Passed::Function { function, .. } => function.read_ask(true, port.into(), size.into()),
            Passed::Ports(ports) => ports.read(port, size),
        })
    }

    pub fn write(&mut self, is_ports: bool, address: u64, data: &[u8], out: &mut Vec<Msi>) -> bool {
        let told = &mut self.told;
        self.devices.iter_mut().any(|device| match device {
            Passed::Function { function, .. } => function.write(is_ports, address, data, out, told),
            Passed::Ports(_) => false,
        })
    }

    pub fn port_write(&mut self, port: u16, data: &[u8], out: &mut Vec<Msi>) -> bool {
        let told = &mut self.told;
        let is_range = self.devices.iter_mut().any(|device| match device {
            Passed::Ports(ports) => ports.write(port, data, told),
            Passed::Function { .. } => false,
        });
        is_range || self.write(true, port.into(), data, out)
    }

    pub fn take_told(&mut self) -> Vec<AskV1> {
        std::mem::take(&mut self.told)
    }

    pub fn take_input(&mut self, input: &DeviceInputV1, out: &mut Vec<Msi>) {
        for interrupt in &input.interrupts {
            match self.devices.get_mut(usize::from(interrupt.device)) {
                Some(Passed::Function { function, .. }) => function.interrupt(interrupt.vector, out),
                Some(Passed::Ports(ports)) => ports.interrupt(),
                None => {}
            }
        }
        if let (Some(AskV1::Read { device, region, .. }), Some(_)) = (input.asked, input.value) {
            match self.devices.get_mut(usize::from(device)) {
                Some(Passed::Function { function, .. }) => function.was_read(region),
                Some(Passed::Ports(ports)) => ports.was_touched(),
                None => {}
            }
        }
    }

    pub fn irq_levels(&self) -> u32 {
        self.functions()
            .fold(0, |levels, (slot, function)| levels | u32::from(function.irq_level()) << (slot % 4))
    }

    pub fn isa_levels(&self) -> u32 {
        self.devices.iter().fold(0, |levels, device| match device {
            Passed::Function { .. } => levels,
            Passed::Ports(ports) => levels | ports.isa_levels(),
        })
    }

    pub fn summaries(&self) -> impl Iterator<Item = FunctionSummary> {
        self.functions().map(|(slot, function)| function.summary(slot))
    }

    pub fn states(&self) -> impl Iterator<Item = VirtioFunctionStateV1> {
        let devices = self.devices.iter().map(|device| match device {
            Passed::Function { function, .. } => function.state(),
            Passed::Ports(ports) => bare_state(ports_state(ports.line(), ports.written)),
        });
        let translation = self.translation.as_ref();
        devices
            .chain(translation.map(|translation| bare_state(DeviceStateV1::Translation(translation.state()))))
    }

    pub fn state_count(&self) -> usize {
        self.devices.len() + usize::from(self.translation.is_some())
    }

    /// Checks saved states without changing anything. There must be [`Self::state_count`] states.
    pub fn check(&self, states: &[VirtioFunctionStateV1]) -> Result<Parts, StateError> {
        let devices = self.devices.iter().zip(states).map(|(device, state)| match (device, &state.device) {
            (Passed::Function { function, .. }, _) => {
                function.check(state).map(|parts| DeviceParts::Function(Box::new(parts)))
            }
            (Passed::Ports(ports), _) => check_ports(ports, state),
        });
        let devices = devices.collect::<Result<_, _>>()?;
        let translation = match (&self.translation, states.last()) {
            (Some(translation), Some(state)) => {
                check_bare(state)?;
                let DeviceStateV1::Translation(registers) = &state.device else {
                    return Err(StateError::new("the IOMMU's registers are missing"));
                };
                if state != &bare_state(state.device.clone()) {
                    return Err(StateError::new("the IOMMU is no PCI function"));
                }
                Some(translation.restored(registers)?)
            }
            _ => None,
        };
        Ok(Parts { devices, translation })
    }

    /// Installs the contents that [`PassedThrough::check`] accepted.
    pub fn install(&mut self, parts: Parts) {
        for (device, parts) in self.devices.iter_mut().zip(parts.devices) {
            match (device, parts) {
                (Passed::Function { function, .. }, DeviceParts::Function(parts)) => function.install(*parts),
                (Passed::Ports(ports), DeviceParts::Ports { line, written }) => {
                    ports.set_line(line);
                    ports.written = written;
                }
                _ => unreachable!("each part was checked against its device"),
            }
        }
        self.translation = parts.translation;
        self.told.clear();
    }
}

fn ports_state(line: Option<bool>, written: WrittenV1) -> DeviceStateV1 {
    match line {
        None => DeviceStateV1::PassedPorts { written },
        Some(line) => DeviceStateV1::PassedPortsWithLine { line, written },
    }
}

fn check_ports(ports: &PassedPorts, state: &VirtioFunctionStateV1) -> Result<DeviceParts, StateError> {
    let (line, written) = match state.device {
        DeviceStateV1::PassedPorts { written } => (None, written),
        DeviceStateV1::PassedPortsWithLine { line, written } => (Some(line), written),
        _ => return Err(StateError::new("it is not of passed-through ports")),
    };
    if line.is_some() != ports.line().is_some() || state != &bare_state(state.device.clone()) {
        return Err(StateError::new("it is of other passed-through ports"));
    }
    Ok(DeviceParts::Ports { line, written })
}

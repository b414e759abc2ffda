//! Passed-through devices of the host: PCI functions by VFIO, and I/O ports.
//!
//! A function does not see the guest's RAM. The function sees a shadow of the pages that the guest's IOMMU tables show
//! to it ([`tables`]). [`dma`] copies between RAM and shadow. The guest's data goes to the shadow before a register
//! write of the guest reaches the function. The function's data goes to the guest as events. See
//! `vmm/host/PASSTHROUGH.md`.

mod describe;
mod dma;
mod function;
mod order;
mod ports;
mod serial;
mod tables;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use devices::passthrough::{AskV1, DeviceInputV1, DmaV1, InterruptV1, RegionV1};
use guest_ram::RamView;

use crate::outside::Devices;
use crate::passthrough::function::LiveFunction;
use crate::passthrough::ports::LivePorts;
use machine::config::PassedDevice;
use machine::error::Error;
pub use ports::ALLOWED_PORTS;

/// The largest number of bytes written to memory in one event. There is a limit because a record of the log has at most
/// 1 MiB.
const MOST_BYTES: usize = 256 << 10;
/// Intervals while the guest is busy. `LOOK` is the time between two checks for interrupts. The next constant is the
/// time between two comparisons of memory.
const LOOK: Duration = Duration::from_micros(20);
const SCAN: Duration = Duration::from_micros(500);

/// A device to pass through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PassedOptions {
    /// The PCI function at this address.
    Function {
        /// The address, like 0000:00:1d.0.
        address: String,
    },
    /// A range of I/O ports.
    Ports {
        /// The first port.
        first: u16,
        /// The last port.
        last: u16,
        /// The device's ISA interrupt in the guest, if any.
        irq: Option<u8>,
    },
}

/// Opened devices, for one machine.
pub struct OpenedDevices(Vec<Opened>);

enum Opened {
    Function(vfio::Function),
    Ports(LivePorts),
}

impl OpenedDevices {
    /// Opens all devices, and describes them for a machine.
    pub fn open(wanted: &[PassedOptions]) -> Result<(OpenedDevices, Vec<PassedDevice>), Error> {
        let (mut opened, mut described) = (Vec::new(), Vec::new());
        for passed in wanted {
            match passed {
                PassedOptions::Function { address } => {
                    let function = vfio::Function::open(address)
                        .map_err(|error| Error::Unsupported(error.to_string()))?;
                    let description = describe::describe(&function)?;
                    described.push(PassedDevice::Function { address: address.clone(), description });
                    opened.push(Opened::Function(function));
                }
                &PassedOptions::Ports { first, last, irq } => {
                    opened.push(Opened::Ports(LivePorts::open(first, last, irq)?));
                    described.push(PassedDevice::Ports { first, last, irq });
                }
            }
        }
        Ok((OpenedDevices(opened), described))
    }

    /// Whether there are no devices.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

enum Device {
    Function(Box<LiveFunction>),
    Ports(LivePorts),
}

/// The devices of a running guest. See the module documentation.
pub(super) struct LiveDevices {
    devices: Vec<Device>,
    ram: RamView,
    /// Parts of an answer, or of other input, that the machine has not received yet.
    waiting: VecDeque<DeviceInputV1>,
    looked: Instant,
    scanned: Instant,
}

impl LiveDevices {
    /// Makes live devices from opened devices. `slots` are the slots of the functions.
    pub fn new(opened: OpenedDevices, slots: &[u8], ram: RamView) -> Result<LiveDevices, Error> {
        let mut slots = slots.iter();
        let devices = opened.0.into_iter().map(|opened| {
            Ok(match opened {
                Opened::Ports(ports) => Device::Ports(ports),
                Opened::Function(function) => {
                    let slot = *slots.next().expect("each function has a slot");
                    Device::Function(Box::new(LiveFunction::new(function, slot, ram.size_bytes())?))
                }
            })
        });
        let now = Instant::now();
        let devices = devices.collect::<Result<_, Error>>()?;
        Ok(LiveDevices { devices, ram, waiting: VecDeque::new(), looked: now, scanned: now })
    }

    fn functions(&self) -> impl Iterator<Item = &LiveFunction> {
        self.devices.iter().filter_map(|device| match device {
            Device::Function(function) => Some(&**function),
            Device::Ports(_) => None,
        })
    }

    fn functions_mut(&mut self) -> impl Iterator<Item = (u8, &mut LiveFunction)> {
        (0..).zip(&mut self.devices).filter_map(|(number, device)| match device {
            Device::Function(function) => Some((number, &mut **function)),
            Device::Ports(_) => None,
        })
    }

    fn port_interrupts(&mut self) -> Vec<InterruptV1> {
        let interrupts = (0..).zip(&mut self.devices).filter_map(|(device, passed)| match passed {
            Device::Ports(ports) => ports.take_interrupt().then_some(InterruptV1 { device, vector: 0 }),
            Device::Function(_) => None,
        });
        interrupts.collect()
    }
}

impl Devices for LiveDevices {
    fn wakes(&self) -> Vec<BorrowedFd<'_>> {
        self.functions().filter_map(LiveFunction::wakes).collect()
    }

    fn are_watched(&self) -> bool {
        self.devices.iter().any(|device| matches!(device, Device::Ports(ports) if ports.is_watched()))
    }

    fn look(&mut self) -> bool {
        let interrupts = self.port_interrupts();
        let any = !interrupts.is_empty();
        if any {
            self.waiting.push_back(DeviceInputV1 { interrupts, ..DeviceInputV1::default() });
        }
        any
    }

    fn before_idle(&mut self) {
        let ram = self.ram.clone();
        self.functions_mut().for_each(|(_, function)| function.show_written(&ram));
        let long_ago = Instant::now().checked_sub(SCAN);
        (self.looked, self.scanned) = (long_ago.unwrap_or(self.looked), long_ago.unwrap_or(self.scanned));
    }

    fn receive(&mut self) -> Option<DeviceInputV1> {
        if let Some(waiting) = self.waiting.pop_front() {
            return Some(waiting);
        }
        let now = Instant::now();
        if now - self.looked < LOOK {
            return None;
        }
        self.looked = now;
        let mut interrupts = self.port_interrupts();
        for (device, function) in self.functions_mut() {
            let vectors = function.take_interrupts().into_iter();
            interrupts.extend(vectors.map(|vector| InterruptV1 { device, vector }));
        }
        if interrupts.is_empty() && now - self.scanned < SCAN {
            return None;
        }
        self.scanned = now;
        let ram = self.ram.clone();
        // Memory is compared after the interrupts are read, so the comparison finds all writes before the interrupts.
        let dma: Vec<DmaV1> =
            self.functions_mut().flat_map(|(_, function)| function.take_written(&ram)).collect();
        if dma.is_empty() && interrupts.is_empty() {
            self.functions_mut().for_each(|(_, function)| function.show_written(&ram));
            return None;
        }
        self.waiting.extend(in_pieces(DeviceInputV1 { dma, interrupts, ..DeviceInputV1::default() }));
        self.waiting.pop_front()
    }

    fn ask(&mut self, ask: &AskV1) -> DeviceInputV1 {
        if self.waiting.front().is_some_and(|input| input.asked == Some(*ask)) {
            return self.waiting.pop_front().expect("it was just looked at");
        }
        let ram = self.ram.clone();
        let mut input = DeviceInputV1 { asked: Some(*ask), value: Some(0), ..DeviceInputV1::default() };
        match *ask {
            AskV1::Read { device, region, offset, size_bytes } => {
                match self.devices.get_mut(usize::from(device)) {
                    Some(Device::Function(function)) => {
                        input.value = Some(function.read(bar(region), offset, size_bytes));
                        // Memory is compared after the register is read, so the comparison finds all writes before the
                        // read.
                        input.dma = function.take_written(&ram);
                    }
                    Some(Device::Ports(ports)) => input.value = Some(ports.read(offset, size_bytes)),
                    None => input.value = Some(u64::MAX),
                }
            }
            AskV1::Translate { root, first, pages } => {
                // The guest's driver has filled a buffer, and will put its address into a ring next. The buffer may be
                // in a page that the function already sees.
                if self.waiting.is_empty() {
                    self.functions_mut().for_each(|(_, function)| function.show_written(&ram));
                }
                input.dma = self
                    .functions_mut()
                    .flat_map(|(_, function)| function.translate(&ram, root, first, pages))
                    .collect();
            }
            AskV1::Write { .. } | AskV1::Interrupts { .. } => {}
        }
        // Waiting input was taken from the devices before this answer, but the machine has not received it yet. So the
        // waiting input becomes the first part of the answer.
        for earlier in std::mem::take(&mut self.waiting).into_iter().rev() {
            input.dma.splice(0..0, earlier.dma);
            input.interrupts.splice(0..0, earlier.interrupts);
        }
        let mut pieces = in_pieces(input);
        let first = pieces.pop_front().expect("an answer has a piece");
        self.waiting.append(&mut pieces);
        first
    }

    fn tell(&mut self, told: &AskV1) {
        let ram = self.ram.clone();
        match *told {
            AskV1::Write { device, region, offset, size_bytes, value } => {
                match self.devices.get_mut(usize::from(device)) {
                    Some(Device::Function(function)) => {
                        function.show_written(&ram);
                        function.write(
                            bar(region),
                            offset,
                            &value.to_le_bytes()[..usize::from(size_bytes.min(8))],
                        );
                    }
                    Some(Device::Ports(ports)) => {
                        ports.write(offset, &value.to_le_bytes()[..usize::from(size_bytes.min(8))])
                    }
                    None => {}
                }
            }
            AskV1::Interrupts { device, mode } => {
                if let Some(Device::Function(function)) = self.devices.get_mut(usize::from(device)) {
                    function.set_interrupts(mode);
                }
            }
            AskV1::Read { .. } | AskV1::Translate { .. } => {}
        }
    }
}

fn bar(region: RegionV1) -> Option<u8> {
    match region {
        RegionV1::Bar(number) => Some(number),
        RegionV1::Config | RegionV1::Ports => None,
    }
}

/// Splits an input so that each piece fits into the log. Interrupts and the value are in the last piece.
fn in_pieces(mut input: DeviceInputV1) -> VecDeque<DeviceInputV1> {
    let (mut pieces, mut piece, mut bytes) = (VecDeque::new(), Vec::new(), 0);
    for write in std::mem::take(&mut input.dma) {
        // Each write takes some bytes in the record in addition to its data.
        let cost = write.bytes.len() + 16;
        if bytes + cost > MOST_BYTES {
            let dma = std::mem::take(&mut piece);
            pieces.push_back(DeviceInputV1 { asked: input.asked, dma, ..DeviceInputV1::default() });
            bytes = 0;
        }
        bytes += cost;
        piece.push(write);
    }
    pieces.push_back(DeviceInputV1 { dma: piece, ..input });
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_input_comes_in_pieces_and_its_value_last() {
        let ask = AskV1::Translate { root: None, first: 0, pages: 0 };
        let dma: Vec<_> =
            (0..200).map(|page| DmaV1 { gpa: page << 12, bytes: vec![page as u8; 4096] }).collect();
        let interrupts = vec![InterruptV1 { device: 0, vector: 3 }];
        let whole = DeviceInputV1 {
            asked: Some(ask),
            dma: dma.clone(),
            interrupts: interrupts.clone(),
            value: Some(7),
        };
        let pieces = in_pieces(whole);
        assert!(
            pieces.len() > 1
                && pieces.iter().all(|piece| piece.dma_bytes() <= MOST_BYTES && piece.asked == Some(ask))
        );
        let last = pieces.back().unwrap();
        assert_eq!((last.value, &last.interrupts), (Some(7), &interrupts));
        assert!(
            pieces.iter().rev().skip(1).all(|piece| piece.value.is_none() && piece.interrupts.is_empty())
        );
        assert_eq!(pieces.into_iter().flat_map(|piece| piece.dma).collect::<Vec<_>>(), dma);
    }
}

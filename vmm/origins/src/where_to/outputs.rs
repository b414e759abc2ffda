//! What drivers give to virtio devices: the buffers that a device reads.

use cpu::{AddressKind, Place as Range};
use devices::virtio::{DeviceStateV1, QueueStateV1, SECTOR_BYTES};
use guest_ram::GuestRam;
use machine::Machine;
use machine::position::Instructions;

use super::followed::Followed;
use crate::cell::Cell;
use crate::queues::{self, Buffer, REGISTER_BYTES, REQUEST_HEADER};

/// The queues of the machine's devices, and the requests in them that are already known.
#[derive(Clone, Default)]
pub struct Outputs {
    queues: Vec<Queue>,
    registers: Vec<Range>,
}

#[derive(Clone)]
struct Queue {
    device: &'static str,
    is_disk: bool,
    state: QueueStateV1,
}

/// Followed bytes that a device reads.
pub struct Sent {
    /// The device, and the place at the device.
    pub text: String,
    pub cells: Vec<Cell>,
}

impl Outputs {
    pub fn of(machine: &Machine<Instructions>) -> Outputs {
        let functions = machine.functions();
        let registers = functions.iter().flat_map(queues::bases).map(|base| Range {
            space: AddressKind::Physical,
            addresses: base..=base.saturating_add(REGISTER_BYTES - 1),
        });
        let queues = functions.iter().flat_map(|function| {
            let enabled = function.queues.iter().filter(|queue| queue.enabled && queue.size != 0);
            enabled.map(|queue| Queue {
                device: queues::name(&function.device),
                is_disk: matches!(function.device, DeviceStateV1::Block { .. }),
                state: queue.clone(),
            })
        });
        Outputs { registers: registers.collect(), queues: queues.collect() }
    }

    /// The addresses of the devices' registers.
    pub fn registers(&self) -> &[Range] {
        &self.registers
    }

    /// Whether a store to an address may notify a device.
    pub fn is_register(&self, physical: u64) -> bool {
        self.registers.iter().any(|range| range.addresses.contains(&physical))
    }

    /// The followed bytes in requests that are new since the last call. The driver has just notified a device.
    pub fn new_requests(&mut self, ram: &GuestRam, followed: &Followed) -> Vec<Sent> {
        let mut sent = Vec::new();
        for queue in &mut self.queues {
            for request in queues::waiting(ram, &queue.state) {
                sent.extend(queue.sent(ram, &request, followed));
            }
            queue.state.next_available =
                queues::available(ram, &queue.state).unwrap_or(queue.state.next_available);
        }
        sent
    }
}

impl Queue {
    /// The followed bytes of a request.
    fn sent(&self, ram: &GuestRam, request: &[Buffer], followed: &Followed) -> Option<Sent> {
        let (mut before, mut cells, mut first) = (0, Vec::new(), None);
        for buffer in request.iter().filter(|buffer| !buffer.is_writable()) {
            let length = u64::from(buffer.length);
            let held = followed.memory_in(buffer.address, length);
            first = first.or_else(|| held.first().map(|address| before + (address - buffer.address)));
            cells.extend(held.into_iter().map(Cell::Memory));
            before += length;
        }
        let offset = first?;
        let sector = || Some((queues::sector(ram, request)?, offset.checked_sub(REQUEST_HEADER)?));
        let text = match sector().filter(|_| self.is_disk) {
            Some((sector, offset)) => {
                let sector = sector.saturating_add(offset / SECTOR_BYTES as u64);
                format!("byte {} of sector {sector} of the disk", offset % SECTOR_BYTES as u64)
            }
            None => format!("byte {offset} of a request to the {}", self.device),
        };
        Some(Sent { text, cells })
    }
}

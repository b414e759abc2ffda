//! Names what came from outside: the event of the log, the device and the block of the disk.

use devices::virtio::{DeviceStateV1, QueueStateV1, SECTOR_BYTES, VirtioFunctionStateV1};
use guest_ram::GuestRam;
use history::timeline::{Poll, Timeline};
use machine::Machine;
use machine::error::Error;
use machine::inputs::Event;
use machine::position::Instructions;

use crate::cell::Cell;
use crate::queues::{self, Buffer, function_at, name};
use crate::rules::Outside;
use crate::seen::Step;
use crate::writers::Wanted;

/// The port at which the first serial port's driver reads typed bytes.
const SERIAL_DATA: u16 = 0x3f8;
/// Addresses of the chips with registers in memory.
const IO_APIC: u64 = 0xfec0_0000;
const LOCAL_APIC: u64 = 0xfee0_0000;
const APIC_BYTES: u64 = 0x1000;

/// A source outside of the machine's registers and memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The source as text.
    pub text: String,
    /// The number of the log's event.
    pub event: Option<u64>,
}

impl Source {
    fn of(text: impl Into<String>) -> Source {
        Source { text: text.into(), event: None }
    }
}

/// Names the source that an instruction read.
pub fn read(timeline: &Timeline, at: Instructions, outside: &Outside, value: u8) -> Result<Source, Error> {
    Ok(match outside {
        Outside::Processor(name) => Source::of(format!("the processor, by {name}")),
        Outside::Port(SERIAL_DATA) => {
            let has_it =
                |event: &Event| matches!(event, Event::ConsoleInput(bytes) if bytes.contains(&value));
            match timeline.last_event(at, has_it)? {
                Some((number, _)) => Source {
                    text: format!("port {SERIAL_DATA:#x}: {} typed at event {number}", key(value)),
                    event: Some(number),
                },
                None => Source::of(format!("port {SERIAL_DATA:#x}, the serial port")),
            }
        }
        Outside::Port(port) => Source::of(format!("port {port:#x}")),
    })
}

fn key(byte: u8) -> String {
    if byte.is_ascii_graphic() { format!("'{}'", char::from(byte)) } else { format!("byte {byte:#04x}") }
}

/// Whether an address is in RAM.
pub fn is_ram(machine: &Machine<Instructions>, address: u64) -> bool {
    machine.read_physical(address, &mut [0]) == 1
}

/// Names the device whose register is at an address outside of RAM.
pub fn register(machine: &Machine<Instructions>, address: u64) -> Source {
    let chips = [(IO_APIC, "I/O APIC"), (LOCAL_APIC, "local APIC")];
    if let Some((base, name)) = chips.iter().find(|(base, _)| address.wrapping_sub(*base) < APIC_BYTES) {
        return Source::of(format!("register {:#x} of the {name}", address - base));
    }
    let device = function_at(&machine.functions(), address)
        .map_or_else(|| "a device".to_string(), |(_, function)| format!("the {}", name(&function.device)));
    Source::of(format!("the register at physical address {address:#x} of {device}"))
}

/// Names the device or event that wrote some bytes of memory in a step or just before it. `None` if the poll function
/// returned true.
pub fn wrote(
    timeline: &mut Timeline,
    at: Instructions,
    wanted: &[Wanted],
    poll: &mut Poll<'_>,
) -> Result<Option<(Source, Step)>, Error> {
    timeline.seek(at, poll)?.unless_interrupted()?;
    let Some(address) = wanted.iter().find_map(|(cell, _)| match cell {
        Cell::Memory(address) => Some(*address),
        Cell::Register { .. } => None,
    }) else {
        return Ok(Some((Source::of("an unknown source"), Step::default())));
    };
    let functions = timeline.machine().functions();
    let request = functions.iter().find_map(|function| in_queues(timeline.machine(), function, address));
    let is_table_entry = changes_like_a_page_walk(timeline, at, address, poll)?;
    timeline.seek(at, poll)?.unless_interrupted()?;
    let events = timeline.events_at(at)?;
    let Some(step) = Step::replay(timeline, at, poll)? else { return Ok(None) };
    let value: Vec<u8> = wanted.iter().map(|(_, value)| *value).collect();
    if let Some(source) = events.iter().find_map(|(number, record)| by_event(*number, &record.event, &value))
    {
        return Ok(Some((source, step)));
    }
    let told = step.stores.iter().find(|store| !is_ram(timeline.machine(), store.physical));
    let told = told.and_then(|store| function_at(&functions, store.physical));
    let source = match (told, request, step.writes_port()) {
        (_, Some(source), _) => source,
        (Some((slot, function)), None, _) => Source::of(format!(
            "the {} in slot {slot}, which this instruction notified",
            name(&function.device)
        )),
        (None, None, true) => Source::of("a device, which this instruction told by a port"),
        (None, None, false) if is_table_entry => {
            Source::of("the processor, which set the accessed or dirty bit of a page table entry")
        }
        (None, None, false) => Source::of("a device or the processor itself, outside of instructions"),
    };
    Ok(Some((source, step)))
}

/// Whether only the accessed and dirty bits of a byte change in a step.
fn changes_like_a_page_walk(
    timeline: &mut Timeline,
    at: Instructions,
    address: u64,
    poll: &mut Poll<'_>,
) -> Result<bool, Error> {
    const ACCESSED_AND_DIRTY: u8 = 0x60;
    let read = |timeline: &Timeline| {
        let mut byte = [0];
        timeline.machine().read_physical(address, &mut byte);
        byte[0]
    };
    let before = read(timeline);
    timeline.seek(at + 1, poll)?.unless_interrupted()?;
    let changed = before ^ read(timeline);
    Ok(address.is_multiple_of(8) && changed != 0 && changed & !ACCESSED_AND_DIRTY == 0)
}

/// Names an event that writes memory. Typed keys and the console's size change only registers of devices.
fn by_event(number: u64, event: &Event, value: &[u8]) -> Option<Source> {
    let text = match event {
        Event::NetworkInput(frames) => {
            let place = frames.iter().enumerate().find_map(|(frame, bytes)| {
                let offset = bytes.windows(value.len().max(1)).position(|part| part == value)?;
                Some((frame, bytes.len(), offset))
            });
            match place {
                Some((frame, length, offset)) => format!(
                    "event {number}: byte {offset} of network frame {} of {}, which has {length} bytes",
                    frame + 1,
                    frames.len()
                ),
                None => format!("event {number}: {} network frames", frames.len()),
            }
        }
        Event::Devices(_) => format!("event {number}: input of a passed-through device"),
        _ => return None,
    };
    Some(Source { text, event: Some(number) })
}

/// Names the part of a device's queues to which an address belongs: a buffer of a waiting request or the used ring.
fn in_queues(
    machine: &Machine<Instructions>,
    function: &VirtioFunctionStateV1,
    address: u64,
) -> Option<Source> {
    function.queues.iter().enumerate().filter(|(_, queue)| queue.enabled && queue.size != 0).find_map(
        |(number, queue)| {
            let name = name(&function.device);
            let ring = 6 + 8 * u64::from(queue.size);
            if address.wrapping_sub(queue.used) < ring {
                return Some(Source::of(format!("the {name}: used ring of its queue {number}")));
            }
            let text = in_buffers(machine.ram(), function, queue, address)?;
            Some(Source::of(format!("the {name}: {text}")))
        },
    )
}

/// Names the buffer of a waiting request that contains an address.
fn in_buffers(
    ram: &GuestRam,
    function: &VirtioFunctionStateV1,
    queue: &QueueStateV1,
    address: u64,
) -> Option<String> {
    queues::waiting(ram, queue).find_map(|chain| {
        let mut before = 0;
        for buffer in chain.iter().filter(|buffer| buffer.is_writable()) {
            let offset = address.wrapping_sub(buffer.address);
            if offset < u64::from(buffer.length) {
                return Some(told(ram, function, &chain, before + offset));
            }
            before += u64::from(buffer.length);
        }
        None
    })
}

/// Describes the source of the byte at an offset in a request's writable buffers.
fn told(ram: &GuestRam, function: &VirtioFunctionStateV1, chain: &[Buffer], offset: u64) -> String {
    if !matches!(function.device, DeviceStateV1::Block { .. }) {
        return format!("byte {offset} of what it sent");
    }
    let all: u64 =
        chain.iter().filter(|buffer| buffer.is_writable()).map(|buffer| u64::from(buffer.length)).sum();
    if offset + 1 == all {
        return "the status of a request".to_string();
    }
    match queues::sector(ram, chain) {
        Some(first) => {
            let sector = first.saturating_add(offset / SECTOR_BYTES as u64);
            format!("byte {} of sector {sector} of the disk", offset % SECTOR_BYTES as u64)
        }
        None => format!("byte {offset} of a request"),
    }
}

#[cfg(test)]
mod tests {
    use devices::passthrough::DeviceInputV1;

    use super::*;

    #[test]
    fn events_that_write_memory_are_named() {
        let text =
            |event: &Event, value: &[u8]| by_event(7, event, value).map(|source| (source.text, source.event));
        let frames = Event::NetworkInput(vec![vec![1, 2, 3], vec![4, 5, 6, 7]]);
        let named = |rest: &str| Some((format!("event 7: {rest}"), Some(7)));
        let place = "byte 2 of network frame 2 of 2, which has 4 bytes";
        assert_eq!(text(&frames, &[6, 7]), named(place));
        assert_eq!(text(&frames, &[1, 2, 3]), named("byte 0 of network frame 1 of 2, which has 3 bytes"));
        assert_eq!(text(&frames, &[3, 4]), named("2 network frames"));
        let devices = Event::Devices(DeviceInputV1::default());
        assert_eq!(text(&devices, &[1]), named("input of a passed-through device"));
        assert_eq!(text(&Event::ConsoleInput(vec![1]), &[1]), None);
    }

    #[test]
    fn typed_keys_have_names() {
        assert_eq!(
            [b'k', b'~', b' ', b'\n', 0x7f].map(key),
            ["'k'", "'~'", "byte 0x20", "byte 0x0a", "byte 0x7f"]
        );
    }
}

//! Values that come from devices, and values that devices get. The guest's driver puts each buffer at a known place.

use std::collections::BTreeMap;

use history::timeline::{Breakpoint, Stops, Timeline};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use machine::inputs::Event;
use machine::position::{Count, Instructions};
use origins::{Answer, EndKind, Location, Onward, OnwardEnd, PassageKind, WhereTo, WhoSet};
use tiny_guest::STIRRED;
use tiny_guest::virtio::{
    self, CONSOLE, DISK, DISK_SECTORS, ENTRIES, ENTROPY, NETWORK, Queue, read, written,
};

/// The disk's queue, the console's queue for output, and the other devices' queues.
const DISK_QUEUE: Queue = Queue::of(DISK, 0);
const CONSOLE_QUEUE: Queue = Queue::of(CONSOLE, 1);
const ENTROPY_QUEUE: Queue = Queue::of(ENTROPY, 0);
const RECEIVED: Queue = Queue::of(NETWORK, 0);
const SENT: Queue = Queue::of(NETWORK, 1);

/// The headers and the status bytes of requests.
const HEADER: u64 = STIRRED + 0x100;
const OTHER_HEADER: u64 = STIRRED + 0x120;
const STATUS: u64 = STIRRED + 0x140;
const OTHER_STATUS: u64 = STIRRED + 0x141;
/// The destination of the guest's own copies.
const COPIES: u64 = STIRRED;
/// The data of requests.
const FIRST: u64 = STIRRED + 0x1000;
const SECOND: u64 = STIRRED + 0x2000;
const RANDOM: u64 = STIRRED + 0x3000;
const FRAMES: u64 = STIRRED + 0x4000;
const DECOY: u64 = STIRRED + 0x5000;
const TARGET: u64 = STIRRED + 0x6000;

/// The instructions of a guest that a test names.
#[derive(Default)]
struct Marks(BTreeMap<&'static str, usize>);

impl Marks {
    /// Names the next instruction.
    fn set(&mut self, name: &'static str, a: &CodeAssembler) {
        // The recorder does not count its own first instruction.
        self.0.insert(name, a.instructions().len() - 1);
    }
}

struct Guest {
    _directory: tempfile::TempDir,
    timeline: Timeline,
    places: BTreeMap<&'static str, u64>,
}

impl Guest {
    fn new(
        change: impl FnOnce(&mut [u8]),
        code: impl FnOnce(&mut CodeAssembler, &mut Marks) -> Result<(), IcedError>,
        script: Vec<(u64, Event)>,
    ) -> Guest {
        let directory = tempfile::tempdir().unwrap();
        let mut marks = Marks::default();
        let code = |a: &mut CodeAssembler| code(a, &mut marks);
        let (recording, addresses) = virtio::record(directory.path(), "devices.ttvm", change, code, script);
        let places = marks.0.into_iter().map(|(name, number)| (name, addresses[number])).collect();
        Guest { timeline: Timeline::open_with(&recording, 1).unwrap(), places, _directory: directory }
    }

    /// The position at which the named instruction is next for the first time.
    fn at(&mut self, name: &str) -> Instructions {
        let breakpoints = vec![Breakpoint::at(self.places[name])];
        self.timeline.set_stops(Stops { breakpoints, ..Stops::default() });
        let end = self.timeline.end();
        let hits = self.timeline.hits(Instructions(0), end, 1, &mut || false).unwrap();
        self.timeline.set_stops(Stops::default());
        hits.found[0].before
    }

    /// Where the value of some bytes came from, at the end of the run.
    fn ask(&mut self, address: u64, bytes: u64) -> Answer {
        let location: Location = format!("phys:{address:#x}:{bytes}").parse().unwrap();
        let at = self.timeline.end();
        let question = WhoSet { location: &location, processor: None, at, limit: 100 };
        question.run(&mut self.timeline, &mut || false).unwrap()
    }

    /// Checks that a device wrote some bytes at a named instruction.
    fn check(&mut self, address: u64, bytes: u64, expected: &str, at: &str) -> Answer {
        let at = self.at(at);
        let answer = self.ask(address, bytes);
        let source = format!("from outside: {expected}");
        assert_eq!((answer.end.kind, &answer.end.text), (EndKind::Outside, &source), "{answer}");
        let link = answer.links.last().unwrap();
        assert_eq!((link.instruction, &link.from), (at.number(), &None), "{answer}");
        answer
    }
}

/// A number that is in memory as the given bytes.
fn hex(bytes: impl DoubleEndedIterator<Item = u8>) -> String {
    format!("{:#x}", bytes.rev().fold(0_u64, |number, byte| number << 8 | u64::from(byte)))
}

/// Starts a counted loop that does nothing, two instructions a round.
fn pause(a: &mut CodeAssembler, rounds: u32) -> Result<(), IcedError> {
    let mut top = a.create_label();
    a.mov(ebx, rounds)?;
    a.set_label(&mut top)?;
    a.dec(ebx)?;
    a.jne(top)
}

/// The guest reads from the disk and from the entropy device, and receives two frames.
fn reads(a: &mut CodeAssembler, marks: &mut Marks) -> Result<(), IcedError> {
    virtio::map_registers(a)?;
    virtio::start(a, DISK, 0, &[0])?;
    virtio::start(a, ENTROPY, 0, &[0])?;
    virtio::start(a, NETWORK, 0, &[0, 1])?;
    a.mov(byte_ptr(STATUS), 0x7f)?;
    virtio::header(a, HEADER, 0, 3)?;
    let buffers = [read(HEADER, 16), written(FIRST, 512), written(SECOND, 512), written(STATUS, 1)];
    virtio::request(a, DISK_QUEUE, 0, &buffers)?;
    virtio::to_doorbell(a, DISK_QUEUE)?;
    marks.set("disk", a);
    virtio::notify(a, DISK_QUEUE)?;
    a.mov(rax, qword_ptr(SECOND + 0x10))?;
    a.mov(qword_ptr(COPIES), rax)?;

    virtio::request(a, ENTROPY_QUEUE, 0, &[written(RANDOM, 3), written(RANDOM + 0x100, 16)])?;
    virtio::to_doorbell(a, ENTROPY_QUEUE)?;
    marks.set("entropy", a);
    virtio::notify(a, ENTROPY_QUEUE)?;

    let descriptors = RECEIVED.descriptors();
    virtio::describe(a, descriptors, 0, &[written(FRAMES, 12), written(FRAMES + 0x100, 64)])?;
    virtio::describe(a, descriptors, 2, &[written(FRAMES + 0x200, 128)])?;
    virtio::publish(a, RECEIVED, 0, &[0, 2])?;
    virtio::to_doorbell(a, RECEIVED)?;
    virtio::notify(a, RECEIVED)?;
    let mut wait = a.create_label();
    a.set_label(&mut wait)?;
    a.cmp(word_ptr(RECEIVED.used() + 2), 2)?;
    a.jne(wait)?;
    marks.set("end", a);
    a.nop()
}

#[test]
fn bytes_from_devices_are_named_by_their_place_at_the_device() {
    let frames = vec![(0x40..0x54).collect::<Vec<u8>>(), (0x80..0x9e).collect()];
    let mut guest = Guest::new(|_| (), reads, vec![(20_000, Event::NetworkInput(frames))]);
    // The copy of the value is a link before the device's.
    let answer = guest.check(COPIES, 8, "the virtio disk: byte 16 of sector 4 of the disk", "disk");
    assert_eq!(answer.links.len(), 3, "{answer}");
    assert_eq!(answer.value, hex((0..8).map(|byte| virtio::disk_byte(4 * 512 + 16 + byte))), "{answer}");
    guest.check(FIRST, 1, "the virtio disk: byte 0 of sector 3 of the disk", "disk");
    guest.check(FIRST + 508, 4, "the virtio disk: byte 508 of sector 3 of the disk", "disk");
    guest.check(STATUS, 1, "the virtio disk: the status of a request", "disk");
    let ring = "the virtio disk: used ring of its queue 0";
    guest.check(DISK_QUEUE.used() + 2, 2, ring, "disk");
    let used = guest.check(DISK_QUEUE.used() + 8, 4, ring, "disk");
    assert_eq!(used.value, "0x401", "{used}");
    let random = "the virtio entropy device: byte 8 of what it sent";
    guest.check(RANDOM + 0x105, 4, random, "entropy");
    guest.check(RANDOM + 2, 1, "the virtio entropy device: byte 2 of what it sent", "entropy");

    // The frames arrive together, while the guest waits.
    let mut frame = |address, bytes, expected: &str| {
        let answer = guest.ask(address, bytes);
        let text = format!("from outside: event 1: {expected}");
        assert_eq!((&answer.end.text, answer.end.event), (&text, Some(1)), "{answer}");
        assert_eq!((answer.end.kind, answer.links.len()), (EndKind::Outside, 1), "{answer}");
        answer
    };
    let first = frame(FRAMES + 0x106, 2, "byte 6 of network frame 1 of 2, which has 20 bytes");
    assert_eq!((first.links[0].instruction, &*first.value), (20_000, "0x4746"));
    frame(FRAMES + 0x200 + 12 + 10, 4, "byte 10 of network frame 2 of 2, which has 30 bytes");
    // The number of buffers in the header of a frame is no byte of the frame.
    frame(FRAMES + 10, 1, "2 network frames");
}

/// A byte of sector 3 of the disk.
fn of_sector_3(byte: u64) -> u8 {
    virtio::disk_byte(3 * 512 + byte)
}

/// The guest fills the buffer of a request before the disk does. Only the first and the last of eight bytes are equal to the
/// disk's. After the request the guest writes a byte that the disk has written too.
fn prefilled(a: &mut CodeAssembler, marks: &mut Marks) -> Result<(), IcedError> {
    virtio::map_registers(a)?;
    virtio::start(a, DISK, 0, &[0])?;
    let filled = std::array::from_fn(|byte| match byte as u64 {
        byte @ (0 | 7) => of_sector_3(byte),
        byte => !of_sector_3(byte),
    });
    a.mov(rax, u64::from_le_bytes(filled))?;
    a.mov(qword_ptr(FIRST), rax)?;
    virtio::header(a, HEADER, 0, 3)?;
    let buffers = [read(HEADER, 16), written(FIRST, 512), written(STATUS, 1)];
    virtio::request(a, DISK_QUEUE, 0, &buffers)?;
    virtio::to_doorbell(a, DISK_QUEUE)?;
    marks.set("disk", a);
    virtio::notify(a, DISK_QUEUE)?;
    marks.set("again", a);
    a.mov(byte_ptr(FIRST + 0x100), i32::from(of_sector_3(0x100)))?;
    marks.set("end", a);
    a.nop()
}

#[test]
fn a_device_also_writes_the_bytes_that_had_their_values_before() {
    let mut guest = Guest::new(|_| (), prefilled, Vec::new());
    let answer = guest.check(FIRST, 8, "the virtio disk: byte 0 of sector 3 of the disk", "disk");
    assert_eq!(answer.value, hex((0..8).map(of_sector_3)), "{answer}");
    // The write after the request is the last write, although it changes nothing.
    let answer = guest.ask(FIRST + 0x100, 2);
    let parts: Vec<_> = answer.end.parts.iter().map(|part| (part.bytes, part.instruction)).collect();
    let steps = ["again", "disk"].map(|name| Some(guest.at(name).number()));
    assert_eq!((answer.end.kind, parts), (EndKind::Parts, vec![(1, steps[0]), (1, steps[1])]), "{answer}");
}

/// The guest waits for a frame in a loop whose first instruction loads the frame's beginning.
fn receives(a: &mut CodeAssembler, marks: &mut Marks) -> Result<(), IcedError> {
    virtio::map_registers(a)?;
    virtio::start(a, NETWORK, 0, &[0])?;
    virtio::request(a, RECEIVED, 0, &[written(FRAMES, 12), written(FRAMES + 0x100, 64)])?;
    virtio::to_doorbell(a, RECEIVED)?;
    virtio::notify(a, RECEIVED)?;
    a.mov(ebx, 10_000)?;
    let (mut top, mut out) = (a.create_label(), a.create_label());
    a.set_label(&mut top)?;
    marks.set("load", a);
    a.mov(rax, qword_ptr(FRAMES + 0x100))?;
    a.test(rax, rax)?;
    a.jne(out)?;
    a.dec(ebx)?;
    a.jne(top)?;
    a.set_label(&mut out)?;
    a.mov(qword_ptr(COPIES), rax)
}

#[test]
fn an_event_just_before_the_load_of_its_bytes_is_found() {
    // The first run has no event, and says where the loads are.
    let mut quiet = Guest::new(|_| (), receives, Vec::new());
    let first = quiet.at("load").number();
    let load = first + 5 * 1_000;
    let frame: Vec<u8> = (0x40..0x54).collect();
    let script = vec![(load, Event::NetworkInput(vec![frame]))];
    let mut guest = Guest::new(|_| (), receives, script);
    let answer = guest.ask(COPIES, 8);
    let steps: Vec<u64> = answer.links.iter().map(|link| link.instruction).collect();
    assert_eq!(steps, [load + 3, load, load], "{answer}");
    let text = "from outside: event 1: byte 0 of network frame 1 of 1, which has 20 bytes";
    assert_eq!((&*answer.end.text, &*answer.value), (text, "0x4746454443424140"), "{answer}");
}

/// The guest lets the disk overwrite the descriptor of the next request. The second pair of such requests begins with a
/// write to a port. The device's configuration space gives access to the registers (VIRTIO 1.2, section 4.1.4.9).
fn overwritten_descriptors(a: &mut CodeAssembler, marks: &mut Marks) -> Result<(), IcedError> {
    virtio::map_registers(a)?;
    virtio::start(a, DISK, 0, &[0])?;
    let descriptors = DISK_QUEUE.descriptors();
    virtio::to_doorbell(a, DISK_QUEUE)?;
    for (pair, sector) in [(0, 9), (1, 10)] {
        virtio::header(a, HEADER, 0, sector)?;
        virtio::header(a, OTHER_HEADER, 0, 20)?;
        let first = [read(HEADER, 16), written(descriptors + 8 * 16, 512), written(STATUS, 1)];
        virtio::describe(a, descriptors, 0, &first)?;
        let second = [read(OTHER_HEADER, 16), written(DECOY, 512), written(OTHER_STATUS, 1)];
        virtio::describe(a, descriptors, 7, &second)?;
        virtio::publish(a, DISK_QUEUE, 2 * pair, &[0, 7])?;
        if pair == 0 {
            marks.set("memory", a);
            virtio::notify(a, DISK_QUEUE)?;
        } else {
            for (register, value) in [(4, 0), (8, 0x3000), (12, 2)] {
                virtio::config_write(a, DISK, virtio::CONFIG_ACCESS + register, value)?;
            }
            virtio::config_write(a, DISK, virtio::CONFIG_ACCESS + 16, 0)?;
            // The access ends with the write to the port.
            marks.0.insert("port", a.instructions().len() - 2);
        }
    }
    a.nop()
}

#[test]
fn a_device_that_writes_outside_of_the_requests_is_named_by_its_slot() {
    let change = |disk: &mut [u8]| {
        for (sector, target) in [(9, TARGET), (10, TARGET + 0x1000)] {
            let descriptors = [(target, 512_u32, 3_u16, 9_u16), (OTHER_STATUS, 1, 2, 0)];
            let bytes: Vec<u8> = descriptors
                .iter()
                .flat_map(|(address, bytes, flags, next)| {
                    [
                        &address.to_le_bytes()[..],
                        &bytes.to_le_bytes(),
                        &flags.to_le_bytes(),
                        &next.to_le_bytes(),
                    ]
                    .concat()
                })
                .collect();
            disk[sector * 512..][..bytes.len()].copy_from_slice(&bytes);
        }
    };
    let mut guest = Guest::new(change, overwritten_descriptors, Vec::new());
    let notified = "the virtio disk in slot 1, which this instruction notified";
    let answer = guest.check(TARGET + 0x100, 4, notified, "memory");
    assert_eq!(answer.value, hex((0..4).map(|byte| virtio::disk_byte(20 * 512 + 0x100 + byte))));
    let told = "a device, which this instruction told by a port";
    guest.check(TARGET + 0x1100, 4, told, "port");
    assert_eq!(guest.ask(DECOY, 8).end.kind, EndKind::Start);
}

/// The guest reads registers of chips and devices, and touches pages for the first time.
fn registers(a: &mut CodeAssembler, marks: &mut Marks) -> Result<(), IcedError> {
    virtio::map_registers(a)?;
    let places = [virtio::configuration(DISK), virtio::registers(ENTROPY) + 0x12, 0xfee0_0030, 0xfec0_0010];
    for (number, place) in (0..).zip(places) {
        a.mov(r12, place)?;
        a.mov(eax, dword_ptr(r12))?;
        a.mov(dword_ptr(COPIES + 4 * number), eax)?;
    }
    a.mov(eax, dword_ptr(0x40_0008))?;
    a.mov(dword_ptr(COPIES + 16), eax)?;
    // No device is behind the registers of the last device.
    a.mov(r12, virtio::registers(NETWORK) + 0x4_0000)?;
    a.mov(eax, dword_ptr(r12))?;
    a.mov(dword_ptr(COPIES + 32), eax)?;
    a.mov(edx, 0x3f8)?;
    a.in_(al, dx)?;
    a.mov(byte_ptr(COPIES + 20), al)?;
    a.in_(eax, 0x80)?;
    a.mov(dword_ptr(COPIES + 24), eax)?;
    a.rdtsc()?;
    a.mov(dword_ptr(COPIES + 28), eax)?;
    marks.set("read", a);
    a.mov(rax, qword_ptr(0x60_0000))?;
    marks.set("write", a);
    a.mov(qword_ptr(0x80_0000), rax)
}

#[test]
fn registers_of_chips_and_devices_are_named() {
    let mut guest = Guest::new(|_| (), registers, Vec::new());
    let disk = "the register at physical address 0xc0012000 of the virtio disk";
    let entropy = "the register at physical address 0xc0030012 of the virtio entropy device";
    let sectors = format!("{DISK_SECTORS:#x}");
    for (offset, bytes, expected, value) in [
        (0, 4, disk, Some(&*sectors)),
        // The number of queues.
        (4, 2, entropy, Some("0x1")),
        (8, 4, "register 0x30 of the local APIC", None),
        (12, 4, "register 0x10 of the I/O APIC", None),
        (16, 4, "the register at physical address 0x400008 of a device", Some("0xffffffff")),
        (32, 4, "the register at physical address 0xc0080000 of a device", Some("0xffffffff")),
        (20, 1, "port 0x3f8, the serial port", None),
        (24, 4, "port 0x80", None),
        (28, 4, "the processor, by RDTSC", None),
    ] {
        let answer = guest.ask(COPIES + offset, bytes);
        let text = format!("from outside: {expected}");
        assert_eq!((answer.end.kind, &answer.end.text), (EndKind::Outside, &text), "{answer}");
        assert!(value.is_none_or(|value| answer.value == value), "{answer}");
    }
    // Only the bits 5 and 6 of the entries change.
    let bits = "the processor, which set the accessed or dirty bit of a page table entry";
    for (number, at, value) in [(3, "read", "0xa3"), (4, "write", "0xe3")] {
        let entry = 0x30_2000 + 8 * number;
        assert_eq!(guest.check(entry, 1, bits, at).value, value);
    }
}

/// The followed value. No two of its bytes are equal.
const VALUE: u64 = 0x1122_3344_5566_7788;
const SOURCE: u64 = STIRRED + 0x1008;
const COPY: u64 = STIRRED + 0x2000;
const NETWORK_HEADER: u64 = STIRRED + 0x160;

/// The guest sends a value to the disk, to the console and to the network.
fn sends(a: &mut CodeAssembler, marks: &mut Marks) -> Result<(), IcedError> {
    virtio::map_registers(a)?;
    virtio::start(a, DISK, 0, &[0])?;
    virtio::start(a, CONSOLE, virtio::INDIRECT, &[1])?;
    virtio::start(a, NETWORK, 0, &[0, 1])?;
    a.mov(rax, VALUE)?;
    a.mov(qword_ptr(SOURCE), rax)?;
    marks.set("set", a);
    a.xor(eax, eax)?;
    pause(a, 20_000)?;
    virtio::header(a, HEADER, 1, 7)?;
    let data = [read(SOURCE - 0x208, 512), read(SOURCE - 8, 512)];
    let buffers = [read(HEADER, 16), data[0], data[1], written(STATUS, 1)];
    virtio::request(a, DISK_QUEUE, 0, &buffers)?;
    virtio::to_doorbell(a, DISK_QUEUE)?;
    marks.set("disk", a);
    virtio::notify(a, DISK_QUEUE)?;
    a.mov(rax, qword_ptr(SOURCE))?;
    marks.set("copy", a);
    a.mov(qword_ptr(COPY + 5), rax)?;
    virtio::indirect_request(a, CONSOLE_QUEUE, 0, &[read(COPY, 16)])?;
    virtio::to_doorbell(a, CONSOLE_QUEUE)?;
    marks.set("console", a);
    virtio::notify(a, CONSOLE_QUEUE)?;
    let header = read(NETWORK_HEADER, 12);
    virtio::describe(a, SENT.descriptors(), 0, &[header, read(COPY + 7, 60)])?;
    virtio::describe(a, SENT.descriptors(), 2, &[header, read(COPY + 0x200, 60)])?;
    virtio::publish(a, SENT, 0, &[0, 2])?;
    virtio::to_doorbell(a, SENT)?;
    marks.set("network", a);
    virtio::notify(a, SENT)?;
    // The search waits again after some thousand steps without a use.
    pause(a, 20_000)?;
    // The disk is told once more, and has no new request.
    virtio::to_doorbell(a, DISK_QUEUE)?;
    virtio::notify(a, DISK_QUEUE)?;
    virtio::publish(a, DISK_QUEUE, 1, &[0])?;
    marks.set("again", a);
    virtio::notify(a, DISK_QUEUE)?;
    marks.set("compare", a);
    a.cmp(byte_ptr(COPY + 5), 1)?;
    a.mov(qword_ptr(COPY + 5), rsp)?;
    marks.set("last", a);
    a.mov(qword_ptr(SOURCE), rsp)?;
    a.nop()
}

fn follow(guest: &mut Guest, from: &str, limit: usize) -> Onward {
    let location: Location = format!("{SOURCE:#x}:8").parse().unwrap();
    let (at, until) = (guest.at(from), guest.timeline.end());
    let question = WhereTo { limit, ..crate::onward_from(&location, at, until) };
    question.run(&mut guest.timeline, &mut || false).unwrap()
}

#[test]
fn a_value_is_followed_to_the_devices_that_get_it() {
    use PassageKind::{Compared, Copied, Sent};
    let mut guest = Guest::new(|_| (), sends, Vec::new());
    let answer = follow(&mut guest, "set", 100);
    let sector = "byte 8 of sector 8 of the disk";
    let whole = format!("{VALUE:#x}");
    let rest = format!("{:#x}", VALUE >> 16);
    let expected = [
        ("disk", Sent, SOURCE, 8, &*whole, Some(sector)),
        ("copy", Copied, 0, 8, &whole, None),
        ("console", Sent, COPY + 5, 8, &whole, Some("byte 5 of a request to the virtio console")),
        ("network", Sent, COPY + 7, 6, &rest, Some("byte 12 of a request to the virtio network card")),
        ("again", Sent, SOURCE, 8, &whole, Some(sector)),
        ("compare", Compared, COPY + 5, 1, "0x88", None),
    ];
    assert_eq!(answer.passages.len(), expected.len(), "{answer}");
    for (passage, (at, kind, from, bytes, value, device)) in answer.passages.iter().zip(expected) {
        let step = guest.at(at).number();
        let physical = (from != 0).then(|| format!("{from:#x}"));
        assert_eq!((passage.moment.instruction, passage.kind), (step, kind), "{at}: {answer}");
        assert_eq!(
            (&passage.from.physical, passage.from.bytes, &*passage.value, passage.device.as_deref()),
            (&physical, bytes, value, device),
            "{at}: {answer}"
        );
        let code = if kind == Sent { "notification of the device" } else { &passage.code };
        assert_eq!((&*passage.code, passage.times), (code, 1), "{answer}");
        assert_eq!(passage.rip, format!("{:#x}", guest.places[at]), "{answer}");
    }
    let last = guest.at("last").number();
    assert_eq!((answer.end, answer.end_instruction), (OnwardEnd::Gone, last + 1), "{answer}");
    let text = answer.to_string();
    let line = format!("\n    sent: physical {SOURCE:#x} -> {sector}  {VALUE:#x}\n");
    assert!(text.contains(&line), "{text}");

    // A search from a later place does not know the requests before it.
    let later = follow(&mut guest, "copy", 100);
    let kinds: Vec<PassageKind> = later.passages.iter().map(|passage| passage.kind).collect();
    assert_eq!(kinds, [Sent], "{later}");
    let limited = follow(&mut guest, "set", 1);
    assert_eq!((limited.passages.len(), limited.end), (1, OnwardEnd::Limit), "{limited}");
}

/// The disk overwrites the value. The guest loads the new value later.
fn overwrites(a: &mut CodeAssembler, marks: &mut Marks) -> Result<(), IcedError> {
    virtio::map_registers(a)?;
    virtio::start(a, DISK, 0, &[0])?;
    a.mov(rax, VALUE)?;
    a.mov(qword_ptr(SOURCE), rax)?;
    marks.set("set", a);
    a.xor(eax, eax)?;
    virtio::header(a, HEADER, 0, 3)?;
    virtio::request(a, DISK_QUEUE, 0, &[read(HEADER, 16), written(SOURCE, 512), written(STATUS, 1)])?;
    virtio::to_doorbell(a, DISK_QUEUE)?;
    marks.set("disk", a);
    virtio::notify(a, DISK_QUEUE)?;
    a.nop()?;
    marks.set("load", a);
    a.mov(rax, qword_ptr(SOURCE))?;
    a.mov(qword_ptr(COPY), rax)?;
    a.nop()
}

#[test]
fn a_device_that_overwrites_a_value_ends_its_way() {
    let mut guest = Guest::new(|_| (), overwrites, Vec::new());
    let (load, end) = (guest.at("load"), guest.timeline.end());
    let location: Location = format!("{SOURCE:#x}:8").parse().unwrap();
    let at = guest.at("set");
    for (until, expected) in [(load, OnwardEnd::Searched), (end, OnwardEnd::Gone)] {
        let question = WhereTo { with_registers: true, ..crate::onward_from(&location, at, until) };
        let answer = question.run(&mut guest.timeline, &mut || false).unwrap();
        assert!(answer.passages.is_empty() && answer.left.is_empty(), "{answer}");
        assert_eq!((answer.end, answer.has_more_left), (expected, false), "{answer}");
    }
    // The rings have the number of entries that the guest chose.
    assert!(guest.ask(DISK_QUEUE.used() + 6 + 8 * ENTRIES, 2).end.kind == EndKind::Start);
}

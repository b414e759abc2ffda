//! Tests the view of the board with guests that program every chip, so that the test knows each register.

use history::never;
use history::timeline::{Breakpoint, Stops, Timeline};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use machine::inputs::Event;
use machine::position::Instructions;
use tiny_guest::linux::interrupts;
use tiny_guest::virtio::{self, DISK, ENTROPY, NETWORK, Queue, read, written};
use tiny_guest::{DENSE, STIRRED, Script, several};
use views::board::Board;
use views::difference::Side;

/// Goes to the first position at which the instruction at an address is next.
fn go_to(timeline: &mut Timeline, address: u64) {
    timeline.set_stops(Stops { breakpoints: vec![Breakpoint::at(address)], ..Stops::default() });
    timeline.seek(Instructions(0), &mut never).unwrap();
    timeline.run_forward(&mut never).unwrap();
    timeline.set_stops(Stops::default());
    assert_eq!(timeline.machine().cpu().rip(), address);
}

/// The lines of a part of a text, from the line that begins so to the next empty line.
fn part<'a>(text: &'a str, begin: &str) -> &'a str {
    let from = text.find(begin).unwrap_or_else(|| panic!("{begin} is not in {text}"));
    text[from..].split("\n\n").next().unwrap()
}

#[test]
fn interrupts_have_the_names_of_the_kernels_handlers() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, places) = interrupts::record(directory.path(), "r.ttvm");
    let mut timeline = Timeline::open(&recording).unwrap();
    go_to(&mut timeline, places["programmed"]);
    let text = Board::of(&timeline).unwrap().to_string();
    let expected = "\
processor 0, running: local APIC 0, xAPIC
  task priority 0x10, processor priority 0x10, logical id 0x2
  in service: none
  waiting: vector 52, IRQ 4, ttyS0 (serial_handler), vector 53, IRQ 11, disk (reads), receives
  CMCI         masked
  timer        vector 32, asm_sysvec_timer
  thermal      masked
  performance  masked
  LINT0        ExtINT
  LINT1        NMI
  error        vector 254
  the timer is periodic, and expires at ";
    let apic = part(&text, "processor 0");
    // The timer's clock of 1 GHz is divided by 16.
    let (before, expires) = apic.split_at(expected.len());
    assert_eq!(before, expected);
    let expires: f64 = expires.strip_suffix(" s").unwrap().parse().unwrap();
    let period = f64::from(0x10_0000 * 16) / 1e9;
    assert!((period..period + 1e-6).contains(&expires), "{expires}");
    // The timer's line, which the kernel has not programmed, is up. The second handler of a shared interrupt has no name
    // that can be shown. The kernel has shut down the vector 54.
    let expected = "\
I/O APIC
  pin  2  edge   to processor 0, vector 0, masked, up
  pin  4  edge   to processor 0, vector 52, IRQ 4, ttyS0 (serial_handler)
  pin 11  level  to processor 0, vector 53, IRQ 11, disk (reads), receives, masked
  pin 12  edge   to logical destination 0x80, which no processor has, vector 56
  pin 13  edge   to APIC 7, which no processor has, vector 55
  pin 14  edge   to processor 0, vector 54";
    assert_eq!(part(&text, "I/O APIC"), expected);
}

/// The address of a request's header, and the address of its data.
const HEADER: u64 = STIRRED + 0x100;
const DATA: u64 = STIRRED + 0x1000;

/// Writes bytes to ports. Changes RAX and RDX.
fn outputs(a: &mut CodeAssembler, bytes: &[(u32, u32)]) -> Result<(), IcedError> {
    for (port, byte) in bytes {
        a.mov(edx, *port)?;
        a.mov(eax, *byte)?;
        a.out(dx, al)?;
    }
    Ok(())
}

fn chips(a: &mut CodeAssembler) -> Result<(), IcedError> {
    outputs(
        a,
        &[
            // The 8259 pair: vectors from 0x20 and 0x28 on. The inputs 0, 2, 4 and 9 are not masked, 9 is level triggered.
            (0x20, 0x11),
            (0x21, 0x20),
            (0x21, 4),
            (0x21, 1),
            (0x21, 0xea),
            (0xa0, 0x11),
            (0xa1, 0x28),
            (0xa1, 2),
            (0xa1, 1),
            (0xa1, 0xfd),
            (0x4d1, 2),
            // The timer: channel 0 in mode 2 from 0x1000, channel 2 in mode 3 from 0x200.
            (0x43, 0x34),
            (0x40, 0),
            (0x40, 0x10),
            (0x43, 0xb6),
            (0x42, 0),
            (0x42, 2),
            // The clock: an alarm at 12 o'clock and 30 seconds of any minute, and an interrupt each second.
            (0x70, 11),
            (0x71, 0x36),
            (0x70, 1),
            (0x71, 30),
            (0x70, 3),
            (0x71, 0xff),
            (0x70, 5),
            (0x71, 12),
            // The serial port: 9600 baud, FIFOs, and two sources of interrupts.
            (0x3fb, 0x83),
            (0x3f8, 12),
            (0x3f9, 0),
            (0x3fb, 3),
            (0x3f9, 5),
            (0x3fa, 1),
            (0x3fc, 8),
        ],
    )?;
    // Enable the interrupts of the ACPI timer and of the power button.
    a.mov(edx, 0x602)?;
    a.mov(eax, 0x101)?;
    a.out(dx, ax)
}

fn devices(a: &mut CodeAssembler) -> Result<(), IcedError> {
    virtio::map_registers(a)?;
    virtio::start(a, DISK, virtio::INDIRECT, &[0])?;
    // The queue has the message 1, and changes of the configuration have the message 0.
    a.mov(word_ptr(r12 + 0x1a), 1)?;
    a.mov(word_ptr(r12 + 0x10), 0)?;
    virtio::config_write(a, DISK, virtio::MESSAGES, 0x8000_0000)?;
    a.mov(r12, virtio::registers(DISK) + 0x8000)?;
    for (register, value) in
        [(0, 0xfee0_0000_u32), (8, 0x41), (12, 0), (16, 0xfee0_0000), (24, 0x42), (28, 1)]
    {
        a.mov(dword_ptr(r12 + register), value as i32)?;
    }
    // A request that the device does not know of.
    let queue = Queue::of(DISK, 0);
    virtio::header(a, HEADER, 0, 3)?;
    virtio::request(a, queue, 0, &[read(HEADER, 16), written(DATA, 513)])?;
    let queue = Queue::of(ENTROPY, 0);
    virtio::start(a, ENTROPY, 0, &[0])?;
    virtio::request(a, queue, 0, &[written(DATA, 16)])?;
    virtio::to_doorbell(a, queue)?;
    virtio::notify(a, queue)?;
    let queue = Queue::of(NETWORK, 0);
    virtio::start(a, NETWORK, 0, &[0])?;
    virtio::describe(a, queue.descriptors(), 0, &[written(DATA + 0x100, 64)])?;
    virtio::publish(a, queue, 0, &[0, 0])?;
    // The driver wants no interrupts.
    a.mov(word_ptr(queue.available()), 1)?;
    virtio::to_doorbell(a, queue)?;
    virtio::notify(a, queue)
}

/// The parts of the board's text for the guest of [`chips`] and [`devices`].
const CHIPS: &[&str] = &[
    // The lines of the 8259 and of the entropy device are up. No other input is programmed.
    "\
I/O APIC
  pin  2  edge   to processor 0, vector 0, masked, up
  pin 19  edge   to processor 0, vector 0, masked, up",
    "\
8259 pair
  master  vectors from 32; requested: none; in service: none; not masked: 0, 2, 4; level triggered: none
  slave   vectors from 40; requested: 3; in service: none; not masked: 1; level triggered: 1",
    // The output changes at the fourth tick of the timer's clock of 1.193182 MHz.
    "\
timer (PIT)
  channel 0  mode 2, counts, value 4096, output up, which changes at 0.000003353 s
  channel 1  mode 3, does not count, value 0, output up
  channel 2  mode 3, does not count, value 512, output up",
    "\
real-time clock
  2023-11-14 22:13:20; interrupts: alarm at 12:**:30, each second; line down",
    "\
ACPI
  PM timer 0xa, status 0x0, enable 0x101",
    "\
serial port
  received: \"\"; interrupts: received data, line status; waiting: none; line down",
    "\
PCI
  00:00.0  1b36:0008  host bridge
  00:01.0  1af4:1042  virtio block
    BAR 0: memory at 0xc0010000, 16384 bytes
    BAR 1: memory at 0xc0018000, 4096 bytes
    MSI-X on
      message 0: 0x41 to 0xfee00000, to processor 0, vector 65
      message 1: 0x42 to 0xfee00000, to processor 0, vector 66, masked
    16384 bytes
    status: ACKNOWLEDGE, DRIVER, FEATURES_OK, DRIVER_OK
    features: INDIRECT_DESC, VERSION_1
    queue 0: 16 entries, rings at 0x312000, 0x312400 and 0x312800
      the device takes entry 0 next, and uses entry 0 next; MSI-X message 1
      the driver's indices are 1 and 0; 1 entries wait for the device; an interrupt follows the next used entry
  00:02.0  1af4:1043  virtio console, may not access memory
    BAR 0: memory at 0xc0020000, 16384 bytes
    BAR 1: memory at 0xc0028000, 4096 bytes
    MSI-X off
    80x25, 0 typed bytes wait
    status: none
    features: none
    queue 0: off
    queue 1: off
  00:03.0  1af4:1044  virtio rng, interrupt line up
    BAR 0: memory at 0xc0030000, 16384 bytes
    BAR 1: memory at 0xc0038000, 4096 bytes
    MSI-X off
    4 random words drawn
    status: ACKNOWLEDGE, DRIVER, FEATURES_OK, DRIVER_OK
    features: VERSION_1
    queue 0: 16 entries, rings at 0x316000, 0x316400 and 0x316800
      the device takes entry 1 next, and uses entry 1 next
      the driver's indices are 1 and 1; 0 entries wait for the device; an interrupt follows the next used entry
  00:04.0  1af4:1041  virtio net
    BAR 0: memory at 0xc0040000, 16384 bytes
    BAR 1: memory at 0xc0048000, 4096 bytes
    MSI-X off
    02:00:00:00:00:01, MTU 1500, 0 frames sent, 0 received frames wait
    status: ACKNOWLEDGE, DRIVER, FEATURES_OK, DRIVER_OK
    features: VERSION_1
    queue 0: 16 entries, rings at 0x318000, 0x318400 and 0x318800
      the device takes entry 0 next, and uses entry 0 next
      the driver's indices are 2 and 0; 2 entries wait for the device; no interrupt is wanted
    queue 1: off",
    // The timer of ACPI has 32 bits and interrupts when the highest bit changes.
    "\
next events
  0.000003353 s, in 0.000000536 s: the output of PIT channel 0 changes
  0.000020000 s, in 0.000017183 s, insn:20000: recorded event: console-input
  1.000000000 s, in 0.999997183 s: the real-time clock interrupts
  599.932015941 s, in 599.932013124 s: the ACPI timer interrupts",
];

#[test]
fn each_chip_and_each_device_is_shown() {
    let directory = tempfile::tempdir().unwrap();
    let mut programmed = 0;
    let code = |a: &mut CodeAssembler| {
        chips(a)?;
        devices(a)?;
        programmed = a.instructions().len() - 1;
        a.mov(ebx, 20_000)?;
        let mut top = a.create_label();
        a.set_label(&mut top)?;
        a.dec(ebx)?;
        a.jne(top)
    };
    let script = vec![(20_000, Event::ConsoleInput(b"k\"\n".to_vec()))];
    let (recording, addresses) = virtio::record(directory.path(), "r.ttvm", |_| (), code, script);
    let mut timeline = Timeline::open(&recording).unwrap();
    go_to(&mut timeline, addresses[programmed]);
    let board = Board::of(&timeline).unwrap();
    let text = board.to_string();
    for expected in CHIPS {
        let begin = expected.lines().next().unwrap();
        assert_eq!(part(&text, begin), *expected);
    }
    timeline.seek(Instructions(20_001), &mut never).unwrap();
    let board = Board::of(&timeline).unwrap();
    let serial = "serial port\n  received: \"k\\\"\\n\"; interrupts: received data, line status; \
                  waiting: received data available; line up";
    assert_eq!(part(&board.to_string(), "serial port"), serial);
    let end = timeline.end().0;
    let line = format!(", insn:{end}: the recording ends: ");
    assert!(part(&board.to_string(), "next events").contains(&line), "{board}");
}

/// The guest writes the sectors 9 and 17, and then other data to sector 9.
fn writes(a: &mut CodeAssembler, marks: &mut Vec<usize>) -> Result<(), IcedError> {
    virtio::map_registers(a)?;
    virtio::start(a, DISK, 0, &[0])?;
    let queue = Queue::of(DISK, 0);
    virtio::to_doorbell(a, queue)?;
    for (number, sector) in (0..).zip([9, 17, 9]) {
        marks.push(a.instructions().len() - 1);
        a.mov(byte_ptr(DATA), number + 1)?;
        virtio::header(a, HEADER, 1, sector)?;
        virtio::request(
            a,
            queue,
            number as u64,
            &[read(HEADER, 16), read(DATA, 512), written(DATA + 600, 1)],
        )?;
        virtio::notify(a, queue)?;
    }
    marks.push(a.instructions().len() - 1);
    a.nop()
}

#[test]
fn written_blocks_of_the_disk_differ() {
    let directory = tempfile::tempdir().unwrap();
    let mut marks = Vec::new();
    let code = |a: &mut CodeAssembler| writes(a, &mut marks);
    let (recording, addresses) = virtio::record(directory.path(), "r.ttvm", |_| (), code, Vec::new());
    let mut timeline = Timeline::open(&recording).unwrap();
    // A sector is an eighth of a block.
    for (from, to, blocks) in
        [(0, 3, &[1, 2][..]), (0, 1, &[1]), (1, 2, &[2]), (1, 3, &[1, 2]), (3, 1, &[1, 2])]
    {
        go_to(&mut timeline, addresses[marks[from]]);
        let before = Side::of(timeline.machine_mut()).unwrap();
        go_to(&mut timeline, addresses[marks[to]]);
        let difference = before.to(timeline.machine_mut(), 10).unwrap();
        assert_eq!((&difference.disk_blocks[..], difference.blocks_changed), (blocks, blocks.len()));
        let text = difference.to_string();
        let numbers: Vec<String> = blocks.iter().map(u64::to_string).collect();
        let line = format!("\n{} blocks of the disk: {}\n", blocks.len(), numbers.join(" "));
        assert!(text.contains(&line), "{text}");
        let first = before.to(timeline.machine_mut(), 1).unwrap();
        assert_eq!((&first.disk_blocks[..], first.blocks_changed), (&blocks[..1], blocks.len()));
        assert_eq!(
            first.to_string().contains("blocks of the disk: 1 ...\n"),
            blocks[0] == 1 && blocks.len() > 1
        );
    }
}

/// The first processor sends INIT and a start-up message for page 8 to the others.
#[test]
fn processors_that_have_not_started_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    let guest = (20_000, several::processors(3));
    let (recording, _) = several::record(directory.path(), "r.ttvm", guest, DENSE, None, Script(Vec::new()));
    let mut timeline = Timeline::open(&recording).unwrap();
    let mut seen: Vec<(Option<u8>, String)> = Vec::new();
    // The messages are among the first instructions, and the first turn is longer.
    for position in (0..60).chain((60..2_000).step_by(97)) {
        timeline.seek(Instructions(position), &mut never).unwrap();
        let board = Board::of(&timeline).unwrap();
        let ids: Vec<_> = board.local_apics.iter().map(|apic| (apic.processor, apic.id)).collect();
        assert_eq!(ids, [(0, 0), (1, 1), (2, 2)]);
        let apic = &board.local_apics[1];
        let first = apic.to_string().lines().next().unwrap().to_string();
        let state = (apic.startup_page, first);
        if seen.last() != Some(&state) {
            seen.push(state);
        }
        if let Some(page) = apic.startup_page {
            let line = format!("\n  a start-up message for page {page:#x} has come\n");
            assert!(apic.to_string().contains(&line), "{apic}");
        }
    }
    let begin = "processor 1, not started: local APIC 1, xAPIC";
    let disabled = format!("{begin}, disabled by software");
    let expected = [
        (None, begin.to_string()),
        (None, disabled.clone()),
        (Some(8), disabled.clone()),
        (None, disabled.replace("not started", "running")),
    ];
    assert_eq!(seen, expected);
}

//! Compares `ttvm board` with what the guest's kernel says about the same chips and devices. The kernel prints tables at
//! boot, has files in `/proc` and `/sys`, and traces the vectors of interrupts.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use history::timeline::Timeline;
use machine::config::{MachineOptions, NetworkConfig, Processors};
use machine::error::exit_code;
use machine::script::Script;
use recording::pace::CheckpointOptions;
use serde_json::{Value, json};
use tests::gdb::batch;
use tests::guests::{BUSYBOX, CLOUD, Guest, linux_options, repository, with_files};
use tests::program::{json, run};
use tests::record::{open, record_with_checkpoints};

const PROCESSORS: u8 = 3;
/// With these parameters the kernel prints the contents of its interrupt controllers, and traces the vectors that it gives
/// to interrupts.
const PARAMETERS: &str = "ignore_loglevel apic=verbose show_lapic=all dyndbg=\"file vector.c +p\" \
                          trace_event=irq_vectors:vector_config ttvm.run=/ask";
/// `LOCAL_TIMER_VECTOR` of Linux.
const TIMER_VECTOR: u64 = 0xec;
/// The kernel prints this line after the tables of its interrupt controllers.
const AFTER_TABLES: &str = "console:.................................... done.";
const ASK: &str = "#!/bin/sh
mount -t tracefs none /sys/kernel/tracing
dd if=/dev/vda of=/dev/null bs=4k count=8 2> /dev/null
echo BOARD BEGINS
sed 's/^/interrupt /' /proc/interrupts
for d in /sys/bus/pci/devices/*; do
    echo function $(basename $d) $(cat $d/vendor $d/device $d/class) messages $(ls $d/msi_irqs 2> /dev/null)
    sed \"s/^/bar $(basename $d) /\" $d/resource
done
for d in /sys/bus/virtio/devices/*; do echo virtio $(basename $(dirname $(readlink -f $d))) $(cat $d/status $d/features); done
sed -n 's/.*vector_config: /config /p' /sys/kernel/tracing/trace
sed 's/^/clock /' /proc/driver/rtc
echo BOARD ENDS
sleep 1
";

/// Records the guest as `r.ttvm` in a folder, and returns its console's text.
fn record(directory: &Path) -> String {
    let (root, initrd) = (directory.join("root"), directory.join("initrd.gz"));
    std::fs::create_dir(&root).expect("the folder is ours");
    std::fs::write(root.join("ask"), ASK).expect("the folder is ours");
    std::fs::set_permissions(root.join("ask"), Permissions::from_mode(0o755)).expect("the file is ours");
    with_files(&BUSYBOX, &root, &initrd);
    let disk = directory.join("disk.img");
    std::fs::File::create(&disk).and_then(|file| file.set_len(8 << 20)).expect("the folder is ours");
    let guest = Guest::new(&MachineOptions {
        initrd: Some(initrd),
        disk: Some(disk),
        network: Some(NetworkConfig { mac: [2, 0, 0, 0, 0, 7], mtu: 1500, segments: false }),
        processors: Processors::new(PROCESSORS).expect("a machine can have three"),
        ..linux_options(&CLOUD, &BUSYBOX, PARAMETERS, 256)
    });
    let mut script = Script::silent();
    let (path, options) = (directory.join("r.ttvm"), CheckpointOptions::default());
    record_with_checkpoints(&guest, &path, &mut script, options);
    script.text()
}

#[test]
fn the_board_is_as_the_guest_and_gdb_see_it() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let directory = directory.path();
    let console = record(directory);
    interrupt_controllers_are_as_the_kernel_prints_them(directory, &console);
    functions_and_their_interrupts_are_as_the_kernel_knows_them(directory, &console);
    timers_interrupt_at_the_times_that_the_board_shows(directory);
    gdb_and_the_program_show_the_same_board(directory);
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value} is a list"))
}

/// The position right after the last time that the guest printed a text.
fn after(directory: &Path, text: &str) -> String {
    let hits = json(directory, &["search", "r.ttvm", text, "--all", "--json"]);
    format!("insn:{}", list(&hits["hits"]).last().expect("the guest said so")["instruction"])
}

fn board(directory: &Path, at: &str) -> Value {
    json(directory, &["board", "r.ttvm", "--at", at, "--json"])
}

/// The rest of each line of the console that begins with a word.
fn lines<'a>(console: &'a str, word: &str) -> Vec<&'a str> {
    let said = console.split("BOARD BEGINS").nth(1).unwrap_or_else(|| panic!("{console}"));
    let lines = said.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
    lines.collect()
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The numbers behind a text in the kernel's messages, in hex.
fn printed(console: &str, text: &str) -> Vec<u64> {
    let found = console.lines().filter_map(|line| line.split_once(text));
    found.map(|(_, rest)| hex(rest.split_whitespace().next().expect("a number"))).collect()
}

/// The kernel reads the registers of its interrupt controllers and prints them.
fn interrupt_controllers_are_as_the_kernel_prints_them(directory: &Path, console: &str) {
    let board = board(directory, &after(directory, AFTER_TABLES));
    let pins: BTreeMap<u64, &Value> =
        list(&board["io_apic"]).iter().map(|pin| (pin["pin"].as_u64().expect("a number"), pin)).collect();
    let rows: Vec<&str> =
        console.lines().filter_map(|line| line.split_once("]  pin")).map(|(_, row)| row).collect();
    assert_eq!(rows.len(), 24, "{console}");
    for row in rows {
        let words: Vec<&str> = row.split(',').map(str::trim).collect();
        let [pin, state, trigger, polarity, vector, awaits_end, _, mode, destination, _] = words[..] else {
            panic!("{row}")
        };
        let number = |text: &str| hex(&text[text.find('(').expect("a number") + 1..text.len() - 1]);
        let Some(shown) = pins.get(&hex(pin)) else {
            assert_eq!((state, number(vector)), ("disabled", 0), "{row}");
            continue;
        };
        let expected = json!([
            state == "disabled",
            trigger == "level",
            polarity == "low",
            number(vector),
            number(awaits_end) != 0,
            mode == "logical",
            number(destination),
        ]);
        let fields = [
            "is_masked",
            "is_level_triggered",
            "is_active_low",
            "vector",
            "awaits_end",
            "is_logical",
            "destination",
        ];
        assert_eq!(Value::from_iter(fields.map(|field| shown[field].clone())), expected, "{row}");
    }
    assert!(pins.len() >= 2, "{pins:?}");
    let pair = |register: &str| {
        list(&board["pics"])
            .iter()
            .rev()
            .fold(0, |word, chip| word << 8 | chip[register].as_u64().expect("a number"))
    };
    for (text, register) in [
        ("PIC  IMR: ", "masked"),
        ("PIC  IRR: ", "requested"),
        ("PIC  ISR: ", "in_service"),
        ("PIC ELCR: ", "level_triggered"),
    ] {
        assert_eq!(printed(console, text), [pair(register)], "{register}");
    }
    local_apics_are_as_printed(console, &board);
}

fn local_apics_are_as_printed(console: &str, board: &Value) {
    let apics = list(&board["local_apics"]);
    assert_eq!(apics.len(), usize::from(PROCESSORS));
    let all = |text: &str| {
        let found = printed(console, text);
        assert_eq!(found.len(), apics.len(), "{text}");
        found
    };
    let sources = [
        ("timer", "LVTT"),
        ("performance", "LVTPC"),
        ("LINT0", "LVT0"),
        ("LINT1", "LVT1"),
        ("error", "LVTERR"),
    ];
    for (name, register) in sources {
        for (apic, entry) in apics.iter().zip(all(&format!("APIC {register}: "))) {
            let shown = list(&apic["local_sources"]).iter().find(|source| source["source"] == name);
            let shown = shown.unwrap_or_else(|| panic!("{apic}"));
            let delivery = match entry >> 8 & 7 {
                0 => "fixed",
                4 => "NMI",
                7 => "ExtINT",
                other => panic!("{register}: mode {other}"),
            };
            let expected = json!([entry & 0xff, entry >> 16 & 1 != 0, delivery]);
            assert_eq!(
                json!([shown["vector"], shown["is_masked"], shown["delivery"]]),
                expected,
                "{register}"
            );
        }
    }
    for (apic, id) in apics.iter().zip(all("APIC ID:      ")) {
        assert_eq!((apic["id"].as_u64(), &apic["mode"]), (Some(id >> 24), &json!("xAPIC")));
    }
    for (apic, logical) in apics.iter().zip(all("APIC LDR: ")) {
        assert_eq!(apic["logical_id"], logical >> 24);
    }
    for (apic, timer) in apics.iter().zip(all("APIC LVTT: ")) {
        let modes = ["one-shot", "periodic", "TSC-deadline"];
        assert_eq!(apic["timer"]["mode"], modes[timer as usize >> 17 & 3]);
    }
    for (apic, software) in apics.iter().zip(all("APIC SPIV: ")) {
        assert_eq!(apic["is_software_enabled"], software & 0x100 != 0);
    }
    for (apic, priority) in apics.iter().zip(all("APIC TASKPRI: ")) {
        assert_eq!(apic["task_priority"], priority);
    }
}

/// The kernel's files describe the same PCI functions, and the kernel's trace has the vector of each interrupt.
fn functions_and_their_interrupts_are_as_the_kernel_knows_them(directory: &Path, console: &str) {
    let board = board(directory, &after(directory, "console:BOARD ENDS"));
    let functions = list(&board["functions"]);
    let said = lines(console, "function");
    assert_eq!((functions.len(), said.len()), (5, 5), "{said:?}");
    // The vectors of interrupts: the last line about an interrupt holds.
    let field = |line: &str, name: &str| -> u64 {
        let value =
            line.split(' ').find_map(|word| word.strip_prefix(name)).unwrap_or_else(|| panic!("{line}"));
        value.parse().unwrap_or_else(|error| panic!("{line}: {error}"))
    };
    let configured: BTreeMap<u64, (u64, u64)> = lines(console, "config")
        .into_iter()
        .map(|line| (field(line, "irq="), (field(line, "vector="), field(line, "cpu="))))
        .collect();
    let mut messages_seen = 0;
    for (function, said) in functions.iter().zip(said) {
        let words: Vec<&str> = said.split(' ').collect();
        let [address, vendor, device, class, "messages", ref irqs @ ..] = words[..] else { panic!("{said}") };
        assert_eq!(format!("0000:{}", function["address"].as_str().unwrap()), address);
        let ids = format!("{:04x}:{:04x}", hex(vendor), hex(device));
        assert_eq!((&function["ids"], &function["class"]), (&json!(ids), &json!(&class[2..])));
        let bars = lines(console, &format!("bar {address}"));
        let bars: Vec<Value> = bars
            .iter()
            .take(6)
            .enumerate()
            .map(|(number, bar)| (number, bar.split(' ').map(hex).collect::<Vec<_>>()))
            .filter(|(_, bar)| bar[1] != 0)
            .map(|(number, bar)| json!([number, format!("{:#x}", bar[0]), bar[1] - bar[0] + 1]))
            .collect();
        let shown = list(&function["bars"]).iter();
        let shown: Vec<Value> =
            shown.map(|bar| json!([bar["number"], bar["address"], bar["bytes"]])).collect();
        assert_eq!(shown, bars, "{address}");
        for (irq, message) in irqs.iter().zip(function["msix"]["messages"].as_array().into_iter().flatten()) {
            let irq: u64 = irq.parse().expect("a number");
            let (vector, processor) = configured[&irq];
            let shown =
                json!([message["irq"], message["vector"], message["processors"], message["is_masked"]]);
            assert_eq!(shown, json!([irq, vector, [processor], false]), "{message}");
            assert_eq!(interrupt_names(console, irq), names(message), "{message}");
            messages_seen += 1;
        }
    }
    assert_eq!(messages_seen, 10);
    for pin in list(&board["io_apic"]) {
        let (vector, processor) = configured[&pin["irq"].as_u64().expect("each used pin has an interrupt")];
        assert_eq!(json!([pin["vector"], pin["processors"]]), json!([vector, [processor]]), "{pin}");
        assert_eq!(interrupt_names(console, pin["irq"].as_u64().unwrap()), names(pin), "{pin}");
    }
    virtio_is_as_the_kernel_knows_it(console, functions);
    clock_is_as_the_kernel_reads_it(console, &board["rtc"]);
}

/// The names of an interrupt's handlers, from `/proc/interrupts`.
fn interrupt_names(console: &str, irq: u64) -> Vec<String> {
    let lines = lines(console, "interrupt");
    let line = lines.iter().find_map(|line| line.trim().strip_prefix(&format!("{irq}:")));
    let line = line.unwrap_or_else(|| panic!("there is no interrupt {irq}: {lines:?}"));
    let (_, names) =
        line.split_once("-edge").or(line.split_once("-fasteoi")).expect("the interrupt has a trigger");
    names.trim().split(", ").map(str::to_string).collect()
}

fn names(shown: &Value) -> Vec<String> {
    let handlers = list(&shown["handlers"]).iter();
    let named = handlers.inspect(|handler| assert!(handler["function"].is_string(), "{handler}"));
    named.map(|handler| handler["name"].as_str().expect("a name").to_string()).collect()
}

fn virtio_is_as_the_kernel_knows_it(console: &str, functions: &[Value]) {
    // The numbers of some features in VIRTIO 1.2.
    let numbers = |kind: &str| -> &'static [(usize, &'static str)] {
        match kind {
            "block" => &[
                (1, "SIZE_MAX"),
                (2, "SEG_MAX"),
                (6, "BLK_SIZE"),
                (9, "FLUSH"),
                (13, "DISCARD"),
                (14, "WRITE_ZEROES"),
            ],
            "net" => &[(0, "CSUM"), (3, "MTU"), (5, "MAC"), (15, "MRG_RXBUF"), (16, "STATUS")],
            "console" => &[(0, "SIZE"), (2, "EMERG_WRITE")],
            _ => &[],
        }
    };
    let of_all = [(28, "INDIRECT_DESC"), (29, "EVENT_IDX"), (32, "VERSION_1"), (40, "RING_RESET")];
    let said = lines(console, "virtio");
    assert_eq!(said.len(), 4, "{said:?}");
    for line in said {
        let [address, status, features] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let function =
            functions.iter().find(|function| address.ends_with(function["address"].as_str().unwrap()));
        let virtio = &function.unwrap_or_else(|| panic!("{line}"))["virtio"];
        assert_eq!((status, list(&virtio["status"]).len()), ("0x0000000f", 4), "{virtio}");
        let accepted = features.bytes().enumerate().filter(|(_, digit)| *digit == b'1').map(|(bit, _)| bit);
        let kind = virtio["kind"].as_str().expect("a kind");
        let name = |bit: usize| {
            let known = numbers(kind).iter().chain(&of_all).find(|(number, _)| *number == bit);
            known.unwrap_or_else(|| panic!("{kind} has bit {bit}")).1
        };
        assert_eq!(virtio["features"], Value::from_iter(accepted.map(name)), "{line}");
        for queue in list(&virtio["queues"]) {
            let ring = &queue["ring"];
            let waiting = (ring["available_index"].as_u64(), queue["next_available"].as_u64());
            let waiting = waiting.0.zip(waiting.1).map(|(wrote, taken)| wrote.wrapping_sub(taken) & 0xffff);
            assert_eq!(
                (ring["waiting"].as_u64(), &ring["used_index"]),
                (waiting, &queue["next_used"]),
                "{queue}"
            );
        }
    }
    let queue = |slot: usize, number: usize| &functions[slot]["virtio"]["queues"][number];
    // The disk has read the blocks, and nothing waits. The network card has buffers for frames.
    assert!(queue(1, 0)["next_used"].as_u64() > Some(0) && queue(1, 0)["ring"]["waiting"] == 0);
    assert!(queue(4, 0)["ring"]["waiting"].as_u64() > Some(100));
    let device = &functions[4]["virtio"]["device"];
    assert_eq!(json!([device["mac"], device["mtu"]]), json!(["02:00:00:00:00:07", 1500]));
    assert_eq!(functions[1]["virtio"]["device"]["bytes"], 8 << 20);
}

fn clock_is_as_the_kernel_reads_it(console: &str, shown: &Value) {
    let said: BTreeMap<&str, &str> = lines(console, "clock")
        .into_iter()
        .filter_map(|line| line.split_once(':').map(|(name, value)| (name.trim(), value.trim())))
        .collect();
    // Between reading the clock and the end of the text, a second may begin.
    let date = shown["date"].as_str().expect("a date");
    let read = format!("{} {}", said["rtc_date"], said["rtc_time"]);
    assert!(date >= read.as_str() && date[..16] == read[..16], "{date} {read}");
    let enabled = ["alarm_IRQ", "update IRQ enabled", "periodic IRQ enabled"].map(|name| said[name] == "yes");
    let fields =
        json!([shown["alarm"]["is_enabled"], shown["is_update_enabled"], shown["is_periodic_enabled"]]);
    assert_eq!(fields, json!(enabled));
    assert_eq!(shown["alarm"]["at"], said["alrm_time"]);
}

/// Before each interrupt of a local APIC's timer, the board must show the timer's time. After the delivery, the
/// interrupt is in service.
fn timers_interrupt_at_the_times_that_the_board_shows(directory: &Path) {
    let from = after(directory, "console:BOARD ENDS");
    let condition = format!("vector:{TIMER_VECTOR}");
    let search = ["search", "r.ttvm", &condition, "--all", "--from", &from, "--limit", "4", "--json"];
    let found = json(directory, &search);
    let mut expected = 0;
    for hit in list(&found["hits"]) {
        let (at, processor) = (hit["instruction"].as_u64().unwrap(), hit["processor"].as_u64().unwrap());
        let taken = hit["guest_seconds"].as_f64().expect("a time");
        let board_at = |at: u64| board(directory, &format!("insn:{at}"));
        let has = |board: &Value, set: &str| {
            let apic = &board["local_apics"][processor as usize];
            list(&apic[set]).iter().any(|shown| shown["vector"] == TIMER_VECTOR)
        };
        let (before, behind) = (board_at(at - 1), board_at(at + 1));
        assert!(has(&behind, "in_service") && !has(&before, "in_service"), "{hit}");
        if has(&before, "requested") {
            continue;
        }
        let timer = format!(
            "the timer of processor {processor} expires: vector {TIMER_VECTOR}, asm_sysvec_apic_timer"
        );
        let event = list(&before["next_events"])
            .iter()
            .find(|event| event["what"].as_str().is_some_and(|what| what.starts_with(&timer)));
        let event = event.unwrap_or_else(|| panic!("{hit}: {}", before["next_events"]));
        let expires = event["guest_seconds"].as_f64().expect("a time");
        assert!(expires <= taken && taken < expires + 0.001, "{event} {hit}");
        let in_ns = event["in_ns"].as_f64().expect("a number");
        let now = before["guest_seconds"].as_f64().expect("a time");
        assert!((now + in_ns / 1e9 - expires).abs() < 1e-6, "{event}");
        expected += 1;
    }
    assert!(expected > 0, "{found}");
}

/// gdb must show the same text as the program. A position at which nothing is set up must be no problem.
fn gdb_and_the_program_show_the_same_board(directory: &Path) {
    let (code, text, _) = run(directory, &["board", "r.ttvm", "--at", "insn:200000000"]);
    assert_eq!(code, Some(exit_code::DONE));
    let commands = [
        format!("source {}", repository().join("gdb/commands/tt.py").display()),
        "tt goto 200000000".to_string(),
        "tt board".to_string(),
        "tt goto start".to_string(),
        "tt board".to_string(),
    ];
    let mut timeline =
        Timeline::open(&open(&directory.join("r.ttvm"))).unwrap_or_else(|error| panic!("{error}"));
    let said = batch::serve(&mut timeline, directory, |socket| {
        let mut gdb = batch::gdb();
        batch::attach(&mut gdb, socket, &commands);
        gdb
    });
    assert!(said.contains(text.trim_end()), "{said}\n{text}");
    assert!(said.contains("processor 2, not started: local APIC 2, xAPIC"), "{said}");
}

//! Tests `ttvm object` with real kernels. Who allocated and freed an object must be as the guest's own tracer (ftrace)
//! printed it during the same run. A use after a free must be explained by two commands.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use history::timeline::{Stops, Timeline};
use machine::Outcome;
use machine::config::MachineOptions;
use machine::error::Error;
use machine::position::Instructions;
use machine::script::Script;
use serde_json::Value;
use tests::gdb::batch;
use tests::guests::{
    Artefact, BUGS, BUSYBOX, CLOUD, CLOUD_ELF, Guest, SID, linux_options, repository, with_files,
};
use tests::program::{json, run};
use tests::record::{open, record};
use tests::run::last_lines;
use views::object::{Event, Object, Place, Question, When};

/// Prints the allocations and frees of some commands after a line with a mark.
const SCRIPT: &str = "#!/bin/sh
mount -t tracefs none /sys/kernel/tracing
cd /sys/kernel/tracing
echo 20000 > buffer_size_kb
for e in kmem_cache_alloc kmalloc kmem_cache_free kfree mm_page_alloc mm_page_free; do
    echo 1 > events/kmem/$e/enable
done
cat /init /nowhere > /dev/null
(sleep 0.02; ls -l /proc > /dev/null) &
ls / | sort | tail -n 2 > /tmp/x
wait
echo 0 > tracing_on
echo TRACE BEGINS
cat trace
echo TRACE ENDS
";
/// The largest number of objects, and of pages, whose lives are compared.
const COMPARED: usize = 12;
/// The least number of objects, and of pages, that must have been compared.
const LEAST: usize = 4;
/// The largest number of events of an object that is compared.
const MOST_EVENTS: usize = 24;

/// An allocation or a free: whether it is an allocation, the thread, and the place of the call.
type Traced = (bool, u64, String);

fn record_traced(directory: &Path, kernel: &Artefact, initrd: &Artefact) -> String {
    let (root, to) = (directory.join("root"), directory.join("initrd.gz"));
    std::fs::create_dir(&root).expect("the folder is ours");
    std::fs::write(root.join("ask"), SCRIPT).expect("the folder is ours");
    std::fs::set_permissions(root.join("ask"), Permissions::from_mode(0o755)).expect("the file is ours");
    with_files(initrd, &root, &to);
    let options = linux_options(kernel, initrd, "no_hash_pointers ttvm.run=/ask", 256);
    let guest = Guest::new(&MachineOptions { initrd: Some(to), ..options });
    let mut script = Script::silent();
    record(&guest, &directory.join("r.ttvm"), &mut script);
    script.text().to_string()
}

/// The events of a trace, by the address of the object, or by the physical address of the page. A line looks like this:
/// `cat-91 [000] ..... 1.6: kfree: call_site=seq_release+0x1d/0x30 ptr=ffff8a7e01293000`.
fn read_trace(console: &str) -> BTreeMap<String, Vec<Traced>> {
    let trace = console.split("TRACE BEGINS").nth(1).and_then(|rest| rest.split("TRACE ENDS").next());
    let trace = trace.unwrap_or_else(|| panic!("there is no trace: {console}"));
    let mut found: BTreeMap<String, Vec<Traced>> = BTreeMap::new();
    for line in trace.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (head, what) = line.split_once(": ").unwrap_or_else(|| panic!("{line}"));
        let pid = head.split(" [").next().and_then(|thread| thread.trim().rsplit_once('-'));
        let pid = pid.and_then(|(_, pid)| pid.parse().ok()).unwrap_or_else(|| panic!("{line}"));
        let (event, fields) = what.split_once(": ").unwrap_or_else(|| panic!("{line}"));
        let field = |name: &str| {
            let value = fields.split(&format!("{name}=")).nth(1)?;
            // The place of a call in a module has a blank before the module's name.
            Some(
                value
                    .split(" ptr=")
                    .next()?
                    .split(if name == "call_site" { "\n" } else { " " })
                    .next()?
                    .to_string(),
            )
        };
        let (address, place) = match (field("ptr"), field("pfn")) {
            (Some(pointer), _) => (format!("0x{pointer}"), field("call_site").unwrap_or_default()),
            (None, Some(frame)) if field("order").as_deref() == Some("0") => {
                let frame = u64::from_str_radix(frame.trim_start_matches("0x"), 16);
                (format!("phys:{:#x}", frame.unwrap_or_else(|_| panic!("{line}")) << 12), String::new())
            }
            _ => continue,
        };
        found.entry(address).or_default().push((!event.contains("free"), pid, place));
    }
    found
}

/// Whether a trace has complete lives only.
fn alternates(events: &[Traced]) -> bool {
    (3..=MOST_EVENTS).contains(&events.len()) && events.windows(2).all(|pair| pair[0].0 != pair[1].0)
}

/// The answer about an object or a page. `None` if its memory has another use at this position.
fn ask(timeline: &mut Timeline, at: Instructions, address: &str, is_page: bool) -> Option<Object> {
    timeline.seek(at, &mut || false).unwrap_or_else(|error| panic!("{error}"));
    let question = Question { address, processor: None, earlier: MOST_EVENTS, count: false };
    let answer = question.answer(timeline, &mut || false);
    if let Err(Error::Position(_)) = answer {
        return None;
    }
    let object = answer.unwrap_or_else(|error| panic!("{address}: {error}"));
    let is_same_use = match object.place {
        Place::Object { offset, .. } => !is_page && offset == 0,
        Place::Pages { .. } => is_page,
    };
    is_same_use.then_some(object)
}

/// The allocations and frees of an answer before its position that the tracer prints. The tracer does not print the
/// objects of an array, and the objects that wait for a grace period.
fn events(object: &Object) -> Vec<(bool, &Event)> {
    let lives = object.lives.iter().filter(|life| life.when != When::Later);
    let all = lives.flat_map(|life| [(true, life.allocated.as_ref()), (false, life.freed.as_ref())]);
    let found = all.filter_map(|(is_allocation, event)| Some((is_allocation, event?)));
    let is_traced = |event: &Event| !["bulk", "kfree_rcu"].iter().any(|part| event.function.contains(part));
    let is_before = |event: &Event| event.at.instruction < object.at.instruction;
    found.filter(|(_, event)| is_before(event) && is_traced(event)).collect()
}

/// Whether an event is the traced event. Functions such as `kmemdup` hand their own caller on to the allocator.
fn is_it((is_allocation, event): &(bool, &Event), traced: &Traced) -> bool {
    let (was_allocation, pid, place) = traced;
    let hands_on = event.function.contains("track_caller");
    let callers = if hands_on { &event.callers[..] } else { &event.callers[..1.min(event.callers.len())] };
    is_allocation == was_allocation
        && event.at.pid.map(u64::from) == Some(*pid)
        && (place.is_empty() || callers.contains(place))
}

fn is_as_traced(kernel: &Artefact, initrd: &Artefact) {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let console = record_traced(directory.path(), kernel, initrd);
    let traced = read_trace(&console);
    let path = directory.path().join("r.ttvm");
    let mut timeline = Timeline::open(&open(&path)).unwrap_or_else(|error| panic!("{error}"));
    timeline.set_stops(Stops { console: Some(b"TRACE BEGINS".to_vec()), ..Stops::default() });
    timeline.run_forward(&mut || false).unwrap_or_else(|error| panic!("{error}"));
    let at = timeline.position();
    // One object for each place that allocates, so that the objects belong to different caches.
    let mut chosen: BTreeMap<&str, &String> = BTreeMap::new();
    let mut pages: Vec<&String> = Vec::new();
    for (address, events) in traced.iter().filter(|(_, events)| alternates(events)) {
        match events.iter().find(|event| event.0) {
            Some((_, _, place)) if place.is_empty() => pages.push(address),
            Some((_, _, place)) => {
                chosen.entry(place).or_insert(address);
            }
            None => {}
        }
    }
    assert!(chosen.len() > 8 && pages.len() > 3, "{} {}: {console}", chosen.len(), pages.len());
    let objects = chosen.into_values().map(|address| (address, false));
    let pages = pages.into_iter().map(|address| (address, true));
    for all in [objects.collect::<Vec<_>>(), pages.collect()] {
        let mut compared = 0;
        for (address, is_page) in all {
            let Some(object) = ask(&mut timeline, at, address, is_page) else { continue };
            let expected = &traced[address];
            let found = events(&object);
            let is_same = |part: &[(bool, &Event)]| {
                part.iter().zip(expected).all(|(event, traced)| is_it(event, traced))
            };
            let is_there = found.windows(expected.len()).any(is_same);
            assert!(is_there, "{address}:\n{expected:?}\nis not in\n{object}");
            compared += 1;
            if compared == COMPARED {
                break;
            }
        }
        assert!(compared >= LEAST, "{compared} were compared");
    }
}

#[test]
fn lives_of_objects_and_pages_are_as_the_guest_traced_them() {
    is_as_traced(&CLOUD, &BUSYBOX);
}

#[test]
fn lives_of_objects_and_pages_are_as_a_newer_guest_traced_them() {
    let [kernel, busybox] = &SID;
    if !kernel.exists() {
        return skip::test("the kernel is not there; guest-images/newer-kernels says why");
    }
    is_as_traced(kernel, busybox);
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} of {value}"))
}

/// Whether one of an event's callers is this function of the module with the bug.
fn is_called_by(event: &Value, function: &str) -> bool {
    let callers = event["callers"].as_array().unwrap_or_else(|| panic!("{event}"));
    let begin = format!("{function}+");
    callers
        .iter()
        .filter_map(Value::as_str)
        .any(|caller| caller.starts_with(&begin) && caller.ends_with(" [desk]"))
}

/// In the bug `stale-object`, `hang_up` frees a caller that is still in a list, and `pin` gets the memory for a note.
#[test]
fn two_commands_explain_a_use_after_a_free() {
    if !BUGS.exists() {
        return skip::test("there is no guest with bugs; guest-images/bugs/build says why");
    }
    let directory = tempfile::tempdir().expect("a temporary folder");
    let path = directory.path().join("r.ttvm");
    let common = std::fs::read_to_string(repository().join("guest-images/bugs/cmdline"));
    let parameters = format!("{} bug=stale-object", common.expect("the parameters for all bugs").trim());
    let mut script = Script::silent();
    let (_, end) =
        record(&Guest::new(&linux_options(&CLOUD_ELF, &BUGS, &parameters, 128)), &path, &mut script);
    assert_eq!(end.outcome, Outcome::Panic, "{}", last_lines(&script));
    // The wrong pointer was copied from the object to RAX.
    let origin =
        json(directory.path(), &["who-set", "r.ttvm", "rax", "--at", "fault", "--limit", "1", "--json"]);
    let object =
        json(directory.path(), &["object", "r.ttvm", "*waiting", "--at", "fault", "--count", "--json"]);
    assert_eq!(text(&object["place"], "cache"), "desk_cards", "{object}");
    assert_eq!(object["allocated"], true, "{object}");
    let base = text(&object["place"], "base");
    assert!(origin.to_string().contains(&base[2..base.len() - 2]), "{origin} is not about {base}");
    let lives = object["lives"].as_array().expect("a list");
    let [earlier, now] = &lives[..] else { panic!("{object}") };
    assert_eq!((text(earlier, "when"), text(now, "when")), ("earlier", "now"), "{object}");
    assert!(is_called_by(&earlier["allocated"], "call"), "{object}");
    assert!(is_called_by(&earlier["freed"], "hang_up"), "{object}");
    assert!(is_called_by(&now["allocated"], "pin") && now.get("freed").is_none(), "{object}");
    let name = format!("desk_cards@insn:{}", now["allocated"]["instruction"]);
    assert_eq!(text(now, "name"), name);
    assert_eq!((earlier["number"].as_u64(), now["number"].as_u64()), (Some(1), Some(2)), "{object}");

    // The name leads to the same object, also at the position of its allocation, and before its free.
    let allocated = earlier["allocated"]["instruction"].as_u64().expect("a position");
    let at = format!("insn:{allocated}");
    let first = json(directory.path(), &["object", "r.ttvm", base, "--at", &at, "--earlier", "0", "--json"]);
    let lives = first["lives"].as_array().expect("a list");
    assert_eq!(lives[0]["name"], earlier["name"], "{first}");
    assert_eq!(
        (lives[0]["freed"].clone(), lives[1]["name"].clone()),
        (earlier["freed"].clone(), now["name"].clone())
    );
    let at = format!("insn:{}", allocated - 1);
    let before = json(directory.path(), &["object", "r.ttvm", base, "--at", &at, "--json"]);
    assert_eq!(before["allocated"], false, "{before}");
    assert!(before["pages_allocated"]["instruction"].as_u64() < Some(allocated), "{before}");

    for (arguments, sentence) in [
        (&["object", "r.ttvm", "no_such_symbol"][..], "is no address: write"),
        (&["object", "r.ttvm", "0x10"], "is not mapped at this position"),
        (&["object", "r.ttvm", "0xffff888000000000", "--at", "start"], "there is no object to show"),
    ] {
        let (code, out, told) = run(directory.path(), arguments);
        assert!(code != Some(0) && told.contains(sentence), "{arguments:?}: {code:?} {out} {told}");
    }

    let mut timeline = Timeline::open(&open(&path)).unwrap_or_else(|error| panic!("{error}"));
    let commands = [
        format!("source {}", repository().join("gdb/commands/tt.py").display()),
        "tt goto end".to_string(),
        "tt goto fault".to_string(),
        format!("tt object {base}"),
        "tt object $rsp".to_string(),
    ];
    let said = batch::serve(&mut timeline, directory.path(), |socket| {
        let mut gdb = batch::gdb();
        batch::attach(&mut gdb, socket, &commands);
        gdb
    });
    let lines =
        [format!("now: {name}"), format!("earlier: {}", text(earlier, "name")), " of a page at ".to_string()];
    for line in lines {
        assert!(said.contains(&line), "{line} is not in {said}");
    }
}

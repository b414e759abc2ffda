//! Commands about positions, searches, marks, memory and settings.

use gdb::{DebugTarget, FIRST_CPU, Stop};
use history::timeline::Timeline;
use machine::inputs::Event;
use tiny_guest::linux::{CALLS, TEXT};
use tiny_guest::record_asleep;

use crate::guest::{Asked, CALLS_MADE, Guest, linux, linux_that_calls, several, tiny};

/// The position of the first system call, and the steps from each call to the next.
const FIRST_CALL: u64 = 41;
const CALL_STEPS: u64 = 96;
/// The steps from a call to its write of the word `calls`.
const TO_WRITE: u64 = 50;
const END: u64 = 519;

/// The guest in its second system call, at a thread switch.
fn in_second_call() -> Guest {
    let mut guest = linux();
    guest.go_to("__switch_to");
    guest.go_to("__switch_to");
    assert_eq!(guest.go_to("__switch_to").0, 177);
    guest
}

fn when(at: u64, branches: u64) -> String {
    format!("instruction {at} of {END}, branch {branches}, 0.{at:09} s guest time\n")
}

#[test]
fn positions_are_told() {
    let mut guest = in_second_call();
    let mut target = guest.target();
    assert_eq!(target.ask("when"), when(177, 2));
    assert_eq!(target.ask(" when "), when(177, 2));
    assert_eq!(target.ask("end"), "the recording ends at instruction 519\n");
    assert_eq!(target.ask("position"), "177 519 0\n");
    target.write_memory(FIRST_CPU, CALLS, &[9]).unwrap();
    assert_eq!(target.ask("position"), "177 519 1\n");
    let told = target.ask("when");
    assert!(told.ends_with(" s guest time, in a scratch fork begun at instruction 177\n"), "{told}");
}

#[test]
fn with_several_processors_positions_name_one() {
    let mut guest = several();
    guest.go_to("__switch_to");
    let mut target = guest.target();
    let told = target.ask("when");
    assert_eq!(told, "instruction 100011 of 300065, branch 0, 0.000100011 s guest time, on processor 0\n");
    assert_eq!(target.ask("position"), "100011 300065 0 1\n");
    target.ask("back-to write counted");
    assert_eq!(target.ask("position"), "99999 300065 0 2\n");
    assert!(target.ask("when").ends_with(", on processor 1\n"));
    let list = target.ask("traps syscall");
    assert!(list.starts_with("hit:0    insn:309 ") && list.contains("  on processor 0\n"), "{list}");
}

#[test]
fn goto_goes_to_places_of_every_kind() {
    let mut guest = in_second_call();
    let mut target = guest.target();
    assert_eq!(target.ask("goto start"), when(0, 0));
    assert_eq!(target.ask("goto end"), when(END, 10));
    assert_eq!(target.ask("goto 81"), when(81, 0));
    assert_eq!(target.ask("goto +3"), when(84, 0));
    assert_eq!(target.ask("goto syscall:2"), when(FIRST_CALL + CALL_STEPS + 1, 2));
    assert_eq!(target.ask("mark here"), "mark:here is instruction 138\n");
    target.ask("goto start");
    target.ask("mark begin");
    assert_eq!(target.ask("mark"), "mark:begin            insn:0\nmark:here             insn:138\n");
    assert_eq!(target.after("goto mark:here"), 138);
    assert_eq!(target.ask("mark two words"), "error: a mark's name is one word\n");
    for (place, why) in [
        ("mark:x", "there is no mark 'x'"),
        ("hit:0", "the last list has no hit 0: it has 0"),
        ("hit:x", "the last list has no hit x: it has 0"),
        ("520", "the recording ends before instruction 520: it has 519"),
    ] {
        assert_eq!(target.ask(&format!("goto {place}")), format!("error: {why}\n"));
    }
    assert!(target.ask("goto nonsense").starts_with("error: 'nonsense' is not a position: write "));
    assert_eq!(target.position(), 138);
}

#[test]
fn goto_says_where_the_guest_idles_but_not_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let script = vec![(2_000_000, Event::PowerButton), (3_000_000, Event::Limit)];
    let (recording, _) = record_asleep(directory.path(), "r.ttvm", script);
    let mut timeline = Timeline::open_with(&recording, 1).unwrap();
    let mut target = gdb_server::GdbTarget::new(&mut timeline);
    assert!(target.ask("goto event:1").ends_with("The guest idles here: event:1 is at 0.002000000 s.\n"));
    assert!(!target.ask("goto start").contains("idles"));
    assert!(!target.ask("goto 3").contains("idles"));
}

#[test]
fn goto_leaves_a_fork_and_says_so() {
    let mut guest = in_second_call();
    let mut target = guest.target();
    target.write_memory(FIRST_CPU, CALLS, &[9]).unwrap();
    let refusal =
        "a position in a scratch fork cannot have a name: leave the fork first, with 'monitor back'";
    assert_eq!(target.ask("mark x"), format!("error: {refusal}\n"));
    assert_eq!(target.ask("goto 100"), format!("The scratch fork is gone.\n{}", when(100, 0)));
    assert_eq!(target.word(CALLS), 1);
    assert_eq!(target.ask("goto 101"), when(101, 0));
    let none = "error: this is the recorded history: there is no fork to come back from\n";
    assert_eq!(target.ask("back"), none);
    target.write_memory(FIRST_CPU, CALLS, &[9]).unwrap();
    assert_eq!(target.ask("back"), format!("back in the recorded history: {}", when(101, 0)));
    assert_eq!(target.take_message(), None, "the message is about a fork that no longer exists");
}

#[test]
fn a_change_is_told_once_with_its_place() {
    let mut guest = in_second_call();
    let mut target = guest.target();
    target.write_memory(FIRST_CPU, CALLS, &[9]).unwrap();
    target.ask("position");
    assert_eq!(target.take_message(), None, "no person sees the answer to a script");
    let message = target.take_message().unwrap();
    let expected = "This is now a scratch fork of the recording, begun at instruction 177: nothing comes in from \
                    outside, and it only goes forward. 'monitor back' returns to the recorded history here.";
    assert_eq!(message, expected);
    target.write_memory(FIRST_CPU, CALLS, &[8]).unwrap();
    assert_eq!(target.take_message(), None);
    let mut registers = target.registers();
    registers.r15 = 77;
    target.write_registers(FIRST_CPU, &registers).unwrap();
    assert_eq!((target.take_message(), target.registers().r15), (None, 77));
    target.ask("back");
    let unchanged = target.registers();
    target.write_registers(FIRST_CPU, &unchanged).unwrap();
    assert_eq!((target.take_message(), target.ask("when")), (None, when(177, 2)));
    target.write_registers(FIRST_CPU, &registers).unwrap();
    assert_eq!(target.take_message().unwrap(), expected);
}

#[test]
fn a_goto_can_be_interrupted() {
    let (_directory, mut timeline) = tiny(2_000_000);
    let mut target = gdb_server::GdbTarget::new(&mut timeline);
    let answer = target.monitor("goto 19000000", &mut || true).unwrap();
    assert!(answer.starts_with("Interrupted on the way.\ninstruction "), "{answer}");
    let stopped_at = target.position();
    assert!(stopped_at < 19_000_000);
    let answer = target.monitor("forward-to call 0xffffffff", &mut || true).unwrap();
    assert!(answer.starts_with("interrupted\ninstruction "), "{answer}");
    let answer = target.monitor("search call 0xffffffff", &mut || true).unwrap();
    assert!(answer.ends_with("\nafter: interrupted\n"), "{answer}");
    let answer = target.monitor("traps call 0xffffffff", &mut || true).unwrap();
    assert!(answer.starts_with("interrupted: the places after insn:"), "{answer}");
}

#[test]
fn movements_go_to_the_last_or_next_event() {
    let mut guest = in_second_call();
    let mut target = guest.target();
    let write = |at: u64, branches| format!("write to {CALLS:#x} <calls>\n{}", when(at, branches));
    let first_write = FIRST_CALL + TO_WRITE;
    let second_write = first_write + CALL_STEPS;
    let second_call = FIRST_CALL + CALL_STEPS;
    for (command, answer) in [
        ("back-to syscall", format!("system call 0 (read)\n{}", when(second_call, 2))),
        ("back-to syscall", format!("system call 1 (write)\n{}", when(FIRST_CALL, 0))),
        ("forward-to write calls", write(first_write + 1, 0)),
        ("forward-to change calls", write(second_write + 1, 2)),
        ("back-to change calls", write(second_write, 2)),
        ("back-to access calls", write(first_write, 0).replace("write to", "access to")),
        ("forward-to access calls", write(first_write + 1, 0).replace("write to", "access to")),
        ("back-to read calls 8", format!("read of {CALLS:#x} <calls>\n{}", when(first_write, 0))),
        ("forward-to syscall write", format!("system call 1 (write)\n{}", when(234, 4))),
        ("forward-to syscall 0", format!("system call 0 (read)\n{}", when(330, 6))),
        ("back-to vector:14", format!("vector 14\n{}", when(266, 4))),
    ] {
        assert_eq!(target.ask(command), answer, "{command}");
    }
    let beta = target.ask("back-to call __switch_to comm:beta");
    assert!(beta.contains(" <__switch_to>\ninstruction 183 of "), "{beta}");
    let alpha = target.ask("forward-to call __switch_to pid:5");
    assert!(alpha.contains(" <__switch_to>\ninstruction 273 of "), "{alpha}");
    let alpha = target.ask("forward-to call __switch_to cpu:0");
    assert!(alpha.contains("\ninstruction 279 of "), "{alpha}");
}

#[test]
fn a_search_in_vain_leaves_the_position() {
    let mut guest = in_second_call();
    let mut target = guest.target();
    let back = "not found between here and the start of the recording; the position is unchanged\n";
    assert_eq!(target.ask("back-to interrupt"), back.to_string() + &when(177, 2));
    let forward = "not found between here and the end; the position is unchanged\n";
    assert_eq!(target.ask("forward-to interrupt 32"), forward.to_string() + &when(177, 2));
    for (what, why) in [
        ("call nowhere", "'nowhere' is neither a number nor a symbol of the guest's kernel"),
        ("syscall longer:1ns", "only `ttvm search` takes the filter longer:"),
        ("syscall cpu:1", "there is no processor 1: this machine has only processor 0"),
    ] {
        assert_eq!(target.ask(&format!("forward-to {what}")), format!("error: {why}\n"));
    }
    for what in ["call decoy calls", "write 1 0", "interrupt 256", "syscall read write"] {
        let answer = target.ask(&format!("forward-to {what}"));
        assert!(answer.starts_with(&format!("error: '{what}' is no condition: ")), "{answer}");
    }
    assert_eq!(target.position(), 177);
}

#[test]
fn searches_do_not_change_gdbs_breakpoints() {
    let mut guest = in_second_call();
    let (decoy, body) = (guest.kernel.address_of("decoy"), guest.kernel.address_of("do_syscall_64"));
    let mut target = guest.target();
    target.break_at(decoy);
    for command in ["back-to syscall", "traps write calls", "search syscall", "who-set rax", "calls decoy"] {
        target.ask("goto 177");
        target.ask(command);
        assert_eq!(target.forward(), Stop::Breakpoint(decoy), "{command}");
    }
    for command in ["values calls", "tree 100 200", "diff 100 200"] {
        target.ask("goto 177");
        target.ask(command);
        assert_eq!(target.position(), 177, "{command}");
        assert_eq!(target.forward(), Stop::Breakpoint(decoy), "{command}");
    }
    target.clear_breakpoint(decoy);
    target.break_at(body);
    assert_eq!(target.forward(), Stop::Breakpoint(body));
}

#[test]
fn traps_lists_hits_and_goto_goes_to_them() {
    let mut guest = in_second_call();
    let mut target = guest.target();
    let row = |number: u64, name: &str| {
        let at = FIRST_CALL + number * CALL_STEPS;
        let call = if name == "write" { 1 } else { 0 };
        format!("hit:{number:<4} insn:{at:<14} system call {call} ({name})\n")
    };
    let calls = ["write", "read", "write", "read", "write"];
    let rows: String = (0..).zip(calls).map(|(number, name)| row(number, name)).collect();
    assert_eq!(target.ask("traps syscall"), rows + "goto hit:N goes to one\n");
    assert_eq!(target.after("goto hit:3"), FIRST_CALL + 3 * CALL_STEPS);
    assert_eq!(target.ask("goto hit:5"), "error: the last list has no hit 5: it has 5\n");
    let part = target.ask("traps syscall 42 hit:1");
    assert_eq!(part, "nowhere in that part of the recording\n");
    target.ask("traps write calls");
    let part = target.ask("traps write calls 91 hit:2");
    let write = |number: u64, at: u64| format!("hit:{number:<4} insn:{at:<14} write to {CALLS:#x} <calls>\n");
    assert_eq!(part, write(0, 91) + &write(1, 187) + "goto hit:N goes to one\n");
    let none = target.ask("traps syscall:write pid:6");
    assert_eq!(none, "nowhere in that part of the recording\n");
    assert!(target.ask("traps nonsense").starts_with("error: 'nonsense' is no condition: write "));
    assert_eq!(target.position(), FIRST_CALL + 3 * CALL_STEPS);
}

#[test]
fn a_list_has_at_most_a_thousand_hits() {
    let mut guest = linux_that_calls(1001);
    let mut target = guest.target();
    let all = target.ask("traps syscall");
    assert_eq!(all.lines().count(), 1001);
    assert!(all.ends_with("these are the first 1000; goto hit:N goes to one\n"));
    let part = target.ask("traps syscall 100 end");
    assert!(part.ends_with("\nthese are the first 1000; goto hit:N goes to one\n"), "1000 are left");
    let part = target.ask("traps syscall 200 end");
    assert!(part.ends_with("\ngoto hit:N goes to one\n"), "999 are left");
    let calls = target.ask("calls do_syscall_64");
    assert!(calls.ends_with("\nthese are the first 1000; goto hit:N goes to one\n"));
}

#[test]
fn a_search_shows_both_sides_and_stays() {
    let mut guest = in_second_call();
    let mut target = guest.target();
    let expected = "before: insn:137 system call 0 (read)\nafter: insn:234 system call 1 (write)\n";
    assert_eq!(target.ask("search syscall"), expected);
    assert_eq!(target.position(), 177);
    assert_eq!(target.ask("search interrupt"), "before: nowhere\nafter: nowhere\n");
}

#[test]
fn calls_and_values_are_listed() {
    let mut guest = in_second_call();
    let mut target = guest.target();
    let list = target.ask("calls do_syscall_64 pid:5");
    let first = list.lines().next().unwrap();
    assert!(first.starts_with("hit:0    insn:68  0.000000068 s  5 (alpha)  do_syscall_64(rdi = "), "{first}");
    assert_eq!(list.lines().count(), CALLS_MADE as usize + 1);
    assert_eq!(target.after("goto hit:1"), 164);
    let part = target.ask("calls __switch_to 170 200");
    assert_eq!(part.lines().count(), 3, "{part}");
    assert!(part.starts_with("hit:0    insn:177 ") && part.ends_with("\ngoto hit:N goes to one\n"), "{part}");
    assert_eq!(target.ask("calls __switch_to pid:2"), "nowhere in that part of the recording\n");
    assert_eq!(target.ask("calls"), "error: write: monitor calls FUNCTION [FILTER...] [FROM TO]\n");
    let list = target.ask("values calls");
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!(lines[0], "calls at 0xffffffff81151000, at first not mapped");
    assert_eq!(lines[1], "hit:0    insn:91  0.000000092 s  5 (alpha)  do_syscall_64+0x4c  0x1");
    assert_eq!((lines.len(), lines[6]), (7, "goto hit:N goes to one"));
    let bytes = target.ask("values bytes calls 180 200");
    let row = "hit:0    insn:187  0.000000188 s  5 (alpha)  do_syscall_64+0x4c  0200000000000000";
    assert_eq!(bytes.lines().nth(1), Some(row), "{bytes}");
    assert_eq!(target.after("goto hit:0"), 187);
    assert_eq!(target.ask("values"), "error: write: monitor values VARIABLE [FILTER...] [FROM TO]\n");
}

#[test]
fn a_tree_and_a_difference_take_one_or_two_positions() {
    let mut guest = in_second_call();
    let mut target = guest.target();
    let tree = target.ask("tree 60 136");
    assert!(tree.starts_with("thread 5 (alpha)\ninsn:65 "), "{tree}");
    assert!(tree.contains("\ninsn:71 ") && !tree.contains("insn:161"), "{tree}");
    let tree = target.ask("tree 300");
    assert!(tree.contains("decoy(") && !tree.contains("insn:65 ") && tree.contains("insn:257 "), "{tree}");
    assert_eq!(target.ask("tree"), "error: write: monitor tree [FROM] TO\n");
    let both = target.ask("diff 92 300");
    assert!(both.contains("calls") && both.contains("insn:92") && both.contains("insn:300"), "{both}");
    let here = target.ask("diff 92");
    assert!(here.contains("insn:92") && here.contains("insn:177"), "{here}");
    assert_eq!(target.ask("diff"), "error: write: monitor diff POS [POS]\n");
    assert_eq!(target.position(), 177);
}

#[test]
fn who_set_follows_a_value_and_stays() {
    let mut guest = in_second_call();
    let mut target = guest.target();
    target.ask("goto 234");
    let told = target.ask("who-set calls");
    assert!(
        told.starts_with("calls at insn:234 is 0x2 (8 bytes)\ninsn:187  5 (alpha)  do_syscall_64+0x4"),
        "{told}"
    );
    assert!(told.ends_with("\ncomputed by insn:187  inc qword ptr [rcx]\n"), "{told}");
    assert_eq!(target.position(), 234);
    assert!(
        target.ask("who-set nonsense:x").starts_with("error: 'nonsense:x' is no location: write a register")
    );
}

#[test]
fn a_profile_has_the_part_s_instructions_and_stays() {
    let mut guest = in_second_call();
    let mut target = guest.target();
    let told = target.ask("profile 300");
    assert!(told.starts_with("123 instructions, "), "{told}");
    let told = target.ask("profile 92 300");
    assert!(told.starts_with("208 instructions, ") && told.contains("  function"), "{told}");
    assert!(target.ask("profile 300 92").starts_with("error: the end of this part is before its start"));
    assert_eq!(target.ask("profile"), "error: write: monitor profile [FROM] TO\n");
    assert_eq!(target.position(), 177);
}

#[test]
fn where_to_follows_a_value_and_stays() {
    let mut guest = in_second_call();
    let mut target = guest.target();
    let told = target.ask("where-to calls 234");
    assert!(told.starts_with("calls at insn:177 is 0x1 (8 bytes)\ninsn:187  "), "{told}");
    assert!(told.contains("inc qword ptr [rcx]\n    computed with: "), "{told}");
    assert_eq!(target.position(), 177);
    let told = target.ask("where-to calls 180");
    assert!(told.contains("\nat insn:180 the value is in:\n    physical "), "{told}");
    assert!(target.ask("where-to calls 92").starts_with("error: the end of this part is before its start"));
    assert!(target.ask("where-to nonsense:x").starts_with("error: 'nonsense:x' is no location"));
}

#[test]
fn a_checkpoint_is_added_here() {
    let mut guest = in_second_call();
    let answer = guest.target().ask("checkpoint");
    assert_eq!(answer, "there is a checkpoint at instruction 177 now\n");
    let recording = tiny_guest::open(&guest.directory.path().join("r.ttvm"));
    let timeline = Timeline::open_with(&recording, 1).unwrap();
    let heads = timeline.checkpoints().unwrap().heads();
    assert!(heads.contains_key(&machine::position::Instructions(177)));
}

#[test]
fn the_console_is_shown_up_to_here() {
    let mut guest = in_second_call();
    let mut target = guest.target();
    assert_eq!(target.ask("console"), "call\n");
    target.ask("goto end");
    assert_eq!(target.ask("console"), "call\n".repeat(5));
    assert_eq!(target.ask("console 2"), "call\n".repeat(2));
}

#[test]
fn physical_memory_is_shown_as_far_as_there_is_ram() {
    let mut guest = in_second_call();
    let mut target = guest.target();
    let rows = "0x000000150000  68 65 6c 6c 6f 00 00 00 00 00 00 00 00 00 00 00\n0x000000150010  00 00\n";
    assert_eq!(target.ask(&format!("physical {TEXT:#x} 18")), rows);
    let end = "0x0000003ffff8  00 00 00 00 00 00 00 00\nthere is no RAM at 0x400000\n";
    assert_eq!(target.ask("physical 0x3ffff8  16"), end);
    let none = "there is no RAM at 0xffffffffffffffff\n";
    assert_eq!(target.ask("physical 0xffffffffffffffff 1"), none);
    let most = target.ask("physical 0 65536");
    assert_eq!(most.lines().count(), 4096);
    for text in ["physical", "physical 16", "physical 16 65537", "physical x 1", "physical 1 x"] {
        let refusal = "error: write: physical ADDR LEN, at most 65536 bytes\n";
        assert_eq!(target.ask(text), refusal, "{text}");
    }
}

#[test]
fn settings_are_told_and_wrong_ones_refused() {
    let mut guest = in_second_call();
    let mut target = guest.target();
    let follow = "steps follow the CPU, into interrupts, faults and other threads\n";
    let stay = "steps follow their thread; in other code gdb stops only at breakpoints and watchpoints\n";
    for (argument, said) in [("", stay), (" on", follow), ("", follow), (" off", stay)] {
        assert_eq!(target.ask(&format!("step-interrupts{argument}")), said);
    }
    for (command, why) in [
        ("step-interrupts x", "write: monitor step-interrupts [on|off]"),
        ("user-breakpoints x", "write: monitor user-breakpoints ADDR..."),
        ("threads x", "write: monitor threads [on|off]"),
        ("threads look-at x", "write: monitor threads look-at NUMBER"),
        ("dmesg x", "write: monitor dmesg [LINES]"),
        ("mappings x", "write: monitor mappings [PID]"),
        ("symbols x", "write symbols, or symbols modules; 'tt symbols FILE' loads a file"),
        ("nonsense", "there is no 'monitor nonsense': try 'monitor help'"),
    ] {
        assert_eq!(target.ask(command), format!("error: {why}\n"));
    }
    for silent in ["pass-calls", "user-breakpoints 0x10 32", "symbols loaded", "threads look-at 1"] {
        assert_eq!(target.ask(silent), "", "{silent}");
    }
}

#[test]
fn help_lists_commands_and_conditions() {
    let (_directory, mut timeline) = tiny(10);
    let mut target = gdb_server::GdbTarget::new(&mut timeline);
    let help = target.ask("help");
    assert!(help.starts_with("monitor when ") && help.contains("\nconditions: "), "{help}");
    assert_eq!(target.ask(""), help);
}

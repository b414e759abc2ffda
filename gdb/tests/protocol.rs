//! Drives the server with raw packets over a pair of sockets.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;

use common::{Client, ENTRY, INC, JMP, LENGTH, LOAD, LOOP, NOP, STORE, Toy, VARIABLE, hex, packet};
use gdb::{Listener, SessionEnd, Stream, serve, turn_away};

const STEP: &str = "vCont;s:p1.1;c:p1.-1";
const CONTINUE: &str = "vCont;c:p1.-1";

/// A stop reply without its registers.
fn stop_kind(reply: &str) -> String {
    reply
        .split(';')
        .filter(|part| !part.contains(':') || !part.starts_with(|c: char| c.is_ascii_digit()))
        .collect::<Vec<_>>()
        .join(";")
}

fn breakpoint(address: u64) -> String {
    format!("Z0,{address:x},1")
}

#[test]
fn features_are_announced() {
    let mut client = Client::connect(Toy::new());
    let features = client.request("qSupported:multiprocess+;swbreak+;hwbreak+;vContSupported+");
    for feature in [
        "ReverseStep+",
        "ReverseContinue+",
        "QStartNoAckMode+",
        "qXfer:features:read+",
        "swbreak+",
        "PacketSize=4000",
    ] {
        assert!(features.split(';').any(|known| known == feature), "{feature} in {features}");
    }
    assert_eq!(client.request("vCont?"), "vCont;c;C;s;S;r");
    assert_eq!(client.request("?"), "T05thread:p01.01;");
    assert_eq!(client.request("qfThreadInfo"), "mp01.01");
    assert_eq!(client.request("qThreadExtraInfo,p1.1"), hex("vCPU 0"));
    assert_eq!(client.request("vMustReplyEmpty"), "");
    assert_eq!(client.close().0, SessionEnd::Closed);
}

#[test]
fn a_step_reports_the_frame_registers() {
    let mut client = Client::connect_without_acks(Toy::new());
    let reply = client.request(STEP);
    assert_eq!(reply, "T05thread:p01.01;06:0000000000000000;07:0080000000000000;10:0710000000000000;");
    assert_eq!(stop_kind(&reply), "T05thread:p01.01;");
    assert_eq!(client.rip(), LOOP);
    // The server reads the whole register file once per stop, for any number of requests.
    client.request("g");
    client.request("p0");
    assert_eq!(client.close().1.register_reads, 1);
}

#[test]
fn steps_back_undo_steps_forward_exactly() {
    let mut client = Client::connect_without_acks(Toy::new());
    let states: Vec<_> = (0..30)
        .map(|_| {
            let state = (client.request("g"), client.request("m2000,10"));
            client.request(STEP);
            state
        })
        .collect();
    assert_eq!(client.request("Hc0"), "OK");
    for expected in states.iter().rev() {
        assert!(client.request("bs").starts_with("T05"));
        assert_eq!((client.request("g"), client.request("m2000,10")), *expected);
    }
    assert_eq!(client.rip(), ENTRY);
}

#[test]
fn history_has_two_ends() {
    let mut client = Client::connect_without_acks(Toy::new());
    let begin = "T05thread:p01.01;replaylog:begin;";
    let end = "T05thread:p01.01;replaylog:end;";
    for (request, expected) in
        [("bs", begin), ("bc", begin), (CONTINUE, end), (STEP, end), (CONTINUE, end), ("bc", begin)]
    {
        assert_eq!(stop_kind(&client.request(request)), expected, "{request}");
    }
    client.request(CONTINUE);
    assert_eq!(client.close().1.position, LENGTH);
}

#[test]
fn breakpoints_stop_in_both_directions() {
    for (insert, reason) in [("Z0", "swbreak:;"), ("Z1", "hwbreak:;")] {
        let mut client = Client::connect_without_acks(Toy::new());
        assert_eq!(client.request(&format!("{insert},{STORE:x},1")), "OK");
        for (request, expected) in [(CONTINUE, 2), (CONTINUE, 8), (CONTINUE, 14), ("bc", 8), ("bc", 2)] {
            assert_eq!(stop_kind(&client.request(request)), format!("T05thread:p01.01;{reason}"));
            assert_eq!(client.rip(), STORE);
            client.send(format!("qRcmd,{}", hex("where")).as_bytes());
            assert_eq!(client.reply(), format!("O{}", hex(&format!("instruction {expected}\n"))));
            assert_eq!(client.reply(), "OK");
        }
        assert!(client.request("bc").contains("replaylog:begin"));
    }
}

#[test]
fn the_target_hears_only_of_differences_and_only_before_it_moves() {
    let mut client = Client::connect_without_acks(Toy::new());
    let (insert, remove) = (breakpoint(STORE), format!("z0,{STORE:x},1"));
    client.request(&insert);
    client.request(&insert);
    client.request(CONTINUE);
    for _ in 0..3 {
        // Like gdb, remove a breakpoint to step off, and then run with the breakpoint.
        for request in [&remove, STEP, &insert, CONTINUE, &remove] {
            client.request(request);
        }
    }
    // For the target, a hardware breakpoint at the same address is the same breakpoint.
    client.request(&format!("Z1,{STORE:x},1"));
    client.request("bc");
    client.request(&format!("z1,{STORE:x},1"));
    client.request(&format!("Z2,{VARIABLE:x},1"));
    client.request(&format!("z2,{VARIABLE:x},1"));
    client.request(&format!("Z2,{VARIABLE:x},1"));
    client.request("bc");
    let (end, toy) = client.close();
    assert_eq!(end, SessionEnd::Closed);
    assert_eq!(toy.calls, ["set 1009", "clear 1009", "watch 2000", "unwatch 2000"]);
}

/// The condition that RCX is this number. RCX counts the rounds of the toy's loop.
fn rounds(number: u8) -> String {
    format!("X7,26000222{number:02x}1327")
}

/// A breakpoint of a kind at STORE, with conditions.
fn conditional(kind: &str, conditions: &str) -> String {
    format!("{kind},{STORE:x},1;{conditions}")
}

/// The rounds in which runs stop, until the end of the history.
fn stops(client: &mut Client, request: &str) -> Vec<u64> {
    let mut rounds = Vec::new();
    while !client.request(request).contains("replaylog") {
        assert_eq!(client.rip(), STORE);
        rounds.push(u64::from_str_radix(&client.request("p2"), 16).unwrap().swap_bytes());
    }
    rounds
}

#[test]
fn conditions_decide_where_breakpoints_stop() {
    // The number at 0x2000 is 3 after the first round, and grows by 3 in each round.
    let is_nine = "X8,2320001722091327";
    // The run ends at STORE, in round 33.
    const LAST: u64 = 33;
    let all: Vec<u64> = (0..=LAST).collect();
    for (inserted, expected) in [
        (vec![conditional("Z0", &rounds(2))], vec![2]),
        (vec![conditional("Z1", &rounds(2))], vec![2]),
        (vec![conditional("Z0", &[rounds(2), rounds(5)].concat())], vec![2, 5]),
        (vec![conditional("Z0", is_nine)], vec![3]),
        (vec![conditional("Z0", &rounds(2)), conditional("Z1", &rounds(4))], vec![2, 4]),
        // One of the two breakpoints has no condition.
        (vec![conditional("Z0", &rounds(2)), format!("Z1,{STORE:x},1")], all.clone()),
        (vec![breakpoint(STORE), conditional("Z1", &rounds(2))], all.clone()),
        // The last request counts.
        (vec![conditional("Z0", &rounds(2)), conditional("Z0", &rounds(3))], vec![3]),
        (vec![conditional("Z0", &rounds(2)), breakpoint(STORE)], all.clone()),
        (vec![conditional("Z1", &rounds(2)), format!("Z1,{STORE:x},1")], all.clone()),
        (vec![conditional("Z0", &rounds(2)), format!("z0,{STORE:x},1")], vec![]),
        (vec![conditional("Z1", &rounds(2)), format!("z1,{STORE:x},1")], vec![]),
        (vec![conditional("Z0", &rounds(2)), format!("z0,{STORE:x},1"), breakpoint(STORE)], all),
        // A condition that cannot be evaluated is left to gdb: this one reads a register that does not exist.
        (vec![conditional("Z0", "X4,26ffff27")], (0..=LAST).collect()),
    ] {
        let mut client = Client::connect_without_acks(Toy::new());
        for request in &inserted {
            assert_eq!(client.request(request), "OK", "{request}");
        }
        assert_eq!(stops(&mut client, CONTINUE), expected, "{inserted:?}");
        let before_end: Vec<u64> = expected.into_iter().rev().filter(|round| *round != LAST).collect();
        assert_eq!(stops(&mut client, "bc"), before_end, "{inserted:?} backwards");
    }
}

#[test]
fn the_target_hears_only_of_changed_conditions() {
    let mut client = Client::connect_without_acks(Toy::new());
    let (insert, remove) = (conditional("Z0", &rounds(2)), format!("z0,{STORE:x},1"));
    client.request(&insert);
    client.request(CONTINUE);
    // gdb removes and inserts its breakpoints at each stop, and steps off.
    for request in [&*remove, STEP, &insert, CONTINUE, &remove, &insert, "bc"] {
        client.request(request);
    }
    client.request(&conditional("Z0", &[rounds(2), rounds(3)].concat()));
    client.request(CONTINUE);
    client.request(&breakpoint(STORE));
    client.request(CONTINUE);
    client.request(&insert);
    client.request(CONTINUE);
    client.request(&remove);
    client.request(CONTINUE);
    client.request(&insert);
    client.request("bc");
    let (_, toy) = client.close();
    let calls = [
        "set 1009",
        "1 conditions 1009",
        "2 conditions 1009",
        "0 conditions 1009",
        "1 conditions 1009",
        "0 conditions 1009",
        "clear 1009",
        "set 1009",
        "1 conditions 1009",
        // The client has gone.
        "0 conditions 1009",
        "clear 1009",
    ];
    assert_eq!(toy.calls, calls);
}

#[test]
fn watchpoints_stop_in_both_directions() {
    // Forwards, the access has just happened; backwards, it has just been undone.
    let table = [
        ("Z2", "watch", [LOAD, LOAD], [STORE, STORE]),
        ("Z3", "rwatch", [INC, INC], [LOAD, LOAD]),
        ("Z4", "awatch", [LOAD, INC], [LOAD, STORE]),
    ];
    for (insert, name, forward, backward) in table {
        let mut client = Client::connect_without_acks(Toy::new());
        assert_eq!(client.request(&format!("{insert},1ffc,8")), "OK");
        let moves = forward.map(|rip| (CONTINUE, rip)).into_iter().chain(backward.map(|rip| ("bc", rip)));
        for (request, rip) in moves {
            let reply = client.request(request);
            assert_eq!(stop_kind(&reply), format!("T05thread:p01.01;{name}:2000;"), "{insert} {request}");
            assert_eq!(client.rip(), rip, "{insert} {request}");
        }
    }
}

#[test]
fn single_steps_hit_watchpoints() {
    let mut client = Client::connect_without_acks(Toy::new());
    client.request(&format!("Z2,{VARIABLE:x},1"));
    let stops: Vec<_> = (0..4).map(|_| client.request(STEP).contains("watch:")).collect();
    assert_eq!(stops, [false, false, true, false]);
    let stops: Vec<_> = (0..4).map(|_| client.request("bs").contains("watch:")).collect();
    assert_eq!(stops, [false, true, false, false]);
}

#[test]
fn only_ranges_of_the_address_space_are_watched() {
    let mut client = Client::connect_without_acks(Toy::new());
    let table = [
        ("2000,0", "E16"),
        ("ffffffffffffffff,1", "OK"),
        ("ffffffffffffffff,2", "E16"),
        ("0,7fffffffffffffff", "OK"),
    ];
    for (range, reply) in table {
        assert_eq!(client.request(&format!("Z2,{range}")), reply);
    }
}

#[test]
fn a_range_of_steps_ends_outside_or_at_a_breakpoint() {
    let mut client = Client::connect_without_acks(Toy::new());
    let range = format!("vCont;r{LOOP:x},{NOP:x}:p1.1;c:p1.-1");
    for expected in [NOP, JMP, NOP] {
        assert_eq!(stop_kind(&client.request(&range)), "T05thread:p01.01;");
        assert_eq!(client.rip(), expected);
    }
    client.request(&breakpoint(INC));
    for (expected, reason) in [(JMP, ""), (INC, "swbreak:;"), (NOP, "")] {
        assert_eq!(stop_kind(&client.request(&range)), format!("T05thread:p01.01;{reason}"));
        assert_eq!(client.rip(), expected);
    }
    // A step over an empty range executes one instruction.
    client.request("vCont;r0,0:p1.1;c:p1.-1");
    assert_eq!(client.rip(), JMP);
}

#[test]
fn a_range_of_steps_may_end_in_an_instruction_of_one_byte() {
    let mut client = Client::connect_without_acks(Toy::new());
    // The NOP is the last byte of the first two ranges. The last range has only the NOP.
    for first in [ENTRY, LOOP] {
        client.request(&format!("vCont;r{first:x},{JMP:x}:p1.1;c:p1.-1"));
        assert_eq!(client.rip(), JMP);
    }
    while client.rip() != NOP {
        client.request(STEP);
    }
    client.request(&format!("vCont;r{NOP:x},{JMP:x}:p1.1;c:p1.-1"));
    assert_eq!(client.rip(), JMP);
}

#[test]
fn refused_writes_come_with_their_sentence() {
    let sentence = "the recorded past cannot be changed";
    let error = format!("E.{sentence}");
    let mut client = Client::connect_without_acks(Toy::new());
    assert_eq!(client.request("P0=0100000000000000"), error);
    let registers = client.request("g");
    assert_eq!(client.request(&format!("G{registers}")), error);
    assert_eq!(client.request("M2000,1:05"), error);
    // Some clients probe with an empty write.
    assert_eq!(client.request("X2000,0:"), "OK");
    // gdb does not show the sentence for memory writes, so it is printed when gdb next listens.
    assert_eq!(client.request(STEP), format!("O{}", hex(&format!("{sentence}\n"))));
    assert!(client.reply().starts_with("T05"));
    assert!(client.request(STEP).starts_with("T05"));
    assert_eq!(client.request("m2000,1"), "00");
}

#[test]
fn a_message_of_the_target_is_printed_once_with_the_next_stop() {
    let mut client =
        Client::connect_without_acks(Toy { message: Some("a branch starts here"), ..Toy::new() });
    client.request("g");
    assert_eq!(client.request(STEP), format!("O{}", hex("a branch starts here\n")));
    assert!(client.reply().starts_with("T05"));
    assert!(client.request("bs").starts_with("T05"));
}

#[test]
fn a_greeting_is_printed_once_where_gdb_asks_for_traces() {
    let toy = || Toy { greeting: Some("hello"), ..Toy::new() };
    let mut client = Client::connect_without_acks(toy());
    assert_eq!(client.request("qTStatus"), format!("O{}", hex("hello\n")));
    assert_eq!(client.reply(), "");
    assert_eq!(client.request("qTStatus"), "");
    assert!(client.request("?").starts_with("T05"));
    // A client that does not send `qTStatus` gets no greeting.
    let mut client = Client::connect_without_acks(toy());
    assert!(client.request("?").starts_with("T05"));
    assert!(client.request(STEP).starts_with("T05"));
}

#[test]
fn progress_is_printed_while_the_target_moves() {
    let toy = || Toy { progress: Some("half way\n"), endless: true, ..Toy::new() };
    let mut client = Client::connect_without_acks(toy());
    for request in [CONTINUE, "bc"] {
        // The text comes before the run ends, because the run ends only when it is interrupted.
        assert_eq!(client.request(request), format!("O{}", hex("half way\n")), "{request}");
        client.send_raw(b"\x03");
        assert!(client.reply().starts_with("T02"), "{request}");
    }
    // During a command gdb would take the text for a part of the answer.
    assert_eq!(client.request(&format!("qRcmd,{}", hex("where"))), format!("O{}", hex("instruction 0\n")));
    assert_eq!(client.reply(), "OK");
}

#[test]
fn accepted_writes_can_be_read_back() {
    let mut client = Client::connect_without_acks(Toy { writable: true, ..Toy::new() });
    assert_eq!(client.request("P0=1122334455667788"), "OK");
    assert_eq!(client.request("p0"), "1122334455667788");
    assert_eq!(client.request("M2000,3:0a0b0c"), "OK");
    assert_eq!(client.request("m1fff,5"), "000a0b0c00");
    client.send(b"X3000,4:\x03}\x04}\x03\xff");
    assert_eq!(client.reply(), "OK");
    assert_eq!(client.request("m3000,4"), "032423ff");
    let registers = client.request("g");
    assert_eq!(client.request(&format!("Gff{}", &registers[2..])), "OK");
    assert_eq!(client.request("p0"), "ff22334455667788");
    // A value that is too short, and a register that does not exist.
    assert_eq!(client.request("P0=11"), "E16");
    assert_eq!(client.request("Pffff=11"), "");
    assert_eq!(client.request("pffff"), "");
}

#[test]
fn sleeping_threads_are_looked_at_and_never_changed_or_moved() {
    let mut toy = Toy::new();
    (toy.sleeping, toy.writable) = (vec![7, 0x40_0001], true);
    let mut client = Client::connect_without_acks(toy);
    assert_eq!(client.request("qfThreadInfo"), "mp01.01,p01.07,p01.400001");
    assert_eq!(client.request("qThreadExtraInfo,p1.1"), hex("vCPU 0, task 1"));
    assert_eq!(client.request("qThreadExtraInfo,p1.7"), hex("task 7"));
    assert_eq!(client.request("qThreadExtraInfo,p1.8"), "");
    assert_eq!((client.request("Tp1.7"), client.request("Tp1.8")), ("OK".to_owned(), "E01".to_owned()));
    assert_eq!(client.request("Hgp1.7"), "OK");
    assert_eq!(client.rip(), 7);
    assert_eq!(client.request("m2000,2"), "0707");
    assert_eq!(client.request("Hgp1.400001"), "OK");
    assert_eq!(client.rip(), 0x40_0001);
    for change in ["P10=0010000000000000", "M2000,1:05"] {
        assert!(client.request(change).starts_with('E'), "{change}");
    }
    // If gdb steps a sleeping thread, the server steps the CPU. gdb 13 shows the sentence of a refused write only
    // if it is printed.
    client.send(b"vCont;s:p1.7;c:p1.-1");
    let sentence = "only a CPU can be changed, not a sleeping thread: select thread 1\n";
    assert_eq!(client.reply(), format!("O{}", hex(sentence)));
    assert_eq!(stop_kind(&client.reply()), "T05thread:p01.01;");
    assert_eq!(client.request("Hgp1.1"), "OK");
    assert_eq!(client.rip(), LOOP);
    assert_eq!(client.request("m2000,1"), "00");
    let (_, toy) = client.close();
    assert_eq!((toy.position, toy.thread_lists), (1, 1), "one list for the questions before the step");
}

/// gdb asks for the status, chooses no thread, and then reads the registers of the thread in the answer.
#[test]
fn the_first_registers_are_those_of_the_cpu_that_the_status_names() {
    for choice in [None, Some("Hgp0.0"), Some("Hg0")] {
        let mut toy = Toy::new();
        (toy.cpus, toy.stopped) = (3, 3);
        let mut client = Client::connect_without_acks(toy);
        if let Some(choice) = choice {
            assert_eq!(client.request("?"), "T05thread:p01.03;");
            assert_eq!(client.request("Hg1"), "OK");
            assert_eq!(client.request(choice), "OK");
        } else {
            assert_eq!(client.request("Hg0"), "OK");
            assert_eq!(client.request("?"), "T05thread:p01.03;");
        }
        assert_eq!(client.rip(), 3, "{choice:?}");
        assert_eq!(client.request("Hg2"), "OK");
        assert_eq!(client.rip(), 2);
    }
}

#[test]
fn each_cpu_is_a_thread_and_stops_name_theirs() {
    let mut toy = Toy::new();
    (toy.cpus, toy.sleeping, toy.stopped) = (3, vec![0x40_0001], 2);
    let mut client = Client::connect_without_acks(toy);
    assert_eq!(client.request("?"), "T05thread:p01.02;");
    assert_eq!(client.request("qfThreadInfo"), "mp01.01,p01.02,p01.03,p01.400001");
    assert_eq!(client.request("qThreadExtraInfo,p1.3"), hex("vCPU 2, task 1"));
    for thread in [2, 3] {
        assert_eq!(client.request(&format!("Hgp1.{thread}")), "OK");
        assert_eq!((client.rip(), client.request("m2000,2")), (thread, format!("{thread:02}").repeat(2)));
    }
    // The other CPUs may run or be locked.
    for step in ["vCont;s:p1.3;c:p1.-1", "vCont;s:p1.3", "vCont;s:p1.3;c:p1.1", "vCont;c:p1.1;s:p1.3"] {
        assert_eq!(stop_kind(&client.request(step)), "T05thread:p01.03;", "{step}");
    }
    assert_eq!(stop_kind(&client.request("vCont;r1000,1001:p1.2;c:p1.-1")), "T05thread:p01.02;");
    assert_eq!(client.request("Hcp1.3"), "OK");
    assert_eq!(stop_kind(&client.request("bs")), "T05thread:p01.03;");
    // Without a choice, the CPU that gdb shows moves.
    assert_eq!(client.request("Hcp1.2"), "OK");
    assert_eq!(stop_kind(&client.request("bs")), "T05thread:p01.02;");
    assert_eq!(client.request("Hc0"), "OK");
    assert_eq!(stop_kind(&client.request("bs")), "T05thread:p01.02;");
    let (_, toy) = client.close();
    assert_eq!(toy.position, 2);
}

#[test]
fn memory_is_read_as_far_as_it_goes() {
    let mut client = Client::connect_without_acks(Toy::new());
    assert_eq!(client.request("m1000,4"), "48c7c300");
    assert_eq!(client.request("mfffe,8"), "0000");
    assert_eq!(client.request("m10000,8"), "E0e");
    assert_eq!(client.request("mffffffffffffffff,8"), "E0e");
    assert_eq!(client.request("m0,2000").len(), 0x4000);
    for senseless in ["m0,2001", "m0,ffffffffffffffff", "m0,0", "m0", "m0,", "m", "mx"] {
        assert!(client.request(senseless).starts_with("E."), "{senseless}");
    }
}

#[test]
fn monitor_commands_print() {
    let mut client = Client::connect_without_acks(Toy::new());
    let mut monitor = |command: &[u8]| {
        let digits: String = command.iter().map(|byte| format!("{byte:02x}")).collect();
        client.send(format!("qRcmd,{digits}").as_bytes());
        let mut text = String::new();
        loop {
            match client.reply() {
                reply if reply == "OK" => return text,
                reply => text += reply.strip_prefix('O').expect("console output"),
            }
        }
    };
    assert_eq!(monitor(b" where "), hex("instruction 0\n"));
    assert_eq!(monitor(b"silent"), "");
    assert_eq!(monitor(b"nonsense"), hex("unknown command: nonsense\n"));
    assert_eq!(monitor(b"\xff"), hex("unknown command: \u{fffd}\n"));
    assert_eq!(monitor(b"long").len(), 2 * 16_000);
}

#[test]
fn an_interrupt_stops_an_endless_run() {
    let mut client = Client::connect_without_acks(Toy { endless: true, ..Toy::new() });
    for request in [CONTINUE, "bc", "c"] {
        client.send(request.as_bytes());
        client.send_raw(b"\x03");
        assert_eq!(stop_kind(&client.reply()), "T02thread:p01.01;", "{request}");
        // Sends ^C in the same piece as the request.
        client.send_raw(&[packet(request.as_bytes()), b"\x03".to_vec()].concat());
        assert_eq!(stop_kind(&client.reply()), "T02thread:p01.01;", "{request}");
    }
}

#[test]
fn an_interrupt_that_comes_too_late_is_forgotten() {
    let mut client = Client::connect_without_acks(Toy::new());
    client.request(&breakpoint(NOP));
    client.send_raw(b"\x03");
    for _ in 0..2 {
        client.send_raw(b"\x03");
        assert!(client.request(CONTINUE).contains("swbreak"));
    }
}

#[test]
fn a_client_that_leaves_ends_an_endless_run() {
    for request in [CONTINUE.to_owned(), "bc".to_owned(), format!("qRcmd,{}", hex("wait"))] {
        let mut client = Client::connect_without_acks(Toy { endless: true, ..Toy::new() });
        client.send(request.as_bytes());
        let (end, _) = client.close();
        assert!(matches!(end, SessionEnd::Closed | SessionEnd::Lost(_)), "{end:?}");
    }
}

#[test]
fn a_client_that_waits_no_longer_gets_in_step_again() {
    let mut client = Client::connect_without_acks(Toy::new());
    for word in ["one", "two"] {
        client.send(format!("qRcmd,{}", hex("wait")).as_bytes());
        // Act like gdb at ^C: the sign of life is the last packet that it reads.
        assert_eq!(client.reply(), "O");
        let mut reply = client.request(&format!("qttvm.sync:{word}"));
        while reply != word {
            assert_eq!(reply, "O", "signs of life, and never the answer to the command");
            reply = client.request("qttvm.nothing");
        }
        assert_eq!(client.rip(), ENTRY);
    }
}

#[test]
fn requests_that_come_together_are_not_taken_for_impatience() {
    let mut client = Client::connect_without_acks(Toy::new());
    let wait = packet(format!("qRcmd,{}", hex("wait")).as_bytes());
    client.send_raw(&[wait, packet(b"qttvm.sync:later")].concat());
    assert_eq!(client.reply(), "O");
    client.send_raw(b"\x03");
    let mut reply = client.reply();
    while reply == "O" {
        reply = client.reply();
    }
    assert_eq!(reply, format!("O{}", hex("the client has gone\n")));
    assert_eq!((client.reply(), client.reply()), ("OK".to_string(), "later".to_string()));
}

#[test]
fn a_failed_run_is_explained() {
    let mut client = Client::connect_without_acks(Toy { broken: Some("replay diverged at 5"), ..Toy::new() });
    for request in [CONTINUE, "bc"] {
        assert_eq!(client.request(request), format!("O{}", hex("replay diverged at 5\n")));
        assert!(client.reply().starts_with("T00"));
    }
    // If the target refuses a breakpoint, the run does not start.
    client.request("Z0,bad,1");
    assert_eq!(client.request(CONTINUE), format!("O{}", hex("no breakpoint can be set at 0xbad\n")));
    assert!(client.reply().starts_with("T00"));
    assert_eq!(client.rip(), ENTRY);
    client.request("z0,bad,1");
    assert!(client.request(STEP).starts_with("T05"));
    assert!(client.close().1.calls.is_empty());
}

#[test]
fn acknowledgements_are_kept_until_they_are_waived() {
    let mut client = Client::connect(Toy::new());
    client.send_raw(b"$p10#ff");
    assert_eq!(client.byte(), b'-');
    client.send(b"p10");
    assert_eq!(client.byte(), b'+');
    let reply = client.reply();
    client.send_raw(b"-");
    assert_eq!(client.reply(), reply);
    client.send(CONTINUE.as_bytes());
    assert_eq!(client.byte(), b'+');
    assert!(client.reply().contains("replaylog:end"));
    client.request("QStartNoAckMode");
    client.send_raw(b"+$p10#ff");
    assert_eq!(client.byte(), b'$');
}

#[test]
fn senseless_packets_are_answered_once_and_change_nothing() {
    let senseless: &[&[u8]] = &[
        b"",
        b"G",
        b"G00",
        b"Gzz",
        b"Z",
        b"Z0",
        b"Z0,",
        b"Z0,zz,1",
        b"Z9,1000,1",
        b"Z0,11111111111111111,1",
        b"z2,0",
        b"vCont",
        b"vCont;",
        b"vCont;x",
        b"vCont;s",
        b"vCont;r1",
        b"vCont;rzz,1:p1.1",
        b"vCont;t",
        b"vCont;c:p1.1;s:zz",
        b"H",
        b"Hg-1",
        b"Hx1",
        b"Hgzz",
        b"qXfer:features:read:",
        b"qXfer:features:read:target.xml:zz,1",
        b"qXfer:features:read:other.xml:0,10",
        b"qXfer:features:read:target.xml:ffffffffffffffff,ffffffffffffffff",
        b"qRcmd,zz",
        b"qThreadExtraInfo,",
        b"T",
        b"Tzz",
        b"M",
        b"M0",
        b"M0,1",
        b"M0,1:zz",
        b"X",
        b"X0,1:}",
        b"P",
        b"P0",
        b"P0=",
        b"P0=zz",
        b"p",
        b"pzz",
        b"pffffffffffffffffff",
        b"bsx",
        b"bcx",
        b"\xff\xfe",
        b"vFile:open:",
        b"vRun",
        b"QTDP:",
        b"!",
        b"R00",
    ];
    let mut client = Client::connect_without_acks(Toy::new());
    client.request(STEP);
    // A later `qSupported` with other features changes nothing.
    assert!(client.request("qSupported:x").contains("ReverseStep+"));
    let registers = client.request("g");
    for body in senseless {
        client.send(body);
        let reply = client.reply();
        let body = String::from_utf8_lossy(body);
        assert!(
            reply.is_empty() || reply == "OK" || reply == "l" || reply.starts_with('E'),
            "{body:?}: {reply}"
        );
        assert_eq!(client.request("g"), registers, "{body:?}: {reply}");
        assert_eq!(client.request("?"), "T05thread:p01.01;", "{body:?}: {reply}");
    }
    // There are still no acknowledgements: otherwise a plus sign would come here.
    client.send(b"vCont;t");
    assert_eq!(client.byte(), b'$');
    client.close();
    assert_eq!(registers.len(), 2 * (17 * 8 + 7 * 4 + 80 + 32 + 256 + 4 + 2 * 8 + 7 * 8));
}

#[test]
fn oversized_packets_are_answered() {
    let mut client = Client::connect_without_acks(Toy::new());
    client.send(&[b'a'; 0x4000]);
    assert!(client.reply().starts_with("E."));
    client.send(&[b'a'; 0x3ffc]);
    assert_eq!(client.reply(), "");
    assert_eq!(client.rip(), ENTRY);
}

#[test]
fn every_way_to_end_leaves_a_clean_target() {
    let table = [
        ("D;1", Some("OK"), SessionEnd::Detached),
        ("D", Some("OK"), SessionEnd::Detached),
        ("k", None, SessionEnd::Killed),
        ("vKill;1", Some("OK"), SessionEnd::Killed),
    ];
    for (request, reply, expected) in table {
        let mut client = Client::connect_without_acks(Toy::new());
        client.request(&breakpoint(STORE));
        client.request(&format!("Z4,{VARIABLE:x},2"));
        client.request(CONTINUE);
        client.send(request.as_bytes());
        if let Some(reply) = reply {
            assert_eq!(client.reply(), reply, "{request}");
        }
        let (end, toy) = client.ended();
        assert_eq!(end, expected);
        assert_eq!(toy.calls, ["set 1009", "watch 2000", "clear 1009", "unwatch 2000"]);
    }
}

#[test]
fn the_target_description_is_served_in_pieces() {
    let mut client = Client::connect_without_acks(Toy::new());
    let mut xml = String::new();
    loop {
        let piece = client.request(&format!("qXfer:features:read:target.xml:{:x},100", xml.len()));
        match piece.split_at(1) {
            ("m", text) => xml += text,
            (last, text) => {
                assert_eq!((last, text), ("l", ""));
                break;
            }
        }
    }
    assert!(xml.starts_with("<?xml"), "{xml}");
    assert!(xml.ends_with("</target>"));
    assert!(
        xml.contains(
            "<reg name=\"cr3\" bitsize=\"64\" type=\"uint64\" group=\"system\" save-restore=\"no\"/>"
        )
    );
}

#[test]
fn clients_are_served_one_after_the_other() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.gdb_address().to_owned();
    let server = thread::spawn(move || {
        let (mut toy, mut ends) = (Toy::new(), Vec::new());
        let result = serve(&listener, &mut toy, |end| {
            ends.push(end.clone());
            *end != SessionEnd::Killed
        });
        result.map(|()| (ends, toy.position))
    });
    for request in ["D;1", "", "k"] {
        let mut stream = TcpStream::connect(&address).unwrap();
        for body in ["QStartNoAckMode", STEP, request].iter().filter(|body| !body.is_empty()) {
            stream.write_all(&packet(body.as_bytes())).unwrap();
        }
        stream.shutdown(Shutdown::Write).unwrap();
        // The server answers everything before it hangs up.
        let mut replies = String::new();
        stream.read_to_string(&mut replies).unwrap();
        assert!(replies.contains("T05"), "{request}: {replies}");
    }
    let (ends, position) = server.join().unwrap().unwrap();
    assert_eq!(ends, [SessionEnd::Detached, SessionEnd::Closed, SessionEnd::Killed]);
    assert_eq!(position, 3);
}

/// Sends these pieces to a server that turns the client away. Returns the server's answer.
fn turned_away(pieces: &[&[u8]]) -> Vec<u8> {
    let (mut client, server) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || turn_away(Stream::Unix(server), "2 of 2 are here: pay $5"));
    for piece in pieces {
        // The server may have hung up already.
        let _ = client.write_all(piece);
    }
    let mut read = Vec::new();
    // A server that hangs up on unread bytes resets the connection.
    let _ = client.read_to_end(&mut read);
    drop(client);
    server.join().unwrap();
    read
}

#[test]
fn a_client_that_is_turned_away_reads_the_reason() {
    let reason = [b"+", &*packet(b"E.2 of 2 are here: pay ?5")].concat();
    assert_eq!(turned_away(&[b"+$qSupported#37"]), reason);
    assert_eq!(turned_away(&[b"+$qSupp", b"ort", b"ed#3", b"7$?#3f"]), reason);
    // A damaged packet is no request.
    assert_eq!(turned_away(&[b"$qSupported#38", b"$?#3f"]), reason);
    // A client that sends nothing, and a client that sends no end of a packet.
    assert_eq!(turned_away(&[]), b"");
    assert_eq!(turned_away(&[&[b'x'; 4096][..]; 20]), b"");
}

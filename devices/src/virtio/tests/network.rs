//! Sent and received frames.

use super::*;
use crate::virtio::{DeviceStateV1, HEADER_BYTES, SentFrame};

const F_MRG_RXBUF: u64 = 1 << 15;
const MAC: [u8; 6] = [0x52, 0x54, 0, 1, 2, 3];

fn network(segments: bool, features: u64) -> (Pc, Driver, Ring, Ring) {
    let mut bus = PciBus::new();
    let slot = bus.add(Net::new(MAC, 1500, segments));
    let mut pc = Pc::new(bus);
    let (driver, mut rings) = Driver::start(&mut pc, slot, features, true);
    let transmit = rings.remove(1);
    (pc, driver, rings.remove(0), transmit)
}

fn push(pc: &mut Pc, frames: &[Vec<u8>]) {
    let mem = pc.mem();
    pc.bus.network_mut().unwrap().push_frames(&mem, frames.to_vec());
}

fn frame(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| at as u8).collect()
}

/// The expected bytes of a received frame: the header, then the frame.
fn received(buffers: u8, frame: &[u8]) -> Vec<u8> {
    [&[0; HEADER_BYTES - 2][..], &[buffers, 0], frame].concat()
}

#[test]
fn the_configuration_has_address_link_and_mtu() {
    let (mut pc, driver, _, _) = network(true, !0);
    let expected = [0x52, 0x54, 0, 1, 2, 3, 1, 0, 1, 0, 0xdc, 5];
    assert_eq!(pc.read::<12>(driver.config.unwrap()), expected);
    const TSO: u64 = 1 << 11 | 1 << 12;
    assert_eq!(driver.offered(&mut pc) & TSO, TSO);
    let (mut pc, driver, _, _) = network(false, !0);
    assert_eq!(driver.offered(&mut pc) & TSO, 0, "nothing there cuts up what is too long");
}

#[test]
fn what_is_sent_is_handed_over_with_what_the_driver_left_open() {
    let (mut pc, _, _, mut transmit) = network(true, !0);
    let at = pc.allocate(256);
    let header: [u8; HEADER_BYTES] = [1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0];
    pc.store(at, &header);
    pc.store(at + 12, &frame(60));
    transmit.add(&pc, &[(at, 12, false), (at + 12, 60, false)]);
    transmit.add(&pc, &[(at, 20, false)]);
    transmit.kick(&mut pc);
    assert_eq!((transmit.pop(&pc), transmit.pop(&pc)), (Some((0, 0)), Some((2, 0))));
    let expected = [SentFrame { header, bytes: frame(60) }];
    assert_eq!(pc.bus.network_mut().unwrap().take_sent(), expected, "eight bytes are no frame");
    assert_eq!(pc.bus.network_mut().unwrap().take_sent(), []);
}

#[test]
fn the_state_tells_what_was_sent() {
    let sent = |frames: &[&[u8]]| {
        let (mut pc, _, _, mut transmit) = network(true, !0);
        for frame in frames {
            let at = pc.allocate(256);
            pc.store(at + 12, frame);
            transmit.add(&pc, &[(at, 12 + frame.len() as u32, false)]);
            transmit.kick(&mut pc);
        }
        pc.bus.network_mut().unwrap().take_sent();
        pc.bus.state().functions[0].device.clone()
    };
    let (one, two) = ([1; 60], [2; 60]);
    let states = [sent(&[]), sent(&[&one]), sent(&[&two]), sent(&[&one, &two]), sent(&[&two, &one])];
    for (number, state) in states.iter().enumerate() {
        assert!(states[..number].iter().all(|other| other != state), "{number}");
    }
}

/// Recordings have hashes of these bytes, so the bytes must never change. The hash is chained: each sent
/// frame adds its header and its bytes to the hash of all earlier frames.
#[test]
fn the_hash_of_what_was_sent_is_over_headers_and_bytes_in_their_order() {
    let (mut pc, _, _, mut transmit) = network(true, !0);
    let headers: [[u8; HEADER_BYTES]; 2] =
        [[1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0], [0, 1, 54, 0, 0xb4, 5, 0, 0, 0, 0, 0, 0]];
    let sent = [(headers[0], frame(60)), (headers[1], frame(14))];
    let mut expected = 0_u128;
    for (header, bytes) in &sent {
        let at = pc.allocate(256);
        pc.store(at, header);
        pc.store(at + 12, bytes);
        transmit.add(&pc, &[(at, 12 + bytes.len() as u32, false)]);
        transmit.kick(&mut pc);
        for part in [&header[..], bytes] {
            let seed = expected as u64 ^ (expected >> 64) as u64;
            expected = twox_hash::XxHash3_128::oneshot_with_seed(seed, part);
        }
    }
    let sent = sent.map(|(header, bytes)| SentFrame { header, bytes });
    assert_eq!(pc.bus.network_mut().unwrap().take_sent(), sent, "the first comes first");
    let DeviceStateV1::Net { sent_count, sent_hash, .. } = pc.bus.state().functions[0].device.clone() else {
        panic!("the first function is the network device");
    };
    assert_eq!((sent_count, u128::from_le_bytes(sent_hash)), (2, expected));
}

#[test]
fn a_frame_takes_as_many_buffers_as_it_needs() {
    let (mut pc, _, mut receive, _) = network(true, !0);
    let at = pc.allocate(4096);
    push(&mut pc, &[frame(200)]);
    assert_eq!(pc.messages(), NONE);
    receive.add(&pc, &[(at, 100, true)]);
    receive.add(&pc, &[(at + 100, 60, true), (at + 160, 40, true)]);
    receive.kick(&mut pc);
    assert_eq!(receive.pop(&pc), None, "twelve bytes are missing");
    receive.add(&pc, &[(at + 200, 100, true)]);
    receive.kick(&mut pc);
    let used = [receive.pop(&pc), receive.pop(&pc), receive.pop(&pc), receive.pop(&pc)];
    assert_eq!(used, [Some((0, 100)), Some((1, 100)), Some((3, 12)), None]);
    assert_eq!(pc.messages(), [0x41]);
    assert_eq!(pc.load(at, 212), received(3, &frame(200)));
}

#[test]
fn without_merged_buffers_a_frame_fits_into_one_or_is_lost() {
    let (mut pc, _, mut receive, _) = network(true, !F_MRG_RXBUF);
    let at = pc.allocate(4096);
    receive.add(&pc, &[(at, 12, true), (at + 12, 60, true)]);
    receive.add(&pc, &[(at + 72, 200, true)]);
    receive.kick(&mut pc);
    push(&mut pc, &[frame(61), frame(60)]);
    assert_eq!((receive.pop(&pc), receive.pop(&pc)), (Some((0, 72)), None));
    assert_eq!(pc.load(at, 72), received(1, &frame(60)));
}

#[test]
fn frames_wait_for_buffers_and_the_room_for_them_ends() {
    let (mut pc, driver, mut receive, _) = network(true, !0);
    assert_eq!(pc.bus.network_room(), Some(256));
    let frames: Vec<_> = (0..300).map(|number| vec![number as u8; 14]).collect();
    push(&mut pc, &frames);
    push(&mut pc, &[frame(13), vec![0; 70_000]]);
    assert_eq!(pc.bus.network_room(), Some(0));
    let at = pc.allocate(4096);
    for number in 0..64 {
        receive.add(&pc, &[(at + 32 * number, 32, true)]);
    }
    receive.kick(&mut pc);
    assert_eq!(pc.bus.network_room(), Some(64));
    let saved = pc.bus.state();
    for number in 0..64 {
        assert_eq!(receive.pop(&pc), Some((number as u16, 26)));
        assert_eq!(pc.load(at + 32 * number + 12, 14), [number as u8; 14]);
    }
    let mut bus = PciBus::new();
    bus.add(Net::new(MAC, 1500, true));
    bus.restore(&saved).unwrap();
    assert_eq!((bus.network_room(), bus.state()), (Some(64), saved));
    driver.set_status(&mut pc, 0);
    assert_eq!(pc.bus.network_room(), None, "no driver listens");
}

#[test]
fn states_of_another_card_are_refused() {
    let (pc, _, _, _) = network(true, !0);
    let saved = pc.bus.state();
    for other in [Net::new([2; 6], 1500, true), Net::new(MAC, 1501, true), Net::new(MAC, 1500, false)] {
        let mut bus = PciBus::new();
        bus.add(other);
        assert!(bus.restore(&saved).is_err());
    }
    let mut bus = PciBus::new();
    bus.add(Net::new(MAC, 1500, true));
    let with = |frames: Vec<Vec<u8>>| {
        let mut saved = saved.clone();
        if let DeviceStateV1::Net { waiting, .. } = &mut saved.functions[0].device {
            *waiting = frames;
        }
        saved
    };
    assert!(bus.restore(&with(vec![frame(60); 257])).is_err(), "too many");
    assert!(bus.restore(&with(vec![frame(13)])).is_err(), "too short");
    assert!(bus.restore(&with(vec![frame(65_554)])).is_err(), "too long");
    assert!(bus.restore(&with(vec![frame(65_553)])).is_ok());
}

//! Saving a busy machine and continuing on a copy changes nothing. Impossible states are refused.

use super::driver::F_EVENT_IDX;
use super::*;
use crate::pci::PciBusStateV1;
use crate::virtio::DeviceStateV1;

/// A machine with all drivers running.
struct Busy {
    pc: Pc,
    block_msix: usize,
    block: Ring,
    receive: Ring,
    transmit: Ring,
    rng: Ring,
}

impl Busy {
    fn new() -> Busy {
        let mut pc = pc();
        let (driver, mut blocks) = Driver::start(&mut pc, BLOCK_SLOT, !0, true);
        let mut console = Driver::start(&mut pc, CONSOLE_SLOT, !0, true).1;
        let rng = Driver::start(&mut pc, RNG_SLOT, !F_EVENT_IDX, false).1.remove(0);
        let transmit = console.remove(1);
        Busy {
            pc,
            block_msix: driver.msix,
            block: blocks.remove(0),
            receive: console.remove(0),
            transmit,
            rng,
        }
    }

    /// Continues the machine on a restored copy. The owner must copy the disk contents.
    fn copy(&mut self) -> Busy {
        let mut bus = bus();
        let disk: &mut MemoryDisk = self.pc.bus.block_backend_mut(BLOCK_SLOT).unwrap();
        let disk = disk.clone();
        *bus.block_backend_mut(BLOCK_SLOT).unwrap() = disk;
        let (block, receive) = (self.block.clone(), self.receive.clone());
        let (transmit, rng) = (self.transmit.clone(), self.rng.clone());
        Busy { pc: self.pc.copy_onto(bus), block, receive, transmit, rng, ..*self }
    }

    /// Does some work that depends on `round` and leaves unread input and pending messages.
    fn work(&mut self, round: u64) {
        let pc = &mut self.pc;
        let data = pc.allocate(2048);
        // Every other pair of rounds masks the disk's messages.
        let control = if round & 2 == 0 { 0x8000_u16 } else { 0xC000 };
        pc.config_write(BLOCK_SLOT, self.block_msix + 2, &control.to_le_bytes());
        self.block.set_used_event(pc, self.block.next_available);
        pc.store(data, &((round % 2) as u32).to_le_bytes());
        pc.store(data + 8, &round.to_le_bytes());
        let chain = [(data, 16, false), (data + 512, 1024, round.is_multiple_of(2)), (data + 16, 1, true)];
        self.block.add_indirect(pc, &chain);
        self.block.kick(pc);
        let random = 1 + (round as u32 * 13) % 97;
        self.rng.add(pc, &[(data + 1536, random, true)]);
        self.rng.kick(pc);
        self.receive.add(pc, &[(data + 1700, 4, true)]);
        self.receive.kick(pc);
        self.transmit.add(pc, &[(data + 1536, 16, false)]);
        self.transmit.kick(pc);
        let mem = pc.mem();
        let mut console = pc.bus.console_mut().unwrap();
        console.push_input(&mem, &[round as u8; 7]);
        console.resize(80 + round as u16 / 3, 25);
    }

    fn output(&mut self) -> Vec<u8> {
        self.pc.bus.console_mut().unwrap().take_output()
    }
}

#[test]
fn a_machine_restored_in_every_round_equals_one_never_saved() {
    let (mut straight, mut hopping) = (Busy::new(), Busy::new());
    for round in 0..40 {
        straight.work(round);
        hopping.work(round);
        assert_eq!(hopping.output(), straight.output(), "round {round}");
        if round % 3 == 0 {
            // Takes the messages in some rounds only. In the other rounds the saved state includes messages that were
            // not taken.
            assert_eq!(hopping.pc.bus.take_msis(), straight.pc.bus.take_msis(), "round {round}");
        }
        hopping = hopping.copy();
        assert_eq!(hopping.pc.bus.state(), straight.pc.bus.state(), "round {round}");
        assert!(hopping.pc.ram_bytes() == straight.pc.ram_bytes(), "round {round}");
    }
}

#[test]
fn restoring_over_a_used_machine_forgets_what_it_did() {
    let mut original = Busy::new();
    original.work(1);
    let saved = original.pc.bus.state();
    let mut other = Busy::new();
    (2..9).for_each(|round| other.work(round));
    other.pc.bus.restore(&saved).unwrap();
    assert_eq!(other.pc.bus.state(), saved);
}

#[test]
fn a_freshly_restored_machine_equals_one_never_saved() {
    let (fresh, mut restored) = (bus().state(), bus());
    restored.restore(&fresh).unwrap();
    assert_eq!(restored.state(), fresh);
}

/// Damages a good state.
type Damage = fn(&mut PciBusStateV1);

const DAMAGE: &[(&str, Damage)] = &[
    ("a device less", |s| s.functions.truncate(2)),
    ("a device more", |s| s.functions.push(s.functions[0].clone())),
    ("devices swapped", |s| s.functions.swap(0, 1)),
    ("device kinds swapped", |s| {
        s.functions[1].device = s.functions[2].device.clone();
    }),
    ("reserved address bits", |s| s.address |= 1),
    ("short host bridge", |s| s.host_bridge.truncate(255)),
    ("other host bridge", |s| s.host_bridge[0] ^= 1),
    ("long configuration space", |s| s.functions[0].config.push(0)),
    ("misaligned BAR", |s| s.functions[0].config[0x11] |= 1),
    ("short MSI-X table", |s| s.functions[0].msix.entries.truncate(1)),
    ("pending vector that does not exist", |s| s.functions[0].msix.pending = 1 << 40),
    ("queue missing", |s| s.functions[1].queues.truncate(1)),
    ("queue size 0", |s| s.functions[0].queues[0].size = 0),
    ("queue size 3", |s| s.functions[0].queues[0].size = 3),
    ("queue size too large", |s| s.functions[0].queues[0].size = 512),
    ("misaligned ring", |s| s.functions[0].queues[0].descriptors |= 8),
    ("queue vector", |s| s.functions[0].queues[0].vector = 2),
    ("configuration vector", |s| s.functions[0].transport.config_vector = 2),
    ("unknown status", |s| s.functions[0].transport.status |= 0x10),
    ("enabled queue before FEATURES_OK", |s| s.functions[0].transport.status = 3),
    ("DRIVER_OK without FEATURES_OK", |s| {
        s.functions[0].transport.status = 7;
        s.functions[0].queues[0].enabled = false;
    }),
    ("unknown features", |s| s.functions[0].transport.driver_features |= 1 << 50),
    ("legacy features", |s| s.functions[0].transport.driver_features &= !(1 << 32)),
    ("unknown interrupt status", |s| s.functions[0].transport.isr = 4),
    ("another disk", |s| {
        s.functions[0].device = DeviceStateV1::Block { capacity_sectors: 1, read_only: false };
    }),
];

#[test]
fn impossible_states_are_refused_and_change_nothing() {
    let mut busy = Busy::new();
    busy.work(1);
    let good = busy.pc.bus.state();
    for (name, damage) in DAMAGE {
        let mut bad = good.clone();
        damage(&mut bad);
        let mut other = bus();
        let before = other.state();
        let error = other.restore(&bad).expect_err(name);
        assert!(error.to_string().starts_with("the saved PCI state does not fit"), "{name}: {error}");
        assert_eq!(other.state(), before, "{name}");
    }
}

use guest_ram::GuestRam;

use super::*;
use crate::pci::{PciBus, PciBusStateV1};

const DEVICE_SLOT: u32 = 1;
const TABLE: (u8, u32) = (1, 0x1000);

fn description() -> PciDescriptionV1 {
    PciDescriptionV1 {
        vendor: 0x1234,
        device: 0x5678,
        revision: 9,
        class: 0x02_0000,
        subsystem_vendor: 0xABCD,
        subsystem: 0xEF01,
        bars: vec![
            BarDescriptionV1 { index: 0, size_bytes: 0x1000, is_ports: false },
            BarDescriptionV1 { index: 1, size_bytes: 0x4000, is_ports: false },
            BarDescriptionV1 { index: 4, size_bytes: 32, is_ports: true },
        ],
        has_line: true,
        msi: Some(0x50),
        msix: Some(MsixDescriptionV1 { capability: 0xA0, vectors: 3, table: TABLE, pending: (1, 0x2000) }),
    }
}

struct Pc {
    bus: PciBus,
    ram: GuestRam,
}

impl Pc {
    fn new() -> Pc {
        let mut bus = PciBus::new();
        assert_eq!(bus.pass_function(&description()), DEVICE_SLOT as usize);
        bus.pass_ports(0x2F8, 0x2FF, None);
        bus.pass_ports(0x3E8, 0x3EF, Some(5));
        Pc { bus, ram: GuestRam::new(1 << 20).unwrap() }
    }

    fn select(&mut self, register: u32) {
        let address = 1 << 31 | DEVICE_SLOT << 11 | register & 0xFC;
        self.bus.io_write(self.ram.memory(), 0xCF8, &address.to_le_bytes());
    }

    fn config(&mut self, register: u32) -> u32 {
        self.select(register);
        assert_eq!(self.bus.port_read_ask(0xCFC, 4), None, "the model knows {register:#x}");
        let mut data = [0; 4];
        assert!(self.bus.io_read(0xCFC, &mut data));
        u32::from_le_bytes(data)
    }

    fn set_config(&mut self, register: u32, data: &[u8]) {
        self.select(register);
        self.bus.io_write(self.ram.memory(), 0xCFC + (register & 3) as u16, data);
    }

    fn bar(&mut self, index: u32) -> u64 {
        u64::from(self.config(0x10 + 4 * index) & !0xF)
    }

    fn write(&mut self, gpa: u64, data: &[u8]) {
        assert!(self.bus.mmio_write(self.ram.memory(), gpa, data));
    }

    fn interrupt(&mut self, vector: u16) {
        let interrupts = vec![InterruptV1 { device: 0, vector }];
        self.bus.take_input(&DeviceInputV1 { interrupts, ..DeviceInputV1::default() });
    }
}

fn read(region: RegionV1, offset: u32, size_bytes: u8) -> AskV1 {
    AskV1::Read { device: 0, region, offset, size_bytes }
}

fn write(region: RegionV1, offset: u32, size_bytes: u8, value: u64) -> AskV1 {
    AskV1::Write { device: 0, region, offset, size_bytes, value }
}

#[test]
fn the_guest_sees_the_real_identity_and_places_the_bars() {
    let mut pc = Pc::new();
    assert_eq!((pc.config(0), pc.config(8), pc.config(0x2C)), (0x5678_1234, 0x0200_0009, 0xEF01_ABCD));
    pc.set_config(0x10, &[0xFF; 4]);
    pc.set_config(0x20, &[0xFF; 4]);
    assert_eq!((pc.config(0x10), pc.config(0x20)), (0xFFFF_F000, 0xFFE1));
    pc.set_config(0x10, &0xD000_0000_u32.to_le_bytes());
    assert_eq!(pc.bus.mmio_read_ask(0xD000_0FFC, 4), Some(read(RegionV1::Bar(0), 0xFFC, 4)));
    assert_eq!(pc.bus.mmio_read_ask(0xD000_0FFE, 4), None, "beyond the end");
    pc.set_config(4, &[0]);
    assert_eq!(pc.bus.mmio_read_ask(0xD000_0FFC, 4), None, "memory is off");
}

/// A BAR that the guest moves over the IOMMU's registers does not hide these registers.
#[test]
fn a_bar_never_hides_the_iommu() {
    let mut pc = Pc::new();
    for (place, hidden) in [(0x1000_0000, false), (0xFED8_F000, false), (TRANSLATION_BASE as u32, true)] {
        pc.set_config(0x10, &place.to_le_bytes());
        let expected = (!hidden).then_some(read(RegionV1::Bar(0), 8, 4));
        assert_eq!(pc.bus.mmio_read_ask(u64::from(place) + 8, 4), expected, "{place:#x}");
    }
    let mut version = [0; 4];
    assert!(pc.bus.mmio_read(pc.ram.memory(), TRANSLATION_BASE, &mut version));
    assert_eq!(u32::from_le_bytes(version), 0x10);
}

#[test]
fn what_is_behind_the_bars_is_asked_for_and_told() {
    let mut pc = Pc::new();
    let (memory, ports) = (pc.bar(0), (pc.config(0x20) & !3) as u16);
    assert_eq!(pc.bus.port_read_ask(ports + 2, 2), Some(read(RegionV1::Bar(4), 2, 2)));
    pc.write(memory + 8, &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert!(pc.bus.passed_port_write(ports, &[9, 8]));
    assert!(!pc.bus.passed_port_write(ports + 31, &[9, 8]));
    let told = [write(RegionV1::Bar(0), 8, 8, 0x0807_0605_0403_0201), write(RegionV1::Bar(4), 0, 2, 0x0809)];
    assert_eq!(pc.bus.take_told(), told);
    assert_eq!(pc.bus.take_told(), []);
}

#[test]
fn registers_behind_the_header_are_the_real_ones_but_for_the_capabilities() {
    let mut pc = Pc::new();
    pc.select(0xC0);
    assert_eq!(pc.bus.port_read_ask(0xCFE, 2), Some(read(RegionV1::Config, 0xC2, 2)));
    pc.set_config(0xC0, &[0, 0x8F]);
    assert_eq!(pc.bus.take_told(), [write(RegionV1::Config, 0xC0, 2, 0x8F00)]);
    assert_eq!(pc.config(0x34) & 0xFF, 0x50);
    assert_eq!((pc.config(0x50), pc.config(0xA0)), (0x0080_A005, 0x0002_0011));
    assert_eq!((pc.config(0xA4), pc.config(0xA8)), (0x1001, 0x2001));
}

#[test]
fn the_real_function_follows_the_command_register() {
    let mut pc = Pc::new();
    pc.set_config(4, &[7, 0]);
    pc.set_config(4, &[0x47, 0]);
    assert_eq!(pc.bus.take_told(), [write(RegionV1::Config, 4, 2, 7)]);
}

#[test]
fn the_line_is_up_until_the_guest_touches_the_function() {
    let mut pc = Pc::new();
    let memory = pc.bar(0);
    for touch in 0..3 {
        pc.interrupt(0);
        assert_eq!(pc.bus.irq_levels(), 1 << DEVICE_SLOT);
        match touch {
            0 => pc.write(memory, &[0; 4]),
            1 => {
                let asked = Some(read(RegionV1::Bar(0), 0, 4));
                pc.bus.take_input(&DeviceInputV1 { asked, value: Some(1), ..DeviceInputV1::default() });
            }
            _ => {
                pc.set_config(5, &[4]);
                assert_eq!(
                    pc.bus.take_told().last(),
                    Some(&AskV1::Interrupts { device: 0, mode: InterruptModeV1::Off })
                );
            }
        }
        assert_eq!(pc.bus.irq_levels(), 0, "{touch}");
    }
    pc.interrupt(0);
    assert_eq!(pc.bus.irq_levels(), 0, "the line is off");
}

#[test]
fn an_interrupt_is_the_guests_own_message() {
    let mut pc = Pc::new();
    let table = pc.bar(1) + u64::from(TABLE.1);
    pc.set_config(4, &[6, 0]);
    pc.set_config(0x54, &0xFEE0_1000_u32.to_le_bytes());
    pc.set_config(0x5C, &[0x31, 0]);
    pc.set_config(0x52, &[1, 0]);
    pc.interrupt(0);
    let messages =
        |pc: &mut Pc| pc.bus.take_msis().iter().map(|msi| (msi.address, msi.data)).collect::<Vec<_>>();
    assert_eq!(messages(&mut pc), [(0xFEE0_1000, 0x31)]);
    pc.set_config(0xA2, &[0, 0x80]);
    pc.write(table + 32, &0xFEE0_2000_u64.to_le_bytes());
    pc.write(table + 40, &[0x41, 0, 0, 0, 1, 0, 0, 0]);
    pc.interrupt(2);
    assert_eq!(messages(&mut pc), [], "it is masked");
    let mut pending = [0xFF; 8];
    let at = pc.bar(1) + 0x2000;
    assert!(pc.bus.mmio_read_ask(at, 8).is_none());
    assert!(pc.bus.mmio_read(pc.ram.memory(), at, &mut pending));
    assert_eq!(pending, [4, 0, 0, 0, 0, 0, 0, 0]);
    pc.write(table + 44, &[0; 4]);
    assert_eq!(messages(&mut pc), [(0xFEE0_2000, 0x41)]);
    pc.interrupt(77);
    assert_eq!(messages(&mut pc), []);
    let modes = pc.bus.take_told().into_iter().filter(|told| matches!(told, AskV1::Interrupts { .. }));
    let expected =
        [InterruptModeV1::Msi, InterruptModeV1::Msix(3)].map(|mode| AskV1::Interrupts { device: 0, mode });
    assert_eq!(modes.collect::<Vec<_>>(), expected);
}

#[test]
fn the_iommu_tells_what_the_guest_changed() {
    let mut pc = Pc::new();
    let register = |pc: &mut Pc, offset: u64| {
        let mut data = [0; 8];
        assert!(pc.bus.mmio_read(pc.ram.memory(), TRANSLATION_BASE + offset, &mut data));
        u64::from_le_bytes(data)
    };
    assert_eq!(register(&mut pc, 8) >> 7 & 1, 1, "caching mode");
    pc.write(TRANSLATION_BASE + 0x20, &0x12_3000_u64.to_le_bytes());
    pc.write(TRANSLATION_BASE + 0x18, &(1_u32 << 30).to_le_bytes());
    pc.write(TRANSLATION_BASE + 0x28, &(1_u64 << 63 | 1 << 61).to_le_bytes());
    let nothing = AskV1::Translate { root: None, first: 0, pages: 0 };
    assert_eq!(pc.bus.take_told(), [nothing; 2]);
    assert_eq!(register(&mut pc, 0x28), 1 << 61 | 1 << 59);
    pc.write(TRANSLATION_BASE + 0x18, &(1_u32 << 31).to_le_bytes());
    pc.write(TRANSLATION_BASE + 0xF0, &0xFFFF_D002_u64.to_le_bytes());
    pc.write(TRANSLATION_BASE + 0xF8, &[0, 0, 5, 0]);
    pc.write(TRANSLATION_BASE + 0xFC, &[0, 0, 0, 0xB0]);
    let root = Some(0x12_3000);
    let expected = [
        AskV1::Translate { root, first: 0, pages: 0 },
        AskV1::Translate { root, first: 0xFFFF_C000, pages: 4 },
    ];
    assert_eq!(pc.bus.take_told(), expected);
    assert_eq!(register(&mut pc, 0xF8) >> 56, 0x36, "done, as widely as asked for");
    assert_eq!(register(&mut pc, 0x18) >> 32, 3 << 30);
    let mut other = PciBus::new();
    other.pass_ports(0x2F8, 0x2FF, None);
    assert!(
        !other.mmio_read(pc.ram.memory(), TRANSLATION_BASE, &mut [0; 4]),
        "without functions there is none"
    );
}

#[test]
fn plain_ports_are_outside_as_a_whole() {
    let mut pc = Pc::new();
    let ask = |offset, size_bytes| AskV1::Read { device: 1, region: RegionV1::Ports, offset, size_bytes };
    assert_eq!(pc.bus.port_read_ask(0x2F8, 1), Some(ask(0, 1)));
    assert_eq!(pc.bus.port_read_ask(0x2FE, 2), Some(ask(6, 2)));
    assert_eq!((pc.bus.port_read_ask(0x2FF, 2), pc.bus.port_read_ask(0x2F7, 1)), (None, None));
    assert!(pc.bus.passed_port_write(0x2FB, &[0x83]));
    let value = 0x83;
    let told = AskV1::Write { device: 1, region: RegionV1::Ports, offset: 3, size_bytes: 1, value };
    assert_eq!(pc.bus.take_told(), [told]);
}

#[test]
fn the_line_of_ports_is_up_until_the_guest_touches_them() {
    let mut pc = Pc::new();
    let interrupt = |pc: &mut Pc, device| {
        let interrupts = vec![InterruptV1 { device, vector: 0 }];
        pc.bus.take_input(&DeviceInputV1 { interrupts, ..DeviceInputV1::default() });
    };
    interrupt(&mut pc, 1);
    assert_eq!(pc.bus.isa_levels(), 0, "these ports have no line");
    for is_read in [true, false] {
        interrupt(&mut pc, 2);
        pc.bus.passed_port_write(0x2F8, &[1]);
        assert_eq!((pc.bus.isa_levels(), pc.bus.irq_levels()), (1 << 5, 0));
        if is_read {
            let asked = pc.bus.port_read_ask(0x3EA, 1);
            assert_eq!(pc.bus.isa_levels(), 1 << 5, "an ask is no answer");
            pc.bus.take_input(&DeviceInputV1 { asked, value: Some(1), ..DeviceInputV1::default() });
        } else {
            pc.bus.passed_port_write(0x3E8, &[1]);
        }
        assert_eq!(pc.bus.isa_levels(), 0);
    }
}

fn busy() -> PciBusStateV1 {
    let mut pc = Pc::new();
    let memory = pc.bar(0);
    pc.write(memory, &[1; 4]);
    pc.bus.passed_port_write(0x2F8, &[2]);
    pc.write(TRANSLATION_BASE + 0x20, &0x12_3000_u64.to_le_bytes());
    pc.interrupt(0);
    pc.bus.take_input(&DeviceInputV1 {
        interrupts: vec![InterruptV1 { device: 2, vector: 0 }],
        ..DeviceInputV1::default()
    });
    pc.bus.state()
}

#[test]
fn a_saved_state_is_restored_whole() {
    let saved = busy();
    let mut pc = Pc::new();
    assert_ne!(pc.bus.state(), saved);
    pc.bus.restore(&saved).unwrap();
    assert_eq!(pc.bus.state(), saved);
    assert_eq!((pc.bus.irq_levels(), pc.bus.isa_levels()), (1 << DEVICE_SLOT, 1 << 5));
    let other = Pc::new().bus.state();
    let written = |state: &PciBusStateV1| state.functions[0].device.clone();
    assert_ne!(written(&other), written(&saved), "what the guest wrote is part of the state");
}

#[test]
fn impossible_states_are_refused_and_change_nothing() {
    let good = busy();
    let breaks: [fn(&mut PciBusStateV1); 9] = [
        |state| state.functions.truncate(2),
        |state| state.functions.swap(0, 1),
        |state| state.functions[0].config[0] ^= 1,
        |state| state.functions[0].msix.entries.truncate(1),
        |state| state.functions[1].config.push(0),
        |state| state.functions[2].device = state.functions[1].device.clone(),
        |state| state.functions[3].transport.isr = 1,
        |state| state.functions[3].device = state.functions[1].device.clone(),
        |state| {
            if let crate::virtio::DeviceStateV1::Translation(registers) = &mut state.functions[3].device {
                registers.invalidate = 1 << 63;
            }
        },
    ];
    for (number, change) in breaks.iter().enumerate() {
        let mut bad = good.clone();
        change(&mut bad);
        let mut pc = Pc::new();
        let before = pc.bus.state();
        assert!(pc.bus.restore(&bad).is_err(), "{number}");
        assert_eq!(pc.bus.state(), before, "{number}");
    }
}

#[test]
fn impossible_descriptions_are_refused() {
    let breaks: [fn(&mut PciDescriptionV1); 9] = [
        |d| d.bars[0].index = 6,
        |d| d.bars[0].index = 1,
        |d| d.bars[0].size_bytes = 0x1001,
        |d| d.bars[0].size_bytes = 0x8000_0000,
        |d| d.msi = Some(0x3C),
        |d| d.msi = Some(0xA4),
        |d| d.msix.as_mut().unwrap().vectors = 65,
        |d| d.msix.as_mut().unwrap().table = (1, 0x3FF0),
        |d| d.msix.as_mut().unwrap().pending = (4, 0),
    ];
    assert_eq!(description().validate(), Ok(()));
    for (number, change) in breaks.iter().enumerate() {
        let mut bad = description();
        change(&mut bad);
        assert!(bad.validate().is_err(), "{number}");
    }
}

//! The DSDT. This ACPI table describes the "off" state, the processor, the PCI host bridge with its interrupt routing,
//! and the ISA devices.

use acpi_tables::Aml;
use acpi_tables::aml::{
    AddressSpace, AddressSpaceCacheable, Arg, Device, EISAName, IO, If, Interrupt, Method, Name, Package,
    PackageBuilder, Path, ResourceTemplate, Return, Scope, Store,
};
use acpi_tables::sdt::Sdt;
use devices::layout;
use devices::pci::PciRevision;

/// The SLP_TYP value of the "off" state. The guest writes this value into PM1 control (with SLP_EN) to
/// power off.
pub const S5_SLEEP_TYPE: u8 = 5;
const PCI_SLOTS: u32 = 32;
const PCI_PINS: u32 = 4;
/// The value of `_STA` for a device that is present, enabled, shown to users, and working.
const DEVICE_WORKS: u8 = 0xF;

pub(super) fn build(pci: PciRevision, oem_id: [u8; 6], oem_table_id: [u8; 8], oem_revision: u32) -> Vec<u8> {
    // Revision 2: integers have 64 bits.
    let mut dsdt = Sdt::new(*b"DSDT", 36, 2, oem_id, oem_table_id, oem_revision);
    let mut aml = Vec::new();
    let sleep_type = S5_SLEEP_TYPE;
    Name::new("_S5_".into(), &Package::new(vec![&sleep_type, &sleep_type, &0_u8, &0_u8]))
        .to_aml_bytes(&mut aml);
    if pci == PciRevision::V2 {
        interrupt_model(&mut aml);
    }
    system_bus(pci, &mut aml);
    dsdt.append_slice(&aml);
    dsdt.as_slice().to_vec()
}

/// The variable that says which interrupt controller the guest uses: 0 for the 8259 pair, 1 for the I/O APIC. The guest
/// sets the variable through `_PIC` (section 5.8.1).
const MODEL: &str = "PICM";

fn interrupt_model(aml: &mut Vec<u8>) {
    Name::new(MODEL.into(), &0_u8).to_aml_bytes(aml);
    let model = Path::new(MODEL);
    let store = Store::new(&model, &Arg(0));
    Method::new("_PIC".into(), 1, false, vec![&store]).to_aml_bytes(aml);
}

fn system_bus(pci: PciRevision, aml: &mut Vec<u8>) {
    let mut content = Vec::new();
    processor(&mut content);
    pci_host_bridge(pci, &mut content);
    serial_port(&mut content);
    real_time_clock(&mut content);
    pvpanic(&mut content);
    aml.extend_from_slice(&Scope::raw("_SB_".into(), content));
}

fn processor(aml: &mut Vec<u8>) {
    let hid = Name::new("_HID".into(), &"ACPI0007");
    let uid = Name::new("_UID".into(), &0_u8);
    Device::new("CPU0".into(), vec![&hid, &uid]).to_aml_bytes(aml);
}

/// Appends the host bridge. The bridge has one bus. The bus has the 32-bit memory window, and all I/O ports except the
/// ports of the configuration mechanism.
fn pci_host_bridge(pci: PciRevision, aml: &mut Vec<u8>) {
    let config = layout::PCI_CONFIG_PORT;
    let bus = AddressSpace::new_bus_number(0_u16, 0);
    let config_ports = IO::new(config, config, 1, 8);
    let low_ports = AddressSpace::new_io(0_u16, config - 1, None);
    let high_ports = AddressSpace::new_io(config + 8, 0xFFFF, None);
    let memory = AddressSpace::new_memory(
        AddressSpaceCacheable::NotCacheable,
        true,
        layout::PCI_MMIO_START as u32,
        (layout::PCI_MMIO_END - 1) as u32,
        None,
    );
    let resources = ResourceTemplate::new(vec![&bus, &config_ports, &low_ports, &high_ports, &memory]);
    let hid = Name::new("_HID".into(), &EISAName::new("PNP0A03"));
    let uid = Name::new("_UID".into(), &0_u8);
    let resources = Name::new("_CRS".into(), &resources);
    let io_apic = interrupt_routing(|pin| layout::PCI_FIRST_GSI + pin);
    if pci == PciRevision::V1 {
        let routing = Name::new("_PRT".into(), &io_apic);
        return Device::new("PCI0".into(), vec![&hid, &uid, &resources, &routing]).to_aml_bytes(aml);
    }
    let pic = interrupt_routing(|pin| layout::PCI_PIC_IRQS[usize::from(pin)]);
    let (io_apic_table, pic_table) = (Name::new("APRT".into(), &io_apic), Name::new("PPRT".into(), &pic));
    let (model, io_apic_path, pic_path) = (Path::new(MODEL), Path::new("APRT"), Path::new("PPRT"));
    let (io_apic_answer, pic_answer) = (Return::new(&io_apic_path), Return::new(&pic_path));
    let choice = If::new(&model, vec![&io_apic_answer]);
    let routing = Method::new("_PRT".into(), 0, false, vec![&choice, &pic_answer]);
    Device::new("PCI0".into(), vec![&hid, &uid, &resources, &io_apic_table, &pic_table, &routing])
        .to_aml_bytes(aml);
}

/// The interrupt routing table. Pin `p` (0 for INTA) of slot `s` is connected to pin `(s + p) % 4` of the bus, the
/// usual swizzle. `interrupt` returns the interrupt for a pin of the bus.
fn interrupt_routing(interrupt: impl Fn(u8) -> u8) -> PackageBuilder {
    let mut table = PackageBuilder::new();
    for slot in 0..PCI_SLOTS {
        for pin in 0..PCI_PINS {
            let address = slot << 16 | 0xFFFF;
            let gsi = u32::from(interrupt(((slot + pin) % PCI_PINS) as u8));
            table.add_element(&Package::new(vec![&address, &pin, &0_u8, &gsi]));
        }
    }
    table
}

fn serial_port(aml: &mut Vec<u8>) {
    let ports = IO::new(layout::SERIAL_PORT, layout::SERIAL_PORT, 1, 8);
    isa_device(aml, "COM1", "PNP0501", 1, ports, layout::SERIAL_IRQ);
}

fn real_time_clock(aml: &mut Vec<u8>) {
    let ports = IO::new(layout::CMOS_PORT, layout::CMOS_PORT, 1, 2);
    isa_device(aml, "RTC0", "PNP0B00", 0, ports, layout::RTC_IRQ);
}

fn isa_device(aml: &mut Vec<u8>, name: &str, id: &str, unit: u8, ports: IO, irq: u8) {
    let interrupt = Interrupt::new(true, true, false, false, u32::from(irq));
    let hid = Name::new("_HID".into(), &EISAName::new(id));
    let uid = Name::new("_UID".into(), &unit);
    let status = Name::new("_STA".into(), &DEVICE_WORKS);
    let resources = Name::new("_CRS".into(), &ResourceTemplate::new(vec![&ports, &interrupt]));
    Device::new(name.into(), vec![&hid, &uid, &status, &resources]).to_aml_bytes(aml);
}

fn pvpanic(aml: &mut Vec<u8>) {
    let ports = IO::new(layout::PVPANIC_PORT, layout::PVPANIC_PORT, 1, 1);
    let hid = Name::new("_HID".into(), &"QEMU0001");
    let status = Name::new("_STA".into(), &DEVICE_WORKS);
    let resources = Name::new("_CRS".into(), &ResourceTemplate::new(vec![&ports]));
    Device::new("PVPN".into(), vec![&hid, &status, &resources]).to_aml_bytes(aml);
}

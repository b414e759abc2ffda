//! The ACPI tables with a fixed layout, which are all tables but the DSDT, and the addresses of all ACPI tables.

use acpi_tables::Aml;
use acpi_tables::facs::FACS;
use acpi_tables::madt::{EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic};
use acpi_tables::sdt::{GenericAddress, Sdt};
use acpi_tables::xsdt::XSDT;
use devices::layout;
use devices::pci::PciRevision;

use super::dsdt;

/// The value that the guest writes to `devices::layout::RESET_PORT` to reset the machine.
pub const RESET_VALUE: u8 = 6;
/// The address of the RSDP. The other tables follow it.
pub const TABLES_START: u64 = 0xE_0000;

pub(super) const PAGE_SIZE: u64 = 4096;

const OEM_ID: [u8; 6] = *b"TTVM  ";
const OEM_TABLE_ID: [u8; 8] = *b"TTVMPC  ";
const OEM_REVISION: u32 = 1;
const RSDT_ADDRESS: u64 = TABLES_START + 64;
const XSDT_ADDRESS: u64 = TABLES_START + 128;

/// All tables with their addresses, in ascending order. The FACS is last and has its own page.
pub(super) struct TableImage {
    pub(super) parts: Vec<(u64, Vec<u8>)>,
    pub(super) facs: u64,
}

/// The RSDP of ACPI 2.0 and later, which points to the RSDT and the XSDT.
pub fn rsdp() -> Vec<u8> {
    let mut rsdp = rsdp_of_revision(2);
    rsdp.extend_from_slice(&36_u32.to_le_bytes());
    rsdp.extend_from_slice(&XSDT_ADDRESS.to_le_bytes());
    rsdp.extend_from_slice(&[0; 4]);
    rsdp[32] = checksum(&rsdp);
    rsdp
}

/// The RSDP of ACPI 1.0, which points to the RSDT. A Multiboot2 kernel gets a copy of this RSDP in its boot
/// information.
pub fn rsdp_v1() -> Vec<u8> {
    rsdp_of_revision(0)
}

fn rsdp_of_revision(revision: u8) -> Vec<u8> {
    let mut rsdp = b"RSD PTR \0".to_vec();
    rsdp.extend_from_slice(&OEM_ID);
    rsdp.push(revision);
    rsdp.extend_from_slice(&(RSDT_ADDRESS as u32).to_le_bytes());
    rsdp[8] = checksum(&rsdp);
    rsdp
}

/// The checksum byte for bytes whose own checksum byte is still 0. With this byte in place, the sum of all bytes is 0.
fn checksum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_sub(*byte))
}

pub(super) fn build(pci: PciRevision, apic_ids: &[u8], translated_slots: &[u8]) -> TableImage {
    let (dsdt, madt) = (dsdt::build(pci, OEM_ID, OEM_TABLE_ID, OEM_REVISION), madt(apic_ids));
    let dmar = (!translated_slots.is_empty()).then(|| dmar(translated_slots));
    let entries = if dmar.is_some() { 3 } else { 2 };
    let fadt_at = (XSDT_ADDRESS + xsdt(&[0; 3][..entries]).len() as u64).next_multiple_of(16);
    let madt_at = (fadt_at + fadt(0, 0).len() as u64).next_multiple_of(16);
    let dsdt_at = (madt_at + madt.len() as u64).next_multiple_of(16);
    let dmar_at = (dsdt_at + dsdt.len() as u64).next_multiple_of(16);
    let dmar_bytes = dmar.as_ref().map_or(0, Vec::len) as u64;
    let facs_at = (dmar_at + dmar_bytes).next_multiple_of(PAGE_SIZE);
    let roots = &[fadt_at, madt_at, dmar_at][..entries];
    let mut parts = vec![
        (TABLES_START, rsdp()),
        (RSDT_ADDRESS, rsdt(roots)),
        (XSDT_ADDRESS, xsdt(roots)),
        (fadt_at, fadt(facs_at, dsdt_at)),
        (madt_at, madt),
        (dsdt_at, dsdt),
    ];
    parts.extend(dmar.map(|dmar| (dmar_at, dmar)));
    parts.push((facs_at, bytes(&FACS::new())));
    TableImage { parts, facs: facs_at }
}

fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

/// The root table with 32-bit entries, for guests that support only ACPI 1.0.
fn rsdt(entries: &[u64]) -> Vec<u8> {
    let mut rsdt = Sdt::new(*b"RSDT", 36, 1, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    entries.iter().for_each(|entry| rsdt.append_slice(&(*entry as u32).to_le_bytes()));
    rsdt.as_slice().to_vec()
}

fn xsdt(entries: &[u64]) -> Vec<u8> {
    let mut xsdt = XSDT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    entries.iter().for_each(|entry| xsdt.add_entry(*entry));
    bytes(&xsdt)
}

/// FADT flags (ACPI 6.5, table 5.10). Bit 4 is clear: the power button is a fixed feature of PM1.
const FADT_FLAGS: u32 = FLAG_WBINVD | FLAG_PROC_C1 | FLAG_NO_SLEEP_BUTTON | FLAG_TIMER_32_BIT | FLAG_RESET;
const FLAG_WBINVD: u32 = 1 << 0;
const FLAG_PROC_C1: u32 = 1 << 2;
const FLAG_NO_SLEEP_BUTTON: u32 = 1 << 5;
const FLAG_TIMER_32_BIT: u32 = 1 << 8;
const FLAG_RESET: u32 = 1 << 10;
/// Boot architecture flags (table 5.11): ISA devices present, no VGA. These flags are clear: 8042 present (bit 1),
/// MSI not supported (bit 3), no CMOS RTC (bit 5).
const BOOT_ARCHITECTURE: u16 = 1 << 0 | 1 << 2;
/// Latencies in microseconds. A larger latency than the limit of ACPI means that the C state does not exist.
const NO_C2_LATENCY: u16 = 101;
const NO_C3_LATENCY: u16 = 1001;
/// CMOS register of the century.
const CENTURY_REGISTER: u8 = 0x32;
const FADT_SIZE: u32 = 276;

/// FADT revision 6. SMI_CMD is 0: the machine is always in ACPI mode.
fn fadt(facs: u64, dsdt: u64) -> Vec<u8> {
    let mut fadt = Sdt::new(*b"FACP", FADT_SIZE, 6, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    fadt.write_u32(36, facs as u32);
    fadt.write_u32(40, dsdt as u32);
    fadt.write_u16(46, u16::from(layout::SCI_IRQ));
    for (at, port, length_at, length) in [
        (56, layout::PM1_EVENT_PORT, 88, 4),
        (64, layout::PM1_CONTROL_PORT, 89, 2),
        (76, layout::PM_TIMER_PORT, 91, 4),
    ] {
        fadt.write_u32(at, u32::from(port));
        fadt.write_u8(length_at, length);
    }
    fadt.write_u16(96, NO_C2_LATENCY);
    fadt.write_u16(98, NO_C3_LATENCY);
    fadt.write_u8(108, CENTURY_REGISTER);
    fadt.write_u16(109, BOOT_ARCHITECTURE);
    fadt.write_u32(112, FADT_FLAGS);
    fadt.write(116, GenericAddress::io_port_address::<u8>(layout::RESET_PORT));
    fadt.write_u8(128, RESET_VALUE);
    fadt.write_u8(131, 5);
    // X_FIRMWARE_CTRL stays 0, because FIRMWARE_CTRL has the FACS's address, and only one of the two fields may be set.
    fadt.write_u64(140, dsdt);
    let event = GenericAddress {
        register_bit_width: 32,
        ..GenericAddress::io_port_address::<u16>(layout::PM1_EVENT_PORT)
    };
    fadt.write(148, event);
    fadt.write(172, GenericAddress::io_port_address::<u16>(layout::PM1_CONTROL_PORT));
    fadt.write(208, GenericAddress::io_port_address::<u32>(layout::PM_TIMER_PORT));
    fadt.as_slice().to_vec()
}

/// The flags of ISA interrupt 0, which is connected to I/O APIC pin 2. The interrupt is edge-triggered and active high,
/// as is usual on the ISA bus.
const CONFORMS_TO_BUS: u16 = 0;
/// Interrupt flags: active high, level-triggered.
const ACTIVE_HIGH_LEVEL: u16 = 0b1101;
const MADT_PCAT_COMPAT: u32 = 1;

/// MADT: the processors, one I/O APIC, and NMI on LINT1. Two ISA interrupts need an override: one has another pin, the
/// other is level-triggered.
fn madt(apic_ids: &[u8]) -> Vec<u8> {
    let apic = LocalInterruptController::Address(layout::LAPIC_BASE as u32);
    let mut base = MADT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION, apic);
    for (processor, &id) in (0..).zip(apic_ids) {
        base.add_structure(ProcessorLocalApic::new(processor, id, EnabledStatus::Enabled));
    }
    base.add_structure(IoApic::new(0, layout::IOAPIC_BASE as u32, 0));
    // The crate `acpi_tables` lacks the interrupt overrides, the NMI structure and the flag PCAT_COMPAT, so this
    // function writes them as bytes.
    let base = bytes(&base);
    let mut madt = Sdt::new(*b"APIC", 36, 5, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    madt.append_slice(&base[36..]);
    madt.write_u32(40, MADT_PCAT_COMPAT);
    madt.append_slice(&source_override(layout::PIT_IRQ, layout::PIT_GSI, CONFORMS_TO_BUS));
    madt.append_slice(&source_override(layout::SCI_IRQ, layout::SCI_IRQ, ACTIVE_HIGH_LEVEL));
    madt.append_slice(&local_nmi());
    madt.as_slice().to_vec()
}

/// Width of physical addresses, minus one.
const ADDRESS_WIDTH: u8 = 39;
/// DMAR (Intel VT-d 3.3, chapter 8): one IOMMU, only for the PCI functions in these slots of bus 0.
fn dmar(slots: &[u8]) -> Vec<u8> {
    let mut dmar = Sdt::new(*b"DMAR", 36, 1, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    dmar.append_slice(&[ADDRESS_WIDTH, 0]);
    dmar.append_slice(&[0; 10]);
    let length = 16 + 8 * slots.len() as u16;
    dmar.append_slice(&[0_u16.to_le_bytes(), length.to_le_bytes()].concat());
    dmar.append_slice(&[0; 4]);
    dmar.append_slice(&devices::passthrough::TRANSLATION_BASE.to_le_bytes());
    slots.iter().for_each(|&slot| dmar.append_slice(&[1, 8, 0, 0, 0, 0, slot, 0]));
    dmar.as_slice().to_vec()
}

fn source_override(irq: u8, gsi: u8, flags: u16) -> [u8; 10] {
    let [low, high] = flags.to_le_bytes();
    [2, 10, 0, irq, gsi, 0, 0, 0, low, high]
}

/// NMI on LINT1 of every processor.
fn local_nmi() -> [u8; 6] {
    [4, 6, 0xFF, 0, 0, 1]
}

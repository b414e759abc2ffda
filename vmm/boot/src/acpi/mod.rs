//! The ACPI tables (ACPI 6.5, chapters 5 and 6). The tables describe to the guest the interrupt controllers,
//! power management, the PCI bus and the ISA devices of the board in `devices::layout`.
//!
//! The tables are constants: every guest gets the same bytes at the same addresses. There are three exceptions. A guest
//! with PCI functions of the host has an additional table (DMAR). A machine with an older PCI bus has an older DSDT.
//! The MADT lists the processors. The tables deliberately leave out GPEs, HPET, and sleep states other than "off". The
//! tables contain AML methods only to choose the routing of interrupts.
//!
//! ```text
//! 0xE0000  RSDP, RSDT, XSDT, FADT, MADT, DSDT   ACPI reclaim memory (a scan of the firmware area finds
//!                                               the RSDP)
//! ...      FACS                                 ACPI NVS, one page
//! ```

mod dsdt;
mod tables;

use std::ops::Range;

use devices::pci::PciRevision;
pub use dsdt::S5_SLEEP_TYPE;
use guest_ram::GuestMemory;
use tables::PAGE_SIZE;
pub use tables::{RESET_VALUE, TABLES_START, rsdp, rsdp_v1};
use vm_memory::{Bytes, GuestAddress};

/// The locations of the tables, for the memory map and the boot protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcpiTables {
    /// Guest-physical address of the RSDP.
    pub rsdp: u64,
    /// The pages that contain the tables. The guest may reuse these pages after reading the tables.
    pub reclaim: Range<u64>,
    /// The page with the FACS, which the guest must never use as RAM.
    pub nvs: Range<u64>,
}

/// Writes all tables. `memory` must have RAM in the legacy hole. Every `guest_ram::GuestRam` of at least 1 MiB has RAM
/// there.
///
/// The tables describe the IOMMU of `devices::passthrough` for the PCI functions in `translated_slots`, if there are
/// any.
pub fn write_tables(
    memory: &GuestMemory,
    pci: PciRevision,
    apic_ids: &[u8],
    translated_slots: &[u8],
) -> AcpiTables {
    let image = tables::build(pci, apic_ids, translated_slots);
    for (start, bytes) in &image.parts {
        memory.write_slice(bytes, GuestAddress(*start)).expect("guests have RAM below 1 MiB");
    }
    AcpiTables {
        rsdp: TABLES_START,
        reclaim: TABLES_START..image.facs,
        nvs: image.facs..image.facs + PAGE_SIZE,
    }
}

#[cfg(test)]
mod tests;

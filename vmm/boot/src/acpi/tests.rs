use std::process::Command;

use super::*;
use crate::acpi::tables::TableImage;

fn field<const N: usize>(table: &[u8], at: usize) -> [u8; N] {
    table[at..at + N].try_into().unwrap()
}

fn u32_in(table: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(field(table, at))
}

fn u64_in(table: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(field(table, at))
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

/// The table at an address, checked against its own length field.
fn table_at(image: &TableImage, address: u64) -> &[u8] {
    let (_, bytes) = image.parts.iter().find(|(start, _)| *start == address).expect("a table starts there");
    assert_eq!(u32_in(bytes, 4) as usize, bytes.len());
    bytes
}

fn table<'a>(image: &'a TableImage, signature: &[u8; 4]) -> &'a [u8] {
    let (_, bytes) = image.parts.iter().find(|(_, bytes)| bytes.starts_with(signature)).unwrap();
    bytes
}

#[test]
fn every_table_is_reachable_and_has_a_right_checksum() {
    let image = tables::build(PciRevision::V2, &[0], &[]);
    let rsdp = &image.parts[0].1;
    assert_eq!(&rsdp[..8], b"RSD PTR ");
    assert_eq!((sum(&rsdp[..20]), sum(rsdp), rsdp[15]), (0, 0, 2));
    let old = rsdp_v1();
    assert_eq!((old.len(), sum(&old), old[15]), (20, 0, 0));
    let xsdt = table_at(&image, u64_in(rsdp, 24));
    assert_eq!((&xsdt[..4], sum(xsdt)), (&b"XSDT"[..], 0));
    let tables: Vec<&[u8]> = xsdt[36..].chunks(8).map(|p| table_at(&image, u64_in(p, 0))).collect();
    assert_eq!(tables.iter().map(|t| &t[..4]).collect::<Vec<_>>(), [b"FACP", b"APIC"]);
    assert!(tables.iter().all(|t| sum(t) == 0));
    for rsdp in [rsdp, &old] {
        let rsdt = table_at(&image, u64::from(u32_in(rsdp, 16)));
        assert_eq!((&rsdt[..4], sum(rsdt)), (&b"RSDT"[..], 0));
        let same: Vec<&[u8]> = rsdt[36..].chunks(4).map(|p| table_at(&image, u32_in(p, 0).into())).collect();
        assert_eq!(same, tables);
    }
    let dsdt = table_at(&image, u64_in(tables[0], 140));
    assert_eq!(
        (&dsdt[..4], sum(dsdt), u64::from(u32_in(tables[0], 40))),
        (&b"DSDT"[..], 0, u64_in(tables[0], 140))
    );
    let facs = table_at(&image, u64::from(u32_in(tables[0], 36)));
    assert_eq!((&facs[..4], image.facs % 64), (&b"FACS"[..], 0));
}

#[test]
fn parts_lie_in_the_firmware_area_without_overlap() {
    let image = tables::build(PciRevision::V2, &[0], &[]);
    let ends: Vec<u64> = image.parts.iter().map(|(start, bytes)| start + bytes.len() as u64).collect();
    assert!(image.parts.windows(2).zip(&ends).all(|(pair, end)| *end <= pair[1].0));
    assert_eq!(image.parts[0].0, TABLES_START);
    assert!(image.facs + PAGE_SIZE <= 0x10_0000);
}

#[test]
fn fadt_describes_the_board() {
    let image = tables::build(PciRevision::V2, &[0], &[]);
    let fadt = table(&image, b"FACP");
    assert!(fadt[8] >= 5);
    for (what, at, expected) in [
        ("SMI_CMD", 48, 0),
        ("PM1a_EVT_BLK", 56, 0x600),
        ("PM1b_EVT_BLK", 60, 0),
        ("PM1a_CNT_BLK", 64, 0x604),
        ("PM_TMR_BLK", 76, 0x608),
        ("GPE0_BLK", 80, 0),
        ("lengths", 88, 0x0400_0204),
        ("X_PM1a_EVT address", 152, 0x600),
        ("X_PM1a_CNT address", 176, 0x604),
        ("X_PM_TMR address", 212, 0x608),
        ("reset register", 120, 0xCF9),
    ] {
        assert_eq!(u32_in(fadt, at), expected, "{what}");
    }
    assert_eq!(u16::from_le_bytes(field(fadt, 46)), 9);
    assert_eq!(u16::from_le_bytes(field(fadt, 109)), 0b101);
    assert_eq!(fadt[128], 6);
    let flags = u32_in(fadt, 112);
    assert_eq!(flags & (1 << 20 | 1 << 4), 0, "not hardware-reduced, a fixed power button");
    assert_eq!(flags & (1 << 8 | 1 << 10), 1 << 8 | 1 << 10, "32-bit timer, reset register");
    assert_eq!(fadt[116..120], [1, 8, 0, 1], "a byte-wide I/O port");
}

#[test]
fn madt_has_the_processors_the_interrupt_controllers_and_overrides() {
    let found = |ids: &[u8]| {
        let image = tables::build(PciRevision::V2, ids, &[]);
        let madt = table(&image, b"APIC");
        assert_eq!((u32_in(madt, 36), u32_in(madt, 40)), (0xFEE0_0000, 1));
        let mut rest = &madt[44..];
        let mut found = Vec::new();
        while !rest.is_empty() {
            let (entry, tail) = rest.split_at(usize::from(rest[1]));
            found.push(entry.to_vec());
            rest = tail;
        }
        found
    };
    assert_eq!(found(&[0, 1])[1], [0, 8, 1, 1, 1, 0, 0, 0], "the second processor");
    assert_eq!(found(&[0, 1, 4, 5])[3][2..4], [3, 5], "the number, and the APIC id");
    assert_eq!(
        found(&[0]),
        [
            vec![0, 8, 0, 0, 1, 0, 0, 0],
            vec![1, 12, 0, 0, 0, 0, 0xC0, 0xFE, 0, 0, 0, 0],
            vec![2, 10, 0, 0, 2, 0, 0, 0, 0, 0],
            vec![2, 10, 0, 9, 9, 0, 0, 0, 0b1101, 0],
            vec![4, 6, 0xFF, 0, 0, 1],
        ]
    );
}

/// Disassembles every table with ACPI's reference compiler, iasl, if it is installed.
#[test]
fn iasl_understands_every_table() {
    if Command::new("iasl").arg("-v").output().is_err() {
        return skip::test("there is no iasl (package acpica-tools)");
    }
    let folder = std::env::temp_dir().join(format!("ttvm-acpi-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let image = tables::build(PciRevision::V2, &[0], &[]);
    for signature in [b"RSDT", b"XSDT", b"FACP", b"APIC", b"DSDT", b"FACS"] {
        let name = String::from_utf8_lossy(signature).to_string();
        let path = folder.join(format!("{name}.aml"));
        std::fs::write(&path, table(&image, signature)).unwrap();
        let run = Command::new("iasl").arg("-d").arg(&path).output().unwrap();
        let output = String::from_utf8_lossy(&[run.stdout, run.stderr].concat()).to_string();
        assert!(run.status.success(), "{name}: {output}");
        for complaint in ["Incorrect checksum", "ACPI Error", "Unknown", "Invalid", "Error:"] {
            assert!(!output.contains(complaint), "{name}: {output}");
        }
    }
    let dsl = std::fs::read_to_string(folder.join("DSDT.dsl")).unwrap();
    for expected in
        ["_S5", "PNP0A03", "PNP0501", "PNP0B00", "QEMU0001", "0xC0000000", "0xFEAFFFFF", "0x001FFFFF"]
    {
        assert!(dsl.contains(expected), "{expected} is missing in\n{dsl}");
    }
    let again = Command::new("iasl").arg(folder.join("DSDT.dsl")).output().unwrap();
    let output = String::from_utf8_lossy(&[again.stdout, again.stderr].concat()).to_string();
    assert!(output.contains(" 0 Errors, 0 Warnings"), "{output}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_guest_with_functions_of_the_host_has_an_iommu_for_them() {
    let image = tables::build(PciRevision::V2, &[0], &[4, 6]);
    let xsdt = table_at(&image, u64_in(&image.parts[0].1, 24));
    let last = table_at(&image, u64_in(xsdt, xsdt.len() - 8));
    assert_eq!((&last[..4], sum(last), last.len()), (&b"DMAR"[..], 0, 48 + 16 + 16));
    assert_eq!((last[36], u64_in(last, 56)), (39, 0xFED9_0000));
    assert_eq!(last[64..], [1, 8, 0, 0, 0, 0, 4, 0, 1, 8, 0, 0, 0, 0, 6, 0]);
    let ends: Vec<u64> = image.parts.iter().map(|(start, bytes)| start + bytes.len() as u64).collect();
    assert!(image.parts.windows(2).zip(&ends).all(|(pair, end)| *end <= pair[1].0));
}

/// A guest on the 8259 pair (`nolapic`) finds its interrupt lines in the same routing table. A machine with the first
/// revision of the PCI bus keeps the routing table of that revision.
#[test]
fn routing_follows_the_interrupt_model_since_the_second_revision() {
    let has = |pci, what: &[u8]| {
        table(&tables::build(pci, &[0], &[]), b"DSDT").windows(what.len()).any(|bytes| bytes == what)
    };
    for name in [&b"_PIC"[..], b"APRT", b"PPRT"] {
        assert!(has(PciRevision::V2, name) && !has(PciRevision::V1, name), "{name:?}");
    }
    assert!(has(PciRevision::V1, b"\x08_PRT") && has(PciRevision::V2, b"_PRT"));
}

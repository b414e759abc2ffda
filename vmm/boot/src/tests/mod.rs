//! Generated images of every protocol: the contents of guest memory after loading, and the errors.

mod errors;
pub(super) mod images;
mod protocols;

use devices::pci::PciRevision;
use guest_ram::GuestRam;
use vm_memory::{Bytes, GuestAddress};

use super::*;

const MIB: u64 = 1 << 20;

/// RAM of a size in MiB.
fn ram(mib: u64) -> GuestRam {
    GuestRam::new(mib * MIB).unwrap()
}

fn kernel(bytes: &[u8]) -> Image<'_> {
    Image { name: "kernel.img", bytes }
}

fn with<'a>(bytes: &'a [u8], change: impl FnOnce(&mut BootImages<'a>)) -> BootImages<'a> {
    let mut images = BootImages::new(kernel(bytes));
    change(&mut images);
    images
}

fn bytes_at(ram: &GuestRam, gpa: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    ram.memory().read_slice(&mut bytes, GuestAddress(gpa)).unwrap();
    bytes
}

fn u32_at(ram: &GuestRam, gpa: u64) -> u32 {
    ram.memory().read_obj(GuestAddress(gpa)).unwrap()
}

fn u64_at(ram: &GuestRam, gpa: u64) -> u64 {
    ram.memory().read_obj(GuestAddress(gpa)).unwrap()
}

fn text_at(ram: &GuestRam, gpa: u64) -> String {
    let bytes = bytes_at(ram, gpa, 4096);
    let end = bytes.iter().position(|byte| *byte == 0).expect("texts end");
    String::from_utf8(bytes[..end].to_vec()).unwrap()
}

/// The memory map that every protocol must give for this RAM. Each entry is (start, length, kind).
fn expected_map(ram: &GuestRam) -> Vec<(u64, u64, u32)> {
    let tables = crate::acpi::write_tables(ram.memory(), PciRevision::default(), &[0], &[]);
    memory_map(ram.layout(), &tables).iter().map(|r| (r.start, r.length, r.kind as u32)).collect()
}

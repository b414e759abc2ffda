//! Tests of boots, with kernels in made-up memory.

use super::{BASE, DIRECT_MAP, Pages, found};
use crate::boot::Boot;
use crate::{GuestView, Symbols};

const BANNER_AT: u64 = BASE + 0x2_0000;
const PARAMETERS_AT: u64 = BASE + 0x2_1000;
const BANNER: &[u8] = b"Linux version 6.1.0-9-amd64 (a@b) (gcc) #1 SMP\n\0";

fn symbols(moved: u64) -> Symbols {
    let names = [(BASE, 'T', "_text"), (BANNER_AT, 'D', "linux_banner"), (PARAMETERS_AT, 'D', "boot_params")];
    Symbols::new(names.map(|(at, class, name)| found(at + moved, class, name)).to_vec(), Vec::new())
}

fn memory(moved: u64, banner: &[u8], loader: &[u8]) -> Pages {
    let mut memory = Pages::default();
    memory.write(BANNER_AT + moved, banner);
    memory.write(PARAMETERS_AT + moved, &[0; 4000]);
    memory.write(PARAMETERS_AT + moved + 0x210, loader);
    memory
}

#[test]
fn boots_differ_by_place_release_and_loader() {
    let first = memory(0, BANNER, &[0xff]);
    let boot = Boot::of_kernel(&first, &symbols(0)).expect("a kernel with variables");
    assert_eq!((boot.release().as_str(), boot.is_by_kexec()), ("6.1.0-9-amd64", false));
    assert!(boot.is_here(&first) && boot.is_mapped(&first));
    let other = b"Linux version 6.1.0-8-amd64 (a@b) (gcc) #1 SMP\n\0";
    for (guest, is_mapped) in [
        (memory(0x20_0000, BANNER, &[0xff]), false),
        (memory(0, other, &[0xff]), false),
        (Pages::default(), false),
        // A kernel of this release without KASLR, which kexec started.
        (memory(0, BANNER, &[0xd0]), true),
        // A kernel that has just begun to start.
        (memory(0, BANNER, &[0]), true),
    ] {
        assert!(!boot.is_here(&guest));
        assert_eq!(boot.is_mapped(&guest), is_mapped);
    }
    let moved = memory(0x20_0000, BANNER, &[0xd0]);
    assert!(Boot::of_kernel(&moved, &symbols(0x20_0000)).is_some_and(|boot| boot.is_by_kexec()));
}

/// A crash kernel has the same virtual addresses as the crashed kernel, but other physical addresses.
#[test]
fn boots_differ_by_their_physical_place() {
    struct Elsewhere(Pages);
    impl GuestView for Elsewhere {
        fn cr3(&self) -> u64 {
            0
        }
        fn read(&self, cr3: u64, address: u64, to: &mut [u8]) -> usize {
            self.0.read(cr3, address, to)
        }
        fn physical(&self, cr3: u64, address: u64) -> Option<u64> {
            Some(self.0.physical(cr3, address)?.wrapping_add(DIRECT_MAP))
        }
    }
    let first = memory(0, BANNER, &[0xff]);
    let boot = Boot::of_kernel(&first, &symbols(0)).expect("a kernel with variables");
    assert!(!boot.is_mapped(&Elsewhere(first)));
}

#[test]
fn kernels_without_variables_or_with_nonsense_have_no_boot() {
    let memory = memory(0, &[b'x'; 2000], &[0xff]);
    assert_eq!(Boot::of_kernel(&memory, &symbols(0)), None);
    let functions = Symbols::new(vec![found(BASE, 'T', "_text")], Vec::new());
    assert_eq!(Boot::of_kernel(&memory, &functions), None);
}

//! Files of a kernel that was linked elsewhere than it runs.

use std::io::Cursor;

use super::tests::symbols;
use super::vmlinux::{Match, Placement, Unusable, compare, contents};
use super::*;

const DISTANCE: u64 = 0x1980_0000;

/// Where an ELF file's section headers are, and how many there are.
fn headers(file: &[u8]) -> (usize, usize) {
    (u64_at(file, 40) as usize, usize::from(file[60]) | usize::from(file[61]) << 8)
}

fn u64_at(file: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*file[at..].first_chunk().expect("inside"))
}

/// Subtracts from the address at a place, if it is one of the kernel's image.
fn move_down(file: &mut [u8], at: usize) {
    let address = u64_at(file, at);
    if kallsyms::IMAGE.contains(&address) {
        file[at..at + 8].copy_from_slice(&(address - DISTANCE).to_le_bytes());
    }
}

/// The kernel's file as it was linked.
fn unmoved() -> Vec<u8> {
    let mut file = elf::file(&symbols());
    let (start, count) = headers(&file);
    for header in (0..count).map(|number| start + 64 * number) {
        move_down(&mut file, header + 16);
        // The table of symbols.
        if file[header + 4] == 2 {
            let (from, size) = (u64_at(&file, header + 24) as usize, u64_at(&file, header + 32) as usize);
            (from..from + size).step_by(24).for_each(|symbol| move_down(&mut file, symbol + 8));
        }
    }
    file
}

fn compare_with(file: &[u8]) -> Result<Match, Unusable> {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let path = directory.path().join("vmlinux");
    std::fs::write(&path, file).expect("the folder is ours");
    compare(&path, &symbols())
}

#[test]
fn the_distance_is_found() {
    let placement = Placement { distance: DISTANCE, fixed: Vec::new() };
    assert_eq!(compare_with(&unmoved()).expect("it is this kernel"), Match::Kernel(placement.clone()));
    let moved = compare_with(&elf::file(&symbols())).expect("it is this kernel");
    assert_eq!(moved, Match::Kernel(Placement::default()));
    let command = placement.load_command("/boot/a \"b\"".as_ref());
    assert_eq!(command, r#"add-symbol-file "/boot/a \"b\"" -o 0x19800000"#);
}

#[test]
fn offsets_stay_where_they_are() {
    let mut file = unmoved();
    let (start, _) = headers(&file);
    file[start + 64 + 16..][..8].copy_from_slice(&0x40u64.to_le_bytes());
    let Ok(Match::Kernel(placement)) = compare_with(&file) else { panic!("it is this kernel") };
    assert_eq!(placement.fixed, [(".text".to_string(), 0x40)]);
    let command = placement.load_command("/k".as_ref());
    assert_eq!(command, r#"add-symbol-file "/k" -o 0x19800000 -s .text 0x40"#);
}

#[test]
fn other_files_are_told_apart() {
    let other = Symbols::new(
        (0..700)
            .map(|number| tests::found(tests::BASE + number * 0x100, 't', &format!("sys_{number}")))
            .collect(),
        Vec::new(),
    );
    let error = compare_with(&elf::file(&other)).expect_err("it is another kernel").to_string();
    assert!(error.contains("is of another kernel than the guest's: 0 of 700 functions"), "{error}");
    let few = Symbols::new(vec![tests::found(tests::BASE, 'T', "_text")], Vec::new());
    assert_eq!(compare_with(&elf::file(&few)).expect("it can be read"), Match::NoKernel);
    for (bytes, expected) in [
        (&b"#!/bin/sh\n"[..], "it is not an ELF file"),
        (&[0; 64], "it is not an ELF file for x86-64"),
        (&unmoved()[..0x400], "it is cut off"),
    ] {
        let error = compare_with(bytes).expect_err(expected).to_string();
        assert!(error.ends_with(&format!(": {expected}")), "{error}");
    }
    let error = compare("/".as_ref(), &symbols()).expect_err("it is a folder").to_string();
    assert!(error.ends_with("it is not a plain file"), "{error}");
}

#[test]
fn damaged_files_do_no_harm() {
    let good = unmoved();
    let (start, count) = headers(&good);
    for at in (0..64).chain(start..start + 64 * count) {
        for flip in [0x01, 0x80, 0xff] {
            let mut file = good.clone();
            file[at] ^= flip;
            // Whatever it says.
            let _ = contents(Cursor::new(file));
        }
    }
    for end in (0..good.len()).step_by(101) {
        assert!(contents(Cursor::new(&good[..end])).is_err(), "cut at {end}");
    }
}

#[test]
fn modules_alone() {
    let modules = symbols().of_modules();
    let names: Vec<_> = modules.all().iter().map(|symbol| symbol.name.as_str()).collect();
    assert_eq!(names, ["take", "sys_5"]);
    assert_eq!(modules.modules(), ["tokens"]);
    assert_eq!(modules.name_of(symbols().address_of("take").expect("it is there") + 1), Some(("take", 1)));
    assert_eq!(modules.sections().len(), 1);
}

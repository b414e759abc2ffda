//! Tests with files of a kernel that was linked at another address than the address at which it runs.

use std::io::Cursor;

use object::elf::{FileHeader64, SHT_SYMTAB, SectionHeader64, Sym64};
use object::pod::{from_bytes, slice_from_bytes_mut};
use object::{LittleEndian, U64};

use super::{BASE, found, symbols};
use crate::vmlinux::{Match, Placement, Unusable, compare, contents};
use crate::{Symbols, elf, kallsyms};

const DISTANCE: u64 = 0x1980_0000;

type Section = SectionHeader64<LittleEndian>;

/// Offset and number of an ELF file's section headers.
fn headers(file: &[u8]) -> (usize, usize) {
    let (header, _) = from_bytes::<FileHeader64<LittleEndian>>(file).expect("it is whole");
    (header.e_shoff.get(LittleEndian) as usize, header.e_shnum.get(LittleEndian).into())
}

fn sections(file: &mut [u8]) -> &mut [Section] {
    let (start, count) = headers(file);
    slice_from_bytes_mut(&mut file[start..], count).expect("it is whole").0
}

/// Moves an address down, if it is in the kernel's image.
fn move_down(address: &mut U64<LittleEndian>) {
    let linked = address.get(LittleEndian).wrapping_sub(DISTANCE);
    if kallsyms::IMAGE.contains(&address.get(LittleEndian)) {
        address.set(LittleEndian, linked);
    }
}

/// The kernel's file as it was linked.
fn unmoved() -> Vec<u8> {
    let mut file = elf::file(&symbols());
    let mut symtab = None;
    for section in sections(&mut file) {
        move_down(&mut section.sh_addr);
        if section.sh_type.get(LittleEndian) == SHT_SYMTAB {
            symtab = Some((section.sh_offset.get(LittleEndian), section.sh_size.get(LittleEndian)));
        }
    }
    let (offset, size) = symtab.expect("it has symbols");
    let count = size as usize / size_of::<Sym64<LittleEndian>>();
    let symbols = slice_from_bytes_mut::<Sym64<LittleEndian>>(&mut file[offset as usize..], count);
    symbols.expect("it is whole").0.iter_mut().for_each(|symbol| move_down(&mut symbol.st_value));
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
    sections(&mut file)[1].sh_addr.set(LittleEndian, 0x40);
    let Ok(Match::Kernel(placement)) = compare_with(&file) else { panic!("it is this kernel") };
    assert_eq!(placement.fixed, [(".text".to_string(), 0x40)]);
    let command = placement.load_command("/k".as_ref());
    assert_eq!(command, r#"add-symbol-file "/k" -o 0x19800000 -s .text 0x40"#);
}

#[test]
fn other_files_are_told_apart() {
    let other = Symbols::new(
        (0..700).map(|number| found(BASE + number * 0x100, 't', &format!("sys_{number}"))).collect(),
        Vec::new(),
    );
    let error = compare_with(&elf::file(&other)).expect_err("it is another kernel").to_string();
    assert!(error.contains("is not of the guest's kernel: 0 of 700 common functions"), "{error}");
    let few = Symbols::new(vec![found(BASE, 'T', "_text")], Vec::new());
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
    assert!(error.ends_with("not a regular file"), "{error}");
}

#[test]
fn damaged_files_do_no_harm() {
    let good = unmoved();
    let (start, count) = headers(&good);
    for at in (0..64).chain(start..start + 64 * count) {
        for flip in [0x01, 0x80, 0xff] {
            let mut file = good.clone();
            file[at] ^= flip;
            // Only a panic would fail the test, whatever the function returns.
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

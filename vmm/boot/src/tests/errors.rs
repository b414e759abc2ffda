use super::images::*;
use super::*;

fn error(mib: u64, images: &BootImages<'_>) -> String {
    match load(&ram(mib), images) {
        Ok(entry) => panic!("loaded: {entry:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn files_that_are_no_kernels_are_named() {
    let boot_sector = {
        let mut b = vec![1; 1024];
        b[510] = 0x55;
        b[511] = 0xAA;
        b
    };
    let arm64 = {
        let mut b = vec![1; 128];
        b[0x38..0x3C].copy_from_slice(b"ARM\x64");
        b
    };
    let (mut arm_elf, mut object) = (elf(true, 0, &[]), elf(true, 0, &[]));
    arm_elf[18] = 183;
    object[16] = 1;
    let elf32 = elf(false, 0x10_0000, &[load_segment(0x10_0000, b"x")]);
    for (bytes, expected) in [
        (&b""[..], "an empty file"),
        (&[0; 600], "zeroes"),
        (b"hello, world\n", "a text file"),
        (b"#!/bin/sh\n", "a script"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"070701000", "an initrd?"),
        (b"\x80\x01\x02\x03\x04\x05\x06\x07\x08", "it starts with 80 01 02 03 04 05 06 07"),
        (&boot_sector, "a disk image with a boot sector"),
        (&arm64, "an arm64 Linux Image"),
        (&arm_elf, "an arm64 ELF file"),
        (&object, "not executable"),
        (&elf32, "without a Multiboot header or a PVH note"),
    ] {
        let text = error(16, &BootImages::new(kernel(bytes)));
        assert!(text.starts_with("kernel.img is ") && text.contains(expected), "{text}");
    }
}

fn patched_bzimage(at: usize, value: &[u8]) -> Vec<u8> {
    let mut file = bzimage();
    file[at..at + value.len()].copy_from_slice(value);
    file
}

#[test]
fn bzimages_that_cannot_start_say_why() {
    for (at, value, expected) in [
        (0x236, &[0, 0][..], "kernel.img is a 32-bit Linux kernel"),
        (0x206, &[0x0A, 2], "boot protocol 2.10, which has no 64-bit entry"),
        (0x211, &[0], "a zImage"),
        (0x1F4, &65_u32.to_le_bytes(), "kernel.img is truncated: the compressed kernel ends at byte 2064"),
        (0x1F4, &u32::MAX.to_le_bytes(), "truncated"),
        (0x258, &[0; 8], "a preferred load address of 0x0, below 1 MiB"),
        (0x258, &0xF000_0000_u64.to_le_bytes(), "where this machine has no free RAM"),
        (0x258, &u64::MAX.to_le_bytes(), "where this machine has no free RAM"),
        (0x260, &0x700_0000_u32.to_le_bytes(), "needs at least 128 MiB of memory and the machine has 64 MiB"),
        (0x201, &[0], "its setup header is too short"),
    ] {
        let file = patched_bzimage(at, value);
        let text = error(64, &BootImages::new(kernel(&file)));
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn companions_that_do_not_fit_are_named_with_the_remedy() {
    let (file, initrd, long) = (bzimage(), vec![0; 20 << 20], "x".repeat(2048));
    let initrd = Image { name: "initrd.img", bytes: &initrd };
    let module = Module { image: Image { name: "m.ko", bytes: b"" }, cmdline: "" };
    let low = patched_bzimage(0x22C, &0x2FF_FFFF_u32.to_le_bytes());
    for (images, expected) in [
        (
            with(&file, |i| i.initrd = Some(initrd)),
            "initrd.img needs at least 68 MiB of memory and the machine has 64",
        ),
        (
            with(&low, |i| i.initrd = Some(initrd)),
            "does not fit below 0x3000000, where kernel.img expects its initrd",
        ),
        (
            with(&file, |i| i.cmdline = &long),
            "the command line is 2048 bytes long and kernel.img accepts 2047",
        ),
        (with(&file, |i| i.cmdline = "a\0b"), "the kernel command line contains a NUL"),
        (with(&file, |i| i.modules = vec![module]), "no place for the module m.ko"),
        (with(&file, |i| i.protocol = Some(Protocol::Pvh)), "by the pvh protocol: it is not an ELF file"),
        (with(&file, |i| i.protocol = Some(Protocol::Multiboot1)), "it has no Multiboot header"),
    ] {
        let text = error(64, &images);
        assert!(text.contains(expected), "{text}");
    }
    assert!(error(1, &BootImages::new(kernel(&file))).contains("at least 2 MiB"));
}

#[test]
fn elf_files_that_lie_are_refused() {
    let segment = |address, memory_size| {
        let part = Segment { memory_size, ..load_segment(address, b"0123456789") };
        elf(true, address, &[part])
    };
    let mut cut = segment(0x10_0000, 0x1000);
    cut.truncate(cut.len() - 10);
    let header = multiboot2_header(&[(10, 0, &[0, u32::MAX, 4096, 0])]);
    let mut relocatable = elf(true, 0, &[load_segment(0x10_0000, &header)]);
    relocatable[64 + 24..64 + 32].copy_from_slice(&[0xFF; 8]);
    let overlapping = elf(true, 0x10_0000, &[load_segment(0x10_0000, b"a"), load_segment(0x10_0080, b"b")]);
    for (file, expected) in [
        (segment(0x10_0000, 5), "more bytes in the file than in memory"),
        (segment(0xA_0000, 0x1000), "0xa0000..0xa1000, where this machine has no free RAM"),
        (segment(0x10_0000, u64::MAX), "no free RAM"),
        (segment(0x10_0000, 99 << 20), "needs at least 100 MiB"),
        (cut, "is truncated: a loaded part"),
        (overlapping, "two parts overlap"),
        (elf(true, 0x50_0000, &[load_segment(0x10_0000, b"a")]), "entry point 0x500000 lies outside"),
        (elf(true, 0, &[]), "no loadable segment"),
        (relocatable, "no free RAM"),
    ] {
        let text = error(64, &BootImages::new(kernel(&file)));
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn multiboot_headers_that_want_too_much_are_refused() {
    let elf_with = |header: Vec<u8>| elf(false, 0x10_0000, &[load_segment(0x10_0000, &header)]);
    let mut misplaced = multiboot2_header(&[]);
    misplaced[4..8].copy_from_slice(&4_u32.to_le_bytes());
    let sum = 0_u32.wrapping_sub(0xE852_50D6).wrapping_sub(4).wrapping_sub(24);
    misplaced[12..16].copy_from_slice(&sum.to_le_bytes());
    for (file, expected) in [
        (elf_with(multiboot1_header(4, [0; 5])), "asks for a video mode"),
        (elf_with(multiboot1_header(0x80, [0; 5])), "features that do not exist (flags 0x80)"),
        (multiboot1_header(0, [0; 5]), "its Multiboot header has no addresses"),
        (multiboot1_header(1 << 16, [0x10_0000, 0x20_0000, 0, 0, 0x20_0000]), "do not fit together"),
        (multiboot1_header(1 << 16, [0x20_0000, 0x20_0000, 0x10_0000, 0, 0]), "lies before its start"),
        (multiboot1_header(1 << 16, [0x20_0000, 0x20_0000, 0x30_0000, 0, 0x20_0000]), "is truncated"),
        (
            elf_with(multiboot2_header(&[(1, 0, &[1, 22])])),
            "asks for Multiboot2 information of the unknown type 22",
        ),
        (elf_with(multiboot2_header(&[(7, 0, &[])])), "asks for EFI boot services"),
        (elf_with(multiboot2_header(&[(4, 0, &[1])])), "asks for a display"),
        (elf_with(multiboot2_header(&[(99, 0, &[])])), "unknown Multiboot2 feature 99"),
        (multiboot2_header(&[(9, 0, &[0x10_0000])]), "no entry point for a PC without"),
        (multiboot2_header(&[(2, 0, &[0x10_0000, 0x10_0000, 0, 0])]), "without an entry address tag"),
        (multiboot2_header(&[(2, 0, &[0x10_0000])]), "tag 2 is too short"),
        (misplaced, "a Multiboot2 kernel for architecture 4"),
    ] {
        let text = error(64, &BootImages::new(kernel(&file)));
        assert!(text.contains(expected), "{text}");
    }
    let optional = elf_with(multiboot2_header(&[(1, 1, &[8]), (7, 1, &[]), (99, 1, &[]), (4, 1, &[1])]));
    load(&ram(64), &BootImages::new(kernel(&optional))).unwrap();
}

/// A small generator with a fixed seed (xorshift64*), so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Overwrites 1, 2, 4 or 8 bytes with a value that header parsers may handle wrongly, or cuts the file.
    fn mutate(&mut self, file: &mut Vec<u8>) {
        let value = match self.below(5) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << self.below(64),
            3 => self.below(0x200_0000) as u64,
            _ => self.next(),
        };
        let (size, at) = (1 << self.below(4), self.below(file.len().max(1)));
        if self.below(16) == 0 {
            file.truncate(at);
        }
        for (byte, new) in file.iter_mut().skip(at).take(size).zip(value.to_le_bytes()) {
            *byte = new;
        }
    }
}

#[test]
fn mutated_images_never_panic() {
    const SEED: u64 = 0x7E57_5EED;
    let rounds = std::env::var("TTVM_FUZZ_ROUNDS").map_or(20_000, |rounds| rounds.parse().unwrap());
    let (ram, mut random) = (ram(16), Random(SEED));
    let mut small = bzimage();
    small[0x258..0x260].copy_from_slice(&0x10_0000_u64.to_le_bytes());
    small[0x260..0x264].copy_from_slice(&0x1_0000_u32.to_le_bytes());
    let mb2 = multiboot2_header(&[(1, 0, &[1, 3, 6]), (4, 0, &[2]), (10, 0, &[0, u32::MAX, 4096, 0])]);
    let flat2 = multiboot2_header(&[(2, 0, &[0x10_0000, 0x10_0000, 0, 0x10_1000]), (3, 0, &[0x10_0010])]);
    let seeds = [
        small,
        elf(true, 0x10_0000, &[load_segment(0x10_0000, b"linux"), note_segment(b"Linux", 1, b"1")]),
        elf(false, 0x10_0000, &[load_segment(0x10_0000, b"pvh"), pvh_note(0x10_0000)]),
        elf(false, 0x10_0000, &[load_segment(0x10_0000, &multiboot1_header(3, [0; 5]))]),
        multiboot1_header(1 << 16, [0x10_0000, 0x10_0000, 0, 0x10_1000, 0x10_0000]),
        elf(true, 0x10_0000, &[load_segment(0x10_0000, &mb2)]),
        with_sections(elf(true, 0x10_0000, &[load_segment(0x10_0000, &mb2)])),
        flat2,
    ];
    let mut loaded = 0;
    for round in 0..rounds {
        let mut file = seeds[round % seeds.len()].clone();
        for _ in 0..1 + random.below(3) {
            random.mutate(&mut file);
        }
        let images = with(&file, |i| i.initrd = Some(Image { name: "initrd", bytes: &[1; 100] }));
        match load(&ram, &images) {
            Ok(_) => loaded += 1,
            Err(error) => assert!(error.to_string().len() < 400, "{error}"),
        }
    }
    assert!(
        (rounds / 20..rounds).contains(&loaded),
        "{loaded} loaded: the mutations do not reach deep enough"
    );
}

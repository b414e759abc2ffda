use super::images::*;
use super::*;

const CODE: &[u8] = b"\xFA\xF4\xEB\xFDsome code";

/// Checks the CPU state that is the same at the 32-bit entry of every protocol.
fn assert_protected32(ram: &GuestRam, entry: &CpuEntry, rip: u64) {
    assert_eq!((entry.mode, entry.rip, entry.rflags), (CpuMode::Protected32, rip, 2));
    assert_eq!((entry.cr0, entry.cr3, entry.cr4, entry.efer), (0x11, 0, 0, 0));
    assert_eq!((entry.cs.base, entry.cs.limit, entry.cs.attributes), (0, u32::MAX, 0xC09B));
    assert_eq!((entry.data.base, entry.data.limit, entry.data.attributes), (0, u32::MAX, 0xC093));
    assert_eq!(u64_at(ram, entry.gdt.base + u64::from(entry.cs.selector)), 0x00CF_9B00_0000_FFFF);
    assert_eq!(u64_at(ram, entry.gdt.base + u64::from(entry.data.selector)), 0x00CF_9300_0000_FFFF);
}

/// Translates an address by the page tables at CR3.
fn translate(ram: &GuestRam, cr3: u64, address: u64) -> u64 {
    let step = |table: u64, shift: u32| u64_at(ram, table + (address >> shift & 511) * 8);
    let pointers = step(cr3, 39);
    let directory = step(pointers & !0xFFF, 30);
    let page = step(directory & !0xFFF, 21);
    assert_eq!((pointers & 1, directory & 1, page & 0x81), (1, 1, 0x81));
    (page & !0x1F_FFFF) + (address & 0x1F_FFFF)
}

fn e820(ram: &GuestRam, boot_params: u64) -> Vec<(u64, u64, u32)> {
    let count = u64::from(bytes_at(ram, boot_params + 0x1E8, 1)[0]);
    let entry = |index| {
        let at = boot_params + 0x2D0 + index * 20;
        (u64_at(ram, at), u64_at(ram, at + 8), u32_at(ram, at + 16))
    };
    (0..count).map(entry).collect()
}

#[test]
fn bzimage_gets_all_that_the_boot_protocol_promises() {
    let (ram, file, initrd) = (ram(128), bzimage(), vec![7; 5000]);
    let images = with(&file, |images| {
        images.cmdline = "console=ttyS0 quiet";
        images.initrd = Some(Image { name: "initrd", bytes: &initrd });
        images.rng_seed = Some([0x5A; 32]);
    });
    let entry = load(&ram, &images).unwrap();

    assert_eq!((entry.mode, entry.rip), (CpuMode::Long64, 0x100_0200));
    assert_eq!((entry.cr0, entry.cr4, entry.efer), (0x8000_0011, 0x20, 0x500));
    assert_eq!((entry.cs.selector, entry.cs.attributes), (BOOT_CS, 0xA09B));
    assert_eq!(u64_at(&ram, entry.gdt.base + 0x10), 0x00AF_9B00_0000_FFFF);
    for address in [0, entry.rip, 0x7FFF_FFFF, 0xFFFF_FFFF] {
        assert_eq!(translate(&ram, entry.cr3, address), address);
    }
    assert_eq!(bytes_at(&ram, 0x100_0000, 16), BZIMAGE_PAYLOAD);
    assert_eq!(bytes_at(&ram, 0x100_0000 + 1008, 17), [&BZIMAGE_PAYLOAD[..], &[0]].concat());

    let params = entry.rsi;
    assert_eq!(u64_at(&ram, params + 0x70), crate::acpi::TABLES_START);
    assert_eq!(bytes_at(&ram, params + 0x202, 6), b"HdrS\x0F\x02");
    assert_eq!(bytes_at(&ram, params + 0x210, 2), [0xFF, 1]);
    assert_eq!(text_at(&ram, u32_at(&ram, params + 0x228).into()), "console=ttyS0 quiet");
    let (start, size) = (u32_at(&ram, params + 0x218), u32_at(&ram, params + 0x21C));
    assert_eq!((u64::from(start), size), (128 * MIB - 0x2000, 5000));
    assert_eq!(bytes_at(&ram, start.into(), 5000), initrd);
    assert_eq!(e820(&ram, params), expected_map(&ram));

    let node = u64_at(&ram, params + 0x250);
    assert_eq!((u64_at(&ram, node), u32_at(&ram, node + 8), u32_at(&ram, node + 12)), (0, 9, 32));
    assert_eq!(bytes_at(&ram, node + 16, 32), [0x5A; 32]);
}

#[test]
fn bzimage_without_companions_points_to_none() {
    let (ram, file) = (ram(64), bzimage());
    let params = load(&ram, &BootImages::new(kernel(&file))).unwrap().rsi;
    assert_eq!((u64_at(&ram, params + 0x218), u64_at(&ram, params + 0x250)), (0, 0));
    assert_eq!(text_at(&ram, u32_at(&ram, params + 0x228).into()), "");
}

#[test]
fn initrds_stay_below_the_kernels_limit() {
    let (ram, initrd) = (ram(512), vec![1; 0x1800]);
    for (address_max, end) in
        [(0x7FFF_FFFF_u32, 512 * MIB), (0x0FFF_FFFF, 256 * MIB), (0x1000_0FFE, 256 * MIB + 4096)]
    {
        let mut file = bzimage();
        file[0x22C..0x230].copy_from_slice(&address_max.to_le_bytes());
        let images = with(&file, |i| i.initrd = Some(Image { name: "initrd", bytes: &initrd }));
        let params = load(&ram, &images).unwrap().rsi;
        let start = u64::from(u32_at(&ram, params + 0x218));
        assert_eq!(start % 4096, 0);
        assert!(start + 0x1800 <= u64::from(address_max) + 1);
        assert_eq!((start + 0x1800).next_multiple_of(4096), end);
    }
}

#[test]
fn large_machines_report_memory_above_4_gib_and_load_below_2_gib() {
    let (ram, file) = (ram(5 * 1024), bzimage());
    let images = with(&file, |i| i.initrd = Some(Image { name: "initrd", bytes: &[3; 4096] }));
    let params = load(&ram, &images).unwrap().rsi;
    assert_eq!(u32_at(&ram, params + 0x218), 0x7FFF_F000);
    assert_eq!(e820(&ram, params).last(), Some(&(1 << 32, 2 << 30, 1)));
}

#[test]
fn elf_vmlinux_starts_at_its_physical_entry() {
    let linux = note_segment(b"Linux", 0x100, b"salt");
    let mut text = load_segment(0x100_0000, CODE);
    for (virtual_address, entry) in
        [(0xFFFF_FFFF_8100_0000, 0x100_0004), (0xFFFF_FFFF_8100_0000, 0xFFFF_FFFF_8100_0004)]
    {
        let ram = ram(64);
        text.virtual_address = virtual_address;
        // The Linux protocol takes precedence over PVH, because the 64-bit protocol gives Linux more information.
        let file = elf(true, entry, &[text.clone(), linux.clone(), pvh_note(0x100_0000)]);
        let state = load(&ram, &with(&file, |i| i.cmdline = "root=/dev/vda")).unwrap();
        assert_eq!((state.mode, state.rip), (CpuMode::Long64, 0x100_0004));
        assert_eq!(bytes_at(&ram, 0x100_0000, CODE.len() as u64), CODE);
        assert_eq!(bytes_at(&ram, state.rsi + 0x202, 4), b"HdrS");
        assert_eq!(text_at(&ram, u32_at(&ram, state.rsi + 0x228).into()), "root=/dev/vda");
        assert_eq!(e820(&ram, state.rsi), expected_map(&ram));
    }
}

#[test]
fn bss_is_cleared_even_in_used_memory() {
    let ram = ram(64);
    ram.fill(0x10_0000, 0xEE, 0x1000);
    let mut text = load_segment(0x10_0000, CODE);
    text.memory_size = 0x800;
    load(&ram, &BootImages::new(kernel(&elf(true, 0x10_0000, &[text])))).unwrap();
    let after = bytes_at(&ram, 0x10_0000, 0x1000);
    assert_eq!(after[..CODE.len()], *CODE);
    assert!(after[CODE.len()..0x800].iter().all(|byte| *byte == 0));
    assert!(after[0x800..].iter().all(|byte| *byte == 0xEE));
}

fn two_modules<'a>(images: &mut BootImages<'a>) {
    images.cmdline = "a b";
    images.initrd = Some(Image { name: "first", bytes: b"first module" });
    images.modules =
        vec![Module { image: Image { name: "second", bytes: &[9; 4097] }, cmdline: "second text" }];
}

#[test]
fn pvh_start_info_has_map_modules_and_rsdp() {
    for (is_64, forced) in [(false, None), (true, None), (true, Some(Protocol::Pvh))] {
        let ram = ram(64);
        let mut parts = vec![load_segment(0x20_0000, CODE), pvh_note(0x20_0004)];
        if forced.is_some() {
            parts.push(note_segment(b"Xen", 6, b"linux"));
        }
        let file = elf(is_64, 0x20_0000, &parts);
        let images = with(&file, |i| {
            two_modules(i);
            i.protocol = forced;
        });
        let entry = load(&ram, &images).unwrap();
        assert_protected32(&ram, &entry, 0x20_0004);
        let info = entry.rbx;
        assert_eq!(
            (u32_at(&ram, info), u32_at(&ram, info + 4), u32_at(&ram, info + 12)),
            (0x336E_C578, 1, 2)
        );
        assert_eq!(text_at(&ram, u64_at(&ram, info + 24)), "a b");
        assert_eq!(u64_at(&ram, info + 32), crate::acpi::TABLES_START);
        let list = u64_at(&ram, info + 16);
        assert_eq!(bytes_at(&ram, u64_at(&ram, list), u64_at(&ram, list + 8)), b"first module");
        assert_eq!((u64_at(&ram, list + 16), u64_at(&ram, list + 40)), (0, 4097));
        assert_eq!(text_at(&ram, u64_at(&ram, list + 48)), "second text");
        let (map, count) = (u64_at(&ram, info + 40), u64::from(u32_at(&ram, info + 48)));
        let entries: Vec<_> = (0..count)
            .map(|i| map + i * 24)
            .map(|at| (u64_at(&ram, at), u64_at(&ram, at + 8), u32_at(&ram, at + 16)))
            .collect();
        assert_eq!(entries, expected_map(&ram));
    }
}

fn check_multiboot1_info(ram: &GuestRam, info: u64, mib: u32) {
    let word = |at| u64::from(u32_at(ram, info + at));
    assert_eq!(word(0), 0b10_0100_1101);
    assert_eq!((word(4), word(8)), (639, u64::from((mib - 1) * 1024)));
    assert_eq!(text_at(ram, word(16)), "a b");
    assert_eq!(word(20), 2);
    let modules = word(24);
    let module = |at| u64::from(u32_at(ram, modules + at));
    assert_eq!(bytes_at(ram, module(0), module(4) - module(0)), b"first module");
    assert_eq!((module(0) % 4096, module(16) % 4096, module(20) - module(16)), (0, 0, 4097));
    assert_eq!((text_at(ram, module(8)), text_at(ram, module(24))), (String::new(), "second text".into()));
    assert_eq!(text_at(ram, word(64)), "ttvm");
    let (length, map) = (word(44), word(48));
    let entries: Vec<_> = (0..length / 24)
        .map(|i| map + i * 24)
        .inspect(|at| assert_eq!(u32_at(ram, *at), 20))
        .map(|at| (u64_at(ram, at + 4), u64_at(ram, at + 12), u32_at(ram, at + 20)))
        .collect();
    assert_eq!(entries, expected_map(ram));
}

#[test]
fn multiboot1_elf_files_of_both_classes() {
    for is_64 in [false, true] {
        let ram = ram(32);
        let body = [multiboot1_header(3, [0; 5]), CODE.to_vec()].concat();
        let mut text = load_segment(0x10_0000, &body);
        text.virtual_address = 0xC010_0000;
        let file = elf(is_64, 0xC010_0020, &[text]);
        let entry = load(&ram, &with(&file, two_modules)).unwrap();
        assert_protected32(&ram, &entry, 0x10_0020);
        assert_eq!(entry.rax, 0x2BAD_B002);
        assert_eq!(bytes_at(&ram, 0x10_0020, CODE.len() as u64), CODE);
        check_multiboot1_info(&ram, entry.rbx, 32);
    }
}

#[test]
fn multiboot1_address_fields_name_the_part_to_load() {
    // The header is at file offset 16. The load address is 8 bytes before the header's address.
    for (load_end, file_bytes) in [(0, 8 + 32 + CODE.len()), (0x20_0030, 0x30)] {
        let ram = ram(32);
        ram.fill(0x20_0000, 0xEE, 0x1000);
        let header = multiboot1_header(1 << 16, [0x20_0008, 0x20_0000, load_end, 0x20_0100, 0x20_0028]);
        let file = [&[0x11; 16][..], &header, CODE].concat();
        let entry = load(&ram, &with(&file, two_modules)).unwrap();
        assert_protected32(&ram, &entry, 0x20_0028);
        assert_eq!(bytes_at(&ram, 0x20_0000, file_bytes as u64), file[8..8 + file_bytes]);
        assert!(
            bytes_at(&ram, 0x20_0000 + file_bytes as u64, 0x100 - file_bytes as u64).iter().all(|b| *b == 0)
        );
        check_multiboot1_info(&ram, entry.rbx, 32);
    }
}

/// All tags of a Multiboot2 information structure as (type, body).
fn multiboot2_tags(ram: &GuestRam, info: u64) -> Vec<(u32, Vec<u8>)> {
    let total = u64::from(u32_at(ram, info));
    assert_eq!((info % 8, total % 8), (0, 0));
    let (mut at, mut tags) = (info + 8, Vec::new());
    loop {
        let (kind, size) = (u32_at(ram, at), u64::from(u32_at(ram, at + 4)));
        tags.push((kind, bytes_at(ram, at + 8, size - 8)));
        at += size.next_multiple_of(8);
        if kind == 0 {
            assert_eq!(at, info + total);
            return tags;
        }
    }
}

#[test]
fn multiboot2_tags_describe_everything() {
    let ram = ram(32);
    let header = multiboot2_header(&[(1, 0, &[1, 2, 3, 4, 6, 9, 14, 15]), (5, 0, &[80, 25, 0]), (6, 0, &[])]);
    let file = elf(true, 0x10_0000, &[load_segment(0x10_0000, &[CODE, &[0; 3], &header].concat())]);
    let entry = load(&ram, &with(&file, two_modules)).unwrap();
    assert_protected32(&ram, &entry, 0x10_0000);
    assert_eq!(entry.rax, 0x36D7_6289);
    let tags = multiboot2_tags(&ram, entry.rbx);
    let body = |kind: u32| tags.iter().filter(move |t| t.0 == kind).map(|t| t.1.clone()).collect::<Vec<_>>();
    assert_eq!((body(1), body(2)), (vec![b"a b\0".to_vec()], vec![b"ttvm\0".to_vec()]));
    assert_eq!(body(3).len(), 2);
    assert_eq!(body(3)[1][8..], *b"second text\0");
    assert_eq!(body(4), [[639_u32.to_le_bytes(), (31 * 1024_u32).to_le_bytes()].concat()]);
    assert_eq!(body(6)[0][..8], [24, 0, 0, 0, 0, 0, 0, 0]);
    let map: Vec<_> = body(6)[0][8..]
        .chunks(24)
        .map(|e| {
            let word = |at: usize| u64::from_le_bytes(e[at..at + 8].try_into().unwrap());
            (word(0), word(8), word(16) as u32)
        })
        .collect();
    assert_eq!(map, expected_map(&ram));
    assert_eq!((body(14)[0].len(), body(15)[0].len()), (20, 36));
    assert_eq!(body(15)[0], bytes_at(&ram, crate::acpi::TABLES_START, 36));
}

/// GNU Mach for amd64 requests every type of information. The loader starts such a kernel, as GRUB does on a PC without
/// EFI and without a framebuffer.
#[test]
fn multiboot2_kernels_may_ask_for_all_that_the_specification_names() {
    let ram = ram(32);
    let all: Vec<u32> = (0..=21).collect();
    let header = multiboot2_header(&[(1, 0, &all)]);
    let file = elf(true, 0x10_0000, &[load_segment(0x10_0000, &[CODE, &[0; 3], &header].concat())]);
    let entry = load(&ram, &with(&file, two_modules)).unwrap();
    let given: Vec<u32> = multiboot2_tags(&ram, entry.rbx).iter().map(|tag| tag.0).collect();
    assert_eq!(given, [1, 2, 3, 3, 4, 6, 14, 15, 0]);
}

#[test]
fn multiboot2_kernels_get_their_section_names_in_memory() {
    for (is_64, address_at) in [(false, 12), (true, 16)] {
        let ram = ram(32);
        let parts = [load_segment(0x10_0000, &multiboot2_header(&[(1, 0, &[9])]))];
        let file = with_sections(elf(is_64, 0x10_0000, &parts));
        let entry = load(&ram, &BootImages::new(kernel(&file))).unwrap();
        let tags = multiboot2_tags(&ram, entry.rbx);
        let body = &tags.iter().find(|tag| tag.0 == 9).expect("a section tag").1;
        let word = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().unwrap());
        let size = word(4) as usize;
        assert_eq!((word(0), size, word(8)), (3, if is_64 { 64 } else { 40 }, 2));
        let address = |index: usize| u64::from(word(12 + index * size + address_at));
        assert_eq!((address(0), address(1)), (0, LOADED_SECTION));
        assert_eq!(bytes_at(&ram, address(2), SECTION_NAMES.len() as u64), SECTION_NAMES);
    }
}

/// No data of the loader may overlap the kernel, whatever the kernel's address.
#[test]
fn kernels_in_conventional_memory_are_not_overwritten() {
    let ram = ram(32);
    let body = [multiboot1_header(3, [0; 5]), vec![0xC3; 0x2000]].concat();
    let parts = [0x1000, 0x8000, 0x10_0000].map(|address| load_segment(address, &body));
    let file = elf(false, 0x1020, &parts);
    let entry = load(&ram, &with(&file, two_modules)).unwrap();
    for part in parts {
        assert_eq!(bytes_at(&ram, part.physical_address, body.len() as u64), body);
    }
    check_multiboot1_info(&ram, entry.rbx, 32);
    assert_protected32(&ram, &entry, 0x1020);
}

#[test]
fn multiboot2_address_tag_loads_a_flat_file() {
    let ram = ram(32);
    let header = multiboot2_header(&[(2, 0, &[0x10_0000, 0xFFFF_FFFF, 0, 0x10_1000]), (3, 0, &[0x10_0048])]);
    let file = [header, CODE.to_vec()].concat();
    let entry = load(&ram, &BootImages::new(kernel(&file))).unwrap();
    assert_protected32(&ram, &entry, 0x10_0048);
    assert_eq!(bytes_at(&ram, 0x10_0000, file.len() as u64), file);
}

#[test]
fn multiboot2_relocatable_kernels_move_only_when_they_must() {
    for (min, max, base) in [(0, u32::MAX, 0x20_0000_u32), (0x40_0000, u32::MAX, 0x40_0000)] {
        let ram = ram(32);
        let header = multiboot2_header(&[(10, 0, &[min, max, 0x1000, 0])]);
        let file = elf(false, 0x20_0004, &[load_segment(0x20_0000, &[&[0x90; 16][..], &header].concat())]);
        let entry = load(&ram, &BootImages::new(kernel(&file))).unwrap();
        assert_eq!(entry.rip, u64::from(base) + 4);
        let tags = multiboot2_tags(&ram, entry.rbx);
        assert!(tags.contains(&(21, base.to_le_bytes().to_vec())));
    }
}

/// Loads a distribution's kernel, if the environment names one: `TTVM_TEST_KERNEL=/boot/vmlinuz-...`.
#[test]
fn a_distribution_kernel_loads() {
    let Some(path) = std::env::var_os("TTVM_TEST_KERNEL") else {
        return skip::test("TTVM_TEST_KERNEL does not name a bzImage");
    };
    let file = std::fs::read(path).unwrap();
    for mib in [128, 4096] {
        let ram = ram(mib);
        let images = with(&file, |i| i.initrd = Some(Image { name: "initrd", bytes: &[5; 0x10_0000] }));
        let entry = load(&ram, &images).unwrap();
        assert_eq!(entry.mode, CpuMode::Long64);
        assert_ne!(bytes_at(&ram, entry.rip, 16), [0; 16]);
        let start = u64::from(u32_at(&ram, entry.rsi + 0x218));
        assert_eq!(bytes_at(&ram, start, 8), [5; 8]);
        assert_eq!(e820(&ram, entry.rsi), expected_map(&ram));
    }
}

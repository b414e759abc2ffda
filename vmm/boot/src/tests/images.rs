//! Small kernels made in memory, one builder per file format.

/// One segment of an ELF file under construction.
#[derive(Clone)]
pub struct Segment {
    pub kind: u32,
    pub virtual_address: u64,
    pub physical_address: u64,
    pub bytes: Vec<u8>,
    pub memory_size: u64,
}

pub fn load_segment(address: u64, bytes: &[u8]) -> Segment {
    Segment {
        kind: 1,
        virtual_address: address,
        physical_address: address,
        bytes: bytes.to_vec(),
        memory_size: bytes.len() as u64 + 0x100,
    }
}

pub fn note_segment(owner: &[u8], kind: u32, value: &[u8]) -> Segment {
    let mut bytes = [owner.len() as u32 + 1, value.len() as u32, kind].map(u32::to_le_bytes).concat();
    bytes.extend_from_slice(owner);
    bytes.push(0);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let memory_size = bytes.len() as u64;
    Segment { kind: 4, virtual_address: 0, physical_address: 0, bytes, memory_size }
}

pub fn pvh_note(entry: u32) -> Segment {
    note_segment(b"Xen", 18, &entry.to_le_bytes())
}

/// An ELF executable. In the file, the segments follow the headers and are 16-aligned.
pub fn elf(is_64: bool, entry: u64, segments: &[Segment]) -> Vec<u8> {
    let (header_size, entry_size) = if is_64 { (64, 56) } else { (52, 32) };
    let word = |value: u64| value.to_le_bytes()[..if is_64 { 8 } else { 4 }].to_vec();
    let mut file = b"\x7fELF".to_vec();
    file.extend([if is_64 { 2 } else { 1 }, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    file.extend([2_u16, if is_64 { 62 } else { 3 }].map(u16::to_le_bytes).concat());
    file.extend(1_u32.to_le_bytes());
    file.extend([word(entry), word(header_size), word(0)].concat());
    file.extend(0_u32.to_le_bytes());
    let halves = [header_size as u16, entry_size, segments.len() as u16, 0, 0, 0];
    file.extend(halves.map(u16::to_le_bytes).concat());
    let mut offset = (file.len() + usize::from(entry_size) * segments.len()).next_multiple_of(16);
    let mut body = Vec::new();
    for s in segments {
        let (kind, flags) = (s.kind.to_le_bytes().to_vec(), 7_u32.to_le_bytes().to_vec());
        let words = [
            word(offset as u64),
            word(s.virtual_address),
            word(s.physical_address),
            word(s.bytes.len() as u64),
            word(s.memory_size),
        ]
        .concat();
        let fields = if is_64 { [kind, flags, words, word(16)] } else { [kind, words, flags, word(16)] };
        file.extend(fields.concat());
        body.extend_from_slice(&s.bytes);
        body.resize(body.len().next_multiple_of(16), 0);
        offset = offset.next_multiple_of(16) + s.bytes.len().next_multiple_of(16);
    }
    file.resize(file.len().next_multiple_of(16), 0);
    file.extend(body);
    file
}

pub const BZIMAGE_PAYLOAD: &[u8; 16] = b"the real kernel!";

/// A bzImage of protocol 2.15 with one setup sector after the boot sector.
pub fn bzimage() -> Vec<u8> {
    let mut file = vec![0; 1024];
    let mut put = |at: usize, value: &[u8]| file[at..at + value.len()].copy_from_slice(value);
    put(0x1F1, &[1]);
    put(0x1F4, &64_u32.to_le_bytes());
    put(0x1FE, &[0x55, 0xAA, 0xEB, 0x6A]);
    put(0x202, b"HdrS");
    put(0x206, &0x020F_u16.to_le_bytes());
    put(0x211, &[1]);
    put(0x22C, &0x7FFF_FFFF_u32.to_le_bytes());
    put(0x230, &0x20_0000_u32.to_le_bytes());
    put(0x234, &[1, 21, 1, 0]);
    put(0x238, &2047_u32.to_le_bytes());
    put(0x258, &0x100_0000_u64.to_le_bytes());
    put(0x260, &0x200_0000_u32.to_le_bytes());
    file.extend(BZIMAGE_PAYLOAD.repeat(64));
    file
}

/// A Multiboot 1 header with the five address fields.
pub fn multiboot1_header(flags: u32, addresses: [u32; 5]) -> Vec<u8> {
    let checksum = 0_u32.wrapping_sub(0x1BAD_B002).wrapping_sub(flags);
    let mut words = vec![0x1BAD_B002, flags, checksum];
    words.extend(addresses);
    words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect()
}

/// A Multiboot2 header with these tags, each as (type, flags, body). The function adds the end tag.
pub fn multiboot2_header(tags: &[(u16, u16, &[u32])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (kind, flags, words) in tags.iter().chain([&(0_u16, 0_u16, &[][..])]) {
        body.extend([*kind, *flags].map(u16::to_le_bytes).concat());
        body.extend((8 + 4 * words.len() as u32).to_le_bytes());
        body.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        body.resize(body.len().next_multiple_of(8), 0);
    }
    let length = 16 + body.len() as u32;
    let checksum = 0_u32.wrapping_sub(0xE852_50D6).wrapping_sub(length);
    let mut header: Vec<u8> =
        [0xE852_50D6, 0, length, checksum].iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
    header.extend(body);
    header
}

/// Contents of the unloaded section of [`with_sections`].
pub const SECTION_NAMES: &[u8] = b"\0.text\0.shstrtab\0";
/// Address of the image's loaded section.
pub const LOADED_SECTION: u64 = 0x10_0000;

/// Adds a section table to an executable: a null section, a loaded section, and the names, which no segment loads.
pub fn with_sections(mut file: Vec<u8>) -> Vec<u8> {
    let is_64 = file[4] == 2;
    let word = |value: u64| value.to_le_bytes()[..if is_64 { 8 } else { 4 }].to_vec();
    let (names_at, size) = (file.len() as u64, SECTION_NAMES.len() as u64);
    file.extend_from_slice(SECTION_NAMES);
    let table_at = file.len() as u64;
    // (name, type, flags, address, offset, size)
    for (name, kind, words) in
        [(0, 0, [0; 4]), (1, 1, [2, LOADED_SECTION, 0, 4]), (7, 3, [0, 0, names_at, size])]
    {
        file.extend([name, kind].map(u32::to_le_bytes).concat());
        file.extend(words.iter().flat_map(|value| word(*value)));
        file.extend([0_u32, 0].map(u32::to_le_bytes).concat());
        file.extend([word(1), word(0)].concat());
    }
    let (offset_at, entry_size, tail) = if is_64 { (40, 64_u16, 58) } else { (32, 40, 46) };
    let offset = word(table_at);
    file[offset_at..offset_at + offset.len()].copy_from_slice(&offset);
    file[tail..tail + 6].copy_from_slice(&[entry_size, 3, 2].map(u16::to_le_bytes).concat());
    file
}

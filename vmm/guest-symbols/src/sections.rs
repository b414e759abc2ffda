//! The sections of the kernel and its modules. Every symbol in gdb belongs to a section. The section determines whether
//! gdb takes the symbol for code.
//!
//! The kernel marks the ends of most sections with symbols. The space between two marked sections is split where
//! code and data meet.

use super::kallsyms::{IMAGE, RawSymbol, is_code};

/// The use of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Code, which is executed.
    Code,
    /// Constants, which are only read.
    Constants,
    /// Data, which is read and written.
    Data,
}

/// A section of the kernel or of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The section's name, as in an ELF file.
    pub name: String,
    /// The section's first address.
    pub start: u64,
    /// The section's size in bytes.
    pub size: u64,
    /// The section's use.
    pub access: Access,
}

impl Section {
    /// The address after the section's end.
    pub fn end(&self) -> u64 {
        self.start + self.size
    }

    /// Makes a section, if it is not empty and ends before the end of the address space.
    pub fn new(name: impl Into<String>, start: u64, size: u64, access: Access) -> Option<Section> {
        let exists = size > 0 && start.checked_add(size).is_some();
        exists.then(|| Section { name: name.into(), start, size, access })
    }
}

/// Sections of the kernel, and the symbols at the start and at the end of each section
/// (`arch/x86/kernel/vmlinux.lds.S`). If two sections overlap, the first section in this list gets the space.
const MARKED: [(&str, &str, &str, Access); 6] = [
    (".text", "_text", "_etext", Access::Code),
    (".rodata", "__start_rodata", "__end_rodata", Access::Constants),
    (".data", "_sdata", "_edata", Access::Data),
    (".init.text", "_sinittext", "_einittext", Access::Code),
    (".bss", "__bss_start", "__bss_stop", Access::Data),
    (".brk", "__brk_base", "__brk_limit", Access::Data),
];

/// The largest number of pieces into which the space between marked sections is split.
const MAX_UNMARKED: usize = 256;

/// The sections of the kernel with these symbols, which are ordered by address.
pub(super) fn of_kernel(symbols: &[RawSymbol]) -> Vec<Section> {
    let address = |name: &str| symbols.iter().find(|symbol| symbol.name == name).map(|found| found.address);
    let mut sections: Vec<Section> = Vec::new();
    for (name, first, end, access) in MARKED {
        let (Some(start), Some(end)) = (address(first), address(end)) else { continue };
        let section = end.checked_sub(start).and_then(|size| Section::new(name, start, size, access));
        let in_image = |section: &Section| IMAGE.contains(&section.start) && section.end() <= IMAGE.end;
        sections.extend(section.filter(in_image).filter(|new| !sections.iter().any(|old| overlap(old, new))));
    }
    let unmarked = unmarked(symbols, &sections);
    sections.extend(unmarked);
    sections
}

fn overlap(a: &Section, b: &Section) -> bool {
    a.start < b.end() && b.start < a.end()
}

/// Sections for the symbols outside of all marked sections.
fn unmarked(symbols: &[RawSymbol], marked: &[Section]) -> Vec<Section> {
    let in_image = |symbol: &&RawSymbol| IMAGE.contains(&symbol.address);
    let Some(last) = symbols.iter().rfind(in_image) else { return Vec::new() };
    let end = (last.address + 1).next_multiple_of(4096);
    let mut parts: Vec<Part> = Vec::new();
    for symbol in symbols.iter().filter(in_image) {
        let start = symbol.address;
        if marked.iter().any(|section| (section.start..section.end()).contains(&start)) {
            continue;
        }
        let access = if is_code(symbol.class) { Access::Code } else { Access::Data };
        let limit = marked.iter().map(|section| section.start).filter(|&next| next > start).min();
        let part = Part { start, limit: limit.unwrap_or(end), access };
        if !parts.last().is_some_and(|last| last.takes(&part)) {
            parts.push(part);
        }
    }
    parts.truncate(MAX_UNMARKED);
    let ends = parts.iter().skip(1).map(|next| next.start).chain([u64::MAX]);
    let section = |(number, (part, end)): (usize, (&Part, u64))| {
        let size = end.min(part.limit) - part.start;
        Section::new(format!(".other.{number}"), part.start, size, part.access)
    };
    parts.iter().zip(ends).enumerate().filter_map(section).collect()
}

/// A part of the space between marked sections, with only code or only data.
struct Part {
    start: u64,
    limit: u64,
    access: Access,
}

impl Part {
    /// Whether the part `other` belongs to this part.
    fn takes(&self, other: &Part) -> bool {
        self.limit == other.limit && (self.access == other.access || self.start == other.start)
    }
}

/// Sorts sections by address. Drops the second of two sections that overlap.
pub(super) fn without_overlaps(mut sections: Vec<Section>) -> Vec<Section> {
    sections.sort_by_key(|section| section.start);
    let mut end = 0;
    sections.retain(|section| {
        let apart = section.start >= end;
        end = if apart { section.end() } else { end };
        apart
    });
    sections
}

/// The index of the section at an address. The sections are ordered by address.
pub(super) fn at(sections: &[Section], address: u64) -> Option<usize> {
    let number = sections.partition_point(|section| section.start <= address).checked_sub(1)?;
    (address < sections[number].end()).then_some(number)
}

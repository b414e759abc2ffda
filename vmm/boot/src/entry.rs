//! The CPU's state at the guest's first instruction, as plain data, with its descriptor and page tables in guest
//! memory. See Intel SDM volume 3, chapters 3 to 5.

use super::error::BootError;
use super::loader::Loader;

/// Selector of the flat code segment (Linux's `__BOOT_CS`).
pub const BOOT_CS: u16 = 0x10;
/// Selector of the flat data segments (Linux's `__BOOT_DS`).
pub const BOOT_DS: u16 = 0x18;
/// Selector of the (empty) task state segment.
pub const BOOT_TR: u16 = 0x20;

const CR0_PE: u64 = 1;
const CR0_ET: u64 = 1 << 4;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME_LMA: u64 = 1 << 8 | 1 << 10;
const PAGE_SIZE: u64 = 4096;
/// The flags of a page-table entry that points to another table: present and writable.
const TABLE_ENTRY: u64 = 0x3;
/// The flags of an entry that maps a 2 MiB page: present, writable and large.
const LARGE_PAGE: u64 = 0x83;
const IDENTITY_MAPPED_GIB: u64 = 4;

/// The CPU's mode at the guest's first instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuMode {
    /// 32-bit protected mode, flat segments, paging off.
    Protected32,
    /// 64-bit mode, the first 4 GiB identity-mapped.
    Long64,
}

/// A segment register with its hidden part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentState {
    /// Visible selector.
    pub selector: u16,
    /// Linear base address.
    pub base: u64,
    /// Limit in bytes, granularity already applied.
    pub limit: u32,
    /// Bytes 5 and 6 of the descriptor without the limit. The bit numbers are: type 0-3, S 4, DPL 5-6, P 7, AVL 12,
    /// L 13, D/B 14, G 15.
    pub attributes: u16,
}

/// GDTR or IDTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRegister {
    /// Linear base address.
    pub base: u64,
    /// Limit in bytes (size minus one).
    pub limit: u16,
}

/// The CPU's state at the guest's first instruction. General registers without a field here are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Registers have the manual's names.
pub struct CpuEntry {
    /// The mode that the control registers below select.
    pub mode: CpuMode,
    pub rip: u64,
    pub rflags: u64,
    pub rax: u64,
    pub rbx: u64,
    pub rsi: u64,
    /// Top of a small stack in conventional memory. Most protocols do not promise a stack.
    pub rsp: u64,
    pub cs: SegmentState,
    /// DS, ES, FS, GS and SS.
    pub data: SegmentState,
    pub tr: SegmentState,
    pub gdt: TableRegister,
    /// Empty: an exception before the guest has set up its own table is a triple fault.
    pub idt: TableRegister,
    pub cr0: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub efer: u64,
}

/// Code segment in 64-bit mode: present, accessed, readable, L, G.
const CODE_64: u16 = 0xA09B;
/// Code segment in 32-bit mode: present, accessed, readable, D, G.
const CODE_32: u16 = 0xC09B;
/// Data segment: present, accessed, writable, B, G.
const DATA: u16 = 0xC093;
/// Busy 32- or 64-bit TSS.
const TSS: u16 = 0x008B;
const TSS_LIMIT: u32 = 0x67;

/// The entry state of a 64-bit kernel. Writes the GDT and the page tables, and reserves the stack.
pub(super) fn long64(loader: &mut Loader<'_>, rip: u64, boot_params: u64) -> Result<CpuEntry, BootError> {
    let mut entry = flat(loader, CODE_64, rip)?;
    entry.mode = CpuMode::Long64;
    entry.rsi = boot_params;
    entry.cr0 |= CR0_PG;
    entry.cr3 = write_identity_map(loader)?;
    entry.cr4 = CR4_PAE;
    entry.efer = EFER_LME_LMA;
    Ok(entry)
}

/// The entry state of PVH and Multiboot kernels.
pub(super) fn protected32(
    loader: &mut Loader<'_>,
    rip: u32,
    eax: u32,
    ebx: u64,
) -> Result<CpuEntry, BootError> {
    let entry = flat(loader, CODE_32, u64::from(rip))?;
    Ok(CpuEntry { rax: u64::from(eax), rbx: ebx, ..entry })
}

fn flat(loader: &mut Loader<'_>, code: u16, rip: u64) -> Result<CpuEntry, BootError> {
    let segment = |selector, limit, attributes| SegmentState { selector, base: 0, limit, attributes };
    let cs = segment(BOOT_CS, u32::MAX, code);
    let data = segment(BOOT_DS, u32::MAX, DATA);
    let tr = segment(BOOT_TR, TSS_LIMIT, TSS);
    // A 64-bit TSS descriptor takes two slots; the upper half of its base is 0.
    let table = [0, 0, descriptor(cs), descriptor(data), descriptor(tr), 0];
    let bytes: Vec<u8> = table.iter().flat_map(|d: &u64| d.to_le_bytes()).collect();
    let gdt = loader.place(&bytes, 16)?;
    let stack = loader.place(&[0; PAGE_SIZE as usize], PAGE_SIZE)?;
    Ok(CpuEntry {
        mode: CpuMode::Protected32,
        rip,
        rflags: 2,
        rax: 0,
        rbx: 0,
        rsi: 0,
        rsp: stack + PAGE_SIZE - 16,
        cs,
        data,
        tr,
        gdt: TableRegister { base: gdt, limit: bytes.len() as u16 - 1 },
        idt: TableRegister { base: 0, limit: 0 },
        cr0: CR0_PE | CR0_ET,
        cr3: 0,
        cr4: 0,
        efer: 0,
    })
}

/// The descriptor of a segment with base 0.
fn descriptor(segment: SegmentState) -> u64 {
    let granular = segment.attributes & 0x8000 != 0;
    let limit = u64::from(if granular { segment.limit >> 12 } else { segment.limit });
    (limit & 0xFFFF) | (limit & 0xF_0000) << 32 | u64::from(segment.attributes) << 40
}

/// Writes one PML4, one page-directory-pointer table, and a page directory for each GiB. Returns the value of CR3.
fn write_identity_map(loader: &mut Loader<'_>) -> Result<u64, BootError> {
    let tables = 2 + IDENTITY_MAPPED_GIB;
    let base = loader.place(&vec![0; (tables * PAGE_SIZE) as usize], PAGE_SIZE)?;
    let (pointers, directories) = (base + PAGE_SIZE, base + 2 * PAGE_SIZE);
    loader.write(base, &(pointers | TABLE_ENTRY).to_le_bytes());
    for gib in 0..IDENTITY_MAPPED_GIB {
        let entry = (directories + gib * PAGE_SIZE) | TABLE_ENTRY;
        loader.write(pointers + gib * 8, &entry.to_le_bytes());
    }
    let pages = (0..IDENTITY_MAPPED_GIB * 512).flat_map(|page| (page << 21 | LARGE_PAGE).to_le_bytes());
    loader.write(directories, &pages.collect::<Vec<u8>>());
    Ok(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_those_of_the_boot_protocol() {
        for (limit, attributes, expected) in [
            (u32::MAX, CODE_64, 0x00AF_9B00_0000_FFFF),
            (u32::MAX, CODE_32, 0x00CF_9B00_0000_FFFF),
            (u32::MAX, DATA, 0x00CF_9300_0000_FFFF),
            (TSS_LIMIT, TSS, 0x0000_8B00_0000_0067),
        ] {
            let segment = SegmentState { selector: 0, base: 0, limit, attributes };
            assert_eq!(descriptor(segment), expected);
        }
    }
}

//! The layout of the small guest. The guest has 128 KiB of RAM. The page tables map RAM at equal virtual addresses,
//! and once more at the virtual addresses directly after these.

/// The size of RAM in bytes.
pub const RAM_BYTES: u64 = 0x2_0000;
/// The size of a page in bytes.
pub const PAGE: u64 = 0x1000;

/// Address of the interrupt table of protected and long mode. The interrupt table of real mode is at address 0.
pub const IDT: u64 = 0x1000;
/// Address of the global descriptor table.
pub const GDT: u64 = 0x2000;
/// Address of the local descriptor table, which is a copy of the global descriptor table.
pub const LDT: u64 = 0x2800;
/// Address of the task-state segment.
pub const TSS: u64 = 0x3000;
/// Address of the TSS to which a task gate switches.
pub const OTHER_TSS: u64 = 0x3800;

/// Address of the first page for page tables.
pub const TABLES: u64 = 0x4000;
/// The address after the last page for page tables.
pub const TABLES_END: u64 = 0xc000;
/// Addresses of the root tables of the two address spaces: page directories, or PML4 tables. With PAE paging, the
/// root tables are [`MIDDLES`].
pub const ROOTS: [u64; 2] = [0x4000, 0x6000];
/// Addresses of the last-level page tables of the two address spaces.
pub const LEAVES: [u64; 2] = [0x5000, 0x7000];
/// Addresses of the page-directory-pointer tables of the two address spaces.
pub const MIDDLES: [u64; 2] = [0x8000, 0x9000];
/// Addresses of the page directories of the two address spaces, with PAE and 4-level paging.
pub const DIRECTORIES: [u64; 2] = [0xa000, 0xb000];

/// The first byte of code.
pub const CODE: u64 = 0xc000;
/// The address after the last byte of code.
pub const CODE_END: u64 = 0x1_0000;
/// Address of the exception handlers. Each vector's handler takes [`HANDLER_BYTES`].
pub const HANDLERS: u64 = 0x1_0000;
/// The size of an exception handler in bytes.
pub const HANDLER_BYTES: u64 = 32;
/// Addresses of three stacks: the program's, the kernel's, and a stack of the interrupt stack table.
pub const STACKS: [u64; 3] = [0x1_3000, 0x1_4800, 0x1_6000];
/// Address of the data, which reaches to the end of RAM.
pub const DATA: u64 = 0x1_8000;
/// The first virtual address of the alias, the second mapping of all RAM. In the alias, the pages are in a random
/// order.
pub const ALIAS: u64 = RAM_BYTES;

/// Selectors in the global descriptor table.
pub mod selector {
    #![allow(missing_docs, reason = "the names say it: level, kind, bits")]
    pub const KERNEL_CS64: u16 = 0x08;
    pub const KERNEL_DS: u16 = 0x10;
    pub const USER_CS32: u16 = 0x18 | 3;
    pub const USER_DS: u16 = 0x20 | 3;
    pub const USER_CS64: u16 = 0x28 | 3;
    pub const TSS: u16 = 0x30;
    pub const KERNEL_CS32: u16 = 0x40;
    pub const KERNEL_CS16: u16 = 0x48;
    pub const KERNEL_DS16: u16 = 0x50;
    pub const USER_CS16: u16 = 0x58 | 3;
    pub const CALL_GATE: u16 = 0x60;
    pub const OTHER_TSS: u16 = 0x70;
    pub const LDT: u16 = 0x80;
    pub const SHORT_CS: u16 = 0x90;
    pub const FREE: u16 = 0x98;
    pub const ALL: [u16; 15] = [
        KERNEL_CS64,
        KERNEL_DS,
        USER_CS32,
        USER_DS,
        USER_CS64,
        TSS,
        KERNEL_CS32,
        KERNEL_CS16,
        KERNEL_DS16,
        USER_CS16,
        CALL_GATE,
        OTHER_TSS,
        LDT,
        SHORT_CS,
        FREE,
    ];
}

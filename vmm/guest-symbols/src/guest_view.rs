//! The trait through which this crate reads a guest, and the address space of the guest's kernel. Reading the kernel's
//! memory also works while a program runs whose page tables do not map the kernel.
//!
//! Kernels that isolate page tables (PTI) run programs on tables with almost no kernel mappings. The root of a
//! program's tables is one page above the root of the kernel's tables (`arch/x86/entry/calling.h`,
//! `PTI_USER_PGTABLE_BIT`).

/// The address bit that is set in the root of a program's tables and clear in the root of the kernel's, if both exist.
pub const USER_ROOT_BIT: u64 = 1 << 12;
/// The bits of CR3 that are the physical address of the topmost page table.
const ROOT: u64 = 0x000f_ffff_ffff_f000;

/// A stopped guest. A read does not change the guest: it sets no accessed bits and reaches no devices.
pub trait GuestView {
    /// The current CR3.
    fn cr3(&self) -> u64;

    /// The number of the running processor.
    fn processor(&self) -> u64 {
        0
    }

    /// Reads at a virtual address through the page tables of `cr3`, ignoring access rights. Returns the number of bytes
    /// that could be read, from the first byte on.
    fn read(&self, cr3: u64, address: u64, to: &mut [u8]) -> usize;

    /// The physical address of a virtual address, by the page tables of `cr3`. `None` if the address is not mapped.
    fn physical(&self, cr3: u64, address: u64) -> Option<u64>;
}

/// The physical address of the topmost page table, without the other bits of CR3.
pub fn page_table_root(cr3: u64) -> u64 {
    cr3 & ROOT
}

/// Virtual memory of a guest through one set of page tables.
#[derive(Clone, Copy)]
pub struct KernelView<'a> {
    guest: &'a dyn GuestView,
    cr3: u64,
}

impl<'a> KernelView<'a> {
    /// The view through the current page tables.
    pub fn current(guest: &'a dyn GuestView) -> KernelView<'a> {
        KernelView { guest, cr3: guest.cr3() }
    }

    /// The number of the running processor.
    pub(crate) fn processor(self) -> u64 {
        self.guest.processor()
    }

    /// The view through the kernel's page tables, if the current tables are a program's.
    pub fn behind_user(guest: &'a dyn GuestView) -> Option<KernelView<'a>> {
        let cr3 = guest.cr3();
        (cr3 & USER_ROOT_BIT != 0).then_some(KernelView { guest, cr3: cr3 & !USER_ROOT_BIT })
    }

    /// The view through the current page tables, and then the view through the kernel's page tables, if the two
    /// differ.
    pub fn all(guest: &'a dyn GuestView) -> impl Iterator<Item = KernelView<'a>> {
        [KernelView::current(guest)].into_iter().chain(KernelView::behind_user(guest))
    }

    /// The result of `find` in the first view of [`KernelView::all`] in which `find` succeeds. If `find` fails in all
    /// views, returns the last error.
    pub(crate) fn first_with<T, E>(
        guest: &'a dyn GuestView,
        find: impl Fn(KernelView<'a>) -> Result<T, E>,
    ) -> Result<T, E> {
        let found = find(KernelView::current(guest));
        match KernelView::behind_user(guest) {
            Some(view) if found.is_err() => find(view),
            _ => found,
        }
    }

    /// Reads at a virtual address. Returns the number of bytes that could be read, from the first byte on.
    pub fn read(&self, address: u64, to: &mut [u8]) -> usize {
        self.guest.read(self.cr3, address, to)
    }

    /// The physical address of a virtual address.
    pub fn physical(&self, address: u64) -> Option<u64> {
        self.guest.physical(self.cr3, address)
    }

    /// Reads a little-endian number of `N` bytes, at most eight.
    pub(crate) fn number<const N: usize>(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        (self.read(address, &mut bytes[..N]) == N).then(|| u64::from_le_bytes(bytes))
    }

    /// Reads a NUL-terminated string of less than `limit` bytes.
    pub(crate) fn text(&self, address: u64, limit: usize) -> Option<String> {
        let mut bytes = vec![0; limit];
        let count = self.read(address, &mut bytes);
        let end = bytes[..count].iter().position(|&byte| byte == 0)?;
        is_text(&bytes[..end]).then(|| String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}

/// Whether these bytes can be a name: visible ASCII characters, or the bytes of UTF-8 in Rust's symbols.
pub(crate) fn is_text(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte > b' ' && byte != 0x7f)
}

//! One boot of a kernel: its release, its addresses, and how it was started.
//!
//! A guest may start a second kernel by kexec, or a crash kernel after a panic. Both kernels may be the same build.
//! KASLR moves each boot to other addresses. Without KASLR, two boots differ in the parameters that the loader gave the
//! kernel.
//!
//! Follows Linux 6.1 to 7.2: `init/version-timestamp.c`, `arch/x86/kernel/head64.c`,
//! `arch/x86/kernel/kexec-bzimage64.c`, `Documentation/arch/x86/boot.rst`. Guest memory is not trusted: every length
//! has a limit.

use super::guest_view::{GuestView, KernelView};
use super::symbols::Symbols;

/// The variable with the kernel's first message (`Linux version 6.1.0 (...) #1 SMP ...`). The next constant is the size
/// in bytes of the longest accepted message.
const BANNER: &str = "linux_banner";
const BANNER_BYTES: usize = 512;
/// The index of the word with the release in the kernel's first message.
const RELEASE_WORD: usize = 2;
/// The variable with the loader's parameters. Of this variable, the bytes from `type_of_loader` to `cmd_line_ptr` never
/// change.
const PARAMETERS: &str = "boot_params";
const LOADER_AT: u64 = 0x210;
const LOADER_BYTES: usize = 28;
/// The number of kexec as a boot loader, in the upper four bits of `type_of_loader`.
const KEXEC: u8 = 0xd;

/// A boot of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    banner_at: u64,
    banner: Vec<u8>,
    physical: u64,
    parameters_at: u64,
    loader: [u8; LOADER_BYTES],
}

impl Boot {
    /// The boot of the kernel with these symbols, which the guest runs now. `None` if the symbols do not include
    /// variables.
    pub fn of_kernel(guest: &dyn GuestView, symbols: &Symbols) -> Option<Boot> {
        let (banner_at, parameters_at) = (symbols.address_of(BANNER)?, symbols.address_of(PARAMETERS)?);
        KernelView::all(guest).find_map(|view| {
            let mut banner = vec![0; BANNER_BYTES];
            let count = view.read(banner_at, &mut banner);
            let end = banner[..count].iter().position(|&byte| byte == b'\n')?;
            banner.truncate(end);
            let (physical, loader) = (view.physical(banner_at)?, loader(view, parameters_at)?);
            Some(Boot { banner_at, banner, physical, parameters_at, loader })
        })
    }

    /// Whether the guest runs this boot now.
    pub fn is_here(&self, guest: &dyn GuestView) -> bool {
        let is_same = |view| loader(view, self.parameters_at) == Some(self.loader);
        KernelView::all(guest).any(|view| self.is_mapped_in(view) && is_same(view))
    }

    /// Whether this boot's kernel is mapped at its addresses now. This becomes true some instructions earlier than
    /// [`Boot::is_here`]: a starting kernel has not copied the loader's parameters yet.
    pub fn is_mapped(&self, guest: &dyn GuestView) -> bool {
        KernelView::all(guest).any(|view| self.is_mapped_in(view))
    }

    /// Whether another kernel has started this kernel by kexec.
    pub fn is_by_kexec(&self) -> bool {
        self.loader[0] >> 4 == KEXEC
    }

    /// The kernel's release, as `uname -r` prints it.
    pub fn release(&self) -> String {
        let banner = String::from_utf8_lossy(&self.banner);
        let release = banner.split(' ').nth(RELEASE_WORD).unwrap_or_default();
        release.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
    }

    fn is_mapped_in(&self, view: KernelView<'_>) -> bool {
        let mut banner = [0; BANNER_BYTES];
        let banner = &mut banner[..self.banner.len()];
        view.physical(self.banner_at) == Some(self.physical)
            && view.read(self.banner_at, banner) == self.banner.len()
            && *banner == self.banner[..]
    }
}

fn loader(view: KernelView<'_>, parameters_at: u64) -> Option<[u8; LOADER_BYTES]> {
    let mut bytes = [0; LOADER_BYTES];
    (view.read(parameters_at.checked_add(LOADER_AT)?, &mut bytes) == LOADER_BYTES).then_some(bytes)
}

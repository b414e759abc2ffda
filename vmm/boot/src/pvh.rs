//! The PVH direct boot protocol (Xen's `hvm/start_info.h` and "x86/HVM direct boot ABI").

use super::elf::Elf;
use super::entry::{self, CpuEntry};
use super::error::BootError;
use super::loader::{LoadedModule, Loader, TEXT_LIMIT};

const START_INFO_MAGIC: u32 = 0x336E_C578;
/// The first version with a memory map.
const START_INFO_VERSION: u32 = 1;

/// Loads an ELF file with a PVH note.
pub(super) fn load(loader: &mut Loader<'_>) -> Result<CpuEntry, BootError> {
    loader.check_command_line(TEXT_LIMIT)?;
    let elf = Elf::parse(loader.images.kernel)?;
    elf.load(loader, 0)?;
    let rip = elf
        .pvh_entry()
        .filter(|entry| elf.contains(u64::from(*entry)))
        .ok_or_else(|| loader.malformed("its PVH entry point lies outside of what it loads"))?;
    let modules = loader.load_modules()?;
    let module_list = place_module_list(loader, &modules)?;
    let command_line = loader.place_text(loader.images.cmdline)?;
    let memory_map = place_memory_map(loader)?;
    let mut info = Vec::new();
    for word in [START_INFO_MAGIC, START_INFO_VERSION, 0, modules.len() as u32] {
        info.extend_from_slice(&word.to_le_bytes());
    }
    for address in [module_list, command_line, loader.rsdp, memory_map] {
        info.extend_from_slice(&address.to_le_bytes());
    }
    info.extend_from_slice(&(loader.map.len() as u64).to_le_bytes());
    let info = loader.place(&info, 16)?;
    entry::protected32(loader, rip, 0, info)
}

/// Places the module list. Returns 0 (absent) if there are no modules.
fn place_module_list(loader: &mut Loader<'_>, modules: &[LoadedModule]) -> Result<u64, BootError> {
    let mut list = Vec::new();
    for module in modules {
        let text = if module.cmdline.is_empty() { 0 } else { loader.place_text(&module.cmdline)? };
        for field in [module.start, module.size, text, 0] {
            list.extend_from_slice(&field.to_le_bytes());
        }
    }
    if list.is_empty() { Ok(0) } else { loader.place(&list, 16) }
}

fn place_memory_map(loader: &mut Loader<'_>) -> Result<u64, BootError> {
    let mut table = Vec::new();
    for range in &loader.map {
        for field in [range.start, range.length, range.kind as u64] {
            table.extend_from_slice(&field.to_le_bytes());
        }
    }
    loader.place(&table, 16)
}

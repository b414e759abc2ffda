//! The symbols, types, tasks and stacks of a guest's Linux kernel, read from the guest's memory.
//!
//! ```
//! use guest_symbols::{GuestView, NoKernel, Symbols};
//!
//! /// The function that an address is in, as a kernel writes it.
//! fn function_at(guest: &dyn GuestView, address: u64) -> Result<Option<String>, NoKernel> {
//!     let symbols = Symbols::of_guest(guest)?;
//!     Ok(symbols.name_of(address).map(|(name, offset)| format!("{name}+{offset:#x}")))
//! }
//!
//! /// A guest without memory, which has no kernel.
//! struct Empty;
//!
//! impl GuestView for Empty {
//!     fn cr3(&self) -> u64 {
//!         0
//!     }
//!     fn read(&self, _cr3: u64, _address: u64, _to: &mut [u8]) -> usize {
//!         0
//!     }
//!     fn physical(&self, _cr3: u64, _address: u64) -> Option<u64> {
//!         None
//!     }
//! }
//! assert!(function_at(&Empty, 0xffff_ffff_8100_0000).is_err());
//! ```
//!
//! A running Linux has the names and addresses of all its functions and variables in memory (kallsyms), and
//! also the symbols of loaded modules. The addresses are valid for this boot (KASLR). The modules of this
//! crate:
//!
//! - [`kallsyms`] finds the kernel's tables by their structure.
//! - [`modules`] walks the list of modules, by the kernel's type information ([`btf`]).
//! - [`elf`] makes a file for gdb with the symbols of the kernel and its modules, with types and frames ([`dwarf`]).
//!   The file has no source lines and nothing about user programs.
//! - [`debug_file`] reads types and variables from a program's or kernel's file.
//! - [`vmlinux`] finds the distance between the addresses in a kernel's file and in the guest.
//! - [`tasks`] lists processes, and [`switched_out`] finds the registers of threads that do not run.
//! - [`mappings`] lists the files that a process has mapped.
//! - [`module_sections`] finds the sections of a module's file in memory.
//! - [`orc`] unwinds the stack.
//! - [`messages`] reads the kernel's log, and [`reports`] finds panics, oopses and warnings in it.
//! - [`vmcoreinfo`] reads the note in which the kernel describes itself to other tools.
//! - [`boot`] distinguishes the kernels that a guest starts one after the other by kexec.
//! - [`interrupts`] finds the interrupt and the handlers of a vector.
//! - [`typed`] shows values of variables and arguments by their types.
//! - [`free_pages()`] finds unused memory, and [`page_owners`] says what used memory is for.
//!
//! This crate parses kallsyms, BTF and ORC itself, because these tables are in a guest's memory and not in files. The
//! crate `object` reads and writes ELF files, and `gimli` reads and writes DWARF.
//!
//! Follows Linux 6.1 to 7.2: `scripts/kallsyms.c`, `kernel/kallsyms.c`, `kernel/module/kallsyms.c`,
//! `Documentation/bpf/btf.rst`. Guest memory is not trusted: every length has a limit.

#![forbid(unsafe_code)]

pub mod boot;
pub mod btf;
pub mod debug_file;
pub mod dwarf;
pub mod elf;
mod free_pages;
mod guest_view;
pub mod interrupts;
pub mod kallsyms;
pub mod mappings;
pub mod messages;
pub mod module_sections;
pub mod modules;
pub mod orc;
pub mod page_owners;
pub mod reports;
mod sections;
pub mod switched_out;
mod symbols;
pub mod tasks;
#[cfg(test)]
mod tests;
pub mod typed;
pub mod vmcoreinfo;
pub mod vmlinux;

pub use self::free_pages::free_pages;
pub use self::guest_view::{GuestView, KernelView, USER_ROOT_BIT, page_table_root};
pub use self::sections::{Access, Section};
pub use self::symbols::{NoKernel, Symbol, Symbols};

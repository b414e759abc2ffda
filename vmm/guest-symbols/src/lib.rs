//! The guest kernel's symbols, taken from the guest kernel itself: a running Linux carries the names and
//! addresses of all its functions and variables (kallsyms), already moved to where this boot has put them
//! (KASLR), and those of the modules that are loaded.
//!
//! [`kallsyms`] finds the kernel's tables by their structure, [`modules`] walks the list of modules with the
//! help of the kernel's type information ([`btf`]), and [`elf`] makes a file of all that for gdb, with types and
//! frames ([`dwarf`]). There are no source lines in it, and nothing about user programs. [`vmlinux`] says how far a kernel
//! with debug information was moved, [`tasks`] which processes there are, [`switched_out`] where those that do not run go on,
//! [`orc`] who called whom, [`messages`] what the kernel has said, and [`vmcoreinfo`] what it says of itself to other tools.
//!
//! Follows Linux 6.1 to 7.2: `scripts/kallsyms.c`, `kernel/kallsyms.c`, `kernel/module/kallsyms.c`,
//! `Documentation/bpf/btf.rst`. Guest memory is not to be trusted: every length has a limit.

#![forbid(unsafe_code)]

pub mod btf;
pub mod dwarf;
pub mod elf;
mod guest_view;
pub mod kallsyms;
pub mod messages;
pub mod modules;
pub mod orc;
mod sections;
pub mod switched_out;
mod symbols;
pub mod tasks;
#[cfg(test)]
mod tests;
pub mod vmcoreinfo;
pub mod vmlinux;

pub use self::guest_view::{GuestView, KernelView, USER_ROOT_BIT, page_table_root};
pub use self::sections::{Access, Section};
pub use self::symbols::{NoKernel, Symbol, Symbols};

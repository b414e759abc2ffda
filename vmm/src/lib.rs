//! (see ARCHITECTURE.md)

pub mod acpi;
pub mod boot;

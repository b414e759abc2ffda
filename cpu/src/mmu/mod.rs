//! Address translation: page tables (`paging`), their roots (`root`), page walks (`walk`), cached translations of one
//! address space (`context`) and of all (`tlb`).

mod context;
pub(crate) mod paging;
mod root;
pub(crate) mod tlb;
pub(crate) mod walk;

//! Address translation: page tables (`paging`), their roots (`root`), walks through them (`walk`), what is remembered of walks
//! in an address space (`context`), and in all of them (`tlb`).

mod context;
pub(crate) mod paging;
mod root;
pub(crate) mod tlb;
pub(crate) mod walk;

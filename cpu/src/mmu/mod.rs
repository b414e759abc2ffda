//! Address translation: page tables (`paging`), walks through them (`walk`), and what is remembered of walks (`tlb`).

pub(crate) mod paging;
pub(crate) mod tlb;
pub(crate) mod walk;

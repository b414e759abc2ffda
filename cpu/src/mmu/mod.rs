//! Address translation: page tables (`paging`), their roots (`root`), walks through them (`walk`), and what is remembered of
//! walks (`tlb`).

pub(crate) mod paging;
mod root;
pub(crate) mod tlb;
pub(crate) mod walk;

//! The lives of some memory: each from an allocation to a free.

use schemars::JsonSchema;
use serde::Serialize;

use crate::moment::Moment;

pub(super) const PAGE_BYTES: u64 = 4096;
/// The name of a cache that stands for all pages that belong to no cache.
const PAGE: &str = "page";
/// The name that stands for objects that are too large for a cache.
pub(super) const LARGE: &str = "kmalloc-large";

/// One use of the memory, from its allocation to its free.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct Life {
    /// The name, which no other life has. `None` if the allocation is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The number of the life among the lives of the same cache at this address, from 1 on, if counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<usize>,
    /// When the life is, compared with the position.
    pub when: When,
    /// The allocation, if found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated: Option<Event>,
    /// The free, if found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freed: Option<Event>,
}

/// When a life is, compared with the position of the question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// The life has ended.
    #[default]
    Earlier,
    /// The life has begun and has not ended.
    Now,
    /// The life has not begun.
    Later,
}

/// An allocation or a free.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Event {
    /// The moment: just before the allocating function returns, or just before the freeing function begins.
    #[serde(flatten)]
    pub at: Moment,
    /// The kernel's function that allocates or frees.
    pub function: String,
    /// The functions that called this function, the innermost first, in the kernel's notation.
    pub callers: Vec<String>,
}

/// The name of the life that begins at a position. Pages without a cache have the cache [`PAGE`].
pub(super) fn name(cache: Option<&str>, at: u64) -> String {
    format!("{}@insn:{at}", cache.unwrap_or(PAGE))
}

impl Life {
    /// Sets the allocation, and the name.
    pub(super) fn begin(&mut self, allocated: Event, cache: Option<&str>) {
        self.name = Some(name(cache, allocated.at.instruction));
        self.allocated = Some(allocated);
    }

    /// The life for people.
    pub(super) fn lines(&self) -> Vec<String> {
        let when = match self.when {
            When::Earlier => "earlier",
            When::Now => "now",
            When::Later => "later",
        };
        let name = self.name.as_deref().unwrap_or("allocation unknown");
        let number =
            self.number.map(|number| format!(", number {number} at this address")).unwrap_or_default();
        let allocated = self.allocated.iter().flat_map(|event| event.lines("allocated"));
        let freed = self.freed.iter().flat_map(|event| event.lines("freed"));
        [format!("{when}: {name}{number}")].into_iter().chain(allocated).chain(freed).collect()
    }
}

impl Event {
    /// The event for people: a line, and a line for each caller.
    pub(super) fn lines(&self, what: &str) -> Vec<String> {
        let first = format!("  {what:<9}  {}  {}", self.at, self.function);
        [first].into_iter().chain(self.callers.iter().map(|caller| format!("      {caller}"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(instruction: u64, function: &str, callers: &[&str]) -> Event {
        let at = Moment {
            instruction,
            guest_seconds: 0.5,
            pid: Some(7),
            name: Some("sh".to_string()),
            processor: None,
        };
        let callers = callers.iter().map(|caller| caller.to_string()).collect();
        Event { at, function: function.to_string(), callers }
    }

    #[test]
    fn a_life_has_the_name_of_its_cache_and_of_its_allocation() {
        let mut life = Life { number: Some(3), when: When::Now, ..Life::default() };
        life.begin(event(100, "kmem_cache_alloc", &["__d_alloc+0x29/0x1d0"]), Some("dentry"));
        life.freed = Some(event(200, "kmem_cache_free", &[]));
        let expected = [
            "now: dentry@insn:100, number 3 at this address",
            "  allocated  insn:100  0.500000000 s  7 (sh)  kmem_cache_alloc",
            "      __d_alloc+0x29/0x1d0",
            "  freed      insn:200  0.500000000 s  7 (sh)  kmem_cache_free",
        ];
        assert_eq!(life.lines(), expected);
    }

    #[test]
    fn a_life_without_an_allocation_has_no_name() {
        let life = Life { freed: Some(event(200, "kfree", &[])), ..Life::default() };
        let expected = ["earlier: allocation unknown", "  freed      insn:200  0.500000000 s  7 (sh)  kfree"];
        assert_eq!(life.lines(), expected);
        assert_eq!((name(None, 5), name(Some("x"), 6)), ("page@insn:5".to_string(), "x@insn:6".to_string()));
    }
}

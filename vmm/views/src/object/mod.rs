//! The identity of an object of the guest's kernel: which object is at an address at a position, who allocated it, and
//! who freed it.
//!
//! The memory of an object is used again and again. The uses of the memory at one address are *lives*. A life begins when
//! the kernel allocates the memory, and ends when the kernel frees the memory. A life's name has the name of the cache and the
//! position of the allocation, such as `dentry@insn:123456`. No other object of the recording has this name.
//!
//! Lives of objects are found at calls of the kernel's allocator (`allocators.rs`). Lives of other pages are found at
//! writes of the count of references in `struct page`. The search goes back from the position until the wanted lives are
//! known. The search ends early where the kernel allocated the pages in which the object lies.

mod allocators;
mod expression;
mod lives;
mod search;

use std::fmt::{Display, Formatter, Result as Written};
use std::sync::Arc;

use guest_symbols::page_owners::{Block, Owner, PageOwners};
use history::timeline::{Poll, Timeline};
use machine::Machine;
use machine::error::Error;
use machine::position::{Count, Instructions};
use schemars::JsonSchema;
use serde::Serialize;

use crate::difference::Point;
use crate::guest_kernel::GuestKernels;
use crate::processors;
use expression::Address;
use lives::{LARGE, PAGE_BYTES};
use search::{Found, Kind, Search, Watched};

pub use expression::ADDRESSES;
pub use lives::{Event, Life, When};

/// The object to identify.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The object's address, in the notation of [`ADDRESSES`].
    pub address: &'a str,
    /// The number of the processor whose registers `address` means. `None` for the running processor.
    pub processor: Option<usize>,
    /// The number of earlier lives to find.
    pub earlier: usize,
    /// Whether to count the lives. The count needs a search from the start of the recording.
    pub count: bool,
}

/// An object, and the lives of its memory around a position.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Object {
    /// The position.
    #[serde(flatten)]
    pub at: Point,
    /// The address in hex. A physical address begins with `phys:`.
    pub address: String,
    /// The object or block of pages with this address.
    pub place: Place,
    /// Whether the memory is allocated at the position. `None` if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated: Option<bool>,
    /// The lives that were found, in the order of the run.
    pub lives: Vec<Life>,
    /// The allocation of the pages in which the object lies, if the search went back to this allocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages_allocated: Option<Event>,
    /// The next allocation of these pages, if the search went forward to this allocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages_reused: Option<Event>,
    /// Steps executed to find the lives.
    pub replayed: u64,
    /// Whether the poll function ended the search, so that lives may be missing.
    pub interrupted: bool,
}

/// The memory that the kernel allocates and frees together.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Place {
    /// An object of a cache.
    Object {
        /// The name of the cache, such as `dentry` or `kmalloc-64`.
        cache: String,
        /// The address of the object's first byte, in hex.
        base: String,
        /// The offset of the asked address in the object.
        offset: u64,
        /// The distance between two objects of the cache in bytes.
        bytes: u64,
    },
    /// A block of pages that belongs to no cache.
    Pages {
        /// The use of the pages, in words.
        owner: String,
        /// The address of the first page's first byte in the kernel's direct map, in hex.
        base: String,
        /// The offset of the asked address in the block.
        offset: u64,
        /// The block has 2^order pages. 0 if the kernel does not store the order.
        order: u32,
        /// The count of references in the block's `struct page`.
        references: u64,
    },
}

impl Question<'_> {
    /// Identifies the object at the timeline's position. Changes the timeline's position, and the stops that are set in
    /// the timeline.
    pub fn answer(&self, timeline: &mut Timeline, poll: &mut Poll<'_>) -> Result<Object, Error> {
        let (before, here) = (timeline.replayed_steps(), timeline.position());
        let kernels = Arc::new(GuestKernels::of(timeline, here, poll)?);
        let machine = timeline.machine();
        let refused = |why: &dyn Display| Error::Position(format!("there is no object to show: {why}"));
        let kernel = kernels.at(machine).ok_or_else(|| refused(&guest_symbols::NoKernel))?;
        let owners = PageOwners::of_kernel(machine, &kernel.symbols).map_err(|missing| refused(&missing))?;
        let processor = self.processor.map(|number| processors::find(machine, number)).transpose()?;
        let processor = processor.unwrap_or_else(|| machine.running_processor());
        let address = Address::parse(self.address, &processor, &kernel.symbols).map_err(Error::Position)?;
        let unmapped =
            || Error::Position(format!("{address} is not mapped at this position: choose another position"));
        let physical = address.physical(&processor).ok_or_else(unmapped)?;
        let subject = Subject::of(machine, &owners, physical).ok_or_else(|| {
            refused(&format!("{address} is in no memory that the kernel allocates; choose another address"))
        })?;
        let at = Point { instruction: here.number(), guest_seconds: machine.moment().time_ns as f64 / 1e9 };
        let mut object = Object {
            at,
            address: address.to_string(),
            place: subject.place,
            allocated: None,
            lives: Vec::new(),
            pages_allocated: None,
            pages_reused: None,
            replayed: 0,
            interrupted: false,
        };
        if let Some(watched) = subject.watched {
            let mut search = Search::new(timeline, kernels, owners, watched)?;
            let searched = object.search(&mut search, self, poll);
            search.end();
            searched?;
        }
        object.replayed = timeline.replayed_steps() - before;
        Ok(object)
    }
}

/// The memory with an address, and how to find its lives.
struct Subject {
    place: Place,
    /// `None` for memory that the kernel never allocates or frees.
    watched: Option<Watched>,
}

impl Subject {
    fn of(machine: &Machine<Instructions>, owners: &PageOwners, physical: u64) -> Option<Subject> {
        let (owner, block) = (owners.owner(machine, physical)?, owners.block(machine, physical)?);
        let block_bytes = PAGE_BYTES << block.order;
        let object = |cache: &str, start: u64, left: u64, bytes: u64, cache_address: u64| {
            let base = owners.direct_address(start.wrapping_add(left));
            let slot = owners.direct_address(start);
            let watched = Watched::Object {
                memory: slot..slot.wrapping_add(bytes),
                cache: cache_address,
                pages: block.structure,
            };
            let place = Place::Object {
                cache: cache.to_string(),
                base: format!("{base:#x}"),
                offset: physical.saturating_sub(start.wrapping_add(left)),
                bytes,
            };
            Subject { place, watched: Some(watched) }
        };
        if let Owner::Slab(slab) = &owner {
            let number = physical.checked_sub(slab.start)? / slab.object_bytes;
            let start = slab.start + number * slab.object_bytes;
            // After the last object, a slab may have bytes that belong to no object.
            let is_whole = start.saturating_add(slab.object_bytes) <= slab.start.saturating_add(block_bytes);
            return is_whole
                .then(|| object(&slab.cache, start, slab.left_bytes, slab.object_bytes, slab.cache_address));
        }
        // Newer kernels count no references to pages of large objects.
        if owner == Owner::Other && block.references == 0 && block.order > 0 {
            return Some(object(LARGE, block.start, 0, block_bytes, 0));
        }
        let Block { start, order, references, references_at, .. } = block;
        let place = Place::Pages {
            owner: owner.to_string(),
            base: format!("{:#x}", owners.direct_address(start)),
            offset: physical.checked_sub(start)?,
            order,
            references,
        };
        let is_allocated_memory = owner != Owner::Reserved;
        Some(Subject { place, watched: is_allocated_memory.then_some(Watched::Pages { references_at }) })
    }
}

impl Object {
    /// Finds the lives: first back from the position, and then forward.
    fn search(
        &mut self,
        search: &mut Search<'_>,
        question: &Question<'_>,
        poll: &mut Poll<'_>,
    ) -> Result<(), Error> {
        let begun = search.timeline.snapshot()?;
        let (past, future) = match search.here() {
            Some(found) if found.kind == Kind::Allocated => (Some(found), None),
            found => (None, found),
        };
        self.go_back(search, past, question.earlier, poll)?;
        if !search.interrupted {
            search.timeline.return_to(&begun)?;
            self.go_forward(search, future, poll)?;
        }
        if question.count && !search.interrupted {
            self.count(search, poll)?;
        }
        self.interrupted = search.interrupted;
        Ok(())
    }

    fn go_back(
        &mut self,
        search: &mut Search<'_>,
        mut first: Option<Found>,
        earlier: usize,
        poll: &mut Poll<'_>,
    ) -> Result<(), Error> {
        // The latest first. The last life may have no allocation yet.
        let mut lives: Vec<Life> = Vec::new();
        loop {
            let wanted = earlier.max(1) + usize::from(self.allocated == Some(true));
            let is_open = lives.last().is_some_and(|life| life.allocated.is_none());
            if (lives.len() >= wanted && !is_open) || lives.len() > wanted {
                lives.truncate(wanted);
                break;
            }
            let found = match first.take() {
                Some(found) => Some(found),
                None => search.previous(poll)?,
            };
            let Some(found) = found else { break };
            self.allocated = self.allocated.or(Some(found.kind == Kind::Allocated));
            match found.kind {
                Kind::Freed => lives.push(Life { freed: Some(found.event), ..Life::default() }),
                Kind::Allocated if is_open => {
                    if let Some(life) = lives.last_mut() {
                        life.begin(found.event, found.cache.as_deref());
                    }
                }
                Kind::Allocated => {
                    let mut life = Life::default();
                    life.begin(found.event, found.cache.as_deref());
                    lives.push(life);
                }
                Kind::PagesAllocated => {
                    self.pages_allocated = Some(found.event);
                    break;
                }
            }
        }
        if let (Some(true), Some(life)) = (self.allocated, lives.first_mut()) {
            life.when = When::Now;
        }
        lives.reverse();
        self.lives = lives;
        Ok(())
    }

    fn go_forward(
        &mut self,
        search: &mut Search<'_>,
        mut first: Option<Found>,
        poll: &mut Poll<'_>,
    ) -> Result<(), Error> {
        while let Some(found) = match first.take() {
            Some(found) => Some(found),
            None => search.next(poll)?,
        } {
            match found.kind {
                Kind::PagesAllocated => {
                    self.pages_reused = Some(found.event);
                    break;
                }
                Kind::Allocated => {
                    self.allocated = self.allocated.or(Some(false));
                    let mut life = Life { when: When::Later, ..Life::default() };
                    life.begin(found.event, found.cache.as_deref());
                    self.lives.push(life);
                    break;
                }
                Kind::Freed => {
                    self.allocated = self.allocated.or(Some(true));
                    match self.lives.last_mut().filter(|life| life.when == When::Now && life.freed.is_none())
                    {
                        Some(life) => life.freed = Some(found.event),
                        None => {
                            let when = if self.lives.iter().any(|life| life.when == When::Now) {
                                When::Later
                            } else {
                                When::Now
                            };
                            self.lives.push(Life { when, freed: Some(found.event), ..Life::default() });
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Numbers the lives whose allocations are known.
    fn count(&mut self, search: &mut Search<'_>, poll: &mut Poll<'_>) -> Result<(), Error> {
        let last = self.lives.iter().rev().find_map(|life| life.allocated.as_ref());
        let Some(last) = last.map(|event| event.at.instruction) else { return Ok(()) };
        let names = search.names_until(Instructions(last + 1), poll)?;
        for life in &mut self.lives {
            let Some(name) = &life.name else { continue };
            let cache = |name: &str| name.split('@').next().map(str::to_string);
            let is_same = |other: &&String| cache(other) == cache(name);
            let before = names.iter().take_while(|other| *other != name);
            life.number = names.contains(name).then(|| before.filter(is_same).count() + 1);
        }
        Ok(())
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        match self {
            Place::Object { cache, base, offset, bytes } => {
                write!(f, "byte {offset:#x} of an object of {cache} at {base}, {bytes} bytes")
            }
            Place::Pages { owner, base, offset, order, references } => {
                let count = 1_u64 << order;
                let pages = if count == 1 { "a page".to_string() } else { format!("{count} pages") };
                write!(f, "byte {offset:#x} of {pages} at {base}: {owner}, count of references {references}")
            }
        }
    }
}

/// The text for people.
impl Display for Object {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let state = match self.allocated {
            Some(true) => ", allocated",
            Some(false) => ", free",
            None => "",
        };
        let at = self.at.instruction;
        let mut lines = vec![format!("{} is {}{state} at insn:{at}", self.address, self.place)];
        if let Some(event) = &self.pages_allocated {
            lines.extend(event.lines("pages"));
        }
        lines.extend(self.lives.iter().flat_map(Life::lines));
        if let Some(event) = &self.pages_reused {
            lines.extend(event.lines("pages"));
        }
        if self.interrupted {
            lines.push("interrupted: there may be more lives".to_string());
        } else if self.lives.is_empty() && self.pages_allocated.is_none() {
            lines.push("never allocated or freed in this recording".to_string());
        } else if self.lives.iter().any(|life| life.when == When::Now && life.freed.is_none()) {
            lines.push("not freed until the end of the recording".to_string());
        }
        f.write_str(&lines.join("\n"))
    }
}

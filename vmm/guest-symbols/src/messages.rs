//! The messages of the guest's kernel (`dmesg`), read from the ring buffer in its memory. The ring buffer also has
//! messages that the kernel did not print on a console.
//!
//! ```text
//! descriptors    one for each message, by the message's number: the state, and where the text is in the ring of texts
//! infos          one for each descriptor: the message's time, length and level
//! ring of texts  a block for each message: the message's number and text. A block that would reach beyond the ring's
//!                end begins at the ring's beginning
//! ```
//!
//! Follows Linux 6.1 to 7.2: `kernel/printk/printk_ringbuffer.[ch]`. Guest memory is not trusted: the rings' sizes have
//! limits.

use super::btf::Btf;
use super::guest_view::{GuestView, KernelView};
use super::modules::{Missing, types};
use super::symbols::Symbols;

/// Limits, as base-2 logarithms: of the number of descriptors, and of the number of bytes of texts.
const MAX_COUNT_BITS: u64 = 22;
const MAX_SIZE_BITS: u64 = 30;
/// The states, in a descriptor's two highest bits, in which its message is complete: committed and finalized.
const WHOLE: [u64; 2] = [1, 2];
const STATE_SHIFT: u32 = 62;
const NUMBER: u64 = (1 << STATE_SHIFT) - 1;
/// A block begins with its message's number.
const BLOCK_HEAD_BYTES: u64 = 8;
/// The level is above five bits of flags in its byte.
const LEVEL_SHIFT: u32 = 5;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The message's time, by the kernel's clock.
    pub time_ns: u64,
    /// The message's level: 0 is an emergency, 7 is for debugging.
    pub level: u8,
    /// The message's text, of one or more lines. Control characters are replaced.
    pub text: String,
}

impl std::fmt::Display for Message {
    /// Formats the message as `dmesg` does, each line with the time.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (seconds, micros) = (self.time_ns / 1_000_000_000, self.time_ns / 1000 % 1_000_000);
        for (number, line) in self.text.split('\n').enumerate() {
            let newline = if number == 0 { "" } else { "\n" };
            write!(f, "{newline}[{seconds:5}.{micros:06}] {line}")?;
        }
        Ok(())
    }
}

/// A message, and the address of its state in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The message.
    pub message: Message,
    /// The message's number among all messages, from 0 on.
    pub sequence: u64,
    /// The address of the state of the message's descriptor.
    pub state_at: u64,
    /// The message's number as the descriptor's state word has it, without the state bits.
    pub id: u64,
}

impl Kept {
    /// The message's state, if `word` is the value at `state_at`. `None` if the word belongs to another message.
    pub fn state_of(&self, word: u64) -> Option<State> {
        (word & NUMBER == self.id).then_some(match word >> STATE_SHIFT {
            1 => State::Committed,
            2 => State::Finalized,
            _ => State::Unwritten,
        })
    }
}

/// The state of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The message is being written, or its descriptor is free for another message.
    Unwritten,
    /// The message is complete, but the kernel may reopen it to add text.
    Committed,
    /// The message is complete.
    Finalized,
}

/// All messages in the ring buffer of the kernel with these symbols, the oldest first.
pub fn of_kernel(guest: &dyn GuestView, symbols: &Symbols) -> Result<Vec<Message>, Missing> {
    let kept = KernelLog::of_kernel(guest, symbols)?.kept(guest).ok_or(Missing::Symbol("prb"))?;
    Ok(kept.into_iter().map(|kept| kept.message).collect())
}

/// The location of a kernel's messages. The location is constant while the kernel runs.
#[derive(Clone, Debug)]
pub struct KernelLog {
    /// The address of the variable that points to the ring buffer.
    pointer: u64,
    layout: Layout,
}

impl KernelLog {
    /// The location of the messages in the kernel with these symbols.
    pub fn of_kernel(guest: &dyn GuestView, symbols: &Symbols) -> Result<KernelLog, Missing> {
        KernelView::first_with(guest, |view| KernelLog::find(view, symbols))
    }

    fn find(view: KernelView<'_>, symbols: &Symbols) -> Result<KernelLog, Missing> {
        let pointer = symbols.address_of("prb").ok_or(Missing::Symbol("prb"))?;
        let bytes = types(view, &|name| symbols.address_of(name))?;
        let layout = Layout::of(&Btf::parse(&bytes).ok_or(Missing::Types)?)?;
        Ok(KernelLog { pointer, layout })
    }

    /// All messages in the ring buffer, the oldest first. `None` if the ring buffer is not mapped.
    pub fn kept(&self, guest: &dyn GuestView) -> Option<Vec<Kept>> {
        KernelView::all(guest).find_map(|view| Some(self.ring(view)?.messages()))
    }

    /// The number of messages so far. The number only grows along a run. `None` if the ring buffer is not
    /// mapped.
    pub fn length(&self, guest: &dyn GuestView) -> Option<u64> {
        KernelView::all(guest).find_map(|view| {
            let ring = self.ring(view)?;
            let newest = ring.infos.wrapping_add(ring.head % ring.count * self.layout.info_bytes);
            view.number::<8>(newest.wrapping_add(self.layout.sequence))
        })
    }

    fn ring<'a>(&'a self, view: KernelView<'a>) -> Option<Ring<'a>> {
        Ring::at(view, view.number::<8>(self.pointer)?, &self.layout)
    }
}

/// The offsets of the fields, in bytes.
#[derive(Clone, Debug)]
struct Layout {
    /// Offsets in `struct printk_ringbuffer`.
    count_bits: u64,
    descriptors: u64,
    infos: u64,
    head: u64,
    tail: u64,
    size_bits: u64,
    texts: u64,
    /// Offsets in `struct prb_desc`.
    state: u64,
    begin: u64,
    next: u64,
    descriptor_bytes: u64,
    /// Offsets in `struct printk_info`.
    sequence: u64,
    time: u64,
    length: u64,
    level: u64,
    info_bytes: u64,
}

impl Layout {
    fn of(btf: &Btf<'_>) -> Result<Layout, Missing> {
        let field = |structure: &'static str, field: &'static str| {
            let found = btf.structure(structure).and_then(|number| btf.field(number, field));
            found.map(|found| found.offset).ok_or(Missing::Field { structure, field })
        };
        let size = |structure: &'static str| {
            let found = btf.structure(structure).and_then(|number| btf.size(number));
            found.ok_or(Missing::Field { structure, field: "size" })
        };
        let descriptors = field("printk_ringbuffer", "desc_ring")?;
        let texts = field("printk_ringbuffer", "text_data_ring")?;
        let place = field("prb_desc", "text_blk_lpos")?;
        // The byte after the facility contains the level.
        let facility = field("printk_info", "facility")?;
        Ok(Layout {
            count_bits: descriptors + field("prb_desc_ring", "count_bits")?,
            descriptors: descriptors + field("prb_desc_ring", "descs")?,
            infos: descriptors + field("prb_desc_ring", "infos")?,
            head: descriptors + field("prb_desc_ring", "head_id")?,
            tail: descriptors + field("prb_desc_ring", "tail_id")?,
            size_bits: texts + field("prb_data_ring", "size_bits")?,
            texts: texts + field("prb_data_ring", "data")?,
            state: field("prb_desc", "state_var")?,
            begin: place + field("prb_data_blk_lpos", "begin")?,
            next: place + field("prb_data_blk_lpos", "next")?,
            descriptor_bytes: size("prb_desc")?,
            sequence: field("printk_info", "seq")?,
            time: field("printk_info", "ts_nsec")?,
            length: field("printk_info", "text_len")?,
            level: facility + 1,
            info_bytes: size("printk_info")?,
        })
    }
}

/// The ring buffer.
struct Ring<'a> {
    view: KernelView<'a>,
    layout: &'a Layout,
    descriptors: u64,
    infos: u64,
    /// The number of descriptors.
    count: u64,
    texts: u64,
    texts_bytes: u64,
    tail: u64,
    head: u64,
}

impl<'a> Ring<'a> {
    fn at(view: KernelView<'a>, at: u64, layout: &'a Layout) -> Option<Ring<'a>> {
        let word = |offset: u64| view.number::<8>(at.wrapping_add(offset));
        let bits =
            |offset: u64, most: u64| view.number::<4>(at.wrapping_add(offset)).filter(|&bits| bits < most);
        Some(Ring {
            view,
            layout,
            descriptors: word(layout.descriptors)?,
            infos: word(layout.infos)?,
            count: 1 << bits(layout.count_bits, MAX_COUNT_BITS)?,
            texts: word(layout.texts)?,
            texts_bytes: 1 << bits(layout.size_bits, MAX_SIZE_BITS)?,
            tail: word(layout.tail)?,
            head: word(layout.head)?,
        })
    }

    fn messages(&self) -> Vec<Kept> {
        let count = (self.head.wrapping_sub(self.tail) & NUMBER).min(self.count) + 1;
        (0..count).filter_map(|number| self.message(self.tail.wrapping_add(number) & NUMBER)).collect()
    }

    fn message(&self, number: u64) -> Option<Kept> {
        let slot = number % self.count;
        let descriptor = self.descriptors.wrapping_add(slot * self.layout.descriptor_bytes);
        let info = self.infos.wrapping_add(slot * self.layout.info_bytes);
        let word = |offset: u64| self.view.number::<8>(descriptor.wrapping_add(offset));
        let state = word(self.layout.state)?;
        if state & NUMBER != number || !WHOLE.contains(&(state >> STATE_SHIFT)) {
            return None;
        }
        let length = self.view.number::<2>(info.wrapping_add(self.layout.length))?;
        let message = Message {
            time_ns: self.view.number::<8>(info.wrapping_add(self.layout.time))?,
            level: (self.view.number::<1>(info.wrapping_add(self.layout.level))? >> LEVEL_SHIFT) as u8,
            text: self.text(word(self.layout.begin)?, word(self.layout.next)?, length)?,
        };
        let sequence = self.view.number::<8>(info.wrapping_add(self.layout.sequence))?;
        Some(Kept { message, sequence, state_at: descriptor.wrapping_add(self.layout.state), id: number })
    }

    /// The text of a block between two positions in the ring. Positions grow without wrapping.
    fn text(&self, begin: u64, next: u64, length: u64) -> Option<String> {
        // An odd position means a message without text.
        if begin & 1 != 0 {
            return None;
        }
        let (begin, next) = (begin % self.texts_bytes, next % self.texts_bytes);
        let begin = if begin > next { 0 } else { begin };
        let length = length.min((next - begin).checked_sub(BLOCK_HEAD_BYTES)?);
        let mut bytes = vec![0; length as usize];
        let at = self.texts.wrapping_add(begin + BLOCK_HEAD_BYTES);
        (self.view.read(at, &mut bytes) == bytes.len()).then_some(())?;
        let visible = |c: char| if c.is_control() && c != '\n' && c != '\t' { '?' } else { c };
        Some(String::from_utf8_lossy(&bytes).chars().map(visible).collect())
    }
}

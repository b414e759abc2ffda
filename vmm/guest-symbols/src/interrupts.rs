//! The interrupts of a Linux kernel: which interrupt and which handlers belong to a vector of a processor.
//!
//! Follows Linux 6.1 to 7.2: `vector_irq` in `arch/x86/kernel/apic/vector.c`, `include/linux/irqdesc.h` and
//! `include/linux/interrupt.h`.

use super::btf::Btf;
use super::guest_view::{GuestView, KernelView};
use super::modules::{Missing, types};
use super::symbols::Symbols;
use super::tasks::field;

/// The largest number of handlers of one interrupt that are read.
const MAX_HANDLERS: usize = 16;
/// The longest name of a handler that is read.
const MAX_NAME_BYTES: usize = 64;
/// Pointers from this address on are marks of the kernel and no addresses, such as `VECTOR_SHUTDOWN`.
const FIRST_MARK: u64 = u64::MAX - 4095;

/// The location of a kernel's interrupts. The location is constant while the kernel runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interrupts {
    /// The address of `__per_cpu_offset` for the first processor.
    cpu_base: u64,
    /// The address of the per-CPU table of interrupts by vector, without the processor's offset.
    vectors: u64,
    /// Offset of the number in `struct irq_desc`.
    number: u64,
    /// Offset of the first handler in `struct irq_desc`.
    action: u64,
    handler: u64,
    name: u64,
    next: u64,
}

/// An interrupt of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interrupt {
    /// The interrupt's number, as in `/proc/interrupts`.
    pub number: u32,
    /// The interrupt's handlers, in the order of their calls.
    pub handlers: Vec<Handler>,
}

/// A handler of an interrupt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handler {
    /// The name that the driver gave, as in `/proc/interrupts`. `None` if the name cannot be read.
    pub name: Option<String>,
    /// The handler's address.
    pub address: u64,
}

impl Interrupts {
    /// Finds the interrupts of the kernel with these symbols.
    pub fn of_kernel(guest: &dyn GuestView, symbols: &Symbols) -> Result<Interrupts, Missing> {
        KernelView::first_with(guest, |view| Interrupts::find(view, symbols))
    }

    pub(super) fn find(memory: KernelView<'_>, symbols: &Symbols) -> Result<Interrupts, Missing> {
        let address = |name: &'static str| symbols.address_of(name).ok_or(Missing::Symbol(name));
        let bytes = types(memory, &|name| symbols.address_of(name))?;
        let btf = Btf::parse(&bytes).ok_or(Missing::Types)?;
        let of_action = |name| field(&btf, "irqaction", name);
        Ok(Interrupts {
            cpu_base: address("__per_cpu_offset")?,
            vectors: address("vector_irq")?,
            number: field(&btf, "irq_desc", "irq_data")? + field(&btf, "irq_data", "irq")?,
            action: field(&btf, "irq_desc", "action")?,
            handler: of_action("handler")?,
            name: of_action("name")?,
            next: of_action("next")?,
        })
    }

    /// The interrupt that the kernel gave a vector of a processor. `None` if the vector has no interrupt.
    pub fn of_vector(&self, guest: &dyn GuestView, processor: usize, vector: u8) -> Option<Interrupt> {
        KernelView::all(guest).find_map(|view| self.of_vector_in(view, processor, vector))
    }

    pub(super) fn of_vector_in(
        &self,
        memory: KernelView<'_>,
        processor: usize,
        vector: u8,
    ) -> Option<Interrupt> {
        let word = |address: u64, offset: u64| memory.number::<8>(address.wrapping_add(offset));
        let base = word(self.cpu_base, (processor as u64).checked_mul(8)?)?;
        let interrupt = word(base.wrapping_add(self.vectors), 8 * u64::from(vector))?;
        if interrupt == 0 || interrupt >= FIRST_MARK {
            return None;
        }
        let number = memory.number::<4>(interrupt.wrapping_add(self.number))? as u32;
        let (mut handlers, mut at) = (Vec::new(), word(interrupt, self.action)?);
        while at != 0 && handlers.len() < MAX_HANDLERS {
            let Some(address) = word(at, self.handler) else { break };
            let name = word(at, self.name).and_then(|name| memory.text(name, MAX_NAME_BYTES));
            handlers.push(Handler { name, address });
            at = word(at, self.next).unwrap_or(0);
        }
        Some(Interrupt { number, handlers })
    }
}

//! Interrupt vectors and messages, with the interrupts and handlers of the guest's Linux.

use std::fmt::{Display, Formatter, Result as Written};

use devices::interrupt_message::{DeliveryMode, InterruptMessage};
use devices::pci::PciBus;
use devices::platform::Platform;
use guest_symbols::Symbols;
use guest_symbols::interrupts::Interrupts;
use machine::Machine;
use machine::position::Instructions;
use schemars::JsonSchema;
use serde::Serialize;

use super::words::listed;
use crate::visible::in_a_line;

/// The bytes of a gate in the interrupt descriptor table in long mode (SDM vol. 3, 7.14.1).
const GATE_BYTES: u64 = 16;
/// The beginning of the names of Linux's entry points, each of which belongs to one vector.
const ENTRY_POINT: &str = "asm_";

/// A vector, and its use by the guest's kernel.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct VectorUse {
    /// The vector.
    pub vector: u8,
    /// The number of Linux's interrupt, as in `/proc/interrupts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub irq: Option<u32>,
    /// The handlers. A vector of the kernel itself, such as a timer's, has its entry point here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub handlers: Vec<Handler>,
}

/// A handler of an interrupt.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Handler {
    /// The name that the driver gave, as in `/proc/interrupts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The handler's function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
}

/// The processors that an interrupt message is for, and the interrupt that they get.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Target {
    /// The delivery mode.
    pub delivery: &'static str,
    /// The destination as the message has it: an APIC id or a logical destination.
    pub destination: u8,
    /// Whether the destination is logical.
    pub is_logical: bool,
    /// The numbers of the processors that the message addresses.
    pub processors: Vec<usize>,
    /// The vector.
    #[serde(flatten)]
    pub vector: VectorUse,
}

/// The machine, with the names of its vectors.
pub(super) struct Names<'a> {
    pub machine: &'a Machine<Instructions>,
    kernel: Option<(Symbols, Option<Interrupts>)>,
}

impl<'a> Names<'a> {
    pub fn of(machine: &'a Machine<Instructions>) -> Names<'a> {
        let kernel = Symbols::of_guest(machine).ok().map(|symbols| {
            let interrupts = Interrupts::of_kernel(machine, &symbols).ok();
            (symbols, interrupts)
        });
        Names { machine, kernel }
    }

    pub fn board(&self) -> &'a Platform<PciBus> {
        self.machine.board()
    }

    /// A vector of a processor.
    pub fn vector(&self, processor: usize, vector: u8) -> VectorUse {
        let (mut irq, mut handlers) = (None, Vec::new());
        if let Some((symbols, interrupts)) = &self.kernel {
            let found = interrupts
                .as_ref()
                .and_then(|interrupts| interrupts.of_vector(self.machine, processor, vector));
            irq = found.as_ref().map(|found| found.number);
            handlers = match found {
                Some(found) => {
                    found.handlers.into_iter().map(|handler| Handler::of(handler, symbols)).collect()
                }
                None => self.entry_point(processor, vector, symbols).into_iter().collect(),
            };
        }
        VectorUse { vector, irq, handlers }
    }

    /// The target of a message.
    pub fn target(&self, message: &InterruptMessage) -> Target {
        let processors: Vec<usize> = self.board().receivers(message).collect();
        let has_vector = matches!(message.mode, DeliveryMode::Fixed | DeliveryMode::LowestPriority);
        let unnamed = VectorUse { vector: message.vector, irq: None, handlers: Vec::new() };
        let first = processors.first().filter(|_| has_vector);
        Target {
            delivery: delivery(message.mode),
            destination: message.destination,
            is_logical: message.logical,
            vector: first.map_or(unnamed, |&processor| self.vector(processor, message.vector)),
            processors,
        }
    }

    /// The kernel's own handler of a vector, by the processor's interrupt descriptor table.
    fn entry_point(&self, processor: usize, vector: u8, symbols: &Symbols) -> Option<Handler> {
        let processor = self.machine.processor_at(processor).filter(|processor| processor.is_started())?;
        let table = processor.state().idtr;
        let at = u64::from(vector) * GATE_BYTES;
        if at + GATE_BYTES - 1 > u64::from(table.limit) {
            return None;
        }
        let mut gate = [0; GATE_BYTES as usize];
        if processor.peek(table.base.wrapping_add(at), &mut gate) != gate.len() {
            return None;
        }
        let [a, b, _, _, _, _, c, d, e, f, g, h, ..] = gate;
        let (name, offset) = symbols.name_of(u64::from_le_bytes([a, b, c, d, e, f, g, h]))?;
        let is_one_vectors = offset == 0 && name.starts_with(ENTRY_POINT);
        is_one_vectors.then(|| Handler { name: None, function: Some(name.to_string()) })
    }
}

impl Handler {
    fn of(handler: guest_symbols::interrupts::Handler, symbols: &Symbols) -> Handler {
        let function = symbols.name_of(handler.address).map(|(name, _)| name.to_string());
        Handler { name: handler.name.map(|name| in_a_line(&name).into_owned()), function }
    }
}

/// A delivery mode in words.
pub(super) fn delivery(mode: DeliveryMode) -> &'static str {
    match mode {
        DeliveryMode::Fixed => "fixed",
        DeliveryMode::LowestPriority => "lowest-priority",
        DeliveryMode::Smi => "SMI",
        DeliveryMode::Nmi => "NMI",
        DeliveryMode::Init => "INIT",
        DeliveryMode::StartUp => "start-up",
        DeliveryMode::ExtInt => "ExtINT",
        DeliveryMode::Reserved => "reserved",
    }
}

impl Display for Handler {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        match (&self.name, &self.function) {
            (Some(name), Some(function)) => write!(f, "{name} ({function})"),
            (name, function) => f.write_str(name.as_ref().or(function.as_ref()).map_or("?", |text| text)),
        }
    }
}

impl Display for VectorUse {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        write!(f, "vector {}", self.vector)?;
        if let Some(irq) = self.irq {
            write!(f, ", IRQ {irq}")?;
        }
        if self.handlers.is_empty() { Ok(()) } else { write!(f, ", {}", listed(&self.handlers)) }
    }
}

impl Display for Target {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let Target { delivery, destination, is_logical, processors, vector } = self;
        if *delivery != "fixed" {
            write!(f, "{delivery}, ")?;
        }
        match &processors[..] {
            [] if *is_logical => {
                write!(f, "to logical destination {destination:#x}, which no processor has")?
            }
            [] => write!(f, "to APIC {destination}, which no processor has")?,
            [one] => write!(f, "to processor {one}")?,
            several => write!(f, "to processors {}", listed(several))?,
        }
        write!(f, ", {vector}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(delivery: &'static str, is_logical: bool, processors: &[usize]) -> String {
        let handler =
            Handler { name: Some("virtio0-req.0".into()), function: Some("vring_interrupt".into()) };
        let vector = VectorUse { vector: 34, irq: Some(25), handlers: vec![handler] };
        Target { delivery, destination: 4, is_logical, processors: processors.to_vec(), vector }.to_string()
    }

    #[test]
    fn a_target_names_processors_and_handlers() {
        let vector = "vector 34, IRQ 25, virtio0-req.0 (vring_interrupt)";
        assert_eq!(target("fixed", true, &[2]), format!("to processor 2, {vector}"));
        assert_eq!(target("fixed", true, &[0, 2]), format!("to processors 0, 2, {vector}"));
        let nobody = target("NMI", true, &[]);
        assert_eq!(nobody, format!("NMI, to logical destination 0x4, which no processor has, {vector}"));
        assert!(target("fixed", false, &[]).starts_with("to APIC 4, which no processor has, "));
    }

    #[test]
    fn a_handler_has_the_name_that_is_known() {
        let shown = |name: Option<&str>, function: Option<&str>| {
            Handler { name: name.map(str::to_string), function: function.map(str::to_string) }.to_string()
        };
        assert_eq!(shown(None, Some("asm_sysvec_reboot")), "asm_sysvec_reboot");
        assert_eq!((shown(Some("rtc0"), None), shown(None, None)), ("rtc0".into(), "?".into()));
    }
}

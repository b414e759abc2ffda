//! The bus of a machine with passed-through devices. If a guest's instruction reads from such a device, the bus
//! asks the machine's inputs for the value while the instruction executes.

use cpu::{Bus, BusSignals, ProcessorSignals};
use devices::passthrough::AskV1;

use crate::bus::MachineBus;
use crate::error::Error;
use crate::inputs::{AskedAt, Inputs};
use crate::position::{Instructions, Moment};
use crate::unit::Unit;

/// A bus that asks passed-through devices. The CPU stops after each instruction that asked a device, so that a replay
/// can give answers one by one. The CPU also stops once the inputs fail; [`AskingBus::finish`] returns the error.
pub struct AskingBus<'a, U> {
    bus: &'a mut MachineBus,
    inputs: &'a mut dyn Inputs<U>,
    answered: bool,
    failed: Option<Error>,
}

impl<'a, U: Unit> AskingBus<'a, U> {
    /// Makes a bus that asks these inputs.
    pub fn new(bus: &'a mut MachineBus, inputs: &'a mut dyn Inputs<U>) -> AskingBus<'a, U> {
        AskingBus { bus, inputs, answered: false, failed: None }
    }

    /// The first error of the inputs, if there was one.
    pub fn finish(self) -> Result<(), Error> {
        self.failed.map_or(Ok(()), Err)
    }

    fn at(&self, steps: u64) -> AskedAt<U> {
        let instructions = Instructions(steps);
        let count = U::here(instructions, self.bus.clock.exits);
        AskedAt { at: Moment { count, time_ns: self.bus.time_ns(steps) }, instructions }
    }

    /// Asks a device by asking the inputs. Applies all device inputs up to the input with the answer. Returns the
    /// answer's value.
    fn ask(&mut self, at: AskedAt<U>, ask: AskV1) -> u64 {
        self.answered = true;
        while self.failed.is_none() {
            match self.inputs.ask_devices(at, &ask) {
                Ok(input) => {
                    self.bus.take_from_devices(at.at.time_ns, &input);
                    if let Some(value) = input.value {
                        return value;
                    }
                }
                Err(error) => self.failed = Some(error),
            }
        }
        u64::MAX
    }

    /// Tells the inputs which writes the guest made to passed-through devices in the access that has just ended.
    fn hand_on(&mut self, at: AskedAt<U>) {
        for told in self.bus.platform.bus_mut().take_told() {
            if told.is_answered() {
                self.ask(at, told);
            } else if self.failed.is_none()
                && let Err(error) = self.inputs.tell_devices(at, &told)
            {
                self.failed = Some(error);
            }
        }
    }
}

impl<U: Unit> Bus for AskingBus<'_, U> {
    fn port_read(&mut self, steps: u64, port: u16, size_bytes: u8) -> u32 {
        let Some(ask) = self.bus.platform.bus().port_read_ask(port, size_bytes) else {
            return self.bus.port_read(steps, port, size_bytes);
        };
        let value = self.ask(self.at(steps), ask);
        self.bus.clock.note_exit();
        value as u32 & u32::MAX >> (32 - 8 * u32::from(size_bytes.clamp(1, 4)))
    }

    fn port_write(&mut self, steps: u64, port: u16, size_bytes: u8, value: u32) {
        let at = self.at(steps);
        let data = value.to_le_bytes();
        let data = &data[..usize::from(size_bytes.min(4))];
        let is_passed = self.bus.platform.with_bus(at.at.time_ns, |bus| bus.passed_port_write(port, data));
        if is_passed {
            self.bus.clock.note_exit();
        } else {
            self.bus.port_write(steps, port, size_bytes, value);
        }
        self.hand_on(at);
    }

    fn mmio_read(&mut self, steps: u64, gpa: u64, data: &mut [u8]) {
        let platform = &self.bus.platform;
        let ask = match data.len() {
            1 | 2 | 4 | 8 if !platform.has_chip_at(gpa) => platform.bus().mmio_read_ask(gpa, data.len()),
            _ => None,
        };
        let Some(ask) = ask else { return self.bus.mmio_read(steps, gpa, data) };
        let value = self.ask(self.at(steps), ask).to_le_bytes();
        data.copy_from_slice(&value[..data.len()]);
        self.bus.clock.note_exit();
    }

    fn mmio_write(&mut self, steps: u64, gpa: u64, data: &[u8]) {
        let at = self.at(steps);
        self.bus.mmio_write(steps, gpa, data);
        self.hand_on(at);
    }

    fn signals(&mut self) -> BusSignals {
        let signals = self.bus.signals();
        BusSignals { stop: signals.stop || self.answered || self.failed.is_some(), ..signals }
    }

    fn processor_signals(&mut self, processor: usize) -> ProcessorSignals {
        self.bus.processor_signals(processor)
    }

    fn take_seat(&mut self, processor: usize) {
        self.bus.take_seat(processor);
    }

    fn take_start(&mut self) -> Option<u8> {
        self.bus.take_start()
    }

    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        self.bus.acknowledge_interrupt()
    }

    fn take_nmi(&mut self) -> bool {
        self.bus.take_nmi()
    }

    fn read_msr(&mut self, steps: u64, index: u32) -> Option<u64> {
        self.bus.read_msr(steps, index)
    }

    fn write_msr(&mut self, steps: u64, index: u32, value: u64) -> Option<()> {
        self.bus.write_msr(steps, index, value)
    }

    fn apic_enabled(&mut self) -> bool {
        self.bus.apic_enabled()
    }

    fn cr8(&mut self) -> u64 {
        self.bus.cr8()
    }

    fn set_cr8(&mut self, steps: u64, value: u64) {
        self.bus.set_cr8(steps, value);
    }

    fn halt(&mut self, steps: u64, following: Option<u8>) -> Option<u64> {
        self.bus.halt(steps, following)
    }

    fn tsc(&mut self, steps: u64) -> u64 {
        self.bus.tsc(steps)
    }
}

//! The CPU's interface to the rest of the machine. The machine implements [`Bus`], and the CPU calls the machine at
//! exact points of the instruction stream. Calls whose result may depend on time pass the CPU's step count at that
//! point.

/// Requests of the board to the CPU. After an instruction that accessed the bus, the CPU samples these requests
/// before the next instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusSignals {
    /// Whether the INTR line is raised, because an interrupt controller has a vector to deliver.
    pub interrupt: bool,
    /// Whether a non-maskable interrupt waits ([`Bus::take_nmi`] consumes the interrupt).
    pub nmi: bool,
    /// Whether the machine wants control back before the next instruction (a deadline moved, power-off, ...).
    pub stop: bool,
}

/// Whether a processor waits for a start-up message (SIPI). After INIT, a processor waits for this message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Startup {
    /// The processor has started, and waits for no message.
    #[default]
    Done,
    /// The processor waits for a start-up message.
    Awaited,
    /// A start-up message for the processor has arrived. [`Bus::take_start`] consumes the message.
    Due,
}

/// The board's requests to a processor, which need not have the *seat*. A processor has the seat while its turn
/// lasts (`exec/seats.rs`). The requests decide whether the processor can run in a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessorSignals {
    /// Whether the processor's INTR line is raised (see [`BusSignals::interrupt`]).
    pub interrupt: bool,
    /// Whether a non-maskable interrupt waits for the processor (see [`BusSignals::nmi`]).
    pub nmi: bool,
    /// Whether the processor waits for a start-up message.
    pub startup: Startup,
}

/// The rest of the machine, as the CPU sees it. `steps` is the CPU's step count at the access
/// (see `Cpu::steps`).
pub trait Bus {
    /// Reads an I/O port; `size_bytes` is 1, 2 or 4.
    fn port_read(&mut self, steps: u64, port: u16, size_bytes: u8) -> u32;
    /// Writes an I/O port.
    fn port_write(&mut self, steps: u64, port: u16, size_bytes: u8, value: u32);
    /// Reads guest-physical memory that is not RAM. The access never crosses a page.
    fn mmio_read(&mut self, steps: u64, gpa: u64, data: &mut [u8]);
    /// Writes guest-physical memory that is not RAM. The access never crosses a page.
    fn mmio_write(&mut self, steps: u64, gpa: u64, data: &[u8]);
    /// The board's present requests to the processor in the seat.
    fn signals(&mut self) -> BusSignals;
    /// The board's requests to the processor with this number, which need not have the seat.
    fn processor_signals(&mut self, _processor: usize) -> ProcessorSignals {
        ProcessorSignals::default()
    }
    /// Tells the board that the processor with this number has got the seat. Until the next call of `take_seat`,
    /// calls of other functions come from this processor.
    fn take_seat(&mut self, _processor: usize) {}
    /// Consumes the start-up message that waits for the processor in the seat. Returns the number of the page where the
    /// processor starts; `None` if no message waits.
    fn take_start(&mut self) -> Option<u8> {
        None
    }
    /// Makes the interrupt acknowledge cycle and returns the vector; `None` if the request was withdrawn.
    fn acknowledge_interrupt(&mut self) -> Option<u8>;
    /// Consumes a waiting NMI. Returns whether an NMI waited.
    fn take_nmi(&mut self) -> bool;
    /// Reads an MSR that belongs to the board (APIC base, x2APIC); `None` raises #GP.
    fn read_msr(&mut self, steps: u64, index: u32) -> Option<u64>;
    /// Writes an MSR that belongs to the board; `None` raises #GP. A TSC deadline comes as raw ticks
    /// (without the guest's TSC offset).
    fn write_msr(&mut self, steps: u64, index: u32, value: u64) -> Option<()>;
    /// IA32_APIC_BASE.EN, for CPUID. The call is not an access and changes nothing.
    fn apic_enabled(&mut self) -> bool {
        true
    }
    /// CR8, the task priority class.
    fn cr8(&mut self) -> u64;
    /// Sets CR8.
    fn set_cr8(&mut self, steps: u64, value: u64);
    /// Tells the board that the CPU executed HLT at privilege level 0. `following` is the code byte after HLT, or
    /// `None` outside 64-bit mode. If the board returns a value, HLT and this byte replace an RDTSC in the kernel.
    /// The CPU then does not halt: it gives the guest the returned raw time-stamp counter and continues after both
    /// bytes.
    fn halt(&mut self, _steps: u64, _following: Option<u8>) -> Option<u64> {
        None
    }
    /// The raw time-stamp counter at a step count.
    fn tsc(&mut self, steps: u64) -> u64;
}

/// A board for programs that need no devices. Reads of ports and device memory return all bits set, no interrupt
/// arrives, and MSRs of the board raise #GP. `written` lists the port writes.
#[derive(Clone, Debug, Default)]
pub struct EmptyBus {
    /// Port and value of each write, in the order of the writes.
    pub written: Vec<(u16, u32)>,
}

impl Bus for EmptyBus {
    fn port_read(&mut self, _: u64, _: u16, _: u8) -> u32 {
        u32::MAX
    }
    fn port_write(&mut self, _: u64, port: u16, _: u8, value: u32) {
        self.written.push((port, value));
    }
    fn mmio_read(&mut self, _: u64, _: u64, data: &mut [u8]) {
        data.fill(0xff);
    }
    fn mmio_write(&mut self, _: u64, _: u64, _: &[u8]) {}
    fn signals(&mut self) -> BusSignals {
        BusSignals::default()
    }
    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        None
    }
    fn take_nmi(&mut self) -> bool {
        false
    }
    fn read_msr(&mut self, _: u64, _: u32) -> Option<u64> {
        None
    }
    fn write_msr(&mut self, _: u64, _: u32, _: u64) -> Option<()> {
        None
    }
    fn cr8(&mut self) -> u64 {
        0
    }
    fn set_cr8(&mut self, _: u64, _: u64) {}
    fn tsc(&mut self, steps: u64) -> u64 {
        steps
    }
}

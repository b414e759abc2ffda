//! What the CPU needs from the machine around it. The machine implements [`Bus`]; the CPU calls it at exact
//! points of the instruction stream and passes the step count of that point, so that time is an argument.

/// What the board asks of the CPU, sampled between instructions after every bus access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// The INTR line: an interrupt controller has a vector to deliver.
    pub interrupt: bool,
    /// A non-maskable interrupt is waiting ([`Bus::take_nmi`] consumes it).
    pub nmi: bool,
    /// The machine wants control back before the next instruction (a deadline moved, power-off, ...).
    pub stop: bool,
}

/// The rest of the machine, as the CPU sees it. `steps` is the CPU's step count at the access
/// (see [`crate::Cpu::steps`]).
pub trait Bus {
    /// Reads an I/O port; `size_bytes` is 1, 2 or 4.
    fn port_read(&mut self, steps: u64, port: u16, size_bytes: u8) -> u32;
    /// Writes an I/O port.
    fn port_write(&mut self, steps: u64, port: u16, size_bytes: u8, value: u32);
    /// Reads guest-physical memory that is not RAM. The access never crosses a page.
    fn mmio_read(&mut self, steps: u64, gpa: u64, data: &mut [u8]);
    /// Writes guest-physical memory that is not RAM. The access never crosses a page.
    fn mmio_write(&mut self, steps: u64, gpa: u64, data: &[u8]);
    /// What the board asks for now.
    fn signals(&mut self) -> Signals;
    /// The interrupt acknowledge cycle; `None` when the request went away.
    fn acknowledge_interrupt(&mut self) -> Option<u8>;
    /// Consumes a waiting NMI.
    fn take_nmi(&mut self) -> bool;
    /// Reads an MSR that belongs to the board (APIC base, x2APIC); `None` raises #GP.
    fn read_msr(&mut self, steps: u64, index: u32) -> Option<u64>;
    /// Writes an MSR that belongs to the board; `None` raises #GP. A TSC deadline comes as raw ticks
    /// (without the guest's TSC offset).
    fn write_msr(&mut self, steps: u64, index: u32, value: u64) -> Option<()>;
    /// CR8, the task priority class.
    fn cr8(&mut self) -> u64;
    /// Sets CR8.
    fn set_cr8(&mut self, steps: u64, value: u64);
    /// A HLT at privilege level 0 was executed; `following` is the byte of code behind it. A value means that it is
    /// no halt: the kernel's RDTSC was rewritten to it, it reads this from the (raw) time-stamp counter and goes on.
    fn halt(&mut self, _steps: u64, _following: Option<u8>) -> Option<u64> {
        None
    }
    /// The raw time-stamp counter at a step count.
    fn tsc(&mut self, steps: u64) -> u64;
}

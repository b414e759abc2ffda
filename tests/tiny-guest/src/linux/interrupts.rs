//! A guest that looks like Linux and programs the interrupt controllers. The kernel's own tables say which handlers an
//! interrupt has. All interrupts are disabled in the CPU, so no handler runs.

use super::*;

/// Physical addresses of a page directory, of the table of interrupts by vector, and of the kernel's structures.
const DIRECTORY: u64 = 0x14_b000;
const VECTORS: u64 = 0x14_c000;
const STRUCTURES: u64 = 0x14_d000;
/// The registers of the interrupt controllers.
const IO_APIC: u64 = 0xfec0_0000;
const LOCAL_APIC: u64 = 0xfee0_0000;
/// Offsets of fields: a description's data and first handler, and a handler's fields.
const DATA: u64 = 0x20;
const NUMBER: u64 = 4;
const ACTION: u64 = 0x80;
const HANDLER: u64 = 0;
const NEXT: u64 = 0x18;
const NAME: u64 = 0x68;
/// The vectors of a serial port, of two devices that share a line, of the timer, and a vector that the kernel has shut down.
const SERIAL: u8 = 0x34;
const LINE: u8 = 0x35;
const TIMER: u8 = 0x20;
const SHUT: u8 = 0x36;

pub(super) fn write_types(types: &mut Types) {
    let data = types.structure("irq_data", 0x40, &[("irq", 1, NUMBER as u32)]);
    types.structure("irq_desc", 0x100, &[("irq_data", data, DATA as u32), ("action", 1, ACTION as u32)]);
    let fields = [("handler", 1, HANDLER as u32), ("next", 1, NEXT as u32), ("name", 1, NAME as u32)];
    types.structure("irqaction", 0x80, &fields);
}

/// Records the guest. Returns the recording, and the addresses of functions and instructions.
pub fn record(directory: &Path, name: &str) -> (Recording<Instructions>, Places) {
    let (code, labels) = kernel_code().expect("the program is a constant that can be assembled");
    let places: Places = labels.iter().cloned().collect();
    let mut kernel = Kernel::of((code, labels), false, &[]);
    kernel.write_vector(u64::from(TIMER), "asm_sysvec_timer");
    kernel.put_u64(ROOT + 0x1000 + 3 * 8, DIRECTORY | 3);
    for (number, base) in [(0x1f6, IO_APIC), (0x1f7, LOCAL_APIC)] {
        kernel.put_u64(DIRECTORY + 8 * number, base | 0x83);
    }
    kernel.symbol("vector_irq", 'D', IMAGE + VECTORS);
    // Each interrupt has a description, and a handler for each name.
    let mut at = STRUCTURES;
    for (vector, irq, handlers) in [
        (SERIAL, 4, &[("ttyS0", "serial_handler")][..]),
        (LINE, 11, &[("disk", "reads"), ("net\n", "receives")]),
    ] {
        kernel.put_u64(VECTORS + 8 * u64::from(vector), IMAGE + at);
        kernel.put(at + DATA + NUMBER, &u32::to_le_bytes(irq));
        let mut link = at + ACTION;
        for (name, function) in handlers {
            at += 0x100;
            kernel.put_u64(link, IMAGE + at);
            kernel.put_u64(at + HANDLER, places[*function]);
            kernel.put_u64(at + NAME, IMAGE + at + 0x80);
            kernel.put(at + 0x80, name.as_bytes());
            link = at + NEXT;
        }
        at += 0x100;
    }
    kernel.put_u64(VECTORS + 8 * u64::from(SHUT), u64::MAX);
    kernel.write_symbols();
    let path = kernel.write(directory, &format!("{name}-kernel"));
    let (recording, _) = record_kernel(directory, name, path, DENSE, Script(Vec::new()), None);
    (recording, places)
}

fn kernel_code() -> Assembled {
    let mut code = Code::new()?;
    let a = code.at("startup_64")?;
    a.mov(rsp, IMAGE + STACK)?;
    a.mov(rax, IMAGE + INTERRUPT_REGISTER)?;
    a.lidt(qword_ptr(rax))?;
    a.mov(rcx, DIRECT_MAP + IO_APIC)?;
    // The low and the high half of the entries of pins. Pin 4 is edge triggered. Pin 11 is level triggered, active low and
    // masked. Pin 12 has a logical destination without processors. Pin 13 names an APIC that does not exist.
    let pins = [
        (4, u32::from(SERIAL), 0),
        (11, u32::from(LINE) | 0x1_a000, 0),
        (12, 0x38 | 0x800, 0x8000_0000),
        (13, 0x37, 7 << 24),
        (14, u32::from(SHUT), 0),
    ];
    for (pin, low, high) in pins {
        for (register, value) in [(0x11 + 2 * pin, high), (0x10 + 2 * pin, low)] {
            a.mov(dword_ptr(rcx), register)?;
            a.mov(dword_ptr(rcx + 0x10), value as i32)?;
        }
    }
    a.mov(rcx, DIRECT_MAP + LOCAL_APIC)?;
    for (register, value) in [
        // The task priority, the logical id, and the spurious vector with the enabling bit.
        (0x80, 0x10),
        (0xd0, 0x0200_0000),
        (0xf0, 0x1ff),
        // The timer is periodic and divides by 16. LINT0 is for the 8259 pair, and LINT1 for non-maskable interrupts.
        (0x3e0, 3),
        (0x320, i32::from(TIMER) | 0x2_0000),
        (0x380, 0x0010_0000),
        (0x350, 0x700),
        (0x360, 0x400),
        (0x370, 0xfe),
        // Interrupts to itself.
        (0x300, 0x4_0000 | i32::from(SERIAL)),
        (0x300, 0x4_0000 | i32::from(LINE)),
    ] {
        a.mov(dword_ptr(rcx + register), value)?;
    }
    code.at("programmed")?.nop()?;
    crate::end_the_run(&mut code.a)?;
    let others = ["entry_SYSCALL_64", "entry_SYSCALL_64_after_hwframe", "entry_SYSCALL_64_before_call"];
    let more = ["do_syscall_64", "do_syscall_64_body", "__switch_to", "asm_exc_int3", "asm_exc_page_fault"];
    let own = ["start_secondary", "asm_sysvec_timer", "serial_handler", "reads", "receives"];
    for name in others.into_iter().chain(more).chain(own) {
        code.at(name)?.hlt()?;
    }
    code.assemble(IMAGE + CODE)
}

//! A guest that imitates Linux. The guest has the tables and structures with which `guest-symbols` recognizes a
//! kernel, and makes system calls. The tests of the package `views` use this guest, because a real kernel takes
//! seconds to boot.
//!
//! The kernel has three processes: 0 (`swapper`), the kernel thread 2 (`worker`), and 5 (`alpha`) with the thread 6
//! (`beta`). The program of process 5 makes the system calls `write` and `read` in turn. In each call the kernel
//! raises a breakpoint exception and a page fault, switches to thread 6 and back, and prints a line. All code runs
//! in ring 0, but the saved state of a system call says that a program made the call.
//!
//! In a machine with several processors, the kernel starts processor 1, which runs the kernel thread 2 (`worker`)
//! and increments a counter. In each system call the kernel executes PAUSE, which lets processor 1 run. The other
//! processors never start.

pub mod callbacks;
pub mod interrupts;
pub mod objects;
pub mod programs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use iced_x86::code_asm::*;
use iced_x86::{BlockEncoderOptions, IcedError};
use machine::config::MachineOptions;
use machine::position::Instructions;
use recording::log::EndRecord;
use recording::pace::CheckpointOptions;
use recording::{Recordable, Recording};

use super::{DENSE, HEADER_BYTES, LOAD, POWER_ON, Script, image, record_kernel};

/// The address at which the kernel maps physical address 0.
pub const IMAGE: u64 = 0xffff_ffff_8100_0000;
/// The address of the direct map of physical memory.
pub const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
/// The kernel's release.
pub const RELEASE: &str = "6.1.0-tiny";
/// The address of the text that the program writes, in the program's own memory.
pub const TEXT: u64 = 0x15_0000;
/// The text that the program writes.
pub const WRITTEN: &[u8] = b"hello";
/// The address where the page fault happens.
pub const UNMAPPED: u64 = 0x7fff_0000;
/// The root of the page tables.
pub const ROOT: u64 = 0x11_0000;
/// The address of a word that each system call increments.
pub const CALLS: u64 = IMAGE + 0x15_1000;

/// The address of a word that processor 1 increments, in most of its instructions.
pub const COUNTED: u64 = IMAGE + 0x15_1008;

/// The local APIC's interrupt command register (SDM vol. 3, 11.6.1), and the messages INIT and start-up.
const COMMAND: i32 = 0xfee0_0300_u32 as i32;
const INIT: i32 = 0x4500;
const START_UP: i32 = 0x4600;
/// The address at which processor 1 starts, in real mode.
const START: u64 = 0x8000;
/// The number of instructions in the loop of processor 1 that increment the word at [`COUNTED`].
const COUNTING: usize = 15;

/// Physical addresses of the kernel's parts.
const SEGMENTS: u64 = 0x11_6000;
const SEGMENT_REGISTER: u64 = 0x11_6100;
const INTERRUPTS: u64 = 0x11_7000;
const INTERRUPT_REGISTER: u64 = 0x11_8000;
const CODE: u64 = 0x12_0000;
const FUNCTIONS: u64 = 0x12_8000;
const TYPES: u64 = 0x13_0000;
const UNWIND_ADDRESSES: u64 = 0x13_4000;
const UNWIND_ENTRIES: u64 = 0x13_5000;
const TABLES: u64 = 0x13_8000;
const TASKS: u64 = 0x14_0000;
const VARIABLES: u64 = 0x14_8000;
const NOTE: u64 = 0x14_9000;
const TRAMPOLINE: u64 = 0x14_a000;
const TRAMPOLINE_BYTES: u64 = 0x106;
const END: u64 = 0x15_2000;
/// The address of the kernel's stack.
const STACK: u64 = 0x18_0000;

/// The number of functions that only make the list of symbols longer.
const FILLERS: u64 = 100;
/// The processes and threads: the number of each thread, the number of its process, and its name.
const THREADS: [(u64, u64, &str); 4] = [(0, 0, "swapper"), (2, 2, "worker"), (5, 5, "alpha"), (6, 5, "beta")];

/// The address of a thread's structure.
pub fn task(id: u64) -> u64 {
    let base = if id == 0 { IMAGE } else { DIRECT_MAP };
    base + TASKS + id * 0x1000
}

/// A row of the unwind tables (`vmm/guest-symbols/src/orc.rs`).
type Row = [u16; 3];
/// Rows for code with the registers of an entry at the stack pointer, and for code at which a walk ends.
const REGISTERS: Row = [0, 0, 5 | 3 << 8];
const NOTHING: Row = [0, 0, 1 << 8];

/// The row for code with this number of bytes between the stack pointer and the end of the return address.
fn call(bytes: u16) -> Row {
    [bytes, 0, 5 | 2 << 8]
}

/// The kernel's memory from [`LOAD`] on, and its symbols.
pub struct Kernel {
    bytes: Vec<u8>,
    symbols: BTreeMap<String, (u64, char)>,
}

impl Kernel {
    /// Creates a kernel whose program makes `calls` system calls. `several` says whether the machine has several
    /// processors.
    pub fn new(calls: u32, several: bool) -> Kernel {
        let mut kernel = Kernel::of(
            code(calls, several).expect("the program is a constant that can be assembled"),
            several,
            &[],
        );
        kernel.write_symbols();
        kernel
    }

    /// A kernel with this code, without its list of symbols. The unwind tables also have the given rows.
    fn of((code, labels): (Vec<u8>, Vec<Label>), several: bool, rows: &[(&'static str, Row)]) -> Kernel {
        let bytes = vec![0; (END - u64::from(LOAD)) as usize];
        let mut kernel = Kernel { bytes, symbols: BTreeMap::new() };
        kernel.write_tables();
        kernel.write_code(&code, labels, several);
        kernel.write_types();
        kernel.write_tasks();
        kernel.write_variables();
        kernel.write_unwind_tables(rows);
        kernel
    }

    /// The address of a symbol.
    pub fn address_of(&self, name: &str) -> u64 {
        self.symbols[name].0
    }

    /// Writes the kernel to a file.
    fn write(&self, directory: &Path, name: &str) -> PathBuf {
        let path = directory.join(name);
        std::fs::write(&path, image(&self.bytes[HEADER_BYTES as usize..])).unwrap();
        path
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let from = (at - u64::from(LOAD)) as usize;
        self.bytes[from..from + bytes.len()].copy_from_slice(bytes);
    }

    fn put_u64(&mut self, at: u64, value: u64) {
        self.put(at, &value.to_le_bytes());
    }

    fn symbol(&mut self, name: &str, class: char, address: u64) {
        self.symbols.insert(name.to_string(), (address, class));
    }

    /// Writes page tables, segment descriptors and interrupt vectors.
    fn write_tables(&mut self) {
        let table = |number: u64| ROOT + number * 0x1000;
        for (entry, value) in [
            (table(0), table(1) | 3),
            (table(0) + 273 * 8, table(1) | 3),
            (table(0) + 511 * 8, table(2) | 3),
            (table(1), table(3) | 3),
            (table(2) + 510 * 8, table(4) | 3),
            (table(3), 0x83),
            (table(3) + 8, 0x20_0083),
            (table(4) + 8 * 8, 0x83),
            (table(4) + 9 * 8, 0x20_0083),
            (SEGMENTS + 8, 0x00af_9a00_0000_ffff),
            (SEGMENTS + 16, 0x00cf_9200_0000_ffff),
        ] {
            self.put_u64(entry, value);
        }
        self.put(SEGMENT_REGISTER, &23_u16.to_le_bytes());
        self.put(SEGMENT_REGISTER + 2, &(SEGMENTS as u32).to_le_bytes());
        self.put(INTERRUPT_REGISTER, &0xfff_u16.to_le_bytes());
        self.put_u64(INTERRUPT_REGISTER + 2, IMAGE + INTERRUPTS);
    }

    fn write_code(&mut self, code: &[u8], labels: Vec<Label>, several: bool) {
        let begin = begin(several).expect("the program is a constant that can be assembled");
        self.put(u64::from(LOAD + HEADER_BYTES), &begin);
        self.put(CODE, code);
        let others = labels.iter().find(|(name, _)| name == "start_secondary").expect("it has a label").1;
        let trampoline = trampoline(others).expect("the program is a constant that can be assembled");
        self.put(TRAMPOLINE, &trampoline);
        labels.into_iter().for_each(|(name, address)| self.symbol(&name, 'T', address));
        for (vector, name) in [(3, "asm_exc_int3"), (14, "asm_exc_page_fault")] {
            self.write_vector(vector, name);
        }
        for number in 0..FILLERS {
            self.symbol(&format!("filler_{number}"), 't', IMAGE + FUNCTIONS + number * 16);
        }
        let sleeping = IMAGE + FUNCTIONS + 0x1000;
        self.symbol("__sched_text_start", 'T', sleeping);
        self.symbol("schedule", 'T', sleeping + 0x10);
        self.symbol("__sched_text_end", 'T', sleeping + 0x100);
        self.symbol("pipe_read", 't', sleeping + 0x200);
        self.symbol("_stext", 'T', IMAGE + CODE);
        self.symbol("_text", 'T', IMAGE + CODE);
        self.symbol("_etext", 'T', sleeping + 0x400);
        self.symbol("_end", 'B', IMAGE + END);
    }

    /// Writes the entry of the interrupt table for a vector.
    fn write_vector(&mut self, vector: u64, name: &str) {
        let handler = self.address_of(name);
        let low = handler & 0xffff | 8 << 16 | 0x8e00 << 32 | (handler >> 16 & 0xffff) << 48;
        self.put_u64(INTERRUPTS + vector * 16, low);
        self.put_u64(INTERRUPTS + vector * 16 + 8, handler >> 32);
    }

    /// Writes the kernel's type information.
    fn write_types(&mut self) {
        let mut types = Types::default();
        types.record("int", 1 << 24, 4, &[0]);
        let thread = types.structure("thread_struct", 0x20, &[("sp", 1, 0x18)]);
        let fields = [
            ("__state", 1, 0),
            ("flags", 1, 0x10),
            ("exit_state", 1, 0x18),
            ("tasks", 1, 0x20),
            ("mm", 1, 0x30),
            ("pid", 1, 0x38),
            ("tgid", 1, 0x3c),
            ("real_parent", 1, 0x40),
            ("thread_node", 1, 0x48),
            ("comm", 1, 0x58),
            ("signal", 1, 0x68),
            ("thread", thread, 0x70),
        ];
        types.structure("task_struct", 0x100, &fields);
        types.structure("signal_struct", 0x20, &[("thread_head", 1, 0x10)]);
        types.structure("mm_struct", 0x20, &[("pgd", 1, 0x18)]);
        let registers = ["r15", "r14", "r13", "r12", "bp", "bx", "ret_addr"];
        let fields: Vec<_> = (0..).step_by(8).zip(registers).map(|(at, name)| (name, 1, at)).collect();
        types.structure("inactive_task_frame", 56, &fields);
        types.structure("orc_entry", 6, &[("sp_offset", 1, 0), ("bp_offset", 1, 2), ("signal", 1, 4)]);
        callbacks::write_types(&mut types);
        objects::write_types(&mut types);
        interrupts::write_types(&mut types);
        let bytes = types.bytes();
        self.put(TYPES, &bytes);
        self.symbol("__start_BTF", 'R', IMAGE + TYPES);
        self.symbol("__stop_BTF", 'R', IMAGE + TYPES + bytes.len() as u64);
    }

    fn write_tasks(&mut self) {
        let physical = |address: u64| address & 0xff_ffff;
        for (id, process, name) in THREADS {
            let at = physical(task(id));
            let (is_worker, is_beta) = (id == 2, id == 6);
            self.put(at, &u32::from(is_worker || is_beta).to_le_bytes());
            self.put(at + 0x10, &(u32::from(is_worker) << 21).to_le_bytes());
            let memory = if process == 5 { DIRECT_MAP + at + 0x900 } else { 0 };
            self.put_u64(at + 0x30, memory);
            self.put_u64(at + 0x918, DIRECT_MAP + ROOT);
            self.put(at + 0x38, &(id as u32).to_le_bytes());
            self.put(at + 0x3c, &(process as u32).to_le_bytes());
            self.put_u64(at + 0x40, task(0));
            self.put(at + 0x58, name.as_bytes());
            self.put_u64(at + 0x68, DIRECT_MAP + physical(task(process)) + 0x800);
        }
        for (from, to) in [(0, 2), (2, 5), (5, 0)] {
            self.put_u64(physical(task(from)) + 0x20, task(to) + 0x20);
            // The process itself is also in the list of its threads.
            let head = DIRECT_MAP + physical(task(from)) + 0x810;
            self.put_u64(physical(head), task(from) + 0x48);
            self.put_u64(physical(task(from)) + 0x48, head);
        }
        self.put_u64(physical(task(5)) + 0x48, task(6) + 0x48);
        self.put_u64(physical(task(6)) + 0x48, DIRECT_MAP + physical(task(5)) + 0x810);
        // Threads 2 and 6 sleep: `pipe_read` has called `schedule`, which has switched to another thread.
        let schedule = self.address_of("schedule") + 5;
        for id in [2, 6] {
            let stack = physical(task(id)) + 0xa00;
            self.put_u64(physical(task(id)) + 0x88, DIRECT_MAP + stack);
            self.put_u64(stack + 48, schedule);
            self.put_u64(stack + 56, self.address_of("pipe_read") + 0x20);
        }
        self.symbol("init_task", 'D', task(0));
        self.symbol("__per_cpu_offset", 'R', IMAGE + VARIABLES + 0x700);
        self.symbol("current_task", 'D', IMAGE + VARIABLES + 8);
        for (processor, thread) in [(0, 5), (1, 2)] {
            let offset = processor * 0x10;
            self.put_u64(VARIABLES + 0x700 + 8 * processor, offset);
            self.put_u64(VARIABLES + offset + 8, task(thread));
        }
    }

    fn write_variables(&mut self) {
        let banner = format!("Linux version {RELEASE} (tests) #1\n");
        self.put(VARIABLES + 0x100, banner.as_bytes());
        self.symbol("linux_banner", 'D', IMAGE + VARIABLES + 0x100);
        self.put(VARIABLES + 0x200 + 0x210, &[0xb0; 28]);
        self.symbol("boot_params", 'D', IMAGE + VARIABLES + 0x200);
        self.put_u64(VARIABLES + 0x600, DIRECT_MAP);
        self.symbol("page_offset_base", 'D', IMAGE + VARIABLES + 0x600);
        let text = format!("OSRELEASE={RELEASE}\nPAGESIZE=4096\n");
        let sizes = [11, text.len() as u32, 0];
        self.put(NOTE, &sizes.map(u32::to_le_bytes).concat());
        self.put(NOTE + 12, b"VMCOREINFO\0\0");
        self.put(NOTE + 24, text.as_bytes());
        self.put(TEXT, WRITTEN);
        self.symbol("calls", 'B', CALLS);
        self.symbol("counted", 'B', COUNTED);
    }

    /// Writes unwind tables with a row for each function. The row has the number of bytes between the stack pointer
    /// and the return address.
    fn write_unwind_tables(&mut self, more: &[(&'static str, Row)]) {
        let own = [
            ("startup_64", NOTHING),
            ("entry_SYSCALL_64", NOTHING),
            ("entry_SYSCALL_64_before_call", REGISTERS),
            ("do_syscall_64", call(8)),
            ("do_syscall_64_body", call(16)),
            ("__switch_to", call(8)),
            ("asm_exc_int3", NOTHING),
            ("start_secondary", NOTHING),
            ("schedule", call(8)),
            ("__sched_text_end", call(8)),
            ("_etext", NOTHING),
        ];
        let all = own.iter().chain(more);
        let mut rows: Vec<(u64, Row)> = all.map(|(name, row)| (self.address_of(name), *row)).collect();
        rows.sort();
        for (number, (address, row)) in (0..).zip(&rows) {
            let place = UNWIND_ADDRESSES + 4 * number;
            self.put(place, &(address.wrapping_sub(IMAGE + place) as i32).to_le_bytes());
            self.put(UNWIND_ENTRIES + 6 * number, &row.map(u16::to_le_bytes).concat());
        }
        self.symbol("__start_orc_unwind_ip", 'R', IMAGE + UNWIND_ADDRESSES);
        self.symbol("__stop_orc_unwind_ip", 'R', IMAGE + UNWIND_ADDRESSES + 4 * rows.len() as u64);
        self.symbol("__start_orc_unwind", 'R', IMAGE + UNWIND_ENTRIES);
    }

    /// Writes the tables of symbols, in the form of Linux 6.15.
    fn write_symbols(&mut self) {
        // Leave out labels that only the tables in this file need.
        self.symbols.retain(|name, _| {
            !name.ends_with("_before_call") && !name.ends_with("_body") && !name.contains('.')
        });
        let mut symbols: Vec<(u64, &String, char)> =
            self.symbols.iter().map(|(name, &(address, class))| (address, name, class)).collect();
        symbols.sort();
        let aligned = |bytes: &mut Vec<u8>, more: &[u8]| {
            bytes.extend(more);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        };
        let (mut names, mut markers, mut tokens, mut index) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (number, (_, name, class)) in symbols.iter().enumerate() {
            if number % 256 == 0 {
                markers.extend((names.len() as u32).to_le_bytes());
            }
            names.push(name.len() as u8 + 1);
            names.extend(class.to_string().bytes().chain(name.bytes()));
        }
        for byte in 0..=255_u8 {
            index.extend((tokens.len() as u16).to_le_bytes());
            tokens.extend(Some(byte).filter(|byte| (0x21..0x7f).contains(byte)).into_iter().chain([0]));
        }
        let base = symbols[0].0;
        let offsets = symbols.iter().flat_map(|(address, ..)| ((address - base) as i32).to_le_bytes());
        let mut bytes = Vec::new();
        aligned(&mut bytes, &(symbols.len() as u32).to_le_bytes());
        aligned(&mut bytes, &names);
        aligned(&mut bytes, &markers);
        aligned(&mut bytes, &tokens);
        aligned(&mut bytes, &index);
        aligned(&mut bytes, &offsets.collect::<Vec<_>>());
        bytes.extend(base.to_le_bytes());
        self.put(TABLES, &bytes);
    }
}

/// The kernel's type information, record by record.
#[derive(Default)]
struct Types {
    records: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
}

impl Types {
    fn string(&mut self, text: &str) -> u32 {
        self.strings.extend(text.bytes().chain([0]));
        // The first string is empty.
        (self.strings.len() - text.len()) as u32
    }

    fn record(&mut self, name: &str, info: u32, size: u32, rest: &[u32]) -> u32 {
        let words = [self.string(name), info, size].into_iter().chain(rest.iter().copied());
        self.records.extend(words.flat_map(u32::to_le_bytes));
        self.count += 1;
        self.count
    }

    /// Adds a structure with fields (name, type, offset in bytes), and returns the structure's number.
    fn structure(&mut self, name: &str, size: u32, fields: &[(&str, u32, u32)]) -> u32 {
        let rest: Vec<u32> =
            fields.iter().flat_map(|&(name, kind, offset)| [self.string(name), kind, offset * 8]).collect();
        self.record(name, 4 << 24 | fields.len() as u32, size, &rest)
    }

    /// Adds a signed number of this size, and returns its number.
    fn integer(&mut self, name: &str, bytes: u32) -> u32 {
        self.record(name, 1 << 24, bytes, &[1 << 24 | 8 * bytes])
    }

    fn enumeration(&mut self, name: &str, values: &[(&str, u32)]) {
        let rest: Vec<u32> = values.iter().flat_map(|&(name, value)| [self.string(name), value]).collect();
        self.record(name, 6 << 24 | values.len() as u32, 4, &rest);
    }

    /// Adds a record without a name, and returns its number.
    fn unnamed(&mut self, info: u32, size: u32, rest: &[u32]) -> u32 {
        let words = [0, info, size].into_iter().chain(rest.iter().copied());
        self.records.extend(words.flat_map(u32::to_le_bytes));
        self.count += 1;
        self.count
    }

    /// Adds the type of a pointer to a type, and returns its number. The type 0 is `void`.
    fn pointer(&mut self, to: u32) -> u32 {
        self.unnamed(2 << 24, to, &[])
    }

    /// Adds a function with parameters (name, type). A parameter without name and type stands for more arguments.
    fn function(&mut self, name: &str, result: u32, parameters: &[(&str, u32)]) {
        let name_of = |types: &mut Types, name: &str| if name.is_empty() { 0 } else { types.string(name) };
        let rest: Vec<u32> =
            parameters.iter().flat_map(|&(name, kind)| [name_of(self, name), kind]).collect();
        let prototype = self.unnamed(13 << 24 | parameters.len() as u32, result, &rest);
        self.record(name, 12 << 24, prototype, &[]);
    }

    fn bytes(&self) -> Vec<u8> {
        let (types, strings) = (self.records.len() as u32, self.strings.len() as u32 + 1);
        let header = [24, 0, types, types, strings].map(u32::to_le_bytes).concat();
        [&[0x9f, 0xeb, 1, 0], &header[..], &self.records, &[0], &self.strings].concat()
    }
}

/// Returns code that starts processor 1 if there are several processors, switches to long mode and jumps to the
/// kernel.
fn begin(several: bool) -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(32)?;
    if several {
        a.mov(esi, TRAMPOLINE as i32)?;
        a.mov(edi, START as i32)?;
        a.mov(ecx, TRAMPOLINE_BYTES as i32)?;
        a.rep().movsb()?;
        a.mov(dword_ptr(COMMAND + 0x10), 1 << 24)?;
        a.mov(dword_ptr(COMMAND), INIT)?;
        a.mov(dword_ptr(COMMAND), START_UP | (START >> 12) as i32)?;
    }
    enter_long_mode(&mut a)?;
    a.lgdt(dword_ptr(SEGMENT_REGISTER as i32))?;
    let mut code = a.assemble((LOAD + HEADER_BYTES).into())?;
    let address = LOAD + HEADER_BYTES + code.len() as u32 + 7;
    // Write a JMP to the first code segment.
    code.push(0xea);
    code.extend(address.to_le_bytes());
    code.extend([8, 0]);
    let mut a = CodeAssembler::new(64)?;
    a.mov(rax, IMAGE + CODE)?;
    a.jmp(rax)?;
    code.extend(a.assemble(address.into())?);
    Ok(code)
}

/// Writes code that sets up PAE, the page tables, EFER.LME and SYSCALL, and finally switches on paging and
/// protected mode.
fn enter_long_mode(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(eax, cr4)?;
    a.or(eax, 0x20)?;
    a.mov(cr4, eax)?;
    a.mov(eax, ROOT as i32)?;
    a.mov(cr3, eax)?;
    a.mov(ecx, 0xc000_0080_u32)?;
    a.rdmsr()?;
    a.or(eax, 0x101)?;
    a.wrmsr()?;
    a.mov(eax, cr0)?;
    a.or(eax, i32::MIN | 1)?;
    a.mov(cr0, eax)
}

/// The code of the processor 1 from real mode to the kernel's function at `others`, and a segment register.
fn trampoline(others: u64) -> Result<Vec<u8>, IcedError> {
    const REGISTER: usize = 0x100;
    let mut a = CodeAssembler::new(16)?;
    a.xor(ax, ax)?;
    a.mov(ds, ax)?;
    a.lgdt(dword_ptr(START as i32 + REGISTER as i32))?;
    enter_long_mode(&mut a)?;
    let mut code = a.assemble(0)?;
    let address = START as u32 + code.len() as u32 + 8;
    // Write a JMP with a 32-bit address to the first code segment.
    code.extend([0x66, 0xea]);
    code.extend(address.to_le_bytes());
    code.extend([8, 0]);
    let mut a = CodeAssembler::new(64)?;
    a.mov(rax, others)?;
    a.jmp(rax)?;
    code.extend(a.assemble(address.into())?);
    code.resize(REGISTER, 0);
    code.extend(23_u16.to_le_bytes());
    code.extend((SEGMENTS as u32).to_le_bytes());
    Ok(code)
}

/// A name, and its address.
type Label = (String, u64);

/// The addresses of instructions, by name.
pub type Places = BTreeMap<String, u64>;

/// Instructions with names.
struct Code {
    a: CodeAssembler,
    labels: BTreeMap<String, CodeLabel>,
}

type Assembled = Result<(Vec<u8>, Vec<Label>), IcedError>;
type Done = Result<(), IcedError>;

impl Code {
    fn new() -> Result<Code, IcedError> {
        Ok(Code { a: CodeAssembler::new(64)?, labels: BTreeMap::new() })
    }

    /// The label with a name, which may be set later.
    fn to(&mut self, name: &str) -> CodeLabel {
        let Code { a, labels } = self;
        *labels.entry(name.to_string()).or_insert_with(|| a.create_label())
    }

    /// Names the next instruction.
    fn at(&mut self, name: &str) -> Result<&mut CodeAssembler, IcedError> {
        let mut label = self.to(name);
        self.a.set_label(&mut label)?;
        self.labels.insert(name.to_string(), label);
        Ok(&mut self.a)
    }

    fn call(&mut self, name: &str) -> Done {
        let label = self.to(name);
        self.a.call(label)
    }

    /// A program's system call, whose instruction gets a name.
    fn system_call(&mut self, name: &str, number: u32) -> Done {
        self.a.mov(eax, number)?;
        self.at(name)?.syscall()
    }

    fn assemble(mut self, address: u64) -> Assembled {
        let assembled =
            self.a.assemble_options(address, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
        let labels = self.labels.into_iter().map(|(name, label)| Ok((name, assembled.label_ip(&label)?)));
        let labels = labels.collect::<Result<Vec<_>, IcedError>>()?;
        Ok((assembled.inner.code_buffer.clone(), labels))
    }
}

/// The start of Linux' frame at a system call: stack segment and pointer, flags, code segment, and the next instruction.
fn push_frame(a: &mut CodeAssembler) -> Done {
    a.mov(r10, rsp)?;
    a.push(0x2b)?;
    a.push(r10)?;
    a.push(r11)?;
    a.push(0x33)?;
    a.push(rcx)
}

/// The registers below the place of a system call's number, in the order of Linux.
fn push_registers(a: &mut CodeAssembler) -> Done {
    for register in [rdi, rsi, rdx, rcx, rax, r8, r9, r10, r11, rbx, rbp, r12, r13, r14, r15] {
        a.push(register)?;
    }
    Ok(())
}

fn pop_registers(a: &mut CodeAssembler) -> Done {
    for register in [r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi] {
        a.pop(register)?;
    }
    Ok(())
}

fn code(calls: u32, several: bool) -> Result<(Vec<u8>, Vec<Label>), IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let names = [
        "startup_64",
        "entry_SYSCALL_64",
        "entry_SYSCALL_64_after_hwframe",
        "entry_SYSCALL_64_before_call",
        "decoy",
        "do_syscall_64",
        "do_syscall_64_body",
        "__switch_to",
        "asm_exc_int3",
        "asm_exc_page_fault",
        "native_irq_return_iret",
        "start_secondary",
    ];
    let mut labels: Vec<CodeLabel> = names.iter().map(|_| a.create_label()).collect();
    let [startup, entry, hwframe, before_call, decoy, do_call, body, switch, int3, page_fault, iret, others] =
        &mut labels[..]
    else {
        unreachable!("there is a label for each name")
    };
    let (mut top, mut is_read, mut done) = (a.create_label(), a.create_label(), a.create_label());
    a.set_label(startup)?;
    a.mov(rsp, IMAGE + STACK)?;
    a.mov(rax, IMAGE + INTERRUPT_REGISTER)?;
    a.lidt(qword_ptr(rax))?;
    // Write the MSRs STAR, LSTAR and SFMASK.
    a.lea(rbx, qword_ptr(*entry))?;
    for (register, is_entry) in [(0xc000_0081_u32, false), (0xc000_0082, true), (0xc000_0084, false)] {
        a.mov(ecx, register)?;
        a.xor(eax, eax)?;
        a.mov(edx, if register == 0xc000_0081 { 8_u32 } else { 0 })?;
        if is_entry {
            a.mov(rax, rbx)?;
            a.mov(rdx, rbx)?;
            a.shr(rdx, 32)?;
        }
        a.wrmsr()?;
    }
    a.mov(ebp, calls)?;
    // The program.
    a.set_label(&mut top)?;
    a.mov(eax, ebp)?;
    a.and(eax, 1)?;
    a.mov(edi, 1)?;
    a.mov(esi, TEXT as u32)?;
    a.mov(edx, WRITTEN.len() as u32)?;
    a.syscall()?;
    a.dec(ebp)?;
    a.jne(top)?;
    crate::end_the_run(&mut a)?;

    a.set_label(entry)?;
    push_frame(&mut a)?;
    a.set_label(hwframe)?;
    for register in [rax, rdi, rsi, rdx, rcx, rax, r8, r9, r10, r11, rbx, rbp, r12, r13, r14, r15] {
        a.push(register)?;
    }
    // Call another function first. The code that looks for the call of the system call handler must not take this
    // call.
    a.call(*decoy)?;
    a.set_label(before_call)?;
    a.mov(rdi, rsp)?;
    a.call(*do_call)?;
    for register in [r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi] {
        a.pop(register)?;
    }
    // Remove the system call's number, RIP, CS and RFLAGS from the stack.
    a.add(rsp, 32)?;
    a.pop(rsp)?;
    a.jmp(rcx)?;

    a.set_label(do_call)?;
    a.push(rbx)?;
    a.set_label(body)?;
    a.mov(rbx, rdi)?;
    if several {
        a.pause()?;
    }
    a.int3()?;
    a.mov(edx, UNMAPPED as u32)?;
    a.mov(rax, qword_ptr(rdx))?;
    for (previous, next) in [(5, 6), (6, 5)] {
        a.mov(rdi, task(previous))?;
        a.mov(rsi, task(next))?;
        a.call(*switch)?;
    }
    a.mov(rcx, CALLS)?;
    a.inc(qword_ptr(rcx))?;
    a.mov(edx, 0x3f8)?;
    for byte in *b"call\r\n" {
        a.mov(al, i32::from(byte))?;
        a.out(dx, al)?;
    }
    // `read` finds no file, and `write` returns the number of bytes.
    a.mov(rax, qword_ptr(rbx + 96))?;
    a.cmp(qword_ptr(rbx + 120), 0)?;
    a.je(is_read)?;
    a.jmp(done)?;
    a.set_label(&mut is_read)?;
    a.mov(rax, -2_i64 as u64)?;
    a.set_label(&mut done)?;
    a.mov(qword_ptr(rbx + 80), rax)?;
    a.pop(rbx)?;
    a.ret()?;

    a.set_label(decoy)?;
    a.ret()?;

    a.set_label(switch)?;
    a.mov(rax, IMAGE + VARIABLES + 8)?;
    a.mov(qword_ptr(rax), rsi)?;
    a.ret()?;

    a.set_label(int3)?;
    a.jmp(*iret)?;
    a.set_label(page_fault)?;
    // Skip the faulting instruction, and remove the error code from the stack.
    a.add(rsp, 8)?;
    a.add(qword_ptr(rsp), 3)?;
    a.set_label(iret)?;
    a.iretq()?;

    // The processor 1.
    a.set_label(others)?;
    a.mov(rsp, IMAGE + STACK - 0x8000)?;
    a.mov(rcx, COUNTED)?;
    let mut count = a.create_label();
    a.set_label(&mut count)?;
    for _ in 0..COUNTING {
        a.inc(qword_ptr(rcx))?;
    }
    a.jmp(count)?;

    let assembled = a.assemble_options(IMAGE + CODE, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
    let addresses = labels.iter().map(|label| assembled.label_ip(label)).collect::<Result<Vec<_>, _>>()?;
    let bytes = assembled.inner.code_buffer.clone();
    Ok((bytes, names.map(String::from).into_iter().zip(addresses).collect()))
}

/// Records the guest in a machine with several processors.
pub fn record_several(
    directory: &Path,
    name: &str,
    calls: u32,
    processors: u8,
) -> (Recording<Instructions>, Kernel) {
    let kernel = Kernel::new(calls, true);
    let path = kernel.write(directory, &format!("linux-several-{calls}"));
    let processors = super::several::processors(processors);
    let options = MachineOptions { processors, ..super::options(path) };
    let recording = directory.join(name);
    let mut guest = Recordable::new(&options, POWER_ON).unwrap();
    guest.record_in(&recording).unwrap().checks(DENSE).run(Script(Vec::new())).unwrap();
    (super::open(&recording), kernel)
}

/// Records the guest, with checkpoints or without.
pub fn record(
    directory: &Path,
    name: &str,
    calls: u32,
    checkpoints: Option<CheckpointOptions>,
) -> (Recording<Instructions>, EndRecord<Instructions>, Kernel) {
    let kernel = Kernel::new(calls, false);
    let path = kernel.write(directory, &format!("linux-{calls}"));
    let (recording, end) = record_kernel(directory, name, path, DENSE, Script(Vec::new()), checkpoints);
    (recording, end, kernel)
}

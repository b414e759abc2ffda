//! Invents source lines for functions of the guest's kernel, to test gdb's steps by source lines. A line is a
//! sequence of a function's instructions. The debug information also describes the stack frame at each instruction.
//! The module writes an assembler text, and the host's tools make an object file for gdb from this text. The file
//! contains no code of the guest.
//!
//! A line begins at every target of a jump, so control always enters a line at its beginning. A line ends with each
//! call.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::calls::Calls;
use super::trace::Trace;

/// Largest number of instructions for one line.
const LINE_LENGTH: usize = 4;

/// The addresses and step counts at which lines begin.
pub struct Lines {
    /// Maps the first instruction of a function to the beginnings of its lines, in ascending order.
    functions: BTreeMap<u64, Vec<u64>>,
    /// For each activation, the step counts at which lines begin.
    pub visits: BTreeMap<usize, Vec<usize>>,
}

impl Lines {
    /// Makes lines for two of every three functions that control always enters by a call and leaves by a return.
    pub fn new(trace: &Trace, calls: &Calls) -> Lines {
        let regular =
            calls.functions.iter().filter(|(_, function)| function.regular && function.depths.len() > 3);
        let mut lines = Lines { functions: BTreeMap::new(), visits: BTreeMap::new() };
        for (number, (&start, function)) in regular.enumerate() {
            if number % 3 == 2 {
                // Some functions must have no lines, because the tests also check that gdb steps over functions
                // without lines.
                continue;
            }
            let mut starts = Vec::new();
            let mut length = usize::MAX;
            for &address in function.depths.keys() {
                if length >= LINE_LENGTH || function.leaders.contains(&address) {
                    starts.push(address);
                    length = 0;
                }
                length += 1;
                if is_call(&trace.code[&address]) {
                    length = LINE_LENGTH;
                }
            }
            lines.functions.insert(start, starts);
        }
        for window in &trace.windows {
            for step in window.start..=window.end() {
                if let Some(number) = calls.running_number(step)
                    && lines.begins_at(calls.activations[number].function, window.at(step).rip)
                {
                    lines.visits.entry(number).or_default().push(step);
                }
            }
        }
        lines
    }

    /// Whether a function has lines.
    pub fn has(&self, function: u64) -> bool {
        self.functions.contains_key(&function)
    }

    /// The number of functions with lines.
    pub fn functions(&self) -> usize {
        self.functions.len()
    }

    /// Whether one of a function's lines begins at an address.
    pub fn begins_at(&self, function: u64, address: u64) -> bool {
        self.functions.get(&function).is_some_and(|starts| starts.binary_search(&address).is_ok())
    }

    /// The end of the function's line that begins at the address `line`: the next line's beginning or, for the last
    /// line, the function's end.
    pub fn end_of(&self, function: u64, line: u64, calls: &Calls) -> u64 {
        let starts = &self.functions[&function];
        let after = starts.partition_point(|&start| start <= line);
        starts.get(after).copied().unwrap_or(calls.functions[&function].end)
    }

    /// Writes an object file with the invented source lines below `directory`, with the host's assembler and
    /// linker.
    pub fn write(&self, calls: &Calls, directory: &Path) -> PathBuf {
        let (source, object, linked) =
            (directory.join("lines.s"), directory.join("lines.o"), directory.join("lines.elf"));
        std::fs::write(&source, self.assembly(calls)).expect("the folder is ours");
        host_tool(Command::new("as").arg("--64").arg("-o").arg(&object).arg(&source));
        let mut link = Command::new("ld");
        link.args(["--entry=0", "-o"]).arg(&linked);
        for &start in self.functions.keys() {
            link.arg(format!("--section-start=.at.{start:x}={start:#x}"));
        }
        host_tool(link.arg(&object));
        linked
    }

    fn assembly(&self, calls: &Calls) -> String {
        let mut text = ".file 1 \"listing.s\"\n.cfi_sections .debug_frame\n".to_string();
        for (start, starts) in &self.functions {
            let function = &calls.functions[start];
            let size = function.end - start;
            let _ = writeln!(text, ".section .at.{start:x},\"ax\",@progbits");
            let _ = writeln!(text, ".Lbegin{start:x}:\n.cfi_startproc");
            for (&address, depth) in &function.depths {
                let _ = writeln!(text, ".org {:#x}", address - start);
                if let Ok(line) = starts.binary_search(&address) {
                    // Lines of different functions may have equal numbers, because nothing compares these lines.
                    let _ = writeln!(text, ".loc 1 {}", (start & 0xfff) * 16 + line as u64 + 1);
                }
                // Write a NOP in place of each instruction, because the assembler makes lines only for
                // instructions.
                let _ = writeln!(text, ".cfi_def_cfa_offset {}\nnop", depth + 8);
            }
            let _ = writeln!(text, ".org {size:#x}\n.cfi_endproc\n.Lend{start:x}:");
        }
        self.debug_info(&mut text, calls);
        text
    }

    /// Writes one compilation unit for assembler source. In such a unit, gdb does not skip the prologues of
    /// functions.
    fn debug_info(&self, text: &mut String, calls: &Calls) {
        text.push_str(
            "
            .section .debug_abbrev,\"\",@progbits
            .uleb128 1, 0x11
            .byte 1
            .uleb128 0x03, 0x08, 0x13, 0x05, 0x10, 0x17, 0x11, 0x01, 0x55, 0x17, 0, 0
            .uleb128 2, 0x2e
            .byte 0
            .uleb128 0x03, 0x08, 0x11, 0x01, 0x12, 0x07, 0, 0
            .byte 0
            .section .debug_info,\"\",@progbits
            .long .Linfo_end - .Linfo
            .Linfo:
            .value 4
            .long .debug_abbrev
            .byte 8
            .uleb128 1
            .asciz \"listing.s\"
            .value 0x8001
            .long .debug_line
            .quad 0
            .long .debug_ranges
            ",
        );
        for start in self.functions.keys() {
            let name = &calls.functions[start].name;
            let _ = writeln!(
                text,
                ".uleb128 2\n.asciz \"{name}\"\n.quad .Lbegin{start:x}, .Lend{start:x} - .Lbegin{start:x}"
            );
        }
        text.push_str(".byte 0\n.Linfo_end:\n.section .debug_ranges,\"\",@progbits\n");
        for start in self.functions.keys() {
            let _ = writeln!(text, ".quad .Lbegin{start:x}, .Lend{start:x}");
        }
        text.push_str(".quad 0, 0\n.section .debug_line,\"\",@progbits\n");
    }
}

fn is_call(code: &[u8; 4]) -> bool {
    let code = if matches!(code[0], 0x40..=0x4f | 0x2e | 0x3e) { &code[1..] } else { &code[..] };
    code[0] == 0xe8 || (code[0] == 0xff && (code[1] >> 3) & 7 == 2)
}

fn host_tool(command: &mut Command) {
    let output = command.output().expect("binutils must be installed: run scripts/setup");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

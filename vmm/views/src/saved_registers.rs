//! The registers of a program that Linux has saved while it executes a system call for the program.
//!
//! At the end of a system call, Linux may deliver a signal. Then the saved registers already belong to the signal's handler.
//! The registers of the program are in the signal's frame on the program's stack.

use machine::Processor;
use machine::position::Instructions;

/// Offsets in `struct pt_regs`, which is at the kernel's stack pointer when a system call returns. The first line has the
/// arguments (`di`, `si`, `dx`, `r10`, `r8`, `r9`). After this come the result (`ax`), the call's number (`orig_ax`) and the
/// stack pointer (`sp`).
const ARGUMENTS: [u64; 6] = [112, 104, 96, 56, 72, 64];
const RESULT: u64 = 80;
pub(crate) const NUMBER: u64 = 120;
const STACK_POINTER: u64 = 152;
/// The offsets of `struct ucontext` and of `struct siginfo` in a signal's frame (`struct rt_sigframe`), and the offsets of
/// the same registers in `struct ucontext`.
const CONTEXT: u64 = 8;
const INFO: u64 = 312;
const ARGUMENTS_IN_CONTEXT: [u64; 6] = [104, 112, 136, 56, 40, 48];
const RESULT_IN_CONTEXT: u64 = 144;
const STACK_POINTER_IN_CONTEXT: u64 = 160;
/// The largest number of signals that are delivered at once.
const MOST_SIGNALS: usize = 64;

/// The registers of a program at the return of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SavedRegisters {
    pub arguments: [u64; 6],
    pub result: u64,
    stack_pointer: u64,
}

impl SavedRegisters {
    /// The registers at the kernel's stack pointer.
    pub fn at_return(processor: &Processor<'_, Instructions>) -> Option<SavedRegisters> {
        let rsp = processor.state().gpr[4];
        let read = |address: u64| {
            let mut bytes = [0; 8];
            (processor.peek(address, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
        };
        SavedRegisters::read(rsp, &read)
    }

    fn read(regs: u64, read: &dyn Fn(u64) -> Option<u64>) -> Option<SavedRegisters> {
        let word = |offset| read(regs.wrapping_add(offset));
        let mut saved = SavedRegisters {
            arguments: ARGUMENTS.map(|offset| word(offset).unwrap_or(0)),
            result: word(RESULT)?,
            stack_pointer: word(STACK_POINTER)?,
        };
        // A handler begins with a result of zero. The handler's arguments are the signal's number, the information about
        // the signal, and the context.
        for _ in 0..MOST_SIGNALS {
            let [_, info, context, ..] = saved.arguments;
            let frame = saved.stack_pointer;
            if (saved.result, info, context) != (0, frame.wrapping_add(INFO), frame.wrapping_add(CONTEXT)) {
                break;
            }
            let word = |offset| read(context.wrapping_add(offset));
            let (Some(result), Some(stack_pointer)) =
                (word(RESULT_IN_CONTEXT), word(STACK_POINTER_IN_CONTEXT))
            else {
                break;
            };
            let arguments = ARGUMENTS_IN_CONTEXT.map(|offset| word(offset).unwrap_or(0));
            saved = SavedRegisters { arguments, result, stack_pointer };
        }
        Some(saved)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const REGS: u64 = 0xffff_c900_0000_3f58;

    fn read(words: &BTreeMap<u64, u64>) -> Option<SavedRegisters> {
        SavedRegisters::read(REGS, &|address| words.get(&address).copied())
    }

    #[test]
    fn a_signal_hides_the_registers_of_the_program() {
        let mut words: BTreeMap<u64, u64> = (0..21).map(|word| (REGS + 8 * word, 0)).collect();
        words.insert(REGS + RESULT, 7);
        words.insert(REGS + ARGUMENTS[0], 3);
        words.insert(REGS + STACK_POINTER, 0x7000);
        let plain = read(&words).expect("the registers can be read");
        assert_eq!((plain.result, plain.arguments[0]), (7, 3));
        // Two signals, one handler above the other: the frames are at 0x6000 and at 0x6800.
        for (to, word) in [(RESULT, 0), (ARGUMENTS[1], 0x6000 + INFO), (ARGUMENTS[2], 0x6000 + CONTEXT)] {
            words.insert(REGS + to, word);
        }
        words.insert(REGS + STACK_POINTER, 0x6000);
        for (frame, result, info, context, stack) in
            [(0x6000, 0, 0x6800 + INFO, 0x6800 + CONTEXT, 0x6800), (0x6800, 134, 4, 5, 0x7000)]
        {
            let at = frame + CONTEXT;
            words.insert(at + RESULT_IN_CONTEXT, result);
            words.insert(at + ARGUMENTS_IN_CONTEXT[1], info);
            words.insert(at + ARGUMENTS_IN_CONTEXT[2], context);
            words.insert(at + STACK_POINTER_IN_CONTEXT, stack);
        }
        let hidden = read(&words).expect("the registers can be read");
        assert_eq!((hidden.result, hidden.arguments[2], hidden.stack_pointer), (134, 5, 0x7000));
        // The third argument of a call may be near the stack pointer, too.
        words.insert(REGS + ARGUMENTS[1], 4);
        assert_eq!(read(&words).expect("the registers can be read").result, 0);
    }
}

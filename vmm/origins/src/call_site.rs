//! Finds the call instruction before a return address, and the location of the pointer through which it calls.

use cpu::SegReg;
use guest_symbols::Symbols;
use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind, Register};
use machine::Processor;
use machine::position::Instructions;

/// The largest size in bytes of a function that is decoded to find a call.
const MOST_FUNCTION_BYTES: u64 = 1 << 16;
/// Linux calls through a register by a call of a function that has the register in its name. Such calls are a defence
/// against wrong speculation (`arch/x86/lib/retpoline.S`).
const THUNK: &str = "__x86_indirect_thunk_";
/// The registers that have such a function.
const REGISTERS: [Register; 15] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RBX,
    Register::RBP,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

/// A call instruction of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallSite {
    /// The address of the call instruction.
    pub address: u64,
    /// The location of the function's address.
    pub pointer: Pointer,
}

/// The location of a called function's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pointer {
    /// The instruction itself.
    None,
    /// A register.
    Register(Register),
    /// The memory operand of this instruction.
    Memory(Instruction),
}

impl CallSite {
    /// The call instruction that ends at a return address. The function is decoded from its beginning, because
    /// instructions cannot be decoded backward.
    pub fn before(
        processor: &Processor<'_, Instructions>,
        symbols: &Symbols,
        return_address: u64,
    ) -> Option<CallSite> {
        let (function, _) = symbols.at(return_address.checked_sub(1)?)?;
        let size =
            return_address.checked_sub(function.address).filter(|size| *size <= MOST_FUNCTION_BYTES)?;
        let mut code = vec![0; size as usize];
        if processor.peek(function.address, &mut code) != code.len() {
            return None;
        }
        let thunk = |register: &Register| symbols.address_of(&format!("{THUNK}{}", name_of(*register)));
        let calls_through = |address| REGISTERS.into_iter().find(|register| thunk(register) == Some(address));
        CallSite::last_in(&code, function.address, &calls_through)
    }

    /// Whether the instruction calls through a pointer.
    pub fn is_indirect(&self) -> bool {
        self.pointer != Pointer::None
    }

    /// The call at the end of some code. `thunk` returns the register through which the function at an address calls.
    fn last_in(code: &[u8], begin: u64, thunk: &dyn Fn(u64) -> Option<Register>) -> Option<CallSite> {
        let decoder = Decoder::with_ip(64, code, begin, DecoderOptions::NONE);
        let last = decoder.into_iter().last().filter(|last| last.next_ip() == begin + code.len() as u64)?;
        let pointer = if last.is_call_near() {
            thunk(last.near_branch64()).map_or(Pointer::None, Pointer::Register)
        } else if !last.is_call_near_indirect() {
            return None;
        } else if last.op0_kind() == OpKind::Register {
            Pointer::Register(last.op0_register())
        } else {
            Pointer::Memory(last)
        };
        Some(CallSite { address: last.ip(), pointer })
    }
}

impl Pointer {
    /// The location in the notation of [`crate::Location`], for a processor before the call.
    pub fn location(&self, processor: &Processor<'_, Instructions>) -> Option<String> {
        match self {
            Pointer::None => None,
            Pointer::Register(register) => Some(name_of(*register)),
            Pointer::Memory(call) => {
                let state = processor.state();
                let value = |register: Register, _, _| match register {
                    Register::GS => Some(state.segments[SegReg::Gs as usize].base),
                    register if register.is_segment_register() => Some(0),
                    register => state.gpr.get(register.number()).copied(),
                };
                call.virtual_address(0, 0, value).map(|address| format!("{address:#x}:8"))
            }
        }
    }
}

fn name_of(register: Register) -> String {
    format!("{register:?}").to_lowercase()
}

#[cfg(test)]
mod tests {
    use iced_x86::code_asm::*;

    use super::*;

    const BEGIN: u64 = 0x1000;

    fn last(
        assemble: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>,
    ) -> Option<CallSite> {
        let mut a = CodeAssembler::new(64).unwrap();
        a.push(rbx).unwrap();
        assemble(&mut a).unwrap();
        let code = a.assemble(BEGIN).unwrap();
        let thunk = |address| (address == 0x5000).then_some(Register::R11);
        CallSite::last_in(&code, BEGIN, &thunk)
    }

    #[test]
    fn a_call_is_found_with_its_pointer() {
        let site = |pointer| Some(CallSite { address: BEGIN + 1, pointer });
        assert_eq!(last(|a| a.call(0x4000)), site(Pointer::None));
        assert_eq!(last(|a| a.call(0x5000)), site(Pointer::Register(Register::R11)));
        assert_eq!(last(|a| a.call(rax)), site(Pointer::Register(Register::RAX)));
        // The end of this instruction is a call through RAX, too.
        assert_eq!(last(|a| a.call(r8)), site(Pointer::Register(Register::R8)));
        let memory = last(|a| a.call(qword_ptr(rbx + 0x18))).expect("a call");
        assert!(matches!(memory.pointer, Pointer::Memory(call) if call.memory_base() == Register::RBX));
        assert_eq!(last(|a| a.nop()), None);
    }
}

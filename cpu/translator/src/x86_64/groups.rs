//! Groups of accesses in a block. Accesses whose addresses differ by known constants share one TLB check.
//!
//! The first access of a group checks the page of the whole group. This access stores the difference between host and
//! guest addresses in the frame. If the group crosses pages, or the TLB does not have the page, the block continues in
//! its twin, which checks every access. A check stays valid as long as only generated code runs. Of the instructions in
//! generated code, only STAC and CLAC can change which pages may be accessed.

use iced_x86::{Instruction, OpKind, Register};

use super::asm::alu;
use super::kind::{Kind, is_memory, number_of};
use crate::Source;
use crate::frame::ADDENDS;

const RAX: usize = 0;
const RDX: usize = 2;
const RSP: usize = 4;
const RBP: usize = 5;

/// The largest number of bytes from the first to the last byte of a group. Larger groups cross
/// pages more often.
const MAX_SPAN: i64 = 256;
/// Fewest checks that a block's groups must save to be worth a twin.
const LEAST_SAVED: usize = 2;

/// How an instruction's access shares checks with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The access is in no group.
    Alone,
    /// The access checks the page for its group, which begins `below` bytes before the access. `slot` is the
    /// place of the addend in the frame.
    First { slot: u8, below: i32, bytes: i32, write: bool },
    /// An earlier access has checked the page: `bytes` bytes, and `write` if they may be written.
    Later { slot: u8, bytes: i32, write: bool },
}

/// The groups of a block.
pub(super) struct Groups {
    /// The role of each instruction.
    pub roles: Vec<Role>,
    /// The first and the last instruction of each group.
    spans: Vec<(usize, usize)>,
}

impl Groups {
    /// No groups.
    pub fn none(source: &Source<'_>) -> Groups {
        Groups { roles: vec![Role::Alone; source.instructions.len()], spans: Vec::new() }
    }

    /// Finds the groups of a block's accesses. `kinds` says which instructions are translated.
    pub fn of(source: &Source<'_>, kinds: impl Iterator<Item = Option<Kind>>) -> Groups {
        let mut values = Values::default();
        let mut groups: Vec<Group> = Vec::new();
        for (n, (instruction, kind)) in source.instructions.iter().zip(kinds).enumerate() {
            match kind {
                Some(kind) => {
                    if let Some(access) = values.access(instruction, kind) {
                        enter(&mut groups, n, &access);
                    }
                    if matches!(kind, Kind::AccessControl(_)) {
                        groups.iter_mut().for_each(|group| group.open = false);
                    }
                    values.follow(instruction, kind);
                }
                None => {
                    groups.iter_mut().for_each(|group| group.open = false);
                    values = Values::default();
                }
            }
        }
        groups.retain(|group| group.members.len() > 1);
        let mut found = Groups::none(source);
        // For each addend field of the frame, the last instruction that uses this field.
        let mut taken = [None::<usize>; ADDENDS];
        let mut saved = 0;
        for group in &groups {
            let span = group.span();
            let Some(slot) = taken.iter().position(|until| until.is_none_or(|until| until < span.0)) else {
                continue;
            };
            taken[slot] = Some(span.1);
            found.spans.push(span);
            saved += group.members.len() - 1;
            let slot = slot as u8;
            for &(n, bytes, write) in &group.members {
                found.roles[n] = Role::Later { slot, bytes: bytes as i32, write };
            }
            found.roles[span.0] = Role::First {
                slot,
                below: -group.low as i32,
                bytes: (group.high - group.low) as i32,
                write: group.write,
            };
        }
        if saved < LEAST_SAVED { Groups::none(source) } else { found }
    }

    /// The first instruction that checks a page for its group.
    pub fn first(&self) -> Option<usize> {
        self.roles.iter().position(|role| matches!(role, Role::First { .. }))
    }

    /// Whether the block can be entered before instruction `n` without the checks of earlier instructions.
    pub fn can_begin_at(&self, n: usize) -> bool {
        self.spans.iter().all(|&(first, last)| n <= first || n > last)
    }
}

/// A group under construction.
struct Group {
    address: Address,
    /// Offset of the first access. `low` and `high` are the group's lowest byte and its end, relative to `offset`.
    offset: i64,
    low: i64,
    high: i64,
    write: bool,
    /// For each access: its instruction, how many bytes it accesses, and whether it writes.
    members: Vec<(usize, i64, bool)>,
    open: bool,
}

impl Group {
    fn span(&self) -> (usize, usize) {
        (self.members[0].0, self.members[self.members.len() - 1].0)
    }
}

/// Adds an access to its group, or starts a new group.
fn enter(groups: &mut Vec<Group>, n: usize, access: &Access) {
    let with = |group: &Group| {
        let begin = access.offset.wrapping_sub(group.offset);
        let low = group.low.min(begin);
        let high = group.high.max(begin.checked_add(access.bytes)?);
        (high.checked_sub(low)? <= MAX_SPAN).then_some((low, high))
    };
    for group in groups.iter_mut().filter(|group| group.open && group.address == access.address) {
        if let Some((low, high)) = with(group) {
            (group.low, group.high) = (low, high);
            group.write |= access.write;
            group.members.push((n, access.bytes, access.write));
            return;
        }
    }
    groups.push(Group {
        address: access.address,
        offset: access.offset,
        low: 0,
        high: access.bytes,
        write: access.write,
        members: vec![(n, access.bytes, access.write)],
        open: true,
    });
}

/// The number of an unknown value: a register's value at the block's start, or a value that an instruction of the block
/// computes.
type Unknown = u32;

/// The unknown parts of an address. The known offset is not part of this type.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Address {
    base: Option<Unknown>,
    index: Option<(Unknown, u32)>,
}

struct Access {
    address: Address,
    offset: i64,
    bytes: i64,
    write: bool,
}

/// The values of the general registers: unknown values plus known constants.
#[derive(Clone)]
pub(super) struct Values {
    registers: [(Unknown, i64); 16],
    next: Unknown,
}

impl Default for Values {
    fn default() -> Values {
        Values { registers: std::array::from_fn(|n| (n as Unknown, 0)), next: 16 }
    }
}

impl Values {
    /// The only memory access of an instruction. `None` if the instruction has none or two, or if the address is
    /// not computed from general registers alone.
    fn access(&self, i: &Instruction, kind: Kind) -> Option<Access> {
        let on_stack = |register: usize, offset: i64, write| {
            let (base, added) = self.registers[register];
            let address = Address { base: Some(base), index: None };
            Some(Access { address, offset: added.wrapping_add(offset), bytes: 8, write })
        };
        let memory = (0..i.op_count()).any(|n| is_memory(i, n)) && kind != Kind::Lea;
        match kind {
            Kind::Push if !memory => return on_stack(RSP, -8, true),
            Kind::PushFlags | Kind::Call => return on_stack(RSP, -8, true),
            Kind::Pop | Kind::Return => return on_stack(RSP, 0, false),
            Kind::Leave => return on_stack(RBP, 0, false),
            Kind::Push | Kind::CallIndirect | Kind::Nothing => return None,
            _ if !memory => return None,
            _ => {}
        }
        if matches!(i.memory_segment(), Register::FS | Register::GS) {
            return None;
        }
        let mut offset = i.memory_displacement64() as i64;
        let mut address = Address { base: None, index: None };
        if !matches!(i.memory_base(), Register::None | Register::RIP) {
            let (base, added) = self.registers[number_of(i.memory_base())];
            address.base = Some(base);
            offset = offset.wrapping_add(added);
        }
        if i.memory_index() != Register::None {
            let (index, added) = self.registers[number_of(i.memory_index())];
            let scale = i.memory_index_scale();
            address.index = Some((index, scale));
            offset = offset.wrapping_add(added.wrapping_mul(scale.into()));
        }
        let bytes = i.memory_size().size() as i64;
        (bytes > 0).then_some(Access { address, offset, bytes, write: writes(i, kind) })
    }

    fn forget(&mut self, register: usize) {
        self.registers[register] = (self.next, 0);
        self.next += 1;
    }

    fn add(&mut self, register: usize, value: i64) {
        let (_, added) = &mut self.registers[register];
        *added = added.wrapping_add(value);
    }

    /// Whether registers, as bits, still have the same values in `now`.
    pub fn same_in(&self, now: &Values, registers: u16) -> bool {
        self.changed_in(now) & registers == 0
    }

    /// The registers, as bits, that may have other values in `now`.
    pub fn changed_in(&self, now: &Values) -> u16 {
        let changed = |n: &usize| self.registers[*n] != now.registers[*n];
        (0..16).filter(changed).map(|n| 1 << n).sum()
    }

    /// Notes the effect of an instruction on the registers.
    pub fn follow(&mut self, i: &Instruction, kind: Kind) {
        let register = |n: u32| {
            (n < i.op_count() && i.op_kind(n) == OpKind::Register)
                .then(|| i.op_register(n))
                .filter(|r| r.is_gpr())
        };
        let whole = |n: u32| register(n).filter(|r| r.is_gpr64()).map(number_of);
        match kind {
            Kind::Alu(alu::CMP)
            | Kind::Test
            | Kind::BitTest(4)
            | Kind::Nothing
            | Kind::InterruptFlag(_)
            | Kind::AccessControl(_)
            | Kind::SwapGs
            | Kind::Jump
            | Kind::JumpIf(_)
            | Kind::JumpIndirect
            | Kind::Return => {}
            Kind::Push | Kind::PushFlags | Kind::Call | Kind::CallIndirect => self.add(RSP, -8),
            Kind::Pop => {
                self.add(RSP, 8);
                whole(0).into_iter().for_each(|to| self.forget(to));
            }
            Kind::Leave => {
                self.registers[RSP] = self.registers[RBP];
                self.add(RSP, 8);
                self.forget(RBP);
            }
            Kind::Alu(which @ (alu::ADD | alu::SUB))
                if whole(0).is_some() && register(1).is_none() && !is_memory(i, 1) =>
            {
                let value = i.immediate(1) as i64;
                let value = if which == alu::SUB { value.wrapping_neg() } else { value };
                whole(0).into_iter().for_each(|to| self.add(to, value));
            }
            Kind::Inc | Kind::Dec if whole(0).is_some() => {
                let value = if kind == Kind::Inc { 1 } else { -1 };
                whole(0).into_iter().for_each(|to| self.add(to, value));
            }
            Kind::Mov if whole(0).is_some() && whole(1).is_some() => {
                if let (Some(to), Some(from)) = (whole(0), whole(1)) {
                    self.registers[to] = self.registers[from];
                }
            }
            Kind::Lea if i.memory_base().is_gpr64() && i.memory_index() == Register::None => match whole(0) {
                Some(to) => {
                    self.registers[to] = self.registers[number_of(i.memory_base())];
                    self.add(to, i.memory_displacement64() as i64);
                }
                None => register(0).map(number_of).into_iter().for_each(|to| self.forget(to)),
            },
            _ => {
                let implied = match kind {
                    Kind::Cmpxchg | Kind::ExtendAccumulator => &[RAX][..],
                    Kind::SignToData => &[RDX],
                    Kind::Multiply(_) | Kind::Divide(_) => &[RAX, RDX],
                    _ => &[],
                };
                let changed = match kind {
                    Kind::XchgRegisters | Kind::XchgMemory | Kind::Xadd => 2,
                    Kind::Bits(bits) => bits.destinations(),
                    _ => 1,
                };
                (0..changed).filter_map(register).map(number_of).for_each(|to| self.forget(to));
                implied.iter().for_each(|&to| self.forget(to));
            }
        }
    }
}

/// Whether an instruction with a memory operand may write to the operand.
fn writes(i: &Instruction, kind: Kind) -> bool {
    match kind {
        Kind::Alu(alu::CMP) | Kind::Test | Kind::BitTest(4) => false,
        Kind::Alu(_) | Kind::Mov | Kind::Vector(_) => is_memory(i, 0),
        Kind::Extend(_)
        | Kind::Cmov(_)
        | Kind::Multiply(_)
        | Kind::MultiplyInto
        | Kind::Divide(_)
        | Kind::Scan(_)
        | Kind::Count(_)
        | Kind::Bits(_)
        | Kind::JumpIndirect => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::super::kind::kind_of;
    use super::*;

    fn groups(code: &[u8]) -> Groups {
        let instructions: Vec<Instruction> =
            Decoder::with_ip(64, code, 0x1000, DecoderOptions::NONE).into_iter().collect();
        let source = Source { rip: 0x1000, instructions: &instructions, second_page: None };
        Groups::of(&source, instructions.iter().map(kind_of))
    }

    fn roles(code: &[u8]) -> String {
        let name = |role: &Role| match *role {
            Role::Alone => "alone".to_string(),
            Role::First { slot, below, bytes, write } => {
                format!("first in {slot}: {bytes} from -{below}{}", if write { " to write" } else { "" })
            }
            Role::Later { slot, .. } => format!("in {slot}"),
        };
        groups(code).roles.iter().map(name).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn pushes_pops_and_what_lies_on_the_stack_are_one_group() {
        // push rbx; push rbp; push rax; pop rcx; mov rdx, [rsp+8]
        let code = [0x53, 0x55, 0x50, 0x59, 0x48, 0x8b, 0x54, 0x24, 8];
        assert_eq!(roles(&code), "first in 0: 24 from -16 to write, in 0, in 0, in 0, in 0");
        // push rbp; mov rbp, rsp; sub rsp, 32; mov [rbp-8], rax; mov ecx, [rsp+16]; leave; ret
        let code = [
            &[0x55][..],
            &[0x48, 0x89, 0xe5],
            &[0x48, 0x83, 0xec, 0x20],
            &[0x48, 0x89, 0x45, 0xf8],
            &[0x8b, 0x4c, 0x24, 0x10],
            &[0xc9, 0xc3],
        ];
        assert_eq!(
            roles(&code.concat()),
            "first in 0: 32 from -16 to write, alone, alone, in 0, in 0, in 0, in 0"
        );
    }

    #[test]
    fn a_group_is_for_writing_if_one_of_it_is() {
        // mov rcx, [rbx]; mov rcx, [rbx+8]; mov [rbx+16], rcx
        let code = [0x48, 0x8b, 0x0b, 0x48, 0x8b, 0x4b, 8, 0x48, 0x89, 0x4b, 16];
        assert_eq!(roles(&code), "first in 0: 24 from -0 to write, in 0, in 0");
    }

    #[test]
    fn what_changes_a_register_by_a_known_value_keeps_its_group() {
        let load = |disp: u8| [0x48, 0x8b, 0x4a, disp]; // mov rcx, [rdx+disp]
        let kept: [&[u8]; 11] = [
            &[0x48, 0x83, 0xc2, 0x10],             // add rdx, 16
            &[0x48, 0x83, 0xea, 0x10],             // sub rdx, 16
            &[0x48, 0x81, 0xc2, 0x10, 0, 0, 0],    // add rdx, 16
            &[0x48, 0xff, 0xc2],                   // inc rdx
            &[0x48, 0x8d, 0x52, 0xf0],             // lea rdx, [rdx-16]
            &[0x48, 0x39, 0xd2],                   // cmp rdx, rdx
            &[0x48, 0x85, 0xd2],                   // test rdx, rdx
            &[0x48, 0x0f, 0xba, 0xe2, 5],          // bt rdx, 5
            &[0x48, 0x89, 0xd0],                   // mov rax, rdx
            &[0x48, 0x01, 0xd0],                   // add rax, rdx
            &[0x48, 0x89, 0x94, 0x24, 0, 4, 0, 0], // mov [rsp+1024], rdx
        ];
        for change in kept {
            let code = [&load(0)[..], &load(8), &load(16), change, &load(24)].concat();
            assert!(roles(&code).ends_with(", in 0"), "{change:x?}: {}", roles(&code));
        }
        // The bounds include the constant: the load after `add rdx, 16` reads at 40 bytes from the first.
        let code = [&load(0)[..], &load(8), kept[0], &load(24)].concat();
        assert_eq!(roles(&code), "first in 0: 48 from -0, in 0, alone, in 0");
        let code = [&load(0)[..], &load(8), kept[4], &load(0)].concat();
        assert_eq!(roles(&code), "first in 0: 32 from -16, in 0, alone, in 0");
    }

    #[test]
    fn what_gives_a_register_another_value_ends_its_group() {
        let load = |base: u8, disp: u8| [0x48, 0x8b, 0x48 | base, disp]; // mov rcx, [base+disp]
        const RBX: u8 = 3;
        let changes: [(u8, &[u8]); 25] = [
            (2, &[0x83, 0xc2, 16]),                 // add edx, 16
            (2, &[0x48, 0x01, 0xca]),               // add rdx, rcx
            (2, &[0x48, 0x31, 0xd2]),               // xor rdx, rdx
            (2, &[0x8d, 0x52, 8]),                  // lea edx, [rdx+8]
            (2, &[0x48, 0x8d, 0x14, 0x0a]),         // lea rdx, [rdx+rcx]
            (2, &[0xff, 0xc2]),                     // inc edx
            (2, &[0x48, 0x89, 0xca]),               // mov rdx, rcx
            (2, &[0x89, 0xd2]),                     // mov edx, edx
            (2, &[0x48, 0x8b, 0x12]),               // mov rdx, [rdx]
            (2, &[0xb2, 1]),                        // mov dl, 1
            (2, &[0x48, 0x87, 0xd1]),               // xchg rcx, rdx
            (2, &[0x48, 0x87, 0x11]),               // xchg [rcx], rdx
            (2, &[0x48, 0x0f, 0xc1, 0x11]),         // xadd [rcx], rdx
            (2, &[0x48, 0x0f, 0x44, 0xd1]),         // cmove rdx, rcx
            (2, &[0x0f, 0x94, 0xc2]),               // sete dl
            (2, &[0x48, 0xc1, 0xe2, 3]),            // shl rdx, 3
            (2, &[0x48, 0x0f, 0xca]),               // bswap rdx
            (2, &[0x48, 0x0f, 0xba, 0xea, 5]),      // bts rdx, 5
            (2, &[0x48, 0xf7, 0xe1]),               // mul rcx
            (2, &[0x99]),                           // cdq
            (2, &[0x5a]),                           // pop rdx
            (0, &[0x48, 0xf7, 0xe1]),               // mul rcx
            (0, &[0x48, 0x0f, 0xb1, 0x11]),         // cmpxchg [rcx], rdx
            (0, &[0x48, 0x98]),                     // cdqe
            (RBX, &[0x66, 0x48, 0x0f, 0x7e, 0xc3]), // movq rbx, xmm0
        ];
        for (base, change) in changes {
            let code =
                [&load(base, 0)[..], &load(base, 8), &load(base, 16), change, &load(base, 24)].concat();
            let roles = roles(&code);
            assert!(roles.starts_with("first in 0") && roles.ends_with(", alone"), "{change:x?}: {roles}");
        }
    }

    #[test]
    fn nothing_is_grouped_across_what_may_change_a_mapping_or_whose_place_is_not_known() {
        let load = |disp: u8| [0x48, 0x8b, 0x4b, disp]; // mov rcx, [rbx+disp]
        // The interpreter executes CPUID; STAC and CLAC change which memory may be accessed.
        for between in [&[0x0f, 0xa2][..], &[0x0f, 0x01, 0xcb], &[0x0f, 0x01, 0xca]] {
            let code = [&load(0)[..], &load(8), &load(16), between, &load(0), &load(8), &load(16)].concat();
            assert_eq!(
                roles(&code),
                "first in 0: 24 from -0, in 0, in 0, alone, first in 0: 24 from -0, in 0, in 0"
            );
        }
        // The relation of two registers is unknown after CPUID: mov rsi, rbx; cpuid; ...; mov rcx, [rsi]
        let code =
            [&[0x48, 0x89, 0xde][..], &[0x0f, 0xa2], &load(0), &load(8), &load(16), &[0x48, 0x8b, 0x0e]];
        assert_eq!(roles(&code.concat()), "alone, alone, first in 0: 24 from -0, in 0, in 0, alone");
        // Three cases without groups: accesses through GS, too far apart, and only one check saved.
        let gs = |disp: u8| [0x65, 0x48, 0x8b, 0x4b, disp];
        assert!(!roles(&[gs(0), gs(8), gs(16)].concat()).contains("first"));
        let far = |disp: u8| [0x48, 0x8b, 0x8b, 0, disp, 0, 0]; // mov rcx, [rbx+256*disp]
        assert!(!roles(&[far(0), far(2), far(4)].concat()).contains("first"));
        assert!(!roles(&[load(0), load(8)].concat()).contains("first"));
    }

    #[test]
    fn where_a_block_can_be_begun_anew() {
        let (rbx, rsi) = (|disp: u8| [0x48, 0x8b, 0x4b, disp], |disp: u8| [0x48, 0x8b, 0x4e, disp]);
        let code = [rbx(0), rsi(0), rbx(8), rsi(8), rsi(16)].concat();
        assert_eq!(roles(&code), "first in 0: 16 from -0, first in 1: 24 from -0, in 0, in 1, in 1");
        let groups = groups(&code);
        assert_eq!(groups.first(), Some(0));
        assert_eq!((0..=5).filter(|&n| groups.can_begin_at(n)).collect::<Vec<_>>(), [0, 5]);
    }
}

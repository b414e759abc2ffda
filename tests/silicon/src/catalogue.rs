//! Lists all encodings that the CPU model offers to user-mode code, for each `Code` of the decoder. The catalogue
//! decodes every combination of mandatory prefix, REX.W or VEX fields, opcode map, opcode and ModRM byte.

use std::collections::BTreeMap;

use iced_x86::{Code, CpuidFeature, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};

/// The first bytes of an instruction.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    bytes: [u8; 8],
    length: u8,
    /// The position of the REX byte, or of the first byte after the VEX escape byte, if there is one.
    pub rex: Option<u8>,
    /// Whether the first three bytes are a VEX prefix.
    pub vex: bool,
    /// Whether the instruction has this `Code` with every value of the byte after `bytes`.
    pub free: bool,
}

impl Form {
    /// Returns the bytes up to the opcode, or up to the ModRM byte if the ModRM byte selects the instruction.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    fn push(&mut self, byte: u8) {
        self.bytes[usize::from(self.length)] = byte;
        self.length += 1;
    }
}

/// All offered instructions, in the order of their `Code`s.
pub struct Catalogue {
    /// Every offered `Code` with its forms.
    pub entries: Vec<(Code, Vec<Form>)>,
}

impl Catalogue {
    /// Returns the catalogue of the instructions with these mnemonics in any letter case; all instructions if the
    /// list is empty.
    pub fn of(only: &[String]) -> Catalogue {
        let name = |code: Code| format!("{:?}", code.mnemonic());
        Catalogue::collect(|code| {
            only.is_empty() || only.iter().any(|one| one.eq_ignore_ascii_case(&name(code)))
        })
    }

    /// Decodes all encodings, and keeps the instructions for which [`offered`] and `wanted` return true.
    pub fn collect(wanted: impl Fn(Code) -> bool) -> Catalogue {
        let mut found = BTreeMap::<u16, Vec<Form>>::new();
        for head in legacy_heads().chain(vex_heads()) {
            add_forms(&mut found, head, &wanted);
        }
        let entries = found
            .into_iter()
            .map(|(code, forms)| (Code::try_from(usize::from(code)).expect("it was a code"), forms))
            .collect();
        Catalogue { entries }
    }
}

fn legacy_heads() -> impl Iterator<Item = Form> {
    let prefixes: [&[u8]; 4] = [&[], &[0x66], &[0xf2], &[0xf3]];
    let maps: [&[u8]; 4] = [&[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
    prefixes.into_iter().flat_map(move |prefix| {
        [None, Some(0x48)].into_iter().flat_map(move |rex| {
            maps.into_iter().flat_map(move |map| {
                (0..=255).filter(|&opcode| !is_prefix(map, opcode)).map(move |opcode| {
                    let mut form = Form { bytes: [0; 8], length: 0, rex: None, vex: false, free: false };
                    prefix.iter().for_each(|&b| form.push(b));
                    if let Some(rex) = rex {
                        form.rex = Some(form.length);
                        form.push(rex);
                    }
                    map.iter().for_each(|&b| form.push(b));
                    form.push(opcode);
                    form
                })
            })
        })
    })
}

/// Whether a byte at the position of the opcode is a prefix, or selects another opcode map. Other prefixes and maps
/// have forms of their own.
fn is_prefix(map: &[u8], opcode: u8) -> bool {
    match map {
        [] => {
            matches!(opcode, 0x0f | 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x62 | 0x64..=0x67 | 0xc4 | 0xc5)
                || matches!(opcode, 0xf0 | 0xf2 | 0xf3)
        }
        [0x0f] => matches!(opcode, 0x38 | 0x3a),
        _ => false,
    }
}

/// Returns the three-byte VEX prefixes with L = 0. BMI1 and BMI2 use no other VEX prefixes.
fn vex_heads() -> impl Iterator<Item = Form> {
    (2..=3_u8).flat_map(|map| {
        (0..8_u8).flat_map(move |w_and_pp| {
            (0..=255).map(move |opcode| {
                let mut form = Form { bytes: [0; 8], length: 0, rex: Some(1), vex: true, free: false };
                form.push(0xc4);
                form.push(0xe0 | map);
                form.push((w_and_pp & 4) << 5 | 0x78 | w_and_pp & 3);
                form.push(opcode);
                form
            })
        })
    })
}

fn add_forms(found: &mut BTreeMap<u16, Vec<Form>>, head: Form, wanted: &impl Fn(Code) -> bool) {
    let codes = (0..=255).map(|next| first_code(&head, next)).collect::<Vec<_>>();
    let mut add = |code: Option<Code>, form: Form| {
        if let Some(code) = code.filter(|&code| wanted(code)) {
            found.entry(code as u16).or_default().push(form);
        }
    };
    if codes.iter().all(|&code| code == codes[0]) {
        add(codes[0], Form { free: true, ..head });
        return;
    }
    for (next, code) in codes.into_iter().enumerate() {
        let mut form = head;
        form.push(next as u8);
        add(code, form);
    }
}

fn first_code(head: &Form, next: u8) -> Option<Code> {
    let mut bytes = [0; 16];
    let length = usize::from(head.length);
    bytes[..length].copy_from_slice(head.bytes());
    bytes[length] = next;
    let instruction = Decoder::new(64, &bytes, DecoderOptions::NONE).decode();
    offered(&instruction).then(|| instruction.code())
}

/// Whether the CPU model offers an instruction in user mode, and its result can be compared. False for privileged
/// instructions, system calls, reads of time or randomness, and accesses to segment registers.
pub fn offered(instruction: &Instruction) -> bool {
    !instruction.is_invalid()
        && !instruction.is_privileged()
        && instruction.cpuid_features().iter().all(|&feature| in_model(feature))
        && comparable(instruction)
}

/// Whether the CPU model has a feature that user-mode code can use.
pub fn in_model(feature: CpuidFeature) -> bool {
    use CpuidFeature::*;
    matches!(
        feature,
        INTEL8086
            | INTEL186
            | INTEL286
            | INTEL386
            | INTEL486
            | X64
            | CMOV
            | CX8
            | CMPXCHG16B
            | MULTIBYTENOP
            | PAUSE
            | CET_IBT
            | CLFSH
            | PREFETCHW
            | FPU
            | FPU287
            | FPU387
            | MMX
            | FXSR
            | SSE
            | SSE2
            | SSE3
            | SSSE3
            | SSE4_1
            | SSE4_2
            | POPCNT
            | LZCNT
            | BMI1
            | BMI2
            | MOVBE
            | AES
            | PCLMULQDQ
    )
}

fn comparable(instruction: &Instruction) -> bool {
    let flow = instruction.flow_control();
    if matches!(flow, FlowControl::Interrupt | FlowControl::Exception) {
        return false;
    }
    if instruction.is_jmp_far()
        || instruction.is_call_far()
        || instruction.is_jmp_far_indirect()
        || instruction.is_call_far_indirect()
    {
        return false;
    }
    let segment = |r: Register| r.is_segment_register();
    let loads_segment = (0..instruction.op_count())
        .any(|n| instruction.op_kind(n) == iced_x86::OpKind::Register && segment(instruction.op_register(n)));
    !loads_segment && !asks_the_system(instruction.mnemonic())
}

/// Whether the instruction's result depends on the operating system.
fn asks_the_system(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Syscall
            | Sysenter
            | Sysexit
            | Sysret
            | Hlt
            | Cli
            | Sti
            | In
            | Out
            | Insb
            | Insw
            | Insd
            | Outsb
            | Outsw
            | Outsd
            | Iret
            | Iretd
            | Iretq
            | Retf
            | Lss
            | Lfs
            | Lgs
            | Lds
            | Les
            | Sldt
            | Str
            | Smsw
            | Sgdt
            | Sidt
            | Lar
            | Lsl
            | Verr
            | Verw
            | Into
            | Bound
            | Arpl
            | Cpuid
            | Rdtsc
            | Rdpmc
            | Popf
            | Popfd
            | Popfq
            | Pushf
            | Pushfd
            | Pushfq
    )
}

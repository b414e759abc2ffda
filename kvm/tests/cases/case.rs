//! Parses the table's text into cases. `table/FORMAT.md` defines the format. Invalid text panics with the case's name.

use crate::board::Access;
use crate::machine::{self, Engine, Mode};

/// One case.
pub struct Case {
    pub name: String,
    pub mode: Mode,
    pub assembly: String,
    pub code: Vec<u8>,
    pub start: Vec<Token>,
    pub end: Vec<Token>,
    pub differences: Vec<Difference>,
}

/// A deviation of an engine or a model from the manuals, with its reason.
pub struct Difference {
    pub on: On,
    pub text: String,
    pub end: Vec<Token>,
    pub reason: String,
}

/// The models or engines on which a difference is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// The model of new machines.
    NewModel,
    /// Models for KVM, on either engine.
    KvmModels,
    /// The model of QEMU's TCG, on either engine.
    TcgModel,
    /// The software CPU, as any model.
    Soft,
    /// KVM itself, on any host.
    Kvm,
    /// KVM itself, on a host that is QEMU's TCG.
    KvmOnTcg,
}

impl On {
    fn named(word: &str) -> Option<On> {
        Some(match word {
            "ttvm-v2.1" => On::NewModel,
            "kvm-models" => On::KvmModels,
            "tcg-model" => On::TcgModel,
            "soft" => On::Soft,
            "kvm" => On::Kvm,
            "kvm-on-tcg" => On::KvmOnTcg,
            _ => return None,
        })
    }

    pub fn applies_to(self, engine: Engine) -> bool {
        let (kvm, model) = (matches!(engine, Engine::Kvm(_)), engine.model());
        let is_tcg = matches!(model, cpu::CpuModel::V2KvmTcg | cpu::CpuModel::V2_1KvmTcg);
        match self {
            On::NewModel => model == cpu::CpuModel::V2_1,
            On::KvmModels => !matches!(model, cpu::CpuModel::V2 | cpu::CpuModel::V2_1),
            On::TcgModel => is_tcg,
            On::Soft => !kvm,
            On::Kvm => kvm,
            On::KvmOnTcg => kvm && is_tcg,
        }
    }
}

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Halt,
    /// The run ends in the handler of a vector, perhaps with an error code.
    Vector(u8, Option<u32>),
    Shutdown,
    /// The engine cannot continue.
    Nothing,
}

/// One word of a start or an end state.
#[derive(Clone)]
pub enum Token {
    Outcome(Outcome),
    /// Bits of a register.
    Register {
        name: String,
        mask: u128,
        value: u128,
    },
    /// Bits of a register that may have any value.
    Undefined {
        name: String,
        mask: u128,
    },
    /// Flags as letters: capitals are set.
    Flags(String),
    /// Bytes of memory. A byte that is `None` may have any value.
    Memory(u64, Vec<Option<u8>>),
    Access(Access),
    /// The case makes no access, although its expected end lists accesses.
    NoAccess,
    /// An interrupt requested from the start.
    Interrupt(u8),
}

/// Vectors by name; those with an error code come last.
const VECTORS: [(&str, u8); 18] = [
    ("DE", 0),
    ("DB", 1),
    ("NMI", 2),
    ("BP", 3),
    ("OF", 4),
    ("BR", 5),
    ("UD", 6),
    ("NM", 7),
    ("MF", 16),
    ("XM", 19),
    ("DF", 8),
    ("TS", 10),
    ("NP", 11),
    ("SS", 12),
    ("GP", 13),
    ("PF", 14),
    ("AC", 17),
    ("CP", 21),
];

/// Whether the vector's frame has an error code.
pub fn has_error_code(vector: u8) -> bool {
    matches!(vector, 8 | 10..=14 | 17 | 21)
}

/// Reads one file of the table.
pub fn parse(text: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
        if let Some(mode) = Mode::named(key.trim_end_matches(':')) {
            cases.push(Case::new(mode, rest.trim()));
            continue;
        }
        let case: &mut Case = cases.last_mut().expect("the first line names a case");
        case.read(key, rest.trim());
    }
    cases
}

impl Case {
    fn new(mode: Mode, name: &str) -> Case {
        Case {
            name: name.to_string(),
            mode,
            assembly: String::new(),
            code: Vec::new(),
            start: Vec::new(),
            end: Vec::new(),
            differences: Vec::new(),
        }
    }

    fn read(&mut self, key: &str, rest: &str) {
        match key {
            "asm" => self.assembly = rest.to_string(),
            "code" => self.code = rest.split_whitespace().map(|byte| self.byte(byte)).collect(),
            "from" => {
                let tokens = self.tokens(rest);
                self.start.extend(tokens);
            }
            "to" => {
                let tokens = self.tokens(rest);
                self.end.extend(tokens);
            }
            _ => {
                let on = On::named(key).unwrap_or_else(|| self.bad(key));
                let (tokens, reason) = rest.split_once(" because ").unwrap_or_else(|| self.bad(rest));
                let end = self.tokens(tokens);
                let (text, reason) = (tokens.to_string(), reason.to_string());
                self.differences.push(Difference { on, text, end, reason });
            }
        }
    }

    fn bad(&self, what: &str) -> ! {
        panic!("case \"{}\": cannot read \"{what}\"", self.name)
    }

    fn byte(&self, text: &str) -> u8 {
        u8::from_str_radix(text, 16).unwrap_or_else(|_| self.bad(text))
    }

    fn tokens(&self, text: &str) -> Vec<Token> {
        text.split_whitespace().map(|word| self.token(word)).collect()
    }

    fn token(&self, word: &str) -> Token {
        match word {
            "hlt" => return Token::Outcome(Outcome::Halt),
            "nothing" => return Token::Outcome(Outcome::Nothing),
            "no-access" => return Token::NoAccess,
            "shutdown" => return Token::Outcome(Outcome::Shutdown),
            _ => {}
        }
        if let Some(fault) = word.strip_prefix('#') {
            return Token::Outcome(self.fault(fault));
        }
        if let Some((kind, rest)) = word.split_once(':') {
            return Token::Access(self.access(kind, rest).unwrap_or_else(|| self.bad(word)));
        }
        if let Some(vector) = word.strip_prefix("int") {
            return Token::Outcome(Outcome::Vector(self.byte(vector), None));
        }
        let (left, right) = word.split_once('=').unwrap_or_else(|| self.bad(word));
        if let Some((size, address)) = left.split_once('[') {
            let address = self.address(address.trim_end_matches(']'));
            return Token::Memory(address, self.bytes(size, right));
        }
        let (name, mask) = left.split_once('&').unwrap_or((left, ""));
        let mask = if mask.is_empty() { u128::MAX } else { self.number(mask) };
        match (name, right) {
            ("flags", letters) => Token::Flags(letters.to_string()),
            ("irq", vector) => Token::Interrupt(self.byte(vector)),
            (_, "?") => Token::Undefined { name: name.to_string(), mask },
            _ => Token::Register { name: name.to_string(), mask, value: self.number(right) },
        }
    }

    fn fault(&self, text: &str) -> Outcome {
        let (name, code) = text.split_once('(').unwrap_or((text, ""));
        let vector = VECTORS.iter().find(|(known, _)| *known == name).unwrap_or_else(|| self.bad(text)).1;
        let code = code.strip_suffix(')').map(|code| self.number(code) as u32);
        let expected = self.mode != Mode::Real && has_error_code(vector);
        assert_eq!(code.is_some(), expected, "case \"{}\": the error code of {text}", self.name);
        Outcome::Vector(vector, code)
    }

    fn access(&self, kind: &str, rest: &str) -> Option<Access> {
        let (place, value) = rest.split_once('=').unwrap_or((rest, ""));
        if kind == "write" {
            let bytes = self.bytes("x", value).into_iter().collect::<Option<_>>()?;
            return Some(Access::Write { gpa: self.address(place), bytes });
        }
        let (place, size) = place.split_once('.')?;
        let size_bytes = size.parse().ok()?;
        let port = self.address(place) as u16;
        Some(match kind {
            "in" => Access::In { port, size_bytes },
            "out" => Access::Out { port, size_bytes, value: self.number(value) as u32 },
            "read" => Access::Read { gpa: self.address(place), size_bytes: size_bytes.into() },
            _ => return None,
        })
    }

    /// A little-endian number with a size, or single bytes with `x`.
    fn bytes(&self, size: &str, text: &str) -> Vec<Option<u8>> {
        let size = match size {
            "b" => 1,
            "w" => 2,
            "d" => 4,
            "q" => 8,
            "o" => 16,
            "x" => {
                let pairs = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap_or("?"));
                return pairs.map(|pair| (pair != "??").then(|| self.byte(pair))).collect();
            }
            _ => self.bad(text),
        };
        self.number(text).to_le_bytes()[..size].iter().map(|byte| Some(*byte)).collect()
    }

    fn address(&self, text: &str) -> u64 {
        self.number(text) as u64
    }

    /// A sum of hexadecimal numbers and symbols. With a subtraction, the result wraps at 64 bits.
    fn number(&self, text: &str) -> u128 {
        let mut sum: u128 = 0;
        for part in text.split('+') {
            let mut terms = part.split('-');
            let first = terms.next().unwrap_or_default();
            sum = sum.wrapping_add(if first.is_empty() { 0 } else { self.term(first) });
            for term in terms {
                sum = u128::from((sum as u64).wrapping_sub(self.term(term) as u64));
            }
        }
        sum
    }

    fn term(&self, text: &str) -> u128 {
        let page_entry = |address: u64| machine::PAGE_TABLE + 8 * (address >> 12);
        let value = match text {
            "code" => self.mode.code(),
            "end" => self.mode.code() + self.code.len() as u64,
            "user" => machine::USER_CODE,
            "handlers" => machine::HANDLERS,
            "stack" => machine::STACK,
            "ustack" => machine::USER_STACK,
            "ist1" => machine::IST1,
            "data" => machine::DATA,
            "mmio" => machine::MMIO,
            "nowhere" => machine::NOWHERE,
            "idt" => machine::IDT,
            "gdt" => machine::GDT,
            "tss" => machine::TSS,
            "tables" => machine::TABLES,
            "pte.data" => page_entry(machine::DATA),
            "pte.user" => page_entry(machine::USER_CODE),
            "pte.stack" => page_entry(machine::STACK - 1),
            "pte.mmio" => page_entry(machine::MMIO),
            _ => {
                let digits = text.replace('_', "");
                return u128::from_str_radix(&digits, 16).unwrap_or_else(|_| self.bad(text));
            }
        };
        value.into()
    }
}

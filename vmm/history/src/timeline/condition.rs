//! Parses the text that a person writes for a search condition.

use std::collections::BTreeSet;

use cpu::{AddressKind, SystemCalls, Traps, WatchKind, Watchpoint};
use guest_symbols::Symbols;
use syscalls::x86_64::Sysno;
use wildmatch::WildMatch;

use super::stops::{Breakpoint, Cause, Comparison, Relation, Stops, Watch};

/// The notations of a condition.
pub const CONDITIONS: &str = "break:ADDR, write:ADDR[+LEN], read:ADDR[+LEN], access:ADDR[+LEN], change:ADDR[+LEN] (each also with \
     -phys, as in write-phys:ADDR; all but break also with a value, as in 'write:ADDR+4 == 0', by ==, !=, <, <=, > or >=), \
     syscall, syscall:NAME, syscall:N, vector:N, console:TEXT. ADDR is a number, a symbol of the kernel (after kexec: of each \
     kernel), or SYMBOL+OFFSET (of all but break: SYMBOL+OFFSET+LEN); break takes names like ext4_*, and syscall like open*";

/// The sizes in bytes of memory that a condition can compare with a value.
const COMPARABLE: [u64; 4] = [1, 2, 4, 8];

/// A parsed condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition(pub Stops);

/// Looks up addresses by their names in a guest's kernel.
pub trait Names {
    /// The address of a symbol, and its size in bytes.
    fn named(&self, name: &str) -> Option<(u64, u64)>;
    /// The addresses of the functions whose names match a pattern with `*` and `?`.
    fn functions_like(&self, pattern: &str) -> BTreeSet<u64>;
}

/// No names, for a guest without a known kernel.
pub struct NoNames;

impl Names for NoNames {
    fn named(&self, _: &str) -> Option<(u64, u64)> {
        None
    }
    fn functions_like(&self, _: &str) -> BTreeSet<u64> {
        BTreeSet::new()
    }
}

impl Names for Symbols {
    fn named(&self, name: &str) -> Option<(u64, u64)> {
        Symbols::named(self, name).map(|symbol| (symbol.address, symbol.size))
    }
    fn functions_like(&self, pattern: &str) -> BTreeSet<u64> {
        let pattern = WildMatch::new(pattern);
        let functions = self.all().iter().filter(|symbol| symbol.is_code() && pattern.matches(&symbol.name));
        functions.map(|symbol| symbol.address).collect()
    }
}

impl std::str::FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Condition, String> {
        Condition::parse(text, &NoNames)
    }
}

impl Condition {
    /// Parses the notation.
    pub fn parse(text: &str, names: &dyn Names) -> Result<Condition, String> {
        let (word, rest) = text.split_once(':').unwrap_or((text, ""));
        let (kind, space) = match word.strip_suffix("-phys") {
            Some(kind) => (kind, AddressKind::Physical),
            None => (word, AddressKind::Linear),
        };
        let watched = |kind, changes_only| {
            Some(Stops { watches: vec![watch(rest, space, kind, changes_only, names)?], ..Stops::default() })
        };
        let stops = match kind {
            "break" => breakpoints(rest, space, names),
            "write" => watched(WatchKind::Write, false),
            "read" => watched(WatchKind::Read, false),
            "access" => watched(WatchKind::Access, false),
            "change" => watched(WatchKind::Write, true),
            "syscall" if text == "syscall" => Some(Stops::system_call(None)),
            "syscall" => system_calls(rest),
            "syscall-nr" => number(rest).map(|number| Stops::system_call(Some(number))),
            "vector" => number(rest).and_then(|vector| u8::try_from(vector).ok()).map(|vector| Stops {
                traps: Traps { vectors: [vector].into_iter().collect(), ..Traps::default() },
                ..Stops::default()
            }),
            "console" if !rest.is_empty() => {
                Some(Stops { console: Some(rest.as_bytes().to_vec()), ..Stops::default() })
            }
            _ => None,
        };
        stops.map(Condition).ok_or_else(|| what_is_wrong(text, kind, rest, names))
    }
}

/// Returns a message that says why the text could not be parsed.
fn what_is_wrong(text: &str, kind: &str, rest: &str, names: &dyn Names) -> String {
    let place = rest.split(['+', ' ', '=', '!', '<', '>']).next().unwrap_or(rest);
    if kind == "syscall" && !place.is_empty() {
        return format!("'{place}' is no system call of Linux for x86-64");
    }
    let has_place = ["break", "write", "read", "access", "change"].contains(&kind) && !place.is_empty();
    if has_place && place_of(place, names).is_none() {
        return if is_pattern(place) {
            format!("no function of the guest's kernel matches '{place}'")
        } else {
            format!("'{place}' is neither a number nor a symbol of the guest's kernel")
        };
    }
    format!("'{text}' is no condition: write {CONDITIONS}")
}

fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?'])
}

/// Parses an address, which is a number or a symbol. Also returns the symbol's size.
fn place_of(text: &str, names: &dyn Names) -> Option<(u64, Option<u64>)> {
    let named = || names.named(text).map(|(address, size)| (address, Some(size)));
    number(text).map(|address| (address, None)).or_else(named)
}

fn breakpoints(text: &str, space: AddressKind, names: &dyn Names) -> Option<Stops> {
    let addresses = if is_pattern(text) {
        names.functions_like(text)
    } else {
        let (place, offset) = text.split_once('+').unwrap_or((text, "0"));
        [place_of(place, names)?.0.checked_add(number(offset)?)?].into()
    };
    let breakpoints: Vec<_> = addresses.into_iter().map(|address| Breakpoint { space, address }).collect();
    (!breakpoints.is_empty()).then(|| Stops { breakpoints, ..Stops::default() })
}

/// Parses `ADDR`, `ADDR+LEN` or `SYMBOL+OFFSET+LEN`, with an optional comparison.
fn watch(
    text: &str,
    space: AddressKind,
    kind: WatchKind,
    changes_only: bool,
    names: &dyn Names,
) -> Option<Watch> {
    let (range, comparison) = comparison(text)?;
    let mut parts = range.split('+').map(str::trim);
    let (place, size) = place_of(parts.next()?, names)?;
    let (first, second) = (parts.next(), parts.next());
    let (offset, length) = if second.is_some() { (first, second) } else { (None, first) };
    if parts.next().is_some() || (offset.is_some() && size.is_none()) {
        return None;
    }
    let usual = match (comparison, size) {
        (Some(_), Some(size)) => COMPARABLE.into_iter().rfind(|&bytes| bytes <= size).unwrap_or(1),
        _ => 1,
    };
    let length = length.map_or(Some(usual), number)?;
    let address = place.checked_add(offset.map_or(Some(0), number)?)?;
    address.checked_add(length.checked_sub(1)?)?;
    if comparison.is_some() && !COMPARABLE.contains(&length) {
        return None;
    }
    Some(Watch { point: Watchpoint { space, address, length, kind }, changes_only, comparison })
}

/// Splits off a comparison. Returns the text before the comparison, and the comparison if the text has one.
fn comparison(text: &str) -> Option<(&str, Option<Comparison>)> {
    let Some(at) = text.find(['=', '!', '<', '>']) else { return Some((text, None)) };
    let (range, rest) = text.split_at(at);
    let relations = [
        ("==", Relation::Equal),
        ("!=", Relation::Different),
        ("<=", Relation::AtMost),
        (">=", Relation::AtLeast),
        ("<", Relation::Less),
        (">", Relation::Greater),
    ];
    let (value, relation) =
        relations.into_iter().find_map(|(sign, relation)| Some((rest.strip_prefix(sign)?, relation)))?;
    Some((range.trim(), Some(Comparison { relation, value: number(value.trim())? })))
}

/// Parses system calls of Linux for x86-64: a number, a name, or a pattern of names.
fn system_calls(text: &str) -> Option<Stops> {
    let pattern = WildMatch::new(text);
    let numbers: BTreeSet<u64> = match number(text) {
        Some(number) => [number].into(),
        None => {
            Sysno::iter().filter(|call| pattern.matches(call.name())).map(|call| call.id() as u64).collect()
        }
    };
    if numbers.is_empty() {
        return None;
    }
    let system_calls = SystemCalls::Numbered(numbers.into_iter().collect());
    Some(Stops { traps: Traps { system_calls, ..Traps::default() }, ..Stops::default() })
}

/// Parses a number; hexadecimal numbers start with 0x.
pub fn number(text: &str) -> Option<u64> {
    let text = text.replace('_', "");
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl Cause {
    /// The cause in words. Adds the symbol at the cause's address, if `symbols` has one.
    pub fn told(self, symbols: Option<&Symbols>) -> String {
        let address = match self {
            Cause::Breakpoint(address) | Cause::Watch { address, .. } => address,
            _ => return self.to_string(),
        };
        match symbols.and_then(|symbols| symbols.name_of(address)) {
            Some((name, 0)) => format!("{self} <{name}>"),
            Some((name, offset)) => format!("{self} <{name}+{offset:#x}>"),
            None => self.to_string(),
        }
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cause::Breakpoint(address) => write!(f, "at {address:#x}"),
            Cause::Watch { kind, address } => {
                let what = match kind {
                    WatchKind::Read => "read of",
                    WatchKind::Write => "write to",
                    WatchKind::Access => "access to",
                };
                write!(f, "{what} {address:#x}")
            }
            Cause::SystemCall(number) => match usize::try_from(*number).ok().and_then(Sysno::new) {
                Some(call) => write!(f, "system call {number} ({})", call.name()),
                None => write!(f, "system call {number}"),
            },
            Cause::Vector(vector) => write!(f, "vector {vector}"),
            Cause::Return => f.write_str("return from a handler or system call"),
            Cause::Turn => f.write_str("end of a processor's turn"),
            Cause::Console(_) => f.write_str("the text on the console"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_notation_is_read() {
        let stops = |text: &str| text.parse::<Condition>().unwrap().0;
        assert_eq!(stops("break:0xffff_ffff_8100_0000").breakpoints, [Breakpoint::at(0xffff_ffff_8100_0000)]);
        let watch = stops("change-phys:4096+8").watches[0];
        let point =
            Watchpoint { space: AddressKind::Physical, address: 4096, length: 8, kind: WatchKind::Write };
        assert_eq!(watch, Watch { point, changes_only: true, comparison: None });
        assert_eq!(stops("read:0x10").watches[0].point.length, 1);
        assert_eq!(stops("read:0xfffffffffffffff8+8").watches[0].point.length, 8);
        assert_eq!(stops("syscall"), Stops::system_call(None));
        assert_eq!(stops("syscall-nr:39"), Stops::system_call(Some(39)));
        assert_eq!(stops("vector:14").traps.vectors.into_iter().collect::<Vec<_>>(), [14]);
        assert_eq!(stops("console:login: ").console.unwrap(), b"login: ");
        let unknown = "write:nowhere+8".parse::<Condition>().unwrap_err();
        assert!(unknown.contains("'nowhere' is neither"), "{unknown}");
        for text in [
            "",
            "break",
            "break:x",
            "break:x*",
            "write:1+0",
            "vector:256",
            "console:",
            "syscall:x",
            "write:1+2+3",
            "write:1+3 == 0",
            "write:1 = 0",
            "write:1 ==",
            "read:0xffffffffffffffff+9",
        ] {
            assert!(text.parse::<Condition>().is_err(), "{text}");
        }
    }

    /// Functions `read_one` and `read_two`, and a variable of four bytes.
    struct Some3;

    impl Names for Some3 {
        fn named(&self, name: &str) -> Option<(u64, u64)> {
            [("read_one", 0x100), ("read_two", 0x200), ("flag", 0x300)]
                .into_iter()
                .find_map(|(known, at)| (known == name).then_some((at, 4)))
        }
        fn functions_like(&self, pattern: &str) -> BTreeSet<u64> {
            let names = ["read_one", "read_two"].into_iter();
            names
                .filter(|name| WildMatch::new(pattern).matches(name))
                .map(|name| self.named(name).unwrap().0)
                .collect()
        }
    }

    #[test]
    fn names_offsets_and_patterns_are_places() {
        let stops = |text: &str| Condition::parse(text, &Some3).unwrap().0;
        let breaks =
            |text: &str| stops(text).breakpoints.iter().map(|point| point.address).collect::<Vec<_>>();
        assert_eq!(breaks("break:read_two"), [0x200]);
        assert_eq!(breaks("break:read_two+0x10"), [0x210]);
        assert_eq!(breaks("break:4096+16"), [4112]);
        assert_eq!(breaks("break:read_*"), [0x100, 0x200]);
        let range = |text: &str| {
            let point = stops(text).watches[0].point;
            (point.address, point.length)
        };
        assert_eq!((range("write:flag"), range("write:flag+2")), ((0x300, 1), (0x300, 2)));
        assert_eq!(range("write:flag+0x20+2"), (0x320, 2));
        let refused = |text: &str| Condition::parse(text, &Some3).unwrap_err();
        assert!(refused("break:write_*").contains("no function of the guest's kernel matches 'write_*'"));
        assert!(refused("break:flags").starts_with("'flags' is neither"));
        assert!(refused("write:0x300+4+4").contains("is no condition"));
    }

    #[test]
    fn values_are_compared_with_what_has_been_written() {
        let watch = |text: &str| Condition::parse(text, &Some3).unwrap().0.watches[0];
        for (sign, relation, holding) in [
            ("==", Relation::Equal, [false, true, false]),
            ("!=", Relation::Different, [true, false, true]),
            ("<", Relation::Less, [true, false, false]),
            ("<=", Relation::AtMost, [true, true, false]),
            (">", Relation::Greater, [false, false, true]),
            (">=", Relation::AtLeast, [false, true, true]),
        ] {
            let comparison = watch(&format!("write:flag {sign} 0x10")).comparison.unwrap();
            assert_eq!(comparison, Comparison { relation, value: 16 });
            assert_eq!([15, 16, 17].map(|value| comparison.holds(value)), holding, "{sign}");
        }
        assert_eq!(watch("write:flag==0").point.length, 4, "as long as what has the name");
        assert_eq!(watch("change-phys:0x1000+8 > 1").point.length, 8);
    }

    #[test]
    fn system_calls_have_names() {
        let numbers = |text: &str| match text.parse::<Condition>().unwrap().0.traps.system_calls {
            SystemCalls::Numbered(numbers) => numbers.into_iter().collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!((numbers("syscall:execve"), numbers("syscall:59")), (vec![59], vec![59]));
        assert_eq!(numbers("syscall:execve*"), [59, 322]);
        assert!(
            "syscall:execute".parse::<Condition>().unwrap_err().starts_with("'execute' is no system call")
        );
    }

    #[test]
    fn who_writes_nonsense_is_told_what_is_wrong_with_it() {
        let refused = |text: &str| text.parse::<Condition>().unwrap_err();
        for (text, name) in [("break:x", "x"), ("change-phys:y+8", "y"), ("access:z", "z")] {
            let told = refused(text);
            assert!(told.starts_with(&format!("'{name}' is neither a number nor a symbol")), "{told}");
        }
        for text in ["write:", "write:1+0", "vector:x", "syscall-nr:x", "nonsense:x", "nonsense", "console:"]
        {
            let told = refused(text);
            assert!(told.starts_with(&format!("'{text}' is no condition: write break:ADDR")), "{told}");
        }
    }

    #[test]
    fn every_cause_is_told_in_words() {
        let watch = |kind| Cause::Watch { kind, address: 0x1f };
        for (cause, words) in [
            (Cause::Breakpoint(0x10), "at 0x10"),
            (watch(WatchKind::Read), "read of 0x1f"),
            (watch(WatchKind::Write), "write to 0x1f"),
            (watch(WatchKind::Access), "access to 0x1f"),
            (Cause::SystemCall(39), "system call 39 (getpid)"),
            (Cause::SystemCall(u64::MAX), "system call 18446744073709551615"),
            (Cause::Vector(14), "vector 14"),
            (Cause::Console(1), "the text on the console"),
        ] {
            assert_eq!(cause.to_string(), words);
        }
    }
}

//! What to search for, as a person writes it.

use cpu::{AddressKind, Traps, WatchKind, Watchpoint};

use super::stops::{Breakpoint, Cause, Stops, Watch};

/// What the notation can be.
pub const CONDITIONS: &str = "break:ADDR, write:ADDR[+LEN], read:ADDR[+LEN], access:ADDR[+LEN], change:ADDR[+LEN] (each also with \
     -phys, as in write-phys:ADDR), syscall, syscall-nr:N, vector:N, console:TEXT";

/// A condition, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition(pub Stops);

impl std::str::FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Condition, String> {
        Condition::parse(text, |_| None)
    }
}

impl Condition {
    /// Reads the notation; `address_of` knows the addresses of names.
    pub fn parse(text: &str, address_of: impl Fn(&str) -> Option<u64>) -> Result<Condition, String> {
        let place = |text: &str| number(text).or_else(|| address_of(text));
        let bad = || format!("'{text}' is no condition: write {CONDITIONS}");
        let (word, rest) = text.split_once(':').unwrap_or((text, ""));
        let (kind, space) = match word.strip_suffix("-phys") {
            Some(kind) => (kind, AddressKind::Physical),
            None => (word, AddressKind::Linear),
        };
        let watch = |kind, changes_only| {
            let (address, length) = rest.split_once('+').unwrap_or((rest, "1"));
            let (address, length) = (place(address)?, number(length)?);
            address.checked_add(length.checked_sub(1)?)?;
            let point = Watchpoint { space, address, length, kind };
            Some(Stops { watches: vec![Watch { point, changes_only }], ..Stops::default() })
        };
        let stops = match kind {
            "break" => place(rest).map(|address| Stops {
                breakpoints: vec![Breakpoint { space, address }],
                ..Stops::default()
            }),
            "write" => watch(WatchKind::Write, false),
            "read" => watch(WatchKind::Read, false),
            "access" => watch(WatchKind::Access, false),
            "change" => watch(WatchKind::Write, true),
            "syscall" if text == "syscall" => Some(Stops::system_call(None)),
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
        let place_of = rest.split_once('+').map_or(rest, |(place, _)| place);
        let named = ["break", "write", "read", "access", "change"].contains(&kind) && !place_of.is_empty();
        let unknown = || format!("'{place_of}' is neither a number nor a symbol of the guest's kernel");
        let is_unknown = named && place(place_of).is_none();
        stops.map(Condition).ok_or_else(|| if is_unknown { unknown() } else { bad() })
    }
}

/// A number, in hexadecimal with 0x before it.
pub fn number(text: &str) -> Option<u64> {
    let text = text.replace('_', "");
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
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
            Cause::SystemCall(number) => write!(f, "system call {number}"),
            Cause::Vector(vector) => write!(f, "vector {vector}"),
            Cause::Console => f.write_str("the text on the console"),
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
        assert_eq!(watch, Watch { point, changes_only: true });
        assert_eq!(stops("read:0x10").watches[0].point.length, 1);
        assert_eq!(stops("read:0xfffffffffffffff8+8").watches[0].point.length, 8);
        assert_eq!(stops("syscall"), Stops::system_call(None));
        assert_eq!(stops("syscall-nr:39"), Stops::system_call(Some(39)));
        assert_eq!(stops("vector:14").traps.vectors.into_iter().collect::<Vec<_>>(), [14]);
        assert_eq!(stops("console:login: ").console.unwrap(), b"login: ");
        let named = Condition::parse("break:panic", |name| (name == "panic").then_some(7)).unwrap();
        assert_eq!(named.0.breakpoints, [Breakpoint::at(7)]);
        let unknown = "write:nowhere+8".parse::<Condition>().unwrap_err();
        assert!(unknown.contains("'nowhere' is neither"), "{unknown}");
        for text in [
            "",
            "break",
            "break:x",
            "write:1+0",
            "vector:256",
            "console:",
            "syscall:x",
            "read:0xffffffffffffffff+9",
        ] {
            assert!(text.parse::<Condition>().is_err(), "{text}");
        }
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
            (Cause::SystemCall(39), "system call 39"),
            (Cause::Vector(14), "vector 14"),
            (Cause::Console, "the text on the console"),
        ] {
            assert_eq!(cause.to_string(), words);
        }
    }
}

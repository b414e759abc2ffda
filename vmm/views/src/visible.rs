//! Makes text from strangers safe for a terminal: shows control characters instead of sending them.
//!
//! Paths, command lines, console output, names of threads and symbols come from recordings that anyone may have made. A
//! terminal obeys escape sequences in such text. Escape sequences move the cursor, overwrite lines, set the title, or
//! send an answer as if the user had typed it. So all printed text passes through this module. In JSON, a control
//! character becomes its JSON escape, so the text stays valid JSON.

use std::borrow::Cow;
use std::fmt::Write;

/// The text with control characters shown as escapes, like `\u001b`. Line feeds and tabs stay. A carriage return stays
/// before a line feed and at the end. Characters that change the direction of writing become escapes, too.
pub fn visible(text: &str) -> Cow<'_, str> {
    shown(text, |character, rest| match character {
        '\n' | '\t' => true,
        '\r' => rest.is_empty() || rest.starts_with('\n'),
        other => !steers(other),
    })
}

/// As [`visible`], for a text that is a part of a line. Line feeds become escapes too, so that the text cannot begin
/// another line.
pub fn in_a_line(text: &str) -> Cow<'_, str> {
    shown(text, |character, _| !steers(character))
}

/// Replaces the characters for which `stays` is false. `stays` also gets the text after each character.
fn shown<'a>(text: &'a str, stays: impl Fn(char, &str) -> bool) -> Cow<'a, str> {
    let rest_of = |at: usize, character: char| &text[at + character.len_utf8()..];
    if text.char_indices().all(|(at, character)| stays(character, rest_of(at, character))) {
        return Cow::Borrowed(text);
    }
    let mut all = String::with_capacity(text.len() + 16);
    for (at, character) in text.char_indices() {
        if stays(character, rest_of(at, character)) {
            all.push(character);
        } else {
            // All these characters are below U+10000, so four digits suffice.
            let _ = write!(all, "\\u{:04x}", u32::from(character));
        }
    }
    Cow::Owned(all)
}

/// Whether a terminal may take a character for a command, or shows the text after the character in another order.
fn steers(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Console output that comes in pieces, as text for a terminal. Besides line feeds and tabs, backspaces and carriage
/// returns stay, because they only move the cursor within a line.
#[derive(Debug, Default)]
pub struct VisibleConsole {
    /// The first bytes of a character whose other bytes have not come yet.
    begun: Vec<u8>,
}

impl VisibleConsole {
    /// Makes the next piece of output visible text.
    pub fn show(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        let mut text = String::new();
        for chunk in all.utf8_chunks() {
            text += &shown(chunk.valid(), |character, _| {
                matches!(character, '\n' | '\t' | '\r' | '\u{8}') || !steers(character)
            });
            let invalid = chunk.invalid();
            let is_last = invalid.as_ptr_range().end == all.as_ptr_range().end;
            match str::from_utf8(invalid) {
                Err(error) if is_last && error.error_len().is_none() => self.begun = invalid.to_vec(),
                Err(_) => text.push(char::REPLACEMENT_CHARACTER),
                Ok(_) => {}
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_shown() {
        for (text, expected) in [
            ("plain\ttext\nünïcode 字\r\n", "plain\ttext\nünïcode 字\r\n"),
            ("\x1b[2J\x07", "\\u001b[2J\\u0007"),
            ("at\rtack", "at\\u000dtack"),
            ("end\r", "end\r"),
            ("\x7f\u{9b}31m\0", "\\u007f\\u009b31m\\u0000"),
            ("a\u{202e}b\u{2066}c\u{200f}", "a\\u202eb\\u2066c\\u200f"),
        ] {
            assert_eq!(visible(text), expected, "{text:?}");
        }
        assert_eq!(in_a_line("two\nlines\t"), "two\\u000alines\\u0009");
        assert!(matches!(visible("as it is"), Cow::Borrowed(_)));
    }

    #[test]
    fn json_stays_json() {
        let hostile = "\x1b]0;title\x07\u{9b}31m\x7f\u{202e}\n\r\t\"\\";
        let text = visible(&serde_json::to_string_pretty(&[hostile]).unwrap()).into_owned();
        assert!(!text.contains(['\x1b', '\u{9b}', '\x7f', '\u{202e}', '\r']), "{text:?}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), [hostile]);
    }

    #[test]
    fn pieces_of_the_console_come_to_the_same_wherever_they_are_cut() {
        let bytes = "ü\x1b[1m\u{9b}2K字\r\n".as_bytes();
        let bytes: Vec<u8> = bytes.iter().copied().chain([0x9b, b'x', 0xe5]).collect();
        let whole = VisibleConsole::default().show(&bytes);
        assert_eq!(whole, "ü\\u001b[1m\\u009b2K字\r\n\u{fffd}x");
        for cut in 0..=bytes.len() {
            let mut console = VisibleConsole::default();
            assert_eq!(console.show(&bytes[..cut]) + &console.show(&bytes[cut..]), whole, "{cut}");
        }
        let mut console = VisibleConsole::default();
        let single: String = bytes.iter().map(|&byte| console.show(&[byte])).collect();
        assert_eq!(single, whole);
    }
}

//! VMCOREINFO: a Linux kernel's description of itself for tools that read its memory from outside. VMCOREINFO
//! is an ELF note, and the kernel keeps it in its own page.
//!
//! Follows Linux 6.1 to 7.2: `kernel/crash_core.c` (later `kernel/vmcore_info.c`) and
//! `Documentation/admin-guide/kdump/vmcoreinfo.rst`.

use super::guest_view::{GuestView, KernelView};
use super::symbols::Symbols;

/// The note's name in an ELF file.
pub const NAME: &str = "VMCOREINFO";
/// Bytes before the text. A note begins with the size of its name, the size of its contents, and its type, which is
/// zero here. The NUL-terminated name follows, padded to four bytes.
const HEADER_BYTES: usize = 12 + 12;
/// The beginning of the text in every kernel.
const BEGINNING: &[u8] = b"OSRELEASE=";
/// The largest size of the text in bytes. The kernel limits the text to a page.
const MAX_BYTES: usize = 4096;

/// The text in the note of the kernel with these symbols.
pub fn of_kernel(guest: &dyn GuestView, symbols: &Symbols) -> Option<Vec<u8>> {
    let pointer = symbols.address_of("vmcoreinfo_note")?;
    KernelView::all(guest).find_map(|view| {
        let note = view.number::<8>(pointer)?;
        let mut bytes = vec![0; HEADER_BYTES + MAX_BYTES];
        let count = view.read(note, &mut bytes);
        in_note(&bytes[..count]).map(<[u8]>::to_vec)
    })
}

/// The note's text, if these bytes begin with the note.
pub fn in_note(bytes: &[u8]) -> Option<&[u8]> {
    let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
    let word = |number: usize| Some(u32::from_le_bytes(*header.get(4 * number..)?.first_chunk()?) as usize);
    let is_named = header[12..].strip_prefix(NAME.as_bytes()).is_some_and(|end| end[0] == 0);
    if word(0)? != NAME.len() + 1 || word(2)? != 0 || !is_named {
        return None;
    }
    let text = rest.get(..word(1)?.min(MAX_BYTES))?;
    text.starts_with(BEGINNING).then_some(text)
}

/// The value of a line `KEY=VALUE` of the text.
pub fn value<'a>(text: &'a [u8], key: &str) -> Option<&'a str> {
    let lines = str::from_utf8(text).ok()?.lines();
    lines.filter_map(|line| line.split_once('=')).find_map(|(name, value)| (name == key).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(text: &[u8], name: &[u8; 12], kind: u32) -> Vec<u8> {
        let words = [11, text.len() as u32, kind].map(u32::to_le_bytes).concat();
        [&words[..], &name[..], text].concat()
    }

    #[test]
    fn a_note_is_read_and_nothing_else_is() {
        let text = b"OSRELEASE=6.1.0\nPAGESIZE=4096\nSYMBOL(_stext)=ffffffff81000000\n";
        let good = note(text, b"VMCOREINFO\0\0", 0);
        assert_eq!(in_note(&[&good[..], b"more"].concat()), Some(&text[..]));
        assert_eq!(value(text, "PAGESIZE"), Some("4096"));
        assert_eq!(value(text, "SYMBOL(_stext)"), Some("ffffffff81000000"));
        assert_eq!(value(text, "SYMBOL"), None);
        for bad in [
            note(text, b"VMCOREINFX\0\0", 0),
            note(text, b"VMCOREINFOX\0", 0),
            note(text, b"VMCOREINFO\0\0", 1),
            note(b"something else", b"VMCOREINFO\0\0", 0),
            good[..good.len() - 1].to_vec(),
            good[..20].to_vec(),
        ] {
            assert_eq!(in_note(&bad), None, "{bad:?}");
        }
    }
}

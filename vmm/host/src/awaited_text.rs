//! Waits for a text on the guest's console.

/// Detects a text in the output of the guest's console.
pub struct AwaitedText {
    wanted: Vec<u8>,
    /// The last printed bytes: one byte fewer than the awaited text has.
    tail: Vec<u8>,
    shown: bool,
}

impl AwaitedText {
    /// Waits for `text`, which must not be empty.
    pub fn new(text: &str) -> AwaitedText {
        AwaitedText { wanted: text.as_bytes().to_vec(), tail: Vec::new(), shown: false }
    }

    /// Looks for the text in the next printed bytes.
    pub fn look_at(&mut self, bytes: &[u8]) {
        self.tail.extend(bytes);
        self.shown |= self.tail.windows(self.wanted.len().max(1)).any(|window| window == self.wanted);
        self.tail.drain(..self.tail.len().saturating_sub(self.wanted.len().saturating_sub(1)));
    }

    /// Whether the text has been printed.
    pub fn was_shown(&self) -> bool {
        self.shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_in_pieces_too() {
        for (pieces, at) in [
            (["login: ", "", ""], Some(0)),
            (["lo", "gin", ": "], Some(2)),
            (["lologi", "login", ":login:"], Some(2)),
            (["login", " : lo", "gin"], None),
        ] {
            let mut text = AwaitedText::new("login:");
            let found = pieces.iter().position(|piece| {
                text.look_at(piece.as_bytes());
                text.was_shown()
            });
            assert_eq!(found, at, "{pieces:?}");
        }
    }
}

//! Packets as bytes: `$body#checksum`, the acknowledgements around them, and the single byte that ^C sends.
//!
//! The module does not know what packets mean. See "Overview" in the gdb manual's remote protocol appendix.

/// The byte that gdb sends for ^C while the target runs. Within a packet this byte is ordinary data.
const INTERRUPT: u8 = 0x03;

/// The longest accepted packet, including `$`, `#` and checksum, in bytes.
///
/// gdb asks for memory in pieces of half this size. By default gdb uses at most 16 KiB.
pub(crate) const MAX_PACKET_BYTES: usize = 0x4000;

/// Bytes of a packet that are not its body.
const FRAME_BYTES: usize = 4;

/// A complete item from the client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The body of a packet with a correct checksum.
    Packet(Vec<u8>),
    /// A packet with a wrong checksum.
    Damaged,
    /// A packet longer than `MAX_PACKET_BYTES`. The packet's content is lost.
    TooLong,
    /// ^C.
    Interrupt,
    /// The client has received our last packet with a wrong checksum (`-`).
    Resend,
}

enum State {
    /// Between packets.
    Idle,
    /// After `$`.
    Body,
    /// After `#`.
    FirstDigit,
    /// After the checksum's first digit, which is `None` if it was invalid.
    SecondDigit(Option<u8>),
}

/// Splits a stream of bytes into events.
pub(crate) struct Framer {
    state: State,
    body: Vec<u8>,
    sum: u8,
    too_long: bool,
}

impl Framer {
    pub(crate) fn new() -> Self {
        Self { state: State::Idle, body: Vec::new(), sum: 0, too_long: false }
    }

    /// Takes one byte. Returns an event if the byte completes one, otherwise `None`.
    pub(crate) fn push(&mut self, byte: u8) -> Option<Event> {
        match (&self.state, byte) {
            // A new packet starts here even if the last one never ended, because data bytes escape the dollar sign.
            (_, b'$') => self.start(),
            (State::Idle, INTERRUPT) => return Some(Event::Interrupt),
            (State::Idle, b'-') => return Some(Event::Resend),
            // Ignore acknowledgements and noise.
            (State::Idle, _) => {}
            (State::Body, b'#') => self.state = State::FirstDigit,
            (State::Body, _) => self.append(byte),
            (State::FirstDigit, _) => self.state = State::SecondDigit(hex_digit(byte)),
            (&State::SecondDigit(high), _) => return Some(self.finish(high, hex_digit(byte))),
        }
        None
    }

    fn start(&mut self) {
        self.state = State::Body;
        self.body.clear();
        self.sum = 0;
        self.too_long = false;
    }

    fn append(&mut self, byte: u8) {
        self.sum = self.sum.wrapping_add(byte);
        if self.body.len() < MAX_PACKET_BYTES - FRAME_BYTES {
            self.body.push(byte);
        } else {
            self.too_long = true;
        }
    }

    fn finish(&mut self, high: Option<u8>, low: Option<u8>) -> Event {
        self.state = State::Idle;
        let expected = high.zip(low).map(|(high, low)| high << 4 | low);
        match expected {
            _ if self.too_long => Event::TooLong,
            Some(sum) if sum == self.sum => Event::Packet(std::mem::take(&mut self.body)),
            _ => Event::Damaged,
        }
    }
}

/// Appends a packet with this body to `out`. Special bytes of the body must already be escaped.
pub(crate) fn encode_into(out: &mut Vec<u8>, body: &[u8]) {
    let sum = body.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    out.push(b'$');
    out.extend_from_slice(body);
    out.push(b'#');
    push_hex(out, sum);
}

/// Appends a packet that makes gdb print `text`. gdb listens for such packets only while it waits for a stop or a
/// `monitor` command.
pub(crate) fn encode_console_into(out: &mut Vec<u8>, text: &str) {
    let mut body = vec![b'O'];
    text.bytes().for_each(|byte| push_hex(&mut body, byte));
    encode_into(out, &body);
}

/// Appends an error reply with a text, which gdb shows for most requests. Replaces characters that have a meaning in
/// packets by `?`.
pub(crate) fn encode_error_into(out: &mut Vec<u8>, sentence: &str) {
    let plain = |c: char| if matches!(c, ' '..='~') && !"$#}*".contains(c) { c } else { '?' };
    let body: String = "E.".chars().chain(sentence.chars().map(plain)).collect();
    encode_into(out, body.as_bytes());
}

fn push_hex(out: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.push(DIGITS[usize::from(byte >> 4)]);
    out.push(DIGITS[usize::from(byte & 15)]);
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(bytes: &[u8]) -> Vec<Event> {
        let mut framer = Framer::new();
        bytes.iter().filter_map(|byte| framer.push(*byte)).collect()
    }

    fn packet(body: &[u8]) -> Event {
        Event::Packet(body.to_vec())
    }

    #[test]
    fn bytes_become_events() {
        let table: [(&[u8], Vec<Event>); 10] = [
            (b"$g#67", vec![packet(b"g")]),
            (b"+$?#3f+", vec![packet(b"?")]),
            (b"$#00", vec![packet(b"")]),
            (b"$g#68", vec![Event::Damaged]),
            (b"$g#zz$g#67", vec![Event::Damaged, packet(b"g")]),
            (b"\x03-\x03", vec![Event::Interrupt, Event::Resend, Event::Interrupt]),
            // Within a packet, ^C's byte is data.
            (b"$X\x03#5b\x03", vec![packet(b"X\x03"), Event::Interrupt]),
            // A packet that breaks off is dropped.
            (b"$vCont;c$g#67", vec![packet(b"g")]),
            (b"$g#$g#67", vec![packet(b"g")]),
            (b"noise", vec![]),
        ];
        for (bytes, expected) in table {
            assert_eq!(events(bytes), expected, "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn the_longest_packet_is_accepted_and_a_longer_one_is_not() {
        for (excess, accepted) in [(0, true), (1, false)] {
            let body = vec![b'a'; MAX_PACKET_BYTES - FRAME_BYTES + excess];
            let mut bytes = Vec::new();
            encode_into(&mut bytes, &body);
            let expected = if accepted { Event::Packet(body) } else { Event::TooLong };
            assert_eq!(events(&bytes), [expected]);
        }
    }

    #[test]
    fn replies_are_framed() {
        let mut out = Vec::new();
        encode_console_into(&mut out, "hi\n");
        encode_error_into(&mut out, "not $5 é");
        assert_eq!(events(&out), [packet(b"O68690a"), packet(b"E.not ?5 ?")]);
    }
}

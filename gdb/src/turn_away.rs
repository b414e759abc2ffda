//! Tells a client why it gets no session.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use crate::frame::{Event, Framer, encode_error_into};
use crate::listener::Stream;

/// How long one read waits for a client. gdb sends its first request at once, and hangs up at once after an error.
const PATIENCE: Duration = Duration::from_secs(1);
/// The largest number of reads of up to [`CHUNK_BYTES`] before the server hangs up on a client that keeps sending.
const MAX_READS: usize = 8;
const CHUNK_BYTES: usize = 4096;

/// Answers a client's first request with this sentence, which gdb prints, and hangs up. Also hangs up on a client that
/// sends nothing.
pub fn turn_away(mut stream: Stream, sentence: &str) {
    // A client that has gone in the meantime need not be told.
    let _ = tell(&mut stream, sentence);
}

fn tell(stream: &mut Stream, sentence: &str) -> io::Result<()> {
    stream.set_patience(PATIENCE)?;
    let mut framer = Framer::new();
    let mut asks = |byte: &u8| matches!(framer.push(*byte), Some(Event::Packet(_)));
    if read_until(stream, &mut |chunk| chunk.iter().any(&mut asks))? {
        let mut reply = vec![b'+'];
        encode_error_into(&mut reply, sentence);
        stream.write_all(&reply)?;
    }
    stream.shutdown(Shutdown::Write)?;
    // Closing a connection with unread input also discards output that the client has not read yet: tcp(7).
    read_until(stream, &mut |_| false)?;
    Ok(())
}

/// Reads until `is_last` accepts a chunk. Returns whether `is_last` accepted a chunk.
fn read_until(stream: &mut Stream, is_last: &mut dyn FnMut(&[u8]) -> bool) -> io::Result<bool> {
    let mut chunk = [0; CHUNK_BYTES];
    for _ in 0..MAX_READS {
        match stream.read(&mut chunk)? {
            0 => return Ok(false),
            length if is_last(&chunk[..length]) => return Ok(true),
            _ => {}
        }
    }
    Ok(false)
}

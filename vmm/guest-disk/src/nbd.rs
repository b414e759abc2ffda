//! Serves a disk by NBD, the protocol for block devices over a network. The disk can only be read.
//!
//! ```text
//!   client                                    server
//!                                        ◄──  greeting: the protocol's magic numbers and flags
//!   flags                                ──►
//!   options, such as INFO, LIST and GO   ──► ◄── replies
//!   GO (or EXPORT_NAME)                  ──► ◄── the disk's size
//!   READ (cookie, offset, length)        ──► ◄── cookie and bytes
//!   DISCONNECT                           ──►
//! ```
//!
//! The server knows the fixed newstyle handshake and simple replies, which all clients know. The server refuses writes,
//! encryption and structured replies as the specification says: `doc/proto.md` of the NBD project. A client may be
//! hostile: every length has a bound, and a client that breaks the protocol loses its connection.

use std::io::{self, ErrorKind, Read, Write};

use crate::source::{ByteSource, check, field};

const GREETING: [u8; 8] = *b"NBDMAGIC";
const OPTION: [u8; 8] = *b"IHAVEOPT";
const REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;

/// Flags of the handshake, the same in both directions: the fixed newstyle, and no zeroes after EXPORT_NAME's reply.
const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;
/// Flags of the disk: these flags count, the disk is only read, and several connections see the same disk.
const DISK_FLAGS: u16 = 1 | 1 << 1 | 1 << 8;

/// The largest number of options that a client may send.
const MOST_OPTIONS: usize = 100;
/// The largest size in bytes of an option's data.
const MOST_OPTION_BYTES: u32 = 1 << 16;
/// The largest size in bytes of a request, which clients know from the specification.
const MOST_REQUEST_BYTES: u32 = 32 << 20;
/// The size of reads that suits the disk: its blocks.
const PREFERRED_BYTES: u32 = 4096;

mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
}

mod reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const UNSUPPORTED: u32 = 1 << 31 | 1;
    pub const INVALID: u32 = 1 << 31 | 3;
    pub const UNKNOWN: u32 = 1 << 31 | 6;
}

mod info {
    pub const EXPORT: u16 = 0;
    pub const BLOCK_SIZE: u16 = 3;
}

mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISCONNECT: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
}

/// Error numbers in replies, which are Linux' numbers.
mod errno {
    pub const EPERM: u32 = 1;
    pub const EIO: u32 = 5;
    pub const EINVAL: u32 = 22;
}

/// Serves one client until it disconnects. The disk is the only export, and its name is empty.
///
/// # Errors
///
/// If the connection fails, or the client breaks the protocol.
pub fn serve<C: Read + Write, S: ByteSource>(client: &mut C, disk: &mut S) -> io::Result<()> {
    if shake_hands(client, disk)? { answer(client, disk) } else { Ok(()) }
}

/// The handshake. Returns false if the client ended it.
fn shake_hands<C: Read + Write, S: ByteSource>(client: &mut C, disk: &S) -> io::Result<bool> {
    let mut greeting = [GREETING, OPTION].concat();
    greeting.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    client.write_all(&greeting)?;
    let flags = u32::from_be_bytes(read(client)?);
    if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
        return Err(broken("it has unknown flags"));
    }
    for _ in 0..MOST_OPTIONS {
        let header: [u8; 16] = read(client)?;
        let (number, length) =
            (u32::from_be_bytes(field(&header, 8)), u32::from_be_bytes(field(&header, 12)));
        if header[..8] != OPTION || length > MOST_OPTION_BYTES {
            return Err(broken("its option is malformed"));
        }
        let mut data = vec![0; length as usize];
        client.read_exact(&mut data)?;
        match number {
            option::EXPORT_NAME if data.is_empty() => {
                let mut export = export(disk);
                if flags & u32::from(NO_ZEROES) == 0 {
                    export.extend([0; 124]);
                }
                client.write_all(&export)?;
                return Ok(true);
            }
            // This option has no reply for errors.
            option::EXPORT_NAME => return Err(broken("it wants a disk with a name, and the disk has none")),
            option::ABORT => {
                send_reply(client, number, reply::ACK, &[])?;
                return Ok(false);
            }
            option::LIST if data.is_empty() => {
                send_reply(client, number, reply::SERVER, &0_u32.to_be_bytes())?;
                send_reply(client, number, reply::ACK, &[])?;
            }
            option::INFO | option::GO => match wanted_name(&data) {
                Some([]) => {
                    send_infos(client, number, disk)?;
                    if number == option::GO {
                        return Ok(true);
                    }
                }
                Some(_) => send_reply(client, number, reply::UNKNOWN, b"the disk's name is empty")?,
                None => send_reply(client, number, reply::INVALID, &[])?,
            },
            option::LIST => send_reply(client, number, reply::INVALID, &[])?,
            _ => send_reply(client, number, reply::UNSUPPORTED, &[])?,
        }
    }
    Err(broken("it sends too many options"))
}

/// The name in the data of INFO and GO; `None` if the data is malformed.
fn wanted_name(data: &[u8]) -> Option<&[u8]> {
    let (length, rest) = data.split_first_chunk::<4>()?;
    let (name, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    let (requests, rest) = rest.split_first_chunk::<2>()?;
    (rest.len() == 2 * usize::from(u16::from_be_bytes(*requests))).then_some(name)
}

/// The size and the flags of the disk.
fn export<S: ByteSource>(disk: &S) -> Vec<u8> {
    let mut bytes = disk.size_bytes().to_be_bytes().to_vec();
    bytes.extend(DISK_FLAGS.to_be_bytes());
    bytes
}

fn send_infos<C: Write, S: ByteSource>(client: &mut C, number: u32, disk: &S) -> io::Result<()> {
    let about_disk = [info::EXPORT.to_be_bytes().to_vec(), export(disk)].concat();
    send_reply(client, number, reply::INFO, &about_disk)?;
    let mut about_sizes = info::BLOCK_SIZE.to_be_bytes().to_vec();
    [1, PREFERRED_BYTES, MOST_REQUEST_BYTES].iter().for_each(|size| about_sizes.extend(size.to_be_bytes()));
    send_reply(client, number, reply::INFO, &about_sizes)?;
    send_reply(client, number, reply::ACK, &[])
}

fn send_reply<C: Write>(client: &mut C, number: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    let mut bytes = REPLY.to_be_bytes().to_vec();
    [number, kind, data.len() as u32].iter().for_each(|word| bytes.extend(word.to_be_bytes()));
    bytes.extend(data);
    client.write_all(&bytes)
}

/// Answers requests until the client disconnects.
fn answer<C: Read + Write, S: ByteSource>(client: &mut C, disk: &mut S) -> io::Result<()> {
    loop {
        let request: [u8; 28] = match read(client) {
            // Some clients end without a request to disconnect.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        };
        if u32::from_be_bytes(field(&request, 0)) != REQUEST {
            return Err(broken("its request is malformed"));
        }
        let (flags, kind) = (u16::from_be_bytes(field(&request, 4)), u16::from_be_bytes(field(&request, 6)));
        let (cookie, offset) = (field::<8>(&request, 8), u64::from_be_bytes(field(&request, 16)));
        let length = u32::from_be_bytes(field(&request, 24));
        let result = match kind {
            command::DISCONNECT => return Ok(()),
            command::WRITE if length > MOST_REQUEST_BYTES => return Err(broken("its write is too long")),
            command::WRITE => {
                io::copy(&mut Read::by_ref(client).take(u64::from(length)), &mut io::sink())?;
                Err(errno::EPERM)
            }
            command::TRIM | command::WRITE_ZEROES => Err(errno::EPERM),
            command::FLUSH if flags == 0 => Ok(Vec::new()),
            command::READ if flags == 0 => bytes_of(disk, offset, length),
            _ => Err(errno::EINVAL),
        };
        let (error, bytes) = match result {
            Ok(bytes) => (0, bytes),
            Err(error) => (error, Vec::new()),
        };
        let mut head: [u8; 16] = [0; 16];
        head[..4].copy_from_slice(&SIMPLE_REPLY.to_be_bytes());
        head[4..8].copy_from_slice(&error.to_be_bytes());
        head[8..].copy_from_slice(&cookie);
        client.write_all(&head)?;
        client.write_all(&bytes)?;
    }
}

/// The bytes that a READ wants, or the error number for the reply.
fn bytes_of<S: ByteSource>(disk: &mut S, offset: u64, length: u32) -> Result<Vec<u8>, u32> {
    if length > MOST_REQUEST_BYTES || check(disk, offset, length as usize).is_err() {
        return Err(errno::EINVAL);
    }
    let mut bytes = vec![0; length as usize];
    disk.read_at(offset, &mut bytes).map_err(|_| errno::EIO)?;
    Ok(bytes)
}

fn read<const N: usize>(client: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The client breaks the protocol.
fn broken(how: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the client breaks the NBD protocol: {how}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use seeded::Rng;

    /// A client that has sent all its bytes before the server answers.
    struct Client {
        sent: io::Cursor<Vec<u8>>,
        got: Vec<u8>,
    }

    impl Read for Client {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            self.sent.read(to)
        }
    }

    impl Write for Client {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.got.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn disk() -> Vec<u8> {
        (0..4096_u32).map(|number| number as u8).collect()
    }

    /// The server's answer, and the end of the service.
    fn talk(sent: Vec<u8>) -> (Vec<u8>, io::Result<()>) {
        let mut client = Client { sent: io::Cursor::new(sent), got: Vec::new() };
        let end = serve(&mut client, &mut disk());
        (client.got, end)
    }

    fn option(number: u32, data: &[u8]) -> Vec<u8> {
        [&OPTION[..], &number.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
    }

    fn request(kind: u16, offset: u64, length: u32) -> Vec<u8> {
        let mut bytes = REQUEST.to_be_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(kind.to_be_bytes());
        bytes.extend(b"a cookie");
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes
    }

    const FLAGS: [u8; 4] = [0, 0, 0, 3];
    /// The data of GO: an empty name and no requests.
    const NO_NAME: [u8; 6] = [0; 6];

    /// The answer to one request after the handshake, without the answers of the handshake.
    fn ask(request: Vec<u8>) -> Vec<u8> {
        let hello = [FLAGS.to_vec(), option(option::GO, &NO_NAME)].concat();
        let (before, _) = talk(hello.clone());
        let (all, end) = talk([hello, request].concat());
        end.unwrap();
        all[before.len()..].to_vec()
    }

    fn reply_of(error: u32, bytes: &[u8]) -> Vec<u8> {
        [&SIMPLE_REPLY.to_be_bytes()[..], &error.to_be_bytes(), b"a cookie", bytes].concat()
    }

    #[test]
    fn the_handshake_names_the_size_and_says_that_the_disk_is_only_read() {
        let (got, end) = talk([FLAGS.to_vec(), option(option::EXPORT_NAME, b"")].concat());
        end.unwrap();
        assert_eq!(got, [b"NBDMAGICIHAVEOPT\0\x03".as_slice(), &4096_u64.to_be_bytes(), &[1, 3]].concat());
        let (got, end) = talk([[0, 0, 0, 1].to_vec(), option(option::EXPORT_NAME, b"")].concat());
        end.unwrap();
        assert_eq!(got.len(), 18 + 10 + 124);
        let (got, _) = talk([FLAGS.to_vec(), option(option::GO, &NO_NAME)].concat());
        let size = [&[0, 0][..], &4096_u64.to_be_bytes(), &[1, 3]].concat();
        assert!(got.windows(size.len()).any(|window| window == size), "{got:?}");
    }

    #[test]
    fn reads_have_the_disks_bytes_and_other_requests_an_error() {
        assert_eq!(ask(request(command::READ, 1000, 50)), reply_of(0, &disk()[1000..1050]));
        assert_eq!(ask(request(command::READ, 4095, 1)), reply_of(0, &[255]));
        for (offset, length) in [(4095, 2), (u64::MAX, 1), (0, MOST_REQUEST_BYTES + 1), (0, 4097)] {
            assert_eq!(ask(request(command::READ, offset, length)), reply_of(errno::EINVAL, &[]), "{offset}");
        }
        let write = [request(command::WRITE, 0, 3), b"new".to_vec()].concat();
        assert_eq!(ask(write), reply_of(errno::EPERM, &[]));
        assert_eq!(ask(request(command::TRIM, 0, 512)), reply_of(errno::EPERM, &[]));
        assert_eq!(ask(request(99, 0, 0)), reply_of(errno::EINVAL, &[]));
        assert!(ask(request(command::DISCONNECT, 0, 0)).is_empty());
    }

    #[test]
    fn a_client_that_breaks_the_protocol_loses_its_connection() {
        let too_many: Vec<u8> = (0..=MOST_OPTIONS).flat_map(|_| option(99, b"")).collect();
        for sent in [
            [FLAGS.to_vec(), b"GET / HTTP/1.1\r\n\r\n".to_vec()].concat(),
            [FLAGS.to_vec(), option(option::EXPORT_NAME, b"other")].concat(),
            [FLAGS.to_vec(), OPTION.to_vec(), vec![0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff]].concat(),
            [FLAGS.to_vec(), too_many].concat(),
            vec![0xff; 4],
        ] {
            let (_, end) = talk(sent);
            assert_eq!(end.unwrap_err().kind(), ErrorKind::InvalidData);
        }
    }

    /// The reply to an option.
    fn reply(number: u32, kind: u32, data: &[u8]) -> Vec<u8> {
        let words = [number, kind, data.len() as u32].map(u32::to_be_bytes).concat();
        [&[0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9][..], &words, data].concat()
    }

    /// The data of INFO and GO, with a name and the numbers of the wanted information.
    fn wanted(name: &[u8], numbers: &[u16]) -> Vec<u8> {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend(name);
        data.extend((numbers.len() as u16).to_be_bytes());
        numbers.iter().for_each(|number| data.extend(number.to_be_bytes()));
        data
    }

    /// The numbers are from the specification: 1 is ACK, 2 is SERVER, 3 is INFO; errors have bit 31.
    #[test]
    fn each_option_has_its_replies() {
        let greeting = b"NBDMAGICIHAVEOPT\0\x03".as_slice();
        let infos = |number| {
            let size = [&[0, 0][..], &4096_u64.to_be_bytes(), &[1, 3]].concat();
            let sizes = [0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0];
            [reply(number, 3, &size), reply(number, 3, &sizes), reply(number, 1, &[])].concat()
        };
        let error = |number: u32| 1 << 31 | number;
        let name_too_long = [&[0, 0, 0, 3][..], b"ab", &[0, 0]].concat();
        let cases = [
            (3, vec![], [reply(3, 2, &[0; 4]), reply(3, 1, &[])].concat()),
            (3, vec![0], reply(3, error(3), &[])),
            (6, wanted(b"", &[]), infos(6)),
            (6, wanted(b"", &[3, 0]), infos(6)),
            (6, wanted(b"other", &[0]), reply(6, error(6), b"the disk's name is empty")),
            (7, wanted(b"other", &[]), reply(7, error(6), b"the disk's name is empty")),
            (6, name_too_long, reply(6, error(3), &[])),
            (6, vec![0; 3], reply(6, error(3), &[])),
            (6, vec![0; 5], reply(6, error(3), &[])),
            (7, vec![0, 0, 0, 0, 0, 1], reply(7, error(3), &[])),
            (7, vec![0, 0, 0, 0, 0, 1, 0], reply(7, error(3), &[])),
            (7, vec![0; 7], reply(7, error(3), &[])),
            // TLS and structured replies.
            (5, vec![], reply(5, error(1), &[])),
            (8, vec![], reply(8, error(1), &[])),
            (99, vec![7; 1 << 16], reply(99, error(1), &[])),
        ];
        for (number, data, expected) in cases {
            // After each of these options, the client may send others.
            let sent = [FLAGS.to_vec(), option(number, &data), option(option::GO, &NO_NAME)].concat();
            let (got, end) = talk(sent);
            end.unwrap();
            assert_eq!(got, [greeting, &expected, &infos(7)].concat(), "option {number}, {data:x?}");
        }
        let sent = [FLAGS.to_vec(), option(2, &[]), request(command::READ, 0, 1)].concat();
        let (got, end) = talk(sent);
        end.unwrap();
        assert_eq!(got, [greeting, &reply(2, 1, &[])].concat(), "ABORT ends the connection");
    }

    #[test]
    fn a_client_may_send_a_hundred_options() {
        for (others, is_served) in [(99, true), (100, false)] {
            let sent =
                [FLAGS.to_vec(), option(99, b"").repeat(others), option(option::GO, &NO_NAME)].concat();
            let (_, end) = talk([sent, request(command::READ, 0, 1)].concat());
            assert_eq!(end.is_ok(), is_served);
        }
    }

    #[test]
    fn a_connection_may_end_between_requests_only() {
        let hello = [FLAGS.to_vec(), option(option::GO, &NO_NAME)].concat();
        for length in 0..hello.len() {
            let (_, end) = talk(hello[..length].to_vec());
            assert_eq!(end.unwrap_err().kind(), ErrorKind::UnexpectedEof, "{length}");
        }
        talk(hello).1.unwrap();
    }

    #[test]
    fn requests_have_limits_and_no_flags() {
        let flagged = |kind| {
            let mut bytes = request(kind, 0, 1);
            bytes[5] = 1;
            bytes
        };
        assert_eq!(ask(flagged(command::READ)), reply_of(errno::EINVAL, &[]));
        assert_eq!(ask(flagged(command::FLUSH)), reply_of(errno::EINVAL, &[]));
        assert_eq!(ask(request(command::FLUSH, 0, 0)), reply_of(0, &[]));
        assert_eq!(ask(request(command::WRITE_ZEROES, 0, 512)), reply_of(errno::EPERM, &[]));
        assert_eq!(ask(request(command::READ, 0, 4096)), reply_of(0, &disk()));
        // A write's data is skipped, so the next request is found.
        let both = [request(command::WRITE, 0, 30), vec![0x25; 30], request(command::READ, 3, 2)].concat();
        assert_eq!(ask(both), [reply_of(errno::EPERM, &[]), reply_of(0, &[3, 4])].concat());
        let hello = [FLAGS.to_vec(), option(option::GO, &NO_NAME)].concat();
        for (length, kind) in
            [(MOST_REQUEST_BYTES, None), (MOST_REQUEST_BYTES + 1, Some(ErrorKind::InvalidData))]
        {
            let (_, end) = talk([hello.clone(), request(command::WRITE, 0, length)].concat());
            assert_eq!(end.err().map(|error| error.kind()), kind);
        }
        let mut wrong = request(command::READ, 0, 1);
        wrong[0] ^= 1;
        assert_eq!(talk([hello.clone(), wrong].concat()).1.unwrap_err().kind(), ErrorKind::InvalidData);
        // The longest read.
        let sent = [hello.clone(), request(command::READ, 5, MOST_REQUEST_BYTES)].concat();
        let mut client = Client { sent: io::Cursor::new(sent), got: Vec::new() };
        serve(&mut client, &mut vec![0x77; (MOST_REQUEST_BYTES + 5) as usize]).unwrap();
        let answer = &client.got[client.got.len() - MOST_REQUEST_BYTES as usize - 16..];
        assert_eq!(answer[..16], reply_of(0, &[]));
        assert!(answer[16..].iter().all(|byte| *byte == 0x77));
    }

    /// A disk that cannot be read.
    struct Broken;

    impl ByteSource for Broken {
        fn size_bytes(&self) -> u64 {
            4096
        }

        fn read_at(&mut self, _offset: u64, _to: &mut [u8]) -> io::Result<()> {
            Err(io::Error::other("it is broken"))
        }
    }

    #[test]
    fn a_disk_that_cannot_be_read_is_an_error_of_the_request() {
        let sent = [FLAGS.to_vec(), option(option::GO, &NO_NAME), request(command::READ, 0, 1)].concat();
        let mut client = Client { sent: io::Cursor::new(sent), got: Vec::new() };
        serve(&mut client, &mut Broken).unwrap();
        assert!(client.got.ends_with(&reply_of(errno::EIO, &[])));
    }

    #[test]
    fn random_clients_end_without_panic() {
        for seed in 0..20_000 {
            let mut rng = Rng::new(&[seed]);
            let mut sent = FLAGS.to_vec();
            for _ in 0..rng.below(4) {
                let data: Vec<u8> = (0..rng.below(12)).map(|_| rng.pick(&[0, 0, 0, 1, 255])).collect();
                sent.extend(option(rng.below(11) as u32, &data));
            }
            sent.extend(option(option::GO, &NO_NAME));
            for _ in 0..rng.below(4) {
                let length = rng.pick(&[0, 1, 512, 4096, MOST_REQUEST_BYTES + 1, u32::MAX]);
                sent.extend(request(rng.below(8) as u16, rng.pick(&[0, 1, 4095, 4096, u64::MAX]), length));
            }
            for _ in 0..rng.below(3) {
                let at = rng.below(sent.len() as u64) as usize;
                sent[at] = rng.bits() as u8;
            }
            sent.truncate(rng.below(2 * sent.len() as u64) as usize);
            // The server may answer or end the connection.
            let _ = talk(sent);
        }
    }
}

//! Reads packed recordings, which may come from strangers. The reader takes no file name from the archive. The reader
//! checks each length against a limit before it reserves memory or writes anything. The reader accepts only contents
//! that have the right hash.

use std::io::{BufRead, Read};
use std::path::Path;

use super::archive::{
    CHUNK_BYTES, MAGIC, MAX_CHECKPOINTS, MAX_LOG_BYTES, NO_CHECKPOINT, VERSION, WINDOW_LOG_MAX,
    with_images_inside,
};
use crate::files::{CHECKPOINTS, EVENTS};
use crate::log::{Log, parse_log, read_log};
use crate::manifest::Manifest;
use crate::manifest_text::MAX_MANIFEST_BYTES;
use machine::Counter;
use machine::contents_hash::{ContentsHasher, Scheme, hash_zeros};
use machine::error::Error;
use machine::position::{Count, Exits, Instructions};

/// Receives the files of a packed recording.
pub trait Sink {
    /// Begins the next file, with `size_bytes` of zeroes. `name` is one of a few fixed relative paths.
    fn begin(&mut self, name: &Path, size_bytes: u64) -> Result<(), Error>;
    /// Writes a part of the file that was begun last. Parts are inside the file and come in ascending order.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error>;
    /// Checks that the event log, which was written last, belongs to this recording. The error says what is wrong.
    fn check_log(&mut self, manifest: &Manifest) -> Result<(), String>;
}

/// The expected size and hash of a file, before the reader reads the contents.
#[derive(Clone, Copy)]
enum Expected<'a> {
    /// The file's size and hash.
    This(u64, &'a str),
    /// The largest size of the file.
    AtMost(u64),
    Anything,
}

/// The result of reading an archive, besides the files.
pub struct Contents {
    /// The manifest, with the images' paths inside a recording.
    pub manifest: Manifest,
    /// Whether the archive has checkpoints.
    pub has_checkpoints: bool,
}

/// Reads a whole packed recording. `path` is for messages. Fails if all files of the recording together have more than
/// `max_bytes`.
pub fn read_archive(
    mut from: impl BufRead,
    max_bytes: u64,
    path: &Path,
    sink: &mut dyn Sink,
) -> Result<Contents, Error> {
    let refuse = |why: String| Error::recording(path, why);
    check_version(&mut from).map_err(refuse)?;
    let damaged = |error: std::io::Error| Error::recording(path, format!("is damaged: {error}"));
    let mut decoder = zstd::Decoder::with_buffer(from).map_err(damaged)?.single_frame();
    decoder.window_log_max(WINDOW_LOG_MAX).map_err(damaged)?;
    let mut reader = Reader { from: decoder, path, left_bytes: max_bytes };
    let manifest = reader.manifest()?;
    reader.file(Path::new(EVENTS), "event log", Expected::AtMost(MAX_LOG_BYTES), sink)?;
    sink.check_log(&manifest).map_err(|why| refuse(format!("its event log {why}")))?;
    for (what, image) in manifest.machine.images() {
        // The manifest was written before the guest read its disk, so it cannot have the hash of a gathered image.
        let expected = if image.is_gathered() {
            Expected::Anything
        } else {
            Expected::This(image.size_bytes, &image.hash)
        };
        reader.file(&image.path, what, expected, sink)?;
    }
    let has_checkpoints = reader.checkpoints(sink)?;
    reader.end()?;
    Ok(Contents { manifest, has_checkpoints })
}

/// Checks that the bytes are the log of a manifest's recording. The error says what is wrong.
pub fn check_log(bytes: &[u8], manifest: &Manifest) -> Result<(), String> {
    match manifest.machine.profile().counter {
        Counter::Instructions => must_be_of(parse_log::<Instructions>(bytes, manifest.format), manifest),
        Counter::Exits => must_be_of(parse_log::<Exits>(bytes, manifest.format), manifest),
    }
}

/// Does the same as [`check_log`], but for a file. Never holds the whole file in memory.
pub(super) fn check_log_file(path: &Path, manifest: &Manifest) -> Result<(), String> {
    match manifest.machine.profile().counter {
        Counter::Instructions => {
            must_be_of(read_log::<Instructions>(path, manifest.format).map_err(reason), manifest)
        }
        Counter::Exits => must_be_of(read_log::<Exits>(path, manifest.format).map_err(reason), manifest),
    }
}

fn reason(error: Error) -> String {
    match error {
        Error::Recording { why, .. } => why,
        other => other.to_string(),
    }
}

fn must_be_of<C: Count>(log: Result<Log<C>, String>, manifest: &Manifest) -> Result<(), String> {
    let log = log?;
    if log.machine_hash != manifest.machine_hash() || log.event_count() == 0 {
        return Err("is damaged: it belongs to another recording".to_string());
    }
    Ok(())
}

fn check_version(from: &mut impl Read) -> Result<(), String> {
    let mut start = [0; 12];
    from.read_exact(&mut start).map_err(|_| "is too short for a packed recording".to_string())?;
    let [a, b, c, d] = [start[8], start[9], start[10], start[11]];
    let version = u32::from_le_bytes([a, b, c, d]);
    if &start[..8] != MAGIC {
        return Err("is not a packed recording (wrong magic bytes)".to_string());
    }
    if version != VERSION {
        return Err(format!("has pack version {version}; this ttvm reads version {VERSION}"));
    }
    Ok(())
}

struct Reader<'a, R> {
    from: R,
    path: &'a Path,
    left_bytes: u64,
}

impl<R: Read> Reader<'_, R> {
    fn damaged(&self, why: impl std::fmt::Display) -> Error {
        Error::recording(self.path, format!("is damaged: {why}"))
    }

    fn exact<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        self.from.read_exact(bytes).map_err(|error| self.damaged(error))
    }

    fn manifest(&mut self) -> Result<Manifest, Error> {
        let length = u32::from_le_bytes(self.exact()?);
        if u64::from(length) > MAX_MANIFEST_BYTES {
            return Err(self.damaged(format!("its manifest claims {length} bytes")));
        }
        let mut text = vec![0; length as usize];
        self.fill(&mut text)?;
        let text = String::from_utf8(text).map_err(|error| self.damaged(error))?;
        let manifest = Manifest::parse(&text)
            .map_err(|why| Error::recording(self.path, format!("its manifest {why}")))?;
        Ok(with_images_inside(&manifest))
    }

    /// Reads one file into `sink`. Checks the file's hash, and its size and hash against `expected`.
    fn file(
        &mut self,
        name: &Path,
        what: &str,
        expected: Expected<'_>,
        sink: &mut dyn Sink,
    ) -> Result<(), Error> {
        let size = u64::from_le_bytes(self.exact()?);
        match expected {
            Expected::This(declared, _) if declared != size => {
                return Err(self.damaged(format!("the {what} does not have the size that the manifest says")));
            }
            Expected::AtMost(most) if size > most => {
                return Err(self.damaged(format!("the {what} claims {size} bytes")));
            }
            _ => {}
        }
        self.left_bytes = self.left_bytes.checked_sub(size).ok_or_else(|| {
            let why = format!(
                "would unpack to more than --max-size: the {what} has {size} bytes; raise --max-size \
                if you trust the file"
            );
            Error::recording(self.path, why)
        })?;
        sink.begin(name, size)?;
        // The hash in the manifest may have another scheme than the hash in the archive.
        let mut named = match expected {
            Expected::This(_, hash) => Some((ContentsHasher::new(Scheme::of(hash)), hash)),
            _ => None,
        };
        let hash = self.pieces(what, size, sink, named.as_mut().map(|(hasher, _)| hasher))?;
        let is_named = named.is_none_or(|(hasher, hash)| hasher.finish() == hash);
        if self.exact::<32>()? != *hash.as_bytes() || !is_named {
            return Err(self.damaged(format!("the contents of the {what} do not have the recorded hash")));
        }
        Ok(())
    }

    fn pieces(
        &mut self,
        what: &str,
        size: u64,
        sink: &mut dyn Sink,
        mut other: Option<&mut ContentsHasher>,
    ) -> Result<blake3::Hash, Error> {
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut done = 0;
        loop {
            let offset = u64::from_le_bytes(self.exact()?);
            let length = u32::from_le_bytes(self.exact()?) as usize;
            let fits = offset >= done && offset <= size && length as u64 <= size - offset;
            let ends = length == 0 && offset == size;
            if !fits || length > CHUNK_BYTES || length == 0 && !ends {
                return Err(self.damaged(format!("a piece of the {what} lies outside of it")));
            }
            hash_zeros(&mut hasher, offset - done);
            if let Some(other) = &mut other {
                other.zeros(offset - done);
            }
            if ends {
                return Ok(hasher.finalize());
            }
            self.fill(&mut buffer[..length])?;
            hasher.update(&buffer[..length]);
            if let Some(other) = &mut other {
                other.update(&buffer[..length]);
            }
            sink.write(offset, &buffer[..length])?;
            done = offset + length as u64;
        }
    }

    /// Reads the checkpoints' files, if there are any. The store checks the files' contents.
    fn checkpoints(&mut self, sink: &mut dyn Sink) -> Result<bool, Error> {
        match self.exact()? {
            [0] => return Ok(false),
            [1] => {}
            [other] => return Err(self.damaged(format!("it may have checkpoints or none, but not {other}"))),
        }
        let directory = Path::new(CHECKPOINTS);
        let name = |number| checkpoint::file_name(number).map(|name| directory.join(name));
        let header = name(None).expect("the header always has a name");
        self.file(&header, "header of its checkpoints", Expected::Anything, sink)?;
        let (mut count, mut last) = (0, None);
        loop {
            let number = u32::from_le_bytes(self.exact()?);
            if number == NO_CHECKPOINT {
                return Ok(true);
            }
            let file = name(Some(number)).filter(|_| last < Some(number) && count < MAX_CHECKPOINTS);
            let Some(file) = file else {
                return Err(self.damaged(format!("the number {number} of a checkpoint is out of order")));
            };
            self.file(&file, &format!("checkpoint {number}"), Expected::Anything, sink)?;
            (count, last) = (count + 1, Some(number));
        }
    }

    fn end(&mut self) -> Result<(), Error> {
        match self.from.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(self.damaged("something follows its last file")),
            Err(error) => Err(self.damaged(error)),
        }
    }
}

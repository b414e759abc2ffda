//! Writes packed recordings.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use checkpoint::Store;

use super::archive::{
    CHUNK_BYTES, MAGIC, MAX_CHECKPOINTS, MAX_LOG_BYTES, NO_CHECKPOINT, VERSION, with_images_inside,
};
use crate::files::EVENTS;
use crate::opened::Recording;
use machine::config::{ImageFile, same};
use machine::contents_hash::{ContentsHasher, Scheme};
use machine::error::Error;

/// Zstandard's level. Level 3 is fast. Higher levels hardly make kernels smaller, because kernels are already
/// compressed.
const LEVEL: i32 = 3;

/// Writes a packed recording to `out`. `path` is for messages.
pub fn write_archive<C, W: Write>(
    recording: &Recording<C>,
    checkpoints: Option<&Store>,
    mut out: W,
    path: &Path,
) -> Result<W, Error> {
    let failed = |source| Error::file("write", path)(source);
    out.write_all(MAGIC).and_then(|()| out.write_all(&VERSION.to_le_bytes())).map_err(failed)?;
    let mut encoder = zstd::Encoder::new(out, LEVEL).map_err(failed)?;
    encoder.include_checksum(true).map_err(failed)?;
    let manifest = with_images_inside(&recording.manifest).text();
    encoder
        .write_all(&(manifest.len() as u32).to_le_bytes())
        .and_then(|()| encoder.write_all(manifest.as_bytes()))
        .map_err(failed)?;
    // An incomplete record at the log's end is not packed.
    let log = recording.path.join(EVENTS);
    if recording.log.bytes > MAX_LOG_BYTES {
        return Err(Error::recording(
            log,
            format!("has more than {MAX_LOG_BYTES} bytes, which is too much to be packed"),
        ));
    }
    write_file(&log, recording.log.bytes, &mut encoder, path)?;
    for (what, image) in recording.manifest.machine.images() {
        if image.is_gathered() {
            write_gathered(image, &mut encoder, path)?;
        } else {
            write_image(what, image, &mut encoder, path)?;
        }
    }
    write_checkpoints(checkpoints, &mut encoder, path)?;
    encoder.finish().map_err(failed)
}

/// Writes the part about checkpoints: a flag that says whether a store follows, the store's header, each checkpoint
/// after its number, and an end mark.
fn write_checkpoints(store: Option<&Store>, out: &mut impl Write, path: &Path) -> Result<(), Error> {
    let failed = |source| Error::file("write", path)(source);
    out.write_all(&[u8::from(store.is_some())]).map_err(failed)?;
    let Some(store) = store else { return Ok(()) };
    let files = store.files()?;
    if files.len() > MAX_CHECKPOINTS as usize {
        let why =
            format!("{} checkpoints are too many to be packed; leave them out or remove some", files.len());
        return Err(Error::recording(store.dir(), why));
    }
    for file in &files {
        if let Some(number) = file.number {
            out.write_all(&number.to_le_bytes()).map_err(failed)?;
        }
        let from = At { file: &file.file, offset: 0 };
        write_contents(from, &store.dir().join(&file.name), file.bytes, out, path)?;
    }
    out.write_all(&NO_CHECKPOINT.to_le_bytes()).map_err(failed)
}

/// A reader with its own position in an open file. Other readers may use the same open file.
struct At<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for At<'_> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read_at(to, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

fn write_image(what: &str, image: &ImageFile, out: &mut impl Write, path: &Path) -> Result<(), Error> {
    let unreadable = |error: Error| match error {
        Error::File { path: file, source, .. } if file == image.path => {
            Error::recording(file, format!("the {what} of this recording cannot be read: {source}"))
        }
        other => other,
    };
    let mut hasher = ContentsHasher::new(Scheme::of(&image.hash));
    let file = plain_file::open(&image.path).map_err(Error::file("open", &image.path)).map_err(unreadable)?;
    let mut take = |piece: &[u8]| hasher.update(piece);
    write_pieces(file, &image.path, image.size_bytes, out, path, &mut take).map_err(unreadable)?;
    same(what, image, &ImageFile { hash: hasher.finish(), ..image.clone() })
}

/// Writes the file of a disk image that was gathered. A frame that was cut off is left out.
fn write_gathered(image: &ImageFile, out: &mut impl Write, path: &Path) -> Result<(), Error> {
    let gathered = image.open_gathered()?;
    let damaged = |error: gathered_image::Error| Error::recording(&image.path, error.to_string());
    // The pack gets a new hash of the file, so damage must be found before packing.
    gathered.check().map_err(damaged)?;
    write_file(&image.path, gathered.file_bytes(), out, path)
}

/// Writes the first `size_bytes` of a file.
fn write_file(from: &Path, size_bytes: u64, out: &mut impl Write, path: &Path) -> Result<(), Error> {
    let file = plain_file::open(from).map_err(Error::file("open", from))?;
    write_contents(file, from, size_bytes, out, path)
}

/// Does the same as [`write_pieces`], but for a caller that does not need the pieces.
fn write_contents(
    file: impl Read,
    from: &Path,
    size_bytes: u64,
    out: &mut impl Write,
    path: &Path,
) -> Result<(), Error> {
    write_pieces(file, from, size_bytes, out, path, &mut |_| {})
}

/// Writes the first `size_bytes` of `file`: the size, the pieces that are not all zeroes, an empty piece, and the hash.
/// `from` is the file's path. `take` is called with every piece.
fn write_pieces(
    mut file: impl Read,
    from: &Path,
    size_bytes: u64,
    out: &mut impl Write,
    path: &Path,
    take: &mut dyn FnMut(&[u8]),
) -> Result<(), Error> {
    let failed = |source| Error::file("write", path)(source);
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut offset = 0;
    out.write_all(&size_bytes.to_le_bytes()).map_err(failed)?;
    while offset < size_bytes {
        let piece = &mut buffer[..(size_bytes - offset).min(CHUNK_BYTES as u64) as usize];
        file.read_exact(piece).map_err(Error::file("read", from))?;
        hasher.update(piece);
        take(piece);
        if piece.iter().any(|&byte| byte != 0) {
            write_piece(offset, piece, out).map_err(failed)?;
        }
        offset += piece.len() as u64;
    }
    let hash = hasher.finalize();
    write_piece(size_bytes, &[], out).and_then(|()| out.write_all(hash.as_bytes())).map_err(failed)
}

fn write_piece(offset: u64, bytes: &[u8], out: &mut impl Write) -> std::io::Result<()> {
    out.write_all(&offset.to_le_bytes())?;
    out.write_all(&(bytes.len() as u32).to_le_bytes())?;
    out.write_all(bytes)
}

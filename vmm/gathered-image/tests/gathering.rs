//! Images that are gathered, opened again, cut off and damaged.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use gathered_image::{BLOCK_BYTES, Contents, Error, Image, Read, Source};
use proptest::prelude::*;

const BLOCKS: u64 = 300;

/// A source whose answers change with each call, so that a block that is asked for twice shows. Notes the calls.
#[derive(Clone, Default)]
struct Changing(Arc<Mutex<Vec<(u64, u32)>>>);

impl Source for Changing {
    fn read(&mut self, first: u64, count: u32) -> std::io::Result<Vec<Contents>> {
        let mut calls = self.0.lock().unwrap();
        calls.push((first, count));
        let call = calls.len() as u64;
        Ok((first..first + u64::from(count))
            .map(|block| match (block + call) % 4 {
                0 => Contents::Zero,
                1 => Contents::Unreadable,
                _ => Contents::Bytes(Box::new([(block * 7 + call) as u8; BLOCK_BYTES])),
            })
            .collect())
    }
}

/// A source that only fails.
struct Gone;

impl Source for Gone {
    fn read(&mut self, _first: u64, _count: u32) -> std::io::Result<Vec<Contents>> {
        Err(std::io::Error::other("it is gone"))
    }
}

/// A source that forgets a block.
struct Short;

impl Source for Short {
    fn read(&mut self, _first: u64, count: u32) -> std::io::Result<Vec<Contents>> {
        Ok(vec![Contents::Zero; count as usize - 1])
    }
}

/// A block as the guest sees it: `None` is an error.
fn seen(image: &Image, block: u64) -> Option<Vec<u8>> {
    let mut bytes = [0xee; BLOCK_BYTES];
    match image.read(block, &mut bytes).unwrap() {
        Read::Done => Some(bytes.to_vec()),
        Read::Unreadable => None,
    }
}

fn gathered(path: &Path) -> (Image, Changing) {
    let source = Changing::default();
    (Image::create(path, BLOCKS, [3; 16]).unwrap().gather_from(source.clone()), source)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_block_stays_as_it_was_first_seen(reads in prop::collection::vec((0..BLOCKS, 1_u64..90), 1..40)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let (live, source) = gathered(&path);
        let mut first_seen = std::collections::BTreeMap::new();
        for &(first, count) in &reads {
            live.gather(first, count).unwrap();
            for block in first..(first + count).min(BLOCKS) {
                let now = seen(&live, block);
                prop_assert_eq!(first_seen.entry(block).or_insert_with(|| now.clone()), &now);
            }
        }
        let asked: u64 = source.0.lock().unwrap().iter().map(|&(_, count)| u64::from(count)).sum();
        prop_assert_eq!(asked, first_seen.len() as u64, "no block is asked for twice");
        let kept = Image::open(&path).unwrap();
        prop_assert_eq!((kept.blocks(), kept.id(), kept.gathered_blocks()), (BLOCKS, [3; 16], asked));
        kept.check().unwrap();
        for block in 0..BLOCKS {
            match first_seen.get(&block) {
                Some(bytes) => prop_assert_eq!(&seen(&kept, block), bytes),
                None => {
                    let error = kept.read(block, &mut [0; BLOCK_BYTES]).unwrap_err();
                    prop_assert!(matches!(error, Error::Missing(number) if number == block));
                }
            }
        }
    }

    #[test]
    fn damage_is_an_error_and_never_other_contents(at in 0_usize..1_000_000, bit in 0_u8..8) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let (live, _) = gathered(&path);
        [(0, 10), (100, 64), (50, 3)].iter().for_each(|&(first, count)| live.gather(first, count).unwrap());
        let mut bytes = std::fs::read(&path).unwrap();
        // The first 40 bytes are the header of the file, which the manifest of a recording names.
        let at = 40 + at % (bytes.len() - 40);
        bytes[at] ^= 1 << bit;
        let other = folder.path().join("other");
        std::fs::write(&other, bytes).unwrap();
        let Ok(image) = Image::open(&other) else { return Ok(()) };
        prop_assert!(image.check().is_err());
        for block in 0..BLOCKS {
            let mut bytes = [0; BLOCK_BYTES];
            if let Ok(read) = image.read(block, &mut bytes) {
                let now = (read == Read::Done).then(|| bytes.to_vec());
                prop_assert_eq!(now, seen(&live, block));
            }
        }
    }
}

#[test]
fn a_file_that_was_cut_off_has_its_complete_frames() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let (live, _) = gathered(&path);
    live.gather(0, 5).unwrap();
    let first = live.file_bytes();
    live.gather(20, 5).unwrap();
    let whole = std::fs::read(&path).unwrap();
    assert_eq!(whole.len() as u64, live.file_bytes());
    for length in 40..=whole.len() {
        let cut = folder.path().join("cut");
        std::fs::write(&cut, &whole[..length]).unwrap();
        let image = Image::open(&cut).unwrap();
        let expected = 5 * (u64::from(length as u64 >= first) + u64::from(length == whole.len()));
        assert_eq!(image.gathered_blocks(), expected, "{length} bytes");
    }
    for length in 0..40 {
        let cut = folder.path().join("cut");
        std::fs::write(&cut, &whole[..length]).unwrap();
        assert!(Image::open(&cut).unwrap_err().to_string().contains("too short"), "{length} bytes");
    }
    let mut zeros = whole.clone();
    zeros.resize(whole.len() + 5000, 0);
    std::fs::write(&path, zeros).unwrap();
    assert_eq!(Image::open(&path).unwrap().gathered_blocks(), 10);
}

#[test]
fn a_reader_sees_what_a_recorder_adds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let (live, _) = gathered(&path);
    let reader = Image::open(&path).unwrap();
    assert!(reader.read(9, &mut [0; BLOCK_BYTES]).is_err());
    assert_eq!(seen(&live, 9), seen(&reader, 9));
}

#[test]
fn other_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let (live, _) = gathered(&path);
    live.gather(0, 1).unwrap();
    let frame = std::fs::read(&path).unwrap().split_off(40);
    let file = File::options().write(true).open(&path).unwrap();
    // The same frame once more.
    file.write_all_at(&frame, live.file_bytes()).unwrap();
    let refused = || Image::open(&path).unwrap_err().to_string();
    assert!(refused().contains("two frames have the same block"), "{}", refused());
    for blocks in [0, u64::MAX, 1 << 52] {
        file.write_all_at(&blocks.to_le_bytes(), 16).unwrap();
        assert!(refused().contains("claims a disk"), "{}", refused());
    }
    file.write_all_at(&2_u32.to_le_bytes(), 8).unwrap();
    assert!(refused().contains("version 2"), "{}", refused());
    file.write_all_at(b"X", 0).unwrap();
    assert!(refused().contains("not a gathered disk"), "{}", refused());
    assert!(Image::create(&path, 1, [0; 16]).is_err(), "no file is overwritten");
    assert!(Image::open(folder.path()).is_err());
}

#[test]
fn a_source_that_fails_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let image = |name: &str| Image::create(&folder.path().join(name), BLOCKS, [0; 16]).unwrap();
    let told = |image: Image| image.read(1, &mut [0; BLOCK_BYTES]).unwrap_err().to_string();
    assert!(told(image("gone").gather_from(Gone)).contains("it is gone"));
    assert!(told(image("short").gather_from(Short)).contains("0 blocks in place of 1"));
    let beyond = image("beyond").gather_from(Changing::default());
    assert!(matches!(beyond.read(BLOCKS, &mut [0; BLOCK_BYTES]), Err(Error::Missing(BLOCKS))));
}

#[test]
fn an_unnamed_image_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let image = Image::create_unnamed(folder.path(), BLOCKS, [0; 16]).unwrap();
    let image = image.gather_from(Changing::default());
    let block = seen(&image, 5);
    assert_eq!(seen(&image.clone(), 5), block);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

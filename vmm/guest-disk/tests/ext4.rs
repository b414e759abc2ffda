//! Reads file systems that mke2fs makes. The second opinion is debugfs, which e2fsprogs has, too. Damaged file systems must
//! not make the package panic or search for ever.

use std::path::Path;
use std::process::Command;

use guest_disk::{ByteSource, Error, Files, Kind, OpenFile};
use seeded::Rng;

/// The contents of the folder from which mke2fs makes a file system.
const FILES: [(&str, usize); 5] = [
    ("empty", 0),
    ("small", 20),
    ("folder/large", 300_000),
    ("folder/deep/er/file", 5000),
    ("folder/deep/two", 1024),
];
const LINKS: [(&str, &str); 4] = [
    ("link", "folder/large"),
    ("absolute", "/folder/deep/er"),
    ("loop", "loop"),
    ("up", "folder/deep/../../small"),
];

fn contents(name: &str, length: usize) -> Vec<u8> {
    let mut rng = Rng::new(&[name.len() as u64, length as u64]);
    (0..length).map(|_| rng.bits() as u8).collect()
}

/// Makes a file system with these options of mke2fs. Returns `None` if the host has no mke2fs.
fn image(options: &[&str]) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let files = folder.path().join("files");
    for (name, length) in FILES {
        let path = files.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, contents(name, length)).unwrap();
    }
    for (name, target) in LINKS {
        std::os::unix::fs::symlink(target, files.join(name)).unwrap();
    }
    let many = files.join("many");
    std::fs::create_dir(&many).unwrap();
    for number in 0..300 {
        std::fs::write(many.join(format!("a file with a long name, number {number}")), []).unwrap();
    }
    let image = folder.path().join("image");
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-F", "-E", "root_owner=0:0", "-d"]).arg(&files).args(options).arg(&image).arg("8M");
    let made = make.output().ok()?;
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some(std::fs::read(image).unwrap())
}

/// Skips a test on a host without e2fsprogs.
macro_rules! image_or_skip {
    ($options:expr) => {
        match image($options) {
            Some(image) => image,
            None => return skip::test("there is no mke2fs: install e2fsprogs"),
        }
    };
}

const KINDS: [&[&str]; 5] = [
    &["-t", "ext4"],
    &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"],
    &["-t", "ext4", "-O", "^metadata_csum,^64bit"],
    &["-t", "ext3", "-b", "2048"],
    &["-t", "ext2", "-b", "4096"],
];

fn whole(mut file: OpenFile<'_>) -> Result<Vec<u8>, Error> {
    let (mut all, mut part) = (Vec::new(), [0; 5000]);
    loop {
        match file.read(&mut part)? {
            0 => return Ok(all),
            count => all.extend(&part[..count]),
        }
    }
}

#[test]
fn all_files_of_each_kind_of_file_system_are_read() {
    for options in KINDS {
        let mut files =
            Files::open(image_or_skip!(options)).unwrap_or_else(|error| panic!("{options:?}: {error}"));
        for (name, length) in FILES {
            let read = whole(files.read(name.as_bytes()).unwrap()).unwrap();
            assert!(read == contents(name, length), "{options:?}: {name}");
        }
        assert_eq!(whole(files.read(b"//up").unwrap()).unwrap(), contents("small", 20));
        assert_eq!(
            whole(files.read(b"/absolute/./../two").unwrap()).unwrap(),
            contents("folder/deep/two", 1024)
        );
        let root = files.list(b"/", 100).unwrap().entries;
        let names: Vec<&str> = root.iter().map(|entry| &*entry.name).collect();
        let expected = ["absolute", "empty", "folder", "link", "loop", "lost+found", "many", "small", "up"];
        assert_eq!(names, expected);
        assert_eq!((root[3].kind, root[3].target.as_deref()), (Kind::Link, Some("folder/large")));
        let many = files.list(b"/many", 250).unwrap();
        assert_eq!((many.entries.len(), many.has_more), (250, true));
        assert!(!files.list(b"/many", 300).unwrap().has_more);
    }
}

#[test]
fn paths_that_lead_nowhere_get_a_sentence() {
    let mut files = Files::open(image_or_skip!(KINDS[0])).unwrap();
    for (path, expected) in [
        ("/none", "/none: there is no such file at this position"),
        ("/small/none", "/small/none: /small is no folder"),
        ("/loop", "/loop: the path has more than 40 symbolic links"),
        ("/folder", "/folder: it is a folder; give a file with contents"),
    ] {
        assert_eq!(files.read(path.as_bytes()).err().unwrap().to_string(), expected);
    }
    assert!(
        files.read(&[b'a'; 5000]).is_err()
            && files.read(&[b'a'; 300]).is_err()
            && files.read(b"a\0b").is_err()
    );
    let none = Files::open(vec![0; 1 << 20]).err().unwrap().to_string();
    assert!(none.contains("no known file system"), "{none}");
}

/// The lines of debugfs about the files of a folder: mode, user, group, size and name.
fn by_debugfs(image: &Path, folder: &str) -> Vec<(u32, u32, u32, u64, String)> {
    let output =
        Command::new("debugfs").args(["-R", &format!("ls -p {folder}")]).arg(image).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // /inode/mode/uid/gid/name/size/
    let line = |line: &str| {
        let parts: Vec<&str> = line.split('/').collect();
        let [_, _, mode, uid, gid, name, size, ..] = parts[..] else { return None };
        let mode = u32::from_str_radix(mode, 8).ok()? & 0o7777;
        let is_listed = name != "." && name != "..";
        let all = (mode, uid.parse().ok()?, gid.parse().ok()?, size.parse().unwrap_or(0), name.to_string());
        is_listed.then_some(all)
    };
    let mut found: Vec<_> = text.lines().filter_map(line).collect();
    found.sort_by(|a, b| a.4.cmp(&b.4));
    found
}

#[test]
fn listings_agree_with_debugfs() {
    for options in KINDS {
        let bytes = image_or_skip!(options);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        let mut files = Files::open(bytes).unwrap();
        for folder in ["/", "/folder", "/many", "/folder/deep/er"] {
            let listing = files.list(folder.as_bytes(), 1000).unwrap();
            let ours: Vec<_> = listing
                .entries
                .into_iter()
                // debugfs shows no size of a folder.
                .map(|it| {
                    let size = if it.kind == Kind::Folder { 0 } else { it.size_bytes };
                    (u32::from(it.mode), it.uid, it.gid, size, it.name)
                })
                .collect();
            let theirs = by_debugfs(file.path(), folder);
            assert!(!ours.is_empty() && ours == theirs, "{options:?} {folder}: {ours:?} {theirs:?}");
        }
    }
}

/// Gives debugfs requests that change an image.
fn change(image: &Path, requests: &[String]) {
    let script = image.with_extension("requests");
    std::fs::write(&script, requests.join("\n")).unwrap();
    let output = Command::new("debugfs").args(["-w", "-f"]).arg(&script).arg(image).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Files with holes. A file of each kind needs maps of several levels: trees of extents, and indirect blocks of three levels.
#[test]
fn files_with_many_holes_are_read() {
    const BLOCK: u64 = 1024;
    const PARTS: u64 = 1200;
    /// With blocks of this size, the last part lies behind all blocks that two levels of indirect blocks reach.
    const LAST_PART: u64 = 70 << 20;
    use std::os::unix::fs::FileExt;
    let part = |number: u64| [number.to_le_bytes(), (!number).to_le_bytes()].concat();
    let offset = |number: u64| if number == PARTS { LAST_PART } else { number * 2 * BLOCK };
    for options in [["-t", "ext4", "-b", "1024"], ["-t", "ext2", "-b", "1024"]] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("holes");
        let file = std::fs::File::create(&path).unwrap();
        (0..=PARTS).for_each(|number| file.write_all_at(&part(number), offset(number)).unwrap());
        let image_file = folder.path().join("image");
        std::fs::write(&image_file, image_or_skip!(&options)).unwrap();
        change(&image_file, &[format!("write {} holes", path.display())]);
        let mut files = Files::open(std::fs::read(&image_file).unwrap()).unwrap();
        let read = whole(files.read(b"/holes").unwrap()).unwrap();
        assert_eq!(read.len() as u64, LAST_PART + 16, "{options:?}");
        let expected = std::fs::read(&path).unwrap();
        let first = read.iter().zip(&expected).position(|(ours, theirs)| ours != theirs);
        assert_eq!(first, None, "{options:?}: the first byte that differs");
    }
}

#[test]
fn device_files_owners_and_times_are_listed() {
    for options in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let image_file = folder.path().join("image");
        std::fs::write(&image_file, image_or_skip!(options)).unwrap();
        let requests = [
            "mknod terminal c 4 64",
            "mknod disk b 259 300",
            "mknod pipe p",
            "set_inode_field small uid 70001",
            "set_inode_field small gid 131074",
            "set_inode_field small mode 0104751",
            "set_inode_field small mtime @1600000000",
        ];
        change(&image_file, &requests.map(str::to_string));
        let mut files = Files::open(std::fs::read(&image_file).unwrap()).unwrap();
        let entries = files.list(b"/", 100).unwrap().entries;
        let entry = |name: &str| entries.iter().find(|entry| entry.name == name).unwrap();
        let device = |name| (entry(name).kind, entry(name).device);
        assert_eq!(device("terminal"), (Kind::CharacterDevice, Some((4, 64))));
        assert_eq!(device("disk"), (Kind::BlockDevice, Some((259, 300))));
        assert_eq!(device("pipe"), (Kind::Pipe, None));
        assert_eq!(device("small"), (Kind::Regular, None));
        let small = entry("small");
        let all = (small.uid, small.gid, small.mode, small.modified_seconds, small.size_bytes);
        assert_eq!(all, (70001, 131_074, 0o4751, 1_600_000_000, 20), "{options:?}");
    }
}

/// debugfs writes transactions into the journal. The files must then be as after debugfs' own recovery.
#[test]
fn changes_in_the_journal_are_read_until_they_are_revoked() {
    for options in KINDS.iter().filter(|options| options[1] != "ext2") {
        let folder = tempfile::tempdir().unwrap();
        let image_file = folder.path().join("image");
        std::fs::write(&image_file, image_or_skip!(options)).unwrap();
        let debugfs = |request: &str| {
            let output = Command::new("debugfs").args(["-R", request]).arg(&image_file).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let blocks = debugfs("blocks /folder/large");
        let blocks: Vec<&str> = blocks.split_whitespace().take(4).collect();
        // The second block's new contents begin with the journal's magic number, which the journal escapes.
        for (number, begin) in [b"one!", &[0xc0, 0x3b, 0x39, 0x98], b"two!", b"thr!"].into_iter().enumerate()
        {
            let contents = [&begin[..], &contents("journal", 8192)].concat();
            std::fs::write(folder.path().join(number.to_string()), contents).unwrap();
        }
        let write = |block: usize, from: usize| {
            format!("jw -b {} {}", blocks[block], folder.path().join(from.to_string()).display())
        };
        change(&image_file, &["jo".into(), write(0, 0), write(1, 1), "jc".into()]);
        change(&image_file, &["jo".into(), write(2, 2), format!("jw -r {}", blocks[0]), "jc".into()]);
        change(&image_file, &["jo".into(), write(3, 3), write(2, 3), "jc".into()]);
        let mut files = Files::open(std::fs::read(&image_file).unwrap()).unwrap();
        assert_eq!(files.unread_journal(), None);
        let ours = whole(files.read(b"/folder/large").unwrap()).unwrap();
        assert!(ours != contents("folder/large", 300_000), "{options:?}: nothing is read from the journal");
        change(&image_file, &["jr".into()]);
        let recovered = Files::open(std::fs::read(&image_file).unwrap()).unwrap();
        let theirs = whole({ recovered }.read(b"/folder/large").unwrap()).unwrap();
        let first = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs);
        assert!(ours == theirs, "{options:?}: byte {first:?} differs");
    }
}

/// A disk that notes how many bytes are read from it.
struct Counted(Vec<u8>, std::rc::Rc<std::cell::Cell<u64>>);

impl ByteSource for Counted {
    fn size_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> std::io::Result<()> {
        self.1.set(self.1.get() + to.len() as u64);
        self.0.read_at(offset, to)
    }
}

/// Reads some of everything.
fn explore(image: Vec<u8>, texts: &mut Vec<String>) -> Result<(), Error> {
    const MOST_READ: usize = 1 << 20;
    let mut files = Files::open(image)?;
    for folder in ["/", "/folder", "/many", "/absolute", "/folder/deep/er"] {
        match files.list(folder.as_bytes(), 400) {
            Ok(listing) => assert!(listing.entries.len() <= 400),
            Err(error) => texts.push(error.to_string()),
        }
    }
    for name in FILES.iter().chain(&[("link", 0), ("up", 0), ("many/a file with a long name, number 77", 0)])
    {
        let mut read = || {
            let mut file = files.read(name.0.as_bytes())?;
            let (mut total, mut part) = (0, [0; 4096]);
            while total < MOST_READ {
                match file.read(&mut part)? {
                    0 => break,
                    count => total += count,
                }
            }
            Ok(())
        };
        if let Err::<(), Error>(error) = read() {
            texts.push(error.to_string());
        }
    }
    Ok(())
}

/// Writes a transaction to the journal of an image.
fn with_journal_in_use(image: Vec<u8>) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("image");
    std::fs::write(&file, image).unwrap();
    change(
        &file,
        &["jo".into(), format!("jw -b 100-110 {}", file.display()), "jw -r 100-105".into(), "jc".into()],
    );
    std::fs::read(file).unwrap()
}

/// The number of damaged images of each kind. `TTVM_TEST_IMAGES` gives another number.
fn images() -> u64 {
    std::env::var("TTVM_TEST_IMAGES").map_or(150, |text| text.parse().expect("a number"))
}

#[test]
fn damaged_file_systems_get_a_sentence_and_no_panic() {
    for (kind, options) in KINDS.iter().enumerate() {
        let mut good = image_or_skip!(options);
        if kind == 3 {
            good = with_journal_in_use(good);
        }
        // Only blocks with other bytes than zeroes are worth damage, and the superblock more than others.
        let used: Vec<usize> =
            (0..good.len() / 1024).filter(|&at| good[at * 1024..][..1024] != [0; 1024]).collect();
        for seed in 0..images() {
            let mut rng = Rng::new(&[kind as u64, seed]);
            let mut image = good.clone();
            for _ in 0..=rng.below(6) {
                let block = if rng.percent(25) { 1 } else { rng.pick(&used[..used.len().min(200)]) };
                let at = block * 1024 + rng.below(1021) as usize;
                let length = rng.pick(&[1, 2, 4]);
                let bytes =
                    rng.pick(&[0, u64::MAX, rng.clone().bits(), 1, 0x7fff_ffff, 0xffff_0000]).to_le_bytes();
                image[at..at + length].copy_from_slice(&bytes[..length]);
            }
            if rng.percent(5) {
                image.truncate(rng.below(good.len() as u64) as usize);
            }
            let mut texts = Vec::new();
            if let Err(error) = explore(image, &mut texts) {
                texts.push(error.to_string());
            }
            assert!(texts.iter().all(|text| !text.contains('\n') && text.len() < 400), "{texts:?}");
        }
    }
}

#[test]
fn lengths_without_bound_are_refused_before_they_are_used() {
    let good = image_or_skip!(KINDS[2]);
    for (at, bytes, expected) in [
        (0x18, &[7][..], "its block size is 1024 << 7"),
        (0x04, &[0xff; 4], "blocks of 1024 bytes, and the disk or partition has 8388608 bytes"),
        (0x20, &[1, 0, 0, 0], "a group has 1 blocks"),
        (0x58, &[0, 0], "its inodes have 0 bytes"),
        (0x28, &[0; 4], "and 0 inodes"),
        (0x60, &[0xff; 4], "it has features that ttvm does not support"),
    ] {
        let mut image = good.clone();
        image[1024 + at..][..bytes.len()].copy_from_slice(bytes);
        let counter = std::rc::Rc::default();
        let error = Files::open(Counted(image, std::rc::Rc::clone(&counter))).err().unwrap().to_string();
        assert!(
            error.contains(expected) && counter.get() < 20_000,
            "{at:#x}: {error}, {} bytes",
            counter.get()
        );
    }
}

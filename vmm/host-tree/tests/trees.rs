//! Trees of temporary folders, as a guest sees them.

mod support;

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use ext4_layout::{Kind, Tree};
use host_tree::{Error, Graft, Grafted, HostTree, Options, WarningKind};
use rustix::fs::{CWD, FileType, Mode, OFlags, mkdirat, mknodat, openat};
use support::{Shared, contents, listed, listing, options, tree};

fn make_fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

#[test]
fn a_guest_sees_folders_files_and_links_of_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    let large: Vec<u8> = (0..100_000_u32).map(|number| (number / 7) as u8).collect();
    fs::write(root.join("a/b/large"), &large).unwrap();
    fs::write(root.join("a/empty"), "").unwrap();
    fs::set_permissions(root.join("a/empty"), Permissions::from_mode(0o4751)).unwrap();
    symlink("b/large", root.join("a/link")).unwrap();
    fs::hard_link(root.join("a/b/large"), root.join("other")).unwrap();
    let hole = File::create(root.join("hole")).unwrap();
    hole.set_len(3 << 30).unwrap();
    hole.write_all_at(b"end", (3 << 30) - 3).unwrap();

    let disk = Shared::new(&options(root));
    let mut files = disk.files();
    for path in ["/a/b/large", "/a/link", "/other"] {
        assert!(contents(&mut files, path).unwrap() == large, "{path}");
    }
    assert_eq!(contents(&mut files, "/a/empty").unwrap(), b"");
    let found = files.list(b"/", 10).unwrap().entries;
    let names: Vec<_> = found.iter().map(|entry| (&*entry.name, entry.size_bytes)).collect();
    assert_eq!(names[1..], [("hole", 3 << 30), ("lost+found", 4096), ("other", 100_000)]);
    let empty = files.list(b"/a/empty", 1).unwrap().entries.remove(0);
    let metadata = root.join("a/empty").metadata().unwrap();
    assert_eq!(
        (empty.mode, empty.uid, empty.gid, empty.modified_seconds),
        (0o4751, metadata.uid(), metadata.gid(), metadata.mtime())
    );
    assert_eq!(disk.warnings(), []);
}

#[test]
fn pipes_sockets_and_devices_are_seen_but_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    make_fifo(&folder.path().join("pipe"));
    drop(UnixListener::bind(folder.path().join("socket")).unwrap());
    let mut files = Shared::new(&options(folder.path())).files();
    let kinds: Vec<_> = files.list(b"/", 10).unwrap().entries.into_iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [guest_disk::Kind::Folder, guest_disk::Kind::Pipe, guest_disk::Kind::Socket]);
    let devices = listing(&mut tree(Path::new("/dev")), &[]);
    assert_eq!(devices["null"].kind, Kind::CharacterDevice(1, 3));
}

#[test]
fn file_systems_of_the_kernel_are_empty_folders() {
    let mut tree = tree(Path::new("/"));
    let root = listing(&mut tree, &[]);
    for name in ["proc", "sys"] {
        assert_eq!(tree.list(root[name].id), [], "{name}");
    }
    assert_eq!(tree.take_warnings(), []);
}

#[test]
fn hidden_paths_do_not_exist() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::create_dir_all(root.join("real/user/.ssh")).unwrap();
    fs::create_dir(root.join("real/user/.ssh2")).unwrap();
    fs::write(root.join("real/secret"), "secret").unwrap();
    fs::hard_link(root.join("real/secret"), root.join("real/same")).unwrap();
    symlink("real", root.join("home")).unwrap();
    let mut hidden = Options::hidden_by_default(&root.join("home/user"));
    hidden.push(root.join("real/secret"));
    let mut tree = HostTree::new(&Options { hidden, ..options(root) }).unwrap();
    let names = |listing: BTreeMap<String, _>| listing.into_keys().collect::<Vec<_>>();
    let real = listing(&mut tree, &["real"]);
    assert_eq!(names(real.clone()), ["user"]);
    // Keys that are made later are hidden by their path, and old ones at their new place by their inode.
    fs::create_dir(root.join("real/user/.gnupg")).unwrap();
    fs::rename(root.join("real/user/.ssh"), root.join("real/user/moved")).unwrap();
    fs::create_dir(root.join("real/user/.ssh")).unwrap();
    assert_eq!(names(listed(&mut tree, real["user"].id)), [".ssh2"]);
    // A folder that takes the place of a listed one.
    let user = listing(&mut tree, &["real", "user"]);
    fs::remove_dir(root.join("real/user/.ssh2")).unwrap();
    fs::rename(root.join("real/user/moved"), root.join("real/user/.ssh2")).unwrap();
    fs::write(root.join("real/user/.ssh2/key"), "key").unwrap();
    assert_eq!(tree.list(user[".ssh2"].id), []);
    let relative = Options { hidden: vec!["key".into()], ..options(root) };
    assert!(matches!(HostTree::new(&relative), Err(Error::NotAbsolute { .. })));
}

#[test]
fn grafts_are_seen_at_their_places() {
    let (folder, modules) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let root = folder.path();
    fs::create_dir_all(root.join("usr/lib/modules/old")).unwrap();
    fs::write(root.join("usr/lib/libc"), "libc").unwrap();
    fs::write(root.join("usr/init"), "the host's").unwrap();
    symlink("usr/lib", root.join("lib")).unwrap();
    fs::create_dir(modules.path().join("kernel")).unwrap();
    fs::write(modules.path().join("kernel/ext4.ko"), "module").unwrap();
    fs::write(modules.path().join("modules.dep"), "old").unwrap();
    let file = |at: &str, bytes: &[u8]| Graft { at: at.into(), what: Grafted::File(bytes.to_vec(), 0o640) };
    let new = "/lib/modules/../modules/new";
    let grafts = vec![
        Graft { at: new.into(), what: Grafted::Folder(modules.path().into()) },
        file("/lib/modules/new/modules.dep", &[b'n'; 5000]),
        file("/usr/init", b"ours"),
        file("/none/such/file", b"made"),
    ];
    let disk = Shared::new(&Options { grafts, ..options(root) });
    let mut files = disk.files();
    for (path, expected) in [
        ("/lib/libc", &b"libc"[..]),
        ("/lib/modules/new/kernel/ext4.ko", b"module"),
        ("/usr/lib/modules/new/modules.dep", &[b'n'; 5000]),
        ("/usr/init", b"ours"),
        ("/none/such/file", b"made"),
    ] {
        assert_eq!(contents(&mut files, path).unwrap(), expected, "{path}");
    }
    let names = |files: &mut guest_disk::Files, path: &[u8]| {
        files.list(path, 10).unwrap().entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&mut files, b"/lib/modules"), ["new", "old"]);
    assert_eq!(names(&mut files, b"/lib/modules/new"), ["kernel", "modules.dep"]);
    let made = files.list(b"/none/such/file", 1).unwrap().entries.remove(0);
    assert_eq!((made.mode, made.uid, made.modified_seconds), (0o640, 0, 1_700_000_000));
    assert_eq!(disk.warnings(), []);
    for (at, expected) in
        [("/..", "/.. names the root; give a path below the root"), ("x", "x is not an absolute path")]
    {
        let options = Options { grafts: vec![file(at, b"")], ..options(root) };
        assert_eq!(HostTree::new(&options).unwrap_err().to_string(), expected);
    }
}

/// Lets a file change in some way after its folder was listed, and checks that its bytes are refused, also later.
fn check_change(name: &str, change: impl FnOnce(&Path)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("folder/file");
    fs::create_dir(path.parent().unwrap()).unwrap();
    fs::write(&path, "before").unwrap();
    fs::write(path.with_file_name("same"), "stays").unwrap();
    let disk = Shared::new(&options(folder.path()));
    let mut files = disk.files();
    assert_eq!(contents(&mut files, "/folder/same").unwrap(), b"stays");
    // Even if the size stays, the clock of files must have gone on.
    std::thread::sleep(std::time::Duration::from_millis(20));
    change(&path);
    for _ in 0..2 {
        assert!(contents(&mut files, "/folder/file").is_err(), "{name}");
    }
    let warnings = disk.warnings();
    assert_eq!(warnings.len(), 1, "{name}");
    assert_eq!(warnings[0].path, folder.path().canonicalize().unwrap().join("folder/file"));
    assert_eq!(warnings[0].kind, WarningKind::Changed, "{name}");
}

#[test]
fn a_changed_file_is_refused() {
    check_change("other bytes of the same size", |path| fs::write(path, "behind").unwrap());
    check_change("longer", |path| fs::write(path, "longer than before").unwrap());
    check_change("deleted", |path| fs::remove_file(path).unwrap());
    check_change("replaced", |path| {
        fs::write(path.with_file_name("new"), "before").unwrap();
        fs::rename(path.with_file_name("new"), path).unwrap();
    });
    check_change("a pipe", |path| {
        fs::remove_file(path).unwrap();
        make_fifo(path);
    });
    check_change("a folder", |path| {
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
    });
}

#[test]
fn a_link_that_takes_the_place_of_a_folder_leads_nowhere() {
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir(outside.path().join("inner")).unwrap();
    fs::write(outside.path().join("inner/secret"), "secret").unwrap();
    // Outside of the root, and inside, where even the inodes are the same.
    for target in [outside.path(), Path::new("moved")] {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("folder/inner")).unwrap();
        fs::write(folder.path().join("folder/inner/file"), "inside").unwrap();
        fs::write(folder.path().join("folder/file"), "before").unwrap();
        let mut tree = tree(folder.path());
        let entries = listing(&mut tree, &["folder"]);
        fs::rename(folder.path().join("folder"), folder.path().join("moved")).unwrap();
        symlink(target, folder.path().join("folder")).unwrap();
        assert_eq!(tree.list(entries["inner"].id), []);
        assert!(tree.read(entries["file"].id, 0, &mut [0; 6]).is_err());
        let kinds: Vec<_> = tree.take_warnings().into_iter().map(|warning| warning.kind).collect();
        assert!(matches!(&kinds[..], [WarningKind::EmptyFolder(_), WarningKind::Changed]), "{kinds:?}");
    }
}

#[test]
fn a_file_may_change_after_it_was_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, [b'x'; 5000]).unwrap();
    let disk = Shared::new(&options(folder.path()));
    let mut files = disk.files();
    let mut part = [0; 10];
    files.read(b"/file").unwrap().read(&mut part).unwrap();
    assert_eq!(part, [b'x'; 10]);
    fs::write(&path, [b'y'; 5000]).unwrap();
    // The first block was read, the second one was not.
    files.read(b"/file").unwrap().read(&mut part).unwrap();
    assert_eq!(part, [b'x'; 10]);
    assert!(contents(&mut files, "/file").is_err());
    assert_eq!(disk.warnings().len(), 1);
}

#[test]
fn paths_may_be_longer_than_the_kernel_takes() {
    let folder = tempfile::tempdir().unwrap();
    let name = "n".repeat(200);
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let mut at = openat(CWD, folder.path(), flags, Mode::empty()).unwrap();
    for _ in 0..50 {
        mkdirat(&at, &name, Mode::RWXU).unwrap();
        at = openat(&at, &name, flags, Mode::empty()).unwrap();
    }
    let file = openat(&at, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
    File::from(file).write_all_at(b"deep", 0).unwrap();
    let mut tree = tree(folder.path());
    let file = listing(&mut tree, &[&*name; 50])["file"].id;
    let mut bytes = [0; 4];
    tree.read(file, 0, &mut bytes).unwrap();
    assert_eq!(bytes, *b"deep");
}

#[test]
fn what_the_user_may_not_read_is_empty() {
    // The superuser may read all, so another user must look.
    let this = std::env::current_exe().unwrap();
    let mut command = Command::new(&this);
    command.args(["--ignored", "--exact", "as_a_user_who_may_not_read_all"]);
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        command.uid(65534).gid(65534);
    }
    match command.output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
        }
        Err(error) => skip::test(format!("another user cannot run {}: {error}", this.display())),
    }
}

#[test]
#[ignore = "the test above runs it"]
fn as_a_user_who_may_not_read_all() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::write(root.join("file"), "secret").unwrap();
    fs::set_permissions(root.join("file"), Permissions::from_mode(0o200)).unwrap();
    fs::write(root.join("open"), "open").unwrap();
    fs::set_permissions(root.join("open"), Permissions::from_mode(0o400)).unwrap();
    for (name, mode) in [("closed", 0o300), ("names only", 0o600)] {
        fs::create_dir(root.join(name)).unwrap();
        fs::write(root.join(name).join("inside"), "").unwrap();
        fs::set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
    }
    let disk = Shared::new(&options(root));
    let mut files = disk.files();
    assert_eq!(contents(&mut files, "/file").unwrap(), b"");
    assert_eq!(contents(&mut files, "/open").unwrap(), b"open");
    for name in ["closed", "names only"] {
        assert_eq!(files.list(name.as_bytes(), 10).unwrap().entries, [], "{name}");
        fs::set_permissions(root.join(name), Permissions::from_mode(0o700)).unwrap();
    }
    let mut warned: Vec<_> = disk.warnings().into_iter().map(|warning| warning.to_string()).collect();
    warned.sort();
    let root = root.canonicalize().unwrap();
    let expected = [
        ("closed", "the guest sees an empty folder: Permission denied (os error 13)"),
        ("file", "the guest sees an empty file: you may not read it"),
        ("names only", "the guest sees an empty folder: Permission denied (os error 13)"),
    ];
    assert_eq!(warned, expected.map(|(name, text)| format!("{}: {text}", root.join(name).display())));
}

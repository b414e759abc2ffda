//! Finds the kernel that `ttvm here` boots, and the files that belong to it.

use std::path::{Path, PathBuf};

use machine::error::Error;

/// The path of the kernel image in a kernel tree.
const IMAGE: &str = "arch/x86/boot/bzImage";
/// The largest kernel image in bytes.
const MOST_IMAGE_BYTES: u64 = 1 << 30;

/// A kernel and its files.
#[derive(Debug)]
pub struct Kernel {
    /// The kernel image.
    pub image: PathBuf,
    /// The kernel's release, such as `6.1.0-57-cloud-amd64`.
    pub release: String,
    /// The tree in which the kernel was built, if there is one.
    pub tree: Option<PathBuf>,
}

impl Kernel {
    /// The kernel that the user named: a file, a kernel tree, or the release of an installed kernel. Without a name, it is the
    /// kernel of the tree around the current folder.
    pub fn find(name: Option<&Path>) -> Result<Kernel, Error> {
        let Some(name) = name else {
            let here = std::env::current_dir().map_err(Error::file("find", "."))?;
            let tree = here.ancestors().find(|folder| folder.join(IMAGE).is_file());
            let tree = tree.ok_or_else(|| {
                let why = "there is no kernel here: run `make` in a kernel tree, and start ttvm in that tree; or give \
                    --kernel FILE, or --kernel RELEASE for a kernel in /boot";
                Error::Usage(why.to_string())
            })?;
            return Kernel::of(tree.join(IMAGE), Some(tree.to_path_buf()));
        };
        if name.is_dir() {
            return Kernel::of(name.join(IMAGE), Some(name.to_path_buf()));
        }
        if name.exists() {
            let tree = name.canonicalize().ok().and_then(|path| Some(path.ancestors().nth(4)?.to_path_buf()));
            let tree = tree.filter(|tree| tree.join(IMAGE).is_file() && name.ends_with("bzImage"));
            return Kernel::of(name.to_path_buf(), tree);
        }
        let installed = Path::new("/boot").join(format!("vmlinuz-{}", name.display()));
        if installed.exists() {
            return Kernel::of(installed, None);
        }
        let why = format!("there is no file {}, and no kernel {}", name.display(), installed.display());
        Err(Error::Usage(why))
    }

    fn of(image: PathBuf, tree: Option<PathBuf>) -> Result<Kernel, Error> {
        let bytes = plain_file::read(&image, MOST_IMAGE_BYTES).map_err(Error::file("read", &image))?;
        let release = boot::release(&bytes).ok_or_else(|| {
            let source =
                std::io::Error::other("it is no bzImage, as `make` builds it and distributions install it");
            Error::file("boot", &image)(source)
        })?;
        Ok(Kernel { image, release, tree })
    }

    /// The folders in which the kernel's other files may be. First comes the folder of the name that the user gave. The next two are
    /// the folder of the file to which that name leads, and the folder above, as for `boot/vmlinuz` and `lib/modules`.
    fn folders(&self) -> Vec<PathBuf> {
        let real = self.image.canonicalize().unwrap_or_else(|_| self.image.clone());
        let folders = self.image.parent().into_iter().chain(real.ancestors().skip(1).take(2));
        folders.map(Path::to_path_buf).collect()
    }

    /// The folder of the kernel's modules, if they are installed: beside the kernel, or on this host.
    pub fn modules(&self) -> Option<PathBuf> {
        let beside = self.folders().into_iter().map(|folder| folder.join("lib/modules"));
        let places = beside.chain(["/lib/modules".into(), "/usr/lib/modules".into()]);
        places.map(|place| place.join(&self.release)).find(|place| place.join("modules.dep").is_file())
    }

    /// The graft that puts the folder of the modules where the guest's programs look for it. `None` if the folder is there.
    pub fn graft(&self, modules: &Path) -> Result<Option<(PathBuf, PathBuf)>, Error> {
        let at = Path::new("/lib/modules").join(&self.release);
        let folder = modules.canonicalize().map_err(Error::file("open", modules))?;
        let is_there = at.canonicalize().is_ok_and(|there| there == folder);
        Ok((!is_there).then_some((at, folder)))
    }

    /// The file with the kernel's options, if there is one.
    pub fn options(&self) -> Option<PathBuf> {
        let name = format!("config-{}", self.release);
        let in_tree = self.tree.iter().map(|tree| tree.join(".config"));
        let beside = self.folders().into_iter();
        let beside = beside.flat_map(|folder| [folder.join(&name), folder.join("boot").join(&name)]);
        let installed = Path::new("/lib/modules").join(&self.release).join("config");
        let mut places = in_tree.chain(beside).chain([Path::new("/boot").join(&name), installed]);
        places.find(|place| place.is_file())
    }

    /// The kernel's symbols, if the tree has them.
    pub fn vmlinux(&self) -> Option<PathBuf> {
        self.tree.as_ref().map(|tree| tree.join("vmlinux")).filter(|file| file.is_file())
    }
}

//! The options that a kernel needs for `ttvm here`.

use std::path::Path;

use machine::error::Error;

/// The largest size in bytes of a file with options.
const MOST_BYTES: u64 = 16 << 20;

/// How a kernel must have an option.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Have {
    /// As a part of the kernel.
    BuiltIn,
    /// As a part of the kernel, or as an installed module.
    Anyhow,
}

/// The options, without their prefix.
const NEEDED: [(&str, Have); 13] = [
    ("64BIT", Have::BuiltIn),
    ("PCI", Have::BuiltIn),
    ("BLK_DEV_INITRD", Have::BuiltIn),
    ("BINFMT_ELF", Have::BuiltIn),
    ("BINFMT_SCRIPT", Have::Anyhow),
    ("DEVTMPFS", Have::BuiltIn),
    ("PROC_FS", Have::BuiltIn),
    ("SYSFS", Have::BuiltIn),
    ("SERIAL_8250", Have::BuiltIn),
    ("SERIAL_8250_CONSOLE", Have::BuiltIn),
    ("VIRTIO_PCI", Have::Anyhow),
    ("VIRTIO_BLK", Have::Anyhow),
    ("EXT4_FS", Have::Anyhow),
];
/// Options on which the needed options depend, or that make a kernel easier to debug.
const ALSO: [&str; 10] = [
    "TTY",
    "PRINTK",
    "BLOCK",
    "VIRTIO",
    "VIRTIO_MENU",
    "BLK_DEV",
    "TMPFS",
    "KALLSYMS",
    "KALLSYMS_ALL",
    "IKCONFIG",
];

/// A fragment of a configuration with all options. `make NAME.config` in a kernel tree reads it from
/// `kernel/configs/NAME.config`.
pub fn fragment() -> String {
    let names = ALSO.into_iter().chain(NEEDED.into_iter().map(|(name, _)| name));
    names.map(|name| format!("CONFIG_{name}=y\n")).collect()
}

/// Checks the options in a file. `has_modules` says whether the kernel's modules are installed.
pub fn check(file: &Path, has_modules: bool) -> Result<(), Error> {
    let bytes = plain_file::read(file, MOST_BYTES).map_err(Error::file("read", file))?;
    let missing = missing(&String::from_utf8_lossy(&bytes), has_modules);
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.iter().map(|name| format!("CONFIG_{name}")).collect::<Vec<_>>().join(", ");
    let switches = missing.iter().map(|name| format!(" -e {name}")).collect::<String>();
    let file = file.display();
    Err(Error::Unsupported(format!(
        "the kernel lacks {names} ({file}): run `scripts/config{switches} && make olddefconfig && make` in its tree, or \
         use the fragment that `ttvm here --config` prints"
    )))
}

fn missing(text: &str, has_modules: bool) -> Vec<&'static str> {
    let has = |name: &str, value: &str| {
        text.lines().any(|line| line.trim_end() == format!("CONFIG_{name}={value}"))
    };
    let fits =
        |name: &str, have: Have| has(name, "y") || (have == Have::Anyhow && has_modules && has(name, "m"));
    NEEDED.into_iter().filter(|&(name, have)| !fits(name, have)).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_options_are_named_and_the_fragment_has_them() {
        assert_eq!(missing(&fragment(), false), [""; 0]);
        let modular =
            fragment().replace("EXT4_FS=y", "EXT4_FS=m").replace("CONFIG_PCI=y", "# CONFIG_PCI is not set");
        assert_eq!(missing(&modular, true), ["PCI"]);
        assert_eq!(missing(&modular, false), ["PCI", "EXT4_FS"]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(".config");
        std::fs::write(&file, modular).unwrap();
        let told = check(&file, false).unwrap_err().to_string();
        assert!(told.contains("CONFIG_PCI, CONFIG_EXT4_FS") && told.contains("-e PCI -e EXT4_FS"), "{told}");
        std::fs::write(&file, fragment()).unwrap();
        assert!(check(&file, false).is_ok());
    }
}

//! `monitor disk`: the guest's disk at the present position.

use gdb::Refusal;
use views::disk::{DiskContents, list, trouble};
use views::visible::visible;

use super::{GdbTarget, refused};

/// The largest number of files that one answer lists.
const MAX_FILES: usize = 1000;
/// The largest number of bytes of a file that one answer shows.
const MAX_FILE_BYTES: usize = 1 << 16;

impl GdbTarget<'_> {
    pub(super) fn disk(&mut self, text: &str) -> Result<String, Refusal> {
        let (text, partition) = with_partition(text)?;
        let (action, path) = text.split_once(' ').unwrap_or((text, "/"));
        let path = path.trim().as_bytes();
        let contents = DiskContents::of(self.timeline.machine_mut()).map_err(refused)?;
        let files = || contents.files(partition).map_err(refused);
        match action {
            "info" => Ok(format!("{}\n", contents.info().map_err(refused)?)),
            "ls" => Ok(format!("{}\n", list(&mut files()?, path, MAX_FILES).map_err(refused)?)),
            "cat" => beginning(&mut files()?, path),
            _ => Err(Refusal::new("write: monitor disk info, disk ls [PATH] or disk cat PATH")),
        }
    }
}

/// Splits off `partition:N` at the end of a command.
fn with_partition(text: &str) -> Result<(&str, Option<u32>), Refusal> {
    let Some((rest, last)) = text.rsplit_once(' ') else { return Ok((text, None)) };
    match last.strip_prefix("partition:").map(str::parse) {
        None => Ok((text, None)),
        Some(Ok(number)) => Ok((rest.trim_end(), Some(number))),
        Some(Err(_)) => Err(Refusal::new(format!("'{last}' is no partition: write partition:N"))),
    }
}

/// The beginning of a file, with control characters made visible.
fn beginning(files: &mut guest_disk::Files, path: &[u8]) -> Result<String, Refusal> {
    let refused = |error| super::refused(trouble(error));
    let mut file = files.read(path).map_err(refused)?;
    let mut bytes = vec![0; MAX_FILE_BYTES];
    let mut length = 0;
    while length < bytes.len() {
        match file.read(&mut bytes[length..]).map_err(refused)? {
            0 => break,
            count => length += count,
        }
    }
    let mut text = visible(&String::from_utf8_lossy(&bytes[..length])).into_owned();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    if file.size_bytes() > length as u64 {
        let size = file.size_bytes();
        text += &format!(
            "these are the first {length} of {size} bytes; `ttvm disk R cat` writes the whole file\n"
        );
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_named_at_the_end() {
        let split = |text| with_partition(text).ok();
        assert_eq!(split("ls /a b partition:2"), Some(("ls /a b", Some(2))));
        assert_eq!(split("ls"), Some(("ls", None)));
        assert_eq!(split("cat /partition:x y"), Some(("cat /partition:x y", None)));
        assert_eq!(split("ls partition:x"), None);
    }
}

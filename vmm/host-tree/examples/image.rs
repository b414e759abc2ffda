//! Writes the disk of a folder into a sparse file, for trying the disk with a kernel or with e2fsck.
//!
//! `cargo run --release -p ttvm-host-tree --example image -- FOLDER IMAGE GIBIBYTES [eager]`

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::time::Instant;

use ext4_layout::Time;
use host_tree::{Disk, Options};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (folder, image, gibibytes, is_eager) = match &arguments[..] {
        [folder, image, gibibytes] => (folder, image, gibibytes, false),
        [folder, image, gibibytes, eager] if eager == "eager" => (folder, image, gibibytes, true),
        _ => {
            eprintln!("usage: image FOLDER IMAGE GIBIBYTES [eager]");
            return ExitCode::from(2);
        }
    };
    match write(folder, image, gibibytes, is_eager) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &str, image: &str, gibibytes: &str, is_eager: bool) -> Result<(), Box<dyn Error>> {
    let size_bytes = gibibytes.parse::<u64>()? << 30;
    let layout = ext4_layout::Options::new(*b"ttvm's image.rs!", 1_700_000_000).with_size(size_bytes);
    let time = Time { seconds: layout.created_seconds.into(), nanoseconds: 0 };
    let make = if is_eager { Disk::eager } else { Disk::new };
    let mut disk = make(layout, &Options::new(folder, time))?;
    let file = File::create(image)?;
    file.set_len(disk.blocks() * 4096)?;
    let (start, mut written, mut unreadable) = (Instant::now(), 0_u64, 0_u64);
    for number in 0..disk.blocks() {
        match disk.read_block(number) {
            Ok(None) => (),
            Ok(Some(bytes)) => {
                file.write_all_at(&*bytes, number * 4096)?;
                written += 1;
            }
            Err(_) => unreadable += 1,
        }
    }
    disk.take_warnings().iter().for_each(|warning| eprintln!("{warning}"));
    eprintln!("{written} blocks with bytes, {unreadable} unreadable blocks, {:?}", start.elapsed());
    Ok(())
}

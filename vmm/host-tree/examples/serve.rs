//! Serves the disk of a folder by NBD, so that a kernel in QEMU or e2fsck reads blocks when they want them.
//!
//! `cargo run --release -p ttvm-host-tree --example serve -- FOLDER SOCKET GIBIBYTES`
//!
//! The program ends when the first client leaves, and shows the number of blocks that were read.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::os::unix::net::UnixListener;
use std::process::ExitCode;

use ext4_layout::Time;
use guest_disk::{ByteSource, nbd};
use host_tree::{Disk, Options};

/// A disk that keeps the blocks that were read.
struct Kept {
    disk: Disk,
    blocks: BTreeMap<u64, Option<Box<[u8; 4096]>>>,
    unreadable: u64,
}

impl Kept {
    fn block(&mut self, number: u64) -> io::Result<&Option<Box<[u8; 4096]>>> {
        if !self.blocks.contains_key(&number) {
            let block = self.disk.read_block(number).map_err(|error| {
                self.unreadable += 1;
                io::Error::other(error)
            })?;
            self.blocks.insert(number, block);
        }
        Ok(&self.blocks[&number])
    }
}

impl ByteSource for Kept {
    fn size_bytes(&self) -> u64 {
        self.disk.blocks() * 4096
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < to.len() {
            let at = offset + filled as u64;
            let start = (at % 4096) as usize;
            let count = (4096 - start).min(to.len() - filled);
            let part = &mut to[filled..filled + count];
            match self.block(at / 4096)? {
                Some(bytes) => part.copy_from_slice(&bytes[start..start + count]),
                None => part.fill(0),
            }
            filled += count;
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, socket, gibibytes] = &arguments[..] else {
        eprintln!("usage: serve FOLDER SOCKET GIBIBYTES");
        return ExitCode::from(2);
    };
    match serve(folder, socket, gibibytes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(folder: &str, socket: &str, gibibytes: &str) -> Result<(), Box<dyn Error>> {
    let size_bytes = gibibytes.parse::<u64>()? << 30;
    let layout = ext4_layout::Options::new(*b"ttvm's image.rs!", 1_700_000_000).with_size(size_bytes);
    let time = Time { seconds: layout.created_seconds.into(), nanoseconds: 0 };
    let disk = Disk::new(layout, &Options::new(folder, time))?;
    let mut kept = Kept { disk, blocks: BTreeMap::new(), unreadable: 0 };
    let (mut client, _) = UnixListener::bind(socket)?.accept()?;
    nbd::serve(&mut client, &mut kept)?;
    kept.disk.take_warnings().iter().for_each(|warning| eprintln!("{warning}"));
    let with_bytes = kept.blocks.values().flatten().count();
    let Kept { blocks, unreadable, .. } = kept;
    eprintln!("{} blocks read, {with_bytes} of them with bytes, {unreadable} unreadable", blocks.len());
    Ok(())
}

//! Digests of programs' results. The folder `golden/` has digests that a processor of each vendor has made. On
//! every host, the tests compare the host's own digests with these files. A recording made on one vendor's
//! processor replays on another vendor's processor only if the digests are equal.

use std::fmt::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use cpu::CpuStateV1;

use crate::campaign::Kind;
use crate::tier::Tier;
use crate::ways::Guest;
use seeded::mix;

/// The programs with digests: for each kind, how many programs. The programs have the numbers 0, 1, 2 and so on.
const PROGRAMS: [(Kind, u64); 2] = [(Kind::Anything, 400), (Kind::Loops, 40)];
const SEED: u64 = 20_263;

/// The folder with the digests of all vendors.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// Returns a line for every `distance`th program: its kind, its number, its steps, and the digest of all state and
/// RAM at its end.
pub fn every<T: Tier>(distance: NonZeroUsize) -> String {
    let mut text = String::new();
    for (kind, count) in PROGRAMS {
        for number in (0..count).step_by(distance.get()) {
            let (steps, digest) = of::<T>(kind, number);
            let _ = writeln!(text, "{kind:?} {number} {steps} {digest:016x}");
        }
    }
    text
}

/// Returns the number of steps of a program, and the digest of its result. The run is cut only at events from
/// outside.
fn of<T: Tier>(kind: Kind, number: u64) -> (u64, u64) {
    let program = kind.program(SEED, number);
    let mut guest = Guest::<T>::start(&program);
    for &cut in &program.cuts {
        guest.run_to_cut(&program, cut);
    }
    let end = guest.snapshot();
    let state =
        postcard::to_stdvec(&CpuStateV1::new(&end.state, end.counts)).expect("a state can be encoded");
    let digest = |bytes: &[u8]| {
        bytes.chunks(8).fold(bytes.len() as u64, |all, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            mix(all ^ u64::from_le_bytes(word))
        })
    };
    (end.counts.steps, digest(&state) ^ mix(digest(&end.ram)) ^ end.lines.seen)
}

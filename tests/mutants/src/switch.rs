//! Says which mutant is active. Each rewritten crate contains this file as its module `mutation`.

use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// The value of `ACTIVE` before the program has read the environment variable.
const UNKNOWN: u32 = u32::MAX;
/// The value of `ACTIVE` while no mutant is active, and the program records the locations with mutants that it
/// executes.
const RECORD: u32 = u32::MAX - 1;
const PLACES: usize = 1 << 16;

static ACTIVE: AtomicU32 = AtomicU32::new(UNKNOWN);
static SEEN: [AtomicBool; PLACES] = [const { AtomicBool::new(false) }; PLACES];
/// The file into which the program writes the locations that it executes. A process that locks itself in later can
/// open no file, so the file stays open.
static REACHED: OnceLock<File> = OnceLock::new();

/// Returns the number of the active mutant, or 0 if no mutant is active. The rewritten code calls this function at
/// each location with mutants.
#[inline(always)]
pub fn at(place: u32) -> u32 {
    match ACTIVE.load(Relaxed) {
        active if active < RECORD => active,
        _ => look(place),
    }
}

#[cold]
fn look(place: u32) -> u32 {
    if ACTIVE.load(Relaxed) == UNKNOWN {
        let active = std::env::var("MUTANT").ok().and_then(|number| number.parse().ok()).unwrap_or(0);
        ACTIVE.store(if std::env::var_os("MUTANTS_REACHED").is_some() { RECORD } else { active }, Relaxed);
    }
    if ACTIVE.load(Relaxed) < RECORD {
        return ACTIVE.load(Relaxed);
    }
    if !SEEN[place as usize].swap(true, Relaxed) {
        let mut file = REACHED.get_or_init(|| {
            let path = std::env::var_os("MUTANTS_REACHED").expect("it is what makes us record");
            File::options().append(true).create(true).open(path).expect("it can be written")
        });
        file.write_all(format!("{place}\n").as_bytes()).expect("it can be written");
    }
    0
}

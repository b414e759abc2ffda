//! Prints what checkpoints cost: `cargo run --release -p checkpoint --example cost [RAM pages]`.
//!
//! The pages look like a kernel's: records of a few words with pointers and counters. Most pages of a real guest
//! change by a few words within a second. The printed table's rows "words changed" show this case, and the other
//! rows show the extremes.

use std::fs;

use checkpoint::{PAGE_BYTES, Page, PageRef, Space, Store};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A page of records: pointers with equal upper halves, small numbers, zeroes.
fn records(random: &mut Random) -> Page {
    let mut page = [0; PAGE_BYTES];
    for word in page.chunks_exact_mut(8) {
        let value = match random.next() % 6 {
            0 => 0xffff_8880_0000_0000 | (random.next() % (1 << 28)) << 3,
            1 => random.next() % 4096,
            _ => 0,
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
    page
}

fn noise(random: &mut Random) -> Page {
    let mut page = [0; PAGE_BYTES];
    page.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
    page
}

fn change(page: &mut Page, words: usize, random: &mut Random) {
    for _ in 0..words {
        let at = random.next() as usize % 512 * 8;
        page[at..at + 8].copy_from_slice(&random.next().to_le_bytes());
    }
}

struct Case {
    name: &'static str,
    words: usize,
    refill: Option<fn(&mut Random) -> Page>,
}

const CASES: [Case; 6] = [
    Case { name: "unchanged", words: 0, refill: None },
    Case { name: "3 words changed", words: 3, refill: None },
    Case { name: "20 words changed", words: 20, refill: None },
    Case { name: "100 words changed", words: 100, refill: None },
    Case { name: "new records", words: 0, refill: Some(records) },
    Case { name: "random bytes", words: 0, refill: Some(noise) },
];

fn main() {
    let count: usize = std::env::args().nth(1).map_or(25_000, |n| n.parse().expect("a number of pages"));
    let dir = tempfile::tempdir().expect("a folder for the store");
    let store = Store::create(dir.path().join("checkpoints"), count as u64, 0).expect("a store");
    let mut random = Random(88_172_645_463_325_252);
    let mut ram: Vec<Page> = (0..count).map(|_| records(&mut random)).collect();
    println!(
        "{count} pages\n{:22} {:>9} {:>12} {:>14}",
        "checkpoint", "us/page", "bytes/page", "restore us/page"
    );
    let mut position = 1;
    report(&store, "first, all pages", position, &ram);
    for case in &CASES {
        for round in 1..=3 {
            for page in &mut ram {
                match case.refill {
                    Some(refill) => *page = refill(&mut random),
                    None => change(page, case.words, &mut random),
                }
            }
            position += 1;
            report(&store, &format!("{} {round}", case.name), position, &ram);
        }
    }
}

/// The processor time of this thread in microseconds. The time excludes a second thread that helps to
/// restore, and other work on the host.
fn cpu_us() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").expect("a Linux host");
    let ns: u64 = text.split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
    ns as f64 / 1e3
}

fn report(store: &Store, name: &str, position: u64, ram: &[Page]) {
    let start = cpu_us();
    let mut draft = store.add(position, position).expect("a draft");
    for (number, page) in ram.iter().enumerate() {
        draft.page(Space::Ram, number as u64, page).expect("a page");
    }
    let entry = draft.finish(&[], &[]).expect("a checkpoint");
    let add = cpu_us() - start;
    let restore = restore(store, position, ram);
    let pages = ram.len() as f64;
    let bytes = entry.bytes as f64 / pages;
    println!("{name:22} {:9.2} {bytes:12.1} {:14.2}", add / pages, restore / pages);
}

fn restore(store: &Store, position: u64, ram: &[Page]) -> f64 {
    let start = cpu_us();
    let maps = store.maps_at(position).expect("maps");
    let wanted: Vec<_> = maps
        .ram
        .iter_not_base()
        .filter_map(|(page, version)| match version {
            PageRef::Stored(id) => Some((page, *id)),
            _ => None,
        })
        .collect();
    let mut right = 0;
    store
        .read_many(&wanted, |page, contents| right += usize::from(contents[..64] == ram[page as usize][..64]))
        .expect("pages");
    assert_eq!(right, wanted.len());
    cpu_us() - start
}

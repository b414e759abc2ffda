//! Golden vectors are the results of some 100,000 cases on an Intel processor. A file in the tree contains the
//! golden vectors, and on every host, the tests compare the software CPU with this file. So on processors of other
//! vendors, the tests also check results that the manuals leave open.
//!
//! The golden vectors are results for the cases that a seed generates. A comparison with the processor uses the
//! same cases. The file stores the full result of each case, as the changed bytes, and a checksum of the cases. If
//! the generator or the decoder's list of instructions changes, the vectors must be recorded again on an Intel
//! processor. The file has the format postcard, compressed with Zstandard.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::case::{Case, Generator};
use crate::catalogue::Catalogue;
use crate::compare::COMPARED_FLAGS;
use crate::layout::{BATCH, DATA_BYTES};
use crate::reference::Reference;
use crate::state::{Fault, FxImage, Outcome, Registers};

const SEED: u64 = 2_026;
/// The number of batches in each part.
const BATCHES: u64 = 13;
/// Zstandard's compression level. A high level is slow, but recording is rare.
const LEVEL: i32 = 19;

/// Instructions that leave flags or results undefined. Half of the cases have these instructions. If this list
/// changes, the golden vectors must be recorded again.
const OPEN: [&str; 32] = [
    "and", "or", "xor", "test", "andn", "bextr", "blsi", "blsmsk", "blsr", "bzhi", "lzcnt", "tzcnt", "bsf",
    "bsr", "bswap", "bt", "btc", "btr", "bts", "mul", "imul", "div", "idiv", "shl", "shr", "sar", "rol",
    "ror", "rcl", "rcr", "shld", "shrd",
];

/// All golden vectors.
#[derive(Serialize, Deserialize)]
pub struct Golden {
    /// The name that the processor reports, its family, model and stepping.
    pub processor: String,
    seed: u64,
    fs_base: u64,
    /// The parts of the cases. Each part has cases of its own list of instructions.
    pub parts: Vec<Part>,
}

/// The results of cases of some instructions.
#[derive(Serialize, Deserialize)]
pub struct Part {
    /// The mnemonics of the instructions; all instructions if the list is empty.
    pub only: Vec<String>,
    /// The results of each batch.
    pub batches: Vec<Batch>,
}

/// The results of a batch of cases.
#[derive(Default, Serialize, Deserialize)]
pub struct Batch {
    /// Checksum of the cases.
    cases: u32,
    results: Vec<Changes>,
    /// The new values of all bytes that changed, for all cases of the batch.
    bytes: Vec<u8>,
}

/// The changes of the state that one case made.
#[derive(Serialize, Deserialize)]
struct Changes {
    fault: Option<Fault>,
    /// Pairs of numbers about the state's image: a number of bytes that stay, and the number of bytes after these
    /// that change.
    runs: Vec<(u16, u16)>,
}

/// The path of the file with the golden vectors.
pub fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/intel.zst")
}

impl Golden {
    /// Reads the golden vectors from a file.
    pub fn load(path: &Path) -> io::Result<Golden> {
        Golden::decode(&std::fs::read(path)?)
    }

    /// Reads the golden vectors from a file's bytes.
    pub fn decode(bytes: &[u8]) -> io::Result<Golden> {
        postcard::from_bytes(&zstd::decode_all(bytes)?).map_err(io::Error::other)
    }

    /// Returns the golden vectors in the form of a file's bytes.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        zstd::encode_all(&*postcard::to_stdvec(self).map_err(io::Error::other)?, LEVEL)
    }

    /// The number of cases.
    pub fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.batches.len() as u64 * BATCH).sum()
    }

    /// Whether there are no cases.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the base address of FS in all cases.
    pub fn fs_base(&self) -> u64 {
        self.fs_base
    }

    /// The seed that determines the cases.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The instructions of a part. Fails if the instructions' cases differ from the recorded cases.
    pub fn catalogue(&self, part: usize) -> io::Result<Catalogue> {
        let part = &self.parts[part];
        let catalogue = Catalogue::of(&part.only);
        let mut generator = Generator::new(&catalogue, self.seed, self.fs_base);
        for (number, batch) in part.batches.iter().enumerate() {
            if checksum(&mut generator, number as u64) != batch.cases || batch.results.len() as u64 != BATCH {
                let why = "the cases are not those of the golden vectors any more: record these again (tests/README.md)";
                return Err(io::Error::other(why));
            }
        }
        Ok(catalogue)
    }

    /// The results of a part.
    pub fn results(&self, part: usize) -> Results<'_> {
        Results { golden: self, part, batch: 0, number: 0, at: 0 }
    }
}

/// Checksum of a batch's cases and data.
fn checksum(generator: &mut Generator<'_>, batch: u64) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&generator.read_only_data());
    hasher.update(&generator.batch_data(batch));
    let mut case = Case::default();
    for number in 0..BATCH {
        generator.case(batch, number, &mut case);
        hasher.update(case.code());
        hasher.update(&image(&case.registers, &[]));
        hasher.update(&case.registers.rip.to_le_bytes());
        for write in &case.writes {
            hasher.update(&write.address.to_le_bytes());
            hasher.update(&write.bytes[..write.length]);
        }
    }
    hasher.finalize()
}

/// A reference that passes on the results of another reference, and records these results.
pub struct Recorder<R> {
    reference: R,
    batches: Vec<Batch>,
}

impl<R: Reference> Recorder<R> {
    /// Makes a recorder without any results.
    pub fn new(reference: R) -> Recorder<R> {
        Recorder { reference, batches: Vec::new() }
    }

    /// Returns the recorded batches, and the other reference.
    pub fn finish(self) -> (Vec<Batch>, R) {
        (self.batches, self.reference)
    }
}

impl<R: Reference> Reference for Recorder<R> {
    fn fs_base(&self) -> u64 {
        self.reference.fs_base()
    }

    fn seal_read_only(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reference.seal_read_only(bytes)
    }

    fn start_batch(&mut self, batch: u64) -> io::Result<()> {
        self.batches.push(Batch::default());
        self.reference.start_batch(batch)
    }

    fn run(&mut self, case: &Case, outcome: &mut Outcome, data: &mut [u8]) -> io::Result<()> {
        let before = image(&expected(case), data);
        self.reference.run(case, outcome, data)?;
        let after = image(&outcome.registers, data);
        let batch = self.batches.last_mut().expect("a batch has begun");
        let runs = difference(&before, &after, &mut batch.bytes);
        batch.results.push(Changes { fault: outcome.fault, runs });
        Ok(())
    }
}

/// Recorded results, as a reference. The cases must be run in the recorded order.
pub struct Results<'a> {
    golden: &'a Golden,
    part: usize,
    batch: usize,
    number: usize,
    /// The number of changed bytes that were read so far.
    at: usize,
}

impl Reference for Results<'_> {
    fn fs_base(&self) -> u64 {
        self.golden.fs_base
    }

    fn seal_read_only(&mut self, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn start_batch(&mut self, batch: u64) -> io::Result<()> {
        (self.batch, self.number, self.at) = (batch as usize, 0, 0);
        Ok(())
    }

    fn run(&mut self, case: &Case, outcome: &mut Outcome, data: &mut [u8]) -> io::Result<()> {
        let batch = &self.golden.parts[self.part].batches[self.batch];
        let changes = &batch.results[self.number];
        let mut image = image(&expected(case), data);
        let mut place = 0;
        for &(stay, change) in &changes.runs {
            place += usize::from(stay);
            let change = usize::from(change);
            image[place..place + change].copy_from_slice(&batch.bytes[self.at..self.at + change]);
            place += change;
            self.at += change;
        }
        self.number += 1;
        outcome.fault = changes.fault;
        unpack(&image, &mut outcome.registers, data);
        Ok(())
    }

    fn skip(&mut self, case: &Case) -> io::Result<()> {
        let mut outcome = Outcome { registers: Registers::ZERO, fault: None };
        self.run(case, &mut outcome, &mut vec![0; DATA_BYTES as usize])
    }
}

/// Returns the registers after an instruction that does nothing.
fn expected(case: &Case) -> Registers {
    let mut registers = case.registers.clone();
    registers.rip += case.code().len() as u64;
    registers
}

const FX: usize = 18 * 8;
const DATA_AT: usize = FX + 512;

/// Returns an image of the compared state: general registers, RIP, flags, x87 and SSE registers, and data. The x87
/// registers are in the order of their physical numbers, so a push changes only one register of the image.
fn image(registers: &Registers, data: &[u8]) -> Vec<u8> {
    let mut image = Vec::with_capacity(DATA_AT + data.len());
    for word in registers.gpr.into_iter().chain([registers.rip, registers.rflags & COMPARED_FLAGS]) {
        image.extend(word.to_le_bytes());
    }
    let mut fx = by_number(&registers.fx, registers.fx.top());
    fx.take_uncompared(&FxImage::ZERO);
    image.extend(fx.0);
    image.extend(data);
    image
}

fn unpack(image: &[u8], registers: &mut Registers, data: &mut [u8]) {
    let word = |n: usize| u64::from_le_bytes(image[8 * n..8 * n + 8].try_into().expect("eight bytes"));
    registers.gpr = std::array::from_fn(word);
    (registers.rip, registers.rflags) = (word(16), word(17));
    let fx = FxImage(image[FX..DATA_AT].try_into().expect("an image of 512 bytes"));
    registers.fx = by_number(&fx, 8 - fx.top());
    data.copy_from_slice(&image[DATA_AT..]);
}

/// Returns the FXSAVE image with its x87 registers in the order of their physical numbers: ST(n) is at the position
/// of register n + `top`.
fn by_number(fx: &FxImage, top: usize) -> FxImage {
    let mut turned = *fx;
    for n in 0..8 {
        turned.set_st((n + top) % 8, fx.mantissa(n), fx.sign_exponent(n));
    }
    turned
}

/// Lists the runs of bytes that differ and appends their new contents. A few equal bytes between differing bytes do
/// not end a run.
fn difference(before: &[u8], after: &[u8], bytes: &mut Vec<u8>) -> Vec<(u16, u16)> {
    const GAP: usize = 2;
    let mut runs = Vec::new();
    let (mut end, mut at) = (0, 0);
    while let Some(start) = (at..after.len()).find(|&n| before[n] != after[n]) {
        at = start + 1;
        let mut last = start;
        while at < after.len() && at - last <= GAP {
            if before[at] != after[at] {
                last = at;
            }
            at += 1;
        }
        runs.push(((start - end) as u16, (last + 1 - start) as u16));
        bytes.extend(&after[start..=last]);
        end = last + 1;
        at = end;
    }
    runs
}

/// Records all vectors. `record` runs the batches of a catalogue on the processor and returns the results.
pub fn record(
    fs_base: u64,
    mut record: impl FnMut(&Catalogue, u64, std::ops::Range<u64>) -> io::Result<Vec<Batch>>,
) -> io::Result<Golden> {
    let mut golden = Golden { processor: processor(), seed: SEED, fs_base, parts: Vec::new() };
    for only in [OPEN.map(String::from).to_vec(), Vec::new()] {
        let catalogue = Catalogue::of(&only);
        let mut batches = record(&catalogue, SEED, 0..BATCHES)?;
        let mut generator = Generator::new(&catalogue, SEED, fs_base);
        for (number, batch) in batches.iter_mut().enumerate() {
            batch.cases = checksum(&mut generator, number as u64);
        }
        golden.parts.push(Part { only, batches });
    }
    Ok(golden)
}

fn processor() -> String {
    use std::arch::x86_64::__cpuid;
    let name = (0x8000_0002..=0x8000_0004).flat_map(|leaf| {
        let part = __cpuid(leaf);
        [part.eax, part.ebx, part.ecx, part.edx].into_iter().flat_map(u32::to_le_bytes)
    });
    let name = name.take_while(|&byte| byte != 0).map(char::from).collect::<String>();
    format!("{}, CPUID signature {:#x}", name.trim(), __cpuid(1).eax)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_changed_bytes_make_the_new_image() {
        let before = [0; 12];
        let after = [1, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0];
        let mut bytes = Vec::new();
        assert_eq!(difference(&before, &after, &mut bytes), [(0, 1), (2, 1), (3, 1)].as_slice());
        assert_eq!(bytes, [1, 2, 3]);
        bytes.clear();
        assert_eq!(difference(&before, &[0, 1, 0, 2], &mut bytes), [(1, 3)]);
        assert_eq!(bytes, [1, 0, 2]);
    }

    #[test]
    fn x87_registers_survive_being_ordered() {
        let mut fx = FxImage::ZERO;
        (0..8).for_each(|n| fx.set_st(n, n as u64 + 1, n as u16));
        for top in 0..8 {
            fx.set_status((top as u16) << 11);
            assert!(by_number(&by_number(&fx, top), 8 - top) == fx, "TOP {top}");
        }
    }
}

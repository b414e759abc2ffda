//! Runs cases on both sides, batch by batch, and compares them.

use std::io;

use crate::case::{Case, Generator};
use crate::catalogue::Catalogue;
use crate::compare::{Pair, Verdict, compare};
use crate::layout::{BATCH, DATA, DATA_BYTES, PAD_AHEAD, PAD_BACK, slot};
use crate::open::{self, Compared};
use crate::reference::Reference;
use crate::report::{Report, family};
use crate::soft::Soft;
use crate::state::{Outcome, Registers};

/// Both sides and everything between them.
pub struct Runner<'a, R> {
    generator: Generator<'a>,
    /// The side that is right.
    pub reference: R,
    soft: Soft,
    compared: Compared,
    batch_data: Vec<u8>,
    native_data: Vec<u8>,
    soft_data: Vec<u8>,
    native_outcome: Outcome,
    soft_outcome: Outcome,
    case: Case,
    /// Counts so far.
    pub report: Report,
    /// How to repeat a case, for what is printed about it.
    repeat: String,
    /// Differences of one mnemonic that are printed in full.
    shown_each: u64,
}

/// How differences are shown.
pub struct Showing {
    /// The command that repeats a case, but for batch and case.
    pub repeat: String,
    /// Differences of one mnemonic that are printed in full.
    pub each: u64,
}

impl<'a, R: Reference> Runner<'a, R> {
    /// Sets the software's side up, and the reference's read-only page.
    pub fn new(
        catalogue: &'a Catalogue,
        seed: u64,
        mut reference: R,
        compared: Compared,
        showing: Showing,
    ) -> io::Result<Runner<'a, R>> {
        let mut soft = Soft::new(reference.fs_base());
        let generator = Generator::new(catalogue, seed, reference.fs_base());
        let sealed = generator.read_only_data();
        reference.seal_read_only(&sealed)?;
        soft.seal_read_only(&sealed);
        let empty = Outcome { registers: Registers::ZERO, fault: None };
        Ok(Runner {
            generator,
            reference,
            soft,
            compared,
            batch_data: Vec::new(),
            native_data: vec![0; DATA_BYTES as usize],
            soft_data: vec![0; DATA_BYTES as usize],
            native_outcome: empty.clone(),
            soft_outcome: empty,
            case: Case::default(),
            report: Report { codes: catalogue.entries.len() as u64, ..Report::default() },
            repeat: showing.repeat,
            shown_each: showing.each,
        })
    }

    /// Runs the first `count` cases of a batch; calls `before` with the number of each.
    pub fn batch(&mut self, batch: u64, count: u64, mut before: impl FnMut(u64)) -> io::Result<()> {
        self.soft.start_batch();
        self.reference.start_batch(batch)?;
        self.batch_data = self.generator.batch_data(batch);
        for number in 0..BATCH {
            self.soft.write_exit(slot(number) + PAD_BACK);
            self.soft.write_exit(slot(number) + PAD_AHEAD);
        }
        for number in 0..count.min(BATCH) {
            before(number);
            self.generator.case(batch, number, &mut self.case);
            if self.compared == Compared::Defined && open::decoded_otherwise(&self.case) {
                let uses = &mut self.report.allowed;
                *uses.entry("open: vendors decode it differently".to_string()).or_default() += 1;
                self.reference.skip(&self.case)?;
                continue;
            }
            self.one()?;
            self.judge(batch, number);
        }
        Ok(())
    }

    fn one(&mut self) -> io::Result<()> {
        let case = &self.case;
        let data = &mut self.native_data;
        data.copy_from_slice(&self.batch_data);
        for write in &case.writes {
            let at = (write.address - DATA) as usize;
            data[at..at + write.length].copy_from_slice(&write.bytes[..write.length]);
        }
        let rip = case.registers.rip;
        self.soft.write_code(rip, case.code());
        self.soft.write_exit(rip + case.code().len() as u64);
        self.soft.write_data(DATA, data);
        self.reference.run(case, &mut self.native_outcome, data)?;
        // A fault somewhere else is the fetch from where a branch went.
        let fetch = self.native_outcome.fault.is_some() && self.native_outcome.registers.rip != rip;
        self.soft.run(&case.registers, case.steps, fetch, &mut self.soft_outcome);
        self.soft.read_data(&mut self.soft_data);
        Ok(())
    }

    fn judge(&mut self, batch: u64, number: u64) {
        let pair = Pair {
            native: &self.native_outcome,
            soft: &self.soft_outcome,
            native_data: &self.native_data,
            soft_data: &self.soft_data,
        };
        let verdict = compare(&self.case, &pair, self.compared, &mut self.report.allowed);
        let name = self.case.instruction.mnemonic();
        if matches!(verdict, Verdict::NotOffered) {
            *self.report.not_offered.entry(format!("{name:?}").to_lowercase()).or_default() += 1;
        } else {
            self.count(matches!(verdict, Verdict::Different(_)));
        }
        if let Verdict::Different(lines) = &verdict {
            self.show(batch, number, lines);
        }
    }

    fn count(&mut self, different: bool) {
        let fault = u64::from(self.native_outcome.fault.is_some());
        let mnemonic = format!("{:?}", self.case.instruction.mnemonic()).to_lowercase();
        let family = family(&self.case.instruction).to_string();
        for row in [
            self.report.families.entry(family).or_default(),
            self.report.mnemonics.entry(mnemonic).or_default(),
        ] {
            row.executions += 1;
            row.exceptions += fault;
            row.differences += u64::from(different);
        }
    }

    fn show(&self, batch: u64, number: u64, lines: &[String]) {
        let mnemonic = format!("{:?}", self.case.instruction.mnemonic()).to_lowercase();
        if self.report.mnemonics.get(&mnemonic).is_some_and(|row| row.differences > self.shown_each) {
            return;
        }
        let case = &self.case;
        let mut text = format!(
            "DIFFERENT {} [{}] {:?}\n  repeat: {} --batch {batch} --case {number}\n",
            crate::text::bytes(case.code()),
            crate::text::instruction(&case.instruction),
            case.instruction.code(),
            self.repeat,
        );
        lines.iter().for_each(|line| text += &format!("  {line}\n"));
        text += &crate::text::inputs(case);
        eprint!("{text}");
    }
}

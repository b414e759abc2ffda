//! Runs cases on both sides, batch by batch, and compares them.

use std::io;

use crate::case::{Case, Generator};
use crate::catalogue::Catalogue;
use crate::compare::{Pair, Verdict, compare};
use crate::layout::{BATCH, DATA, DATA_BYTES, PAD_AHEAD, PAD_BACK, slot};
use crate::native::{Exit, Native};
use crate::report::{Report, family};
use crate::soft::Soft;
use crate::state::{Outcome, Registers};

/// Both sides and everything between them.
pub struct Runner<'a> {
    generator: Generator<'a>,
    native: Native,
    soft: Soft,
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

impl<'a> Runner<'a> {
    /// Sets both sides up in this process. Once per process: see [`Native::new`].
    pub fn new(
        catalogue: &'a Catalogue,
        seed: u64,
        repeat: String,
        shown_each: u64,
    ) -> io::Result<Runner<'a>> {
        let mut native = Native::new()?;
        let mut soft = Soft::new(native.fs_base);
        let generator = Generator::new(catalogue, seed, native.fs_base);
        let sealed = generator.read_only_data();
        native.seal_read_only(&sealed)?;
        soft.seal_read_only(&sealed);
        let empty = Outcome { registers: Registers::ZERO, fault: None };
        Ok(Runner {
            generator,
            native,
            soft,
            native_data: vec![0; DATA_BYTES as usize],
            soft_data: vec![0; DATA_BYTES as usize],
            native_outcome: empty.clone(),
            soft_outcome: empty,
            case: Case::default(),
            report: Report { codes: catalogue.entries.len() as u64, ..Report::default() },
            repeat,
            shown_each,
        })
    }

    /// Runs the first `count` cases of a batch; calls `before` with the number of each.
    pub fn batch(&mut self, batch: u64, count: u64, mut before: impl FnMut(u64)) {
        self.soft.start_batch();
        let data = self.generator.batch_data(batch);
        self.native.write_data(DATA, &data);
        self.soft.write_data(DATA, &data);
        for number in 0..BATCH {
            let slot = slot(number);
            for (offset, exit) in [(PAD_BACK, Exit::Back), (PAD_AHEAD, Exit::Ahead)] {
                self.native.write_exit(slot + offset, exit);
                self.soft.write_exit(slot + offset);
            }
        }
        for number in 0..count.min(BATCH) {
            before(number);
            self.one(batch, number);
        }
    }

    fn one(&mut self, batch: u64, number: u64) {
        self.generator.case(batch, number, &mut self.case);
        let case = &self.case;
        let rip = case.registers.rip;
        let end = rip + case.code().len() as u64;
        self.native.write_code(rip, case.code());
        self.native.write_exit(end, Exit::Fell);
        self.soft.write_code(rip, case.code());
        self.soft.write_exit(end);
        for write in &case.writes {
            self.native.write_data(write.address, &write.bytes[..write.length]);
            self.soft.write_data(write.address, &write.bytes[..write.length]);
        }
        let length = case.code().len() as u64;
        self.native.run(&case.registers, length, case.slot, &mut self.native_outcome);
        // A fault somewhere else is the fetch from where a branch went.
        let fetch = self.native_outcome.fault.is_some() && self.native_outcome.registers.rip != rip;
        self.soft.run(&case.registers, case.steps, fetch, &mut self.soft_outcome);
        self.native.read_data(&mut self.native_data);
        self.soft.read_data(&mut self.soft_data);
        self.judge(batch, number);
    }

    fn judge(&mut self, batch: u64, number: u64) {
        let pair = Pair {
            native: &self.native_outcome,
            soft: &self.soft_outcome,
            native_data: &self.native_data,
            soft_data: &self.soft_data,
        };
        let verdict = compare(&self.case, &pair, &mut self.report.allowed);
        let name = self.case.instruction.mnemonic();
        if matches!(verdict, Verdict::NotOffered) {
            *self.report.not_offered.entry(format!("{name:?}").to_lowercase()).or_default() += 1;
        } else {
            self.count(matches!(verdict, Verdict::Different(_)));
        }
        if let Verdict::Different(lines) = &verdict {
            self.show(batch, number, lines);
        }
        if self.native_data != self.soft_data {
            self.soft.write_data(DATA, &self.native_data);
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

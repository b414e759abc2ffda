//! Runs cases on the reference and on the software CPU, batch by batch, and compares the results.

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

/// Runs cases on a reference and on the software CPU, and compares the results.
pub struct Runner<'a, R> {
    generator: Generator<'a>,
    /// The reference with which the software CPU is compared.
    pub reference: R,
    /// Two software CPUs: one uses the interpreter, and one uses the translator.
    tiers: [Soft; 2],
    compared: Compared,
    batch_data: Vec<u8>,
    native_data: Vec<u8>,
    soft_data: Vec<u8>,
    native_outcome: Outcome,
    soft_outcome: Outcome,
    case: Case,
    /// The counts so far.
    pub report: Report,
    /// The command that repeats a case, without the numbers of batch and case.
    repeat: String,
    /// The largest number of differences of one mnemonic that are printed in full.
    shown_each: u64,
}

/// How differences are shown.
pub struct Showing {
    /// The command that repeats a case, without the numbers of batch and case.
    pub repeat: String,
    /// The largest number of differences of one mnemonic that are printed in full.
    pub each: u64,
}

impl<'a, R: Reference> Runner<'a, R> {
    /// Sets up the software CPU, and the read-only page of the reference.
    pub fn new(
        catalogue: &'a Catalogue,
        seed: u64,
        mut reference: R,
        compared: Compared,
        showing: Showing,
    ) -> io::Result<Runner<'a, R>> {
        let tiers = [cpu::Tier::Interpreter, cpu::Tier::Translator { after: 0, parts: cpu::Parts::ALL }];
        let mut tiers = tiers.map(|tier| Soft::new(reference.fs_base(), tier));
        let generator = Generator::new(catalogue, seed, reference.fs_base());
        let sealed = generator.read_only_data();
        reference.seal_read_only(&sealed)?;
        tiers.iter_mut().for_each(|soft| soft.seal_read_only(&sealed));
        let empty = Outcome { registers: Registers::ZERO, fault: None };
        Ok(Runner {
            generator,
            reference,
            tiers,
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

    /// Runs the first `count` cases of a batch. Before each case, calls `before` with the case's number.
    pub fn batch(&mut self, batch: u64, count: u64, mut before: impl FnMut(u64)) -> io::Result<()> {
        self.tiers.iter_mut().for_each(Soft::start_batch);
        self.reference.start_batch(batch)?;
        self.batch_data = self.generator.batch_data(batch);
        for soft in &mut self.tiers {
            for number in 0..BATCH {
                soft.write_exit(slot(number) + PAD_BACK);
                soft.write_exit(slot(number) + PAD_AHEAD);
            }
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
            let verdicts = [0, 1].map(|tier| {
                self.run_tier(tier);
                self.judge(batch, number, tier)
            });
            self.note(&verdicts);
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
        for soft in &mut self.tiers {
            soft.write_code(rip, case.code());
            soft.write_exit(rip + case.code().len() as u64);
            soft.write_data(DATA, data);
        }
        self.reference.run(case, &mut self.native_outcome, data)
    }

    fn run_tier(&mut self, tier: usize) {
        // If the fault's RIP is not the instruction's address, the fetch at the branch target has faulted.
        let fault_elsewhere = self.native_outcome.registers.rip != self.case.registers.rip;
        let fetch = self.native_outcome.fault.is_some() && fault_elsewhere;
        let soft = &mut self.tiers[tier];
        soft.run(&self.case.registers, self.case.steps, fetch, &mut self.soft_outcome);
        soft.read_data(&mut self.soft_data);
    }

    fn judge(&mut self, batch: u64, number: u64, tier: usize) -> Verdict {
        let pair = Pair {
            native: &self.native_outcome,
            soft: &self.soft_outcome,
            native_data: &self.native_data,
            soft_data: &self.soft_data,
        };
        // Count the allowed differences of the first CPU only, so that the report does not count a difference
        // twice.
        let mut not_counted = Default::default();
        let allowed = if tier == 0 { &mut self.report.allowed } else { &mut not_counted };
        let verdict = compare(&self.case, &pair, self.compared, allowed);
        if let Verdict::Different(lines) = &verdict {
            self.show(batch, number, lines, tier);
        }
        verdict
    }

    /// Counts an execution. Counts one difference if the result of at least one of the two CPUs differs.
    fn note(&mut self, verdicts: &[Verdict]) {
        if verdicts.iter().any(|verdict| matches!(verdict, Verdict::NotOffered)) {
            let name = self.case.instruction.mnemonic();
            *self.report.not_offered.entry(format!("{name:?}").to_lowercase()).or_default() += 1;
        } else {
            self.count(verdicts.iter().any(|verdict| matches!(verdict, Verdict::Different(_))));
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

    fn show(&self, batch: u64, number: u64, lines: &[String], tier: usize) {
        let mnemonic = format!("{:?}", self.case.instruction.mnemonic()).to_lowercase();
        if self.report.mnemonics.get(&mnemonic).is_some_and(|row| row.differences >= self.shown_each) {
            return;
        }
        let case = &self.case;
        let mut text = format!(
            "DIFFERENT{} {} [{}] {:?}\n  repeat: {} --batch {batch} --case {number}\n",
            if tier == 0 { "" } else { " TRANSLATED" },
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

//! The counts of a comparison, and the table that shows them.

use std::collections::BTreeMap;
use std::fmt;

use iced_x86::{CpuidFeature, Instruction, OpKind};
use serde::{Deserialize, Serialize};

use crate::allowed::Uses;

/// The family of an instruction. Each family is a row of the table.
pub fn family(instruction: &Instruction) -> &'static str {
    use CpuidFeature::*;
    let features = instruction.cpuid_features();
    let mmx = (0..instruction.op_count())
        .any(|n| instruction.op_kind(n) == OpKind::Register && instruction.op_register(n).is_mm());
    let has = |feature| features.contains(&feature);
    match () {
        _ if instruction.is_string_instruction() => "string",
        _ if has(AES) => "AES",
        _ if has(PCLMULQDQ) => "PCLMULQDQ",
        _ if has(FPU) || has(FPU287) || has(FPU387) => "x87",
        _ if has(FXSR) => "FXSAVE",
        _ if has(BMI1) || has(BMI2) || has(LZCNT) || has(POPCNT) || has(MOVBE) => "BMI and relatives",
        _ if mmx || has(MMX) => "MMX",
        _ if has(SSE4_1) || has(SSE4_2) => "SSE4",
        _ if has(SSSE3) => "SSSE3",
        _ if has(SSE3) => "SSE3",
        _ if has(SSE2) => "SSE2",
        _ if has(SSE) => "SSE",
        _ => "integer",
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// Number of compared executions.
    pub executions: u64,
    /// Number of executions that raised an exception on the processor.
    pub exceptions: u64,
    /// The number of executions whose results differed between reference and software CPU.
    pub differences: u64,
}

/// The counts of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// The counts of each family of instructions.
    pub families: BTreeMap<String, Row>,
    /// The counts of each mnemonic.
    pub mnemonics: BTreeMap<String, Row>,
    /// The number of executions of each mnemonic that the software CPU does not know.
    pub not_offered: BTreeMap<String, u64>,
    /// How often each allowed difference occurred.
    pub allowed: Uses,
    /// The number of instruction encodings (`Code` values) in the catalogue. A run may not have executed all of
    /// these encodings.
    pub codes: u64,
}

impl Report {
    /// Number of compared executions.
    pub fn executions(&self) -> u64 {
        self.families.values().map(|row| row.executions).sum()
    }

    /// Returns the number of executions whose results differed between reference and software CPU.
    pub fn differences(&self) -> u64 {
        self.families.values().map(|row| row.differences).sum()
    }

    /// Adds the counts of another report.
    pub fn merge(&mut self, other: &Report) {
        let rows = |to: &mut BTreeMap<String, Row>, from: &BTreeMap<String, Row>| {
            for (name, row) in from {
                let sum = to.entry(name.clone()).or_default();
                sum.executions += row.executions;
                sum.exceptions += row.exceptions;
                sum.differences += row.differences;
            }
        };
        rows(&mut self.families, &other.families);
        rows(&mut self.mnemonics, &other.mnemonics);
        for (to, from) in [(&mut self.not_offered, &other.not_offered), (&mut self.allowed, &other.allowed)] {
            for (name, count) in from {
                *to.entry(name.clone()).or_default() += count;
            }
        }
        self.codes = self.codes.max(other.codes);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<20} {:>12} {:>12} {:>12}", "family", "executions", "exceptions", "differences")?;
        for (name, row) in &self.families {
            writeln!(f, "{name:<20} {:>12} {:>12} {:>12}", row.executions, row.exceptions, row.differences)?;
        }
        writeln!(f, "{:<20} {:>12} {:>12} {:>12}", "all", self.executions(), "", self.differences())?;
        let different = self.mnemonics.iter().filter(|(_, row)| row.differences > 0);
        for (name, row) in different {
            writeln!(f, "different: {name}: {} of {}", row.differences, row.executions)?;
        }
        for (name, count) in &self.allowed {
            writeln!(f, "allowed: {name}: {count}")?;
        }
        if !self.not_offered.is_empty() {
            let names = self.not_offered.keys().cloned().collect::<Vec<_>>().join(" ");
            writeln!(f, "not offered ({} mnemonics): {names}", self.not_offered.len())?;
        }
        Ok(())
    }
}

//! The list of mutants that cargo-mutants prints.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// A change of the source. The number of a change is its index in the list, counted from 1.
#[derive(Debug, Deserialize)]
pub struct Mutant {
    /// The mutant's name: `FILE:LINE:COLUMN: WHAT in FUNCTION`.
    pub name: String,
    pub package: String,
    pub file: String,
    pub genre: Genre,
    pub replacement: String,
    pub span: Span,
    pub function: Option<Function>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd)]
pub enum Genre {
    BinaryOperator,
    UnaryOperator,
    FnValue,
    MatchArm,
    MatchArmGuard,
    StructField,
}

#[derive(Debug, Deserialize)]
pub struct Span {
    pub start: Place,
}

/// A position in a source file. Line and column are counted from 1.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

#[derive(Debug, Deserialize)]
pub struct Function {
    pub return_type: String,
}

/// Returns the mutants of all files that match the patterns in `files`.
pub fn list(repository: &Path, files: &[String]) -> Result<Vec<Mutant>> {
    let output = Command::new("cargo")
        .args(["mutants", "--list", "--json"])
        .args(files.iter().map(|file| format!("--file={file}")))
        .current_dir(repository)
        .output()
        .context("cargo mutants")?;
    ensure!(output.status.success(), "cargo mutants: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

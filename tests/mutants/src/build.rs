//! A copy of the tree with every mutant that the compiler accepts, and its test programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::list::{Genre, Mutant};
use crate::rewrite;

/// The profile of the tests. The tests are optimised, because they run very often, and have all checks of the profile
/// `dev`.
const PROFILE: [&str; 4] =
    ["--profile=mutants", "--config=profile.mutants.inherits='dev'", "--config", OPTIMISED];
const OPTIMISED: &str = "profile.mutants.opt-level=2";

/// The text that replaces a compiler error's code, for a mutant that would give a function two return types.
pub const TWO_TYPES: &str = "two types";

/// The text that adds the module `mutation` to a package's main file.
const MODULE: &str = "\nmod mutation;\n";

/// The build's result.
pub struct Built {
    pub programs: Vec<Program>,
    /// Maps every mutant that was built to the number of its location in the source. A test that executes the
    /// location records this number.
    pub places: BTreeMap<u32, u32>,
    /// Maps every mutant that the compiler refuses to the code of the compiler's error.
    pub refused: BTreeMap<u32, String>,
}

/// One test program, of the package's library or of a file in its `tests`.
pub struct Program {
    pub package: String,
    pub path: PathBuf,
    pub folder: PathBuf,
}

/// Builds all test programs of a copy of the tree with `mutants`, which are numbered from 1. `tests` are the
/// packages whose tests are wanted.
pub fn build(repository: &Path, work: &Path, mutants: &[Mutant], tests: &BTreeSet<String>) -> Result<Built> {
    let tree = work.join("tree");
    copy(repository, &tree, mutants)?;
    let known = work.join("refused.json");
    let mut refused = refused_before(&known, mutants)?;
    loop {
        let places = write_mutants(repository, &tree, mutants, &refused)?;
        let before = refused.len();
        let messages = cargo(&tree, "check", tests, &["--lib", "--bins", "--keep-going"])?;
        let errors: Vec<&Value> = messages.iter().filter(|message| is_error(message)).collect();
        for error in &errors {
            refuse(&tree, error, &mut refused)?;
        }
        if errors.is_empty() {
            let names = refused.iter().map(|(&number, code)| (&mutants[number as usize - 1].name, code));
            fs::write(&known, serde_json::to_vec(&names.collect::<BTreeMap<_, _>>())?)?;
            let programs = programs(&cargo(&tree, "test", tests, &["--no-run"])?)?;
            return Ok(Built { programs, places, refused });
        }
        ensure!(refused.len() > before, "no mutant is where there is an error:\n{}", rendered(errors[0]));
        eprintln!("{} mutants are left out, because the compiler does not take them", refused.len());
    }
}

/// Returns the mutants that the new build leaves out from the beginning, each with an error code. The map has
/// mutants that cannot be built together with others, and mutants that the compiler refused in an earlier run.
fn refused_before(known: &Path, mutants: &[Mutant]) -> Result<BTreeMap<u32, String>> {
    let codes: BTreeMap<String, String> =
        fs::read(known).map_or_else(|_| Ok(BTreeMap::new()), |text| serde_json::from_slice(&text))?;
    let code = |mutant: &Mutant| match returns_impl(mutant) {
        true => Some(TWO_TYPES.to_owned()),
        false => codes.get(&mutant.name).cloned(),
    };
    Ok((1..).zip(mutants).filter_map(|(number, mutant)| Some((number, code(mutant)?))).collect())
}

/// Whether the mutant's function returns `impl Trait`. Such a function cannot return values of two types.
fn returns_impl(mutant: &Mutant) -> bool {
    let function = mutant.function.as_ref();
    mutant.genre == Genre::FnValue && function.is_some_and(|it| it.return_type.contains("impl "))
}

/// Copies all files that git tracks or would add into the tree, except the files with mutants. Adds the module
/// `mutation` to each package with mutants. Unchanged files are not written, so cargo builds little.
fn copy(repository: &Path, tree: &Path, mutants: &[Mutant]) -> Result<()> {
    let mutated: BTreeSet<&str> = mutants.iter().map(|mutant| mutant.file.as_str()).collect();
    let sources = mutated.iter().filter_map(|file| file.find("/src/").map(|at| &file[..at + "/src".len()]));
    let sources: BTreeSet<&str> = sources.collect();
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(repository)
        .output()
        .context("git")?;
    ensure!(listed.status.success(), "git: {}", String::from_utf8_lossy(&listed.stderr));
    for name in
        String::from_utf8(listed.stdout)?.split_terminator('\0').filter(|name| !mutated.contains(name))
    {
        let Ok(mut contents) = fs::read(repository.join(name)) else { continue };
        if root_of(name).is_some_and(|folder| sources.contains(folder)) {
            contents.extend_from_slice(MODULE.as_bytes());
        }
        write_changed(&tree.join(name), &contents)?;
    }
    for folder in sources {
        write_changed(&tree.join(folder).join("mutation.rs"), include_bytes!("switch.rs"))?;
    }
    Ok(())
}

/// The folder of a library's or a program's main file.
fn root_of(file: &str) -> Option<&str> {
    ["/lib.rs", "/main.rs"].iter().find_map(|name| file.strip_suffix(name))
}

fn write_changed(path: &Path, contents: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|there| there == contents) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().context("a file is in a folder")?)?;
    fs::write(path, contents).with_context(|| path.display().to_string())
}

fn write_mutants(
    repository: &Path,
    tree: &Path,
    mutants: &[Mutant],
    refused: &BTreeMap<u32, String>,
) -> Result<BTreeMap<u32, u32>> {
    let without = refused.keys().copied().collect();
    let mut places = BTreeMap::new();
    for file in mutants.iter().map(|mutant| &mutant.file).collect::<BTreeSet<_>>() {
        let source = fs::read_to_string(repository.join(file))?;
        let here = (1..).zip(mutants).filter(|(_, mutant)| mutant.file == *file);
        let mut rewritten = rewrite::rewrite(&source, here, &without).with_context(|| file.clone())?;
        if root_of(file).is_some_and(|folder| folder.ends_with("/src")) {
            rewritten.text += MODULE;
        }
        write_changed(&tree.join(file), rewritten.text.as_bytes())?;
        places.extend(rewritten.places);
    }
    Ok(places)
}

/// Runs cargo and returns its messages.
fn cargo(tree: &Path, verb: &str, packages: &BTreeSet<String>, options: &[&str]) -> Result<Vec<Value>> {
    let output = Command::new("cargo")
        .args([verb, "--locked", "--message-format=json"])
        .args(PROFILE)
        .args(packages.iter().map(|package| format!("--package={package}")))
        .args(options)
        .current_dir(tree)
        // The copy has its own build directory. Lints of rewritten code do not matter.
        .env("CARGO_TARGET_DIR", tree.join("target"))
        .env("RUSTFLAGS", "--cap-lints=allow")
        .stderr(Stdio::inherit())
        .output()
        .context("cargo")?;
    let lines = output.stdout.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"{"));
    let messages = lines.map(serde_json::from_slice).collect::<Result<Vec<Value>, _>>()?;
    ensure!(output.status.success() || messages.iter().any(is_error), "cargo {verb} failed");
    Ok(messages)
}

fn is_error(message: &Value) -> bool {
    message["message"]["level"] == "error"
}

fn rendered(message: &Value) -> &str {
    message["message"]["rendered"].as_str().unwrap_or_default()
}

/// Adds the mutants whose code has a compiler error. An error that only follows from other errors may have no
/// position in the source.
fn refuse(tree: &Path, message: &Value, refused: &mut BTreeMap<u32, String>) -> Result<()> {
    let message = &message["message"];
    let code = message["code"]["code"].as_str().unwrap_or("syntax");
    let spans = message["spans"].as_array().context("an error has places")?;
    // Use the primary positions of the error. Use the other positions in its message only if no primary position is
    // in a mutant.
    for about in [true, false] {
        let mut found = Vec::new();
        for span in spans.iter().filter(|span| span["is_primary"] == about) {
            let name = span["file_name"].as_str().context("a place is in a file")?;
            let text = fs::read_to_string(tree.join(name)).unwrap_or_default();
            let offset = span["byte_start"].as_u64().context("a place has an offset")? as usize;
            if text.is_char_boundary(offset) {
                found.extend(rewrite::enclosing(&text, offset));
            }
        }
        if !found.is_empty() {
            refused.extend(found.into_iter().map(|number| (number, code.to_owned())));
            return Ok(());
        }
    }
    // If a mutant removes an arm of a `match`, the compiler reports the error at the beginning of the `match`. The
    // compiler proposes a new arm at the end of the `match`. So look for the mutant between these two positions.
    if code == "E0004"
        && let (Some(begin), Some(end)) = (spans.first(), proposal(message))
    {
        let name = begin["file_name"].as_str().context("a place is in a file")?;
        let text = fs::read_to_string(tree.join(name))?;
        let offset = |span: &Value| span["byte_start"].as_u64().map(|at| at as usize);
        let part =
            offset(begin).context("a place has an offset")?..offset(end).context("a place has an offset")?;
        let found = rewrite::arms_within(&text, part);
        if !found.is_empty() {
            refused.extend(found.into_iter().map(|number| (number, code.to_owned())));
            return Ok(());
        }
    }
    if code == "syntax" && spans.is_empty() {
        return Ok(()); // "aborting due to 3 previous errors"
    }
    bail!(
        "no mutant is where the compiler sees an error:\n{}",
        message["rendered"].as_str().unwrap_or_default()
    )
}

/// Returns the source location at which the compiler proposes a change.
fn proposal(message: &Value) -> Option<&Value> {
    let notes = message["children"].as_array()?;
    notes.iter().filter(|note| note["level"] == "help").find_map(|note| note["spans"].as_array()?.last())
}

fn programs(messages: &[Value]) -> Result<Vec<Program>> {
    if let Some(error) = messages.iter().find(|message| is_error(message)) {
        bail!("{}", rendered(error));
    }
    let tests = messages.iter().filter(|message| message["profile"]["test"] == true);
    tests
        .filter_map(|message| message["executable"].as_str().map(|path| (message, path)))
        .map(|(message, path)| {
            let manifest = Path::new(message["manifest_path"].as_str().context("a package has a manifest")?);
            let folder = manifest.parent().context("a manifest is in a folder")?.to_owned();
            let id = message["package_id"].as_str().context("a package has a name")?;
            // The id is `path+file:///PATH#NAME@VERSION`. Cargo leaves NAME out if the package has the folder's
            // name.
            let (path_part, version) = id.rsplit_once('#').context("a package has a version")?;
            let package = match version.split_once('@') {
                Some((name, _)) => name,
                None => path_part.rsplit('/').next().unwrap_or(path_part),
            };
            Ok(Program { package: package.to_owned(), path: path.into(), folder })
        })
        .collect()
}

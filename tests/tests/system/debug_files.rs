//! Tests questions about a program's variables by the program's own debug information (`--symbols`).

use std::path::Path;
use std::process::Command;

use machine::error::exit_code;
use tests::guests::{BUSYBOX, CLOUD, repository, with_files};
use tests::program::{json, run};

/// Records a guest that runs the program, compiled with these options, as `r.ttvm`. The program is `root/tallies`.
fn recorded(directory: &Path, options: &[&str]) {
    let (root, initrd) = (directory.join("root"), directory.join("initrd.gz"));
    std::fs::create_dir(&root).expect("the folder is ours");
    let compiled = Command::new("gcc")
        .args(["-g", "-O1", "-Wall", "-Werror"])
        .args(options)
        .arg("-o")
        .arg(root.join("tallies"))
        .arg(repository().join("tests/tests/system/programs/tallies.c"))
        .status();
    assert!(compiled.expect("gcc must be installed: run scripts/setup").success());
    with_files(&BUSYBOX, &root, &initrd);
    let kernel = CLOUD.path();
    let kernel = kernel.to_str().expect("a text");
    let guest = ["--initrd", "initrd.gz", "--memory", "128M", "--cmdline", "console=ttyS0 ttvm.run=/tallies"];
    let (code, console, said) =
        run(directory, &[&["record", "--output", "r.ttvm", "--kernel", kernel][..], &guest].concat());
    assert_eq!(code, Some(exit_code::DONE), "{said}");
    assert!(console.contains("the program has counted"), "{console}");
}

/// The part of the run in which the program counts.
fn part(directory: &Path) -> [String; 2] {
    ["console:the program begins", "console:the program has counted"].map(|line| {
        let hits = json(directory, &["search", "r.ttvm", line, "--json"]);
        format!("insn:{}", hits["hits"][0]["instruction"])
    })
}

/// The type of a variable of the program, and its values.
fn values(directory: &Path, variable: &str, [from, to]: &[String; 2]) -> (String, Vec<String>) {
    let asked = [
        "values",
        "r.ttvm",
        variable,
        "comm:tallies",
        "--symbols",
        "root/tallies",
        "--from",
        from,
        "--to",
        to,
    ];
    let answer = json(directory, &[&asked[..], &["--json"]].concat());
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_string();
    let writes = answer["writes"].as_array().expect("a list").iter().map(|write| text(&write["value"]));
    (text(&answer["kind"]), writes.collect())
}

fn the_program_is_asked(options: &[&str]) {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let directory = directory.path();
    recorded(directory, options);
    let part = part(directory);
    let sums = ["2", "6", "15", "31", "56", "92", "141", "205", "286", "386"];
    for variable in ["tallies[1].steps", "tallies->next->steps", "(struct tally)tallies.next->steps"] {
        let (kind, found) = values(directory, variable, &part);
        assert_eq!((kind.as_str(), &found[..]), ("long int", &sums.map(str::to_string)[..]), "{variable}");
    }
    let (kind, found) = values(directory, "tallies[1].phase", &part);
    assert_eq!(
        (kind.as_str(), &found[..]),
        ("enum phase", &["COUNTING".to_string(), "DONE".to_string()][..])
    );
    assert_eq!(values(directory, "tallies[1].level", &part).1, ["300"]);
    let [from, end] = &part;
    let who = ["who-set", "r.ttvm", "tallies[1].steps", "--at", end, "--symbols", "root/tallies", "--json"];
    let answer = json(directory, &who);
    assert_eq!(answer["value"], "0x182", "{answer}");
    assert_eq!(answer["end"]["kind"], "computed", "{answer}");
    let unknown =
        ["values", "r.ttvm", "no_such[1]", "--symbols", "root/tallies", "--from", from, "--to", end];
    let (code, _, said) = run(directory, &unknown);
    assert_eq!(code, Some(exit_code::USAGE), "{said}");
    assert!(said.contains("the type of 'no_such' is not known"), "{said}");
}

#[test]
fn a_programs_variables_have_its_types() {
    the_program_is_asked(&["-static", "-no-pie", "-fno-pie"]);
}

#[test]
fn a_program_that_the_kernel_moves_is_found_by_its_mappings() {
    the_program_is_asked(&["-static-pie", "-fPIE", "-gz"]);
}

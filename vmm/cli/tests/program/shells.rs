//! Tests that shells and `man` can read the output that the program makes for them.

use std::process::{Command, Output};

use crate::common::ttvm;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ttvm");

/// Runs a program with a script; `None` if the program is not installed.
fn shell(program: &str, arguments: &[&str]) -> Option<Output> {
    Command::new(program).args(arguments).env("TTVM", PROGRAM).env("LC_ALL", "C").output().ok()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn bash_completes_verbs_and_options() {
    let script = r#"
        source <("$TTVM" completions bash)
        COMP_WORDS=(ttvm sea) COMP_CWORD=1; _ttvm ttvm sea ttvm; echo "${COMPREPLY[@]}"
        COMP_WORDS=(ttvm record --checkpoint-i) COMP_CWORD=2; _ttvm ttvm --checkpoint-i record; echo "${COMPREPLY[@]}"
    "#;
    let Some(output) = shell("bash", &["--norc", "-c", script]) else {
        return skip::test("there is no bash");
    };
    assert_eq!(text(&output.stdout), "search\n--checkpoint-interval\n", "{}", text(&output.stderr));
}

#[test]
fn zsh_reads_its_completions() {
    let script =
        r#"autoload -U compinit && compinit -u -D && eval "$("$TTVM" completions zsh)" && whence -w _ttvm"#;
    let Some(output) = shell("zsh", &["-f", "-c", script]) else { return skip::test("there is no zsh") };
    assert_eq!(text(&output.stdout), "_ttvm: function\n", "{}", text(&output.stderr));
}

#[test]
fn man_shows_a_page_for_each_verb() {
    let directory = tempfile::tempdir().unwrap();
    let (code, _, told) = ttvm(directory.path(), &["man", "pages"]);
    assert_eq!(code, 0, "{told}");
    let (_, help, _) = ttvm(directory.path(), &["help"]);
    let verbs = help.lines().skip_while(|line| *line != "Commands:").skip(1).map_while(|line| {
        let word = line.split_whitespace().next()?;
        Some(word.to_string())
    });
    let verbs: Vec<String> = verbs.filter(|verb| verb != "help").collect();
    assert!(verbs.len() > 15, "{verbs:?}");
    for verb in verbs {
        let page = directory.path().join(format!("pages/ttvm-{verb}.1"));
        let page = page.to_str().unwrap();
        let Some(output) = shell("man", &["--warnings", "-l", page]) else {
            return skip::test("there is no man");
        };
        let shown = text(&output.stdout);
        assert!(
            output.status.success() && shown.contains("SYNOPSIS"),
            "{verb}: {shown}{}",
            text(&output.stderr)
        );
    }
}

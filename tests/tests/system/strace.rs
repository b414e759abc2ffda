//! Compares the system calls that ttvm lists with the list that `strace -f` printed in the guest during the same run.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tests::guests::{Artefact, BUSYBOX, CLOUD, SID};
use tests::program::json;
use tests::record::record_script_with;

/// Traces a pipe, files, a missing file, a link, a background process and a signal.
const SCRIPT: &str = "#!/bin/sh
cat > /tmp/work <<'END'
cat /init /nowhere 2> /dev/null | sort | head -n 3 > /tmp/x
ln -s /init /tmp/link
readlink /tmp/link > /dev/null
ls -l /proc/self/fd > /dev/null
sleep 30 & kill $!
wait
rm /tmp/x /tmp/link
exit 3
END
/usr/bin/strace -f -s 64 -o /tmp/log sh /tmp/work
echo STRACE BEGINS
cat /tmp/log
echo STRACE ENDS
";

/// Copies strace and its libraries into a folder.
fn put_strace(root: &Path) {
    let strace = Path::new("/usr/bin/strace");
    let listed = Command::new("ldd").arg(strace).output().expect("ldd can be run");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let libraries = listed.split_whitespace().filter(|word| word.starts_with('/')).map(Path::new);
    for file in libraries.chain([strace]) {
        let to = root.join(file.strip_prefix("/").expect("the path begins with /"));
        std::fs::create_dir_all(to.parent().expect("it is in a folder")).expect("the folder is ours");
        std::fs::copy(file, to).expect("the file is there");
    }
}

/// A system call: its name, the texts among its arguments, and its result. The result is `None` if strace did not see
/// the end.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Call {
    name: String,
    texts: Vec<String>,
    result: Option<String>,
}

impl Call {
    /// The paths among the texts, and the text that a program writes. strace also shows buffers that the kernel fills.
    fn paths(&self) -> &[String] {
        let most = match self.name.as_str() {
            "execve" | "readlink" | "readlinkat" => 1,
            "openat" | "access" | "symlink" | "symlinkat" | "unlink" | "newfstatat" | "statx" | "lstat"
            | "stat" | "write" | "chdir" => self.texts.len(),
            _ => 0,
        };
        &self.texts[..most.min(self.texts.len())]
    }
}

/// The texts in quotes of a list of arguments. A text that was cut is left out, because both programs cut differently.
fn texts(arguments: &str) -> Vec<String> {
    let (mut found, mut rest) = (Vec::new(), arguments);
    while let Some((_, behind)) = rest.split_once('"') {
        let mut escaped = false;
        let end = behind.find(|letter| {
            let is_end = letter == '"' && !escaped;
            escaped = letter == '\\' && !escaped;
            is_end
        });
        let Some(end) = end else { break };
        rest = &behind[end + 1..];
        if !rest.starts_with("...") {
            found.push(behind[..end].to_string());
        }
    }
    found
}

/// The calls of each thread, as strace printed them. A call that another thread interrupted has two lines.
fn traced(console: &str) -> BTreeMap<u64, Vec<Call>> {
    let log = console.split("STRACE BEGINS").nth(1).and_then(|rest| rest.split("STRACE ENDS").next());
    let log = log.unwrap_or_else(|| panic!("strace printed nothing: {console}"));
    let result = |text: &str| {
        let mut words = text.split_whitespace();
        let value = words.next()?;
        let name = words.next().filter(|_| value == "-1");
        Some(name.map_or(value.to_string(), |name| format!("-{name}"))).filter(|value| value != "?")
    };
    let mut calls: BTreeMap<u64, Vec<Call>> = BTreeMap::new();
    for line in log.lines().map(str::trim) {
        let Some((pid, what)) = line.split_once(char::is_whitespace) else { continue };
        let (Ok(pid), what) = (pid.parse(), what.trim()) else { continue };
        let of_thread = calls.entry(pid).or_default();
        let returned = what.rsplit_once(" = ").and_then(|(_, value)| result(value));
        if what.starts_with("<...") {
            of_thread.last_mut().expect("the call began earlier").result = returned;
        } else if let Some((name, arguments)) = what.split_once('(').filter(|_| !what.starts_with("---")) {
            of_thread.push(Call { name: name.to_string(), texts: texts(arguments), result: returned });
        }
    }
    calls
}

/// The calls of each thread, as ttvm lists them.
fn listed(directory: &Path) -> BTreeMap<u64, Vec<Call>> {
    let arguments = ["search", "r.ttvm", "syscall", "--all", "--limit", "100000", "--json"];
    let found = json(directory, &arguments);
    let mut calls: BTreeMap<u64, Vec<Call>> = BTreeMap::new();
    for hit in found["hits"].as_array().expect("a list") {
        let call = &hit["call"];
        let text = |value: &Value| value.as_str().map(str::to_string);
        let arguments = call["arguments"].as_array().expect("a list").iter().filter_map(text);
        calls.entry(hit["pid"].as_u64().expect("a thread")).or_default().push(Call {
            name: text(&call["name"]).unwrap_or_else(|| panic!("{hit}")),
            texts: texts(&arguments.collect::<Vec<String>>().join(", ")),
            result: text(&call["result"]),
        });
    }
    calls
}

/// Whether two results are the same number or the same error.
fn is_same(one: &Option<String>, other: &Option<String>) -> bool {
    let number = |text: &String| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok().map(u64::cast_signed),
        None => text.parse::<i64>().ok(),
    };
    match (one, other) {
        (Some(one), Some(other)) => {
            one == other || number(one).is_some_and(|value| Some(value) == number(other))
        }
        // strace does not see the results of calls that do not return, and of calls that a signal ended.
        (one, other) => one.is_none() && other.as_ref().is_none_or(|other| other.starts_with("-E")),
    }
}

fn is_as_traced(kernel: &Artefact, initrd: &Artefact) {
    if let Some(why) = tests::program::missing(&["strace"]) {
        return skip::test(&why);
    }
    let directory = tempfile::tempdir().expect("a temporary folder");
    let console = record_script_with(directory.path(), (kernel, initrd), SCRIPT, None, put_strace);
    let traced = traced(&console);
    assert!(traced.len() >= 8 && traced.values().map(Vec::len).sum::<usize>() > 200, "{console}");
    let listed = listed(directory.path());
    for (pid, expected) in traced.into_iter().filter(|(_, expected)| !expected.is_empty()) {
        let found = listed.get(&pid).map(Vec::as_slice).unwrap_or_default();
        // strace sees a new thread only after its first steps.
        let at = (0..found.len()).find(|at| {
            let rest = &found[*at..];
            rest.len() >= expected.len()
                && rest.iter().zip(&expected).all(|(one, other)| one.name == other.name)
        });
        let Some(at) = at else { panic!("thread {pid}:\n{expected:#?}\nis not in\n{found:#?}") };
        for (number, (one, other)) in found[at..].iter().zip(&expected).enumerate() {
            let has_texts = other.paths().iter().all(|text| one.texts.contains(text));
            // A signal that ends the thread at the end of a call leaves ttvm without a return.
            let is_killed = number + 1 == expected.len() && one.result.is_none();
            assert!(
                has_texts && (is_killed || is_same(&other.result, &one.result)),
                "thread {pid}, call {number}: {other:?} and {one:?}\nstrace: {expected:#?}\nttvm: {:#?}",
                &found[at..]
            );
        }
    }
}

#[test]
fn system_calls_are_as_strace_saw_them_in_the_guest() {
    is_as_traced(&CLOUD, &BUSYBOX);
}

#[test]
fn system_calls_of_a_newer_kernel_are_as_strace_saw_them_in_the_guest() {
    let [kernel, busybox] = &SID;
    is_as_traced(kernel, busybox);
}

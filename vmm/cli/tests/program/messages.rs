//! `tests/messages.txt` lists every text that the program can print: messages, errors, notices and results. A message
//! says what happened, then what to do. To change one, change it in the source, update the table, and read the
//! difference:
//!
//! ```sh
//! UPDATE_MESSAGES=1 cargo test --package ttvm --test program messages
//! ```
//!
//! The table is extracted from the sources: all string literals that have two words. The table leaves out tests, the
//! messages of broken invariants (`assert!`, `expect`), debug logs, and attributes other than `#[error]`. Each file's
//! texts are in the order of the file. If a message consists of several literals, each literal is a line.

use std::path::{Path, PathBuf};

/// The path of the table of messages, relative to this package's folder.
const TABLE: &str = "tests/messages.txt";
const UPDATE: &str = "UPDATE_MESSAGES=1 cargo test --package ttvm --test program messages";
/// The folders of the packages that the program consists of.
const FOLDERS: [&str; 7] = ["checkpoint", "cpu", "devices", "gdb", "kvm", "vfio", "vmm"];
/// Calls and macros whose texts only developers see.
const NOT_MESSAGES: [&str; 14] = [
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "expect",
    "expect_err",
    "panic",
    "unreachable",
    "debug",
    "trace",
    "include_str",
    "concat_idents",
    "todo",
];
/// Sources whose texts are not for people: C types, what a kernel prints, XML for gdb.
const WITHOUT_MESSAGES: [&str; 3] = [
    "vmm/guest-symbols/src/dwarf/variables.rs",
    "vmm/guest-symbols/src/reports.rs",
    "gdb/src/description.rs",
];
/// The largest number of words in a sentence of a message.
const LONGEST: usize = 25;

/// The sources of the program, sorted: Rust, and gdb's commands.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).expect("the tree is readable").flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !matches!(&*name, "tests" | "examples" | "benches" | "fuzz" | "target") {
                sources(&path, found);
            }
        } else if name.ends_with(".py") || (name.ends_with(".rs") && name != "tests.rs" && name != "build.rs")
        {
            found.push(path);
        }
    }
}

/// A bracket that is open, and the word before it.
struct Open {
    word: String,
    is_attribute: bool,
}

/// Reads a source file literal by literal. The scanner knows comments, strings and brackets, and nothing else of the
/// language.
struct Scanner<'a> {
    rest: &'a str,
    is_python: bool,
    open: Vec<Open>,
    /// The last word, without a `!` after it.
    word: String,
    /// The characters since the last word that are not blank.
    since: String,
    literals: Vec<String>,
}

impl<'a> Scanner<'a> {
    fn literals_of(text: &'a str, is_python: bool) -> Vec<String> {
        let (open, word, since) = (Vec::new(), String::new(), String::new());
        let mut scanner = Scanner { rest: text, is_python, open, word, since, literals: Vec::new() };
        while !scanner.rest.is_empty() {
            scanner.step();
        }
        scanner.literals
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    /// Returns the text up to and including `end`, and continues after this text. If `end` does not occur, returns the
    /// rest of the source.
    fn take_through(&mut self, end: &str) -> &'a str {
        let bytes = self.rest.find(end).map_or(self.rest.len(), |at| at + end.len());
        self.take(bytes)
    }

    fn step(&mut self) {
        let comment = if self.is_python { "#" } else { "//" };
        if self.rest.starts_with(comment) {
            self.take_through("\n");
        } else if self.rest.starts_with("/*") {
            self.take_through("*/");
        } else if self.rest.starts_with("#[cfg(test)]") {
            self.skip_item();
        } else if self.rest.starts_with("\"\"\"") {
            self.docstring();
        } else if let Some(quote) = self.rest.chars().next().filter(|&letter| self.begins_string(letter)) {
            self.string(quote);
        } else if !self.is_python && self.rest.starts_with('\'') {
            self.character();
        } else if let Some(end) = raw_string_end(self.rest).filter(|_| !self.is_python) {
            self.take_through("\"");
            let literal = self.take_through(&end);
            self.keep(literal.strip_suffix(&*end).unwrap_or(literal));
        } else {
            self.word_or_sign();
        }
    }

    fn begins_string(&self, letter: char) -> bool {
        letter == '"' || (self.is_python && letter == '\'')
    }

    /// Skips an item that is compiled for tests only.
    fn skip_item(&mut self) {
        self.take_through("]");
        let depth = self.open.len();
        let before = self.literals.len();
        loop {
            let had = self.open.len();
            let next = self.rest.chars().next();
            if next.is_none() {
                break;
            }
            self.step();
            let is_closed = had > depth && self.open.len() == depth && next == Some('}');
            if is_closed || (had == depth && next == Some(';')) {
                break;
            }
        }
        self.literals.truncate(before);
    }

    /// Skips a docstring of Python: the help of a gdb command, or a comment for developers.
    fn docstring(&mut self) {
        self.take(3);
        self.take_through("\"\"\"");
    }

    fn string(&mut self, quote: char) {
        let mut bytes = 1;
        let mut is_escaped = false;
        for letter in self.rest[1..].chars() {
            bytes += letter.len_utf8();
            if letter == quote && !is_escaped {
                break;
            }
            is_escaped = letter == '\\' && !is_escaped;
        }
        let literal = self.take(bytes);
        self.keep(&literal[1..literal.len().max(2) - 1]);
    }

    /// Skips a character literal or a lifetime.
    fn character(&mut self) {
        let mut letters = self.rest.char_indices().skip(1);
        let bytes = match (letters.next(), letters.next()) {
            (Some((_, '\\')), Some((at, letter))) => {
                let from = at + letter.len_utf8();
                from + self.rest[from..].find('\'').map_or(0, |end| end + 1)
            }
            (_, Some((at, '\''))) => at + 1,
            _ => 1,
        };
        self.take(bytes);
    }

    fn word_or_sign(&mut self) {
        let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
        let end = self.rest.find(|letter| !is_word(letter)).unwrap_or(self.rest.len());
        if end > 0 {
            self.word = self.take(end).to_string();
            self.since.clear();
            return;
        }
        let letter = self.rest.chars().next().unwrap_or_default();
        self.take(letter.len_utf8());
        match letter {
            '(' | '[' | '{' => {
                let is_attribute = self.since.ends_with('#') || self.since.ends_with("#!");
                let is_call = self.since.is_empty() || self.since == "!";
                let word = if is_call { std::mem::take(&mut self.word) } else { String::new() };
                self.open.push(Open { word, is_attribute });
                self.since.clear();
            }
            ')' | ']' | '}' => {
                self.open.pop();
                self.word.clear();
                self.since.clear();
            }
            letter if letter.is_whitespace() => {}
            letter => self.since.push(letter),
        }
    }

    /// Keeps a literal if it is a message.
    fn keep(&mut self, literal: &str) {
        self.word.clear();
        let calls = self.open.iter().map(|open| &*open.word);
        let is_in_attribute = self.open.iter().any(|open| open.is_attribute);
        let is_error = self.open.last().is_some_and(|open| open.word == "error");
        let is_for_developers = calls.clone().any(|call| NOT_MESSAGES.contains(&call));
        if !is_for_developers && (is_error || (!is_in_attribute && has_two_words(literal))) {
            self.literals.push(unfolded(literal));
        }
    }
}

/// The end of a raw string, if one begins here.
fn raw_string_end(text: &str) -> Option<String> {
    let hashes = text.strip_prefix('r')?;
    let begin = hashes.trim_start_matches('#');
    begin.starts_with('"').then(|| format!("\"{}", "#".repeat(hashes.len() - begin.len())))
}

/// Whether a text has two words one after another. A text with fewer words is a name, a key or a format, and not a
/// message.
fn has_two_words(text: &str) -> bool {
    let is_word = |word: &str| {
        let word = word.trim_matches(|letter: char| letter.is_ascii_punctuation());
        word.len() >= 2
            && word.chars().all(|letter| letter.is_alphabetic() || letter == '\'' || letter == '-')
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    words.windows(2).any(|pair| is_word(pair[0]) && is_word(pair[1]))
}

/// A literal as a line of the table. A backslash at the end of a source line joins this line and the next line.
/// Longer texts, such as help, have several lines.
fn unfolded(literal: &str) -> String {
    let mut lines = literal.split("\\\n");
    let mut text = lines.next().unwrap_or_default().to_string();
    lines.for_each(|line| text.push_str(line.trim_start()));
    let text = text.replace('\n', "\\n");
    if text.matches("\\n").count() < 4 { text } else { text.replace("\\n", "\n    ").trim_end().to_string() }
}

/// All messages: the path of each file, with the messages of this file.
fn messages() -> Vec<(String, Vec<String>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the tree");
    let mut files = Vec::new();
    FOLDERS.iter().for_each(|folder| sources(&root.join(folder), &mut files));
    let of = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("sources are text");
        let name = path.strip_prefix(&root).expect("it is below").display().to_string();
        let literals = Scanner::literals_of(&text, name.ends_with(".py"));
        (name, literals)
    };
    let all = files.into_iter().map(of);
    all.filter(|(name, texts)| !texts.is_empty() && !WITHOUT_MESSAGES.contains(&&**name)).collect()
}

#[test]
fn the_table_has_every_message() {
    let mut table = format!("Every text that the program can print. Update: {UPDATE}\n");
    for (file, literals) in messages() {
        table.push_str(&format!("\n{file}\n"));
        literals.iter().for_each(|literal| table.push_str(&format!("  {literal}\n")));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(TABLE);
    if std::env::var_os("UPDATE_MESSAGES").is_some() {
        std::fs::write(&path, &table).expect("the table can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let (kept, now): (Vec<&str>, Vec<&str>) = (kept.lines().collect(), table.lines().collect());
    let added: Vec<_> = now.iter().filter(|line| !kept.contains(line)).collect();
    let removed: Vec<_> = kept.iter().filter(|line| !now.contains(line)).collect();
    assert!(
        kept == now,
        "messages have changed. Added: {added:#?}. Removed: {removed:#?}. Read them, then update the table: {UPDATE}"
    );
}

#[test]
fn sentences_of_messages_are_short() {
    let mut long = Vec::new();
    for (file, literals) in messages() {
        let sentences = literals.iter().flat_map(|text| text.split([';', ':', '.', '\\', '(', '\n']));
        let is_long = |sentence: &&str| sentence.split_whitespace().count() > LONGEST;
        long.extend(sentences.filter(is_long).map(|sentence| format!("{file}: {sentence}")));
    }
    assert!(long.is_empty(), "more than {LONGEST} words: {long:#?}");
}

#[test]
fn the_scanner_finds_messages_only() {
    let source = r##"
        // "not this one"
        #[error("cannot {action} it: {}", why)]
        #[allow(lint, reason = "not this one")]
        const A: char = '"';
        fn f<'a>(b: &'a str) {
            say(&format!("two \"quoted\" \
                words"));
            x.expect("not this one");
            assert!(y(), "not this one");
            let r = r#"raw "text" here"#;
            log::debug!("not this one");
            name("one-word");
        }
        #[cfg(test)]
        mod tests { fn t() { say("not this one"); } }
        const LAST: &str = "the last one";
    "##;
    let expected =
        ["cannot {action} it: {}", r#"two \"quoted\" words"#, r#"raw "text" here"#, "the last one"];
    assert_eq!(Scanner::literals_of(source, false), expected);
    let source =
        "def f():\n    '''x'''\n    raise E('no such file')  # 'not this one'\n    say(\"it is done\")\n";
    assert_eq!(Scanner::literals_of(source, true), ["no such file", "it is done"]);
}

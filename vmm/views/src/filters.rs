//! The filters of a search's results: by process, by processor, and by the duration of system calls.

use guest_symbols::tasks::Thread;
use machine::error::Error;
use machine::unit::Unit;
use machine::{Machine, notation};

use crate::processors;

/// `TASK_COMM_LEN` without the NUL: the longest name of a thread that the kernel stores.
const NAME_BYTES: usize = 15;

/// The filters of a search. The default has no filters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// Admits only events in the process or thread with this number.
    pub pid: Option<u32>,
    /// Admits only events in threads of this name.
    pub comm: Option<String>,
    /// Admits only events on the processor with this number.
    pub processor: Option<usize>,
    /// Admits only system calls that took at least this long.
    pub longer_ns: Option<u64>,
}

/// The syntax of filters.
pub const FILTERS: &str = "pid:N (a process or a thread), comm:NAME, cpu:N (a processor), and of system calls longer:TIME, as in longer:100ms";

impl Filters {
    /// Parses filters, one in each word.
    pub fn parse(words: &[String]) -> Result<Filters, String> {
        let mut filters = Filters::default();
        for word in words {
            let wrong = || format!("'{word}' is no filter: write {FILTERS}");
            let (kind, value) =
                word.split_once(':').filter(|(_, value)| !value.is_empty()).ok_or_else(wrong)?;
            match kind {
                "pid" => filters.pid = Some(value.parse().map_err(|_| wrong())?),
                "comm" => {
                    let end =
                        (0..=NAME_BYTES.min(value.len())).rev().find(|&end| value.is_char_boundary(end));
                    filters.comm = Some(value[..end.unwrap_or(0)].to_string());
                }
                "cpu" => filters.processor = Some(value.parse().map_err(|_| wrong())?),
                "longer" => filters.longer_ns = Some(notation::time(value)?),
                _ => return Err(wrong()),
            }
        }
        Ok(filters)
    }

    /// Splits a condition from the filters that follow it, one in each word. A condition `console:` may contain any
    /// text, so no filters can follow it.
    pub fn behind(text: &str) -> Result<(&str, Filters), String> {
        let kinds = ["pid:", "comm:", "cpu:", "longer:"];
        let is_filter = |word: &str| kinds.iter().any(|kind| word.starts_with(kind));
        let (mut condition, mut words) = (text.trim(), Vec::new());
        while let Some((before, word)) = condition.rsplit_once(' ').filter(|(_, word)| is_filter(word)) {
            if condition.starts_with("console:") {
                break;
            }
            words.push(word.to_string());
            condition = before.trim_end();
        }
        Ok((condition, Filters::parse(&words)?))
    }

    /// Returns an error if the filters name a processor that the machine does not have.
    pub fn check<U: Unit>(&self, machine: &Machine<U>) -> Result<(), Error> {
        self.processor.map_or(Ok(()), |number| processors::find(machine, number).map(drop))
    }

    /// Whether the filters choose processors.
    pub fn choose_processors(&self) -> bool {
        self.processor.is_some()
    }

    /// Whether the filters admit an event on this processor.
    pub fn admit_processor(&self, number: usize) -> bool {
        self.processor.is_none_or(|wanted| wanted == number)
    }

    /// Whether the filters choose threads.
    pub fn choose_threads(&self) -> bool {
        self.pid.is_some() || self.comm.is_some()
    }

    /// Whether the filters admit an event in this thread.
    pub fn admit(&self, thread: Option<&Thread>) -> bool {
        let is_process = |pid: &u32| thread.is_some_and(|thread| [thread.id, thread.process].contains(pid));
        let has_name = |name: &String| thread.is_some_and(|thread| thread.name == *name);
        self.pid.as_ref().is_none_or(is_process) && self.comm.as_ref().is_none_or(has_name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Filters, String> {
        Filters::parse(&words.iter().map(|word| word.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn filters_are_read_and_nonsense_is_told() {
        let filters = parse(&["pid:12", "comm:a-name-that-is-too-long", "longer:100ms"]).unwrap();
        assert_eq!((filters.pid, filters.longer_ns), (Some(12), Some(100_000_000)));
        assert_eq!(filters.comm.as_deref(), Some("a-name-that-is-"));
        let filters = parse(&["cpu:2"]).unwrap();
        assert!(filters.choose_processors() && !filters.choose_threads());
        assert_eq!([1, 2, 3].map(|number| filters.admit_processor(number)), [false, true, false]);
        let filters = parse(&["pid:2"]).unwrap();
        assert!(filters.admit_processor(7) && !filters.choose_processors());
        for wrong in ["cpu:", "cpu:x", "cpu:-1", "pid:x", "pid", "comm:", "name:x", "longer:1"] {
            assert!(parse(&[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn threads_count_by_their_process_and_name() {
        let thread = Thread { id: 13, process: 12, name: "sh".to_string(), task: 0 };
        for (words, admits) in [
            (&[][..], true),
            (&["pid:12"], true),
            (&["pid:13"], true),
            (&["pid:1"], false),
            (&["comm:sh"], true),
            (&["comm:bash"], false),
            (&["comm:sh", "pid:1"], false),
        ] {
            let filters = parse(words).unwrap();
            assert_eq!(filters.admit(Some(&thread)), admits, "{words:?}");
            assert_eq!(filters.admit(None), words.is_empty(), "{words:?}");
        }
    }

    #[test]
    fn filters_stand_behind_a_condition() {
        let split =
            |text: &str| Filters::behind(text).map(|(condition, filters)| (condition.to_string(), filters));
        let (condition, filters) = split("write:0x10 == 3  comm:sh pid:7").unwrap();
        assert_eq!(
            (condition.as_str(), filters.pid, filters.comm.as_deref()),
            ("write:0x10 == 3", Some(7), Some("sh"))
        );
        for text in ["console:the pid:7", "syscall openat", "pid:7"] {
            assert_eq!(split(text), Ok((text.to_string(), Filters::default())));
        }
        let (condition, filters) = split("syscall:open* cpu:3").unwrap();
        assert_eq!((condition.as_str(), filters.processor), ("syscall:open*", Some(3)));
        assert!(split("syscall pid:x").is_err());
    }
}

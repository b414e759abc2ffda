//! Tables that `--help` of several verbs shows. The tests here parse every example of every help text.

/// The notations of positions.
pub const POSITIONS: &str = "\
Positions:
  start, end               the ends of the recording
  panic, oops              where the kernel reported its panic, or its first oops
  report:N                 where the first line of report N of the kernel is complete
  fault                    the instruction whose exception led to the last oops or panic
  insn:N, N                after N instructions; 1_000_000, 1e9, 10k, 3M and 1.5G work
  branch:N                 after N conditional branches
  syscall:N, last-syscall  where the N-th, or the last, system call was entered
  event:N                  at input number N of the log (`ttvm log`), from 0
  12.5s, 5ms, 30m, 1.5h    at this guest time
  37%                      a share of the instructions
  -N, -10ms                this far before the end
  +N, +10ms                this far after the start";

/// The notations of conditions and filters.
pub const CONDITIONS: &str = "\
Conditions:
  break:ADDR               the guest executes the instruction at ADDR
  write:ADDR[+LEN]         the guest writes to memory
  read:ADDR[+LEN]          the guest reads memory
  access:ADDR[+LEN]        the guest reads or writes memory
  change:ADDR[+LEN]        the guest writes another value than before
  syscall                  any system call
  syscall:NAME, syscall:N  a system call, by name or number
  vector:N                 an interrupt or exception, by vector
  console:TEXT             the console shows a text

ADDR is a number, a symbol of the kernel, or SYMBOL+OFFSET. With an offset, conditions on memory also need +LEN.
LEN is a length in bytes.
With -phys, as in write-phys:ADDR, the address is physical.
A condition on memory can compare the value, as in 'write:ADDR+4 == 0'. ==, !=, <, <=, > and >= work.
Names can be patterns: break:ext4_*, syscall:open*.
After kexec, a symbol stands for its address in each kernel.

Filters:
  pid:N                    one process or thread
  comm:NAME                processes of this name
  cpu:N                    the processor with this number
  longer:TIME              system calls that took at least this long, as in longer:10ms";

/// The notations of a value's location.
pub const LOCATIONS: &str = "\
Locations:
  rax, eax, ax, al, ah      a general register of the running processor, or a part of one
  xmm3                      the lowest 8 bytes of an XMM register
  ADDRESS[:LENGTH]          memory at a virtual address
  phys:ADDRESS[:LENGTH]     memory at a physical address
  SYMBOL[+OFFSET][:LENGTH]  a variable of the guest's kernel
  (TYPE)SYMBOL.FIELD        a variable with a type of the kernel, then .FIELD, ->FIELD and [NUMBER] as in C
  VARIABLE.FIELD            with --symbols FILE: a variable of FILE

LENGTH is 1 to 8 bytes. The default is 8, or the symbol's size if that is less.";

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory, Parser};
    use history::timeline::{Condition, NoNames};
    use machine::notation::PositionSpec;
    use views::filters::Filters;

    use super::*;
    use crate::Cli;

    /// The program and all verbs and actions that its help lists, with their names.
    fn listed(name: &str, command: &Command) -> Vec<(String, Command)> {
        let mut all = vec![(name.to_string(), command.clone())];
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            all.extend(listed(&format!("{name} {}", below.get_name()), below));
        }
        all
    }

    /// The examples of a help text, one in each line.
    fn examples(help: &str) -> Vec<&str> {
        let lines = help.lines().skip_while(|line| *line != "Examples:").skip(1);
        lines.take_while(|line| !line.is_empty()).map(str::trim).collect()
    }

    /// The words of a shell's command line.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut quote = None;
        for letter in line.chars() {
            match quote {
                Some(mark) if letter == mark => quote = None,
                None if letter == '"' || letter == '\'' => quote = Some(letter),
                None if letter == ' ' => words.push(String::new()),
                _ => words.last_mut().expect("there is always one").push(letter),
            }
        }
        words
    }

    /// The command line of ttvm in an example, if the example has one.
    fn command_line(example: &str) -> Option<&str> {
        let inner = example.strip_prefix("source <(").and_then(|rest| rest.strip_suffix(')'));
        let line = inner.unwrap_or(example).split(" > ").next()?;
        line.starts_with("ttvm ").then_some(line)
    }

    #[test]
    fn each_verb_has_examples_that_parse() {
        for (name, command) in listed("ttvm", &Cli::command()) {
            let help = command.get_long_about().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = examples(&help).into_iter().filter_map(command_line).collect();
            assert!(!lines.is_empty(), "{name} has no example: {help}");
            for line in lines {
                let words = words(line);
                let is_own = name.split(' ').all(|word| words.iter().any(|given| given == word));
                assert!(is_own, "{line} is no example of {name}");
                if let Err(why) = Cli::try_parse_from(words) {
                    panic!("{line}: {why}");
                }
            }
        }
    }

    /// The notations of a table: the first column of each line.
    fn notations(table: &str) -> impl Iterator<Item = &str> {
        let lines = table.lines().filter_map(|line| line.strip_prefix("  "));
        lines.filter_map(|line| line.split_once("  ")).flat_map(|(notations, _)| notations.split(", "))
    }

    #[test]
    fn positions_conditions_and_filters_of_the_tables_parse() {
        for notation in notations(POSITIONS) {
            assert!(notation.replace('N', "1").parse::<PositionSpec>().is_ok(), "{notation}");
        }
        for notation in notations(CONDITIONS) {
            let text = notation.replace("ADDR[+LEN]", "0x1000+8").replace("ADDR", "0x1000");
            let text = text.replace("NAME", "read").replace("TEXT", "sum").replace(":N", ":1");
            let text = text.replace("TIME", "10ms");
            let is_filter = Filters::parse(std::slice::from_ref(&text)).is_ok();
            assert!(is_filter || Condition::parse(&text, &NoNames).is_ok(), "{notation}");
        }
    }

    #[test]
    fn locations_of_the_table_parse() {
        for notation in notations(LOCATIONS) {
            let text = notation.replace("ADDRESS", "0x1000").replace("SYMBOL", "jiffies");
            let text = text.replace("[+OFFSET]", "+8").replace("[:LENGTH]", ":4");
            assert!(text.parse::<origins::Location>().is_ok(), "{notation}");
        }
    }
}

//! How often the guest's kernel called each of its functions, and how many instructions each function executed.

mod stacks;

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter, Result as Written};
use std::ops::Range;

use guest_symbols::{Symbol, Symbols};
use history::timeline::{Poll, Timeline};
use machine::error::Error;
use machine::position::{Count, Instructions};
use schemars::JsonSchema;
use serde::Serialize;

use crate::guest_kernel::GuestKernels;
use crate::visible::in_a_line;
use stacks::{OUTSIDE, Stacks};

/// Linux returns through a jump to this code, which is no call.
const RETURN_THUNK: &str = "__x86_return_thunk";

/// The order of the functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By the instructions that the function executed itself.
    #[default]
    Own,
    /// By the instructions of the function and of all functions that it called.
    Total,
    /// By the number of calls.
    Calls,
}

/// The functions to list.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// The order of the functions.
    pub order: Order,
    /// The largest number of functions in the list.
    pub limit: usize,
}

/// The kernel's functions in a part of a recording.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Profile {
    /// The number of instructions in the part.
    pub instructions: u64,
    /// The number of instructions outside of the kernel's functions: in programs, and in the kernel's entry code.
    pub outside: u64,
    /// The number of calls of all functions.
    pub calls: u64,
    /// The functions.
    pub functions: Vec<FunctionUse>,
    /// Whether there are more functions than the limit.
    pub has_more: bool,
    /// Whether the instructions of some functions count for their callers, because there are too many paths of calls.
    pub is_cut: bool,
    /// The paths of calls.
    #[serde(skip)]
    paths: Paths,
}

/// The calls of a function.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct FunctionUse {
    /// The function's name, or its address in hex.
    pub function: String,
    /// The number of calls.
    pub calls: u64,
    /// The number of instructions that the function executed itself.
    pub own: u64,
    /// The number of instructions of the function and of all functions that it called.
    pub total: u64,
}

impl Question {
    /// Lists the functions that the kernel called in this part of the recording. Changes the timeline's position.
    pub fn answer(
        &self,
        timeline: &mut Timeline,
        part: Range<Instructions>,
        poll: &mut Poll<'_>,
    ) -> Result<Profile, Error> {
        let part = timeline.part(part)?;
        timeline.seek(part.start, poll)?.unless_interrupted()?;
        let kernels = GuestKernels::of(timeline, part.end, poll)?;
        let functions = kernels.all().iter().flat_map(|kernel| kernel.symbols.all());
        let is_function = |symbol: &&Symbol| symbol.is_code() && symbol.name != RETURN_THUNK;
        let functions = functions.filter(is_function).map(|symbol| symbol.address).collect();
        let observer = Stacks::from(part.start.number(), functions);
        let mut stacks = timeline.observe(part, observer, poll)?.ok_or(Error::Interrupted)?;
        let processor = timeline.machine().running_processor().number();
        stacks.count(processor, timeline.position().number());
        let symbols = kernels.at(timeline.machine()).map(|kernel| kernel.symbols.clone()).unwrap_or_default();
        Ok(self.profile(&stacks, &symbols, timeline.position() - part.start))
    }

    fn profile(&self, stacks: &Stacks, symbols: &Symbols, instructions: u64) -> Profile {
        let mut names = Names::of(symbols);
        // The number of each path's function.
        let on_paths: Vec<usize> = stacks.paths.iter().map(|path| names.number(path.function)).collect();
        let called: Vec<(usize, u64)> =
            stacks.calls.iter().map(|(address, calls)| (names.number(*address), *calls)).collect();
        let mut functions: Vec<FunctionUse> = names.all.into_iter().map(FunctionUse::named).collect();
        called.into_iter().for_each(|(number, calls)| functions[number].calls += calls);
        let mut paths = Vec::new();
        for (last, path) in stacks.paths.iter().enumerate().skip(1).filter(|(_, path)| path.own > 0) {
            functions[on_paths[last]].own += path.own;
            let mut on_path: Vec<usize> = Vec::new();
            let mut at = last;
            while at != OUTSIDE as usize {
                let function = on_paths[at];
                // A function that calls itself counts once.
                if !on_path.contains(&function) {
                    functions[function].total += path.own;
                }
                on_path.push(function);
                at = stacks.paths[at].before as usize;
            }
            on_path.reverse();
            paths.push((on_path, path.own));
        }
        let names: Vec<String> = functions.iter().map(|function| function.function.clone()).collect();
        functions.retain(|function| function.calls > 0);
        functions.sort_by_key(|function| std::cmp::Reverse(self.order.of(function)));
        let has_more = functions.len() > self.limit;
        functions.truncate(self.limit);
        Profile {
            instructions,
            outside: stacks.paths[OUTSIDE as usize].own,
            calls: stacks.calls.values().sum(),
            functions,
            has_more,
            is_cut: stacks.is_cut,
            paths: Paths { names, all: paths },
        }
    }
}

impl Order {
    fn of(self, function: &FunctionUse) -> u64 {
        match self {
            Order::Own => function.own,
            Order::Total => function.total,
            Order::Calls => function.calls,
        }
    }
}

impl FunctionUse {
    fn named(function: String) -> FunctionUse {
        FunctionUse { function, calls: 0, own: 0, total: 0 }
    }
}

/// The names of functions, with a number for each name.
struct Names<'a> {
    symbols: &'a Symbols,
    all: Vec<String>,
    by_name: BTreeMap<String, usize>,
    by_address: BTreeMap<u64, usize>,
}

impl Names<'_> {
    fn of(symbols: &Symbols) -> Names<'_> {
        Names { symbols, all: Vec::new(), by_name: BTreeMap::new(), by_address: BTreeMap::new() }
    }

    /// The number of the function that contains an address.
    fn number(&mut self, address: u64) -> usize {
        if let Some(number) = self.by_address.get(&address) {
            return *number;
        }
        let name = match self.symbols.name_of(address) {
            Some((name, _)) => in_a_line(name).into_owned(),
            None => format!("{address:#x}"),
        };
        let number = *self.by_name.entry(name.clone()).or_insert(self.all.len());
        if number == self.all.len() {
            self.all.push(name);
        }
        self.by_address.insert(address, number);
        number
    }
}

/// Paths of calls, from the outermost function on, with the number of instructions of each path.
#[derive(Clone, Debug, Default)]
struct Paths {
    names: Vec<String>,
    all: Vec<(Vec<usize>, u64)>,
}

impl Profile {
    /// The paths as lines, in the form that programs for flame graphs read: functions, semicolons between them, and the
    /// number of instructions.
    pub fn folded(&self) -> String {
        let Paths { names, all } = &self.paths;
        let line = |(path, own): &(Vec<usize>, u64)| {
            let functions: Vec<&str> = path.iter().map(|number| names[*number].as_str()).collect();
            format!("{} {own}\n", functions.join(";"))
        };
        all.iter().map(line).collect()
    }
}

impl Display for Profile {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let share = |count: u64| count as f64 / self.instructions.max(1) as f64 * 100.0;
        writeln!(
            f,
            "{} instructions, {} calls, {:.1} % of the instructions outside of the kernel's functions",
            self.instructions,
            self.calls,
            share(self.outside)
        )?;
        write!(f, "{:>12} {:>14} {:>6} {:>14} {:>6}  function", "calls", "own", "%", "total", "%")?;
        for FunctionUse { function, calls, own, total } in &self.functions {
            let (own_share, total_share) = (share(*own), share(*total));
            write!(f, "\n{calls:>12} {own:>14} {own_share:>6.1} {total:>14} {total_share:>6.1}  {function}")?;
        }
        if self.is_cut {
            write!(
                f,
                "\nthere are too many paths of calls: some instructions count for the functions' callers"
            )?;
        }
        Ok(())
    }
}

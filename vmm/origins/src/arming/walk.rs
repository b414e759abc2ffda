//! The walk: from a callback back to the step that armed it, and from there to the callback before it.

use std::sync::Arc;

use cpu::{AddressKind, SegReg, WatchKind, Watchpoint};
use guest_symbols::Symbols;
use guest_symbols::btf::Btf;
use guest_symbols::orc;
use guest_symbols::typed::TypeBytes;
use history::timeline::{Breakpoint, Filter, Poll, Stops, Timeline, TravelStop};
use machine::error::Error;
use machine::position::Instructions;
use machine::{Machine, Processor};
use views::guest_kernel::{Backtrace, GuestKernel, GuestKernels};
use views::moment::Moment;
use views::processors;

use super::{Arming, End, EndKind, Link, WhoArmed};
use crate::answer::Answer;
use crate::call_site::CallSite;
use crate::callback::{Armed, Callback, Kind, Rules, TaskletFields, arguments};
use crate::chain::WhoSet;

/// The largest number of softirqs.
const SOFTIRQS: u64 = 16;
/// The size in bytes of a processor's word of pending softirqs.
const PENDING_BYTES: u64 = 2;
/// The largest number of writes that are looked at to find the write that arms a callback.
const MOST_WRITES: usize = 1_000;
/// The largest number of writes of a function pointer to list.
const MOST_LINKS: usize = 100;
/// The beginnings of the names of the functions that implement system calls.
const SYSTEM_CALLS: [&str; 3] = ["__x64_sys_", "__ia32_sys_", "__do_sys_"];

/// The beginning of the names of the functions at which the processor enters the kernel for an exception.
const EXCEPTIONS: &str = "asm_exc_";

/// A function in the kernel's stack that was called through a pointer.
struct Boundary {
    /// The number of the function's frame in the stack.
    frame: usize,
    function: String,
    caller: String,
    /// The address of the function's first instruction.
    address: u64,
    site: CallSite,
    /// The stack pointer before the call.
    stack: u64,
    /// `None` for a function of no known kind.
    rules: Option<&'static Rules>,
}

/// The kernel's stack at a place.
struct Stack {
    frames: orc::Backtrace,
    named: Backtrace,
    now: Moment,
    thread: String,
}

impl Stack {
    /// The number of the innermost frame whose function an interrupt has interrupted, or the number of all frames. The
    /// frames below this number are the interrupt's. An exception that the function itself caused is no interrupt.
    fn interrupted(&self) -> usize {
        let (frames, named) = (&self.frames.frames, &self.named.frames);
        let is_interrupted =
            |number: &usize| !frames[*number].is_return && !named[number - 1].name().starts_with(EXCEPTIONS);
        (1..frames.len()).find(is_interrupted).unwrap_or(frames.len())
    }
}

impl WhoArmed<'_> {
    /// Finds the chain of callbacks. Changes the timeline's position, and the stops that are set in the timeline.
    pub fn run(&self, timeline: &mut Timeline, poll: &mut Poll<'_>) -> Result<Arming, Error> {
        let before = timeline.replayed_steps();
        timeline.seek(self.at, poll)?.unless_interrupted()?;
        let kernels = Arc::new(GuestKernels::of(timeline, self.at, poll)?);
        let mut walk = Walk { timeline, kernels, links: Vec::new() };
        let stack = walk.stack_on(self.processor)?;
        let end = walk.until_the_end(self, &stack, poll);
        let Walk { links, timeline, .. } = walk;
        timeline.set_stops(Stops::default());
        let replayed = timeline.replayed_steps() - before;
        Ok(Arming { at: stack.now, links, end: end?, replayed })
    }
}

impl End {
    fn of(kind: EndKind, text: impl Into<String>) -> End {
        End { kind, text: text.into() }
    }

    fn interrupted() -> End {
        End::of(EndKind::Interrupted, "interrupted: the chain goes on before this place")
    }

    /// The end of a chain at a place whose stack has no callback.
    fn of_stack(stack: &Stack) -> End {
        let (named, interrupted) = (&stack.named.frames, stack.interrupted());
        if let (Some(function), Some(handler)) =
            (named.get(interrupted), named.get(interrupted.wrapping_sub(1)))
        {
            let (handler, function) = (handler.name(), function.name());
            let text = format!("an interrupt: {handler}, which interrupted {function} of {}", stack.thread);
            return End::of(EndKind::Interrupt, text);
        }
        if let orc::End::Program(_) = stack.frames.end {
            let called = |name: &str| {
                SYSTEM_CALLS.iter().find_map(|begin| name.strip_prefix(begin)).map(str::to_string)
            };
            let call = named.iter().rev().find_map(|frame| called(function_of(frame.name())));
            let what = match (call, named.last()) {
                (Some(call), _) => format!("in the system call {call}"),
                (None, Some(entry)) => format!("which entered the kernel by {}", entry.name()),
                (None, None) => "which runs its own code".to_string(),
            };
            return End::of(EndKind::Program, format!("the program {}, {what}", stack.thread));
        }
        End::of(EndKind::Stack, format!("{}, at {}", stack.thread, stack.named.end))
    }
}

/// The function's name in the kernel's notation `name+0x10/0x20`.
fn function_of(frame: &str) -> &str {
    frame.split('+').next().unwrap_or(frame)
}

struct Walk<'a> {
    timeline: &'a mut Timeline,
    kernels: Arc<GuestKernels>,
    links: Vec<Link>,
}

impl Walk<'_> {
    fn until_the_end(
        &mut self,
        question: &WhoArmed<'_>,
        first: &Stack,
        poll: &mut Poll<'_>,
    ) -> Result<End, Error> {
        let Some(mut boundary) = self.first_boundary(first, question.function)? else {
            return Ok(End::of_stack(first));
        };
        while self.links.len() < question.limit {
            let Some(link) = self.call(&boundary, poll)? else { return Ok(End::interrupted()) };
            let was = self.links.last();
            if was.is_some_and(|was| (&was.function, &was.argument) == (&link.function, &link.argument)) {
                let (function, at) = (link.function, link.called.instruction);
                let text =
                    format!("{function} itself, at its call before; the chain goes on before insn:{at}");
                return Ok(End::of(EndKind::Itself, text));
            }
            let Some(link) = self.armed(link, &boundary, poll)? else { return Ok(End::interrupted()) };
            let (kind, is_armed) = (link.kind, link.armed.is_some());
            self.links.push(link);
            if kind == Kind::Pointer {
                return Ok(End::of(EndKind::Pointer, "a function pointer, whose writes are listed above"));
            }
            if !is_armed {
                let text = format!("no step of the recording {} the {}", kind.armed(), kind.words());
                return Ok(End::of(EndKind::Unknown, text));
            }
            let stack = self.stack()?;
            let is_callback = |one: &Boundary| one.rules.is_some() && one.frame < stack.interrupted();
            match self.boundaries(&stack)?.into_iter().find(is_callback) {
                Some(next) => boundary = next,
                None => return Ok(End::of_stack(&stack)),
            }
        }
        let here = self.timeline.position();
        Ok(End::of(EndKind::Limit, format!("the chain goes on before insn:{here}; raise --limit")))
    }

    fn kernel(&self) -> Result<&GuestKernel, Error> {
        let missing =
            || Error::Position("the guest has no Linux kernel whose symbols can be read here".to_string());
        self.kernels.at(self.timeline.machine()).ok_or_else(missing)
    }

    /// The kernel's stack at the timeline's position, on the running processor.
    fn stack(&self) -> Result<Stack, Error> {
        self.stack_on(None)
    }

    fn stack_on(&self, processor: Option<usize>) -> Result<Stack, Error> {
        let machine = self.timeline.machine();
        let processor = match processor {
            Some(number) => processors::find(machine, number)?,
            None => machine.running_processor(),
        };
        let kernel = self.kernel()?;
        let frames = kernel
            .frames_on(&processor)
            .map_err(|missing| Error::Position(format!("the kernel's stack cannot be walked: {missing}")))?;
        let now = Moment::of(&processor, self.timeline.position(), Some(kernel));
        let thread = match (now.pid, &now.name) {
            (Some(pid), Some(name)) => format!("{pid} ({name})"),
            _ => "an unknown thread".to_string(),
        };
        Ok(Stack { named: Backtrace::of_frames(&frames, &kernel.symbols), frames, now, thread })
    }

    /// The functions of a stack that were called through a pointer, the innermost first.
    fn boundaries(&self, stack: &Stack) -> Result<Vec<Boundary>, Error> {
        let processor = self.timeline.machine().running_processor();
        let symbols = &self.kernel()?.symbols;
        let pairs = stack.frames.frames.windows(2).enumerate().filter(|(_, pair)| pair[1].is_return);
        Ok(pairs.filter_map(|(frame, pair)| boundary(&processor, symbols, frame, pair)).collect())
    }

    /// The callback that the question means. `None` if no function of the stack was called through a pointer.
    fn first_boundary(&self, stack: &Stack, function: Option<&str>) -> Result<Option<Boundary>, Error> {
        let mut boundaries = self.boundaries(stack)?;
        let Some(function) = function else {
            boundaries.retain(|one| one.frame < stack.interrupted());
            let is_call = |one: &Boundary| SYSTEM_CALLS.iter().any(|begin| one.function.starts_with(begin));
            let known = boundaries.iter().position(|one| one.rules.is_some());
            let chosen = known.or_else(|| boundaries.iter().position(|one| !is_call(one)));
            return Ok(chosen.map(|chosen| boundaries.swap_remove(chosen)));
        };
        let names: Vec<String> = boundaries.iter().map(|one| one.function.clone()).collect();
        match boundaries.into_iter().find(|one| one.function == function) {
            Some(found) => Ok(Some(found)),
            None if names.is_empty() => Err(Error::Position(format!(
                "'{function}' was not called through a pointer here, and no other function was"
            ))),
            None => Err(Error::Position(format!(
                "'{function}' is not among the functions here that were called through a pointer: {}",
                names.join(", ")
            ))),
        }
    }

    /// Goes back to the call of a callback. Returns a link without the step that armed the callback. `None` if the poll
    /// function returned true.
    fn call(&mut self, boundary: &Boundary, poll: &mut Poll<'_>) -> Result<Option<Link>, Error> {
        let stack = boundary.stack;
        let is_it = Filter::new(move |machine| machine.cpu().state().gpr[4] == stack);
        let breakpoints = vec![Breakpoint::at(boundary.site.address)];
        match self.last(Stops { breakpoints, only: Some(is_it), ..Stops::default() }, poll)? {
            None => return Ok(None),
            Some(true) => {}
            Some(false) => {
                let text = format!("the call of {} is not in the recording", boundary.function);
                return Err(Error::Position(text));
            }
        }
        let machine = self.timeline.machine();
        let processor = machine.running_processor();
        let [argument, ..] = arguments(&processor);
        Ok(Some(Link {
            kind: boundary.rules.map_or(Kind::Pointer, |rules| rules.kind),
            function: boundary.function.clone(),
            caller: boundary.caller.clone(),
            argument: format!("{argument:#x}"),
            called: Moment::of(&processor, self.timeline.position(), self.kernels.at(machine)),
            armed: None,
            by: None,
            backtrace: None,
            pointer: None,
        }))
    }

    /// Goes from a callback's call back to the step that armed the callback, and adds this step to the link. `None` if the
    /// poll function returned true.
    fn armed(
        &mut self,
        mut link: Link,
        boundary: &Boundary,
        poll: &mut Poll<'_>,
    ) -> Result<Option<Link>, Error> {
        let Some(rules) = boundary.rules else {
            link.pointer = self.pointer(boundary, poll)?;
            return Ok(link.pointer.is_some().then_some(link));
        };
        let callback = self.callback(boundary.address)?;
        match self.go_to_arming_step(rules, callback, boundary, poll)? {
            None => return Ok(None),
            Some(false) => return Ok(Some(link)),
            Some(true) => {}
        }
        let stack = self.stack()?;
        let mut functions = stack.named.frames.iter().map(|frame| function_of(frame.name()));
        link.by = functions.find(|name| !rules.is_library(name)).map(str::to_string);
        link.armed = Some(stack.now);
        link.backtrace = Some(stack.named);
        Ok(Some(link))
    }

    /// Runs back to the last hit of these stops. `None` if the poll function returned true, and false if there is no hit.
    fn last(&mut self, stops: Stops, poll: &mut Poll<'_>) -> Result<Option<bool>, Error> {
        self.timeline.set_stops(stops);
        Ok(match self.timeline.run_backward(poll)? {
            TravelStop::Interrupted => None,
            TravelStop::Hit(_) => Some(true),
            _ => Some(false),
        })
    }

    /// The chain of writes of the pointer through which the next instruction calls.
    fn pointer(&mut self, boundary: &Boundary, poll: &mut Poll<'_>) -> Result<Option<Answer>, Error> {
        let processor = self.timeline.machine().running_processor();
        let text = boundary.site.pointer.location(&processor).unwrap_or_default();
        let location = text.parse().map_err(Error::Position)?;
        let at = self.timeline.position();
        let question =
            WhoSet { location: &location, processor: Some(processor.number()), at, limit: MOST_LINKS };
        match question.run(self.timeline, poll) {
            Err(Error::Interrupted) => Ok(None),
            found => found.map(Some),
        }
    }

    /// The callback whose call is the next instruction, with the data of the kernel that its rules need.
    fn callback(&self, function: u64) -> Result<Callback, Error> {
        let machine = self.timeline.machine();
        let (processor, symbols) = (machine.running_processor(), &self.kernel()?.symbols);
        let types = TypeBytes::of_guest(machine, symbols).ok();
        let types = types.as_ref().and_then(|bytes| bytes.kernel().ok());
        let offset = |structure: &str, field: &str| {
            types.as_ref().and_then(|types| Some(types.field(types.structure(structure)?, field)?.offset))
        };
        let softirq = symbols.address_of("softirq_vec").and_then(|table| {
            (0..SOFTIRQS).find(|number| word(&processor, table.wrapping_add(8 * number)) == Some(function))
        });
        let tasklet = offset("tasklet_struct", "func").zip(offset("tasklet_struct", "data"));
        let tasklet = tasklet.map(|(function, data)| TaskletFields { function, data });
        Ok(Callback { function, arguments: arguments(&processor), softirq, tasklet })
    }

    /// Goes back to the step that armed a callback, from just before its call. `None` if the poll function returned
    /// true, and false if there is no such step.
    fn go_to_arming_step(
        &mut self,
        rules: &Rules,
        callback: Callback,
        boundary: &Boundary,
        poll: &mut Poll<'_>,
    ) -> Result<Option<bool>, Error> {
        match &rules.armed {
            Armed::Writes { structure, path, except } => {
                let offset = self.offset(path)?.ok_or_else(|| {
                    Error::Position(format!(
                        "the guest's kernel does not say where the fields of struct {structure} are"
                    ))
                })?;
                let field = callback.arguments[0].wrapping_add(offset);
                let physical = self.timeline.machine().running_processor().peek_address(field);
                self.go_to_write(physical, 8, &|_, writer| !except.contains(&writer), poll)
            }
            Armed::Raises => self.go_to_raising(callback.softirq, &boundary.caller, poll),
            Armed::Calls { functions, fits } => {
                let symbols = &self.kernel()?.symbols;
                let named = functions.iter().flat_map(|name| symbols.all_named(name));
                let breakpoints: Vec<Breakpoint> = named
                    .filter(|symbol| symbol.is_code())
                    .map(|symbol| Breakpoint::at(symbol.address))
                    .collect();
                if breakpoints.is_empty() {
                    return Ok(Some(false));
                }
                let fits = *fits;
                let only = Filter::new(move |machine: &Machine<Instructions>| {
                    fits(&callback, &machine.running_processor())
                });
                self.last(Stops { breakpoints, only: Some(only), ..Stops::default() }, poll)
            }
        }
    }

    /// Goes back to the last wanted write of some bytes. `is_wanted` sees the writing processor just before the write, and
    /// the name of the function that writes. `None` if the poll function returned true, and false if there is no such
    /// write.
    fn go_to_write(
        &mut self,
        physical: Option<u64>,
        length: u64,
        is_wanted: &dyn Fn(&Processor<'_, Instructions>, &str) -> bool,
        poll: &mut Poll<'_>,
    ) -> Result<Option<bool>, Error> {
        let Some(address) = physical else { return Ok(Some(false)) };
        let point = Watchpoint { space: AddressKind::Physical, address, length, kind: WatchKind::Write };
        for _ in 0..MOST_WRITES {
            match self.last(Stops { watches: vec![point.into()], ..Stops::default() }, poll)? {
                Some(true) => {}
                other => return Ok(other),
            }
            let processor = self.timeline.machine().running_processor();
            let writer = self.kernel()?.symbols.name_of(processor.linear_rip());
            if is_wanted(&processor, writer.map_or("", |(name, _)| name)) {
                return Ok(Some(true));
            }
        }
        Ok(Some(false))
    }

    /// Goes back to the step that raised a softirq. The search begins where the function `caller` took over the
    /// processor's pending softirqs. A softirq that is raised after this step runs later.
    fn go_to_raising(
        &mut self,
        softirq: Option<u64>,
        caller: &str,
        poll: &mut Poll<'_>,
    ) -> Result<Option<bool>, Error> {
        let symbols = &self.kernel()?.symbols;
        let hot = match (symbols.address_of("pcpu_hot"), self.offset(&[("pcpu_hot", "softirq_pending")])?) {
            (Some(hot), Some(offset)) => Some(hot.wrapping_add(offset)),
            _ => None,
        };
        let named = |name| symbols.address_of(name);
        let pending = hot.or_else(|| named("__softirq_pending")).or_else(|| named("irq_stat"));
        let (Some(pending), Some(softirq)) = (pending, softirq) else { return Ok(Some(false)) };
        let processor = self.timeline.machine().running_processor();
        let base = processor.state().segments[SegReg::Gs as usize].base;
        let physical = processor.peek_address(base.wrapping_add(pending));
        match self.go_to_write(physical, PENDING_BYTES, &|_, writer| writer == caller, poll)? {
            Some(true) => {}
            other => return Ok(other),
        }
        let was_clear = |processor: &Processor<'_, Instructions>, _: &str| {
            let mut word = [0; PENDING_BYTES as usize];
            processor.machine().read_physical(physical.unwrap_or(0), &mut word);
            u16::from_le_bytes(word) >> softirq & 1 == 0
        };
        self.go_to_write(physical, PENDING_BYTES, &was_clear, poll)
    }

    /// The offset of a field of a field of a structure of the kernel.
    fn offset(&self, path: &[(&str, &str)]) -> Result<Option<u64>, Error> {
        let bytes = TypeBytes::of_guest(self.timeline.machine(), &self.kernel()?.symbols).ok();
        let types = bytes.as_ref().and_then(|bytes| bytes.kernel().ok());
        Ok(types.and_then(|types| offset_in(&types, path)))
    }
}

fn offset_in(types: &Btf<'_>, path: &[(&str, &str)]) -> Option<u64> {
    path.iter().try_fold(0, |sum: u64, (structure, field)| {
        sum.checked_add(types.field(types.structure(structure)?, field)?.offset)
    })
}

fn word(processor: &Processor<'_, Instructions>, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    (processor.peek(address, &mut bytes) == bytes.len()).then(|| u64::from_le_bytes(bytes))
}

/// The boundary between a function and its caller, if the caller called through a pointer.
fn boundary(
    processor: &Processor<'_, Instructions>,
    symbols: &Symbols,
    frame: usize,
    pair: &[orc::Frame],
) -> Option<Boundary> {
    let [inner, outer] = pair else { return None };
    let (function, _) = symbols.at(inner.inside())?;
    let (caller, _) = symbols.at(outer.inside())?;
    let site = CallSite::before(processor, symbols, outer.address).filter(CallSite::is_indirect)?;
    Some(Boundary {
        frame,
        function: function.name.clone(),
        caller: caller.name.clone(),
        address: function.address,
        site,
        stack: outer.stack,
        rules: Rules::of_caller(&caller.name),
    })
}

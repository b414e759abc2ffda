//! Ends the process with a message when the host refuses a thread or a stack. Libraries do not handle such a refusal.

use std::hint::black_box;
use std::panic::{PanicHookInfo, set_hook, take_hook};

use machine::error::exit_code;

use crate::output::say;

/// The beginnings of the standard library's panic messages when the host refuses a thread, or a stack for a thread.
/// With the last two messages, a new thread panics at a point where no code can catch the panic. Without this module, a
/// signal would then end the process.
const NO_THREAD: [&str; 3] = [
    "failed to spawn thread",
    "failed to allocate an alternative stack",
    "failed to set up alternative stack",
];
/// The first thread's stack grows as the process uses it. A host that refuses to let the stack grow ends the process
/// with a signal. So the process uses this many bytes of stack once, at its start.
const STACK_BYTES: usize = 1 << 20;

/// If the host refuses threads or stack, the process ends with a message and an exit code.
pub fn speak_of_refusals() {
    use_stack();
    let usual = take_hook();
    set_hook(Box::new(move |panic| match refusal(panic) {
        Some(why) => {
            refused_memory::end_raw_mode();
            say(&format!("ttvm: the host refuses another thread: {why}; raise ulimit -u or ulimit -v"));
            std::process::exit(exit_code::FAILED)
        }
        None => usual(panic),
    }));
}

fn refusal<'a>(panic: &'a PanicHookInfo<'_>) -> Option<&'a str> {
    let text = panic.payload_as_str()?;
    NO_THREAD.iter().any(|begin| text.starts_with(begin)).then_some(text)
}

#[inline(never)]
fn use_stack() {
    let stack = [0_u8; STACK_BYTES];
    black_box(&stack);
}

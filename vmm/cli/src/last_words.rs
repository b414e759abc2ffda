//! What the process says when the host refuses it something that a library takes for granted.

use std::hint::black_box;
use std::panic::{PanicHookInfo, set_hook, take_hook};

use machine::error::exit_code;

use crate::output::say;

/// How the standard library's panics begin where the host gives no thread, or no stack for one. A new thread panics by the last two
/// outside of everything that could catch it, which ends the process with a signal.
const NO_THREAD: [&str; 3] = [
    "failed to spawn thread",
    "failed to allocate an alternative stack",
    "failed to set up alternative stack",
];
/// The first thread's stack grows as it is used, and a host that lets it grow no more ends the process with a signal. So this much
/// is used at once.
const STACK_BYTES: usize = 1 << 20;

/// Threads and stack that the host refuses end the process with a sentence and an exit code.
pub fn speak_of_refusals() {
    use_stack();
    let usual = take_hook();
    set_hook(Box::new(move |panic| match refusal(panic) {
        Some(why) => {
            refused_memory::end_raw_mode();
            say(&format!("ttvm: the host gives no more threads: {why}; see ulimit -v and ulimit -u"));
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

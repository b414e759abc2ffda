//! Reports when the host refuses something that a library takes for granted.

use std::hint::black_box;
use std::panic::{PanicHookInfo, set_hook, take_hook};

use machine::error::exit_code;

use crate::output::say;

/// The beginnings of the standard library's panics if the host gives no thread, or no stack for one. A new thread
/// panics with the last two where nothing can catch the panic, so a signal ends the process.
const NO_THREAD: [&str; 3] = [
    "failed to spawn thread",
    "failed to allocate an alternative stack",
    "failed to set up alternative stack",
];
/// The first thread's stack grows with its use, and a host that refuses to let it grow ends the process with
/// a signal. So the process uses this much of the stack at once.
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

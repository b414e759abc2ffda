//! The x87 instructions of our CPU: every encoding against the processor that runs the test (x86-64 hosts
//! only), and what a user-mode program cannot show (faults, modes) against the manual.

#[cfg(target_arch = "x86_64")]
mod against_processor;
mod faults;
mod guest;
#[cfg(target_arch = "x86_64")]
mod host;
mod machine;

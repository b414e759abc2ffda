//! The x87 instructions of our CPU. Every encoding is compared with the processor that runs the test, on x86-64 hosts
//! only. Faults and modes, which a user-mode program cannot show, are compared with the manual.

#[cfg(target_arch = "x86_64")]
mod against_processor;
mod faults;
mod guest;
#[cfg(target_arch = "x86_64")]
mod host;
mod machine;

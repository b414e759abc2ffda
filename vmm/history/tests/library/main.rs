//! Tests of the library, with a guest of a few instructions. The tests are one program, because linking many
//! programs takes longer than running the tests.

mod cut;
mod damage;
mod damaged_checkpoints;
mod divergence;
mod ended;
mod examples;
mod exits;
mod failing_host;
mod fast_forward;
mod faults;
mod forks;
mod going_live;
mod golden;
mod hostile_state;
mod interrupted;
mod long_runs;
mod passthrough;
mod positions;
mod several;
mod stops;

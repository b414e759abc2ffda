//! Tests of the library, with a guest of a few instructions. They are one program, because linking many takes longer
//! than running them. `player` is separate, because it installs its own logger in the process.

mod cut;
mod damage;
mod damaged_checkpoints;
mod divergence;
mod ended;
mod examples;
mod exits;
mod failing_host;
mod fast_forward;
mod forks;
mod going_live;
mod golden;
mod hostile_state;
mod interrupted;
mod long_runs;
mod passthrough;
mod positions;
mod stops;
mod trail;

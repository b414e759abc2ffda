//! The library with a guest of a few instructions. One program of tests, because linking many takes longer than running them;
//! `player`, which takes the process's log for itself, is apart.

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

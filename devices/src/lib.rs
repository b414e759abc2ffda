//! Deterministic device models of a small PC.

pub mod layout;

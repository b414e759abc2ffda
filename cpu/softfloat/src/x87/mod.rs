//! x87 (being written).

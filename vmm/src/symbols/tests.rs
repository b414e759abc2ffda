//! Tests with tables made up here.

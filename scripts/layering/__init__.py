"""What `scripts/layers` is made of: Rust's modules as far as imports go, and the rules about them."""

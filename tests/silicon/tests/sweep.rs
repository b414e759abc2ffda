//! Compares which encodings are undefined for the software CPU and for this processor. The test uses no test
//! harness, because a fork needs a process with one thread.

fn main() {
    if let Some(reason) = silicon::unsupported() {
        return skip::test(reason);
    }
    let swept = silicon::sweep::run().expect("the processor's side can be set up");
    print!("{swept}");
    assert!(swept.differences.is_empty(), "encodings differ from the processor without a reason");
    assert!(swept.executed > 700_000 && swept.undefined < swept.executed, "too few encodings were tried");
    let explained: u64 = swept.explained.values().flat_map(|by_name| by_name.values()).sum();
    assert!(explained < swept.executed / 100, "{explained} differences are explained away");
}

//! A short comparison with the real processor. Without the test harness: forking wants a single thread.

fn main() {
    if let Some(reason) = silicon::unsupported() {
        return skip::test(reason);
    }
    let options = silicon::Options {
        count: 300_000,
        seed: 20_261,
        only: Vec::new(),
        jobs: 2,
        batch: None,
        case: None,
        show: 1,
        progress: false,
    };
    let summary = silicon::run(&options).expect("the comparison can be set up");
    print!("{}", summary.report);
    assert!(summary.died.is_empty(), "a process died: {:?}", summary.died);
    assert_eq!(summary.report.differences(), 0, "unexplained differences from the real processor");
    assert!(summary.passed(), "instructions that the CPU model has were undefined");
    assert!(summary.report.executions() > 200_000, "too few instructions are offered");
}

//! Short comparisons with the real processor. On Intel's processors, the first comparison includes all results; on
//! other processors, only defined results. The second comparison imitates a host with a processor of another
//! vendor. The tests use no test harness, because a fork needs a process with one thread.

use silicon::open::Compared;
use silicon::{Options, Vendor};

fn main() {
    if let Some(reason) = silicon::unsupported() {
        return skip::test(reason);
    }
    let options = Options {
        count: 300_000,
        seed: 20_261,
        only: Vec::new(),
        jobs: 2,
        batch: None,
        case: None,
        show: 1,
        progress: false,
        vendor: Vendor::OfThisHost,
    };
    println!("{:?} is compared", Compared::here());
    compare(&options);
    println!("another vendor's processor, made of this one");
    compare(&Options { vendor: Vendor::Other, seed: 20_262, ..options });
}

fn compare(options: &Options) {
    let summary = silicon::run(options).expect("the comparison can be set up");
    print!("{}", summary.report);
    assert!(summary.died.is_empty(), "a process died: {:?}", summary.died);
    assert_eq!(summary.report.differences(), 0, "unexplained differences from the real processor");
    assert!(summary.passed(), "instructions that the CPU model has were undefined");
    assert!(summary.report.executions() > 200_000, "too few instructions are offered");
}

//! What a recorder keeps: `--last`.

use serde_json::Value;

use crate::common::ttvm;
use tiny_guest::write_kernel;

#[test]
fn the_last_stretch_has_all_of_its_checkpoints_and_the_newest_one_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let kernel = write_kernel(path, u32::MAX).display().to_string();
    // The guest is never idle, so its instructions take a nanosecond each.
    const LAST: u64 = 40_000_000;
    // Checkpoints come each 10 ms. They are removed several at once while the guest runs, so it depends on the end how many are too
    // old there.
    for (number, end) in ["120ms", "147ms", "163ms"].iter().enumerate() {
        let name = format!("{number}.ttvm");
        let arguments = ["record", "-o", &name, "--kernel", &kernel, "--memory", "4M", "--unpaced"];
        let kept = ["--checkpoint-interval", "10ms", "--last", "40ms", "--max-time", end];
        let (code, _, told) = ttvm(path, &[&arguments[..], &kept].concat());
        assert_eq!(code, 0, "{told}");
        let (_, out, _) = ttvm(path, &["info", &name, "--json"]);
        let info: Value = serde_json::from_str(&out).unwrap();
        let end = info["instructions"].as_u64().unwrap();
        let first = info["checkpoints"]["first"]["instructions"].as_u64().unwrap();
        // The recorder looks each 10 ms whether a checkpoint is due.
        assert!((end - LAST - 20_000_000..=end - LAST).contains(&first), "{out}");
        assert!(info["checkpoints"]["count"].as_u64() >= Some(4), "{out}");
        assert_eq!(ttvm(path, &["verify", &name]).0, 0);
    }
}

//! Tests Debian 12 on a disk: systemd starts the system up to a login prompt, and then gcc, perl and python3 run.

use machine::script::Script;
use tests::guests::{BUSYBOX, CLOUD, DEBIAN, Guest, linux_options};
use tests::run::{assert_shows, run_to_power_off};

#[test]
fn debian_boots_logs_in_and_compiles() {
    let mut options = linux_options(&CLOUD, &BUSYBOX, "root=/dev/vda", 512);
    options.disk = Some(DEBIAN.path());
    let mut machine = Guest::new(&options).machine();
    let mut script = Script::new(&[
        ("login: ", "root\n"),
        ("~# ", "./check.sh\n"),
        ("CHECK-OK 9.787606036044348", "systemctl is-system-running; poweroff\n"),
    ]);
    run_to_power_off(&mut machine, &mut script);
    assert_shows(&script, "CHECK-OK 9.787606036044348\n");
    let now = machine.moment();
    println!("{} instructions, {:.3} s guest time", now.count, now.time_ns as f64 / 1e9);
}

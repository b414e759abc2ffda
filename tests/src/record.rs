//! Functions with which tests record a guest through the library `recording`, and open the recording.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use machine::Machine;
use machine::config::MachineOptions;
use machine::position::Instructions;
use recording::checkpointer;
use recording::log::EndRecord;
use recording::pace::CheckpointOptions;
use recording::recorder::Recorder;
use recording::{Opened, Recording};

use crate::guests::{Artefact, Guest, linux_options, power_on, with_files};
use crate::run::{STEP_LIMIT, run_until};
use machine::script::Script;

/// Records a guest from its first instruction to its end. Returns the machine at the end, and the recording's last
/// record.
pub fn record(
    guest: &Guest,
    path: &Path,
    script: &mut Script,
) -> (Machine<Instructions>, EndRecord<Instructions>) {
    let mut machine = guest.machine();
    let log =
        Recording::<Instructions>::create(path, &guest.config).unwrap_or_else(|error| panic!("{error}"));
    let mut recorder = Recorder::new(script, log, power_on());
    let outcome = run_until(&mut machine, STEP_LIMIT, &mut recorder);
    assert!(outcome.is_some(), "the guest is still running at {:?}", machine.moment());
    let end = recorder.finish(&mut machine).unwrap_or_else(|error| panic!("{error}"));
    (machine, end)
}

/// Does the same as [`record`], and also takes checkpoints.
pub fn record_with_checkpoints(
    guest: &Guest,
    path: &Path,
    script: &mut Script,
    options: CheckpointOptions,
) -> (Machine<Instructions>, EndRecord<Instructions>) {
    let mut machine = guest.machine();
    let log =
        Recording::<Instructions>::create(path, &guest.config).unwrap_or_else(|error| panic!("{error}"));
    let mut recorder = Recorder::new(script, log, power_on());
    checkpointer::record(&mut machine, &mut recorder, path, options)
        .unwrap_or_else(|error| panic!("{error}"));
    let end = recorder.finish(&mut machine).unwrap_or_else(|error| panic!("{error}"));
    (machine, end)
}

/// Records a guest that runs a shell script and powers off, as `r.ttvm` in a folder. Returns the text of the console.
/// `kernel` and `initrd` are the guest's images.
pub fn record_script(
    directory: &Path,
    images: (&Artefact, &Artefact),
    script: &str,
    disk: Option<PathBuf>,
) -> String {
    record_script_with(directory, images, script, disk, |_| ())
}

/// Does the same as [`record_script`], with more files in the guest. `put` writes these files to a folder, which is the
/// guest's root.
pub fn record_script_with(
    directory: &Path,
    (kernel, initrd): (&Artefact, &Artefact),
    script: &str,
    disk: Option<PathBuf>,
    put: impl FnOnce(&Path),
) -> String {
    let (root, to) = (directory.join("root"), directory.join("initrd.gz"));
    std::fs::create_dir(&root).expect("the folder is ours");
    put(&root);
    std::fs::write(root.join("script"), script).expect("the folder is ours");
    std::fs::set_permissions(root.join("script"), Permissions::from_mode(0o755)).expect("the file is ours");
    with_files(initrd, &root, &to);
    let options = linux_options(kernel, initrd, "ttvm.run=/script cryptomgr.notests", 256);
    let guest = Guest::new(&MachineOptions { initrd: Some(to), disk, ..options });
    let mut console = Script::silent();
    record(&guest, &directory.join("r.ttvm"), &mut console);
    console.text().to_string()
}

/// Opens a recording that is known to be good and to count instructions.
pub fn open(path: &Path) -> Recording<Instructions> {
    match Opened::open(path).unwrap_or_else(|error| panic!("{error}")) {
        Opened::ByInstructions(recording) => recording,
        Opened::ByExits(_) => panic!("{} counts exits", path.display()),
    }
}

//! continue_run CONFIG SAVED UNTIL OUTPUT: the new process of the restore tests. The process reads a
//! machine's description and a saved machine, and continues to an instruction count. Then the process saves
//! the machine and its console output below OUTPUT.

#![forbid(unsafe_code)]

use std::path::Path;

use machine::Machine;
use machine::position::Instructions;
use machine::script::Script;
use recording::Manifest;
use tests::guests::power_on;
use tests::run::run_until;
use tests::saved::Saved;

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [config, saved, until, output] = &arguments[..] else {
        panic!("usage: continue_run CONFIG SAVED UNTIL OUTPUT");
    };
    let manifest = std::fs::read_to_string(config).expect("CONFIG can be read");
    let manifest = Manifest::parse(&manifest).expect("CONFIG is a manifest with a machine's description");
    let images = manifest.machine.read_images(manifest.format).unwrap_or_else(|error| panic!("{error}"));
    let mut machine =
        Machine::new(&manifest.machine, &images, &power_on()).unwrap_or_else(|error| panic!("{error}"));
    Saved::read(Path::new(saved)).restore(&mut machine);
    let mut script = Script::silent();
    let until = Instructions(until.parse().expect("UNTIL is an instruction count"));
    run_until(&mut machine, until, &mut script);
    Saved::of(&mut machine).write(&Path::new(output).join("saved"));
    std::fs::write(Path::new(output).join("console"), script.output()).expect("OUTPUT is a folder");
}

//! Fuzzes the readers of data that a guest kernel has in its memory: type information of the kernel and a module,
//! symbols, VMCOREINFO.

#![no_main]

use guest_symbols::btf::Btf;
use guest_symbols::{kallsyms, vmcoreinfo};
use libfuzzer_sys::fuzz_target;

/// How many types of each input are read in full. Each type can be as long as the whole input.
const LOOKED_AT: usize = 64;

fn look(btf: &Btf<'_>) {
    for number in btf.numbers().take(LOOKED_AT) {
        let _ = (btf.full(number), btf.narrow_bits(number), btf.array(number), btf.size(number));
        let _ = btf.field(number, "list");
        btf.references(number).into_iter().take(LOOKED_AT).for_each(|to| drop(btf.full(to)));
    }
    let _ = btf.structure("module").and_then(|module| btf.field(module, "name"));
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&first, rest)) = bytes.split_first() else { return };
    match first {
        // The second byte divides the rest of the input into the kernel's and the module's type information. The
        // kernel's part has this many 256ths.
        0 => {
            let Some((&part, rest)) = rest.split_first() else { return };
            let (kernel, module) = rest.split_at(rest.len() * usize::from(part) / 256);
            let Some(kernel) = Btf::parse(kernel) else { return };
            look(&kernel);
            if let Some(module) = Btf::parse_module(module, &kernel) {
                look(&module);
            }
        }
        1 => drop(kallsyms::tables_in(rest, 0xffff_ffff_8100_0000)),
        _ => {
            let text = vmcoreinfo::in_note(rest).unwrap_or(rest);
            let _ = vmcoreinfo::value(text, "OSRELEASE");
        }
    }
});

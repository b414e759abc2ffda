//! The target description: XML that tells gdb the registers and how to show them.
//!
//! See the gdb manual's appendix "Target Descriptions". Bits are named as in the Intel SDM, volume 3,
//! sections 2.3, 2.5 and 2.2.1, and volume 1, sections 3.4.3 and 10.2.3.

use std::fmt::Write;

use crate::registers::{Feature, RegisterEntry, TABLE};

/// A register with named bits.
struct Flags {
    id: &'static str,
    size_bytes: usize,
    /// The fields: name, first bit, last bit.
    fields: &'static [(&'static str, u8, u8)],
}

#[rustfmt::skip]
const EFLAGS: Flags = Flags {
    id: "ttvm_eflags",
    size_bytes: 4,
    // Bit 1 is always set. gdb does not show a bit without a name.
    fields: &[
        ("CF", 0, 0), ("", 1, 1), ("PF", 2, 2), ("AF", 4, 4), ("ZF", 6, 6), ("SF", 7, 7), ("TF", 8, 8),
        ("IF", 9, 9), ("DF", 10, 10), ("OF", 11, 11), ("IOPL", 12, 13), ("NT", 14, 14), ("RF", 16, 16),
        ("VM", 17, 17), ("AC", 18, 18), ("VIF", 19, 19), ("VIP", 20, 20), ("ID", 21, 21),
    ],
};

#[rustfmt::skip]
const MXCSR: Flags = Flags {
    id: "ttvm_mxcsr",
    size_bytes: 4,
    fields: &[
        ("IE", 0, 0), ("DE", 1, 1), ("ZE", 2, 2), ("OE", 3, 3), ("UE", 4, 4), ("PE", 5, 5), ("DAZ", 6, 6),
        ("IM", 7, 7), ("DM", 8, 8), ("ZM", 9, 9), ("OM", 10, 10), ("UM", 11, 11), ("PM", 12, 12),
        ("RC", 13, 14), ("FZ", 15, 15),
    ],
};

#[rustfmt::skip]
const CR0: Flags = Flags {
    id: "ttvm_cr0",
    size_bytes: 8,
    fields: &[
        ("PE", 0, 0), ("MP", 1, 1), ("EM", 2, 2), ("TS", 3, 3), ("ET", 4, 4), ("NE", 5, 5), ("WP", 16, 16),
        ("AM", 18, 18), ("NW", 29, 29), ("CD", 30, 30), ("PG", 31, 31),
    ],
};

#[rustfmt::skip]
const CR4: Flags = Flags {
    id: "ttvm_cr4",
    size_bytes: 8,
    fields: &[
        ("VME", 0, 0), ("PVI", 1, 1), ("TSD", 2, 2), ("DE", 3, 3), ("PSE", 4, 4), ("PAE", 5, 5),
        ("MCE", 6, 6), ("PGE", 7, 7), ("PCE", 8, 8), ("OSFXSR", 9, 9), ("OSXMMEXCPT", 10, 10),
        ("UMIP", 11, 11), ("LA57", 12, 12), ("VMXE", 13, 13), ("SMXE", 14, 14), ("FSGSBASE", 16, 16),
        ("PCIDE", 17, 17), ("OSXSAVE", 18, 18), ("SMEP", 20, 20), ("SMAP", 21, 21), ("PKE", 22, 22),
        ("CET", 23, 23),
    ],
};

#[rustfmt::skip]
const EFER: Flags = Flags {
    id: "ttvm_efer",
    size_bytes: 8,
    fields: &[("SCE", 0, 0), ("LME", 8, 8), ("LMA", 10, 10), ("NXE", 11, 11)],
};

/// The views of a vector register: a union of vectors, each with its element's type and count.
const VIEWS: [(&str, &str, u8); 6] = [
    ("v4_float", "ieee_single", 4),
    ("v2_double", "ieee_double", 2),
    ("v16_int8", "int8", 16),
    ("v8_int16", "int16", 8),
    ("v4_int32", "int32", 4),
    ("v2_int64", "int64", 2),
];

/// Returns the whole target description, which gdb reads as `target.xml`.
pub(crate) fn target_xml() -> String {
    let features = [
        ("org.gnu.gdb.i386.core", Feature::Core, flags_xml(&EFLAGS)),
        ("org.gnu.gdb.i386.sse", Feature::Sse, vector_xml() + &flags_xml(&MXCSR)),
        ("org.gnu.gdb.i386.segments", Feature::Segments, String::new()),
        ("org.ttvm.x86.system", Feature::System, [CR0, CR4, EFER].iter().map(flags_xml).collect()),
    ];
    let body: String =
        features.iter().map(|(name, feature, types)| feature_xml(name, *feature, types)).collect();
    // Without the element `osabi`, gdb assumes the conventions of the host's operating system. Neither a kernel nor
    // firmware follows such conventions.
    format!(
        "<?xml version=\"1.0\"?><!DOCTYPE target SYSTEM \"gdb-target.dtd\"><target version=\"1.0\">\
         <architecture>i386:x86-64</architecture><osabi>none</osabi>{body}</target>"
    )
}

fn feature_xml(name: &str, feature: Feature, types: &str) -> String {
    let registers: String = TABLE.iter().filter(|entry| entry.feature == feature).map(register_xml).collect();
    format!("<feature name=\"{name}\">{types}{registers}</feature>")
}

fn register_xml(entry: &RegisterEntry) -> String {
    let bits = entry.place.size_bytes() * 8;
    let group = entry.group.map(|group| format!(" group=\"{group}\"")).unwrap_or_default();
    // gdb 13 derives a register's group from its type, but other debuggers read the attribute `group`. A function that
    // gdb calls may change control registers, and gdb must not restore them afterwards.
    let save = if entry.feature == Feature::System { " save-restore=\"no\"" } else { "" };
    format!("<reg name=\"{}\" bitsize=\"{bits}\" type=\"{}\"{group}{save}/>", entry.name, entry.gdb_type)
}

fn flags_xml(flags: &Flags) -> String {
    let mut xml = format!("<flags id=\"{}\" size=\"{}\">", flags.id, flags.size_bytes);
    for (name, first, last) in flags.fields {
        let _ = write!(xml, "<field name=\"{name}\" start=\"{first}\" end=\"{last}\"/>");
    }
    xml + "</flags>"
}

fn vector_xml() -> String {
    let vectors: String = VIEWS
        .iter()
        .map(|(view, element, count)| {
            format!("<vector id=\"{view}_t\" type=\"{element}\" count=\"{count}\"/>")
        })
        .collect();
    let fields: String =
        VIEWS.iter().map(|(view, ..)| format!("<field name=\"{view}\" type=\"{view}_t\"/>")).collect();
    format!("{vectors}<union id=\"vec128\">{fields}<field name=\"uint128\" type=\"uint128\"/></union>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_register_is_described_once_and_in_order() {
        let xml = target_xml();
        let mut rest = xml.as_str();
        for entry in TABLE {
            let tag = format!("<reg name=\"{}\" ", entry.name);
            assert_eq!(xml.matches(&tag).count(), 1, "{}", entry.name);
            rest = &rest[rest.find(&tag).expect(entry.name)..];
        }
    }

    #[test]
    fn every_type_is_known() {
        let builtin = ["int", "int32", "int64", "uint64", "data_ptr", "code_ptr", "i387_ext"];
        let xml = target_xml();
        for entry in TABLE.iter().filter(|entry| !builtin.contains(&entry.gdb_type)) {
            assert!(xml.contains(&format!(" id=\"{}\"", entry.gdb_type)), "{}", entry.gdb_type);
        }
    }

    #[test]
    fn flag_fields_fit_their_registers() {
        for flags in [EFLAGS, MXCSR, CR0, CR4, EFER] {
            for (name, first, last) in flags.fields {
                assert!(first <= last && usize::from(*last) < flags.size_bytes * 8, "{} {name}", flags.id);
            }
        }
    }
}

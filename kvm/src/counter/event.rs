//! The raw event of each processor that counts exactly the retired conditional branches.

/// The event of the current processor, in the format of `perf_event_open(2)`.
pub(crate) fn of_this_processor() -> Option<u64> {
    let vendor = std::arch::x86_64::__cpuid(0);
    let signature = std::arch::x86_64::__cpuid(1).eax;
    let base_family = signature >> 8 & 0xf;
    let family = if base_family == 0xf { base_family + (signature >> 20 & 0xff) } else { base_family };
    let model = signature >> 4 & 0xf | signature >> 12 & 0xf0;
    event_of(&[vendor.ebx, vendor.edx, vendor.ecx], family, model)
}

/// Whether the processor is a Zen, which by default miscounts locked instructions.
pub(crate) fn is_zen() -> bool {
    of_this_processor() == Some(ZEN_EVENT)
}

const INTEL: [u32; 3] = [0x756e_6547, 0x4965_6e69, 0x6c65_746e];
const AMD: [u32; 3] = [0x6874_7541, 0x6974_6e65, 0x444d_4163];
const ZEN_EVENT: u64 = 0xd1;

/// Intel's events, and the models that have them. The number changed with Ice Lake, where the old number counts
/// something else.
const INTEL_EVENTS: [(u64, &[u32]); 4] = [
    // Nehalem to Comet Lake, and Xeons of that time.
    (
        0x01c4,
        &[
            0x1a, 0x1e, 0x2c, 0x2f, 0x2a, 0x2d, 0x3a, 0x3e, 0x3c, 0x3f, 0x45, 0x46, 0x3d, 0x47, 0x4f, 0x56,
            0x4e, 0x5e, 0x55, 0x8e, 0x9e, 0xa5, 0xa6, 0x66,
        ],
    ),
    // Ice Lake to Meteor Lake (performance cores), Ice Lake to Granite Rapids.
    (
        0x11c4,
        &[
            0x7d, 0x7e, 0x6a, 0x6c, 0x8c, 0x8d, 0xa7, 0x97, 0x9a, 0xb7, 0xba, 0xbf, 0xaa, 0xac, 0x8f, 0xcf,
            0xad, 0xae,
        ],
    ),
    // Lunar Lake and Arrow Lake (performance cores).
    (0x1_0000_11c4, &[0xbd, 0xb5, 0xc5, 0xc6]),
    // Atoms: Silvermont to Gracemont and Crestmont.
    (0x7ec4, &[0x37, 0x4a, 0x4c, 0x4d, 0x5a, 0x5d, 0x5c, 0x5f, 0x7a, 0x86, 0x96, 0x9c, 0xbe, 0xaf, 0xb6]),
];

fn event_of(vendor: &[u32; 3], family: u32, model: u32) -> Option<u64> {
    match *vendor {
        AMD if (0x17..=0x1a).contains(&family) => Some(ZEN_EVENT),
        INTEL if family == 6 => {
            INTEL_EVENTS.iter().find(|(_, models)| models.contains(&model)).map(|(event, _)| *event)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_known_by_family() {
        for (vendor, family, model, expected) in [
            (INTEL, 6, 0x9e, Some(0x01c4)),
            (INTEL, 6, 0x8f, Some(0x11c4)),
            (INTEL, 6, 0xbd, Some(0x1_0000_11c4)),
            (INTEL, 6, 0xbe, Some(0x7ec4)),
            (INTEL, 6, 0x1c, None),
            (AMD, 0x17, 0x31, Some(0xd1)),
            (AMD, 0x15, 2, None),
            ([0; 3], 6, 0x9e, None),
        ] {
            assert_eq!(event_of(&vendor, family, model), expected, "{vendor:x?} {family:#x} {model:#x}");
        }
    }

    #[test]
    fn no_model_has_two_events() {
        let mut models: Vec<u32> =
            INTEL_EVENTS.iter().flat_map(|(_, models)| models.iter().copied()).collect();
        let count = models.len();
        models.sort_unstable();
        models.dedup();
        assert_eq!(models.len(), count);
    }
}

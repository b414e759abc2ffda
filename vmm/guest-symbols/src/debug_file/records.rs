//! Writes type information in the kernel's format (BTF): `Documentation/bpf/btf.rst`.

use std::collections::HashMap;

/// The longest list of a record: of members, constants or parameters.
const MAX_PARTS: usize = 0x00ff_ffff;
/// The largest offset in bits of a member in a structure with bit fields.
pub(super) const MAX_BIT_OFFSET: u64 = 0x00ff_ffff;

/// The kinds of records, `BTF_KIND_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Integer = 1,
    Pointer = 2,
    Array = 3,
    Structure = 4,
    Union = 5,
    Enumeration = 6,
    Forward = 7,
    Typedef = 8,
    Volatile = 9,
    Const = 10,
    Restrict = 11,
    Prototype = 13,
    Float = 16,
    Enumeration64 = 19,
}

/// Type information that is being written. Records are numbered from one on, in order.
#[derive(Default)]
pub(super) struct Records {
    types: Vec<u8>,
    strings: Vec<u8>,
    names: HashMap<String, u32>,
}

impl Records {
    /// The number of a name in the table of names; 0 means that there is no name.
    pub(super) fn name(&mut self, name: Option<&str>) -> u32 {
        if self.strings.is_empty() {
            self.strings.push(0);
        }
        let Some(name) = name.filter(|name| !name.is_empty() && !name.contains('\0')) else { return 0 };
        if let Some(&at) = self.names.get(name) {
            return at;
        }
        let Ok(at) = u32::try_from(self.strings.len()) else { return 0 };
        self.strings.extend_from_slice(name.as_bytes());
        self.strings.push(0);
        self.names.insert(name.to_string(), at);
        at
    }

    /// Adds a record. `size_or_type` is the third word, and `rest` the words after it. In a record with a list, each part has
    /// `part_words` words.
    pub(super) fn add(
        &mut self,
        kind: Kind,
        flag: bool,
        name: Option<&str>,
        size_or_type: u32,
        rest: &[u32],
        part_words: usize,
    ) {
        let name = self.name(name);
        let parts = rest.len().checked_div(part_words).unwrap_or(0).min(MAX_PARTS);
        let info = u32::from(flag) << 31 | (kind as u32) << 24 | parts as u32;
        let kept = if part_words == 0 { rest.len() } else { parts * part_words };
        [name, info, size_or_type]
            .iter()
            .chain(&rest[..kept])
            .for_each(|word| self.types.extend_from_slice(&word.to_le_bytes()));
    }

    /// The type information, with its header.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.name(None);
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        [24, 0, types, types, strings]
            .iter()
            .for_each(|word: &u32| bytes.extend_from_slice(&word.to_le_bytes()));
        bytes.extend_from_slice(&self.types);
        bytes.extend_from_slice(&self.strings);
        bytes
    }
}

//! Entries of debug information, and what they have in common.

use gimli::constants as dw;
use gimli::{
    AttributeValue, DebugInfoOffset, DebuggingInformationEntry, EndianSlice, LittleEndian, Unit, UnitRef,
};

pub(super) type Reader<'a> = EndianSlice<'a, LittleEndian>;
pub(super) type Entry<'a> = DebuggingInformationEntry<Reader<'a>>;

/// The definition of a type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Definition {
    pub tag: dw::DwTag,
    pub at: DebugInfoOffset,
}

/// The name of an entry.
pub(super) fn name_of<'a>(unit: UnitRef<'_, Reader<'a>>, entry: &Entry<'a>) -> Option<String> {
    let name = unit.attr_string(entry.attr_value(dw::DW_AT_name)?).ok()?;
    str::from_utf8(name.slice()).ok().map(str::to_string)
}

/// The place of the type to which an entry refers.
pub(super) fn reference(unit: &Unit<Reader<'_>>, entry: &Entry<'_>) -> Option<DebugInfoOffset> {
    match entry.attr_value(dw::DW_AT_type)? {
        AttributeValue::UnitRef(at) => at.to_debug_info_offset(&unit.header),
        AttributeValue::DebugInfoRef(at) => Some(at),
        _ => None,
    }
}

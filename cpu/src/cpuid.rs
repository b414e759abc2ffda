//! The CPU model that the guest sees.

/// Family, model and stepping as CPUID leaf 1 reports them in EAX.
pub(crate) const SIGNATURE: u32 = 0x0083_0f10;

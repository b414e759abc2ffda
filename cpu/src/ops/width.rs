//! Operand widths as types, so that one generic handler serves 8, 16, 32 and 64 bits.

use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;

/// An operand width. Values are passed as zero-extended `u64`.
pub(crate) trait Width: 'static {
    /// The number of bits.
    const BITS: u32;
    /// The number of bytes.
    const BYTES: u64 = Self::BITS as u64 / 8;
    /// A mask with all bits of this width set.
    const MASK: u64 = u64::MAX >> (64 - Self::BITS);
    /// The sign bit.
    const SIGN: u64 = 1 << (Self::BITS - 1);

    /// Sign-extends to 64 bits.
    #[inline(always)]
    fn sext(value: u64) -> u64 {
        ((value << (64 - Self::BITS)) as i64 >> (64 - Self::BITS)) as u64
    }
    /// Reads a register.
    fn get(core: &Core, register: u8) -> u64;
    /// Writes a register: 32-bit writes clear the upper half, narrower ones keep it.
    fn set(core: &mut Core, register: u8, value: u64);
    /// Loads from a linear address.
    fn load(core: &mut Core, bus: &mut dyn Bus, address: u64) -> Res<u64>;
    /// Stores to a linear address.
    fn store(core: &mut Core, bus: &mut dyn Bus, address: u64, value: u64) -> Res<()>;
    /// Reads a value at a linear address, changes the value and writes it back; see [`Core::update_u64`].
    fn update(
        core: &mut Core,
        bus: &mut dyn Bus,
        address: u64,
        change: impl FnOnce(&mut Core, u64) -> u64,
    ) -> Res<()>;
}

macro_rules! width {
    ($name:ident, $type:ty, $bits:literal, $get:ident, $set:ident, $load:ident, $store:ident, $update:ident) => {
        #[doc = concat!(stringify!($bits), "-bit operands.")]
        pub(crate) struct $name;

        impl Width for $name {
            const BITS: u32 = $bits;
            #[inline(always)]
            fn get(core: &Core, register: u8) -> u64 {
                u64::from(core.$get(register))
            }
            #[inline(always)]
            fn set(core: &mut Core, register: u8, value: u64) {
                core.$set(register, value as $type);
            }
            #[inline(always)]
            fn load(core: &mut Core, bus: &mut dyn Bus, address: u64) -> Res<u64> {
                core.$load(bus, address).map(u64::from)
            }
            #[inline(always)]
            fn store(core: &mut Core, bus: &mut dyn Bus, address: u64, value: u64) -> Res<()> {
                core.$store(bus, address, value as $type)
            }
            #[inline(always)]
            fn update(
                core: &mut Core,
                bus: &mut dyn Bus,
                address: u64,
                change: impl FnOnce(&mut Core, u64) -> u64,
            ) -> Res<()> {
                core.$update(bus, address, |core, old| change(core, u64::from(old)) as $type)
            }
        }
    };
}

width!(W8, u8, 8, reg8, set_reg8, load_u8, store_u8, update_u8);
width!(W16, u16, 16, reg16, set_reg16, load_u16, store_u16, update_u16);
width!(W32, u32, 32, reg32, set_reg32, load_u32, store_u32, update_u32);
width!(W64, u64, 64, reg64, set_reg64, load_u64, store_u64, update_u64);

//! Reads the description of a PCI function, from which the machine's model of the function is made.

use devices::passthrough::{BarDescriptionV1, MsixDescriptionV1, PciDescriptionV1};

use machine::error::Error;

const CAPABILITIES: usize = 0x34;
const STATUS: usize = 0x06;
const HAS_CAPABILITIES: u8 = 1 << 4;
const CAP_MSI: u8 = 0x05;
const CAP_MSIX: u8 = 0x11;
/// The largest number of interrupt messages of a function in the machine.
const MOST_VECTORS: u16 = 64;

/// Reads the function's configuration space.
pub(super) fn describe(function: &vfio::Function) -> Result<PciDescriptionV1, Error> {
    let address = function.address();
    let config = function.config().map_err(|source| Error::Host {
        what: format!("cannot read the configuration space of the PCI function {address}"),
        source,
    })?;
    let description = from_config(&config, |index| function.bar_bytes(index))
        .and_then(|description| description.validate().map(|()| description));
    description.map_err(|why| {
        Error::Unsupported(format!("the PCI function {address} cannot be passed through: it has {why}"))
    })
}

fn from_config(config: &[u8; 256], bar_bytes: impl Fn(u8) -> u64) -> Result<PciDescriptionV1, String> {
    let u16_at = |at: usize| u16::from_le_bytes([config[at], config[at + 1]]);
    let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
    if config[0x0E] & 0x7F != 0 {
        return Err("a header that is a bridge's".to_string());
    }
    let bars = (0..6).filter(|&index| bar_bytes(index) != 0).map(|index| {
        let is_ports = config[0x10 + 4 * usize::from(index)] & 1 != 0;
        let bytes = bar_bytes(index);
        let size_bytes = u32::try_from(bytes)
            .map_err(|_| format!("BAR {index} of {bytes:#x} bytes, which is too large"))?;
        Ok(BarDescriptionV1 { index, size_bytes, is_ports })
    });
    let bars = bars.collect::<Result<Vec<_>, String>>()?;
    let (mut msi, mut msix) = (None, None);
    let mut at = if config[STATUS] & HAS_CAPABILITIES != 0 { config[CAPABILITIES] & !3 } else { 0 };
    // The limit of this loop also ends a circular list of capabilities.
    for _ in 0..48 {
        let here = usize::from(at);
        if !(0x40..=0xF4).contains(&here) {
            break;
        }
        match config[here] {
            CAP_MSI => msi = Some(at),
            CAP_MSIX => {
                let place = |register: u32| ((register & 7) as u8, register & !7);
                msix = Some(MsixDescriptionV1 {
                    capability: at,
                    vectors: ((u16_at(here + 2) & 0x7FF) + 1).min(MOST_VECTORS),
                    table: place(u32_at(here + 4)),
                    pending: place(u32_at(here + 8)),
                });
            }
            _ => {}
        }
        at = config[here + 1] & !3;
    }
    // The emulated capability is a little longer than the MSI capability of some devices. If the emulated
    // capability does not fit before the next capability, the machine does not have it.
    if let (Some(short), Some(next)) = (msi, &msix)
        && next.capability > short
        && next.capability - short < 16
    {
        msi = None;
    }
    Ok(PciDescriptionV1 {
        vendor: u16_at(0),
        device: u16_at(2),
        revision: config[8],
        class: u32_at(8) >> 8,
        subsystem_vendor: u16_at(0x2C),
        subsystem: u16_at(0x2E),
        bars,
        has_line: config[0x3D] != 0,
        msi,
        msix,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_described_by_its_configuration_space() {
        let mut config = [0; 256];
        config[..12].copy_from_slice(&[0x86, 0x80, 0xD3, 0x10, 3, 0, 0x10, 0, 9, 0, 0, 2]);
        (config[0x18], config[0x34], config[0x3D]) = (1, 0xC8, 1);
        config[0xC8..0xCA].copy_from_slice(&[0x01, 0xD0]);
        config[0xD0..0xD2].copy_from_slice(&[CAP_MSI, 0xA0]);
        config[0xA0..0xAC].copy_from_slice(&[CAP_MSIX, 0xC8, 4, 0, 3, 0, 0, 0, 3, 0x20, 0, 0]);
        let sizes = [0x2_0000, 0, 32, 0x4000, 0, 0];
        let found = from_config(&config, |index| sizes[usize::from(index)]).unwrap();
        assert_eq!(found.validate(), Ok(()));
        assert_eq!((found.vendor, found.device, found.class, found.revision), (0x8086, 0x10D3, 0x02_0000, 9));
        assert_eq!(
            found.bars.iter().map(|bar| (bar.index, bar.is_ports)).collect::<Vec<_>>(),
            [(0, false), (2, true), (3, false)]
        );
        assert_eq!((found.msi, found.has_line), (Some(0xD0), true));
        let msix = found.msix.unwrap();
        assert_eq!((msix.capability, msix.vectors, msix.table, msix.pending), (0xA0, 5, (3, 0), (3, 0x2000)));
    }

    #[test]
    fn what_makes_no_function_is_refused() {
        let mut config = [0; 256];
        config[0x0E] = 0x81;
        assert!(from_config(&config, |_| 0).is_err());
        config[0x0E] = 0x80;
        assert!(from_config(&config, |_| 1 << 33).is_err());
        assert!(from_config(&config, |_| 0x4000_0000).unwrap().validate().is_err());
    }
}

//! `--passthrough`: devices of the host that are passed through to the guest.

use std::str::FromStr;

use host::PassedOptions;

/// A device of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassthroughArg(pub PassedOptions);

impl FromStr for PassthroughArg {
    type Err = String;

    fn from_str(text: &str) -> Result<PassthroughArg, String> {
        let wrong = || {
            "write pci:DOMAIN:BUS:SLOT.FUNCTION, like pci:0000:00:1d.0, or port:FIRST-LAST[,irq=N], like \
                          port:0x2f8-0x2ff,irq=3"
        };
        if let Some(address) = text.strip_prefix("pci:") {
            return match is_address(address) {
                true => Ok(PassthroughArg(PassedOptions::Function { address: address.to_string() })),
                false => Err(wrong().to_string()),
            };
        }
        let range = text.strip_prefix("port:").ok_or_else(wrong)?;
        let (range, irq) = match range.split_once(",irq=") {
            Some((range, irq)) => (range, Some(irq.parse().map_err(|_| wrong())?)),
            None => (range, None),
        };
        let number = |text: &str| u16::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        let ports = range.split_once('-').and_then(|(first, last)| Some((number(first)?, number(last)?)));
        let (first, last) = ports.ok_or_else(wrong)?;
        Ok(PassthroughArg(PassedOptions::Ports { first, last, irq }))
    }
}

/// Whether a text is an address in sysfs's notation. The address becomes part of a path.
fn is_address(text: &str) -> bool {
    let pattern = b"xxxx:xx:xx.x";
    let is =
        |(&byte, &wanted): (&u8, &u8)| if wanted == b'x' { byte.is_ascii_hexdigit() } else { byte == wanted };
    text.len() == pattern.len() && text.as_bytes().iter().zip(pattern).all(is)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_as_the_host_names_them() {
        let parsed = |text: &str| text.parse::<PassthroughArg>().map(|arg| arg.0);
        let address = "0000:00:1d.0".to_string();
        assert_eq!(parsed("pci:0000:00:1d.0"), Ok(PassedOptions::Function { address }));
        let ports = |irq| Ok(PassedOptions::Ports { first: 0x2f8, last: 0x2ff, irq });
        assert_eq!(parsed("port:0x2f8-0x2ff"), ports(None));
        assert_eq!(parsed("port:0x2f8-0x2ff,irq=3"), ports(Some(3)));
        for wrong in [
            "",
            "pci:",
            "pci:00:1d.0",
            "pci:../../0000:00",
            "port:",
            "port:0x2f8",
            "port:2f8-2ff",
            "usb:1-1",
            "port:0x2f8-0x2ff,irq=",
            "port:0x2f8-0x2ff,irq=300",
            "port:0x2f8-0x2ff,dma=1",
        ] {
            assert!(parsed(wrong).unwrap_err().contains("pci:0000:00:1d.0"), "{wrong}");
        }
    }
}

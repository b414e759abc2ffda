//! `--net`: the peer of a guest's network card.

use std::str::FromStr;

use host::{Forward, NetworkOptions, Protocol};
use machine::config::NetworkConfig;

/// The MAC address that QEMU gives a guest's first card. The address is locally administered, and the same in each run.
const DEFAULT_MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x12, 0x34, 0x56];

/// A network card and its peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkArg {
    /// The peer: passt or a TAP interface.
    pub peer: NetworkOptions,
    /// The card's MAC address, if the user named one.
    mac: Option<[u8; 6]>,
}

impl NetworkArg {
    /// The network card's configuration.
    pub fn config(&self) -> NetworkConfig {
        let mac = self.mac.unwrap_or(DEFAULT_MAC);
        NetworkConfig { mac, mtu: self.peer.mtu(), segments: self.peer.segments() }
    }

    /// Checks that an existing card can be connected to this peer. The error says why not.
    pub fn must_fit(&self, card: Option<&NetworkConfig>) -> Result<(), String> {
        let Some(card) = card else {
            return Err(
                "the guest of this recording has no network card, and cannot get one: leave out --net"
                    .to_string(),
            );
        };
        if self.mac.is_some_and(|mac| mac != card.mac) {
            return Err("the network card of this recording has another address: leave out mac=".to_string());
        }
        if card.mtu > self.peer.mtu() || (card.segments && !self.peer.segments()) {
            return Err("the network card of this recording sends longer frames than this network takes: use --net user".to_string());
        }
        Ok(())
    }
}

impl FromStr for NetworkArg {
    type Err = String;

    fn from_str(text: &str) -> Result<NetworkArg, String> {
        let mut parts = text.split(',');
        let kind = parts.next().unwrap_or_default();
        let (mut mac, mut interface, mut forwards) = (None, None, Vec::new());
        for part in parts {
            match part.split_once('=') {
                Some(("mac", address)) => mac = Some(parse_mac(address)?),
                Some(("hostfwd", forward)) if kind == "user" => forwards.push(parse_forward(forward)?),
                Some(("ifname", name)) if kind == "tap" => interface = Some(name.to_string()),
                _ => return Err(format!("--net {kind} knows no {part:?}")),
            }
        }
        let peer = match kind {
            "user" => NetworkOptions::User { forwards },
            "tap" => {
                // The name is required, because otherwise the host would choose a name.
                let named = interface.filter(|name| !name.is_empty());
                NetworkOptions::Tap { interface: named.ok_or("write tap,ifname=NAME")? }
            }
            _ => return Err("write user or tap,ifname=NAME".to_string()),
        };
        Ok(NetworkArg { peer, mac })
    }
}

fn parse_mac(text: &str) -> Result<[u8; 6], String> {
    let wrong = || format!("{text:?} is no address of a network card, like 52:54:00:12:34:56");
    let byte = |digits: &str| {
        let is_byte = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        u8::from_str_radix(digits, 16).ok().filter(|_| is_byte)
    };
    let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
    let mac: [u8; 6] = bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(wrong)?;
    if mac[0] & 1 != 0 {
        Err(format!("{text:?} is the address of a group of network cards"))
    } else {
        Ok(mac)
    }
}

/// Parses QEMU's notation, `PROTOCOL:[ADDRESS]:PORT-[ADDRESS]:PORT`, without an address of the guest.
fn parse_forward(text: &str) -> Result<Forward, String> {
    let wrong = || format!("write hostfwd=tcp:[ADDRESS]:PORT-:PORT in place of {text:?}");
    let (host, guest) = text.split_once('-').ok_or_else(wrong)?;
    let (protocol, host) = host.split_once(':').ok_or_else(wrong)?;
    let (address, host_port) = host.rsplit_once(':').ok_or_else(wrong)?;
    let protocol = match protocol {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        _ => return Err(wrong()),
    };
    let port = |text: &str| text.parse::<u16>().ok().filter(|&port| port != 0).ok_or_else(wrong);
    Ok(Forward {
        protocol,
        address: (!address.is_empty()).then(|| address.to_string()),
        host_port: port(host_port)?,
        guest_port: port(guest.strip_prefix(':').ok_or_else(wrong)?)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_written_as_for_qemu() {
        let parsed = |text: &str| text.parse::<NetworkArg>();
        let user = |forwards| Ok(NetworkArg { peer: NetworkOptions::User { forwards }, mac: None });
        assert_eq!(parsed("user"), user(Vec::new()));
        let ssh = |address: Option<&str>| Forward {
            protocol: Protocol::Tcp,
            address: address.map(str::to_string),
            host_port: 2222,
            guest_port: 22,
        };
        let dns = Forward { protocol: Protocol::Udp, host_port: 53, guest_port: 5353, ..ssh(None) };
        assert_eq!(parsed("user,hostfwd=tcp::2222-:22,hostfwd=udp::53-:5353"), user(vec![ssh(None), dns]));
        assert_eq!(parsed("user,hostfwd=tcp:127.0.0.1:2222-:22"), user(vec![ssh(Some("127.0.0.1"))]));
        let tap = NetworkOptions::Tap { interface: "tap0".to_string() };
        let mac = Some([2, 0, 0, 0, 0xab, 1]);
        assert_eq!(parsed("tap,ifname=tap0,mac=02:00:00:00:ab:01"), Ok(NetworkArg { peer: tap, mac }));
    }

    #[test]
    fn a_card_that_is_there_is_connected_where_it_can_be() {
        let fits = |text: &str, card: Option<&NetworkConfig>| {
            text.parse::<NetworkArg>().unwrap().must_fit(card).is_ok()
        };
        let card_of = |text: &str| text.parse::<NetworkArg>().unwrap().config();
        let (user, tap) = (card_of("user"), card_of("tap,ifname=tap0,mac=02:00:00:00:ab:01"));
        assert!(fits("user", Some(&user)) && fits("user", Some(&tap)) && fits("tap,ifname=tap0", Some(&tap)));
        assert!(!fits("tap,ifname=tap0", Some(&user)) && !fits("user", None));
        assert!(
            fits("user,mac=02:00:00:00:ab:01", Some(&tap)) && !fits("user,mac=02:00:00:00:ab:02", Some(&tap))
        );
    }

    #[test]
    fn what_makes_no_network_is_refused() {
        for text in [
            "",
            "tap",
            "tap,ifname=",
            "vde",
            "user,ifname=tap0",
            "tap,ifname=tap0,hostfwd=tcp::1-:1",
            "user,mac=52:54:00:12:34",
            "user,mac=53:54:00:12:34:56",
            "user,mac=+2:54:00:12:34:56",
            "user,hostfwd=tcp::2222",
            "user,hostfwd=icmp::1-:1",
            "user,hostfwd=tcp::0-:1",
            "user,hostfwd=tcp::1-10.0.2.15:1",
            "user,hostfwd",
        ] {
            assert!(text.parse::<NetworkArg>().is_err(), "{text}");
        }
    }
}

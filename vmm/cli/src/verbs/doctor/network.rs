//! Examines how this host can connect guests to its network.

use std::process::{Command, Stdio};

use host::PASST_SOCKET_BYTES;

use super::finding::{Finding, finding};

const PASST: &str = "network: passt";
const SOCKETS: &str = "network: sockets";
const LIMIT: &str = "/proc/sys/net/core/wmem_max";

/// Tests whether `--net user` works here, and how fast.
pub(super) fn examine() -> Vec<Finding> {
    let tried = Command::new("passt").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let limit = std::fs::read_to_string(LIMIT).ok().and_then(|text| text.trim().parse().ok());
    vec![passt(tried.is_ok()), sockets(limit)]
}

fn passt(is_there: bool) -> Finding {
    if is_there {
        finding(PASST, true, "is there for --net user", "")
    } else {
        finding(PASST, false, "is not installed", "--net user needs it: install Debian's package passt")
    }
}

fn sockets(limit: Option<usize>) -> Finding {
    match limit {
        None => finding(SOCKETS, false, format!("{LIMIT} cannot be read"), ""),
        Some(bytes) => finding(
            SOCKETS,
            bytes >= PASST_SOCKET_BYTES,
            format!("net.core.wmem_max is {bytes}"),
            &if bytes >= PASST_SOCKET_BYTES {
                String::new()
            } else {
                format!(
                    "passt sends much of a download twice; sysctl -w net.core.wmem_max={PASST_SOCKET_BYTES} helps"
                )
            },
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_with_what_to_do() {
        assert!(passt(true).ok && passt(true).advice.is_empty());
        assert!(!passt(false).ok && passt(false).advice.contains("install Debian's package passt"));
        let enough = sockets(Some(PASST_SOCKET_BYTES));
        assert!(enough.ok && enough.advice.is_empty());
        let usual = sockets(Some(212_992));
        assert!(!usual.ok && usual.advice.contains("net.core.wmem_max=4194304"), "{}", usual.advice);
        assert!(!sockets(None).ok);
    }
}

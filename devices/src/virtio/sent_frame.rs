//! A frame that the guest sent, with the work that its driver left to the device.
//!
//! VIRTIO 1.2, section 5.1.6.

use virtio_bindings::virtio_net::VIRTIO_NET_HDR_F_NEEDS_CSUM;

/// Length of the header before each frame.
pub const HEADER_BYTES: usize = 12;

const NEEDS_CHECKSUM: u8 = VIRTIO_NET_HDR_F_NEEDS_CSUM as u8;
const CHECKSUM_START_AT: usize = 6;
const CHECKSUM_OFFSET_AT: usize = 8;

/// A frame that the guest sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentFrame {
    /// The driver's `struct virtio_net_hdr_v1`, which describes the unfinished work.
    pub header: [u8; HEADER_BYTES],
    /// The Ethernet frame.
    pub bytes: Vec<u8>,
}

impl SentFrame {
    /// The frame with its checksum. This function does not segment the frame. If segmentation was left to the
    /// device, the result is longer than the guest's MTU.
    pub fn into_checksummed(self) -> Vec<u8> {
        let SentFrame { header, mut bytes } = self;
        let field = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
        let (start, offset) = (field(CHECKSUM_START_AT), field(CHECKSUM_OFFSET_AT));
        let at = start + offset;
        if header[0] & NEEDS_CHECKSUM != 0 && at + 2 <= bytes.len() {
            // The checksum field holds the sum of the pseudo header. A sum of zero would mean "no checksum" (RFC
            // 768).
            let sum = match !ones_complement_sum(&bytes[start..]) {
                0 => 0xFFFF,
                sum => sum,
            };
            bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        bytes
    }
}

/// The Internet checksum's sum (RFC 1071).
fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u64::from(word[0]) << 8 | u64::from(*word.get(1).unwrap_or(&0)));
    let mut sum: u64 = words.sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1071, section 3, gives the sum of these bytes.
    #[test]
    fn the_checksum_is_that_of_the_rfc() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(ones_complement_sum(&bytes), 0xddf2);
        assert_eq!(ones_complement_sum(&bytes[..7]), 0xddf2 - 0xf7);
        let mut header = [0; HEADER_BYTES];
        header[..9].copy_from_slice(&[NEEDS_CHECKSUM, 0, 0, 0, 0, 0, 2, 0, 8]);
        let frame = |header| SentFrame { header, bytes: [&[9, 9], &bytes[..], &[0, 0]].concat() };
        let sent = frame(header).into_checksummed();
        assert_eq!(sent[10..], (!0xddf2_u16).to_be_bytes());
        assert_eq!(sent[..10], frame(header).bytes[..10]);
        assert_eq!(frame([0; HEADER_BYTES]).into_checksummed(), frame(header).bytes, "nothing was left open");
        header[8] = 9;
        assert_eq!(frame(header).into_checksummed(), frame(header).bytes, "the field would lie outside");
    }

    #[test]
    fn a_checksum_is_never_zero() {
        let mut header = [0; HEADER_BYTES];
        (header[0], header[8]) = (NEEDS_CHECKSUM, 2);
        let sent = SentFrame { header, bytes: vec![0xff, 0xff, 0, 0] }.into_checksummed();
        assert_eq!(sent, [0xff; 4]);
    }
}

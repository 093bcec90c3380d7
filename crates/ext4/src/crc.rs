//! CRC-16 of old group descriptors.

/// CRC-16 (polynomial 0x8005, reflected), with a start value.
pub fn crc16(start: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(start, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte), |crc, _| {
            crc >> 1 ^ if crc & 1 == 1 { 0xA001 } else { 0 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value_of_the_catalogue() {
        assert_eq!(crc16(0, b"123456789"), 0xBB3D);
    }
}

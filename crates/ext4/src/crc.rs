//! Checksums: CRC-32C of metadata and journal, CRC-16 of old group descriptors.

/// Tables for eight bytes at a time: `TABLES[k][b]` is the remainder of `b` with `k` zero bytes
/// behind it.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = value >> 1 ^ if value & 1 == 1 { 0x82F6_3B78 } else { 0 };
            bit += 1;
        }
        tables[0][byte] = value;
        byte += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[k - 1][byte];
            tables[k][byte] = before >> 8 ^ tables[0][(before & 0xFF) as usize];
            byte += 1;
        }
        k += 1;
    }
    tables
}

/// CRC-32C (Castagnoli) as ext4 uses it: a start value goes in, and nothing is inverted.
pub fn crc32c(start: u32, bytes: &[u8]) -> u32 {
    let mut crc = start;
    let (chunks, rest) = bytes.as_chunks::<8>();
    for chunk in chunks {
        let [a, b, c, d, e, f, g, h] = *chunk;
        let low = crc ^ u32::from_le_bytes([a, b, c, d]);
        let [a, b, c, d] = low.to_le_bytes();
        crc = TABLES[7][usize::from(a)]
            ^ TABLES[6][usize::from(b)]
            ^ TABLES[5][usize::from(c)]
            ^ TABLES[4][usize::from(d)]
            ^ TABLES[3][usize::from(e)]
            ^ TABLES[2][usize::from(f)]
            ^ TABLES[1][usize::from(g)]
            ^ TABLES[0][usize::from(h)];
    }
    for byte in rest {
        crc = crc >> 8 ^ TABLES[0][usize::from(crc as u8 ^ byte)];
    }
    crc
}

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
    fn check_values_of_the_catalogue() {
        assert_eq!(!crc32c(!0, b"123456789"), 0xE306_9283);
        assert_eq!(crc16(0, b"123456789"), 0xBB3D);
    }

    #[test]
    fn a_sum_in_parts_is_the_sum_of_the_whole() {
        let bytes: [u8; 77] = core::array::from_fn(|index| (index * 37) as u8);
        for at in 0..bytes.len() {
            let (left, right) = bytes.split_at(at);
            assert_eq!(crc32c(crc32c(!0, left), right), crc32c(!0, &bytes));
        }
    }
}

//! What the functions of a kernel take of its stacks: a build with a frame that is too large fails.
//!
//! A kernel stack is 32 KiB, and how much of it a call takes is the compiler's to say: what it
//! inlines today it may not have inlined yesterday. Once the sum of five large frames overflowed
//! in the one build that was submitted, and in none that was tried before.

use anyhow::{Context, Result, bail};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

/// A quarter of a kernel stack.
const LARGEST: u32 = 8 << 10;
/// Functions that run once, on the stack that the boot loader's entry has to itself.
const AT_BOOT: [&str; 1] = ["guard::boot::machine::build_descriptor"];
/// `sub rsp, imm32`.
const SUB_RSP: [u8; 3] = [0x48, 0x81, 0xec];
/// `lea r11, [rsp + disp32]`: where a loop ends that goes down the stack page by page.
const LEA_R11_RSP: [u8; 4] = [0x4c, 0x8d, 0x9c, 0x24];
/// A step of such a loop, and of one that was unrolled.
const STEP: u32 = 4096;

/// Checks each function of the linked kernel `elf`.
///
/// # Errors
/// The functions whose frames are too large, each with its size.
pub fn check(elf: &[u8]) -> Result<()> {
    let file = object::File::parse(elf).context("the kernel image is no ELF file")?;
    let text = file
        .section_by_name(".text")
        .context("the kernel image has no section `.text`")?;
    let code = text.data().context("the kernel's code cannot be read")?;
    let mut large = Vec::new();
    for symbol in file.symbols().filter(|s| s.kind() == SymbolKind::Text) {
        let start = symbol.address().checked_sub(text.address());
        let body = start.and_then(|start| {
            let start = usize::try_from(start).ok()?;
            code.get(start..start + symbol.size() as usize)
        });
        let size = frame_size(body.unwrap_or_default());
        let name = rustc_demangle::demangle(symbol.name().unwrap_or_default());
        let name = format!("{name:#}");
        if size > LARGEST && !AT_BOOT.contains(&name.as_str()) {
            large.push(format!("{size} bytes: {name}"));
        }
    }
    if !large.is_empty() {
        bail!(
            "frames of more than {LARGEST} bytes on a kernel stack (make large values in place or on the heap):\n  {}",
            large.join("\n  ")
        );
    }
    Ok(())
}

/// Bytes that a function takes of the stack for its values: all that it subtracts from the stack's
/// pointer, in whatever branch. Less than 128 bytes do not count, which it says in another way.
fn frame_size(code: &[u8]) -> u32 {
    let operand = |at: usize| {
        let bytes = code.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let mut size = 0u32;
    for at in 0..code.len() {
        if code[at..].starts_with(&SUB_RSP) {
            let taken = operand(at + SUB_RSP.len()).filter(|taken| *taken < 1 << 24);
            size += taken.unwrap_or(0);
        } else if code[at..].starts_with(&LEA_R11_RSP) {
            let below = operand(at + LEA_R11_RSP.len()).map(u32::wrapping_neg);
            // The loop's own step is counted when it is met.
            let taken = below.filter(|below| (STEP..1 << 24).contains(below));
            size += taken.map_or(0, |below| below - STEP);
        }
    }
    size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_measured_as_the_compiler_makes_them() {
        // push rbp; mov rbp, rsp; sub rsp, 0x1234
        let plain = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x81, 0xec, 0x34, 0x12, 0, 0];
        assert_eq!(frame_size(&plain), 0x1234);
        // lea r11, [rsp - 0x5000]; sub rsp, 0x1000; mov [rsp], 0; cmp rsp, r11; jne; sub rsp, 0x408
        let probed = [
            0x4c, 0x8d, 0x9c, 0x24, 0x00, 0xb0, 0xff, 0xff, 0x48, 0x81, 0xec, 0x00, 0x10, 0, 0,
            0x48, 0xc7, 0x04, 0x24, 0, 0, 0, 0, 0x4c, 0x39, 0xdc, 0x75, 0xed, 0x48, 0x81, 0xec,
            0x08, 0x04, 0, 0,
        ];
        assert_eq!(frame_size(&probed), 0x5408);
        // Two steps that were unrolled, and the rest.
        let unrolled = [
            0x48, 0x81, 0xec, 0x00, 0x10, 0, 0, 0x48, 0xc7, 0x04, 0x24, 0, 0, 0, 0, 0x48, 0x81,
            0xec, 0x00, 0x10, 0, 0, 0x48, 0x81, 0xec, 0x80, 0x01, 0, 0,
        ];
        assert_eq!(frame_size(&unrolled), 0x2180);
        assert_eq!(frame_size(&[0x48, 0x83, 0xec, 0x20, 0xc3, 0x48, 0x81]), 0);
    }
}

//! The kernel's own symbol table, for backtraces: after linking, names and addresses of its functions are put into the image's
//! `.ksyms` section, in the format that `guard::symbols` reads.

use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

/// "KSYM".
const MAGIC: u32 = 0x4d59_534b;
/// Addresses are stored as distances from here, where the image is linked.
const IMAGE_BASE: u64 = 0xffff_ffff_8000_0000;
/// Longer names are cut: they are types in types, and the beginning says where to look.
const LONGEST_NAME: usize = 120;

/// Fills the `.ksyms` section of the kernel image `elf`.
///
/// # Errors
/// When the image has no such section, or a symbol table that does not fit into it.
pub fn fill(elf: &mut [u8]) -> Result<()> {
    let (offset, size, table) = {
        let file = object::File::parse(&*elf).context("the kernel image is no ELF file")?;
        let section = file.section_by_name(".ksyms").context("the kernel image has no section `.ksyms`")?;
        let (offset, size) = section.file_range().context("the section `.ksyms` is not in the file")?;
        (offset as usize, size as usize, table(&file))
    };
    ensure!(table.len() <= size, "the kernel's symbol table takes {} bytes, `.ksyms` has {size}", table.len());
    elf[offset..offset + table.len()].copy_from_slice(&table);
    Ok(())
}

/// The section's contents: magic, count, `count` pairs of address and name offset sorted by address, names.
fn table(file: &object::File<'_>) -> Vec<u8> {
    let mut functions: Vec<(u32, String)> = file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition())
        .filter_map(|symbol| {
            let distance = u32::try_from(symbol.address().checked_sub(IMAGE_BASE)?).ok()?;
            let mut name = format!("{:#}", rustc_demangle::demangle(symbol.name().ok()?));
            name.truncate(name.floor_char_boundary(LONGEST_NAME));
            Some((distance, name))
        })
        .collect();
    functions.sort();
    functions.dedup_by_key(|(distance, _)| *distance);

    let mut table = Vec::new();
    let mut names = Vec::new();
    let names_start = 8 + 8 * functions.len();
    table.extend_from_slice(&MAGIC.to_le_bytes());
    table.extend_from_slice(&(functions.len() as u32).to_le_bytes());
    for (distance, name) in functions {
        table.extend_from_slice(&distance.to_le_bytes());
        table.extend_from_slice(&((names_start + names.len()) as u32).to_le_bytes());
        names.extend_from_slice(name.as_bytes());
        names.push(0);
    }
    table.extend_from_slice(&names);
    table
}

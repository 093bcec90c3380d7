//! The kernel's own symbol table, for backtraces: after linking, names and addresses of its
//! functions are put into the image's `.ksyms` section, in the format of the crate `ksyms`.

use std::collections::HashMap;

use ::ksyms::{ENTRY, HEADER, MAGIC};
use anyhow::{Context, Result};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

/// Addresses are stored as distances from here, where the image is linked.
const IMAGE_BASE: u64 = 0xffff_ffff_8000_0000;
/// Longer names are cut: they are types in types, and the beginning says where to look. The first
/// of these with which the table fits counts: kernels that are built quickly have many functions
/// that a release has not.
const LONGEST_NAMES: [usize; 3] = [120, 60, 30];

/// Fills the `.ksyms` section of the kernel image `elf`.
///
/// # Errors
/// When the image has no such section, or a symbol table that does not fit into it.
pub fn fill(elf: &mut [u8]) -> Result<()> {
    let (offset, table) = {
        let file = object::File::parse(&*elf).context("the kernel image is no ELF file")?;
        let section = file
            .section_by_name(".ksyms")
            .context("the kernel image has no section `.ksyms`")?;
        let (offset, size) = section
            .file_range()
            .context("the section `.ksyms` is not in the file")?;
        let fits = |&longest: &usize| {
            Some(table(&file, longest)).filter(|table| table.len() <= size as usize)
        };
        (offset as usize, LONGEST_NAMES.iter().find_map(fits))
    };
    let table = table.context("the kernel's symbol table does not fit into `.ksyms`")?;
    elf[offset..offset + table.len()].copy_from_slice(&table);
    Ok(())
}

/// The section's contents: magic, count, `count` pairs of address and name offset sorted by
/// address, names of at most `longest` bytes, each of them once.
fn table(file: &object::File<'_>, longest: usize) -> Vec<u8> {
    let mut functions: Vec<(u32, String)> = file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition())
        .filter_map(|symbol| {
            let distance = u32::try_from(symbol.address().checked_sub(IMAGE_BASE)?).ok()?;
            let mut name = format!("{:#}", rustc_demangle::demangle(symbol.name().ok()?));
            name.truncate(name.floor_char_boundary(longest));
            Some((distance, name))
        })
        .collect();
    functions.sort();
    functions.dedup_by_key(|(distance, _)| *distance);

    let mut table = Vec::new();
    let mut names = Vec::new();
    let mut known = HashMap::new();
    let names_start = HEADER + ENTRY * functions.len();
    table.extend_from_slice(&MAGIC);
    table.extend_from_slice(&(functions.len() as u32).to_le_bytes());
    for (distance, name) in functions {
        table.extend_from_slice(&distance.to_le_bytes());
        let at = *known.entry(name).or_insert_with_key(|name: &String| {
            let at = names_start + names.len();
            names.extend_from_slice(name.as_bytes());
            names.push(0);
            at
        });
        table.extend_from_slice(&(at as u32).to_le_bytes());
    }
    table.extend_from_slice(&names);
    table
}

//! On the host: the choice is in the environment, and what is come by goes to a file.

use std::fs::File;
use std::io::Write;
use std::sync::LazyLock;

/// `MUTANT`: a number, or `record`.
static CHOSEN: LazyLock<u32> = LazyLock::new(|| match std::env::var("MUTANT").as_deref() {
    Ok("record") => crate::RECORD,
    Ok(number) => number.parse().expect("MUTANT is a number"),
    Err(_) => 0,
});

/// `MUTANT_TOLD`: a file to append to.
static TOLD: LazyLock<Option<File>> = LazyLock::new(|| {
    let path = std::env::var_os("MUTANT_TOLD")?;
    Some(
        File::options()
            .create(true)
            .append(true)
            .open(path)
            .expect("MUTANT_TOLD can be written"),
    )
});

#[inline]
pub(crate) fn chosen() -> u32 {
    *CHOSEN
}

pub(crate) fn time() -> u32 {
    0
}

pub(crate) fn tell(value: u32) {
    if let Some(mut file) = TOLD.as_ref() {
        // Without it, the change counts as one that no test comes by.
        let _ = file.write_all(&crate::frame(value));
    }
}

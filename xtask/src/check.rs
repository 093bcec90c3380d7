//! `cargo xtask check` and `cargo xtask unsafe`: the rules of the house.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::source::{self, Counts};
use crate::trusted::{self, Source};
use crate::{
    audit, build, dependencies, diff, generated, growth, layers, pages, paths, retired, style,
};

/// Packages that only build for bare metal: everything that calls the guard.
pub const KERNEL_ONLY: &[&str] = &["guard", "drivers", "link", "node", "skerry-kernel"];
/// Packages that build for bare metal and, with doubles of what is below them, for the host, and
/// differ between the two.
const KERNEL_TOO: &[&str] = &["linux", "task", "vm", "fs", "ext4"];
/// Packages whose lock-free parts are model-checked.
pub const LOOM_TESTED: &[&str] = &["ring", "lfmutex", "rcu", "frames", "trace", "virtqueue"];
/// Lints that are errors, by arguments of the compiler's.
const HOST_LINTS: &[&str] = &["-D", "warnings"];
/// Lints that are errors in the kernel. It never panics by `unwrap`: what cannot fail says why, by
/// `expect`.
const KERNEL_LINTS: &[&str] = &["-D", "warnings", "-D", "clippy::unwrap_used"];
/// A file has one topic.
const FILE_LINES: usize = 1000;

/// One check of the source: what holds, and whether it does.
type Outcome = (&'static str, Result<String>);

/// Runs every check.
pub fn all() -> Vec<Outcome> {
    vec![
        (
            "the source is formatted",
            cargo(&["fmt", "--all", "--", "--check", "-l"]),
        ),
        (
            "clippy has nothing to say about what runs on the host",
            cargo(&host(
                &["clippy", "--all-targets"],
                &[&["--"], HOST_LINTS].concat(),
            )),
        ),
        (
            "clippy has nothing to say about the kernel",
            cargo(&kernel(
                &[KERNEL_ONLY, KERNEL_TOO].concat(),
                &["clippy"],
                &[&["--"], KERNEL_LINTS].concat(),
            )),
        ),
        (
            "the documentation builds without a warning",
            documentation(),
        ),
        ("no spin locks", no_words(&["spin_loop", "spin::"])),
        (
            "nothing is left to be done",
            no_words(&["TODO", "FIXME", "XXX", "todo!(", "unimplemented!("]),
        ),
        (
            "`unsafe` is forbidden outside the trusted base",
            unsafe_is_forbidden(),
        ),
        ("every file has one topic", file_lengths()),
        (
            "lists of the kernel stay small, or ask for what they grow by",
            every_source().and_then(|sources| growth::check(&sources)),
        ),
        (
            "modules use what is in their layer or below",
            every_source().and_then(|sources| layers::check(&sources)),
        ),
        (
            "each part of the trusted base is within its limits",
            counted_sources().and_then(|sources| trusted::check(&sources)),
        ),
        (
            "each public item of the trusted base is in its audit",
            audited(),
        ),
        (
            "tables and numbers in the pages are the source's",
            generated::check(),
        ),
        ("what the pages name, exists", pages::check()),
        (
            "Linux's answers to the programs of machine/diff are kept",
            diff::check_answers(),
        ),
        ("every dependency is used and explained", dependencies()),
        (
            "imports, comments and first lines have the house's form",
            every_source().and_then(|sources| style::check(&sources)),
        ),
        (
            "no name comes back that was given up",
            every_source().and_then(|sources| retired::check(&sources)),
        ),
    ]
}

/// Carries out `cargo xtask check`.
pub fn run() -> ExitCode {
    let mut status = ExitCode::SUCCESS;
    for (what, result) in all() {
        match result {
            Ok(seen) if seen.is_empty() => println!("ok      {what}"),
            Ok(seen) => println!("ok      {what}: {seen}"),
            Err(error) => {
                println!("FAILED  {what}: {error:#}");
                status = ExitCode::FAILURE;
            }
        }
    }
    status
}

/// Carries out `cargo xtask unsafe`: prints the trusted base with its limits, and the counts of
/// every package.
pub fn report_unsafe() -> Result<()> {
    let sources = counted_sources()?;
    println!("The trusted base (docs/trusted-base.md):");
    trusted::print(&sources)?;
    let mut packages = BTreeMap::<&str, Counts>::new();
    for source in &sources {
        *packages.entry(&source.package).or_default() += source.counts;
    }
    println!(
        "\n{:<18} {:>8} {:>8} {:>7} {:>8}",
        "package", "code", "unsafe", "share", "public"
    );
    for (package, counts) in &packages {
        print_counts(package, *counts);
    }
    print_counts("all", packages.into_values().sum());
    trusted::check(&sources).map(drop)
}

fn print_counts(
    name: &str,
    Counts {
        code,
        unsafe_code,
        public,
    }: Counts,
) {
    let share = 100.0 * unsafe_code as f64 / code.max(1) as f64;
    println!("{name:<18} {code:>8} {unsafe_code:>8} {share:>6.1}% {public:>8}");
}

/// The sources of each package, without tests, and what they hold.
fn counted_sources() -> Result<Vec<Source>> {
    let mut counted = Vec::new();
    for (package, directory) in packages_with_directories()? {
        let root = directory.join("src");
        let mut files = Vec::new();
        for path in sources(&directory)?
            .into_iter()
            .filter(|path| path.starts_with(&root))
        {
            files.push((path.strip_prefix(&root)?.to_owned(), read(&path)?));
        }
        let tests: BTreeSet<PathBuf> = files
            .iter()
            .flat_map(|(file, text)| {
                source::test_modules(text)
                    .into_iter()
                    .map(|name| below(file).join(name))
            })
            .collect();
        // `tests.rs` is also a name for doubles of the hardware, which are there on the host only.
        let is_test = |file: &Path| {
            file.ends_with("tests.rs") || tests.iter().any(|module| belongs_to(file, module))
        };
        for (file, text) in files.iter().filter(|(file, _)| !is_test(file)) {
            let is_rust = file.extension().is_some_and(|extension| extension == "rs");
            let counts = if is_rust {
                source::count_rust(text)
            } else {
                source::count_assembly(text)
            };
            counted.push(Source {
                package: package.clone(),
                file: file.clone(),
                counts,
            });
        }
    }
    Ok(counted)
}

/// Checks the audit of the packages on which the kernel rests.
fn audited() -> Result<String> {
    let list = trusted::list()?;
    let parts = trusted::Part::parse_all(&list)?;
    let kernel = parts.iter().filter(|part| part.is_of_the_kernel());
    audit::check(&kernel.map(|part| part.package).collect(), &every_source()?)
}

/// The folder of the modules that a source declares.
fn below(file: &Path) -> PathBuf {
    let is_root = ["lib.rs", "main.rs", "mod.rs"]
        .iter()
        .any(|root| file.ends_with(root));
    if is_root {
        file.parent().unwrap_or(Path::new("")).to_owned()
    } else {
        file.with_extension("")
    }
}

/// Whether a source is a module, given by its path without extension, or a part of it.
fn belongs_to(file: &Path, module: &Path) -> bool {
    file.with_extension("") == module || file.starts_with(module)
}

/// Cargo's metadata of the workspace's packages.
fn metadata() -> Result<serde_json::Value> {
    let output = build::cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("cannot run cargo")?;
    serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")
}

fn dependencies() -> Result<String> {
    dependencies::check(&metadata()?, |directory| {
        let mut words = BTreeSet::new();
        for path in sources(Path::new(directory))? {
            words.extend(source::words(&read(&path)?).map(str::to_owned));
        }
        Ok(words)
    })
}

/// The workspace's packages: names and directories.
fn packages_with_directories() -> Result<Vec<(String, PathBuf)>> {
    let metadata = metadata()?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata lists no packages")?;
    packages
        .iter()
        .map(|package| {
            let name = package["name"].as_str().context("a package without name")?;
            let manifest = package["manifest_path"]
                .as_str()
                .context("a package without manifest")?;
            Ok((
                name.to_owned(),
                Path::new(manifest)
                    .parent()
                    .context("a manifest without directory")?
                    .to_owned(),
            ))
        })
        .collect()
}

/// The Rust and assembly sources of a package.
fn sources(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut waiting = vec![
        directory.join("src"),
        directory.join("tests"),
        directory.join("benches"),
        directory.join("build.rs"),
    ];
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path)?.collect::<Result<Vec<_>, _>>()?;
            waiting.extend(entries.into_iter().map(|entry| entry.path()));
        } else if path
            .extension()
            .is_some_and(|extension| ["rs", "s", "S"].iter().any(|known| extension == *known))
            && path.is_file()
        {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn every_source() -> Result<Vec<(PathBuf, String)>> {
    let mut files = Vec::new();
    for (_, directory) in packages_with_directories()? {
        for path in sources(&directory)? {
            let text = read(&path)?;
            files.push((
                path.strip_prefix(paths::root()).unwrap_or(&path).to_owned(),
                text,
            ));
        }
    }
    Ok(files)
}

fn no_words(words: &[&str]) -> Result<String> {
    let mut found = Vec::new();
    for (path, text) in every_source()? {
        // The list of what is looked for is here.
        if path.ends_with("xtask/src/check.rs") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            if let Some(word) = words.iter().find(|word| line.contains(**word)) {
                found.push(format!("{}:{}: {word}", path.display(), number + 1));
            }
        }
    }
    none(found)
}

fn unsafe_is_forbidden() -> Result<String> {
    let list = trusted::list()?;
    let trusted: BTreeSet<&str> = trusted::Part::parse_all(&list)?
        .iter()
        .map(|part| part.package)
        .collect();
    let mut found = Vec::new();
    for (package, directory) in packages_with_directories()? {
        if trusted.contains(package.as_str()) {
            continue;
        }
        for root in sources(&directory)?
            .iter()
            .filter(|path| is_crate_root(path.strip_prefix(&directory).unwrap_or(path)))
        {
            if !read(root)?
                .lines()
                .any(|line| line.trim() == "#![forbid(unsafe_code)]")
            {
                found.push(format!(
                    "{} does not say #![forbid(unsafe_code)]",
                    root.strip_prefix(paths::root()).unwrap_or(root).display()
                ));
            }
        }
    }
    none(found)
}

/// Whether a source, by its path in the package, is the root of a library or program.
fn is_crate_root(path: &Path) -> bool {
    let words: Vec<_> = path.iter().map(|word| word.to_string_lossy()).collect();
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    matches!(
        words[..],
        ["src", "lib.rs" | "main.rs"] | ["src", "bin", _] | ["src", "bin", _, "main.rs"]
    )
}

fn file_lengths() -> Result<String> {
    let long = every_source()?
        .into_iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines >= FILE_LINES)
        .map(|(path, lines)| format!("{} has {lines} lines", path.display()))
        .collect();
    none(long)
}

fn none(found: Vec<String>) -> Result<String> {
    if found.is_empty() {
        Ok(String::new())
    } else {
        bail!("{}", found.join("\n        "))
    }
}

/// Arguments for what runs on the host.
fn host<'a>(before: &[&'a str], after: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = before.to_vec();
    arguments.push("--workspace");
    for package in KERNEL_ONLY {
        arguments.extend(["--exclude", package]);
    }
    arguments.extend(after);
    arguments
}

/// Arguments for these packages, built for bare metal.
fn kernel<'a>(packages: &[&'a str], before: &[&'a str], after: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = before.to_vec();
    arguments.extend(["--target", build::KERNEL_TARGET]);
    for package in packages {
        arguments.extend(["-p", package]);
    }
    arguments.extend(after);
    arguments
}

fn cargo(arguments: &[&str]) -> Result<String> {
    finish(build::cargo().args(arguments))
}

fn documentation() -> Result<String> {
    let doc = ["doc", "--no-deps", "--document-private-items"];
    for (arguments, lints) in [
        (host(&doc, &[]), HOST_LINTS),
        (kernel(KERNEL_ONLY, &doc, &[]), KERNEL_LINTS),
    ] {
        let mut cargo = build::cargo();
        cargo.args(arguments).env("RUSTDOCFLAGS", "-D warnings");
        as_clippy(&mut cargo, lints)?;
        finish(&mut cargo)?;
    }
    Ok(String::new())
}

/// Makes a command of Cargo's use what `cargo clippy` has made with these lints, where it would
/// check each crate once more by itself. `cargo clippy` is `cargo check` with this wrapper and this
/// variable, as its source says (`src/main.rs`, of version 1.96); if that changes, the crates are
/// checked twice again, and nothing else.
fn as_clippy(cargo: &mut Command, lints: &[&str]) -> Result<()> {
    let output = Command::new("rustc")
        .args(["--print", "sysroot"])
        .current_dir(paths::root())
        .output()
        .context("cannot run rustc")?;
    let sysroot = String::from_utf8(output.stdout).context("the path of Rust is not UTF-8")?;
    let driver = Path::new(sysroot.trim_end()).join("bin/clippy-driver");
    if driver.exists() {
        let arguments: String = lints
            .iter()
            .map(|word| format!("{word}__CLIPPY_HACKERY__"))
            .collect();
        cargo
            .env("RUSTC_WORKSPACE_WRAPPER", driver)
            .env("CLIPPY_ARGS", arguments);
    }
    Ok(())
}

/// Runs a quiet command; its words are shown if it fails.
fn finish(command: &mut Command) -> Result<String> {
    let output = command
        .env("CARGO_TERM_COLOR", "never")
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!(
            "{}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_where_their_parents_declare_them() {
        let module = |file: &str, name: &str| below(Path::new(file)).join(name);
        assert!(belongs_to(
            Path::new("model.rs"),
            &module("lib.rs", "model")
        ));
        assert!(belongs_to(
            Path::new("a/tests/x.rs"),
            &module("a/mod.rs", "tests")
        ));
        assert!(belongs_to(
            Path::new("a/b/tests.rs"),
            &module("a/b.rs", "tests")
        ));
        assert!(!belongs_to(
            Path::new("a/tests.rs"),
            &module("a/b.rs", "tests")
        ));
        assert!(!belongs_to(
            Path::new("models.rs"),
            &module("lib.rs", "model")
        ));
    }

    #[test]
    fn roots_of_programs() {
        assert!(
            [
                "src/lib.rs",
                "src/main.rs",
                "src/bin/a.rs",
                "src/bin/a/main.rs"
            ]
            .iter()
            .all(|path| is_crate_root(Path::new(path)))
        );
        assert!(
            ["src/a/main.rs", "src/bin/a/b.rs", "tests/a.rs"]
                .iter()
                .all(|path| !is_crate_root(Path::new(path)))
        );
    }
}

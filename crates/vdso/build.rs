//! Compiles and links the shared object that programs find in their memory, with the compiler and
//! the linker of the tool chain.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Code for it is position independent, and uses nothing of an operating system.
const TARGET: &str = "x86_64-unknown-none";

fn main() {
    for file in ["image", "src/data.rs", "build.rs"] {
        println!("cargo::rerun-if-changed={file}");
    }
    println!("cargo::rustc-check-cfg=cfg(vdso_image)");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where"));
    println!("cargo::rerun-if-env-changed=VDSO_RUSTC");
    // A compiler that only interprets (Miri) has neither the target nor the linker: whoever runs
    // it names one that has.
    let rustc = env::var_os("VDSO_RUSTC")
        .or_else(|| env::var_os("RUSTC"))
        .expect("cargo says which");
    let object = out.join("vdso.o");
    let options = "--edition=2024 --crate-type=lib --crate-name=vdso_image --emit=obj --cfg=vdso_image --check-cfg=cfg(vdso_image)";
    let code = "opt-level=3 panic=abort relocation-model=pic code-model=small codegen-units=1 force-unwind-tables=yes";
    run(Command::new(&rustc)
        .args(options.split(' '))
        .args(code.split(' ').flat_map(|option| ["-C", option]))
        .args(["--target", TARGET, "-o"])
        .arg(&object)
        .arg("image/vdso.rs"));
    run(Command::new(linker(Path::new(&rustc)))
        .args([
            "-flavor",
            "gnu",
            "-shared",
            "--no-undefined",
            "--strip-debug",
            "--eh-frame-hdr",
            "--hash-style=both",
        ])
        .args([
            "--build-id=sha1",
            "-z",
            "noexecstack",
            "-z",
            "max-page-size=4096",
            "-soname",
            "linux-vdso.so.1",
        ])
        .args(["-T", "image/vdso.lds", "-o"])
        .arg(out.join("vdso.so"))
        .arg(&object));
}

/// The tool chain's own linker.
fn linker(rustc: &Path) -> PathBuf {
    let output = Command::new(rustc)
        .args(["--print", "sysroot"])
        .output()
        .expect("the compiler runs");
    let sysroot = String::from_utf8(output.stdout).expect("a path");
    let host = env::var("HOST").expect("cargo says which");
    Path::new(sysroot.trim())
        .join("lib/rustlib")
        .join(host)
        .join("bin/rust-lld")
}

fn run(command: &mut Command) {
    let status = command
        .status()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(status.success(), "{command:?}: {status}");
}

//! Compiles the C library that this crate is an interface to.

fn main() {
    cc::Build::new()
        .file("tasks.c")
        .std("gnu17")
        .flag("-pthread")
        .compile("tasks");
    println!("cargo:rerun-if-changed=tasks.c");
    println!("cargo:rerun-if-changed=tasks.h");
}

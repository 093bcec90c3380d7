//! Times Linux's hot-plug, for `cargo xtask bench elastic` to stand beside.
//!
//! `hotplug NAME TURNS OFF ON FILE...` writes OFF into all files of `/sys`, then ON, so often, and
//! prints how many nanoseconds each of the two took: `NAME off NS`, `NAME on NS`.

#![forbid(unsafe_code)]

use std::time::Instant;
use std::{env, fs};

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    let [name, turns, off, on, files @ ..] = words.as_slice() else {
        panic!("usage: hotplug NAME TURNS OFF ON FILE...");
    };
    let turns: u32 = turns.parse().expect("TURNS is a number");
    for _ in 0..turns {
        for (state, value) in [("off", off), ("on", on)] {
            let begun = Instant::now();
            for file in files {
                fs::write(file, value).unwrap_or_else(|error| panic!("{file}: {value}: {error}"));
            }
            println!("{name} {state} {}", begun.elapsed().as_nanos());
        }
    }
}

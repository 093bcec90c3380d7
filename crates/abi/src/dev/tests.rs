use std::collections::BTreeMap;

use super::*;

#[test]
fn calls_are_encoded_as_linux_does() {
    assert_eq!(START, 0xc008_6b04);
    assert_eq!(CREATE, 0xc4c8_6b02);
    let numbers = CALLS.iter().map(|call| call & 0xff);
    assert!(numbers.eq(1..=CALLS.len() as u32));
}

#[test]
fn text_fields() {
    let label: [u8; 8] = field("web").unwrap();
    assert_eq!(text(&label), Some("web"));
    assert_eq!(field::<4>("four"), None);
    let mut status: Status = zeroed();
    status.set_detail(&"ü".repeat(100));
    assert_eq!(text(&status.detail).map(|t| t.chars().count()), Some(63));
}

#[test]
fn fields_hold_what_fits_with_a_zero_to_spare() {
    assert_eq!(field::<4>("yes"), Some(*b"yes\0"));
    assert_eq!(field::<4>(""), Some([0; 4]));
    assert_eq!(text(b"all four"), Some("all four"));
    assert_eq!(
        (text(b"a\0b"), text(b"\0"), text(b""), text(b"\xff\0")),
        (Some("a"), Some(""), Some(""), None)
    );
    let mut status: Status = zeroed();
    let long = "x".repeat(200);
    for (length, kept) in [(127, 127), (128, 127), (200, 127), (3, 3)] {
        status.set_detail(&long[..length]);
        assert_eq!(text(&status.detail).map(str::len), Some(kept));
    }
    assert_eq!(status.detail[127], 0);
}

#[test]
fn each_health_has_a_name_of_its_own() {
    assert_eq!(
        [0, 1, 2, 3].map(health_name),
        ["good", "unresponsive", "hung", "unknown"]
    );
}

#[test]
fn each_event_has_a_name_of_its_own() {
    assert_eq!(
        std::array::from_fn(|kind| event_name(kind as u32)),
        [
            "unknown",
            "create",
            "start",
            "resize",
            "refuse",
            "health",
            "exit",
            "panic",
            "halt",
            "release",
            "remove",
            "lost",
            "rename",
            "pause",
            "unpause",
            "dma-fault",
            "adopt",
            "device-add",
            "device-remove",
            "unknown"
        ]
    );
}

#[test]
fn each_state_has_a_name_of_its_own() {
    let names = [0, 1, 2, 3, 4, 5, 6, 7].map(state_name);
    assert_eq!(
        names,
        [
            "unknown", "created", "running", "exited", "panicked", "halted", "failed", "unknown"
        ]
    );
}

/// A reason had the number of another one once, and no test told.
#[test]
fn each_reason_has_a_number_of_its_own() {
    let numbers = include_str!("../dev.rs").lines().filter_map(|line| {
        let (name, value) = line
            .strip_prefix("pub const REASON_")?
            .split_once(": u32 = ")?;
        Some((value.strip_suffix(';')?, name))
    });
    let mut seen = BTreeMap::new();
    for (number, name) in numbers {
        assert_eq!(seen.insert(number, name), None, "{name} is {number}, too");
    }
    assert!(seen.len() > 40, "{} reasons", seen.len());
}

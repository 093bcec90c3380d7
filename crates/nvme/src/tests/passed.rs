//! Commands of programs: which are passed, and what a controller is lent for them.

use crate::command::Command;
use crate::{CommandSet, Forbidden, PAGE, Wanted};

fn wanted(code: u8, at: usize, word: u32) -> Wanted {
    let mut words = [0; 8];
    words[at - 8] = word;
    Wanted {
        code,
        namespace: 1,
        words,
    }
}

const MOST: usize = 32 * PAGE;

fn admin_bytes(code: u8, at: usize, word: u32) -> Result<usize, Forbidden> {
    let plan = wanted(code, at, word).plan(CommandSet::Admin, MOST);
    plan.map(|plan| plan.bytes)
}

fn nvm_bytes(code: u8, at: usize, word: u32) -> Result<usize, Forbidden> {
    let plan = wanted(code, at, word).plan(CommandSet::Nvm(12), MOST);
    plan.map(|plan| plan.bytes)
}

#[test]
fn a_command_has_as_much_data_as_it_says_itself() {
    assert_eq!(admin_bytes(0x06, 10, 1), Ok(PAGE));
    // 128 words, one less in the upper half of word 10.
    assert_eq!(admin_bytes(0x02, 10, 127 << 16 | 2), Ok(512));
    // A length that needs the second half.
    assert_eq!(admin_bytes(0x02, 11, 1), Err(Forbidden::TooLong));
    assert_eq!(admin_bytes(0x0a, 10, 7), Ok(PAGE));
    assert_eq!(admin_bytes(0x11, 10, 1023), Ok(PAGE));
    assert_eq!(admin_bytes(0x82, 11, 100), Ok(100));
    assert_eq!(admin_bytes(0x11, 10, u32::MAX), Err(Forbidden::TooLong));
    assert_eq!(nvm_bytes(0x02, 12, 0), Ok(4096));
    assert_eq!(nvm_bytes(0x05, 12, 31), Ok(MOST));
    assert_eq!(nvm_bytes(0x01, 12, 32), Err(Forbidden::TooLong));
    // Bits that are no number of blocks: force unit access, say.
    assert_eq!(nvm_bytes(0x01, 12, 1 << 30 | 1), Ok(8192));
    assert_eq!(nvm_bytes(0x09, 10, 255), Ok(4096));
    assert_eq!(nvm_bytes(0x08, 12, 0xffff), Ok(0));
    assert_eq!(nvm_bytes(0x00, 10, 0), Ok(0));
}

#[test]
fn no_command_is_passed_whose_data_is_not_known() {
    for code in 0..=u8::MAX {
        let known = [
            0x02, 0x06, 0x09, 0x0a, 0x10, 0x11, 0x14, 0x18, 0x19, 0x1a, 0x81, 0x82, 0x84, 0x86,
        ];
        let is_passed = admin_bytes(code, 10, 0).is_ok();
        assert_eq!(is_passed, known.contains(&code), "{code:#x}");
        let known = [0x00, 0x01, 0x02, 0x04, 0x05, 0x08, 0x09, 0x0c, 0x0e];
        let is_passed = nvm_bytes(code, 10, 0).is_ok();
        assert_eq!(is_passed, known.contains(&code), "{code:#x}");
    }
    for code in [0x00, 0x01, 0x04, 0x05, 0x08, 0x0c, 0x7c] {
        assert_eq!(admin_bytes(code, 10, 0), Err(Forbidden::Kernels));
    }
    for code in [0x0d, 0x15, 0x80] {
        assert_eq!(admin_bytes(code, 10, 0), Err(Forbidden::Disks));
    }
    // How many queues there are, and memory that the controller keeps.
    for feature in [0x07, 0x0d, 0x107, 0x8000_000d] {
        assert_eq!(admin_bytes(0x09, 10, feature), Err(Forbidden::Kernels));
    }
    assert_eq!(admin_bytes(0x09, 10, 0x04), Ok(PAGE));
}

#[test]
fn a_command_is_passed_word_for_word() {
    let wanted = Wanted {
        code: 0x02,
        namespace: 0x0102_0304,
        words: [2, 3, 10, 11, 12, 13, 14, 15],
    };
    let plan = wanted.plan(CommandSet::Nvm(9), MOST).unwrap();
    assert_eq!((plan.is_read, plan.is_written), (false, true));
    let command: Command = plan.command();
    assert_eq!((command.code(), command.namespace()), (2, 0x0102_0304));
    for word in [2, 3, 10, 11, 12, 13, 14, 15] {
        assert_eq!(command.word(word), word as u32);
    }
    assert_eq!(command.data(), [0, 0]);
    let sent = Wanted { code: 5, ..wanted }
        .plan(CommandSet::Nvm(9), MOST)
        .unwrap();
    assert_eq!((sent.is_read, sent.is_written), (true, false));
}

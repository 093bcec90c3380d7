//! Settings below `/proc/sys` that steer what there is none of here: swap, far memory, terminals
//! kept for one namespace. Values are checked by Linux's ranges and kept, as on a Linux machine
//! that has none of it, so that programs find what they wrote. Those of writing back are passed on
//! to the page cache of devices, too.

use alloc::format;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicI64, Ordering};

use abi::errno::Errno;
use fs::block::writeback::{self, Settings, Share};
use fs::pseudo::{self, PseudoAttr, StaticDir};

use super::add_at_path;
use super::settings::parse;

/// A number that is kept.
pub(super) struct Remembered {
    /// Name below `/proc/sys`.
    pub(super) path: &'static str,
    least: i64,
    most: i64,
    value: AtomicI64,
    /// The setting that says the same in another unit: of the two the one that was not written last
    /// is 0.
    other: Option<&'static str>,
}

const INT_MIN: i64 = i32::MIN as i64;
const INT_MAX: i64 = i32::MAX as i64;

/// A setting with its value at the beginning, and the least and highest that it takes.
const fn kept(path: &'static str, value: i64, least: i64, most: i64) -> Remembered {
    Remembered {
        path,
        least,
        most,
        value: AtomicI64::new(value),
        other: None,
    }
}

const fn or(other: &'static str, setting: Remembered) -> Remembered {
    Remembered {
        other: Some(other),
        ..setting
    }
}

/// Least number of dirty bytes, two pages.
const LEAST_DIRTY: i64 = 8192;

static REMEMBERED: [Remembered; 16] = [
    kept("vm/swappiness", 60, 0, 200),
    kept("vm/page-cluster", 3, 0, INT_MAX),
    kept("vm/laptop_mode", 0, INT_MIN, INT_MAX),
    or("vm/dirty_bytes", kept("vm/dirty_ratio", 20, 0, 100)),
    or(
        "vm/dirty_ratio",
        kept("vm/dirty_bytes", 0, LEAST_DIRTY, i64::MAX),
    ),
    or(
        "vm/dirty_background_bytes",
        kept("vm/dirty_background_ratio", 10, 0, 100),
    ),
    or(
        "vm/dirty_background_ratio",
        kept("vm/dirty_background_bytes", 0, 1, i64::MAX),
    ),
    kept("vm/dirty_expire_centisecs", 3000, 0, INT_MAX),
    kept("vm/dirty_writeback_centisecs", 500, INT_MIN, INT_MAX),
    kept("vm/dirtytime_expire_seconds", 43_200, 0, INT_MAX),
    kept("vm/vfs_cache_pressure", 100, 0, INT_MAX),
    kept("vm/zone_reclaim_mode", 0, 0, INT_MAX),
    kept("vm/stat_interval", 1, INT_MIN, INT_MAX),
    kept("kernel/numa_balancing", 0, 0, 4),
    kept("kernel/pty/reserve", 1024, 0, INT_MAX),
    kept("kernel/sched_child_runs_first", 0, INT_MIN, INT_MAX),
];

impl Remembered {
    /// Keeps the number that a text begins with.
    ///
    /// # Errors
    /// `EINVAL`.
    pub(super) fn store(&self, text: &[u8]) -> Result<(), Errno> {
        let number = parse(text).ok_or(Errno::EINVAL)?;
        let range = self.least.into()..=self.most.into();
        if !range.contains(&number) {
            return Err(Errno::EINVAL);
        }
        if let Some(other) = self.other.and_then(find) {
            other.value.store(0, Ordering::Relaxed);
        }
        self.value.store(number as i64, Ordering::Relaxed);
        if self.path.starts_with("vm/dirty_") {
            apply_writeback();
        }
        Ok(())
    }
}

/// Tells the page cache of devices how much may be dirty, and for how long.
fn apply_writeback() {
    let value = |path| {
        let value = find(path).map_or(0, |setting| setting.value.load(Ordering::Relaxed));
        u64::try_from(value).unwrap_or(0)
    };
    let share = |bytes, ratio| match value(bytes) {
        0 => Share::Percent(value(ratio)),
        bytes => Share::Bytes(bytes),
    };
    let ns = |path| value(path) * 10_000_000;
    writeback::set(&Settings {
        limit: share("vm/dirty_bytes", "vm/dirty_ratio"),
        background: share("vm/dirty_background_bytes", "vm/dirty_background_ratio"),
        expire_ns: ns("vm/dirty_expire_centisecs"),
        interval_ns: ns("vm/dirty_writeback_centisecs"),
    });
}

/// Setting of a name below `/proc/sys`.
pub(super) fn find(path: &str) -> Option<&'static Remembered> {
    REMEMBERED.iter().find(|setting| setting.path == path)
}

/// Adds the settings to `/proc/sys`.
pub(super) fn add(dir: &Arc<StaticDir>, dev: u64) {
    for setting in &REMEMBERED {
        let file = pseudo::setting_file(
            PseudoAttr::new(dev, 0o644),
            || Ok(format!("{}\n", setting.value.load(Ordering::Relaxed)).into_bytes()),
            |text| setting.store(text),
        );
        add_at_path(dir, setting.path, file);
    }
    // Linux takes anything for these, and goes on as it did.
    for (path, text) in [
        ("kernel/random/urandom_min_reseed_secs", "60\n"),
        ("kernel/random/write_wakeup_threshold", "256\n"),
    ] {
        let file = pseudo::setting_file(
            PseudoAttr::new(dev, 0o644),
            move || Ok(text.as_bytes().to_vec()),
            |_| Ok(()),
        );
        add_at_path(dir, path, file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_units_the_last_one_counts() {
        let [ratio, bytes] =
            ["vm/dirty_ratio", "vm/dirty_bytes"].map(|path| find(path).expect("a setting"));
        let now = || [ratio, bytes].map(|setting| setting.value.load(Ordering::Relaxed));
        assert_eq!(now(), [20, 0]);
        assert_eq!(bytes.store(b"8191\n"), Err(Errno::EINVAL));
        assert_eq!((bytes.store(b"8192\n"), now()), (Ok(()), [0, 8192]));
        assert_eq!((ratio.store(b"20"), now()), (Ok(()), [20, 0]));
    }

    #[test]
    fn units_are_pairs_and_paths_are_there_once() {
        for setting in &REMEMBERED {
            if let Some(other) = setting.other {
                assert_eq!(
                    find(other).and_then(|other| other.other),
                    Some(setting.path)
                );
            }
            let same = REMEMBERED.iter().filter(|other| other.path == setting.path);
            assert_eq!(same.count(), 1, "{}", setting.path);
        }
    }
}

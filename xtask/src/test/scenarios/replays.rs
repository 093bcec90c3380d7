//! File systems after power cuts, mounted by the kernel under test and by Linux: each replays the
//! journal that the other left, and shows the same names, attributes and contents.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use super::{images, modules};
use crate::bench::newest_linux;
use crate::test::Setting;
use crate::vm::{Ending, Kernel, Machine};

/// File systems of one machine, at most.
pub const DISKS: usize = 12;

/// Beginning of each line before a file system's lines; no name begins so.
const MARK: &str = "@@ ";

/// For busybox: all that a directory has. A line for each name (mode, size, names, blocks, times of
/// change, owner), and one for the contents of each file.
const LIST: &str = r#"
list() (
    cd $1 && find . | sort | xargs stat -c '%n %f %s %h %b %Y %u:%g' &&
        find . -type f | sort | xargs md5sum
)
"#;

/// The kernels that write and look: the one under test, and beside Skerry the host's Linux.
pub fn kernels(setting: &Setting) -> Result<Vec<Kernel>> {
    let own = setting.kernel.clone();
    Ok(match own {
        Kernel::Skerry => vec![own, Kernel::Linux(newest_linux()?)],
        _ => vec![own],
    })
}

/// A machine of this kernel, which can mount ext4.
pub fn machine(setting: &Setting, kernel: &Kernel, what: &str, seconds: u64) -> Result<Machine> {
    let name = match kernel {
        Kernel::Linux(_) => format!("{what}-linux"),
        _ => what.to_owned(),
    };
    let mut machine = setting.machine(&name);
    machine.kernel = kernel.clone();
    machine.timeout = Some(Duration::from_secs(seconds));
    if let Kernel::Linux(image) = kernel {
        machine
            .additions
            .extend(modules::of(image, &images::MODULES)?);
    }
    Ok(machine)
}

/// A script for busybox that loads a Linux's modules.
pub const LOAD: &str = "for module in /modules/*.ko; do [ ! -e $module ] || insmod $module; done\n";

/// Runs a script for busybox in a machine; what it printed.
pub fn output_of(machine: &mut Machine, script: &str) -> Result<String> {
    machine.command = ["sh", "-c", script].map(OsString::from).into();
    let ran = machine.run_collected()?;
    ensure!(
        ran.ending == Ending::Exited(0),
        "{:?}: {}{}",
        ran.ending,
        ran.output,
        ran.complaints
    );
    Ok(ran.output)
}

/// Has each kernel mount copies of the images and list them, and then call a function `own` that
/// `script`, for busybox, defines, with the file system on `/d/mnt`. What each kernel saw of each
/// image; if something is wrong, the images are kept among the logs.
///
/// # Errors
/// When a kernel cannot mount one, when two kernels do not see the same, or when e2fsck finds a
/// fault afterwards.
pub fn look(
    setting: &Setting,
    paths: &[&Path],
    prepare: &dyn Fn(&mut Machine) -> Result<()>,
    script: &str,
) -> Result<Vec<Vec<Seen>>> {
    look_once(setting, paths, prepare, script).map_err(|error| {
        let kept = setting.logs.join("cut-images");
        let copied = fs::create_dir_all(&kept).and_then(|()| {
            for path in paths {
                fs::copy(path, kept.join(path.file_name().unwrap_or_default()))?;
            }
            Ok(())
        });
        match copied {
            Ok(()) => error.context(format!("images: {}", kept.display())),
            Err(_) => error,
        }
    })
}

fn look_once(
    setting: &Setting,
    paths: &[&Path],
    prepare: &dyn Fn(&mut Machine) -> Result<()>,
    script: &str,
) -> Result<Vec<Vec<Seen>>> {
    let mut all = Vec::new();
    for kernel in kernels(setting)? {
        let seconds = 120 + 20 * paths.len() as u64;
        let mut machine = machine(setting, &kernel, "look", seconds)?;
        prepare(&mut machine)?;
        let mut copies = Vec::new();
        for path in paths {
            let copy = path.with_extension("copy");
            fs::copy(path, &copy)?;
            let drive = format!("format=raw,file={}", copy.display());
            images::attach(&mut machine.hardware, &drive);
            copies.push(copy);
        }
        let seen =
            seen(&mut machine, script, paths.len()).with_context(|| format!("{kernel:?} looks"))?;
        for copy in copies {
            images::check(&copy, 0)
                .with_context(|| format!("{} after {kernel:?}", copy.display()))?;
            fs::remove_file(&copy)?;
        }
        all.push(seen);
    }
    if let [own, linux] = &all[..] {
        for ((own, linux), path) in own.iter().zip(linux).zip(paths) {
            same(&own.list, &linux.list)
                .with_context(|| format!("Linux sees something else in {}", path.display()))?;
        }
    }
    Ok(all)
}

/// Contents of a file system as a kernel shows them.
pub struct Seen {
    /// The list, by lines.
    pub list: Vec<String>,
    /// Lines that the script printed.
    pub said: Vec<String>,
}

fn seen(machine: &mut Machine, script: &str, count: usize) -> Result<Vec<Seen>> {
    let mut commands = [LOAD, LIST, script, "\nmkdir -p /d/mnt || exit 1\n"].concat();
    for number in 0..count {
        let disk = (b'a' + number as u8) as char;
        commands += &format!(
            "mount -t ext4 /dev/vd{disk} /d/mnt && echo '{MARK}list' && list /d/mnt &&
             echo '{MARK}said' && own && umount /d/mnt || {{ echo vd{disk} >&2; exit 1; }}\n"
        );
    }
    let printed = output_of(machine, &commands)?;
    let parts: Vec<Vec<String>> = printed
        .split(MARK)
        .skip(1)
        .map(|part| part.lines().skip(1).map(str::to_owned).collect())
        .collect();
    let seen: Vec<Seen> = parts
        .chunks_exact(2)
        .map(|pair| Seen {
            list: pair[0].clone(),
            said: pair[1].clone(),
        })
        .collect();
    ensure!(
        seen.len() == count && seen.iter().all(|seen| !seen.list.is_empty()),
        "it printed {printed:?}"
    );
    Ok(seen)
}

/// Requires that two lists are the same.
fn same(own: &[String], linux: &[String]) -> Result<()> {
    let differing = own.iter().zip(linux).find(|(own, linux)| own != linux);
    match differing {
        Some((own, linux)) => Err(anyhow!("{linux:?} instead of {own:?}")),
        None if own.len() == linux.len() => Ok(()),
        None => Err(anyhow!("{} lines instead of {}", linux.len(), own.len())),
    }
}

//! Cases: scripts from `.cases` files; and those for bash, one after the other in one instance of
//! Debian's packages, each in an empty directory.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::{Check, batch};
use crate::cleanup::Directory;
use crate::rootfs;
use crate::vm::{Addition, Ending, Machine, last_lines};

/// A script and what it must print, on both streams together.
pub struct Case {
    /// Subject of the case.
    pub name: String,
    /// For bash, or for who else runs the file's cases.
    pub script: String,
    /// Exactly this, with status 0; or the same as the same script on the host, with the same
    /// status, unless a judge is named for it.
    pub prints: Option<String>,
}

/// Result of a script.
#[derive(Debug, PartialEq, Eq)]
pub struct Ran {
    /// Output, without white space around it.
    pub printed: String,
    /// Exit status; 137 if it took too long, None if it was not over when the instance ended.
    pub status: Option<i32>,
    /// Milliseconds that it took.
    pub took: Option<u32>,
}

/// An instance for cases.
pub struct Instance<'a> {
    /// Packages of the file system.
    pub packages: &'a [&'a [&'a str]],
    /// Number of processors.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory: u32,
    /// Files of the host that are in `/cases/files`, by their own names.
    pub files: &'a [PathBuf],
    /// Seconds each case may take.
    pub limit: u32,
    /// Seconds all of it may take.
    pub patience: u64,
    /// Runs on the supervisor meanwhile, until the file `$OVER` is there; one result more, the
    /// first.
    pub beside: Option<&'a Case>,
}

/// Bytes of zeroes at the end of an archive, as the `tar` crate writes it.
const TAR_END: u64 = 1024;

/// Number of the script that runs beside the cases, more than there are.
const BESIDE: usize = 999;

/// The status of what `timeout` killed.
const KILLED: i32 = 137;

/// Runs the scripts in `$1/cases`, each for `$2` seconds at most.
const DRIVER: &str = r#"cd "$1"
shopt -s nullglob
for script in cases/*; do
    rm -rf work; mkdir work; cd work
    echo "@@case ${script#*/}"
    began=${EPOCHREALTIME/./}
    timeout -s KILL $2 bash ../$script < /dev/null 2>&1
    printf '\n@@end %s %s\n' $? $(((${EPOCHREALTIME/./} - began) / 1000))
    cd ..
done
"#;

/// Reads cases: `== NAME`, the lines of a script, and then, unless the host is to be asked,
/// `-- TEXT` for each line that is printed. What comes before the first case is a comment.
pub fn parse(text: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("== ") {
            cases.push(Case {
                name: name.into(),
                script: String::new(),
                prints: None,
            });
        } else if let Some(case) = cases.last_mut() {
            match line
                .strip_prefix("--")
                .filter(|rest| rest.is_empty() || rest.starts_with(' '))
            {
                Some(printed) => {
                    let prints = case.prints.get_or_insert_default();
                    prints.push_str(printed.strip_prefix(' ').unwrap_or_default());
                    prints.push('\n');
                }
                None => {
                    case.script.push_str(line);
                    case.script.push('\n');
                }
            }
        }
    }
    cases
}

/// Runs cases in an instance, and those that ask for it on the host; each becomes a check.
pub fn check(machine: Machine, instance: &Instance<'_>, cases: &[Case]) -> Result<Vec<Check>> {
    let scripts: Vec<_> = cases.iter().map(|case| case.script.as_str()).collect();
    let cases: Vec<&Case> = instance.beside.into_iter().chain(cases).collect();
    let host = on_host(&cases, instance.limit)?;
    let ran = instance.run(machine, &scripts)?;
    let judge = |((case, ran), host): ((&&Case, &Ran), &Ran)| {
        let result = match &case.prints {
            Some(prints) => agree(ran, prints.trim(), Some(0)),
            None => agree(ran, &host.printed, host.status),
        };
        let took = ran.took.map_or_else(String::new, batch::seconds);
        Check::new(&case.name, result.map(|()| took))
    };
    Ok(cases.iter().zip(&ran).zip(&host).map(judge).collect())
}

fn agree(ran: &Ran, printed: &str, status: Option<i32>) -> Result<()> {
    ensure!(
        ran.status != Some(KILLED),
        "it did not end in time; it printed\n{}",
        ran.printed
    );
    let (mut left, mut right) = (ran.printed.lines(), printed.lines());
    for number in 1.. {
        match (left.next(), right.next()) {
            (None, None) => break,
            (a, b) => ensure!(
                a == b,
                "line {number} is {:?} instead of {:?}; it printed\n{}\nand ended with {:?}",
                a.unwrap_or("missing"),
                b.unwrap_or("missing"),
                ran.printed,
                ran.status
            ),
        }
    }
    ensure!(
        ran.status == status,
        "it ended with {:?} instead of {:?}",
        ran.status,
        status
    );
    Ok(())
}

impl Instance<'_> {
    /// Runs the scripts in such an instance; what it returns is as long as `scripts`, or one longer
    /// with one beside it.
    ///
    /// # Errors
    /// When there is no such file system, or the machine or the instance ended otherwise than by
    /// itself before all scripts had.
    pub fn run(&self, mut machine: Machine, scripts: &[&str]) -> Result<Vec<Ran>> {
        let directory = Directory::create()?;
        let archive = directory.join("root.tar");
        self.pack(&archive, scripts)?;
        machine.hardware.cpus = self.cpus + 1;
        machine.hardware.memory = format!("{}M", self.memory + 2560);
        machine.timeout = Some(Duration::from_secs(self.patience + 60));
        machine.additions.push(Addition {
            host: archive,
            guest: "/root.tar".into(),
        });
        let mut outer = format!(
            "timeout -s KILL {} skerry run --name cases --cpus {} --mem {}M --rootfs /root.tar \
             -- bash /cases/driver /cases {}; status=$?
             [ $status = 0 ] || skerry logs --kernel cases | tail -n 60 >&2",
            self.patience, self.cpus, self.memory, self.limit
        );
        if let Some(beside) = self.beside {
            outer = format!(
                "export OVER=/tmp/over; (\n{}\n) >/tmp/beside &\n{outer}; >$OVER; wait $!; beside=$?\n\
                 echo '@@case {BESIDE}'; cat /tmp/beside; printf '\\n@@end %s\\n' $beside",
                beside.script
            );
        }
        outer += "; exit $status";
        machine.command = ["/bin/sh", "-c", &outer].map(OsString::from).to_vec();
        let run = machine.run_collected()?;
        let mut ran = results(&run.output, scripts.len());
        if self.beside.is_some() {
            let last = results(&run.output, BESIDE + 1).pop();
            ran.splice(0..0, last);
        }
        let complaints = run.complaints;
        match run.ending {
            Ending::Exited(0) if ran.iter().all(|ran| ran.status.is_some()) => Ok(ran),
            ending => {
                let last = ran
                    .iter()
                    .rposition(|ran| !ran.printed.is_empty() || ran.status.is_some());
                let last = last.map_or(String::new(), |last| {
                    format!("; the last that ran is {last}: {:?}", ran[last])
                });
                bail!(
                    "{ending:?}{last}\n{complaints}\nthe supervisor's log ends:\n{}",
                    last_lines(&machine.log, 25)
                )
            }
        }
    }

    /// Writes the instance's file system: the packages' and, in `/cases`, what is to be run.
    fn pack(&self, archive: &Path, scripts: &[&str]) -> Result<()> {
        let packages = rootfs::cached(self.packages)?;
        let length = fs::copy(&packages, archive)?;
        let mut file = File::options().read(true).write(true).open(archive)?;
        let end = length
            .checked_sub(TAR_END)
            .with_context(|| format!("{} is cut short", packages.display()))?;
        file.seek(SeekFrom::Start(end))?;
        let mut builder = tar::Builder::new(file);
        // `skerry run` takes no sparse files.
        builder.sparse(false);
        let root = Path::new("cases");
        let mut add = |name: &str, text: &str| {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            builder.append_data(&mut header, root.join(name), text.as_bytes())
        };
        add("driver", DRIVER)?;
        for (index, script) in scripts.iter().enumerate() {
            add(&format!("cases/{index:03}"), script)?;
        }
        for file in self.files {
            let name = file.file_name().context("a file without a name")?;
            builder
                .append_path_with_name(file, root.join("files").join(name))
                .with_context(|| format!("cannot read {}", file.display()))?;
        }
        builder.into_inner()?;
        Ok(())
    }
}

/// Takes the output of the driver apart.
fn results(output: &str, count: usize) -> Vec<Ran> {
    let mut results = BTreeMap::new();
    for part in output.split("@@case ").skip(1) {
        let (index, rest) = part.split_once('\n').unwrap_or((part, ""));
        let Ok(index) = index.trim().parse::<usize>() else {
            continue;
        };
        let (printed, end) = rest.rsplit_once("\n@@end ").unwrap_or((rest, ""));
        let mut words = end.split_whitespace();
        let status = words.next().and_then(|word| word.parse().ok());
        let took = words.next().and_then(|word| word.parse().ok());
        results.insert(
            index,
            Ran {
                printed: printed.trim().to_owned(),
                status,
                took,
            },
        );
    }
    (0..count)
        .map(|index| {
            results.remove(&index).unwrap_or(Ran {
                printed: String::new(),
                status: None,
                took: None,
            })
        })
        .collect()
}

/// Results of the scripts that ask for the host, in its own bash and with its own programs.
fn on_host(cases: &[&Case], limit: u32) -> Result<Vec<Ran>> {
    let directory = Directory::create()?;
    let scripts = directory.join("cases");
    fs::create_dir(&scripts)?;
    for (index, case) in cases
        .iter()
        .enumerate()
        .filter(|(_, case)| case.prints.is_none())
    {
        fs::write(scripts.join(format!("{index:03}")), &case.script)?;
    }
    let output = Command::new("bash")
        .args(["-c", DRIVER, "driver"])
        .arg(directory.join(""))
        .arg(limit.to_string())
        .env_clear()
        .envs([
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            ("HOME", "/root"),
            ("LC_ALL", "C"),
            ("TZ", "UTC"),
        ])
        .stdin(Stdio::null())
        .output()
        .context("cannot run bash on the host")?;
    ensure!(
        output.status.success(),
        "bash on the host: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(results(
        &String::from_utf8_lossy(&output.stdout),
        cases.len(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_read() {
        let cases = parse("about\n== a b\necho 1\n-- 1\n--\n-- 2\n== c\nseq 3\nls --\n");
        let read: Vec<_> = cases
            .iter()
            .map(|case| (&*case.name, &*case.script, case.prints.as_deref()))
            .collect();
        assert_eq!(
            read,
            [
                ("a b", "echo 1\n", Some("1\n\n2\n")),
                ("c", "seq 3\nls --\n", None)
            ]
        );
    }

    #[test]
    fn results_are_taken_apart() {
        let ran = |printed: &str, status, took| Ran {
            printed: printed.into(),
            status,
            took,
        };
        assert_eq!(
            results(
                "@@case 000\na\nb\n@@end 3 1500\n@@case 001\n\n@@end 0\n@@case 002\nhalf",
                4
            ),
            [
                ran("a\nb", Some(3), Some(1500)),
                ran("", Some(0), None),
                ran("half", None, None),
                ran("", None, None)
            ]
        );
    }
}

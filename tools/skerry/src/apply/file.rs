//! The file of declared instances: its form, from which the published schema is made
//! (`docs/apply.schema.json`), and what it means.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

use crate::arguments::Smt;
use crate::failure::{Context, Failure, Result};
use crate::instances::{CreateOptions, OnHang};
use crate::loans::{Class, CpuRange};
use crate::networks::Network;
use crate::ports::Port;
use crate::restart::Policy;
use crate::{names, networks, peers, size};

/// A set of instances, as `skerry apply` makes them.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "skerry apply")]
struct Document {
    /// Name of the set; the file's name without its ending, if there is none.
    project: Option<String>,
    /// The instances, by name.
    #[serde(default)]
    #[schemars(extend("propertyNames" = {
        "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]*$", "maxLength": 63
    }))]
    instances: BTreeMap<String, Declared>,
}

/// An instance. What is left out is as `skerry run` has it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Declared {
    /// The program, looked for in PATH, and its arguments.
    #[schemars(length(min = 1))]
    command: Vec<String>,
    /// Root file system: a folder, a tar archive or a cpio archive, from the file's folder on; a
    /// copy of `/` without.
    rootfs: Option<PathBuf>,
    /// Number of CPUs, or a range of numbers that it is content with: `"1..4"`.
    #[serde(default)]
    cpus: Cpus,
    /// Class: `latency` borrows CPUs when too few are free, `batch` lends those above the least of
    /// its range.
    class: Option<Class>,
    /// Memory: a number and k, m or g.
    #[serde(default = "default_memory")]
    #[schemars(regex(pattern = r"^ *[0-9]+(\.[0-9]+)?([bB]|[kKmMgG]([iI]?[bB])?)? *$"))]
    mem: String,
    /// Whether its cores' threads may be others' too that allow it.
    #[serde(default)]
    smt: Smt,
    /// Policy for a CPU of it that runs on and on with interrupts off.
    #[serde(default)]
    on_hang: OnHang,
    /// Network: `none`, `bridge`, or one that `skerry network create` has made.
    #[serde(default)]
    #[schemars(
        with = "String",
        regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"),
        length(max = 63)
    )]
    net: Network,
    /// Address in the network; the lowest that is free without.
    ip: Option<String>,
    /// Ports of the machine that lead to the instance's, `[ADDRESS:]PORT:PORT[/udp]`; they need a
    /// network.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    ports: Vec<Port>,
    /// Instances with which it exchanges messages, which name it, too: at most eight.
    #[serde(default)]
    #[schemars(length(max = 8))]
    peers: Vec<String>,
    /// Groups with whose members it exchanges messages: at most four.
    #[serde(default)]
    #[schemars(length(max = 4))]
    groups: Vec<String>,
    /// Policy for its end.
    #[serde(default)]
    #[schemars(
        with = "String",
        regex(pattern = r"^(no|always|unless-stopped|on-failure(:[1-9][0-9]*)?)$")
    )]
    restart: Policy,
    /// The program's environment, on top of PATH, HOME and HOSTNAME.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Working directory of the program.
    workdir: Option<String>,
    /// Host name; its name without.
    hostname: Option<String>,
    /// Whether the program's streams are a terminal.
    #[serde(default)]
    tty: bool,
    /// Whether the programs' system calls go to the kernel log.
    #[serde(default)]
    trace: bool,
    /// More for the command line of its kernel.
    #[serde(default)]
    #[schemars(length(max = 255))]
    kernel_args: String,
}

/// Numbers of CPUs, as a number or a text.
#[derive(Clone, Copy, Debug)]
struct Cpus(CpuRange);

impl Default for Cpus {
    fn default() -> Self {
        Self(CpuRange { least: 1, most: 1 })
    }
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = Cpus;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of CPUs, or a range such as \"1..4\"")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> std::result::Result<Cpus, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_str<E: de::Error>(self, text: &str) -> std::result::Result<Cpus, E> {
                text.parse().map(Cpus).map_err(E::custom)
            }
        }

        from.deserialize_any(Either)
    }
}

impl JsonSchema for Cpus {
    fn schema_name() -> Cow<'static, str> {
        "Cpus".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["integer", "string"],
            "minimum": 1,
            "pattern": r"^[1-9][0-9]*(\.\.[1-9][0-9]*)?$",
            "default": 1
        })
    }
}

fn default_memory() -> String {
    "64M".into()
}

/// An instance that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Options to create it with.
    pub options: CreateOptions,
    /// Policy for its end.
    pub restart: Policy,
}

/// A set of instances that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    /// Name of the set.
    pub name: String,
    /// The instances, by name.
    pub instances: BTreeMap<String, Wanted>,
}

/// The schema of the file, for editors and other programs.
#[must_use]
pub fn schema() -> Schema {
    schemars::schema_for!(Document)
}

/// Reads a file.
///
/// # Errors
/// The place in the file, and what is wrong.
pub fn read(path: &Path) -> Result<Project> {
    let text = fs::read_to_string(path).context(|| format!("cannot read {}", path.display()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let folder = std::path::absolute(match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    });
    let folder = folder.context(|| format!("cannot read {}", path.display()))?;
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    parse(&text, stem.unwrap_or_default(), &folder)
        .map_err(|error| Failure::new(format!("{}{error}", path.display())))
}

/// Reads a text whose set is called `stem` if it does not say otherwise, and whose paths begin in
/// `folder`. The error begins with the place.
fn parse(text: &str, stem: &str, folder: &Path) -> std::result::Result<Project, String> {
    let document: Document = toml::from_str(text).map_err(|error| {
        let before = error.span().map(|span| &text[..span.start]);
        let place = before.map_or_else(String::new, |before| {
            let line = before.matches('\n').count() + 1;
            let column = before
                .rsplit('\n')
                .next()
                .unwrap_or_default()
                .chars()
                .count()
                + 1;
            format!(":{line}:{column}")
        });
        format!(
            "{place}: {}",
            error.message().trim_end().replace('\n', ", ")
        )
    })?;
    let name = document.project.unwrap_or_else(|| stem.to_owned());
    names::check(&name).map_err(|failure| format!(": project: {failure}"))?;
    let mut instances = BTreeMap::new();
    for (name, declared) in document.instances {
        let place =
            |field: &str, failure: Failure| format!(": instances.{name}.{field}: {failure}");
        names::check(&name).map_err(|failure| format!(": instances: {failure}"))?;
        let wrong = |field, text: &str| Err(place(field, Failure::new(text)));
        let texts = (declared.command.iter().map(|text| ("command", text)))
            .chain(
                declared
                    .env
                    .iter()
                    .flat_map(|(key, value)| [("env", key), ("env", value)]),
            )
            .chain(declared.workdir.iter().map(|text| ("workdir", text)))
            .chain(declared.hostname.iter().map(|text| ("hostname", text)))
            .chain([("kernel_args", &declared.kernel_args)]);
        for (field, text) in texts {
            if text.contains('\0') {
                return wrong(field, "a zero byte cannot be in it");
            }
        }
        if declared.command.first().is_none_or(String::is_empty) {
            return wrong("command", "there is no program in it");
        }
        if declared
            .env
            .keys()
            .any(|key| key.is_empty() || key.contains('='))
        {
            return wrong(
                "env",
                "a variable's name is not empty, and has no '=' in it",
            );
        }
        if declared.kernel_args.len() > 255 {
            return wrong("kernel_args", "it is longer than 255 bytes");
        }
        if !declared.ports.is_empty() && declared.net == Network::None {
            return wrong("ports", "they need a network: net = \"bridge\"");
        }
        peers::check(&declared.peers, Some(&name)).map_err(|failure| place("peers", failure))?;
        peers::check_groups(&declared.groups).map_err(|failure| place("groups", failure))?;
        let range = declared.cpus.0;
        if range.most == 0 {
            return wrong("cpus", "an instance needs a CPU");
        }
        let options = CreateOptions {
            memory: size::parse(&declared.mem).map_err(|failure| place("mem", failure))?,
            name: Some(name.clone()),
            cpus: range.most,
            cpu_range: (range.least < range.most).then_some(range),
            class: declared.class,
            shared_cores: declared.smt == Smt::Allow,
            on_hang: declared.on_hang,
            address: networks::parse(declared.ip.as_deref(), &declared.net)
                .map_err(|failure| place("ip", failure))?,
            network: declared.net,
            ports: declared.ports,
            peers: declared.peers,
            groups: declared.groups,
            // None: what takes an instance's place begins while that one has its devices.
            devices: Vec::new(),
            unsafe_dma: false,
            root: None,
            rootfs: declared.rootfs.map(|path| folder.join(path)),
            env: (declared
                .env
                .iter()
                .map(|(key, value)| format!("{key}={value}")))
            .collect(),
            hostname: declared.hostname,
            directory: declared.workdir,
            terminal: declared.tty,
            trace: declared.trace,
            kernel: declared.kernel_args,
            command: declared.command,
        }
        // What is in the environment of who applies it makes no difference.
        .resolved(|variable| (variable == "TERM").then(|| "xterm".into()));
        let restart = declared.restart;
        instances.insert(name, Wanted { options, restart });
    }
    Ok(Project { name, instances })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn read_text(text: &str) -> std::result::Result<Project, String> {
        parse(text, "shop", Path::new("/srv"))
    }

    #[test]
    fn what_is_declared_is_what_is_created() {
        let project = read_text(
            r#"
            [instances.web]
            command = ["httpd", "-f"]
            rootfs = "web.tar"
            cpus = 2
            mem = "1.5G"
            smt = "allow"
            on_hang = "stop"
            restart = "on-failure:3"
            env = { B = "b c", A = "a" }
            workdir = "/srv"
            kernel_args = "loglevel=7"
            [instances.job]
            command = ["true"]
            [instances.batch]
            command = ["true"]
            cpus = "1..6"
            class = "batch"
            "#,
        )
        .unwrap();
        assert_eq!(project.name, "shop");
        let web = &project.instances["web"];
        let options = &web.options;
        assert_eq!((options.cpus, options.memory), (2, 3 << 29));
        assert_eq!(options.rootfs.as_deref(), Some(Path::new("/srv/web.tar")));
        assert_eq!(options.env, ["A=a", "B=b c"]);
        assert!(options.shared_cores && options.on_hang == OnHang::Stop);
        assert_eq!(web.restart, Policy::OnFailure { most: Some(3) });
        let job = &project.instances["job"];
        assert_eq!((job.options.cpus, job.options.memory), (1, 64 << 20));
        assert_eq!((job.restart, &job.options.rootfs), (Policy::No, &None));
        let batch = &project.instances["batch"].options;
        assert_eq!((batch.cpus, batch.class), (6, Some(Class::Batch)));
        assert_eq!(batch.cpu_range, "1..6".parse().ok());
    }

    #[test]
    fn errors_name_the_place() {
        let say = |text: &str| read_text(text).unwrap_err();
        assert!(say("[instances.web]\nimage = 1").starts_with(":2:1: unknown field `image`"));
        let missing = say("[instances.web]\ncpus = 1");
        assert!(missing.contains("missing field `command`"), "{missing}");
        assert!(say("a b").starts_with(":1:3"), "{}", say("a b"));
        for (line, words) in [
            ("mem = \"x\"", ": instances.web.mem: \"x\" is not a size"),
            ("cpus = 0", ": instances.web.cpus: an instance needs a CPU"),
            ("cpus = \"2..1\"", ":3:8: \"2..1\" is no number of CPUs"),
            ("cpus = -1", ":3:8: \"-1\" is no number of CPUs"),
            ("class = \"fast\"", ":3:9: unknown variant `fast`"),
            (
                "env = { \"A=\" = \"b\" }",
                ": instances.web.env: a variable's name",
            ),
            (
                "hostname = \"a\\u0000\"",
                ": instances.web.hostname: a zero byte",
            ),
        ] {
            let said = say(&format!("[instances.web]\ncommand = [\"a\"]\n{line}"));
            assert!(said.starts_with(words), "{said}");
        }
        assert!(say("[instances.web]\ncommand = []").contains("no program"));
        assert!(say("[instances.\"-x\"]\ncommand = [\"a\"]").contains("cannot be a name"));
        let restart = say("[instances.web]\ncommand = [\"a\"]\nrestart = \"ever\"");
        assert!(
            restart.starts_with(":3:11") && restart.contains("restart policy"),
            "{restart}"
        );
    }

    /// Returns the schema's part for a field of an instance, with references followed.
    fn field<'a>(schema: &'a Value, name: &str) -> &'a Value {
        let field = &schema["$defs"]["Declared"]["properties"][name];
        match field["$ref"].as_str() {
            Some(reference) => schema.pointer(reference.trim_start_matches('#')).unwrap(),
            None => field,
        }
    }

    #[test]
    fn the_schema_and_the_reader_agree() {
        let schema = serde_json::to_value(schema()).unwrap();
        let fields = schema["$defs"]["Declared"]["properties"]
            .as_object()
            .unwrap();
        assert_eq!(schema["$defs"]["Declared"]["additionalProperties"], false);
        assert_eq!(
            schema["$defs"]["Declared"]["required"],
            serde_json::json!(["command"])
        );
        for name in fields.keys() {
            let field = field(&schema, name);
            // A value of each type: that of the schema is read, and no other.
            let values = [
                ("string", "\"x\""),
                ("integer", "3"),
                ("boolean", "true"),
                ("array", "[\"x\"]"),
                ("object", "{ x = \"y\" }"),
            ];
            let allowed = match &field["type"] {
                Value::Array(types) => types.clone(),
                Value::Null => vec!["string".into()],
                one => vec![one.clone()],
            };
            for (kind, value) in values {
                let command = if name == "command" {
                    ""
                } else {
                    "command = [\"x\"]\n"
                };
                let text = format!("[instances.web]\n{command}{name} = {value}");
                let read = read_text(&text);
                if allowed.iter().any(|allowed| allowed == kind) {
                    // A text may still not be of the right form.
                    let refused = read.err().unwrap_or_default();
                    assert!(!refused.contains("invalid type"), "{text}: {refused}");
                } else {
                    assert!(read.is_err(), "{text}");
                }
            }
        }
    }

    #[test]
    fn the_published_schema_is_the_readers() {
        let published = include_str!("../../../../docs/apply.schema.json");
        let ours = serde_json::to_string_pretty(&schema()).unwrap();
        assert_eq!(
            published.trim_end(),
            ours,
            "write it anew: skerry validate --schema >docs/apply.schema.json"
        );
    }
}

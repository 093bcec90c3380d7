//! `/proc/sys/net/ipv6/conf`: the settings of IPv6, of each interface, of those that come, and of
//! all.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;
use fs::pseudo::{self, DynamicDir, DynamicEntry, PseudoAttr, StaticDir};
use fs::{FileType, Inode, Result};
use net::inet::{Host, Ipv6Scope, Ipv6Setting};
use net::socket::Interfaces;

use super::sysctl::add_at_path;
use crate::process::namespaces;

/// The directories that are of no single interface, and the loop's, where nothing can be set.
const ALL: &str = "all";
const DEFAULT: &str = "default";
const LOOP: &str = "lo";

/// Keys of the entries that are of no interface, and of an interface.
const KEY_OF_ALL: u64 = 1;
const KEY_OF_DEFAULT: u64 = 2;

fn key(index: u32) -> u64 {
    KEY_OF_DEFAULT + u64::from(index)
}

pub(super) fn add(dir: &Arc<StaticDir>, dev: u64) {
    let conf = Conf(PseudoAttr::new(dev, 0o555));
    add_at_path(dir, "net/ipv6/conf", pseudo::dynamic_dir(conf));
}

/// Runs `f` with the host whose settings are asked for.
fn with_host<R>(f: impl FnOnce(&Host) -> Result<R>) -> Result<R> {
    let net = namespaces::net();
    f(net.inet().host().ok_or(Errno::ENOENT)?)
}

fn scope(name: &str) -> Ipv6Scope<'_> {
    match name {
        ALL => Ipv6Scope::All,
        DEFAULT => Ipv6Scope::Default,
        name => Ipv6Scope::Interface(name),
    }
}

/// The directory with a directory for each interface.
struct Conf(PseudoAttr);

impl Conf {
    fn directory(&self, name: &str, key: u64) -> Arc<dyn Inode> {
        let dir = StaticDir::with(PseudoAttr {
            ino: self.0.ino + key,
            ..self.0
        });
        if name == LOOP {
            dir.add("disable_ipv6", pseudo::constant(self.0.dev, "0\n"));
            return dir;
        }
        for setting in Ipv6Setting::ALL {
            let setting = *setting;
            let names: [Arc<str>; 2] = [name.into(), name.into()];
            let [shown, changed] = names;
            let file = pseudo::setting_file(
                PseudoAttr::new(self.0.dev, 0o644),
                move || {
                    let value = with_host(|host| host.ipv6_setting(scope(&shown), setting))?;
                    Ok(format!("{value}\n").into_bytes())
                },
                move |text| {
                    let text = core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
                    let value = text.trim().parse().map_err(|_| Errno::EINVAL)?;
                    with_host(|host| host.set_ipv6(scope(&changed), setting, value))
                },
            );
            dir.add(setting.name(), file);
        }
        dir
    }
}

impl DynamicDir for Conf {
    fn attr(&self) -> PseudoAttr {
        self.0
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let name = core::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
        let key = match name {
            ALL => KEY_OF_ALL,
            DEFAULT => KEY_OF_DEFAULT,
            name => with_host(|host| {
                let mut all = host.interfaces().into_iter();
                let found = all.find(|one| *one.name == *name);
                Ok(key(found.ok_or(Errno::ENOENT)?.index))
            })?,
        };
        Ok(self.directory(name, key))
    }

    fn list(&self, after: u64) -> Result<Vec<DynamicEntry>> {
        let mut entries = Vec::new();
        let mut push = |name: &str, key: u64| {
            let entry = DynamicEntry {
                name: name.into(),
                ino: self.0.ino + key,
                kind: FileType::Directory,
                key,
            };
            if key > after {
                fallible::push(&mut entries, entry)
            } else {
                Ok(())
            }
        };
        push(ALL, KEY_OF_ALL)?;
        push(DEFAULT, KEY_OF_DEFAULT)?;
        with_host(|host| {
            let mut all = host.interfaces().into_iter();
            all.try_for_each(|one| push(&one.name, key(one.index)))
        })?;
        Ok(entries)
    }
}

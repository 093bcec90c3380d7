//! The network as the kernel's command line sets it up (`ip=`), before any program runs.

use alloc::string::String;

use ::task::Once;
use net::inet::BootConfig;

use super::namespaces;

/// The text of `/proc/net/pnp`, once an interface is set up.
static PNP: Once<String> = Once::new();

/// Sets an interface and the machine's name up as `ip=value` says, and tells the kernel's log what
/// came of it. Called once, when the drivers have found their interfaces.
pub fn configure(value: &str) {
    let config = match BootConfig::parse(value) {
        Ok(Some(config)) => config,
        Ok(None) => return,
        Err(error) => {
            log::error!(
                "ip={value}: {error}; \
                 ip=ADDRESS::GATEWAY:NETMASK:HOSTNAME:DEVICE:off is what is understood"
            );
            return;
        }
    };
    if let Some(name) = config.hostname {
        let most = name.len().min(namespaces::NAME_MAX);
        *namespaces::initial().uts.nodename.lock() = name.as_bytes()[..most].to_vec();
    }
    match config.apply(namespaces::host()) {
        Ok(device) => {
            log::info!(
                "{device}: {}/{}, as the command line says",
                config.address,
                config.prefix_len
            );
            PNP.call_once(|| config.text());
        }
        Err(error) => log::error!("ip={value}: {error}"),
    }
}

/// The text of `/proc/net/pnp`.
pub(crate) fn pnp() -> String {
    PNP.get().cloned().unwrap_or_else(|| "#MANUAL\n".into())
}

//! The settings of an interface's IPv6 (`/proc/sys/net/ipv6/conf`).

use abi::errno::Errno;
use fs::Result;

use super::super::Host;
use super::super::state::HostState;

/// Declares settings: a name each, its place below `conf/IF`, its value at first and its bounds.
macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident = $path:literal, $first:literal, $least:literal, $most:literal;)*) => {
        /// A setting of IPv6 on an interface.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Ipv6Setting {
            $($(#[$doc])* $name,)*
        }

        impl Ipv6Setting {
            /// All settings.
            pub const ALL: &[Self] = &[$(Self::$name),*];
            const DEFINITIONS: [(&str, i32, i32, i32); [$(Self::$name),*].len()] =
                [$(($path, $first, $least, $most)),*];
        }
    };
}

settings! {
    /// Whether what routers advertise is believed: no, unless packets are passed on, always.
    AcceptRa = "accept_ra", 1, 0, 2;
    /// Whether routers that advertise themselves become default routers.
    AcceptRaDefrtr = "accept_ra_defrtr", 1, 0, 1;
    /// Whether prefixes that routers advertise are believed.
    AcceptRaPinfo = "accept_ra_pinfo", 1, 0, 1;
    /// Whether the MTU that routers advertise is believed.
    AcceptRaMtu = "accept_ra_mtu", 1, 0, 1;
    /// Whether addresses are made of the prefixes that routers advertise.
    Autoconf = "autoconf", 1, 0, 1;
    /// How often others are asked for an address before it is used.
    DadTransmits = "dad_transmits", 1, 0, 100;
    /// Whether there is no IPv6.
    DisableIpv6 = "disable_ipv6", 0, 0, 1;
    /// Whether packets for others are passed on.
    Forwarding = "forwarding", 0, 0, 1;
    /// How often routers are asked for; -1 as often as by default.
    RouterSolicitations = "router_solicitations", -1, -1, 100;
}

impl Ipv6Setting {
    /// The name below `/proc/sys/net/ipv6/conf/IF`.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::DEFINITIONS[self as usize].0
    }
}

/// The values of all settings.
#[derive(Clone, Copy)]
pub(super) struct Settings([i32; Ipv6Setting::DEFINITIONS.len()]);

impl Default for Settings {
    fn default() -> Self {
        Self(Ipv6Setting::DEFINITIONS.map(|definition| definition.1))
    }
}

impl Settings {
    pub(super) fn get(&self, setting: Ipv6Setting) -> i32 {
        self.0[setting as usize]
    }

    pub(super) fn set(&mut self, setting: Ipv6Setting, value: i32) {
        self.0[setting as usize] = value;
    }

    /// Whether what routers say counts.
    pub(super) fn believes_routers(&self) -> bool {
        match self.get(Ipv6Setting::AcceptRa) {
            0 => false,
            1 => self.get(Ipv6Setting::Forwarding) == 0,
            _ => true,
        }
    }
}

/// The interfaces that a setting is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ipv6Scope<'a> {
    /// All that there are and will be (`conf/all`).
    All,
    /// The interfaces that will be (`conf/default`).
    Default,
    /// One that there is, by its name.
    Interface(&'a str),
}

impl HostState {
    fn settings_of(&mut self, name: &str) -> Result<&mut Settings> {
        let mut all = self.interfaces.iter_mut();
        let found = all.find(|one| *one.shown.name == *name);
        Ok(&mut found.ok_or(Errno::ENOENT)?.v6.settings)
    }
}

impl Host {
    /// The value of a setting of IPv6.
    ///
    /// # Errors
    /// `ENOENT` if there is no such interface.
    pub fn ipv6_setting(&self, of: Ipv6Scope<'_>, setting: Ipv6Setting) -> Result<i32> {
        let mut state = self.lock_state();
        Ok(match of {
            Ipv6Scope::All => state.v6.for_all.get(setting),
            Ipv6Scope::Default => state.v6.defaults.get(setting),
            Ipv6Scope::Interface(name) => state.settings_of(name)?.get(setting),
        })
    }

    /// Changes a setting of IPv6. Of all interfaces at once only two can be changed, as on Linux:
    /// whether there is IPv6, and whether packets are passed on.
    ///
    /// # Errors
    /// `EINVAL` for a value out of bounds, `ENOENT` if there is no such interface.
    pub fn set_ipv6(&self, of: Ipv6Scope<'_>, setting: Ipv6Setting, value: i32) -> Result<()> {
        let (_, _, least, most) = Ipv6Setting::DEFINITIONS[setting as usize];
        if !(least..=most).contains(&value) {
            return Err(Errno::EINVAL);
        }
        let is_for_all = matches!(setting, Ipv6Setting::DisableIpv6 | Ipv6Setting::Forwarding);
        self.with_v6(|now, state, work| {
            match of {
                Ipv6Scope::All => {
                    state.v6.for_all.set(setting, value);
                    if is_for_all {
                        state.v6.defaults.set(setting, value);
                        for one in state.interfaces.iter_mut() {
                            one.v6.settings.set(setting, value);
                        }
                    }
                }
                Ipv6Scope::Default => state.v6.defaults.set(setting, value),
                Ipv6Scope::Interface(name) => state.settings_of(name)?.set(setting, value),
            }
            for index in state.interface_numbers() {
                state.run_v6(now, index, work);
                if setting == Ipv6Setting::Forwarding && value != 0 {
                    // Who passes packets on has no default router by chance (Linux
                    // `rt6_purge_dflt_routers`).
                    state.forget_unbelieved_routers(index, work);
                }
            }
            Ok(())
        })
    }
}

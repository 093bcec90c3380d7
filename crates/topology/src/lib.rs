//! Topology of CPUs by the bits of their APIC ids: threads of one core, cores of one die, dies of
//! one package.
//!
//! Pure arithmetic over what CPUID says (Intel's manual, volume 3A, section 9.9 "Hierarchical
//! mapping of shared resources"; AMD's, volume 3, appendix E). An instance knows of its own CPUs
//! only: a core's thread that is somebody else's is not there for it.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod cores;
mod levels;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

pub use levels::Levels;

/// Where a CPU is. The numbers count within what is next above: the package's within the machine,
/// the others within their package or core. They are the machine's own, so there may be gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The CPU's local interrupt controller.
    pub apic_id: u32,
    /// Number of the package (socket).
    pub package: u32,
    /// The die within the package, if the processor says.
    pub die: Option<u32>,
    /// The core within the package.
    pub core: u32,
    /// The thread within the core.
    pub thread: u32,
}

/// Order of CPUs where two are siblings of one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Siblings {
    /// One CPU of each core first: fastest.
    #[default]
    Last,
    /// Whole cores first: the others stay asleep.
    First,
}

/// The places of an instance's CPUs, by their number in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    places: Vec<Place>,
    /// For each CPU the lowest of its core, which stands for it.
    cores: Vec<usize>,
}

impl Topology {
    /// The places of CPUs with these APIC ids.
    #[must_use]
    pub fn new(levels: Levels, apic_ids: impl IntoIterator<Item = u32>) -> Self {
        let places: Vec<Place> = apic_ids.into_iter().map(|id| levels.place(id)).collect();
        let core = |place: &Place| (place.package, place.core);
        let first = |place| {
            places
                .iter()
                .position(|other| core(other) == core(place))
                .expect("itself")
        };
        let cores = places.iter().map(first).collect();
        Self { places, cores }
    }

    /// All CPUs, by number.
    #[must_use]
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// The CPUs of the package that `cpu` is in, ascending.
    ///
    /// # Panics
    /// Here and below: if there is no such CPU.
    pub fn package(&self, cpu: usize) -> impl Iterator<Item = usize> + Clone {
        let own = self.places[cpu];
        self.those(move |other| other.package == own.package)
    }

    /// The CPUs of the die that `cpu` is in, ascending; of its package if the processor says
    /// nothing of dies.
    pub fn die(&self, cpu: usize) -> impl Iterator<Item = usize> + Clone {
        let own = self.places[cpu];
        self.those(move |other| (other.package, other.die) == (own.package, own.die))
    }

    /// The CPUs that are threads of the core that `cpu` is of, ascending, `cpu` among them.
    pub fn core(&self, cpu: usize) -> impl Iterator<Item = usize> + Clone {
        let own = self.cores[cpu];
        self.cores
            .iter()
            .enumerate()
            .filter(move |(_, core)| **core == own)
            .map(|(other, _)| other)
    }

    /// The CPUs that share a cache with `cpu`, of which CPUID says that it serves at most `most` of
    /// them, ascending.
    pub fn sharing(&self, cpu: usize, most: usize) -> impl Iterator<Item = usize> + Clone {
        let shift = levels::bits(most as u32);
        let group = move |place: Place| place.apic_id.checked_shr(shift).unwrap_or(0);
        let own = group(self.places[cpu]);
        self.those(move |other| group(other) == own)
    }

    /// Number of cores in the package that `cpu` is in.
    #[must_use]
    pub fn cores_in_package(&self, cpu: usize) -> usize {
        self.package(cpu)
            .filter(|&other| self.cores[other] == other)
            .count()
    }

    /// Whether two CPUs are threads of one core.
    #[must_use]
    pub fn has_siblings(&self) -> bool {
        self.cores
            .iter()
            .enumerate()
            .any(|(cpu, core)| cpu != *core)
    }

    /// All CPUs in the order in which work is given to them.
    #[must_use]
    pub fn order(&self, siblings: Siblings) -> Vec<usize> {
        let mut cpus: Vec<usize> = (0..self.places.len()).collect();
        match siblings {
            Siblings::First => cpus.sort_by_cached_key(|cpu| (self.cores[*cpu], *cpu)),
            Siblings::Last => cpus
                .sort_by_cached_key(|cpu| (self.core(*cpu).position(|other| other == *cpu), *cpu)),
        }
        cpus
    }

    fn those(&self, which: impl Fn(Place) -> bool + Clone) -> impl Iterator<Item = usize> + Clone {
        self.places
            .iter()
            .enumerate()
            .filter(move |(_, place)| which(**place))
            .map(|(cpu, _)| cpu)
    }
}

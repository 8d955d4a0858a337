//! Which half-open connection makes room when there are too many: pure bookkeeping, without sockets
//! or clocks.
//!
//! Connections are counted by source. The source that has most loses its oldest one, so a flood
//! pushes out itself, and one whose sources are few never pushes out anybody else.

use core::net::{IpAddr, SocketAddr};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// What one peer can hold many connections from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// Another process of this host, by a socket without an address.
    Local,
    /// An IPv4 address.
    V4([u8; 4]),
    /// The first 64 bits of an IPv6 address: a single host has all the others.
    V6([u8; 8]),
}

/// The half-open connections of one stage, each by its token. Tokens ascend in the order of coming.
#[derive(Debug)]
pub(crate) struct Admission {
    connections_max: usize,
    connections: usize,
    by_source: BTreeMap<Source, BTreeSet<u64>>,
    /// The last one is the next to lose a connection: it has most and, of those with as many, the
    /// oldest.
    ranked: BTreeSet<Rank>,
}

/// How many connections a source has, which is its oldest, and which source it is.
type Rank = (usize, Reverse<u64>, Source);

impl Source {
    pub(crate) fn of(address: Option<SocketAddr>) -> Self {
        match address.map(|address| address.ip().to_canonical()) {
            None => Source::Local,
            Some(IpAddr::V4(address)) => Source::V4(address.octets()),
            Some(IpAddr::V6(address)) => Source::V6(std::array::from_fn(|i| address.octets()[i])),
        }
    }
}

impl Admission {
    pub(crate) fn new(connections_max: usize) -> Self {
        Self { connections_max, connections: 0, by_source: BTreeMap::new(), ranked: BTreeSet::new() }
    }

    /// Takes one more. When there are too many then, gives the one that must go; it may be the new
    /// one.
    #[must_use]
    pub(crate) fn enter(&mut self, token: u64, source: Source) -> Option<u64> {
        self.change(source, |tokens| tokens.insert(token));
        self.connections += 1;
        if self.connections > self.connections_max { self.evict() } else { None }
    }

    /// One has gone, or is at another stage now.
    pub(crate) fn leave(&mut self, token: u64, source: Source) {
        if self.change(source, |tokens| tokens.remove(&token)) {
            self.connections -= 1;
        }
    }

    /// The oldest of the source that has most; none when there is nobody.
    #[must_use]
    pub(crate) fn evict(&mut self) -> Option<u64> {
        let (_, Reverse(oldest), source) = *self.ranked.last()?;
        self.leave(oldest, source);
        Some(oldest)
    }

    /// How many the source has that has most.
    pub(crate) fn most(&self) -> usize {
        self.ranked.last().map_or(0, |(connections, ..)| *connections)
    }

    fn change(&mut self, source: Source, change: impl FnOnce(&mut BTreeSet<u64>) -> bool) -> bool {
        let tokens = self.by_source.entry(source).or_default();
        if let Some(before) = rank(tokens, source) {
            self.ranked.remove(&before);
        }
        let changed = change(tokens);
        match rank(tokens, source) {
            Some(rank) => _ = self.ranked.insert(rank),
            None => _ = self.by_source.remove(&source),
        }
        changed
    }
}

fn rank(tokens: &BTreeSet<u64>, source: Source) -> Option<Rank> {
    tokens.first().map(|oldest| (tokens.len(), Reverse(*oldest), source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn v4(last: u8) -> Source {
        Source::of(Some(SocketAddr::from(([10, 0, 0, last], 7))))
    }

    #[test]
    fn a_source_is_an_address_or_half_of_one() {
        let of = |address: &str| Source::of(Some(address.parse().unwrap()));
        assert_eq!(of("10.0.0.1:1"), of("10.0.0.1:2"));
        assert_eq!(of("10.0.0.1:1"), of("[::ffff:10.0.0.1]:1"));
        assert_ne!(of("10.0.0.1:1"), of("10.0.0.2:1"));
        assert_eq!(of("[fd00::1]:1"), of("[fd00::ffff:ffff:ffff:ffff]:1"));
        assert_ne!(of("[fd00::1]:1"), of("[fd00:0:0:1::1]:1"));
        assert_eq!(Source::of(None), Source::Local);
    }

    #[test]
    fn a_flood_of_one_source_pushes_out_itself_alone() {
        let mut admission = Admission::new(8);
        assert_eq!(admission.enter(0, v4(1)), None);
        for token in 1..8 {
            assert_eq!(admission.enter(token, v4(2)), None);
        }
        for token in 8..10_000 {
            assert_eq!(admission.enter(token, v4(2)), Some(token - 7), "the flood's oldest");
        }
        assert_eq!((admission.most(), admission.connections), (7, 8));
    }

    /// As many sources as places: the highest address has no less of a chance than the lowest.
    #[test]
    fn of_sources_with_as_many_the_oldest_connection_goes() {
        let mut admission = Admission::new(100);
        let sources = (0..=255).chain(0..=255);
        for (token, last) in sources.enumerate() {
            let evicted = admission.enter(token as u64, v4(255 - last));
            assert_eq!(evicted, (token as u64).checked_sub(100));
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Enter(u8),
        Leave(prop::sample::Index),
        Evict,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => (0..6u8).prop_map(Step::Enter),
            // One source that comes more often than all others.
            6 => Just(Step::Enter(0)),
            2 => any::<prop::sample::Index>().prop_map(Step::Leave),
            1 => Just(Step::Evict),
        ];
        prop::collection::vec(step, 0..300)
    }

    proptest! {
        /// No source loses a connection while another has more; and it is its oldest that goes.
        #[test]
        fn who_has_most_makes_room(connections_max in 1..20usize, steps in steps()) {
            let mut admission = Admission::new(connections_max);
            // In the order of coming.
            let mut there: Vec<(u64, u8)> = Vec::new();
            for (token, step) in (0..).zip(steps) {
                let evicted = match step {
                    Step::Enter(source) => {
                        there.push((token, source));
                        let evicted = admission.enter(token, v4(source));
                        prop_assert_eq!(evicted.is_some(), there.len() > connections_max);
                        evicted
                    }
                    Step::Leave(which) => {
                        if !there.is_empty() {
                            let (token, source) = there.remove(which.index(there.len()));
                            admission.leave(token, v4(source));
                        }
                        None
                    }
                    Step::Evict => {
                        let evicted = admission.evict();
                        prop_assert_eq!(evicted.is_some(), !there.is_empty());
                        evicted
                    }
                };
                let count = |source: u8| there.iter().filter(|(_, other)| *other == source).count();
                let most = (0..6).map(count).max().unwrap_or(0);
                if let Some(evicted) = evicted {
                    let at = there.iter().position(|(token, _)| *token == evicted).expect("it was there");
                    prop_assert_eq!(count(there[at].1), most);
                    let oldest = there.iter().find(|(_, source)| count(*source) == most);
                    prop_assert_eq!(oldest, Some(&there[at]));
                    there.remove(at);
                }
                let most = (0..6).map(|source| there.iter().filter(|(_, s)| *s == source).count()).max();
                prop_assert_eq!((admission.most(), admission.connections), (most.unwrap_or(0), there.len()));
                prop_assert!(there.len() <= connections_max);
            }
        }
    }
}

//! What memory is held back, and by whom (to-copy §4, TC-M25).

use overside_bwtree::{Stats, Tree};

use super::store::Store;
use crate::wire::{Held, Stalled};

/// Of all tables and their indexes.
pub(super) fn held(store: &Store) -> Held {
    let mut held = Held::default();
    for table in store.all() {
        let indexes = table.indexes.whole();
        let trees = std::iter::once(&table.tree).chain(indexes.iter().map(|index| index.tree()));
        trees.map(Tree::stats).for_each(|stats| add(&mut held, &table.name, &stats));
    }
    held
}

/// The longest stay of all is the one that is told.
fn add(held: &mut Held, table: &str, stats: &Stats) {
    held.by_pins += stats.held_by_pins_bytes;
    held.by_epochs += stats.held_by_epochs_bytes;
    held.pins += stats.pins;
    if let Some(stall) = stats.stall {
        let ns = u64::try_from(stall.at_least.as_nanos()).unwrap_or(u64::MAX);
        if held.stall.as_ref().is_none_or(|longest| longest.ns < ns) {
            held.stall = Some(Stalled { table: table.to_owned(), thread: stall.thread, ns });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use overside_bwtree::{HeapArena, Options, Stall};

    use super::*;

    #[test]
    fn all_trees_count_and_the_longest_stay_is_named() {
        let tree = Tree::new(Arc::new(HeapArena::new(64 << 20).unwrap()), Options::default()).unwrap();
        let stats = |by_pins, by_epochs, stall: Option<(u32, u64)>| Stats {
            held_by_pins_bytes: by_pins,
            held_by_epochs_bytes: by_epochs,
            pins: 1,
            stall: stall.map(|(thread, ns)| Stall { thread, at_least: Duration::from_nanos(ns) }),
            ..tree.stats()
        };
        let mut held = Held::default();
        for (table, stats) in [
            ("a", stats(1, 10, Some((7, 500)))),
            ("b", stats(2, 20, Some((8, 900)))),
            ("c", stats(4, 40, Some((9, 600)))),
            ("d", stats(8, 80, None)),
        ] {
            add(&mut held, table, &stats);
        }
        let stall = Some(Stalled { table: "b".into(), thread: 8, ns: 900 });
        assert_eq!(held, Held { by_pins: 15, by_epochs: 150, pins: 4, stall });
    }
}

//! The tables that a connection has used, by number. A connection may stay for as long as it likes
//! while tables come and go: it keeps nothing of one that was dropped, but the place of the latest,
//! until it uses another.

use std::sync::{Arc, Weak};

use super::store::{Store, Table};
use crate::wire::Fault;

/// A short list, since a connection uses few.
#[derive(Debug, Default)]
pub(crate) struct Used {
    tables: Vec<(u32, Weak<Table>)>,
}

impl Used {
    /// A table by number.
    ///
    /// # Errors
    /// There is none, or none any more.
    pub(crate) fn table(&mut self, store: &Store, id: u32) -> Result<Arc<Table>, Fault> {
        let known = self.tables.iter().find(|(known, _)| *known == id).and_then(|(_, table)| table.upgrade());
        // Another's scan may still go through one that was dropped.
        if let Some(table) = known.filter(|table| !table.is_dropped()) {
            return Ok(table);
        }
        self.forget_dropped();
        let table = store.numbered(id)?;
        self.tables.push((id, Arc::downgrade(&table)));
        Ok(table)
    }

    /// Forgets those that were dropped: even a weak reference keeps a table's place in memory.
    pub(crate) fn forget_dropped(&mut self) {
        self.tables.retain(|(_, table)| table.upgrade().is_some_and(|table| !table.is_dropped()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Column, ColumnType, Schema};
    use crate::server::parts::World;
    use crate::server::store::MemoryLimit;
    use overside_bwtree::{Exhausted, SegmentObserver};
    use overside_memory::{Segment, SegmentId};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Segments that are there.
    #[derive(Debug, Default)]
    struct Counting(AtomicUsize);

    impl SegmentObserver for Counting {
        fn has_room(&self, _: usize) -> bool {
            true
        }

        fn committed(&self, _: &Arc<Segment>) -> Result<(), Exhausted> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        fn decommitted(&self, _: SegmentId) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn tables_that_come_and_go_leave_nothing_with_who_stays() {
        let memory = MemoryLimit { bytes_max: 64 << 20, segment_bytes: 2 << 20 };
        let counting = Arc::new(Counting::default());
        let store = Store::new(memory, counting.clone(), World::default(), None, None);
        let mut schema = Vec::new();
        Schema::with_key(vec![Column::new("id", ColumnType::UInt64)], &["id"]).unwrap().encode(&mut schema);
        let mut used = Used::default();
        let stays = store.create("stays", &schema).unwrap().0.id;
        used.table(&store, stays).unwrap();
        let committed = counting.0.load(Ordering::Relaxed);
        for _ in 0..100 {
            let id = store.create("t", &schema).unwrap().0.id;
            drop(used.table(&store, id).unwrap());
            store.drop_table("t").unwrap();
            assert!(used.tables.len() <= 2, "{:?}", used.tables);
            assert_eq!(counting.0.load(Ordering::Relaxed), committed, "nobody goes through it any more");
        }
        let id = store.create("t", &schema).unwrap().0.id;
        let kept = used.table(&store, id).unwrap();
        store.drop_table("t").unwrap();
        assert!(used.table(&store, id).is_err(), "it is gone for who uses it, though another goes through it");
        drop(kept);
        used.table(&store, stays).unwrap();
        used.forget_dropped();
        assert_eq!(used.tables.len(), 1);
    }
}

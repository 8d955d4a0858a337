//! Five ordered maps from `u64` to `u64` behind one small trait, so that all do the same work.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use concurrent_map::ConcurrentMap;
use crossbeam_skiplist::SkipMap;
use overside_bench::overside::bwtree::{Direction, HeapArena, Options, PinnedPage, Reader, Row, Run, Tree};
use parking_lot::RwLock;
use scc::{Guard, TreeIndex};

/// An ordered map under test.
pub trait Peer: Sized {
    /// As the table shows it.
    const NAME: &'static str;
    /// What one thread uses.
    type Handle: Handle + Send;

    /// Empty, with room for `records`.
    fn new(records: usize) -> anyhow::Result<Self>;

    /// For one thread.
    fn handle(&self) -> Self::Handle;

    /// Bytes that it has, apart from what the global allocator gave it.
    fn bytes_of_its_own(&self) -> u64 {
        0
    }
}

/// One thread's way to a map.
pub trait Handle {
    /// A key that is not there yet.
    fn insert(&mut self, key: u64, value: u64);
    /// A key that may be there.
    fn put(&mut self, key: u64, value: u64);
    /// A copy of the value.
    fn read(&mut self, key: u64) -> Option<u64>;
    /// Up to `rows` rows from `key` on: how many there were, and a sum over keys and values.
    fn scan(&mut self, key: u64, rows: usize) -> (usize, u64);
}

fn sum<'a>(rows: impl Iterator<Item = (&'a u64, &'a u64)>) -> (usize, u64) {
    rows.fold((0, 0), |(count, sum), (key, value)| (count + 1, sum.wrapping_add(key ^ value)))
}

/// Overside's tree over anonymous memory.
pub struct BwTree(Arc<Tree>);

/// With a buffer for the value that `get` copies out, and one for the rows of short ranges.
pub struct BwTreeHandle(Arc<Tree>, Vec<u8>, Reader);

impl Peer for BwTree {
    const NAME: &'static str = "overside bwtree";
    type Handle = BwTreeHandle;

    fn new(records: usize) -> anyhow::Result<Self> {
        let arena = HeapArena::new((records * ARENA_BYTES_A_RECORD).next_multiple_of(1 << 30))?;
        let options = Options { prefix_len: 8, ..Options::default() };
        Ok(Self(Arc::new(Tree::new(Arc::new(arena), options)?)))
    }

    fn handle(&self) -> BwTreeHandle {
        BwTreeHandle(self.0.clone(), Vec::with_capacity(8), self.0.reader())
    }

    fn bytes_of_its_own(&self) -> u64 {
        self.0.stats().committed_bytes
    }
}

impl Handle for BwTreeHandle {
    fn insert(&mut self, key: u64, value: u64) {
        self.0.insert(&key.to_be_bytes(), &value.to_le_bytes()).expect("a fresh key and room for it");
    }

    fn put(&mut self, key: u64, value: u64) {
        self.0.upsert(&key.to_be_bytes(), &value.to_le_bytes()).expect("room");
    }

    fn read(&mut self, key: u64) -> Option<u64> {
        let found = self.0.get(&key.to_be_bytes(), &mut self.1).expect("a key of 8 bytes");
        found.then(|| word(&self.1))
    }

    fn scan(&mut self, key: u64, rows: usize) -> (usize, u64) {
        let (mut count, mut sum) = (0, 0);
        let from = key.to_be_bytes();
        if rows <= SHORT {
            self.2.seek(Bound::Included(&from), Bound::Unbounded, rows);
            while let Some(copied) = self.2.next_rows() {
                count += copied.count();
                match KeyForm::of(copied.fixed_keys()) {
                    Some(form) => form.sum(copied.heads(), copied.prefixes(), &mut sum),
                    None => copied.rows().for_each(|row| add(&row, &mut sum)),
                }
            }
            return (count, sum);
        }
        for page in self.0.pages(Bound::Included(&from), Bound::Unbounded, Direction::Forward) {
            count += page_sum(&page, rows - count, &mut sum);
            if count == rows {
                break;
            }
        }
        (count, sum)
    }
}

/// How 8-byte keys are kept in a page: a common prefix and, after it, heads that are padded at
/// their end.
#[derive(Clone, Copy)]
struct KeyForm {
    top: u64,
    down: u32,
}

impl KeyForm {
    /// `None`: keys of the page differ in length, or have another one than 8.
    fn of(fixed_keys: Option<(&[u8], usize)>) -> Option<KeyForm> {
        let (common, head_bytes) = fixed_keys.filter(|(common, head_bytes)| common.len() + head_bytes == 8)?;
        let top = common.iter().fold(0, |top: u64, byte| top << 8 | u64::from(*byte));
        let top = if head_bytes == 8 { 0 } else { top.checked_shl(8 * head_bytes as u32).unwrap_or(0) };
        Some(KeyForm { top, down: 8 * common.len() as u32 })
    }

    /// Sums rows by slices.
    #[inline]
    fn sum(self, heads: &[[u8; 8]], values: &[u8], sum: &mut u64) {
        for (key, value) in heads.iter().zip(values.as_chunks::<8>().0) {
            let key = self.top | u64::from_be_bytes(*key).checked_shr(self.down).unwrap_or(0);
            *sum = sum.wrapping_add(key ^ u64::from_le_bytes(*value));
        }
    }
}

fn add(row: &Row<'_>, sum: &mut u64) {
    *sum = sum.wrapping_add(big(&row.key.to_vec()) ^ word(row.prefix));
}

/// Sums up to `rows` rows of a page, deltas applied; returns how many there were.
fn page_sum(page: &PinnedPage, rows: usize, sum: &mut u64) -> usize {
    let leaf = page.leaf();
    let Some(form) = KeyForm::of(leaf.fixed_keys()) else {
        return page.merged().take(rows).inspect(|row| add(row, sum)).count();
    };
    let mut count = 0;
    for run in page.runs() {
        match run {
            Run::Base(mut at) => {
                at.end = at.end.min(at.start + rows - count);
                count += at.len();
                form.sum(&leaf.heads()[at.clone()], &leaf.prefixes()[8 * at.start..8 * at.end], sum);
            }
            Run::Delta(delta) => {
                *sum = sum.wrapping_add(big(delta.key()) ^ word(delta.prefix()));
                count += 1;
            }
        }
        if count == rows {
            break;
        }
    }
    count
}

fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn big(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// crossbeam-skiplist.
pub struct SkipList(Arc<SkipMap<u64, u64>>);

impl Peer for SkipList {
    const NAME: &'static str = "crossbeam-skiplist";
    type Handle = Arc<SkipMap<u64, u64>>;

    fn new(_: usize) -> anyhow::Result<Self> {
        Ok(Self(Arc::default()))
    }

    fn handle(&self) -> Self::Handle {
        self.0.clone()
    }
}

impl Handle for Arc<SkipMap<u64, u64>> {
    fn insert(&mut self, key: u64, value: u64) {
        SkipMap::insert(self, key, value);
    }

    fn put(&mut self, key: u64, value: u64) {
        SkipMap::insert(self, key, value);
    }

    fn read(&mut self, key: u64) -> Option<u64> {
        self.get(&key).map(|entry| *entry.value())
    }

    fn scan(&mut self, key: u64, rows: usize) -> (usize, u64) {
        let entries = self.range(key..).take(rows);
        entries.fold((0, 0), |(count, sum), entry| (count + 1, sum.wrapping_add(entry.key() ^ entry.value())))
    }
}

/// scc's TreeIndex.
pub struct SccTree(Arc<TreeIndex<u64, u64>>);

impl Peer for SccTree {
    const NAME: &'static str = "scc::TreeIndex";
    type Handle = Arc<TreeIndex<u64, u64>>;

    fn new(_: usize) -> anyhow::Result<Self> {
        Ok(Self(Arc::default()))
    }

    fn handle(&self) -> Self::Handle {
        self.0.clone()
    }
}

impl Handle for Arc<TreeIndex<u64, u64>> {
    fn insert(&mut self, key: u64, value: u64) {
        self.insert_sync(key, value).expect("a fresh key");
    }

    fn put(&mut self, key: u64, value: u64) {
        self.upsert_sync(key, value);
    }

    fn read(&mut self, key: u64) -> Option<u64> {
        self.peek_with(&key, |_, value| *value)
    }

    fn scan(&mut self, key: u64, rows: usize) -> (usize, u64) {
        let guard = Guard::new();
        match key {
            0 => sum(self.iter(&guard).take(rows)),
            _ => sum(self.range(key.., &guard).take(rows)),
        }
    }
}

/// concurrent-map.
pub struct Concurrent(ConcurrentMap<u64, u64>);

impl Peer for Concurrent {
    const NAME: &'static str = "concurrent-map";
    type Handle = ConcurrentMap<u64, u64>;

    fn new(_: usize) -> anyhow::Result<Self> {
        Ok(Self(ConcurrentMap::new()))
    }

    fn handle(&self) -> Self::Handle {
        self.0.clone()
    }
}

impl Handle for ConcurrentMap<u64, u64> {
    fn insert(&mut self, key: u64, value: u64) {
        ConcurrentMap::insert(self, key, value);
    }

    fn put(&mut self, key: u64, value: u64) {
        ConcurrentMap::insert(self, key, value);
    }

    fn read(&mut self, key: u64) -> Option<u64> {
        self.get(&key)
    }

    fn scan(&mut self, key: u64, rows: usize) -> (usize, u64) {
        let rows = self.range(key..).take(rows);
        rows.fold((0, 0), |(count, sum), (key, value)| (count + 1, sum.wrapping_add(key ^ value)))
    }
}

/// The standard library's map behind parking_lot's lock.
pub struct Locked(Arc<RwLock<BTreeMap<u64, u64>>>);

impl Peer for Locked {
    const NAME: &'static str = "RwLock<BTreeMap>";
    type Handle = Arc<RwLock<BTreeMap<u64, u64>>>;

    fn new(_: usize) -> anyhow::Result<Self> {
        Ok(Self(Arc::default()))
    }

    fn handle(&self) -> Self::Handle {
        self.0.clone()
    }
}

impl Handle for Arc<RwLock<BTreeMap<u64, u64>>> {
    fn insert(&mut self, key: u64, value: u64) {
        self.write().insert(key, value);
    }

    fn put(&mut self, key: u64, value: u64) {
        self.write().insert(key, value);
    }

    fn read(&mut self, key: u64) -> Option<u64> {
        RwLock::read(self).get(&key).copied()
    }

    fn scan(&mut self, key: u64, rows: usize) -> (usize, u64) {
        let map = RwLock::read(self);
        match key {
            0 => sum(map.iter().take(rows)),
            _ => sum(map.range(key..).take(rows)),
        }
    }
}

/// Up to so many rows are copied rather than pinned.
const SHORT: usize = 1000;
/// Address space, not memory: pages half full, deltas and everything replaced but not yet let go
/// fit.
const ARENA_BYTES_A_RECORD: usize = 400;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::workload::mix;

    /// Everything that a column does, and what it must come to.
    fn agrees<P: Peer>() {
        let peer = P::new(10_000).unwrap();
        let (mut handle, mut model) = (peer.handle(), BTreeMap::new());
        for i in 0..10_000u64 {
            handle.insert(mix(i), i);
            model.insert(mix(i), i);
        }
        for i in (0..10_000u64).step_by(7) {
            handle.put(mix(i), i << 20);
            model.insert(mix(i), i << 20);
        }
        for i in 0..10_100u64 {
            assert_eq!(handle.read(mix(i)), model.get(&mix(i)).copied(), "{}", P::NAME);
        }
        for (i, rows) in [(0, 1), (5, 100), (77, 1000), (9, 0), (3, 100_000)] {
            let expected = sum(model.range(mix(i)..).take(rows));
            assert_eq!(handle.scan(mix(i), rows), expected, "{}: {rows} rows", P::NAME);
        }
        assert_eq!(handle.scan(0, usize::MAX), sum(model.iter()), "{}", P::NAME);
    }

    #[test]
    fn every_peer_does_the_same() {
        agrees::<BwTree>();
        agrees::<SkipList>();
        agrees::<SccTree>();
        agrees::<Concurrent>();
        agrees::<Locked>();
    }

    #[test]
    fn keys_close_together_sum_as_well() {
        // Pages whose keys share a prefix of several bytes.
        let tree = BwTree::new(1000).unwrap();
        let mut handle = tree.handle();
        let keys = (0..50_000u64).map(|i| 0x0102_0304_0000_0000 + i * 3);
        let expected = keys.clone().fold(0u64, |sum, key| sum.wrapping_add(key ^ 9));
        keys.for_each(|key| handle.insert(key, 9));
        assert_eq!(handle.scan(0, usize::MAX), (50_000, expected));
    }
}

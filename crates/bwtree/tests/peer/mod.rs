//! A peer that may read a tree's arena: it maps each segment for reading, as a provider does, and copies out of it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use overside_bwtree::{
    Exhausted, Leaf, Options, Reads, SegmentArena, SegmentObserver, SystemWaits, Tree, Walk, WalkError, Walked,
};
use overside_memory::{Foreign, Segment, SegmentId};

/// Maps what a tree commits.
#[derive(Debug, Default)]
pub struct Mapper(Mutex<BTreeMap<SegmentId, Arc<Foreign>>>);

impl SegmentObserver for Mapper {
    fn committed(&self, segment: &Arc<Segment>) -> Result<(), Exhausted> {
        let fd = segment.fd().expect("a shared segment").try_clone_to_owned().expect("a descriptor");
        let mapped = Foreign::map(fd, segment.len() as u64).expect("a mapping");
        self.0.lock().unwrap().insert(segment.id(), Arc::new(mapped));
        Ok(())
    }

    fn decommitted(&self, segment: SegmentId) {
        self.0.lock().unwrap().remove(&segment);
    }
}

/// Reads by those mappings, and knows a segment from when it first comes there.
pub struct Peer<'t> {
    tree: &'t Tree,
    mapper: Arc<Mapper>,
    known: BTreeMap<u64, Arc<Foreign>>,
    /// Gives its processor away at every so many reads.
    pub yields: u64,
    reads: u64,
}

/// An open tree in shared segments, and who maps them.
pub fn open(options: Options) -> (Tree, Arc<Mapper>) {
    let mapper = Arc::new(Mapper::default());
    let arena = SegmentArena::new(1 << 20, 64 << 20, mapper.clone()).unwrap();
    (Tree::open(Arc::new(arena), options, &SystemWaits).unwrap(), mapper)
}

impl<'t> Peer<'t> {
    pub fn new(tree: &'t Tree, mapper: &Arc<Mapper>) -> Peer<'t> {
        Peer { tree, mapper: mapper.clone(), known: BTreeMap::new(), yields: u64::MAX, reads: 0 }
    }
}

impl Reads for Peer<'_> {
    type Error = Infallible;

    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<usize, Infallible> {
        self.reads += 1;
        if self.reads.is_multiple_of(self.yields) {
            std::thread::yield_now();
        }
        let inside = |(from, segment): &(&u64, &Arc<Foreign>)| at - **from < segment.len() as u64;
        if self.known.range(..=at).next_back().filter(inside).is_none() {
            // Whoever commits a segment has the arena's lock first.
            let segments = self.tree.segments().into_iter();
            let mapped = self.mapper.0.lock().unwrap();
            self.known = segments.filter_map(|(at, _, id)| Some((at, mapped.get(&id)?.clone()))).collect();
        }
        let Some((from, segment)) = self.known.range(..=at).next_back().filter(inside) else { return Ok(0) };
        let len = out.len().min(segment.len() - (at - from) as usize);
        segment.read(at - from, &mut out[..len]).expect("it lies inside");
        Ok(len)
    }

    fn again(&mut self, nth: u64) -> bool {
        std::thread::yield_now();
        nth < 1_000_000
    }
}

/// Goes on with a walk, and opens its tree again where that is all it lacks.
pub fn advance(walk: &mut Walk, peer: &mut Peer<'_>) -> bool {
    loop {
        match walk.advance(peer) {
            Err(WalkError::Unopened(_)) => walk.reopen(peer.tree.opening().unwrap()),
            done => return done.unwrap(),
        }
    }
}

/// Keys and values of a page, deltas applied.
pub fn rows(walked: &Walked<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let leaf: Leaf<'_> = walked.leaf();
    let value = |prefix: &[u8], rest| {
        let rest = match rest {
            overside_bwtree::Rest::Inline(bytes) => bytes,
            overside_bwtree::Rest::Overflow(reference) => walked.extent(reference).expect("it was loaded"),
        };
        [prefix, rest].concat()
    };
    let mut rows = Vec::new();
    let mut base = walked.rows();
    for delta in walked.deltas() {
        while base.start < delta.position() {
            rows.push((leaf.key_parts(base.start).to_vec(), value(leaf.prefix(base.start), leaf.rest(base.start))));
            base.start += 1;
        }
        base.start += usize::from(delta.replaces());
        if delta.op() == overside_bwtree::Op::Put {
            rows.push((delta.key().to_vec(), value(delta.prefix(), delta.rest())));
        }
    }
    rows.extend(base.map(|row| (leaf.key_parts(row).to_vec(), value(leaf.prefix(row), leaf.rest(row)))));
    rows
}

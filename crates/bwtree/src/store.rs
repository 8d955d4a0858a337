//! The pages' memory: mapping words, units (a base page with room for its deltas), overflow
//! extents, pins.
//!
//! A unit is one piece of the arena: the base page, then room into which writers put delta records.
//! What is to be known about it that is not the page itself (pins, how much room is taken, when it
//! was born) lies in a private table, never in the arena.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32 as Count32, AtomicU64 as Count};

use overside_memory::SegmentId;

use crate::alloc::{Allocator, Extent, Purpose};
use crate::arena::{Arena, Exhausted};
use crate::epoch::Guard;
use crate::inner::Inner;
use crate::open::Open;
use crate::page::{self, DeltaRecord, Draft, Leaf, OverflowRef, Rest};
use crate::slab::{Entry, Slab};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// An entry of the mapping table.
#[derive(Default)]
pub(crate) struct Mapped {
    pub(crate) word: AtomicU64,
}

impl Entry for Mapped {
    fn link(&self) -> &AtomicU64 {
        &self.word
    }
}

/// A word of the mapping table, read under a guard: what it names stays at least as long as the
/// guard.
///
/// Bit 0: frozen (the page is being merged into its left neighbour and takes no change). [`GONE`]:
/// merged, and nothing is there any more. Bit 1: an inner node, whose address the word is. Leaves:
/// bits 2..10 length of the chain, 10..26 newest delta (8-byte units from the base page), 26..62
/// base page (64-byte units from the arena's base).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Word<'g> {
    pub(crate) raw: u64,
    guard: PhantomData<&'g ()>,
}

/// What a word names.
pub(crate) enum Node<'g> {
    Leaf(LeafState<'g>),
    Inner(&'g Inner),
    /// The left neighbour has the rows.
    Gone,
}

/// A leaf at one instant: base page and chain.
#[derive(Clone, Copy)]
pub(crate) struct LeafState<'g> {
    pub(crate) word: u64,
    pub(crate) leaf: Leaf<'g>,
    base: *const u8,
}

impl<'g> Word<'g> {
    /// Reads `mapped`'s word under `guard`.
    #[inline]
    pub(crate) fn read(guard: &'g Guard<'_>, mapped: &Mapped) -> Word<'g> {
        Word { raw: guard.protect(&mapped.word), guard: PhantomData }
    }

    #[inline]
    pub(crate) fn frozen(&self) -> bool {
        self.raw & FROZEN != 0
    }

    #[inline]
    pub(crate) fn node(self, store: &Store) -> Node<'g> {
        match self.inner() {
            Some(inner) => Node::Inner(inner),
            None if self.raw & GONE == GONE => Node::Gone,
            None => Node::Leaf(store.leaf(self)),
        }
    }

    #[inline]
    pub(crate) fn inner(self) -> Option<&'g Inner> {
        // SAFETY: [bwtree-word] a word with this bit is the address of a boxed node that lives as long as the guard.
        (self.raw & INNER != 0).then(|| unsafe { &*((self.raw & ADDRESS) as *const Inner) })
    }
}

/// The mapping word of an inner node, which the word owns from now on.
pub(crate) fn inner_word(node: Inner) -> u64 {
    Box::into_raw(Box::new(node)) as u64 | INNER
}

/// Frees the node of a word made by [`inner_word`].
///
/// # Safety
///
/// Nobody can see the word or the node any more, and it is freed once.
pub(crate) unsafe fn drop_inner(word: u64) {
    // SAFETY: [bwtree-word] the caller says it is the last one.
    drop(unsafe { Box::from_raw((word & ADDRESS) as *mut Inner) });
}

fn leaf_word(base: u64, newest: usize, length: usize) -> u64 {
    ((base / 64) << 26) | (newest as u64 / 8) << 10 | (length as u64) << 2
}

impl<'g> LeafState<'g> {
    /// Deltas in the chain.
    #[inline]
    pub(crate) fn chain(&self) -> usize {
        chain_of(self.word)
    }

    /// The newest delta's offset from the base page; 0: none.
    #[inline]
    pub(crate) fn newest(&self) -> usize {
        newest_of(self.word)
    }

    pub(crate) fn base_offset(&self) -> u64 {
        base_of(self.word)
    }

    /// The chain's records, newest first.
    #[inline]
    pub(crate) fn records(&self) -> Records<'g> {
        Records { base: self.base, at: self.newest(), guard: PhantomData }
    }
}

#[inline]
fn chain_of(word: u64) -> usize {
    (word >> 2 & 0xff) as usize
}

/// Whether a word names a leaf.
pub(crate) fn is_leaf(word: u64) -> bool {
    word & INNER == 0 && word & GONE != GONE
}

#[inline]
pub(crate) fn newest_of(word: u64) -> usize {
    8 * (word >> 10 & 0xffff) as usize
}

#[inline]
pub(crate) fn base_of(word: u64) -> u64 {
    ((word >> 26) & ((1 << 36) - 1)) * 64
}

/// Records of a chain, newest first, with their offsets from the base page.
pub(crate) struct Records<'g> {
    base: *const u8,
    at: usize,
    guard: PhantomData<&'g ()>,
}

impl<'g> Iterator for Records<'g> {
    type Item = (usize, DeltaRecord<'g>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at == 0 {
            return None;
        }
        let at = self.at;
        // SAFETY: [bwtree-chain] offsets in a published chain name complete records of the unit, which the guard keeps.
        let record = unsafe { record_at(self.base, at) };
        self.at = record.next();
        Some((at, record))
    }
}

/// # Safety
///
/// At `base + at` lies a published record whose unit outlives `'g`.
#[inline]
unsafe fn record_at<'g>(base: *const u8, at: usize) -> DeltaRecord<'g> {
    // SAFETY: [bwtree-chain] the header comes first and says how long the record is.
    unsafe {
        let start = base.add(at);
        let header = std::slice::from_raw_parts(start, page::DELTA_HEADER);
        DeltaRecord::open(std::slice::from_raw_parts(start, page::record_len(header)))
    }
}

/// What is known about a unit besides its bytes.
#[derive(Default)]
pub(crate) struct Unit {
    /// Pins in the lower bits, UNLINKED, RELEASED.
    state: AtomicU64,
    /// First byte that no record claimed, in units of 8 from the base page.
    tail: AtomicU32,
    link: AtomicU64,
    offset: Count,
    bytes: Count32,
    birth: Count,
    /// The newest delta when the unit was unlinked.
    newest: Count32,
    overflow: Count32,
    /// No installed change of the leaf has a larger stamp.
    stamp: AtomicU64,
}

impl Entry for Unit {
    fn link(&self) -> &AtomicU64 {
        &self.link
    }
}

impl Unit {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn birth(&self) -> u64 {
        self.birth.load(Ordering::Relaxed)
    }

    /// Whether a newer base page took its place.
    pub(crate) fn unlinked(&self) -> bool {
        self.state.load(Ordering::SeqCst) & UNLINKED != 0
    }
}

/// What is known about an overflow extent.
#[derive(Default)]
struct Overflow {
    /// Units (and writers at work) that refer to it.
    references: AtomicU32,
    link: AtomicU64,
    offset: Count,
    bytes: Count,
}

impl Entry for Overflow {
    fn link(&self) -> &AtomicU64 {
        &self.link
    }
}

/// A unit under construction: not published, so its writer's alone.
pub(crate) struct Fresh {
    pub(crate) unit: u32,
    extent: Extent,
    reserved: bool,
}

impl Fresh {
    /// Its place, if that is in the reserve.
    pub(crate) fn reserved(&self) -> Option<u64> {
        self.reserved.then_some(self.extent.offset)
    }
}

pub(crate) struct Store {
    arena: Arc<dyn Arena>,
    /// The arena's, which never change: asking it is a call.
    base: AtomicPtr<u8>,
    reserved_bytes: usize,
    pub(crate) allocator: Allocator,
    pub(crate) map: Slab<Mapped>,
    /// Where peers read the mapping table, if they may.
    pub(crate) open: Option<Box<Open>>,
    pub(crate) units: Slab<Unit>,
    overflows: Slab<Overflow>,
    pub(crate) pinned: Count,
    /// Bytes of units unlinked, past their epoch, and still pinned.
    pub(crate) limbo: Count,
}

impl Store {
    pub(crate) fn new(arena: Arc<dyn Arena>, page_bytes: usize) -> Store {
        Store {
            allocator: Allocator::new(arena.clone(), page_bytes * 5 / 4),
            base: AtomicPtr::new(arena.base().as_ptr()),
            reserved_bytes: arena.chunk_bytes() * arena.chunks_max(),
            arena,
            map: Slab::new(),
            open: None,
            units: Slab::new(),
            overflows: Slab::new(),
            pinned: Count::new(0),
            limbo: Count::new(0),
        }
    }

    /// The same, whose mapping table lies in the arena too, and whose chunks are never given back:
    /// peers that may read the arena find their own way.
    pub(crate) fn open(arena: Arc<dyn Arena>, page_bytes: usize) -> Store {
        let mut store = Store::new(arena, page_bytes);
        store.open = Some(Box::default());
        store.allocator.keep_chunks();
        store
    }

    /// A number for a page that is not published yet.
    pub(crate) fn take_page(&self) -> u32 {
        let Some(open) = self.open.as_deref() else { return self.map.take() };
        // SAFETY: [bwtree-fresh] the piece is the table's alone and never given back, and the arena lives as long as the store.
        unsafe { self.map.take_in(|block, len| open.place(block, len, self)) }
    }

    /// A piece for as long as the tree lives: its offset and its address.
    pub(crate) fn keep_piece(&self, bytes: usize) -> Option<(u64, std::ptr::NonNull<u8>)> {
        let (piece, _) = self.allocator.take(bytes, Purpose::Growth).ok()?;
        Some((piece.offset, std::ptr::NonNull::new(self.address(piece.offset))?))
    }

    /// Leaf `pid` came into the tree, or left it.
    #[inline]
    pub(crate) fn came_or_went(&self, pid: u32) {
        if let Some(open) = &self.open {
            open.turn(pid, 1);
        }
    }

    /// The base page of leaf `pid` was replaced, and is not retired yet.
    #[inline]
    pub(crate) fn replaced(&self, pid: u32) {
        if let Some(open) = &self.open {
            open.turn(pid, 2);
        }
    }

    /// Where segments of the arena lie.
    pub(crate) fn segments(&self) -> Vec<(u64, u64, SegmentId)> {
        self.arena.segments()
    }

    #[inline]
    fn address(&self, offset: u64) -> *mut u8 {
        self.base.load(Ordering::Relaxed).wrapping_add(offset as usize)
    }

    /// Asks for the header of the leaf that `word` names.
    #[inline]
    pub(crate) fn prefetch(&self, word: Word<'_>) {
        page::prefetch::at(self.address(base_of(word.raw)), HEAD_LINES * 64);
    }

    /// Asks for what a pin of this leaf and its chain will read.
    #[inline]
    pub(crate) fn prefetch_chain(&self, state: &LeafState<'_>) {
        page::prefetch::at(std::ptr::from_ref(self.units.entry(state.leaf.unit())).cast(), 1);
        if state.chain() > 0 {
            // Records lie behind the page, the newest last.
            let from = state.leaf.bytes().len().min(state.newest());
            page::prefetch::at(state.base.wrapping_add(from), (state.newest() - from).min(CHAIN_BYTES) + 64);
        }
    }

    /// The leaf that `word` names.
    #[inline]
    pub(crate) fn leaf<'g>(&self, word: Word<'g>) -> LeafState<'g> {
        let base = self.address(base_of(word.raw));
        page::prefetch::at(base, HEAD_LINES * 64);
        let chain = chain_of(word.raw);
        if chain > 0 {
            let older = (chain - 1).min(8) * 32;
            page::prefetch::at(base.wrapping_add(newest_of(word.raw)).wrapping_sub(older), older + 64);
        }
        // SAFETY: [bwtree-word] a leaf's word names a complete base page of a unit that the guard keeps.
        let leaf = unsafe { leaf_at(base) };
        LeafState { word: word.raw, leaf, base }
    }

    /// Room for a page of `page` bytes and, behind it, about `room` bytes of deltas; for pages that
    /// shrink or move, what there is.
    pub(crate) fn fresh(
        &self,
        page: usize,
        room: usize,
        birth: u64,
        purpose: Purpose,
        stamp: u64,
    ) -> Result<Fresh, Exhausted> {
        let page = page.next_multiple_of(8);
        let bytes = (page + room).min(UNIT_MAX.max(page));
        let (extent, reserved) = match purpose {
            Purpose::Growth => self.allocator.take(bytes, purpose)?,
            Purpose::Moving => self.allocator.take(page, purpose)?,
            Purpose::Shrinking { .. } => {
                let roomy = self.allocator.take(bytes, Purpose::Growth);
                roomy.or_else(|Exhausted| self.allocator.take(page, purpose))?
            }
        };
        let unit = self.units.take();
        let meta = self.units.entry(unit);
        meta.state.store(0, Ordering::SeqCst);
        // A page in the reserve takes no deltas: it must not outgrow the piece that it gave back.
        meta.tail.store(if reserved { extent.bytes / 8 } else { page / 8 } as u32, Ordering::SeqCst);
        meta.offset.store(extent.offset, Ordering::Relaxed);
        meta.bytes.store(extent.bytes as u32, Ordering::Relaxed);
        meta.birth.store(birth, Ordering::Relaxed);
        meta.newest.store(0, Ordering::Relaxed);
        meta.overflow.store(0, Ordering::Relaxed);
        meta.stamp.store(stamp, Ordering::Relaxed);
        Ok(Fresh { unit, extent, reserved })
    }

    /// The fresh unit's first `len` bytes, to write the page into.
    pub(crate) fn fresh_page<'f>(&self, fresh: &'f mut Fresh, len: usize) -> &'f mut [u8] {
        assert!(len <= fresh.extent.bytes);
        // SAFETY: [bwtree-fresh] the piece is the fresh unit's alone until its word is published.
        unsafe { std::slice::from_raw_parts_mut(self.address(fresh.extent.offset), len) }
    }

    /// The word that publishes a fresh unit. The page's overflow references are counted from here
    /// on.
    pub(crate) fn seal(&self, fresh: &Fresh) -> u64 {
        // SAFETY: [bwtree-fresh] the page is written and the unit is still ours.
        let leaf = unsafe { leaf_at(self.address(fresh.extent.offset)) };
        if leaf.has_overflow() {
            self.units.entry(fresh.unit).overflow.store(1, Ordering::Relaxed);
            (0..leaf.count()).for_each(|i| self.keep(leaf.rest(i)));
        }
        leaf_word(fresh.extent.offset, 0, 0)
    }

    /// Gives back a sealed unit that was never published.
    pub(crate) fn discard(&self, fresh: Fresh) {
        self.free_unit(fresh.unit);
    }

    /// Claims room for a record in the leaf's unit and writes it there; the word that publishes it.
    /// `None`: no room left.
    #[inline]
    pub(crate) fn append(&self, state: &LeafState<'_>, draft: &Draft<'_>, position: u32) -> Option<u64> {
        let unit = self.units.entry(state.leaf.unit());
        let (bytes, end) = (draft.bytes(), unit.bytes().min(UNIT_MAX));
        // Looked at first, so that writers who find no room (and no memory for a new page) cannot turn the counter over.
        if 8 * unit.tail.load(Ordering::SeqCst) as usize + bytes > end {
            return None;
        }
        let at = 8 * unit.tail.fetch_add((bytes / 8) as u32, Ordering::SeqCst) as usize;
        if at + bytes > end {
            return None;
        }
        // SAFETY: [bwtree-claim] `tail` gave these bytes of the unit to this writer alone, and the guard keeps the unit.
        let out = unsafe { std::slice::from_raw_parts_mut(state.base.cast_mut().add(at), bytes) };
        draft.write(out, position, state.newest());
        if let Rest::Overflow(_) = draft.rest {
            unit.overflow.store(1, Ordering::Relaxed);
            self.keep(draft.rest);
        }
        Some(leaf_word(state.base_offset(), at, state.chain() + 1))
    }

    /// An extent with `bytes` in it, kept once for the caller.
    pub(crate) fn overflow(&self, bytes: &[u8]) -> Result<OverflowRef, Exhausted> {
        let (piece, _) = self.allocator.take(bytes.len(), Purpose::Growth)?;
        // SAFETY: [bwtree-fresh] the piece was just taken.
        let out = unsafe { std::slice::from_raw_parts_mut(self.address(piece.offset), bytes.len()) };
        out.copy_from_slice(bytes);
        let extent = self.overflows.take();
        let meta = self.overflows.entry(extent);
        meta.offset.store(piece.offset, Ordering::Relaxed);
        meta.bytes.store(piece.bytes as u64, Ordering::Relaxed);
        meta.references.store(1, Ordering::SeqCst);
        Ok(OverflowRef { offset: piece.offset, len: bytes.len() as u32, extent })
    }

    /// One more unit refers to the rest's extent, if it has one.
    pub(crate) fn keep(&self, rest: Rest<'_>) {
        if let Rest::Overflow(o) = rest {
            self.overflows.entry(o.extent).references.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// One unit less.
    pub(crate) fn let_go(&self, rest: Rest<'_>) {
        let Rest::Overflow(o) = rest else { return };
        let meta = self.overflows.entry(o.extent);
        if meta.references.fetch_sub(1, Ordering::SeqCst) == 1 {
            let bytes = meta.bytes.load(Ordering::Relaxed) as usize;
            self.allocator.give(Extent { offset: meta.offset.load(Ordering::Relaxed), bytes });
            self.overflows.give(o.extent);
        }
    }

    /// Bytes of an overflow extent referred to by something that `_of` keeps.
    pub(crate) fn overflow_bytes<'a, T: ?Sized>(&self, reference: OverflowRef, _of: &'a T) -> &'a [u8] {
        // SAFETY: [bwtree-overflow] a unit that refers to an extent keeps it, and the caller's borrow keeps the unit.
        unsafe { std::slice::from_raw_parts(self.address(reference.offset), reference.len as usize) }
    }

    /// Bytes of the piece that a leaf lies in; 0 in the reserve.
    pub(crate) fn piece_bytes(&self, state: &LeafState<'_>) -> usize {
        let ordinary = !self.allocator.is_reserved(state.base_offset());
        if ordinary { self.units.entry(state.leaf.unit()).bytes() } else { 0 }
    }

    /// No change that the leaf's word shows has a larger stamp.
    #[inline]
    pub(crate) fn stamp(&self, state: &LeafState<'_>) -> u64 {
        self.units.entry(state.leaf.unit()).stamp.load(Ordering::SeqCst)
    }

    /// Before a change with this stamp is installed in the leaf's unit.
    #[inline]
    pub(crate) fn raise(&self, state: &LeafState<'_>, stamp: u64) {
        self.units.entry(state.leaf.unit()).stamp.fetch_max(stamp, Ordering::SeqCst);
    }

    /// A page and its chain were unlinked; what its unit needs to know to be freed later.
    pub(crate) fn unlink(&self, state: &LeafState<'_>) -> u32 {
        let id = state.leaf.unit();
        let unit = self.units.entry(id);
        unit.newest.store(state.newest() as u32, Ordering::Relaxed);
        unit.state.fetch_or(UNLINKED, Ordering::SeqCst);
        id
    }

    /// No guard can see the unit any more: frees it, or leaves that to the last pin.
    pub(crate) fn release(&self, id: u32) {
        let unit = self.units.entry(id);
        // Looked up before: once released, a last pin that goes frees the unit, and its number may be another's.
        let bytes = unit.bytes() as u64;
        let before = unit.state.fetch_or(RELEASED, Ordering::SeqCst);
        if before & PINS == 0 {
            self.free_unit(id);
        } else {
            self.limbo.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Pins the leaf's unit: bytes stay where they are until [`unpin`](Store::unpin).
    pub(crate) fn pin(&self, state: &LeafState<'_>) -> u32 {
        let id = state.leaf.unit();
        self.units.entry(id).state.fetch_add(1, Ordering::SeqCst);
        id
    }

    /// Releases a pin; any thread, constant time (plus the number of overflow references).
    pub(crate) fn unpin(&self, id: u32) {
        let unit = self.units.entry(id);
        let bytes = unit.bytes() as u64;
        let before = unit.state.fetch_sub(1, Ordering::SeqCst);
        if before & RELEASED != 0 && before & PINS == 1 {
            self.limbo.fetch_sub(bytes, Ordering::Relaxed);
            self.free_unit(id);
        }
    }

    /// The page at an offset.
    ///
    /// # Safety
    ///
    /// A page lies there, and its unit is pinned as long as `'a`.
    #[inline]
    pub(crate) unsafe fn pinned_leaf<'a>(&self, at: u64) -> Leaf<'a> {
        // SAFETY: [bwtree-pin] the caller holds a pin.
        unsafe { leaf_at(self.address(at)) }
    }

    /// The record that lies `record` bytes from the page at an offset.
    ///
    /// # Safety
    ///
    /// The page's unit is pinned as long as `'a`, and `record` was given by its [`Records`].
    #[inline]
    pub(crate) unsafe fn pinned_record<'a>(&self, at: u64, record: usize) -> DeltaRecord<'a> {
        // SAFETY: [bwtree-pin] the caller holds a pin.
        unsafe { record_at(self.address(at), record) }
    }

    /// Where the byte at an offset is, and in which segment.
    pub(crate) fn located(&self, offset: u64) -> (*const u8, SegmentId) {
        (self.address(offset), self.arena.segment(offset))
    }

    /// Offset of `bytes` in the arena, if they lie there.
    pub(crate) fn offset_of(&self, bytes: &[u8]) -> Option<u64> {
        let at = (bytes.as_ptr() as usize).checked_sub(self.address(0) as usize)?;
        (at < self.reserved_bytes).then_some(at as u64)
    }

    fn free_unit(&self, id: u32) {
        let unit = self.units.entry(id);
        let (offset, bytes) = (unit.offset.load(Ordering::Relaxed), unit.bytes());
        let base = self.address(offset);
        if unit.overflow.load(Ordering::Relaxed) != 0 {
            // SAFETY: [bwtree-release] nobody else sees the unit, so it is the caller's alone.
            let leaf = unsafe { leaf_at(base) };
            (0..leaf.count()).for_each(|i| self.let_go(leaf.rest(i)));
            let at = unit.newest.load(Ordering::Relaxed) as usize;
            (Records { base, at, guard: PhantomData::<&()> }).for_each(|(_, record)| self.let_go(record.rest()));
        }
        if cfg!(any(debug_assertions, shuttle)) {
            // SAFETY: [bwtree-release] as above; whoever still reads it shall notice.
            unsafe { base.write_bytes(0xDD, bytes) };
        }
        self.units.give(id);
        self.allocator.give(Extent { offset, bytes });
    }
}

/// # Safety
///
/// At `base` lies a complete page that outlives `'g`.
#[inline]
unsafe fn leaf_at<'g>(base: *const u8) -> Leaf<'g> {
    // SAFETY: [bwtree-word] the header comes first and says how long the page is.
    unsafe {
        let header = std::slice::from_raw_parts(base, page::HEADER_BYTES);
        Leaf::open(std::slice::from_raw_parts(base, page::page_len(header)))
    }
}

/// Bit of a word: the page takes no change any more.
pub(crate) const FROZEN: u64 = 1;
/// Word of a page whose left neighbour has taken over its rows: it names nothing, whatever the
/// page's number still stands in.
pub(crate) const GONE: u64 = 1 << 63 | FROZEN;
const INNER: u64 = 2;
const ADDRESS: u64 = !7;
/// More than can be taken, be they dropped or forgotten: a count that ran over would free a page
/// that is pinned.
const PINS: u64 = UNLINKED - 1;
const UNLINKED: u64 = 1 << 62;
const RELEASED: u64 = 1 << 63;
/// Records lie at most this far from their base page: 16 bits of 8-byte units.
pub(crate) const UNIT_MAX: usize = 0xffff * 8;
/// Header, fences and hints of a page of 8-byte keys.
const HEAD_LINES: usize = 6;
/// Bytes of a chain that are asked for at once.
const CHAIN_BYTES: usize = 2 << 10;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::arena::HeapArena;
    use crate::epoch::Epochs;
    use crate::page::{LeafBuilder, Op};

    #[test]
    fn refused_records_leave_the_counter_alone() {
        let store = Store::new(Arc::new(HeapArena::new(4 << 20).unwrap()), 4096);
        let mut page = LeafBuilder::new(8).finish();
        let mut fresh = store.fresh(page.len(), 256, 0, Purpose::Growth, 0).unwrap();
        page[48..52].copy_from_slice(&fresh.unit.to_le_bytes());
        store.fresh_page(&mut fresh, page.len()).copy_from_slice(&page);
        let pid = store.map.take();
        store.map.entry(pid).word.store(store.seal(&fresh), Ordering::SeqCst);

        let epochs = Epochs::new(&crate::waits::System);
        let guard = epochs.enter();
        let state = store.leaf(Word::read(&guard, store.map.entry(pid)));
        let draft = Draft { op: Op::Put, key: b"key", prefix: &[0; 8], rest: Rest::Inline(b"") };
        let accepted = (0..1000).take_while(|_| store.append(&state, &draft, 0).is_some()).count();
        assert!((1..1000).contains(&accepted));
        let tail = || store.units.entry(fresh.unit).tail.load(Ordering::SeqCst);
        let full = tail();
        assert!((0..1000).all(|_| store.append(&state, &draft, 0).is_none()));
        assert_eq!(tail(), full);
    }
}

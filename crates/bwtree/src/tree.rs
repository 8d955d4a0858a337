//! The tree as its users see it.

use std::ops::Bound;
use std::sync::Arc;

use overside_memory::SegmentId;

use crate::account::PinAccount;
use crate::arena::Arena;
use crate::batch::Put;
use crate::core::Core;
use crate::cursor::{Direction, Pages};
use crate::open::{FIRST_LEAF, Opening};
use crate::options::{Error, Options};
use crate::reader::Reader;
use crate::rows::Range;
use crate::stamps::Stamps;
use crate::stats::Stats;
use crate::store::Store;
use crate::waits::{System, Waits};
use crate::write::{Change, ChangeOutcome};

/// A lock-free ordered map from byte keys to byte values. Cheap to clone; clones are the same tree.
#[derive(Clone)]
pub struct Tree {
    pub(crate) core: Arc<Core>,
}

impl Tree {
    /// An empty tree over `arena`, which it has for itself.
    pub fn new(arena: Arc<dyn Arena>, options: Options) -> Result<Tree, Error> {
        Tree::with_waits(arena, options, &System)
    }

    /// The same, which waits and tells time by `waits`.
    pub fn with_waits(arena: Arc<dyn Arena>, options: Options, waits: &'static dyn Waits) -> Result<Tree, Error> {
        Tree::made(arena, options, waits, None)
    }

    /// The same, whose changes bear stamps: see [`within`](Self::within).
    pub fn stamped(
        arena: Arc<dyn Arena>,
        options: Options,
        waits: &'static dyn Waits,
        stamps: Arc<Stamps>,
    ) -> Result<Tree, Error> {
        Tree::made(arena, options, waits, Some(stamps))
    }

    /// The same, open to peers: its mapping table lies in the arena as well, and no chunk of it is
    /// ever given back. Who may read the arena can [walk](crate::Walk) the tree without its help,
    /// and sees whatever lies in the arena.
    pub fn open(arena: Arc<dyn Arena>, options: Options, waits: &'static dyn Waits) -> Result<Tree, Error> {
        options.check(&*arena)?;
        Ok(Tree { core: Arc::new(Core::new(Store::open(arena, options.page_bytes), options, waits, None)?) })
    }

    /// What a [`Walk`](crate::Walk) over the tree begins with; none of a tree that is not
    /// [open](Self::open).
    pub fn opening(&self) -> Option<Opening> {
        let blocks = self.core.store.open.as_ref()?.offsets();
        let Options { page_bytes, prefix_len, value_max, key_max, .. } = self.core.options;
        Some(Opening { first: FIRST_LEAF, blocks, page_bytes, prefix_len, value_max, key_max })
    }

    /// Where each segment of the arena begins, its bytes and its number, in ascending order.
    pub fn segments(&self) -> Vec<(u64, u64, SegmentId)> {
        self.core.store.segments()
    }

    fn made(
        arena: Arc<dyn Arena>,
        options: Options,
        waits: &'static dyn Waits,
        stamps: Option<Arc<Stamps>>,
    ) -> Result<Tree, Error> {
        options.check(&*arena)?;
        Ok(Tree { core: Arc::new(Core::new(Store::new(arena, options.page_bytes), options, waits, stamps)?) })
    }

    /// Adds a key; [`Error::Exists`] if it is there.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        match self.alone(|core| core.change(key, Change::Insert(value)))? {
            ChangeOutcome::Done { .. } => Ok(()),
            ChangeOutcome::Refused { .. } => Err(Error::Exists),
        }
    }

    /// Sets a key's value; whether there was one before.
    pub fn upsert(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        Ok(self.alone(|core| core.change(key, Change::Upsert(value)))?.replaced())
    }

    /// Sets the value of a key that is there; whether it was.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        Ok(self.alone(|core| core.change(key, Change::Update(value)))?.replaced())
    }

    /// Removes a key; whether it was there. In a full arena it waits, for up to a second, for
    /// memory that others hold back.
    pub fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        Ok(self.alone(|core| core.change(key, Change::Delete))?.replaced())
    }

    /// As [`delete`](Self::delete), and waits for nobody: [`Error::Exhausted`] where others hold
    /// back the memory that it takes, and once they have let go of it, trying again succeeds. For
    /// threads that serve others meanwhile.
    pub fn delete_now(&self, key: &[u8]) -> Result<bool, Error> {
        Ok(self.alone(|core| core.change_now(key, Change::Delete))?.replaced())
    }

    /// Puts rows, keys and values, as if one after another; what became of each, in their order.
    /// Each is atomic by itself, and rows of one leaf take effect together. Rows in ascending order
    /// of their keys need no sorting, and behind the last key of the tree they fill its pages
    /// directly.
    ///
    /// Rows behind the end of what is returned were not looked at: there are such when
    /// `refused_max` rows were refused, or when memory ran out. Rows that found no memory, and
    /// those that were not tried because others had not, say [`Error::Exhausted`].
    pub fn put_many(&self, put: Put, rows: &[(&[u8], &[u8])], refused_max: usize) -> Vec<Result<bool, Error>> {
        self.alone(|core| core.put_many(put, rows, refused_max).0)
    }

    /// If the key's value is `expected` (`None`: the key is not there), makes it `new` (`None`:
    /// removes it); whether it was.
    pub fn compare_and_swap(&self, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool, Error> {
        let outcome = self.alone(|core| core.change(key, Change::Swap { expected, new }))?;
        Ok(matches!(outcome, ChangeOutcome::Done { .. }))
    }

    /// Replaces the content of `out` by the key's value; false (and `out` empty) if there is none.
    pub fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool, Error> {
        Ok(self.core.get(key, out).0)
    }

    /// A change whose stamp nobody asks for.
    #[inline]
    fn alone<T>(&self, change: impl FnOnce(&Core) -> T) -> T {
        let _writing = self.core.stamps.as_deref().map(Stamps::begin);
        change(&self.core)
    }

    /// The leaves of a key range, one pinned page after another.
    pub fn pages(&self, from: Bound<&[u8]>, to: Bound<&[u8]>, direction: Direction) -> Pages {
        Pages::new(self.core.clone(), from, to, direction)
    }

    /// The rows of a key range.
    pub fn range(&self, from: Bound<&[u8]>, to: Bound<&[u8]>, direction: Direction) -> Range {
        Range::new(self.pages(from, to, direction))
    }

    /// For short ranges, whose rows it copies: see [`Reader`].
    pub fn reader(&self) -> Reader {
        Reader::new(self.core.clone())
    }

    /// An account to take pins on, for [`Pages::on_account`].
    pub fn pin_account(&self) -> Arc<PinAccount> {
        Arc::new(PinAccount::new(self.core.clone()))
    }

    /// Lets go at once what nobody can see any more, and gives empty chunks back to the arena.
    /// Writers do this as they go; call it when writing has stopped and memory matters.
    pub fn reclaim(&self) {
        // What this guard's own epoch saw retired goes with the second.
        for _ in 0..2 {
            let guard = self.core.enter();
            self.core.collect(&guard, true);
        }
    }

    /// Figures of the tree.
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// Deltas on a page before the next change consolidates it.
    pub fn chain_max(&self) -> usize {
        self.core.chain_max()
    }

    /// From the next change of a page on: 1 to what the options say, for which pages have room.
    pub fn set_chain_max(&self, chain_max: usize) {
        self.core.set_chain_max(chain_max);
    }

    /// The options it was made with.
    pub fn options(&self) -> &Options {
        &self.core.options
    }
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").field("options", self.options()).field("stats", &self.stats()).finish()
    }
}

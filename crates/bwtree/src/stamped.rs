//! Changes that say which stamp they were installed with.

use crate::batch::Put;
use crate::core::Core;
use crate::options::Error;
use crate::stamps::Writing;
use crate::tree::Tree;
use crate::write::{Change, ChangeOutcome};

/// A tree's changes, made while somebody [writes](Writing): each gives back its stamp, for the
/// record that is appended before the writing ends.
#[derive(Clone, Copy)]
pub struct Changes<'w> {
    core: &'w Core,
}

impl Tree {
    /// Changes under stamps drawn within `writing`.
    ///
    /// # Panics
    /// When the tree's stamps are others, or it has none.
    pub fn within<'w>(&'w self, writing: &'w Writing<'_>) -> Changes<'w> {
        let same = self.core.stamps.as_deref().is_some_and(|stamps| std::ptr::eq(stamps, writing.stamps()));
        assert!(same, "a writing of other stamps than the tree's");
        Changes { core: &self.core }
    }

    /// As [`get`](Self::get), with the newest stamp of the leaf that showed the value, or showed
    /// that there is none: no change that it may have seen has a larger one. 0 in a tree without
    /// stamps.
    pub fn get_stamped(&self, key: &[u8], out: &mut Vec<u8>) -> (bool, u64) {
        self.core.get(key, out)
    }
}

impl Changes<'_> {
    /// Puts a row; [`ChangeOutcome::Refused`] where [`Put::Insert`] finds the key, or
    /// [`Put::Update`] does not.
    pub fn put(&self, put: Put, key: &[u8], value: &[u8]) -> Result<ChangeOutcome, Error> {
        self.core.change(key, put.change(value))
    }

    /// As [`Tree::put_many`]; of each row looked at its stamp, too: a [`ChangeOutcome`]'s where
    /// the row was put or refused for its key, and 0 where it was refused for its length or found
    /// no memory.
    pub fn put_many(
        &self,
        put: Put,
        rows: &[(&[u8], &[u8])],
        refused_max: usize,
    ) -> (Vec<Result<bool, Error>>, Vec<u64>) {
        self.core.put_many(put, rows, refused_max)
    }

    /// As [`Tree::delete`]; [`ChangeOutcome::Refused`] where the key is not there.
    pub fn delete(&self, key: &[u8]) -> Result<ChangeOutcome, Error> {
        self.core.change(key, Change::Delete)
    }

    /// As [`Tree::delete_now`]; [`ChangeOutcome::Refused`] where the key is not there.
    pub fn delete_now(&self, key: &[u8]) -> Result<ChangeOutcome, Error> {
        self.core.change_now(key, Change::Delete)
    }

    /// As [`Tree::compare_and_swap`].
    pub fn compare_and_swap(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<ChangeOutcome, Error> {
        self.core.change(key, Change::Swap { expected, new })
    }
}

impl std::fmt::Debug for Changes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Changes").finish_non_exhaustive()
    }
}

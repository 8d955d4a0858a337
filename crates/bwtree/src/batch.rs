//! Many rows at once: sorted by key, and taken leaf by leaf.
//!
//! The rows of one leaf go into it together, by one new page (or several, when they do not fit into
//! one) and a single compare-and-swap of the leaf's word. What a row is told is decided on the
//! state that this word named, so each row is as atomic as if it had come alone. All rows of a leaf
//! take effect at the same instant. A lost race begins again with a fresh look, for the leaf may
//! have split.
//!
//! Rows that still find room in the leaf's chain go there as deltas: a delta copies one row where a
//! page copies all. From the row on that would find the chain full, the page is written anew in any
//! case, and the others cost next to nothing in it.

use std::ops::Range;

use crate::consolidate::{Pieces, merge};
use crate::core::Core;
use crate::descend::FoundLeaf;
use crate::epoch::Guard;
use crate::inner::Target;
use crate::newest::{Edit, Newest, Rank};
use crate::options::Error;
use crate::page::{Draft, Op, POSITION_EXACT, Piece, Rest};
use crate::stats::Counter;
use crate::write::{Change, ChangeOutcome, TRIES};

/// How the rows of a batch are put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// As [`Tree::insert`](crate::Tree::insert): `Ok(false)`, or [`Error::Exists`].
    Insert,
    /// As [`Tree::upsert`](crate::Tree::upsert): whether there was one before.
    Upsert,
    /// As [`Tree::update`](crate::Tree::update): whether it was there.
    Update,
}

impl Put {
    pub(crate) fn change(self, value: &[u8]) -> Change<'_> {
        match self {
            Put::Insert => Change::Insert(value),
            Put::Upsert => Change::Upsert(value),
            Put::Update => Change::Update(value),
        }
    }

    /// What a row is told whose key is there or not.
    fn answer(self, is_there: bool) -> Result<bool, Error> {
        match self {
            Put::Insert if is_there => Err(Error::Exists),
            _ => Ok(is_there),
        }
    }

    /// The same of what became of a single change.
    fn told(self, outcome: Result<ChangeOutcome, Error>) -> Result<bool, Error> {
        match outcome? {
            ChangeOutcome::Done { was_there, .. } => Ok(was_there),
            ChangeOutcome::Refused { is_there, .. } => self.answer(is_there),
        }
    }

    /// Whether a row that is told so leaves the tree as it is.
    fn refuses(self, answer: &Result<bool, Error>) -> bool {
        match answer {
            Ok(was_there) => self == Put::Update && !was_there,
            Err(_) => true,
        }
    }
}

/// Key and value.
pub(crate) type Row<'r> = (&'r [u8], &'r [u8]);

/// A batch on its way.
struct Batch<'r> {
    put: Put,
    rows: &'r [Row<'r>],
    /// Of each row looked at, in the batch's order. A row that was not reached says
    /// [`Error::Exhausted`].
    answers: Vec<Result<bool, Error>>,
    /// Each of these rows' stamp, as an [`ChangeOutcome`] has it; none in a tree without stamps.
    stamps: Vec<u64>,
    /// Rows refused, and how many may be.
    refused: usize,
    refused_max: usize,
}

/// Rows of a batch in the order of their keys, and of equal keys in the batch's.
struct Order<'o> {
    rows: &'o [u32],
}

impl Core {
    /// Puts rows as if one after another: what became of them and, in a tree with stamps, each
    /// one's. Looks at none behind the one that makes `refused_max` refusals, and at none behind
    /// one that finds no memory, but for those that it had sorted in front of it.
    pub(crate) fn put_many(
        &self,
        put: Put,
        rows: &[Row<'_>],
        refused_max: usize,
    ) -> (Vec<Result<bool, Error>>, Vec<u64>) {
        if let ([(key, value)], 1..) = (rows, refused_max) {
            let outcome = self.change(key, put.change(value));
            let stamps = self.stamps().map(|_| outcome.map_or(0, ChangeOutcome::stamp));
            return (vec![put.told(outcome)], stamps.into_iter().collect());
        }
        let answers = Vec::with_capacity(rows.len());
        let mut batch = Batch { put, rows, answers, stamps: Vec::new(), refused: 0, refused_max };
        let mut order = Vec::new();
        while batch.answers.len() < rows.len() && batch.refused < refused_max {
            let from = batch.answers.len();
            let ascending = 1 + rows[from..].windows(2).take_while(|pair| pair[0].0 <= pair[1].0).count();
            // More refusals than are allowed cannot be met among so few, so their order is nobody's business.
            let few = (refused_max - batch.refused).min(rows.len() - from);
            let sorted = ascending < few;
            order.clear();
            order.extend(from as u32..(from + ascending.max(few)) as u32);
            if sorted {
                let key = |row: &u32| rows[*row as usize].0;
                order.sort_unstable_by(|a, b| key(a).cmp(key(b)).then(a.cmp(b)));
            }
            batch.answers.resize_with(from + order.len(), || Err(Error::Exhausted));
            if self.stamps().is_some() {
                batch.stamps.resize(from + order.len(), 0);
            }
            let mut done = 0;
            let mut exhausted = false;
            while done < order.len() && batch.refused < refused_max && !exhausted {
                (done, exhausted) = self.put_next(&mut batch, &Order { rows: &order }, done);
            }
            if !sorted {
                batch.answers.truncate(from + done);
                batch.stamps.truncate(from + done);
            }
            if exhausted {
                break;
            }
        }
        (batch.answers, batch.stamps)
    }

    /// Puts the row at `at` of the order, and those behind it that go into the same leaf if a new
    /// page is due. How far it came, and whether there is no more memory.
    fn put_next(&self, batch: &mut Batch<'_>, order: &Order<'_>, at: usize) -> (usize, bool) {
        let mut failed = 0;
        while failed <= TRIES {
            let guard = self.enter();
            #[cfg(mutants)]
            self.draw_early(&guard);
            let found = self.find_leaf(&guard, Target::At(batch.key(order, at)));
            let end = self.same_leaf(&found, batch, order, at);
            let done = match end - at {
                0 => break,
                rows if rows + found.state.chain() <= self.chain_max() || rows == 1 || found.frozen => {
                    self.attempt_one(&guard, &found, batch, order, at)
                }
                _ => self.attempt_many(&guard, &found, batch, order, at..end),
            };
            match done {
                Ok(Some(done)) => return (done, false),
                Ok(None) => guard.count(Counter::Retries as usize, 1),
                Err(_) => {
                    // As for single changes: what is retired but not let go yet may be all that is missing.
                    self.collect(&guard, true);
                    self.relieve(&guard);
                    failed += 1;
                }
            }
        }
        // A row that takes more than one page, or is refused for its length; or there may still be room for its delta.
        let (key, value) = batch.rows[order.rows[at] as usize];
        let outcome = self.change(key, batch.put.change(value));
        let answer = batch.put.told(outcome);
        let exhausted = answer == Err(Error::Exhausted);
        batch.note(order, at, answer);
        batch.stamp(order, at, outcome.map_or(0, ChangeOutcome::stamp));
        (at + 1, exhausted)
    }

    /// One try for one row, as if it had come alone: how far that is; `None`: somebody was faster.
    fn attempt_one(
        &self,
        guard: &Guard<'_>,
        found: &FoundLeaf<'_>,
        batch: &mut Batch<'_>,
        order: &Order<'_>,
        at: usize,
    ) -> Result<Option<usize>, Error> {
        let (key, value) = batch.rows[order.rows[at] as usize];
        let (prefix, rest) = value.split_at(self.options.prefix_len);
        let draft = Draft { op: Op::Put, key, prefix, rest: Rest::Inline(rest) };
        let Some(outcome) = self.attempt_in(guard, found, &draft, batch.put.change(value))? else { return Ok(None) };
        batch.note(order, at, batch.put.told(Ok(outcome)));
        batch.stamp(order, at, outcome.stamp());
        Ok(Some(at + 1))
    }

    /// Where the rows end that belong into the leaf that was found for the first of them. A row
    /// that is refused for its length, or has a rest that takes an extent of its own, goes alone.
    fn same_leaf(&self, found: &FoundLeaf<'_>, batch: &Batch<'_>, order: &Order<'_>, at: usize) -> usize {
        let rows = order.rows[at..].iter().take(ROWS_MAX).map(|row| batch.rows[*row as usize]);
        let fits = |(key, value): &Row<'_>| {
            let rest = value.len().checked_sub(self.options.prefix_len);
            rest.is_some_and(|rest| rest <= self.inline_max())
                && key.len() <= self.options.key_max
                && value.len() <= self.options.value_max
                && !found.state.leaf.beyond(Target::At(key))
        };
        at + rows.take_while(fits).count()
    }

    /// One try under one guard: how far it came; `None`: somebody was faster.
    fn attempt_many(
        &self,
        guard: &Guard<'_>,
        found: &FoundLeaf<'_>,
        batch: &mut Batch<'_>,
        order: &Order<'_>,
        range: Range<usize>,
    ) -> Result<Option<usize>, Error> {
        let refused = batch.refused;
        let leaf = &found.state.leaf;
        let (pieces, done) = match self.append(found, batch, order, range.clone()) {
            Some(pieces) => (Some((pieces, true)), range.end),
            None => {
                let (edits, done) = self.decide(found, batch, order, range.clone());
                let rows = 0..leaf.count();
                (edits.map(|(edits, appended)| (merge(leaf, rows, edits.into_iter(), usize::MAX), appended)), done)
            }
        };
        let (outcome, stamp) = match pieces {
            // All were refused, by the state that the leaf's word named.
            None => (Ok(true), self.newest(&found.state)),
            Some((pieces, appended)) => {
                let stamp = self.draw(guard);
                (self.rewrite(guard, found, &pieces, appended, stamp), stamp)
            }
        };
        if matches!(outcome, Ok(true)) {
            // Also of the rows that were refused: the stamp just drawn is newer than all that refused them.
            (range.start..done).for_each(|row| batch.stamp(order, row, stamp));
        } else {
            // What was decided on a state that is not the tree's has not happened, and may never be looked at again.
            batch.refused = refused;
            order.rows[range.start..done].iter().for_each(|row| batch.answers[*row as usize] = Err(Error::Exhausted));
        }
        Ok(outcome?.then_some(done))
    }

    /// The leaf's rows and those of `range` behind them, where none of these can be there already
    /// or come twice, as when a table is loaded in the order of its keys; none otherwise.
    /// [`decide`](Self::decide) would say the same, row by row.
    fn append<'e, 'r: 'e>(
        &self,
        found: &'e FoundLeaf<'_>,
        batch: &mut Batch<'r>,
        order: &Order<'_>,
        range: Range<usize>,
    ) -> Option<Pieces<'e>> {
        let leaf = &found.state.leaf;
        let last = leaf.count().checked_sub(1);
        let behind = last.is_none_or(|last| leaf.key_parts(last).compare(batch.key(order, range.start)).is_lt());
        if !behind || found.state.chain() > 0 || batch.put == Put::Update {
            return None;
        }
        let mut pieces = Pieces::with_capacity(range.len() + 1);
        if let Some(last) = last {
            pieces.push(Piece::Run { leaf, from: 0, to: last + 1 });
        }
        let mut before: Option<&[u8]> = None;
        for row in &order.rows[range.clone()] {
            let (key, value) = batch.rows[*row as usize];
            if before.replace(key) == Some(key) {
                return None;
            }
            let (prefix, rest) = value.split_at(self.options.prefix_len);
            pieces.push(Piece::Row { key, prefix, rest: Rest::Inline(rest) });
        }
        range.for_each(|at| batch.note(order, at, Ok(false)));
        Some(pieces)
    }

    /// Decides on the rows of `range`, one after another, by the leaf's state. The changes to its
    /// base page, its chain's and the rows', in key order, and whether all rows go behind the base
    /// page's last one; none if every row is refused.
    #[allow(clippy::type_complexity)]
    fn decide<'e, 'r: 'e>(
        &self,
        found: &FoundLeaf<'e>,
        batch: &mut Batch<'r>,
        order: &Order<'_>,
        range: Range<usize>,
    ) -> (Option<(Vec<Edit<'e>>, bool)>, usize) {
        let leaf = &found.state.leaf;
        let mut chain = Newest::new();
        chain.add_chain(&found.state, |_| true);
        let mut older = chain.iter().peekable();
        let mut edits = Vec::with_capacity(range.len() + older.len());
        let first = batch.key(order, range.start);
        let appended = leaf.count() == 0 || leaf.key_parts(leaf.count() - 1).compare(first).is_lt();
        let (mut at, mut changes) = (range.start, false);
        while at < range.end && batch.refused < batch.refused_max {
            let key = batch.key(order, at);
            while let Some(edit) = older.next_if(|edit| edit.key < key) {
                edits.push(*edit);
            }
            let same = older.next_if(|edit| edit.key == key).copied();
            let (position, mut is_there) = match same {
                Some(edit) => (edit.place, edit.value.is_some()),
                None if appended => (Rank::of(leaf.count() as u32), false),
                None => match leaf.search(key) {
                    Ok(row) => (Rank::of(row as u32 | POSITION_EXACT), true),
                    Err(row) => (Rank::of(row as u32), false),
                },
            };
            let mut edit = same;
            while at < range.end && batch.refused < batch.refused_max && batch.key(order, at) == key {
                let answer = batch.put.answer(is_there);
                if !batch.put.refuses(&answer) {
                    let value = batch.rows[order.rows[at] as usize].1;
                    let (prefix, rest) = value.split_at(self.options.prefix_len);
                    edit = Some(Edit { place: position, at: 0, key, value: Some((prefix, Rest::Inline(rest))) });
                    (is_there, changes) = (true, true);
                }
                batch.note(order, at, answer);
                at += 1;
            }
            edits.extend(edit);
        }
        edits.extend(older.copied());
        (changes.then_some((edits, appended)), at)
    }
}

impl<'r> Batch<'r> {
    #[inline]
    fn key(&self, order: &Order<'_>, at: usize) -> &'r [u8] {
        self.rows[order.rows[at] as usize].0
    }

    #[inline]
    fn stamp(&mut self, order: &Order<'_>, at: usize, stamp: u64) {
        if let Some(of) = self.stamps.get_mut(order.rows[at] as usize) {
            *of = stamp;
        }
    }

    fn note(&mut self, order: &Order<'_>, at: usize, answer: Result<bool, Error>) {
        self.refused += usize::from(self.put.refuses(&answer));
        self.answers[order.rows[at] as usize] = answer;
    }
}

/// Rows that go into one leaf at once, at most: what a lost race does again.
const ROWS_MAX: usize = 4096;

//! Every mode against a model: any schema, any page with any deltas on it, any projection.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use overside_bwtree::{DeltaRecord, Leaf, LeafBuilder, OverflowRef, Rest};
use overside_corpus::MeteredHeap;
use overside_memory::{Buffer, Foreign, ForeignRange, Segment};
use overside_verbs::{Lender, Loan};
use proptest::prelude::*;

use super::source::Source;
use super::view::parsed;
use super::*;
use crate::key::KeyCodec;
use crate::projection::{Projection, tests::any_projection};
use crate::row::tests::{encode_row, row_of, values_of};
use crate::row::{Bytes, RowLayout, RowView, Value};
use crate::schema::Schema;

/// Counts what a walk over rows takes.
#[global_allocator]
static HEAP: MeteredHeap = MeteredHeap;

/// A piece of an arena: a page, its records and extents, and which rows a scan is to deliver.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) arena: Vec<u8>,
    page: Range<usize>,
    records: Vec<Range<usize>>,
    rows: Range<usize>,
    pub(crate) schema: Schema,
    pub(crate) projection: Projection,
    /// What the scan is to deliver.
    pub(crate) expected: Vec<Vec<Value>>,
}

/// What becomes of a row: in the base page or not, then touched by a delta or not.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Stays,
    Replaced,
    Deleted,
    Inserted,
    /// Inserted and deleted again: a delete of a row that the base page does not have.
    Gone,
}

pub(crate) fn any_world() -> impl Strategy<Value = World> {
    let fate = prop_oneof![
        6 => Just(Fate::Stays), 1 => Just(Fate::Replaced), 1 => Just(Fate::Deleted), 1 => Just(Fate::Inserted),
        1 => Just(Fate::Gone),
    ];
    let rows = proptest::collection::vec((any::<u128>(), fate, any::<u8>()), 0..60);
    (any_projection(), rows, any::<[prop::sample::Index; 2]>(), any::<bool>())
        .prop_map(|((schema, projection), rows, bounds, apart)| world(&schema, projection, rows, bounds, apart))
}

fn world(
    schema: &Schema,
    projection: Projection,
    rows: Vec<(u128, Fate, u8)>,
    bounds: [prop::sample::Index; 2],
    apart: bool,
) -> World {
    let layout = Arc::new(RowLayout::new(schema));
    let codec = KeyCodec::new(schema);
    let mut by_key = BTreeMap::new();
    for (seed, fate, far) in rows {
        let values = row_of(schema, seed);
        let bytes = encode_row(&layout, &values);
        let mut key = Vec::new();
        codec.encode_row(&RowView::of_value(&bytes, &layout).unwrap(), &mut key).unwrap();
        by_key.insert(key, (bytes, values, fate, far < 32));
    }
    let in_base = |fate: Fate| matches!(fate, Fate::Stays | Fate::Replaced | Fate::Deleted);
    let base = by_key.values().filter(|row| in_base(row.2)).count();
    let (a, b) = (bounds[0].index(base + 1), bounds[1].index(base + 1));
    let clip = a.min(b)..a.max(b);
    let mut world = World {
        arena: vec![0xee; 24],
        page: 0..0,
        records: Vec::new(),
        rows: clip.clone(),
        schema: schema.clone(),
        projection,
        expected: Vec::new(),
    };
    let mut leaf = LeafBuilder::new(layout.prefix_len());
    let mut records = Vec::new();
    let mut position = 0;
    for (key, (bytes, values, fate, far)) in &by_key {
        let (prefix, rest) = bytes.split_at(layout.prefix_len());
        let extent = (*far && !rest.is_empty()).then(|| world.extent(rest));
        let rest = extent.map_or(Rest::Inline(rest), Rest::Overflow);
        let within = clip.contains(&position);
        let inserts_within = clip.start < position && position <= clip.end || clip.contains(&position);
        if in_base(*fate) {
            // What a delta replaces is another row of the same key: none of its bytes may show.
            let stale = vec![0xdd; prefix.len()];
            let stale = if *fate == Fate::Stays { (prefix, rest) } else { (&stale[..], Rest::Inline(b"stale")) };
            leaf.push(key, stale.0, if layout.variable_columns() == 0 { Rest::Inline(&[]) } else { stale.1 }).unwrap();
        }
        let delivered = match fate {
            Fate::Stays => within,
            Fate::Replaced | Fate::Deleted if within => {
                records.push(record(*fate == Fate::Replaced, position, true, key, prefix, rest));
                *fate == Fate::Replaced
            }
            Fate::Inserted | Fate::Gone if inserts_within => {
                records.push(record(*fate == Fate::Inserted, position, false, key, prefix, rest));
                *fate == Fate::Inserted
            }
            _ => false,
        };
        if delivered {
            world.expected.push(world.projection.columns().iter().map(|&c| values[c].clone()).collect());
        }
        position += usize::from(in_base(*fate));
    }
    world.page = world.put(&leaf.finish());
    // A chain lies in the order of its making, which is not that of its keys.
    let places: Vec<_> = records
        .iter()
        .rev()
        .map(|record| {
            if apart {
                world.arena.extend_from_slice(&[0xee; 8]);
            }
            world.put(record)
        })
        .collect();
    world.records = places.into_iter().rev().collect();
    world
}

impl World {
    fn put(&mut self, bytes: &[u8]) -> Range<usize> {
        let at = self.arena.len();
        self.arena.extend_from_slice(bytes);
        at..at + bytes.len()
    }

    fn extent(&mut self, rest: &[u8]) -> OverflowRef {
        let range = self.put(rest);
        self.arena.extend_from_slice(&[0xee; 5]);
        OverflowRef { offset: range.start as u64, len: rest.len() as u32, extent: 7 }
    }

    pub(crate) fn deltas(&self) -> Vec<DeltaAt<'_>> {
        let delta = |range: &Range<usize>| DeltaAt {
            record: DeltaRecord::parse(&self.arena[range.clone()]).unwrap(),
            at: range.start as u64,
        };
        self.records.iter().map(delta).collect()
    }

    pub(crate) fn state<'a>(&'a self, deltas: &'a [DeltaAt<'a>]) -> PageState<'a> {
        let leaf = Leaf::parse(&self.arena[self.page.clone()]).unwrap();
        PageState::new(leaf, self.page.start as u64, self.rows.clone(), deltas)
    }

    fn assemble(&self, head: Vec<u8>, fragments: &[Fragment]) -> Vec<u8> {
        let mut message = head;
        for fragment in fragments {
            message.extend_from_slice(&self.arena[fragment.offset as usize..][..fragment.len as usize]);
        }
        message
    }

    pub(crate) fn gathered(&self, rows: Range<usize>, gap: u64) -> Vec<u8> {
        let deltas = self.deltas();
        let mut answer = GatherAnswer::new();
        answer.push(&self.state(&deltas), rows, &self.projection, gap);
        self.message(&answer)
    }

    fn message(&self, answer: &GatherAnswer) -> Vec<u8> {
        let mut head = vec![0; answer.head_len()];
        answer.write_head(&mut head, &self.projection, 3, 4, false);
        let message = self.assemble(head, answer.fragments());
        assert_eq!(message.len() as u64, answer.message_len());
        message
    }

    pub(crate) fn delta(&self) -> Vec<u8> {
        let deltas = self.deltas();
        let mut answer = DeltaAnswer::new();
        // The same page twice: a message may hold many.
        answer.push(&self.state(&deltas), &self.projection);
        answer.push(&self.state(&deltas), &self.projection);
        let page = Fragment { offset: self.page.start as u64, len: self.page.len() as u64 };
        let lie = page.len + deltas.iter().map(|delta| delta.record.record().len() as u64).sum::<u64>();
        let sent = answer.fragments().iter().map(|part| part.len).sum::<u64>();
        assert!(answer.fragments()[0] == page && sent >= 2 * lie, "a page and its deltas are sent from where they lie");
        let mut head = vec![0; answer.head_len()];
        answer.write_head(&mut head, &self.projection, 3, 4, true);
        let message = self.assemble(head, answer.fragments());
        assert_eq!(message.len() as u64, answer.message_len());
        message
    }

    /// Messages of at most `room` bytes that deliver all rows, or none when a row does not fit.
    pub(crate) fn copied(&self, room: usize) -> Option<Vec<Vec<u8>>> {
        let deltas = self.deltas();
        let state = self.state(&deltas);
        let extent =
            |named: OverflowRef| self.arena.get(named.offset as usize..named.offset as usize + named.len as usize);
        let (mut messages, mut from) = (Vec::new(), 0);
        while from < state.rows() {
            let mut buffer = vec![0xaa; room.max(HEADER_BYTES)];
            let mut copier = Copier::new(&mut buffer, &self.projection);
            let taken = copier.push(&state, from..state.rows(), &extent).unwrap();
            if taken == 0 {
                return None;
            }
            from += taken;
            let bytes = copier.finish(3, messages.len() as u64, from == state.rows());
            buffer.truncate(bytes);
            messages.push(buffer);
        }
        Some(messages)
    }

    pub(crate) fn read(&self, message: &[u8]) -> Vec<Vec<Value>> {
        let block = RowBlock::parse(message, &self.projection).unwrap();
        let rows: Vec<_> = block.rows().map(|row| values_of(&row)).collect();
        let mut folded = Vec::new();
        block.rows().for_each(|row| folded.push(values_of(&row)));
        assert_eq!(rows, folded, "for and for_each walk the same rows");
        let mut rest = block.rows();
        rest.next();
        assert_eq!(rest.len(), block.len().saturating_sub(1));
        assert_eq!(rest.count(), block.len().saturating_sub(1), "fold goes on where next stopped");
        assert_eq!(block.row_bytes(), block.rows().map(|row| row.len() as u64).sum::<u64>());
        for (index, row) in rows.iter().enumerate() {
            assert_eq!(values_of(&block.row(index).unwrap()), *row);
        }
        assert!(block.row(block.len()).is_none());
        rows
    }
}

/// Whoever lent vouches for it until it is told otherwise.
#[derive(Debug, Default)]
struct Vouching(AtomicBool);

impl Lender for Vouching {
    fn vouches(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }

    fn take_back(&self, _: u64) {}
}

/// A message in memory that a peer lends: in parts that end at `cuts`. The memory is the peer's to
/// write.
pub(crate) struct Lending {
    owned: Buffer,
    parts: Vec<ForeignRange>,
    lender: Arc<Vouching>,
}

impl Lending {
    pub(crate) fn of(message: &[u8], cuts: &[usize]) -> Lending {
        let bytes = message.len().max(1).next_multiple_of(4096);
        let segment = Segment::shared(bytes).unwrap();
        let fd = segment.fd().unwrap().try_clone_to_owned().unwrap();
        let foreign = Foreign::map(fd, segment.len() as u64).unwrap();
        let mut owned = segment.carve(bytes).pop().unwrap();
        // At the memory's very end, so that what reads on faults.
        let start = owned.len() - message.len();
        owned[start..].copy_from_slice(message);
        let mut ends: Vec<usize> = cuts.iter().map(|cut| *cut.min(&message.len())).chain([message.len()]).collect();
        ends.sort_unstable();
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let part = |(from, to): (usize, usize)| foreign.range((start + from) as u64, to - from).unwrap();
        let parts = starts.zip(ends.iter().copied()).map(part).collect();
        Lending { owned, parts, lender: Arc::default() }
    }

    pub(crate) fn loan(&self) -> Loan {
        Loan::new(self.parts.iter().cloned(), self.lender.clone(), 0)
    }

    pub(crate) fn revoke(&self) {
        self.lender.0.store(true, Ordering::Relaxed);
    }
}

fn lent_rows(block: &LentBlock) -> Vec<Vec<Value>> {
    fn values<P: Bytes>(row: RowView<'_, P>) -> Vec<Value> {
        (0..row.layout().columns().len()).map(|c| row.to_value(c).unwrap()).collect()
    }
    let rows: Vec<_> = block.read(|rows| rows.map(values).collect()).unwrap();
    let folded = block.read(|rows| rows.fold(Vec::new(), |mut all, row| (all.push(values(row)), all).1)).unwrap();
    assert_eq!(rows, folded, "for and fold walk the same rows");
    rows
}

/// Reads all that a lent block shows, whatever it says.
fn look_at_all_that_is_lent(block: &LentBlock) {
    fn broken<P: Bytes>(row: RowView<'_, P>) -> usize {
        (0..row.layout().columns().len()).filter(|&column| row.to_value(column).is_err()).count()
    }
    let _ = block.read(|rows| rows.map(broken).sum::<usize>());
    let _ = block.read(|rows| rows.fold(0, |all, row| all + broken(row)));
    block.row_bytes();
}

/// A delta record as the tree writes it (its own tests hold it to this form).
fn record(put: bool, position: usize, exact: bool, key: &[u8], prefix: &[u8], rest: Rest<'_>) -> Vec<u8> {
    let (prefix, rest) = if put { (prefix, rest) } else { (&[][..], Rest::Inline(&[])) };
    let mut extent = Vec::new();
    let (rest, far): (&[u8], bool) = match rest {
        Rest::Inline(bytes) => (bytes, false),
        Rest::Overflow(named) => {
            extent.extend_from_slice(&named.offset.to_le_bytes());
            extent.extend_from_slice(&named.len.to_le_bytes());
            extent.extend_from_slice(&named.extent.to_le_bytes());
            (&extent, true)
        }
    };
    let mut bytes = [0; 8].to_vec();
    bytes[..key.len().min(8)].copy_from_slice(&key[..key.len().min(8)]);
    bytes.extend_from_slice(&0u16.to_le_bytes());
    bytes.extend_from_slice(&(prefix.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&(position as u32 | u32::from(exact) << 31).to_le_bytes());
    bytes.extend_from_slice(&(rest.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&[if put { 1 } else { 2 } | u8::from(far) << 7, 0xd1]);
    bytes.extend_from_slice(prefix);
    bytes.extend_from_slice(rest);
    if key.len() > 8 {
        bytes.extend_from_slice(key);
    }
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// A message that counts what is taken out of it.
#[derive(Clone, Copy)]
struct Counted<'a> {
    message: &'a [u8],
    taken: &'a Cell<usize>,
}

impl<'a> Counted<'a> {
    fn counted(self) -> &'a [u8] {
        self.taken.set(self.taken.get() + 1);
        self.message
    }
}

impl<'a> Source<'a> for Counted<'a> {
    type Piece = &'a [u8];
    type Ahead = ();

    fn ahead(self) {}

    fn bytes(self) -> usize {
        self.message.len()
    }

    fn piece(self, at: usize, len: usize) -> Option<&'a [u8]> {
        self.counted().piece(at, len)
    }

    fn behind(self, at: usize) -> Option<&'a [u8]> {
        self.counted().behind(at)
    }

    fn slots<'c>(self, at: usize, count: usize, copies: &'c mut Vec<[u8; 4]>) -> Option<&'c [[u8; 4]]>
    where
        'a: 'c,
    {
        self.counted().slots(at, count, copies)
    }

    fn checked_slots(self, at: usize, count: usize, copies: &mut &'a [[u8; 4]]) -> Option<&'a [[u8; 4]]> {
        self.counted().checked_slots(at, count, copies)
    }
}

/// Reads all that a block shows, whatever it says.
fn look_at_everything(message: &[u8], projection: &Projection) {
    let Ok(block) = RowBlock::parse(message, projection) else { return };
    block.rows().for_each(|row| {
        let _ = (0..row.layout().columns().len()).map(|c| row.value(c)).filter(|v| v.is_err()).count();
    });
    for row in block.rows() {
        let _ = row.check();
    }
    block.row_bytes();
}

/// A server that writes into what it has lent all the while its reader parses and reads: rows are
/// wrong or refused, and that is all.
#[test]
fn a_server_that_scribbles_all_the_while_harms_nobody() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..20 {
        let world = proptest::strategy::ValueTree::current(&any_world().new_tree(&mut runner).unwrap());
        let message = world.delta();
        let lending = Lending::of(&message, &[]);
        let (loan, mut owned) = (lending.loan(), lending.owned);
        let start = owned.len() - message.len();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut seed = 1u32;
                while !stop.load(Ordering::Relaxed) {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let at = (seed >> 16) as usize % message.len();
                    // Mostly what was there, or next to nothing would be parsed.
                    owned[start + at] = if seed & 7 == 0 { seed as u8 } else { message[at] };
                }
            });
            let end = std::time::Instant::now() + std::time::Duration::from_millis(20);
            let mut builder = crate::arrow::BatchBuilder::new(&world.schema, &world.projection);
            while std::time::Instant::now() < end {
                let again = Loan::new(loan.parts().iter().cloned(), lending.lender.clone(), 0);
                if let Ok(block) = LentBlock::parse(again, &world.projection) {
                    look_at_all_that_is_lent(&block);
                    let _ = builder.push_lent(&block).and_then(|()| builder.finish());
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

proptest! {
    #[test]
    fn gather_delivers_the_state(world in any_world(), gap in 0u64..200) {
        let deltas = world.deltas();
        let rows = world.state(&deltas).rows();
        prop_assert_eq!(rows, world.expected.len());
        let message = world.gathered(0..rows, gap);
        prop_assert_eq!(world.read(&message), world.expected);
    }

    #[test]
    fn gather_of_some_rows_delivers_those(world in any_world(), bounds: [prop::sample::Index; 2], gap in 0u64..200) {
        let (a, b) = (bounds[0].index(world.expected.len() + 1), bounds[1].index(world.expected.len() + 1));
        let rows = a.min(b)..a.max(b);
        let message = world.gathered(rows.clone(), gap);
        prop_assert_eq!(world.read(&message), &world.expected[rows]);
    }

    #[test]
    fn a_page_that_is_taken_back_leaves_no_trace(world in any_world(), gap in 0u64..200) {
        let deltas = world.deltas();
        let (state, projection) = (world.state(&deltas), &world.projection);
        let (mut gather, mut delta) = (GatherAnswer::new(), DeltaAnswer::new());
        let push = |gather: &mut GatherAnswer, delta: &mut DeltaAnswer| {
            gather.push(&state, 0..state.rows(), projection, gap);
            delta.push(&state, projection);
        };
        push(&mut gather, &mut delta);
        let (gathered, pages) = (format!("{gather:?}"), format!("{delta:?}"));
        let marks = (gather.mark(), delta.mark());
        push(&mut gather, &mut delta);
        let twice = world.message(&gather);
        prop_assert_eq!(world.read(&twice), [world.expected.clone(), world.expected.clone()].concat());
        gather.rewind(&marks.0);
        delta.rewind(&marks.1);
        // Scratch space aside.
        let known = |text: &str| text.split("by_address").next().map(str::to_owned);
        prop_assert_eq!(known(&format!("{gather:?}")), known(&gathered));
        prop_assert_eq!(known(&format!("{delta:?}")), known(&pages));
        prop_assert_eq!(world.read(&world.message(&gather)), world.expected);
    }

    #[test]
    fn delta_delivers_the_state(world in any_world()) {
        let twice = [world.expected.clone(), world.expected.clone()].concat();
        let message = world.delta();
        prop_assert_eq!(world.read(&message), twice);
        let page = AnswerPage { rows: world.expected.len(), deltas: world.records.len() };
        prop_assert_eq!(RowBlock::parse(&message, &world.projection).unwrap().pages(), vec![page; 2]);
    }

    /// What a client has of a page with its deltas are places in the message, in order: nothing is
    /// copied, and nothing is put aside to be sorted (to-copy §5.3 TC-M29).
    #[test]
    fn a_client_walks_a_page_and_its_deltas_where_they_lie(world in any_world()) {
        let message = world.delta();
        let block = RowBlock::parse(&message, &world.projection).unwrap();
        let within = |bytes: &[u8]| bytes.is_empty() || message.as_ptr_range().contains(&bytes.as_ptr());
        let walk = || block.rows().filter(|row| within(row.prefix()) && within(row.rest())).count();
        let (in_place, allocated) = MeteredHeap::peak(walk);
        prop_assert_eq!(in_place, block.len());
        prop_assert_eq!(allocated, 0);
    }

    /// A client merges in one pass: it takes out each entry, record and run a few times, whatever
    /// else there is, and puts aside places alone (to-copy §5.3 TC-M29, TC-C34).
    #[test]
    fn what_parsing_takes_grows_with_the_deltas_alone(world in any_world()) {
        let message = world.delta();
        let taken = Cell::new(0);
        let (parsed, allocated) =
            MeteredHeap::peak(|| parsed(Counted { message: &message, taken: &taken }, &world.projection, &mut Vec::new()));
        let header = parsed.unwrap().header;
        let [pages, deltas, extents] = [header.entries, header.deltas, header.overflows].map(|entries| entries as usize);
        // The header, three tables, a page and its header. Of a run rows, rests and slots.
        let runs = pages + 2 * (deltas + extents);
        prop_assert!(taken.get() <= 4 + pages + deltas + 3 * runs, "{} of {:?}", taken.get(), header);
        let places = 24 * pages + 8 * deltas + 16 * extents + mem::size_of::<Run>() * runs;
        prop_assert!(allocated <= places, "{} bytes for {:?}", allocated, header);
    }

    /// It sorts nothing: its runs are the same whatever keys and rows say, and records that another
    /// one should precede are refused.
    #[test]
    fn a_client_goes_by_positions_and_not_by_keys(world in any_world(), noise in any::<u8>(), which: prop::sample::Index) {
        let message = world.delta();
        let block = RowBlock::parse(&message[..], &world.projection).unwrap();
        let place = |bytes: &[u8]| {
            let from = bytes.as_ptr().addr().wrapping_sub(message.as_ptr().addr());
            from..from + bytes.len()
        };
        let mut scrambled = message.clone();
        for row in block.rows() {
            for range in [place(row.prefix()), place(row.rest())] {
                scrambled.get_mut(range).unwrap_or_default().iter_mut().for_each(|byte| *byte ^= noise);
            }
        }
        let [pages, deltas] = [block.header().entries, block.header().deltas].map(|entries| entries as usize);
        let entries = HEADER_BYTES + 24 * pages..HEADER_BYTES + 24 * pages + 8 * deltas;
        for entry in message[entries.clone()].as_chunks::<8>().0 {
            // A record begins with its key.
            let at = u32::from_le_bytes(*entry.first_chunk().unwrap()) as usize;
            scrambled[at..at + 8].iter_mut().for_each(|byte| *byte ^= noise);
        }
        let runs = |message: &[u8]| parsed(message, &world.projection, &mut Vec::new()).map(|parsed| parsed.runs);
        prop_assert_eq!(runs(&scrambled).unwrap(), runs(&message).unwrap());
        let positions: Vec<_> = world.deltas().iter().map(|delta| delta.record.position()).collect();
        let apart = positions.windows(2).filter(|two| two[0] < two[1]).count();
        if apart > 0 {
            let nth = which.index(apart);
            let first = (0..positions.len() - 1).filter(|at| positions[*at] < positions[at + 1]).nth(nth).unwrap();
            let mut swapped = message.clone();
            let (one, other) = swapped[entries][8 * first..][..16].split_at_mut(8);
            one.swap_with_slice(other);
            prop_assert!(runs(&swapped).is_err());
        }
    }

    #[test]
    fn copy_delivers_the_state_in_as_many_messages_as_it_takes(world in any_world(), room in 100usize..3000) {
        let whole = world.copied(1 << 16).expect("all rows fit");
        prop_assert!(whole.len() <= 1);
        let rows: Vec<_> = whole.iter().flat_map(|message| world.read(message)).collect();
        prop_assert_eq!(&rows, &world.expected);
        if let Some(messages) = world.copied(room) {
            prop_assert!(messages.iter().all(|message| message.len() <= room));
            let rows: Vec<_> = messages.iter().flat_map(|message| world.read(message)).collect();
            prop_assert_eq!(&rows, &world.expected);
        }
    }

    #[test]
    fn what_is_lent_reads_as_what_is_copied(world in any_world(), gap in 0u64..200) {
        let delta = world.delta();
        let deltas = world.deltas();
        let mut answer = DeltaAnswer::new();
        answer.push(&world.state(&deltas), &world.projection);
        answer.push(&world.state(&deltas), &world.projection);
        // As it is lent: the head, and each fragment, a part of its own.
        let mut cuts = vec![answer.head_len()];
        cuts.extend(answer.fragments().iter().map(|f| f.len as usize).scan(answer.head_len(), |at, len| {
            *at += len;
            Some(*at)
        }));
        let gathered = world.gathered(0..world.expected.len(), gap);
        let twice = [world.expected.clone(), world.expected.clone()].concat();
        for (message, cuts, expected) in [(&delta, &cuts[..], &twice), (&delta, &[], &twice), (&gathered, &[], &world.expected)] {
            let lending = Lending::of(message, cuts);
            let block = LentBlock::parse(lending.loan(), &world.projection).unwrap();
            prop_assert_eq!(&lent_rows(&block), expected);
            let copied = RowBlock::parse(&message[..], &world.projection).unwrap();
            prop_assert_eq!((block.len(), block.row_bytes(), block.header()), (copied.len(), copied.row_bytes(), copied.header()));
            lending.revoke();
            prop_assert_eq!(block.read(|rows| rows.count()), Err(LentError::Revoked));
            prop_assert_eq!(LentBlock::parse(lending.loan(), &world.projection).unwrap_err(), LentError::Revoked);
        }
    }

    #[test]
    fn a_mutated_message_that_is_lent_never_panics(
        world in any_world(), changes in proptest::collection::vec((any::<u16>(), any::<u8>(), any::<bool>()), 1..6),
        cuts in proptest::collection::vec(any::<u16>(), 0..4), later in proptest::collection::vec(any::<u16>(), 0..6),
    ) {
        let mut message = world.delta();
        let place = |at: u16, head: bool, len: usize| usize::from(at) % if head { len.min(256) } else { len };
        for &(at, byte, head) in &changes {
            let at = place(at, head, message.len());
            message[at] = byte;
        }
        let cuts: Vec<usize> = cuts.into_iter().map(usize::from).collect();
        let mut lending = Lending::of(&message, &cuts);
        let lent = LentBlock::parse(lending.loan(), &world.projection);
        let copied = RowBlock::parse(&message[..], &world.projection);
        if cuts.is_empty() {
            prop_assert_eq!(lent.as_ref().err().copied(), copied.err().map(LentError::Malformed), "one parser");
        }
        let Ok(block) = lent else { return Ok(()) };
        look_at_all_that_is_lent(&block);
        // The server writes into what it has lent, after the parser has seen it.
        for at in later {
            let at = lending.owned.len() - message.len() + usize::from(at) % message.len();
            lending.owned[at] = !lending.owned[at];
            look_at_all_that_is_lent(&block);
        }
    }

    #[test]
    fn garbage_is_an_error(garbage in proptest::collection::vec(any::<u8>(), 0..400), world in any_world()) {
        prop_assert!(RowBlock::parse(&garbage[..], &world.projection).is_err());
    }

    #[test]
    fn a_mutated_message_never_panics(
        world in any_world(), gap in 0u64..100, changes in proptest::collection::vec((any::<u16>(), any::<u8>(), 0u8..6), 1..6),
    ) {
        let messages = [world.gathered(0..world.expected.len(), gap), world.delta()];
        for mut message in messages.into_iter().chain(world.copied(1 << 16).unwrap_or_default()) {
            for &(at, byte, what) in &changes {
                // Mostly within header and tables, where a change does most harm.
                let at = if what < 4 { usize::from(at) % message.len().min(256) } else { usize::from(at) % message.len() };
                match what {
                    0 => message[at] = 0xff,
                    1 => message[at] ^= 1 << (byte % 8),
                    2 => message[at] = message[at].wrapping_add(1),
                    3 => message.swap(at, at / 2),
                    _ => message[at] = byte,
                }
            }
            look_at_everything(&message, &world.projection);
            message.truncate(message.len() * usize::from(changes[0].1) / 256);
            let bytes = message.len() as u32;
            if let Some(announced) = message.get_mut(48..52) {
                announced.copy_from_slice(&bytes.to_le_bytes());
            }
            look_at_everything(&message, &world.projection);
        }
    }
}

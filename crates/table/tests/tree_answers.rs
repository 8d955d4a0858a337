//! Every mode against a real tree: what the messages of a scan show is what the tree's own iterator yields.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use overside_bwtree::page::Op;
use overside_bwtree::{Direction, HeapArena, Options, OverflowRef, PinnedPage, Rest, Tree};
use overside_table::block::{Copier, DeltaAnswer, DeltaAt, Fragment, GatherAnswer, PageState, RowBlock};
use overside_table::key::KeyCodec;
use overside_table::projection::Projection;
use overside_table::row::{RowBuilder, RowLayout, RowView, Value, ValueRef};
use overside_table::schema::{Column, ColumnType, Schema};
use proptest::prelude::*;

fn schema() -> Schema {
    let columns = vec![
        Column::new("id", ColumnType::UInt16),
        Column::nullable("version", ColumnType::Int64),
        Column::new("name", ColumnType::Utf8),
        Column::nullable("note", ColumnType::Binary),
        Column::new("price", ColumnType::Float64),
    ];
    Schema::with_key(columns, &["id"]).unwrap()
}

struct Table {
    tree: Tree,
    codec: KeyCodec,
    builder: RowBuilder,
    model: BTreeMap<Vec<u8>, Vec<Value>>,
}

impl Table {
    fn new() -> Table {
        let schema = schema();
        let layout = Arc::new(RowLayout::new(&schema));
        // Small pages, so that few rows make many, and some rests lie in extents.
        let options = Options { page_bytes: 1024, prefix_len: layout.prefix_len(), chain_max: 6, ..Options::default() };
        let tree = Tree::new(Arc::new(HeapArena::new(64 << 20).unwrap()), options).unwrap();
        let (codec, builder) = (KeyCodec::new(&schema), RowBuilder::new(layout));
        Table { tree, codec, builder, model: BTreeMap::new() }
    }

    fn put(&mut self, id: u16, version: i64, length: usize) {
        let name = format!("row {id} of version {version}");
        let note = vec![version as u8; length];
        let row = [
            ValueRef::UInt16(id),
            if version % 5 == 0 { ValueRef::Null } else { ValueRef::Int64(version) },
            ValueRef::Utf8(&name),
            if length == 0 { ValueRef::Null } else { ValueRef::Binary(&note) },
            ValueRef::Float64(version as f64 / 7.0),
        ];
        let mut key = Vec::new();
        self.codec.encode(&row[..1], &mut key).unwrap();
        self.tree.upsert(&key, self.builder.encode(&row).unwrap()).unwrap();
        self.model.insert(key, row.iter().map(ValueRef::to_owned).collect());
    }

    fn delete(&mut self, id: u16) {
        let mut key = Vec::new();
        self.codec.encode(&[ValueRef::UInt16(id)], &mut key).unwrap();
        assert_eq!(self.tree.delete(&key).unwrap(), self.model.remove(&key).is_some());
    }

    /// What the messages of a scan show, for each mode.
    fn scan(&self, from: Bound<&[u8]>, to: Bound<&[u8]>, projection: &Projection, gap: u64) -> [Vec<Vec<Value>>; 3] {
        let mut seen = [Vec::new(), Vec::new(), Vec::new()];
        for page in self.tree.pages(from, to, Direction::Forward) {
            let deltas: Vec<DeltaAt<'_>> =
                page.deltas().map(|record| DeltaAt { record, at: page.offset_of(record.record()) }).collect();
            let state = PageState::new(page.leaf(), page.offset_of(page.base()), page.rows(), &deltas);
            let memory = Memory::of(&page);

            let mut buffer = vec![0; 1 << 20];
            let mut copier = Copier::new(&mut buffer, projection);
            let find = |named: OverflowRef| page.overflow(named);
            assert_eq!(copier.push(&state, 0..state.rows(), &find).unwrap(), state.rows());
            let bytes = copier.finish(0, 0, false);
            read(&buffer[..bytes], projection, &mut seen[0]);

            let mut gather = GatherAnswer::new();
            gather.push(&state, 0..state.rows(), projection, gap);
            let mut message = vec![0; gather.head_len()];
            gather.write_head(&mut message, projection, 0, 0, false);
            memory.append(gather.fragments(), &mut message);
            read(&message, projection, &mut seen[1]);

            let mut delta = DeltaAnswer::new();
            delta.push(&state, projection);
            let mut message = vec![0; delta.head_len()];
            delta.write_head(&mut message, projection, 0, 0, false);
            memory.append(delta.fragments(), &mut message);
            read(&message, projection, &mut seen[2]);
        }
        seen
    }
}

/// All bytes that a page gave out, by arena offset.
struct Memory<'a>(Vec<(u64, &'a [u8])>);

impl<'a> Memory<'a> {
    fn of(page: &'a PinnedPage) -> Memory<'a> {
        let mut parts = vec![page.base()];
        let leaf = page.leaf();
        let mut rests: Vec<Rest<'_>> = (0..leaf.count()).map(|row| leaf.rest(row)).collect();
        for delta in page.deltas() {
            parts.push(delta.record());
            if delta.op() == Op::Put {
                rests.push(delta.rest());
            }
        }
        for rest in rests {
            if let Rest::Overflow(named) = rest {
                parts.push(page.overflow(named).unwrap());
            }
        }
        Memory(parts.into_iter().map(|part| (page.offset_of(part), part)).collect())
    }

    /// Appends the fragments' bytes; a fragment may reach over parts that touch, but over nothing that no part is.
    fn append(&self, fragments: &[Fragment], out: &mut Vec<u8>) {
        for fragment in fragments {
            let (mut at, end) = (fragment.offset, fragment.offset + fragment.len);
            while at < end {
                let part = self.0.iter().find(|(start, part)| (*start..*start + part.len() as u64).contains(&at));
                let (start, part) = part.expect("a fragment names bytes that the page did not give out");
                let upto = (end - start).min(part.len() as u64);
                out.extend_from_slice(&part[(at - start) as usize..upto as usize]);
                at = start + upto;
            }
        }
    }
}

fn read(message: &[u8], projection: &Projection, seen: &mut Vec<Vec<Value>>) {
    let block = RowBlock::parse(message, projection).unwrap();
    let columns = projection.columns().len();
    let values = |row: RowView<'_>| (0..columns).map(|c| row.value(c).unwrap().to_owned()).collect();
    seen.extend(block.rows().map(values));
}

#[derive(Clone, Debug)]
enum Change {
    Put { id: u16, version: i64, length: usize },
    Delete { id: u16 },
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let length = prop_oneof![8 => 0usize..60, 1 => 200usize..3000];
    let put = (0u16..300, 0i64..1000, length).prop_map(|(id, version, length)| Change::Put { id, version, length });
    let delete = (0u16..300).prop_map(|id| Change::Delete { id });
    proptest::collection::vec(prop_oneof![5 => put, 2 => delete], 0..500)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn all_modes_deliver_the_table(
        changes in changes(), bounds: [u16; 2], columns in 1u8..32, gap in prop_oneof![Just(0), Just(100), Just(100_000u64)],
    ) {
        let mut table = Table::new();
        for change in changes {
            match change {
                Change::Put { id, version, length } => table.put(id, version, length),
                Change::Delete { id } => table.delete(id),
            }
        }
        let chosen: Vec<usize> = (0..5).filter(|c| columns >> c & 1 == 1).rev().collect();
        let projection = Projection::new(&schema(), &chosen).unwrap();
        let pick = |values: &Vec<Value>| chosen.iter().map(|&c| values[c].clone()).collect::<Vec<_>>();

        let whole: Vec<_> = table.model.values().map(pick).collect();
        let [copy, gather, delta] = table.scan(Bound::Unbounded, Bound::Unbounded, &projection, gap);
        prop_assert_eq!(&copy, &whole);
        prop_assert_eq!(&gather, &whole);
        prop_assert_eq!(&delta, &whole);

        let (low, high) = (bounds[0].min(bounds[1]) % 320, bounds[0].max(bounds[1]) % 320);
        if low < high {
            let (low, high) = (low.to_be_bytes(), high.to_be_bytes());
            let (from, to) = (Bound::Included(&low[..]), Bound::Excluded(&high[..]));
            let range = table.model.range::<[u8], _>((from, to)).map(|(_, values)| pick(values)).collect::<Vec<_>>();
            for seen in table.scan(from, to, &projection, gap) {
                prop_assert_eq!(&seen, &range);
            }
        }
    }
}

/// Short answers are what the format is for: a page without deltas is one fragment and one run.
#[test]
fn a_clean_page_is_one_fragment() {
    let mut table = Table::new();
    (0..8).for_each(|id| table.put(id, 1, 20));
    let page_of =
        |table: &Table| table.tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward).next().unwrap();
    let fragments = |table: &Table, gap: u64| {
        let page = page_of(table);
        let deltas: Vec<DeltaAt<'_>> =
            page.deltas().map(|record| DeltaAt { record, at: page.offset_of(record.record()) }).collect();
        let state = PageState::new(page.leaf(), page.offset_of(page.base()), page.rows(), &deltas);
        let mut answer = GatherAnswer::new();
        answer.push(&state, 0..state.rows(), &Projection::whole(&schema()), gap);
        (deltas.len(), answer.fragments().len(), answer.head_len())
    };
    // Puts until the tree has consolidated them.
    while page_of(&table).delta_count() > 0 {
        let id = table.model.len() as u16 % 8;
        table.put(id, 2, 20);
    }
    assert_eq!(fragments(&table, 4), (0, 1, (64 + 24usize).next_multiple_of(64)));
    table.put(3, 7, 20);
    let (deltas, few, _) = fragments(&table, 1 << 20);
    assert_eq!((deltas, few), (1, 2), "the row that was replaced travels as a gap");
    let (_, many, _) = fragments(&table, 3);
    assert_eq!(
        many, 4,
        "prefixes before; prefixes after, slots and rests before, which touch; rests after; the record"
    );
}

/// Deltas lie in the order in which they were put; the list in a message's head has them in the page's (to-copy §5.3, TC-M29),
/// each key once.
#[test]
fn deltas_put_in_any_order_are_sent_in_the_order_of_keys() {
    let mut table = Table::new();
    (0..8).for_each(|id| table.put(2 * id, 1, 0));
    let page_of =
        |table: &Table| table.tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward).next().unwrap();
    while page_of(&table).delta_count() > 0 {
        table.put(0, 2, 0);
    }
    let consolidations = table.tree.stats().consolidations;
    table.put(12, 3, 0);
    table.put(5, 4, 0);
    table.put(12, 6, 0);
    table.delete(8);
    table.put(2, 7, 0);
    assert_eq!(table.tree.stats().consolidations, consolidations, "they are deltas");
    let page = page_of(&table);
    let deltas: Vec<DeltaAt<'_>> =
        page.deltas().map(|record| DeltaAt { record, at: page.offset_of(record.record()) }).collect();
    let places: Vec<usize> = deltas.iter().map(|delta| delta.record.position()).collect();
    assert_eq!(places, [1, 3, 4, 6], "of rows 2, 5 (before the fourth), 8 and 12");
    let lie: Vec<u64> = deltas.iter().map(|delta| delta.at).collect();
    assert!(!lie.is_sorted(), "put in another order: {lie:?}");
    let state = PageState::new(page.leaf(), page.offset_of(page.base()), page.rows(), &deltas);
    let mut answer = DeltaAnswer::new();
    answer.push(&state, &Projection::whole(&schema()));
    // The page is one entry of the list, and the small ones behind it are the deltas (to-copy §5.3, TC-M12).
    let [whole, small @ ..] = answer.fragments() else { panic!("an answer without a page") };
    assert_eq!((whole.offset, whole.len), (page.offset_of(page.base()), page.base().len() as u64));
    let bytes: usize = deltas.iter().map(|delta| delta.record.record().len()).sum();
    assert_eq!(small.iter().map(|fragment| fragment.len).sum::<u64>(), bytes as u64);
    let mut message = vec![0; answer.head_len()];
    answer.write_head(&mut message, &Projection::whole(&schema()), 0, 0, true);
    Memory::of(&page).append(answer.fragments(), &mut message);
    let mut seen = Vec::new();
    read(&message, &Projection::whole(&schema()), &mut seen);
    assert_eq!(seen, table.model.values().cloned().collect::<Vec<_>>());
}

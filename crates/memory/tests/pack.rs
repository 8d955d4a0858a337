//! Every pack kernel against a walk over each byte, on random shapes.

#[path = "../../shape/tests/cases/mod.rs"]
mod cases;

use cases::{any_case, spelt};
use overside_memory::MemoryError;
use overside_memory::pack::{Dealer, Layout, PackKernel, Packer, RowBuffer, pack, pack_periods, pack_runs, pack_with};
use overside_shape::{Bitmap, Column, Frequency, Level, Mask, Messages, Order, Run, Shape, ShapeKind};
use proptest::prelude::*;

/// Kernels that this processor runs; says of the others that they were skipped.
fn kernels() -> Vec<PackKernel> {
    let (run, skipped): (Vec<_>, Vec<_>) = PackKernel::ALL.into_iter().partition(|kernel| kernel.is_available());
    for kernel in skipped {
        eprintln!("skipped: {kernel:?}, which this processor cannot run");
    }
    run
}

/// Memory that ends where no page is mapped: reading past it ends the test.
struct Fenced {
    map: *mut u8,
    pages: usize,
    len: usize,
}

impl Fenced {
    /// Different bytes wherever two could be mistaken for each other.
    fn new(len: usize) -> Self {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
        let pages = len.next_multiple_of(4096);
        let (read_write, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: [mapping] a new mapping, of which the last page is taken away again.
        let map: *mut u8 = unsafe {
            let map = mmap_anonymous(std::ptr::null_mut(), pages + 4096, read_write, private).unwrap();
            mprotect(map.cast::<u8>().add(pages).cast(), 4096, MprotectFlags::empty()).unwrap();
            map.cast()
        };
        let out = Self { map, pages, len };
        // SAFETY: [mapping] the bytes are ours alone until `out` is handed on.
        let bytes = unsafe { std::slice::from_raw_parts_mut(map.add(pages - len), len) };
        bytes.iter_mut().zip(0u64..).for_each(|(b, i)| *b = (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8);
        out
    }
}

impl std::ops::Deref for Fenced {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: [mapping] mapped as long as `self`, and written before.
        unsafe { std::slice::from_raw_parts(self.map.add(self.pages - self.len), self.len) }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: [mapping] nobody else has the address.
        unsafe { rustix::mm::munmap(self.map.cast(), self.pages + 4096).unwrap() };
    }
}

/// Packs with every kernel into a buffer of just the length, misaligned, and looks at what lies around it.
fn check(shape: &Shape, messages: &Messages<'_>, layout: Layout, expected: &[u64], skew: usize) {
    let memory = Fenced::new(shape.end() as usize);
    let expected: Vec<u8> = expected.iter().map(|at| memory[*at as usize]).collect();
    for kernel in kernels() {
        let mut out = vec![0xEE; expected.len() + skew + 64];
        let end = skew + expected.len();
        let bytes = pack_with(kernel, layout, &memory, messages, &mut out[skew..end]).unwrap();
        assert_eq!(bytes, expected.len());
        assert_eq!(&out[skew..end], expected, "{kernel:?} {layout:?} {shape:?}");
        assert!(out[..skew].iter().chain(&out[end..]).all(|b| *b == 0xEE), "{kernel:?} wrote around its place");
    }
}

proptest! {
    /// More runs than are fetched ahead, fewer, none, and empty ones.
    #[test]
    fn runs_are_packed_one_after_another(
        places in proptest::collection::vec((0u64..3000, prop_oneof![0u64..70, 0u64..900]), 0..50),
        skew in 0usize..9,
    ) {
        let memory = Fenced::new(3900);
        let runs = || places.iter().map(|(at, len)| Run::new(*at, *len));
        let expected: Vec<u8> = runs().flat_map(|r| memory[r.at as usize..][..r.len as usize].to_vec()).collect();
        let mut out = vec![0xEE; skew + expected.len() + 9];
        let end = skew + expected.len();
        prop_assert_eq!(pack_runs(&memory, runs(), &mut out[skew..end]).unwrap(), expected.len());
        prop_assert_eq!(&out[skew..end], &expected[..]);
        prop_assert!(out[..skew].iter().chain(&out[end..]).all(|b| *b == 0xEE));
        let listed = Shape::list(&runs().filter(|r| r.len > 0).collect::<Vec<_>>());
        if let Ok(listed) = listed {
            let mut again = vec![0; expected.len()];
            pack(&memory, &listed.one_message().messages(), &mut again).unwrap();
            prop_assert_eq!(again, expected);
        }
    }
}

#[test]
fn runs_that_leave_their_memory_or_find_no_room_are_not_packed() {
    let (memory, mut out) = ([7u8; 100], [0u8; 50]);
    let mut pack = |runs: &[Run]| pack_runs(&memory, runs.iter().copied(), &mut out);
    assert!(matches!(pack(&[Run::new(0, 9), Run::new(99, 2)]), Err(MemoryError::Escapes { at: 99, len: 2, of: 100 })));
    assert!(matches!(pack(&[Run::new(u64::MAX, 2)]), Err(MemoryError::Escapes { at: u64::MAX, .. })));
    let long = pack(&[Run::new(0, 40), Run::new(50, 11)]);
    assert!(matches!(long, Err(MemoryError::Short { needed: 51, has: 50 })));
    let behind = pack(&[Run::new(0, 40), Run::new(50, 11), Run::new(0, 9), Run::new(5, u64::MAX)]);
    assert!(matches!(behind, Err(MemoryError::Short { needed: u64::MAX, has: 50 })));
    assert!(matches!(pack(&[Run::new(99, 1)]), Ok(1)));
    assert_eq!(out[40..], [0; 10], "nothing from the refused run on was written");
}

/// Runs as a caller's own iterator may give them: its clone says something else, its hint is wrong,
/// it goes on after its end, or it panics.
struct Liar {
    cloned: bool,
    turn: u64,
    says: fn(cloned: bool, turn: u64) -> Option<Run>,
}

impl Clone for Liar {
    fn clone(&self) -> Self {
        Self { cloned: true, ..*self }
    }
}

impl Iterator for Liar {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        self.turn += 1;
        (self.says)(self.cloned, self.turn)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::MAX, Some(0))
    }
}

/// How much of its room is full is the caller's word.
#[test]
fn a_place_that_says_more_than_it_has_room_for_is_refused() {
    let memory = vec![0; 8 * 640];
    let rows = Bitmap::of(640, |row| row % 3 == 0 || row % 7 == 1);
    let columns = [0, 4 * 640].map(|base| Column { base, stride: 4, width: 4 });
    let shape = Shape::bitmapped(&columns, &rows, Order::Rows).unwrap();
    // So many that their bytes wrap to none.
    for said in [1, usize::MAX / 8 + 1, usize::MAX] {
        let Some(mut dealer) = Dealer::new(&memory, &[&shape]).unwrap() else {
            assert!(PackKernel::best() < PackKernel::Avx2);
            return;
        };
        let mut room = [0; 7];
        let deal = || dealer.deal(&mut [RowBuffer { room: &mut room, rows: said }]);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(deal)).is_err(), "{said} rows");
    }
}

#[test]
fn runs_that_lie_are_packed_as_they_were_checked() {
    let memory = [7u8; 100];
    // What is written behind its place is seen, and hits nothing else.
    let mut around = [1u8; 400];
    let mut pack = |says| {
        around.fill(1);
        let packed = pack_runs(&memory, Liar { cloned: false, turn: 0, says }, &mut around[..8]);
        assert!(around[8..].iter().all(|byte| *byte == 1), "the heap is overflowed");
        packed
    };
    // One byte for the check, a clone's; more for the copy.
    let longer = pack(|cloned, turn| (turn == 1).then_some(if cloned { Run::new(0, 1) } else { Run::new(0, 64) }));
    assert!(matches!(longer, Err(MemoryError::Short { needed: 64, has: 8 })));
    let outside = pack(|cloned, turn| (turn == 1).then_some(if cloned { Run::new(0, 1) } else { Run::new(99, 8) }));
    assert!(matches!(outside, Err(MemoryError::Escapes { at: 99, len: 8, of: 100 })));
    let more = pack(|cloned, turn| (turn == 1 || !cloned && turn < 300).then_some(Run::new(0, 1)));
    assert!(matches!(more, Err(MemoryError::Short { needed: 299, has: 8 })));
    // It ends and goes on: whatever is taken of it fits.
    let revived = pack(|_, turn| (turn % 2 == 1 && turn < 300).then_some(Run::new(0, 1)));
    assert!(matches!(revived, Ok(1..=8) | Err(MemoryError::Short { has: 8, .. })), "{revived:?}");
    let panicked = std::panic::catch_unwind(|| {
        let says = |_, turn| if turn == 40 { panic!("planted") } else { Some(Run::new(0, 0)) };
        pack_runs(&[7u8; 100], Liar { cloned: false, turn: 0, says }, &mut [0u8; 8])
    });
    assert!(panicked.is_err());
}

const WIDTHS: [u64; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 40, 130];

fn width() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(4u64), 2 => Just(8u64), 5 => (0..WIDTHS.len()).prop_map(|i| WIDTHS[i])]
}

/// Rows that are set, by density from a few to all.
fn rows() -> impl Strategy<Value = Bitmap> {
    (1u64..3000, 0u64..=16, any::<u64>()).prop_map(|(rows, density, seed)| {
        let mix = |row: u64| (row ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60;
        Bitmap::of(rows, |row| mix(row.wrapping_mul(0xD1B5_4A32_D192_ED03)) < density || row == rows - 1)
    })
}

/// Columns of a table, one behind the other.
fn columns(widths: &[(u64, u64)], rows: u64) -> Vec<Column> {
    let mut at = 5;
    let place = |(width, gap): &(u64, u64)| {
        let column = Column::new(at, width + gap, *width);
        at += (width + gap) * rows + 3;
        column
    };
    widths.iter().map(place).collect()
}

fn gap() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0u64), 1 => 0u64..9]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn small_shapes_of_any_kind(case in any_case(), from in 0u64..30, len in 0u64..30, skew in 0usize..5) {
        let messages = case.shape.messages();
        check(&case.shape, &messages, Layout::Messages, &spelt(messages.fragments()), skew);
        let from = from.min(messages.count());
        let part = messages.slice(from..(from + len).min(messages.count()));
        check(&case.shape, &part, Layout::Messages, &spelt(part.fragments()), skew);
    }

    #[test]
    fn columns_under_a_bitmap(
        rows in rows(), widths in proptest::collection::vec((width(), gap()), 1..8), cut in 0u64..500, skew in 0usize..64,
    ) {
        let columns = columns(&widths, rows.rows());
        let shape = Shape::bitmapped(&columns, &rows, Order::Rows).unwrap();
        let messages = shape.messages();
        let part = messages.slice(cut.min(messages.count())..messages.count());
        let expected = spelt(part.fragments());
        check(&shape, &part, Layout::Messages, &expected, skew);
        // Column-wise: the same values, each column's together.
        let row: u64 = widths.iter().map(|(width, _)| width).sum();
        let mut by_column = Vec::new();
        let mut before = 0;
        for (width, _) in &widths {
            let values = expected.chunks(row as usize).map(|row| &row[before..before + *width as usize]);
            by_column.extend(values.flatten());
            before += *width as usize;
        }
        if matches!(shape.kind(), ShapeKind::Bitmapped { .. } | ShapeKind::Set { .. }) {
            check(&shape, &part, Layout::Columns, &by_column, skew);
        }
    }

    /// Those that whole vectors are made of: each number of columns, any part of the rows.
    #[test]
    fn dense_columns_of_four_bytes(
        rows in rows(), cut in 0u64..500, less in prop_oneof![Just(0u64), 0u64..500], skew in 0usize..64,
    ) {
        for count in 2..=8 {
            let shape = Shape::bitmapped(&columns(&vec![(4, 0); count], rows.rows()), &rows, Order::Rows).unwrap();
            let messages = shape.messages();
            let from = cut.min(messages.count());
            let part = messages.slice(from..messages.count().saturating_sub(less).max(from));
            check(&shape, &part, Layout::Messages, &spelt(part.fragments()), skew);
        }
    }

    #[test]
    fn stretch_by_stretch_it_is_the_same(
        rows in rows(), widths in proptest::collection::vec((width(), gap()), 1..6), cut in 0u64..500, room in 0usize..6000,
    ) {
        let shape = Shape::bitmapped(&columns(&widths, rows.rows()), &rows, Order::Rows).unwrap();
        let part = shape.messages().slice(cut.min(shape.messages().count())..shape.messages().count());
        let memory = Fenced::new(shape.end() as usize);
        let Some(mut packer) = Packer::new(&memory, part).unwrap() else { return Ok(()) };
        let row = part.uniform_bytes().unwrap() as usize;
        let (mut came, mut out) = (Vec::new(), vec![0xEE; room.max(row) + 64]);
        while packer.left() > 0 {
            let end = room.max(row);
            let bytes = packer.stretch(&mut out[..end]).unwrap() as usize * row;
            came.extend_from_slice(&out[..bytes]);
            prop_assert!(out[end..].iter().all(|b| *b == 0xEE));
        }
        let expected: Vec<u8> = spelt(part.fragments()).iter().map(|at| memory[*at as usize]).collect();
        prop_assert!(came == expected);
        prop_assert_eq!(packer.stretch(&mut []).unwrap(), 0);
    }

    #[test]
    fn columns_at_a_distance(
        widths in proptest::collection::vec((width(), 0u64..3), 1..10), count in 1u64..2000, cut in 0u64..300, skew in 0usize..64,
    ) {
        // One of one, two, three or four elements.
        let at: Vec<u64> = widths.iter().scan(1, |at, (width, of)| { *at += 1; Some(std::mem::replace(at, *at + width * (of + 1) * count)) }).collect();
        let stride = |((width, of), at): (&(u64, u64), &u64)| Shape::strided(*at, width * (of + 1), count, &[Run::new(0, *width)]).unwrap();
        let shape = Shape::set(widths.iter().zip(&at).map(stride).collect(), Mask::Rows).unwrap();
        let messages = shape.messages();
        let part = messages.slice(cut.min(messages.count())..messages.count());
        check(&shape, &part, Layout::Messages, &spelt(part.fragments()), skew);
    }

    /// Rows that take one element of each region, and of a region several elements a period (DR-M12).
    #[test]
    fn columns_of_several_elements_a_period(
        regions in proptest::collection::vec((1u64..4, 0u64..3, width()), 2..5), count in 1u64..200, cut in 0u64..300, skew in 0usize..64,
    ) {
        // `take` of `take + left` elements a period; as many elements in each region.
        let elements = 12 * count;
        let mut base = 1;
        let mut region = |(take, left, width): &(u64, u64, u64)| {
            let (of, count) = (take + left, elements / take);
            let at = base;
            base += width * of * count;
            Shape::every(Frequency { base: at, width: *width, take: *take, of, start: left / 2, count }).unwrap()
        };
        let shape = Shape::set(regions.iter().map(&mut region).collect(), Mask::Rows).unwrap();
        prop_assert_eq!(shape.messages().count(), elements);
        let messages = shape.messages();
        let part = messages.slice(cut.min(messages.count())..messages.count());
        check(&shape, &part, Layout::Messages, &spelt(part.fragments()), skew);
    }

    #[test]
    fn rows_of_a_pattern(
        runs in proptest::collection::vec((1u64..9, width()), 1..5), tail in 0u64..9, count in 1u64..300, jumps in any::<bool>(), skew in 0usize..64,
    ) {
        let mut at = 0;
        let runs: Vec<Run> = runs.into_iter().map(|(gap, width)| { at += gap + width; Run::new(at - width, width) }).collect();
        let period = at + tail;
        let shape = if jumps {
            let row = |i: u64| (i * 7919 % count) * period;
            Shape::mapped((0..count).map(row).collect::<Vec<_>>(), &runs).unwrap()
        } else {
            Shape::strided(3, period, count, &runs).unwrap()
        };
        check(&shape, &shape.messages(), Layout::Messages, &spelt(shape.fragments()), skew);
    }

    #[test]
    fn bitmaps_of_their_own_in_one_set(
        bits in proptest::collection::vec((rows(), width()), 1..4), skew in 0usize..64,
    ) {
        let elements = bits.iter().map(|(rows, _)| rows.ones()).min().unwrap_or(0);
        let column = |(i, (rows, width)): (usize, &(Bitmap, u64))| {
            let last = rows.select(elements - 1).unwrap();
            Shape::bitmapped(&[Column::dense(i as u64, *width)], &rows.slice(0..last + 1), Order::Rows).unwrap()
        };
        let regions: Vec<Shape> = bits.iter().enumerate().map(column).collect();
        for mask in [Mask::Rows, Mask::Periods] {
            let shape = Shape::set(regions.clone(), mask).unwrap();
            check(&shape, &shape.messages(), Layout::Messages, &spelt(shape.fragments()), skew);
        }
    }
}

#[test]
fn a_few_periods_in_each_of_many() {
    // The first and the last of four columns; three runs of an odd width; a row of rows of rows.
    let of = |levels: &[Level], runs: &[Run]| Shape::nested(5, levels, runs).unwrap();
    let shapes = [
        of(&[Level::new(32, 70), Level::new(24, 2)], &[Run::new(0, 8)]),
        of(&[Level::new(40, 70), Level::new(9, 3)], &[Run::new(0, 3), Run::new(4, 2)]),
        of(&[Level::new(2000, 3), Level::new(64, 9), Level::new(20, 2)], &[Run::new(0, 6)]),
    ];
    for shape in shapes {
        let all = shape.messages();
        for from in 0..9.min(all.count()) {
            let messages = all.slice(from..all.count() - from % 4);
            check(&shape, &messages, Layout::Messages, &spelt(messages.fragments()), from as usize % 5);
        }
    }
}

#[test]
fn long_runs_at_every_misalignment() {
    for len in [33u64, 63, 64, 65, 127, 128, 129, 255, 256, 257, 320, 1000, 4097] {
        for skew in [0, 1, 15, 16, 31, 32, 33, 63] {
            let shape = Shape::contiguous(7, len).unwrap();
            check(&shape, &shape.messages(), Layout::Messages, &(7..7 + len).collect::<Vec<_>>(), skew);
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_written() {
    let shape = Shape::strided(0, 8, 10, &[Run::new(0, 4)]).unwrap();
    let mut out = [7; 40];
    let escapes = pack(&[0; 75], &shape.messages(), &mut out);
    assert!(matches!(escapes, Err(MemoryError::Escapes { len: 76, of: 75, .. })));
    let short = pack(&[0; 76], &shape.messages(), &mut out[..39]);
    assert!(matches!(short, Err(MemoryError::Short { needed: 40, has: 39 })));
    assert_eq!(out, [7; 40]);
    assert_eq!(pack(&[0; 76], &shape.messages(), &mut out).unwrap(), 40);
}

/// Elements are what a set takes of a region at a time; alone, its rows are packed all the same.
#[test]
fn rows_of_a_bitmap_are_packed_whatever_its_elements_are() {
    let rows = Bitmap::of(500, |row| row % 3 == 1 || row % 7 == 2);
    for columns in [&[Column::dense(8, 4)][..], &[Column::dense(8, 4), Column::dense(3000, 4)]] {
        let shape = Shape::bitmapped(columns, &rows, Order::Rows).unwrap();
        for shape in [shape.clone().elements_of(2).unwrap(), shape.clone().one_message(), shape] {
            let messages = shape.messages();
            for part in [messages, messages.slice(messages.count() / 2..messages.count())] {
                check(&shape, &part, Layout::Messages, &spelt(part.fragments()), 3);
            }
        }
    }
}

/// Whom each row goes to: any number of destinations, few of them or hundreds, one or more rows at a time, some rows to nobody.
fn dealt_rows() -> impl Strategy<Value = (usize, Vec<Option<usize>>)> {
    let of = prop_oneof![1usize..4, Just(8usize), 30usize..40, Just(255usize)];
    of.prop_flat_map(|of| {
        let rows = proptest::collection::vec(proptest::option::weighted(0.9, 0..of), 1..1500);
        (Just(of), rows)
    })
}

proptest! {
    /// However the rooms are cut, each destination's rows are those that packing its shape by itself makes, and nothing else is
    /// written; memory ends where the last row does.
    #[test]
    fn rows_are_dealt_as_each_destination_packs_them(
        (of, to) in dealt_rows(), columns in 2u64..9, first in 0u64..150, rooms in proptest::collection::vec(1usize..400, 4), skew in 0u64..5,
    ) {
        let rows = to.len() as u64 + first;
        let at: Vec<Column> = (0..columns).map(|i| Column::dense(skew + (columns - 1 - i) * rows * 4, 4)).collect();
        let shapes: Vec<Shape> = (0..of)
            .map(|of| Bitmap::of(rows, |row| row >= first && to[(row - first) as usize] == Some(of)))
            .filter(|bits| bits.ones() > 0)
            .map(|bits| Shape::bitmapped(&at, &bits, Order::Rows).unwrap())
            .filter(|shape| matches!(shape.kind(), ShapeKind::Bitmapped { .. }))
            .collect();
        prop_assume!(!shapes.is_empty());
        let memory = Fenced::new((skew + columns * rows * 4) as usize);
        let row_bytes = columns as usize * 4;
        let expected: Vec<Vec<u8>> = shapes.iter().map(|shape| {
            let mut out = vec![0; shape.bytes() as usize];
            pack(&memory, &shape.messages(), &mut out).unwrap();
            out
        }).collect();
        for kernel in kernels().into_iter().filter(|kernel| *kernel >= PackKernel::Avx2) {
            let refs: Vec<&Shape> = shapes.iter().collect();
            let mut dealer = Dealer::with(kernel, &memory, &refs).unwrap().expect("rows of one table");
            prop_assert_eq!(dealer.row_bytes(), row_bytes);
            let mut out: Vec<Vec<u8>> = shapes.iter().map(|shape| vec![0xEE; shape.bytes() as usize + 9]).collect();
            let mut done = vec![0usize; shapes.len()];
            let mut turn = 0;
            while !dealer.is_done() {
                let mut places: Vec<RowBuffer<'_>> = out.iter_mut().zip(&done).enumerate().map(|(i, (out, done))| {
                    let left = (out.len() - 9) / row_bytes - done;
                    let room = rooms[(i + turn) % rooms.len()].min(left);
                    RowBuffer { room: &mut out[done * row_bytes..][..room * row_bytes], rows: 0 }
                }).collect();
                dealer.deal(&mut places);
                let rows: Vec<usize> = places.iter().map(|place| place.rows).collect();
                prop_assert!(dealer.is_done() || places.iter().any(|place| place.room.len() == place.rows * row_bytes));
                done.iter_mut().zip(rows).for_each(|(done, rows)| *done += rows);
                turn += 1;
            }
            for ((out, expected), done) in out.iter().zip(&expected).zip(done) {
                prop_assert_eq!(done * row_bytes, expected.len());
                prop_assert_eq!(&out[..expected.len()], &expected[..], "{:?}", kernel);
                prop_assert!(out[expected.len()..].iter().all(|b| *b == 0xEE), "{:?} wrote behind its place", kernel);
            }
        }
    }

    /// Rows that two destinations want go to both.
    #[test]
    fn a_row_may_go_to_several(bits in proptest::collection::vec((any::<bool>(), any::<bool>()), 200..600)) {
        let rows = bits.len() as u64;
        let at: Vec<Column> = (0..3).map(|i| Column::dense(i * rows * 4, 4)).collect();
        let wants = [Bitmap::of(rows, |row| bits[row as usize].0), Bitmap::of(rows, |row| bits[row as usize].1)];
        let shapes = wants.map(|wants| Shape::bitmapped(&at, &wants, Order::Rows).unwrap());
        let memory = Fenced::new((rows * 12) as usize);
        let dealer = Dealer::new(&memory, &[&shapes[0], &shapes[1]]).unwrap();
        let Some(mut dealer) = dealer else { return Ok(()) };
        let mut out = [vec![0; shapes[0].bytes() as usize], vec![0; shapes[1].bytes() as usize]];
        let [a, b] = &mut out;
        dealer.deal(&mut [RowBuffer { room: a, rows: 0 }, RowBuffer { room: b, rows: 0 }]);
        for (shape, out) in shapes.iter().zip(&out) {
            let mut expected = vec![0; shape.bytes() as usize];
            pack(&memory, &shape.messages(), &mut expected).unwrap();
            prop_assert_eq!(out, &expected);
        }
    }
}

#[test]
fn only_rows_of_one_table_are_dealt() {
    let bits = |salt: u64| Bitmap::of(500, |row| (row * 7 + row / 11) % 3 == salt);
    let columns = |from: u64, width: u64| [Column::dense(from, width), Column::dense(from + 8000, width)];
    let shape = |from, width, salt| Shape::bitmapped(&columns(from, width), &bits(salt), Order::Rows).unwrap();
    let memory = vec![0u8; 20_000];
    let dealt = |shapes: &[&Shape]| Dealer::new(&memory, shapes).unwrap().is_some();
    let vectors = PackKernel::best() >= PackKernel::Avx2;
    let (one, other) = (shape(0, 4, 0), shape(0, 4, 1));
    assert_eq!(dealt(&[&one, &other]), vectors);
    assert!(!dealt(&[&one, &shape(2, 4, 1)]), "columns between the values");
    assert!(!dealt(&[&one, &shape(0, 8, 1)]), "values of another width");
    assert!(!dealt(&[&one, &Shape::contiguous(0, 8).unwrap()]));
    assert!(!dealt(&[&one, &other.clone().one_message()]), "rows that are no messages");
    assert!(!dealt(&[]));
    let escapes = Dealer::new(&memory[..9000], &[&one, &other]);
    assert!(matches!(escapes, Err(MemoryError::Escapes { of: 9000, .. })));
}

proptest! {
    /// Periods are packed as the strided shape of them is, and nothing behind the last one is read.
    #[test]
    fn periods_are_packed_as_their_shape_is(
        period in 1usize..200, count in 0usize..90, seeds in proptest::collection::vec((any::<u16>(), 0u64..40), 1..6), tail in 0usize..8,
    ) {
        let mut runs = Vec::new();
        let mut at = 0;
        for (gap, len) in seeds {
            let run = Run::new(at + u64::from(gap % 9), len);
            if run.at + run.len > period as u64 {
                break;
            }
            at = run.at + run.len;
            runs.push(run);
        }
        let memory = Fenced::new(period * count + tail.min(period - 1));
        let bytes = count * runs.iter().map(|run| run.len as usize).sum::<usize>();
        let mut out = vec![0xaa; bytes + 3];
        prop_assert_eq!(pack_periods(&memory, period, &runs, &mut out).unwrap(), bytes);
        let shape = Shape::strided(0, period as u64, count as u64, &runs).unwrap();
        let mut expected = vec![0; bytes];
        pack(&memory, &shape.messages(), &mut expected).unwrap();
        prop_assert_eq!(&out[..bytes], &expected[..]);
        prop_assert_eq!(&out[bytes..], &[0xaa; 3]);
        let escaping = [Run::new(period as u64 - 1, 2)];
        let escaped = matches!(pack_periods(&memory, period, &escaping, &mut out), Err(MemoryError::Escapes { .. }));
        prop_assert!(escaped);
        if let Some(short) = bytes.checked_sub(1) {
            let refused = pack_periods(&memory, period, &runs, &mut out[..short]);
            let short = matches!(refused, Err(MemoryError::Short { .. }));
            prop_assert!(short, "{:?}", refused);
        }
    }
}

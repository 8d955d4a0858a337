//! Random shapes, each with a list of its bytes.

use overside_shape::{Bitmap, Column, Level, Mask, Order, Run, Shape};
use proptest::prelude::*;

/// A shape and what it must say: the bytes of each message and of each element, in order.
#[derive(Clone, Debug)]
pub struct Case {
    pub shape: Shape,
    pub messages: Vec<Vec<u64>>,
    pub elements: Vec<Vec<u64>>,
}

impl Case {
    fn cut(shape: Shape, units: Vec<Vec<u64>>) -> Self {
        Self { shape, messages: units.clone(), elements: units }
    }
}

pub fn bytes(run: Run) -> impl Iterator<Item = u64> {
    run.at..run.at + run.len
}

pub fn units(rows: impl IntoIterator<Item = u64>, runs: &[Run]) -> Vec<Vec<u64>> {
    let row = |at: u64| runs.iter().flat_map(|r| bytes(Run::new(at + r.at, r.len))).collect();
    rows.into_iter().map(row).collect()
}

pub fn runs() -> impl Strategy<Value = Vec<Run>> {
    proptest::collection::vec((0u64..4, 1u64..5), 1..4).prop_map(|skips| {
        let mut at = 0;
        let place = |(skip, len)| {
            at += skip + len;
            Run::new(at - len, len)
        };
        skips.into_iter().map(place).collect()
    })
}

pub fn reach(runs: &[Run]) -> u64 {
    runs.last().map_or(0, |r| r.at + r.len)
}

pub fn strided() -> impl Strategy<Value = Case> {
    (0u64..50, runs(), proptest::collection::vec((0u64..5, 1u64..5), 1..4)).prop_map(|(base, runs, levels)| {
        let (mut inside, mut starts, mut out) = (reach(&runs), vec![base], Vec::new());
        for (gap, count) in levels {
            let period = inside + gap;
            out.insert(0, Level::new(period, count));
            inside += (count - 1) * period;
        }
        for level in out.iter() {
            starts = starts.iter().flat_map(|s| (0..level.count).map(move |i| s + i * level.period)).collect();
        }
        Case::cut(Shape::nested(base, &out, &runs).unwrap(), units(starts, &runs))
    })
}

pub fn list() -> impl Strategy<Value = Case> {
    proptest::collection::vec((0u64..90, 0u64..6), 0..6).prop_map(|ranges| {
        let ranges: Vec<Run> = ranges.into_iter().map(|(at, len)| Run::new(at, len)).collect();
        let all: Vec<u64> = ranges.iter().flat_map(|r| bytes(*r)).collect();
        let shape = Shape::list(&ranges).unwrap();
        Case::cut(shape, if all.is_empty() { vec![] } else { vec![all] })
    })
}

pub fn bits() -> impl Strategy<Value = Vec<bool>> {
    prop_oneof![
        proptest::collection::vec(any::<bool>(), 1..150),
        (1usize..5, 1usize..90).prop_map(|(step, rows)| (0..rows).map(|i| i % step == 0).collect()),
    ]
}

pub fn bitmap(bits: &[bool]) -> Bitmap {
    Bitmap::of(bits.len() as u64, |row| bits[row as usize])
}

pub fn bitmapped() -> impl Strategy<Value = Case> {
    let column = (0u64..9000, 0u64..3, 1u64..6).prop_map(|(at, gap, width)| Column::new(at, width + gap, width));
    (bits(), proptest::collection::vec(column, 1..4), any::<bool>()).prop_map(|(bits, columns, by_row)| {
        let rows: Vec<u64> = (0..bits.len() as u64).filter(|r| bits[*r as usize]).collect();
        let value = |c: &Column, row: u64| bytes(Run::new(c.base + row * c.stride, c.width)).collect::<Vec<_>>();
        let units = if by_row {
            rows.iter().map(|row| columns.iter().flat_map(|c| value(c, *row)).collect()).collect()
        } else {
            columns.iter().flat_map(|c| rows.iter().map(|row| value(c, *row))).collect()
        };
        let order = if by_row { Order::Rows } else { Order::Columns };
        Case::cut(Shape::bitmapped(&columns, &bitmap(&bits), order).unwrap(), units)
    })
}

pub fn mapped() -> impl Strategy<Value = Case> {
    let rows = prop_oneof![
        proptest::collection::vec(0u64..900, 0..20),
        (0u64..9, 1u64..30, 0u64..20).prop_map(|(at, step, count)| (0..count).map(|i| at + i * step).collect()),
    ];
    (rows, runs()).prop_map(|(rows, runs)| Case::cut(Shape::mapped(rows.clone(), &runs).unwrap(), units(rows, &runs)))
}

pub fn variable() -> impl Strategy<Value = Case> {
    let lengths = prop_oneof![
        proptest::collection::vec(0u64..5, 1..150),
        (1u64..5, 1usize..99).prop_map(|(width, values)| vec![width; values]),
    ];
    (0u64..40, 0u64..9, lengths, proptest::option::of(bits())).prop_map(|(data, first, lengths, bits)| {
        let mut offsets = vec![first];
        lengths.iter().for_each(|len| offsets.push(offsets[offsets.len() - 1] + len));
        let chosen = |i: usize| bits.as_ref().is_none_or(|bits| bits[i % bits.len()]);
        let value = |i: usize| bytes(Run::new(data + offsets[i], lengths[i])).collect();
        let units: Vec<Vec<u64>> = (0..lengths.len()).filter(|i| chosen(*i)).map(value).collect();
        let rows = bits.is_some().then(|| Bitmap::of(lengths.len() as u64, |row| chosen(row as usize)));
        Case::cut(Shape::variable(data, offsets.clone(), rows.as_ref()).unwrap(), units)
    })
}

/// Regions of a set get one and the same number of elements by dropping what is too much.
pub fn set() -> impl Strategy<Value = Case> {
    let region = prop_oneof![
        (0u64..500, 1u64..5, 0u64..5).prop_map(|(at, width, gap)| (at, width, width + gap, None)),
        (0u64..500, 1u64..5, 0u64..3, bits()).prop_map(|(at, width, gap, bits)| (at, width, width + gap, Some(bits))),
    ];
    (proptest::collection::vec(region, 1..5), 1u64..40, any::<bool>(), proptest::option::of(0u64..60)).prop_map(
        |(regions, elements, by_row, text)| {
            let mut cases: Vec<Case> = Vec::new();
            for (at, width, stride, bits) in regions {
                let rows: Vec<u64> = match bits {
                    Some(bits) => (0..)
                        .filter(|row| bits[*row as usize % bits.len()] || row % 3 == 0)
                        .take(elements as usize)
                        .collect(),
                    None => (0..elements).collect(),
                };
                let set = Bitmap::of(rows[rows.len() - 1] + 1, |row| rows.binary_search(&row).is_ok());
                let shape = Shape::bitmapped(&[Column::new(at, stride, width)], &set, Order::Rows).unwrap();
                cases.push(Case::cut(shape, units(rows.iter().map(|r| at + r * stride), &[Run::new(0, width)])));
            }
            if let Some(at) = text {
                let mut offsets = vec![at];
                (0..elements).for_each(|i| offsets.push(offsets[i as usize] + i * 7 % 5));
                let value = |i: usize| (offsets[i]..offsets[i + 1]).collect();
                let units = (0..elements as usize).map(value).collect();
                cases.push(Case::cut(Shape::variable(0, offsets.clone(), None).unwrap(), units));
            }
            let shapes = cases.iter().map(|c| c.shape.clone()).collect();
            let mask = if by_row { Mask::Rows } else { Mask::Periods };
            let messages = if by_row {
                (0..elements as usize).map(|i| cases.iter().flat_map(|c| c.elements[i].clone()).collect()).collect()
            } else {
                cases.iter().flat_map(|c| c.messages.clone()).collect()
            };
            Case::cut(Shape::set(shapes, mask).unwrap(), messages)
        },
    )
}

pub fn any_case() -> impl Strategy<Value = Case> {
    prop_oneof![strided(), list(), bitmapped(), mapped(), variable(), set()]
}

/// All bytes of fragments in turn.
pub fn spelt(fragments: impl Iterator<Item = Run>) -> Vec<u64> {
    fragments.flat_map(bytes).collect()
}

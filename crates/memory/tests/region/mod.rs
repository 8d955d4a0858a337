//! What a receiver does with a description from elsewhere: any bytes are refused or pack what a walk over the fragments finds.

use overside_memory::pack::{Layout, PackKernel, pack_with};
use overside_shape::{Bitmap, Column, Mask, Order, Run, Shape};

/// Whether the bytes were taken for a region of a memory of [`MEMORY_BYTES`].
///
/// # Panics
/// When what is packed is not what the region names, or its description is not read again as the same region.
pub fn described_and_packed(description: &[u8]) -> bool {
    let Ok(shape) = Shape::described(description, MEMORY_BYTES as u64) else { return false };
    let mut again = Vec::new();
    shape.describe(&mut again);
    assert_eq!(again.len() as u64, shape.description_bytes());
    assert_eq!(Shape::described(&again, MEMORY_BYTES as u64).as_ref(), Ok(&shape));
    // As long as the shape, so that reading past its end is reading past an allocation.
    let memory: Vec<u8> = (0..shape.end()).map(|at| (at * 31 + (at >> 8)) as u8).collect();
    let all = shape.messages();
    for from in [0, all.count() / 2] {
        let mut messages = all.slice(from..all.count().min(from + MESSAGES_MAX));
        while messages.bytes() > OUT_BYTES && messages.count() > 1 {
            messages = messages.slice(0..messages.count() / 2);
        }
        if messages.bytes() > OUT_BYTES {
            continue;
        }
        let expected: Vec<u8> =
            messages.fragments().flat_map(|run| &memory[run.at as usize..][..run.len as usize]).copied().collect();
        assert_eq!(expected.len() as u64, messages.bytes());
        assert_eq!(messages.lengths().sum::<u64>(), messages.bytes());
        for kernel in PackKernel::ALL.into_iter().filter(|kernel| kernel.is_available()) {
            let mut out = vec![0; expected.len()];
            let packed = pack_with(kernel, Layout::Messages, &memory, &messages, &mut out);
            assert_eq!(packed.ok(), Some(expected.len()));
            assert!(out == expected, "{kernel:?} packs other bytes of {shape:?}");
        }
    }
    true
}

/// A description of each kind of region.
pub fn seeds() -> Vec<Vec<u8>> {
    let rows = Bitmap::of(200, |row| row % 3 == 1 || row % 7 == 2);
    let columns = [Column::dense(8, 4), Column::dense(2000, 8), Column::new(5000, 6, 3)];
    let column = |at| Shape::strided(at, 12, 9, &[Run::new(0, 4)]);
    let offsets: Vec<u64> = (0..70u64).map(|at| at * at / 3).collect();
    let shapes = [
        Shape::contiguous(77, 600),
        Shape::column(64, 8, 40),
        Shape::strided(5, 40, 90, &[Run::new(0, 4), Run::new(9, 7)]),
        Shape::list(&[Run::new(9, 3), Run::new(1, 2), Run::new(4000, 96)]),
        Shape::bitmapped(&columns, &rows, Order::Rows),
        Shape::bitmapped(&columns, &rows, Order::Columns),
        Shape::mapped(vec![900u64, 20, 20, 3000], &[Run::new(1, 3), Run::new(9, 30)]),
        Shape::variable(100, offsets.clone(), None),
        Shape::variable(100, offsets, Some(&Bitmap::of(69, |row| row % 2 == 0 || row > 50))),
        Shape::set(vec![column(0).unwrap(), column(4).unwrap(), Shape::column(300, 8, 9).unwrap()], Mask::Rows),
    ];
    let described = |shape: Result<Shape, _>| {
        let mut out = Vec::new();
        shape.expect("a seed is a shape").describe(&mut out);
        out
    };
    shapes.into_iter().map(described).collect()
}

const MEMORY_BYTES: usize = 1 << 16;
const OUT_BYTES: u64 = 1 << 16;
const MESSAGES_MAX: u64 = 300;

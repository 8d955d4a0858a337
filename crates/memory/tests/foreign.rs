//! Packing from a peer's memory: the same bytes as from one's own, within bounds, and whatever the peer writes meanwhile.

#[path = "../../shape/tests/cases/mod.rs"]
mod cases;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cases::{any_case, spelt};
use overside_memory::{Buffer, Foreign, MemoryError, Segment};
use overside_shape::{Bitmap, Column, Order, Run, Shape};
use proptest::prelude::*;

/// A peer's segment with different bytes in it, as the peer and as we have it.
fn peer(len: usize) -> (Buffer, Foreign) {
    let segment = Segment::shared(len).unwrap();
    let len = segment.len();
    let passed: OwnedFd = segment.fd().unwrap().try_clone_to_owned().unwrap();
    let mut buffer = segment.carve(len).pop().unwrap();
    buffer.iter_mut().zip(0u64..).for_each(|(byte, at)| *byte = (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8);
    (buffer, Foreign::map(passed, len as u64).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_described_shape_is_packed_from_the_peers_memory(case in any_case(), at in 0u64..100, from in 0u64..20, len in 0u64..30) {
        let mut description = Vec::new();
        case.shape.describe(&mut description);
        let shape = Shape::described(&description, u64::MAX).unwrap();
        let (memory, foreign) = peer((at + shape.end()).max(1) as usize);
        let from = from.min(shape.messages().count());
        let messages = shape.messages();
        let messages = messages.slice(from..(from + len).min(messages.count()));
        let expected: Vec<u8> = spelt(messages.fragments()).into_iter().map(|byte| memory[(at + byte) as usize]).collect();
        let mut out = vec![0xEE; expected.len() + 64];
        prop_assert_eq!(foreign.pack(at, shape.end(), &messages, &mut out[..expected.len()]).unwrap(), expected.len());
        prop_assert_eq!(&out[..expected.len()], &expected);
        prop_assert!(out[expected.len()..].iter().all(|byte| *byte == 0xEE), "it wrote behind its place");
    }
}

#[test]
fn what_leaves_the_memory_or_the_buffer_is_refused() {
    let (_memory, foreign) = peer(4096);
    let shape = Shape::strided(0, 64, 64, &[Run::new(0, 4)]).unwrap();
    let messages = shape.messages();
    let mut out = [0xEE; 256];
    assert!(foreign.pack(0, 4096, &messages, &mut out).is_ok());
    out.fill(0xEE);
    let escapes = |at, len| matches!(foreign.pack(at, len, &messages, &mut [0; 256]), Err(MemoryError::Escapes { .. }));
    assert!(escapes(0, shape.end() - 1), "the shape leaves its part");
    assert!(escapes(64, 4096) && escapes(u64::MAX, 4096) && escapes(1, u64::MAX), "the part leaves the memory");
    assert!(matches!(foreign.pack(0, 4096, &messages, &mut out[..255]), Err(MemoryError::Short { .. })));
    assert!(out.iter().all(|byte| *byte == 0xEE), "nothing is written then");
}

/// Words that are written whole are read whole, each as it was at some moment; nothing worse happens.
#[test]
fn what_a_peer_writes_meanwhile_is_packed_or_not() {
    const ROWS: u64 = 4096;
    let (memory, foreign) = peer((ROWS * 8) as usize);
    let words = memory.address().cast::<u64>();
    // SAFETY: [test] the peer's words, aligned and in bounds, reached here by atomics alone.
    let word = |row: u64| unsafe { AtomicU64::from_ptr(words.add(row as usize)) };
    (0..ROWS).for_each(|row| word(row).store(row, Ordering::Relaxed));
    let rows = Bitmap::of(ROWS, |row| row % 3 == 0 || row % 7 == 1);
    let shape = Arc::new(Shape::bitmapped(&[Column::dense(0, 8)], &rows, Order::Rows).unwrap());
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut out = vec![0; shape.bytes() as usize];
            for _ in 0..200 {
                foreign.pack(0, ROWS * 8, &shape.messages(), &mut out).unwrap();
                for (row, value) in rows.ones_from(0).zip(out.as_chunks::<8>().0) {
                    let value = u64::from_ne_bytes(*value);
                    assert!(value == row || value == row | 1 << 63, "row {row} was never {value:#x}");
                }
            }
            enough.store(true, Ordering::Release);
        });
        let mut top = 1 << 63;
        while !enough.load(Ordering::Acquire) && !reader.is_finished() {
            (0..ROWS).for_each(|row| word(row).store(row | top, Ordering::Relaxed));
            top ^= 1 << 63;
        }
    });
}

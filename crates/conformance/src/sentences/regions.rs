//! Regions: one request whose messages are made at the other end.

use std::sync::Arc;

use overside_shape::{Bitmap, Column, Mask, Order, Run, Shape, ShapeError};
use overside_verbs::declared::{Framing, bundle};
use overside_verbs::probe::{Act, Area};
use overside_verbs::{Opcode, Status};

use super::needs;
use crate::ends::{Pair, QP, owes, pattern};
use crate::{Harness, Stop};

/// A SEND that a region comes to: its bytes with lengths in front, and its immediate data.
type Expected = (Vec<u8>, Option<u32>);

pub(super) fn region(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    needs(pair.a.capabilities.region_bytes_max > 0, "region_bytes_max")?;
    let (from, to) = (pair.a.area(AREA_BYTES)?, pair.b.area(AREA_BYTES)?);
    from.write(0, &pattern(3, AREA_BYTES))?;
    for shape in shapes().map_err(|error| Stop::Broken(error.to_string()))? {
        let shape = Arc::new(shape);
        for bundle_bytes in [shape.bytes() / 9 + 1, BUFFER_BYTES as u64] {
            // Offsets count from the start of the memory that the region is declared over.
            let memory = from.piece(AT, AREA_BYTES - AT)?;
            let expected = sends(&shape, bundle_bytes, &from)?;
            owes!(expected.len() <= SENDS_MAX, "the check's own shapes come to {} SENDs", expected.len());
            let sent = pair.a.post(QP, Act::Region(memory, shape.clone(), bundle_bytes), true, false)?;
            // One receive is missing at first: the region waits for it, half made.
            let (most, last) = (expected.len() - 1, expected.len());
            arrive(&mut pair, &to, &expected[..most], 0)?;
            owes!(!pair.a.has(sent), "a region completed before its last SEND was placed: {shape:?}");
            arrive(&mut pair, &to, &expected[most..last], most)?;
            pair.finish(&[sent], &[])?;
            let done = pair.a.success(sent)?;
            owes!(done.opcode == Opcode::Send, "a region completed as {:?}", done.opcode);
            pair.quiet();
            owes!(pair.a.reports(sent) == 1, "a region was reported {} times", pair.a.reports(sent));
        }
    }
    too_long(&mut pair, &from, &to)
}

/// Receives SENDs `expected` in buffers from number `first` on, and looks at them and behind them.
fn arrive(pair: &mut Pair, to: &Area, expected: &[Expected], first: usize) -> Result<(), Stop> {
    let place = |index: usize| (first + index) * PITCH;
    let mut got = Vec::new();
    for index in 0..expected.len() {
        to.write(place(index), &[0xAA; PITCH])?;
        got.push(pair.b.receive(Some(QP), to.piece(place(index), BUFFER_BYTES)?)?);
    }
    pair.finish(&[], &got)?;
    for (index, (bytes, immediate)) in expected.iter().enumerate() {
        let done = pair.b.success(got[index])?;
        owes!(done.opcode == Opcode::Receive, "a region's SEND was received as {:?}", done.opcode);
        owes!(done.bytes == bytes.len() as u64, "SEND {index} has {} of {} bytes", done.bytes, bytes.len());
        owes!(done.immediate == *immediate, "SEND {index} has {:?}, not {immediate:?}", done.immediate);
        owes!(to.read(place(index), bytes.len())? == *bytes, "SEND {index} has other bytes than its region");
        let behind = to.read(place(index) + bytes.len(), PITCH - bytes.len())?;
        owes!(behind.iter().all(|byte| *byte == 0xAA), "bytes behind SEND {index} changed");
    }
    Ok(())
}

/// A SEND of a region that is longer than its receive ends both, as any message does.
fn too_long(pair: &mut Pair, from: &Area, to: &Area) -> Result<(), Stop> {
    let shape = Shape::strided(0, 300, 20, &[Run::new(0, 200)]).map_err(|error| Stop::Broken(error.to_string()))?;
    to.write(0, &[0xAA; PITCH])?;
    let got = pair.b.receive(Some(QP), to.piece(0, 399)?)?;
    let memory = from.piece(AT, AREA_BYTES - AT)?;
    let sent = pair.a.post(QP, Act::Region(memory, Arc::new(shape), 400), true, false)?;
    pair.finish(&[sent], &[got])?;
    for done in [pair.a.completion(sent), pair.b.completion(got)].into_iter().flatten() {
        owes!(done.status == Status::TooLong, "a SEND longer than its receive ended as {:?}", done.status);
    }
    owes!(to.read(399, PITCH - 399)?.iter().all(|byte| *byte == 0xAA), "bytes outside of the receive changed");
    Ok(())
}

/// What a region must come to, walked fragment by fragment.
fn sends(shape: &Shape, bundle_bytes: u64, from: &Area) -> Result<Vec<Expected>, Stop> {
    let all = shape.messages();
    let (mut next, mut out) = (0, Vec::new());
    while next < all.count() {
        let slice = bundle::first(&all.slice(next..all.count()), bundle_bytes);
        let framing = Framing::of(&slice);
        let mut bytes = vec![0; framing.head_bytes()];
        bundle::write_lengths(&slice, &mut bytes);
        for run in slice.fragments() {
            bytes.extend(from.read(AT + run.at as usize, run.len as usize)?);
        }
        out.push((bytes, framing.immediate()));
        next += slice.count();
    }
    Ok(out)
}

/// One of each kind; rows that descend and repeat among them.
fn shapes() -> Result<Vec<Shape>, ShapeError> {
    let rows = Bitmap::of(400, |row| row % 3 == 1 || row % 7 == 2);
    let columns: Vec<Column> = (0..3).map(|column| Column::dense(column * 1700, 4)).collect();
    let column = |at| Shape::strided(at, 12, 90, &[Run::new(0, 4)]);
    let offsets: Vec<u64> = (0..60u64).map(|at| at * at / 3).collect();
    Ok(vec![
        Shape::column(64, 8, 100)?,
        Shape::strided(5, 40, 90, &[Run::new(0, 4), Run::new(9, 7)])?,
        Shape::bitmapped(&columns, &rows, Order::Rows)?,
        Shape::bitmapped(&columns, &rows, Order::Columns)?,
        Shape::mapped(vec![900u64, 20, 20, 3000, 7, 1500], &[Run::new(1, 30), Run::new(40, 5)])?,
        Shape::variable(100, offsets.clone(), None)?,
        Shape::variable(100, offsets, Some(&Bitmap::of(59, |row| row % 2 == 0)))?,
        Shape::set(vec![column(0)?, column(2000)?, Shape::column(5000, 8, 90)?], Mask::Rows)?,
        Shape::list(&[Run::new(4000, 96), Run::new(9, 3), Run::new(1, 2)])?,
    ])
}

const AREA_BYTES: usize = 1 << 18;
/// Where the regions' memory begins in its segment.
const AT: usize = 4032;
const BUFFER_BYTES: usize = 6 << 10;
/// From one receive to the next.
const PITCH: usize = 8 << 10;
const SENDS_MAX: usize = 24;

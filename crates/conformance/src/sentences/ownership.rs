//! Whose bytes they are, and when.

use overside_verbs::probe::{Act, Data};
use overside_verbs::{Access, Status};

use crate::ends::{Pair, QP, owes, part, pattern};
use crate::{Harness, Stop};

pub(super) fn own(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let from = pair.a.area(1 << 16)?;
    let to = pair.b.area(1 << 16)?;
    to.write(0, &vec![OURS; to.len()])?;
    let message = pattern(1, LEN);
    from.write(0, &message)?;

    // Before the post: a message waits, its receive is not posted yet.
    let sent = pair.a.send(QP, Data::Gather(vec![from.piece(0, LEN)?]), None)?;
    pair.quiet();
    owes!(to.read(0, to.len())?.iter().all(|b| *b == OURS), "bytes changed before a receive named them");
    let got = pair.b.receive(Some(QP), to.piece(4096, LEN)?)?;
    pair.finish(&[sent], &[got])?;
    let around = [to.read(0, 4096)?, to.read(4096 + LEN, to.len() - 4096 - LEN)?].concat();
    owes!(around.iter().all(|b| *b == OURS), "bytes outside of the posted receive changed");

    // After the completion: they are ours again, whatever else arrives.
    to.write(4096, &[OURS; LEN])?;
    for i in 0..8 {
        pair.message(from.piece(0, LEN)?, to.piece(8192 + i * 1024, LEN)?)?;
    }
    pair.quiet();
    owes!(to.read(4096, LEN)?.iter().all(|b| *b == OURS), "bytes changed after their completion was returned");

    // A flushed receive is ours too, though the peer goes on.
    let flushed = pair.b.receive(Some(QP), to.piece(32768, LEN)?)?;
    pair.b.probe.close(QP);
    pair.until("a receive is flushed by close", |pair| pair.b.has(flushed))?;
    let last = pair.a.request(Act::Send(Data::Gather(vec![from.piece(0, LEN)?]), None), true, false);
    pair.a.probe.post(QP, &[last]);
    pair.quiet();
    owes!(to.read(32768, LEN)?.iter().all(|b| *b == OURS), "the bytes of a flushed receive changed");
    Ok(())
}

pub(super) fn private(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let one_sided = pair.a.capabilities.one_sided;
    let (from, _) = pair.a.readable(1 << 16, Access::LOCAL)?;
    let (to, token) = pair.b.readable(1 << 16, Access::LOCAL)?;
    let message = pattern(2, LEN);
    from.write(0, &message)?;
    pair.message(from.piece(0, LEN)?, to.piece(0, LEN)?)?;

    from.write(0, &pattern(3, LEN))?;
    pair.quiet();
    owes!(to.read(0, LEN)? == message, "the sender changed a completed receive by writing into its own memory");
    pair.message(from.piece(0, LEN)?, to.piece(4096, LEN)?)?;
    pair.quiet();
    owes!(to.read(0, LEN)? == message, "a later message changed a completed receive");
    if one_sided {
        // Nobody granted the right to write it.
        let write = Act::Write(Data::Gather(vec![from.piece(0, LEN)?]), part(token, 0, LEN as u64), None);
        let slot = pair.a.post(QP, write, true, false)?;
        pair.finish(&[slot], &[])?;
        owes!(to.read(0, LEN)? == message, "a peer wrote into a completed receive");
        read_is_private(harness)?;
    }
    Ok(())
}

/// The sink of a READ is the reader's once it has completed.
fn read_is_private(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let (source, token) = pair.b.readable(4096, Access::LOCAL | Access::REMOTE_READ)?;
    let sink = pair.a.area(4096)?;
    let bytes = pattern(4, LEN);
    source.write(0, &bytes)?;
    let read = pair.a.post(QP, Act::Read(sink.piece(0, LEN)?, part(token, 0, LEN as u64)), true, false)?;
    pair.finish(&[read], &[])?;
    pair.a.success(read)?;
    source.write(0, &pattern(5, LEN))?;
    pair.quiet();
    owes!(sink.read(0, LEN)? == bytes, "the target changed a completed READ by writing into its own memory");
    Ok(())
}

pub(super) fn placed(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let len = (pair.a.capabilities.message_max as usize).min(256 << 10);
    let from = pair.a.area(len)?;
    let to = pair.b.area(len)?;
    for round in 0..8 {
        let message = pattern(10 + round, len);
        from.write(0, &message)?;
        // There is no buffer yet that the bytes could be in.
        let sent = pair.a.send(QP, Data::Gather(vec![from.piece(0, len)?]), None)?;
        pair.quiet();
        owes!(!pair.a.has(sent), "a SEND was reported before its peer had a receive for it");
        let got = pair.b.receive(Some(QP), to.piece(0, len)?)?;
        // Whoever moves first: at the moment of the report, the bytes are there.
        pair.until("a SEND that meets a receive completes", |pair| pair.a.has(sent) || pair.b.has(got))?;
        if pair.a.has(sent) {
            owes!(to.read(0, len)? == message, "a SEND was reported before its bytes were in the peer's buffer");
        }
        pair.finish(&[sent], &[got])?;
        pair.a.success(sent)?;
        pair.b.success(got)?;
        owes!(to.read(0, len)? == message, "a receive was reported before its bytes were there");
    }
    if pair.a.capabilities.one_sided { placed_by_write(harness, len) } else { Ok(()) }
}

fn placed_by_write(harness: &dyn Harness, len: usize) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let from = pair.a.area(len)?;
    let (window, token) = pair.b.window(len, Access::REMOTE_WRITE)?;
    for round in 0..8 {
        let message = pattern(20 + round, len);
        from.write(0, &message)?;
        let write = Act::Write(Data::Gather(vec![from.piece(0, len)?]), part(token, 0, len as u64), None);
        let slot = pair.a.post(QP, write, true, false)?;
        pair.finish(&[slot], &[])?;
        let done = pair.a.completion(slot).map(|done| done.status);
        owes!(done == Some(Status::Success), "a WRITE within its grant ended with {done:?}");
        let mut there = vec![0; len];
        window.read(0, &mut there)?;
        owes!(there == message, "a WRITE was reported before its bytes were in the peer's memory");
    }
    Ok(())
}

const LEN: usize = 700;
const OURS: u8 = 0x77;

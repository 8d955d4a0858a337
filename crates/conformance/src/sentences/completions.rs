//! What is reported, how often and in which order.

use std::collections::HashSet;

use overside_verbs::probe::{Act, Area, Data, Request};
use overside_verbs::{Access, Status};

use crate::ends::{End, Pair, QP, owes, part, pattern};
use crate::{Harness, Stop};

pub(super) fn accept(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let from = pair.a.area(1 << 16)?;
    let to = pair.b.area(1 << 16)?;
    // More than fits, while nothing can leave: each message is its own number.
    let count = pair.a.capabilities.depth_max.min(4096) * 2 + 16;
    let mut requests = numbered(&mut pair.a, &from, count)?;
    let (accepted, error) = pair.a.probe.post(QP, &requests);
    owes!(error.is_none(), "a full queue is no error, but post said {error:?}");
    owes!(accepted <= requests.len(), "post accepted {accepted} of {}", requests.len());
    owes!(accepted > 0, "post accepted nothing on an empty queue");
    let refused: HashSet<u32> = requests[accepted..].iter().map(|request| request.slot).collect();
    let mut posted: Vec<u32> = requests.drain(..accepted).map(|request| request.slot).collect();
    deliver(&mut pair, &to, 0, accepted)?;
    pair.quiet();
    owes!(!pair.a.done.iter().any(|done| refused.contains(&done.slot)), "a refused request was reported");
    // What was refused is posted again, and nothing of it is there twice.
    while !requests.is_empty() {
        let (more, error) = pair.a.probe.post(QP, &requests);
        owes!(error.is_none(), "a full queue is no error, but post said {error:?}");
        let before = posted.len();
        posted.extend(requests.drain(..more).map(|request| request.slot));
        deliver(&mut pair, &to, before, more)?;
    }
    pair.finish(&posted, &[])?;
    for slot in posted {
        owes!(pair.a.reports(slot) == 1, "an accepted request was reported {} times", pair.a.reports(slot));
    }
    what_can_never_be_accepted(harness)?;
    receives_beyond_the_depth(harness)
}

fn numbered(end: &mut End, from: &Area, count: usize) -> Result<Vec<Request>, Stop> {
    let mut requests = Vec::new();
    for i in 0..count {
        let at = i % (from.len() / 8) * 8;
        if i < from.len() / 8 {
            from.write(at, &(i as u64).to_le_bytes())?;
        }
        requests.push(end.request(Act::Send(Data::Gather(vec![from.piece(at, 8)?]), None), true, false));
    }
    Ok(requests)
}

/// Receives messages `first..first + count`, in order.
fn deliver(pair: &mut Pair, to: &Area, first: usize, count: usize) -> Result<(), Stop> {
    for i in first..first + count {
        let got = pair.b.receive(Some(QP), to.piece(0, 64)?)?;
        pair.finish(&[], &[got])?;
        pair.b.success(got)?;
        let expected = (i % (NUMBERS_BYTES / 8)) as u64;
        owes!(to.read(0, 8)? == expected.to_le_bytes(), "message {i} is not the {i}th that was accepted");
    }
    Ok(())
}

/// A request that breaks a limit is an error; the ones before it were accepted, it and the ones
/// after were not.
fn what_can_never_be_accepted(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let capabilities = pair.a.capabilities.clone();
    let from = pair.a.area(4096)?;
    let to = pair.b.area(4096)?;
    let piece = from.piece(0, 8)?;
    let good = || Act::Send(Data::Gather(vec![piece.clone()]), None);
    let unregistered = Area::new(overside_memory::Segment::shared(4096)?);
    let mut bad = vec![Act::Send(Data::Gather(vec![unregistered.piece(0, 8)?]), None)];
    if capabilities.sge_max < 4096 {
        bad.push(Act::Send(Data::Gather(vec![from.piece(0, 1)?; capabilities.sge_max + 1]), None));
    }
    if capabilities.inline_max < 1 << 16 {
        bad.push(Act::Send(Data::Inline(vec![1; capabilities.inline_max + 1]), None));
    }
    for bad in bad {
        let batch: Vec<Request> =
            [good(), bad, good()].into_iter().map(|act| pair.a.request(act, true, false)).collect();
        let (accepted, error) = pair.a.probe.post(QP, &batch);
        owes!(accepted == 1 && error.is_some(), "of good, bad, good: {accepted} accepted and the error {error:?}");
        let got = [pair.b.receive(Some(QP), to.piece(0, 64)?)?, pair.b.receive(Some(QP), to.piece(64, 64)?)?];
        pair.finish(&[batch[0].slot], &[got[0]])?;
        pair.quiet();
        owes!(!pair.b.has(got[1]), "a request after the refused one was sent");
        owes!(!pair.a.has(batch[1].slot) && !pair.a.has(batch[2].slot), "a refused request was reported");
        // Leaves no receive behind for the next round.
        let last = pair.a.send(QP, Data::Gather(vec![piece.clone()]), None)?;
        pair.finish(&[last], &[got[1]])?;
    }
    Ok(())
}

fn receives_beyond_the_depth(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let count = pair.b.capabilities.depth_max.min(4096) * 2 + 16;
    let to = pair.b.area(64 * count)?;
    let mut batch = Vec::new();
    for i in 0..count {
        batch.push((pair.b.slot(), to.piece(i * 64, 64)?));
    }
    let accepted = pair.b.probe.post_receive(Some(QP), &batch)?;
    owes!(accepted > 0 && accepted <= count, "of {count} receives {accepted} were accepted");
    pair.b.probe.close(QP);
    let posted: Vec<u32> = batch.iter().map(|(slot, _)| *slot).collect();
    pair.finish(&[], &posted[..accepted])?;
    pair.quiet();
    owes!(!posted[accepted..].iter().any(|slot| pair.b.has(*slot)), "a refused receive was reported");
    Ok(())
}

pub(super) fn once(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let (from, to) = (pair.a.area(4096)?, pair.b.area(1 << 16)?);
    from.write(0, &pattern(30, 4096))?;
    let (mut sent, mut got) = (Vec::new(), Vec::new());
    for round in 0..40 {
        for i in 0..16 {
            got.push(pair.b.receive(Some(QP), to.piece(i * 4096, 4096)?)?);
        }
        for i in 0..16 {
            sent.push(pair.a.send(QP, Data::Gather(vec![from.piece(0, (round * 61 + i * 250) % 4096)?]), None)?);
        }
        pair.finish(&sent, &got)?;
    }
    // What is pending when the end comes is reported once as well.
    for i in 0..8 {
        got.push(pair.b.receive(Some(QP), to.piece(i * 4096, 4096)?)?);
    }
    pair.b.probe.close(QP);
    pair.finish(&sent, &got)?;
    pair.quiet();
    for (end, slots) in [(&pair.a, &sent), (&pair.b, &got)] {
        let wrong = slots.iter().find(|slot| end.reports(**slot) != 1);
        owes!(wrong.is_none(), "a request was reported {} times", wrong.map_or(0, |slot| end.reports(*slot)));
        owes!(end.done.len() == slots.len(), "{} reports of {} requests", end.done.len(), slots.len());
    }
    Ok(())
}

pub(super) fn silent(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let (from, to) = (pair.a.area(4096)?, pair.b.area(1 << 16)?);
    let data = || Ok::<_, Stop>(Data::Gather(vec![from.piece(0, 100)?]));
    for round in 0..10 {
        let mut got = Vec::new();
        let mut quiet = Vec::new();
        for i in 0..8 {
            got.push(pair.b.receive(Some(QP), to.piece(i * 4096, 4096)?)?);
        }
        for _ in 0..7 {
            quiet.push(pair.a.post(QP, Act::Send(data()?, None), false, false)?);
        }
        let loud = pair.a.send(QP, data()?, None)?;
        pair.finish(&[loud], &got)?;
        pair.quiet();
        let spoke = quiet.iter().find_map(|slot| pair.a.completion(*slot));
        owes!(spoke.is_none(), "round {round}: an unsignalled success was reported: {spoke:?}");
    }
    // A failure is never silent.
    let lost = pair.a.post(QP, Act::Send(data()?, None), false, false)?;
    pair.quiet();
    pair.a.probe.close(QP);
    pair.finish(&[lost], &[])?;
    let status = pair.a.completion(lost).map(|done| done.status);
    owes!(status == Some(Status::Flushed), "an unsignalled request that was flushed ended with {status:?}");
    Ok(())
}

pub(super) fn room(harness: &dyn Harness) -> Result<(), Stop> {
    for pieces in [1, usize::MAX] {
        let mut pair = Pair::new(harness)?;
        let capabilities = pair.a.capabilities.clone();
        let pieces = pieces.min(capabilities.sge_max).min(4096);
        let (from, to) = (pair.a.area(4096)?, pair.b.area(4096)?);
        let count = capabilities.depth_max.min(4096) * 2 + 16;
        let mut requests = Vec::new();
        for _ in 0..count {
            let data = Data::Gather(vec![from.piece(0, 1)?; pieces]);
            requests.push(pair.a.request(Act::Send(data, None), false, false));
        }
        let (accepted, error) = pair.a.probe.post(QP, &requests);
        owes!(error.is_none() && accepted < count, "{accepted} of {count} were accepted, with the error {error:?}");
        for _ in 0..accepted {
            let got = pair.b.receive(Some(QP), to.piece(0, pieces)?)?;
            pair.finish(&[], &[got])?;
        }
        let told = "whoever waits for room in a queue of silent requests hears of it";
        pair.until(told, |pair| !pair.a.done.is_empty())?;
        let last = pair.a.done[pair.a.done.len() - 1];
        owes!(last.status == Status::Success && pair.a.reports(last.slot) == 1, "it was told so by {last:?}");
        let (more, error) = pair.a.probe.post(QP, &requests[accepted..accepted + 1]);
        owes!(more == 1 && error.is_none(), "there was room, and {more} of 1 was accepted, with the error {error:?}");
    }
    Ok(())
}

pub(super) fn order(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let capabilities = pair.a.capabilities.clone();
    let (from, to) = (pair.a.area(1 << 16)?, pair.b.area(1 << 18)?);
    let sink = pair.a.area(1 << 16)?;
    let one_sided = if capabilities.one_sided {
        let (_, readable) = pair.b.readable(1 << 16, Access::LOCAL | Access::REMOTE_READ)?;
        let (_, writable) = pair.b.window(1 << 16, Access::REMOTE_WRITE)?;
        Some((readable, writable))
    } else {
        None
    };
    let large = (capabilities.message_max as usize).min(60_000);
    let mut expected = Vec::new();
    for round in 0..20 {
        let mut posted = Vec::new();
        let mut got = Vec::new();
        posted.push(pair.a.send(QP, Data::Gather(vec![from.piece(0, large)?]), None)?);
        posted.push(pair.a.send(QP, Data::Inline(pattern(round, capabilities.inline_max.min(8))), None)?);
        if let Some((readable, writable)) = one_sided {
            let read = Act::Read(sink.piece(0, large)?, part(readable, 0, large as u64));
            posted.push(pair.a.post(QP, read, true, false)?);
            let write = Act::Write(Data::Gather(vec![from.piece(0, 64)?]), part(writable, 0, 64), None);
            posted.push(pair.a.post(QP, write, true, false)?);
        }
        posted.push(pair.a.send(QP, Data::Gather(vec![from.piece(0, 1)?]), None)?);
        // The first message waits; what was posted after it must not overtake its report.
        pair.turn();
        for i in 0..3 {
            got.push(pair.b.receive(Some(QP), to.piece(i << 16, 1 << 16)?)?);
        }
        pair.finish(&posted, &got)?;
        expected.extend(posted);
    }
    let seen: Vec<u32> = pair.a.done.iter().map(|done| done.slot).collect();
    let wrong = seen.iter().zip(&expected).position(|(seen, expected)| seen != expected);
    owes!(wrong.is_none(), "the reports of one queue pair are not in the order of posting, from number {wrong:?}");
    for slot in expected {
        pair.a.success(slot)?;
    }
    Ok(())
}

/// Bytes of the area that holds the numbers of `accept`.
const NUMBERS_BYTES: usize = 1 << 16;

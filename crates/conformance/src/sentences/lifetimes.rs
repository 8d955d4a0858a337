//! How connections end, and who notices.

use std::time::{Duration, Instant};

use overside_verbs::probe::{Act, Data};
use overside_verbs::{Access, PortEvent, Status};

use crate::ends::{End, Pair, QP, connect, owes, part, pattern};
use crate::second::READY;
use crate::{Harness, Stop};

pub(super) fn close(harness: &dyn Harness) -> Result<(), Stop> {
    for by_a in [true, false] {
        let mut pair = Pair::new(harness)?;
        let areas = [pair.a.area(1 << 16)?, pair.b.area(1 << 16)?];
        // Both ends have sends that meet no receive... of theirs, one has receives that meet no send.
        let mut of_a = Vec::new();
        for i in 0..8 {
            of_a.push(pair.a.post(
                QP,
                Act::Send(Data::Gather(vec![areas[0].piece(0, 100)?]), None),
                i % 2 == 0,
                false,
            )?);
        }
        let mut of_b = Vec::new();
        pair.quiet();
        owes!(pair.a.done.is_empty(), "a SEND completed without a receive");
        for i in 0..4 {
            let piece = areas[0].piece(4096 + i * 512, 512)?;
            of_a.push(pair.a.receive(Some(QP), piece)?);
        }
        if by_a {
            pair.a.probe.close(QP)
        } else {
            pair.b.probe.close(QP)
        }
        pair.finish(&of_a, &[])?;
        let other = if by_a { &mut pair.b } else { &mut pair.a };
        other.until("the other end hears of the end", |end| !end.events.is_empty())?;
        // Posting to it after that is refused or flushed, and never succeeds.
        let late =
            other.request(Act::Send(Data::Gather(vec![areas[usize::from(by_a)].piece(0, 1)?]), None), true, false);
        if let (1, None) = other.probe.post(QP, std::slice::from_ref(&late)) {
            if by_a { of_b.push(late.slot) } else { of_a.push(late.slot) }
        }
        if by_a {
            pair.b.probe.close(QP)
        } else {
            pair.a.probe.close(QP)
        }
        pair.finish(&of_a, &of_b)?;
        pair.quiet();
        for (end, slots) in [(&pair.a, &of_a), (&pair.b, &of_b)] {
            for slot in slots {
                let status = end.completion(*slot).map(|done| done.status);
                owes!(
                    matches!(status, Some(Status::Flushed | Status::PeerDied)),
                    "what was pending at the close ended with {status:?}"
                );
                owes!(end.reports(*slot) == 1, "what was pending was reported {} times", end.reports(*slot));
            }
        }
        receives_of_the_other_end(harness, by_a)?;
    }
    Ok(())
}

/// The receives of both ends come back, whichever closes; the port takes new connections
/// afterwards.
fn receives_of_the_other_end(harness: &dyn Harness, by_a: bool) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let areas = [pair.a.area(4096)?, pair.b.area(4096)?];
    let got_a = pair.a.receive(Some(QP), areas[0].piece(0, 512)?)?;
    let got_b = pair.b.receive(Some(QP), areas[1].piece(0, 512)?)?;
    pair.turn();
    if by_a {
        pair.a.probe.close(QP)
    } else {
        pair.b.probe.close(QP)
    }
    pair.finish(&[got_a], &[got_b])?;
    if by_a {
        pair.b.probe.close(QP)
    } else {
        pair.a.probe.close(QP)
    }
    pair.quiet();
    let Pair { a, b } = &mut pair;
    let (of_a, of_b) = connect(harness, a, b)?;
    let got = b.receive(Some(of_b), areas[1].piece(0, 512)?)?;
    let sent = a.send(of_a, Data::Gather(vec![areas[0].piece(512, 100)?]), None)?;
    pair.finish(&[sent], &[got])?;
    pair.a.success(sent)?;
    pair.b.success(got)?;
    what_ended_silently(harness)
}

/// Requests that succeeded silently before the end: the last of them is reported.
fn what_ended_silently(harness: &dyn Harness) -> Result<(), Stop> {
    for by_a in [true, false] {
        let mut pair = Pair::new(harness)?;
        let (from, to) = (pair.a.area(4096)?, pair.b.area(4096)?);
        let mut silent = Vec::new();
        for i in 0..3 {
            let got = pair.b.receive(Some(QP), to.piece(i * 100, 100)?)?;
            silent.push(pair.a.post(QP, Act::Send(Data::Gather(vec![from.piece(0, 100)?]), None), false, false)?);
            pair.finish(&[], &[got])?;
        }
        pair.quiet();
        owes!(pair.a.done.is_empty(), "an unsignalled success was reported: {:?}", pair.a.done);
        if by_a {
            pair.a.probe.close(QP)
        } else {
            pair.b.probe.close(QP);
            pair.a.until("the other end hears of the end", |end| !end.events.is_empty())?;
            pair.a.probe.close(QP);
        }
        let last = silent[2];
        pair.until("the last that ended silently is reported at the end", |pair| pair.a.has(last))?;
        // A device that says nothing of the others does not know that they have ended either.
        let success = |slot| pair.a.completion(slot).is_some_and(|done| done.status == Status::Success);
        owes!(!success(silent[0]) && !success(silent[1]), "successes before the last were reported as well");
    }
    Ok(())
}

pub(super) fn death(harness: &dyn Harness) -> Result<(), Stop> {
    let mut end = End::open(harness.provider())?;
    let name = harness.name();
    let mut listener = end.provider.listen(&end.domain, &name)?;
    let Some(mut doomed) = harness.doomed(&name) else {
        return Err(Stop::Skipped("this harness has no second process to kill".into()));
    };
    let link = listener.accept(START)?.ok_or_else(|| Stop::Broken("the second process did not connect".into()))?;
    let qp = end.attach(link)?;
    let area = end.area(1 << 16)?;
    let ready = end.receive(Some(qp), area.piece(0, 64)?)?;
    end.until("the second process says that it is there", |end| end.has(ready))?;
    end.success(ready)?;
    owes!(area.read(0, READY.len())? == READY, "the second process said something else");
    let mut pending = Vec::new();
    for i in 0..4 {
        pending.push(end.receive(Some(qp), area.piece(4096 + i * 512, 512)?)?);
        pending.push(end.send(qp, Data::Gather(vec![area.piece(0, 64)?]), None)?);
    }
    end.turn();
    let died = Instant::now();
    doomed.kill();
    end.until("a death is noticed", |end| !end.events.is_empty() && pending.iter().all(|slot| end.has(*slot)))?;
    let took = died.elapsed();
    owes!(took < NOTICED, "a death was reported after {took:?}");
    let PortEvent::Disconnected { queue_pair, status, .. } = &end.events[0];
    owes!(*queue_pair == qp && *status != Status::Success, "the event of a death is {:?}", end.events[0]);
    for slot in &pending {
        let status = end.completion(*slot).map(|done| done.status);
        owes!(status != Some(Status::Success), "a request succeeded with a peer that is dead");
        owes!(end.reports(*slot) == 1, "a request to a dead peer was reported {} times", end.reports(*slot));
    }
    // The port lives on.
    end.probe.close(qp);
    let mut other = End::open(harness.provider())?;
    let (theirs, ours) = connect(harness, &mut other, &mut end)?;
    let got = end.receive(Some(ours), area.piece(32768, 64)?)?;
    let words = other.area(4096)?;
    let sent = other.send(theirs, Data::Gather(vec![words.piece(0, 64)?]), None)?;
    end.until("the port serves others after a death", |end| {
        other.turn();
        end.has(got) && other.has(sent)
    })?;
    Ok(())
}

/// The part that holds for every provider; what a peer can write apart from messages and windows is
/// tested with the provider itself.
pub(super) fn hostile(harness: &dyn Harness) -> Result<(), Stop> {
    let mut hub = End::open(harness.provider())?;
    let mut honest = End::open(harness.provider())?;
    let (_, ours) = connect(harness, &mut honest, &mut hub)?;
    let ground = hub.area(1 << 16)?;
    ground.write(0, &pattern(100, 1 << 16))?;
    let words = honest.area(4096)?;
    for attack in 0..6u64 {
        let mut attacker = End::open(harness.provider())?;
        let (qp, theirs) = connect(harness, &mut attacker, &mut hub)?;
        let from = attacker.area(1 << 16)?;
        from.write(0, &pattern(attack, 1 << 16))?;
        let (_, granted) = hub.window(8192, Access::REMOTE_WRITE)?;
        let acts: Vec<Act> = match attack {
            // Garbage over all that it may write; then over what it may not.
            0 | 1 if hub.capabilities.one_sided => (0..64)
                .map(|i| {
                    let remote = part(granted, (i * 128) << (attack * 20), 128);
                    Ok(Act::Write(Data::Gather(vec![from.piece(i as usize * 16, 128)?]), remote, None))
                })
                .collect::<Result<_, Stop>>()?,
            // Messages that nobody waits for, then messages too long for who waits.
            2 | 3 => {
                if attack == 3 {
                    hub.receive(Some(theirs), ground.piece(60_000, 16)?)?;
                }
                let message = |_| Ok(Act::Send(Data::Gather(vec![from.piece(0, 1000)?]), Some(7)));
                (0..32).map(message).collect::<Result<_, Stop>>()?
            }
            // Gone with everything pending.
            _ => vec![Act::Send(Data::Gather(vec![from.piece(0, 1000)?]), None); 4],
        };
        let batch: Vec<_> = acts.into_iter().map(|act| attacker.request(act, true, false)).collect();
        attacker.probe.post(qp, &batch);
        if attack == 5 {
            drop(attacker);
            exchange(&mut honest, &mut hub, (ours, &words, &ground), None)?;
            continue;
        }
        for _ in 0..4 {
            exchange(&mut honest, &mut hub, (ours, &words, &ground), Some(&mut attacker))?;
        }
        attacker.probe.close(qp);
    }
    let untouched = ground.read(8192, 48_000)? == pattern(100, 1 << 16)[8192..8192 + 48_000];
    owes!(untouched, "a peer changed memory of ours that it was not granted");
    let hit = hub.events.iter().any(|PortEvent::Disconnected { queue_pair, .. }| *queue_pair == ours);
    owes!(!hit && honest.events.is_empty(), "an honest connection ended for another's fault");
    Ok(())
}

fn exchange(
    honest: &mut End,
    hub: &mut End,
    (ours, words, ground): (overside_verbs::port::QpIndex, &overside_verbs::probe::Area, &overside_verbs::probe::Area),
    mut attacker: Option<&mut End>,
) -> Result<(), Stop> {
    let message = pattern(u64::from(hub.slot()), 512);
    words.write(0, &message)?;
    let got = hub.receive(Some(ours), ground.piece(0, 512)?)?;
    let sent = honest.send(QP, Data::Gather(vec![words.piece(0, 512)?]), None)?;
    hub.until("an honest message arrives beside a hostile one", |hub| {
        honest.turn();
        if let Some(attacker) = attacker.as_deref_mut() {
            attacker.turn();
        }
        hub.has(got) && honest.has(sent)
    })?;
    hub.success(got)?;
    owes!(ground.read(0, 512)? == message, "an honest message was changed by another's fault");
    Ok(())
}

/// A test executable needs a while to start on a busy machine.
const START: Duration = Duration::from_secs(20);
/// A second, and a quarter for this test's own turn on a busy machine.
const NOTICED: Duration = Duration::from_millis(1250);

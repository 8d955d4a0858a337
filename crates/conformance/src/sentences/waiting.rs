//! Descriptors to wait on, and calls that do not wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_verbs::probe::{Act, Area, Data};
use overside_verbs::{Access, Memory, PortOptions};
use rustix::time::{ClockId, clock_gettime};

use crate::ends::{End, Pair, QP, WAIT, owes, part, pattern};
use crate::{Harness, Stop};

/// Polls until there is nothing, then arms; polls again as long as arming says so.
pub(super) fn armed(end: &mut End) -> Result<(), Stop> {
    let limit = Instant::now() + WAIT;
    loop {
        end.turn();
        if end.probe.arm()? {
            return Ok(());
        }
        owes!(Instant::now() < limit, "arm says for {WAIT:?} that something has happened, and nothing is reported");
    }
}

/// Armed, and nothing that happened before makes the descriptor readable.
pub(super) fn asleep(end: &mut End) -> Result<(), Stop> {
    let limit = Instant::now() + WAIT;
    loop {
        armed(end)?;
        if !end.readable_within(STALE)? {
            return Ok(());
        }
        owes!(Instant::now() < limit, "nothing happens, and the armed descriptor is readable for {WAIT:?}");
    }
}

/// Sleeps by the descriptor until `done`; a wake-up that does not come is a breach.
pub(super) fn sleep_until(end: &mut End, what: &str, mut done: impl FnMut(&End) -> bool) -> Result<(), Stop> {
    let limit = Instant::now() + WAIT;
    loop {
        armed(end)?;
        if done(end) {
            return Ok(());
        }
        let woke = end.readable_within(WAKE)?;
        end.turn();
        owes!(woke || !done(end), "{what}: it was there, but the armed descriptor did not become readable");
        owes!(Instant::now() < limit, "{what}: the armed descriptor did not become readable within {WAIT:?}");
    }
}

pub(super) fn arm(harness: &dyn Harness) -> Result<(), Stop> {
    first_words(harness)?;
    let mut pair = Pair::new(harness)?;
    let (from, to) = (pair.a.area(4096)?, pair.b.area(4096)?);
    for round in 0..20 {
        // A receive wakes its end, though the message came in between; then its report wakes the sender.
        let got = pair.b.receive(Some(QP), to.piece(0, 64)?)?;
        let wait_first = round % 2 == 0;
        if wait_first {
            armed(&mut pair.b)?;
        }
        let sent = pair.a.send(QP, Data::Gather(vec![from.piece(0, 64)?]), None)?;
        armed(&mut pair.a)?;
        if wait_first {
            owes!(pair.b.readable_within(WAKE)?, "a message came and the armed descriptor did not become readable");
        }
        sleep_until(&mut pair.b, "a receive", |end| end.has(got))?;
        pair.b.success(got)?;
        sleep_until(&mut pair.a, "the report of a SEND", |end| end.has(sent))?;
    }
    two_threads(&mut pair)?;
    // An event wakes too.
    armed(&mut pair.b)?;
    pair.a.probe.close(QP);
    pair.a.turn();
    owes!(pair.b.readable_within(WAKE)?, "the peer closed and the armed descriptor did not become readable");
    sleep_until(&mut pair.b, "the end of a connection", |end| !end.events.is_empty())
}

/// The first messages wake their end as later ones do, though their sender has heard nothing of
/// that end yet and never calls in again. The very first may bring more than itself, news of its
/// memory say.
fn first_words(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    if !pair.a.capabilities.progress_by_itself {
        return Ok(());
    }
    let (from, to) = (pair.a.area(4096)?, pair.b.area(4096)?);
    for i in 0..3 {
        let got = pair.b.receive(Some(QP), to.piece(i * 64, 64)?)?;
        armed(&mut pair.b)?;
        pair.a.send(QP, Data::Gather(vec![from.piece(0, 64)?]), None)?;
        sleep_until(&mut pair.b, "an early message", |end| end.has(got))?;
        pair.b.success(got)?;
    }
    Ok(())
}

/// Ping-pong of two threads that sleep by their descriptors alone: a wake-up that is lost between
/// the last poll and arming stops it.
fn two_threads(pair: &mut Pair) -> Result<(), Stop> {
    let (Pair { a, b }, count) = (pair, 300);
    let areas = [a.area(4096)?, b.area(4096)?];
    let play = |end: &mut End, area: &Area, first: bool| -> Result<(), Stop> {
        for i in 0..count {
            let got = end.receive(Some(QP), area.piece(i % 32 * 64, 64)?)?;
            if first || i > 0 {
                let ball = end.send(QP, Data::Gather(vec![area.piece(2048, 64)?]), None)?;
                sleep_until(end, "the report of a SEND", |end| end.has(ball))?;
            }
            sleep_until(end, "a receive", |end| end.has(got))?;
        }
        if !first {
            let ball = end.send(QP, Data::Gather(vec![area.piece(2048, 64)?]), None)?;
            sleep_until(end, "the report of a SEND", |end| end.has(ball))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| play(b, &areas[1], false));
        let ours = play(a, &areas[0], true);
        ours.and(other.join().unwrap_or_else(|_| Err(Stop::Broken("a player panicked".into()))))
    })
}

pub(super) fn half(harness: &dyn Harness) -> Result<(), Stop> {
    let options = PortOptions { wake_at_half: true, ..PortOptions::default() };
    let mut pair = Pair::with(harness, options)?;
    let (from, to) = (pair.a.area(4096)?, pair.b.area(4096)?);
    pair.message(from.piece(0, 64)?, to.piece(0, 64)?)?;
    for sends in [1, 2, 7, 8] {
        let sent = send_some(&mut pair, &from, sends)?;
        // Half of them meet a receive.
        let taken = sends.div_ceil(2);
        let got = (0..taken).map(|i| pair.b.receive(Some(QP), to.piece(i * 64, 64)?)).collect::<Result<Vec<_>, _>>()?;
        let woken = woken_while_turning(&mut pair)?;
        owes!(woken, "{taken} of {sends} sends completed and the armed descriptor did not become readable");
        let rest = (taken..sends).map(|i| pair.b.receive(Some(QP), to.piece(i * 64, 64)?));
        let rest = rest.collect::<Result<Vec<_>, _>>()?;
        pair.finish(&sent, &[got, rest].concat())?;
    }
    // What is no completed send wakes at once, though none has completed: a message, and the end.
    send_some(&mut pair, &from, 8)?;
    let got = pair.a.receive(Some(QP), from.piece(1024, 64)?)?;
    armed(&mut pair.a)?;
    pair.b.send(QP, Data::Gather(vec![to.piece(2048, 64)?]), None)?;
    owes!(woken_while_turning(&mut pair)?, "a message came and the armed descriptor did not become readable");
    pair.until("a receive", |pair| pair.a.has(got))?;
    armed(&mut pair.a)?;
    pair.b.probe.close(QP);
    owes!(woken_while_turning(&mut pair)?, "the peer closed and the armed descriptor did not become readable");
    Ok(())
}

/// Sends that meet no receive yet; then their end is armed.
fn send_some(pair: &mut Pair, from: &Area, sends: usize) -> Result<Vec<u32>, Stop> {
    let send = |_| pair.a.send(QP, Data::Gather(vec![from.piece(0, 64)?]), None);
    let sent = (0..sends).map(send).collect::<Result<Vec<_>, _>>()?;
    pair.quiet();
    armed(&mut pair.a)?;
    Ok(sent)
}

/// Turns `b` until the descriptor of `a` is readable; whether it became so.
pub(super) fn woken_while_turning(pair: &mut Pair) -> Result<bool, Stop> {
    let limit = Instant::now() + WAKE;
    while Instant::now() < limit {
        pair.b.turn();
        if pair.a.readable_within(Duration::from_millis(1))? {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn forget(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    for (by_wait, sender) in [(false, true), (true, true), (false, false), (true, false)] {
        let (from, to) = (pair.a.area(4096)?, pair.b.area(4096)?);
        pair.message(from.piece(0, 64)?, to.piece(0, 64)?)?;
        pair.quiet();
        let (end, used) = if sender { (&mut pair.a, from) } else { (&mut pair.b, to) };
        let (Memory::Segment(segment), Some(region)) = (used.memory(), end.last_region()) else { continue };
        let memory = Arc::downgrade(&segment);
        drop((used, segment));
        let gone = || memory.strong_count() == 0;
        let woken = if by_wait {
            let (provider, probe) = (end.provider.clone(), &mut end.probe);
            std::thread::scope(|scope| -> Result<bool, Stop> {
                let start = Instant::now();
                let sleeper = scope.spawn(move || probe.wait(None, Some(WAKE * 2)));
                std::thread::sleep(PAUSE);
                provider.deregister(region)?;
                let deadline = Instant::now() + WAKE;
                while !sleeper.is_finished() && !gone() && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let woken = sleeper.is_finished() || gone();
                // A breach is told at once, and ends when the sleep does.
                owes!(woken, "a registration ended, and wait slept on for {:?}", start.elapsed());
                Ok(woken)
            })?
        } else {
            armed(end)?;
            end.provider.deregister(region)?;
            end.readable_within(WAKE)?
        };
        // Whoever keeps nothing needs no poll.
        owes!(woken || gone(), "a registration ended and the armed descriptor did not become readable");
        end.until("the memory of a registration that has ended is let go", |_| gone())?;
    }
    named_in_flight(harness)
}

/// A request that was posted before the registration of its memory ended is carried out.
fn named_in_flight(harness: &dyn Harness) -> Result<(), Stop> {
    for sender in [true, false] {
        let mut pair = Pair::new(harness)?;
        let (from, to) = (pair.a.area(8192)?, pair.b.area(8192)?);
        from.write(0, &pattern(60, 8192))?;
        pair.message(from.piece(0, 64)?, to.piece(0, 64)?)?;
        let (mut got, mut sent) = (0, 0);
        for sends in [sender, !sender] {
            if sends {
                sent = pair.a.send(QP, Data::Gather(vec![from.piece(1000, 2000)?]), None)?;
            } else {
                got = pair.b.receive(Some(QP), to.piece(1000, 2000)?)?;
            }
            if sends == sender {
                // On its way, as far as it goes.
                pair.quiet();
                if sender {
                    pair.a.deregister_last()?
                } else {
                    pair.b.deregister_last()?
                }
                pair.quiet();
            }
        }
        pair.finish(&[sent], &[got])?;
        pair.a.success(sent)?;
        pair.b.success(got)?;
        owes!(to.read(1000, 2000)? == pattern(60, 8192)[1000..3000], "what was in flight brought other bytes");
    }
    Ok(())
}

/// Sleeps by `wait` until `done`; one that does not return though there is something is a breach.
fn waited(end: &mut End, what: &str, mut done: impl FnMut(&End) -> bool) -> Result<(), Stop> {
    let limit = Instant::now() + WAIT;
    loop {
        end.turn();
        if done(end) {
            return Ok(());
        }
        let start = Instant::now();
        end.probe.wait(None, Some(WAIT))?;
        end.turn();
        owes!(start.elapsed() < WAKE || !done(end), "{what}: it was there, but wait slept on");
        owes!(Instant::now() < limit, "{what}: wait did not bring it within {WAIT:?}");
    }
}

pub(super) fn wait(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let (from, to) = (pair.a.area(4096)?, pair.b.area(4096)?);
    // The first message settles what both ends still have to tell each other.
    pair.message(from.piece(0, 64)?, to.piece(0, 64)?)?;
    pair.quiet();
    let start = Instant::now();
    pair.a.probe.wait(None, Some(PAUSE))?;
    owes!(start.elapsed() < WAKE, "wait slept for {:?} and had been given {PAUSE:?}", start.elapsed());
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    std::io::Write::write_all(&mut &theirs, b"!")?;
    let start = Instant::now();
    pair.a.probe.wait(Some(std::os::fd::AsFd::as_fd(&ours)), Some(WAIT))?;
    owes!(start.elapsed() < WAKE, "another descriptor was readable, and wait slept for {:?}", start.elapsed());
    ping_pong_by_wait(&mut pair)?;
    let Pair { a, b } = &mut pair;
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| waited(b, "the end of a connection", |end| !end.events.is_empty()));
        std::thread::sleep(PAUSE);
        a.probe.close(QP);
        a.turn();
        sleeper.join().unwrap_or_else(|_| Err(Stop::Broken("the sleeper panicked".into())))
    })
}

/// Two threads that sleep by `wait` alone, one of them without asking for reports of its SENDs.
fn ping_pong_by_wait(pair: &mut Pair) -> Result<(), Stop> {
    let Pair { a, b } = pair;
    let areas = [a.area(4096)?, b.area(4096)?];
    let play = |end: &mut End, area: &Area, first: bool| -> Result<(), Stop> {
        for i in 0..ROUNDS {
            let got = end.receive(Some(QP), area.piece(i % 32 * 64, 64)?)?;
            if !first {
                waited(end, "a receive", |end| end.has(got))?;
            }
            let act = Act::Send(Data::Gather(vec![area.piece(2048, 64)?]), None);
            let ball = end.post(QP, act, first || i % 8 == 7, false)?;
            if first {
                waited(end, "the report of a SEND", |end| end.has(ball))?;
                waited(end, "a receive", |end| end.has(got))?;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| play(b, &areas[1], false));
        let ours = play(a, &areas[0], true);
        ours.and(other.join().unwrap_or_else(|_| Err(Stop::Broken("a player panicked".into()))))
    })
}

pub(super) fn idle(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let (from, to) = (pair.a.area(4096)?, pair.b.area(4096)?);
    pair.message(from.piece(0, 64)?, to.piece(0, 64)?)?;
    pair.quiet();
    armed(&mut pair.a)?;
    armed(&mut pair.b)?;
    let before = clock_gettime(ClockId::ProcessCPUTime);
    let woke = pair.a.readable_within(IDLE / 2)? || pair.b.readable_within(IDLE / 2)?;
    owes!(!woke, "an armed descriptor became readable though nothing happened");
    let after = clock_gettime(ClockId::ProcessCPUTime);
    let nanoseconds = (after.tv_sec - before.tv_sec) * 1_000_000_000 + (after.tv_nsec - before.tv_nsec);
    let used = Duration::from_nanos(nanoseconds.max(0) as u64);
    owes!(used < IDLE / 50, "two idle ports used {used:?} of processor time in {IDLE:?}");
    Ok(())
}

pub(super) fn nonblocking(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let from = pair.a.area(4096)?;
    let (_, token) = pair.b.readable(4096, Access::LOCAL | Access::REMOTE_READ)?;
    pair.quiet();
    let one_sided = pair.a.capabilities.one_sided;
    // The peer is there and never calls in. One end fills its queue and tries everything.
    let (end, sink) = (&mut pair.a, from.piece(2048, 64)?);
    for i in 0..end.capabilities.depth_max.min(4096) * 2 + 16 {
        let act = match i % 8 {
            7 if one_sided => Act::Read(sink.clone(), part(token, 0, 64)),
            _ => Act::Send(Data::Gather(vec![from.piece(0, 64)?]), None),
        };
        let request = end.request(act, true, false);
        at_once("post", || drop(end.probe.post(QP, std::slice::from_ref(&request))))?;
    }
    let receive = (end.slot(), from.piece(1024, 64)?);
    at_once("post_receive", || drop(end.probe.post_receive(Some(QP), std::slice::from_ref(&receive))))?;
    for _ in 0..200 {
        at_once("poll", || _ = end.probe.poll(&mut Vec::new()))?;
        at_once("next_event", || drop(end.probe.next_event()))?;
    }
    let mut armed = Ok(true);
    at_once("arm", || armed = end.probe.arm())?;
    armed?;
    at_once("close", || end.probe.close(QP))?;
    at_once("poll", || _ = end.probe.poll(&mut Vec::new()))
}

fn at_once(what: &str, call: impl FnOnce()) -> Result<(), Stop> {
    let start = Instant::now();
    call();
    let took = start.elapsed();
    owes!(took < BLOCKED, "{what} took {took:?} while the peer did nothing");
    Ok(())
}

/// What was told before is readable at once.
const STALE: Duration = Duration::from_millis(5);
/// A wake-up that takes longer is lost.
pub(super) const WAKE: Duration = Duration::from_secs(1);
/// A wait that nothing ends.
const PAUSE: Duration = Duration::from_millis(30);
const ROUNDS: usize = 300;
/// How long idleness is watched.
const IDLE: Duration = Duration::from_millis(500);
/// No scheduler takes a thread off a processor for so long; a call that waits for a peer is longer.
const BLOCKED: Duration = Duration::from_millis(500);

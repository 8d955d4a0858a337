//! What is lent instead of copied.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use overside_memory::Segment;
use overside_verbs::port::{Lending, RawCompletion};
use overside_verbs::probe::{Act, Area, Data, Piece};
use overside_verbs::spin::DOZE;
use overside_verbs::{Access, Loan, PortOptions, Status};

use super::needs;
use super::waiting::{WAKE, armed, asleep, sleep_until, woken_while_turning};
use crate::ends::{End, Pair, QP, WAIT, owes, part, pattern};
use crate::second::READY;
use crate::{Harness, Stop};

pub(super) fn lend(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let (from, to) = (pair.a.area(1 << 16)?, pair.b.area(1 << 16)?);
    from.write(0, &pattern(70, 1 << 16))?;
    // Unless both say so it is copied, whatever the provider can do.
    for (lends, takes) in [(true, false), (false, true)] {
        copied(&mut pair, Data::Gather(vec![from.piece(64, LEN)?]), &to, (lends, takes))?;
    }
    copied(&mut pair, Data::Inline(from.read(0, 16)?), &to, (true, true))?;
    if !pair.a.capabilities.lends {
        copied(&mut pair, Data::Gather(vec![from.piece(64, LEN)?]), &to, (true, true))?;
    }
    needs(pair.a.capabilities.lends, "lends")?;
    lent(&mut pair, &from, &to)?;
    let hidden = Area::new(Segment::private(4096)?);
    pair.a.register(&hidden, Access::LOCAL)?;
    hidden.write(0, &pattern(71, 4096))?;
    // Where no peer can map it, it may be copied, and is the same message.
    let got = pair.b.receive_or_loan(Some(QP), to.piece(0, LEN)?)?;
    let sent = pair.a.lend(QP, Data::Gather(vec![hidden.piece(8, LEN)?]), None)?;
    pair.finish(&[sent], &[got])?;
    let bytes = message(&mut pair.b, got, &to.piece(0, LEN)?)?.0;
    owes!(bytes == hidden.read(8, LEN)?, "what lies where no peer can map it came as other bytes");
    in_order(harness)?;
    too_long(&mut pair, &from, &to)?;
    as_many_as_it_keeps_account_of(harness)
}

/// One message that must be copied.
fn copied(pair: &mut Pair, data: Data, to: &Area, (lends, takes): (bool, bool)) -> Result<(), Stop> {
    let bytes: Vec<u8> = match &data {
        Data::Gather(pieces) => pieces.iter().flat_map(Piece::read).collect(),
        Data::Inline(bytes) => bytes.clone(),
    };
    to.write(0, &vec![OURS; bytes.len()])?;
    let into = to.piece(0, bytes.len())?;
    let got = if takes { pair.b.receive_or_loan(Some(QP), into) } else { pair.b.receive(Some(QP), into) }?;
    let sent = if lends { pair.a.lend(QP, data, None) } else { pair.a.send(QP, data, None) }?;
    pair.finish(&[sent], &[got])?;
    let (sender, receiver) = (pair.a.success(sent)?, pair.b.success(got)?);
    owes!(
        (sender.lending, receiver.lending) == (Lending::No, Lending::No),
        "a SEND was lent, and was to be copied (may be lent: {lends}, takes a loan: {takes})"
    );
    owes!(to.read(0, bytes.len())? == bytes, "a message that is not lent was not copied");
    Ok(())
}

/// Three pieces, of which the first lies behind the others.
fn lent(pair: &mut Pair, from: &Area, to: &Area) -> Result<(), Stop> {
    to.write(0, &[OURS; 4 * LEN])?;
    let pieces = vec![from.piece(9000, LEN)?, from.piece(100, 1)?, from.piece(5001, 2 * LEN)?];
    let bytes: Vec<u8> = pieces.iter().flat_map(Piece::read).collect();
    let got = pair.b.receive_or_loan(Some(QP), to.piece(0, 4 * LEN)?)?;
    let sent = pair.a.lend(QP, Data::Gather(pieces), Some(77))?;
    pair.finish(&[sent], &[got])?;
    let (sender, receiver) = (pair.a.success(sent)?, pair.b.success(got)?);
    owes!(sender.lending == Lending::Lent, "the sender was told {:?} of a SEND that was to be lent", sender.lending);
    owes!(receiver.lending == Lending::Lent, "the receiver was told {:?} of a loan", receiver.lending);
    owes!(
        receiver.bytes == bytes.len() as u64 && receiver.immediate == Some(77),
        "a loan of {} bytes came as {receiver:?}",
        bytes.len()
    );
    let Some(loan) = pair.b.probe.take_loan(got) else { return Err(Stop::Broken("there is no loan to take".into())) };
    owes!(pair.b.probe.take_loan(got).is_none(), "a loan was taken twice");
    owes!(read(&loan)? == bytes, "a loan shows other bytes than were sent");
    owes!(loan.is_valid(), "a loan is not valid though nothing has ended");
    owes!(to.read(0, 4 * LEN)?.iter().all(|byte| *byte == OURS), "a byte of a buffer changed whose message was lent");
    drop(loan);
    returned(pair, sent)
}

/// Lent or copied, messages meet receives and are reported as they were posted.
fn in_order(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let (from, to) = (pair.a.area(1 << 16)?, pair.b.area(1 << 16)?);
    from.write(0, &pattern(72, 1 << 16))?;
    let (mut sent, mut got, mut loans) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..24 {
        let into = to.piece(i * 1024, 1024)?;
        got.push(if i % 3 == 0 { pair.b.receive(Some(QP), into) } else { pair.b.receive_or_loan(Some(QP), into) }?);
        let data = Data::Gather(vec![from.piece(i * 2000, 500 + i)?]);
        sent.push(if i % 4 == 0 { pair.a.send(QP, data, None) } else { pair.a.lend(QP, data, None) }?);
    }
    pair.finish(&sent, &got)?;
    for (end, slots) in [(&pair.a, &sent), (&pair.b, &got)] {
        let reported: Vec<u32> = end.done.iter().map(|done| done.slot).collect();
        owes!(reported == *slots, "reports of what was lent and copied came in the order {reported:?}");
    }
    for (i, got) in got.into_iter().enumerate() {
        let (bytes, loan) = message(&mut pair.b, got, &to.piece(i * 1024, 1024)?)?;
        owes!(bytes == from.read(i * 2000, 500 + i)?, "message {i} came as other bytes");
        let expected = i % 3 != 0 && i % 4 != 0;
        owes!(loan.is_some() == expected, "message {i} was lent: {}", loan.is_some());
        loans.push(loan);
    }
    Ok(())
}

fn too_long(pair: &mut Pair, from: &Area, to: &Area) -> Result<(), Stop> {
    let got = pair.b.receive_or_loan(Some(QP), to.piece(0, LEN)?)?;
    let sent = pair.a.lend(QP, Data::Gather(vec![from.piece(0, LEN + 1)?]), None)?;
    pair.finish(&[sent], &[got])?;
    let ends =
        [pair.a.completion(sent), pair.b.completion(got)].map(|done| done.map(|done| (done.status, done.lending)));
    let expected = Some((Status::TooLong, Lending::No));
    owes!(ends == [expected; 2], "a loan longer than its receive ended with {ends:?}");
    Ok(())
}

/// Until no more is lent, if there is such a time; and one that ends makes room for another.
fn as_many_as_it_keeps_account_of(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let (from, to) = (pair.a.area(1 << 16)?, pair.b.area(4096)?);
    from.write(0, &pattern(73, 1 << 16))?;
    let mut loans = Vec::new();
    let one = |pair: &mut Pair, at: usize| -> Result<(u32, Option<Loan>), Stop> {
        let got = pair.b.receive_or_loan(Some(QP), to.piece(0, 64)?)?;
        let sent = pair.a.lend(QP, Data::Gather(vec![from.piece(at, 64)?]), None)?;
        pair.finish(&[sent], &[got])?;
        let (bytes, loan) = message(&mut pair.b, got, &to.piece(0, 64)?)?;
        owes!(bytes == from.read(at, 64)?, "of many loans one came as other bytes");
        let told = pair.a.success(sent)?.lending == Lending::Lent;
        owes!(told == loan.is_some(), "the sender was told that it lends ({told}), the receiver something else");
        (pair.a.done, pair.b.done) = (Vec::new(), Vec::new());
        Ok((sent, loan))
    };
    for i in 0..LOANS_TRIED {
        let (sent, Some(loan)) = one(&mut pair, i * 61 % 60_000)? else { break };
        loans.push((sent, loan));
    }
    owes!(!loans.is_empty(), "nothing was lent");
    for (i, (_, loan)) in loans.iter().enumerate() {
        owes!(read(loan)? == from.read(i * 61 % 60_000, 64)?, "loan {i} of many shows other bytes");
    }
    let (sent, loan) = loans.swap_remove(loans.len() / 2);
    drop(loan);
    pair.until("a loan that has ended is reported as returned", |pair| pair.a.has(sent))?;
    pair.a.done.clear();
    owes!(one(&mut pair, 0)?.1.is_some(), "a loan ended, and there is no room for another");
    Ok(())
}

pub(super) fn r#return(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    needs(pair.a.capabilities.lends, "lends")?;
    let (from, to) = (pair.a.area(1 << 16)?, pair.b.area(1 << 16)?);
    from.write(0, &pattern(74, 1 << 16))?;
    let mut lent = lend_some(&mut pair, &from, &to, 5)?;
    // What is sent later, and completes, ends no loan that was begun before it.
    pair.message(from.piece(0, 64)?, to.piece(60_000, 64)?)?;
    pair.quiet();
    owes!(
        !pair.a.done.iter().any(|done| done.lending == Lending::Returned),
        "a loan was reported as returned that is out"
    );
    // In any order, from any thread.
    for (at, elsewhere) in [(3, false), (0, true), (2, false), (0, true), (0, false)] {
        let (sent, loan) = lent.remove(at);
        let bytes = read(&loan)?;
        owes!(loan.is_valid() && bytes.len() == LEN, "a loan is not valid though nothing has ended");
        if elsewhere {
            std::thread::scope(|scope| _ = scope.spawn(move || drop(loan)));
        } else {
            drop(loan);
        }
        returned(&mut pair, sent)?;
        let out = lent.iter().find(|(sent, _)| pair.a.reports(*sent) != 1);
        owes!(out.is_none(), "one loan ended, and another was reported as returned");
    }
    wakes(harness)
}

/// A port that sleeps until a loan ends is woken.
fn wakes(harness: &dyn Harness) -> Result<(), Stop> {
    for at_half in [false, true] {
        let mut pair = Pair::with(harness, PortOptions { wake_at_half: at_half, ..PortOptions::default() })?;
        let (from, to) = (pair.a.area(1 << 16)?, pair.b.area(1 << 16)?);
        for round in 0..20 {
            let mut lent = lend_some(&mut pair, &from, &to, 4)?;
            pair.quiet();
            let ends = if at_half { 2 } else { 1 };
            if round % 2 == 0 {
                armed(&mut pair.a)?;
            }
            // While it sleeps, or just before.
            let ended: Vec<u32> = lent.drain(1..1 + ends).map(|(sent, _)| sent).collect();
            sleep_until(&mut pair.a, "the end of a loan", |end| ended.iter().all(|sent| end.reports(*sent) == 2))?;
        }
    }
    by_few(harness)?;
    by_a_read(harness)?;
    by_timeout(harness)?;
    by_copies(harness)?;
    copied_at_last(harness)?;
    by_wait(harness)
}

/// Who sleeps until half of its loans are back is woken for fewer once the borrower sleeps, too:
/// one of them has to go on.
fn by_few(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::with(harness, PortOptions { wake_at_half: true, ..PortOptions::default() })?;
    let (from, to) = (pair.a.area(1 << 16)?, pair.b.area(1 << 16)?);
    for (borrower_first, round) in [(false, 0), (true, 1), (false, 2), (true, 3)] {
        let mut lent = lend_some(&mut pair, &from, &to, 4)?;
        pair.quiet();
        if borrower_first {
            asleep(&mut pair.b)?;
        }
        asleep(&mut pair.a)?;
        let (sent, loan) = lent.swap_remove(round);
        // On another thread than the port's, too.
        std::thread::scope(|scope| _ = scope.spawn(move || drop(loan)));
        if !borrower_first {
            asleep(&mut pair.b)?;
        }
        owes!(pair.a.readable_within(WAKE)?, "a loan came back whose borrower sleeps, and its lender was not woken");
        drop(lent);
        returned(&mut pair, sent)?;
    }
    Ok(())
}

/// Less than half, and the peer does no more: a waiter with a timeout has the
/// report of it after that.
fn by_timeout(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::with(harness, PortOptions { wake_at_half: true, ..PortOptions::default() })?;
    let (from, to) = (pair.a.area(1 << 16)?, pair.b.area(1 << 16)?);
    for lends in [true, false] {
        let data = || Ok::<_, Stop>(Data::Gather(vec![from.piece(0, LEN)?]));
        let sent = (0..8).map(|_| match lends {
            true => pair.a.lend(QP, data()?, None),
            false => pair.a.send(QP, data()?, None),
        });
        let sent = sent.collect::<Result<Vec<_>, _>>()?;
        pair.quiet();
        // Longer than any doze: it sleeps as deep as it can.
        pair.a.probe.wait(None, Some(4 * DOZE))?;
        let mut got = vec![pair.b.receive_or_loan(Some(QP), to.piece(0, LEN)?)?];
        let first = got[0];
        pair.b.until("a message", |end| end.has(first))?;
        let kept = pair.b.probe.take_loan(first);
        // What it has consumed it tells while it polls.
        (0..TURNS).for_each(|_| pair.b.turn());
        let limit = Instant::now() + WAKE;
        while !pair.a.has(sent[0]) {
            owes!(Instant::now() < limit, "one of 8 sends has completed, and no wait with a timeout brings its report");
            pair.a.probe.wait(None, Some(2 * DOZE))?;
            pair.a.turn();
        }
        drop(kept);
        let rest = (1..8).map(|i| pair.b.receive_or_loan(Some(QP), to.piece(i * LEN, LEN)?));
        got.extend(rest.collect::<Result<Vec<_>, _>>()?);
        pair.finish(&sent, &got)?;
        got.into_iter().for_each(|got| drop(pair.b.probe.take_loan(got)));
        pair.quiet();
    }
    Ok(())
}

/// A READ behind a SEND that is lent is reported though the loan goes on.
fn by_a_read(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::with(harness, PortOptions { wake_at_half: true, ..PortOptions::default() })?;
    let (from, to) = (pair.a.area(1 << 16)?, pair.b.area(1 << 16)?);
    let (_there, token) = pair.b.readable(64, Access::LOCAL | Access::REMOTE_READ)?;
    // Heard of before it is named: a request that was refused once waits for room.
    pair.quiet();
    let sent = pair.a.lend(QP, Data::Gather(vec![from.piece(0, LEN)?]), None)?;
    let read = pair.a.post(QP, Act::Read(from.piece(8192, 64)?, part(token, 0, 64)), true, false)?;
    // Behind it more of which nothing is taken.
    let more = (0..3).map(|_| pair.a.lend(QP, Data::Gather(vec![from.piece(0, LEN)?]), None));
    let more = more.collect::<Result<Vec<_>, _>>()?;
    pair.quiet();
    asleep(&mut pair.a)?;
    let got = pair.b.receive_or_loan(Some(QP), to.piece(4096, LEN)?)?;
    let woken = woken_while_turning(&mut pair)?;
    owes!(woken, "a READ has ended behind a loan that goes on, and the armed descriptor did not become readable");
    pair.until("a READ", |pair| pair.a.has(read) && pair.b.has(got))?;
    drop(pair.b.probe.take_loan(got));
    returned(&mut pair, sent)?;
    let rest = (0..3).map(|i| pair.b.receive(Some(QP), to.piece(i * LEN, LEN)?)).collect::<Result<Vec<_>, _>>()?;
    pair.finish(&more, &rest)
}

/// What was lent and the receiver copied is back as well: half of those wake.
fn by_copies(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::with(harness, PortOptions { wake_at_half: true, ..PortOptions::default() })?;
    let (from, to) = (pair.a.area(1 << 16)?, pair.b.area(1 << 16)?);
    for (taken, count) in [(1, 1), (2, 4), (4, 8)] {
        let lend = |_| pair.a.lend(QP, Data::Gather(vec![from.piece(0, LEN)?]), None);
        let sent = (0..count).map(lend).collect::<Result<Vec<_>, _>>()?;
        pair.quiet();
        asleep(&mut pair.a)?;
        let got = (0..taken).map(|i| pair.b.receive(Some(QP), to.piece(i * LEN, LEN)?));
        let got = got.collect::<Result<Vec<_>, _>>()?;
        let woken = woken_while_turning(&mut pair)?;
        owes!(woken, "{taken} of {count} lent sends were copied, and the armed descriptor did not become readable");
        let rest = (taken..count).map(|i| pair.b.receive(Some(QP), to.piece(i * LEN, LEN)?));
        let rest = rest.collect::<Result<Vec<_>, _>>()?;
        pair.finish(&sent, &[got, rest].concat())?;
    }
    Ok(())
}

/// What was copied was not lent, though the peer ends before the sender has heard of it.
fn copied_at_last(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let (from, to) = (pair.a.area(1 << 16)?, pair.b.area(1 << 16)?);
    let sent = pair.a.lend(QP, Data::Gather(vec![from.piece(0, LEN)?]), None)?;
    pair.quiet();
    let got = pair.b.receive(Some(QP), to.piece(0, LEN)?)?;
    pair.b.until("a message", |end| end.has(got))?;
    pair.b.probe.close(QP);
    pair.a.until("a SEND", |end| end.has(sent))?;
    pair.quiet();
    let reports: Vec<_> = pair.a.done.iter().filter(|done| done.slot == sent).map(|done| done.lending).collect();
    owes!(reports == [Lending::No], "a SEND that was copied before the end was reported as {reports:?}");
    Ok(())
}

/// The same by `wait`, of two threads: one lends and waits for all to be back, the other ends loans
/// as they come.
fn by_wait(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let (from, to) = (pair.a.area(1 << 16)?, pair.b.area(1 << 16)?);
    let Pair { a, b } = &mut pair;
    let done = AtomicBool::new(false);
    // A loan may have ended before the SEND is reported.
    let over =
        |end: &End, sent: u32| end.reports(sent) == 2 || end.completion(sent).is_some_and(|d| d.lending == Lending::No);
    std::thread::scope(|scope| {
        let done = &done;
        let other = scope.spawn(move || -> Result<(), Stop> {
            for round in 0..ROUNDS {
                let got = b.receive_or_loan(Some(QP), to.piece(0, LEN)?)?;
                b.until("a message", |end| end.has(got))?;
                let loan = b.probe.take_loan(got);
                owes!(loan.is_some(), "a message came and is not lent");
                if round % 2 == 0 {
                    // Time to fall asleep.
                    std::thread::sleep(Duration::from_micros(300));
                }
                drop(loan);
            }
            // What the last poll told may have to be told again.
            while !done.load(Ordering::Acquire) {
                b.turn();
                std::thread::yield_now();
            }
            Ok(())
        });
        let mut ours = || -> Result<(), Stop> {
            for _ in 0..ROUNDS {
                let sent = a.lend(QP, Data::Gather(vec![from.piece(0, LEN)?]), None)?;
                let limit = Instant::now() + WAIT;
                while !over(a, sent) {
                    owes!(Instant::now() < limit, "a loan has ended, and wait did not bring that within {WAIT:?}");
                    let start = Instant::now();
                    a.probe.wait(None, Some(WAIT))?;
                    a.turn();
                    let late = start.elapsed() > LATE && over(a, sent);
                    owes!(!late, "a loan had ended, and wait slept on for {:?}", start.elapsed());
                }
            }
            Ok(())
        };
        let ours = ours();
        done.store(true, Ordering::Release);
        ours.and(other.join().unwrap_or_else(|_| Err(Stop::Broken("the borrower panicked".into()))))
    })
}

pub(super) fn revoke(harness: &dyn Harness) -> Result<(), Stop> {
    needs(harness.provider().capabilities().lends, "lends")?;
    for by_lender in [true, false] {
        let mut pair = Pair::new(harness)?;
        let (from, to) = (pair.a.area(1 << 16)?, pair.b.area(1 << 16)?);
        from.write(0, &pattern(75, 1 << 16))?;
        let mut lent = lend_some(&mut pair, &from, &to, 3)?;
        // One has ended before.
        let (early, loan) = lent.remove(1);
        drop(loan);
        returned(&mut pair, early)?;
        if by_lender {
            pair.a.probe.close(QP);
        } else {
            pair.b.probe.close(QP);
        }
        let limit = Instant::now() + WAIT;
        while !lent.iter().all(|(sent, _)| pair.a.reports(*sent) == 2) {
            owes!(Instant::now() < limit, "a queue pair has ended, and its loans were not returned within {WAIT:?}");
            pair.a.turn();
            let kept = lent.iter().find(|(sent, loan)| pair.a.reports(*sent) == 2 && loan.is_valid());
            owes!(kept.is_none(), "a loan was reported as returned and is still valid");
            // The lender hears of the end by itself; the borrower need not call in.
            std::thread::yield_now();
        }
        pair.a.probe.close(QP);
        pair.b.probe.close(QP);
        pair.quiet();
        // Readable, whatever is left of the connection.
        let Pair { mut a, b } = pair;
        drop(b);
        for (sent, loan) in lent {
            owes!(read(&loan)?.len() == LEN && !loan.is_valid(), "a loan came to life again");
            drop(loan);
            a.turn();
            owes!(a.reports(sent) == 2, "a loan that was revoked was returned once more");
        }
        owes!(a.reports(early) == 2, "a loan was reported as returned twice");
    }
    of_the_dead(harness)
}

/// What a process lent that is killed stays as it was.
fn of_the_dead(harness: &dyn Harness) -> Result<(), Stop> {
    let mut end = End::open(harness.provider())?;
    let name = harness.name();
    let mut listener = end.provider.listen(&end.domain, &name)?;
    let Some(mut doomed) = harness.doomed(&name) else { return Ok(()) };
    let link = listener.accept(START)?.ok_or_else(|| Stop::Broken("the second process did not connect".into()))?;
    let qp = end.attach(link)?;
    let area = end.area(4096)?;
    let ready = end.receive_or_loan(Some(qp), area.piece(0, 64)?)?;
    end.until("the second process says that it is there", |end| end.has(ready))?;
    end.success(ready)?;
    let loan = end.probe.take_loan(ready).ok_or_else(|| Stop::Broken("what was to be lent was not".into()))?;
    doomed.kill();
    end.until("a death is noticed", |end| !end.events.is_empty())?;
    end.probe.close(qp);
    drop(doomed);
    owes!(read(&loan)? == READY, "what the dead have lent has changed");
    drop(end);
    owes!(read(&loan)? == READY, "what the dead have lent has changed");
    Ok(())
}

/// Lends so many messages, which are all out then.
fn lend_some(pair: &mut Pair, from: &Area, to: &Area, count: usize) -> Result<Vec<(u32, Loan)>, Stop> {
    let (mut sent, mut got) = (Vec::new(), Vec::new());
    for i in 0..count {
        got.push(pair.b.receive_or_loan(Some(QP), to.piece(i * LEN, LEN)?)?);
        sent.push(pair.a.lend(QP, Data::Gather(vec![from.piece(i * LEN, LEN)?]), None)?);
    }
    pair.finish(&sent, &got)?;
    let mut lent = Vec::new();
    for (sent, got) in sent.into_iter().zip(got) {
        owes!(pair.a.success(sent)?.lending == Lending::Lent, "a SEND was not lent");
        let loan = pair.b.probe.take_loan(got);
        lent.push((sent, loan.ok_or_else(|| Stop::Broken("there is no loan to take".into()))?));
    }
    Ok(lent)
}

/// What a receive brought: its bytes, and the loan if it is one.
fn message(end: &mut End, got: u32, buffer: &Piece) -> Result<(Vec<u8>, Option<Loan>), Stop> {
    let RawCompletion { bytes, lending, .. } = end.success(got)?;
    if lending == Lending::No {
        return Ok((buffer.read()[..bytes as usize].to_vec(), None));
    }
    let loan = end.probe.take_loan(got).ok_or_else(|| Stop::Broken("there is no loan to take".into()))?;
    Ok((read(&loan)?, Some(loan)))
}

fn read(loan: &Loan) -> Result<Vec<u8>, Stop> {
    let mut bytes = vec![0; loan.bytes() as usize];
    loan.read(0, &mut bytes)?;
    Ok(bytes)
}

/// A loan that has ended is reported once more, and only once.
fn returned(pair: &mut Pair, sent: u32) -> Result<(), Stop> {
    pair.until("a loan that has ended is reported as returned", |pair| pair.a.reports(sent) >= 2)?;
    pair.quiet();
    let reports: Vec<_> = pair.a.done.iter().filter(|done| done.slot == sent).map(|done| done.lending).collect();
    owes!(reports == [Lending::Lent, Lending::Returned], "what was lent and returned was reported as {reports:?}");
    Ok(())
}

const LEN: usize = 700;
const OURS: u8 = 0x77;
/// Enough for any provider to come to its bound.
const LOANS_TRIED: usize = 1200;
const ROUNDS: usize = 200;
/// More than a provider polls before it tells what nobody waits for.
const TURNS: usize = 10_000;
/// A wake-up that takes longer is lost.
const LATE: Duration = Duration::from_secs(1);
/// A test executable needs a while to start on a busy machine.
const START: Duration = Duration::from_secs(20);

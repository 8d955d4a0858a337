//! Loans: what a peer lends, and what it returns of what it was lent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use overside_memory::{Buffer, View};
use overside_shape::Shape;
use overside_verbs::*;

use crate::raw::*;

/// Memory of the victim's to lend, and who holds it.
fn lendable(scene: &Scene) -> Arc<Buffer> {
    Arc::new(scene.victim.buffers(1, 4096).pop().unwrap())
}

fn lend(scene: &mut Scene, qp: QueuePair, memory: &Arc<Buffer>, count: usize) {
    let view = || View::of(memory, &Shape::contiguous(0, 64).unwrap()).unwrap();
    scene.victim.post(qp, (0..count).map(|_| WorkRequest::send(50, view()).lendable()).collect());
}

/// Polls until the victim has been told of so many ends of what it lent.
fn reported(scene: &mut Scene, done: &mut Vec<WorkCompletion>, count: usize) {
    let end = Instant::now() + Duration::from_secs(5);
    while done.iter().filter(|c| c.id == 50).count() < count {
        scene.victim.queue.poll(done);
        assert!(Instant::now() < end, "have {done:?}");
    }
}

#[test]
fn a_peer_that_never_returns_gets_copies_and_holds_a_bounded_number() {
    let mut scene = Scene::new();
    let (raw, qp) = scene.hostile();
    raw.attach();
    let memory = lendable(&scene);
    let mut done = Vec::new();
    let mut consumed = 2;
    for round in 1..=20 {
        lend(&mut scene, qp, &memory, 16);
        consumed += 16;
        raw.store(CONSUMED, consumed);
        reported(&mut scene, &mut done, round * 16);
        let lent = (round * 16).min(PLACES);
        assert_eq!(scene.victim.queue.loans_out(qp), lent);
        assert_eq!(Arc::strong_count(&memory), 1 + lent, "beyond the bound nothing is held once it was consumed");
    }
    assert!(done.iter().all(|c| c.status == Status::Success));
    // What it keeps costs it the connection whenever the victim likes, and nothing stays held.
    scene.check(qp, done);
    assert_eq!(Arc::strong_count(&memory), 1);
}

#[test]
fn what_was_not_lent_and_what_was_returned_already_close_the_connection() {
    // The two inline messages are numbers 0 and 1.
    let lies: [(&str, &[u64]); 5] = [
        ("twice", &[2, 2]),
        ("what was copied by its nature", &[1]),
        ("what was never sent", &[6]),
        ("a number of the future", &[0xffff_fff0]),
        ("all of it, and one again", &[5, 4, 3, 2, 4]),
    ];
    for (what, numbers) in lies {
        let mut scene = Scene::new();
        let (raw, qp) = scene.hostile();
        raw.attach();
        let memory = lendable(&scene);
        lend(&mut scene, qp, &memory, 4);
        raw.store(CONSUMED, 6);
        let mut done = Vec::new();
        reported(&mut scene, &mut done, 4);
        assert_eq!(Arc::strong_count(&memory), 5);
        numbers.iter().enumerate().for_each(|(index, number)| raw.give_back(index, *number));
        let (closed, more) = scene.settle(qp, true);
        done.extend(more);
        assert_eq!(closed, Some(Status::Malformed), "{what}");
        scene.check(qp, done);
        assert_eq!(Arc::strong_count(&memory), 1, "{what}");
    }
}

#[test]
fn garbage_among_the_returns_releases_nothing_twice() {
    let mut scene = Scene::new();
    for (kind, word) in
        [0, 1, u64::MAX, 1 << 63, 1 << 63 | 7, 3 << 62 | 2, ((1 << 31) + 1) << 32 | 3].into_iter().enumerate()
    {
        let (raw, qp) = scene.hostile();
        raw.attach();
        let memory = lendable(&scene);
        lend(&mut scene, qp, &memory, 4);
        raw.store(CONSUMED, 6);
        let mut done = Vec::new();
        reported(&mut scene, &mut done, 4);
        raw.give_back(0, 3);
        raw.store(RETURNS_AT + 8, word);
        raw.give_back(2, 4);
        let (_, more) = scene.settle(qp, false);
        done.extend(more);
        // The first ended, and behind garbage nothing is looked for.
        assert!((1..=4).contains(&Arc::strong_count(&memory)), "kind {kind}: {}", Arc::strong_count(&memory));
        scene.check(qp, done);
        assert_eq!(Arc::strong_count(&memory), 1);
    }
}

#[test]
fn loans_that_lie_close_their_connection() {
    let lies: &[(&str, &[(usize, u64)])] = &[
        ("an unknown segment", &[(24, 99 | 64 << 32)]),
        ("past the segment", &[(16, 8192 - 63)]),
        ("offset overflow", &[(16, u64::MAX - 3)]),
        ("fragments longer than the message", &[(24, 7 | 65 << 32)]),
        ("fragments shorter", &[(24, 7 | 63 << 32)]),
        ("of no piece", &[(0, 5)]),
        ("of too many pieces", &[(0, 5 | 257 << 16)]),
        ("a second piece that is garbage", &[(0, 5 | 2 << 16), (40, 7 | 1 << 32)]),
    ];
    let mut scene = Scene::new();
    for (what, words) in lies {
        let (raw, qp) = scene.hostile_lender();
        raw.attach();
        raw.pass_data();
        raw.lend(0, 0, 64);
        let stamped = raw.load(DESCRIPTORS + 8);
        raw.store(DESCRIPTORS + 8, 0);
        words.iter().for_each(|(at, value)| raw.store(DESCRIPTORS + at, *value));
        raw.store(DESCRIPTORS + 8, stamped);
        let (closed, done) = scene.settle(qp, true);
        assert_eq!(closed, Some(Status::Malformed), "{what}");
        assert!(done.iter().all(|c| c.loan.is_none()), "{what}");
        scene.check(qp, done);
    }
}

/// Whatever it writes into what it has lent: copies are made, of the lent range alone, and the reader can tell that it is over.
#[test]
fn a_lender_that_scribbles_takes_back_and_goes_harms_nobody() {
    let mut scene = Scene::new();
    for ending in 0..4 {
        let (raw, qp) = scene.hostile_lender();
        raw.attach();
        raw.pass_data();
        (0..8192).for_each(|at| raw.write(at, at as u8));
        raw.lend(0, 4096, 4096);
        let mut done = Vec::new();
        let end = Instant::now() + Duration::from_secs(5);
        while !done.iter().any(|c: &WorkCompletion| c.loan.is_some()) {
            scene.victim.queue.poll(&mut done);
            assert!(Instant::now() < end, "{done:?}");
        }
        let loan = done.iter_mut().find_map(|c| c.loan.take()).unwrap();
        let buffer = done.iter().find_map(|c| c.buffer.as_ref()).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 0), "its receive is as it was");
        let mut out = vec![0; 4096];
        loan.read(0, &mut out).unwrap();
        assert!(out.iter().enumerate().all(|(at, byte)| *byte == at as u8) && loan.is_valid());
        assert!(loan.read(1, &mut out).is_err(), "never a byte behind it");
        let stop = Arc::new(AtomicBool::new(false));
        let scribbler = std::thread::spawn({
            let stop = stop.clone();
            move || {
                while !stop.load(Ordering::Relaxed) {
                    (4096..8192).for_each(|at| raw.write(at, 0xEE));
                }
                raw
            }
        });
        for _ in 0..200 {
            loan.read(0, &mut out).unwrap();
            assert!(out.iter().enumerate().all(|(at, byte)| *byte == at as u8 || *byte == 0xEE));
            assert!(loan.is_valid(), "it vouches for it, and lies");
        }
        stop.store(true, Ordering::Relaxed);
        let raw = scribbler.join().unwrap();
        match ending {
            0 => say(&raw.socket, &[&[6][..], &7u32.to_le_bytes()].concat(), &[]),
            1 => drop(raw),
            2 => raw.store(CLOSED, 1),
            _ => raw.store(CLOSED, u64::MAX),
        }
        assert_eq!(loan.is_valid(), ending < 2, "the word says so, at once");
        let (closed, more) = scene.settle(qp, ending != 0);
        assert_eq!(closed.is_some(), ending != 0);
        done.extend(more);
        scene.check(qp, done);
        loan.read(0, &mut out).unwrap();
        assert!(out.iter().all(|byte| *byte == 0xEE), "it stays mapped as long as it is kept");
    }
}

/// A lender that counts nothing: what it would lend beyond the places to return it is copied.
#[test]
fn more_loans_than_there_are_places_are_copied() {
    let mut scene = Scene::new();
    let (raw, qp) = scene.hostile_lender();
    raw.attach();
    raw.pass_data();
    (0..8192).for_each(|at| raw.write(at, at as u8));
    // Places of a port with the default depth.
    let places = 4 * PortOptions::default().depth;
    let (mut done, mut loans) = (Vec::new(), Vec::new());
    let mut kept = Vec::new();
    for index in 0..places + 40 {
        raw.lend(index, index as u64, 300);
        let end = Instant::now() + Duration::from_secs(5);
        let mut one = Vec::new();
        while !one.iter().any(|c: &WorkCompletion| c.buffer.is_some()) {
            scene.victim.queue.poll(&mut one);
            assert!(Instant::now() < end, "message {index}");
        }
        for mut c in one {
            let Some(buffer) = c.buffer.take() else {
                done.push(c);
                continue;
            };
            assert_eq!((c.status, c.bytes), (Status::Success, 300));
            let mut out = [0; 300];
            match c.loan.take() {
                Some(loan) => {
                    loan.read(0, &mut out).unwrap();
                    loans.push(loan);
                }
                None => out.copy_from_slice(&buffer[..300]),
            }
            assert!(out.iter().enumerate().all(|(at, byte)| *byte == (index + at) as u8));
            let posted = scene.victim.queue.post_receive_or_loan(Some(qp), &mut vec![(c.id, buffer)]);
            assert_eq!(posted.unwrap(), 1);
        }
        kept.push(loans.len());
    }
    assert_eq!(loans.len(), places, "as many as there are places to return them");
    assert!(kept.windows(2).all(|pair| pair[0] <= pair[1]));
    // They end, and with each there is room for another.
    loans.truncate(places - 1);
    raw.lend(places + 40, 0, 300);
    let (closed, more) = scene.settle(qp, false);
    assert_eq!((closed, more.iter().filter(|c| c.loan.is_some()).count()), (None, 1));
    for mut c in more {
        if let Some(buffer) = c.buffer.take() {
            assert_eq!(scene.victim.queue.post_receive(Some(qp), &mut vec![(c.id, buffer)]).unwrap(), 1);
        } else {
            done.push(c);
        }
    }
    drop(loans);
    scene.check(qp, done);
}

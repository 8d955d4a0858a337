//! The words of the ring and of the control memory.

use std::time::{Duration, Instant};

use overside_verbs::*;

use crate::raw::*;

#[test]
fn the_raw_peer_is_understood_as_long_as_it_behaves() {
    let mut scene = Scene::new();
    let (raw, qp) = scene.hostile();
    raw.attach();
    raw.pass_data();
    raw.fill();
    raw.stamp(4);
    raw.store(CONSUMED, 2);
    let mut done = Vec::new();
    let end = Instant::now() + Duration::from_secs(5);
    while done.len() < 6 {
        scene.victim.queue.poll(&mut done);
        assert!(Instant::now() < end, "{done:?}");
    }
    assert!(done.iter().all(|c| c.status == Status::Success));
    let lengths: Vec<u64> = done.iter().filter(|c| c.buffer.is_some()).map(|c| c.bytes).collect();
    assert_eq!(lengths, [5, 24, 40, 64]);
    scene.check(qp, done);
}

#[test]
fn garbage_in_each_word_in_turn_harms_nobody_else() {
    let mut scene = Scene::new();
    let header = (0..512).step_by(8);
    let ring = (DESCRIPTORS..DESCRIPTORS + 4 * 64).step_by(8);
    let cells = (CELLS_AT..CELLS_AT + 5 * 16).step_by(8);
    let mut closed_by = std::collections::BTreeSet::new();
    for at in header.chain(ring).chain(cells) {
        for pattern in [u64::MAX, 1 << 63, 0x0101_0101_0101_0101, 4, 33, 0xffff_0000_0000_0001, STAMP | 600] {
            let (raw, qp) = scene.hostile();
            raw.attach();
            raw.pass_data();
            raw.fill();
            raw.store(CONSUMED, 1);
            raw.store(at, pattern);
            // A second word garbled after that stays so: it is published by whatever stamp it has.
            for i in 0..4 {
                let word = DESCRIPTORS + i * 64 + 8;
                if word != at || pattern < 1 << 32 {
                    raw.store(word, raw.load(word) & 0xffff_ffff | STAMP);
                }
            }
            // Out-of-range indexes must close it; other garbage may mean something harmless.
            let must = at == CLOSED || (at == CONSUMED && pattern > 32);
            let (closed, done) = scene.settle(qp, must);
            if closed.is_some() {
                closed_by.insert(at);
            }
            if must && at != CLOSED {
                assert_eq!(closed, Some(Status::Malformed), "word {at} pattern {pattern:x}");
            }
            scene.check(qp, done);
        }
    }
    let region = (DESCRIPTORS + 192..DESCRIPTORS + 256).step_by(8);
    for at in [CONSUMED, CLOSED, DESCRIPTORS, DESCRIPTORS + 8, DESCRIPTORS + 80, DESCRIPTORS + 88, CELLS_AT]
        .into_iter()
        .chain(region)
    {
        assert!(closed_by.contains(&at), "garbage in word {at} was never noticed");
    }
    let only_wake = [ARMED, RUNG, RETURNS];
    assert!(only_wake.iter().all(|at| !closed_by.contains(at)), "these words only wake");
}

#[test]
fn words_that_move_while_they_are_read_harm_nobody_else() {
    let mut scene = Scene::new();
    for seed in 0..20u64 {
        let (raw, qp) = scene.hostile();
        raw.attach();
        raw.pass_data();
        raw.fill();
        let scribbler = std::thread::spawn(move || {
            let mut state = seed * 2 + 1;
            for _ in 0..20_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (state >> 33) as usize % (CONTROL_BYTES / 8) * 8;
                let value = if state >> 62 == 0 { state >> 59 } else { state };
                // The closed word last: it would end the fun.
                if at != CLOSED {
                    raw.store(at, value);
                    if state >> 60 == 3 {
                        raw.stamp(4);
                    }
                }
            }
            raw
        });
        let (_, mut done) = scene.settle(qp, false);
        let raw = scribbler.join().unwrap();
        let (_, more) = scene.settle(qp, false);
        done.extend(more);
        drop(raw);
        scene.check(qp, done);
    }
}

#[test]
fn descriptors_that_lie_close_their_connection() {
    let lies: &[(&str, &[(usize, u64)])] = &[
        ("an unknown segment", &[(DESCRIPTORS, 1 | 1 << 16), (DESCRIPTORS + 8, 8), (DESCRIPTORS + 24, 99 | 8 << 32)]),
        (
            "past the segment",
            &[
                (DESCRIPTORS, 1 | 1 << 16),
                (DESCRIPTORS + 8, 8),
                (DESCRIPTORS + 16, 8185),
                (DESCRIPTORS + 24, 7 | 8 << 32),
            ],
        ),
        (
            "offset overflow",
            &[
                (DESCRIPTORS, 1 | 1 << 16),
                (DESCRIPTORS + 8, 8),
                (DESCRIPTORS + 16, u64::MAX - 3),
                (DESCRIPTORS + 24, 7 | 8 << 32),
            ],
        ),
        (
            "fragments longer than the message",
            &[(DESCRIPTORS, 1 | 1 << 16), (DESCRIPTORS + 8, 8), (DESCRIPTORS + 24, 7 | 9 << 32)],
        ),
        (
            "fragments longer than the buffer",
            &[(DESCRIPTORS, 1 | 1 << 16), (DESCRIPTORS + 8, 4096), (DESCRIPTORS + 24, 7 | 4097 << 32)],
        ),
        ("fragments shorter", &[(DESCRIPTORS, 1 | 1 << 16), (DESCRIPTORS + 8, 8), (DESCRIPTORS + 24, 7 | 7 << 32)]),
        ("a count past the limit", &[(DESCRIPTORS, 1 | 257 << 16), (DESCRIPTORS + 8, 8)]),
        ("inline past the limit", &[(DESCRIPTORS, 2), (DESCRIPTORS + 8, 513)]),
        ("an unknown operation", &[(DESCRIPTORS, 9)]),
        ("unknown flags", &[(DESCRIPTORS, 2 | 4 << 8)]),
        ("a huge message", &[(DESCRIPTORS, 1), (DESCRIPTORS + 8, (1 << 30) + 1)]),
    ];
    let mut scene = Scene::new();
    for (what, words) in lies {
        let (raw, qp) = scene.hostile();
        raw.attach();
        raw.pass_data();
        words.iter().for_each(|(at, value)| raw.store(*at, *value));
        raw.stamp(1);
        let (closed, done) = scene.settle(qp, true);
        assert_eq!(closed, Some(Status::Malformed), "{what}");
        scene.check(qp, done);
    }
}

/// `consumed` completes what was published, once and forwards; anything else ends the connection,
/// and completes nothing.
#[test]
fn consumed_completes_what_was_published_and_nothing_else() {
    let mut scene = Scene::new();
    for (lies, completed) in [(&[3u64][..], 0), (&[u64::MAX], 0), (&[1, 0], 1), (&[2, 3], 2), (&[1, u64::MAX - 1], 1)] {
        let (raw, qp) = scene.hostile();
        raw.attach();
        let mut done = Vec::new();
        for lie in lies {
            raw.store(CONSUMED, *lie);
            let (closed, more) = scene.settle(qp, lie == lies.last().unwrap());
            assert!(closed.is_none_or(|status| status == Status::Malformed), "{lies:?}");
            done.extend(more);
        }
        let sent = |c: &&WorkCompletion| c.buffer.is_none() && c.status == Status::Success;
        assert_eq!(done.iter().filter(sent).count(), completed, "{lies:?}: {done:?}");
        scene.check(qp, done);
    }
}

/// What a message names must be there when it is carried out; what is taken back or was never given
/// harms nobody before that.
#[test]
fn segments_and_keys_that_are_taken_back_are_void() {
    let forget = |ids: &[u32]| [&[6][..], &ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>()].concat();
    let mut scene = Scene::new();
    let (raw, qp) = scene.hostile();
    raw.attach();
    say(&raw.socket, &forget(&[1, 7, u32::MAX, 0]), &[]);
    say(&raw.socket, &[&[5][..], &[9; 16]].concat(), &[]);
    raw.pass_data();
    raw.fill();
    let (closed, done) = scene.settle(qp, false);
    assert_eq!((closed, done.len()), (None, 0), "nothing was named");
    // The inline message arrives, the one of two fragments finds no segment.
    say(&raw.socket, &forget(&[7]), &[]);
    let (closed, mut done) = scene.settle(qp, false);
    assert_eq!(closed, None);
    raw.stamp(2);
    let (closed, more) = scene.settle(qp, true);
    done.extend(more);
    assert_eq!(closed, Some(Status::Malformed));
    assert_eq!(done.iter().filter(|c| c.status == Status::Success).count(), 1, "{done:?}");
    scene.check(qp, done);
    // A region that is half made: 16 messages of 4 bytes, of which a SEND takes one.
    let (raw, qp) = scene.hostile();
    raw.attach();
    raw.pass_data();
    raw.fill();
    (0..8).for_each(|word| raw.store(DESCRIPTORS + word * 8, raw.load(DESCRIPTORS + 192 + word * 8)));
    raw.store(DESCRIPTORS + 48, 7 | 4 << 32);
    raw.stamp(1);
    let (closed, mut done) = scene.settle(qp, false);
    assert_eq!((closed, done.len()), (None, 4), "as many SENDs as there are receives");
    say(&raw.socket, &forget(&[7]), &[]);
    let (closed, more) = scene.settle(qp, false);
    assert_eq!((closed, more.len()), (None, 0));
    scene.victim.post_receives(Some(qp), 1, 4096);
    let (closed, more) = scene.settle(qp, true);
    assert_eq!(closed, Some(Status::Malformed));
    // The receive that was posted last has the number of the first one.
    done.extend(more.into_iter().filter(|c| c.buffer.is_none()));
    scene.check(qp, done);
}

/// A peer that says goodbye, or that it has closed, is believed for its own connection.
#[test]
fn a_goodbye_ends_what_is_pending() {
    let mut scene = Scene::new();
    for (word, message, status) in [
        (0, &[8u8][..], Status::Flushed),
        (1, &[], Status::Flushed),
        (2, &[], Status::TooLong),
        (3, &[], Status::Malformed),
        (4, &[], Status::Malformed),
        (u64::MAX, &[], Status::Malformed),
    ] {
        let (raw, qp) = scene.hostile();
        raw.attach();
        scene.settle(qp, false);
        raw.store(CLOSED, word);
        if !message.is_empty() {
            say(&raw.socket, message, &[]);
        }
        let (closed, done) = scene.settle(qp, true);
        assert_eq!(closed, Some(status), "closed: {word}");
        scene.check(qp, done);
    }
}

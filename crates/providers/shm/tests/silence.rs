//! Requests that nobody asked to hear of: who waits for their room hears of it, and nobody waits for what has ended.

mod ends;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ends::{both, pair, pair_with};
use overside_memory::View;
use overside_verbs::*;

/// A queue full of silent requests, by gather entries or by the bytes that are copied for the peer: a wait without a limit ends.
#[test]
fn who_waits_for_room_behind_silent_requests_is_woken() {
    for hidden in [false, true] {
        let (mut a, to_b, mut b, from_a) = pair_with(PortOptions { sges: 256, ..PortOptions::default() });
        b.post_receives(Some(from_a), 8, 1 << 20);
        let source = Arc::new(a.buffers(1, 4096).pop().unwrap());
        let shape = |pieces: u64| {
            let runs: Vec<_> = (0..pieces).map(|i| overside_shape::Run::new(i * 16, 8)).collect();
            overside_shape::Shape::list(&runs).unwrap()
        };
        let view = |pieces: u64| match hidden {
            true => View::foreign(Arc::new(vec![1u8; 400 << 10])),
            false => View::of(&source, &shape(pieces)).unwrap(),
        };
        // 127 entries go by unreported, and 256 more do not fit; of the bytes, two do and the third does not.
        let mut batch: VecDeque<WorkRequest> =
            [view(100), view(27), view(256)].map(|view| WorkRequest::send(0, view).unsignalled()).into();
        assert_eq!(a.queue.post(to_b, &mut batch).unwrap(), 2);
        let receiver = std::thread::spawn(move || {
            // Once who posts sleeps, as a rule; earlier does no harm.
            std::thread::sleep(Duration::from_millis(20));
            b.completions(2);
            b
        });
        while !batch.is_empty() {
            let start = Instant::now();
            a.queue.poll_wait(&mut a.early, Some(LIMIT)).unwrap();
            assert!(start.elapsed() < LIMIT, "hidden {hidden}: nothing but its limit ended the wait");
            a.queue.post(to_b, &mut batch).unwrap();
        }
        receiver.join().unwrap().completions(1);
    }
}

/// The last requests of a queue pair ended silently: its end says so, and leaves nothing behind.
#[test]
fn what_ended_silently_is_not_waited_for() {
    for peer_first in [false, true] {
        let (mut a, to_b, mut b, from_a) = pair();
        b.post_receives(Some(from_a), 4, 4096);
        let sends = (0..3).map(|i| WorkRequest::send_inline(i, &[7; 100]).unsignalled());
        a.post(to_b, sends.collect());
        both(&mut a, 0, &mut b, 3);
        // Nobody waits for it, so the peer says that it took them when it finds nothing else to do.
        for _ in 0..1000 {
            assert_eq!((a.queue.poll(&mut a.early), b.queue.poll(&mut b.early)), (0, 0));
        }
        if peer_first {
            drop(b);
            a.event();
        }
        a.queue.close(to_b);
        let start = Instant::now();
        while a.queue.in_flight() > 0 {
            a.queue.poll(&mut a.early);
            assert!(a.early.is_empty(), "nobody asked for a report: {:?}", a.early);
            assert!(start.elapsed() < LIMIT, "{} requests that have ended are waited for", a.queue.in_flight());
        }
    }
}

/// Far more than any of it takes.
const LIMIT: Duration = Duration::from_secs(20);

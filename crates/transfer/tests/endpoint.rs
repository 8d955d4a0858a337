//! One endpoint over every provider that works on any host: what comes, what ends, and when a wait does.

mod ends;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_memory::View;
use overside_transfer::{Deadline, Endpoint, RingOptions};
use overside_verbs::{Memory, PortOptions, Status, VerbsError, WorkRequest};

use ends::{Ends, PATIENCE, TRANSPORTS, fresh_name, provider};

fn messages(count: u64) -> VecDeque<WorkRequest> {
    (0..count).map(|i| WorkRequest::send_inline(i, &i.to_le_bytes())).collect()
}

#[test]
fn more_messages_than_receives_come_in_order_through_a_ring() {
    let shared = [RingOptions::default(), RingOptions { posted_max: 2, ..RingOptions::default() }];
    for (transport, base) in TRANSPORTS.iter().flat_map(|transport| shared.map(|options| (*transport, options))) {
        for own in [true, false] {
            let port = PortOptions { shared_receives: 16, ..PortOptions::default() };
            let Ends { mut here, to, mut there, from } = Ends::with(transport, port);
            let queue_pair = own.then_some(from);
            let options = RingOptions { queue_pair, id: 9, bytes: 100, count: 6, repost: 3, touched: true, ..base };
            let mut ring = there.ring(options).unwrap();
            assert_eq!(ring.posted(), 6.min(base.posted_max));
            let sending = std::thread::spawn(move || {
                let (mut done, mut deadline) = (Vec::new(), Deadline::within(PATIENCE));
                here.post(to, &mut messages(500), &mut done, &mut deadline).unwrap();
                while done.len() < 500 {
                    here.progress(&mut done, &mut deadline).unwrap();
                }
                assert!(done.iter().zip(0..).all(|(done, id)| (done.id, done.status) == (id, Status::Success)));
                here
            });
            let (mut done, mut next, mut deadline) = (Vec::new(), 0u64, Deadline::within(PATIENCE));
            while next < 500 {
                there.progress(&mut done, &mut deadline).unwrap();
                for done in done.drain(..) {
                    let buffer = done.buffer.expect("a receive has its buffer");
                    assert_eq!((done.id, done.status, &buffer[..8]), (9, Status::Success, &next.to_le_bytes()[..]));
                    next += 1;
                    ring.completed();
                    ring.put(buffer);
                }
                // With two posted at most three never come back together.
                if base.posted_max < 3 { ring.post_all(there.queue()) } else { ring.post(there.queue()) }.unwrap();
            }
            drop(sending.join().unwrap());
        }
    }
}

#[test]
fn a_wait_ends_at_its_deadline() {
    for transport in TRANSPORTS {
        let Ends { mut here, to, there: _there, .. } = Ends::open(transport);
        let within = Duration::from_millis(60);
        let start = Instant::now();
        let mut deadline = Deadline::within(within);
        // A wait may end early, for what is no news to the caller; the deadline is that of all of them.
        let error = loop {
            if let Err(error) = here.progress(&mut Vec::new(), &mut deadline) {
                break error;
            }
            assert!(start.elapsed() < PATIENCE, "{transport}");
        };
        assert!(matches!(error, VerbsError::TimedOut(time) if time == within), "{transport}: {error}");
        assert!(start.elapsed() >= within, "{transport}");
        // Nobody receives, so the queue pair fills.
        let mut batch = messages(100_000);
        let error = here.post(to, &mut batch, &mut Vec::new(), &mut Deadline::within(within)).unwrap_err();
        assert!(matches!(error, VerbsError::TimedOut(_)) && !batch.is_empty(), "{transport}: {error}");

        let name = fresh_name(transport);
        let mut listener = here.listen(&name).unwrap();
        let error = here.accept(&mut *listener, within).unwrap_err();
        assert!(matches!(error, VerbsError::TimedOut(_)), "{transport}: {error}");
        let nowhere = here.connect(&fresh_name(transport), within).unwrap_err();
        assert!(matches!(nowhere, VerbsError::Unreachable { .. }), "{transport}: {nowhere}");
    }
}

#[test]
fn an_end_is_told_once_with_its_reason() {
    for transport in TRANSPORTS {
        let Ends { mut here, to, there, .. } = Ends::open(transport);
        assert_eq!(here.ended(to), None);
        drop(there);
        let mut deadline = Deadline::within(PATIENCE);
        while here.ended(to).is_none() {
            here.progress(&mut Vec::new(), &mut deadline).unwrap();
        }
        let ended = here.ended(to).cloned().expect("it has ended");
        assert!(ended.reason.starts_with("the peer closed the connection"), "{transport}: {}", ended.reason);
        let error = here.explain(to, VerbsError::Closed).to_string();
        assert!(error.starts_with("the connection ended: the peer closed"), "{transport}: {error}");
        assert_eq!(here.next_end(), Some(ended));
        assert_eq!((here.next_end(), here.ended(to)), (None, None), "{transport}");
        here.close(to);
        assert!(matches!(here.explain(to, VerbsError::Closed), VerbsError::Closed), "{transport}");
    }
}

/// What is said of a closed queue pair is not kept for ever: a server has had millions of them.
#[test]
fn the_end_of_what_was_closed_is_forgotten() {
    let Ends { mut here, to, there, .. } = Ends::open("shm");
    drop(there);
    let mut deadline = Deadline::within(PATIENCE);
    while here.ended(to).is_none() {
        here.progress(&mut Vec::new(), &mut deadline).unwrap();
    }
    here.close(to);
    assert_eq!(here.next_end(), None);
}

#[test]
fn memory_is_registered_until_it_is_taken_back_or_the_endpoint_ends() {
    let Ends { mut here, to, mut there, .. } = Ends::open("shm");
    let sends = |here: &mut Endpoint, view: View| {
        here.queue().post(to, &mut VecDeque::from([WorkRequest::send(0, view)])).map(drop)
    };
    let buffer = Arc::new(here.allocate(1 << 16).unwrap());
    let memory = Memory::Segment(buffer.segment().clone());
    let all = overside_shape::Shape::contiguous(0, 1 << 16).unwrap();
    let other = here.allocate(4096).unwrap();
    sends(&mut here, View::of(&buffer, &all).unwrap()).unwrap();
    here.deregister(&memory).unwrap();
    let error = sends(&mut here, View::of(&buffer, &all).unwrap()).unwrap_err();
    assert!(matches!(error, VerbsError::NotRegistered(_)), "{error}");
    sends(&mut here, View::whole(other)).expect("other memory stays");

    // Another endpoint of the domain may send what this one registered, until this one ends.
    let mut second = Endpoint::builder(here.provider().clone()).domain(here.domain().clone()).open().unwrap();
    let pool = here.pool(100, 7).unwrap();
    assert!(pool.buffer_bytes() >= 100 && pool.capacity() >= 7);
    let name = fresh_name("shm");
    let mut listener = there.listen(&name).unwrap();
    let to = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| second.connect(&name, PATIENCE).unwrap());
        there.accept(&mut *listener, PATIENCE).unwrap();
        connecting.join().unwrap()
    });
    let packed = || VecDeque::from([WorkRequest::send(0, pool.view(pool.take().unwrap(), 100))]);
    second.queue().post(to, &mut packed()).unwrap();
    drop(here);
    let error = second.queue().post(to, &mut packed()).unwrap_err();
    assert!(matches!(error, VerbsError::NotRegistered(_)), "{error}");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_kept() {
    let mut here = Endpoint::builder(provider("shm")).open().unwrap();
    for error in [here.allocate(0).unwrap_err(), here.allocate(usize::MAX).unwrap_err()] {
        assert!(!error.to_string().is_empty());
    }
    for (bytes, count) in [(0, 3), (100, 0)] {
        assert!(here.pool(bytes, count).is_err(), "a pool of {count} times {bytes} bytes");
        assert!(here.ring(RingOptions { bytes, count, ..RingOptions::default() }).is_err(), "{count} times {bytes}");
    }
    assert!(here.pool(usize::MAX, 3).is_err() && here.pool(1 << 40, usize::MAX).is_err());
    assert!(here.ring(RingOptions { bytes: usize::MAX, count: 2, ..RingOptions::default() }).is_err());
    let Ends { mut here, to, .. } = Ends::open("shm");
    here.close(to);
    let ring = RingOptions { queue_pair: Some(to), bytes: 64, count: 1, ..RingOptions::default() };
    assert!(matches!(here.ring(ring).unwrap_err(), VerbsError::Closed));
}

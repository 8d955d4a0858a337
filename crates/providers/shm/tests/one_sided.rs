//! WRITE, READ and atomics on granted memory; the target never calls in.

mod ends;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ends::{End, both, pair};
use overside_memory::{Buffer, Segment, View, Window};
use overside_verbs::*;

fn grant(end: &End, access: Access) -> (Arc<Window>, RemoteToken) {
    let window = Arc::new(Window::new(8192).unwrap());
    let region = end.provider.register(&end.domain, &Memory::Window(window.clone()), access).unwrap();
    (window, region.token())
}

fn read(window: &Window, at: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    window.read(at, &mut out).unwrap();
    out
}

fn foreign(bytes: &[u8]) -> View {
    View::foreign(Arc::new(bytes.to_vec()))
}

fn sink(len: usize) -> Buffer {
    Segment::private(len).unwrap().carve(len).pop().unwrap()
}

/// Ends such that the target (the second) has attached and never polls again.
fn attached() -> (End, QueuePair, End, QueuePair) {
    let (target, to_a, initiator, to_b) = pair();
    (initiator, to_b, target, to_a)
}

const ALL: u8 = 2 | 4 | 8;

#[test]
fn one_sided_operations_complete_though_the_target_never_calls_in() {
    let (mut a, to_b, b, _) = attached();
    // Granted after the connection stood.
    let (window, token) = grant(&b, Access::from_bits(ALL));
    let at = |at, len| RemoteToken { at, len, ..token };
    a.post(
        to_b,
        vec![
            WorkRequest::write(0, foreign(b"left").then(foreign(b" and right")), Remote::new(at(13, 100))),
            WorkRequest::fetch_add(1, Remote::new(at(64, 8)), 5),
            WorkRequest::fetch_add(2, Remote::new(at(64, 8)), 6),
            WorkRequest::compare_swap(3, Remote::new(at(64, 8)), 11, 99),
            WorkRequest::compare_swap(4, Remote::new(at(64, 8)), 11, 100).fenced(),
            WorkRequest::read(5, sink(64), Remote::new(at(13, 14))).fenced(),
        ],
    );
    let done = a.completions(6);
    assert!(done.iter().enumerate().all(|(i, c)| c.id == i as u64 && c.status == Status::Success), "{done:?}");
    assert_eq!(done.iter().map(|c| c.value).collect::<Vec<_>>(), [0, 0, 5, 11, 99, 0]);
    assert_eq!(&done[5].buffer.as_ref().unwrap()[..14], b"left and right");
    assert_eq!(read(&window, 13, 14), b"left and right");
    assert_eq!(window.word(64).unwrap().load(Ordering::Acquire), 99);
}

#[test]
fn a_key_is_good_however_much_memory_was_granted_before_it() {
    let (mut a, to_b, b, _) = attached();
    // Each is more than is mapped in one go.
    for _ in 0..3 {
        let large = Memory::Segment(Arc::new(Segment::shared((1 << 30) + 4096).unwrap()));
        b.provider.register(&b.domain, &large, Access::REMOTE_READ).unwrap();
    }
    let (window, token) = grant(&b, Access::from_bits(ALL));
    a.post(to_b, vec![WorkRequest::write(0, foreign(b"here"), Remote::new(token).part(0, 4).unwrap())]);
    assert_eq!(a.completions(1)[0].status, Status::Success);
    assert_eq!(read(&window, 0, 4), b"here");
}

#[test]
fn wrong_keys_rights_and_bounds_change_nothing() {
    let (mut a, to_b, b, _) = attached();
    let (window, token) = grant(&b, Access::from_bits(ALL));
    let (readable, only_read) = grant(&b, Access::REMOTE_READ);
    let (writable, only_write) = grant(&b, Access::REMOTE_WRITE);
    let wrong = |token: RemoteToken| Remote::new(RemoteToken { rkey: token.rkey ^ 1, ..token });
    let bytes = || foreign(&[7; 16]);
    let refused = vec![
        WorkRequest::write(0, bytes(), Remote::new(RemoteToken { rkey: token.rkey ^ 1, ..token })),
        WorkRequest::write(1, bytes(), Remote::new(RemoteToken { at: 8192 - 15, len: 16, ..token })),
        WorkRequest::write(2, bytes(), Remote::new(RemoteToken { at: u64::MAX - 3, len: 16, ..token })),
        WorkRequest::write(3, bytes(), Remote::new(RemoteToken { len: 15, ..token })),
        WorkRequest::write(4, bytes(), Remote::new(only_read)),
        WorkRequest::read(5, sink(64), Remote::new(RemoteToken { len: 8, ..only_write })),
        WorkRequest::read(6, sink(64), Remote::new(RemoteToken { at: 8190, len: 8, ..token })),
        WorkRequest::fetch_add(7, Remote::new(RemoteToken { at: 4, len: 8, ..token }), 1),
        WorkRequest::fetch_add(8, Remote::new(RemoteToken { at: 8192, len: 8, ..token }), 1),
        WorkRequest::fetch_add(9, Remote::new(RemoteToken { len: 8, ..only_write }), 1),
        WorkRequest::compare_swap(10, wrong(token), 0, 1),
        WorkRequest::write(11, bytes(), Remote::new(RemoteToken { at: 8190, len: 16, ..token })).with_immediate(3),
    ];
    let count = refused.len();
    a.post(to_b, refused);
    let done = a.completions(count);
    assert!(done.iter().enumerate().all(|(i, c)| c.id == i as u64 && c.status == Status::RemoteAccess), "{done:?}");
    for window in [&window, &readable, &writable] {
        assert!(read(window, 0, 8192).iter().all(|b| *b == 0));
    }
    // The queue pair goes on.
    a.post(to_b, vec![WorkRequest::write(0, bytes(), Remote::new(token))]);
    assert_eq!(a.completions(1)[0].status, Status::Success);
}

#[test]
fn a_key_of_another_domain_or_past_its_end_is_void() {
    let (mut a, to_b, b, _) = attached();
    let other = b.provider.allocate_domain().unwrap();
    let window = Arc::new(Window::new(4096).unwrap());
    let region = b.provider.register(&other, &Memory::Window(window.clone()), Access::REMOTE_WRITE).unwrap();
    a.post(to_b, vec![WorkRequest::write(0, foreign(&[1]), Remote::new(region.token()))]);
    assert_eq!(a.completions(1)[0].status, Status::RemoteAccess);
    let region = b.provider.register(&b.domain, &Memory::Window(window.clone()), Access::REMOTE_WRITE).unwrap();
    let token = region.token();
    a.post(to_b, vec![WorkRequest::write(0, foreign(&[1]), Remote::new(token))]);
    assert_eq!(a.completions(1)[0].status, Status::Success);
    b.provider.deregister(region).unwrap();
    // The target's word arrives over the socket, which one of the next polls reads.
    std::thread::sleep(std::time::Duration::from_millis(1));
    (0..16).for_each(|_| assert_eq!(a.queue.poll(&mut Vec::new()), 0));
    a.post(to_b, vec![WorkRequest::write(0, foreign(&[2]), Remote::new(token))]);
    assert_eq!(a.completions(1)[0].status, Status::RemoteAccess);
    assert_eq!(read(&window, 0, 1), [1]);
}

#[test]
fn a_segment_is_read_by_peers_and_never_written() {
    let (mut a, to_b, b, _) = attached();
    let mut buffer = Segment::shared(4096).unwrap().carve(4096).pop().unwrap();
    buffer[100..105].copy_from_slice(b"hello");
    let memory = Memory::Segment(buffer.segment().clone());
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let refused = b.provider.register(&b.domain, &memory, access);
        assert!(matches!(refused, Err(VerbsError::Unsupported(_))));
    }
    let private = Memory::Segment(Arc::new(Segment::private(4096).unwrap()));
    assert!(matches!(b.provider.register(&b.domain, &private, Access::REMOTE_READ), Err(VerbsError::Unsupported(_))));
    let token = b.provider.register(&b.domain, &memory, Access::REMOTE_READ).unwrap().token();
    let part = Remote::<Readable>::new(token).part(100, 5).unwrap();
    a.post(to_b, vec![WorkRequest::read(1, sink(64), part)]);
    assert_eq!(&a.completions(1)[0].buffer.as_ref().unwrap()[..5], b"hello");
    a.post(to_b, vec![WorkRequest::write(1, foreign(b"x"), Remote::new(token))]);
    assert_eq!(a.completions(1)[0].status, Status::RemoteAccess);
}

#[test]
fn completions_keep_the_order_of_posting_and_an_immediate_consumes_a_receive() {
    let (mut a, to_b, mut b, from_a) = attached();
    let (window, token) = grant(&b, Access::from_bits(ALL));
    b.post_receives(Some(from_a), 1, 64);
    a.post(
        to_b,
        vec![
            WorkRequest::send_inline(0, b"first"),
            WorkRequest::write(1, foreign(&[1; 20]), Remote::new(token)),
            WorkRequest::write(2, foreign(&[2; 10]), Remote::new(token)).with_immediate(77),
            WorkRequest::fetch_add(3, Remote::new(RemoteToken { at: 64, ..token }), 1),
        ],
    );
    // Nothing is reported before the SEND has arrived, though the WRITE is long done.
    let mut early = Vec::new();
    (0..200).for_each(|_| {
        a.queue.poll(&mut early);
    });
    assert!(early.is_empty());
    assert_eq!(read(&window, 0, 20)[9..11], [2, 1]);
    let (done, received) = both(&mut a, 2, &mut b, 1);
    assert_eq!(done.iter().map(|c| c.id).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(received[0].opcode, Opcode::Receive);
    let mut untouched = sink(64);
    untouched.fill(0xAB);
    b.queue.post_receive(Some(from_a), &mut vec![(9, untouched)]).unwrap();
    let (done, received) = both(&mut a, 2, &mut b, 1);
    assert_eq!(done.iter().map(|c| (c.id, c.status)).collect::<Vec<_>>(), [(2, Status::Success), (3, Status::Success)]);
    assert_eq!(
        (received[0].opcode, received[0].immediate, received[0].bytes),
        (Opcode::ReceiveImmediate, Some(77), 10)
    );
    assert!(received[0].buffer.as_ref().unwrap().iter().all(|b| *b == 0xAB));
}

#[test]
fn atomics_of_two_processes_worth_of_threads_lose_no_addition() {
    let (mut a, to_b, b, _) = attached();
    let (window, token) = grant(&b, Access::from_bits(ALL));
    let target = window.clone();
    let local = std::thread::spawn(move || {
        (0..20_000).for_each(|_| {
            target.word(8).unwrap().fetch_add(1, Ordering::Relaxed);
        })
    });
    let word = RemoteToken { at: 8, len: 8, ..token };
    for _ in 0..200 {
        a.post(to_b, (0..100).map(|i| WorkRequest::fetch_add(i, Remote::new(word), 1)).collect());
        a.completions(100);
    }
    local.join().unwrap();
    assert_eq!(window.word(8).unwrap().load(Ordering::Relaxed), 40_000);
}

/// Memory of a peer that has gone is its owner's again, whoever still has it mapped: what is read there is no answer, and nothing is
/// written there.
#[test]
fn memory_of_a_peer_that_has_closed_is_neither_read_nor_written() {
    for late in 0..3 {
        let (mut a, to_b, b, _) = attached();
        let (window, token) = grant(&b, Access::from_bits(ALL));
        let (at, word) = (RemoteToken { len: 64, ..token }, RemoteToken { len: 8, ..token });
        let request = |id| match late {
            0 => WorkRequest::read(id, sink(64), Remote::new(at)),
            1 => WorkRequest::write(id, foreign(b"too late"), Remote::new(at)),
            _ => WorkRequest::fetch_add(id, Remote::new(word), 1),
        };
        a.post(to_b, vec![request(0)]);
        assert_eq!(a.completions(1)[0].status, Status::Success);
        drop(b);
        window.write(0, b"something else").unwrap();
        a.post(to_b, vec![request(1)]);
        let done = a.completions(1);
        assert!(done.iter().all(|completion| completion.status != Status::Success), "{done:?}");
        let mut found = [0; 14];
        window.read(0, &mut found).unwrap();
        assert_eq!(&found, b"something else");
    }
}

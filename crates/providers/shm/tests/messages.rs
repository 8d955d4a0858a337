//! SEND and RECV between two ends.

mod ends;

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use ends::{End, both, fresh_name, pair, pair_with, process};
use overside_memory::{Segment, View};
use overside_verbs::*;

fn view(end: &End, bytes: &[u8]) -> View {
    let mut buffer = end.buffers(1, bytes.len().max(1)).pop().unwrap();
    buffer[..bytes.len()].copy_from_slice(bytes);
    View::prefix(buffer, bytes.len())
}

#[test]
fn a_message_lands_in_a_posted_buffer() {
    let (mut a, to_b, mut b, from_a) = pair();
    b.post_receives(Some(from_a), 2, 4096);
    let bytes: Vec<u8> = (0..3000u32).map(|i| i as u8).collect();
    let message = view(&a, &bytes);
    a.post(to_b, vec![WorkRequest::send(5, message).with_immediate(9)]);
    let (sent, received) = both(&mut a, 1, &mut b, 1);
    assert_eq!((sent[0].id, sent[0].status, sent[0].bytes), (5, Status::Success, 3000));
    assert_eq!((received[0].id, received[0].status, received[0].immediate), (0, Status::Success, Some(9)));
    assert_eq!(received[0].opcode, Opcode::Receive);
    assert_eq!(&received[0].buffer.as_ref().unwrap()[..3000], &bytes[..]);
}

#[test]
fn long_lists_inline_bytes_and_hidden_memory_arrive_in_order() {
    let (mut a, to_b, mut b, from_a) = pair();
    let mut expected: Vec<Vec<u8>> = Vec::new();
    let mut requests = Vec::new();
    for turn in 0..200u64 {
        let bytes: Vec<u8> = (0..turn * 37 % 3001).map(|i| (i * 7 + turn) as u8).collect();
        requests.push(match turn % 4 {
            0 => WorkRequest::send(turn, view(&a, &bytes)),
            1 => {
                let bytes = &bytes[..bytes.len().min(512)];
                expected.push(bytes.to_vec());
                WorkRequest::send_inline(turn, bytes)
            }
            2 => WorkRequest::send(turn, View::foreign(Arc::new(bytes.clone()))),
            _ => {
                let parts = bytes.chunks(1 + turn as usize % 90).map(|part| {
                    if part.len() % 3 == 0 { View::foreign(Arc::new(part.to_vec())) } else { view(&a, part) }
                });
                let list = parts.reduce(View::then).unwrap_or_else(|| view(&a, &[]));
                WorkRequest::send(turn, list)
            }
        });
        if turn % 4 != 1 {
            expected.push(bytes);
        }
    }
    b.post_receives(None, 200, 4096);
    let sender = std::thread::spawn(move || {
        let mut batch = std::collections::VecDeque::from(requests);
        let mut out = Vec::new();
        while out.len() < 200 {
            a.queue.post(to_b, &mut batch).unwrap();
            a.queue.poll(&mut out);
        }
        (a, out)
    });
    let received = b.completions(200);
    let (_a, sent) = sender.join().unwrap();
    for (i, (sent, (received, expected))) in sent.iter().zip(received.iter().zip(&expected)).enumerate() {
        assert_eq!((sent.id, sent.status), (i as u64, Status::Success));
        assert_eq!((received.id, received.queue_pair), (i as u64, Some(from_a)));
        assert_eq!(received.bytes as usize, expected.len(), "message {i}");
        assert_eq!(&received.buffer.as_ref().unwrap()[..expected.len()], &expected[..], "message {i}");
    }
}

/// What is posted is read where it lies, when the receiver takes it. Of a list that was copied first
/// it would get what lay there before (to-copy §3 TC-M01).
#[test]
fn a_list_is_assembled_from_where_its_pieces_lie() {
    let (mut a, to_b, mut b, from_a) = pair();
    b.post_receives(Some(from_a), 1, 4096);
    let buffers = a.buffers(3, 1024);
    let places: Vec<u64> = buffers.iter().map(|buffer| buffer.as_ptr().addr() as u64).collect();
    let list = buffers.into_iter().rev().map(|buffer| View::prefix(buffer, 1000)).reduce(View::then).unwrap();
    a.post(to_b, vec![WorkRequest::send(5, list)]);
    // By the kernel: no program may write what its request names.
    let memory = std::fs::File::options().write(true).open("/proc/self/mem").unwrap();
    for (place, fill) in places.iter().zip(1..) {
        memory.write_all_at(&[fill; 1000], *place).unwrap();
    }
    let (_, received) = both(&mut a, 1, &mut b, 1);
    let expected = [[3; 1000], [2; 1000], [1; 1000]].concat();
    assert!(received[0].buffer.as_ref().unwrap()[..3000] == expected[..]);
}

#[test]
fn large_hidden_messages_get_memory_of_their_own() {
    let (mut a, to_b, mut b, from_a) = pair();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    b.post_receives(Some(from_a), 3, 3_000_000);
    for id in 0..3 {
        a.post(to_b, vec![WorkRequest::send(id, View::foreign(Arc::new(bytes.clone())))]);
    }
    let (_, received) = both(&mut a, 3, &mut b, 3);
    assert!(received.iter().all(|c| c.buffer.as_ref().unwrap()[..bytes.len()] == bytes[..]));
}

#[test]
fn a_message_without_a_receive_waits() {
    let (mut a, to_b, mut b, from_a) = pair();
    a.post(to_b, (0..100).map(|i| WorkRequest::send_inline(i, &[i as u8])).collect());
    let mut out = Vec::new();
    for _ in 0..1000 {
        a.queue.poll(&mut out);
        b.queue.poll(&mut out);
    }
    assert!(out.is_empty(), "{out:?}");
    b.post_receives(None, 40, 64);
    let (_, received) = both(&mut a, 40, &mut b, 40);
    assert!(received.iter().enumerate().all(|(i, c)| c.buffer.as_ref().unwrap()[0] == i as u8));
    // Asleep with a message that waits: a shared receive brings it.
    while !b.queue.arm().unwrap() {
        b.queue.poll(&mut out);
    }
    b.post_receives(None, 30, 64);
    b.post_receives(Some(from_a), 30, 64);
    both(&mut a, 60, &mut b, 60);
}

#[test]
fn a_message_too_long_ends_both_ends_and_writes_nothing_outside() {
    let (mut a, to_b, mut b, from_a) = pair();
    b.post_receives(Some(from_a), 2, 64);
    let (first, second) = (view(&a, &[1; 64]), view(&a, &[2; 65]));
    let third = view(&a, &[3; 3]);
    a.post(to_b, vec![WorkRequest::send(0, first), WorkRequest::send(1, second), WorkRequest::send(2, third)]);
    let (sent, received) = both(&mut a, 3, &mut b, 2);
    let ends: Vec<_> = sent.iter().map(|c| (c.id, c.status)).collect();
    assert_eq!(ends, [(0, Status::Success), (1, Status::TooLong), (2, Status::Flushed)]);
    let ends: Vec<_> = received.iter().map(|c| (c.id, c.status)).collect();
    assert_eq!(ends, [(0, Status::Success), (1, Status::TooLong)]);
    assert!(received[1].buffer.as_ref().unwrap().iter().all(|b| *b == 0));
    assert!(matches!(a.event(), PortEvent::Disconnected { status: Status::TooLong, .. }));
    assert!(matches!(b.event(), PortEvent::Disconnected { status: Status::TooLong, .. }));
}

#[test]
fn closing_flushes_both_ends_and_the_index_serves_again() {
    let (mut a, to_b, mut b, from_a) = pair();
    b.post_receives(Some(from_a), 3, 64);
    a.post_receives(Some(to_b), 4, 64);
    b.queue.poll(&mut Vec::new());
    b.queue.close(from_a);
    let flushed = b.completions(3);
    assert!(flushed.iter().all(|c| c.status == Status::Flushed && c.buffer.is_some()));
    let flushed = a.completions(4);
    assert!(flushed.iter().all(|c| c.status == Status::Flushed));
    assert!(matches!(a.event(), PortEvent::Disconnected { status: Status::Flushed, .. }));
    let mut batch = std::collections::VecDeque::from([WorkRequest::send_inline(0, b"late")]);
    assert!(matches!(a.queue.post(to_b, &mut batch), Err(VerbsError::Closed)));
    a.queue.close(to_b);
    let name = fresh_name("again");
    let mut listener = a.listen(&name);
    let accepting = std::thread::spawn(move || {
        let qp = a.accept(&mut *listener);
        a.post_receives(Some(qp), 1, 64);
        a.completions(1)
    });
    let again = b.connect(&name);
    b.post(again, vec![WorkRequest::send_inline(1, b"hello")]);
    assert_eq!(b.completions(1)[0].status, Status::Success);
    assert_eq!(&accepting.join().unwrap()[0].buffer.as_ref().unwrap()[..5], b"hello");
}

#[test]
fn full_queues_accept_fewer_and_lose_nothing() {
    let options = PortOptions { depth: 32, sges: 256, shared_receives: 16, ..PortOptions::default() };
    let (mut a, to_b, mut b, _) = pair_with(options);
    let mut batch: std::collections::VecDeque<_> =
        (0..1000u64).map(|i| WorkRequest::send_inline(i, &i.to_le_bytes())).collect();
    let (mut sent, mut received, mut next) = (Vec::new(), Vec::new(), 0u64);
    let mut spare: Vec<_> = Segment::private(64 * 20).unwrap().carve(64).into_iter().take(20).map(|b| (0, b)).collect();
    while next < 1000 || sent.len() < 1000 {
        a.queue.post(to_b, &mut batch).unwrap();
        a.queue.poll(&mut sent);
        b.queue.post_receive(None, &mut spare).unwrap();
        b.queue.poll(&mut received);
        for done in received.drain(..) {
            let buffer = done.buffer.unwrap();
            assert_eq!(buffer[..8], next.to_le_bytes());
            next += 1;
            spare.push((0, buffer));
        }
    }
    assert!(sent.iter().enumerate().all(|(i, c)| c.id == i as u64));
}

#[test]
fn what_can_never_be_sent_is_refused_with_the_reason() {
    let (mut a, to_b, _b, _) = pair();
    let mut refused = |request: WorkRequest| {
        let mut batch = std::collections::VecDeque::from([request]);
        let error = a.queue.post(to_b, &mut batch).unwrap_err();
        assert_eq!(batch.len(), 1, "it stays with the caller");
        error
    };
    assert!(matches!(refused(WorkRequest::send_inline(0, &[0; 513])), VerbsError::Limit { max: 512, .. }));
    let stray = Segment::shared(4096).unwrap().carve(4096).pop().unwrap();
    let id = stray.segment_id().get();
    assert!(matches!(refused(WorkRequest::send(0, View::whole(stray))), VerbsError::NotRegistered(i) if i == id));
    let list = (0..257).map(|_| View::foreign(Arc::new([1u8]))).reduce(View::then).unwrap();
    assert!(matches!(refused(WorkRequest::send(0, list)), VerbsError::Limit { max: 256, .. }));
}

#[test]
fn deregistered_memory_is_refused_and_forgotten_and_may_come_back() {
    let (mut a, to_b, mut b, _) = pair();
    let mut buffer = Segment::shared(4096).unwrap().carve(4096).pop().unwrap();
    buffer[0] = 7;
    let memory = Memory::Segment(buffer.segment().clone());
    let buffer = Arc::new(buffer);
    let one = overside_shape_contiguous();
    let view = || View::of(&buffer, &one).unwrap();
    b.post_receives(None, 3, 64);
    for turn in 0..3 {
        let region = a.provider.register(&a.domain, &memory, Access::LOCAL).unwrap();
        a.post(to_b, vec![WorkRequest::send(turn, view())]);
        // While it is in flight: it completes all the same.
        a.provider.deregister(region).unwrap();
        let (sent, received) = both(&mut a, 1, &mut b, 1);
        assert_eq!((sent[0].status, received[0].buffer.as_ref().unwrap()[0]), (Status::Success, 7));
        let mut batch = std::collections::VecDeque::from([WorkRequest::send(9, view())]);
        assert!(matches!(a.queue.post(to_b, &mut batch), Err(VerbsError::NotRegistered(_))));
    }
}

fn overside_shape_contiguous() -> overside_shape::Shape {
    overside_shape::Shape::contiguous(0, 1).unwrap()
}

/// Role of another process: answers each message with its bytes, until the peer closes.
#[test]
#[ignore = "the other process of ping_pong_between_processes"]
fn echo() {
    let Ok(name) = std::env::var("OVERSIDE_TEST_NAME") else { return };
    let mut end = End::new();
    let qp = end.connect(&name);
    end.post_receives(None, 8, 4096);
    let mut out = Vec::new();
    loop {
        out.append(&mut end.early);
        if out.is_empty() {
            end.queue.poll_wait(&mut out, None).unwrap();
        }
        for done in std::mem::take(&mut out) {
            if let (Opcode::Receive, Some(buffer)) = (done.opcode, done.buffer) {
                let bytes = buffer[..done.bytes as usize].to_vec();
                end.post(qp, vec![WorkRequest::send(0, View::foreign(Arc::new(bytes))).unsignalled()]);
                end.queue.post_receive(None, &mut vec![(0, buffer)]).unwrap();
            }
        }
        if end.queue.next_event().is_some() {
            return;
        }
    }
}

#[test]
fn ping_pong_between_processes_asleep_and_awake() {
    let name = fresh_name("pingpong");
    let mut end = End::new();
    let mut listener = end.listen(&name);
    let mut child = process("echo", &[("OVERSIDE_TEST_NAME", &name)]);
    let qp = end.accept(&mut *listener);
    end.post_receives(Some(qp), 1, 4096);
    for round in 0..2000u64 {
        if round % 500 == 0 {
            // Both sides fall asleep.
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let bytes: Vec<u8> = (0..round % 200 + 8).map(|i| (i + round) as u8).collect();
        end.post(qp, vec![WorkRequest::send_inline(1, &bytes).unsignalled()]);
        let done = end.completions(1).pop().unwrap();
        let buffer = done.buffer.unwrap();
        assert_eq!(&buffer[..done.bytes as usize], &bytes[..]);
        end.queue.post_receive(Some(qp), &mut vec![(0, buffer)]).unwrap();
    }
    end.queue.close(qp);
    assert!(child.wait().unwrap().success());
}

/// How far the peer's processor is comes of what is sent to it, after somebody asked.
#[test]
fn how_far_the_peer_is_is_measured_for_whoever_asks() {
    let (mut a, to_b, mut b, from_a) = pair();
    let mut send = |a: &mut End, times: u64| {
        for id in 0..times {
            b.post_receives(Some(from_a), 1, 64);
            a.post(to_b, vec![WorkRequest::send_inline(id, b"so far")]);
            both(a, 1, &mut b, 1);
        }
    };
    send(&mut a, 20);
    assert_eq!(a.queue.line_ns(to_b), None, "nobody had asked");
    send(&mut a, 20);
    assert!(a.queue.line_ns(to_b).is_some_and(|ns| ns >= 0.0 && ns.is_finite()));
    a.queue.close(to_b);
    assert_eq!(a.queue.line_ns(to_b), None, "a queue pair that is gone");
}

//! Two processes, one at each end of a connection with a key: every verb, and the errors that end it.
//!
//! `OVERSIDE_END=listen|connect` with `OVERSIDE_ADDRESS` makes this process one end, as `cargo xtask guest between` does on
//! two machines. Without them both ends are threads here, where there is a device.

mod ends;

use std::sync::Arc;

use ends::{End, RECEIVE_BYTES, pattern};
use overside_ibv::Options;
use overside_memory::{Segment, Window};
use overside_verbs::handshake::Key;
use overside_verbs::{Access, Memory, Opcode, Provider, QueuePair, Remote, RemoteToken, Status, WorkRequest};

/// Says which end this process is, where it is one alone.
const END: &str = "OVERSIDE_END";
const ADDRESS: &str = "OVERSIDE_ADDRESS";
const RECEIVES: usize = 40;
const MESSAGES: u64 = 300;
const WINDOW_BYTES: usize = 256 << 10;
const SOURCE_BYTES: usize = 300_000;

#[test]
fn every_verb_and_the_errors_that_end_it() {
    if !ends::device() {
        return;
    }
    let address = std::env::var(ADDRESS).unwrap_or_else(|_| ends::address(0));
    match std::env::var(END).as_deref() {
        Ok("listen") => listens(&address),
        Ok("connect") => connects(&address),
        Ok(other) => panic!("{END}={other} is neither listen nor connect"),
        Err(_) => {
            let listener = std::thread::spawn({
                let address = address.clone();
                move || listens(&address)
            });
            connects(&address);
            listener.join().unwrap();
        }
    }
}

fn keyed() -> End {
    End::new(Options {
        key: Key::from_bytes(b"7cd1c32b3c4cb5abf9f9e25113e99112cc31280d6899af94a3c7236b52949b50").ok(),
        ..Options::default()
    })
}

fn listens(address: &str) {
    let mut end = keyed();
    let mut listener = end.listen(address);

    let qp = end.accept(&mut *listener);
    end.receives(Some(qp), RECEIVES);
    gathered_to(&mut end, qp);
    one_sided_to(&mut end, qp);
    for i in 0..MESSAGES {
        assert_eq!(end.message(qp).0, pattern(i, message_len(i)), "message {i}");
    }
    for i in 0..MESSAGES {
        let request = WorkRequest::send(i, end.view(i, &[message_len(i)]));
        end.post(qp, request);
    }
    (0..MESSAGES).for_each(|i| assert_eq!(end.succeeded(Opcode::Send).id, i));
    let refused = end.next(Opcode::Receive);
    assert_eq!(refused.status, Status::TooLong, "{refused:?}");
    assert_eq!(end.disconnected(), Status::TooLong);
    end.done.clear();

    let second = end.accept(&mut *listener);
    end.receives(Some(second), 1);
    assert_eq!(end.disconnected(), Status::RemoteAccess);
    end.done.clear();

    end.receives(None, 16);
    end.accept(&mut *listener);
    for i in 0..10 {
        let done = end.succeeded(Opcode::Receive);
        assert_eq!(done.buffer.unwrap()[..done.bytes as usize], pattern(i, 100), "shared {i}");
    }
    // The end of everything here is heard there.
    drop(end);
}

fn connects(address: &str) {
    let mut end = keyed();

    let qp = end.connect(address);
    end.receives(Some(qp), RECEIVES);
    let gathered = end.view(1, &FRAGMENTS);
    end.post(qp, WorkRequest::send(1, gathered).with_immediate(7));
    end.succeeded(Opcode::Send);
    one_sided_from(&mut end, qp);
    for i in 0..MESSAGES {
        let request = WorkRequest::send(i, end.view(i, &[message_len(i)]));
        end.post(qp, request);
    }
    (0..MESSAGES).for_each(|i| assert_eq!(end.succeeded(Opcode::Send).id, i));
    for i in 0..MESSAGES {
        assert_eq!(end.message(qp).0, pattern(i, message_len(i)), "message {i}");
    }
    let long = end.view(5, &[RECEIVE_BYTES + 1]);
    end.post(qp, WorkRequest::send(2, long));
    assert_eq!(end.next(Opcode::Send).status, Status::TooLong);
    assert_eq!(end.disconnected(), Status::TooLong);
    end.done.clear();

    let second = end.connect(address);
    let forged = RemoteToken { at: 0, len: 8, rkey: 0x1234_5678_9abc };
    let sink = end.memory(8);
    end.post(second, WorkRequest::read(3, sink, Remote::new(forged)));
    assert_eq!(end.next(Opcode::Read).status, Status::RemoteAccess);
    assert_eq!(end.disconnected(), Status::RemoteAccess);
    end.done.clear();

    let third = end.connect(address);
    for i in 0..10 {
        let request = WorkRequest::send(i, end.view(i, &[100]));
        end.post(third, request);
    }
    (0..10).for_each(|_| _ = end.succeeded(Opcode::Send));
    assert!(matches!(end.disconnected(), Status::Flushed | Status::PeerDied));
}

fn gathered_to(end: &mut End, qp: QueuePair) {
    let (bytes, immediate) = end.message(qp);
    assert_eq!((bytes, immediate), (pattern(1, FRAGMENTS.iter().sum()), Some(7)));
}

/// Grants a window and a source, and finds the window as the other end has left it.
fn one_sided_to(end: &mut End, qp: QueuePair) {
    let window = Arc::new(Window::new(WINDOW_BYTES).unwrap());
    let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let granted = end.provider.register(&end.domain, &Memory::Window(window.clone()), all).unwrap();
    let mut source = Segment::shared(SOURCE_BYTES.next_multiple_of(4096)).unwrap().carve(SOURCE_BYTES).remove(0);
    source[..SOURCE_BYTES].copy_from_slice(&pattern(3, SOURCE_BYTES));
    let memory = Memory::Segment(source.segment().clone());
    let readable = end.provider.register(&end.domain, &memory, Access::REMOTE_READ).unwrap();
    let tokens = [granted.token().to_bytes(), readable.token().to_bytes()].concat();
    end.post(qp, WorkRequest::send_inline(1, &tokens));
    end.succeeded(Opcode::Send);

    let announced = end.succeeded(Opcode::ReceiveImmediate);
    assert_eq!(announced.immediate, Some(9));
    let mut written = vec![0; 100_000];
    window.read(4096, &mut written).unwrap();
    assert_eq!(written, pattern(2, 100_000));
    assert_eq!(end.message(qp).0, b"done");
    let mut word = [0; 8];
    window.read(0, &mut word).unwrap();
    assert_eq!(u64::from_le_bytes(word), 77, "what the atomics have left");
    end.provider.deregister(granted).unwrap();
    end.provider.deregister(readable).unwrap();
}

fn one_sided_from(end: &mut End, qp: QueuePair) {
    let (tokens, _) = end.message(qp);
    let token = |at: usize| RemoteToken::from_bytes(std::array::from_fn(|i| tokens[at + i]));
    let (window, source) = (token(0), token(32));
    let part = Remote::new(window).part(4096, 100_000).unwrap();
    let view = end.view(2, &[60_000, 40_000]);
    end.post(qp, WorkRequest::write(1, view, part).with_immediate(9));
    end.succeeded(Opcode::Write);

    let sink = end.memory(SOURCE_BYTES);
    end.post(qp, WorkRequest::read(2, sink, Remote::new(source).part(0, SOURCE_BYTES as u64).unwrap()));
    let read = end.succeeded(Opcode::Read);
    assert_eq!(read.buffer.unwrap()[..SOURCE_BYTES], pattern(3, SOURCE_BYTES));

    let word = Remote::new(window).part(0, 8).unwrap();
    for before in [0, 5, 10] {
        end.post(qp, WorkRequest::fetch_add(3, word, 5));
        assert_eq!(end.succeeded(Opcode::FetchAdd).value, before);
    }
    for (compare, found) in [(3, 15), (15, 15)] {
        end.post(qp, WorkRequest::compare_swap(4, word, compare, 77));
        assert_eq!(end.succeeded(Opcode::CompareSwap).value, found);
    }
    end.post(qp, WorkRequest::send_inline(5, b"done"));
    end.succeeded(Opcode::Send);
}

/// Fragments of a gather list: single bytes, more than a packet, what has no round length.
const FRAGMENTS: [usize; 5] = [1, 500, 4096, 20_000, 77];

fn message_len(i: u64) -> usize {
    1 + (i * 367 % 9000) as usize
}

//! What a completion queue owes whatever its port and its users do.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use overside_memory::{Segment, View};
use overside_shape::{Run, Shape};
use overside_verbs::port::{Port, PortEvent, QpIndex, RawCompletion, RawReceive, RawRequest};
use overside_verbs::{
    CompletionQueue, Link, Opcode, Peer, Readable, Remote, RemoteToken, Status, VerbsError, WorkRequest,
};

/// Slots whose end the next polls report.
type Ends = Arc<Mutex<Vec<(u32, Opcode, u64)>>>;

/// A port that reports every request which is to be reported as done, and touches nothing.
struct Doing {
    ends: Ends,
    fd: OwnedFd,
}

// SAFETY: [test] it touches no byte, reports each accepted slot once and in order.
unsafe impl Port for Doing {
    fn attach(&mut self, _: QpIndex, _: Link) -> Result<(), VerbsError> {
        Ok(())
    }

    // SAFETY: [test] nothing of the requests is kept but their numbers.
    unsafe fn post(&mut self, _: QpIndex, batch: &[RawRequest<'_>]) -> (usize, Option<VerbsError>) {
        let reported = batch.iter().filter(|request| request.signalled);
        self.ends.lock().unwrap().extend(reported.map(|request| (request.slot, Opcode::Send, 1)));
        (batch.len(), None)
    }

    // SAFETY: [test] as above.
    unsafe fn post_receive(&mut self, _: Option<QpIndex>, batch: &[RawReceive]) -> Result<usize, VerbsError> {
        self.ends.lock().unwrap().extend(batch.iter().map(|receive| (receive.slot, Opcode::Receive, 1)));
        Ok(batch.len())
    }

    fn poll(&mut self, out: &mut [RawCompletion]) -> usize {
        let mut ends = self.ends.lock().unwrap();
        let count = ends.len().min(out.len());
        for (place, (slot, opcode, bytes)) in out.iter_mut().zip(ends.drain(..count)) {
            // As of a queue pair that is closed by now.
            let qp = (opcode != Opcode::Receive).then_some(QpIndex(0));
            let status = Status::Success;
            *place = RawCompletion { slot, qp, opcode, status, bytes, immediate: None, value: 0 };
        }
        count
    }

    fn next_event(&mut self) -> Option<PortEvent> {
        None
    }

    fn arm(&mut self) -> Result<bool, VerbsError> {
        Ok(self.ends.lock().unwrap().is_empty())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn close(&mut self, _: QpIndex) {}
}

fn queue() -> (CompletionQueue, overside_verbs::QueuePair) {
    let fd = std::fs::File::open("/dev/null").unwrap().into();
    let mut queue = CompletionQueue::new(Box::new(Doing { ends: Ends::default(), fd }));
    let peer = Peer { pid: None, uid: None, description: String::new() };
    let queue_pair = queue.attach(Link::new(peer, ())).unwrap();
    (queue, queue_pair)
}

/// What a user gives to be held is the user's, and so is its end.
struct Panics;

impl AsRef<[u8]> for Panics {
    fn as_ref(&self) -> &[u8] {
        b"!"
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        panic!("at its end");
    }
}

#[test]
fn a_hold_that_panics_as_it_is_released_stops_no_later_poll() {
    let (mut queue, queue_pair) = queue();
    let send = |queue: &mut CompletionQueue, view| {
        queue.post(queue_pair, &mut VecDeque::from([WorkRequest::send(7, view)])).unwrap();
    };
    send(&mut queue, View::foreign(Arc::new(Panics)));
    let mut done = Vec::new();
    assert!(catch_unwind(AssertUnwindSafe(|| queue.poll(&mut done))).is_err());
    send(&mut queue, View::foreign(Arc::new(vec![1u8])));
    done.clear();
    assert_eq!(queue.poll(&mut done), 1);
    assert_eq!((done[0].id, done[0].status), (7, Status::Success));
}

/// Nobody asked for the report of the READ; its buffer comes back all the same, and says how much is in it.
#[test]
fn the_buffer_of_a_silent_read_says_what_was_read() {
    let (mut queue, queue_pair) = queue();
    let sink = Segment::private(4096).unwrap().carve(4096).pop().unwrap();
    let remote = Remote::<Readable>::new(RemoteToken { at: 0, len: 100, rkey: 1 });
    let read = WorkRequest::read(1, sink, remote).unsignalled();
    let send = WorkRequest::send(2, View::foreign(Arc::new(vec![1u8])));
    queue.post(queue_pair, &mut VecDeque::from([read, send])).unwrap();
    let mut done = Vec::new();
    assert_eq!(queue.poll(&mut done), 2);
    assert_eq!((done[0].id, done[0].bytes, done[0].buffer.as_ref().map(|b| b.len())), (1, 100, Some(4096)));
}

/// Whatever its port knows of where it ends, a receive names the queue pair it was posted on, comes back with its buffer, and counts no longer.
#[test]
fn a_receive_comes_back_in_the_name_of_where_it_was_posted() {
    let (mut queue, queue_pair) = queue();
    let buffer = Segment::private(4096).unwrap().carve(4096).pop().unwrap();
    queue.post_receive(Some(queue_pair), &mut vec![(3, buffer)]).unwrap();
    let mut done = Vec::new();
    assert_eq!((queue.in_flight(), queue.poll(&mut done), queue.in_flight()), (1, 1, 0));
    assert_eq!((done[0].queue_pair, done[0].id, done[0].opcode), (Some(queue_pair), 3, Opcode::Receive));
    assert_eq!((done[0].bytes, done[0].buffer.as_ref().map(|b| b.len())), (1, Some(4096)));
}

/// A few requests of many gather entries fill a queue as many small ones do: somebody must hear of their end.
#[test]
fn silent_requests_of_many_entries_are_reported_sooner() {
    let memory = Arc::new(Segment::private(4096).unwrap().carve(4096).pop().unwrap());
    let shape = Shape::list(&(0..40).map(|i| Run::new(i * 100, 10)).collect::<Vec<_>>()).unwrap();
    for at_once in [1, 7] {
        let (mut queue, queue_pair) = queue();
        let send = |id| WorkRequest::send(id, View::of(&memory, &shape).unwrap()).unsignalled();
        let mut left: VecDeque<WorkRequest> = (0..7).map(send).collect();
        while !left.is_empty() {
            let mut batch = left.drain(..at_once).collect();
            queue.post(queue_pair, &mut batch).unwrap();
        }
        let mut done = Vec::new();
        queue.poll(&mut done);
        assert!(done.is_empty(), "nobody asked for a report: {done:?}");
        assert_eq!(queue.sends_in_flight(queue_pair), 3, "40, 80 and 120 entries go by, the fourth is reported");
    }
}

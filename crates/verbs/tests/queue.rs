//! What a completion queue owes whatever its port and its users do.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use overside_memory::{MemoryError, Segment, View};
use overside_shape::{Run, Shape};
use overside_verbs::port::{Lending, Port, PortEvent, QpIndex, RawCompletion, RawReceive, RawRequest};
use overside_verbs::probe::{Act, Area, Data, Probe, Request};
use overside_verbs::{
    CompletionQueue, Instance, Link, Opcode, Peer, QueuePair, Readable, Remote, RemoteToken, Status, VerbsError,
    WorkRequest,
};

/// Slots whose end the next polls report.
type Ends = Arc<Mutex<Vec<(u32, Opcode, u64, Lending)>>>;

/// A port that reports every request which is to be reported as done, lent where it may be, and touches nothing.
struct Doing {
    ends: Ends,
    fd: OwnedFd,
    /// Panics when it closes a queue pair, or as it is dropped.
    panics: [bool; 2],
}

impl Drop for Doing {
    fn drop(&mut self) {
        assert!(!self.panics[1], "planted");
    }
}

// SAFETY: [test] it touches no byte, reports each accepted slot once and in order.
unsafe impl Port for Doing {
    fn attach(&mut self, _: QpIndex, _: Link) -> Result<(), VerbsError> {
        Ok(())
    }

    // SAFETY: [test] nothing of the requests is kept but their numbers.
    unsafe fn post(&mut self, _: QpIndex, batch: &[RawRequest<'_>]) -> (usize, Option<VerbsError>) {
        let reported = batch.iter().filter(|request| request.signalled);
        let lending = |request: &RawRequest<'_>| if request.lend { Lending::Lent } else { Lending::No };
        self.ends.lock().unwrap().extend(reported.map(|request| (request.slot, Opcode::Send, 1, lending(request))));
        (batch.len(), None)
    }

    // SAFETY: [test] as above.
    unsafe fn post_receive(&mut self, _: Option<QpIndex>, batch: &[RawReceive]) -> Result<usize, VerbsError> {
        self.ends.lock().unwrap().extend(batch.iter().map(|receive| (receive.slot, Opcode::Receive, 1, Lending::No)));
        Ok(batch.len())
    }

    fn poll(&mut self, out: &mut [RawCompletion]) -> usize {
        let mut ends = self.ends.lock().unwrap();
        let count = ends.len().min(out.len());
        for (place, (slot, opcode, bytes, lending)) in out.iter_mut().zip(ends.drain(..count)) {
            // As of a queue pair that is closed by now.
            let qp = (opcode != Opcode::Receive).then_some(QpIndex(0));
            let status = Status::Success;
            *place = RawCompletion { slot, qp, opcode, status, bytes, immediate: None, value: 0, lending };
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

    fn close(&mut self, _: QpIndex) {
        assert!(!self.panics[0], "planted");
    }
}

fn queue() -> (CompletionQueue, QueuePair) {
    let (queue, queue_pair, _) = queue_with_ends();
    (queue, queue_pair)
}

fn queue_with_ends() -> (CompletionQueue, QueuePair, Ends) {
    let (ends, fd) = (Ends::default(), std::fs::File::open("/dev/null").unwrap().into());
    let mut queue = CompletionQueue::new(Box::new(Doing { ends: ends.clone(), fd, panics: [false; 2] }));
    let queue_pair = queue.attach(link()).unwrap();
    (queue, queue_pair, ends)
}

fn link() -> Link {
    Instance::new(None).link(0, Peer { pid: None, uid: None, description: String::new() }, ())
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

/// Counts its end and panics then, if it is to: with a payload whose own end panics as well.
struct Counted {
    ends: Arc<AtomicUsize>,
    panics: Option<u64>,
}

struct Payload(u64);

impl Drop for Payload {
    fn drop(&mut self) {
        panic!("at a payload's end");
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        b"!"
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.ends.fetch_add(1, Ordering::Relaxed);
        if let Some(number) = self.panics {
            std::panic::panic_any(Payload(number));
        }
    }
}

/// The number of the panic that `work` ends with.
fn panic_of(work: impl FnOnce()) -> Option<u64> {
    let payload = catch_unwind(AssertUnwindSafe(work)).err()?;
    let payload = payload.downcast::<Payload>().unwrap();
    let number = payload.0;
    std::mem::forget(payload);
    Some(number)
}

/// Holds of silent, reported and failed requests, by `panics` which of them panic; and a receive
/// behind them.
fn posted_holds(queue: &mut CompletionQueue, qp: QueuePair, panics: impl Fn(u64) -> bool) -> Arc<AtomicUsize> {
    let ends = Arc::new(AtomicUsize::new(0));
    let send = |id: u64| {
        let counted = Counted { ends: ends.clone(), panics: panics(id).then_some(id) };
        let request = WorkRequest::send(id, View::foreign(Arc::new(counted)));
        if id % 3 == 2 { request } else { request.unsignalled() }
    };
    let mut batch: VecDeque<WorkRequest> = (0..12).map(send).collect();
    assert_eq!(queue.post(qp, &mut batch).unwrap(), 12);
    let buffer = Segment::private(4096).unwrap().carve(4096).pop().unwrap();
    assert_eq!(queue.post_receive(Some(qp), &mut vec![(99, buffer)]).unwrap(), 1);
    ends
}

/// The port reports each completion once: a panic in the middle of a batch must not lose those
/// behind it.
#[test]
fn a_hold_that_panics_loses_no_completion_of_its_batch() {
    for panics in [|_| true, |id| id == 0, |id| id == 2, |id| id % 3 == 1, |id| id == 11] {
        let (mut queue, queue_pair) = queue();
        let ends = posted_holds(&mut queue, queue_pair, panics);
        // Closed meanwhile, so that the last completion frees the queue pair's place.
        queue.close(queue_pair);
        let mut done = Vec::new();
        let first = (0..12).find(|id| panics(*id));
        assert_eq!(panic_of(|| _ = queue.poll(&mut done)), first, "the first panic goes on, and only it");
        assert_eq!(ends.load(Ordering::Relaxed), 12, "each hold is released once");
        assert_eq!(done.iter().map(|end| end.id).collect::<Vec<_>>(), [2, 5, 8, 11, 99]);
        assert_eq!((queue.in_flight(), queue.poll(&mut done)), (0, 0));
        assert!(queue.attach(link()).is_ok());
    }
}

/// Nothing may be freed while the port may still use it, whatever the holds of those that have
/// ended do.
#[test]
fn a_queue_that_is_dropped_drains_past_holds_that_panic() {
    let (mut queue, queue_pair) = queue();
    queue.set_batch(1);
    let ends = posted_holds(&mut queue, queue_pair, |_| true);
    assert_eq!(panic_of(|| drop(queue)), Some(0));
    assert_eq!(ends.load(Ordering::Relaxed), 12);
    // Nor does a queue abort the process that is dropped because of a panic.
    let (mut queue, queue_pair) = self::queue();
    let ends = posted_holds(&mut queue, queue_pair, |_| true);
    let unwound = move || {
        let _queue = queue;
        std::panic::panic_any(Payload(77));
    };
    assert_eq!(panic_of(unwound), Some(77));
    assert_eq!(ends.load(Ordering::Relaxed), 12);
}

/// A port that panics in the middle may be using what it was given.
#[test]
fn a_port_that_panics_frees_nothing_early() {
    for panics in [[true, false], [false, true]] {
        let (reports, fd) = (Ends::default(), std::fs::File::open("/dev/null").unwrap().into());
        let mut queue = CompletionQueue::new(Box::new(Doing { ends: reports.clone(), fd, panics }));
        let queue_pair = queue.attach(link()).unwrap();
        let buffers = Segment::private(4096).unwrap().carve(4096);
        let segment = Arc::downgrade(buffers[0].segment());
        queue.post_receive(None, &mut buffers.into_iter().map(|buffer| (0, buffer)).collect()).unwrap();
        // No message comes for it.
        reports.lock().unwrap().clear();
        let ends = Arc::new(AtomicUsize::new(0));
        let view = View::foreign(Arc::new(Counted { ends: ends.clone(), panics: None }));
        queue.post(queue_pair, &mut VecDeque::from([WorkRequest::send(1, view)])).unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| drop(queue))).is_err());
        // A queue pair that did not close was not drained.
        assert_eq!(ends.load(Ordering::Relaxed), usize::from(!panics[0]));
        assert!(segment.upgrade().is_some(), "a posted receive stays mapped");
    }
}

/// Posts to `queue` at its end, unless somebody has it: the queue that releases it is lent to
/// `poll`.
struct Posts {
    queue: Arc<Mutex<(CompletionQueue, QueuePair)>>,
    posted: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Posts {
    fn as_ref(&self) -> &[u8] {
        b"!"
    }
}

impl Drop for Posts {
    fn drop(&mut self) {
        if let Ok(mut queue) = self.queue.try_lock() {
            let (queue, qp) = &mut *queue;
            queue.post(*qp, &mut VecDeque::from([WorkRequest::send_inline(5, b"!")])).unwrap();
            self.posted.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_hold_may_post_to_any_queue_but_the_one_that_releases_it() {
    let (one, other) = (Arc::new(Mutex::new(queue())), Arc::new(Mutex::new(queue())));
    let posted = Arc::new(AtomicUsize::new(0));
    for queue in [&one, &other] {
        let mut one = one.lock().unwrap();
        let posts = Posts { queue: queue.clone(), posted: posted.clone() };
        let (one, qp) = &mut *one;
        one.post(*qp, &mut VecDeque::from([WorkRequest::send(1, View::foreign(Arc::new(posts)))])).unwrap();
    }
    let mut done = Vec::new();
    assert_eq!(one.lock().unwrap().0.poll(&mut done), 2);
    assert_eq!(posted.load(Ordering::Relaxed), 1, "the other queue only");
    let mut done = Vec::new();
    assert_eq!((other.lock().unwrap().0.poll(&mut done), done[0].id), (1, 5));
}

/// A probe is safe to use, so it must not believe its user either.
#[test]
fn a_probe_refuses_what_would_free_memory_early_or_reach_beyond_it() {
    let fd = std::fs::File::open("/dev/null").unwrap().into();
    let mut probe = Probe::new(Box::new(Doing { ends: Ends::default(), fd, panics: [false; 2] })).unwrap();
    let area = Area::new(Segment::private(4096).unwrap());
    let send = |slot, signalled| {
        let act = Act::Send(Data::Gather(vec![area.piece(0, 8).unwrap()]), None);
        Request { slot, act, signalled, fence: false, lend: false }
    };
    let refused = |work: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(work)).is_err();
    assert!(refused(&mut || _ = probe.post(QpIndex(0), &[send(1, false), send(1, false)])));
    assert_eq!(probe.post(QpIndex(0), &[send(1, false)]).0, 1);
    assert!(refused(&mut || _ = probe.post(QpIndex(0), &[send(1, true)])), "the first is in flight");
    assert!(refused(&mut || _ = probe.post_receive(None, &[(1, area.piece(64, 8).unwrap())])));
    assert!(refused(&mut || area.write(0, &[1]).unwrap()), "its bytes are still lent");
    assert_eq!(probe.post(QpIndex(0), &[send(2, true)]).0, 1);
    assert_eq!(probe.poll(&mut Vec::new()), 1);
    area.write(0, &[1]).unwrap();
    let shape = |len| Arc::new(Shape::contiguous(4000, len).unwrap());
    let region = |len| {
        let act = Act::Region(area.piece(0, 4096).unwrap(), shape(len), 64);
        Request { slot: 3, act, signalled: true, fence: false, lend: false }
    };
    let (accepted, error) = probe.post(QpIndex(0), &[send(4, true), region(97)]);
    assert_eq!(accepted, 0);
    assert!(matches!(error, Some(VerbsError::Memory(MemoryError::Escapes { of: 4096, .. }))));
    assert_eq!(probe.post(QpIndex(0), &[region(96)]).0, 1);
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

/// The end of what a SEND may lend is reported to whoever asks for it: behind the SEND's own end where it was copied, with the loan's
/// where it was lent.
#[test]
fn a_release_is_reported_once() {
    let (mut queue, queue_pair, reports) = queue_with_ends();
    let send = |id| WorkRequest::send(id, View::foreign(Arc::new(vec![1]))).lendable();
    let batch = [send(0).reporting_release(), send(1), send(2).reporting_release()];
    queue.post(queue_pair, &mut VecDeque::from(batch)).unwrap();
    // The third was copied after all.
    reports.lock().unwrap().iter_mut().filter(|report| report.0 == 2).for_each(|report| report.3 = Lending::No);
    let mut done = Vec::new();
    let mut told = |queue: &mut CompletionQueue| {
        queue.poll(&mut done);
        done.drain(..).map(|end| (end.id, end.opcode)).collect::<Vec<_>>()
    };
    assert_eq!(told(&mut queue), [(0, Opcode::Send), (1, Opcode::Send), (2, Opcode::Send), (2, Opcode::Release)]);
    reports.lock().unwrap().extend([0, 0, 1].map(|slot| (slot, Opcode::Send, 1, Lending::Returned)));
    assert_eq!(told(&mut queue), [(0, Opcode::Release)]);
    assert_eq!(queue.in_flight(), 0);
}

/// A SEND that was lent completes, and what it holds stays until the loan has ended; whatever else the port says of it.
#[test]
fn what_is_lent_is_held_until_it_is_returned() {
    for (alone, signalled) in [(true, true), (true, false), (false, true), (false, false)] {
        let (mut queue, queue_pair, reports) = queue_with_ends();
        let ends = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
        let send = |id: usize| {
            let counted = Counted { ends: ends[id].clone(), panics: None };
            WorkRequest::send(id as u64, View::foreign(Arc::new(counted)))
        };
        let lent = if signalled { send(1).lendable() } else { send(1).lendable().unsignalled() };
        let batch = VecDeque::from([send(0).unsignalled(), lent, send(2)]);
        if alone {
            batch.into_iter().for_each(|one| _ = queue.post(queue_pair, &mut VecDeque::from([one])).unwrap());
        } else {
            queue.post(queue_pair, &mut { batch }).unwrap();
        }
        let slot = reports.lock().unwrap().iter().find(|report| report.3 == Lending::Lent).unwrap().0;
        let mut done = Vec::new();
        queue.poll(&mut done);
        let ids: Vec<u64> = done.iter().map(|end| end.id).collect();
        assert_eq!(ids, if signalled { vec![1, 2] } else { vec![2] });
        let released = || ends.each_ref().map(|ends| ends.load(Ordering::Relaxed));
        assert_eq!(released(), [1, 0, 1], "what was posted before and after it has ended, the loan has not");
        assert_eq!((queue.loans_out(queue_pair), queue.in_flight(), queue.sends_in_flight(queue_pair)), (1, 1, 0));
        // Nothing but its return ends it; and its queue pair's place is not given to another before.
        reports.lock().unwrap().push((slot, Opcode::Send, 1, Lending::No));
        queue.poll(&mut done);
        queue.close(queue_pair);
        assert_eq!((released(), queue.loans_out(queue_pair)), ([1, 0, 1], 1));
        // Said twice, it ends once.
        reports.lock().unwrap().extend([(slot, Opcode::Send, 1, Lending::Returned); 2]);
        done.clear();
        assert_eq!((queue.poll(&mut done), released(), queue.in_flight()), (0, [1, 1, 1], 0));
        assert_eq!(queue.loans_out(queue_pair), 0);
    }
}

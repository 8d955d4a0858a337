//! Requests that are still under way when what they reach is deregistered.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_memory::{Segment, Window};
use overside_tcp::Options;
use overside_verbs::*;

use super::ends::*;

/// The reader takes its time. What the memory's owner keeps there afterwards it never sees, and the connection lives.
#[test]
fn a_reader_that_takes_its_time_sees_nothing_of_what_comes_after_the_registration() {
    let (mut owner, mut reader) = (End::new(options(None)), End::new(Options { progress: false, ..options(None) }));
    let name = fresh_name();
    let mut listener = owner.provider.listen(&owner.domain, &name).unwrap();
    let (link, qp) = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept(PATIENCE).unwrap().unwrap());
        let qp = reader.connect(&name).unwrap();
        (accepting.join().unwrap(), qp)
    });
    owner.queue.attach(link).unwrap();
    let (long, short) = (Arc::new(Window::new(READ_BYTES).unwrap()), Arc::new(Window::new(PAGE_BYTES).unwrap()));
    let register = |end: &End, window: &Arc<Window>| {
        end.provider.register(&end.domain, &Memory::Window(window.clone()), Access::REMOTE_READ).unwrap()
    };
    let (region, other) = (register(&owner, &long), register(&owner, &short));
    let read = |id, len, token| {
        let sink = Segment::private(len).unwrap().carve(len).pop().unwrap();
        WorkRequest::read(id, sink, Remote::<Readable>::new(token))
    };
    let mut batch = VecDeque::from([read(1, READ_BYTES, region.token()), read(2, PAGE_BYTES, other.token())]);
    assert_eq!(reader.queue.post(qp, &mut batch).unwrap(), 2);
    let (mut done, until) = (Vec::new(), Instant::now() + Duration::from_millis(300));
    while Instant::now() < until {
        owner.queue.poll_wait(&mut done, Some(Duration::from_millis(5))).unwrap();
    }
    owner.provider.deregister(region).unwrap();
    // Its own again.
    assert_eq!(Arc::strong_count(&long), 1, "the READ keeps what it reaches");
    long.write(0, &vec![POISON; READ_BYTES]).unwrap();
    let end = Instant::now() + PATIENCE;
    while done.len() < 2 {
        reader.queue.poll_wait(&mut done, Some(Duration::from_millis(5))).unwrap();
        assert!(Instant::now() < end, "{done:?}, {:?}", reader.queue.next_event());
    }
    assert_eq!((done[0].id, done[0].status), (1, Status::RemoteAccess));
    let sink = done[0].buffer.as_ref().expect("the sink comes back");
    assert!(!sink.contains(&POISON), "bytes of after the registration came");
    assert_eq!((done[1].id, done[1].status), (2, Status::Success), "the connection lives");
}

/// More than both sockets take.
const READ_BYTES: usize = 64 << 20;
const PAGE_BYTES: usize = 4096;
const POISON: u8 = 0xDB;

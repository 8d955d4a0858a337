//! A volume in its node's own process keeps every sentence of a device, and is a client as others are.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Instant;

use overside_memory::{Bytes, Segment};
use overside_vault::server::{Door, NoDoor, Writes};
use overside_verbs::Clock;
use overside_verbs::watch::Signal;
use overside_volume::client::{Link, LinkOptions};
use overside_volume::wire::Role;
use overside_volume::{Completion, DeviceError, Geometry, MemoryDevice, Request, Work, complete, wait};

use super::ends::Gate;
use super::*;

/// A volume, and the node that serves it. The door goes first.
#[derive(Debug)]
struct Here {
    door: Door,
    _served: Served,
    _folder: tempfile::TempDir,
}

fn node(device: Box<dyn Device>, options: NodeOptions) -> (Arc<Node>, Served, String) {
    let (node, name) = (Node::new(SystemClock::handle(), options).unwrap(), fresh_name("shm"));
    node.add("v", device).unwrap();
    let listening = Listening::open(provider("shm"), &[&name]).unwrap();
    let served = node.serve(vec![listening], ServiceOptions { workers: 1, ..ServiceOptions::default() }).unwrap();
    (node, served, name)
}

fn here(options: NodeOptions) -> Box<dyn Device> {
    let folder = tempfile::tempdir().unwrap();
    let (node, served, _) = node(file(&folder.path().join("disk"), 4 << 20), options);
    let door = node.door("v", Role::Writer).unwrap();
    Box::new(Here { door, _served: served, _folder: folder })
}

impl Device for Here {
    fn geometry(&self) -> Geometry {
        self.door.geometry()
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        self.door.submit(batch);
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.door.poll(out)
    }
    fn arm(&mut self) -> bool {
        self.door.arm()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.door.fd()
    }
    fn due(&self) -> Option<Instant> {
        self.door.due()
    }
}

mod through {
    use super::*;

    fn open() -> Box<dyn Device> {
        here(NodeOptions::default())
    }

    overside_conformance::device_tests!(open);
}

mod back_and_cached {
    use super::*;

    fn open() -> Box<dyn Device> {
        here(NodeOptions { cache: small_cache(), writes: Writes::Back, ..NodeOptions::default() })
    }

    overside_conformance::device_tests!(open);
}

/// Memory that gives back what it has done a while later, when it is polled: its descriptor says nothing of that.
#[derive(Debug)]
struct Later {
    memory: MemoryDevice,
    done: Vec<Completion>,
    due: Option<Instant>,
    silent: Signal,
    armed: Arc<AtomicU64>,
}

impl Device for Later {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        self.memory.submit(batch);
        self.memory.poll(&mut self.done);
        self.due = self.due.or((!self.done.is_empty()).then(|| SystemClock.now() + Duration::from_millis(20)));
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        if self.due.is_none_or(|due| SystemClock.now() < due) {
            return 0;
        }
        self.due = None;
        let found = self.done.len();
        out.append(&mut self.done);
        found
    }
    fn arm(&mut self) -> bool {
        self.armed.fetch_add(1, Ordering::SeqCst);
        true
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.silent.as_fd())
    }
    fn due(&self) -> Option<Instant> {
        self.due
    }
}

#[test]
fn a_time_that_a_request_moves_nearer_is_kept() {
    let armed = Arc::new(AtomicU64::new(0));
    let (memory, silent) = (MemoryDevice::new(1 << 20).unwrap(), Signal::new().unwrap());
    let later = Later { memory, done: Vec::new(), due: None, silent, armed: armed.clone() };
    let (node, _served, _) = node(Box::new(later), NodeOptions::default());
    let mut door = node.door("v", Role::Writer).unwrap();
    for _ in 0..3 {
        // The volume's thread sleeps with nothing to wait for, or is about to.
        let until = SystemClock.now() + PATIENCE;
        while armed.load(Ordering::SeqCst) == 0 {
            assert!(SystemClock.now() < until, "nobody waits for the device");
            std::thread::yield_now();
        }
        let flush = complete(&mut door, &SystemClock, Work::Flush, PATIENCE);
        assert_eq!(flush.1, Ok(()), "the node slept on");
    }
}

/// As of those who attach: by FUA, or by a FLUSH before the answer where a request has none.
#[test]
fn what_goes_through_a_door_is_answered_when_the_device_has_it_on_stable_storage() {
    let through = [(Writes::Through, &["write, fua"][..], &["zero", "flush"][..])];
    for (writes, of_write, of_zero) in through.into_iter().chain([(Writes::Back, &["write"][..], &["zero"][..])]) {
        let write = || {
            let from = Segment::private(4096).unwrap().carve(4096).pop().unwrap();
            Work::Write { at: 0, from: Bytes::prefix(from, 512), fua: false }
        };
        for (work, wanted) in [(write(), of_write), (Work::Zero { at: 4096, length: 512 }, of_zero)] {
            let (gate, device) = Gate::before_memory();
            let (node, _served, _) = node(Box::new(device), NodeOptions { writes, ..NodeOptions::default() });
            let mut door = node.door("v", Role::Writer).unwrap();
            door.submit(&mut [Request { tag: 1, work }].into());
            let (limit, mut done) = (Instant::now() + PATIENCE, Vec::new());
            while gate.arrived() == 0 {
                assert!(Instant::now() < limit, "{writes:?}: it does not arrive");
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(door.poll(&mut done), 0, "{writes:?}: the device has done nothing yet");
            gate.open();
            while door.poll(&mut done) == 0 {
                assert!(Instant::now() < limit, "{writes:?}: it does not end");
                wait(&mut door, &SystemClock, Some(limit)).unwrap();
            }
            assert_eq!((done[0].result, &gate.done.lock().unwrap()[..]), (Ok(()), wanted), "{writes:?}");
        }
    }
}

#[test]
fn a_writer_is_one_here_or_elsewhere() {
    let (node, _served, name) = node(Box::new(MemoryDevice::new(1 << 20).unwrap()), NodeOptions::default());
    let attach = |role| Link::attach(provider("shm"), &name, "v", LinkOptions { role, ..LinkOptions::default() });
    let zero = || Work::Zero { at: 0, length: 512 };
    let done = |device: &mut dyn Device| complete(device, &SystemClock, zero(), PATIENCE).1;
    assert!(matches!(node.door("w", Role::Writer), Err(NoDoor::Unknown)));
    let mut door = node.door("v", Role::Writer).unwrap();
    assert_eq!(done(&mut door), Ok(()));
    assert!(attach(Role::Writer).is_err() && node.door("v", Role::Writer).is_err());
    let mut reader = node.door("v", Role::Reader).unwrap();
    assert_eq!(done(&mut reader), Err(DeviceError::ReadOnly));
    assert_eq!(node.statistics().sessions, 2);
    let mut other = attach(Role::TakeOver).unwrap();
    assert_eq!((done(&mut door), done(&mut other)), (Err(DeviceError::Fenced), Ok(())));
    drop(door);
    assert!(matches!(node.door("v", Role::Writer), Err(NoDoor::Busy)), "a fenced one frees nobody's place");
    let mut again = node.door("v", Role::TakeOver).unwrap();
    assert_eq!((done(&mut other), done(&mut again)), (Err(DeviceError::Fenced), Ok(())));
    drop((again, reader));
    assert_eq!(done(&mut node.door("v", Role::Writer).unwrap()), Ok(()), "its place is free at once");
}

//! How workers and the log's thread hand the log over to each other, under shuttle: the shipped
//! desk, thread and log, and of each worker what looks at marks and waits. The disk is a thread
//! that completes requests when its turn comes.
//!
//! A wait lasts until its descriptor is readable, whatever time passes, so a wake-up that is lost
//! is a schedule without an end.
#![cfg(shuttle)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use memory::{Files, MemoryDisk};
use overside_bwtree::Stamps;
use overside_disk::{Completion, Disk, Entry, FileId, IoPath, Open, Request};
use overside_log::{self as log, Claim, Directory, Mode};
use overside_service::Hold;
use overside_service::explored::Watcher;
use overside_verbs::{Clock, VerbsError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use shuttle::thread;

use super::writer::{Desk, Writer};
use super::{Change, DataOptions, Journal};

#[path = "../../../../log/tests/memory/mod.rs"]
mod memory;

/// A disk's queue: what was submitted, and what has completed.
#[derive(Debug)]
struct Queue {
    files: Arc<Mutex<Files>>,
    state: Mutex<Requests>,
    /// Readable when something has completed.
    wake: OwnedFd,
    /// The device's turn decides when requests complete; before they complete at once.
    is_slow: AtomicBool,
    /// A thread is in the middle of a call.
    entered: AtomicBool,
}

#[derive(Debug)]
struct Requests {
    disk: MemoryDisk,
    submitted: VecDeque<(u64, Request)>,
    done: Vec<Completion>,
}

/// One thread's view of a queue.
#[derive(Debug)]
struct Queued {
    queue: Arc<Queue>,
    pushed: Vec<(u64, Request)>,
}

impl Queue {
    fn new() -> Arc<Queue> {
        let files = Files::new(7);
        let requests = Requests { disk: MemoryDisk::new(&files), submitted: VecDeque::new(), done: Vec::new() };
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let [is_slow, entered] = [const { AtomicBool::new(false) }; 2];
        Arc::new(Queue { files, state: Mutex::new(requests), wake, is_slow, entered })
    }

    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The device completes the oldest request; false when there is none.
    fn complete_one(&self) -> bool {
        let mut state = self.lock();
        let Some((token, request)) = state.submitted.pop_front() else { return false };
        state.disk.push(token, request);
        state.disk.submit().unwrap();
        let before = state.done.len();
        let Requests { disk, done, .. } = &mut *state;
        while done.len() == before {
            disk.poll(done).unwrap();
        }
        drop(state);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        true
    }

    /// Whether a completed write has these bytes.
    fn has(&self, bytes: &[u8]) -> bool {
        let files = self.files.lock().unwrap_or_else(|e| e.into_inner());
        let holds = |content: &[u8]| content.windows(bytes.len()).any(|window| window == bytes);
        files.contents().iter().any(|(_, content)| holds(content))
    }

    /// Others run in the middle of a call, and none of them may come here.
    fn enter(&self) {
        assert!(!self.entered.swap(true, Ordering::SeqCst), "two threads step the log at once");
        if self.is_slow.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        self.entered.store(false, Ordering::SeqCst);
    }
}

impl Disk for Queued {
    fn path(&self) -> &Path {
        Path::new("memory")
    }
    fn way(&self) -> IoPath {
        IoPath { uring: true, direct: true }
    }
    fn list(&mut self, folder: &str) -> io::Result<Vec<Entry>> {
        self.queue.lock().disk.list(folder)
    }
    fn create_folder(&mut self, name: &str) -> io::Result<()> {
        self.queue.lock().disk.create_folder(name)
    }
    fn open(&mut self, name: &str, how: Open) -> io::Result<FileId> {
        self.queue.lock().disk.open(name, how)
    }
    fn close(&mut self, file: FileId) {
        self.queue.lock().disk.close(file);
    }
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.queue.lock().disk.rename(from, to)
    }
    fn unlink(&mut self, name: &str) -> io::Result<()> {
        self.queue.lock().disk.unlink(name)
    }
    fn length(&mut self, file: FileId) -> io::Result<u64> {
        self.queue.lock().disk.length(file)
    }
    fn lock(&mut self, file: FileId, wait: Duration) -> io::Result<bool> {
        self.queue.lock().disk.lock(file, wait)
    }
    fn space(&mut self) -> io::Result<u64> {
        self.queue.lock().disk.space()
    }
    fn push(&mut self, token: u64, request: Request) {
        self.queue.enter();
        self.pushed.push((token, request));
    }
    fn submit(&mut self) -> io::Result<()> {
        self.queue.enter();
        self.queue.lock().submitted.extend(self.pushed.drain(..));
        while !self.queue.is_slow.load(Ordering::SeqCst) && self.queue.complete_one() {}
        Ok(())
    }
    fn poll(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        self.queue.enter();
        let _ = rustix::io::read(&self.queue.wake, &mut [0; 8][..]);
        done.append(&mut self.queue.lock().done);
        Ok(())
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.queue.wake.as_fd())
    }
    fn wait(&mut self, _timeout: Duration) -> io::Result<()> {
        Ok(())
    }
    fn another(&self) -> io::Result<Box<dyn Disk>> {
        Ok(Box::new(Queued { queue: self.queue.clone(), pushed: Vec::new() }))
    }
}

/// Time passes in short waits alone: nothing is saved by a timeout that is far away.
#[derive(Debug)]
struct Standing {
    began: Instant,
    passed_ns: AtomicU64,
}

impl Clock for Standing {
    fn now(&self) -> Instant {
        self.began + Duration::from_nanos(self.passed_ns.load(Ordering::SeqCst))
    }
    fn wait(&self, descriptors: &[BorrowedFd<'_>], until: Option<Instant>) -> Result<(), VerbsError> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            let mut watched: Vec<PollFd<'_>> =
                descriptors.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
            let readable = rustix::event::poll(&mut watched, Some(&at_once)).is_ok_and(|n| n > 0);
            let left = until.map(|until| until.saturating_duration_since(self.now()));
            if let Some(short) = left.filter(|left| *left <= Duration::from_millis(1)) {
                self.passed_ns.fetch_add(short.as_nanos() as u64, Ordering::SeqCst);
                thread::yield_now();
                return Ok(());
            }
            thread::yield_now();
            if readable {
                return Ok(());
            }
        }
    }
    fn fill(&self, bytes: &mut [u8]) -> Result<(), VerbsError> {
        bytes.fill(5);
        Ok(())
    }
}

/// A server's log, as it is before anybody connects.
fn start(queue: &Arc<Queue>) -> (Arc<Desk>, Arc<dyn Clock>) {
    let clock = Arc::new(Standing { began: Instant::now(), passed_ns: AtomicU64::new(0) });
    let clock: Arc<dyn Clock> = clock;
    let disk: Box<dyn Disk> = Box::new(Queued { queue: queue.clone(), pushed: Vec::new() });
    let options = log::Options { segment_bytes: 80 << 10, ..log::Options::default() };
    let mut directory = Directory::open(disk, [3; 16], options, Mode::Serve).unwrap();
    directory.checkpoint().unwrap();
    directory.replay(&mut |_| Ok(())).unwrap();
    let (log, appender) = directory.start().unwrap();
    let options = DataOptions::new("memory");
    let journal = Journal::new(options, Stamps::new(1), "memory".into(), None, clock.clone()).unwrap();
    journal.begin(appender);
    let began = clock.now();
    let desk = Desk::new(Arc::new(journal), log, began, None).unwrap();
    queue.is_slow.store(true, Ordering::SeqCst);
    (desk, clock)
}

/// Holds back a reply until the marks are there, as a worker does.
fn wait_for(watcher: &mut Watcher, journal: &Journal, hold: Hold) {
    let is_met = |reached: Hold| hold.position <= reached.position && hold.floor <= reached.floor;
    let mut met = is_met(journal.marks.reached());
    while !met {
        met = watcher.round(true).is_some_and(is_met);
        if !met {
            watcher.wait();
        }
    }
    watcher.holds_nothing();
}

/// A worker changes something, and shows what others changed. Each reply leaves when it is on the
/// disk.
fn work(desk: &Desk, queue: &Queue, clock: Arc<dyn Clock>, number: u64) {
    let journal = desk.journal();
    let mut watcher = Watcher::new(&journal.marks, clock).unwrap();
    for round in 0..2 {
        let key = [[number as u8 + 1; 8], [round as u8 + 0x80; 8]].concat();
        let mut change = Change::begin(Some(journal), Claim::Put, 1, key.len()).unwrap();
        let stamp = change.draw();
        change.record(stamp, 1, log::Change::Delete { key: &key });
        thread::yield_now();
        let hold = change.done();
        wait_for(&mut watcher, journal, hold);
        assert!(queue.has(&key), "a reply left before its change was on the disk");
        let shown = journal.stamps.next() - 1;
        let hold = journal.shown(shown);
        wait_for(&mut watcher, journal, hold);
        let floor = journal.appender.get().unwrap().durable_floor();
        assert!(floor > shown, "what shows {shown} left when the floor was {floor}");
    }
    // As a worker that ends, which may have attended to the log.
}

/// No wake-up is lost, one thread at a time steps the log, and replies leave when what they say is
/// on the disk. Faults: wish-slept-through, log-left-unattended
#[test]
fn workers_and_the_logs_thread_hand_it_over() {
    let mut config = shuttle::Config::new();
    config.max_steps = shuttle::MaxSteps::FailAfter(60_000);
    config.stack_size = 0x20000;
    // A planted fault shows in one of some thousand schedules.
    let is_sought = std::env::var_os("OVERSIDE_MUTANT").is_some_and(|fault| !fault.is_empty());
    let schedules = if is_sought { SCHEDULES_FOR_FAULT } else { SCHEDULES };
    let runner = shuttle::Runner::new(shuttle::scheduler::RandomScheduler::new(schedules), config);
    runner.run(|| {
        let queue = Queue::new();
        let (desk, clock) = start(&queue);
        let ended = Arc::new(AtomicBool::new(false));
        let (device, stops) = (queue.clone(), ended.clone());
        let device = thread::spawn(move || {
            while !stops.load(Ordering::SeqCst) {
                thread::yield_now();
                device.complete_one();
            }
        });
        let writer = Writer { desk: desk.clone() };
        let journal = desk.journal().clone();
        let writes = thread::spawn(move || writer.run());
        let workers: Vec<_> = (0..2)
            .map(|number| {
                let (desk, queue, clock) = (desk.clone(), queue.clone(), clock.clone());
                thread::spawn(move || work(&desk, &queue, clock, number))
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        journal.close();
        writes.join().unwrap();
        assert!(!journal.has_failed(), "the log was given up");
        ended.store(true, Ordering::SeqCst);
        device.join().unwrap();
    });
}

const SCHEDULES: usize = 1500;
const SCHEDULES_FOR_FAULT: usize = 40_000;

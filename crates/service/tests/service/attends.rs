//! What a worker attends to beside its peers.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, mpsc};

use overside_service::{Attended, Going};
use overside_verbs::watch::Signal;

use super::system::Obedient;
use super::*;

/// What no request waits for.
#[derive(Debug, Default)]
struct Own {
    signal: Option<Signal>,
    looks: AtomicU64,
    left: AtomicBool,
    /// What it does when it goes on next.
    next: Mutex<Option<Next>>,
}

#[derive(Debug)]
enum Next {
    /// It wants to go on once more.
    Again,
    /// It tells that it goes on, and takes a while.
    Slow(mpsc::Sender<()>),
}

impl Own {
    fn new() -> Arc<Own> {
        Arc::new(Own { signal: Some(Signal::new().unwrap()), ..Own::default() })
    }

    fn looks(&self) -> u64 {
        self.looks.load(Ordering::Acquire)
    }

    fn signal(&self) -> &Signal {
        self.signal.as_ref().unwrap()
    }

    /// The worker, which has fallen asleep, is woken for this. How often it looked until then.
    fn wakes(&self, next: Next) -> u64 {
        std::thread::sleep(Duration::from_millis(50));
        let looks = self.looks();
        *self.next.lock().unwrap() = Some(next);
        self.signal().notify();
        looks
    }
}

impl Attended for Own {
    fn is_wanted(&self) -> bool {
        false
    }

    fn go_on(&self) -> Going {
        self.signal().drain();
        self.looks.fetch_add(1, Ordering::AcqRel);
        match self.next.lock().unwrap().take() {
            Some(Next::Again) => return Going::Again,
            Some(Next::Slow(told)) => {
                told.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(200));
            }
            None => {}
        }
        Going::Sleeps
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.signal().as_fd()
    }

    fn leave(&self) {
        self.left.store(true, Ordering::Release);
    }
}

/// A server whose one worker attends to it for a client.
fn attending(own: &Arc<Own>) -> (Bench<Obedient>, Link) {
    let system = Obedient::new();
    let bench = Bench::start("shm", &system, one_worker());
    let mut link = bench.client();
    *system.attended.lock().unwrap() = Some(own.clone());
    assert_eq!(ask(&mut link, b"nx"), b"x");
    until("it attends", || own.looks() > 0);
    (bench, link)
}

#[test]
fn who_stops_while_a_worker_goes_on_is_not_kept_waiting() {
    let (own, (tells, told)) = (Own::new(), mpsc::channel());
    let (bench, _link) = attending(&own);
    own.wakes(Next::Slow(tells));
    told.recv_timeout(PATIENCE).unwrap();
    let Bench { server, .. } = bench;
    let (ended, hears) = mpsc::channel();
    std::thread::spawn(move || {
        server.shutdown();
        let _ = ended.send(());
    });
    hears.recv_timeout(PATIENCE).expect("the server stops");
    assert!(own.left.load(Ordering::Acquire));
}

#[test]
fn a_worker_that_never_sleeps_looks_at_what_it_attends_to() {
    let own = Own::new();
    let (_bench, mut link) = attending(&own);
    let before = own.looks();
    (0..16).for_each(|_| _ = send(&mut link, b"w"));
    for _ in 0..400 {
        let _ = reply(&mut link);
        send(&mut link, b"w");
    }
    assert!(own.looks() > before + 20, "it looked {} times", own.looks() - before);
}

#[test]
fn a_worker_goes_on_once_more_before_it_sleeps_where_that_was_said() {
    let own = Own::new();
    let (_bench, _link) = attending(&own);
    let before = own.wakes(Next::Again);
    until("it goes on again", || own.looks() >= before + 2);
}

#[test]
fn a_worker_leaves_what_it_attends_to_when_the_connection_ends() {
    let own = Own::new();
    let (bench, link) = attending(&own);
    let mut other = bench.client();
    drop(link);
    until("it leaves", || own.left.load(Ordering::Acquire));
    assert_eq!(ask(&mut other, b"nx"), b"x");
}

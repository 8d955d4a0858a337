//! A listener whose process has no descriptor left. The only test of its process, whose limit it
//! sets.

mod ends;

use std::fs::File;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ends::*;
use overside_verbs::{Listener, Provider};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// All descriptors that this process may have, until this is dropped.
struct Spent {
    files: Vec<File>,
    before: Rlimit,
}

impl Spent {
    fn all() -> Self {
        let before = getrlimit(Resource::Nofile);
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        let last = open.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u64>().ok()).max().unwrap();
        setrlimit(Resource::Nofile, Rlimit { current: Some(last + 1), ..before }).unwrap();
        let mut files = Vec::new();
        while let Ok(file) = File::open("/dev/null") {
            files.push(file);
        }
        Self { files, before }
    }
}

impl Drop for Spent {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.before).unwrap();
    }
}

/// Processor time of this thread.
fn computed() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// What the listener has turned away after waiting for a second, nearly all of which it must sleep.
fn waits_asleep(listener: &mut dyn Listener) -> u64 {
    let (begun, before) = (Instant::now(), computed());
    while begun.elapsed() < Duration::from_secs(1) {
        assert!(listener.accept(Duration::from_millis(250)).unwrap().is_none());
    }
    let computed = computed() - before;
    assert!(computed < Duration::from_millis(250), "{computed:?} of a second");
    listener.refused().map_or(0, |refused| refused.connections)
}

#[test]
fn a_listener_without_descriptors_waits_for_some_and_goes_on() {
    let end = End::new(options(None));
    let name = fresh_name();
    let mut listener = end.provider.listen(&end.domain, &name).unwrap();
    // Nobody is half-open, so nobody can make room: who comes stays with the kernel, and none is
    // lost.
    let waiting: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(&name).unwrap()).collect();
    let spent = Spent::all();
    assert_eq!(waits_asleep(&mut *listener), 0);
    drop(spent);
    assert_eq!(waits_asleep(&mut *listener), 0);
    // Half-open ones make room for those that come, one for one.
    let more: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(&name).unwrap()).collect();
    let spent = Spent::all();
    assert_eq!(waits_asleep(&mut *listener), 20);
    drop(spent);
    drop((waiting, more));
    let accepting = std::thread::spawn(move || listener.accept(PATIENCE).unwrap().expect("accepted"));
    let mut client = End::new(options(None));
    client.connect(&name).unwrap();
    accepting.join().unwrap();
    // One is left for the listener's socket and none to ask the kernel whose a peer is: it is
    // refused at start.
    let mut spent = Spent::all();
    spent.files.pop();
    let error = end.provider.listen(&end.domain, &fresh_name()).unwrap_err().to_string();
    drop(spent);
    assert!(error.contains("sock_diag") && error.contains("--key-file") && error.contains("--anyone"), "{error}");
}

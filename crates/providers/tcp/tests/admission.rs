//! Bare connects, as fast as one thread makes them, beside handshakes over a long way. The way is
//! simulated: a peer that says its words only after the time that they would take.

mod ends;

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ends::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Opens connections and says nothing, or says a greeting, until it is dropped.
struct Storm {
    stop: AtomicBool,
    connects: AtomicU64,
}

impl Storm {
    fn blow(&self, to: SocketAddr, source: &str, says: Option<&[u8]>) {
        let (begun, mut pool) = (Instant::now(), VecDeque::new());
        let from: SocketAddr = format!("{source}:0").parse().unwrap();
        while !self.stop.load(Ordering::Relaxed) {
            let made = self.connects.load(Ordering::Relaxed);
            if begun.elapsed() < Duration::from_secs(made) / RATE {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            }
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
            rustix::net::bind(&socket, &from).unwrap();
            _ = rustix::net::connect(&socket, &to);
            let mut stream = TcpStream::from(socket);
            _ = says.map(|said| stream.write_all(said));
            pool.push_back(stream);
            if pool.len() > POOL {
                pool.pop_front();
            }
            self.connects.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A handshake by a peer that is `round_trip` away. What came of it, in words.
fn shake(name: &str, round_trip: Duration) -> Result<(), String> {
    let failed = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
    let mut stream = TcpStream::connect(name).map_err(failed("connect"))?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    std::thread::sleep(round_trip / 2);
    let hello = greeting(0);
    stream.write_all(&hello).map_err(failed("greeting"))?;
    std::thread::sleep(round_trip);
    let mut answer = [0; 64];
    stream.read_exact(&mut answer).map_err(failed("the listener's greeting"))?;
    stream.write_all(&proof("connector", &[0; 32], &hello, &answer)).map_err(failed("proof"))?;
    std::thread::sleep(round_trip / 2);
    stream.read_exact(&mut [0; 32]).map_err(failed("the listener's proof"))
}

/// Storms share the process' descriptors and the processors.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Eight at once, in a storm from `source`: all of them succeed.
fn eight_of_eight(source: &str, says: Option<&[u8]>) {
    let _alone = ONE_AT_A_TIME.lock();
    if !enough_descriptors() {
        return;
    }
    let server = Server::start(&fresh_name(), options(None));
    let to: SocketAddr = server.name.parse().unwrap();
    let storm = Storm { stop: AtomicBool::new(false), connects: AtomicU64::new(0) };
    std::thread::scope(|scope| {
        scope.spawn(|| storm.blow(to, source, says));
        let begun = Instant::now();
        // Until all that a listener keeps is the storm's.
        while storm.connects.load(Ordering::Relaxed) < 6000 && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        let shaking: Vec<_> = (0..8).map(|_| scope.spawn(|| shake(&server.name, Duration::from_millis(200)))).collect();
        let outcomes: Vec<_> = shaking.into_iter().map(|one| one.join().unwrap()).collect();
        let rate = storm.connects.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
        storm.stop.store(true, Ordering::Relaxed);
        println!("{rate:.0} connects a second");
        assert!(outcomes.iter().all(Result::is_ok), "at {rate:.0} connects a second: {outcomes:?}");
    });
}

/// The ends of the storm and the server's, in this one process.
fn enough_descriptors() -> bool {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let enough = getrlimit(Resource::Nofile).current.is_none_or(|now| now as usize >= 2 * POOL + 1000);
    if !enough {
        eprintln!("SKIPPED: this process may have too few descriptors; raise the limit (ulimit -Hn)");
    }
    enough
}

#[test]
fn bare_connects_keep_out_nobody_who_is_far_away() {
    // Of the same address as the storm: they have as long as the storm takes to fill the places of
    // the silent.
    eight_of_eight("127.0.0.1", None);
    eight_of_eight("127.0.0.77", None);
}

#[test]
fn greetings_without_a_proof_keep_out_nobody_either() {
    eight_of_eight("127.0.0.77", Some(&greeting(0)));
}

/// Descriptors of a storm that nobody ends.
#[test]
fn what_is_kept_of_a_storm_has_a_bound() {
    let _alone = ONE_AT_A_TIME.lock();
    if !enough_descriptors() {
        return;
    }
    let server = Server::start(&fresh_name(), options(None));
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let mut pool: Vec<TcpStream> = (0..6000).map(|_| TcpStream::connect(&server.name).unwrap()).collect();
    let ours = before + pool.len();
    let end = Instant::now() + PATIENCE;
    // Those that made room see their end.
    for stream in &mut pool[..1000] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let read = stream.read(&mut [0]);
        assert!(matches!(read, Ok(0)) || read.is_err_and(|e| e.kind() == ErrorKind::ConnectionReset));
    }
    while open() > ours + STAGE_MAX {
        assert!(Instant::now() < end, "{} descriptors of {ours}", open());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Connects a second, at most.
const RATE: u32 = 7000;
/// Connections that a storm keeps open.
const POOL: usize = 6000;
/// As many as a listener keeps of those that said nothing.
const STAGE_MAX: usize = 4096;

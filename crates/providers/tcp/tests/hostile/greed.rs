//! What a peer makes this process keep: it says one kind of frame as fast as it can and reads nothing.

use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use overside_memory::{Segment, Window};
use overside_tcp::Options;
use overside_verbs::*;
use rustix::net::sockopt;

use super::ends::*;
use super::words;

/// In a process of its own, whose memory is measured: other tests take some, too.
#[test]
fn no_kind_of_frame_makes_this_process_keep_more_than_a_bound() {
    if std::env::var_os(CHILD).is_some() {
        return floods();
    }
    let name = "greed::no_kind_of_frame_makes_this_process_keep_more_than_a_bound";
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success() && said.contains(DONE), "{said}");
}

fn floods() {
    let drain = Drain::start();
    let (readable, writable, atomic) = (drain.readable, drain.writable, drain.atomic);
    let with_credit = |mut head: Vec<u8>| {
        head[12] = 1;
        head
    };
    let mut unknown = writable;
    unknown.rkey ^= 1;
    let frames = [
        ("SEND", head(SEND, 0, &[])),
        ("WRITE", head(WRITE, 0, &words(writable, 0, &[0]))),
        ("WRITE with credits", with_credit(head(WRITE, 0, &words(writable, 0, &[0])))),
        ("WRITE of an unknown key", head(WRITE, 0, &words(unknown, 0, &[0]))),
        ("READ", head(READ, 0, &words(readable, 0, &[4096]))),
        ("READ of nothing", head(READ, 0, &words(readable, 0, &[0]))),
        ("READ of an unknown key", head(READ, 0, &words(unknown, 0, &[4096]))),
        ("FETCH_ADD", head(FETCH_ADD, 0, &words(atomic, 0, &[1]))),
        ("CMP_SWAP", head(COMPARE_SWAP, 0, &words(atomic, 0, &[1, 2]))),
        ("ACK", head(ACK, 0, &[])),
        ("ACK with credits", with_credit(head(ACK, 0, &[]))),
        ("WANT", head(WANT, 0, &[u64::from(u32::MAX)])),
        ("RECALL", head(RECALL, 0, &[])),
        ("RETURN", head(RETURN, 0, &[0])),
    ];
    // What a connection takes in any case, and what only the first takes.
    drop(flood(&drain, &head(ACK, 0, &[])));
    for (name, frame) in frames {
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        let before = memory("VmRSS");
        let (raw, ended) = flood(&drain, &frame);
        let kept = memory("VmHWM").saturating_sub(before);
        assert!(kept <= KEPT_BYTES_MAX, "{name}: {kept} bytes are kept");
        println!("{name}: {kept} bytes, {}", if ended { "ended" } else { "goes on" });
        drop(raw);
    }
    println!("{DONE}");
}

/// Says a frame over and over. Whether it was hung up on; nothing is read meanwhile.
fn flood(drain: &Drain, frame: &[u8]) -> (Raw, bool) {
    let mut raw = Raw::shake(&drain.name);
    sockopt::set_socket_recv_buffer_size(&raw.stream, 2048).unwrap();
    raw.stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let before = drain.ended.load(Ordering::Acquire);
    let blob = frame.repeat(4096);
    for _ in 0..FLOOD_BYTES / blob.len() {
        if raw.stream.write_all(&blob).is_err() {
            break;
        }
    }
    // All of it is understood, or its sender was ended.
    std::thread::sleep(Duration::from_millis(300));
    let ended = drain.ended.load(Ordering::Acquire) > before;
    (raw, ended)
}

/// A server that takes messages and says nothing.
struct Drain {
    name: String,
    readable: RemoteToken,
    writable: RemoteToken,
    atomic: RemoteToken,
    /// Connections that ended.
    ended: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drain {
    fn start() -> Self {
        let mut end = End::new(options(None));
        let window = Arc::new(Window::new(WINDOW_BYTES).unwrap());
        let [readable, writable, atomic] = [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC]
            .map(|access| end.provider.register(&end.domain, &Memory::Window(window.clone()), access).unwrap().token());
        let name = fresh_name();
        let mut listener = end.provider.listen(&end.domain, &name).unwrap();
        let (ended, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, ends) = (ended.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut spare: Vec<_> = Segment::private(RECEIVES * RECEIVE_BYTES).unwrap().carve(RECEIVE_BYTES);
            let mut spare: Vec<_> = spare.drain(..).map(|buffer| (0, buffer)).collect();
            let mut done = Vec::new();
            while !ends.load(Ordering::Acquire) {
                if let Some(link) = listener.accept(Duration::ZERO).unwrap() {
                    end.queue.attach(link).unwrap();
                }
                end.queue.post_receive(None, &mut spare).unwrap();
                end.queue.poll_wait(&mut done, Some(Duration::from_millis(1))).unwrap();
                spare.extend(done.drain(..).filter_map(|done| Some((0, done.buffer?))));
                while let Some(PortEvent::Disconnected { queue_pair, .. }) = end.queue.next_event() {
                    counted.fetch_add(1, Ordering::Release);
                    end.queue.close(queue_pair);
                }
            }
        });
        Self { name, readable, writable, atomic, ended, stop, thread: Some(thread) }
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))) || std::thread::panicking(), "the server failed");
    }
}

/// A RECALL is answered; the next one may come when the answer has left, and not before.
#[test]
fn recalls_are_answered_one_at_a_time() {
    let server = Server::start(&fresh_name(), options(None));
    let bystander = Bystander::start(&server.name, options(None));
    let mut raw = Raw::shake(&server.name);
    for _ in 0..3 {
        raw.say(RECALL, 0, &[], b"");
        assert_eq!(raw.frame(), (RETURN, vec![0], vec![]));
    }
    raw.stream.write_all(&head(RECALL, 0, &[]).repeat(2)).unwrap();
    server.ended(Status::Malformed, "recalls credits again");
    bystander.goes_on();
}

/// Whoever is asked to give back receives gives back all that it has not used, or is ended: "none" would keep them for ever.
#[test]
fn receives_that_others_wait_for_are_not_kept_by_a_word() {
    let server = Server::start(&fresh_name(), options(None));
    let mut hoarder = Raw::shake(&server.name);
    hoarder.say(WANT, 0, &[u64::from(u32::MAX)], b"");
    // An honest client finds none left.
    let honest = Bystander::start(&server.name, options(None));
    let (kind, ..) = hoarder.frame();
    assert_eq!(kind, RECALL);
    hoarder.say(RETURN, 0, &[0], b"");
    server.ended(Status::Malformed, "keeps receives that others wait for");
    honest.goes_on();
}

/// Peers that break the protocol and do not hang up hold their places until they are given up: they do not take every descriptor.
#[test]
fn connections_that_were_ended_count_until_they_are_closed() {
    let server = Server::start(&fresh_name(), Options { connections_max: PLACES, ..options(None) });
    let stay: Vec<Raw> = (0..PLACES)
        .map(|_| {
            let mut raw = Raw::shake(&server.name);
            raw.say(77, 0, &[], b"");
            server.ended(Status::Malformed, "unknown kind");
            raw
        })
        .collect();
    let honest = End::new(options(None));
    let refused = honest.provider.connect(&honest.domain, &server.name, Duration::from_secs(20)).unwrap_err();
    assert!(matches!(&refused, VerbsError::Handshake(why) if why.contains("no more connections")), "{refused}");
    // They are waited for no longer than for a goodbye, whether they hang up or not.
    let end = std::time::Instant::now() + PATIENCE;
    while let Err(error) = honest.provider.connect(&honest.domain, &server.name, Duration::from_secs(20)) {
        assert!(std::time::Instant::now() < end, "no room: {error}");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(stay);
}

/// This process' memory: `VmRSS`, or `VmHWM`, the most there was since it was last forgotten.
fn memory(which: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(which)?.strip_prefix(':')?.strip_suffix(" kB"));
    line.and_then(|kib| kib.trim().parse::<usize>().ok()).unwrap() << 10
}

const CHILD: &str = "OVERSIDE_GREED";
const DONE: &str = "every kind was tried";
/// If each frame left one of its size, as RECALL once did, this would be seen.
const FLOOD_BYTES: usize = 8 << 20;
/// Answers that may wait, twice, as a vector grows; and a few pages of whatever else the process does.
const KEPT_BYTES_MAX: usize = 4 << 20;
/// Few, so that all of them are taken before the first is given up.
const PLACES: usize = 8;

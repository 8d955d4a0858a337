//! How fast messages go from one process to another over loopback, beside plain blocking `write`/`read` loops of the same bytes in
//! 64 KiB chunks over TCP connections between the same two processes: one as it comes, one whose socket buffers hold no more than
//! credits let be under way, one whose two ends are held on a processor each, and one whose reader asks again and again instead of
//! sleeping, so that no write has to wake it; all alternately, with the processor time of both.
//!
//! `cargo run --release -p overside-tcp --example tcp_stream [message_bytes [fragments [tags]]]`; with `SCATTERED=1` a message's fragments
//! lie all over the memory.

use std::collections::VecDeque;
use std::hint::black_box;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Segment, View};
use overside_shape::{Run, Shape};
use overside_tcp::{Options, TcpProvider};
use overside_verbs::handshake::Key;
use overside_verbs::*;
use rustix::net::sockopt;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |i: usize, default: usize| arguments.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (message, fragments) = (number(1, 64 << 10), number(2, 1));
    let key = arguments.get(3).map(|_| Key::from_bytes(&random::<32>().unwrap()).unwrap());
    let provider = TcpProvider::with_options(Options { key, ..Options::default() });
    match std::env::var("OVERSIDE_STREAM_TO") {
        Ok(to) => send(&provider, &to, message, fragments),
        Err(_) => receive(&provider, message),
    }
}

/// The other process: sends the whole segment one way or the other, as it is told, and says what processor time that took.
fn send(provider: &TcpProvider, to: &str, message: usize, fragments: usize) {
    let (verbs_at, plain_at) = to.split_once(' ').unwrap();
    let domain = provider.allocate_domain().unwrap();
    let mut buffer = Segment::shared(SOURCE_BYTES).unwrap().carve(SOURCE_BYTES).pop().unwrap();
    provider.register(&domain, &Memory::Segment(buffer.segment().clone()), Access::LOCAL).unwrap();
    buffer.iter_mut().enumerate().for_each(|(i, b)| *b = (i / 64) as u8);
    let buffer = Arc::new(buffer);
    let mut queue = CompletionQueue::new(provider.open_port(&domain, PortOptions::default()).unwrap());
    let qp = queue.attach(provider.connect(&domain, verbs_at, Duration::from_secs(5)).unwrap()).unwrap();
    let mut plain = TcpStream::connect(plain_at).unwrap();
    let mut small = TcpStream::connect(plain_at).unwrap();
    [&plain, &small].iter().for_each(|stream| stream.set_nodelay(true).unwrap());
    sockopt::set_socket_send_buffer_size(&small, SMALL_BYTES / 2).unwrap();
    let piece = message / fragments;
    let scattered = std::env::var_os("SCATTERED").is_some();
    let shapes: Vec<Shape> = (0..SOURCE_BYTES / message)
        .map(|i| {
            let len = piece as u64 - u64::from(fragments > 1) * 8;
            let places = (SOURCE_BYTES / piece) as u64;
            let row = |f: usize| (i * fragments + f) as u64 * if scattered { 7919 } else { 1 } % places * piece as u64;
            Shape::mapped((0..fragments).map(row).collect::<Arc<[u64]>>(), &[Run::new(0, len)]).unwrap()
        })
        .collect();
    let mut command = [0; 1];
    while plain.read_exact(&mut command).is_ok() {
        let start = cpu();
        hold(command[0] == PINNED, 0);
        match command[0] {
            VERBS => send_all(&mut queue, qp, &buffer, &shapes),
            SMALL => buffer.chunks(CHUNK_BYTES).for_each(|chunk| small.write_all(chunk).unwrap()),
            _ => buffer.chunks(CHUNK_BYTES).for_each(|chunk| plain.write_all(chunk).unwrap()),
        }
        hold(false, 0);
        plain.write_all(&(cpu() - start).to_le_bytes()).unwrap();
    }
}

fn send_all(queue: &mut CompletionQueue, qp: QueuePair, buffer: &Arc<Buffer>, shapes: &[Shape]) {
    let (mut batch, mut next, mut out) = (VecDeque::new(), 0, Vec::new());
    while next < shapes.len() || !batch.is_empty() {
        while next < shapes.len() && batch.len() < 16 {
            batch.push_back(WorkRequest::send(next as u64, View::of(buffer, &shapes[next]).unwrap()).unsignalled());
            next += 1;
        }
        if queue.post(qp, &mut batch).unwrap() == 0 {
            queue.poll_wait(&mut out, None).unwrap();
        }
    }
    while queue.sends_in_flight(qp) > 15 {
        queue.poll_wait(&mut out, None).unwrap();
    }
}

fn receive(provider: &TcpProvider, message: usize) {
    let domain = provider.allocate_domain().unwrap();
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = plain.local_addr().unwrap().port();
    let verbs_at = format!("127.7.7.7:{port}");
    let mut listener = provider.listen(&domain, &verbs_at).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(std::env::args().skip(1))
        .env("OVERSIDE_STREAM_TO", format!("{verbs_at} 127.0.0.1:{port}"))
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut queue = CompletionQueue::new(provider.open_port(&domain, PortOptions::default()).unwrap());
    let qp = queue.attach(listener.accept(Duration::from_secs(10)).unwrap().unwrap()).unwrap();
    // What is accepted takes the size of its listener, before any window is announced.
    let (mut commands, _) = plain.accept().unwrap();
    sockopt::set_socket_recv_buffer_size(&plain, SMALL_BYTES / 2).unwrap();
    let (mut small, _) = plain.accept().unwrap();
    let buffers = Segment::private(RING_BYTES).unwrap().carve(message);
    let mut free: Vec<(u64, Buffer)> = buffers.into_iter().map(|b| (0, b)).collect();
    let mut ring = Segment::private(RING_BYTES).unwrap().carve(CHUNK_BYTES);
    let mut rounds: Vec<[Side; SIDES]> = Vec::new();
    let mut sums = 0;
    for round in 0..ROUNDS {
        let mut sides = [Side::default(); SIDES];
        // Each goes first as often as the others.
        for turn in 0..SIDES {
            let which = ((round + turn) % SIDES) as u8;
            commands.write_all(&[which]).unwrap();
            hold(which == PINNED, 1);
            let (start, busy) = (Instant::now(), cpu());
            let bytes = match which {
                VERBS => receive_all(&mut queue, qp, &mut free, message, &mut sums),
                SMALL => read_all(&mut small, &mut ring, &mut sums),
                AWAKE => {
                    commands.set_nonblocking(true).unwrap();
                    let bytes = read_all(&mut commands, &mut ring, &mut sums);
                    commands.set_nonblocking(false).unwrap();
                    bytes
                }
                _ => read_all(&mut commands, &mut ring, &mut sums),
            };
            hold(false, 1);
            let (took, ours) = (start.elapsed().as_nanos() as f64, cpu() - busy);
            let mut theirs = [0; 8];
            commands.read_exact(&mut theirs).unwrap();
            let per_byte = |ns: u64| ns as f64 / bytes as f64;
            let sender = per_byte(u64::from_le_bytes(theirs));
            sides[usize::from(which)] = Side { rate: bytes as f64 / took, receiver: per_byte(ours), sender };
        }
        // The first round maps the source page by page.
        if round > 0 {
            rounds.push(sides);
        }
    }
    drop((queue, commands));
    child.wait().unwrap();
    black_box(sums);
    report(message, &rounds);
}

/// Nanoseconds and bytes of one way in one round.
#[derive(Clone, Copy, Default)]
struct Side {
    rate: f64,
    receiver: f64,
    sender: f64,
}

fn receive_all(
    queue: &mut CompletionQueue,
    qp: QueuePair,
    free: &mut Vec<(u64, Buffer)>,
    message: usize,
    sums: &mut u64,
) -> u64 {
    queue.post_receive(Some(qp), free).unwrap();
    let (mut got, mut bytes, mut out) = (0, 0u64, Vec::new());
    while got < SOURCE_BYTES / message {
        queue.poll_wait(&mut out, None).unwrap();
        for done in out.drain(..) {
            let Some(buffer) = done.buffer else { continue };
            assert_eq!(done.status, Status::Success);
            *sums += look(&buffer[..done.bytes as usize]);
            bytes += done.bytes;
            got += 1;
            free.push((0, buffer));
        }
        queue.post_receive(Some(qp), free).unwrap();
    }
    bytes
}

fn read_all(plain: &mut TcpStream, ring: &mut [Buffer], sums: &mut u64) -> u64 {
    let slots = ring.len();
    for i in 0..SOURCE_BYTES / CHUNK_BYTES {
        let chunk = &mut ring[i % slots][..CHUNK_BYTES];
        let mut got = 0;
        while got < chunk.len() {
            match plain.read(&mut chunk[got..]) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                read => got += read.unwrap(),
            }
        }
        *sums += look(chunk);
    }
    SOURCE_BYTES as u64
}

fn report(message: usize, rounds: &[[Side; SIDES]]) {
    let all = |of: &dyn Fn(&[Side; SIDES]) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        let at = |part: f64| values[((values.len() - 1) as f64 * part).round() as usize];
        (at(0.5), at(0.25), at(0.75))
    };
    for (which, name) in NAMES.iter().enumerate() {
        println!(
            "{name:44} {:.2} GB/s, processor time for a KiB: {:.0} ns sender, {:.0} ns receiver",
            all(&|r| r[which].rate).0,
            all(&|r| r[which].sender).0 * 1024.0,
            all(&|r| r[which].receiver).0 * 1024.0
        );
    }
    let cpu = |side: &Side| side.sender + side.receiver;
    for which in 1..SIDES {
        let (median, low, high) = all(&|r| r[0].rate / r[which].rate);
        println!("{message} B messages over {}: {median:.3} (quartiles {low:.3} to {high:.3})", NAMES[which]);
        let (median, low, high) = all(&|r| cpu(&r[0]) / cpu(&r[which]));
        println!("    processor time of both: {median:.3} (quartiles {low:.3} to {high:.3})");
    }
}

/// Keeps this thread on a processor, or lets it go where it likes.
fn hold(held: bool, on: usize) {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut set = CpuSet::new();
    match held {
        true => set.set(on % processors),
        false => (0..CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu)),
    }
    sched_setaffinity(None, &set).unwrap();
}

/// A byte of each cache line, as a consumer would.
fn look(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(64).map(|b| u64::from(*b)).sum()
}

fn cpu() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

const VERBS: u8 = 0;
const SMALL: u8 = 2;
const PINNED: u8 = 3;
const AWAKE: u8 = 4;
const SIDES: usize = 5;
const NAMES: [&str; SIDES] = [
    "verbs",
    "write and read",
    "write and read, small socket buffers",
    "write and read, a processor each",
    "write and read, the reader never sleeps",
];
/// What credits let be under way.
const SMALL_BYTES: usize = 1 << 20;
const CHUNK_BYTES: usize = 64 << 10;
const SOURCE_BYTES: usize = 128 << 20;
const RING_BYTES: usize = 1 << 20;
const ROUNDS: usize = 16;

//! How fast messages go from one process to another over loopback, beside a plain blocking `write`/`read` loop of the same bytes in
//! 64 KiB chunks over a TCP connection between the same two processes; both alternately, with the processor time of both.
//!
//! `cargo run --release -p overside-tcp --example tcp_stream [message_bytes [fragments [tags]]]`

use std::collections::VecDeque;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Segment, View};
use overside_shape::{Run, Shape};
use overside_tcp::{Options, TcpProvider};
use overside_verbs::handshake::Key;
use overside_verbs::*;
use rustix::time::{ClockId, clock_gettime};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |i: usize, default: usize| arguments.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (message, fragments) = (number(1, 64 << 10), number(2, 1));
    let key = arguments.get(3).and_then(|_| Key::from_bytes(b"a key for measuring with"));
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
    plain.set_nodelay(true).unwrap();
    let piece = message / fragments;
    let shapes: Vec<Shape> = (0..SOURCE_BYTES / message)
        .map(|i| {
            let runs: Vec<Run> = (0..fragments)
                .map(|f| Run::new((i * message + f * piece) as u64, piece as u64 - u64::from(fragments > 1) * 8))
                .collect();
            Shape::list(&runs).unwrap()
        })
        .collect();
    let mut command = [0; 1];
    while plain.read_exact(&mut command).is_ok() {
        let start = cpu();
        if command[0] == PLAIN {
            buffer.chunks(CHUNK_BYTES).for_each(|chunk| plain.write_all(chunk).unwrap());
        } else {
            send_all(&mut queue, qp, &buffer, &shapes);
        }
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
    let (mut plain, _) = plain.accept().unwrap();
    let buffers = Segment::private(RING_BYTES).unwrap().carve(message);
    let mut free: Vec<(u64, Buffer)> = buffers.into_iter().map(|b| (0, b)).collect();
    let mut ring = Segment::private(RING_BYTES).unwrap().carve(CHUNK_BYTES);
    let mut rounds: Vec<[Side; 2]> = Vec::new();
    let mut sums = 0;
    for round in 0..ROUNDS {
        let mut sides = [Side::default(); 2];
        // Each goes first as often as the other.
        for which in if round % 2 == 0 { [VERBS, PLAIN] } else { [PLAIN, VERBS] } {
            plain.write_all(&[which]).unwrap();
            let (start, busy) = (Instant::now(), cpu());
            let bytes = match which {
                VERBS => receive_all(&mut queue, qp, &mut free, message, &mut sums),
                _ => read_all(&mut plain, &mut ring, &mut sums),
            };
            let (took, ours) = (start.elapsed().as_nanos() as f64, cpu() - busy);
            let mut theirs = [0; 8];
            plain.read_exact(&mut theirs).unwrap();
            let per_byte = |ns: u64| ns as f64 / bytes as f64;
            let sender = per_byte(u64::from_le_bytes(theirs));
            sides[usize::from(which)] = Side { rate: bytes as f64 / took, receiver: per_byte(ours), sender };
        }
        // The first round maps the source page by page.
        if round > 0 {
            rounds.push(sides);
        }
    }
    drop((queue, plain));
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
        plain.read_exact(chunk).unwrap();
        *sums += look(chunk);
    }
    SOURCE_BYTES as u64
}

fn report(message: usize, rounds: &[[Side; 2]]) {
    let all = |of: &dyn Fn(&[Side; 2]) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        let at = |part: f64| values[((values.len() - 1) as f64 * part).round() as usize];
        (at(0.5), at(0.25), at(0.75))
    };
    for (which, name) in [(VERBS, "verbs"), (PLAIN, "write and read in 64 KiB")] {
        let side = usize::from(which);
        println!(
            "{name:25} {:.2} GB/s, processor time for a KiB: {:.0} ns sender, {:.0} ns receiver",
            all(&|r| r[side].rate).0,
            all(&|r| r[side].sender).0 * 1024.0,
            all(&|r| r[side].receiver).0 * 1024.0
        );
    }
    let (median, low, high) = all(&|r| r[0].rate / r[1].rate);
    println!("{message} B messages: ratio median {median:.3} (quartiles {low:.3} to {high:.3})");
    let cpu = |side: &Side| side.sender + side.receiver;
    let (median, low, high) = all(&|r| cpu(&r[0]) / cpu(&r[1]));
    println!("processor time of both: ratio median {median:.3} (quartiles {low:.3} to {high:.3})");
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
const PLAIN: u8 = 1;
const CHUNK_BYTES: usize = 64 << 10;
const SOURCE_BYTES: usize = 128 << 20;
const RING_BYTES: usize = 1 << 20;
const ROUNDS: usize = 16;

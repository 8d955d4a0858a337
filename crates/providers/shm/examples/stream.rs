//! How fast 16 KiB messages go from one process to another, beside the limit: the same bytes copied in the
//! same chunks into the same ring of buffers by the fastest copy there is.
//!
//! `cargo run --release -p overside-shm --example stream [message_bytes [fragments]]`

use std::collections::VecDeque;
use std::hint::black_box;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_memory::kernels::{self, Kernel};
use overside_memory::{Buffer, Segment, View};
use overside_shape::{Run, Shape};
use overside_shm::ShmProvider;
use overside_verbs::*;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |i: usize, default: usize| arguments.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    if let Ok(name) = std::env::var("OVERSIDE_STREAM_TO") {
        return send(&name, number(1, 16 << 10), number(2, 1));
    }
    let message = number(1, 16 << 10);
    receive(message);
}

/// The other process: sends the whole segment, message by message, whenever told to.
fn send(name: &str, message: usize, fragments: usize) {
    let provider = ShmProvider::new().unwrap();
    let domain = provider.allocate_domain().unwrap();
    let mut buffer = Segment::shared(SOURCE_BYTES).unwrap().carve(SOURCE_BYTES).pop().unwrap();
    provider.register(&domain, &Memory::Segment(buffer.segment().clone()), Access::LOCAL).unwrap();
    buffer.iter_mut().enumerate().for_each(|(i, b)| *b = (i / 64) as u8);
    let buffer = Arc::new(buffer);
    let mut queue = CompletionQueue::new(provider.open_port(&domain, PortOptions::default()).unwrap());
    let qp = queue.attach(provider.connect(&domain, name, Duration::from_secs(5)).unwrap()).unwrap();
    let mut commands: Vec<(u64, Buffer)> =
        Segment::private(4096).unwrap().carve(64).into_iter().take(4).map(|b| (0, b)).collect();
    queue.post_receive(Some(qp), &mut commands).unwrap();
    let piece = message / fragments;
    let shapes: Vec<Shape> = (0..SOURCE_BYTES / message)
        .map(|i| {
            let runs: Vec<Run> = (0..fragments)
                .map(|f| Run::new((i * message + f * piece) as u64, piece as u64 - u64::from(fragments > 1) * 8))
                .collect();
            Shape::list(&runs).unwrap()
        })
        .collect();
    let mut out = Vec::new();
    loop {
        while out.is_empty() && queue.poll_wait(&mut out, None).unwrap() == 0 {
            if queue.next_event().is_some() {
                return;
            }
        }
        for done in out.drain(..) {
            let Some(buffer) = done.buffer else { continue };
            if done.status != Status::Success {
                return;
            }
            commands.push((0, buffer));
        }
        queue.post_receive(Some(qp), &mut commands).unwrap();
        let start = cpu();
        let (mut batch, mut next) = (VecDeque::new(), 0);
        while next < shapes.len() || !batch.is_empty() {
            while next < shapes.len() && batch.len() < 32 {
                batch
                    .push_back(WorkRequest::send(next as u64, View::of(&buffer, &shapes[next]).unwrap()).unsignalled());
                next += 1;
            }
            if queue.post(qp, &mut batch).unwrap() == 0 {
                queue.poll_wait(&mut out, None).unwrap();
            }
        }
        while queue.sends_in_flight(qp) > 15 {
            queue.poll(&mut out);
        }
        out.retain(|c| c.buffer.is_some());
        if std::env::var("OVERSIDE_STREAM_VERBOSE").is_ok() {
            eprintln!("sender: {:.0} ns a message of processor time", (cpu() - start) as f64 / shapes.len() as f64);
        }
    }
}

fn receive(message: usize) {
    let provider = ShmProvider::new().unwrap();
    let domain = provider.allocate_domain().unwrap();
    let name = format!("stream-{}", std::process::id());
    let mut listener = provider.listen(&domain, &name).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(std::env::args().skip(1))
        .env("OVERSIDE_STREAM_TO", &name)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut queue = CompletionQueue::new(provider.open_port(&domain, PortOptions::default()).unwrap());
    let qp = queue.attach(listener.accept(Duration::from_secs(10)).unwrap().unwrap()).unwrap();
    let ring = Segment::private(RING_BYTES).unwrap().carve(message);
    let mut free: Vec<(u64, Buffer)> = ring.into_iter().map(|b| (0, b)).collect();
    // The limit copies from memory that looks the same: shared, not huge.
    let source = Segment::shared(SOURCE_BYTES).unwrap().carve(SOURCE_BYTES).pop().unwrap();
    let mut target = Segment::private(RING_BYTES).unwrap().carve(message);
    let messages = SOURCE_BYTES / message;
    let (mut rates, mut limits, mut sums) = (Vec::new(), Vec::new(), 0u64);
    for round in 0..ROUNDS {
        queue.post_receive(Some(qp), &mut free).unwrap();
        let start = Instant::now();
        let mut go = VecDeque::from([WorkRequest::send_inline(0, b"go").unsignalled()]);
        queue.post(qp, &mut go).unwrap();
        let (mut got, mut bytes, mut out) = (0, 0u64, Vec::new());
        while got < messages {
            queue.poll_wait(&mut out, None).unwrap();
            for done in out.drain(..) {
                let Some(buffer) = done.buffer else { continue };
                assert_eq!(done.status, Status::Success);
                sums += look(&buffer[..done.bytes as usize]);
                bytes += done.bytes;
                got += 1;
                free.push((0, buffer));
            }
            queue.post_receive(Some(qp), &mut free).unwrap();
        }
        let rate = bytes as f64 / start.elapsed().as_nanos() as f64;
        let best = limit(&source, &mut target, message, round == ROUNDS - 1, &mut sums);
        // The first round maps the source page by page.
        if round > 0 {
            rates.push(rate);
            limits.push(best);
        }
    }
    queue.close(qp);
    drop(queue);
    child.wait().unwrap();
    black_box(sums);
    let mut ratios: Vec<f64> = rates.iter().zip(&limits).map(|(r, l)| r / l).collect();
    println!(
        "{message} B messages: {:.2} GB/s, limit {:.2} GB/s, ratio median {:.3} (quartiles {:.3} to {:.3})",
        at(&mut rates, 0.5),
        at(&mut limits, 0.5),
        at(&mut ratios, 0.5),
        at(&mut ratios, 0.25),
        at(&mut ratios, 0.75)
    );
    let per_message = |rate: f64| message as f64 / rate;
    println!(
        "a message: {:.0} ns, of it {:.0} ns beyond the copy",
        per_message(at(&mut rates, 0.5)),
        per_message(at(&mut rates, 0.5)) - per_message(at(&mut limits, 0.5))
    );
}

/// The same bytes, copied in the same chunks into the same kind of ring by this process alone, in GB/s: the best
/// of the copies there are.
fn limit(source: &[u8], ring: &mut [Buffer], message: usize, tell: bool, sums: &mut u64) -> f64 {
    let (messages, slots) = (source.len() / message, ring.len());
    let mut best: f64 = 0.0;
    for kernel in Kernel::available() {
        let start = Instant::now();
        for i in 0..messages {
            let to = &mut ring[i % slots];
            kernels::copy(kernel, to, &source[i * message..(i + 1) * message]);
            *sums += look(&to[..message]);
        }
        let rate = (messages * message) as f64 / start.elapsed().as_nanos() as f64;
        if tell {
            println!("limit with {kernel:?}: {rate:.2} GB/s");
        }
        best = best.max(rate);
    }
    best
}

/// A byte of each cache line, as a consumer would.
fn look(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(64).map(|b| u64::from(*b)).sum()
}

fn at(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part).round() as usize]
}

fn cpu() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: [test] the kernel fills the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

const SOURCE_BYTES: usize = 128 << 20;
const RING_BYTES: usize = 1 << 20;
const ROUNDS: usize = 16;

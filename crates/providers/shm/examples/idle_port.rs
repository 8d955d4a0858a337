//! What idle clients cost a server: processor time and memory for each.
//!
//! `cargo run --release -p overside-shm --example idle_port [clients]`. Needs 3 descriptors a client
//! (`ulimit -n`). The clients are queue pairs of one other process, which sleeps as well.

use std::collections::VecDeque;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use overside_memory::Segment;
use overside_shm::ShmProvider;
use overside_verbs::*;

fn main() {
    let clients: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(1000);
    match std::env::var("OVERSIDE_IDLE_TO") {
        Ok(name) => sleep(&name, clients),
        Err(_) => serve(clients),
    }
}

fn sleep(name: &str, clients: usize) {
    let provider = ShmProvider::new().unwrap();
    let domain = provider.allocate_domain().unwrap();
    let mut queue = CompletionQueue::new(provider.open_port(&domain, PortOptions::default()).unwrap());
    let mut out = Vec::new();
    for _ in 0..clients {
        let link = provider.connect(&domain, name, Duration::from_secs(10)).unwrap();
        let qp = queue.attach(link).unwrap();
        // Each has spoken once, so that nothing is left for later.
        queue.post(qp, &mut VecDeque::from([WorkRequest::send_inline(0, b"hello")])).unwrap();
    }
    loop {
        queue.poll_wait(&mut out, None).unwrap();
        if queue.next_event().is_some() {
            return;
        }
    }
}

fn serve(clients: usize) {
    let provider = ShmProvider::new().unwrap();
    let domain = provider.allocate_domain().unwrap();
    let name = format!("idle-{}", std::process::id());
    let mut listener = provider.listen(&domain, &name).unwrap();
    let mut queue = CompletionQueue::new(provider.open_port(&domain, PortOptions::default()).unwrap());
    let mut receives = Segment::private(1024 * 64).unwrap().carve(64).into_iter().map(|b| (0, b)).collect();
    queue.post_receive(None, &mut receives).unwrap();
    let (private, all) = memory();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(std::env::args().skip(1))
        .env("OVERSIDE_IDLE_TO", &name)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let (mut out, mut greeted) = (Vec::new(), 0);
    for _ in 0..clients {
        let link = listener.accept(Duration::from_secs(10)).unwrap().unwrap();
        queue.attach(link).unwrap();
        queue.poll(&mut out);
    }
    let give_up = Instant::now() + Duration::from_secs(20);
    while greeted < clients && Instant::now() < give_up {
        queue.poll_wait(&mut out, Some(Duration::from_millis(100))).unwrap();
        for done in out.drain(..) {
            greeted += 1;
            queue.post_receive(None, &mut vec![(0, done.buffer.unwrap())]).unwrap();
        }
    }
    assert_eq!(greeted, clients);
    let settled = Instant::now() + Duration::from_secs(1);
    while Instant::now() < settled {
        queue.poll_wait(&mut out, Some(Duration::from_millis(100))).unwrap();
    }
    let (before, start) = (cpu(), Instant::now());
    while start.elapsed() < Duration::from_secs(5) {
        // A server that looks up ten times a second besides.
        queue.poll_wait(&mut out, Some(Duration::from_millis(100))).unwrap();
    }
    let share = (cpu() - before) as f64 / start.elapsed().as_nanos() as f64;
    let (private_now, all_now) = memory();
    println!(
        "{clients} idle clients: {:.3} % of a core; each {:.1} KiB private and {:.1} KiB resident in all (control memories of both sides included)",
        share * 100.0,
        (private_now - private) as f64 / clients as f64 / 1024.0,
        (all_now - all) as f64 / clients as f64 / 1024.0
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Bytes of this process's own, and resident with what it shares.
fn memory() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let of = |what: &str| -> u64 {
        let line = text.lines().find_map(|l| l.strip_prefix(what)).unwrap();
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
    };
    (of("RssAnon:"), of("VmRSS:"))
}

fn cpu() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: [test] the kernel fills the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

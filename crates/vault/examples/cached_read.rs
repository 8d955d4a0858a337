//! What a read of 8 KiB that the node has in its cache costs client and node, in instructions: both in turn on one thread,
//! over shared memory. `cargo xtask instructions` counts `measured` under callgrind; run alone it says what a read takes.
//! `cargo run --release -p overside-vault --example cached_read -- [READS]`

use std::collections::VecDeque;
use std::error::Error;
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Segment};
use overside_service::{Listening, ServiceOptions, Stepped};
use overside_shm::ShmProvider;
use overside_vault::cache::CacheOptions;
use overside_vault::server::{Node, NodeOptions};
use overside_verbs::SystemClock;
use overside_volume::client::{Link, LinkOptions, Volume};
use overside_volume::wire::Role;
use overside_volume::{Completion, Device, MemoryDevice, Request, Work, complete};

type Failed = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failed> {
    let reads: u64 = std::env::args().nth(1).map_or(Ok(1000), |reads| reads.parse())?;
    let cache = CacheOptions { bytes: 2 * BYTES, ..CacheOptions::default() };
    let node = Node::new(SystemClock::handle(), NodeOptions { cache, ..NodeOptions::default() })?;
    node.add("v", Box::new(MemoryDevice::new(BYTES)?))?;
    // Its memory for blocks, and the volume's thread; over connections it is served below, step by step.
    let served = node.serve(Vec::new(), ServiceOptions::default())?;
    fill(&mut node.door("v", Role::Writer)?)?;
    let name = format!("cached-read-{}", std::process::id());
    let listening = Listening::open(ShmProvider::new()?, &[&name])?;
    let mut server = Stepped::start(listening, node.clone(), ServiceOptions::default())?;
    let connecting = std::thread::spawn(move || -> Result<Volume, Failed> {
        let options = LinkOptions { role: Role::Reader, ..LinkOptions::default() };
        Ok(Link::attach(ShmProvider::new()?, &name, "v", options)?)
    });
    // Somebody else waits for the server until the client is welcome.
    while !connecting.is_finished() {
        server.greet(Duration::from_millis(1));
        while server.step() {}
    }
    let mut client = connecting.join().map_err(|_| "connecting panicked")??;
    // Rings wrap, and lists have grown.
    let buffer = read(&mut server, &mut client, buffer()?, WARM_UP)?;
    let start = Instant::now();
    let buffer = measured(&mut server, &mut client, buffer, reads)?;
    let each = start.elapsed().as_nanos() as f64 / reads.max(1) as f64;
    assert!(buffer[..LENGTH].iter().all(|byte| *byte == FILLED), "what was read is not what was written");
    println!("{reads} reads of {LENGTH} bytes, {each:.0} ns each");
    drop((client, server));
    drop(served);
    Ok(())
}

/// What is counted.
#[inline(never)]
fn measured(server: &mut Stepped<Node>, client: &mut Volume, buffer: Buffer, reads: u64) -> Result<Buffer, Failed> {
    read(server, client, buffer, reads)
}

/// One read after the other, from one block to the next.
fn read(server: &mut Stepped<Node>, client: &mut Volume, mut buffer: Buffer, reads: u64) -> Result<Buffer, Failed> {
    let (mut batch, mut ended): (VecDeque<Request>, Vec<Completion>) = (VecDeque::new(), Vec::new());
    for tag in 0..reads {
        let at = tag % (BYTES / LENGTH as u64) * LENGTH as u64;
        batch.push_back(Request { tag, work: Work::Read { at, length: LENGTH, into: buffer } });
        client.submit(&mut batch);
        loop {
            while server.step() {}
            if client.poll(&mut ended) > 0 {
                break;
            }
        }
        let completion = ended.pop().ok_or("nothing ended")?;
        completion.result?;
        buffer = completion.buffer().ok_or("a READ came back without its buffer")?;
    }
    Ok(buffer)
}

/// All that is written lies in the cache.
fn fill(door: &mut dyn Device) -> Result<(), Failed> {
    for at in (0..BYTES).step_by(LENGTH) {
        let mut bytes = buffer()?;
        bytes.fill(FILLED);
        complete(door, &SystemClock, Work::Write { at, from: bytes.into(), fua: false }, PATIENCE).1?;
    }
    Ok(())
}

fn buffer() -> Result<Buffer, Failed> {
    Ok(Segment::private(LENGTH)?.carve(LENGTH).pop().ok_or("no memory")?)
}

const BYTES: u64 = 1 << 20;
const LENGTH: usize = 8192;
const FILLED: u8 = 0xA5;
const WARM_UP: u64 = 1000;
const PATIENCE: Duration = Duration::from_secs(10);

//! What the machine can do at most, measured in the same rounds as the sides.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use overside_bench::limits::{Chunks, touch};
use overside_bench::lineitem::PackedRows;
use overside_bench::overside::memory::kernels::Kernel;

/// Three limits, each over all rows, in bytes per second.
pub struct Limits {
    chunks: Chunks,
    kernel: Kernel,
    twice: Twice,
    loopback: Loopback,
}

impl Limits {
    pub fn new(rows: &PackedRows, batch_bytes: usize) -> Result<Self> {
        let chunks = Chunks::lay_out(rows, CHUNK_BYTES, RING_BYTES)?;
        let twice = Twice::new(rows.bytes().to_vec(), batch_bytes);
        let mut limits = Self { chunks, kernel: Kernel::Libc, twice, loopback: Loopback::open(rows.bytes().to_vec())? };
        let mut best = 0.0;
        for kernel in Kernel::available() {
            let speed = limits.chunks.chunked(kernel, 2);
            if speed > best {
                (best, limits.kernel) = (speed, kernel);
            }
        }
        Ok(limits)
    }

    /// For row views: every row copied once, in chunks of a page into a ring, and read there.
    pub fn rows(&mut self) -> f64 {
        self.chunks.chunked(self.kernel, 1)
    }

    /// For batches: copied into the ring, and from there into memory of a batch's length that is
    /// used over and over, and read there.
    pub fn batches(&mut self) -> f64 {
        self.twice.run()
    }

    /// For all that goes over TCP: written to loopback by one thread in chunks of 64 KiB, read by
    /// another and looked at there.
    pub fn loopback(&mut self) -> Result<f64> {
        self.loopback.run()
    }
}

struct Twice {
    source: Vec<u8>,
    ring: Vec<u8>,
    batch: Vec<u8>,
}

impl Twice {
    fn new(source: Vec<u8>, batch_bytes: usize) -> Self {
        Self { source, ring: vec![1; RING_BYTES], batch: vec![1; batch_bytes.next_multiple_of(CHUNK_BYTES)] }
    }

    fn run(&mut self) -> f64 {
        let start = Instant::now();
        let (slots, places) = (self.ring.len() / CHUNK_BYTES, self.batch.len() / CHUNK_BYTES);
        let mut sum = 0u64;
        for (at, chunk) in self.source.chunks(CHUNK_BYTES).enumerate() {
            let slot = &mut self.ring[at % slots * CHUNK_BYTES..][..chunk.len()];
            slot.copy_from_slice(chunk);
            let place = at % places;
            self.batch[place * CHUNK_BYTES..][..chunk.len()].copy_from_slice(black_box(slot));
            if place + 1 == places {
                sum = sum.wrapping_add(touch(&self.batch));
            }
        }
        black_box(sum);
        self.source.len() as f64 / start.elapsed().as_secs_f64()
    }
}

struct Loopback {
    /// A byte asks the other thread for everything once.
    stream: TcpStream,
    bytes: usize,
    buffer: Vec<u8>,
}

impl Loopback {
    fn open(source: Vec<u8>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("no port of the loopback is free")?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        let (mut peer, _) = listener.accept()?;
        let bytes = source.len();
        // It ends when our side of the stream does.
        std::thread::spawn(move || {
            while matches!(peer.read(&mut [0]), Ok(1)) {
                if source.chunks(WRITE_BYTES).try_for_each(|chunk| peer.write_all(chunk)).is_err() {
                    break;
                }
            }
        });
        Ok(Self { stream, bytes, buffer: vec![0; WRITE_BYTES] })
    }

    fn run(&mut self) -> Result<f64> {
        let start = Instant::now();
        self.stream.write_all(&[1])?;
        let (mut left, mut sum) = (self.bytes, 0u64);
        while left > 0 {
            let read = self.stream.read(&mut self.buffer)?;
            if read == 0 {
                bail!("the loopback stream ended early");
            }
            sum = sum.wrapping_add(touch(&self.buffer[..read]));
            left = left.saturating_sub(read);
        }
        black_box(sum);
        Ok(self.bytes as f64 / start.elapsed().as_secs_f64())
    }
}

/// A page, and a ring as large as a client's receive buffers.
const CHUNK_BYTES: usize = 16 << 10;
const RING_BYTES: usize = 1 << 20;
/// Bytes that are written and read at once.
const WRITE_BYTES: usize = 64 << 10;

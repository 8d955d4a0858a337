//! What things cost on this path, measured in about 60 ms by one thread.
//!
//! Two ports of this process are connected over loopback, so what is measured is the code that ships and the kernel's way
//! through both ends. A wire's own time is not in it.

use std::collections::VecDeque;
use std::hint::black_box;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use overside_memory::kernels::{self, Kernel};
use overside_memory::{Buffer, Segment, View};
use overside_planner::{Bends, Profile};
use overside_shape::{Run, Shape};
use overside_verbs::handshake::Keys;
use overside_verbs::handshake::stream::prepare;
use overside_verbs::{
    Access, CompletionQueue, Memory, PortOptions, ProtectionDomain, Provider, QueuePair, VerbsError, WorkRequest,
    random,
};

use crate::TcpProvider;
use crate::handshake::{Wire, link, system};

impl TcpProvider {
    /// Measures this machine and keeps the figures for [`Provider::profile`]. Takes about 60 ms and 17 MiB.
    ///
    /// # Errors
    /// When the memory or the sockets for it are not there; the profile stays as it was.
    pub fn calibrate(&self) -> Result<Profile, VerbsError> {
        let mut loopback = Loopback::new(self)?;
        let small = loopback.run(&[Run::new(0, 64)], SMALL_MESSAGES)?;
        let whole = loopback.run(&[Run::new(0, PAGE_BYTES)], PAGE_MESSAGES)?;
        let pieces: Vec<Run> = (0..PIECES).map(|i| Run::new(i * PIECE_STRIDE, PIECE_BYTES)).collect();
        let gathered = loopback.run(&pieces, GATHER_MESSAGES)?;
        let per_byte = |large: f64, small: f64| ((large - small) / PAGE_BYTES as f64).max(0.001);
        let (send_byte_ns, receive_byte_ns) =
            (per_byte(whole.send, small.send), per_byte(whole.receive, small.receive));
        let gathered_bytes = (PIECES * PIECE_BYTES) as f64 * send_byte_ns;
        let (pack_byte_ns, pack_piece_ns) = loopback.pack();
        let profile = Profile {
            send_request_ns: small.send,
            send_fragment_ns: ((gathered.send - small.send - gathered_bytes) / PIECES as f64).max(0.5),
            send_byte_ns,
            pack_byte_ns,
            pack_piece_ns,
            receive_request_ns: small.receive,
            receive_byte_ns,
            source: "measured on this machine's loopback, one thread".to_owned(),
            ..default_profile(self.options().tags())
        };
        self.set_profile(profile.clone());
        Ok(profile)
    }
}

/// Two ports of this process, connected.
struct Loopback {
    sender: CompletionQueue,
    to_receiver: QueuePair,
    receiver: CompletionQueue,
    ring: Vec<(u64, Buffer)>,
    source: Arc<Buffer>,
    /// Where in the source the next message comes from.
    at: u64,
}

/// Nanoseconds of one message at either end.
#[derive(Clone, Copy, Debug)]
struct Cost {
    send: f64,
    receive: f64,
}

impl Loopback {
    fn new(provider: &TcpProvider) -> Result<Self, VerbsError> {
        let domain = provider.allocate_domain()?;
        let mut source = whole(Segment::shared(SOURCE_BYTES as usize)?);
        // Every page is there before it is measured.
        source.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        provider.register(&domain, &Memory::Segment(source.segment().clone()), Access::LOCAL)?;
        let (ours, theirs) = wires(provider, &domain)?;
        let mut sender = CompletionQueue::new(provider.open_port(&domain, PortOptions::default())?);
        let mut receiver = CompletionQueue::new(provider.open_port(&domain, PortOptions::default())?);
        let to_receiver = sender.attach(link(String::new(), ours))?;
        receiver.attach(link(String::new(), theirs))?;
        let ring = Segment::private(RING_BYTES as usize)?.carve(PAGE_BYTES as usize);
        let ring = ring.into_iter().map(|buffer| (0, buffer)).collect();
        Ok(Self { sender, to_receiver, receiver, ring, source: Arc::new(source), at: 0 })
    }

    /// Sends `messages` messages of these runs, each from another place of the source; the best of three.
    fn run(&mut self, runs: &[Run], messages: usize) -> Result<Cost, VerbsError> {
        let mut best = Cost { send: f64::MAX, receive: f64::MAX };
        for _ in 0..3 {
            let cost = self.round(runs, messages)?;
            best = Cost { send: best.send.min(cost.send), receive: best.receive.min(cost.receive) };
        }
        Ok(best)
    }

    fn round(&mut self, runs: &[Run], messages: usize) -> Result<Cost, VerbsError> {
        let span = runs.last().map_or(0, |r| r.at + r.len).next_multiple_of(PAGE_BYTES);
        let (mut send, mut receive) = (0, 0);
        let (mut batch, mut done, mut got) = (VecDeque::new(), Vec::new(), Vec::new());
        for _ in 0..messages.div_ceil(BATCH) {
            for _ in 0..BATCH {
                if self.at + span > SOURCE_BYTES {
                    self.at = 0;
                }
                let moved: Vec<Run> = runs.iter().map(|r| Run::new(self.at + r.at, r.len)).collect();
                self.at += span;
                let shape = Shape::list(&moved).map_err(|_| VerbsError::Unsupported("the calibration's shape"))?;
                batch.push_back(WorkRequest::send(0, View::of(&self.source, &shape)?));
            }
            let begin = Instant::now();
            self.receiver.post_receive(None, &mut self.ring)?;
            self.ring.clear();
            while got.len() < BATCH || done.len() < BATCH {
                let start = Instant::now();
                self.receiver.poll(&mut got);
                let between = Instant::now();
                if !batch.is_empty() {
                    self.sender.post(self.to_receiver, &mut batch)?;
                }
                self.sender.poll(&mut done);
                receive += (between - start).as_nanos();
                send += between.elapsed().as_nanos();
                if begin.elapsed().as_millis() > PATIENCE_MS {
                    return Err(VerbsError::TimedOut(begin.elapsed()));
                }
            }
            self.ring.extend(got.drain(..).filter_map(|c| c.buffer).map(|b| (0, b)));
            done.clear();
        }
        let sent = (messages.div_ceil(BATCH) * BATCH) as f64;
        Ok(Cost { send: send as f64 / sent, receive: receive as f64 / sent })
    }

    /// Packing: nanoseconds a byte in whole pages, and what a piece costs beyond its bytes.
    fn pack(&mut self) -> (f64, f64) {
        let Ok(segment) = Segment::private(RING_BYTES as usize) else { return (0.08, 8.0) };
        let mut target = whole(segment);
        target.fill(1);
        let byte = self.copies(&mut target, PAGE_BYTES, PAGE_BYTES) / PAGE_BYTES as f64;
        let piece = self.copies(&mut target, PIECE_BYTES, PIECE_STRIDE);
        (byte, (piece - PIECE_BYTES as f64 * byte).max(0.5))
    }

    /// Nanoseconds of one copy of `len` bytes, of many at this stride.
    fn copies(&self, target: &mut Buffer, len: u64, stride: u64) -> f64 {
        let count = (SOURCE_BYTES / 2 / stride) as usize;
        let mut best = f64::MAX;
        for turn in 0..3 {
            let (start, from, room) = (Instant::now(), turn % 2 * SOURCE_BYTES / 2, RING_BYTES / len);
            for i in 0..count as u64 {
                let (at, to) = ((from + i * stride) as usize, (i % room * len) as usize);
                kernels::copy(Kernel::Libc, &mut target[to..], &self.source[at..at + len as usize]);
            }
            black_box(&mut *target);
            best = best.min(start.elapsed().as_nanos() as f64 / count as f64);
        }
        best
    }
}

/// Both ends of a loopback connection that have shaken hands, as it were.
fn wires(provider: &TcpProvider, domain: &ProtectionDomain) -> Result<(Wire, Wire), VerbsError> {
    let failed = |e: std::io::Error| system("a loopback connection", &e);
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    let ours = TcpStream::connect(listener.local_addr().map_err(failed)?).map_err(failed)?;
    // Whoever else finds the port in this moment is not the one that we connected.
    let theirs = loop {
        let (stream, from) = listener.accept().map_err(failed)?;
        if from == ours.local_addr().map_err(failed)? {
            break stream;
        }
    };
    let keys = match provider.options().tags() {
        true => Some(Keys { out: random()?, into: random()? }),
        false => None,
    };
    let wire = |stream: TcpStream, keys| {
        stream.set_nonblocking(true).map_err(failed)?;
        let socket = OwnedFd::from(stream);
        prepare(&socket)?;
        Ok::<_, VerbsError>(Wire { socket, keys, domain: domain.id(), provider: provider.id() })
    };
    let turned = keys.map(|Keys { out, into }| Keys { out: into, into: out });
    Ok((wire(ours, keys)?, wire(theirs, turned)?))
}

fn whole(segment: Segment) -> Buffer {
    let len = segment.len();
    segment.carve(len).pop().expect("a segment holds one buffer of its own length")
}

/// Before anything was measured: figures of a two-core server of 2024, loopback.
pub(crate) fn default_profile(tags: bool) -> Profile {
    let tag_byte_ns = if tags { 0.3 } else { 0.0 };
    Profile {
        send_request_ns: 1500.0,
        send_fragment_ns: 15.0,
        send_byte_ns: 0.15 + tag_byte_ns,
        pack_byte_ns: 0.08,
        pack_piece_ns: 8.0,
        row_ns: 4.0,
        receive_request_ns: 1500.0,
        // They arrive as one stream.
        receive_fragment_ns: 0.0,
        receive_byte_ns: 0.15 + tag_byte_ns,
        wire_byte_ns: 0.0,
        bends: Bends::default(),
        source: "default".to_owned(),
    }
}

/// Larger than the second-level cache of anything that runs this.
const SOURCE_BYTES: u64 = 16 << 20;
const RING_BYTES: u64 = 1 << 20;
/// A page of a table.
const PAGE_BYTES: u64 = 16 << 10;
const BATCH: usize = 16;
const SMALL_MESSAGES: usize = 1024;
const PAGE_MESSAGES: usize = 1024;
const GATHER_MESSAGES: usize = 256;
/// Small records, apart from each other; too many bytes to be taken for a small message.
const PIECES: u64 = 64;
const PIECE_BYTES: u64 = 64;
const PIECE_STRIDE: u64 = 256;
/// No part of it takes longer on a machine that works.
const PATIENCE_MS: u128 = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use overside_verbs::handshake::Key;

    #[test]
    fn the_figures_are_of_this_machine_and_kept() {
        for key in [None, Key::from_bytes(&[1; 32])] {
            let provider = TcpProvider::with_options(Options { key, ..Options::default() });
            let profile = provider.calibrate().unwrap();
            assert_eq!(provider.profile(), profile);
            assert!(profile.source.starts_with("measured"));
            for (what, figure, most) in [
                ("send request", profile.send_request_ns, 1e6),
                ("send fragment", profile.send_fragment_ns, 1e5),
                ("send byte", profile.send_byte_ns, 1000.0),
                ("pack byte", profile.pack_byte_ns, 100.0),
                ("pack piece", profile.pack_piece_ns, 1e4),
                ("receive request", profile.receive_request_ns, 1e6),
                ("receive byte", profile.receive_byte_ns, 1000.0),
            ] {
                assert!(figure > 0.0 && figure < most, "{what}: {figure} ns");
            }
        }
    }
}

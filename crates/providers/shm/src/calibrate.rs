//! What things cost on this machine, measured in about 30 ms by one thread.
//!
//! Two ports of this process are connected to each other, so what is measured is the code that
//! ships. Copies read from a source larger than the second-level cache, as page after page of a table does,
//! and write into a ring that stays in it. What two processes add, cache lines that change cores, is a
//! constant per request.

use std::collections::VecDeque;
use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use overside_memory::kernels::{self, Kernel};
use overside_memory::{Buffer, Segment, View};
use overside_planner::{Bends, Profile};
use overside_shape::{Run, Shape};
use overside_verbs::watch::failed;
use overside_verbs::{
    Access, CompletionQueue, Link, Memory, PortOptions, ProtectionDomain, Provider, QueuePair, VerbsError,
    WorkCompletion, WorkRequest,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::ShmProvider;
use crate::handshake::{Wire, link};
use crate::watch::vouched_peer;

impl ShmProvider {
    /// Measures this machine and keeps the figures for [`Provider::profile`]. Takes about 30 ms and 17 MiB.
    ///
    /// # Errors
    /// When the memory or the descriptors for it are not there; the profile stays as it was.
    pub fn calibrate(&self) -> Result<Profile, VerbsError> {
        let mut loopback = Loopback::new(self)?;
        let small = loopback.run(&[Run::new(0, 64)], SMALL_MESSAGES)?;
        let whole = loopback.run(&[Run::new(0, PAGE_BYTES)], PAGE_MESSAGES)?;
        let pieces: Vec<Run> = (0..PIECES).map(|i| Run::new(i * PIECE_STRIDE, PIECE_BYTES)).collect();
        let gathered = loopback.run(&pieces, GATHER_MESSAGES)?;
        let receive_byte_ns = ((whole.receive - small.receive) / PAGE_BYTES as f64).max(0.001);
        let (pack_byte_ns, pack_piece_ns) = loopback.pack();
        let gathered_bytes = (PIECES * PIECE_BYTES) as f64 * receive_byte_ns;
        let default = default_profile();
        let profile = Profile {
            send_request_ns: small.send + ACROSS_CORES_NS,
            send_fragment_ns: ((gathered.send - small.send) / PIECES as f64).max(0.5),
            pack_byte_ns,
            pack_piece_ns,
            receive_request_ns: small.receive + ACROSS_CORES_NS,
            receive_fragment_ns: ((gathered.receive - small.receive - gathered_bytes) / PIECES as f64).max(0.5),
            receive_byte_ns,
            source: "measured on this machine, one thread".to_owned(),
            ..default
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
    fn new(provider: &ShmProvider) -> Result<Self, VerbsError> {
        let domain = provider.allocate_domain()?;
        let mut source = whole(Segment::shared(SOURCE_BYTES as usize)?);
        // Every page is there before it is measured.
        source.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        provider.register(&domain, &Memory::Segment(source.segment().clone()), Access::LOCAL)?;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|e| failed("socketpair", e))?;
        let mut sender = CompletionQueue::new(provider.open_port(&domain, PortOptions::default())?);
        let mut receiver = CompletionQueue::new(provider.open_port(&domain, PortOptions::default())?);
        let to_receiver = sender.attach(end(provider, &domain, ours)?)?;
        receiver.attach(end(provider, &domain, theirs)?)?;
        let ring =
            Segment::private(RING_BYTES as usize)?.carve(PAGE_BYTES as usize).into_iter().map(|b| (0, b)).collect();
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
        let (mut batch, mut done, mut got): (_, Vec<WorkCompletion>, Vec<WorkCompletion>) =
            (VecDeque::new(), Vec::new(), Vec::new());
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
            let start = Instant::now();
            self.sender.post(self.to_receiver, &mut batch)?;
            send += start.elapsed().as_nanos();
            let start = Instant::now();
            self.receiver.post_receive(None, &mut self.ring)?;
            self.ring.clear();
            while got.len() < BATCH && start.elapsed().as_millis() < PATIENCE_MS {
                self.receiver.poll(&mut got);
            }
            self.ring.extend(got.drain(..).filter_map(|c| c.buffer).map(|b| (0, b)));
            receive += start.elapsed().as_nanos();
            let start = Instant::now();
            while done.len() < BATCH && start.elapsed().as_millis() < PATIENCE_MS {
                self.sender.poll(&mut done);
            }
            send += start.elapsed().as_nanos();
            if self.ring.len() < BATCH || done.len() < BATCH {
                return Err(VerbsError::TimedOut(start.elapsed()));
            }
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

fn end(provider: &ShmProvider, domain: &ProtectionDomain, socket: OwnedFd) -> Result<Link, VerbsError> {
    let (peer, pidfd) = vouched_peer(&socket)?;
    Ok(link(peer, Wire { socket, pidfd, domain: domain.id(), provider: provider.id() }))
}

fn whole(segment: Segment) -> Buffer {
    let len = segment.len();
    segment.carve(len).pop().expect("a segment holds one buffer of its own length")
}

/// Before anything was measured: figures of a two-core server of 2024.
pub(crate) fn default_profile() -> Profile {
    Profile {
        send_request_ns: 60.0,
        send_fragment_ns: 6.0,
        send_byte_ns: 0.0,
        pack_byte_ns: 0.08,
        pack_piece_ns: 8.0,
        row_ns: 4.0,
        receive_request_ns: 80.0,
        receive_fragment_ns: 12.0,
        receive_byte_ns: 0.08,
        wire_byte_ns: 0.0,
        bends: Bends::default(),
        source: "default".to_owned(),
    }
}

/// Cache lines that change cores, a request: descriptor and index, there and back (core to core on
/// machines of this kind: 50 to 60 ns a line).
const ACROSS_CORES_NS: f64 = 60.0;
/// Larger than the second-level cache of anything that runs this.
const SOURCE_BYTES: u64 = 16 << 20;
const RING_BYTES: u64 = 1 << 20;
/// A page of a table.
const PAGE_BYTES: u64 = 16 << 10;
const BATCH: usize = 16;
const SMALL_MESSAGES: usize = 4096;
const PAGE_MESSAGES: usize = 2048;
const GATHER_MESSAGES: usize = 256;
/// Small records, apart from each other; a batch of such lists fits a ring of the default size.
const PIECES: u64 = 64;
const PIECE_BYTES: u64 = 64;
const PIECE_STRIDE: u64 = 256;
/// No part of it takes longer on a machine that works.
const PATIENCE_MS: u128 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_of_this_machine_and_kept() {
        let provider = ShmProvider::new().unwrap();
        let profile = provider.calibrate().unwrap();
        assert_eq!(provider.profile(), profile);
        assert!(profile.source.starts_with("measured"));
        for (what, figure, most) in [
            ("send request", profile.send_request_ns, 1e5),
            ("send fragment", profile.send_fragment_ns, 1e4),
            ("pack byte", profile.pack_byte_ns, 100.0),
            ("pack piece", profile.pack_piece_ns, 1e4),
            ("receive request", profile.receive_request_ns, 1e5),
            ("receive fragment", profile.receive_fragment_ns, 1e4),
            ("receive byte", profile.receive_byte_ns, 100.0),
        ] {
            assert!(figure > 0.0 && figure < most, "{what}: {figure} ns");
        }
    }
}

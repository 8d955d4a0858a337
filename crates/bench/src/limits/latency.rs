//! The limit for latency: two cores, two cache lines.

use crate::measure::{Spread, elapsed_ns, now_ns};
use serde::Serialize;
use std::{
    hint::spin_loop,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

/// A spinning round trip over shared memory.
#[derive(Clone, Debug, Serialize)]
pub struct PingPong {
    /// Nanoseconds of a round trip, by batch.
    pub round_trip_ns: Spread,
}

/// Two threads pass a number back and forth, spinning; `None` where there is only one core, on
/// which spinning measures the scheduler.
pub fn ping_pong(batches: usize) -> Option<PingPong> {
    if thread::available_parallelism().map_or(1, usize::from) < 2 {
        return None;
    }
    let lines = Arc::new((Line::default(), Line::default()));
    let theirs = Arc::clone(&lines);
    let last = batches as u64 * BATCH;
    let peer = thread::spawn(move || {
        for turn in 1..=last {
            wait(&theirs.0, turn);
            theirs.1.0.store(turn, Ordering::Release);
        }
    });
    let mut samples = Vec::with_capacity(batches);
    for batch in 0..batches as u64 {
        let start = now_ns();
        for turn in 1..=BATCH {
            lines.0.0.store(batch * BATCH + turn, Ordering::Release);
            wait(&lines.1, batch * BATCH + turn);
        }
        samples.push(elapsed_ns(start) as f64 / BATCH as f64);
    }
    peer.join().ok()?;
    Some(PingPong { round_trip_ns: Spread::of(&samples) })
}

/// A cache line with its neighbour, which the processor fetches along with it.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Gives the core away once in a while: the other thread may be waiting for this very one.
fn wait(line: &Line, turn: u64) {
    let mut spins = 0u32;
    while line.0.load(Ordering::Acquire) != turn {
        spin_loop();
        spins += 1;
        if spins.is_multiple_of(SPINS) {
            thread::yield_now();
        }
    }
}

const BATCH: u64 = 1000;
const SPINS: u32 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_takes_time() {
        if let Some(ping_pong) = ping_pong(5) {
            let ns = ping_pong.round_trip_ns;
            assert!(ns.samples == 5 && ns.min > 5.0, "{ns:?}");
        }
    }
}

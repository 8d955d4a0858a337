//! Traces of a volume's requests, and what each policy makes of them.
//!
//! A trace is text: a line a request, `r|w,offset,bytes`. Empty lines and lines that begin
//! with `#` are passed over.

mod record;

pub use record::{Recorder, Trace};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::cache::PolicyKind;

/// A request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// It writes.
    pub writes: bool,
    /// First byte.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

/// A line that is no request of a trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line of a trace is `r|w,offset,bytes`, with bytes from 1 to 1 GiB and an end below 2^63; this is {0:?}")]
pub struct BadLine(String);

/// Bytes of one request at most.
const BYTES_MAX: u64 = 1 << 30;

impl TraceRequest {
    /// What a line says; none where it is empty or a remark.
    ///
    /// # Errors
    /// The line is neither that nor a request.
    pub fn parse(line: &str) -> Result<Option<TraceRequest>, BadLine> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        let bad = || BadLine(line.chars().take(80).collect());
        let mut fields = line.split(',').map(str::trim);
        let (Some(kind), Some(offset), Some(bytes), None) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(bad());
        };
        let writes = match kind {
            "r" => false,
            "w" => true,
            _ => return Err(bad()),
        };
        let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok());
        let offset = number(offset).flatten().ok_or_else(bad)?;
        let bytes = number(bytes).flatten().filter(|bytes| (1..=BYTES_MAX).contains(bytes)).ok_or_else(bad)?;
        let fits = offset.checked_add(bytes).is_some_and(|end| end < 1 << 63);
        if fits { Ok(Some(TraceRequest { writes, offset, bytes })) } else { Err(bad()) }
    }

    /// The blocks that it touches.
    pub fn blocks(&self, block_bytes: u64) -> impl Iterator<Item = u64> {
        self.offset / block_bytes..(self.offset + self.bytes).div_ceil(block_bytes)
    }
}

impl fmt::Display for TraceRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{}", if self.writes { 'w' } else { 'r' }, self.offset, self.bytes)
    }
}

/// What a policy made of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Blocks that were accessed.
    pub accesses: u64,
    /// Of them those that were in the cache.
    pub hits: u64,
}

impl Replayed {
    /// Hits of all accesses; 0 where there was none.
    pub fn hit_ratio(&self) -> f64 {
        if self.accesses == 0 { 0.0 } else { self.hits as f64 / self.accesses as f64 }
    }
}

/// What a policy makes of these accesses, in a cache of so many blocks.
pub fn replay(kind: PolicyKind, blocks: usize, accesses: impl IntoIterator<Item = u64>) -> Replayed {
    let mut policy = kind.policy(blocks);
    let mut replayed = Replayed { accesses: 0, hits: 0 };
    for block in accesses {
        replayed.accesses += 1;
        replayed.hits += u64::from(policy.access(block, &mut |_| true).hit);
    }
    replayed
}

/// What the best policy there can be makes of them, which knows what comes (Belady 1966): the block
/// goes that comes again last.
pub fn belady(blocks: usize, accesses: &[u64]) -> Replayed {
    let blocks = blocks.max(1);
    // When each access's block comes again.
    let mut again = vec![u64::MAX; accesses.len()];
    let mut last: BTreeMap<u64, usize> = BTreeMap::new();
    for (place, block) in accesses.iter().enumerate() {
        if let Some(before) = last.insert(*block, place) {
            again[before] = place as u64;
        }
    }
    let mut cached: BTreeMap<u64, u64> = BTreeMap::new();
    let mut order: BTreeSet<(u64, u64)> = BTreeSet::new();
    let mut hits = 0;
    for (place, block) in accesses.iter().enumerate() {
        if let Some(due) = cached.insert(*block, again[place]) {
            hits += 1;
            order.remove(&(due, *block));
        } else if cached.len() > blocks
            && let Some((_, furthest)) = order.pop_last()
        {
            cached.remove(&furthest);
        }
        order.insert((again[place], *block));
    }
    Replayed { accesses: accesses.len() as u64, hits }
}

/// Traces.
#[doc(hidden)]
pub fn seeds_trace() -> Vec<Vec<u8>> {
    let texts = ["# a loop\nr,0,8192\nw,8192,4096\n\n r , 0 , 512 \n", "r,9223372036854775806,1\n", "w,1,1073741824\n"];
    texts.map(|text| text.as_bytes().to_vec()).into()
}

/// Reads a trace, and lets each policy decide on some of it. Whether every line
/// is a request or nothing.
#[doc(hidden)]
pub fn fuzz_trace(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    let (mut accesses, mut is_whole) = (Vec::new(), true);
    for line in text.lines() {
        let Ok(found) = TraceRequest::parse(line) else {
            is_whole = false;
            continue;
        };
        let Some(request) = found else { continue };
        assert_eq!(TraceRequest::parse(&request.to_string()), Ok(Some(request)), "a request says itself again");
        let blocks = request.blocks(512).size_hint();
        assert!((1..=(BYTES_MAX / 512 + 1) as usize).contains(&blocks.0), "{blocks:?} blocks");
        accesses.extend(request.blocks(8192).take(SOME));
    }
    accesses.truncate(SOME);
    let best = belady(4, &accesses);
    for kind in PolicyKind::ALL {
        let replayed = replay(kind, 4, accesses.iter().copied());
        assert!(replayed.accesses == best.accesses && replayed.hits <= best.hits, "{kind} beats what knows all");
    }
    is_whole
}

/// Accesses that are replayed of a trace for fuzzing.
const SOME: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_are_requests_or_refused() {
        let parse = TraceRequest::parse;
        let request = |writes, offset, bytes| Ok(Some(TraceRequest { writes, offset, bytes }));
        assert_eq!(parse("r,0,512"), request(false, 0, 512));
        assert_eq!(parse(" w , 8192 , 8192 "), request(true, 8192, 8192));
        assert_eq!((parse(""), parse("# remark")), (Ok(None), Ok(None)));
        for bad in [
            "x,0,1",
            "r,0",
            "r,0,1,2",
            "r,-1,1",
            "r,0,0",
            "r,+1,1",
            "r,0,1073741825",
            "r,9223372036854775807,1",
            "r,,1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let request = parse("r,8191,2").unwrap().unwrap();
        assert!(request.blocks(8192).eq([0, 1]));
        assert_eq!(parse(&request.to_string()), Ok(Some(request)));
    }

    proptest! {
        #[test]
        fn any_line_is_answered(line in "\\PC{0,40}") {
            let _ = TraceRequest::parse(&line);
        }

        /// No policy beats the one that knows what comes.
        #[test]
        fn nothing_beats_belady(blocks in 1usize..12, accesses in proptest::collection::vec(0u64..30, 0..400)) {
            let best = belady(blocks, &accesses);
            for kind in PolicyKind::ALL {
                let replayed = replay(kind, blocks, accesses.iter().copied());
                prop_assert!(replayed.hits <= best.hits, "{}: {} of {}", kind, replayed.hits, best.hits);
            }
        }
    }

    #[test]
    fn belady_keeps_what_comes_soonest() {
        // Two places: of 1 2 3 1 2 3 it keeps 1, then 2 or 3.
        assert_eq!(belady(2, &[1, 2, 3, 1, 2, 3]).hits, 2);
        assert_eq!(belady(3, &[1, 2, 3, 1, 2, 3]).hits, 3);
        assert_eq!(belady(1, &[1, 1, 2, 2, 1]).hits, 2);
    }
}

//! How many messages the next request carries, and of which entries it consists.

use overside_shape::{Messages, Run};

use overside_verbs::declared::bundle::{Framing, first};

/// What a request may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Up to so many bytes messages share a request; one that is longer is a request of its own.
    pub(crate) bytes_max: u64,
    /// Bytes of the longest message.
    pub(crate) longest: u64,
    pub(crate) sge_max: usize,
    /// Fragments from this length on are gathered.
    pub(crate) gather_from: u64,
}

/// Collects the fragments of the next request into `runs`, folded across messages (d-rdma §4.1
/// DR-M28); returns how many whole messages they are, or none when the first alone has too many
/// entries.
///
/// Greedy: as many messages as fit. A shorter stretch of messages fits wherever a longer one does,
/// so no other division needs fewer requests.
pub(crate) fn by_entries(messages: &Messages<'_>, limits: &Limits, runs: &mut Vec<Run>) -> Option<u64> {
    runs.clear();
    let slice = first(messages, limits.bytes_max);
    let most = slice.count();
    // Bytes in front of the messages stand in a packed entry of their own, which the first packed run extends.
    let head = Framing::of(&slice).head_bytes() > 0;
    let mut entries = Entries { count: usize::from(head), packing: head, gather_from: limits.gather_from };
    let mut current = Run::new(0, 0);
    // Where the request would end if the message in hand did not fit: messages, entries of `runs`, length of the last.
    let mut fits: Option<(u64, usize, Run)> = None;
    let start = slice.range().start;
    let mut message = start;
    for piece in slice.pieces() {
        if piece.message != message {
            if entries.with(current) > limits.sge_max {
                return cut_back(runs, fits);
            }
            fits = Some((piece.message - start, runs.len(), current));
            message = piece.message;
        }
        if current.len > 0 && current.at + current.len == piece.run.at {
            current.len += piece.run.len;
        } else {
            if current.len > 0 {
                entries.add(current);
                runs.push(current);
            }
            current = piece.run;
        }
    }
    if entries.with(current) > limits.sge_max {
        return cut_back(runs, fits);
    }
    runs.extend((current.len > 0).then_some(current));
    Some(most)
}

/// Forgets what came after the last message that fitted.
fn cut_back(runs: &mut Vec<Run>, fits: Option<(u64, usize, Run)>) -> Option<u64> {
    let (messages, len, last) = fits?;
    runs.truncate(len);
    runs.extend((last.len > 0).then_some(last));
    Some(messages)
}

/// Gather entries so far: one a gathered fragment, one a stretch of packed ones.
#[derive(Clone, Copy, Debug)]
struct Entries {
    count: usize,
    packing: bool,
    gather_from: u64,
}

impl Entries {
    fn add(&mut self, run: Run) {
        let packed = run.len < self.gather_from;
        self.count += usize::from(!(packed && self.packing));
        self.packing = packed;
    }

    fn with(mut self, run: Run) -> usize {
        if run.len > 0 {
            self.add(run);
        }
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overside_shape::{Mask, Shape};
    use overside_verbs::declared::bundle::LENGTH_BYTES;
    use proptest::prelude::*;

    fn entries(runs: &[Run], gather_from: u64, head: bool) -> usize {
        let mut entries = Entries { count: usize::from(head), packing: head, gather_from };
        runs.iter().for_each(|run| entries.add(*run));
        entries.count
    }

    /// Messages of several runs each, with gaps or without between them.
    fn regions() -> impl Strategy<Value = Shape> {
        let message = proptest::collection::vec((0u64..3, 1u64..20), 1..4);
        proptest::collection::vec(message, 1..10).prop_map(|messages| {
            let mut at = 0;
            let mut place = |(gap, len): (u64, u64)| {
                at += gap;
                let run = Run::new(at, len);
                at += len;
                run
            };
            let one = |runs: Vec<(u64, u64)>| {
                Shape::list(&runs.into_iter().map(&mut place).collect::<Vec<_>>()).unwrap().one_message()
            };
            let regions = messages.into_iter().map(one).collect();
            Shape::set(regions, Mask::Periods).unwrap()
        })
    }

    proptest! {
        #[test]
        fn no_division_needs_fewer_requests(
            shape in regions(), sge_max in 1usize..7, gather_from in prop_oneof![Just(0u64), 1u64..25], bytes_max in 60u64..200,
        ) {
            let messages = shape.messages();
            let limits = Limits { bytes_max, longest: 0, sge_max, gather_from };
            let fits = |from: u64, to: u64| {
                let slice = messages.slice(from..to);
                let head = Framing::of(&slice).head_bytes();
                let runs: Vec<Run> = slice.fragments().collect();
                let lengths = if messages.uniform_bytes().is_some() { 0 } else { LENGTH_BYTES as u64 * (to - from) };
                (slice.bytes() + lengths <= bytes_max || to == from + 1) && entries(&runs, gather_from, head > 0) <= sge_max
            };
            // The fewest requests for the first j messages; a message that fits nowhere alone is a request apart.
            let count = messages.count();
            let mut fewest = vec![0u64; count as usize + 1];
            for to in 1..=count {
                let from = (0..to).filter(|from| fits(*from, to) || from + 1 == to);
                fewest[to as usize] = from.map(|from| fewest[from as usize] + 1).min().unwrap();
            }
            let (mut next, mut requests, mut runs) = (0, 0, Vec::new());
            while next < count {
                let rest = messages.slice(next..count);
                match by_entries(&rest, &limits, &mut runs) {
                    Some(taken) => {
                        let slice = rest.slice(0..taken);
                        let bytes: u64 = runs.iter().map(|run| run.len).sum();
                        prop_assert_eq!(bytes, slice.bytes(), "all of its bytes and no others");
                        let head = Framing::of(&slice).head_bytes() > 0;
                        prop_assert!(entries(&runs, gather_from, head) <= sge_max);
                        next += taken;
                    }
                    None => next += 1,
                }
                requests += 1;
            }
            prop_assert!(requests <= fewest[count as usize], "{} requests where {} do", requests, fewest[count as usize]);
        }
    }
}

//! Choosing among ways of sending.

use crate::profile::{Profile, Work};

/// What is to be small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Goal {
    /// Time per message with both ends busy at once: the slower end decides.
    #[default]
    Throughput,
    /// Processor time of both ends together.
    TotalCpu,
    /// Processor time of the sender, whose cores have better things to do (to-copy §6).
    SenderCpu,
    /// Time of one message alone: the ends follow one another.
    Latency,
}

/// One way of sending: its name and the work it causes at both ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternative<'a> {
    /// For people: `copy`, `gather`, …
    pub name: &'a str,
    /// What the sender does.
    pub sender: Work,
    /// What the receiver does.
    pub receiver: Work,
    /// Bytes on the wire.
    pub wire_bytes: f64,
}

/// What an alternative costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Price {
    /// The figure that was compared, by the goal, in nanoseconds.
    pub ns: f64,
    /// The sender's processor, in nanoseconds.
    pub sender_ns: f64,
    /// The receiver's processor, in nanoseconds.
    pub receiver_ns: f64,
}

/// What was chosen, and what was not.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<const N: usize> {
    /// Index of the cheapest alternative.
    pub chosen: usize,
    /// The price of each alternative, in their order; `None` for one that cannot be done.
    pub prices: [Option<Price>; N],
}

impl<const N: usize> Plan<N> {
    /// The price of what was chosen.
    pub fn price(&self) -> Price {
        self.prices[self.chosen].unwrap_or_default()
    }

    /// The cheapest of what was turned down: its index and price.
    pub fn runner_up(&self) -> Option<(usize, Price)> {
        let others = self.prices.iter().enumerate().filter(|(i, _)| *i != self.chosen);
        others.filter_map(|(i, p)| p.map(|p| (i, p))).min_by(|a, b| a.1.ns.total_cmp(&b.1.ns))
    }
}

/// Prices `alternatives` (`None` where one cannot be done) and chooses the cheapest; the first
/// of equals. Allocates nothing: it may run for every page of a scan.
///
/// Returns `None` when none can be done.
pub fn plan<const N: usize>(
    profile: &Profile,
    goal: Goal,
    alternatives: &[Option<Alternative<'_>>; N],
) -> Option<Plan<N>> {
    let mut prices = [None; N];
    let mut chosen: Option<(usize, f64)> = None;
    for (i, alternative) in alternatives.iter().enumerate() {
        let Some(alternative) = alternative else { continue };
        let price = price(profile, goal, alternative);
        prices[i] = Some(price);
        if chosen.is_none_or(|(_, best)| price.ns < best) {
            chosen = Some((i, price.ns));
        }
    }
    chosen.map(|(chosen, _)| Plan { chosen, prices })
}

fn price(profile: &Profile, goal: Goal, alternative: &Alternative<'_>) -> Price {
    let sender_ns = profile.sender_ns(&alternative.sender);
    let receiver_ns = profile.receiver_ns(&alternative.receiver);
    let wire_ns = alternative.wire_bytes * profile.wire_byte_ns;
    weigh(goal, sender_ns, receiver_ns, wire_ns)
}

/// What ends and wire take, as one figure by the goal.
pub(crate) fn weigh(goal: Goal, sender_ns: f64, receiver_ns: f64, wire_ns: f64) -> Price {
    let ns = match goal {
        // The sum breaks ties between alternatives whose slower end is the same.
        Goal::Throughput => sender_ns.max(receiver_ns).max(wire_ns) + (sender_ns + receiver_ns) * TIE_SHARE,
        Goal::TotalCpu => sender_ns + receiver_ns,
        Goal::SenderCpu => sender_ns,
        Goal::Latency => sender_ns + wire_ns + receiver_ns,
    };
    Price { ns, sender_ns, receiver_ns }
}

/// As [`weigh`], for a stream between two ends with little room between them, which often share a cache or a core as well: where both
/// are busy nearly all the time each waits for the other now and then, and the stream takes longer than the slower one by itself.
///
/// `both_busy` is how many times as long work takes while the other end works as well. While the faster end does so, both are slower by
/// it, and the slower end does the rest alone. Where that is not known, the root of the squares: choosing by it came nearer to the best
/// than choosing by the slower end on processors that are two threads of one core, and as near as by the slower and half of the
/// faster end (docs/trials.md, regret).
#[inline]
pub(crate) fn weigh_stream(goal: Goal, sender_ns: f64, receiver_ns: f64, wire_ns: f64, both_busy: f64) -> Price {
    if goal == Goal::Throughput {
        let ns = if both_busy > 0.0 {
            sender_ns.max(receiver_ns) + sender_ns.min(receiver_ns) * (both_busy - 1.0).clamp(TIE_SHARE, SHARED_CORE)
        } else {
            (sender_ns * sender_ns + receiver_ns * receiver_ns).sqrt()
        };
        return Price { ns: ns.max(wire_ns), sender_ns, receiver_ns };
    }
    weigh(goal, sender_ns, receiver_ns, wire_ns)
}

/// Share of the summed processor time that counts beside the slower end's: a saving at the faster end
/// is worth something, for its core has other work, and less than the same saving at the slower one.
const TIE_SHARE: f64 = 1.0 / 32.0;
/// What the faster end's time adds at most: prices are of ends that wait by polling, which slows two threads of one core as well.
const SHARED_CORE: f64 = 0.5;

#[cfg(test)]
mod tests {
    use super::*;

    /// A ConnectX-3, fitted to the figures of to-copy.
    fn connectx3() -> Profile {
        Profile {
            send_request_ns: 100.0,
            send_fragment_ns: 34.0,
            send_byte_ns: 1.0 / 5.8,
            pack_byte_ns: 1.0 / 7.04,
            pack_piece_ns: 0.0,
            pack_request_ns: 0.0,
            row_ns: 0.0,
            receive_request_ns: 0.0,
            receive_fragment_ns: 0.0,
            receive_byte_ns: 0.0,
            wire_byte_ns: 1.0 / 5.8,
            bends: crate::Bends::default(),
            source: "fitted to to-copy".into(),
            elsewhere: None,
        }
    }

    fn ways(records: f64, size: f64) -> [Option<Alternative<'static>>; 2] {
        let bytes = records * size;
        let one = Work { requests: 1.0, fragments: 1.0, ..Work::default() };
        let copy = Work { packed_bytes: bytes, ..one };
        let gather = Work { fragments: records, bytes, ..one };
        [
            Some(Alternative { name: "copy", sender: copy, receiver: one, wire_bytes: bytes }),
            Some(Alternative { name: "gather", sender: gather, receiver: one, wire_bytes: bytes }),
        ]
    }

    #[test]
    fn small_records_are_copied_and_large_ones_gathered_when_the_sender_counts() {
        // to-copy §5.1, §6 TC-C06: descriptors grow with the record count.
        let small = plan(&connectx3(), Goal::Throughput, &ways(32.0, 128.0)).unwrap();
        assert_eq!(small.chosen, 0);
        let mut profile = connectx3();
        profile.send_byte_ns = 0.0; // the NIC moves the bytes
        let large = plan(&profile, Goal::SenderCpu, &ways(16.0, 1024.0)).unwrap();
        assert_eq!(large.chosen, 1);
        assert_eq!(large.runner_up().map(|r| r.0), Some(0));
        assert!(large.price().ns < large.runner_up().unwrap().1.ns);
    }

    /// Where the sender's processor moves the bytes, what it has just packed costs it less than what no cache holds.
    #[test]
    fn what_was_just_packed_is_sent_from_the_cache() {
        let mut profile = Profile { pack_byte_ns: 0.1, ..connectx3() };
        let all = Work { bytes: 10_000.0, packed_bytes: 10_000.0, ..Work::default() };
        let sender_ns = |profile: &Profile, work: Work| profile.sender_ns(&work);
        assert!((sender_ns(&profile, all) - (1000.0 + 10_000.0 / 5.8)).abs() < 0.01, "nothing is known of the cache");
        profile.bends.send_packed = crate::Curve::new([(1 << 12, 300.0), (1 << 14, 1638.4)]).unwrap();
        assert!((sender_ns(&profile, all) - 2000.0).abs() < 0.01);
        let beside = Work { bytes: 15_800.0, ..all };
        assert!((sender_ns(&profile, beside) - 3000.0).abs() < 0.01, "what was not packed lies where it lay");
    }

    #[test]
    fn a_stream_takes_as_long_as_both_ends_slow_each_other() {
        let ns = |both_busy| weigh_stream(Goal::Throughput, 80.0, 100.0, 0.0, both_busy).ns;
        for (both_busy, expected) in [(0.0, 128.06), (1.0, 102.5), (1.3, 124.0), (2.0, 140.0)] {
            assert!((ns(both_busy) - expected).abs() < 0.01, "{both_busy}: {}", ns(both_busy));
        }
        assert_eq!(weigh_stream(Goal::Throughput, 80.0, 100.0, 500.0, 1.3).ns, 500.0);
    }

    #[test]
    fn what_cannot_be_done_is_not_chosen() {
        let [copy, _] = ways(1.0, 1.0);
        assert_eq!(plan(&connectx3(), Goal::Latency, &[None, copy]).map(|p| p.chosen), Some(1));
        assert!(plan::<1>(&connectx3(), Goal::Latency, &[None]).is_none());
    }
}

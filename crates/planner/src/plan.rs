//! Choosing among ways of sending.

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

/// What a way of sending costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Price {
    /// The figure that was compared, by the goal, in nanoseconds.
    pub ns: f64,
    /// The sender's processor, in nanoseconds.
    pub sender_ns: f64,
    /// The receiver's processor, in nanoseconds.
    pub receiver_ns: f64,
}

/// What was chosen of several ways, and what was not.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<const N: usize> {
    /// Index of the cheapest alternative.
    pub chosen: usize,
    /// The price of each alternative, in their order; `None` for one that cannot be done.
    pub prices: [Option<Price>; N],
}

impl<const N: usize> Plan<N> {
    /// Chooses the cheapest of the ways that can be done; the first of equals. None where none can.
    pub fn cheapest(prices: [Option<Price>; N]) -> Option<Self> {
        let possible = prices.iter().enumerate().filter_map(|(i, price)| Some((i, price.as_ref()?.ns)));
        let (chosen, _) = possible.min_by(|a, b| a.1.total_cmp(&b.1))?;
        Some(Plan { chosen, prices })
    }

    /// The price of what was chosen.
    pub fn price(&self) -> Price {
        self.prices[self.chosen].unwrap_or_default()
    }
}

/// What ends and wire take as one figure, for a stream between two ends with little room between
/// them, which often share a cache or a core as well. Where both are busy nearly all the time, each
/// waits for the other now and then. The stream then takes longer than the slower end by itself.
///
/// `both_busy` is how many times as long work takes while the other end works as well. While the
/// faster end does so, both are slower by it, and the slower end does the rest alone. Where that is
/// not known, the root of the squares. On processors that are two threads of one core, choosing by
/// it came nearer to the best than choosing by the slower end. It came as near as by the slower and
/// half of the faster end (docs/design/007-prices.md).
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
    let ns = match goal {
        Goal::SenderCpu => sender_ns,
        Goal::Latency => sender_ns + wire_ns + receiver_ns,
        Goal::Throughput | Goal::TotalCpu => sender_ns + receiver_ns,
    };
    Price { ns, sender_ns, receiver_ns }
}

/// Share of the faster end's time that counts at least: a saving there is worth something, for its
/// core has other work.
const TIE_SHARE: f64 = 1.0 / 32.0;
/// What the faster end's time adds at most: prices are of ends that wait by polling, which slows
/// two threads of one core as well.
const SHARED_CORE: f64 = 0.5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_takes_as_long_as_both_ends_slow_each_other() {
        let ns = |both_busy| weigh_stream(Goal::Throughput, 80.0, 100.0, 0.0, both_busy).ns;
        for (both_busy, expected) in [(0.0, 128.06), (1.0, 102.5), (1.3, 124.0), (2.0, 140.0)] {
            assert!((ns(both_busy) - expected).abs() < 0.01, "{both_busy}: {}", ns(both_busy));
        }
        assert_eq!(weigh_stream(Goal::Throughput, 80.0, 100.0, 500.0, 1.3).ns, 500.0);
    }

    #[test]
    fn the_cheapest_that_can_be_done_is_chosen() {
        let price = |ns| Some(Price { ns, ..Price::default() });
        let plan = Plan::cheapest([None, price(3.0), price(2.0), price(2.0)]).unwrap();
        assert_eq!((plan.chosen, plan.price().ns), (2, 2.0), "the first of equals");
        assert!(Plan::cheapest([None, None]).is_none());
    }
}

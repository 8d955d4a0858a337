//! Who may send how many messages: a message travels only when a receive is kept for it.
//!
//! So whoever reads a socket never meets a message that it has no room for, answers and
//! acknowledgements never wait behind one, and no peer makes this process hold bytes that nobody
//! asked for. Receives of a queue pair's own are granted as they are posted. Receives of the shared
//! queue are kept for the connections that use them. Each has a few while there are plenty, and
//! more on request. Those that are not used are called back when others wait.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use overside_verbs::port::RawReceive;

/// The shared receive queue of a port.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) receives: VecDeque<RawReceive>,
    pub(crate) max: usize,
    /// How many are kept for somebody.
    kept: usize,
    /// Queue pairs whose peers wait for one.
    pub(crate) waiting: VecDeque<u32>,
    /// Queue pairs that share.
    pub(crate) sharers: usize,
}

impl Pool {
    pub(crate) fn new(max: usize) -> Self {
        Self { receives: VecDeque::new(), max, kept: 0, waiting: VecDeque::new(), sharers: 0 }
    }

    fn free(&self) -> usize {
        self.receives.len() - self.kept
    }

    /// Whether somebody waits and all that is there is kept for others.
    pub(crate) fn is_hoarded(&self) -> bool {
        !self.waiting.is_empty() && self.kept > 0 && self.free() == 0
    }
}

/// A receive that a message meets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) receive: RawReceive,
    /// It came from the shared queue.
    pub(crate) shared: bool,
}

/// Both directions of a connection's flow control.
#[derive(Debug, Default)]
pub(crate) struct Credits {
    /// Messages that the peer may still send.
    granted: usize,
    /// Shared receives kept for it.
    kept: usize,
    /// Messages that it says wait at its end.
    wanted: usize,
    /// When it was asked to give back what it does not use.
    recalled: Option<Instant>,
    /// Messages that it was allowed since, of which it may not have known when it gave back.
    fresh: usize,
    /// Messages that we may still send.
    pub(crate) ours: usize,
    /// We said that we wait.
    pub(crate) asked: bool,
}

impl Credits {
    /// Receives that the peer was not told of, with `own` of the queue pair's own.
    pub(crate) fn due(&self, own: usize) -> usize {
        (own + self.kept).saturating_sub(self.granted)
    }

    /// As [`due`](Self::due), and from here on the peer is told of them.
    pub(crate) fn grant(&mut self, own: usize) -> u32 {
        let due = self.due(own).min(u32::MAX as usize);
        self.granted += due;
        self.fresh += due;
        due as u32
    }

    /// Whether so little is left to the peer that it should be told of what is due.
    pub(crate) fn is_low(&self, own: usize) -> bool {
        self.due(own) > 0 && self.due(own) >= self.granted
    }

    /// The receive that the next message meets; none when the peer had no right to send one.
    pub(crate) fn take(&mut self, own: &mut VecDeque<RawReceive>, pool: &mut Pool) -> Option<Taken> {
        self.granted = self.granted.checked_sub(1)?;
        if let Some(receive) = own.pop_front() {
            return Some(Taken { receive, shared: false });
        }
        self.kept = self.kept.checked_sub(1)?;
        pool.kept -= 1;
        pool.receives.pop_front().map(|receive| Taken { receive, shared: true })
    }

    /// A receive that was taken and not used.
    pub(crate) fn put_back(&mut self, taken: Taken, own: &mut VecDeque<RawReceive>, pool: &mut Pool) {
        if taken.shared {
            pool.receives.push_front(taken.receive);
            pool.kept += 1;
            self.kept += 1;
        } else {
            own.push_front(taken.receive);
        }
    }

    /// The peer says that so many messages wait.
    pub(crate) fn want(&mut self, count: u32, index: u32, pool: &mut Pool) {
        self.wanted = (count as usize).min(pool.max);
        if self.wanted > 0 && !pool.waiting.contains(&index) {
            pool.waiting.push_back(index);
        }
    }

    /// Keeps shared receives for the peer: what it wants as far as there are some, else a few while
    /// there are plenty.
    pub(crate) fn share(&mut self, own: usize, pool: &mut Pool) {
        if own > 0 {
            // Its own receives come first, and count as what it wanted.
            self.wanted = 0;
            return;
        }
        let few = match pool.waiting.is_empty() {
            true => (pool.receives.len() / (2 * pool.sharers.max(1))).min(FEW),
            false => 0,
        };
        let goal = if self.kept * 2 <= few { few.saturating_sub(self.kept) } else { 0 };
        // Whoever waits gets no more than its part while others wait as well.
        let part = pool.free().div_ceil(pool.waiting.len().max(1));
        let more = goal.max(self.wanted.min(part)).min(pool.free());
        self.kept += more;
        pool.kept += more;
        self.wanted = self.wanted.saturating_sub(more);
    }

    /// Whether the peer still waits.
    pub(crate) fn waits(&self) -> bool {
        self.wanted > 0
    }

    /// Whether the peer may be asked to give back what it does not use: it has something, and was
    /// not asked yet.
    pub(crate) fn may_recall(&self) -> bool {
        self.kept > 0 && self.granted > 0 && self.recalled.is_none()
    }

    /// It was asked, behind all that it was allowed so far.
    pub(crate) fn recalled(&mut self, now: Instant) {
        (self.recalled, self.fresh) = (Some(now), 0);
    }

    /// Whether it was asked long ago and has not answered.
    pub(crate) fn hoards(&self, now: Instant) -> bool {
        self.recalled.is_some_and(|since| now.duration_since(since) > RECALL_LIMIT)
    }

    /// The peer gave back `count`, when messages under way had used `used` that nothing was taken
    /// for yet.
    ///
    /// # Errors
    /// When it cannot have so many, or keeps some: what it did not use it gives back, and what it
    /// used has come before this.
    pub(crate) fn given_back(&mut self, count: u32, used: usize, pool: &mut Pool) -> Result<(), &'static str> {
        let count = count as usize;
        if self.recalled.take().is_none() || count > self.granted {
            return Err("it gives back what it never had");
        }
        if self.granted - count > self.fresh + used {
            return Err("it keeps receives that others wait for");
        }
        self.granted -= count;
        // If messages wait at its end after all, it says so anew.
        self.wanted = 0;
        let freed = count.min(self.kept);
        self.kept -= freed;
        pool.kept -= freed;
        Ok(())
    }

    /// The queue pair ends: what was kept for it is everybody's again.
    pub(crate) fn end(&mut self, pool: &mut Pool) {
        pool.kept -= std::mem::take(&mut self.kept);
        self.wanted = 0;
    }
}

/// Shared receives kept for a queue pair that did not ask.
const FEW: usize = 16;
/// A peer that was asked to give back receives and says nothing for so long is closed. Longer than
/// it takes to find that its host is gone, of which it would be accused otherwise.
const RECALL_LIMIT: Duration = Duration::from_secs(12);

#[cfg(test)]
mod tests {
    use super::*;
    use overside_memory::SegmentId;
    use overside_verbs::port::RawBuffer;

    fn receive(slot: u32) -> RawReceive {
        let buffer = RawBuffer { address: std::ptr::null_mut(), len: 0, segment: SegmentId::FOREIGN };
        RawReceive { slot, buffer, takes_loan: false }
    }

    fn pool(count: u32, sharers: usize) -> Pool {
        let mut pool = Pool::new(64);
        pool.receives.extend((0..count).map(receive));
        pool.sharers = sharers;
        pool
    }

    #[test]
    fn the_last_shared_receive_goes_to_whoever_asks_whoever_had_it() {
        let (mut pool, mut idle, mut busy) = (pool(4, 2), Credits::default(), Credits::default());
        idle.share(0, &mut pool);
        assert_eq!(idle.grant(0), 1, "a quarter of four for one of two");
        busy.want(9, 1, &mut pool);
        busy.share(0, &mut pool);
        assert_eq!(busy.grant(0), 3);
        assert!(busy.waits() && pool.is_hoarded());
        assert!(idle.may_recall());
        idle.recalled(Instant::now());
        assert!(!idle.may_recall(), "once");
        assert_eq!(idle.given_back(1, 0, &mut pool), Ok(()));
        busy.share(0, &mut pool);
        assert_eq!(busy.grant(0), 1);
        for _ in 0..4 {
            assert!(busy.take(&mut VecDeque::new(), &mut pool).is_some());
        }
        assert!(busy.take(&mut VecDeque::new(), &mut pool).is_none(), "nobody sends without a credit");
        assert!(idle.given_back(1, 0, &mut pool).is_err(), "nothing was asked for, nothing is left");
    }

    /// A peer that says "I use them all" and does not would keep everybody's receives for ever.
    #[test]
    fn what_was_recalled_comes_back_whole_but_for_what_is_on_its_way() {
        for (given, used, news, ends) in [
            (4, 0, 0, Ok(())),
            (3, 1, 0, Ok(())),
            (3, 0, 0, Err("it keeps receives that others wait for")),
            (0, 0, 0, Err("it keeps receives that others wait for")),
            (5, 0, 0, Err("it gives back what it never had")),
            (4, 0, 2, Ok(())),
            (6, 0, 2, Ok(())),
            (3, 0, 2, Err("it keeps receives that others wait for")),
        ] {
            let (mut pool, mut peer, mut own) = (pool(8, 1), Credits::default(), 0);
            peer.share(0, &mut pool);
            assert_eq!(peer.grant(own), 4);
            peer.recalled(Instant::now());
            own += news;
            assert_eq!(peer.grant(own), news as u32);
            assert_eq!(peer.given_back(given, used, &mut pool), ends, "{given} of 4, {used} used, {news} new");
        }
    }

    #[test]
    fn receives_of_its_own_come_first_and_an_end_frees_what_was_kept() {
        let (mut pool, mut credits) = (pool(8, 1), Credits::default());
        credits.share(0, &mut pool);
        let mut own = VecDeque::from([receive(100)]);
        assert_eq!(credits.grant(own.len()), 5);
        assert_eq!(credits.take(&mut own, &mut pool).unwrap().receive.slot, 100);
        assert_eq!(credits.take(&mut own, &mut pool).unwrap().receive.slot, 0);
        credits.end(&mut pool);
        assert_eq!(pool.free(), 7);
    }
}

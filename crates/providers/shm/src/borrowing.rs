//! What the peer has lent: where its loans are returned, and whether it still vouches for them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use overside_memory::ForeignRange;
use overside_verbs::{Lender, Loan, SpareLoan};

use crate::channel::Channel;
use crate::control::{OwnControl, PeerControl};
use crate::doorbell::{Doorbell, News, OwnRing, PeerWords};
use crate::provider::Shared;
use crate::ring::Word;

/// The loans of a connection, shared by all of them: they outlive the queue pair, and may end on
/// any thread.
#[derive(Debug)]
pub(crate) struct Borrowed {
    own: OwnControl,
    peer: PeerControl,
    /// A loan that is kept keeps no socket open.
    channel: Weak<Channel>,
    provider: Weak<Shared>,
    returns: Mutex<Returns>,
}

#[derive(Debug, Default)]
struct Returns {
    /// Loans that have not ended.
    out: u32,
    /// Returns written, ever.
    written: u64,
    bell: Doorbell,
    /// How many had been written when this side last waited for more.
    waited: u64,
    /// Memory for loans: no more than were out at once.
    spares: Vec<SpareLoan>,
}

impl Borrowed {
    pub(crate) fn new(own: &OwnControl, peer: &PeerControl, channel: &Arc<Channel>, provider: Weak<Shared>) -> Self {
        let channel = Arc::downgrade(channel);
        Self { own: own.clone(), peer: peer.clone(), channel, provider, returns: Mutex::default() }
    }

    /// Whether there is a place to return another loan. A peer of ours lends no more than that.
    pub(crate) fn room(&self) -> bool {
        self.lock().out < self.own.geometry().returns()
    }

    /// What descriptor number `index` offers is a loan from now on. There must be room.
    pub(crate) fn accept(self: &Arc<Self>, index: u64, parts: impl IntoIterator<Item = ForeignRange>) -> Loan {
        let mut returns = self.lock();
        returns.out += 1;
        let spare = returns.spares.pop().unwrap_or_default();
        drop(returns);
        Loan::again(spare, parts, self.clone(), index)
    }

    /// What descriptor number `index` offers was copied; how many were returned by now. Its sender
    /// hears of it with the next thing it is told.
    pub(crate) fn decline(&self, index: u64) -> u64 {
        let mut returns = self.lock();
        returns.write(&self.own, index);
        returns.written
    }

    /// This side has armed: its lender is woken for the returns so far, though they be fewer than
    /// it sleeps for. Of later ones, [`take_back`](Lender::take_back) sees that it has.
    pub(crate) fn wait(&self) {
        let mut returns = self.lock();
        let written = returns.written;
        // A lender that waits for no return saw all that came before it armed.
        if std::mem::replace(&mut returns.waited, written) != written && self.peer.load(Word::Returns) != 0 {
            self.ring(returns, News::All);
        }
    }

    /// Wakes the lender if it is to be woken for that.
    fn ring(&self, mut returns: MutexGuard<'_, Returns>, news: News) {
        let ring = returns.bell.wanted(&self.own, &self.peer, news);
        drop(returns);
        if let Some(ring) = ring {
            self.own.end_sleep(ring, || self.channel.upgrade().iter().for_each(|channel| channel.ring()));
        }
    }

    /// A forked child holds the parent's loans, too: what it drops is not returned by that. And
    /// whose provider is gone has no connection left.
    fn is_ours(&self) -> bool {
        self.provider.upgrade().is_some_and(|provider| !provider.instance.inherited())
    }

    fn lock(&self) -> MutexGuard<'_, Returns> {
        self.returns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Returns {
    fn write(&mut self, own: &OwnControl, index: u64) {
        own.put_return(self.written, index as u32);
        self.written += 1;
    }
}

impl Lender for Borrowed {
    #[inline]
    fn vouches(&self) -> bool {
        self.peer.load(Word::Closed) == 0
    }

    fn take_back(&self, index: u64) {
        if !self.is_ours() {
            return;
        }
        let mut returns = self.lock();
        returns.out -= 1;
        returns.write(&self.own, index);
        let news = if self.own.is_armed() { News::All } else { News::Returned(returns.written) };
        if news == News::All {
            returns.waited = returns.written;
        }
        self.ring(returns, news);
    }

    fn keep(&self, spare: SpareLoan) {
        if self.is_ours() {
            self.lock().spares.push(spare);
        }
    }
}

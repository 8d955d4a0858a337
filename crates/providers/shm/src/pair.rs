//! A queue pair: both rings, the socket, and what either side may touch.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use overside_verbs::port::{QpIndex, RawCompletion, RawReceive};
use overside_verbs::{Loan, Opcode, VerbsError};

use crate::borrowing::Borrowed;
use crate::channel::{Carried, Channel, Incoming};
use crate::consumer::Consumer;
use crate::control::{OwnControl, PeerControl};
use crate::distance::Distance;
use crate::doorbell::{Doorbell, News, OwnWords, PeerWords, Ring, Seen, Sleep};
use crate::fate::Fate;
use crate::grants::Grants;
use crate::handshake::Wire;
use crate::mappings::{self, Counted, Limits};
use crate::messages::Message;
use crate::peer_memory::PeerMemory;
use crate::provider::Shared;
use crate::regions::Executing;
use crate::ring::{Geometry, Word};
use crate::send::SendQueue;

/// A queue pair of a port.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) index: QpIndex,
    pub(crate) own: OwnControl,
    /// The peer's control memory, once it attached.
    pub(crate) link: Option<Link>,
    pub(crate) channel: Arc<Channel>,
    /// Readable when the peer's process is gone.
    pub(crate) pidfd: OwnedFd,
    pub(crate) send: SendQueue,
    pub(crate) receives: VecDeque<RawReceive>,
    pub(crate) memory: PeerMemory,
    /// A region of the peer's of which not all messages are made.
    pub(crate) executing: Option<Box<Executing>>,
    pub(crate) grants: Grants,
    /// Of what the peer has lent, once it lends anything.
    pub(crate) borrowed: Option<Arc<Borrowed>>,
    /// How many loans were returned, ever, with the last that was copied.
    pub(crate) declined: u64,
    pub(crate) provider: Weak<Shared>,
    /// [`PortOptions::regions`](overside_verbs::PortOptions::regions).
    pub(crate) takes_regions: bool,
    /// What was received last was made of a region.
    pub(crate) executed: bool,
    bell: Doorbell,
    sleep: Sleep,
    pub(crate) distance: Distance,
    limits: Limits,
    /// [`PortOptions::wake_at_half`](overside_verbs::PortOptions::wake_at_half).
    wake_at_half: bool,
    /// While messages keep coming, the peer is told after so many.
    tell_every: u64,
    /// Messages, and cells of them, after which it is told in any case.
    tell_at_last: [u64; 2],
    /// Descriptors of the peer's that it knows we have consumed.
    consumed_published: u64,
    /// Their cells.
    cells_published: u64,
    /// Among those it does not know of, there is one that somebody waits for.
    pub(crate) owed: bool,
    /// The peer was told without a fence: whether it sleeps is to be looked at once more.
    glanced: bool,
    /// Polled by memory; else armed.
    pub(crate) hot: bool,
    /// Among those that the port looks at while they are armed.
    pub(crate) awaited: bool,
    /// Polls in a row that found nothing.
    pub(crate) idle: u32,
    /// A message waits for a receive.
    pub(crate) starved: bool,
    /// Epoll tells when the socket has room.
    pub(crate) wants_room: bool,
    /// What was heard while posting and is to be acted upon by the next poll.
    pub(crate) heard_fate: Option<Fate>,
    /// How it ended.
    pub(crate) fate: Option<Fate>,
}

/// The peer's control memory and where we are in its ring.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) control: PeerControl,
    pub(crate) consumer: Consumer,
}

/// How much of what lies in the socket was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    All,
    /// So much that others get their turn first.
    Some,
}

/// What a port is to its queue pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairOptions {
    pub(crate) wake_at_half: bool,
    pub(crate) takes_regions: bool,
}

/// What one look at a queue pair found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    /// Reports written.
    pub(crate) count: usize,
    /// Something moved.
    pub(crate) busy: bool,
    /// How the queue pair ended, if it did.
    pub(crate) fate: Option<Fate>,
}

impl Pair {
    /// Makes the queue pair and tells the peer where our control memory is.
    pub(crate) fn new(
        index: QpIndex,
        wire: Wire,
        geometry: Geometry,
        limits: Limits,
        options: PairOptions,
    ) -> Result<Self, VerbsError> {
        let own = OwnControl::new(geometry)?;
        let channel = Arc::new(Channel::new(wire.socket, wire.made));
        channel.send(&Message::Attach(geometry), Carried::Segment(own.segment().clone()));
        if let Some(fault) = channel.fault() {
            return Err(VerbsError::System { what: "passing memory to the peer", reason: fault.reason().to_owned() });
        }
        let PairOptions { wake_at_half, takes_regions } = options;
        let send = SendQueue::new(&own);
        Ok(Self {
            index,
            own,
            link: None,
            channel,
            pidfd: wire.pidfd,
            send,
            receives: VecDeque::new(),
            memory: PeerMemory::new(limits),
            executing: None,
            grants: Grants::new(limits),
            borrowed: None,
            declined: 0,
            provider: Weak::new(),
            takes_regions,
            executed: false,
            limits,
            bell: Doorbell::default(),
            sleep: Sleep::default(),
            distance: Distance::default(),
            wake_at_half,
            tell_every: 1,
            tell_at_last: [1; 2],
            consumed_published: 0,
            cells_published: 0,
            owed: false,
            glanced: false,
            hot: false,
            awaited: false,
            idle: 0,
            starved: false,
            wants_room: false,
            heard_fate: None,
            fate: None,
        })
    }

    /// One look at the peer's memory: completes sends, takes messages, publishes.
    #[inline]
    pub(crate) fn turn(
        &mut self,
        shared: &mut VecDeque<RawReceive>,
        loans: &mut VecDeque<(u32, Loan)>,
        out: &mut [RawCompletion],
    ) -> Turn {
        let Some(Link { control, .. }) = &self.link else { return Turn::default() };
        let closed = control.load(Word::Closed);
        if (closed != 0 || self.heard_fate.is_some())
            && let Some(fate) = self.heard_fate.or_else(|| Fate::from_word(closed))
        {
            return Turn { fate: Some(fate), ..Turn::default() };
        }
        let consumed = self.distance.load(self.send.producer.consumed(), || control.load(Word::Consumed));
        let mut turn = Turn::default();
        match self.send.observe(consumed, &self.channel) {
            Ok(moved) => turn.busy = moved,
            Err(fate) => return Turn { fate: Some(fate), ..turn },
        }
        // After the consumed index: what the peer copied it has returned before.
        if !self.send.lent.is_empty() {
            match self.send.lent.observe(control) {
                Ok(moved) => turn.busy |= moved,
                Err(fate) => return Turn { fate: Some(fate), ..turn },
            }
        }
        turn.count = self.send.complete(self.index, out);
        self.send.flush_forgetting(&self.channel);
        let (received, fate) = self.receive(shared, loans, &mut out[turn.count..]);
        turn.count += received;
        turn.fate = fate;
        turn.busy |= turn.count > 0;
        if turn.fate.is_some() {
            return turn;
        }
        // While there is more to take, the peer is told every now and then: each telling costs both a cache line. Of small messages
        // whose end is not reported it need not hear before it runs short of places, or before nothing else is to be done.
        if received == 0 {
            let with_consumed = self.owed || self.idle >= LAZY_TURNS;
            if with_consumed || self.glanced || self.send.producer.unpublished() {
                self.publish(with_consumed);
            }
        } else {
            self.tell_if_due();
        }
        turn
    }

    /// Whether nothing waits to be said or to be reported but what the peer's ring brings: then
    /// there is nothing else to look at.
    #[inline]
    pub(crate) fn at_rest(&self) -> bool {
        let Some(Link { control, .. }) = &self.link else { return false };
        !self.distance.is_wanted()
            && control.load(Word::Consumed) == self.send.producer.consumed()
            && self.send.settled()
            && self.send.lent.is_empty()
            && !self.owed
            && !self.glanced
            && self.heard_fate.is_none()
    }

    /// After messages were taken: tells the peer how far we are, if it waits for that or may run
    /// short.
    #[inline]
    pub(crate) fn tell_if_due(&mut self) {
        if (self.owed && (self.behind() >= self.tell_every || !self.more())) || self.overdue() {
            self.tell();
        }
    }

    /// Tells the peer what was consumed, at once and without a fence, since somebody waits for
    /// what was received. A peer that falls asleep at this very moment may be missed: its
    /// `armed` and our `consumed` are both in store buffers. It misses the end of a SEND that
    /// this side has taken, as with a receiver that does not poll (sentence **rnr**), and not
    /// for long. The next call of this port looks again with a fence
    /// ([`publish`](Self::publish)). A peer that sleeps by the word looks again itself before
    /// it sleeps longer than [`DOZE`](overside_verbs::spin::DOZE). A fence here would cost
    /// every message what one in millions needs.
    #[inline]
    fn tell(&mut self) {
        if self.publish_consumed()
            && let Some(Link { control, .. }) = &self.link
        {
            self.glanced = true;
            let ring = self.bell.glance(control, self.consumed());
            self.ring(ring);
        }
    }

    /// How far the peer was told that we have come.
    #[inline]
    fn consumed(&self) -> News {
        News::Consumed { consumed: self.consumed_published, returned: self.declined }
    }

    #[inline]
    fn ring(&self, ring: Option<Ring>) {
        if let Some(ring) = ring {
            self.own.end_sleep(ring, || self.channel.ring());
        }
    }

    /// Posts a SEND of bytes that ride along and wakes the peer if it sleeps, without what a post
    /// is otherwise made of; false when it has to go that way.
    #[inline]
    pub(crate) fn post_small(&mut self, slot: u32, bytes: &[u8], immediate: Option<u32>, signalled: bool) -> bool {
        let Some(Link { control, .. }) = &self.link else { return false };
        // What its bytes may name, a key for instance, is to be heard of first.
        if !self.hot || self.fate.is_some() || self.channel.blocked() {
            return false;
        }
        if !self.send.send_now(slot, bytes, immediate, signalled, &self.own) {
            return false;
        }
        self.glanced = false;
        let ring = self.bell.wanted(&self.own, control, News::All);
        self.ring(ring);
        true
    }

    /// Whether a message is there that a receive waits for.
    #[inline]
    fn more(&self) -> bool {
        !self.starved && self.link.as_ref().is_some_and(|l| l.consumer.look(&l.control))
    }

    /// Descriptors consumed that the peer was not told of.
    #[inline]
    fn behind(&self) -> u64 {
        self.link.as_ref().map_or(0, |link| link.consumer.next() - self.consumed_published)
    }

    /// Whether so much was consumed that the peer may run short of places in its ring.
    #[inline]
    fn overdue(&self) -> bool {
        let cells = self.link.as_ref().map_or(0, |link| link.consumer.cells() - self.cells_published);
        self.behind() >= self.tell_at_last[0] || cells >= self.tell_at_last[1]
    }

    /// Tells the peer what was posted, and if asked what was consumed, and wakes it if it sleeps.
    #[inline]
    pub(crate) fn publish(&mut self, with_consumed: bool) {
        let mut news = std::mem::take(&mut self.glanced).then_some(self.consumed());
        if self.send.producer.unpublished() {
            if self.channel.blocked() {
                self.channel.flush();
            }
            // What a descriptor relies on is sent before the descriptor shows.
            if !self.channel.blocked() {
                self.send.producer.publish(&self.own);
                news = Some(News::All);
            }
        }
        if with_consumed && self.publish_consumed() {
            news = news.filter(|news| *news == News::All).or(Some(self.consumed()));
        }
        match (news, &self.link) {
            (Some(news), Some(Link { control, .. })) => {
                let ring = self.bell.wanted(&self.own, control, news);
                self.ring(ring);
            }
            // Before the peer's memory is here nothing says whether it sleeps.
            (Some(News::All), None) => self.channel.ring(),
            _ => {}
        }
    }

    #[inline]
    fn publish_consumed(&mut self) -> bool {
        let Some(Link { consumer, .. }) = &self.link else { return false };
        let consumed = consumer.next();
        if consumed == self.consumed_published {
            return false;
        }
        self.own.store(Word::Consumed, consumed);
        self.consumed_published = consumed;
        self.cells_published = consumer.cells();
        self.owed = false;
        true
    }

    /// Sleeps by the peer's word alone, at most `limit`; whether it was woken, or none when there
    /// is something to do.
    pub(crate) fn doze(&mut self, limit: Duration) -> Option<bool> {
        let rung = self.link.as_ref()?.control.rung();
        if !self.arm(true) {
            return None;
        }
        let woken = self.link.as_ref()?.control.doze(rung, limit);
        self.disarm();
        Some(woken)
    }

    /// Asks to be woken, by the peer's word or by the socket. False: there is something to do.
    pub(crate) fn arm(&mut self, by_word: bool) -> bool {
        // A short sleep leaves the peer what it need not know.
        let tell = self.behind() > 0 && (self.owed || !by_word);
        if tell || self.glanced {
            self.publish(tell);
        }
        let settled = self.send.settled() && !self.send.lent.any_ended();
        if self.heard_fate.is_some() || (!settled && !self.channel.blocked()) {
            return false;
        }
        let Some(Link { control, consumer, .. }) = &self.link else { return true };
        let in_flight = self.send.producer.head() - self.send.producer.consumed();
        let half = if self.wake_at_half { in_flight.div_ceil(2) } else { 1 };
        let worth_waking_for = self.send.before_ended().map_or(half, |before| half.min(before)).max(1);
        // Who lends waits for the bytes to come back: that the peer has accepted them frees nothing.
        let lends_alone = self.wake_at_half && self.send.lends_alone();
        let waits = self.send.waits().filter(|_| !lends_alone);
        let wake_at = waits.map(|consumed| consumed.wrapping_add(worth_waking_for));
        let returns = self.send.lent.worth_waking_for(self.wake_at_half);
        let seen = Seen { next: (!self.starved).then(|| consumer.due()), wake_at, returns };
        let asleep = self.sleep.arm(&self.own, control, seen, by_word);
        if asleep && let Some(borrowed) = &self.borrowed {
            borrowed.wait();
        }
        asleep
    }

    /// Whether the peer is to consume or to return something.
    pub(crate) fn awaits(&self) -> bool {
        self.send.producer.head() != self.send.producer.consumed() || !self.send.lent.is_empty()
    }

    /// Whether it has done some of that, which was not taken in.
    pub(crate) fn any_news(&self) -> bool {
        self.link.as_ref().is_some_and(|Link { control, .. }| {
            control.load(Word::Consumed) != self.send.producer.consumed() || self.send.lent.any_back(control)
        })
    }

    /// Polled again: no doorbells.
    pub(crate) fn disarm(&mut self) {
        self.sleep.disarm(&self.own);
        self.idle = 0;
    }

    /// Takes what the socket has, as far as that is done soon.
    pub(crate) fn hear(&mut self) -> Result<Heard, Fate> {
        let mut bytes = 0u64;
        for _ in 0..HEAR_MAX {
            match self.channel.receive() {
                Incoming::Nothing => return Ok(Heard::All),
                Incoming::Malformed => return Err(Fate::Malformed("a message on the socket is garbage")),
                Incoming::NoDescriptor => return Err(NO_DESCRIPTOR),
                Incoming::End => {
                    let gone = if self.link.is_some() { Fate::PeerDied } else { Fate::HungUp };
                    return Err(self.channel.fault().unwrap_or_else(|| self.ended(gone)));
                }
                Incoming::Message(message, fd) => {
                    bytes = bytes.saturating_add(message.memory_bytes());
                    let passed = fd.map(mappings::memory).transpose()?;
                    self.take(message, passed)?;
                }
            }
            // Each of its pages is looked for.
            if bytes > HEAR_BYTES {
                break;
            }
        }
        Ok(Heard::Some)
    }

    fn take(&mut self, message: Message, fd: Option<OwnedFd>) -> Result<(), Fate> {
        match (message, fd) {
            (Message::Doorbell, _) => Ok(()),
            (Message::Bye, _) => Err(self.ended(Fate::Closed)),
            (Message::Attach(geometry), Some(fd)) if self.link.is_none() => self.attach(geometry, fd),
            (Message::Segment { id, len }, Some(fd)) => self.memory.add(id, len, fd),
            (Message::Grant { rkey, access, window, len }, Some(fd)) => self.grants.add(rkey, access, window, len, fd),
            (Message::Revoke { rkey }, _) => {
                self.grants.revoke(rkey);
                Ok(())
            }
            (Message::Forget(ids), _) => {
                ids.into_iter().for_each(|id| self.memory.forget(id));
                Ok(())
            }
            _ => Err(Fate::Malformed("a message on the socket is out of place")),
        }
    }

    fn attach(&mut self, geometry: Geometry, fd: OwnedFd) -> Result<(), Fate> {
        let wrong = "the peer's control memory is not a sealed, allocated memfd";
        let counted = Counted::claim(&self.limits, 0, geometry.bytes() as u64)?;
        let control =
            PeerControl::map_keeping(fd, geometry, counted).map_err(|error| match Fate::unmapped(error, wrong) {
                Fate::Malformed(_) => Fate::Malformed(wrong),
                fate => fate,
            })?;
        // What was published before the peer's words could be read may have found it asleep.
        let ring = self.bell.wanted(&self.own, &control, News::All);
        self.ring(ring);
        self.tell_every = (u64::from(geometry.depth()) / 8).min(TELL_EVERY_MAX);
        self.tell_at_last = [(u64::from(geometry.depth()) / 4).min(TELL_AT_LAST), u64::from(geometry.cells()) / 4];
        self.send.lent.attached(geometry.returns());
        self.link = Some(Link { control, consumer: Consumer::new(geometry) });
        Ok(())
    }

    /// How it ended: the peer's own word for it goes first.
    pub(crate) fn ended(&self, otherwise: Fate) -> Fate {
        self.check_open().err().unwrap_or(otherwise)
    }

    /// Ends it: tells the peer, and reports everything that is pending.
    pub(crate) fn end(&mut self, fate: Fate, out: &mut VecDeque<RawCompletion>) {
        if self.fate.replace(fate).is_some() {
            return;
        }
        let by_peer = self.check_open().is_err();
        if let Some(Link { control, .. }) = &self.link {
            // What the peer took before it ended has arrived.
            let _ = self.send.observe(control.load(Word::Consumed), &self.channel);
            // Of what it copied it has said so.
            let _ = self.send.lent.observe(control);
        }
        self.publish_consumed();
        // From here on nobody may rely on our memory: the word first, the holds after it.
        self.own.store(Word::Closed, fate.word());
        self.own.fence();
        self.channel.send(&Message::Bye, Carried::Nothing);
        // Nobody reads it any more: a peer that goes on must not wait for that.
        self.channel.close_to_receiving();
        if let Some(Link { control, .. }) = &self.link
            && let Some(Ring::Word(sleep)) = self.bell.glance(control, News::All)
        {
            self.own.wake(sleep);
        }
        self.send.flush(self.index, fate, by_peer, out);
        let flushed =
            |receive: RawReceive| RawCompletion::new(receive.slot, Some(self.index), Opcode::Receive, fate.pending());
        out.extend(self.receives.drain(..).map(flushed));
    }
}

/// Messages taken from a socket in one go; the rest stays readable. A socket holds fewer, unless
/// more come meanwhile.
const HEAR_MAX: usize = 512;
/// Bytes of memory that are mapped in one go.
const HEAR_BYTES: u64 = 1 << 30;
const NO_DESCRIPTOR: Fate =
    Fate::Exhausted("this process has no descriptor left for what the peer passes; raise the limit (ulimit -n)");

/// Messages after which the peer is told at the latest. Its window may be much smaller than the
/// ring, and then it runs dry while it waits to be told.
const TELL_EVERY_MAX: u64 = 4;

/// Small messages that nobody waits for, after which the peer is told at the latest.
const TELL_AT_LAST: u64 = 16;

/// Turns without a message after which it is told whatever it need not know: a microsecond or so.
pub(crate) const LAZY_TURNS: u32 = 64;

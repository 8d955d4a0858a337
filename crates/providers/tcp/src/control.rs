//! Control frames: what one end tells the other about receives and about requests that it has
//! carried out.
//!
//! A peer causes them as fast as it likes and need not read them, so their memory is bounded by
//! construction: of each kind no second one waits behind one that has not left. An ACK counts up,
//! so one that waits says all that was missed. A peer recalls credits again only after the RETURN,
//! which it cannot have before that has left.

use std::time::Instant;

use crate::conn::{Conn, Context};
use crate::fate::Fate;
use crate::frame::Op;

/// Where the last one of each kind ends among all bytes ever queued.
#[derive(Debug, Default)]
pub(crate) struct LastEnds {
    ack: u64,
    recall: u64,
    back: u64,
}

impl Conn {
    /// Whether the peer must be told what it does not know. While messages keep coming that can
    /// wait for company.
    fn owes_ack(&self, idle: bool) -> bool {
        let (untold, due) = (self.target.untold(), self.credits.due(self.receives.len()));
        (idle && (untold > 0 || due > 0))
            || untold >= TELL_MESSAGES
            || self.untold_bytes >= TELL_BYTES
            || self.credits.is_low(self.receives.len())
    }

    /// Whether there is something to tell the peer.
    pub(crate) fn owes(&self) -> bool {
        self.owes_ack(true)
    }

    /// Queues an ACK, if one is due and none waits to leave. True: it did.
    pub(crate) fn acknowledge(&mut self, idle: bool) -> bool {
        let says = self.owes_ack(idle) && !self.target.has_answers() && self.last_ends.ack <= self.outbound.sent();
        if says {
            self.say(Op::Ack);
            self.last_ends.ack = self.outbound.queued();
        }
        says
    }

    /// Tells the peer what it does not know, before this end sleeps.
    pub(crate) fn settle(&mut self) -> Result<(), Fate> {
        self.pump();
        self.acknowledge(true);
        self.flush()?;
        // What became due behind an ACK that has only now left: nothing else would wake this end for it.
        if self.acknowledge(true) {
            self.flush()?;
        }
        Ok(())
    }

    /// Asks the peer for credits that it does not use, unless it was asked or has none. True: it
    /// keeps them, long after it was asked.
    pub(crate) fn recall(&mut self, now: Instant) -> bool {
        if self.credits.may_recall() {
            self.say(Op::Recall);
            self.last_ends.recall = self.outbound.queued();
            self.credits.recalled(now);
            // A socket that is broken shows at its next turn.
            let _ = self.flush();
        }
        self.credits.hoards(now)
    }

    /// The peer asks for what is not used of the receives that it granted.
    pub(crate) fn give_back(&mut self) -> Result<(), Fate> {
        if self.last_ends.back > self.outbound.sent() {
            return Err(Fate::Malformed("it recalls credits again before it can have the answer"));
        }
        let unused = u32::try_from(std::mem::take(&mut self.credits.ours)).unwrap_or(u32::MAX);
        self.credits.asked = false;
        self.say(Op::Return(unused));
        self.last_ends.back = self.outbound.queued();
        Ok(())
    }

    /// The peer gives back receives that were recalled.
    pub(crate) fn given_back(&mut self, count: u32, cx: &mut Context<'_>) -> Result<(), Fate> {
        if self.last_ends.recall > self.outbound.sent() {
            return Err(Fate::Malformed("it gives back what it was not asked for"));
        }
        self.credits.given_back(count, self.target.used_credits(), cx.pool).map_err(Fate::Malformed)
    }
}

/// While messages keep coming, the peer is told after so many, or so many bytes.
const TELL_MESSAGES: u64 = 16;
const TELL_BYTES: u64 = 256 << 10;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use overside_memory::{SegmentId, Window};
    use overside_verbs::port::{QpIndex, RawBuffer, RawReceive};
    use overside_verbs::{Access, Memory, Opcode};

    use super::*;
    use crate::credits::Pool;
    use crate::frame::{HEAD_MAX, Head, READ_CHUNK, Why};
    use crate::handshake::Wire;
    use crate::registry::{Registry, register};
    use crate::requests::{Act, Entry};

    /// A connection whose peer says one frame as often as it can and reads nothing: the most bytes
    /// of ours that ever waited, and how it ended, if it did.
    fn flood(op: Op, credits: u32) -> (u64, Option<Fate>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        [&ours, &theirs].iter().for_each(|end| end.set_nonblocking(true).unwrap());
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 4096).unwrap();
        let wire = Wire::new(ours.into(), None);
        let mut conn = Conn::new(QpIndex(0), wire, 32, 64, Default::default());
        let (registry, mut done, mut pool) = (Registry::default(), VecDeque::new(), Pool::new(64));
        let domain = registry.allocate_domain(()).unwrap();
        let window = Memory::Window(Arc::new(Window::new(4096).unwrap()));
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let key = register(&registry, &domain, &window, all).unwrap().token().rkey;
        let op = match op {
            Op::Write { rkey: OURS, at, total, immediate } => Op::Write { rkey: key, at, total, immediate },
            Op::Read { rkey: OURS, at, len } => Op::Read { rkey: key, at, len },
            Op::FetchAdd { rkey: OURS, at, add } => Op::FetchAdd { rkey: key, at, add },
            other => other,
        };
        let mut place = vec![0u8; 64];
        let buffer = RawBuffer { address: place.as_mut_ptr(), len: 64, segment: SegmentId::FOREIGN };
        // One of ours waits for a credit: it is asked for.
        conn.requests.push(Entry::new(0, Opcode::Send, Act::Send(None), Vec::new()));
        (pool.sharers, conn.more) = (1, true);
        let mut bytes = [0; HEAD_MAX];
        let len = Head { acked: 0, credits, len: 0, op }.encode(&mut bytes);
        let frames = bytes[..len].repeat(RECEIVES);
        let (mut most, mut rest) = (0, 0..0);
        for turn in 0..TURNS {
            // Its receives are posted anew, and the shared ones, too.
            while conn.receives.len() < RECEIVES {
                conn.receives.push_back(RawReceive { slot: 0, buffer, takes_loan: false });
            }
            if turn == 0 {
                conn.acknowledge(true);
            }
            if rest.is_empty() {
                rest = 0..frames.len();
            }
            rest.start += rustix::io::write(&theirs, &frames[rest.clone()]).unwrap_or(0);
            let mut cx = Context {
                registry: &registry,
                domain: domain.id(),
                pool: &mut pool,
                done: &mut done,
                done_max: usize::MAX,
            };
            let fate = conn.turn(&mut cx).and_then(|_| conn.settle()).err();
            most = most.max(conn.outbound.waiting());
            done.clear();
            if fate.is_some() {
                return (most, fate);
            }
        }
        (most, None)
    }

    #[test]
    fn a_peer_that_reads_nothing_makes_this_end_keep_a_frame_of_each_kind() {
        let write = |total| Op::Write { rkey: OURS, at: 0, total, immediate: None };
        let with = Op::Write { rkey: OURS, at: 0, total: 0, immediate: Some(1) };
        for (op, credits) in [
            (Op::Send { immediate: None }, 0),
            (Op::Send { immediate: Some(1) }, 1),
            (write(0), 0),
            (write(0), 1),
            (with, 0),
            (Op::Ack, 0),
            (Op::Ack, 1),
            (Op::Want(1), 0),
            (Op::Want(u32::MAX), 1),
        ] {
            let (most, ended) = flood(op, credits);
            assert!(most <= A_FEW_FRAMES, "{op:?} with {credits} credits: {most} bytes wait, {ended:?}");
            // Who does not read which receives there are anew soon has none.
            let without = ended.is_some_and(|fate| fate.reason().contains("no receive was granted"));
            assert!(ended.is_none() || without, "{op:?}: {ended:?}");
        }
    }

    #[test]
    fn a_peer_that_asks_for_answers_and_reads_none_is_ended_within_a_bound() {
        for op in [
            Op::Read { rkey: OURS, at: 0, len: 4096 },
            Op::Read { rkey: OURS, at: 0, len: 0 },
            Op::FetchAdd { rkey: OURS, at: 0, add: 1 },
            Op::Read { rkey: UNKNOWN, at: 0, len: 4096 },
            Op::FetchAdd { rkey: UNKNOWN, at: 0, add: 1 },
            Op::Write { rkey: UNKNOWN, at: 0, total: 0, immediate: None },
            Op::Recall,
        ] {
            let (most, ended) = flood(op, 0);
            assert!(matches!(ended, Some(Fate::Malformed(_))), "{op:?}: {ended:?}");
            assert!(most <= crate::conn::OUT_ROOM + READ_CHUNK as u64, "{op:?}: {most} bytes wait");
        }
        let bye = Op::Bye { why: Why::Closed, number: 0 };
        for (op, reason) in [
            (Op::Recall, "recalls credits again"),
            (Op::Return(0), "gives back"),
            (Op::Value(0), "answer to nothing"),
            (bye, ""),
        ] {
            let (most, ended) = flood(op, 0);
            assert!(
                most <= A_FEW_FRAMES && ended.is_some_and(|fate| fate.reason().contains(reason)),
                "{op:?}: {ended:?}"
            );
        }
    }

    /// The peer takes nothing, so the answer is forgotten with the rest: it must not be told that
    /// it has it.
    #[test]
    fn a_goodbye_acknowledges_nothing_whose_answer_did_not_leave() {
        for reads in [false, true] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            [&ours, &theirs].iter().for_each(|end| end.set_nonblocking(true).unwrap());
            let wire = Wire::new(ours.into(), None);
            let mut conn = Conn::new(QpIndex(0), wire, 32, 64, Default::default());
            let (registry, mut done, mut pool) = (Registry::default(), VecDeque::new(), Pool::new(0));
            let mut bytes = [0; HEAD_MAX];
            let ask = Head { acked: 0, credits: 0, len: 0, op: Op::FetchAdd { rkey: UNKNOWN, at: 0, add: 1 } };
            let len = ask.encode(&mut bytes);
            rustix::io::write(&theirs, &bytes[..len]).unwrap();
            while !reads && rustix::net::send(&conn.socket, &[0; 4096], rustix::net::SendFlags::DONTWAIT).is_ok() {}
            let mut cx = Context { registry: &registry, domain: 0, pool: &mut pool, done: &mut done, done_max: 9 };
            conn.turn(&mut cx).unwrap();
            assert_eq!(conn.outbound.waiting() == 0, reads);
            conn.end(Fate::Closed, &mut pool, &mut done);
            let bye = conn.outbound.unsent();
            let bye = Head::decode(&bye).unwrap();
            assert!(matches!(bye.op, Op::Bye { .. }) && bye.acked == u64::from(reads), "{bye:?}");
        }
    }

    /// A RETURN counts only for a RECALL that has left.
    #[test]
    fn nothing_is_given_back_before_it_was_asked_for() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        [&ours, &theirs].iter().for_each(|end| end.set_nonblocking(true).unwrap());
        let wire = Wire::new(ours.into(), None);
        let mut conn = Conn::new(QpIndex(0), wire, 32, 64, Default::default());
        let (registry, mut done, mut pool) = (Registry::default(), VecDeque::new(), Pool::new(64));
        let buffer = RawBuffer { address: std::ptr::null_mut(), len: 0, segment: SegmentId::FOREIGN };
        pool.receives.extend((0..8).map(|slot| RawReceive { slot, buffer, takes_loan: false }));
        pool.sharers = 1;
        conn.credits.share(0, &mut pool);
        assert!(conn.acknowledge(true));
        conn.flush().unwrap();
        let mut cx = Context { registry: &registry, domain: 0, pool: &mut pool, done: &mut done, done_max: 9 };
        // The socket is full before the RECALL.
        while rustix::net::send(&conn.socket, &[0; 4096], rustix::net::SendFlags::DONTWAIT).is_ok() {}
        conn.recall(Instant::now());
        assert!(conn.outbound.waiting() > 0);
        let early = conn.given_back(4, &mut cx).unwrap_err();
        assert!(early.reason().contains("was not asked for"), "{early:?}");
        while rustix::io::read(&theirs, &mut [0; 4096]).is_ok() {}
        conn.flush().unwrap();
        assert_eq!(conn.given_back(4, &mut cx), Ok(()));
    }

    /// Stands for the key of what the connection may reach, and one that nobody has.
    const OURS: u128 = 0;
    const UNKNOWN: u128 = 1;
    /// Turns of so many frames each: enough for one in 16 of them, if each were kept.
    const TURNS: usize = 4000;
    const RECEIVES: usize = 32;
    const A_FEW_FRAMES: u64 = 8 * HEAD_MAX as u64;
}

//! Messages that wait for company, as in Nagle's algorithm: a call into the kernel costs as much as
//! copying kilobytes.
//!
//! What is posted while nothing is under way goes at once. Until the peer has said that it has
//! carried out all before, a posted frame waits for the next one. It waits until the owner
//! polls or arms, or until there are enough bytes to be worth a call. An owner that does
//! neither has its thread, which sends what waits whenever it looks (`progress`); where no
//! thread looks, nothing waits.

use overside_verbs::port::QpIndex;

use crate::engine::{Engine, open};

impl Engine {
    /// After a batch: what may go, goes, or waits for company.
    pub(crate) fn push_out(&mut self, qp: QpIndex) {
        let Ok(conn) = open(&mut self.conns, qp) else { return };
        let under_way = conn.requests.are_under_way();
        conn.pump();
        // Whoever lacks credits or room has asked for them just now, or must hear that there is room.
        let all_queued = conn.requests.waiting_count() == 0;
        if self.may_hold && under_way && all_queued && conn.outbound.waiting() < HELD_BYTES {
            (conn.held, self.holds) = (true, true);
            return;
        }
        self.send_out(qp.0);
    }

    /// Sends what waits for company.
    pub(crate) fn release(&mut self) {
        if !std::mem::take(&mut self.holds) {
            return;
        }
        for at in (0..self.live.len()).rev() {
            let index = self.live[at];
            if self.conns.get(index).is_some_and(|conn| conn.held) {
                self.send_out(index);
            }
        }
    }

    /// The port's thread looks again soon: until then messages may wait, those that do have done so
    /// long enough.
    pub(crate) fn watch_over(&mut self) {
        self.release();
        self.may_hold = true;
    }

    fn send_out(&mut self, index: u32) {
        let Ok(conn) = open(&mut self.conns, QpIndex(index)) else { return };
        if let Err(fate) = conn.flush() {
            // What had come before the end is taken first: the next poll finds it.
            if fate.is_ours() {
                self.end(index, fate, true);
            } else {
                conn.more = true;
            }
        }
    }
}

/// So much is sent without waiting for more.
const HELD_BYTES: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::time::Duration;

    use overside_verbs::port::{Payload, RawRequest, RawWork};
    use overside_verbs::watch::Watch;
    use overside_verbs::{Peer, PortEvent, PortOptions, Provider};
    use rustix::event::{PollFd, PollFlags};

    use super::*;
    use crate::frame::{HEAD_MIN, Head, Op};
    use crate::handshake::Wire;
    use crate::provider::TcpProvider;

    const QP: QpIndex = QpIndex(0);

    /// An engine without a thread, with credits for whatever it sends, and its peer's end of the
    /// only connection.
    fn engine() -> (Engine, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        [&ours, &theirs].iter().for_each(|end| end.set_nonblocking(true).unwrap());
        (engine_over(ours.into()), theirs)
    }

    fn engine_over(socket: OwnedFd) -> Engine {
        let provider = TcpProvider::new();
        let domain = provider.allocate_domain().unwrap();
        let shared = provider.shared().clone();
        let peer = Peer { pid: None, uid: None, description: "the test".into() };
        let link = shared.instance().link(domain.id(), peer, Wire::new(socket, None));
        let watch = Arc::new(Watch::new().unwrap());
        let mut engine = Engine::new(shared, domain.id(), PortOptions::default(), watch).unwrap();
        engine.attach(QP, link).unwrap();
        open(&mut engine.conns, QP).unwrap().credits.ours = 1000;
        engine.watch_over();
        engine
    }

    fn post(engine: &mut Engine, count: usize, bytes: usize) {
        let payload = vec![7; bytes];
        for slot in 0..count as u32 {
            let work = RawWork::Send(Payload::Inline(&payload), None);
            // SAFETY: [test] inline bytes are copied.
            unsafe { engine.post_one(QP, &RawRequest { slot, work, signalled: true, fence: false, lend: false }) }
                .unwrap();
        }
        engine.push_out(QP);
    }

    /// Bytes that the peer has got and had not.
    fn came(theirs: &UnixStream) -> usize {
        let mut bytes = vec![0; 1 << 20];
        rustix::io::read(theirs, &mut bytes[..]).unwrap_or(0)
    }

    /// The peer says that it has carried out so many.
    fn acknowledge(theirs: &UnixStream, acked: u64) {
        let mut bytes = [0; crate::frame::HEAD_MAX];
        let len = Head { acked, credits: 0, len: 0, op: Op::Ack }.encode(&mut bytes);
        assert_eq!(rustix::io::write(theirs, &bytes[..len]), Ok(len));
    }

    #[test]
    fn what_follows_one_that_is_under_way_waits_for_company_and_a_turn_sends_it() {
        let (mut engine, theirs) = engine();
        let message = HEAD_MIN + 8;
        post(&mut engine, 1, 8);
        assert_eq!(came(&theirs), message, "nothing was under way");
        post(&mut engine, 1, 8);
        post(&mut engine, 2, 8);
        assert_eq!(came(&theirs), 0, "they wait");
        engine.turn(16);
        assert_eq!(came(&theirs), 3 * message, "together");
        post(&mut engine, 1, 8);
        acknowledge(&theirs, 5);
        engine.turn(16);
        assert_eq!(came(&theirs), message);
        post(&mut engine, 1, 8);
        assert_eq!(came(&theirs), message, "all before were acknowledged");
    }

    #[test]
    fn what_waits_goes_when_there_is_much_of_it_when_the_thread_looks_and_before_a_sleep() {
        let (mut engine, theirs) = engine();
        post(&mut engine, 1, 8);
        let first = came(&theirs);
        let (mut posted, mut got) = (0, 0);
        while got == 0 {
            post(&mut engine, 1, 1024);
            posted += HEAD_MIN + 1024;
            got = came(&theirs);
        }
        assert_eq!(got, posted, "all of it");
        assert!(posted as u64 >= HELD_BYTES && (posted as u64) < HELD_BYTES + 2048, "{posted}");
        post(&mut engine, 1, 8);
        assert_eq!(came(&theirs), 0);
        engine.watch_over();
        assert_eq!(came(&theirs), first, "a thread looked");
        post(&mut engine, 1, 8);
        assert_eq!(came(&theirs), 0);
        engine.settle();
        assert_eq!(came(&theirs), first, "the owner goes to sleep");
        engine.may_hold = false;
        post(&mut engine, 1, 8);
        assert_eq!(came(&theirs), first, "no thread looks");
    }

    #[test]
    fn what_waits_goes_before_the_goodbye() {
        let (mut engine, theirs) = engine();
        post(&mut engine, 1, 8);
        assert_eq!(came(&theirs), HEAD_MIN + 8);
        post(&mut engine, 1, 8);
        engine.close(QP);
        let mut bytes = [0; 4096];
        let len = rustix::io::read(&theirs, &mut bytes[..]).unwrap();
        let head = Head::decode(&bytes[..HEAD_MIN]).unwrap();
        assert!(matches!(head.op, Op::Send { .. }) && len > HEAD_MIN + 8, "{head:?}, {len} bytes");
    }

    #[test]
    fn what_lacks_a_credit_is_asked_for_at_once() {
        let (mut engine, theirs) = engine();
        open(&mut engine.conns, QP).unwrap().credits.ours = 1;
        post(&mut engine, 1, 8);
        came(&theirs);
        post(&mut engine, 1, 8);
        assert!(came(&theirs) > 0);
    }

    /// The system tells once; the read that then finds nothing must not take the peer for one that
    /// went without a word.
    #[test]
    fn an_end_that_a_send_was_told_of_keeps_its_reason() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut engine = engine_over(ours.try_clone().unwrap().into());
        rustix::net::sockopt::set_socket_linger(&theirs, Some(Duration::ZERO)).unwrap();
        drop(theirs);
        // Looked at without asking for the error, which would take it away.
        rustix::event::poll(&mut [PollFd::new(&ours, PollFlags::RDHUP)], None).unwrap();
        post(&mut engine, 1, 8);
        engine.turn(16);
        let Some(PortEvent::Disconnected { reason, .. }) = engine.reports.events.pop_front() else { panic!("no end") };
        assert!(reason.contains("reset"), "{reason}");
    }
}

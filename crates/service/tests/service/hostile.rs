//! Clients that say garbage, too much, or nothing, and those that take nothing.

use std::collections::VecDeque;

use overside_memory::View;
use overside_service::{CONTROL_MAGIC, Notices, PART_MAGIC, RequestOrder, TransmitOptions};
use overside_verbs::{CompletionQueue, PortEvent, PortOptions, QueuePair, WorkRequest};

use super::system::Obedient;
use super::*;

/// A client that sends whatever bytes it likes, and takes nothing.
pub struct Raw {
    queue: CompletionQueue,
    queue_pair: QueuePair,
}

impl Raw {
    pub fn new<S: System>(bench: &Bench<S>) -> Raw {
        let domain = bench.provider.allocate_domain().unwrap();
        let mut queue = CompletionQueue::new(bench.provider.open_port(&domain, PortOptions::default()).unwrap());
        let queue_pair = queue.attach(bench.provider.connect(&domain, &bench.name, PATIENCE).unwrap()).unwrap();
        Raw { queue, queue_pair }
    }

    /// Whether there was room for it.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        let view = View::foreign(Arc::new(bytes.to_vec()));
        let posted = self.queue.post(self.queue_pair, &mut VecDeque::from([WorkRequest::send(0, view)]));
        posted.unwrap_or(0) == 1
    }

    pub fn look(&mut self) {
        let _ = self.queue.poll_wait(&mut Vec::new(), Some(Duration::from_millis(1)));
    }

    pub fn ended(&mut self) -> bool {
        self.look();
        matches!(self.queue.next_event(), Some(PortEvent::Disconnected { .. }))
    }
}

pub fn control(body: &[u8]) -> Vec<u8> {
    [&CONTROL_MAGIC.to_le_bytes()[..], &[7, 0, 0, 0], body].concat()
}

#[test]
fn garbage_costs_its_sender_its_connection_and_nobody_else_anything() {
    for transport in TRANSPORTS {
        let system = Obedient::new();
        let bench = Bench::start(transport, &system, one_worker());
        let mut honest = bench.client();
        let garbage: [&[u8]; 7] = [
            b"",
            b"OVS",
            b"garbage that is longer than a header",
            &control(b"?"),
            &control(b""),
            &[&PART_MAGIC.to_le_bytes()[..], &[0; 12], b"a part"].concat(),
            // One byte more than a request has at most.
            &control(&vec![b'n'; (64 << 10) - 7]),
        ];
        for (sent, message) in garbage.iter().enumerate() {
            let mut raw = Raw::new(&bench);
            assert!(raw.send(message));
            until("it is closed", || raw.ended());
            assert_eq!(ask(&mut honest, b"nfine"), b"fine", "after {sent} on {transport}");
        }
        until("all are told to their sessions", || system.ended.lock().unwrap().len() == garbage.len());
    }
}

/// Requests that are never finished are bounded, as are those that wait behind them.
#[test]
fn a_client_with_too_many_unfinished_requests_is_cut_off() {
    for word in [b"fx", b"rx", b"qx"] {
        let system = Obedient::new();
        let bench = Bench::start("shm", &system, one_worker());
        let mut honest = bench.client();
        let mut raw = Raw::new(&bench);
        let mut sent = 0;
        until("it is cut off", || {
            sent += (0..100).filter(|_| sent < 16_384 && raw.send(&control(word))).count();
            raw.look();
            bench.server.statistics().closed_for_cause == 1
        });
        assert!(sent > 8000, "an honest client may have many: {sent}");
        assert_eq!(ask(&mut honest, b"nfine"), b"fine");
        // Its tickets are harmless now.
        if word != b"qx" {
            system.finish(b'x');
            drop(system.ticket(b'x'));
        }
        assert_eq!(ask(&mut honest, b"nfine"), b"fine");
    }
}

/// What waits for a client that never reads is bounded in bytes, even where all of it waits for one
/// unfinished request.
#[test]
fn a_client_that_never_reads_is_cut_off() {
    for first in [b"n0", b"r0"] {
        let system = Obedient::new();
        let bench = Bench::start("shm", &system, one_worker());
        let mut honest = bench.client();
        let mut raw = Raw::new(&bench);
        assert!(raw.send(&control(first)));
        let mut sent = 0;
        until("it is cut off", || {
            // Replies of 2 MiB each.
            sent += usize::from(sent < 200 && raw.send(&control(b"l\x20")));
            raw.look();
            bench.server.statistics().closed_for_cause == 1
        });
        assert_eq!(ask(&mut honest, b"nfine"), b"fine");
    }
}

#[test]
fn a_client_that_takes_nothing_is_closed_at_the_deadline() {
    for transport in TRANSPORTS {
        let system = Obedient::new();
        let deadline = Duration::from_secs(1);
        let bench = Bench::start(transport, &system, ServiceOptions { deadline, ..one_worker() });
        let mut honest = bench.client();
        let mut raw = Raw::new(&bench);
        assert!(raw.send(&control(b"s\xff")));
        until("it is closed", || {
            raw.look();
            !system.ended.lock().unwrap().is_empty()
        });
        assert_eq!(bench.server.statistics().closed_for_cause, 1);
        assert_eq!(*system.ended.lock().unwrap(), ["it did not take what was sent in time"]);
        assert_eq!(ask(&mut honest, b"nfine"), b"fine", "a client that owes nothing may be silent");
    }
}

/// Others get transmit buffers however many one client leaves untaken.
#[test]
fn a_client_that_never_reads_leaves_buffers_to_others() {
    let system = Obedient::new();
    let transmit = TransmitOptions { small_count: 4, large_count: 2, ..TransmitOptions::default() };
    let options = ServiceOptions { transmit, deadline: Duration::from_secs(600), ..one_worker() };
    let bench = Bench::start("shm", &system, options);
    let mut idle: Vec<Raw> = (0..4).map(|_| Raw::new(&bench)).collect();
    for raw in &mut idle {
        (0..20).for_each(|_| assert!(raw.send(&control(b"nfull"))));
    }
    let mut honest = bench.client();
    for _ in 0..100 {
        assert_eq!(ask(&mut honest, b"nfine"), b"fine");
    }
}

#[test]
fn one_connection_too_many_is_not_admitted() {
    struct Strict;
    struct Greeting;
    impl System for Strict {
        type Session = Greeting;
        fn session(self: &Arc<Self>) -> Greeting {
            Greeting
        }
        fn unfinished(&self, _: &mut Vec<u8>) {}
    }
    impl overside_service::Session for Greeting {
        fn request(
            &mut self,
            context: &mut overside_service::Context<'_>,
            number: u32,
            _: &[u8],
        ) -> Result<(), overside_service::BadMessage> {
            if context.is_turned_away() {
                context.reply(number, |body| body.extend_from_slice(b"full"));
            } else {
                context.admit();
                // The order of an answer at once does not matter.
                let ticket = context.later(number, RequestOrder::Replies);
                context.complete(ticket, |body| body.extend_from_slice(b"welcome"));
            }
            Ok(())
        }
    }
    let lines: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
    let notices = {
        let lines = lines.clone();
        Some(Notices::new(move |line| lines.lock().unwrap().push(line.to_owned())))
    };
    let deadline = Duration::from_secs(1);
    let options = ServiceOptions { connections_max: 1, deadline, notices, ..one_worker() };
    let bench = Bench::start("shm", &Arc::new(Strict), options);
    let mut first = bench.client();
    assert_eq!(ask(&mut first, b"hello"), b"welcome");
    let mut second = bench.client();
    assert_eq!(ask(&mut second, b"hello"), b"full");
    ended(&mut second);
    assert_eq!(ask(&mut first, b"hello"), b"welcome");
    let said = lines.lock().unwrap().join("\n");
    assert!(said.contains("it did not introduce itself in time"), "{said}");
}

/// A worker that panics loses its clients, and serves on; tickets of the clients it lost are harmless.
#[test]
fn a_panic_costs_the_workers_clients_and_no_ticket_goes_astray() {
    let system = Obedient::new();
    let bench = Bench::start("shm", &system, one_worker());
    let mut lost = bench.client();
    send(&mut lost, b"fa");
    let ticket = system.ticket(b'a');
    send(&mut lost, b"p");
    ended(&mut lost);
    let mut again = bench.client();
    let b = send(&mut again, b"rb");
    let other = system.ticket(b'b');
    ticket.complete(|body| body.extend_from_slice(b"astray"));
    assert_eq!(bench.server.statistics().unfinished, 1);
    silent(&mut again, Duration::from_millis(30));
    other.complete(|body| body.push(b'b'));
    assert_eq!(reply(&mut again), (b, b"b".to_vec()));
}

//! Connections that a server opens itself: a relay, whose clients' requests are answered by another
//! server.

use std::collections::HashMap;
use std::sync::Mutex;

use overside_service::{BadMessage, Context, Dialer, RequestOrder, Session, SessionWaker, Ticket};

use super::system::Obedient;
use super::*;

/// What a relay's clients want to have asked, and the way to the session that asks.
#[derive(Default)]
struct Relay {
    questions: Mutex<Vec<(Vec<u8>, Ticket)>>,
    upstream: Mutex<Option<SessionWaker>>,
    ended: Mutex<Vec<String>>,
}

/// A client of the relay, or the relay's own connection.
enum Side {
    Client(Arc<Relay>),
    Upstream { relay: Arc<Relay>, asked: HashMap<u32, Ticket>, number: u32 },
}

impl System for Relay {
    type Session = Side;

    fn session(self: &Arc<Self>) -> Side {
        Side::Client(self.clone())
    }

    fn unfinished(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(b"nobody answers");
    }
}

impl Session for Side {
    fn opened(&mut self, context: &mut Context<'_>) {
        match self {
            Side::Client(_) => context.admit(),
            Side::Upstream { relay, .. } => *relay.upstream.lock().unwrap() = Some(context.waker()),
        }
    }

    fn request(&mut self, context: &mut Context<'_>, number: u32, body: &[u8]) -> Result<(), BadMessage> {
        let Side::Client(relay) = self else { return Err(BadMessage("upstream asks")) };
        let ticket = context.later(number, RequestOrder::Free);
        relay.questions.lock().unwrap().push((body.to_vec(), ticket));
        if let Some(upstream) = &*relay.upstream.lock().unwrap() {
            upstream.wake();
        }
        Ok(())
    }

    fn woken(&mut self, context: &mut Context<'_>) -> Result<(), BadMessage> {
        let Side::Upstream { relay, asked, number } = self else { return Ok(()) };
        for (body, ticket) in relay.questions.lock().unwrap().drain(..) {
            *number += 1;
            context.reply(*number, |out| out.extend_from_slice(&body));
            asked.insert(*number, ticket);
        }
        Ok(())
    }

    fn reply(&mut self, _: &mut Context<'_>, number: u32, body: &[u8]) -> Result<(), BadMessage> {
        let Side::Upstream { asked, .. } = self else { return Err(BadMessage("a client replies")) };
        let ticket = asked.remove(&number).ok_or(BadMessage("a reply to nothing"))?;
        ticket.complete(|out| out.extend_from_slice(body));
        Ok(())
    }

    fn ended(&mut self, why: &str) {
        if let Side::Upstream { relay, .. } = self {
            relay.ended.lock().unwrap().push(why.to_owned());
        }
    }
}

fn relay(transport: &str, options: ServiceOptions) -> (Arc<Relay>, Bench<Relay>, Dialer<Relay>) {
    let relay = Arc::new(Relay::default());
    let bench = Bench::start(transport, &relay, options);
    let dialer = bench.server.dialer(0).unwrap();
    assert!(bench.server.dialer(1).is_none());
    (relay, bench, dialer)
}

fn dial(dialer: &Dialer<Relay>, relay: &Arc<Relay>, name: &str) {
    let session = Side::Upstream { relay: relay.clone(), asked: HashMap::new(), number: 0 };
    dialer.dial(name, PATIENCE, 64 << 10, session).unwrap();
    until("it is open", || relay.upstream.lock().unwrap().is_some());
}

#[test]
fn a_worker_serves_connections_that_its_side_opened() {
    for transport in TRANSPORTS {
        let upstream = Bench::start(transport, &Obedient::new(), one_worker());
        for workers in [1, 2] {
            let (relay, bench, dialer) = relay(transport, ServiceOptions { workers, ..ServiceOptions::default() });
            dial(&dialer, &relay, &upstream.name);
            let mut links: Vec<Link> = (0..3).map(|_| bench.client()).collect();
            for question in 0..50u8 {
                let numbers: Vec<u32> = links.iter_mut().map(|link| send(link, &[b'n', question])).collect();
                for (link, number) in links.iter_mut().zip(numbers) {
                    assert_eq!(reply(link), (number, vec![question]));
                }
            }
            // A reply of a MiB comes in parts, here and there.
            assert!(ask(&mut links[0], b"l\x10") == vec![16; 1 << 20]);
            assert_eq!(bench.server.statistics().connections, 3, "what is dialled counts against no limit");
        }
    }
}

/// The other server ends: who waits for it gets a fault, and the session is told why.
#[test]
fn a_dialled_connection_that_ends_fails_what_waits_for_it() {
    let system = Obedient::new();
    let upstream = Bench::start("shm", &system, one_worker());
    let (relay, bench, dialer) = relay("shm", one_worker());
    dial(&dialer, &relay, &upstream.name);
    let mut link = bench.client();
    let number = send(&mut link, b"fa");
    let ticket = system.ticket(b'a');
    upstream.server.shutdown();
    assert_eq!(reply(&mut link), (number, b"nobody answers".to_vec()));
    assert_eq!(relay.ended.lock().unwrap().len(), 1);
    drop(ticket);
    assert!(dialer.dial("nobody-listens-here", PATIENCE, 4096, Side::Client(relay.clone())).is_err());
    bench.server.shutdown();
    let upstream = Bench::start("shm", &system, one_worker());
    let late = dialer.dial(&upstream.name, PATIENCE, 4096, Side::Client(relay));
    assert!(late.is_err(), "its workers have ended");
}

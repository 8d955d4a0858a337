//! A network that behaves badly, played by a relay between two ends: it holds bytes back, cuts them small, or resets both ends.

mod ends;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ends::*;
use overside_verbs::Status;
use rustix::net::sockopt;

/// Between a client and a server, one connection.
struct Relay {
    name: String,
    does: Arc<AtomicU8>,
    thread: JoinHandle<()>,
}

impl Relay {
    fn before(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let name = listener.local_addr().unwrap().to_string();
        let (does, server) = (Arc::new(AtomicU8::new(PASSES)), server.to_owned());
        let told = does.clone();
        let thread = std::thread::spawn(move || {
            let client = listener.accept().unwrap().0;
            relay([client, TcpStream::connect(&server).unwrap()], &told);
        });
        Self { name, does, thread }
    }

    fn does(&self, what: u8) {
        self.does.store(what, Ordering::Release);
    }

    /// It has ended: both connections were reset, or one of them was closed.
    fn ends(self) {
        self.thread.join().unwrap();
    }
}

fn relay(mut ends: [TcpStream; 2], told: &AtomicU8) {
    ends.iter().for_each(|end| end.set_nonblocking(true).and(end.set_nodelay(true)).unwrap());
    loop {
        let does = told.load(Ordering::Acquire);
        let mut moved = false;
        for way in 0..2 {
            let mut bytes = [0; 4096];
            let most = if does == CRUMBLES { 1 } else { bytes.len() };
            if does == HOLDS || does == RESETS {
                continue;
            }
            match ends[way].read(&mut bytes[..most]) {
                Ok(0) => return,
                Ok(len) => {
                    ends[1 - way].set_nonblocking(false).unwrap();
                    if ends[1 - way].write_all(&bytes[..len]).is_err() {
                        return;
                    }
                    ends[1 - way].set_nonblocking(true).unwrap();
                    moved = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
        if does == RESETS {
            ends.iter().for_each(|end| sockopt::set_socket_linger(end, Some(Duration::ZERO)).unwrap());
            return;
        }
        if !moved {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// What was on its way when both ends are told that there is no connection fails at once, each once; what came came once.
#[test]
fn a_reset_in_mid_stream_fails_what_was_pending_and_says_what_may_have_come() {
    for key in [None, Some(SECRET)] {
        let server = Server::start(&fresh_name(), options(key));
        let bystander = Bystander::start(&server.name, options(key));
        let relay = Relay::before(&server.name);
        let mut client = Counting::start(|end| end.connect(&relay.name), key);
        client.run(|client| client.arrived.len() > 100);
        // Held first, so that some are pending for certain.
        relay.does(HOLDS);
        client.run(|client| client.posted() > client.reported());
        let held = Instant::now();
        client.run(|_| held.elapsed() > Duration::from_millis(50));
        relay.does(RESETS);
        client.run(|client| client.ended.is_some());
        let (status, reason) = client.ended.clone().unwrap();
        assert_eq!(status, Status::PeerDied, "{reason}");
        assert!(reason.contains("lost") && reason.contains("may have taken effect"), "{reason}");
        client.accounts_for_all(&server, Status::PeerDied);
        // Whether a send or a read hears of it.
        server.ended(Status::PeerDied, "lost");
        relay.ends();
        bystander.goes_on();
    }
}

/// Bytes that come late, and those that come one by one, cost time alone.
#[test]
fn what_is_held_back_or_comes_byte_by_byte_arrives_once_and_in_order() {
    for key in [None, Some(SECRET)] {
        let server = Server::start(&fresh_name(), options(key));
        let relay = Relay::before(&server.name);
        let mut client = Counting::start(|end| end.connect(&relay.name), key);
        client.run(|client| client.arrived.len() > 100);
        relay.does(HOLDS);
        let held = Instant::now();
        client.run(|_| held.elapsed() > Duration::from_millis(700));
        relay.does(CRUMBLES);
        let before = client.arrived.len();
        client.run(|client| client.arrived.len() > before + 50 || client.ended.is_some());
        relay.does(PASSES);
        client.run(|client| client.arrived.len() as u64 == NUMBERS || client.ended.is_some());
        assert_eq!(client.ended, None);
        assert!(client.arrived.iter().copied().eq(0..NUMBERS) && client.failed.is_empty());
        assert!(server.numbers(NUMBERS as usize).iter().copied().eq(0..NUMBERS), "once each, in order");
        drop(client);
        relay.ends();
    }
}

/// What a relay does with what comes.
const PASSES: u8 = 0;
const HOLDS: u8 = 1;
const CRUMBLES: u8 = 2;
const RESETS: u8 = 3;

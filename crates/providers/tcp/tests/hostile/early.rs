//! A peer that acknowledges what it has not got: memory must not go back to its owner while bytes of it still wait to be sent.
//!
//! The owner overwrites each source as soon as it is reported, as every honest program may. Not one such byte may reach the wire.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Segment, View};
use overside_tcp::Options;
use overside_verbs::*;

use super::ends::*;

/// A head that acknowledges so many requests and grants so many receives.
fn acknowledges(acked: u64, credits: u32) -> Vec<u8> {
    let mut head = head(ACK, 0, &[]);
    head[12..16].copy_from_slice(&credits.to_le_bytes());
    head[16..24].copy_from_slice(&acked.to_le_bytes());
    head
}

/// Messages that wait to be sent to a peer that reads nothing.
struct Sender {
    end: End,
    sources: Vec<Arc<Buffer>>,
    reported: Vec<(u64, Status)>,
    ended: Option<(Status, String)>,
}

impl Sender {
    fn post(mut end: End, qp: QueuePair) -> Self {
        let all = Segment::shared(MESSAGES * MESSAGE_BYTES).unwrap();
        let mut sources = all.carve(MESSAGE_BYTES);
        sources.iter_mut().enumerate().for_each(|(i, source)| source.fill(i as u8 + 1));
        let memory = Memory::Segment(sources[0].segment().clone());
        end.provider.register(&end.domain, &memory, Access::LOCAL).unwrap();
        let sources: Vec<Arc<Buffer>> = sources.into_iter().map(Arc::new).collect();
        let shape = overside_shape::Shape::contiguous(0, MESSAGE_BYTES as u64).unwrap();
        let mut batch =
            (0..MESSAGES).map(|i| WorkRequest::send(i as u64, View::of(&sources[i], &shape).unwrap())).collect();
        assert_eq!(end.queue.post(qp, &mut batch).unwrap(), MESSAGES);
        Self { end, sources, reported: Vec::new(), ended: None }
    }

    /// Lives on for a while: what is reported is its own again, and it uses it for something else.
    fn lives(&mut self, time: Duration) {
        let (mut done, until) = (Vec::new(), Instant::now() + time);
        while Instant::now() < until {
            self.end.queue.poll_wait(&mut done, Some(Duration::from_millis(2))).unwrap();
            for done in done.drain(..) {
                let source = Arc::get_mut(&mut self.sources[done.id as usize]);
                source.expect("reported while it is held").fill(POISON);
                self.reported.push((done.id, done.status));
            }
            if let Some(PortEvent::Disconnected { status, reason, .. }) = self.end.queue.next_event() {
                self.ended = Some((status, reason));
            }
        }
    }
}

/// Reads all that is still to come: how many messages are whole. Each byte is that of its message.
fn wholes(stream: &mut TcpStream) -> usize {
    let (mut bytes, mut at, mut whole) = (Vec::new(), 0, 0);
    // A reset is an end as well.
    _ = stream.read_to_end(&mut bytes);
    while let Some(head) = bytes.get(at..at + 24) {
        let words = match head[0] {
            WANT | RETURN => 8,
            BYE => 16,
            _ => 0,
        };
        let len = u32::from_le_bytes(std::array::from_fn(|i| head[8 + i])) as usize;
        let start = at + 24 + words;
        let payload = &bytes[start.min(bytes.len())..(start + len).min(bytes.len())];
        if head[0] == SEND {
            let strange = payload.iter().find(|byte| **byte != whole as u8 + 1);
            assert_eq!(strange, None, "message {whole} has a byte of something else");
            whole += usize::from(payload.len() == len);
        }
        at = start + len;
    }
    whole
}

/// Acknowledges one message after the other, and more than have left.
fn is_refused(end: End, qp: QueuePair, mut raw: Raw) {
    raw.stream.write_all(&acknowledges(0, 1000)).unwrap();
    let mut sender = Sender::post(end, qp);
    sender.lives(Duration::from_millis(300));
    assert_eq!(sender.reported, [], "nothing was acknowledged");
    for acked in 1..=MESSAGES as u64 {
        if sender.ended.is_some() || raw.stream.write_all(&acknowledges(acked, 0)).is_err() {
            break;
        }
        sender.lives(Duration::from_millis(20));
    }
    // A peer that reads at last gets what had left, and its goodbye.
    let reading = std::thread::spawn(move || wholes(&mut raw.stream));
    let deadline = Instant::now() + PATIENCE;
    while sender.reported.len() < MESSAGES || sender.ended.is_none() || !reading.is_finished() {
        sender.lives(Duration::from_millis(5));
        assert!(Instant::now() < deadline, "{:?}, {:?}", sender.ended, sender.reported);
    }
    let (status, reason) = sender.ended.unwrap();
    let whole = reading.join().expect("a strange byte");
    let succeeded = sender.reported.iter().filter(|(_, status)| *status == Status::Success).count();
    assert!(succeeded <= whole, "{succeeded} were reported as placed, and only {whole} have left");
    assert!(status == Status::Malformed && reason.contains("acknowledges what was not sent"), "{status:?}: {reason}");
    assert!(sender.reported.iter().map(|(id, _)| *id).eq(0..MESSAGES as u64), "each once, in order");
}

fn ways() -> [Options; 2] {
    [Options { zero_copy: false, ..options(None) }, options(None)]
}

#[test]
fn a_client_that_acknowledges_early_gets_no_foreign_byte() {
    for options in ways() {
        let mut end = End::new(options);
        let name = fresh_name();
        let mut listener = end.provider.listen(&end.domain, &name).unwrap();
        let (raw, link) = std::thread::scope(|scope| {
            let raw = scope.spawn(|| Raw::shake(&name));
            let link = listener.accept(PATIENCE).unwrap().unwrap();
            (raw.join().unwrap(), link)
        });
        let qp = end.queue.attach(link).unwrap();
        is_refused(end, qp, raw);
    }
}

#[test]
fn a_server_that_acknowledges_early_gets_no_foreign_byte() {
    for options in ways() {
        let mut end = End::new(options);
        let (qp, raw) = usurped(&mut end);
        is_refused(end, qp, raw);
    }
}

/// A connection to a server in whose place a raw peer goes on after the handshake.
fn usurped(end: &mut End) -> (QueuePair, Raw) {
    let (server, listener) = (Server::start(&fresh_name(), options(None)), TcpListener::bind("127.0.0.1:0").unwrap());
    let (name, known) = (listener.local_addr().unwrap().to_string(), AtomicBool::new(false));
    let (link, stream) = std::thread::scope(|scope| {
        let relaying = scope.spawn(|| {
            let mut ends = [listener.accept().unwrap().0, TcpStream::connect(&server.name).unwrap()];
            ends.iter().for_each(|end| end.set_read_timeout(Some(Duration::from_millis(5))).unwrap());
            while !known.load(Ordering::Acquire) {
                for way in 0..2 {
                    let mut bytes = [0; 4096];
                    if let Ok(len @ 1..) = ends[way].read(&mut bytes) {
                        ends[1 - way].write_all(&bytes[..len]).unwrap();
                    }
                }
            }
            let [client, _] = ends;
            client
        });
        let link = end.provider.connect(&end.domain, &name, Duration::from_secs(20)).unwrap();
        known.store(true, Ordering::Release);
        (link, relaying.join().unwrap())
    });
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    (end.queue.attach(link).unwrap(), Raw { stream })
}

/// More than both sockets take.
const MESSAGES: usize = 64;
const MESSAGE_BYTES: usize = 512 << 10;
/// What an owner writes into what it was given back.
const POISON: u8 = 0xDB;

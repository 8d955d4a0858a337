//! Peers that shake hands and misbehave then, on a device: their own connection ends, and nobody else's.
//!
//! Everything that a peer can say on the side channel. None of it completes a request or a receive: only the
//! device does. Memory goes back when the device has reported it, or its queue pair is destroyed. Tests that need no
//! device are unit tests of the file named.
//!
//! | word | what it does here | when | hostile test |
//! |---|---|---|---|
//! | attach | points this end's queue pairs at the peer's; makes a second one where the peer shares; is answered by ready | once, and first | `garbage_ends_the_connection_of_whoever_says_it`; `said`: `everything_has_its_turn` |
//! | its numbers and address | are handed to the device | it takes them; a queue pair that nobody has ends what was sent there | `requests_to_a_queue_pair_that_nobody_has_fail` |
//! | its process | is watched: its end is the connection's | it is of this host and still there; a lie ends the liar's own connection | `process`: `the_end_of_a_process_of_this_host_is_seen_and_nobody_elses` |
//! | second | points the shared queue pair at the peer's | once, where attach had none | `said`: `everything_has_its_turn` |
//! | ready | lets posted requests go to the device | once, after attach; where it is not true they end as the device says | `requests_to_a_queue_pair_that_nobody_has_fail` |
//! | mode | chooses the queue pair of later requests | the peer shares, or says "own"; those under way end first | `whoever_talks_without_end_holds_up_nobody` |
//! | close | ends the connection, and flushes what is pending; its reason names the oldest request of its kind | what had completed is reported first; the queue pairs are destroyed before the rest is | `said`: `the_end_says_why` |
//! | part of a message | keeps 80 bytes | until the connection ends | `whoever_stops_in_the_middle_or_says_nothing_holds_up_nobody` |
//! | a tag | lets its message count | it is that of this message at this place | `channel`: `a_message_without_its_tag_or_played_back_is_garbage` |
//! | reading nothing | keeps 64 KiB, then ends the connection | | `channel`: `a_peer_that_reads_nothing_costs_a_bounded_amount` |
//! | end of the socket | as close, "the peer died" | | `whoever_stops_in_the_middle_or_says_nothing_holds_up_nobody` |

mod ends;

use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ends::{End, PATIENCE, pattern};
use overside_ibv::Options;
use overside_verbs::handshake::stream::{Patience, shake};
use overside_verbs::handshake::{Handshake, Terms};
use overside_verbs::{Listener, Opcode, QueuePair, Status, VerbsError, WorkRequest};

/// A victim with an honest peer, and the door for others.
struct Scene {
    victim: End,
    honest: End,
    ours: QueuePair,
    theirs: QueuePair,
    listener: Box<dyn Listener>,
    name: String,
}

fn scene(which: u16) -> Scene {
    let (mut victim, mut honest) = (End::new(Options::default()), End::new(Options::default()));
    let name = ends::address(which);
    let mut listener = victim.listen(&name);
    let connecting = std::thread::spawn({
        let (provider, domain, name) = (honest.provider.clone(), honest.domain.clone(), name.clone());
        move || overside_verbs::Provider::connect(&*provider, &domain, &name, PATIENCE).unwrap()
    });
    let ours = victim.accept(&mut *listener);
    let theirs = honest.queue.attach(connecting.join().unwrap()).unwrap();
    victim.receives(Some(ours), 8);
    Scene { victim, honest, ours, theirs, listener, name }
}

impl Scene {
    /// A peer that has shaken hands, and says nothing by itself.
    fn stranger(&mut self) -> (TcpStream, QueuePair) {
        let name = self.name.clone();
        let connecting = std::thread::spawn(move || {
            let stream = TcpStream::connect(name).unwrap();
            stream.set_nonblocking(true).unwrap();
            let terms = Terms { protocol: "rdma", version: 3, key: None, tags: true };
            shake(Handshake::connect(&terms, [3; 32]), &stream, Patience::new(PATIENCE)).unwrap();
            stream.set_nonblocking(false).unwrap();
            stream
        });
        let qp = self.victim.accept(&mut *self.listener);
        (connecting.join().unwrap(), qp)
    }

    /// The honest connection still carries messages.
    fn undisturbed(&mut self) {
        for i in 0..5 {
            let request = WorkRequest::send(i, self.honest.view(i, &[1000]));
            self.honest.post(self.theirs, request);
            let end = Instant::now() + PATIENCE;
            while !self.victim.done.iter().any(|done| done.opcode == Opcode::Receive) {
                self.victim.wait(Duration::from_millis(1));
                self.honest.wait(Duration::from_millis(1));
                assert!(Instant::now() < end, "the honest peer's message does not come");
            }
            assert_eq!(self.victim.message(self.ours).0, pattern(i, 1000));
            self.honest.succeeded(Opcode::Send);
        }
    }
}

/// Attach, Second, Ready, Mode: as an honest peer would say it of queue pairs that nobody has.
fn honest_words() -> Vec<u8> {
    // In the binary, for the guest has no sources. The first byte only says whether tags follow.
    include_bytes!("../fuzz/corpus/side_channel/seed-0")[1..].to_vec()
}

#[test]
fn garbage_ends_the_connection_of_whoever_says_it() {
    if !ends::device() {
        return;
    }
    let mut scene = scene(1);
    let words = honest_words();
    let twice = [&words[..64], &words[..64]].concat();
    let ready_first = words[128..192].to_vec();
    for (what, said) in [("noise", vec![0xff; 4096]), ("attached twice", twice), ("out of turn", ready_first)] {
        let (mut stranger, qp) = scene.stranger();
        stranger.write_all(&said).unwrap();
        assert_eq!(scene.victim.ended(), (qp, Status::Malformed), "{what}");
        scene.undisturbed();
    }
}

#[test]
fn whoever_stops_in_the_middle_or_says_nothing_holds_up_nobody() {
    if !ends::device() {
        return;
    }
    let mut scene = scene(2);
    let silent: Vec<_> = (0..40).map(|_| scene.stranger()).collect();
    let (mut stops, stopped) = scene.stranger();
    for byte in &honest_words()[..40] {
        stops.write_all(&[*byte]).unwrap();
        scene.victim.wait(Duration::ZERO);
    }
    scene.undisturbed();
    drop(stops);
    assert_eq!(scene.victim.ended(), (stopped, Status::PeerDied));
    drop(silent);
    for _ in 0..40 {
        assert_eq!(scene.victim.disconnected(), Status::PeerDied);
    }
    scene.undisturbed();
}

#[test]
fn whoever_talks_without_end_holds_up_nobody() {
    if !ends::device() {
        return;
    }
    let mut scene = scene(3);
    let (stranger, qp) = scene.stranger();
    let over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let talking = std::thread::spawn({
        let (mut stranger, over) = (stranger.try_clone().unwrap(), over.clone());
        move || {
            let words = honest_words();
            stranger.write_all(&words).unwrap();
            while !over.load(std::sync::atomic::Ordering::Relaxed) && stranger.write_all(&words[192..]).is_ok() {}
        }
    });
    scene.undisturbed();
    over.store(true, std::sync::atomic::Ordering::Relaxed);
    stranger.shutdown(std::net::Shutdown::Both).unwrap();
    talking.join().unwrap();
    assert_eq!(scene.victim.ended().0, qp);
    scene.undisturbed();
}

/// What was posted to a queue pair that does not exist ends with an error, not never.
#[test]
fn requests_to_a_queue_pair_that_nobody_has_fail() {
    if !ends::device() {
        return;
    }
    let mut scene = scene(4);
    let (mut stranger, qp) = scene.stranger();
    stranger.write_all(&honest_words()).unwrap();
    let mut batch = VecDeque::from([WorkRequest::send_inline(1, b"anybody?")]);
    let end = Instant::now() + PATIENCE;
    loop {
        match scene.victim.queue.post(qp, &mut batch) {
            Ok(0) => scene.victim.wait(Duration::from_millis(10)),
            Ok(_) => {
                assert_ne!(scene.victim.next(Opcode::Send).status, Status::Success);
                break;
            }
            // The post has heard what the peer said, and there is no way to such a queue pair.
            Err(error) => {
                assert!(matches!(error, VerbsError::Closed), "{error}");
                break;
            }
        }
        assert!(Instant::now() < end, "no room to post");
    }
    assert_eq!(scene.victim.ended().0, qp);
    scene.undisturbed();
}

//! Group commit, as a durable system does it: a reply that shows a change leaves once a log has that
//! change, later requests are carried out meanwhile, and no worker waits for the log.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, Mutex};

use overside_service::{BadMessage, Context, Hold, Produced, RequestOrder, Session, Ticket, Watermarks};

use super::hostile::{Raw, control};
use super::*;

/// A store of bytes by byte, and its log.
#[derive(Default)]
struct Durable {
    store: Mutex<BTreeMap<u8, (u8, u64)>>,
    log: Mutex<Log>,
    written: Condvar,
    marks: Arc<Watermarks>,
    tickets: Mutex<Vec<Ticket>>,
    /// The disk takes nothing for now.
    stuck: AtomicBool,
    ended: AtomicBool,
    sessions: AtomicU64,
}

#[derive(Default)]
struct Log {
    position: u64,
    groups: u64,
}

impl Durable {
    /// The log's thread: what came while it wrote is the next group.
    fn write(&self) {
        while !self.ended.load(Ordering::Acquire) {
            let position = {
                let mut log = self.log.lock().unwrap();
                while log.position == self.marks.reached().position || self.stuck.load(Ordering::Acquire) {
                    if self.ended.load(Ordering::Acquire) {
                        return;
                    }
                    log = self.written.wait_timeout(log, Duration::from_millis(5)).unwrap().0;
                }
                log.groups += 1;
                log.position
            };
            std::thread::sleep(Duration::from_millis(2));
            self.marks.raise(Hold { position, floor: position });
        }
    }

    fn stick(&self, stuck: bool) {
        self.stuck.store(stuck, Ordering::Release);
    }
}

struct Client {
    durable: Arc<Durable>,
    /// Of the running stream: its number, messages left, and what each waits for.
    stream: Option<(u32, u8, u64)>,
}

impl System for Durable {
    type Session = Client;

    fn session(self: &Arc<Self>) -> Client {
        self.sessions.fetch_add(1, Ordering::AcqRel);
        Client { durable: self.clone(), stream: None }
    }

    fn unfinished(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(b"lost");
    }

    fn outlives_a_panic(&self) -> bool {
        false
    }
}

impl Session for Client {
    fn opened(&mut self, context: &mut Context<'_>) {
        context.admit();
    }

    fn request(&mut self, context: &mut Context<'_>, number: u32, body: &[u8]) -> Result<(), BadMessage> {
        let durable = &self.durable;
        match *body {
            // Put: its own change must be in the log.
            [b'p', key, value] => {
                let mut store = durable.store.lock().unwrap();
                let mut log = durable.log.lock().unwrap();
                log.position += 1;
                store.insert(key, (value, log.position));
                context.hold(Hold { position: log.position, floor: 0 });
                context.reply(number, |body| body.push(value));
            }
            // Get: what it shows must be.
            [b'g', key] => {
                let (value, floor) = durable.store.lock().unwrap().get(&key).copied().unwrap_or_default();
                context.hold(Hold { position: 0, floor });
                context.reply(number, |body| body.push(value));
            }
            // A request that finishes when the test says so.
            [b'l'] => durable.tickets.lock().unwrap().push(context.later(number, RequestOrder::Replies)),
            // A stream of so many messages, each of which shows what is newest.
            [b's', count] => {
                self.stream = Some((number, count, durable.log.lock().unwrap().position));
                context.stream();
            }
            [b'x'] => panic!("planted"),
            _ => return Err(BadMessage("an unknown word")),
        }
        durable.written.notify_one();
        Ok(())
    }

    fn produce(&mut self, context: &mut Context<'_>) -> Produced {
        let Some((number, left, floor)) = &mut self.stream else { return Produced::End };
        context.hold(Hold { position: 0, floor: *floor });
        if *left > 0 {
            *left -= 1;
            context.send_bytes(vec![*left; 100]);
            return Produced::Message;
        }
        context.reply(*number, |body| body.extend_from_slice(b"end"));
        self.stream = None;
        Produced::End
    }

    fn ended(&mut self, _why: &str) {
        self.durable.sessions.fetch_sub(1, Ordering::AcqRel);
    }
}

fn with_log(transport: &str, run: impl FnOnce(&Arc<Durable>, &Bench<Durable>)) {
    let durable = Arc::new(Durable::default());
    let options = ServiceOptions { watermarks: Some(durable.marks.clone()), ..one_worker() };
    let bench = Bench::start(transport, &durable, options);
    let log = {
        let durable = durable.clone();
        std::thread::spawn(move || durable.write())
    };
    run(&durable, &bench);
    durable.ended.store(true, Ordering::Release);
    log.join().unwrap();
}

#[test]
fn nothing_that_is_not_durable_is_shown_and_nothing_waits_that_need_not() {
    with_log("shm", |durable, bench| {
        let (mut writer, mut reader) = (bench.client(), bench.client());
        assert_eq!(ask(&mut writer, b"pa1"), b"1");
        durable.stick(true);
        let put = send(&mut writer, b"pa2");
        let own = send(&mut writer, b"gb");
        until("it is carried out", || durable.store.lock().unwrap()[&b'a'].0 == b'2');
        // What another reads is held as well, unless it shows nothing new.
        let shown = send(&mut reader, b"ga");
        silent(&mut writer, Duration::from_millis(30));
        silent(&mut reader, Duration::from_millis(30));
        assert_eq!(ask(&mut bench.client(), b"gb"), [0], "the worker waits for no log");
        durable.stick(false);
        assert_eq!(reply(&mut reader), (shown, b"2".to_vec()));
        assert_eq!(reply(&mut writer), (put, b"2".to_vec()));
        assert_eq!(reply(&mut writer), (own, vec![0]), "in order");
    });
}

/// Of both marks, and of several replies each its own.
#[test]
fn each_reply_waits_for_its_own_marks() {
    with_log("shm", |durable, bench| {
        let (mut writer, mut reader) = (bench.client(), bench.client());
        durable.stick(true);
        let puts = [b"pa1", b"pb2"].map(|body| send(&mut writer, body));
        until("both are carried out", || durable.log.lock().unwrap().position == 2);
        let shown = [b"ga", b"gb"].map(|body| send(&mut reader, body));
        durable.marks.raise(Hold { position: 1, floor: 0 });
        assert_eq!(reply(&mut writer), (puts[0], b"1".to_vec()));
        silent(&mut writer, Duration::from_millis(20));
        durable.marks.raise(Hold { position: 2, floor: 0 });
        assert_eq!(reply(&mut writer), (puts[1], b"2".to_vec()));
        silent(&mut reader, Duration::from_millis(20));
        durable.marks.raise(Hold { position: 0, floor: 1 });
        assert_eq!(reply(&mut reader), (shown[0], b"1".to_vec()));
        silent(&mut reader, Duration::from_millis(20));
        durable.marks.raise(Hold { position: 0, floor: 2 });
        assert_eq!(reply(&mut reader), (shown[1], b"2".to_vec()));
    });
}

/// Clients with many puts outstanding share groups.
#[test]
fn puts_share_groups_and_are_answered_in_order() {
    const CLIENTS: u8 = 4;
    const PUTS: u8 = 250;
    for transport in TRANSPORTS {
        with_log(transport, |durable, bench| {
            std::thread::scope(|scope| {
                for client in 0..CLIENTS {
                    scope.spawn(move || {
                        let mut link = bench.client();
                        let numbers: Vec<u32> =
                            (0..PUTS).map(|value| send(&mut link, &[b'p', client, value])).collect();
                        for (value, number) in numbers.into_iter().enumerate() {
                            assert_eq!(reply(&mut link), (number, vec![value as u8]));
                        }
                    });
                }
            });
            let log = durable.log.lock().unwrap();
            assert_eq!(log.position, u64::from(CLIENTS) * u64::from(PUTS));
            assert!(log.groups <= log.position / 4, "{} groups for {} puts", log.groups, log.position);
        });
    }
}

/// A put alone on a worker that has gone to sleep over it: the log wakes the worker.
#[test]
fn a_sleeping_worker_is_woken_for_what_it_holds() {
    for transport in TRANSPORTS {
        with_log(transport, |durable, bench| {
            let mut link = bench.client();
            durable.stick(true);
            let put = send(&mut link, b"pa1");
            until("it is carried out", || durable.log.lock().unwrap().position == 1);
            silent(&mut link, Duration::from_millis(100));
            durable.stick(false);
            let start = Instant::now();
            assert_eq!(reply(&mut link), (put, b"1".to_vec()));
            assert!(start.elapsed() < PATIENCE / 3, "the sweep is not what woke it: {:?}", start.elapsed());
        });
    }
}

/// What finishes later, what is held and what streams keep the order of their requests.
#[test]
fn held_replies_keep_their_place_among_later_ones_and_streams() {
    with_log("shm", |durable, bench| {
        let mut link = bench.client();
        durable.stick(true);
        let bodies: [&[u8]; 5] = [b"pa1", b"l", b"pa2", b"gb", &[b's', 200]];
        let numbers = bodies.map(|body| send(&mut link, body));
        until("all are carried out", || durable.log.lock().unwrap().position == 2);
        until("its ticket is there", || !durable.tickets.lock().unwrap().is_empty());
        durable.tickets.lock().unwrap().remove(0).complete(|body| body.push(b'l'));
        silent(&mut link, Duration::from_millis(30));
        durable.stick(false);
        for (number, expected) in numbers.iter().zip([b"1", b"l", b"2", b"\0"]) {
            assert_eq!(reply(&mut link), (*number, expected.to_vec()));
        }
        for left in (0..200).rev() {
            assert_eq!(link.message().unwrap().as_ref(), [left; 100]);
        }
        assert_eq!(reply(&mut link), (numbers[4], b"end".to_vec()));
        // A stream that runs meanwhile waits for what it shows, message by message.
        durable.stick(true);
        let put = send(&mut link, b"pa3");
        let stream = send(&mut link, &[b's', 3]);
        silent(&mut link, Duration::from_millis(30));
        durable.stick(false);
        assert_eq!(reply(&mut link), (put, b"3".to_vec()));
        for left in (0..3).rev() {
            assert_eq!(link.message().unwrap().as_ref(), [left; 100]);
        }
        assert_eq!(reply(&mut link), (stream, b"end".to_vec()));
    });
}

#[test]
fn what_is_held_is_bounded_and_goes_with_its_client() {
    with_log("shm", |durable, bench| {
        let mut honest = bench.client();
        durable.stick(true);
        let mut greedy = Raw::new(bench);
        let put = control(b"pz1");
        until("it is cut off", || {
            while greedy.send(&put) {}
            greedy.ended()
        });
        let vanishing = bench.provider.clone();
        let mut gone = Link::connect(vanishing, &bench.name, LinkOptions::default()).unwrap();
        let before = durable.log.lock().unwrap().position;
        assert!((8192..20_000).contains(&before), "{before} were let through");
        send(&mut gone, b"py1");
        until("it is carried out", || durable.log.lock().unwrap().position == before + 1);
        drop(gone);
        until("both are gone", || durable.sessions.load(Ordering::Acquire) == 1);
        durable.stick(false);
        assert_eq!(ask(&mut honest, b"pa1"), b"1");
    });
}

#[test]
fn a_server_stops_while_it_holds() {
    with_log("shm", |durable, bench| {
        let mut link = bench.client();
        durable.stick(true);
        send(&mut link, b"pa1");
        until("it is carried out", || durable.log.lock().unwrap().position == 1);
        // The bench is dropped with the reply held, and the log goes on.
        let options = ServiceOptions { watermarks: Some(durable.marks.clone()), ..one_worker() };
        let other = Bench::start("shm", durable, options);
        let mut held = other.client();
        send(&mut held, b"pb1");
        until("it is carried out", || durable.log.lock().unwrap().position == 2);
        other.server.shutdown();
        ended(&mut held);
        durable.stick(false);
        assert_eq!(reply(&mut link).1, b"1");
    });
}

/// A system that a panic may have left with a change half made is not served on.
#[test]
fn a_panic_ends_a_server_whose_system_does_not_outlive_it() {
    let failed = Arc::new(Mutex::new(None));
    let told = failed.clone();
    let on_failure = overside_service::OnFailure::new(move |why| *told.lock().unwrap() = Some(why.to_owned()));
    let durable = Arc::new(Durable::default());
    let bench = Bench::start("shm", &durable, ServiceOptions { on_failure: Some(on_failure), ..one_worker() });
    let mut link = bench.client();
    send(&mut link, b"x");
    ended(&mut link);
    until("its owner is told", || failed.lock().unwrap().is_some());
    let why = failed.lock().unwrap().clone().unwrap();
    assert!(why.contains("in the middle of a change; start the server again"), "{why}");
}

//! Group commit, as a durable system does it: a reply that shows a change leaves once a log has that
//! change, later requests are carried out meanwhile, and no worker waits for the log.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, Mutex};

use overside_service::{BadMessage, Context, Order, Session, SessionWaker, Ticket};

use super::*;

/// A store of bytes by byte, and its log.
#[derive(Default)]
struct Durable {
    store: Mutex<BTreeMap<u8, (u8, u64)>>,
    log: Mutex<Log>,
    written: Condvar,
    /// Position up to which the log is on its disk.
    durable: AtomicU64,
    /// The disk takes nothing for now.
    stuck: AtomicBool,
    ended: AtomicBool,
}

#[derive(Default)]
struct Log {
    position: u64,
    /// Sessions with a reply that waits for a position.
    waiting: Vec<SessionWaker>,
    groups: u64,
}

impl Durable {
    /// The log's thread: what came while it wrote is the next group.
    fn write(&self) {
        while !self.ended.load(Ordering::Acquire) {
            let (position, waiting) = {
                let mut log = self.log.lock().unwrap();
                while log.position == self.durable.load(Ordering::Acquire) || self.stuck.load(Ordering::Acquire) {
                    if self.ended.load(Ordering::Acquire) {
                        return;
                    }
                    log = self.written.wait_timeout(log, Duration::from_millis(5)).unwrap().0;
                }
                log.groups += 1;
                (log.position, std::mem::take(&mut log.waiting))
            };
            std::thread::sleep(Duration::from_millis(2));
            self.durable.store(position, Ordering::Release);
            waiting.iter().for_each(SessionWaker::wake);
        }
    }
}

struct Client {
    durable: Arc<Durable>,
    /// Replies in the order of their requests, with the position that each waits for.
    held: VecDeque<(u64, Ticket, u8)>,
}

impl System for Durable {
    type Session = Client;

    fn session(self: &Arc<Self>) -> Client {
        Client { durable: self.clone(), held: VecDeque::new() }
    }

    fn unfinished(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(b"lost");
    }
}

impl Client {
    /// Replies once the log has reached a position.
    fn reply(&mut self, context: &mut Context<'_>, number: u32, value: u8, position: u64) {
        if position <= self.durable.durable.load(Ordering::Acquire) {
            return context.reply(number, |body| body.push(value));
        }
        let mut log = self.durable.log.lock().unwrap();
        log.waiting.push(context.waker());
        self.held.push_back((position, context.later(number, Order::Replies), value));
        drop(log);
        self.durable.written.notify_one();
    }
}

impl Session for Client {
    fn opened(&mut self, context: &mut Context<'_>) {
        context.admit();
    }

    fn request(&mut self, context: &mut Context<'_>, number: u32, body: &[u8]) -> Result<(), BadMessage> {
        let durable = self.durable.clone();
        let (value, position) = match *body {
            [b'p', key, value] => {
                let mut store = durable.store.lock().unwrap();
                let position = {
                    let mut log = durable.log.lock().unwrap();
                    log.position += 1;
                    log.position
                };
                store.insert(key, (value, position));
                (value, position)
            }
            [b'g', key] => durable.store.lock().unwrap().get(&key).copied().unwrap_or_default(),
            _ => return Err(BadMessage("neither put nor get")),
        };
        self.reply(context, number, value, position);
        Ok(())
    }

    fn woken(&mut self, context: &mut Context<'_>) -> Result<(), BadMessage> {
        let durable = self.durable.durable.load(Ordering::Acquire);
        while self.held.front().is_some_and(|(position, ..)| *position <= durable) {
            if let Some((_, ticket, value)) = self.held.pop_front() {
                context.complete(ticket, |body| body.push(value));
            }
        }
        if !self.held.is_empty() {
            self.durable.log.lock().unwrap().waiting.push(context.waker());
        }
        Ok(())
    }
}

fn with_log(transport: &str, run: impl FnOnce(&Arc<Durable>, &Bench<Durable>)) {
    let durable = Arc::new(Durable::default());
    let bench = Bench::start(transport, &durable, one_worker());
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
        durable.stuck.store(true, Ordering::Release);
        let put = send(&mut writer, b"pa2");
        let own = send(&mut writer, b"gb");
        until("it is carried out", || durable.store.lock().unwrap()[&b'a'].0 == b'2');
        // What another reads is held as well, unless it shows nothing new.
        let shown = send(&mut reader, b"ga");
        silent(&mut writer, Duration::from_millis(30));
        silent(&mut reader, Duration::from_millis(30));
        assert_eq!(ask(&mut bench.client(), b"gb"), [0], "the worker waits for no log");
        durable.stuck.store(false, Ordering::Release);
        assert_eq!(reply(&mut reader), (shown, b"2".to_vec()));
        assert_eq!(reply(&mut writer), (put, b"2".to_vec()));
        assert_eq!(reply(&mut writer), (own, vec![0]), "in order");
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
            assert_eq!(bench.server.statistics().unfinished, 0);
        });
    }
}

//! A server that echoes, an honest client beside whatever is done to it, and a peer that says what it likes.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Segment, View, Window};
use overside_tcp::{Options, TcpProvider};
use overside_verbs::handshake::Key;
use overside_verbs::*;

/// An address of this host that nobody else uses.
pub fn fresh_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (process, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let port = 12_000 + (u64::from(process) * 131 + next * 7) % 18_000;
    format!("127.{}.{}.{}:{port}", 20 + next % 200, process >> 8 & 255, 1 + process % 254)
}

pub fn options(key: Option<&[u8]>) -> Options {
    Options { key: key.map(|key| Key::from_bytes(key).unwrap()), ..Options::default() }
}

/// A queue with its provider.
pub struct End {
    pub provider: Arc<TcpProvider>,
    pub domain: ProtectionDomain,
    pub queue: CompletionQueue,
}

impl End {
    pub fn new(options: Options) -> Self {
        let provider = TcpProvider::with_options(options);
        let domain = provider.allocate_domain().unwrap();
        let ports = PortOptions { shared_receives: RECEIVES, ..PortOptions::default() };
        let queue = CompletionQueue::new(provider.open_port(&domain, ports).unwrap());
        Self { provider, domain, queue }
    }

    pub fn connect(&mut self, name: &str) -> Result<QueuePair, VerbsError> {
        let link = self.provider.connect(&self.domain, name, Duration::from_secs(20))?;
        self.queue.attach(link)
    }

    /// Sends one message and waits for its echo.
    pub fn echo(&mut self, qp: QueuePair, message: &[u8]) {
        let mut buffers = vec![(7, Segment::private(4096).unwrap().carve(4096).pop().unwrap())];
        self.queue.post_receive(Some(qp), &mut buffers).unwrap();
        let mut batch = VecDeque::from([WorkRequest::send_inline(3, message)]);
        let (mut done, end) = (Vec::new(), Instant::now() + PATIENCE);
        while done.len() < 2 || !batch.is_empty() {
            self.queue.post(qp, &mut batch).unwrap();
            self.queue.poll_wait(&mut done, Some(Duration::from_millis(100))).unwrap();
            assert!(Instant::now() < end, "no echo; {done:?}, {:?}", self.queue.next_event());
        }
        let echoed = done.iter().find_map(|c| c.buffer.as_ref().map(|b| &b[..c.bytes as usize]));
        assert_eq!(echoed, Some(message), "{done:?}");
    }
}

/// Echoes every message; keeps what its port says about connections that ended, and messages of eight bytes.
pub struct Server {
    pub name: String,
    pub window: Arc<Window>,
    /// The same window, under keys that allow one thing each.
    pub readable: RemoteToken,
    pub writable: RemoteToken,
    pub atomic: RemoteToken,
    noted: Arc<Noted>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Noted {
    ended: Mutex<Vec<(Status, String)>>,
    numbers: Mutex<Vec<u64>>,
}

impl Server {
    pub fn start(name: &str, options: Options) -> Self {
        let mut end = End::new(options);
        let window = Arc::new(Window::new(WINDOW_BYTES).unwrap());
        let token =
            |access| end.provider.register(&end.domain, &Memory::Window(window.clone()), access).unwrap().token();
        let (readable, writable) = (token(Access::REMOTE_READ), token(Access::REMOTE_WRITE));
        let atomic = token(Access::REMOTE_ATOMIC);
        let (stop, noted) = (Arc::new(AtomicBool::new(false)), Arc::new(Noted::default()));
        let mut listener = end.provider.listen(&end.domain, name).unwrap();
        let (links, arrived) = channel();
        let accepting = {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    if let Some(link) = listener.accept(Duration::from_millis(50)).unwrap() {
                        links.send(link).unwrap();
                    }
                }
            })
        };
        let serving = {
            let (stop, noted) = (stop.clone(), noted.clone());
            std::thread::spawn(move || serve(&mut end, &arrived, &stop, &noted))
        };
        let threads = vec![accepting, serving];
        Self { name: name.to_owned(), window, readable, writable, atomic, noted, stop, threads }
    }

    /// Waits for a connection that ended like this, and takes it off the list.
    pub fn ended(&self, status: Status, reason: &str) {
        self.ended_one_way(&[(status, reason)]);
    }

    /// Waits for a connection that ended in one of these ways, and takes it off the list.
    pub fn ended_one_way(&self, ways: &[(Status, &str)]) {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut ended = self.noted.ended.lock().unwrap();
            let so = |(s, why): &(Status, String)| ways.iter().any(|(status, way)| s == status && why.contains(way));
            if let Some(at) = ended.iter().position(so) {
                ended.swap_remove(at);
                return;
            }
            assert!(Instant::now() < end, "none ended as {ways:?}: {ended:?}");
            drop(ended);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Server {
    /// The numbers that have come, in the order of their coming, once there are so many: what has been placed is seen a little later.
    pub fn numbers(&self, atleast: usize) -> Vec<u64> {
        let end = Instant::now() + PATIENCE;
        loop {
            let numbers = self.noted.numbers.lock().unwrap().clone();
            if numbers.len() >= atleast {
                return numbers;
            }
            assert!(Instant::now() < end, "{} of {atleast} numbers came", numbers.len());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "a thread of the server failed");
        }
    }
}

fn serve(end: &mut End, arrived: &Receiver<Link>, stop: &AtomicBool, noted: &Noted) {
    let buffers = Segment::private(RECEIVES * RECEIVE_BYTES).unwrap().carve(RECEIVE_BYTES);
    let mut spare: Vec<(u64, Buffer)> = buffers.into_iter().map(|b| (0, b)).collect();
    let (mut done, mut answers) = (Vec::new(), Vec::<(QueuePair, VecDeque<WorkRequest>)>::new());
    while !stop.load(Ordering::Acquire) {
        arrived.try_iter().for_each(|link| _ = end.queue.attach(link).unwrap());
        end.queue.post_receive(None, &mut spare).unwrap();
        end.queue.poll_wait(&mut done, Some(Duration::from_millis(5))).unwrap();
        for done in done.drain(..) {
            let (Some(buffer), Some(qp)) = (done.buffer, done.queue_pair) else { continue };
            if done.status == Status::Success && done.opcode == Opcode::Receive {
                let message = &buffer[..done.bytes as usize];
                answers.push((qp, VecDeque::from([WorkRequest::send_inline(0, message)])));
                let number = message.try_into().map(u64::from_le_bytes);
                noted.numbers.lock().unwrap().extend(number);
            }
            spare.push((0, buffer));
        }
        // Whoever has gone gets no answer.
        answers.retain_mut(|(qp, answer)| end.queue.post(*qp, answer).is_ok() && !answer.is_empty());
        while let Some(PortEvent::Disconnected { queue_pair, status, reason }) = end.queue.next_event() {
            noted.ended.lock().unwrap().push((status, reason));
            end.queue.close(queue_pair);
        }
    }
}

/// An honest client on a thread of its own that says and hears one message after the other.
pub struct Bystander {
    trips: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Bystander {
    pub fn start(name: &str, options: Options) -> Self {
        let (trips, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (name, counted, ends) = (name.to_owned(), trips.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut end = End::new(options);
            let qp = end.connect(&name).unwrap();
            while !ends.load(Ordering::Acquire) {
                end.echo(qp, b"all is well");
                counted.fetch_add(1, Ordering::Release);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self { trips, stop, thread: Some(thread) }
    }

    /// It goes on: waits until ten more of its messages have come back.
    pub fn goes_on(&self) {
        let (before, end) = (self.trips.load(Ordering::Acquire), Instant::now() + PATIENCE);
        while self.trips.load(Ordering::Acquire) < before + 10 {
            let ended = self.thread.as_ref().is_some_and(JoinHandle::is_finished);
            assert!(!ended && Instant::now() < end, "the bystander is disturbed");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))) || std::thread::panicking(), "the bystander failed");
    }
}

/// A client that sends numbers, as many at a time as its queue pair takes, and knows which of them have arrived.
pub struct Counting {
    end: End,
    qp: QueuePair,
    next: u64,
    batch: VecDeque<WorkRequest>,
    pub arrived: Vec<u64>,
    pub failed: Vec<(u64, Status)>,
    pub ended: Option<(Status, String)>,
}

impl Counting {
    pub fn start(connect: impl FnOnce(&mut End) -> Result<QueuePair, VerbsError>, key: Option<&[u8]>) -> Self {
        let mut end = End::new(options(key));
        let qp = connect(&mut end).unwrap();
        let (batch, arrived, failed) = (VecDeque::new(), Vec::new(), Vec::new());
        Self { end, qp, next: 0, batch, arrived, failed, ended: None }
    }

    pub fn posted(&self) -> u64 {
        self.next - self.batch.len() as u64
    }

    pub fn reported(&self) -> u64 {
        (self.arrived.len() + self.failed.len()) as u64
    }

    /// Sends and looks what has become of it until `until` says that it is enough.
    pub fn run(&mut self, until: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !until(self) {
            if self.batch.is_empty() && self.next < NUMBERS {
                self.batch.push_back(WorkRequest::send_inline(self.next, &self.next.to_le_bytes()));
                self.next += 1;
            }
            let mut done = Vec::new();
            let gone = self.end.queue.post(self.qp, &mut self.batch).is_err();
            let busy = !gone && self.batch.is_empty() && self.next < NUMBERS;
            let wait = Duration::from_millis(if busy { 0 } else { 20 });
            self.end.queue.poll_wait(&mut done, Some(wait)).unwrap();
            for done in done {
                match done.status {
                    Status::Success => self.arrived.push(done.id),
                    status => self.failed.push((done.id, status)),
                }
            }
            if let Some(PortEvent::Disconnected { status, reason, .. }) = self.end.queue.next_event() {
                self.ended = Some((status, reason));
            }
            assert!(Instant::now() < deadline, "{} of {} arrived, {:?}", self.arrived.len(), self.next, self.ended);
        }
    }

    /// After its end: each request is reported once, as having arrived or as `status`, and what the server has is what the client says
    /// of it.
    pub fn accounts_for_all(&mut self, server: &Server, status: Status) {
        self.run(|client| client.reported() >= client.posted());
        let (posted, (_, reason)) = (self.posted(), self.ended.clone().unwrap());
        assert_eq!(self.reported(), posted, "each is reported once");
        assert!(!self.failed.is_empty() && self.failed.iter().all(|(_, failed)| *failed == status), "{reason}");
        // What is reported as arrived has arrived.
        let numbers = server.numbers(self.arrived.len());
        assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "in order, once each: {numbers:?}");
        // Those that the client says did not leave have not come.
        let not = reason.split("effect and ").nth(1).and_then(|rest| rest.split(' ').next());
        let not: u64 = not.and_then(|not| not.parse().ok()).unwrap_or_else(|| panic!("{reason}"));
        assert!(numbers.len() as u64 <= posted - not, "{} of {posted} came; {reason}", numbers.len());
    }
}

/// One that nobody calls in, and that has no thread.
fn still(key: Option<&[u8]>) -> End {
    End::new(Options { progress: false, ..options(key) })
}

/// Two connected ends, and WRITEs from the first into the second's memory: more than both sockets take.
pub struct Flood {
    pub from: End,
    pub to: End,
    _region: MemoryRegion,
    pub qp: QueuePair,
    pub ended: Option<(Status, String)>,
    pub done: Vec<WorkCompletion>,
    pub posted: usize,
}

impl Flood {
    pub fn start(name: &str, key: Option<&[u8]>, mut connect: impl FnMut(&mut End) -> QueuePair) -> Self {
        let (mut from, mut to) = (End::new(options(key)), still(key));
        let window = Arc::new(Window::new(WRITE_BYTES).unwrap());
        let region = to.provider.register(&to.domain, &Memory::Window(window), Access::REMOTE_WRITE).unwrap();
        let mut listener = to.provider.listen(&to.domain, name).unwrap();
        let (qp, link) = std::thread::scope(|scope| {
            let accepting = scope.spawn(move || {
                let end = Instant::now() + PATIENCE;
                loop {
                    if let Some(link) = listener.accept(Duration::from_millis(50)).unwrap() {
                        return link;
                    }
                    assert!(Instant::now() < end, "nobody connects");
                }
            });
            (connect(&mut from), accepting.join().unwrap())
        });
        to.queue.attach(link).unwrap();
        let bytes = Arc::new(vec![7u8; WRITE_BYTES]);
        let remote = Remote::<Writable>::new(region.token());
        let mut batch: VecDeque<WorkRequest> =
            (0..WRITES).map(|i| WorkRequest::write(i, View::foreign(bytes.clone()), remote)).collect();
        let posted = from.queue.post(qp, &mut batch).unwrap();
        assert!(posted * WRITE_BYTES > 24 << 20, "{posted} were taken");
        Self { from, to, _region: region, qp, ended: None, done: Vec::new(), posted }
    }

    pub fn look(&mut self) {
        self.from.queue.poll_wait(&mut self.done, Some(Duration::from_millis(20))).unwrap();
        if let Some(PortEvent::Disconnected { status, reason, .. }) = self.from.queue.next_event() {
            self.ended = Some((status, reason));
        }
    }
}

/// A peer that says what it likes: `docs/reference/wire.md` written down a second time.
pub struct Raw {
    pub stream: TcpStream,
}

impl Raw {
    /// Connected and not known.
    pub fn dial(name: &str) -> Self {
        let stream = TcpStream::connect(name).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream }
    }

    /// After a handshake without a key.
    pub fn shake(name: &str) -> Self {
        Self::prove(name, 0, &[0; 32])
    }

    /// After a handshake with one; its frames have to carry tags.
    pub fn shake_with(name: &str, secret: &[u8]) -> Self {
        Self::prove(name, 3, &blake3::derive_key("overside 2 pre-shared key", secret))
    }

    fn prove(name: &str, flags: u32, key: &[u8; 32]) -> Self {
        let mut raw = Self::dial(name);
        let greeting = greeting(flags);
        raw.stream.write_all(&greeting).unwrap();
        let answer: [u8; 64] = raw.hear();
        raw.stream.write_all(&proof("connector", key, &greeting, &answer)).unwrap();
        assert_eq!(raw.hear::<32>()[..], proof("listener", key, &greeting, &answer));
        raw
    }

    pub fn hear<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Sends a frame; whoever is disconnected meanwhile says nothing.
    pub fn say(&mut self, kind: u8, len: u32, words: &[u64], payload: &[u8]) {
        _ = self.stream.write_all(&[&head(kind, len, words), payload].concat());
    }

    /// The next frame that is no acknowledgement: its kind, words and payload.
    pub fn frame(&mut self) -> (u8, Vec<u64>, Vec<u8>) {
        loop {
            let head: [u8; 24] = self.hear();
            let words = match head[0] {
                8 | 11 | 13 => 1,
                14 => 2,
                _ => 0,
            };
            let words: Vec<u64> = (0..words).map(|_| u64::from_le_bytes(self.hear())).collect();
            let mut payload = vec![0; u32::from_le_bytes(std::array::from_fn(|i| head[8 + i])) as usize];
            self.stream.read_exact(&mut payload).unwrap();
            if head[0] != ACK {
                return (head[0], words, payload);
            }
        }
    }

    /// Waits until the server has hung up, whatever it says before.
    pub fn is_hung_up_on(&mut self) {
        let (mut sink, end) = ([0; 4096], Instant::now() + PATIENCE);
        while !matches!(self.stream.read(&mut sink), Ok(0) | Err(_)) {
            assert!(Instant::now() < end, "it is still connected");
        }
    }
}

pub fn greeting(flags: u32) -> Vec<u8> {
    [&b"overside"[..], &4u32.to_le_bytes(), &flags.to_le_bytes(), &[7; 32], b"tcp", &[0; 13]].concat()
}

/// A role's proof of a key over both greetings.
pub fn proof(role: &str, key: &[u8; 32], connector: &[u8], listener: &[u8]) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&(role.len() as u64).to_le_bytes()).update(role.as_bytes()).update(connector).update(listener);
    hasher.finalize().as_bytes().to_vec()
}

/// A head that acknowledges nothing and grants nothing.
pub fn head(kind: u8, len: u32, words: &[u64]) -> Vec<u8> {
    let mut head = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    head.extend(len.to_le_bytes());
    head.extend([0; 12]);
    words.iter().for_each(|word| head.extend(word.to_le_bytes()));
    head
}

/// The key of these tests.
pub const SECRET: &[u8] = b"f552cc5023d8319aea1181f76f3adcbdc189941acf780de956fe5d1483d7a598";
pub const SEND: u8 = 1;
pub const WRITE: u8 = 2;
pub const WRITE_MORE: u8 = 3;
pub const READ: u8 = 4;
pub const FETCH_ADD: u8 = 5;
pub const COMPARE_SWAP: u8 = 6;
pub const DATA: u8 = 7;
pub const VALUE: u8 = 8;
pub const REFUSED: u8 = 9;
pub const ACK: u8 = 10;
pub const WANT: u8 = 11;
pub const RECALL: u8 = 12;
pub const RETURN: u8 = 13;
pub const BYE: u8 = 14;
pub const WINDOW_BYTES: usize = 4096;
pub const RECEIVE_BYTES: usize = 4096;
pub const RECEIVES: usize = 64;
/// On a machine with other things to do.
pub const PATIENCE: Duration = Duration::from_secs(40);
/// What a counting client says.
pub const NUMBERS: u64 = 20_000;
/// What a flood writes, and how often.
const WRITE_BYTES: usize = 1 << 20;
const WRITES: u64 = 48;

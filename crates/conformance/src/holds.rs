//! Holds whose end is anything: they are their maker's code, and a queue releases them while it
//! polls.
//!
//! [`check`] sends messages whose holds panic, post to the other end, find their own queue lent,
//! deregister memory, and open and close ports of the same provider. All the same each message
//! arrives once and in order, each report comes, and each hold is released once. [`check_waiting`]
//! sends one that waits for its receive, and looks how long it is held.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Segment, View};
use overside_shape::Shape;
use overside_verbs::{
    Access, CompletionQueue, Memory, MemoryRegion, Opcode, PortOptions, ProtectionDomain, Provider, QueuePair, Status,
    VerbsError, WorkCompletion, WorkRequest,
};

use crate::Harness;
use crate::declared::Failure;

/// One end of a connection, with what it has received.
struct End {
    queue: CompletionQueue,
    pair: QueuePair,
    came: Vec<Vec<u8>>,
    sent: Vec<u64>,
    /// Receives that are not posted yet.
    spare: Vec<(u64, Buffer)>,
    /// What it receives into stays registered.
    _region: MemoryRegion,
}

type Shared = Arc<Mutex<End>>;

/// What the hold of a message does at its end.
struct Deed {
    number: u64,
    provider: Arc<dyn Provider>,
    domain: ProtectionDomain,
    ends: [Shared; 2],
    region: Option<MemoryRegion>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    released: AtomicUsize,
    answered: AtomicUsize,
    failed: AtomicUsize,
}

impl AsRef<[u8]> for Deed {
    fn as_ref(&self) -> &[u8] {
        b"!"
    }
}

impl Drop for Deed {
    fn drop(&mut self) {
        self.counts.released.fetch_add(1, Ordering::Relaxed);
        match self.act() {
            Ok(answered) => _ = self.counts.answered.fetch_add(usize::from(answered), Ordering::Relaxed),
            Err(_) => _ = self.counts.failed.fetch_add(1, Ordering::Relaxed),
        }
        assert!(!self.number.is_multiple_of(DEEDS), "planted: the hold of message {}", self.number);
    }
}

impl Deed {
    /// Whether it sent a message back.
    fn act(&mut self) -> Result<bool, VerbsError> {
        match self.number % DEEDS {
            1 => return post_now(&self.ends[1]),
            // Its own queue is lent to `poll`.
            2 => return post_now(&self.ends[0]),
            3 => self.region.take().map_or(Ok(()), |region| self.provider.deregister(region))?,
            4 => drop(CompletionQueue::new(self.provider.open_port(&self.domain, PortOptions::default())?)),
            _ => {}
        }
        Ok(false)
    }
}

/// Sends a byte from an end that nobody has; whether one was sent.
fn post_now(end: &Shared) -> Result<bool, VerbsError> {
    let mut end = match end.try_lock() {
        Ok(end) => end,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return Ok(false),
    };
    let pair = end.pair;
    end.queue.post_inline(pair, ANSWER, b"?", None, true)
}

/// Sends messages with such holds over a connection of the provider.
///
/// # Errors
/// When a message, a report or the release of a hold is missing, comes twice or out of order.
pub fn check(harness: &dyn Harness) -> Result<(), Failure> {
    let Connected { provider, domain, ends, other: _other } = connect(harness, RECEIVES)?;
    let ends = ends.map(|end| Arc::new(Mutex::new(end)));

    let memory = Arc::new(patterned()?);
    let segment = Memory::Segment(memory.segment().clone());
    let _region = provider.register(&domain, &segment, Access::LOCAL)?;
    let counts = Arc::new(Counts::default());
    let request = |number: u64| -> Result<WorkRequest, Failure> {
        let region = Some(provider.register(&domain, &segment, Access::LOCAL)?);
        let (ends, counts) = (ends.clone(), counts.clone());
        let deed = Deed { number, provider: provider.clone(), domain: domain.clone(), ends, region, counts };
        let view = View::of(&memory, &Shape::contiguous(number, MESSAGE_BYTES)?)?.then(View::foreign(Arc::new(deed)));
        let request = WorkRequest::send(number, view);
        // The last one is reported, so that all holds end.
        Ok(if number % 4 == 3 || number + 1 == MESSAGES { request } else { request.unsignalled() })
    };
    let mut batch = (0..MESSAGES).map(request).collect::<Result<VecDeque<_>, _>>()?;
    let end = Instant::now() + LIMIT;
    let mut panics = 0;
    while !done(&ends, &counts) {
        let pair = lock(&ends[0]).pair;
        lock(&ends[0]).queue.post(pair, &mut batch)?;
        for end in &ends {
            panics += usize::from(catch_unwind(AssertUnwindSafe(|| lock(end).progress())).is_err());
        }
        if Instant::now() > end {
            return Err(format!("not all came in time: {}", seen(&ends, &counts)).into());
        }
    }
    verify(&ends, &counts, &memory)?;
    if panics == 0 || panics > MESSAGES.div_ceil(DEEDS) as usize {
        return Err(format!("{panics} polls panicked").into());
    }
    Ok(())
}

/// Sends a message that nobody has a receive for, from memory that its sender keeps no more.
///
/// # Errors
/// When the memory is let go before the end of the request is reported, or not then; or when other
/// bytes come (to-copy §5.5 TC-M13).
pub fn check_waiting(harness: &dyn Harness) -> Result<(), Failure> {
    let Connected { provider, domain, ends: [mut one, mut two], other: _other } = connect(harness, 0)?;
    let memory = Arc::new(patterned()?);
    let expected = memory[..MESSAGE_BYTES as usize].to_vec();
    let region = provider.register(&domain, &Memory::Segment(memory.segment().clone()), Access::LOCAL)?;
    let view = View::of(&memory, &Shape::contiguous(0, MESSAGE_BYTES)?)?;
    let (mut batch, held) = (VecDeque::from([WorkRequest::send(0, view)]), Arc::downgrade(&memory));
    drop(memory);
    let begun = Instant::now();
    while two.came.is_empty() || one.sent.is_empty() {
        one.queue.post(one.pair, &mut batch)?;
        one.progress();
        two.progress();
        if one.sent.is_empty() && held.strong_count() == 0 {
            return Err("what is under way is not held".into());
        }
        if begun.elapsed() > UNTAKEN {
            two.queue.post_receive(Some(two.pair), &mut two.spare)?;
        } else if !one.sent.is_empty() {
            return Err("a message that nobody has taken has ended".into());
        }
        if begun.elapsed() > LIMIT {
            return Err(format!("{} messages came, {} ends were reported", two.came.len(), one.sent.len()).into());
        }
    }
    provider.deregister(region)?;
    if two.came != [expected] || held.strong_count() > 0 {
        return Err(format!("other bytes came, or they are held {} times", held.strong_count()).into());
    }
    Ok(())
}

/// A connection.
struct Connected {
    provider: Arc<dyn Provider>,
    domain: ProtectionDomain,
    ends: [End; 2],
    other: Arc<dyn Provider>,
}

/// Both ends post so many receives at first.
fn connect(harness: &dyn Harness, receives: usize) -> Result<Connected, Failure> {
    let (provider, other) = (harness.provider(), harness.provider());
    let (domain, others) = (provider.allocate_domain()?, other.allocate_domain()?);
    let name = harness.name();
    let mut listener = provider.listen(&domain, &name)?;
    let connecting = std::thread::spawn(move || {
        let link = other.connect(&others, &name, LIMIT)?;
        Ok::<_, VerbsError>((End::new(&*other, &others, link, receives)?, other))
    });
    let link = listener.accept(LIMIT)?.ok_or("nobody connected")?;
    let one = End::new(&*provider, &domain, link, receives)?;
    let (two, other) = connecting.join().map_err(|_| "the connecting thread panicked")??;
    Ok(Connected { provider, domain, ends: [one, two], other })
}

fn patterned() -> Result<Buffer, Failure> {
    let mut memory = Segment::shared(4096)?.carve(4096).pop().ok_or("no memory")?;
    memory.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 251) as u8);
    Ok(memory)
}

fn done(ends: &[Shared; 2], counts: &Counts) -> bool {
    let answers = lock(&ends[0]).came.len();
    counts.released.load(Ordering::Relaxed) as u64 == MESSAGES
        && lock(&ends[1]).came.len() as u64 == MESSAGES
        && answers == counts.answered.load(Ordering::Relaxed)
        && lock(&ends[0]).sent.last() == Some(&(MESSAGES - 1))
}

fn verify(ends: &[Shared; 2], counts: &Counts, memory: &Buffer) -> Result<(), Failure> {
    let expected = |number: u64| [&memory[number as usize..][..MESSAGE_BYTES as usize], b"!"].concat();
    let (one, two) = (lock(&ends[0]), lock(&ends[1]));
    let whole = (0..MESSAGES).zip(&two.came).all(|(number, came)| *came == expected(number));
    let reports: Vec<u64> = (0..MESSAGES).filter(|number| number % 4 == 3 || number + 1 == MESSAGES).collect();
    let answered = counts.answered.load(Ordering::Relaxed);
    // Each deed of its kind found the other end free, and none its own.
    let all_answered = answered as u64 == (0..MESSAGES).filter(|number| number % DEEDS == 1).count() as u64;
    let failed = counts.failed.load(Ordering::Relaxed);
    if whole && one.sent == reports && all_answered && failed == 0 {
        return Ok(());
    }
    let (sent, came) = (&one.sent, two.came.len());
    Err(format!("messages whole: {whole} ({came}); reports {sent:?}; {answered} answers; {failed} failed").into())
}

fn seen(ends: &[Shared; 2], counts: &Counts) -> String {
    let (came, sent) = (lock(&ends[1]).came.len(), lock(&ends[0]).sent.clone());
    let released = counts.released.load(Ordering::Relaxed);
    format!("{came} messages of {MESSAGES}, reports of {sent:?}, {released} holds released")
}

fn lock(end: &Shared) -> MutexGuard<'_, End> {
    end.lock().unwrap_or_else(PoisonError::into_inner)
}

impl End {
    fn new(
        provider: &dyn Provider,
        domain: &ProtectionDomain,
        link: overside_verbs::Link,
        receives: usize,
    ) -> Result<Self, VerbsError> {
        let mut queue = CompletionQueue::new(provider.open_port(domain, PortOptions::default())?);
        let pair = queue.attach(link)?;
        let buffers = Segment::private(RECEIVES * RECEIVE_BYTES)?.carve(RECEIVE_BYTES);
        let memory = Memory::Segment(buffers[0].segment().clone());
        let region = provider.register(domain, &memory, Access::LOCAL)?;
        let mut spare: Vec<(u64, Buffer)> = buffers.into_iter().map(|buffer| (0, buffer)).collect();
        queue.post_receive(Some(pair), &mut spare.drain(..receives).collect())?;
        Ok(Self { queue, pair, came: Vec::new(), sent: Vec::new(), spare, _region: region })
    }

    /// Takes what has come and ended; all of it, also where a hold panics.
    fn progress(&mut self) {
        let mut done: Vec<WorkCompletion> = Vec::new();
        let polled = catch_unwind(AssertUnwindSafe(|| self.queue.poll(&mut done)));
        for completion in done {
            assert_eq!(completion.status, Status::Success);
            match completion.buffer {
                Some(buffer) if completion.opcode == Opcode::Receive => {
                    self.came.push(buffer[..completion.bytes as usize].to_vec());
                    let posted = self.queue.post_receive(Some(self.pair), &mut vec![(0, buffer)]);
                    assert_eq!(posted.unwrap_or(0), 1);
                }
                _ if completion.id != ANSWER => self.sent.push(completion.id),
                _ => {}
            }
        }
        if let Err(payload) = polled {
            std::panic::resume_unwind(payload);
        }
    }
}

const MESSAGES: u64 = 60;
const MESSAGE_BYTES: u64 = 900;
/// Kinds of holds.
const DEEDS: u64 = 6;
/// Number of the requests that holds post.
const ANSWER: u64 = u64::MAX;
const RECEIVES: usize = 32;
const RECEIVE_BYTES: usize = 1024;
/// How long a message waits for a receive.
const UNTAKEN: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_secs(30);

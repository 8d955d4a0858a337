//! Two ports of one provider, each on a thread of its own, and what a stream of messages costs
//! either.
//!
//! What is measured is what ships: declared sends on one side, posted receives on the other, with
//! as many transmit and receive buffers as stay in a cache. Two threads, because cache lines that
//! change cores are a large part of what a message costs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use overside_memory::pack::{Dealer, RowBuffer};
use overside_memory::{Buffer, ForeignRange, Pool, View};
use overside_planner::{Planner, ViewPlan};
use overside_shape::{Bitmap, Column, Order, Run, Shape};
use overside_transfer::{Deadline, DeclaredSend, Endpoint, Region, Ring, RingOptions};
use overside_verbs::{
    CompletionQueue, Link, Loan, PortOptions, Provider, QueuePair, Status, VerbsError, WorkCompletion, WorkRequest,
};

use rustix::time::{ClockId, clock_gettime};

use super::apart::Echo;
use super::points::SplitMix64;
use crate::Error;

/// What a message of a stream costs, in nanoseconds: work of either side, without waiting, and time
/// from one to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// The sender's processor.
    pub sender_ns: f64,
    /// The receiver's processor.
    pub receiver_ns: f64,
    /// From one message to the next with both at work.
    pub wall_ns: f64,
    /// Neither side had to share its processor.
    pub undisturbed: bool,
    /// How long a cache line took to the other side's processor and back, before the stretch;
    /// infinite where that is not known.
    pub round_trip_ns: f64,
    /// How long one took to come from there, as the provider tells it; infinite where it does not.
    pub line_ns: f64,
}

/// What is sent: shapes in turn, all by one plan.
pub(super) struct Stream<'a> {
    pub(super) shapes: &'a [Arc<Shape>],
    pub(super) plan: &'a ViewPlan,
    /// The longest message, in bytes.
    pub(super) bytes: usize,
}

/// Rows of a table as large as the memory, each for one of several destinations, without rule.
pub(super) struct Tables(Vec<Shape>);

impl Tables {
    /// Over so many bytes.
    pub(super) fn over(memory_bytes: u64) -> Tables {
        let rows = memory_bytes / (4 * DEALT_COLUMNS);
        let columns: Vec<Column> = (0..DEALT_COLUMNS).map(|k| Column::dense(k * rows * 4, 4)).collect();
        let wants = |of: u64| Bitmap::of(rows, |row| SplitMix64(row).below(DEALT_TO) == of);
        Tables((0..DEALT_TO).filter_map(|of| Shape::bitmapped(&columns, &wants(of), Order::Rows).ok()).collect())
    }
}

/// The sending side, and the thread of the receiving one.
pub(super) struct Rig {
    endpoint: Endpoint,
    lanes: Vec<Lane>,
    memory: Arc<Buffer>,
    planner: Planner,
    reports: Receiver<Result<Report, VerbsError>>,
    echo: Arc<Echo>,
    stretches: u64,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A message on its way out.
enum Making {
    Declared(DeclaredSend),
    Lent(VecDeque<WorkRequest>),
}

impl Making {
    /// Posts it; false where there is no room yet.
    fn post(&mut self, queue: &mut CompletionQueue, pair: QueuePair, pool: &Pool) -> Result<bool, Error> {
        match self {
            Making::Declared(send) => Ok(send.post(queue, pair, pool)?),
            Making::Lent(batch) => Ok(queue.post(pair, batch).map(|_| batch.is_empty())?),
        }
    }
}

/// A connection for messages up to a length, with transmit buffers for them.
struct Lane {
    bytes: usize,
    pair: QueuePair,
    pool: Pool,
}

/// What the receiving side says at the start and at the end of a stretch.
struct Report {
    busy_ns: f64,
    messages: u64,
    /// How its thread ran.
    ran: Ran,
}

impl Rig {
    /// `memory_bytes` to send from, cold after one pass when that is more than a cache holds.
    pub(super) fn new(provider: &Arc<dyn Provider>, name: &str, memory_bytes: usize) -> Result<Rig, Error> {
        let mut endpoint = Endpoint::builder(provider.clone()).port(port_options()).open()?;
        let domain = endpoint.domain().clone();
        // As receivers have it: what was just moved is looked at while it is in the nearest cache.
        let mut far = Endpoint::builder(provider.clone()).domain(domain).port(port_options()).batch(16).open()?;
        let mut memory = endpoint.allocate(memory_bytes)?;
        // Every page is there before it is measured.
        memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        let links = connections(&endpoint, name)?;
        let (mut lanes, mut rings) = (Vec::new(), Vec::new());
        for (bytes, (ours, theirs)) in LANES.into_iter().zip(links) {
            let pool = endpoint.pool(bytes, (RING_BYTES / bytes).clamp(8, 256))?;
            lanes.push(Lane { bytes, pair: endpoint.attach(ours)?, pool });
            let count = (RING_BYTES / bytes).clamp(4, 128);
            let (queue_pair, id) = (Some(far.attach(theirs)?), rings.len() as u64);
            let repost = (count / 8).clamp(1, 8);
            let options = RingOptions { queue_pair, id, bytes, count, repost, ..RingOptions::default() };
            let options = RingOptions { touched: true, loans: true, ..options };
            rings.push(far.ring(options)?);
        }
        let (report, reports) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let echo = Arc::new(Echo::default());
        let far = Far { endpoint: far, rings, report, echo: echo.clone(), stretches: 0, stop: stop.clone() };
        let thread = std::thread::Builder::new().name("overside-calibrate".into()).spawn(move || far.run());
        let thread = Some(thread.map_err(|e| VerbsError::no_thread(&e))?);
        let planner = Planner::new(provider.capabilities(), provider.profile());
        Ok(Rig { endpoint, lanes, memory: Arc::new(memory), planner, reports, echo, stretches: 0, stop, thread })
    }

    /// Bytes of the memory that is sent from.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    /// Plans by the provider's own prices; what is measured forces its way anyhow.
    pub(super) fn planner(&self) -> &Planner {
        &self.planner
    }

    /// Sends a stream for `slice`; `next`, the shape whose turn it is, goes on from call to call.
    pub(super) fn stretch(&mut self, stream: &Stream<'_>, next: &mut usize, slice: Duration) -> Result<Cost, Error> {
        let make = |rig: &Rig, bytes_max| {
            let region =
                Region::new(&rig.memory, &stream.shapes[*next % stream.shapes.len()]).map_err(VerbsError::from)?;
            *next += 1;
            let capabilities = rig.planner.capabilities();
            let send = DeclaredSend::new(0, region, Some(stream.plan), capabilities, bytes_max);
            Ok(Making::Declared(send.map_err(overside_transfer::Error::from)?))
        };
        self.send_all(stream.bytes, slice, make).map_err(|error| self.known(error))
    }

    /// Lends messages of so many bytes, each one fragment at a place that no cache holds; the
    /// receiver loads a byte of each of their lines and returns them. `next` goes on from call to
    /// call.
    pub(super) fn lend(&mut self, bytes: u64, next: &mut u64, slice: Duration) -> Result<Cost, Error> {
        let make = |rig: &Rig, _| {
            *next += 1;
            let place = SplitMix64(*next).below((rig.memory_bytes() - bytes) / 64) * 64;
            let view = View::runs(&rig.memory, [Run::new(place, bytes)]).map_err(VerbsError::from)?;
            Ok(Making::Lent(VecDeque::from([WorkRequest::send(0, view).lendable()])))
        };
        self.send_all(bytes as usize, slice, make).map_err(|error| self.known(error))
    }

    fn send_all(
        &mut self,
        bytes: usize,
        slice: Duration,
        mut make: impl FnMut(&Rig, u64) -> Result<Making, Error>,
    ) -> Result<Cost, Error> {
        let lane = self.lanes.iter().position(|lane| lane.bytes >= bytes);
        let lane = lane.ok_or(VerbsError::Unsupported("the calibration's message"))?;
        let (pair, pool) = (self.lanes[lane].pair, self.lanes[lane].pool.clone());
        let (mut done, mut idle) = (Vec::new(), Duration::ZERO);
        self.mark(pair, BEGIN)?;
        self.drain(pair, &mut idle)?;
        self.report()?;
        self.stretches += 1;
        let round_trip_ns = self.echo.ask(self.stretches);
        // From here on it is measured.
        self.endpoint.queue().line_ns(pair);
        let bytes_max = self.lanes[lane].bytes as u64;
        idle = Duration::ZERO;
        let (start, clock, mut messages) = (Instant::now(), Clock::start(), 0u64);
        while start.elapsed() < slice || messages < MESSAGES_MIN {
            let mut send = make(self, bytes_max)?;
            let mut tries = 0;
            loop {
                let tried = Instant::now();
                if send.post(self.endpoint.queue(), pair, &pool)? {
                    break;
                }
                // The first try made the request; a later one that finds no room either is waiting in other words.
                if tries > 0 {
                    idle += tried.elapsed();
                }
                tries += 1;
                self.wait(&mut done, &mut idle)?;
            }
            messages += 1;
        }
        self.mark(pair, END)?;
        self.drain(pair, &mut idle)?;
        let took = start.elapsed();
        let report = self.report()?;
        let each = |ns: f64| ns / messages as f64;
        Ok(Cost {
            sender_ns: each((took.saturating_sub(idle)).as_nanos() as f64),
            receiver_ns: report.busy_ns / report.messages.max(1) as f64,
            wall_ns: each(took.as_nanos() as f64),
            undisturbed: {
                let (ours, process) = (clock.ran(), clock.process());
                // A provider's threads are part of it: what they took was taken by nobody else.
                let own = 2 * process.saturating_sub(ours.cpu + report.ran.cpu);
                ours.had_all(own) && report.ran.had_all(own)
            },
            round_trip_ns,
            line_ns: self.endpoint.queue().line_ns(pair).unwrap_or(f64::INFINITY),
        })
    }

    /// What dealing rows out costs for each of their values, from memory as cold as that of every
    /// other price. The buffers are as many as are in use at once. None where there is no kernel
    /// for it. `row`, where to begin, goes on from call to call.
    pub(super) fn deal(&self, tables: &Tables, row: &mut u64, slice: Duration) -> Option<Cost> {
        let shapes: Vec<&Shape> = tables.0.iter().collect();
        let mut dealer = Dealer::new(&self.memory, &shapes).ok().flatten()?;
        let pool = &self.lanes.iter().find(|lane| lane.bytes >= DEALT_BYTES)?.pool;
        let mut buffers: Vec<Vec<Buffer>> = Vec::new();
        buffers.resize_with(shapes.len(), || (0..DEALT_BUFFERS).map_while(|_| pool.take()).collect());
        let back = |buffers: Vec<Vec<Buffer>>| buffers.into_iter().flatten().for_each(|buffer| pool.put(buffer));
        if buffers.iter().any(Vec::is_empty) {
            back(buffers);
            return None;
        }
        dealer.resume(*row);
        let (start, clock, mut dealt) = (Instant::now(), Clock::start(), 0);
        let mut used = vec![(0, 0); shapes.len()];
        while start.elapsed() < slice {
            if dealer.is_done() {
                dealer.resume(0);
            }
            let before = dealer.row();
            let mut places: Vec<RowBuffer<'_>> = buffers
                .iter_mut()
                .zip(&used)
                .map(|(buffers, (at, rows))| RowBuffer { room: &mut buffers[*at][..DEALT_BYTES], rows: *rows })
                .collect();
            dealer.deal(&mut places);
            dealt += dealer.row() - before;
            let rows: Vec<usize> = places.into_iter().map(|place| place.rows).collect();
            for ((buffers, (at, used)), rows) in buffers.iter().zip(&mut used).zip(rows) {
                *used = rows;
                if (rows + 1) * dealer.row_bytes() > DEALT_BYTES {
                    (*at, *used) = ((*at + 1) % buffers.len(), 0);
                }
            }
        }
        *row = dealer.row();
        let took = start.elapsed().as_nanos() as f64 / (dealt * DEALT_COLUMNS).max(1) as f64;
        let undisturbed = clock.ran().had_all(Duration::ZERO);
        back(buffers);
        let (round_trip_ns, line_ns) = (f64::INFINITY, f64::INFINITY);
        Some(Cost { sender_ns: took, receiver_ns: 0.0, wall_ns: took, undisturbed, round_trip_ns, line_ns })
    }

    /// What the receiving side says next; everything sent has arrived there.
    fn report(&self) -> Result<Report, Error> {
        match self.reports.recv_timeout(PATIENCE) {
            Ok(report) => Ok(report?),
            Err(RecvTimeoutError::Disconnected) => Err(VerbsError::Closed.into()),
            Err(RecvTimeoutError::Timeout) => Err(VerbsError::TimedOut(PATIENCE).into()),
        }
    }

    /// What the receiving side says of an end that this side saw nothing but: it says so before it
    /// goes.
    fn known(&self, error: Error) -> Error {
        let blind = matches!(
            error,
            Error::Verbs(VerbsError::Closed | VerbsError::Ended { status: Status::Flushed | Status::PeerDied, .. })
        );
        let mut said = std::iter::from_fn(|| self.reports.recv_timeout(PATIENCE).ok());
        let told = if blind { said.find_map(Result::err) } else { None };
        told.map_or(error, Error::from)
    }

    /// Until everything sent has arrived.
    fn drain(&mut self, pair: QueuePair, idle: &mut Duration) -> Result<(), Error> {
        let mut done = Vec::new();
        while self.endpoint.queue().sends_in_flight(pair) > 0 {
            self.wait(&mut done, idle)?;
        }
        Ok(())
    }

    /// Posts what begins or ends a stretch.
    fn mark(&mut self, pair: QueuePair, mark: u32) -> Result<(), Error> {
        let mut batch = VecDeque::from([WorkRequest::send_inline(0, &[0]).with_immediate(mark)]);
        let (mut done, mut idle) = (Vec::new(), Duration::ZERO);
        while self.endpoint.queue().post(pair, &mut batch)? == 0 {
            self.wait(&mut done, &mut idle)?;
        }
        Ok(())
    }

    /// Until something has completed; all until the poll that finds it counts as idle.
    fn wait(&mut self, done: &mut Vec<WorkCompletion>, idle: &mut Duration) -> Result<(), Error> {
        let begun = Instant::now();
        for looks in 0u32.. {
            let before = Instant::now();
            let mut found = self.endpoint.queue().poll(done);
            if found == 0 && looks > LOOKS {
                // Somebody else has the other processor, or there is none.
                found = self.endpoint.queue().poll_wait(done, Some(Duration::from_millis(1)))?;
            }
            if found > 0 {
                *idle += before - begun;
                let failed = done.iter().map(|done| done.status).find(|status| *status != Status::Success);
                done.clear();
                return failed.map_or(Ok(()), |status| Err(VerbsError::ended(status).into()));
            }
            if before - begun > PATIENCE {
                return Err(VerbsError::TimedOut(PATIENCE).into());
            }
        }
        Ok(())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.lanes.iter().for_each(|lane| self.endpoint.close(lane.pair));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The receiving side.
struct Far {
    endpoint: Endpoint,
    rings: Vec<Ring>,
    /// Of stretches, and at last why the receiving side ended if it did.
    report: Sender<Result<Report, VerbsError>>,
    echo: Arc<Echo>,
    stretches: u64,
    stop: Arc<AtomicBool>,
}

impl Far {
    fn run(mut self) {
        if let Err(error) = self.take_all() {
            let _ = self.report.send(Err(error));
        }
    }

    /// Until it is told to stop.
    fn take_all(&mut self) -> Result<(), VerbsError> {
        let (mut done, mut looks) = (Vec::new(), 0u32);
        let mut tally = Tally::start();
        let mut idle_since: Option<Instant> = None;
        while !self.stop.load(Ordering::Acquire) {
            let before = Instant::now();
            if self.endpoint.queue().poll(&mut done) == 0 {
                idle_since = idle_since.or(Some(before));
                looks += 1;
                // Between two stretches nobody burns a processor.
                if looks > LOOKS {
                    self.endpoint.queue().poll_wait(&mut done, Some(LOOK))?;
                }
                if done.is_empty() {
                    continue;
                }
            }
            tally.idle += idle_since.take().map_or(Duration::ZERO, |since| before - since);
            looks = 0;
            for completion in done.drain(..) {
                self.take(completion, &mut tally)?;
            }
        }
        Ok(())
    }

    /// Counts what arrived and posts its buffer again.
    fn take(&mut self, completion: WorkCompletion, tally: &mut Tally) -> Result<(), VerbsError> {
        if completion.status != Status::Success {
            return Err(VerbsError::ended(completion.status));
        }
        let ring = self.rings.get_mut(completion.id as usize);
        let (Some(ring), Some(buffer)) = (ring, completion.buffer) else { return Ok(()) };
        ring.completed();
        ring.put(buffer);
        if let Some(loan) = completion.loan {
            read_lines(&loan);
        }
        let mark = completion.immediate.filter(|immediate| matches!(*immediate, BEGIN | END));
        match mark {
            Some(END) => drop(self.report.send(Ok(tally.report()))),
            Some(_) => {
                drop(self.report.send(Ok(Tally::start().report())));
                self.stretches += 1;
                self.echo.answer(self.stretches);
                *tally = Tally::start();
            }
            None => tally.messages += 1,
        }
        let queue = self.endpoint.queue();
        if mark.is_some() { ring.post_all(queue) } else { ring.post(queue) }
    }
}

/// Loads a byte of each line.
fn read_lines(loan: &Loan) {
    let lines = |part: &ForeignRange| {
        let bytes = part.slice();
        (0..bytes.len()).step_by(64).filter_map(|at| bytes.load_u8(at)).fold(0u8, u8::wrapping_add)
    };
    std::hint::black_box(loan.parts().iter().map(lines).fold(0, u8::wrapping_add));
}

/// What the receiving side counts during a stretch.
struct Tally {
    clock: Clock,
    idle: Duration,
    messages: u64,
}

impl Tally {
    fn start() -> Tally {
        Tally { clock: Clock::start(), idle: Duration::ZERO, messages: 0 }
    }

    fn report(&self) -> Report {
        let busy = self.clock.wall.elapsed().saturating_sub(self.idle);
        Report { busy_ns: busy.as_nanos() as f64, messages: self.messages, ran: self.clock.ran() }
    }
}

/// Since when a thread's time is looked at.
struct Clock {
    wall: Instant,
    cpu: Duration,
    process: Duration,
    waited: Option<Duration>,
}

/// How a thread ran during a stretch.
struct Ran {
    wall: Duration,
    cpu: Duration,
    /// Ready to run and without a processor.
    waited: Option<Duration>,
}

impl Clock {
    fn start() -> Clock {
        let process = time_of(ClockId::ProcessCPUTime);
        Clock { wall: Instant::now(), cpu: time_of(ClockId::ThreadCPUTime), process, waited: waited() }
    }

    /// This thread, since then.
    fn ran(&self) -> Ran {
        let waited = self.waited.and_then(|before| Some(waited()?.saturating_sub(before)));
        let cpu = time_of(ClockId::ThreadCPUTime).saturating_sub(self.cpu);
        Ran { wall: self.wall.elapsed(), cpu, waited }
    }

    /// What all threads of this process have taken since then.
    fn process(&self) -> Duration {
        time_of(ClockId::ProcessCPUTime).saturating_sub(self.process)
    }
}

impl Ran {
    /// Whether it had a processor whenever it was ready to run, but for `own`, which other threads
    /// of this process took.
    fn had_all(&self, own: Duration) -> bool {
        let wall = self.wall.as_secs_f64();
        match self.waited {
            Some(waited) => waited.saturating_sub(own).as_secs_f64() < (1.0 - RAN_SHARE) * wall,
            // Where the system does not say, a thread that polls all the time has run for as long as time went by; one that
            // slept in between passes for disturbed.
            None => self.cpu.as_secs_f64() > RAN_SHARE * wall,
        }
    }
}

fn time_of(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.max(0) as u32)
}

/// How long this thread was ready to run and had no processor, since it began.
fn waited() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(text.split_ascii_whitespace().nth(1)?.parse().ok()?))
}

/// As many connections as there are lanes: both ends of each.
fn connections(endpoint: &Endpoint, name: &str) -> Result<Vec<(Link, Link)>, Error> {
    let (provider, domain) = (endpoint.provider(), endpoint.domain());
    let mut listener = endpoint.listen(name)?;
    // One after another, or a listener that lets half-open ones progress side by side might mix them up.
    let one = |_| {
        std::thread::scope(|scope| {
            let connect = || provider.connect(domain, name, PATIENCE);
            let thread = std::thread::Builder::new().name("overside-connect".into()).spawn_scoped(scope, connect);
            let connecting = thread.map_err(|e| VerbsError::no_thread(&e))?;
            let mut deadline = Deadline::within(PATIENCE);
            let accepted = loop {
                if let Some(link) = listener.accept(deadline.left(endpoint.clock())?)? {
                    break link;
                }
            };
            let connected = connecting.join().map_err(|_| VerbsError::Closed)??;
            Ok((connected, accepted))
        })
    };
    LANES.iter().map(one).collect()
}

fn port_options() -> PortOptions {
    PortOptions { depth: 128, sges: 4096, shared_receives: 0, regions: true, ..PortOptions::default() }
}

/// Lengths of messages up to which a connection is used; each has rings of its own, so that short
/// messages meet no more memory than they need.
const LANES: [usize; 7] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10];
/// The longest message.
pub(super) const MESSAGE_MAX: usize = LANES[LANES.len() - 1];
const RING_BYTES: usize = 1 << 20;
/// The table that is dealt out, to how many, and the buffers of each.
const DEALT_COLUMNS: u64 = 5;
const DEALT_TO: u64 = 8;
const DEALT_BYTES: usize = 16 << 10;
const DEALT_BUFFERS: usize = 6;
/// As bundles never have: so many lengths no message holds.
const BEGIN: u32 = u32::MAX;
const END: u32 = u32::MAX - 1;
/// Fewer messages show nothing but the start.
const MESSAGES_MIN: u64 = 16;
/// What a thread may lose to interrupts and still count as undisturbed.
const RAN_SHARE: f64 = 0.97;
/// Polls for nothing before a thread sleeps.
const LOOKS: u32 = 20_000;
const LOOK: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(5);

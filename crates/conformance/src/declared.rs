//! Declared sends over any provider: whatever the plan, what arrives are the messages of the
//! region.
//!
//! [`Delivery`] is one sender with several destinations, each with a completion queue of its own.
//! It sends a region in one way, or regions to all destinations at once, and answers with the
//! messages that came, to be held against [`messages`], a naive walk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Pool};
use overside_planner::{Force, Planner, Terms};
use overside_shape::{Bitmap, Column, Frequency, Mask, Order, Run, Shape};
use overside_transfer::{
    Balance, Bundle, DeclaredSend, Destination, Endpoint, Region, Ring, RingOptions, SharedSend, SharedTerms, Sharing,
};
use overside_verbs::{Opcode, PortOptions, Provider, QueuePair, Status, VerbsError, WorkCompletion};

use crate::Harness;

/// One sender and its destinations.
#[derive(Debug)]
pub struct Delivery {
    endpoint: Endpoint,
    planner: Planner,
    memory: Arc<Buffer>,
    pool: Pool,
    pairs: Vec<QueuePair>,
    receivers: Vec<Receiver>,
    /// Requests that one send of a region had under way at a time, at most.
    under_way: usize,
}

#[derive(Debug)]
struct Receiver {
    endpoint: Endpoint,
    ring: Ring,
    came: Vec<Vec<u8>>,
    /// SENDs that came, ever.
    requests: usize,
}

/// What went wrong, for the test's message.
pub type Failure = Box<dyn std::error::Error>;

impl Delivery {
    /// Connects a sender with `memory_bytes` of patterned memory to so many destinations.
    ///
    /// # Errors
    /// When the provider cannot connect them.
    pub fn open(harness: &dyn Harness, destinations: usize, memory_bytes: usize) -> Result<Self, Failure> {
        let mut endpoint = endpoint(harness.provider())?;
        let mut memory = endpoint.allocate(memory_bytes)?;
        memory.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 31 + (i >> 8)) as u8);
        let pool = endpoint.pool(REQUEST_BYTES, BUFFERS)?;
        let (mut pairs, mut receivers) = (Vec::new(), Vec::new());
        for _ in 0..destinations {
            let name = harness.name();
            let mut listener = endpoint.listen(&name)?;
            let theirs = harness.provider();
            let connecting = std::thread::spawn(move || Receiver::connect(theirs, &name));
            pairs.push(endpoint.accept(&mut *listener, LIMIT)?.0);
            receivers.push(connecting.join().map_err(|_| "the connecting thread panicked")??);
        }
        let planner = Planner::new(endpoint.capabilities().clone(), endpoint.provider().profile());
        Ok(Self { endpoint, planner, memory: Arc::new(memory), pool, pairs, receivers, under_way: 0 })
    }

    /// The memory that regions are of.
    pub fn memory(&self) -> &Arc<Buffer> {
        &self.memory
    }

    /// SENDs that have come to each destination, ever.
    pub fn requests(&self) -> Vec<usize> {
        self.receivers.iter().map(|receiver| receiver.requests).collect()
    }

    /// Requests that the last [`send`](Self::send) had under way at a time, at most.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Sends a region to the first destination, by a plan or as it lies; the messages that came.
    ///
    /// # Errors
    /// When it cannot be sent, or does not arrive in time.
    pub fn send(&mut self, shape: &Arc<Shape>, plan: Option<Option<Force>>) -> Result<Vec<Vec<u8>>, Failure> {
        // A plan may have been made for longer requests; the send keeps to its own.
        let terms = |force| Terms { force, ..Terms::default() };
        let plan = plan.map(|force| self.planner.plan(shape, &terms(force))).transpose()?;
        let region = Region::new(&self.memory, shape)?;
        let capabilities = self.endpoint.capabilities();
        let mut send = DeclaredSend::new(7, region, plan.as_ref(), capabilities, REQUEST_BYTES as u64)?;
        let (pair, mut posted, mut done) = (self.pairs[0], false, Vec::new());
        let end = Instant::now() + LIMIT;
        self.under_way = 0;
        // A region without messages posts nothing.
        let ids: &[u64] = if shape.messages().count() > 0 { &[7] } else { &[] };
        while !(posted && done.len() == ids.len()) {
            posted = send.post(self.endpoint.queue(), pair, &self.pool)?;
            self.under_way = self.under_way.max(self.endpoint.queue().sends_in_flight(pair));
            self.progress(&mut done, end)?;
        }
        check(&done, ids)?;
        Ok(std::mem::take(&mut self.receivers[0].came))
    }

    /// Sends one region to each destination in one shared send; the messages that came to each.
    ///
    /// # Errors
    /// When it is refused, or does not arrive in time.
    pub fn send_shared(&mut self, shapes: &[Arc<Shape>], terms: &SharedTerms) -> Result<Vec<Vec<Vec<u8>>>, Failure> {
        let to = |(i, shape): (usize, &Arc<Shape>)| Destination {
            queue_pair: self.pairs[i],
            id: i as u64,
            shape: shape.clone(),
        };
        let destinations: Vec<Destination> = shapes.iter().enumerate().map(to).collect();
        let terms = SharedTerms { view: Terms { request_bytes_max: REQUEST_BYTES as u64, ..terms.view }, ..*terms };
        let capabilities = self.endpoint.capabilities();
        let mut send = SharedSend::new(&self.memory, &destinations, Some(&self.planner), capabilities, &terms)?;
        let (mut posted, mut done) = (false, Vec::new());
        let end = Instant::now() + LIMIT;
        let ids = shapes.iter().zip(0..).filter(|(shape, _)| shape.messages().count() > 0).map(|(_, id)| id);
        let ids: Vec<u64> = ids.collect();
        while !(posted && done.len() == ids.len()) {
            posted = send.post(self.endpoint.queue(), &self.pool)?;
            self.progress(&mut done, end)?;
        }
        check(&done, &ids)?;
        Ok(self.receivers.iter_mut().take(shapes.len()).map(|receiver| std::mem::take(&mut receiver.came)).collect())
    }

    /// Sends regions of any kind, each given by numbers and sent in its way; each must bring its
    /// messages, or be refused for what it is.
    ///
    /// # Errors
    /// Which one did not, and how.
    pub fn check_sends(&mut self, sends: &[([u64; 8], Option<Option<Force>>)]) -> Result<(), Failure> {
        for (numbers, way) in sends {
            let Some(shape) = shape(numbers, self.memory.len() as u64).map(Arc::new) else { continue };
            let longest = shape.messages().lengths().max().unwrap_or(0);
            match self.send(&shape, *way) {
                Ok(came) if came == messages(&self.memory, &shape) => {}
                Ok(_) => return Err(format!("{shape:?} by {way:?}: other messages came").into()),
                Err(error) => {
                    let why = error.to_string();
                    let forced = matches!(way, Some(Some(Force::Method(_)))) && why.contains("cannot carry");
                    let long = longest > REQUEST_BYTES as u64 && why.contains("longer than a request");
                    if !long && !forced {
                        return Err(format!("{shape:?} by {way:?}: {why}").into());
                    }
                }
            }
        }
        Ok(())
    }

    /// Sends a message of as many pieces as a gather list has entries, and one of one more, as they
    /// lie: each is a request, and the second is packed for it (to-copy §5.1 TC-M06).
    ///
    /// # Errors
    /// When other bytes come, or in another number of requests.
    pub fn check_lists(&mut self) -> Result<(), Failure> {
        let longest = self.endpoint.capabilities().sge_max;
        for pieces in [longest, longest + 1] {
            let runs: Vec<Run> = (0..pieces as u64).map(|i| Run::new(2 * i, 1)).collect();
            let shape = Arc::new(Shape::list(&runs)?);
            let before = self.receivers[0].requests;
            let came = self.send(&shape, None)?;
            let requests = self.receivers[0].requests - before;
            if requests != 1 || came != messages(&self.memory, &shape) {
                return Err(format!("{pieces} pieces: other bytes, or {requests} requests").into());
            }
        }
        Ok(())
    }

    /// Sends a table's rows to all destinations but the last at once, and with them, to the last, a
    /// region of any kind from numbers, of the same rows or others.
    ///
    /// # Errors
    /// Which destination got anything but its messages, or that it was refused.
    pub fn check_shared(&mut self, columns: u64, rows: u64, odd: &[u64; 8], tile_bytes: u64) -> Result<(), Failure> {
        let destinations = self.pairs.len() as u64 - 1;
        let mut shapes = dealt(columns, rows * destinations, destinations);
        let sendable = |shape: &Shape| shape.messages().lengths().max() <= Some(REQUEST_BYTES as u64);
        let odd = shape(odd, self.memory.len() as u64).filter(sendable);
        shapes.extend(odd.map(Arc::new));
        let terms =
            SharedTerms { tile_bytes, balance: Balance::Any, sharing: Sharing::Allowed, ..SharedTerms::default() };
        let came = self.send_shared(&shapes, &terms)?;
        match shapes.iter().zip(came).find(|(shape, came)| *came != messages(&self.memory, shape)) {
            Some((shape, _)) => Err(format!("{shape:?}: other messages came").into()),
            None => Ok(()),
        }
    }

    /// Sends `rows` rows of five columns to each of all destinations, at once and one by one.
    ///
    /// # Errors
    /// When one of them gets anything but its rows, a message each, either way.
    pub fn check_shared_as_separate(&mut self, rows: u64, tile_bytes: u64) -> Result<(), Failure> {
        let shapes = dealt(5, rows * self.pairs.len() as u64, self.pairs.len() as u64);
        let shared = self.send_shared(&shapes, &SharedTerms { tile_bytes, ..SharedTerms::default() })?;
        for (shape, came) in shapes.iter().zip(shared) {
            if came.len() as u64 != rows || came != messages(&self.memory, shape) {
                return Err(format!("{shape:?}: {} messages came, or others", came.len()).into());
            }
            if came != self.send(shape, Some(None))? {
                return Err(format!("{shape:?}: a send of its own brings others").into());
            }
        }
        Ok(())
    }

    fn progress(&mut self, done: &mut Vec<WorkCompletion>, end: Instant) -> Result<(), Failure> {
        self.endpoint.queue().poll(done);
        for receiver in &mut self.receivers {
            receiver.progress()?;
        }
        if Instant::now() > end {
            return Err(format!("not delivered in time; {} reports", done.len()).into());
        }
        Ok(())
    }
}

impl Receiver {
    fn connect(provider: Arc<dyn Provider>, name: &str) -> Result<Receiver, VerbsError> {
        let mut endpoint = endpoint(provider)?;
        let queue_pair = Some(endpoint.connect(name, LIMIT)?);
        let options = RingOptions { queue_pair, bytes: REQUEST_BYTES, count: RECEIVES, ..RingOptions::default() };
        let ring = endpoint.ring(options)?;
        Ok(Receiver { endpoint, ring, came: Vec::new(), requests: 0 })
    }

    fn progress(&mut self) -> Result<(), Failure> {
        let mut done = Vec::new();
        self.endpoint.queue().poll(&mut done);
        for completion in done {
            let buffer = completion.buffer.ok_or("a receive without its buffer")?;
            if (completion.opcode, completion.status) != (Opcode::Receive, Status::Success) {
                return Err(format!("a receive ended with {:?}", completion.status).into());
            }
            let bundle = Bundle::new(&buffer[..completion.bytes as usize], completion.immediate)?;
            self.requests += 1;
            self.came.extend(bundle.map(<[u8]>::to_vec));
            self.ring.completed();
            self.ring.put(buffer);
            self.ring.post(self.endpoint.queue())?;
        }
        Ok(())
    }
}

fn endpoint(provider: Arc<dyn Provider>) -> Result<Endpoint, VerbsError> {
    let port = PortOptions { shared_receives: 0, regions: true, ..PortOptions::default() };
    Endpoint::builder(provider).port(port).open()
}

fn check(done: &[WorkCompletion], ids: &[u64]) -> Result<(), Failure> {
    let mut seen: Vec<u64> = done.iter().map(|completion| completion.id).collect();
    seen.sort_unstable();
    let failed = done.iter().find(|completion| completion.status != Status::Success);
    match failed {
        Some(completion) => Err(format!("a send ended with {:?}", completion.status).into()),
        None if seen != ids => Err(format!("reports of {seen:?} instead of {ids:?}").into()),
        None => Ok(()),
    }
}

/// Rows of columns of 4 bytes, of which row `i` goes to destination `i % destinations`: a region
/// for each.
pub fn dealt(columns: u64, rows: u64, destinations: u64) -> Vec<Arc<Shape>> {
    let to = |d: u64| {
        let runs = [Run::new(0, 4)];
        let column = |c: u64| Shape::strided(c * rows * 4 + d * 4, destinations * 4, rows / destinations, &runs);
        let columns: Result<Vec<Shape>, _> = (0..columns).map(column).collect();
        columns.and_then(|columns| Shape::set(columns, Mask::Rows)).ok().map(Arc::new)
    };
    (0..destinations).filter_map(to).collect()
}

/// The messages of a shape, by walking it.
pub fn messages(memory: &[u8], shape: &Shape) -> Vec<Vec<u8>> {
    let messages = shape.messages();
    let bytes = |run: Run| &memory[run.at as usize..][..run.len as usize];
    (0..messages.count()).map(|i| messages.message(i).flat_map(bytes).copied().collect()).collect()
}

/// A shape of any kind in a memory of `end` bytes, from numbers: the same ones give the same shape.
/// None where they give none.
pub fn shape(numbers: &[u64; 8], end: u64) -> Option<Shape> {
    let [kind, a, b, c, d, rest @ ..] = *numbers;
    let (rows, width, base) = (1 + a % 60, 1 + b % 40, c % 97);
    let period = width + d % 70;
    let belongs = |row: u64| rest[0].rotate_left(row as u32 * 7) & 3 != 0;
    let column = |i: u64| Column::new(base + i * period * rows, period, width);
    let strided = |at: u64| Shape::strided(at, period * 2, rows, &[Run::new(d % period, width)]);
    let shape = match kind % 10 {
        0 => Shape::contiguous(base, a % 5000),
        1 => strided(base),
        2 => Shape::strided(base, 3 * period, rows, &[Run::new(0, width), Run::new(period, 1 + rest[1] % width)]),
        3 => Shape::bitmapped(&[column(0), column(1), column(2)], &Bitmap::of(rows, belongs), Order::Rows),
        4 => Shape::bitmapped(&[column(0)], &Bitmap::of(rows, belongs), Order::Columns),
        5 => {
            let at: Vec<u64> = (0..rows).map(|row| base + (row * 13 + rest[2] % 50) % 50 * 2 * period).collect();
            Shape::mapped(at, &[Run::new(0, width), Run::new(period, 1 + rest[1] % width)])
        }
        6 => {
            let lengths = (0..=rows).scan(0, |at, row| {
                let before = *at;
                *at += (rest[1] >> (row % 60)) % 30;
                Some(before)
            });
            Shape::variable(base, lengths.collect::<Vec<u64>>(), None)
        }
        7 => [0, 1, 2]
            .map(|i| Shape::column(base + i * 4000, width, rows))
            .into_iter()
            .collect::<Result<Vec<_>, _>>()
            .and_then(|columns| Shape::set(columns, Mask::Rows)),
        8 => {
            let region = |i: u64| strided(base + i * 2 * period * rows);
            [0, 1].map(region).into_iter().collect::<Result<Vec<_>, _>>().and_then(|all| Shape::set(all, Mask::Periods))
        }
        // Periods of several elements, which the mask takes one by one.
        _ => {
            let start = d % 2;
            let column = |i: u64| {
                let base = base + i * 3 * width * rows;
                Shape::every(Frequency { base, width, take: 2, of: 3, start, count: rows })
            };
            [0, 1, 2].map(column).into_iter().collect::<Result<Vec<_>, _>>().and_then(|all| Shape::set(all, Mask::Rows))
        }
    };
    shape.ok().filter(|shape| shape.end() <= end)
}

/// Tests of declared sends through `$delivery`, a function from a number of destinations to a
/// [`Delivery`], if there is one. A shared send to so many is compared with separate ones, in
/// tiles of several sizes. A message of too many pieces for a list is sent. Random regions go by
/// plan, as they lie, by threshold and each of these ways. Where `$delivery` answers none, for want
/// of a device, nothing is tested. The crate that tests so has `proptest`.
#[macro_export]
macro_rules! declared_tests {
    ($delivery:path, destinations: $destinations:literal, ways: [$($way:ident),+], cases: $cases:literal) => {
        #[test]
        fn a_shared_send_brings_what_separate_sends_bring() {
            let Some(mut delivery) = $delivery($destinations) else { return };
            for tile_bytes in [200, 700, 5000, 1 << 20] {
                delivery.check_shared_as_separate(200, tile_bytes).unwrap();
            }
        }

        #[test]
        fn a_message_of_more_pieces_than_a_list_takes_is_packed() {
            let Some(mut delivery) = $delivery(1) else { return };
            delivery.check_lists().unwrap();
        }

        fn ways() -> impl proptest::strategy::Strategy<Value = Option<Option<overside_planner::Force>>> {
            use overside_planner::{Force, Method};
            use proptest::prelude::*;
            let forced = prop_oneof![
                $(Just(Force::Method(Method::$way)),)+
                (0u64..60).prop_map(Force::Threshold)
            ];
            prop_oneof![Just(None), Just(Some(None)), forced.prop_map(|force| Some(Some(force)))]
        }

        proptest::proptest! {
            #![proptest_config(proptest::prelude::ProptestConfig { cases: $cases, ..Default::default() })]

            #[test]
            fn every_way_delivers_the_messages_of_the_region(
                sends in proptest::collection::vec((proptest::prelude::any::<[u64; 8]>(), ways()), 1..12),
            ) {
                let Some(mut delivery) = $delivery(1) else { return Ok(()) };
                let sent = delivery.check_sends(&sends);
                sent.map_err(|error| proptest::test_runner::TestCaseError::fail(error.to_string()))?;
            }

            #[test]
            fn random_shapes_are_shared_among_destinations(
                columns in 1u64..5,
                rows in 1u64..100,
                destinations in 1usize..5,
                tile_bytes in 1u64..4000,
                odd in proptest::prelude::any::<[u64; 8]>(),
            ) {
                let Some(mut delivery) = $delivery(destinations + 1) else { return Ok(()) };
                let sent = delivery.check_shared(columns, rows, &odd, tile_bytes);
                sent.map_err(|error| proptest::test_runner::TestCaseError::fail(error.to_string()))?;
            }
        }
    };
}

/// Longest request: several are needed for most shapes.
pub const REQUEST_BYTES: usize = 1024;
/// Transmit buffers of a delivery.
pub const BUFFERS: usize = 12;
const RECEIVES: usize = 6;
const LIMIT: Duration = Duration::from_secs(10);

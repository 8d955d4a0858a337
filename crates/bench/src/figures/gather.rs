//! Messages of scattered records, sent and received by two processes of ours: for who compares them
//! with another library's, over memory of the same contents in the same order.

use super::{
    Over,
    digest::Digest,
    records::Records,
    sender::{Post, Sample, Sender, Until},
    transmit::{Transmit, TransmitWay},
};
use crate::measure::{elapsed_ns, now_ns};
use anyhow::{Result, ensure};
use overside::{
    memory::{Buffer, Pool},
    planner::{Planner, Terms},
    shape::{Run, Shape},
    transfer::{DeclaredSend, Region},
    verbs::{CompletionQueue, QueuePair},
};
use std::sync::Arc;

/// Two senders with a receiver and a region each: a receiver's buffers are as long as a message, or
/// as messages that share a request.
pub struct Gather {
    sender: Sender,
    region: Arc<Buffer>,
    declaring: Sender,
    declared_region: Arc<Buffer>,
}

/// Messages of one kind.
pub struct Messages<'a> {
    sender: &'a mut Sender,
    sides: Vec<(&'static str, Transmit)>,
    declaring: &'a mut Sender,
    declared: Declared,
    records: Records,
    per_message: usize,
}

impl Gather {
    /// Starts both ends over `transport` (as addresses name it), with a region of `region_bytes`,
    /// which is a power of two.
    ///
    /// # Errors
    /// There is no such provider; a process or memory could not be had.
    pub fn start(transport: &str, region_bytes: usize) -> Result<Gather> {
        let over = Over::new(transport, None)?;
        let start = || -> Result<(Sender, Arc<Buffer>)> {
            let mut sender = Sender::start(&over, 1)?;
            let region = Records::region(&mut sender, region_bytes)?;
            Ok((sender, region))
        };
        let ((sender, region), (declaring, declared_region)) = (start()?, start()?);
        Ok(Gather { sender, region, declaring, declared_region })
    }

    /// Gets ready for messages of `per_message` records of `record_bytes` each.
    ///
    /// # Errors
    /// The receiver has ended; memory ran out.
    pub fn messages(&mut self, record_bytes: usize, per_message: usize) -> Result<Messages<'_>> {
        let bytes = record_bytes * per_message;
        let pool = self.sender.pool(bytes, (POOL_BYTES / bytes).clamp(8, 2048))?;
        self.sender.connect(1, bytes, pool.capacity())?;
        let records = Records::new(&self.region, record_bytes);
        let fits = |way: &TransmitWay| *way != TransmitWay::ZeroCopy || per_message <= self.sender.capabilities.sge_max;
        let ways = TransmitWay::ALL.into_iter().filter(fits);
        let side = |way: TransmitWay| (way.name(), Transmit::new(way, &records, per_message, &pool, &self.sender));
        let sides = ways.map(side).collect();
        let shared = bytes.max(SHARED_BYTES);
        let pool = self.declaring.pool(shared, (POOL_BYTES / shared).max(8))?;
        self.declaring.connect(1, shared, pool.capacity())?;
        let planner = Planner::new(self.declaring.capabilities.clone(), self.declaring.profile.clone());
        let declared = Declared {
            records: Records::new(&self.declared_region, record_bytes),
            message_bytes: bytes as u64,
            messages: (REGION_RECORDS / per_message).max(1),
            until: Until::Done,
            terms: Terms { request_bytes_max: shared as u64, ..Terms::default() },
            planner,
            pool,
            send: None,
            start: 0,
            sent: 0,
        };
        let (sender, declaring) = (&mut self.sender, &mut self.declaring);
        Ok(Messages { sender, sides, declaring, declared, records, per_message })
    }
}

impl Messages<'_> {
    /// The ways they can be sent, by name, in the order of [`run`](Self::run).
    pub fn ways(&self) -> impl Iterator<Item = &'static str> {
        self.sides.iter().map(|(name, _)| *name).chain([DECLARED])
    }

    /// Sends `count` messages in way `way` and compares what arrives with what was to be sent.
    ///
    /// # Errors
    /// Other bytes arrived; as [`run`](Self::run).
    pub fn check(&mut self, way: usize, count: u64) -> Result<()> {
        let (name, answers) = match self.sides.get_mut(way) {
            Some((name, side)) => (*name, self.sender.run(side, Until::Requests(count), true)?.1),
            None => {
                // From the first record on again, and no other.
                self.declared.records = self.declared.records.part(0, 1);
                self.declared.until = Until::Requests(count);
                (DECLARED, self.declaring.post(&mut self.declared, true)?.1)
            }
        };
        let mut expected = Digest::default();
        let (mut records, mut message) =
            (self.records.clone(), vec![0; self.records.record_bytes() * self.per_message]);
        for _ in 0..count {
            records.pack(self.per_message, &mut message);
            expected.message(&message);
        }
        let came: Vec<_> = answers.iter().map(|answer| (answer.messages, answer.digest)).collect();
        ensure!(came == [(count, expected.value())], "{name}: what arrived is not what was sent");
        Ok(())
    }

    /// Sends in way `way` for `slice_ns`.
    ///
    /// # Errors
    /// A request failed, or the receiver has ended.
    pub fn run(&mut self, way: usize, slice_ns: u64) -> Result<Sample> {
        match self.sides.get_mut(way) {
            Some((_, side)) => Ok(self.sender.run(side, Until::Elapsed(slice_ns), false)?.0),
            None => {
                self.declared.until = Until::Elapsed(slice_ns);
                Ok(self.declaring.post(&mut self.declared, false)?.0)
            }
        }
    }

    /// Every record of the first `count` messages, in order.
    pub fn each_record(&self, count: u64, mut each: impl FnMut(&[u8])) {
        let mut records = self.records.clone();
        for _ in 0..count * self.per_message as u64 {
            let run = records.take();
            each(&records.memory()[run.at as usize..(run.at + run.len) as usize]);
        }
    }
}

/// Records as regions of rows at offsets, one region after another, each planned anew; whole
/// messages share requests, and the receiver takes them apart.
struct Declared {
    records: Records,
    message_bytes: u64,
    /// Of a region.
    messages: usize,
    until: Until,
    terms: Terms,
    planner: Planner,
    pool: Pool,
    send: Option<DeclaredSend>,
    start: u64,
    /// Messages of all regions so far.
    sent: u64,
}

impl Declared {
    /// The next region, or none when it is enough.
    fn region(&mut self) -> Result<Option<DeclaredSend>> {
        let messages = match self.until {
            Until::Elapsed(ns) if elapsed_ns(self.start) >= ns => 0,
            Until::Requests(most) => (most - self.sent).min(self.messages as u64),
            _ => self.messages as u64,
        };
        if messages == 0 {
            return Ok(None);
        }
        let record = self.records.record_bytes() as u64;
        let rows: Arc<[u64]> = (0..messages * self.message_bytes / record).map(|_| self.records.take().at).collect();
        let shape = Arc::new(Shape::mapped(rows, &[Run::new(0, record)])?.messages_of(self.message_bytes)?);
        let plan = self.planner.plan(&shape, &self.terms)?;
        let region = Region::new(self.records.memory(), &shape)?;
        self.sent += messages;
        let (capabilities, most) = (self.planner.capabilities(), self.terms.request_bytes_max);
        Ok(Some(DeclaredSend::new(0, region, Some(&plan), capabilities, most)?))
    }
}

impl Post for Declared {
    fn begin(&mut self, _pairs: &[QueuePair]) -> Result<()> {
        (self.start, self.sent, self.send) = (now_ns(), 0, None);
        Ok(())
    }

    fn post(&mut self, queue: &mut CompletionQueue, pairs: &[QueuePair]) -> Result<bool> {
        loop {
            if self.send.is_none() {
                self.send = self.region()?;
            }
            let Some(send) = &mut self.send else { return Ok(true) };
            if !send.post(queue, pairs[0], &self.pool)? {
                return Ok(false);
            }
            self.send = None;
        }
    }

    fn bytes(&self) -> u64 {
        self.sent * self.message_bytes
    }
}

const DECLARED: &str = "declared";
const POOL_BYTES: usize = 1 << 20;
/// Bytes of a request that messages share.
const SHARED_BYTES: usize = 32 << 10;
/// Records of a region.
const REGION_RECORDS: usize = 4096;

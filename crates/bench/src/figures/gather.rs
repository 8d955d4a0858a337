//! Messages of scattered records, sent and received by two processes of ours: for who compares them with another library's, over
//! memory of the same contents in the same order.

use super::{
    Over,
    digest::Digest,
    records::Records,
    sender::{Sample, Sender, Until},
    transmit::{Transmit, Way},
};
use anyhow::{Result, ensure};
use overside::memory::Buffer;
use std::sync::Arc;

/// A sender with its receiver, and a region to send from.
pub struct Gather {
    sender: Sender,
    region: Arc<Buffer>,
}

/// Messages of one kind.
pub struct Messages<'a> {
    sender: &'a mut Sender,
    sides: Vec<(&'static str, Transmit)>,
    records: Records,
    per_message: usize,
}

impl Gather {
    /// Starts both ends over `transport` (as addresses name it), with a region of `region_bytes`, which is a power of two.
    ///
    /// # Errors
    /// There is no such provider; a process or memory could not be had.
    pub fn start(transport: &str, region_bytes: usize) -> Result<Gather> {
        let mut sender = Sender::start(&Over::new(transport)?, 1)?;
        let region = Records::region(&mut sender, region_bytes)?;
        Ok(Gather { sender, region })
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
        let fits = |way: &Way| *way != Way::ZeroCopy || per_message <= self.sender.capabilities.sge_max;
        let ways = Way::ALL.into_iter().filter(fits);
        let side = |way: Way| (way.name(), Transmit::new(way, &records, per_message, &pool, &self.sender));
        let sides = ways.map(side).collect();
        Ok(Messages { sender: &mut self.sender, sides, records, per_message })
    }
}

impl Messages<'_> {
    /// The ways they can be sent, by name, in the order of [`run`](Self::run).
    pub fn ways(&self) -> impl Iterator<Item = &'static str> {
        self.sides.iter().map(|(name, _)| *name)
    }

    /// Sends `count` messages in way `way` and compares what arrives with what was to be sent.
    ///
    /// # Errors
    /// Other bytes arrived; as [`run`](Self::run).
    pub fn check(&mut self, way: usize, count: u64) -> Result<()> {
        let (name, side) = &mut self.sides[way];
        let (_, answers) = self.sender.run(side, Until::Requests(count), true)?;
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
        Ok(self.sender.run(&mut self.sides[way].1, Until::Elapsed(slice_ns), false)?.0)
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

const POOL_BYTES: usize = 1 << 20;

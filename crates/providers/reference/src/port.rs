//! The reference's data side: takes requests, and calls on the fabric to carry them out.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use overside_memory::SegmentId;
use overside_shape::Run;
use overside_verbs::declared::{Framing, bundle};
use overside_verbs::pairs::post_each;
use overside_verbs::port::{Payload, Port, QpIndex, RawCompletion, RawReceive, RawRegion, RawRequest, RawWork};
use overside_verbs::watch::Signal;
use overside_verbs::{Clock, Instance, Link, Loan, PortEvent, Status, VerbsError};

use super::fabric::{Bytes, Fabric, Receive, RegionSend, Sent, Work};
use super::{Fault, Reference, lock};

#[derive(Debug)]
pub struct ReferencePort {
    instance: Arc<Instance>,
    fabric: Arc<Mutex<Fabric>>,
    clock: Arc<dyn Clock>,
    port: usize,
    domain: u64,
    depth: usize,
    ends: HashMap<QpIndex, usize>,
    wake: Arc<Signal>,
}

impl ReferencePort {
    pub fn open(provider: &Reference, domain: u64, depth: usize) -> Result<Self, VerbsError> {
        let Reference { instance, fabric, clock, .. } = provider;
        let wake = Arc::new(Signal::new()?);
        let port = lock(fabric).port(domain, wake.clone());
        let (instance, fabric, clock) = (instance.clone(), fabric.clone(), clock.clone());
        Ok(Self { instance, fabric, clock, port, domain, depth, ends: HashMap::new(), wake })
    }

    fn registered(&self, fabric: &Fabric, segment: SegmentId) -> Result<(), VerbsError> {
        let known = segment == SegmentId::FOREIGN || fabric.registry.segment(self.domain, segment, |_| ()).is_some();
        if known { Ok(()) } else { Err(VerbsError::NotRegistered(segment.get())) }
    }

    fn bytes(&self, fabric: &Fabric, payload: &Payload<'_>) -> Result<Bytes, VerbsError> {
        let limit = |what, value: usize, max: usize| match value > max {
            true => Err(VerbsError::Limit { what, value: value as u64, max: max as u64 }),
            false => Ok(()),
        };
        let keeps = fabric.fault == Some(Fault::KeepsPointers);
        match payload {
            Payload::Inline(bytes) => {
                limit("inline payload", bytes.len(), 64)?;
                Ok(match keeps {
                    true => Bytes::InlineAt(bytes.as_ptr() as usize, bytes.len()),
                    false => Bytes::Inline(bytes.to_vec()),
                })
            }
            Payload::Gather(fragments) => {
                limit("gather list", fragments.len(), 16)?;
                limit("message", fragments.iter().map(|f| f.len as usize).sum(), 1 << 20)?;
                fragments.iter().try_for_each(|f| self.registered(fabric, f.segment))?;
                Ok(match keeps {
                    true => Bytes::ListAt(fragments.as_ptr() as usize, fragments.len()),
                    false => Bytes::List(fragments.iter().map(|f| (f.address as usize, f.len as usize)).collect()),
                })
            }
        }
    }

    fn taken(&self, fabric: &Fabric, request: &RawRequest<'_>) -> Result<Sent, VerbsError> {
        let work = match &request.work {
            RawWork::Send(payload, immediate) => Work::Send(self.bytes(fabric, payload)?, *immediate),
            RawWork::SendRegion(region) => {
                self.registered(fabric, region.segment)?;
                Work::Region(sends(region))
            }
            RawWork::Write(payload, remote, immediate) => {
                Work::Write(self.bytes(fabric, payload)?, *remote, *immediate)
            }
            RawWork::Read(sink, remote) => {
                self.registered(fabric, sink.segment)?;
                Work::Read(sink.address as usize, *remote)
            }
            RawWork::FetchAdd(remote, add) => Work::FetchAdd(*remote, *add),
            RawWork::CompareSwap(remote, compare, swap) => Work::CompareSwap(*remote, *compare, *swap),
        };
        Ok(Sent {
            slot: request.slot,
            work,
            signalled: request.signalled,
            lend: request.lend,
            posted: self.clock.now(),
            due: None,
            cut: None,
            done: None,
        })
    }
}

/// The SENDs that a region comes to; addresses as numbers.
fn sends(region: &RawRegion<'_>) -> VecDeque<RegionSend> {
    let all = region.shape.messages();
    let (mut next, mut out) = (0, VecDeque::new());
    while next < all.count() {
        let slice = bundle::first(&all.slice(next..all.count()), region.bundle_bytes);
        let framing = Framing::of(&slice);
        let mut head = vec![0; framing.head_bytes()];
        bundle::write_lengths(&slice, &mut head);
        let place = |run: Run| (region.address as usize + run.at as usize, run.len as usize);
        let bytes = Bytes::List(slice.fragments().map(place).collect());
        out.push_back(RegionSend { head, bytes, immediate: framing.immediate() });
        next += slice.count();
    }
    out
}

// SAFETY: [reference-in-flight] what the fabric touches lies between post and completion, each slot leaves its queue once, and the reports of
// a queue pair leave from the front; the faults break that on purpose, within memory that the probe keeps mapped.
unsafe impl Port for ReferencePort {
    fn attach(&mut self, qp: QpIndex, link: Link) -> Result<(), VerbsError> {
        let end: usize = self.instance.opened(self.domain, link)?;
        self.ends.insert(qp, end);
        lock(&self.fabric).attach(end, self.port, qp);
        Ok(())
    }

    unsafe fn post(&mut self, qp: QpIndex, batch: &[RawRequest<'_>]) -> (usize, Option<VerbsError>) {
        let mut fabric = lock(&self.fabric);
        let Some(end) = self.ends.get(&qp).copied().filter(|end| fabric.is_open(*end)) else {
            return (0, Some(VerbsError::Closed));
        };
        let (accepted, error) = post_each(batch, |request| {
            let full = fabric.sends(end) >= self.depth;
            if full && fabric.fault != Some(Fault::TouchesRefused) {
                fabric.wants_room(end);
                return Ok(false);
            }
            let sent = self.taken(&fabric, request)?;
            fabric.push(end, sent);
            Ok(!full)
        });
        fabric.progress(self.port);
        (accepted, error)
    }

    unsafe fn post_receive(&mut self, qp: Option<QpIndex>, batch: &[RawReceive]) -> Result<usize, VerbsError> {
        let mut fabric = lock(&self.fabric);
        let end = match qp {
            None => None,
            Some(qp) => Some(self.ends.get(&qp).copied().filter(|end| fabric.is_open(*end)).ok_or(VerbsError::Closed)?),
        };
        let mut accepted = 0;
        for receive in batch {
            let RawReceive { slot, buffer, takes_loan } = *receive;
            let receive = Receive { slot, address: buffer.address as usize, len: buffer.len, takes_loan };
            if !fabric.receive(self.port, end, receive, self.depth) {
                break;
            }
            accepted += 1;
        }
        fabric.progress(self.port);
        Ok(accepted)
    }

    fn poll(&mut self, out: &mut [RawCompletion]) -> usize {
        let mut fabric = lock(&self.fabric);
        fabric.polled(self.port);
        fabric.progress(self.port);
        fabric.ports[self.port].reports.take(out)
    }

    fn take_loan(&mut self, slot: u32) -> Option<Loan> {
        lock(&self.fabric).ports[self.port].loans.remove(&slot)
    }

    fn next_event(&mut self) -> Option<PortEvent> {
        lock(&self.fabric).ports[self.port].reports.events.pop_front()
    }

    fn arm(&mut self) -> Result<bool, VerbsError> {
        let mut fabric = lock(&self.fabric);
        let port = &mut fabric.ports[self.port];
        if !port.reports.is_empty() {
            return Ok(false);
        }
        self.wake.drain();
        port.armed = true;
        Ok(true)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    fn close(&mut self, qp: QpIndex) {
        if let Some(end) = self.ends.remove(&qp) {
            lock(&self.fabric).close(end, Status::Flushed);
        }
    }
}

impl Drop for ReferencePort {
    fn drop(&mut self) {
        let mut fabric = lock(&self.fabric);
        for end in self.ends.values() {
            fabric.close(*end, Status::Flushed);
        }
        fabric.ports[self.port].shared.clear();
        let loans = std::mem::take(&mut fabric.ports[self.port].loans);
        // The end of each takes the lock.
        drop(fabric);
        drop(loans);
    }
}

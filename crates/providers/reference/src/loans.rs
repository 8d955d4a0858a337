//! Messages that are lent: their bytes as a peer has them mapped, and what ends them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Weak};

use overside_memory::{Foreign, ForeignRange};
use overside_verbs::port::{Lending, RawCompletion};
use overside_verbs::{Lender, Loan, Memory, Opcode, Status};

use super::fabric::{Bytes, Fabric};
use super::{Fault, lock};
use std::sync::Arc;

/// A loan that has not ended.
#[derive(Clone, Copy, Debug)]
pub struct Out {
    /// Whose bytes they are.
    pub end: usize,
    pub slot: u32,
}

/// What the loans of one end share.
#[derive(Debug)]
pub struct Ledger {
    fabric: Weak<Mutex<Fabric>>,
    closed: Arc<AtomicBool>,
}

impl Lender for Ledger {
    fn vouches(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    fn take_back(&self, number: u64) {
        if let Some(fabric) = self.fabric.upgrade() {
            lock(&fabric).returned(number);
        }
    }
}

impl Fabric {
    /// The message of an end's request as a loan; none where its bytes lie where no peer can map
    /// them.
    pub(crate) fn lend(&mut self, end: usize, slot: u32, bytes: &Bytes) -> Option<Loan> {
        let Bytes::List(list) = bytes else { return None };
        let mut list = list.clone();
        if self.fault == Some(Fault::SortsFragments) {
            list.sort_unstable();
        }
        let (port, _) = self.at(end)?;
        let parts = list.iter().map(|(address, len)| self.mapped(port, *address, *len)).collect::<Option<Vec<_>>>()?;
        let number = self.number();
        self.loans.insert(number, Out { end, slot });
        let lender = Ledger { fabric: self.me.clone(), closed: self.revoked(end) };
        Some(Loan::new(parts, Arc::new(lender), number))
    }

    fn mapped(&self, port: usize, address: usize, len: usize) -> Option<ForeignRange> {
        let within = |memory: &Memory| match memory {
            Memory::Segment(segment) if segment.contains(address as *const u8, len) => Some(segment.clone()),
            _ => None,
        };
        let found = self.registry.domain(self.ports[port].domain, |(), regions| {
            Ok(regions.values().find_map(|region| within(&region.memory)))
        });
        let segment = found.ok()??;
        let fd = segment.fd()?.try_clone_to_owned().ok()?;
        let at = address - segment.base().as_ptr() as usize;
        Foreign::map(fd, segment.len() as u64).and_then(|foreign| foreign.range(at as u64, len)).ok()
    }

    /// A loan has ended.
    pub(crate) fn returned(&mut self, number: u64) {
        if self.fault == Some(Fault::ForgetsReturns) {
            return;
        }
        let Some(out) = self.loans.remove(&number) else { return };
        self.report_returned(out);
        if self.fault == Some(Fault::ReturnsTwice) {
            self.report_returned(out);
        }
    }

    /// All loans of an end have ended.
    pub(crate) fn revoke(&mut self, end: usize) {
        if self.fault != Some(Fault::StaysValid) {
            self.revoked(end).store(true, Ordering::Release);
        }
        let mut numbers: Vec<u64> =
            self.loans.iter().filter(|(_, out)| out.end == end).map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        for number in numbers {
            match self.loans.remove(&number) {
                Some(out) if self.fault != Some(Fault::KeepsRevoked) => self.report_returned(out),
                _ => {}
            }
        }
    }

    pub(crate) fn report_returned(&mut self, Out { end, slot }: Out) {
        let Some((port, qp)) = self.at(end) else { return };
        let report = RawCompletion::new(slot, Some(qp), Opcode::Send, Status::Success);
        self.ports[port].reports.done.push_back(RawCompletion { lending: Lending::Returned, ..report });
        if self.fault != Some(Fault::SleepsThroughReturns) {
            self.wake(port);
        }
    }
}

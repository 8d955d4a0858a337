//! Devices between a node and its disks.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use overside_sim::Process;
use overside_verbs::watch::Signal;
use overside_verbs::{Clock, VerbsError};
use overside_volume::{Completion, Device, DeviceError, Geometry, Request, Work};

use super::lock;
use crate::model::{self, Model, SECTOR};

/// A member that fails for a while.
#[derive(Debug)]
pub(super) struct Failing {
    pub(super) device: Box<dyn Device>,
    pub(super) number: u64,
    pub(super) fails: Arc<Mutex<BTreeSet<u64>>>,
    pub(super) done: Vec<Completion>,
}

impl Device for Failing {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        if lock(&self.fails).contains(&self.number) {
            self.done.extend(batch.drain(..).map(|request| request.ended(Err(DeviceError::Failed))));
        } else {
            self.device.submit(batch);
        }
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        out.append(&mut self.done);
        self.device.poll(out);
        out.len() - before
    }
    fn arm(&mut self) -> bool {
        self.device.arm() && self.done.is_empty()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.device.fd()
    }
    fn due(&self) -> Option<Instant> {
        self.device.due()
    }
}

/// A device on a thread of its own: its disk gives up turns, and the node holds a lock while it hands requests over.
#[derive(Debug)]
pub(super) struct Apart {
    geometry: Geometry,
    passed: Arc<Mutex<Passed>>,
    asked: Arc<Signal>,
    ended: Arc<Signal>,
}

#[derive(Debug, Default)]
struct Passed {
    requests: VecDeque<Request>,
    done: Vec<Completion>,
}

impl Apart {
    pub(super) fn over(
        mut device: impl Device + 'static,
        process: &Process,
        clock: &Arc<dyn Clock>,
    ) -> Result<Apart, VerbsError> {
        let [asked, ended] = [Arc::new(Signal::new()?), Arc::new(Signal::new()?)];
        let apart = Apart { geometry: device.geometry(), passed: Arc::default(), asked, ended };
        let (passed, asked, ended) = (apart.passed.clone(), apart.asked.clone(), apart.ended.clone());
        let clock = clock.clone();
        process.spawn("device", move || {
            let (mut batch, mut done) = (VecDeque::new(), Vec::new());
            loop {
                asked.drain();
                batch.append(&mut lock(&passed).requests);
                device.submit(&mut batch);
                if device.poll(&mut done) > 0 {
                    lock(&passed).done.append(&mut done);
                    ended.notify();
                    continue;
                }
                if device.arm() {
                    let fds: Vec<BorrowedFd<'_>> = device.fd().into_iter().chain([asked.as_fd()]).collect();
                    if clock.wait(&fds, device.due()).is_err() {
                        return;
                    }
                }
            }
        });
        Ok(apart)
    }
}

impl Device for Apart {
    fn geometry(&self) -> Geometry {
        self.geometry
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        lock(&self.passed).requests.append(batch);
        self.asked.notify();
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.ended.drain();
        let mut passed = lock(&self.passed);
        let found = passed.done.len();
        out.append(&mut passed.done);
        found
    }
    fn arm(&mut self) -> bool {
        lock(&self.passed).done.is_empty()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ended.as_fd())
    }
}

/// Every WRITE comes once in a node's life.
#[derive(Debug)]
pub(super) struct Once<D> {
    pub(super) device: D,
    pub(super) model: Model,
    pub(super) seen: BTreeSet<(u64, u64)>,
}

impl<D: Device> Device for Once<D> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        let before = batch.len();
        let writes: Vec<Option<(u64, u64)>> = batch
            .iter()
            .map(|request| match &request.work {
                Work::Write { at, from, .. } => {
                    let number = at / SECTOR;
                    Some((number, model::version(&from[..SECTOR as usize], number).unwrap_or(u64::MAX)))
                }
                _ => None,
            })
            .collect();
        self.device.submit(batch);
        for write in writes.into_iter().take(before - batch.len()).flatten() {
            if !self.seen.insert(write) {
                self.model.fail(format!("a WRITE is carried out twice: sector and version {write:?}"));
            }
        }
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.device.poll(out)
    }
    fn arm(&mut self) -> bool {
        self.device.arm()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.device.fd()
    }
    fn due(&self) -> Option<Instant> {
        self.device.due()
    }
}

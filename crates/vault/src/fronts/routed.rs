//! A device, and for whom each request under way is.

use std::collections::{BTreeMap, VecDeque};

use overside_volume::{Completion, Device, DeviceError, Request, Work};
use rustix::io::Errno;

use super::room::Room;

/// A device whose requests carry what the front needs to answer them.
#[derive(Debug)]
pub(super) struct Routed<R> {
    pub(super) device: Box<dyn Device>,
    /// What the device had no room for yet.
    waiting: VecDeque<Request>,
    routes: BTreeMap<u64, R>,
    next: u64,
    polled: Vec<Completion>,
}

/// A request that has ended.
pub(super) type Ended<R> = (R, Work, Result<(), DeviceError>);

impl<R> Routed<R> {
    pub(super) fn new(device: Box<dyn Device>) -> Routed<R> {
        Routed { device, waiting: VecDeque::new(), routes: BTreeMap::new(), next: 0, polled: Vec::new() }
    }

    /// Asks the device at the next [`drive`](Self::drive).
    pub(super) fn push(&mut self, work: Work, route: R) {
        let tag = self.next;
        self.next += 1;
        self.routes.insert(tag, route);
        self.waiting.push_back(Request { tag, work });
    }

    /// Submits what the device takes, and appends what has ended to `ended`. Whether anything has.
    pub(super) fn drive(&mut self, ended: &mut Vec<Ended<R>>) -> bool {
        if !self.waiting.is_empty() {
            self.device.submit(&mut self.waiting);
        }
        let found = self.device.poll(&mut self.polled) > 0;
        for Completion { tag, work, result } in self.polled.drain(..) {
            if let Some(route) = self.routes.remove(&tag) {
                ended.push((route, work, result));
            }
        }
        found
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.routes.is_empty()
    }
}

/// A request's memory is free again.
pub(super) fn give_back(work: Work, room: &mut Room) {
    match work {
        Work::Read { into, .. } => room.put(into),
        Work::Write { from, .. } => room.put_bytes(from),
        _ => {}
    }
}

/// What a failure of a device is called by the kernel.
pub(super) fn errno_of(error: DeviceError) -> Errno {
    match error {
        DeviceError::Invalid => Errno::INVAL,
        DeviceError::ReadOnly => Errno::ROFS,
        DeviceError::Fenced | DeviceError::Refused => Errno::PERM,
        DeviceError::NoSpace => Errno::NOSPC,
        DeviceError::NoMemory => Errno::NOMEM,
        DeviceError::Failed | DeviceError::Corrupt | DeviceError::Unreachable => Errno::IO,
    }
}

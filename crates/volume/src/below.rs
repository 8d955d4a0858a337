//! A device as one that lies over it has it.

use std::collections::VecDeque;

use overside_verbs::VerbsError;
use overside_verbs::watch::Watch;

use crate::device::{Completion, Device, Request, Work};

/// A device under another one: what it is handed next, and what it has ended.
#[derive(Debug)]
pub struct Below<D> {
    /// The device itself.
    pub device: D,
    /// What it has had no room for yet.
    queue: VecDeque<Request>,
    /// The first comes last.
    ended: Vec<Completion>,
}

impl<D: Device> Below<D> {
    /// With nothing asked of it.
    pub fn new(device: D) -> Below<D> {
        Below { device, queue: VecDeque::new(), ended: Vec::new() }
    }

    /// What it gets with the next [`turn`](Self::turn) or [`submit`](Self::submit).
    pub fn push(&mut self, tag: u64, work: Work) {
        self.queue.push_back(Request { tag, work });
    }

    /// Hands it what it has room for.
    pub fn submit(&mut self) {
        if !self.queue.is_empty() {
            self.device.submit(&mut self.queue);
        }
    }

    /// The same, and asks it what has ended: whether anything has, which [`ended`](Self::ended)
    /// gives.
    pub fn turn(&mut self) -> bool {
        self.submit();
        // What nobody has asked for since comes before what is new.
        self.ended.reverse();
        self.device.poll(&mut self.ended);
        self.ended.reverse();
        !self.ended.is_empty()
    }

    /// What has ended, in its order.
    pub fn ended(&mut self) -> Option<Completion> {
        self.ended.pop()
    }
}

/// What becomes readable when one of the devices has something; none where no device has a
/// descriptor.
///
/// # Errors
/// The system has no descriptor.
pub fn watch_all<'a>(devices: impl Iterator<Item = &'a dyn Device>) -> Result<Option<Watch>, VerbsError> {
    let mut watch = None;
    for (token, fd) in devices.enumerate().filter_map(|(token, device)| Some((token, device.fd()?))) {
        let watch = match &mut watch {
            Some(watch) => watch,
            none => none.insert(Watch::new()?),
        };
        watch.add(fd, token as u64)?;
    }
    Ok(watch)
}

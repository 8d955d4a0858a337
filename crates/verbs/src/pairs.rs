//! What every port keeps: its queue pairs, and what it has to report.

use std::collections::VecDeque;

use crate::VerbsError;
use crate::port::{PortEvent, QpIndex, RawCompletion, RawRequest};
use crate::work::Status;

/// Queue pairs by index.
#[derive(Debug)]
pub struct Pairs<P> {
    places: Vec<Option<Box<P>>>,
}

impl<P> Default for Pairs<P> {
    fn default() -> Self {
        Self { places: Vec::new() }
    }
}

impl<P> Pairs<P> {
    /// The queue pair of an index, if there is one.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&P> {
        self.places.get(index as usize)?.as_deref()
    }

    /// As [`get`](Self::get).
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut P> {
        self.places.get_mut(index as usize)?.as_deref_mut()
    }

    /// Puts a queue pair at an index.
    pub fn insert(&mut self, QpIndex(index): QpIndex, pair: P) {
        let at = index as usize;
        if self.places.len() <= at {
            self.places.resize_with(at + 1, || None);
        }
        self.places[at] = Some(Box::new(pair));
    }

    /// Takes a queue pair away.
    pub fn remove(&mut self, index: u32) -> Option<Box<P>> {
        self.places.get_mut(index as usize)?.take()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &P> {
        self.places.iter().flatten().map(|pair| &**pair)
    }

    /// As [`iter`](Self::iter).
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut P> {
        self.places.iter_mut().flatten().map(|pair| &mut **pair)
    }

    /// All indexes there may be one at.
    pub fn indexes(&self) -> std::ops::Range<u32> {
        0..self.places.len() as u32
    }
}

/// Completions and events until they are asked for.
#[derive(Debug, Default)]
pub struct Reports {
    /// The first first.
    pub done: VecDeque<RawCompletion>,
    /// The first first.
    pub events: VecDeque<PortEvent>,
}

impl Reports {
    /// Moves as many completions to `out` as it takes; how many.
    #[inline]
    pub fn take(&mut self, out: &mut [RawCompletion]) -> usize {
        // Nothing, as a rule.
        if self.done.is_empty() {
            return 0;
        }
        let count = self.done.len().min(out.len());
        for (place, done) in out.iter_mut().zip(self.done.drain(..count)) {
            *place = done;
        }
        count
    }

    /// Whether there is nothing to be asked for.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.done.is_empty() && self.events.is_empty()
    }

    /// A queue pair has ended without its owner's doing.
    pub fn disconnected(&mut self, index: u32, status: Status, reason: impl Into<String>) {
        let (queue_pair, reason) = (QpIndex(index), reason.into());
        self.events.push_back(PortEvent::Disconnected { queue_pair, status, reason });
    }

    /// A queue pair was closed: its owner needs no events of it any more.
    pub fn closed(&mut self, qp: QpIndex) {
        self.events.retain(|PortEvent::Disconnected { queue_pair, .. }| *queue_pair != qp);
    }
}

/// Posts one request after another by `post`, which says false where there is no room for now.
/// Returns as [`Port::post`](crate::Port::post).
#[inline]
pub fn post_each<'a>(
    batch: &[RawRequest<'a>],
    mut post: impl FnMut(&RawRequest<'a>) -> Result<bool, VerbsError>,
) -> (usize, Option<VerbsError>) {
    for (accepted, request) in batch.iter().enumerate() {
        match post(request) {
            Ok(true) => {}
            Ok(false) => return (accepted, None),
            Err(refused) => return (accepted, Some(refused)),
        }
    }
    (batch.len(), None)
}

//! The strategies that are compared: those that were fixed before, and planning.

use crate::{
    figures::sender::Post,
    measure::{elapsed_ns, now_ns},
};
use anyhow::Result;
use overside::{
    memory::{Buffer, Pool},
    planner::{Force, Method, Planner, Terms, ViewPlan},
    shape::Shape,
    transfer::{DeclaredSend, Region},
    verbs::{CompletionQueue, QueuePair},
};
use std::sync::Arc;

/// A strategy that looks at nothing but the length of fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fixed {
    Copy,
    Gather,
    Threshold(u64),
}

impl Fixed {
    /// All rivals.
    pub(super) fn all() -> Vec<Fixed> {
        let thresholds = THRESHOLDS.into_iter().map(Fixed::Threshold);
        [Fixed::Copy, Fixed::Gather].into_iter().chain(thresholds).collect()
    }

    pub(super) fn name(self) -> String {
        match self {
            Fixed::Copy => "copy".into(),
            Fixed::Gather => "gather".into(),
            Fixed::Threshold(bytes) => format!("gather from {bytes} B"),
        }
    }

    pub(super) fn force(self) -> Force {
        match self {
            Fixed::Copy => Force::Method(Method::Copy),
            Fixed::Gather => Force::Method(Method::Gather),
            Fixed::Threshold(bytes) => Force::Threshold(bytes),
        }
    }
}

/// By which plan a message is sent.
#[derive(Clone, Debug)]
pub(super) enum Planned {
    /// As somebody fixed it before.
    As(Box<ViewPlan>),
    /// As planned once by the prices of each distance that the planner knows, whichever holds: the
    /// first by its own, the second by those of elsewhere.
    ByDistance(Box<[ViewPlan; 2]>),
    /// Anew for each message.
    Anew,
}

/// How a cell is sent.
pub(super) struct Strategy<'a> {
    pub(super) planner: &'a Planner,
    pub(super) terms: Terms,
    pub(super) planned: Planned,
    pub(super) memory: &'a Arc<Buffer>,
    pub(super) shapes: &'a [Arc<Shape>],
    pub(super) pool: &'a Pool,
    /// Nanoseconds to go on for; 0: each of the first shapes once.
    pub(super) for_ns: u64,
    /// How many shapes that are.
    pub(super) first: usize,
    pub(super) turn: Turn,
}

/// Where a strategy is in its stretch.
#[derive(Default)]
pub(super) struct Turn {
    next: usize,
    start: u64,
    left: usize,
    send: Option<DeclaredSend>,
    bytes: u64,
    /// How far the receiver is, as last heard, and messages until that is asked again.
    line_ns: Option<f64>,
    until_asked: u32,
}

impl Strategy<'_> {
    /// As a channel does.
    fn look_how_far(&mut self, queue: &mut CompletionQueue, to: QueuePair) {
        match self.turn.until_asked.checked_sub(1) {
            Some(left) => self.turn.until_asked = left,
            None if matches!(self.planned, Planned::As(_)) => {}
            None => (self.turn.until_asked, self.turn.line_ns) = (ASKED_EVERY, queue.line_ns(to).or(self.turn.line_ns)),
        }
    }

    /// The next message; none when time is over.
    fn take(&mut self) -> Result<Option<DeclaredSend>> {
        let over = if self.for_ns == 0 { self.turn.left == 0 } else { elapsed_ns(self.turn.start) >= self.for_ns };
        if over {
            return Ok(None);
        }
        let at = self.turn.next % self.shapes.len();
        (self.turn.next, self.turn.left) = (self.turn.next + 1, self.turn.left.saturating_sub(1));
        let shape = &self.shapes[at];
        let planned;
        let here = self.planner.at(self.turn.line_ns);
        let plan = match &self.planned {
            Planned::As(plan) => plan,
            Planned::ByDistance(plans) => &plans[usize::from(!std::ptr::eq(here, self.planner))],
            Planned::Anew => {
                planned = here.plan(shape, &self.terms)?;
                &planned
            }
        };
        let region = Region::new(self.memory, shape)?;
        self.turn.bytes += shape.bytes();
        let capabilities = self.planner.capabilities();
        Ok(Some(DeclaredSend::new(0, region, Some(plan), capabilities, self.terms.request_bytes_max)?))
    }
}

impl Post for Strategy<'_> {
    fn begin(&mut self, _pairs: &[QueuePair]) -> Result<()> {
        (self.turn.start, self.turn.bytes, self.turn.left) = (now_ns(), 0, self.first);
        if self.for_ns == 0 {
            self.turn.next = 0;
        }
        Ok(())
    }

    fn post(&mut self, queue: &mut CompletionQueue, pairs: &[QueuePair]) -> Result<bool> {
        loop {
            if let Some(send) = &mut self.turn.send
                && !send.post(queue, pairs[0], self.pool)?
            {
                return Ok(false);
            }
            self.look_how_far(queue, pairs[0]);
            self.turn.send = self.take()?;
            if self.turn.send.is_none() {
                return Ok(true);
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.turn.bytes
    }
}

/// Messages between two questions how far the receiver is.
const ASKED_EVERY: u32 = 63;
/// Lengths from which on a rival gathers.
pub(super) const THRESHOLDS: [u64; 9] = [256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];

//! The strategies that are compared: those that were fixed before, and planning.

use crate::{
    figures::sender::Post,
    measure::{elapsed_ns, now_ns},
};
use anyhow::Result;
use overside::{
    memory::{Buffer, Pool},
    planner::{Force, Planner, Terms, ViewPlan, Way},
    shape::Shape,
    verbs::{
        CompletionQueue, QueuePair,
        declared::{DeclaredSend, Region},
    },
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
            Fixed::Copy => Force::Way(Way::Copy),
            Fixed::Gather => Force::Way(Way::Gather),
            Fixed::Threshold(bytes) => Force::Threshold(bytes),
        }
    }
}

/// How a cell is sent: as planned anew for each message, or as somebody fixed it before.
pub(super) struct Strategy<'a> {
    pub(super) planner: &'a Planner,
    pub(super) terms: Terms,
    /// None: planned anew for each message.
    pub(super) plan: Option<ViewPlan>,
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
}

impl Strategy<'_> {
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
        let plan = match &self.plan {
            Some(plan) => plan,
            None => {
                planned = self.planner.plan(shape, &self.terms)?;
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
                && !queue.post_send(pairs[0], send, self.pool)?
            {
                return Ok(false);
            }
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

/// Lengths from which on a rival gathers.
pub(super) const THRESHOLDS: [u64; 9] = [256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];

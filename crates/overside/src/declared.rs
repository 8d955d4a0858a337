//! Declared sends: what is to be sent is a shape over memory, how is a plan.

use std::fmt;
use std::sync::Arc;

use overside_memory::{Buffer, MemoryError, View};
use overside_planner::{Alternative, Capabilities, Goal, Plan, Price, Profile, Work, plan};
use overside_shape::Shape;

/// A shape over a buffer with the plan for sending it.
#[derive(Debug)]
pub struct Declared {
    pub(crate) view: View,
    plan: Plan<3>,
    fragments: u64,
}

/// How a declared region is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The bytes ride in the descriptor.
    Inline,
    /// Packed into a transmit buffer first.
    Copy,
    /// One gather entry a fragment.
    Gather,
}

const WAYS: [Way; 3] = [Way::Inline, Way::Copy, Way::Gather];

impl Declared {
    /// Plans the sending of `shape` of `buffer`.
    pub(crate) fn new(
        buffer: &Arc<Buffer>,
        shape: &Shape,
        capabilities: &Capabilities,
        profile: &Profile,
        goal: Goal,
    ) -> Result<Declared, MemoryError> {
        let view = View::of(buffer, shape)?;
        let (bytes, fragments) = (shape.bytes() as f64, shape.fragment_count());
        let one = Work { requests: 1.0, fragments: 1.0, bytes, ..Work::default() };
        let packed = Work { packed_bytes: bytes, packed_pieces: fragments as f64, ..one };
        let gathered = Work { fragments: fragments as f64, ..one };
        let way = |way, sender, receiver| Alternative { name: way, sender, receiver, wire_bytes: bytes };
        let inline = (shape.bytes() <= capabilities.inline_max as u64)
            .then(|| way("inline", Work { fragments: 0.0, ..packed }, Work { fragments: 0.0, ..one }));
        let copy = Some(way("copy", packed, one));
        let gather = (fragments <= capabilities.sge_max as u64).then(|| way("gather", gathered, gathered));
        // Copying is always possible, so there is a plan.
        let plan = plan(profile, goal, &[inline, copy, gather]).unwrap_or(Plan { chosen: 1, prices: [None; 3] });
        Ok(Declared { view, plan, fragments })
    }

    /// How it will be sent.
    pub fn way(&self) -> Way {
        WAYS[self.plan.chosen]
    }

    /// What each way costs on this device; none where it cannot be done.
    pub fn price(&self, way: Way) -> Option<Price> {
        self.plan.prices[WAYS.iter().position(|w| *w == way)?]
    }
}

impl fmt::Display for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes in {} fragments: ", self.view.bytes(), self.fragments)?;
        for (index, way) in WAYS.into_iter().enumerate() {
            let mark = if way == self.way() { " (chosen)" } else { "" };
            let comma = if index > 0 { ", " } else { "" };
            match self.price(way) {
                Some(price) => write!(f, "{comma}{way} {:.2} µs{mark}", price.ns / 1000.0)?,
                None => write!(f, "{comma}{way} impossible")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Inline => "inline",
            Way::Copy => "copy",
            Way::Gather => "gather",
        })
    }
}

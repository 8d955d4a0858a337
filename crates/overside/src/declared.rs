//! Declared sends: what is to be sent is a shape over memory, how is a plan.

use std::fmt;

use overside_planner::{Price, Terms, ViewPlan, Way};
use overside_transfer::Region;

/// A shape over a buffer with the plan for sending it, which it prints with the prices turned down.
#[derive(Clone, Debug)]
pub struct Declared {
    pub(crate) region: Region,
    pub(crate) plan: ViewPlan,
    pub(crate) terms: Terms,
}

impl Declared {
    /// How it will be sent.
    pub fn way(&self) -> Way {
        self.plan.way()
    }

    /// What each way costs on this device; none where it cannot be done.
    pub fn price(&self, way: Way) -> Option<Price> {
        self.plan.price(way)
    }

    /// The plan.
    pub fn plan(&self) -> &ViewPlan {
        &self.plan
    }

    /// What will be sent.
    pub fn region(&self) -> &Region {
        &self.region
    }
}

impl fmt::Display for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plan.fmt(f)
    }
}

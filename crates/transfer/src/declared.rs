//! Declared sends: what is to be sent is a shape over memory, how is a plan.

use std::fmt;
use std::sync::Arc;

use overside_planner::{Method, Price, ViewPlan};
use overside_verbs::declared::Region;

/// A shape over a buffer with the plan for sending it. It prints the plan, with the prices turned
/// down and where they come from.
#[derive(Clone, Debug)]
pub struct Declared {
    pub(crate) region: Region,
    pub(crate) plan: ViewPlan,
    pub(crate) request_bytes_max: u64,
    pub(crate) prices: Arc<str>,
}

impl Declared {
    /// How it will be sent.
    pub fn way(&self) -> Method {
        self.plan.way()
    }

    /// What each way costs on this device; none where it cannot be done.
    pub fn price(&self, way: Method) -> Option<Price> {
        self.plan.price(way)
    }

    /// The plan.
    pub fn plan(&self) -> &ViewPlan {
        &self.plan
    }

    /// Where the prices come from: the source of a profile, or that nobody has measured.
    pub fn prices(&self) -> &str {
        &self.prices
    }

    /// What will be sent.
    pub fn region(&self) -> &Region {
        &self.region
    }
}

impl fmt::Display for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; prices: {}", self.plan, self.prices)
    }
}

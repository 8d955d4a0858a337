//! How the bytes of a shape are to be sent.

use std::fmt;

use crate::plan::{Goal, Price};

/// A way of sending a shape's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// The bytes ride in the descriptor.
    Inline,
    /// Packed into a transmit buffer first.
    Copy,
    /// One gather entry a fragment.
    Gather,
    /// Long fragments gathered, short ones packed, in one request.
    Mixture,
    /// Fewer, larger gather entries that span gaps; the gaps' bytes are sent as well.
    Boxes,
    /// The region's description is sent, and the other end takes the bytes by it from where they
    /// lie.
    Declared,
}

/// What is asked of the planner beside the shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// What is to be small.
    pub goal: Goal,
    /// Bytes of the receiver's buffers and of a transmit buffer: no request carries more.
    pub request_bytes_max: u64,
    /// Whole messages share a request up to so many bytes: enough to make the request cheap, few
    /// enough to stay in the cache between packing and receiving. A longer message is a request of
    /// its own.
    pub bundle_bytes: u64,
    /// The bytes are in the sender's cache.
    pub warm: bool,
    /// The receiver knows the shape and takes its gaps' bytes as well.
    pub gaps_on_wire: bool,
    /// Not to be chosen by price.
    pub force: Option<Force>,
}

/// A choice made by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// This way; a mixture at its best threshold.
    Method(Method),
    /// Fragments of so many bytes and more are gathered, shorter ones packed, whatever it costs.
    Threshold(u64),
}

/// Why a shape cannot be sent so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A message longer than a request.
    #[error(
        "a message of {bytes} bytes is longer than a request may be ({max} bytes); cut the region into shorter messages"
    )]
    TooLong {
        /// The longest message.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// The forced way cannot carry it.
    #[error(
        "{way} cannot carry {bytes} bytes in {fragments} fragments on this device; leave the choice to the planner"
    )]
    Impossible {
        /// The way.
        way: Method,
        /// Bytes in all.
        bytes: u64,
        /// Fragments in all.
        fragments: u64,
    },
}

/// What was chosen for a shape, at what price, and the prices turned down. Prints all of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ViewPlan {
    pub(crate) way: Method,
    pub(crate) gather_from: u64,
    pub(crate) prices: [Option<Price>; Method::ALL.len()],
    pub(crate) mixture_from: u64,
    /// A forced threshold that no fragment stays below.
    pub(crate) all_gathered: bool,
    pub(crate) messages: u64,
    pub(crate) fragments: u64,
    pub(crate) bytes: u64,
    pub(crate) bundle_bytes: u64,
}

impl Method {
    /// In the order of their prices.
    pub const ALL: [Method; 6] =
        [Method::Inline, Method::Copy, Method::Gather, Method::Mixture, Method::Boxes, Method::Declared];
}

/// Of nothing, and nothing priced.
impl Default for ViewPlan {
    fn default() -> Self {
        Self {
            way: Method::Copy,
            gather_from: u64::MAX,
            prices: [None; Method::ALL.len()],
            mixture_from: u64::MAX,
            all_gathered: false,
            messages: 0,
            fragments: 0,
            bytes: 0,
            bundle_bytes: 0,
        }
    }
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            goal: Goal::default(),
            request_bytes_max: 1 << 20,
            bundle_bytes: 64 << 10,
            warm: false,
            gaps_on_wire: false,
            force: None,
        }
    }
}

impl ViewPlan {
    /// The way.
    pub fn way(&self) -> Method {
        self.way
    }

    /// Fragments of so many bytes and more are gathered, shorter ones packed: 0 gathers all,
    /// [`u64::MAX`] packs all.
    pub fn gather_from(&self) -> u64 {
        self.gather_from
    }

    /// The price of a way for all messages; none where it cannot be done.
    pub fn price(&self, way: Method) -> Option<Price> {
        self.prices[way as usize]
    }

    /// The price of what was chosen.
    pub fn chosen(&self) -> Price {
        self.prices[self.way as usize].unwrap_or_default()
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Up to so many bytes, whole messages share a request.
    pub fn bundle_bytes(&self) -> u64 {
        self.bundle_bytes
    }

    /// Messages in all.
    pub fn messages(&self) -> u64 {
        self.messages
    }
}

impl ViewPlan {
    /// The cheapest way, or the forced one.
    pub(crate) fn choose(&mut self, force: Option<Force>) -> Result<(), PlanError> {
        let way = match force {
            Some(Force::Method(way)) => Some(way),
            // A threshold below or above all fragments is one of the plain ways; so is one that no request can hold.
            Some(Force::Threshold(_)) if self.all_gathered && self.price(Method::Gather).is_some() => {
                Some(Method::Gather)
            }
            Some(Force::Threshold(_)) if self.mixture_from != u64::MAX => Some(Method::Mixture),
            Some(Force::Threshold(_)) => Some(Method::Copy),
            None => {
                let priced = Method::ALL.into_iter().filter_map(|way| Some((way, self.prices[way as usize]?.ns)));
                priced.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(way, _)| way)
            }
        };
        self.way = way.unwrap_or(Method::Copy);
        if self.prices[self.way as usize].is_none() {
            let (way, bytes, fragments) = (self.way, self.bytes, self.fragments);
            return Err(PlanError::Impossible { way, bytes, fragments });
        }
        self.gather_from = match self.way {
            Method::Inline | Method::Copy | Method::Declared => u64::MAX,
            Method::Gather | Method::Boxes => 0,
            Method::Mixture => self.mixture_from,
        };
        Ok(())
    }
}

impl fmt::Display for ViewPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes in {} fragments", self.bytes, self.fragments)?;
        if self.messages != 1 {
            write!(f, " of {} messages", self.messages)?;
        }
        for (way, separator) in Method::ALL.into_iter().zip([": ", ", ", ", ", ", ", ", ", ", "]) {
            let name = |f: &mut fmt::Formatter<'_>| match way {
                Method::Mixture if self.mixture_from != u64::MAX => {
                    write!(f, "{separator}{way} from {} bytes", self.mixture_from)
                }
                _ => write!(f, "{separator}{way}"),
            };
            match self.price(way) {
                Some(price) => {
                    name(f)?;
                    write!(f, " {:.2} µs", price.ns / 1000.0)?;
                }
                // What nobody asked for is not said to be impossible.
                None if matches!(way, Method::Mixture | Method::Boxes | Method::Declared) => continue,
                None => write!(f, "{separator}{way} impossible")?,
            }
            if way == self.way {
                f.write_str(" (chosen)")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::Inline => "inline",
            Method::Copy => "copy",
            Method::Gather => "gather",
            Method::Mixture => "mixture",
            Method::Boxes => "boxes",
            Method::Declared => "declared",
        })
    }
}

//! The checks, one for each sentence of `port.rs`, in its order.

mod completions;
mod lifetimes;
mod loans;
mod messages;
mod one_sided;
mod ownership;
mod prices;
mod regions;
mod waiting;

use crate::{Harness, Stop};

/// A sentence of [`overside_verbs::port`] with its check.
#[derive(Debug)]
pub struct Sentence {
    /// Its id there.
    pub id: &'static str,
    pub(crate) check: fn(&dyn Harness) -> Result<(), Stop>,
}

/// Every sentence, in the order of `port.rs`.
pub const SENTENCES: &[Sentence] = &[
    Sentence { id: "own", check: ownership::own },
    Sentence { id: "private", check: ownership::private },
    Sentence { id: "accept", check: completions::accept },
    Sentence { id: "once", check: completions::once },
    Sentence { id: "silent", check: completions::silent },
    Sentence { id: "room", check: completions::room },
    Sentence { id: "order", check: completions::order },
    Sentence { id: "fifo", check: messages::fifo },
    Sentence { id: "placed", check: ownership::placed },
    Sentence { id: "gather", check: messages::gather },
    Sentence { id: "inline", check: messages::inline },
    Sentence { id: "region", check: regions::region },
    Sentence { id: "lend", check: loans::lend },
    Sentence { id: "return", check: loans::r#return },
    Sentence { id: "revoke", check: loans::revoke },
    Sentence { id: "immediate", check: messages::immediate },
    Sentence { id: "rnr", check: messages::rnr },
    Sentence { id: "length", check: messages::length },
    Sentence { id: "last-word", check: one_sided::last_word },
    Sentence { id: "write-order", check: one_sided::write_order },
    Sentence { id: "fence", check: one_sided::fence },
    Sentence { id: "atomic", check: one_sided::atomic },
    Sentence { id: "keys", check: one_sided::keys },
    Sentence { id: "progress", check: one_sided::progress },
    Sentence { id: "shared", check: messages::shared },
    Sentence { id: "close", check: lifetimes::close },
    Sentence { id: "death", check: lifetimes::death },
    Sentence { id: "hostile", check: lifetimes::hostile },
    Sentence { id: "arm", check: waiting::arm },
    Sentence { id: "half", check: waiting::half },
    Sentence { id: "wait", check: waiting::wait },
    Sentence { id: "forget", check: waiting::forget },
    Sentence { id: "idle", check: waiting::idle },
    Sentence { id: "nonblocking", check: waiting::nonblocking },
    Sentence { id: "line", check: prices::line },
    Sentence { id: "learn", check: prices::learn },
];

/// Skips where a capability is missing.
fn needs(has: bool, capability: &str) -> Result<(), Stop> {
    if has { Ok(()) } else { Err(Stop::Skipped(format!("Capabilities::{capability} does not promise it"))) }
}

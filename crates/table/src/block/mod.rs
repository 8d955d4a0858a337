//! Scan answers: one message format for `copy`, `gather` and `delta` (docs/reference/wire.md, Scan answers).
//!
//! A message is a header, a table, and row data wherever the table says. The table of a clean answer (`copy`, `gather`)
//! lists *runs*: rows whose prefixes lie at constant stride, whose rest slots lie one after another, and whose rests lie
//! in one heap. Slots are offsets into the page that they were made for; each run carries the *bias* that turns them into
//! offsets into its heap, so the slots of a page are gathered unchanged. The table of a `delta` answer lists whole leaf
//! pages and delta records as the tree keeps them; the client derives the same runs from them.
//!
//! So every mode ends as one [`RowBlock`], and everything behind it (row views, Arrow batches) knows runs only.

mod copy;
mod delta;
mod fragments;
mod gather;
mod header;
mod lent;
mod rows;
mod run;
mod source;
mod state;
mod view;

pub use copy::Copier;
pub use delta::{AnswerPage, DeltaAnswer, DeltaMark};
pub use fragments::Fragment;
pub use gather::{GatherAnswer, GatherMark};
pub use header::{BlockHeader, HEADER_BYTES, Mode};
pub use lent::{Answer, LentBlock, LentError};
pub use rows::Rows;
pub use source::{Ahead, Lent, PagesAhead, Source};
pub use state::{DeltaAt, PageState};
pub use view::RowBlock;

use run::Run;
pub(crate) use run::{OpenRun, OpenRuns, slot_at};

/// Bytes of a message, and with that of any offset in it.
pub const MESSAGE_BYTES_MAX: usize = 1 << 30;

#[cfg(test)]
pub(crate) mod tests;

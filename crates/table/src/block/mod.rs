//! Scan answers: one message format for `copy`, `gather` and `delta`.
//!
//! A message is a header, a table, and row data wherever the table says. The table of a clean
//! answer (`copy`, `gather`) lists *runs*: rows whose prefixes lie at constant stride, whose rest
//! slots lie one after another, and whose rests lie in one heap. Slots are offsets into the page
//! that they were made for; each run carries the *bias* that turns them into offsets into its heap,
//! so the slots of a page are gathered unchanged. The table of a `delta` answer lists whole leaf
//! pages and delta records as the tree keeps them; the client derives the same runs from them.
//!
//! So every mode ends as one [`RowBlock`], and everything behind it (row views, Arrow batches)
//! knows runs only.
//!
//! # Version 1
//!
//! One format for all three
//! modes: a header of 64 bytes, a table, and row data wherever the table says.
//!
//! ```text
//!  0 u32 magic "OSB1"   4 u8 version 1   5 u8 mode (0 copy, 1 gather, 2 delta)
//!  6 u8 flags: 1 rows are packed, 2 rests were left out, 4 last message   7 u8 0
//!  8 u64 scan          16 u64 sequence number of the message in the scan
//! 24 u32 rows          28 u32 bytes of a row's prefix (the constant stride)
//! 32 u32 table_at      36 u32 entries of the table: runs, or pages
//! 40 u32 delta records 44 u32 extents                        (both 0 unless mode is delta)
//! 48 u32 bytes of the whole message                          52 twelve zeros
//! ```
//!
//! **Clean answers** (copy, gather). The table lists runs, 24 bytes each, in key order:
//!
//! ```text
//! u32 count | u32 prefixes_at | u32 slots_at | u32 heap_at | u32 heap_len | u32 bias
//! ```
//!
//! A run is `count` rows whose prefixes lie at the stride from `prefixes_at` on. With slots
//! (`slots_at` not 0: `count + 1` words), the rest of row *i* is bytes `slot[i] - bias` to
//! `slot[i + 1] - bias` of the heap, without bit 31 of a slot. Without slots a run of one row has
//! the whole heap as its rest, and rows of a longer run have none. The bias lets slots of a leaf
//! page, which count from the page's start, travel unchanged. Slots do not decrease and stay in the
//! heap; bit 31 is set in none but the last, which may be that of a row that is not in the run.
//!
//! An answer of any mode holds as many pages as fit the client's buffers and travel the same way. A
//! copy answer has a run for each page or part of a page. In a gather answer a page without deltas
//! is one run and *one* fragment, from the first prefix to the last rest. A delta's row is a run of
//! one row, a fragment of its record. Rows that a delta replaced may travel as a gap that no run
//! mentions, where that is cheaper than another fragment. Head and tables of gather and delta
//! answers are filled with zeros up to a cache line (64 bytes). A page's fragment in a gather
//! answer may begin up to 63 bytes before its first prefix. So source and destination lie alike in
//! their cache lines. Readers go by offsets.
//!
//! **Delta answers.** Three tables follow each other from `table_at`:
//!
//! ```text
//! pages    u32 at | u32 len | u32 first row | u32 end row | u32 delta records | u32 extents
//! deltas   u32 at | u32 len
//! extents  u32 row (bit 31: number of a delta of the page) | u32 at | u32 len | u32 0
//! ```
//!
//! Pages and records are as the tree keeps them, fences included. Rows `first..end` of a page are
//! inside the scan's bounds. A page's deltas are newest per key, sorted by key, clipped to the same
//! bounds. Each says at which row its key goes, so the client merges in O(deltas) without comparing
//! keys, into the runs of a clean answer. Extents hold rests that lie outside of page and record,
//! ascending.
//!
//! A reader checks before it shows a row. Everything named lies in the message. There are as many
//! rows as announced. Positions and slots ascend. No byte is prefix, slot or rest of two rows, so
//! the work that a message causes is bounded by its length.
//!
//! # A scan answer that is lent
//!
//! In-place answers are delta answers of as many pages as the request allows bytes. Where the
//! provider lends they are sent as a loan: head, page, records and extents as they lie, a
//! descriptor for each page. Where it does not, or a connection has as many loans as can be, the
//! same bytes arrive as a copy. Beyond the connection's pinned budget pages are copied (mode 0).
//! Over `tcp:` and `rdma:` in-place is delta.
//!
//! A reader takes header, table entries and slots out once, checks the copies as above, and goes by
//! them; each thing named lies within one part of the loan. It reads rows where they lie, and
//! believes what it read only if the lender vouched for the bytes afterwards. Text is checked in
//! the copy. A server that writes into what it has lent makes rows wrong or refused, and nothing
//! else: tests `a_mutated_message_that_is_lent_never_panics` and
//! `a_server_that_scribbles_all_the_while_harms_nobody` (unit tests of `block`), the fuzz target
//! `scan_answer`.
//!
//! The server holds a page until its loan is returned. What a client can read is no more than
//! before. Over `shm:` every connected process of the user maps the segments of all tables for
//! reading, whatever it asks for.

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

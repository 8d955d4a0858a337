//! Checkpoints: tables written down page by page, so that less of the log is needed.
//!
//! A file of pages for each table, in parts; a footer at its end that lists the parts; and a
//! manifest that lists the tables. Each names the checksum of what it lists, so what the manifest
//! says holds for every byte.
//!
//! # Version 1
//!
//! In the folder `checkpoint/` of a data directory. Numbers ascend and are not used again; a name
//! is a number in 16 hexadecimal digits and an end. `.part` is a manifest that is being written,
//! and means nothing. Checksums are CRC32C.
//!
//! `.manifest` lists the tables of a checkpoint. It gets its name when all that it lists is on the
//! disk; the newest one counts.
//!
//! | at | what |
//! |---|---|
//! | 0 | `ovmanif` and a zero byte, u32 version, u32 tables, the directory's id |
//! | 32 | u64 number; u64 which start of a server; u64 floor. Changes with lower stamps are in it, and the log is replayed from here on |
//! | 56 | u64 oldest segment that is needed; u64 position of the log that was on the disk; u64 a stamp that no change had yet |
//! | 80 | u32 a number that no table had yet; u32 1 if a log was written. If not, the segment's number was never used |
//! | 88 | the tables, by number, each: u32 number, u32 bytes of its options. Then u64 file, u64 where its footer begins, u64 pages, u64 rows, u64 newest stamp. Then u32 bytes of the footer, u32 its checksum; its options |
//! | | zeros up to a whole block, in whose last four bytes is the checksum of all before |
//!
//! `.pages` is a table: *parts* of pages, each beginning at a block and followed by zeros up to the
//! next, and a footer. The manifest has the footer's checksum, so it vouches for every byte of the
//! checkpoint.
//!
//! ```text
//! footer   `ovfooter`, u64 number of parts; each part; zeros up to a whole block
//! part     u64 where it begins, u64 bytes, u64 pages, u64 rows, u64 checksum of its pages' checksums (four bytes count)
//! ```
//!
//! ```text
//! page     u32 checksum of what follows in it, u64 newest stamp
//!          u32 each: bytes of all of it | rows after its deltas | first row of the base that counts | the one behind the last
//!                    bytes of the low fence | of the high fence (2^32 - 1: there is none) | of the base page
//!                    number of deltas | number of extents
//!          low fence | high fence | base page | deltas and extents, each behind its u32 length
//! ```
//!
//! Fences, base page, deltas and extents are the tree's. The tree that
//! adopts them checks them anew.

mod footer;
mod manifest;
mod page;
mod read;
mod write;

pub use footer::{Footer, PageGroup};
pub use manifest::{Manifest, Table};
pub use page::{Page, PageRef, parse_part, write_page};
pub use read::PagesReader;
pub(crate) use write::Facts;
pub use write::{Checkpoint, Checkpoints};

//! Checkpoints: tables written down page by page, so that less of the log is needed.
//!
//! A file of pages for each table, in parts; a footer at its end that lists the parts; and a manifest that lists the tables. Each names the
//! checksum of what it lists, so what the manifest says holds for every byte.

mod footer;
mod manifest;
mod page;
mod read;
mod write;

pub use footer::{Footer, Part};
pub use manifest::{Manifest, Table};
pub use page::{Page, PageRef, parse_part, write_page};
pub use read::PagesReader;
pub(crate) use write::Facts;
pub use write::{Checkpoint, Checkpoints};

//! What was measured, as data ([`Report`]), as a table for the terminal ([`text`]) and as a page
//! that reads like one of the paper ([`html`]): self-contained, nothing loaded from elsewhere.

mod figures;
mod machine;
mod model;
mod page;
mod place;
mod sections;
mod tables;
mod text;

pub use machine::Machine;
pub use model::{Chosen, Prices, Report, Run, Sample, Spreads, Verification};
pub use page::{html, page};
pub use place::{writable, write};
pub use tables::machine_table;
pub use text::text;

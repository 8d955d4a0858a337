//! Typed tables: how a row, a key and a scan's answer lie in memory and on the wire.
//!
//! The formats come first, because both sides of a connection stand on them and neither trusts the other:
//!
//! | module | is |
//! |---|---|
//! | [`schema`] | columns, their types, the primary key |
//! | [`key`] | primary keys as bytes whose order is the keys' order |
//! | [`row`] | rows as a fixed prefix and a variable rest; builders and zero-copy views |
//! | [`projection`] | some columns of a row: read in place, or packed |
//! | [`block`] | scan answers: one format for `copy`, `gather` and `delta`, read as runs of rows |
//! | [`arrow`] | record batches out of scan answers, rows out of record batches |
//!
//! Every parser here takes bytes from outside and is total: garbage is an error, never a panic.

#![forbid(unsafe_code)]

pub mod arrow;
pub mod block;
pub mod client;
pub mod key;
pub mod projection;
pub mod row;
pub mod schema;
pub mod server;
pub mod wire;

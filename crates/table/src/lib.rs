//! Typed tables: how a row, a key and a scan's answer lie in memory and on the wire.
//!
//! The formats come first, because both sides of a connection stand on them and neither trusts the
//! other:
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
//!
//! # The way of one scan
//!
//! - [`client`] sends a request (`wire`); the server's `session` takes it, `scan` goes through
//!   pages, `answer` prices every way for each page, `message` makes messages of them.
//! - `meter` holds prices against what making a message took; `remembered` keeps prices for pages
//!   of a kind.
//! - The client reads rows where they lie (`block`), merges deltas, or builds columns (`arrow`).
//!
//! # The way of one put
//!
//! - `apply` changes the tree a batch at a time. A delete in a full arena waits by a ticket that
//!   holds up its client's later requests.
//! - `store`, `registrar`: the tables, and memory registered with every provider.
//! - `durable`: `change` appends to the log, `writer` writes it, `checkpoint` writes pages beside
//!   it, `recover` and `adopt` read back, `keeper` ends the threads. `governor` sets the pace of
//!   background work.
//! - `index`: entries of secondary indexes go in before the row's change, and out behind it.
//!
//! # Invariants
//!
//! - Each page of a scan is one instant's state. Every returned row was current at some moment of
//!   the scan. Rows present throughout come exactly once, in key order.
//! - Through an index that holds for rows that do not change meanwhile; each row is checked.
//! - No writer waits for a scan; a worker waits for no client.
//! - With a data directory, a reply leaves after the log has what it shows. Without one there is no
//!   stamp, no log and no thread. A panic between a change and its append ends the server.
//! - In place, the client takes out once what says where rows lie, checks that, and believes what
//!   it read only if the server vouched for the page afterwards.
//! - Absent on purpose: snapshots, transactions; unsafe code; file formats.

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

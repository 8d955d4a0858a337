//! Some columns of a row.

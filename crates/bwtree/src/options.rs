//! What a tree is told when it is made, and how it refuses.

use thiserror::Error;

use crate::arena::{ARENA_BYTES_MAX, Arena, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, Exhausted};

/// Shape of a tree. `Options { prefix_len: 16, ..Options::default() }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// A leaf of more bytes splits; 256 B to 128 KiB. Default 16 KiB.
    pub page_bytes: usize,
    /// Bytes at the start of every value that lie at constant stride in the page. Default 0.
    pub prefix_len: usize,
    /// Deltas on a base page before the next change consolidates it, at most (see
    /// [`Tree::set_chain_max`](crate::Tree::set_chain_max)); 1 to 200. Default 8.
    pub chain_max: usize,
    /// Children of an inner node before it splits; at least 4. Default 512.
    pub fan_out: usize,
    /// Longest value, in bytes. Default 1 MiB.
    pub value_max: usize,
    /// Longest key, in bytes; at most 16 KiB. Default 2 KiB.
    pub key_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            page_bytes: 16 << 10,
            prefix_len: 0,
            chain_max: 8,
            fan_out: 512,
            value_max: 1 << 20,
            key_max: 2 << 10,
        }
    }
}

/// Why the tree refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Error {
    /// `insert` of a key that is there.
    #[error("the key exists already; use upsert to replace its value")]
    Exists,
    /// The arena is full. The tree is as it was before the call.
    #[error("the arena is full; delete rows, close scans that hold old pages, or give it more memory")]
    Exhausted,
    /// A key longer than `Options::key_max`.
    #[error("the key has {len} bytes, {max} are allowed; use a shorter key or raise Options::key_max")]
    KeyTooLong {
        /// The key's bytes.
        len: usize,
        /// `Options::key_max`.
        max: usize,
    },
    /// A value longer than `Options::value_max`.
    #[error("the value has {len} bytes, {max} are allowed; split it or raise Options::value_max")]
    ValueTooLong {
        /// The value's bytes.
        len: usize,
        /// `Options::value_max`.
        max: usize,
    },
    /// A value shorter than `Options::prefix_len`.
    #[error("the value has {len} bytes, its fixed prefix alone has {prefix}; pad it")]
    ValueTooShort {
        /// The value's bytes.
        len: usize,
        /// `Options::prefix_len`.
        prefix: usize,
    },
    /// Options outside of their ranges.
    #[error("option out of range: {0}")]
    Options(&'static str),
}

impl From<Exhausted> for Error {
    fn from(_: Exhausted) -> Error {
        Error::Exhausted
    }
}

impl Options {
    pub(crate) fn check(&self, arena: &dyn Arena) -> Result<(), Error> {
        let chunk_bytes = arena.chunk_bytes();
        let arena_bytes = chunk_bytes.checked_mul(arena.chunks_max());
        let chunk = chunk_bytes.is_power_of_two() && chunk_bytes >= CHUNK_BYTES_MIN;
        let rules = [
            (chunk, "a chunk of the arena is a power of two from 1 MiB on"),
            (chunk_bytes <= CHUNK_BYTES_MAX, "a chunk of the arena has at most 4 GiB"),
            (arena_bytes.is_some_and(|bytes| bytes <= ARENA_BYTES_MAX), "an arena has at most 4 TiB of addresses"),
            ((256..=128 << 10).contains(&self.page_bytes), "page_bytes is 256 to 131072"),
            (self.prefix_len <= self.page_bytes / 4, "prefix_len is at most a quarter of page_bytes"),
            ((1..=200).contains(&self.chain_max), "chain_max is 1 to 200"),
            (self.fan_out >= 4, "fan_out is at least 4"),
            (self.key_max <= crate::page::MAX_KEY, "key_max is at most 16384"),
            (self.value_max <= chunk_bytes / 2, "value_max is at most half a chunk of the arena"),
        ];
        rules.iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, rule)| Err(Error::Options(rule)))
    }
}

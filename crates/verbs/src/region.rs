//! Registered memory, and what a peer grants of its own.

use std::marker::PhantomData;
use std::ops::BitOr;
use std::sync::Arc;

use overside_memory::{Segment, Window};

use crate::VerbsError;

/// What may be registered.
#[derive(Clone, Debug)]
pub enum Memory {
    /// Sent from, received into; peers may read it.
    Segment(Arc<Segment>),
    /// Peers may write it and do atomics on it.
    Window(Arc<Window>),
}

impl Memory {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Memory::Segment(segment) => segment.len(),
            Memory::Window(window) => window.len(),
        }
    }

    /// Never: memory has at least a page.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a region may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(u8);

impl Access {
    /// Sent from and received into by its owner.
    pub const LOCAL: Access = Access(1);
    /// READ by peers.
    pub const REMOTE_READ: Access = Access(2);
    /// WRITE by peers.
    pub const REMOTE_WRITE: Access = Access(4);
    /// FETCH_ADD and CMP_SWAP by peers.
    pub const REMOTE_ATOMIC: Access = Access(8);

    /// Whether all of `other` is in it.
    pub const fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether peers may change the memory.
    pub const fn writes(self) -> bool {
        self.0 & (Access::REMOTE_WRITE.0 | Access::REMOTE_ATOMIC.0) != 0
    }

    /// As a byte, for a wire.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// From a wire; unknown bits are dropped.
    pub const fn from_bits(bits: u8) -> Self {
        Access(bits & 15)
    }
}

impl BitOr for Access {
    type Output = Access;

    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// A registration. Keeps its memory; ends by `Provider::deregister`.
#[derive(Debug)]
pub struct MemoryRegion {
    /// The memory.
    pub memory: Memory,
    /// What it may be used for.
    pub access: Access,
    token: RemoteToken,
}

impl MemoryRegion {
    /// Made by a provider's `register`.
    pub fn new(memory: Memory, access: Access, rkey: u128) -> Self {
        let token = RemoteToken { at: 0, len: memory.len() as u64, rkey };
        Self { memory, access, token }
    }

    /// What to give to a peer that shall use the whole region.
    pub fn token(&self) -> RemoteToken {
        self.token
    }
}

/// A range of somebody's region as it travels: 32 bytes, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteToken {
    /// First byte, relative to the region.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
    /// The key; unguessable on soft providers.
    pub rkey: u128,
}

impl RemoteToken {
    /// As bytes.
    pub fn to_bytes(self) -> [u8; 32] {
        let mut out = [0; 32];
        out[..8].copy_from_slice(&self.at.to_le_bytes());
        out[8..16].copy_from_slice(&self.len.to_le_bytes());
        out[16..].copy_from_slice(&self.rkey.to_le_bytes());
        out
    }

    /// From bytes. Any bytes are a token; the target checks what it allows.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|j| bytes[i + j]));
        Self { at: word(0), len: word(8), rkey: u128::from(word(16)) | u128::from(word(24)) << 64 }
    }
}

/// Marks what a [`Remote`] may be used for.
pub trait Right: sealed::Sealed {}
/// May be READ.
#[derive(Clone, Copy, Debug)]
pub struct Readable;
/// May be written.
#[derive(Clone, Copy, Debug)]
pub struct Writable;
/// Atomics are allowed.
#[derive(Clone, Copy, Debug)]
pub struct Atomic;
impl Right for Readable {}
impl Right for Writable {}
impl Right for Atomic {}
mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Readable {}
    impl Sealed for super::Writable {}
    impl Sealed for super::Atomic {}
}

/// A range of a peer's memory that it granted, typed by what for.
///
/// The type is an early error for the honest; the target checks key and bounds anyway.
#[derive(Clone, Copy, Debug)]
pub struct Remote<R: Right> {
    token: RemoteToken,
    right: PhantomData<R>,
}

impl<R: Right> Remote<R> {
    /// What a peer sent us.
    pub fn new(token: RemoteToken) -> Self {
        Self { token, right: PhantomData }
    }

    /// `len` bytes of it from `at`.
    ///
    /// # Errors
    /// [`VerbsError::RemoteAccess`] when that leaves the grant.
    pub fn part(&self, at: u64, len: u64) -> Result<Self, VerbsError> {
        match at.checked_add(len) {
            Some(end) if end <= self.token.len && self.token.at.checked_add(at).is_some() => {
                Ok(Self::new(RemoteToken { at: self.token.at + at, len, rkey: self.token.rkey }))
            }
            _ => Err(VerbsError::RemoteAccess("the part leaves the granted range")),
        }
    }

    /// As it travels.
    pub fn token(&self) -> RemoteToken {
        self.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_travel_and_parts_stay_inside() {
        let token = RemoteToken { at: 16, len: 100, rkey: u128::MAX - 5 };
        assert_eq!(RemoteToken::from_bytes(token.to_bytes()), token);
        let remote = Remote::<Readable>::new(token);
        assert_eq!(remote.part(90, 10).unwrap().token().at, 106);
        assert!(remote.part(90, 11).is_err());
        assert!(remote.part(u64::MAX, 2).is_err());
    }
}

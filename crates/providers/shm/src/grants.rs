//! What the peer lets us reach by ourselves: keys, and the memory behind them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use overside_memory::{Foreign, Window};
use overside_verbs::{Access, RemoteToken};

use crate::fate::Fate;
use crate::mappings::{Counted, Limits};

/// The peer's remotely accessible regions.
#[derive(Debug)]
pub(crate) struct Grants {
    // A keyed hash: the peer chooses the keys.
    regions: HashMap<u128, Granted>,
    bytes: u64,
    limits: Limits,
}

/// A region of the peer's. What it may be used for was decided by which descriptor was passed.
#[derive(Debug)]
pub(crate) struct Granted {
    access: Access,
    memory: Reach,
    _counted: Counted,
}

#[derive(Debug)]
pub(crate) enum Reach {
    Read(Foreign),
    Write(Window),
}

impl Grants {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { regions: HashMap::new(), bytes: 0, limits }
    }

    pub(crate) fn add(&mut self, rkey: u128, access: u8, window: bool, len: u64, fd: OwnedFd) -> Result<(), Fate> {
        if self.regions.contains_key(&rkey) {
            return Err(Fate::Malformed("the peer grants one key twice"));
        }
        let held = self.regions.len();
        if !self.limits.allow(held, self.bytes, len) {
            return Err(Fate::Malformed("the peer grants more memory than this process allows one connection"));
        }
        let counted = Counted::claim(&self.limits, held, len)?;
        let unmappable = |error| Fate::unmapped(error, "the peer's memory cannot be mapped");
        let memory = if window {
            Reach::Write(Window::map(fd, len).map_err(unmappable)?)
        } else {
            Reach::Read(Foreign::map(fd, len).map_err(unmappable)?)
        };
        self.regions.insert(rkey, Granted { access: Access::from_bits(access), memory, _counted: counted });
        self.bytes += len;
        Ok(())
    }

    pub(crate) fn revoke(&mut self, rkey: u128) {
        if let Some(gone) = self.regions.remove(&rkey) {
            self.bytes -= gone.memory.len();
        }
    }

    pub(crate) fn knows(&self, rkey: u128) -> bool {
        self.regions.contains_key(&rkey)
    }

    /// The memory behind a token, if key, right and bounds are as they must be.
    pub(crate) fn reach(&self, token: &RemoteToken, access: Access, len: u64) -> Option<&Reach> {
        let granted = self.regions.get(&token.rkey)?;
        let end = token.at.checked_add(len)?;
        (granted.access.contains(access) && end <= granted.memory.len()).then_some(&granted.memory)
    }
}

impl Reach {
    fn len(&self) -> u64 {
        match self {
            Reach::Read(foreign) => foreign.len() as u64,
            Reach::Write(window) => window.len() as u64,
        }
    }
}

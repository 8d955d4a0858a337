//! What may be touched: protection domains with their memory, and the peers that are granted it.

use std::sync::{Arc, Weak};

use overside_memory::{Segment, SegmentId};
use overside_verbs::registry::{self, Region, random_key};
use overside_verbs::{Access, Memory, MemoryRegion, ProtectionDomain, VerbsError};

use crate::channel::{Carried, Channel};
use crate::messages::Message;
use crate::provider::SEGMENTS_MAX;
use crate::send::limit;

/// All registrations of a provider.
pub(crate) type Registry = registry::Registry<Peers, (), SegmentId>;
/// What a port is told by other threads: segments that are no longer registered.
pub(crate) type Mailbox = registry::Mailbox<SegmentId>;

/// Whom a domain's regions are granted to.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// Regions that peers are granted.
    granted: usize,
    channels: Vec<Weak<Channel>>,
}

impl Peers {
    fn connected(&self) -> impl Iterator<Item = Arc<Channel>> + '_ {
        self.channels.iter().filter_map(Weak::upgrade)
    }
}

/// Registers; peers connected in the domain are granted what is remotely accessible at once.
pub(crate) fn register(
    registry: &Registry,
    domain: &ProtectionDomain,
    memory: &Memory,
    access: Access,
) -> Result<MemoryRegion, VerbsError> {
    check_access(memory, access)?;
    registry.register(domain, memory, access, |peers| {
        let key = random_key()?;
        if let Some((message, carried)) = grant(key, memory, access) {
            if peers.connected().any(|channel| channel.made) {
                limit_grants(peers.granted + 1)?;
            }
            peers.granted += 1;
            peers.connected().for_each(|channel| channel.send(&message, carried.clone()));
        }
        Ok((key, ()))
    })
}

/// Ends a registration. Ports forget the segment as they progress; peers the key at once.
pub(crate) fn deregister(registry: &Registry, region: &MemoryRegion) -> Result<(), VerbsError> {
    let revoke = |peers: &mut Peers, rkey, region: &Region<()>| {
        if is_granted(region.access) {
            peers.granted -= 1;
            peers.connected().for_each(|channel| channel.send(&Message::Revoke { rkey }, Carried::Nothing));
        }
    };
    registry.deregister(region, revoke).map(drop)
}

/// The segment, if it is registered in the domain.
pub(crate) fn segment(registry: &Registry, domain: u64, id: SegmentId) -> Option<Arc<Segment>> {
    registry.segment(domain, id, |region| match &region.memory {
        Memory::Segment(segment) => Some(segment.clone()),
        Memory::Window(_) => None,
    })?
}

/// A connection becomes part of a domain: it is granted what is there, and what comes.
pub(crate) fn join(registry: &Registry, domain: u64, channel: &Arc<Channel>) -> Result<(), VerbsError> {
    registry.domain(domain, |peers, regions| {
        if channel.made {
            limit_grants(peers.granted)?;
        }
        peers.channels.retain(|known| known.strong_count() > 0);
        peers.channels.push(Arc::downgrade(channel));
        for (key, region) in regions.iter().filter(|(_, region)| region.domain == domain) {
            if let Some((message, carried)) = grant(*key, &region.memory, region.access) {
                channel.send(&message, carried);
            }
        }
        Ok(())
    })
}

/// Nothing of what only its owner uses.
fn is_granted(access: Access) -> bool {
    access.bits() & !Access::LOCAL.bits() != 0
}

/// What peers are told of a region, if anything.
fn grant(rkey: u128, memory: &Memory, access: Access) -> Option<(Message, Carried)> {
    let carried = match memory {
        Memory::Segment(segment) => Carried::Segment(segment.clone()),
        Memory::Window(window) => Carried::Window(window.clone(), access.writes()),
    };
    let (access, window, len) = (access.bits(), access.writes(), memory.len() as u64);
    is_granted(Access::from_bits(access)).then_some((Message::Grant { rkey, access, window, len }, carried))
}

/// A peer that was connected to lets a connection grant so much and no more.
fn limit_grants(granted: usize) -> Result<(), VerbsError> {
    limit("the number of regions granted to a peer that was connected to", granted as u64, SEGMENTS_MAX as u64)
}

fn check_access(memory: &Memory, access: Access) -> Result<(), VerbsError> {
    match memory {
        Memory::Segment(segment) if access.contains(Access::REMOTE_READ) && segment.fd().is_none() => {
            Err(VerbsError::Unsupported("remote reads of a private segment; make it with Segment::shared"))
        }
        // The descriptor is what a peer's right rests on, so it must not give more than was asked for. Whose window
        // it is, is asked first.
        Memory::Window(window) if window.is_ours() && is_granted(access) => {
            Ok(window.share(access.writes()).map(drop)?)
        }
        _ => Ok(()),
    }
}

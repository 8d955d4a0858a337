//! The tables' memory: registered with every provider as it comes, deregistered as it goes, and
//! never more than the server may take.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use overside_bwtree::{Exhausted, SegmentObserver};
use overside_memory::{Segment, SegmentId};
use overside_verbs::{Access, Memory, MemoryRegion, ProtectionDomain, Provider, RemoteToken};

/// Where memory is registered: a provider and the domain of its listener.
pub(crate) type ListenerDomain = (Arc<dyn Provider>, ProtectionDomain);

/// Knows the segments of all tables.
#[derive(Debug)]
pub(crate) struct Registrar {
    domains: Vec<ListenerDomain>,
    /// Bytes of all segments together.
    bytes_max: usize,
    /// What regions are for.
    access: Access,
    held: Mutex<Registered>,
}

#[derive(Debug, Default)]
struct Registered {
    bytes: usize,
    /// Of each segment its length and its regions, one for each listener.
    segments: BTreeMap<SegmentId, (usize, Vec<MemoryRegion>)>,
}

impl Registrar {
    /// `open`: peers may read all of it.
    pub(crate) fn new(domains: Vec<ListenerDomain>, bytes_max: usize, open: bool) -> Registrar {
        let access = if open { Access::LOCAL | Access::REMOTE_READ } else { Access::LOCAL };
        Registrar { domains, bytes_max, access, held: Mutex::default() }
    }

    /// The token by which the peers of a listener read a segment.
    pub(crate) fn token(&self, domain: usize, segment: SegmentId) -> Option<RemoteToken> {
        let held = self.held();
        let (_, regions) = held.segments.get(&segment)?;
        Some(regions.get(domain)?.token())
    }

    fn held(&self) -> MutexGuard<'_, Registered> {
        self.held.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn register(&self, segment: &Arc<Segment>) -> Result<Vec<MemoryRegion>, Exhausted> {
        let memory = Memory::Segment(segment.clone());
        let mut regions = Vec::new();
        for (provider, domain) in &self.domains {
            match provider.register(domain, &memory, self.access) {
                Ok(region) => regions.push(region),
                Err(_) => {
                    self.end(regions);
                    return Err(Exhausted);
                }
            }
        }
        Ok(regions)
    }

    fn end(&self, regions: Vec<MemoryRegion>) {
        for (region, (provider, _)) in regions.into_iter().zip(&self.domains) {
            let _ = provider.deregister(region);
        }
    }
}

impl SegmentObserver for Registrar {
    fn has_room(&self, bytes: usize) -> bool {
        bytes <= self.bytes_max.saturating_sub(self.held().bytes)
    }

    fn committed(&self, segment: &Arc<Segment>) -> Result<(), Exhausted> {
        let bytes = segment.len();
        {
            let mut held = self.held();
            if bytes > self.bytes_max.saturating_sub(held.bytes) {
                return Err(Exhausted);
            }
            held.bytes += bytes;
        }
        let registered = self.register(segment);
        let mut held = self.held();
        match registered {
            Ok(regions) => drop(held.segments.insert(segment.id(), (bytes, regions))),
            Err(Exhausted) => {
                held.bytes -= bytes;
                return Err(Exhausted);
            }
        }
        Ok(())
    }

    fn decommitted(&self, segment: SegmentId) {
        let known = self.held().segments.remove(&segment);
        if let Some((bytes, regions)) = known {
            self.end(regions);
            self.held().bytes -= bytes;
        }
    }
}

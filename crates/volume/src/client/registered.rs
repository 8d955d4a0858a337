//! Memory of callers that a connection registers, so that the node reads from there what a WRITE
//! writes (vi-attached-storage §4.1).
//!
//! Every WRITE is an entry of a region. Its memory is registered with the region unless that has
//! it. When a region is full and all of its WRITEs have ended, what it registered is deregistered
//! together.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use overside_memory::{Bytes, SegmentId};
use overside_planner::Profile;
use overside_verbs::{Access, Memory, MemoryRegion, ProtectionDomain, Provider, Readable, Remote, RemoteToken};

use super::handle::LinkHandle;

/// How long memory of callers stays registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// WRITEs of a region. With 1 each WRITE registers and deregisters its memory; with `u32::MAX`
    /// memory is registered once.
    pub writes: u32,
    /// Bytes that are registered at most, in all regions. A WRITE whose memory finds no room is
    /// copied.
    pub bytes_max: u64,
    /// A WRITE that costs less copied, by what things cost over the provider, is copied. Without it
    /// the node reads the bytes of all.
    pub by_price: bool,
}

impl Default for Registration {
    fn default() -> Registration {
        Registration { writes: 1000, bytes_max: 256 << 20, by_price: true }
    }
}

/// What of callers' memory a connection has registered.
#[derive(Debug)]
pub(super) struct Registered {
    provider: Arc<dyn Provider>,
    options: Registration,
    /// Shorter WRITEs are copied.
    length_min: u64,
    /// The number of the region that is filled now.
    filling: u64,
    region: Region,
    /// Full, or closed early, with WRITEs under way.
    closed: BTreeMap<u64, Region>,
    bytes: u64,
    segments: usize,
    /// Counts what is deregistered.
    handle: LinkHandle,
}

#[derive(Debug, Default)]
struct Region {
    segments: BTreeMap<SegmentId, MemoryRegion>,
    begun: u32,
    under_way: u32,
}

impl Registered {
    /// None where the node could not read by itself: it would wait for this side.
    pub(super) fn new(
        provider: &Arc<dyn Provider>,
        options: Registration,
        prices: &Profile,
        handle: LinkHandle,
    ) -> Option<Registered> {
        let capabilities = provider.capabilities();
        if !capabilities.one_sided || !capabilities.progress_by_itself {
            return None;
        }
        Some(Registered {
            provider: provider.clone(),
            options,
            length_min: if options.by_price { length_min(prices) } else { 0 },
            filling: 0,
            region: Region::default(),
            closed: BTreeMap::new(),
            bytes: 0,
            segments: 0,
            handle,
        })
    }

    /// A WRITE of these bytes begins. What the node reads them by, and the region for
    /// [`end`](Self::end); none: they are to be copied.
    pub(super) fn begin(&mut self, domain: &ProtectionDomain, bytes: &Bytes) -> Option<(RemoteToken, u64)> {
        if (bytes.len() as u64) < self.length_min {
            return None;
        }
        let segment = bytes.buffer().segment();
        let length = segment.len() as u64;
        if self.region.begun >= self.options.writes {
            self.close();
        }
        if !self.region.segments.contains_key(&segment.id()) {
            if !self.has_room(length) {
                self.close();
            }
            if !self.has_room(length) {
                return None;
            }
            let memory = Memory::Segment(segment.clone());
            let registered = self.provider.register(domain, &memory, Access::REMOTE_READ).ok()?;
            self.region.segments.insert(segment.id(), registered);
            (self.bytes, self.segments) = (self.bytes + length, self.segments + 1);
        }
        let whole = Remote::<Readable>::new(self.region.segments.get(&segment.id())?.token());
        let at = bytes.as_ptr().addr() - segment.base().addr().get();
        let part = whole.part(at as u64, bytes.len() as u64).ok()?;
        self.region.begun += 1;
        self.region.under_way += 1;
        Some((part.token(), self.filling))
    }

    /// A WRITE of this region has ended.
    pub(super) fn end(&mut self, region: u64) {
        if region == self.filling {
            self.region.under_way -= 1;
            if self.region.begun >= self.options.writes && self.region.under_way == 0 {
                self.close();
            }
            return;
        }
        let Some(closed) = self.closed.get_mut(&region) else { return };
        closed.under_way -= 1;
        if closed.under_way == 0
            && let Some(closed) = self.closed.remove(&region)
        {
            self.deregister(closed);
        }
    }

    fn has_room(&self, length: u64) -> bool {
        self.segments < SEGMENTS_MAX && self.bytes.saturating_add(length) <= self.options.bytes_max
    }

    /// Another region is filled from now on.
    fn close(&mut self) {
        let closed = mem::take(&mut self.region);
        if closed.under_way == 0 {
            self.deregister(closed);
        } else {
            self.closed.insert(self.filling, closed);
        }
        self.filling += 1;
    }

    fn deregister(&mut self, region: Region) {
        for registered in region.segments.into_values() {
            (self.bytes, self.segments) = (self.bytes - registered.memory.len() as u64, self.segments - 1);
            // A provider that refuses leaves it registered, no more.
            if self.provider.deregister(registered).is_ok() {
                self.handle.deregistered();
            }
        }
    }
}

impl Drop for Registered {
    /// The connection ends, and so do its WRITEs.
    fn drop(&mut self) {
        let closed = mem::take(&mut self.closed);
        let region = mem::take(&mut self.region);
        closed.into_values().chain([region]).for_each(|region| self.deregister(region));
    }
}

/// From which length on the node reads the bytes. It posts one more request for that, and a copy is
/// spared at either end. Where a processor sends what lies elsewhere, instead of the peer or a NIC
/// that takes it, that costs as much as a copy.
fn length_min(prices: &Profile) -> u64 {
    let spared = |bytes: u64| {
        let [copied, sent] = [prices.pack(bytes, false), prices.send(bytes, false)];
        2.0 * (copied.at(1.0, bytes as f64) - sent.at(1.0, bytes as f64))
    };
    (0..u32::BITS).map(|bit| 1 << bit).find(|bytes| spared(*bytes) > prices.send_request_ns).unwrap_or(u64::MAX)
}

/// Segments that are registered at most. The node maps each, and has room for those of many
/// clients.
const SEGMENTS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use overside_memory::Segment;
    use overside_reference::World;

    use super::*;

    struct Bench {
        registered: Registered,
        domain: ProtectionDomain,
    }

    impl Bench {
        fn new(writes: u32, bytes_max: u64) -> Bench {
            let provider: Arc<dyn Provider> = Arc::new(World::new().provider());
            let prices = Profile { send_request_ns: 0.0, send_byte_ns: 0.0, ..provider.profile() };
            let domain = provider.allocate_domain().unwrap();
            let options = Registration { writes, bytes_max, ..Registration::default() };
            let registered = Registered::new(&provider, options, &prices, LinkHandle::default()).unwrap();
            Bench { registered, domain }
        }

        /// The region, if a WRITE of these begins.
        fn begin(&mut self, bytes: &Bytes) -> Option<u64> {
            self.registered.begin(&self.domain, bytes).map(|(_, region)| region)
        }

        fn holds(&self) -> (u64, usize) {
            (self.registered.bytes, self.registered.segments)
        }

        fn deregistrations(&self) -> u64 {
            self.registered.handle.deregistrations()
        }
    }

    /// Bytes of a segment of their own.
    fn bytes() -> Bytes {
        Bytes::from(Segment::shared(4096).unwrap().carve(4096).pop().unwrap())
    }

    #[test]
    fn each_write_registers_and_deregisters_or_memory_is_registered_once() {
        let (memory, mut each, mut once) = (bytes(), Bench::new(1, 1 << 20), Bench::new(u32::MAX, 1 << 20));
        for _ in 0..3 {
            let (first, second) = (each.begin(&memory).unwrap(), each.begin(&memory).unwrap());
            assert_eq!(each.holds(), (8192, 2), "two at a time, of the same memory");
            each.registered.end(first);
            each.registered.end(second);
            assert_eq!(each.holds(), (0, 0));
            let region = once.begin(&memory).unwrap();
            once.registered.end(region);
            assert_eq!(once.holds(), (4096, 1));
        }
        assert_eq!((each.deregistrations(), once.deregistrations()), (6, 0));
        let counts = once.registered.handle.clone();
        drop(once);
        assert_eq!(counts.deregistrations(), 1);
    }

    #[test]
    fn a_region_is_deregistered_together_once_it_is_full_and_all_of_it_has_ended() {
        let mut bench = Bench::new(3, 1 << 20);
        let memory = [bytes(), bytes(), bytes(), bytes()];
        let regions: Vec<u64> = memory.iter().map(|bytes| bench.begin(bytes).unwrap()).collect();
        assert_eq!(regions, [0, 0, 0, 1]);
        bench.registered.end(0);
        bench.registered.end(0);
        assert_eq!(bench.holds(), (4 * 4096, 4), "one that has not ended keeps all of its region");
        bench.registered.end(0);
        assert_eq!(bench.holds(), (4096, 1));
        bench.registered.end(1);
        assert_eq!((bench.holds(), bench.deregistrations()), ((4096, 1), 3), "its region has room yet");
    }

    #[test]
    fn no_more_is_registered_than_the_bound_and_what_finds_no_room_is_copied() {
        let mut bench = Bench::new(1000, 2 * 4096);
        let memory = [bytes(), bytes(), bytes()];
        assert_eq!((bench.begin(&memory[0]), bench.begin(&memory[1])), (Some(0), Some(0)));
        assert_eq!(bench.begin(&memory[2]), None, "what is under way stays");
        assert_eq!(bench.holds(), (2 * 4096, 2));
        bench.registered.end(0);
        bench.registered.end(0);
        assert!(bench.begin(&memory[2]).is_some(), "what is not makes room");
        let mut many = Bench::new(u32::MAX, u64::MAX);
        let memory: Vec<Bytes> = (0..=SEGMENTS_MAX).map(|_| bytes()).collect();
        assert_eq!(memory.iter().filter(|bytes| many.begin(bytes).is_some()).count(), SEGMENTS_MAX);
    }

    #[test]
    fn the_node_reads_where_that_costs_less_than_the_copies() {
        let prices = World::new().provider().profile();
        let priced = |send_request_ns, pack_byte_ns, send_byte_ns| {
            length_min(&Profile { send_request_ns, pack_byte_ns, send_byte_ns, ..prices.clone() })
        };
        assert_eq!(priced(1000.0, 0.1, 0.0), 8192);
        assert_eq!(priced(1000.0, 1.0, 0.0), 512);
        assert_eq!(priced(10.0, 0.1, 0.2), u64::MAX, "a processor sends what is read");
        let mut bench = Bench::new(1000, 1 << 20);
        bench.registered.length_min = 4097;
        assert_eq!(bench.begin(&bytes()), None);
        let provider: Arc<dyn Provider> = Arc::new(World::new().provider());
        let dear = Profile { send_request_ns: 10.0, pack_byte_ns: 0.1, send_byte_ns: 0.2, ..prices };
        let fixed = Registration { by_price: false, ..Registration::default() };
        let registered = Registered::new(&provider, fixed, &dear, LinkHandle::default()).unwrap();
        assert_eq!(registered.length_min, 0, "what is fixed asks for no price");
    }
}

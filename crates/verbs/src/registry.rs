//! What may be touched: protection domains with their memory, and which ports must hear of its end.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use overside_memory::SegmentId;

use crate::instance::Instance;
use crate::numbers::ByNumber;
use crate::provider::ProtectionDomain;
use crate::region::{Access, Memory, MemoryRegion};
use crate::watch::Signal;
use crate::{VerbsError, random};

/// All registrations of a provider. Of each domain it keeps `D`, of each region `R`; `N` is what
/// its ports are told.
#[derive(Debug)]
pub struct Registry<D = (), R = (), N = SegmentId> {
    instance: Arc<Instance>,
    state: Mutex<State<D, R, N>>,
    ended: AtomicU64,
}

#[derive(Debug)]
struct State<D, R, N> {
    regions: Regions<R>,
    domains: Vec<Domain<D, N>>,
}

/// Regions by their keys.
pub type Regions<R> = BTreeMap<u128, Region<R>>;

/// A registration.
#[derive(Debug)]
pub struct Region<R> {
    /// Of which domain.
    pub domain: u64,
    /// What was registered.
    pub memory: Memory,
    /// What for.
    pub access: Access,
    /// What the provider keeps of it.
    pub own: R,
}

#[derive(Debug)]
struct Domain<D, N> {
    own: D,
    /// Keys by segment.
    segments: ByNumber<Vec<u128>>,
    ports: Vec<Weak<Mailbox<N>>>,
}

impl<D, R, N: From<SegmentId>> Registry<D, R, N> {
    /// Of a provider, without a domain so far.
    pub fn new(instance: Arc<Instance>) -> Self {
        let state = Mutex::new(State { regions: BTreeMap::new(), domains: Vec::new() });
        Self { instance, state, ended: AtomicU64::new(0) }
    }

    /// Whose it is.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// Makes a domain.
    ///
    /// # Errors
    /// [`VerbsError::Forked`].
    pub fn allocate_domain(&self, own: D) -> Result<ProtectionDomain, VerbsError> {
        self.instance.check()?;
        let domains = &mut self.lock().domains;
        domains.push(Domain { own, segments: ByNumber::default(), ports: Vec::new() });
        Ok(ProtectionDomain::new((domains.len() - 1) as u64))
    }

    /// Registers memory. `make` does what the provider does for it, and gives the key.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] for an access that no provider allows, and what `make` says.
    pub fn register(
        &self,
        domain: &ProtectionDomain,
        memory: &Memory,
        access: Access,
        make: impl FnOnce(&mut D) -> Result<(u128, R), VerbsError>,
    ) -> Result<MemoryRegion, VerbsError> {
        self.instance.check()?;
        check_access(memory, access)?;
        let State { regions, domains } = &mut *self.lock();
        let place = domains.get_mut(domain.id() as usize).ok_or(UNKNOWN_DOMAIN)?;
        let (key, own) = make(&mut place.own)?;
        if let Memory::Segment(segment) = memory {
            place.segments.entry(segment.id().get()).or_default().push(key);
        }
        regions.insert(key, Region { domain: domain.id(), memory: memory.clone(), access, own });
        Ok(MemoryRegion::new(memory.clone(), access, key))
    }

    /// Ends a registration: the domain's ports hear of it, those that sleep are woken for it. `end`
    /// does what the provider does; what is returned must be dropped without a lock.
    ///
    /// # Errors
    /// When the region is not this provider's.
    pub fn deregister(
        &self,
        region: &MemoryRegion,
        end: impl FnOnce(&mut D, u128, &Region<R>),
    ) -> Result<Region<R>, VerbsError> {
        self.instance.check()?;
        let key = region.token().rkey;
        let State { regions, domains } = &mut *self.lock();
        let ended = regions.remove(&key).ok_or(VerbsError::Unsupported("deregistering another provider's region"))?;
        let place = domains.get_mut(ended.domain as usize).ok_or(UNKNOWN_DOMAIN)?;
        end(&mut place.own, key, &ended);
        if let Memory::Segment(segment) = &ended.memory {
            if let Some(keys) = place.segments.get_mut(&segment.id().get()) {
                keys.retain(|other| *other != key);
                if keys.is_empty() {
                    place.segments.remove(&segment.id().get());
                }
            }
            self.ended.fetch_add(1, Ordering::Release);
            place.ports.retain(|port| port.upgrade().inspect(|port| port.put(segment.id().into())).is_some());
        }
        Ok(ended)
    }

    /// How many registrations of segments have ended: what was remembered of a segment before is
    /// void.
    #[inline]
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    /// The last registration of a segment in a domain, if there is one.
    pub fn segment<T>(&self, domain: u64, id: SegmentId, look: impl FnOnce(&Region<R>) -> T) -> Option<T> {
        let state = self.lock();
        let keys = state.domains.get(domain as usize)?.segments.get(&id.get())?;
        state.regions.get(keys.last()?).map(look)
    }

    /// The region in which a peer that is connected in `domain` has `right` to `at..at + len` by
    /// this key; none when key, right or range is wrong.
    pub fn granted<T>(
        &self,
        domain: u64,
        key: u128,
        right: Access,
        range: (u64, u64),
        look: impl FnOnce(&Region<R>) -> T,
    ) -> Option<T> {
        let state = self.lock();
        let region = state.regions.get(&key)?;
        let inside = range.0.checked_add(range.1).is_some_and(|end| end <= region.memory.len() as u64);
        (region.domain == domain && region.access.contains(right) && inside).then(|| look(region))
    }

    /// What the provider keeps of a domain, with all regions.
    ///
    /// # Errors
    /// When the domain is not this provider's, and what `look` says.
    pub fn domain<T>(
        &self,
        domain: u64,
        look: impl FnOnce(&mut D, &Regions<R>) -> Result<T, VerbsError>,
    ) -> Result<T, VerbsError> {
        let State { regions, domains } = &mut *self.lock();
        look(&mut domains.get_mut(domain as usize).ok_or(UNKNOWN_DOMAIN)?.own, regions)
    }

    /// Where a new port of a domain hears what other threads tell it.
    ///
    /// # Errors
    /// When the domain is not this provider's, or the system has no descriptor left.
    pub fn open_port(&self, domain: &ProtectionDomain) -> Result<Arc<Mailbox<N>>, VerbsError> {
        self.instance.check()?;
        let mut state = self.lock();
        let place = state.domains.get_mut(domain.id() as usize).ok_or(UNKNOWN_DOMAIN)?;
        let mailbox =
            Arc::new(Mailbox { letters: Mutex::default(), any: AtomicBool::new(false), signal: Signal::new()? });
        place.ports.retain(|port| port.strong_count() > 0);
        place.ports.push(Arc::downgrade(&mailbox));
        Ok(mailbox)
    }

    /// Tells every port.
    pub fn announce(&self, news: impl Fn() -> N) {
        let state = self.lock();
        for port in state.domains.iter().flat_map(|place| &place.ports).filter_map(Weak::upgrade) {
            port.put(news());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<D, R, N>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D, R, N: From<SegmentId>> Default for Registry<D, R, N> {
    fn default() -> Self {
        Self::new(Instance::new(None))
    }
}

/// A key that nobody guesses.
///
/// # Errors
/// When the system has no entropy.
pub fn random_key() -> Result<u128, VerbsError> {
    random().map(u128::from_le_bytes)
}

/// What a port is told by other threads.
#[derive(Debug)]
pub struct Mailbox<N> {
    letters: Mutex<Vec<N>>,
    any: AtomicBool,
    signal: Signal,
}

impl<N> Mailbox<N> {
    /// Whether something has come in.
    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Takes what has come in; nothing, cheaply, as a rule.
    #[inline]
    pub fn take(&self) -> Vec<N> {
        if !self.any() {
            return Vec::new();
        }
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Relaxed);
        self.signal.drain();
        std::mem::take(&mut letters)
    }

    fn put(&self, letter: N) {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        letters.push(letter);
        // Many letters before the port looks wake it once.
        if !self.any.swap(true, Ordering::Relaxed) {
            self.signal.notify();
        }
    }
}

impl<N> AsFd for Mailbox<N> {
    /// Readable while there is a letter.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }
}

fn check_access(memory: &Memory, access: Access) -> Result<(), VerbsError> {
    match memory {
        Memory::Segment(_) if access.writes() => Err(VerbsError::Unsupported(
            "remote writes to a segment, whose bytes are its owner's to borrow; register a window",
        )),
        Memory::Window(window) if !window.is_ours() => {
            Err(VerbsError::Unsupported("registering a peer's window; its owner grants it"))
        }
        _ => Ok(()),
    }
}

const UNKNOWN_DOMAIN: VerbsError = VerbsError::Unsupported("a protection domain of another provider");

#[cfg(test)]
mod tests {
    use overside_memory::Segment;

    use super::*;

    fn watched(mailbox: &Mailbox<SegmentId>) -> bool {
        let mut fds = [rustix::event::PollFd::new(mailbox, rustix::event::PollFlags::IN)];
        let now = crate::watch::timespec(std::time::Duration::ZERO);
        rustix::event::poll(&mut fds, Some(&now)).unwrap() == 1
    }

    /// Of two registrations of one segment the other still serves; every port of the domain is
    /// woken, and no other.
    #[test]
    fn the_end_of_a_registration_is_heard_by_the_ports_of_its_domain() {
        let registry = Registry::<(), u32>::default();
        let (domain, other) = (registry.allocate_domain(()).unwrap(), registry.allocate_domain(()).unwrap());
        let memory = Memory::Segment(Segment::private(4096).unwrap().into());
        let Memory::Segment(segment) = &memory else { unreachable!() };
        let register = |key| registry.register(&domain, &memory, Access::LOCAL, |()| Ok((key, key as u32))).unwrap();
        let (first, second) = (register(7), register(9));
        let (port, stranger) = (registry.open_port(&domain).unwrap(), registry.open_port(&other).unwrap());
        assert_eq!(registry.segment(domain.id(), segment.id(), |region| region.own), Some(9));
        assert_eq!(registry.segment(other.id(), segment.id(), |region| region.own), None);
        assert!(port.take().is_empty() && !watched(&port));
        registry.deregister(&second, |(), key, region| assert_eq!((key, region.own), (9, 9))).unwrap();
        assert!(registry.deregister(&second, |(), _, _| ()).is_err(), "once");
        assert!(watched(&port) && !watched(&stranger));
        assert_eq!(port.take(), [segment.id()]);
        assert!(!watched(&port) && registry.ended() == 1);
        assert_eq!(registry.segment(domain.id(), segment.id(), |region| region.own), Some(7));
        registry.deregister(&first, |(), _, _| ()).unwrap();
        assert_eq!(registry.segment(domain.id(), segment.id(), |region| region.own), None);
    }

    #[test]
    fn a_grant_is_of_its_domain_right_and_range() {
        let registry = Registry::<(), ()>::default();
        let (domain, other) = (registry.allocate_domain(()).unwrap().id(), registry.allocate_domain(()).unwrap().id());
        let memory = Memory::Segment(Segment::private(4096).unwrap().into());
        let len = memory.len() as u64;
        registry.register(&ProtectionDomain::new(domain), &memory, Access::REMOTE_READ, |()| Ok((5, ()))).unwrap();
        let granted = |domain, key, right, range| registry.granted(domain, key, right, range, |_| ()).is_some();
        assert!(granted(domain, 5, Access::REMOTE_READ, (0, len)) && granted(domain, 5, Access::REMOTE_READ, (len, 0)));
        for range in [(1, len), (len + 1, 0), (u64::MAX, 2), (0, len + 1)] {
            assert!(!granted(domain, 5, Access::REMOTE_READ, range), "{range:?}");
        }
        assert!(!granted(other, 5, Access::REMOTE_READ, (0, 1)) && !granted(domain, 6, Access::REMOTE_READ, (0, 1)));
        assert!(!granted(domain, 5, Access::REMOTE_WRITE, (0, 1)));
    }
}

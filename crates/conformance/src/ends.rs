//! The two ends of a connection, as the checks drive them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_memory::{Segment, Window};
use overside_verbs::port::{QpIndex, RawCompletion};
use overside_verbs::probe::{Act, Area, Data, Piece, Probe, Request};
use overside_verbs::{
    Access, Capabilities, Link, Memory, MemoryRegion, PortEvent, PortOptions, ProtectionDomain, Provider, RemoteToken,
    Status,
};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::{Harness, Stop};

/// A sentence is broken unless the condition holds.
macro_rules! owes {
    ($holds:expr, $($what:tt)*) => {
        if !$holds {
            return Err($crate::Stop::Broken(format!($($what)*)));
        }
    };
}
pub(crate) use owes;

/// One port with its provider, and all that it reported.
pub(crate) struct End {
    pub(crate) probe: Probe,
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) domain: ProtectionDomain,
    pub(crate) capabilities: Capabilities,
    /// In the order of reports.
    pub(crate) done: Vec<RawCompletion>,
    pub(crate) events: Vec<PortEvent>,
    regions: Vec<MemoryRegion>,
    slots: u32,
    qps: u32,
}

impl End {
    pub(crate) fn open(provider: Arc<dyn Provider>) -> Result<Self, Stop> {
        Self::open_with(provider, PortOptions { regions: true, ..PortOptions::default() })
    }

    pub(crate) fn open_with(provider: Arc<dyn Provider>, options: PortOptions) -> Result<Self, Stop> {
        let domain = provider.allocate_domain()?;
        let probe = Probe::new(provider.open_port(&domain, options)?)?;
        Ok(Self {
            probe,
            capabilities: provider.capabilities(),
            domain,
            provider,
            done: Vec::new(),
            events: Vec::new(),
            regions: Vec::new(),
            slots: 0,
            qps: 0,
        })
    }

    pub(crate) fn attach(&mut self, link: Link) -> Result<QpIndex, Stop> {
        let qp = QpIndex(self.qps);
        self.probe.attach(qp, link)?;
        self.qps += 1;
        Ok(qp)
    }

    /// Registered memory to send from and receive into.
    pub(crate) fn area(&mut self, len: usize) -> Result<Area, Stop> {
        Ok(self.readable(len, Access::LOCAL)?.0)
    }

    /// Registered memory with more rights than that.
    pub(crate) fn readable(&mut self, len: usize, access: Access) -> Result<(Area, RemoteToken), Stop> {
        let area = Area::new(Segment::shared(len)?);
        let token = self.register(&area, access)?;
        Ok((area, token))
    }

    pub(crate) fn register(&mut self, area: &Area, access: Access) -> Result<RemoteToken, Stop> {
        let region = self.provider.register(&self.domain, &area.memory(), access)?;
        let token = region.token();
        self.regions.push(region);
        Ok(token)
    }

    /// A window for a peer.
    pub(crate) fn window(&mut self, len: usize, access: Access) -> Result<(Arc<Window>, RemoteToken), Stop> {
        let window = Arc::new(Window::new(len)?);
        let region = self.provider.register(&self.domain, &Memory::Window(window.clone()), access)?;
        let token = region.token();
        self.regions.push(region);
        Ok((window, token))
    }

    /// The registration that was made last, to be ended by the caller.
    pub(crate) fn last_region(&mut self) -> Option<MemoryRegion> {
        self.regions.pop()
    }

    /// Ends the registration that was made last.
    pub(crate) fn deregister_last(&mut self) -> Result<(), Stop> {
        match self.last_region() {
            Some(region) => Ok(self.provider.deregister(region)?),
            None => Ok(()),
        }
    }

    /// Posts one request and returns its number.
    pub(crate) fn post(&mut self, qp: QpIndex, act: Act, signalled: bool, fence: bool) -> Result<u32, Stop> {
        let request = self.request(act, signalled, fence);
        self.post_all(qp, std::slice::from_ref(&request))?;
        Ok(request.slot)
    }

    /// Posts requests that must be accepted. "Not now" is an answer: a provider may have to hear of
    /// a peer's registration first, so this end polls and posts again.
    pub(crate) fn post_all(&mut self, qp: QpIndex, mut batch: &[Request]) -> Result<(), Stop> {
        let end = Instant::now() + WAIT;
        while !batch.is_empty() {
            let (accepted, error) = self.probe.post(qp, batch);
            batch = batch.get(accepted..).unwrap_or_default();
            owes!(error.is_none(), "a request within the limits was refused: {error:?}");
            if !batch.is_empty() {
                owes!(Instant::now() < end, "a request within the limits was not accepted within {WAIT:?}");
                self.turn();
            }
        }
        Ok(())
    }

    pub(crate) fn request(&mut self, act: Act, signalled: bool, fence: bool) -> Request {
        Request { slot: self.slot(), act, signalled, fence, lend: false }
    }

    pub(crate) fn send(&mut self, qp: QpIndex, data: Data, immediate: Option<u32>) -> Result<u32, Stop> {
        self.post(qp, Act::Send(data, immediate), true, false)
    }

    /// A SEND that may be lent.
    pub(crate) fn lend(&mut self, qp: QpIndex, data: Data, immediate: Option<u32>) -> Result<u32, Stop> {
        let request = Request { lend: true, ..self.request(Act::Send(data, immediate), true, false) };
        self.post_all(qp, std::slice::from_ref(&request))?;
        Ok(request.slot)
    }

    /// A receive that takes a loan.
    pub(crate) fn receive_or_loan(&mut self, qp: Option<QpIndex>, piece: Piece) -> Result<u32, Stop> {
        let slot = self.slot();
        let accepted = self.probe.post_receive_or_loan(qp, &[(slot, piece)])?;
        owes!(accepted == 1, "a receive was refused though there is room for it");
        Ok(slot)
    }

    pub(crate) fn receive(&mut self, qp: Option<QpIndex>, piece: Piece) -> Result<u32, Stop> {
        let slot = self.slot();
        let accepted = self.probe.post_receive(qp, &[(slot, piece)])?;
        owes!(accepted == 1, "a receive was refused though there is room for it");
        Ok(slot)
    }

    pub(crate) fn slot(&mut self) -> u32 {
        self.slots += 1;
        self.slots
    }

    /// Polls once and takes the events.
    pub(crate) fn turn(&mut self) {
        self.probe.poll(&mut self.done);
        while let Some(event) = self.probe.next_event() {
            self.events.push(event);
        }
    }

    /// What was reported of a request.
    pub(crate) fn completion(&self, slot: u32) -> Option<RawCompletion> {
        self.done.iter().find(|done| done.slot == slot).copied()
    }

    pub(crate) fn has(&self, slot: u32) -> bool {
        self.completion(slot).is_some()
    }

    /// How often a request was reported.
    pub(crate) fn reports(&self, slot: u32) -> usize {
        self.done.iter().filter(|done| done.slot == slot).count()
    }

    /// The completion of a request, which must have succeeded.
    pub(crate) fn success(&self, slot: u32) -> Result<RawCompletion, Stop> {
        match self.completion(slot) {
            Some(done) if done.status == Status::Success => Ok(done),
            other => Err(Stop::Broken(format!("a request that must succeed ended with {other:?}"))),
        }
    }

    /// Turns this end alone until `done` holds.
    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut End) -> bool) -> Result<(), Stop> {
        let end = Instant::now() + WAIT;
        while !done(self) {
            owes!(Instant::now() < end, "{what}: not within {WAIT:?} (events {:?})", self.events);
            self.turn();
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Whether the descriptor becomes readable within `limit`.
    pub(crate) fn readable_within(&self, limit: Duration) -> Result<bool, Stop> {
        let timeout = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        let fd = self.probe.fd();
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        loop {
            match rustix::event::poll(&mut fds, Some(&timeout)) {
                Ok(ready) => return Ok(ready > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        for region in self.regions.drain(..) {
            // The port lives a moment longer; a provider that refuses leaves it registered, no more.
            let _ = self.provider.deregister(region);
        }
    }
}

/// Two connected ends in one process.
pub(crate) struct Pair {
    pub(crate) a: End,
    pub(crate) b: End,
}

/// The queue pair of both ends of a [`Pair`].
pub(crate) const QP: QpIndex = QpIndex(0);

impl Pair {
    pub(crate) fn new(harness: &dyn Harness) -> Result<Self, Stop> {
        Self::with(harness, PortOptions { regions: true, ..PortOptions::default() })
    }

    /// With options for the port of `a`.
    pub(crate) fn with(harness: &dyn Harness, options: PortOptions) -> Result<Self, Stop> {
        let mut pair = Self { a: End::open_with(harness.provider(), options)?, b: End::open(harness.provider())? };
        connect(harness, &mut pair.a, &mut pair.b)?;
        Ok(pair)
    }

    pub(crate) fn turn(&mut self) {
        self.a.turn();
        self.b.turn();
    }

    /// Turns both ends until `done` holds.
    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Pair) -> bool) -> Result<(), Stop> {
        let end = Instant::now() + WAIT;
        while !done(self) {
            owes!(
                Instant::now() < end,
                "{what}: not within {WAIT:?} (events {:?} and {:?})",
                self.a.events,
                self.b.events
            );
            self.turn();
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Turns both ends for a while in which nothing must go wrong.
    pub(crate) fn quiet(&mut self) {
        let end = Instant::now() + QUIET;
        while Instant::now() < end {
            self.turn();
        }
    }

    /// Until the given requests of either end are reported.
    pub(crate) fn finish(&mut self, of_a: &[u32], of_b: &[u32]) -> Result<(), Stop> {
        self.until("what was posted completes", |pair| {
            of_a.iter().all(|slot| pair.a.has(*slot)) && of_b.iter().all(|slot| pair.b.has(*slot))
        })
    }

    /// One message from `a` to `b`, checked.
    pub(crate) fn message(&mut self, from: Piece, to: Piece) -> Result<(), Stop> {
        let got = self.b.receive(Some(QP), to.clone())?;
        let sent = self.a.send(QP, Data::Gather(vec![from.clone()]), None)?;
        self.finish(&[sent], &[got])?;
        self.a.success(sent)?;
        let done = self.b.success(got)?;
        owes!(done.bytes == from.len() as u64, "{} bytes were sent and {} received", from.len(), done.bytes);
        owes!(to.read()[..from.len()] == from.read()[..], "the bytes received are not the bytes sent");
        Ok(())
    }
}

/// Connects `from` to `to`, and attaches both.
pub(crate) fn connect(harness: &dyn Harness, from: &mut End, to: &mut End) -> Result<(QpIndex, QpIndex), Stop> {
    let name = harness.name();
    let mut listener = to.provider.listen(&to.domain, &name)?;
    let (link, accepted) = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| from.provider.connect(&from.domain, &name, CONNECT));
        let accepted = listener.accept(CONNECT);
        (connecting.join(), accepted)
    });
    let link = link.map_err(|_| Stop::Broken("connecting panicked".into()))??;
    let accepted = accepted?.ok_or_else(|| Stop::Broken("nobody was accepted".into()))?;
    Ok((from.attach(link)?, to.attach(accepted)?))
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A part of a remote range.
pub(crate) fn part(token: RemoteToken, at: u64, len: u64) -> RemoteToken {
    RemoteToken { at: token.at.wrapping_add(at), len, ..token }
}

/// Longer than any provider needs, on a busy machine too.
pub(crate) const WAIT: Duration = Duration::from_secs(5);
/// Long enough for a mistake to show.
const QUIET: Duration = Duration::from_millis(20);
const CONNECT: Duration = Duration::from_secs(5);

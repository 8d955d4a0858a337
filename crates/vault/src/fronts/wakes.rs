//! What wakes the one thread of a front, and when that is to end.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_verbs::watch::{Signal, failed, timespec};
use overside_verbs::{Clock, VerbsError};
use overside_volume::Device;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

/// Descriptors under tokens, and a signal to stop.
#[derive(Debug)]
pub(super) struct Wakes {
    pub(super) epoll: Arc<OwnedFd>,
    stopper: Arc<Signal>,
    clock: Arc<dyn Clock>,
    /// How long requests may take that are under way when it is stopped.
    patience: Duration,
    /// It is to stop; requests that were taken may end until then.
    pub(super) stops_until: Option<Instant>,
}

impl Wakes {
    pub(super) fn new(clock: Arc<dyn Clock>, patience: Duration) -> Result<Wakes, VerbsError> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|errno| failed("epoll_create", errno))?;
        let stopper = Arc::new(Signal::new()?);
        watch(&epoll, &*stopper, STOPPER)?;
        Ok(Wakes { epoll: Arc::new(epoll), stopper, clock, patience, stops_until: None })
    }

    /// Stops it when it is notified.
    pub(super) fn stopper(&self) -> Arc<Signal> {
        self.stopper.clone()
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// It is to stop from now on.
    pub(super) fn stop(&mut self) {
        self.stops_until.get_or_insert(self.clock.now() + self.patience);
    }

    /// Where it is to stop: a request has ended, so the next one has as long again.
    pub(super) fn go_on(&mut self) {
        self.stops_until = self.stops_until.map(|_| self.clock.now() + self.patience);
    }

    /// Whether requests that were taken are not waited for any longer.
    pub(super) fn is_late(&self) -> bool {
        self.stops_until.is_some_and(|until| self.clock.now() >= until)
    }

    /// Says what is ready; where nothing is and the front `sleeps`, it waits for the first until
    /// `until`. A device only wakes.
    pub(super) fn wait(
        &mut self,
        sleeps: bool,
        until: Option<Instant>,
        mut ready: impl FnMut(u64, EventFlags),
    ) -> Result<(), VerbsError> {
        let left = |until: Instant| until.saturating_duration_since(self.clock.now());
        let timeout = if sleeps { until.map(left) } else { Some(Duration::ZERO) }.map(timespec);
        let mut events: [MaybeUninit<Event>; EVENTS] = [const { MaybeUninit::uninit() }; EVENTS];
        let (found, _) = match epoll::wait(&*self.epoll, &mut events[..], timeout.as_ref()) {
            Err(Errno::INTR) => return Ok(()),
            found => found.map_err(|errno| failed("epoll_wait", errno))?,
        };
        for event in found {
            match event.data.u64() {
                STOPPER => {
                    self.stopper.drain();
                    self.stop();
                }
                DEVICE => {}
                token => ready(token, event.flags),
            }
        }
        Ok(())
    }
}

/// The set wakes when there is something to read; `token` says where.
pub(super) fn watch(epoll: &OwnedFd, fd: &impl AsFd, token: u64) -> Result<(), VerbsError> {
    epoll::add(epoll, fd, EventData::new_u64(token), EventFlags::IN).map_err(|errno| failed("epoll_ctl", errno))
}

/// The set wakes when a device has ended something. A front polls its devices in every turn, so
/// it need not hear of which.
pub(super) fn watch_device(epoll: &OwnedFd, device: &dyn Device) -> Result<(), VerbsError> {
    device.fd().map_or(Ok(()), |fd| watch(epoll, &fd, DEVICE))
}

/// How long requests may take that are under way when a front is stopped, unless said.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Events that are taken at once.
const EVENTS: usize = 64;
/// No front's own token.
const STOPPER: u64 = u64::MAX;
const DEVICE: u64 = u64::MAX - 1;

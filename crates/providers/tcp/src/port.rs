//! The data side: `Port` over an engine that the port shares with its thread.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use overside_verbs::pairs::post_each;
use overside_verbs::port::{QpIndex, RawCompletion, RawReceive, RawRequest};
use overside_verbs::watch::{Signal, Watch};
use overside_verbs::{Link, Port, PortEvent, PortOptions, ProtectionDomain, VerbsError};

use crate::engine::Engine;
use crate::progress;
use crate::provider::Shared;

/// A port of the TCP provider.
#[derive(Debug)]
pub(crate) struct TcpPort {
    shared: Arc<Shared>,
    inner: Arc<Inner>,
    has_thread: bool,
}

/// What a port shares with its thread.
#[derive(Debug)]
pub(crate) struct Inner {
    engine: Mutex<Engine>,
    pub(crate) watch: Arc<Watch>,
    /// How often the owner called in.
    pub(crate) calls: AtomicU64,
    pub(crate) ended: AtomicBool,
    /// Wakes the thread: to end, or since the owner has left something.
    pub(crate) signal: Signal,
}

impl Inner {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that wait for the peer that has most to take.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn waiting(&self) -> u64 {
        self.lock().conns.iter().map(|conn| conn.outbound.waiting()).max().unwrap_or(0)
    }

    /// The owner's call ends. It may be its last for long, and a thread that sleeps would not
    /// notice what it leaves.
    fn leave(&self, mut engine: MutexGuard<'_, Engine>) {
        if engine.thread_sleeps && engine.is_unsettled() {
            engine.thread_sleeps = false;
            self.signal.notify();
        }
    }

    /// The owner's lock: from here on it is here.
    fn owner(&self) -> MutexGuard<'_, Engine> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut engine = self.lock();
        engine.armed = false;
        engine
    }
}

impl TcpPort {
    /// What it shares with its thread.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    pub(crate) fn open(
        shared: Arc<Shared>,
        domain: &ProtectionDomain,
        options: PortOptions,
    ) -> Result<Self, VerbsError> {
        let watch = Arc::new(Watch::new()?);
        let engine = Engine::new(shared.clone(), domain.id(), options, watch.clone())?;
        let inner = Arc::new(Inner {
            engine: Mutex::new(engine),
            watch,
            calls: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            signal: Signal::new()?,
        });
        Ok(Self { shared, inner, has_thread: false })
    }
}

// SAFETY: [tcp-posted] buffers are touched between post and completion only, each accepted slot is reported once, in order, and
// a report of success follows the placing.
unsafe impl Port for TcpPort {
    fn attach(&mut self, qp: QpIndex, link: Link) -> Result<(), VerbsError> {
        if self.shared.options.progress && !self.has_thread {
            progress::start(self.inner.clone())?;
            self.has_thread = true;
        }
        self.inner.owner().attach(qp, link)
    }

    unsafe fn post(&mut self, qp: QpIndex, batch: &[RawRequest<'_>]) -> (usize, Option<VerbsError>) {
        let mut engine = self.inner.owner();
        engine.refresh();
        // SAFETY: [tcp-posted] the caller's promise.
        let (accepted, error) = post_each(batch, |request| unsafe { engine.post_one(qp, request) });
        engine.push_out(qp);
        self.inner.leave(engine);
        (accepted, error)
    }

    unsafe fn post_receive(&mut self, qp: Option<QpIndex>, batch: &[RawReceive]) -> Result<usize, VerbsError> {
        let mut engine = self.inner.owner();
        let posted = engine.post_receive(qp, batch);
        self.inner.leave(engine);
        posted
    }

    fn poll(&mut self, out: &mut [RawCompletion]) -> usize {
        let mut engine = self.inner.owner();
        if engine.reports.done.len() < out.len() {
            engine.turn(out.len());
        }
        engine.release();
        let count = engine.reports.take(out);
        self.inner.leave(engine);
        count
    }

    fn next_event(&mut self) -> Option<PortEvent> {
        self.inner.owner().reports.events.pop_front()
    }

    fn arm(&mut self) -> Result<bool, VerbsError> {
        let mut engine = self.inner.owner();
        engine.armed = engine.settle();
        Ok(engine.armed)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.watch.as_fd()
    }

    fn close(&mut self, qp: QpIndex) {
        self.inner.owner().close(qp);
    }
}

impl Drop for TcpPort {
    /// Peers learn of it, and the thread ends.
    fn drop(&mut self) {
        self.inner.owner().end_all();
        self.inner.ended.store(true, Ordering::Release);
        self.inner.signal.notify();
    }
}

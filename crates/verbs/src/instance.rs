//! One provider of this process: which connections are its own, and whether a fork came between.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Pid;

use crate::clock::Clock;
use crate::fork::ForkMark;
use crate::port::{Port, PortEvent, QpIndex, RawCompletion, RawReceive, RawRequest};
use crate::provider::{Link, Peer};
use crate::{Loan, VerbsError};

/// What tells one provider from another, and its process from a forked child.
#[derive(Debug)]
pub struct Instance {
    id: u64,
    /// None where the system had no page for it: then a system call says.
    fork: Option<ForkMark>,
    process: Pid,
}

impl Instance {
    /// A new provider of this process.
    pub fn new(fork: Option<ForkMark>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self { id: NEXT.fetch_add(1, Ordering::Relaxed), fork, process: rustix::process::getpid() })
    }

    /// Whether this process is a child that inherited the provider: its locks may be held by
    /// threads that the child does not have.
    #[inline]
    pub fn inherited(&self) -> bool {
        match &self.fork {
            Some(mark) => mark.inherited(),
            None => self.is_child(),
        }
    }

    #[cold]
    fn is_child(&self) -> bool {
        self.process != rustix::process::getpid()
    }

    /// `Err(Forked)` in a child.
    ///
    /// # Errors
    /// [`VerbsError::Forked`].
    #[inline]
    pub fn check(&self) -> Result<(), VerbsError> {
        if self.inherited() { Err(VerbsError::Forked) } else { Ok(()) }
    }

    /// A connection of this provider's in the protection domain of this number.
    pub fn link(&self, domain: u64, peer: Peer, inner: impl Any + Send) -> Link {
        Link { peer, provider: self.id, domain, inner: Box::new(inner) }
    }

    /// What [`link`](Self::link) was given.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] when the link is another provider's or of another domain.
    pub fn opened<T: Any>(&self, domain: u64, link: Link) -> Result<T, VerbsError> {
        if (link.provider, link.domain) != (self.id, domain) {
            return Err(VerbsError::Unsupported("a link of another protection domain; connect in the port's own"));
        }
        let inner = link.inner.downcast::<T>();
        inner.map(|inner| *inner).map_err(|_| VerbsError::Unsupported("a link of another provider"))
    }

    /// A port that does nothing in a forked child.
    pub fn guard(self: &Arc<Self>, port: impl Port + 'static) -> Box<dyn Port> {
        Box::new(Guarded { port: ManuallyDrop::new(port), instance: self.clone() })
    }
}

/// Asks before each call whether this process made the port.
struct Guarded<P: Port> {
    port: ManuallyDrop<P>,
    instance: Arc<Instance>,
}

// SAFETY: [verbs-guarded-port] each call is the port's own, or never reaches it: then nothing was accepted, and nothing is reported.
unsafe impl<P: Port> Port for Guarded<P> {
    fn attach(&mut self, qp: QpIndex, link: Link) -> Result<(), VerbsError> {
        self.instance.check()?;
        self.port.attach(qp, link)
    }

    unsafe fn post(&mut self, qp: QpIndex, batch: &[RawRequest<'_>]) -> (usize, Option<VerbsError>) {
        if self.instance.inherited() {
            return (0, Some(VerbsError::Forked));
        }
        // SAFETY: [verbs-guarded-port] the caller's promise.
        unsafe { self.port.post(qp, batch) }
    }

    unsafe fn post_receive(&mut self, qp: Option<QpIndex>, batch: &[RawReceive]) -> Result<usize, VerbsError> {
        self.instance.check()?;
        // SAFETY: [verbs-guarded-port] the caller's promise.
        unsafe { self.port.post_receive(qp, batch) }
    }

    fn poll(&mut self, out: &mut [RawCompletion]) -> usize {
        if self.instance.inherited() { 0 } else { self.port.poll(out) }
    }

    fn take_loan(&mut self, slot: u32) -> Option<Loan> {
        if self.instance.inherited() { None } else { self.port.take_loan(slot) }
    }

    fn next_event(&mut self) -> Option<PortEvent> {
        if self.instance.inherited() { None } else { self.port.next_event() }
    }

    fn arm(&mut self) -> Result<bool, VerbsError> {
        self.instance.check()?;
        self.port.arm()
    }

    fn wait(&mut self, other: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Result<bool, VerbsError> {
        self.instance.check()?;
        self.port.wait(other, timeout)
    }

    fn line_ns(&mut self, qp: QpIndex) -> Option<f64> {
        if self.instance.inherited() { None } else { self.port.line_ns(qp) }
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.port.clock()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.port.fd()
    }

    fn close(&mut self, qp: QpIndex) {
        if !self.instance.inherited() {
            self.port.close(qp);
        }
    }
}

impl<P: Port> Drop for Guarded<P> {
    /// A child's copy is left as it is: what the port would say, or give back, is its parent's.
    fn drop(&mut self) {
        if !self.instance.inherited() {
            // SAFETY: [verbs-guarded-port] once, here.
            unsafe { ManuallyDrop::drop(&mut self.port) }
        }
    }
}

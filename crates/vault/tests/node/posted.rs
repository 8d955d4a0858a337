//! A provider that counts what is posted.

use std::os::fd::BorrowedFd;
use std::sync::Mutex;

use overside_reference::{Change, Changed};
use overside_verbs::port::{Port, QpIndex, RawCompletion, RawReceive, RawRequest};
use overside_verbs::{Clock, Link, Loan, PortEvent, PortOptions, ProtectionDomain, VerbsError};

use super::*;

/// Requests that were accepted at once, post after post, of all ports.
type Posts = Arc<Mutex<Vec<usize>>>;

#[derive(Debug)]
pub struct Posted {
    provider: Arc<dyn Provider>,
    posts: Posts,
}

impl Posted {
    pub fn over(provider: Arc<dyn Provider>) -> Arc<Changed<Posted>> {
        Arc::new(Changed(Posted { provider, posts: Posts::default() }))
    }

    /// What was posted since it was asked last.
    pub fn take(&self) -> Vec<usize> {
        std::mem::take(&mut self.posts.lock().unwrap())
    }
}

impl Change for Posted {
    fn provider(&self) -> &dyn Provider {
        &*self.provider
    }

    fn open_port(&self, domain: &ProtectionDomain, options: PortOptions) -> Result<Box<dyn Port>, VerbsError> {
        let port = self.provider.open_port(domain, options)?;
        Ok(Box::new(Counting { port, posts: self.posts.clone() }))
    }
}

struct Counting {
    port: Box<dyn Port>,
    posts: Posts,
}

// SAFETY: as the port beneath, which keeps its promises.
unsafe impl Port for Counting {
    fn attach(&mut self, qp: QpIndex, link: Link) -> Result<(), VerbsError> {
        self.port.attach(qp, link)
    }
    unsafe fn post(&mut self, qp: QpIndex, batch: &[RawRequest<'_>]) -> (usize, Option<VerbsError>) {
        // SAFETY: the caller's promise.
        let posted = unsafe { self.port.post(qp, batch) };
        self.posts.lock().unwrap().extend((posted.0 > 0).then_some(posted.0));
        posted
    }
    unsafe fn post_receive(&mut self, qp: Option<QpIndex>, batch: &[RawReceive]) -> Result<usize, VerbsError> {
        // SAFETY: the caller's promise.
        unsafe { self.port.post_receive(qp, batch) }
    }
    fn poll(&mut self, out: &mut [RawCompletion]) -> usize {
        self.port.poll(out)
    }
    fn take_loan(&mut self, slot: u32) -> Option<Loan> {
        self.port.take_loan(slot)
    }
    fn next_event(&mut self) -> Option<PortEvent> {
        self.port.next_event()
    }
    fn arm(&mut self) -> Result<bool, VerbsError> {
        self.port.arm()
    }
    fn wait(&mut self, other: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Result<bool, VerbsError> {
        self.port.wait(other, timeout)
    }
    fn line_ns(&mut self, qp: QpIndex) -> Option<f64> {
        self.port.line_ns(qp)
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.port.clock()
    }
    fn fd(&self) -> BorrowedFd<'_> {
        self.port.fd()
    }
    fn close(&mut self, qp: QpIndex) {
        self.port.close(qp);
    }
}

//! A worker's part in carrying a log on: when it looks at the marks, when it attends to the log,
//! and how it waits for both.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use overside_verbs::VerbsError;
use overside_verbs::spin::Spin;
use rustix::event::{PollFd, PollFlags, Timespec, epoll};

use crate::hold::{Carrier, Hold, Watermarks};
use crate::ticket::Mailbox;

/// What a worker knows of the marks that its messages wait for.
#[derive(Debug)]
pub(crate) struct Watch {
    marks: Option<Arc<Watermarks>>,
    mailbox: Arc<Mailbox>,
    /// The marks when they were last looked at.
    reached: Hold,
    /// The log behind them, where workers carry it on.
    pub(crate) carry: Option<Carry>,
}

impl Watch {
    /// # Errors
    /// When the system has no descriptor for it.
    pub(crate) fn new(marks: Option<Arc<Watermarks>>, mailbox: &Arc<Mailbox>, spin: Spin) -> Result<Watch, VerbsError> {
        let carrier = marks.as_ref().and_then(|marks| marks.carrier());
        let carry = carrier.map(|carrier| Carry::new(carrier, mailbox, spin)).transpose()?;
        Ok(Watch { marks, mailbox: mailbox.clone(), reached: Hold::NONE, carry })
    }

    /// Brings the log on, for a worker that `holds` messages back or not. It looks at the marks
    /// behind this.
    #[inline]
    pub(crate) fn go_on(&mut self, holds: bool) {
        let Some(carry) = &mut self.carry else { return };
        if holds {
            // It need not be woken by what it does itself.
            self.mailbox.set_holds(false);
        }
        carry.go_on(holds);
    }

    /// The marks, if they have risen. From now on the worker is woken when they do.
    pub(crate) fn look(&mut self) -> Option<Hold> {
        let marks = self.marks.as_ref()?;
        // Only then are the marks looked at, so that none rises unseen while the worker sleeps.
        self.mailbox.set_holds(true);
        let reached = marks.reached();
        (std::mem::replace(&mut self.reached, reached) != reached).then_some(reached)
    }

    /// No message waits any more.
    pub(crate) fn holds_nothing(&self) {
        self.mailbox.set_holds(false);
    }
}

/// What a worker knows of the log that it holds messages back for.
#[derive(Debug)]
pub(crate) struct Carry {
    carrier: Arc<dyn Carrier>,
    /// Readable when the worker's mailbox is, or the carrier.
    both: OwnedFd,
    attends: bool,
    /// Whether to poll for the disk before sleeping.
    pub(crate) spin: Spin,
}

impl Carry {
    /// # Errors
    /// When the system has no descriptor for it.
    pub(crate) fn new(carrier: Arc<dyn Carrier>, mailbox: &Mailbox, spin: Spin) -> Result<Carry, VerbsError> {
        let both = both(&*carrier, mailbox).map_err(|e| VerbsError::System { what: "epoll", reason: e.to_string() })?;
        Ok(Carry { carrier, both, attends: false, spin })
    }

    /// Carries the log on for a worker that `holds` messages back or not.
    #[inline]
    pub(crate) fn go_on(&mut self, holds: bool) {
        if holds || self.attends || self.carrier.is_wanted() {
            self.attends = self.carrier.go_on(self.attends);
        }
    }

    /// Whether this worker goes on when the carrier is readable.
    pub(crate) fn attends(&self) -> bool {
        self.attends
    }

    /// Whether what the carrier waits for has come.
    pub(crate) fn is_readable(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let fd = self.carrier.fd();
        rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&at_once)).is_ok_and(|n| n > 0)
    }

    /// What a sleeping worker watches that attends to it.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.both.as_fd()
    }
}

impl Drop for Carry {
    fn drop(&mut self) {
        if self.attends {
            self.carrier.leave();
        }
    }
}

fn both(carrier: &dyn Carrier, mailbox: &Mailbox) -> rustix::io::Result<OwnedFd> {
    let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for fd in [carrier.fd(), mailbox.fd()] {
        epoll::add(&both, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok(both)
}

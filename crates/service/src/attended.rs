//! What requests wait for apart from peers, a disk say, and who goes on with it.

use std::cell::RefCell;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use overside_verbs::watch::Watch;
use overside_verbs::{QueuePair, VerbsError};

use crate::ticket::Mailbox;

/// Ends requests later, and says so by a descriptor. A worker that
/// [attends](crate::Context::attend) to it goes on with it itself: waiting for another thread that
/// does costs one more wake-up.
pub trait Attended: Send + Sync + fmt::Debug {
    /// Whether a request waits for it. It may be wrong where another thread goes on with it at this
    /// moment.
    fn is_wanted(&self) -> bool;

    /// Goes on as far as nothing is waited for.
    fn go_on(&self) -> Going;

    /// Readable when it can go on, once it has said [`Sleeps`](Going::Sleeps). Always the same one.
    fn fd(&self) -> BorrowedFd<'_>;

    /// The worker attends to it no more: the connection has ended, or the worker.
    fn leave(&self);
}

/// How something stands that a worker attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Going {
    /// It can go on when its descriptor is readable.
    Sleeps,
    /// It can go on now.
    Again,
    /// Others see to it from now on.
    Over,
}

/// What going on with all of it came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Went {
    /// Nothing was wanted.
    Nowhere,
    On,
    /// The worker must not sleep before it has gone on once more.
    Again,
}

/// What a worker attends to.
#[derive(Debug)]
pub(crate) struct Attends {
    /// Readable when the mailbox is, or any of them.
    watch: Watch,
    all: RefCell<Vec<Attendance>>,
}

#[derive(Debug)]
struct Attendance {
    /// The connection that it is for.
    of: QueuePair,
    what: Arc<dyn Attended>,
}

impl Attends {
    /// # Errors
    /// When the system has no descriptor for it.
    pub(crate) fn new(mailbox: &Mailbox) -> Result<Attends, VerbsError> {
        let watch = Watch::new()?;
        watch.add(mailbox.fd(), 0)?;
        Ok(Attends { watch, all: RefCell::default() })
    }

    pub(crate) fn add(&self, of: QueuePair, what: Arc<dyn Attended>) {
        let added = Attendance { of, what };
        // Where the system has no room to watch it, it is left to others at once.
        if self.watch.add(added.what.fd(), 0).is_ok() {
            self.all.borrow_mut().push(added);
        }
    }

    /// A connection has ended.
    pub(crate) fn end(&self, of: QueuePair) {
        self.retain(|one| one.of != of);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.borrow().is_empty()
    }

    /// Goes on with what requests wait for, or with `all` of it. What has ended is in the mailbox
    /// then.
    pub(crate) fn go_on(&self, all: bool, mailbox: &Mailbox) -> Went {
        let mut went = Went::Nowhere;
        self.retain(|one| {
            if !all && !one.what.is_wanted() {
                return true;
            }
            mailbox.will_look();
            let going = one.what.go_on();
            went = if going == Going::Again || went == Went::Again { Went::Again } else { Went::On };
            going != Going::Over
        });
        went
    }

    /// What a sleeping worker watches.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    fn retain(&self, mut stays: impl FnMut(&Attendance) -> bool) {
        self.all.borrow_mut().retain(|one| {
            let stays = stays(one);
            if !stays {
                self.watch.remove(one.what.fd());
            }
            stays
        });
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        self.what.leave();
    }
}

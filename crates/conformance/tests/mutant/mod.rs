//! Ports that break a promise whatever the provider beneath does.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use overside_verbs::port::{Port, QpIndex, RawCompletion, RawReceive, RawRequest, RawWork};
use overside_verbs::{Link, Loan, Opcode, PortEvent, Status, VerbsError};

/// What a mutant does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Reports a SEND as soon as it is posted.
    Early,
    /// Reports everything twice, the second time a little later.
    Twice,
    /// Reports in reverse what it finds at once.
    Backwards,
    /// Loses every seventh report.
    Loses,
    /// Writes one byte past a received message.
    PastEnd,
    /// Never gives back what was flushed.
    Keeps,
    /// Drops immediate data.
    DropsImmediate,
    /// Reports unsignalled successes.
    Talks,
    /// Changes a byte of a receive after its completion was returned.
    ChangesLater,
    /// Waits for the peer inside poll.
    Blocks,
    /// Never becomes readable.
    Deaf,
    /// Sleeps to the end of its time whatever comes.
    Oversleeps,
    /// Is readable though nothing happens.
    Restless,
    /// Knows how far the peer of a closed queue pair is.
    Remembers,
}

pub struct Mutant {
    inner: Box<dyn Port>,
    wrong: Wrong,
    receives: HashMap<u32, RawReceive>,
    early: VecDeque<RawCompletion>,
    again: VecDeque<RawCompletion>,
    returned: Vec<(RawReceive, u64)>,
    reports: usize,
    polls: usize,
    other: OwnedFd,
}

// SAFETY: as the port beneath, which keeps its promises; the receives' addresses are the caller's to give.
unsafe impl Send for Mutant {}

impl Mutant {
    pub fn boxed(inner: Box<dyn Port>, wrong: Wrong) -> Box<dyn Port> {
        let flags = rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC;
        let other = rustix::event::eventfd(u32::from(wrong == Wrong::Restless), flags).unwrap();
        let (early, again, returned) = (VecDeque::new(), VecDeque::new(), Vec::new());
        let receives = HashMap::new();
        Box::new(Self { inner, wrong, receives, early, again, returned, reports: 0, polls: 0, other })
    }

    /// Whether a report is passed on; does its wrong to it first.
    fn passes(&mut self, done: &mut RawCompletion) -> bool {
        self.reports += 1;
        let received = matches!(done.opcode, Opcode::Receive | Opcode::ReceiveImmediate);
        match self.wrong {
            Wrong::Early => !(done.opcode == Opcode::Send && done.status == Status::Success),
            Wrong::Twice => {
                self.again.push_back(*done);
                true
            }
            Wrong::Loses => !self.reports.is_multiple_of(7),
            Wrong::Keeps => done.status == Status::Success,
            Wrong::DropsImmediate => {
                done.immediate = None;
                true
            }
            Wrong::PastEnd | Wrong::ChangesLater if received && done.status == Status::Success => {
                if let Some(receive) = self.receives.remove(&done.slot) {
                    match self.wrong {
                        // SAFETY: the probe's areas reach further than any receive that ends in them; a mistake on purpose.
                        Wrong::PastEnd => unsafe {
                            receive.buffer.address.add(done.bytes as usize).write_volatile(0xBD);
                        },
                        _ => self.returned.push((receive, done.bytes)),
                    }
                }
                true
            }
            _ => true,
        }
    }

    fn change_later(&mut self) {
        if self.polls.is_multiple_of(16) {
            for (receive, bytes) in self.returned.drain(..) {
                if bytes > 0 {
                    // SAFETY: the probe keeps its areas mapped; a mistake on purpose.
                    unsafe { receive.buffer.address.write_volatile(receive.buffer.address.read_volatile() ^ 0xFF) };
                }
            }
        }
    }
}

// SAFETY: it breaks the promises on purpose, within memory that the probe keeps mapped.
unsafe impl Port for Mutant {
    fn attach(&mut self, qp: QpIndex, link: Link) -> Result<(), VerbsError> {
        self.inner.attach(qp, link)
    }

    unsafe fn post(&mut self, qp: QpIndex, batch: &[RawRequest<'_>]) -> (usize, Option<VerbsError>) {
        let loud: Vec<RawRequest<'_>> = batch.iter().map(|r| RawRequest { signalled: true, ..*r }).collect();
        let batch = if self.wrong == Wrong::Talks { &loud } else { batch };
        // SAFETY: the caller's promise, passed on.
        let (accepted, error) = unsafe { self.inner.post(qp, batch) };
        if self.wrong == Wrong::Early {
            for request in batch.iter().take(accepted) {
                if let (RawWork::Send(..), true) = (&request.work, request.signalled) {
                    self.early.push_back(RawCompletion::new(request.slot, Some(qp), Opcode::Send, Status::Success));
                }
            }
        }
        (accepted, error)
    }

    unsafe fn post_receive(&mut self, qp: Option<QpIndex>, batch: &[RawReceive]) -> Result<usize, VerbsError> {
        self.receives.extend(batch.iter().map(|receive| (receive.slot, *receive)));
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.post_receive(qp, batch) }
    }

    fn poll(&mut self, out: &mut [RawCompletion]) -> usize {
        self.polls += 1;
        self.change_later();
        if self.polls.is_multiple_of(3)
            && let Some(again) = self.again.pop_front()
        {
            out[0] = again;
            return 1;
        }
        if let Some(early) = self.early.pop_front() {
            out[0] = early;
            return 1;
        }
        let mut found = out.to_vec();
        let count = self.inner.poll(&mut found);
        if count == 0 && self.wrong == Wrong::Blocks {
            std::thread::sleep(Duration::from_millis(700));
        }
        let mut passed: Vec<RawCompletion> = Vec::new();
        for done in &mut found[..count] {
            if self.passes(done) {
                passed.push(*done);
            }
        }
        if self.wrong == Wrong::Backwards {
            passed.reverse();
        }
        out[..passed.len()].copy_from_slice(&passed);
        passed.len()
    }

    fn take_loan(&mut self, slot: u32) -> Option<Loan> {
        self.inner.take_loan(slot)
    }

    fn next_event(&mut self) -> Option<PortEvent> {
        self.inner.next_event()
    }

    fn arm(&mut self) -> Result<bool, VerbsError> {
        self.inner.arm()
    }

    fn wait(&mut self, other: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Result<bool, VerbsError> {
        if self.wrong == Wrong::Oversleeps && other.is_none() {
            std::thread::sleep(timeout.unwrap_or(Duration::MAX));
        }
        self.inner.wait(other, timeout)
    }

    fn line_ns(&mut self, qp: QpIndex) -> Option<f64> {
        let known = self.inner.line_ns(qp);
        if self.wrong == Wrong::Remembers { known.or(Some(60.0)) } else { known }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self.wrong {
            Wrong::Deaf | Wrong::Restless => self.other.as_fd(),
            _ => self.inner.fd(),
        }
    }

    fn close(&mut self, qp: QpIndex) {
        self.inner.close(qp);
    }
}

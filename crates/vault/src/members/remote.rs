//! A part of another node's volume as a member.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use overside_service::{Running, Threads};
use overside_verbs::watch::Signal;
use overside_verbs::{Clock, VerbsError};
use overside_volume::client::Volume;
use overside_volume::{Completion, Device, DeviceError, Geometry, Request, SECTOR_BYTES, Work};

use crate::server::lock;

/// A volume that is attached on a thread of its own: connecting may wait for a peer, and a device
/// may not. Where it cannot be attached, requests fail and it is tried again.
pub struct RemoteMember {
    geometry: Geometry,
    /// Place in the volume of the member's first byte.
    start: u64,
    /// Ended without the node.
    refused: Vec<Completion>,
    in_flight: usize,
    passed: Arc<Passed>,
    running: Option<Running>,
}

/// Attaches the volume again, or says that it cannot be yet.
pub type Attach = Box<dyn FnMut() -> Option<Volume> + Send>;

/// What goes between the owner's thread and the volume's.
struct Passed {
    state: Mutex<State>,
    /// For the volume's thread.
    asked: Signal,
    /// For the owner; it is readable as long as something has ended.
    ended: Signal,
}

#[derive(Default)]
struct State {
    requests: VecDeque<Request>,
    done: Vec<Completion>,
    /// The owner wants nothing more.
    closes: bool,
    /// The volume's thread has ended.
    over: bool,
}

impl RemoteMember {
    /// So many bytes of the volume from `start` on. Where it is not attached yet, `attach` is
    /// called until it is.
    ///
    /// # Errors
    /// When the system has no descriptor or no thread for it.
    pub fn new(
        volume: Option<Volume>,
        attach: Attach,
        (start, bytes): (u64, u64),
        clock: Arc<dyn Clock>,
        threads: &dyn Threads,
    ) -> Result<RemoteMember, VerbsError> {
        let passed = Arc::new(Passed { state: Mutex::default(), asked: Signal::new()?, ended: Signal::new()? });
        let shared = passed.clone();
        let run = move || {
            run(&shared, volume, attach, &*clock);
            shared.end();
        };
        let running = threads.start("remote-member", Box::new(run))?;
        let geometry = Geometry { bytes, unit_bytes: SECTOR_BYTES, read_only: false };
        Ok(RemoteMember { geometry, start, refused: Vec::new(), in_flight: 0, passed, running: Some(running) })
    }
}

/// Until the owner wants nothing more.
fn run(passed: &Passed, mut volume: Option<Volume>, mut attach: Attach, clock: &dyn Clock) {
    let (mut batch, mut done) = (VecDeque::new(), Vec::new());
    let mut next_try = clock.now();
    while passed.take(&mut batch) {
        let due = match &mut volume {
            Some(attached) => {
                attached.submit(&mut batch);
                attached.poll(&mut done);
                if attached.handle().is_refused() {
                    // It is attached anew once its node lets it in.
                    (volume, next_try) = (None, clock.now() + TRY_AGAIN);
                    passed.give(&mut done);
                    continue;
                }
                if passed.give(&mut done) || !attached.arm() {
                    continue;
                }
                attached.due()
            }
            None => {
                done.extend(batch.drain(..).map(|request| request.ended(Err(DeviceError::Unreachable))));
                passed.give(&mut done);
                if clock.now() >= next_try {
                    volume = attach();
                    next_try = clock.now() + TRY_AGAIN;
                    continue;
                }
                Some(next_try)
            }
        };
        let fds = [Some(passed.asked.as_fd()), volume.as_ref().and_then(|volume| volume.fd())];
        let fds: Vec<BorrowedFd<'_>> = fds.into_iter().flatten().collect();
        if clock.wait(&fds, due).is_err() {
            return;
        }
    }
    // So that the next writer need not wait.
    if let Some(volume) = volume {
        volume.close(GOODBYE_PATIENCE);
    }
}

impl Passed {
    /// What was asked for joins the batch. False: nothing more is wanted.
    fn take(&self, batch: &mut VecDeque<Request>) -> bool {
        let mut state = lock(&self.state);
        self.asked.drain();
        batch.append(&mut state.requests);
        !state.closes
    }

    /// Whether anything has ended.
    fn give(&self, done: &mut Vec<Completion>) -> bool {
        let found = !done.is_empty();
        if found {
            let mut state = lock(&self.state);
            state.done.append(done);
            self.ended.notify();
        }
        found
    }

    fn end(&self) {
        let mut state = lock(&self.state);
        state.over = true;
        let State { requests, done, .. } = &mut *state;
        done.extend(requests.drain(..).map(|request| request.ended(Err(DeviceError::Failed))));
        self.ended.notify();
    }
}

impl Device for RemoteMember {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        let mut state = lock(&self.passed.state);
        while self.in_flight < REQUESTS_MAX
            && let Some(mut request) = batch.pop_front()
        {
            let checked = self.geometry.check(&request.work);
            match checked.and(if state.over { Err(DeviceError::Failed) } else { Ok(()) }) {
                // The node's cache is not this side's to advise.
                Ok(()) if matches!(request.work, Work::Hint { .. }) => self.refused.push(request.ended(Ok(()))),
                Ok(()) => {
                    let start = self.start;
                    move_by(&mut request.work, |at| at + start);
                    state.requests.push_back(request);
                    self.in_flight += 1;
                }
                refused => self.refused.push(request.ended(refused)),
            }
        }
        if !state.requests.is_empty() {
            self.passed.asked.notify();
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        out.append(&mut self.refused);
        let mut state = lock(&self.passed.state);
        self.passed.ended.drain();
        self.in_flight -= state.done.len();
        let start = self.start;
        out.extend(state.done.drain(..).map(|mut completion| {
            move_by(&mut completion.work, |at| at - start);
            completion
        }));
        out.len() - before
    }

    fn arm(&mut self) -> bool {
        self.refused.is_empty() && lock(&self.passed.state).done.is_empty()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.passed.ended.as_fd())
    }

    fn due(&self) -> Option<Instant> {
        None
    }
}

impl Drop for RemoteMember {
    fn drop(&mut self) {
        lock(&self.passed.state).closes = true;
        self.passed.asked.notify();
        if let Some(running) = self.running.take() {
            running.join();
        }
    }
}

impl fmt::Debug for RemoteMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (geometry, in_flight) = (self.geometry, self.in_flight);
        f.debug_struct("RemoteMember")
            .field("geometry", &geometry)
            .field("in_flight", &in_flight)
            .finish_non_exhaustive()
    }
}

/// Changes where a request begins.
fn move_by(work: &mut Work, to: impl Fn(u64) -> u64) {
    match work {
        Work::Read { at, .. }
        | Work::Write { at, .. }
        | Work::Discard { at, .. }
        | Work::Zero { at, .. }
        | Work::Check { at, .. }
        | Work::Hint { at, .. } => *at = to(*at),
        Work::Flush => {}
    }
}

/// Requests in flight; more wait with the caller.
const REQUESTS_MAX: usize = 256;
/// After a node could not be reached.
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// How long a node may take to hear that this side goes.
const GOODBYE_PATIENCE: Duration = Duration::from_secs(2);

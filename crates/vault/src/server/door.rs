//! A volume of a node in the node's own process, as a device: what fronts use.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use overside_verbs::VerbsError;
use overside_verbs::watch::Signal;
use overside_volume::{Completion, Device, DeviceError, Geometry, Request, Work};

use super::attachment::Attachment;
use super::volume::{Route, To};
use super::{Node, lock};

/// A volume of this process' node. It is a client as every other one is: a writer while no
/// other is, and fenced off when another takes over. Requests go to the volume's device as
/// they are, without a copy.
#[derive(Debug)]
pub struct Door {
    node: Arc<Node>,
    to: Arc<Attachment>,
    /// Requests of the writer before must end first.
    before: Vec<Arc<Attachment>>,
    geometry: Geometry,
    next: u64,
    in_flight: usize,
    refused: Vec<Completion>,
    ended: Arc<Ended>,
}

/// What has ended, put there by whichever thread found it.
#[derive(Debug)]
pub(super) struct Ended {
    done: Mutex<Done>,
    signal: Signal,
}

#[derive(Debug, Default)]
struct Done {
    completions: Vec<Completion>,
    /// The owner sleeps, or is about to.
    armed: bool,
    /// It was woken, and the signal still says so.
    woken: bool,
}

impl Ended {
    pub(super) fn new() -> Result<Ended, VerbsError> {
        Ok(Ended { done: Mutex::default(), signal: Signal::new()? })
    }

    pub(super) fn push(&self, completion: Completion) {
        let mut done = lock(&self.done);
        done.completions.push(completion);
        if std::mem::take(&mut done.armed) {
            done.woken = true;
            self.signal.notify();
        }
    }

    /// The owner does not sleep, and looks again before it does.
    fn disarm(&self) {
        lock(&self.done).armed = false;
    }
}

impl Door {
    pub(super) fn new(node: Arc<Node>, to: Arc<Attachment>, before: Vec<Arc<Attachment>>) -> Result<Door, VerbsError> {
        let geometry = to.volume.geometry();
        let geometry = Geometry { read_only: geometry.read_only || !to.writes, ..geometry };
        let ended = Arc::new(Ended::new()?);
        to.connected();
        Ok(Door { node, to, before, geometry, next: 0, in_flight: 0, refused: Vec::new(), ended })
    }

    /// What the writer before had under way has ended.
    fn is_open(&mut self) -> bool {
        self.before.retain(|other| !other.with(|ledger| ledger.is_quiet()));
        self.before.is_empty()
    }

    fn take(&mut self, Request { tag, mut work }: Request) {
        let checked = match self.geometry.check(&work) {
            Ok(()) if self.to.is_fenced() => Err(DeviceError::Fenced),
            checked => checked,
        };
        let Some(blocks) = self.node.blocks().filter(|_| checked.is_ok()) else {
            // Without blocks nobody serves the node yet.
            let result = checked.and(Err(DeviceError::Unreachable));
            return self.refused.push(Completion { tag, work, result });
        };
        let through = self.to.is_through();
        let (mut flushes, mut asked) = (false, false);
        match &mut work {
            Work::Write { fua, .. } => asked = std::mem::replace(fua, *fua || through),
            Work::Zero { .. } | Work::Discard { .. } => flushes = through,
            _ => {}
        }
        let bytes = match &work {
            Work::Read { length, .. } => *length as u64,
            Work::Write { from, .. } => from.len() as u64,
            _ => 0,
        };
        let number = self.next;
        self.next += 1;
        self.in_flight += 1;
        self.to.with(|ledger| ledger.begin(number, bytes, self.node.clock.now()));
        let to = To::Door { ended: self.ended.clone(), number, tag, fua: asked };
        self.to.volume.submit(work, Route { attachment: self.to.clone(), to, flushes }, blocks, None);
    }
}

impl Device for Door {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        if !self.is_open() {
            return;
        }
        // What a cache has ends at once: that must not wake whoever asks.
        self.ended.disarm();
        while self.in_flight + self.refused.len() < REQUESTS_MAX
            && let Some(request) = batch.pop_front()
        {
            self.take(request);
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        out.append(&mut self.refused);
        let refused = out.len();
        out.append(&mut lock(&self.ended.done).completions);
        self.in_flight -= out.len() - refused;
        out.len() - before
    }

    fn arm(&mut self) -> bool {
        let mut done = lock(&self.ended.done);
        if !self.refused.is_empty() || !done.completions.is_empty() {
            return false;
        }
        if std::mem::take(&mut done.woken) {
            self.ended.signal.drain();
        }
        done.armed = true;
        true
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ended.signal.as_fd())
    }

    fn due(&self) -> Option<Instant> {
        (!self.before.is_empty()).then(|| self.node.clock.now() + LOOK_AGAIN)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if self.to.with(|ledger| ledger.is_quiet()) {
            self.node.leave(&self.to);
        } else {
            // The next writer waits for what is under way.
            self.to.disconnected(self.node.clock.now());
        }
    }
}

/// Requests in flight; more wait with the caller.
const REQUESTS_MAX: usize = 1024;
/// While a writer's last requests end, whose place this one takes.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

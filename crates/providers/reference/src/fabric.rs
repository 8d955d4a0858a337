//! Everything that the reference's ports share.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use overside_memory::{Fragment, kernels};
use overside_verbs::pairs::Reports;
use overside_verbs::port::{Lending, QpIndex, RawCompletion};
use overside_verbs::registry::{Region, Registry};
use overside_verbs::watch::Signal;
use overside_verbs::{Access, Clock, Loan, Memory, Opcode, RemoteToken, Status};

use super::loans::Out;
use super::{Fault, Weather};

/// Where a message's bytes are; addresses as numbers, for the lock's sake.
#[derive(Debug)]
pub enum Bytes {
    Inline(Vec<u8>),
    List(Vec<(usize, usize)>),
    InlineAt(usize, usize),
    ListAt(usize, usize),
}

/// One SEND of a region.
#[derive(Debug)]
pub struct RegionSend {
    pub head: Vec<u8>,
    pub bytes: Bytes,
    pub immediate: Option<u32>,
}

#[derive(Debug)]
pub enum Work {
    Send(Bytes, Option<u32>),
    /// What was not delivered yet.
    Region(VecDeque<RegionSend>),
    Write(Bytes, RemoteToken, Option<u32>),
    Read(usize, RemoteToken),
    FetchAdd(RemoteToken, u64),
    CompareSwap(RemoteToken, u64, u64),
}

#[derive(Debug)]
pub struct Sent {
    pub slot: u32,
    pub work: Work,
    pub signalled: bool,
    pub lend: bool,
    pub posted: Instant,
    /// When it arrives, where the network takes time.
    pub due: Option<Instant>,
    /// The connection ends when it arrives.
    pub cut: Option<Cut>,
    /// How it ended, once it has been carried out.
    pub done: Option<Done>,
}

/// Where a connection is cut: before a request is carried out, or before that is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    Before,
    After,
}

#[derive(Clone, Copy, Debug)]
pub struct Done {
    status: Status,
    bytes: u64,
    value: u64,
    lent: bool,
}

#[derive(Debug)]
pub struct Receive {
    pub slot: u32,
    pub address: usize,
    pub len: usize,
    pub takes_loan: bool,
}

#[derive(Debug)]
pub struct PortState {
    pub domain: u64,
    pub reports: Reports,
    pub shared: VecDeque<Receive>,
    /// Reported and not taken, by their receives. Whoever drops one must not have the lock.
    pub loans: HashMap<u32, Loan>,
    pub armed: bool,
    polled: bool,
    wake: Arc<Signal>,
}

/// A name at which somebody listens.
#[derive(Debug)]
pub struct Listening {
    /// Whose name it is.
    pub owner: u64,
    /// Ends of those who came, the first first.
    pub waiting: VecDeque<usize>,
    pub wake: Arc<Signal>,
}

/// One end of a connection.
#[derive(Debug, Default)]
struct End {
    /// Whose it is, from the connecting on.
    owner: u64,
    at: Option<(usize, QpIndex)>,
    sends: VecDeque<Sent>,
    receives: VecDeque<Receive>,
    closed: bool,
    /// When its youngest request arrives.
    last_due: Option<Instant>,
    /// It vouches no more for what it has lent.
    revoked: Arc<AtomicBool>,
    /// A request found no room, and nothing was reported since.
    wants_room: bool,
    /// The last that ended silently, while none after it was reported.
    silent: Option<(u32, Opcode, Done)>,
}

#[derive(Debug)]
pub struct Fabric {
    pub fault: Option<Fault>,
    pub registry: Registry,
    pub ports: Vec<PortState>,
    pub listening: HashMap<String, Listening>,
    clock: Arc<dyn Clock>,
    /// Whose registration has ended: for the fault HoardsMemory.
    pub hoard: Vec<Region<()>>,
    /// Ends 2n and 2n + 1 are each other's peers.
    ends: Vec<End>,
    numbers: u64,
    /// By number.
    pub loans: HashMap<u64, Out>,
    pub me: Weak<Mutex<Fabric>>,
    weather: Weather,
    /// Wakes the courier: something is under way.
    pub under_way: Option<Arc<Signal>>,
}

impl Fabric {
    pub fn shared(fault: Option<Fault>, clock: Arc<dyn Clock>, weather: Weather) -> Arc<Mutex<Self>> {
        Arc::new_cyclic(|me| {
            let (registry, listening, loans) = (Registry::default(), HashMap::new(), HashMap::new());
            let (ports, hoard, ends, me) = (Vec::new(), Vec::new(), Vec::new(), me.clone());
            let (numbers, under_way) = (0, None);
            let fabric =
                Self { fault, registry, ports, listening, clock, hoard, ends, numbers, loans, me, weather, under_way };
            Mutex::new(fabric)
        })
    }

    /// Where an end is attached.
    pub fn at(&self, end: usize) -> Option<(usize, QpIndex)> {
        self.ends[end].at
    }

    /// What says that an end vouches no more for what it has lent.
    pub fn revoked(&self, end: usize) -> Arc<AtomicBool> {
        self.ends[end].revoked.clone()
    }

    fn since(&self, then: Instant) -> Duration {
        self.clock.now().saturating_duration_since(then)
    }

    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub fn port(&mut self, domain: u64, wake: Arc<Signal>) -> usize {
        let (reports, shared, loans) = (Reports::default(), VecDeque::new(), HashMap::new());
        let (armed, polled) = (false, false);
        self.ports.push(PortState { domain, reports, shared, loans, armed, polled, wake });
        self.ports.len() - 1
    }

    /// A connection of two owners; their ends.
    pub fn connection(&mut self, from: u64, to: u64) -> (usize, usize) {
        self.ends.extend([from, to].map(|owner| End { owner, ..End::default() }));
        (self.ends.len() - 2, self.ends.len() - 1)
    }

    pub fn attach(&mut self, end: usize, port: usize, qp: QpIndex) {
        self.ends[end].at = Some((port, qp));
        if self.ends[end].closed {
            // Its peer was gone before it came here.
            self.event(end, Status::PeerDied);
        }
    }

    pub fn is_open(&self, end: usize) -> bool {
        !self.ends[end].closed
    }

    pub fn wants_room(&mut self, end: usize) {
        self.ends[end].wants_room = true;
    }

    pub fn sends(&self, end: usize) -> usize {
        self.ends[end].sends.len()
    }

    pub fn push(&mut self, end: usize, mut sent: Sent) {
        if self.weather.delay_max > Duration::ZERO {
            let delay = Duration::from_nanos(self.chance() % self.weather.delay_max.as_nanos() as u64);
            let due = (sent.posted + delay).max(self.ends[end].last_due.unwrap_or(sent.posted));
            (sent.due, self.ends[end].last_due) = (Some(due), Some(due));
            if let Some(courier) = &self.under_way {
                courier.notify();
            }
        }
        let cut_one_in = self.weather.cut_one_in;
        if cut_one_in > 0 && self.chance().is_multiple_of(cut_one_in) {
            sent.cut = Some(if self.chance().is_multiple_of(2) { Cut::Before } else { Cut::After });
        }
        self.ends[end].sends.push_back(sent);
    }

    /// Chance, from the clock.
    fn chance(&self) -> u64 {
        let mut bytes = [0; 8];
        // Without entropy there is no chance, and the weather is always the same.
        let _ = self.clock.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Carries out all that has arrived; when the next request does.
    pub fn carry(&mut self) -> Option<Instant> {
        // Before they are looked at: what arrives while that goes on is looked at again.
        let now = self.clock.now();
        (0..self.ends.len()).for_each(|end| self.send(end));
        let first = |end: &End| end.sends.front().and_then(|sent| sent.due).filter(|due| *due > now);
        self.ends.iter().filter_map(first).min()
    }

    pub fn receive(&mut self, port: usize, end: Option<usize>, receive: Receive, depth: usize) -> bool {
        let queue = match end {
            Some(end) => &mut self.ends[end].receives,
            None => &mut self.ports[port].shared,
        };
        let room = queue.len() < depth;
        if room {
            queue.push_back(receive);
        }
        room
    }

    pub fn polled(&mut self, port: usize) {
        self.ports[port].polled = true;
        self.hoard.clear();
    }

    /// Carries out what can be carried out for and by the queue pairs of a port.
    pub fn progress(&mut self, port: usize) {
        for end in 0..self.ends.len() {
            if self.ends[end].at.is_some_and(|(at, _)| at == port) {
                self.send(end);
                self.send(end ^ 1);
            }
        }
        self.ports[port].polled = false;
    }

    fn send(&mut self, end: usize) {
        loop {
            let sends = &self.ends[end].sends;
            let Some(first) = sends.front() else { return };
            if first.done.is_none() && first.due.is_some_and(|due| due > self.clock.now()) {
                return;
            }
            let cut = first.cut;
            if cut == Some(Cut::Before) {
                return self.cut(end);
            }
            let mut at = 0;
            if let Some(second) = sends.get(1) {
                at = usize::from(self.overtakes(first, second));
            }
            if self.ends[end].sends[at].done.is_none() {
                match self.carry_out(end, at) {
                    Some(done) => self.ends[end].sends[at].done = Some(done),
                    None => return,
                }
            }
            if at > 0 {
                // Overtaken; it goes next, a while later.
                self.clock.sleep(Duration::from_millis(2));
                match self.carry_out(end, 0) {
                    Some(done) => self.ends[end].sends[0].done = Some(done),
                    None => return,
                }
            }
            if cut == Some(Cut::After) {
                return self.cut(end);
            }
            self.report(end);
        }
    }

    /// The way between two ends is gone, and both hear of it.
    fn cut(&mut self, end: usize) {
        self.event(end, Status::PeerDied);
        self.close(end, Status::PeerDied);
    }

    fn overtakes(&self, first: &Sent, second: &Sent) -> bool {
        if first.done.is_some() || second.done.is_some() {
            return false;
        }
        match (self.fault, &first.work, &second.work) {
            (Some(Fault::IgnoresFences), Work::Read(..), Work::Send(..)) => self.since(first.posted) < READ_LATE,
            (Some(Fault::WritesOvertake), Work::Write(_, long, None), Work::Write(_, short, None)) => {
                short.len < long.len
            }
            _ => false,
        }
    }

    /// Reports what has been carried out at the front.
    fn report(&mut self, end: usize) {
        while let Some(done) = self.ends[end].sends.front().and_then(|sent| sent.done) {
            let Some(sent) = self.ends[end].sends.pop_front() else { return };
            let waited_for = self.ends[end].wants_room && self.fault != Some(Fault::ForgetsRoom);
            if sent.signalled || done.status != Status::Success || waited_for {
                self.complete(end, sent.slot, opcode(&sent.work), done, None);
                if done.lent && self.fault == Some(Fault::ReturnsAtOnce) {
                    self.loans.retain(|_, out| (out.end, out.slot) != (end, sent.slot));
                    self.report_returned(Out { end, slot: sent.slot });
                }
                (self.ends[end].wants_room, self.ends[end].silent) = (false, None);
            } else {
                self.ends[end].silent = Some((sent.slot, opcode(&sent.work), done));
            }
            if done.status == Status::TooLong {
                self.misbehaved(end);
            }
        }
    }

    fn carry_out(&mut self, end: usize, at: usize) -> Option<Done> {
        let sent = &self.ends[end].sends[at];
        if self.fault == Some(Fault::NeedsTheTarget) && !matches!(sent.work, Work::Send(..)) {
            let target = self.ends[end ^ 1].at?.0;
            if !self.ports[target].polled {
                return None;
            }
        }
        if self.fault == Some(Fault::IgnoresFences)
            && matches!(sent.work, Work::Read(..))
            && self.since(sent.posted) < READ_LATE
        {
            return None;
        }
        match &sent.work {
            Work::Send(bytes, immediate) => {
                let (message, immediate, slot) = (self.message(bytes), *immediate, sent.slot);
                let lendable = match (sent.lend, bytes) {
                    (true, Bytes::List(list)) => Some((slot, Bytes::List(list.clone()))),
                    _ => None,
                };
                self.deliver(end, Opcode::Receive, &message, immediate, lendable)
            }
            Work::Region(_) => self.region(end, at),
            Work::Write(bytes, remote, immediate) => {
                let (message, remote, immediate) = (self.message(bytes), *remote, *immediate);
                self.write(end, &message, remote, immediate)
            }
            Work::Read(sink, remote) => Some(self.read(end, *sink, *remote)),
            Work::FetchAdd(remote, add) => Some(self.update(end, *remote, |old| old.wrapping_add(*add))),
            Work::CompareSwap(remote, compare, swap) => {
                Some(self.update(end, *remote, |old| if old == *compare { *swap } else { old }))
            }
        }
    }

    fn region(&mut self, end: usize, at: usize) -> Option<Done> {
        loop {
            let Work::Region(sends) = &self.ends[end].sends[at].work else { return None };
            let Some(next) = sends.front() else {
                return Some(Done { status: Status::Success, bytes: 0, value: 0, lent: false });
            };
            let (message, immediate) = ([next.head.clone(), self.message(&next.bytes)].concat(), next.immediate);
            let done = self.deliver(end, Opcode::Receive, &message, immediate, None)?;
            if let Work::Region(sends) = &mut self.ends[end].sends[at].work {
                sends.pop_front();
            }
            if done.status != Status::Success || self.fault == Some(Fault::RegionsOfOne) {
                return Some(done);
            }
        }
    }

    fn message(&self, bytes: &Bytes) -> Vec<u8> {
        let mut out = Vec::new();
        let mut list = match bytes {
            Bytes::Inline(bytes) => return bytes.clone(),
            Bytes::InlineAt(address, len) => vec![(*address, *len)],
            Bytes::List(list) => list.clone(),
            Bytes::ListAt(address, count) => {
                // SAFETY: [reference-in-flight] the fault KeepsPointers; the probe never frees a list.
                let list = unsafe { std::slice::from_raw_parts(*address as *const Fragment, *count) };
                list.iter().map(|f| (f.address as usize, f.len as usize)).collect()
            }
        };
        if self.fault == Some(Fault::SortsFragments) {
            list.sort_unstable();
        }
        for (address, len) in list {
            let at = out.len();
            out.resize(at + len, 0);
            // SAFETY: [reference-in-flight] the request is in flight, so its bytes are there; `out` is ours.
            unsafe { kernels::copy_racing(out[at..].as_mut_ptr(), address as *const u8, len) };
        }
        out
    }

    /// A SEND, or the second half of a WRITE with immediate: needs a receive.
    fn deliver(
        &mut self,
        end: usize,
        opcode: Opcode,
        message: &[u8],
        immediate: Option<u32>,
        lendable: Option<(u32, Bytes)>,
    ) -> Option<Done> {
        let peer = end ^ 1;
        let (port, _) = self.ends[peer].at?;
        let last = self.fault == Some(Fault::LastReceiveFirst);
        let own = &mut self.ends[peer].receives;
        let queue = if own.is_empty() { &mut self.ports[port].shared } else { own };
        let receive = if last { queue.pop_back() } else { queue.pop_front() };
        let Some(receive) = receive else {
            let fails = self.fault == Some(Fault::NeedsReceives);
            return fails.then_some(Done { status: Status::Malformed, bytes: 0, value: 0, lent: false });
        };
        let fits = message.len() <= receive.len;
        let past = self.fault == Some(Fault::WritesPastTheEnd);
        let taken = receive.takes_loan || self.fault == Some(Fault::LendsToAnyone);
        let loan = match lendable {
            Some((slot, bytes)) if fits && taken && self.fault != Some(Fault::NeverLends) => {
                self.lend(end, slot, &bytes)
            }
            _ => None,
        };
        let lent = loan.is_some();
        self.ports[port].loans.extend(loan.map(|loan| (receive.slot, loan)));
        let copies = !lent || self.fault == Some(Fault::LendsAndCopies);
        if opcode == Opcode::Receive && copies && (fits || past) {
            // SAFETY: [reference-in-flight] a posted receive is ours to write; the fault WritesPastTheEnd stays in the probe's area.
            unsafe { kernels::copy_racing(receive.address as *mut u8, message.as_ptr(), message.len()) };
        }
        let status = if fits || opcode != Opcode::Receive { Status::Success } else { Status::TooLong };
        let done = Done { status, bytes: message.len() as u64, value: 0, lent };
        self.complete(peer, receive.slot, opcode, done, immediate);
        Some(done)
    }

    fn granted(&self, end: usize, remote: RemoteToken, len: u64, access: Access) -> Option<Memory> {
        let (port, _) = self.ends[end ^ 1].at?;
        let domain = self.ports[port].domain;
        if self.fault != Some(Fault::IgnoresKeys) {
            let range = (remote.at, len);
            return self.registry.granted(domain, remote.rkey, access, range, |region| region.memory.clone());
        }
        let at = remote.at.checked_add(len)?;
        let found = self.registry.domain(domain, |(), regions| {
            let fits = |region: &&Region<()>| {
                let is_window = matches!(region.memory, Memory::Window(_));
                region.domain == domain && is_window && at <= region.memory.len() as u64
            };
            Ok(regions.values().find(fits).map(|region| region.memory.clone()))
        });
        found.ok()?
    }

    fn write(&mut self, end: usize, message: &[u8], remote: RemoteToken, immediate: Option<u32>) -> Option<Done> {
        let len = message.len() as u64;
        let Some(Memory::Window(window)) = self.granted(end, remote, len, Access::REMOTE_WRITE) else {
            return Some(REFUSED);
        };
        if self.fault == Some(Fault::LastWordFirst) && message.len() >= 8 {
            let last = ((remote.at + len) & !7).saturating_sub(8).max(remote.at);
            let _ = window.write(last, &message[(last - remote.at) as usize..][..8]);
            self.clock.sleep(Duration::from_millis(2));
        }
        let written = window.write(remote.at, message);
        debug_assert!(written.is_ok(), "the range was checked");
        match immediate {
            Some(_) => self.deliver(end, Opcode::ReceiveImmediate, message, immediate, None),
            None => Some(Done { status: Status::Success, bytes: len, value: 0, lent: false }),
        }
    }

    fn read(&self, end: usize, sink: usize, remote: RemoteToken) -> Done {
        let Some(memory) = self.granted(end, remote, remote.len, Access::REMOTE_READ) else { return REFUSED };
        let mut bytes = vec![0; remote.len as usize];
        match &memory {
            Memory::Window(window) => window.read(remote.at, &mut bytes).unwrap(),
            Memory::Segment(segment) => {
                let from = segment.base().as_ptr().wrapping_add(remote.at as usize);
                // SAFETY: [reference-in-flight] within the segment, which the region keeps.
                unsafe { kernels::copy_racing(bytes.as_mut_ptr(), from, bytes.len()) };
            }
        }
        // SAFETY: [reference-in-flight] the sink of a READ in flight is ours to write and as long as the range.
        unsafe { kernels::copy_racing(sink as *mut u8, bytes.as_ptr(), bytes.len()) };
        Done { status: Status::Success, bytes: remote.len, value: 0, lent: false }
    }

    fn update(&self, end: usize, remote: RemoteToken, new: impl Fn(u64) -> u64) -> Done {
        let Some(Memory::Window(window)) = self.granted(end, remote, 8, Access::REMOTE_ATOMIC) else {
            return REFUSED;
        };
        let Ok(word) = window.word(remote.at) else { return REFUSED };
        let value = match self.fault {
            Some(Fault::LoadsThenStores) => {
                let old = word.load(Ordering::Acquire);
                self.clock.sleep(Duration::from_micros(20));
                word.store(new(old), Ordering::Release);
                old
            }
            _ => match word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(new(old))) {
                Ok(old) | Err(old) => old,
            },
        };
        Done { status: Status::Success, bytes: 8, value, lent: false }
    }

    fn complete(&mut self, end: usize, slot: u32, opcode: Opcode, done: Done, immediate: Option<u32>) {
        let Some((port, qp)) = self.ends[end].at else { return };
        let Done { status, bytes, value, lent } = done;
        let (qp, lending) = (Some(qp), if lent { Lending::Lent } else { Lending::No });
        let report = RawCompletion { bytes, immediate, value, lending, ..RawCompletion::new(slot, qp, opcode, status) };
        self.ports[port].reports.done.push_back(report);
        let of_a_send = !matches!(opcode, Opcode::Receive | Opcode::ReceiveImmediate);
        if self.fault != Some(Fault::WakesForTheLast) || !of_a_send || self.ends[end].sends.is_empty() {
            self.wake(port);
        }
    }

    pub fn wake(&mut self, port: usize) {
        if std::mem::take(&mut self.ports[port].armed) {
            self.ports[port].wake.notify();
        }
    }

    /// The queue pair has ended by its own fault.
    fn misbehaved(&mut self, end: usize) {
        let all = self.fault == Some(Fault::ClosesAll);
        let port = self.ends[end ^ 1].at.map(|(port, _)| port);
        for other in 0..self.ends.len() {
            let same = self.ends[other].at.is_some_and(|(at, _)| Some(at) == port);
            if other == end || (all && same) {
                self.event(other, Status::TooLong);
                self.close(other, Status::Flushed);
            }
        }
    }

    fn event(&mut self, end: usize, status: Status) {
        if let Some((port, qp)) = self.ends[end].at {
            self.ports[port].reports.disconnected(qp.0, status, "the connection has ended");
            self.wake(port);
        }
    }

    /// Ends a connection at both ends; the other one hears of it.
    pub fn close(&mut self, end: usize, status: Status) {
        if std::mem::replace(&mut self.ends[end].closed, true) {
            return;
        }
        self.flush(end, Status::Flushed);
        let peer = end ^ 1;
        if !std::mem::replace(&mut self.ends[peer].closed, true) {
            self.event(peer, status);
            self.flush(peer, status);
        }
        if self.fault == Some(Fault::FlushesShared)
            && let Some((port, _)) = self.ends[end].at
        {
            self.ports[port].shared.clear();
        }
    }

    fn flush(&mut self, end: usize, status: Status) {
        let done = Done { status, bytes: 0, value: 0, lent: false };
        if let Some((slot, opcode, done)) = self.ends[end].silent.take()
            && self.ends[end].sends.is_empty()
            && self.fault != Some(Fault::LeavesSilence)
        {
            self.complete(end, slot, opcode, done, None);
        }
        for sent in std::mem::take(&mut self.ends[end].sends) {
            self.complete(end, sent.slot, opcode(&sent.work), done, None);
        }
        for receive in std::mem::take(&mut self.ends[end].receives) {
            self.complete(end, receive.slot, Opcode::Receive, done, None);
        }
        self.revoke(end);
    }

    /// The process that owns these ports is gone.
    pub fn kill(&mut self, owner: u64) {
        if self.fault == Some(Fault::MissesDeath) {
            return;
        }
        for end in 0..self.ends.len() {
            if self.ends[end].owner == owner {
                self.close(end, Status::PeerDied);
            }
        }
        let names: Vec<String> =
            self.listening.iter().filter(|(_, at)| at.owner == owner).map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| self.stop_listening(name, owner));
    }

    /// Nobody is reached at a name any more, where it is `owner`'s. Who came and was not accepted
    /// hears that it is over.
    pub fn stop_listening(&mut self, name: &str, owner: u64) {
        if self.listening.get(name).is_some_and(|listening| listening.owner == owner) {
            for end in self.listening.remove(name).into_iter().flat_map(|listening| listening.waiting) {
                self.close(end, Status::Flushed);
            }
        }
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // It ends, too.
        if let Some(courier) = &self.under_way {
            courier.notify();
        }
    }
}

fn opcode(work: &Work) -> Opcode {
    match work {
        Work::Send(..) | Work::Region(..) => Opcode::Send,
        Work::Write(..) => Opcode::Write,
        Work::Read(..) => Opcode::Read,
        Work::FetchAdd(..) => Opcode::FetchAdd,
        Work::CompareSwap(..) => Opcode::CompareSwap,
    }
}

const REFUSED: Done = Done { status: Status::RemoteAccess, bytes: 0, value: 0, lent: false };
/// How late a READ is that ignores fences.
const READ_LATE: Duration = Duration::from_millis(5);

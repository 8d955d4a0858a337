//! The data side: one completion queue of the device, with the queue pairs that report to it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_verbs::ByNumber;
use overside_verbs::pairs::{Pairs, Reports, post_each};
use overside_verbs::port::{QpIndex, RawCompletion, RawReceive, RawRequest};
use overside_verbs::watch::Watch;
use overside_verbs::{Link, Opcode, Port, PortEvent, PortOptions, ProtectionDomain, Status, VerbsError, random};

use crate::bounce::Bounce;
use crate::channel::Incoming;
use crate::completions::Completions;
use crate::ffi::{IBV_WC_SUCCESS, ibv_wc};
use crate::handshake::Wire;
use crate::messages::Mode;
use crate::objects::Domain;
use crate::pair::{Chain, OWN, Pair, Parts, SHARED, parts_of};
use crate::process::Ended;
use crate::provider::Shared;
use crate::receives::{self, Receives};
use crate::registry::{Letter, Mailbox};
use crate::segments::Segments;
use crate::status::{self, Fate};
use crate::translate::Translator;

/// A port of an RDMA device.
#[derive(Debug)]
pub(crate) struct IbvPort {
    // In the order in which they end: queue pairs, then the queues that they use, then what those are made in.
    pairs: Pairs<Pair>,
    receives: Receives,
    completions: Completions,
    bounce: Bounce,
    segments: Segments,
    hardware: Arc<Domain>,
    shared: Arc<Shared>,
    domain: u64,
    depth: usize,
    watch: Watch,
    mail: Arc<Mailbox>,
    /// Which queue pair has a serial, and which a number of the device's.
    by_serial: ByNumber<u32>,
    by_number: ByNumber<u32>,
    serial: u32,
    /// Sends accepted, ever.
    sends: u64,
    reports: Reports,
    /// Queue pairs that must end, and why.
    endings: VecDeque<(u32, Fate)>,
    chain: Chain,
    ready: Vec<u64>,
    patience: u32,
    next_look: Instant,
}

impl IbvPort {
    pub(crate) fn open(
        shared: Arc<Shared>,
        domain: &ProtectionDomain,
        options: PortOptions,
    ) -> Result<Self, VerbsError> {
        let mail = shared.registry.open_port(domain)?;
        let hardware = shared.registry.domain(domain.id(), |hardware, _| Ok(hardware.clone()))?;
        let depth = options.depth.clamp(2, shared.limits.depth_max);
        let receives = Receives::new(&hardware, options.shared_receives.min(shared.limits.shared_receives_max))?;
        let completions = Completions::new(&shared, receives.shared_max(), PAIRS_AT_FIRST * 2 * depth)?;
        let watch = Watch::new()?;
        watch.add(completions.fd(), COMPLETIONS)?;
        watch.add(shared.device.context.events(), DEVICE)?;
        watch.add(&*mail, MAIL)?;
        Ok(Self {
            pairs: Pairs::default(),
            receives,
            completions,
            bounce: Bounce::new(hardware.clone()),
            segments: Segments::default(),
            hardware,
            domain: domain.id(),
            depth,
            watch,
            mail,
            by_serial: ByNumber::default(),
            by_number: ByNumber::default(),
            serial: 0,
            sends: 0,
            reports: Reports::default(),
            endings: VecDeque::new(),
            chain: Chain::default(),
            ready: Vec::new(),
            patience: 0,
            next_look: Instant::now(),
            shared,
        })
    }

    fn pair(&mut self, index: u32) -> Option<&mut Pair> {
        self.pairs.get_mut(index).filter(|pair| pair.fate.is_none())
    }

    /// Takes completions from the device, at most a batch; returns how many there were.
    fn gather(&mut self) -> usize {
        let mut batch = [NO_COMPLETION; BATCH];
        let count = self.completions.poll(&mut batch);
        batch[..count].iter().for_each(|wc| self.completed(wc));
        count
    }

    fn completed(&mut self, wc: &ibv_wc) {
        let (serial, slot, receive) = parts_of(wc.wr_id);
        if receive {
            self.received(wc, serial, slot);
            return;
        }
        let Some(index) = self.by_serial.get(&serial).copied() else { return };
        let Some(pair) = self.pairs.get_mut(index) else { return };
        let mut end = None;
        if let Some((status, fate)) = status::sent(wc.status, pair.is_message(slot)) {
            // An answer of the peer's that came after our end tells more than that end.
            end = Some(if status == Status::Flushed { pair.flushed() } else { status });
            self.endings.extend(fate.map(|fate| (index, fate)));
        }
        pair.ended(slot, end, &mut self.bounce, &mut self.reports.done);
    }

    fn received(&mut self, wc: &ibv_wc, serial: u32, slot: u32) {
        let index = if serial == 0 { self.by_number.get(&wc.qp_num) } else { self.by_serial.get(&serial) }.copied();
        let pair = index.and_then(|index| self.pairs.get_mut(index));
        let (mut qp, mut fate, mut known) = (None, None, None);
        if let Some(pair) = pair {
            (qp, fate) = (Some(pair.index), pair.fate);
            let at = pair.receives.iter().position(|(posted, _)| serial != 0 && *posted == slot);
            known = at.and_then(|at| pair.receives.remove(at)).map(|(_, segment)| segment);
        }
        if serial == 0 {
            known = self.receives.taken(slot);
        }
        // Reported before: its queue pair has ended.
        let Some(segment) = known else { return };
        self.segments.returned(segment);
        let mut report = receives::report(slot, qp, wc);
        if let Some((status, ends)) = status::received(wc.status) {
            report.status = if status == Status::Flushed { fate.unwrap_or(Fate::Closed).pending() } else { status };
            self.endings.extend(index.zip(ends));
        }
        self.reports.done.push_back(report);
    }

    /// Ends what must end.
    fn settle(&mut self) {
        while let Some((index, fate)) = self.endings.pop_front() {
            self.end(index, fate, true);
        }
        if self.segments.ending() {
            let oldest = self.pairs.iter().filter_map(|pair| pair.oldest()).min();
            self.segments.let_go(oldest.unwrap_or(self.sends));
        }
    }

    /// Ends a queue pair; everything pending on it is reported by later polls.
    fn end(&mut self, index: u32, fate: Fate, announced: bool) {
        let Some(pair) = self.pair(index) else { return };
        let refused = pair.refuses();
        pair.fate = Some(fate);
        pair.stop();
        // What had completed counts, and so do receives of the shared queue that it had taken.
        while self.gather() == BATCH {}
        let Self { pairs, watch, bounce, reports, segments, by_serial, by_number, shared, .. } = self;
        let Some(pair) = pairs.get_mut(index) else { return };
        if fate != Fate::PeerDied {
            pair.channel.send(&crate::messages::Message::Close { fate: fate.byte() });
        }
        watch.remove(&pair.channel);
        pair.process.take().inspect(|process| watch.remove(process));
        by_serial.remove(&pair.serial);
        [OWN, SHARED].iter().filter_map(|which| pair.number(*which)).for_each(|number| _ = by_number.remove(&number));
        pair.end(refused, bounce, &mut reports.done);
        for (slot, segment) in std::mem::take(&mut pair.receives) {
            segments.returned(segment);
            let flushed = RawCompletion::new(slot, Some(pair.index), Opcode::Receive, fate.pending());
            reports.done.push_back(flushed);
        }
        self.completions.returned(2 * self.depth);
        shared.party.ended(1);
        if announced {
            self.reports.disconnected(index, fate.status(), fate.reason());
        }
    }

    /// Looks at what is not the completion queue: side channels, the device's own news.
    fn look(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        // An error here is the system's; what it would have told shows at the next look.
        let _ = self.watch.wait(Duration::ZERO, |token, _| ready.push(token));
        for token in &ready {
            match *token {
                COMPLETIONS => self.completions.quiet(),
                DEVICE => self.completions.device_events(&self.shared),
                MAIL => {}
                token if token >= FIRST_DEATH => self.died((token - FIRST_DEATH) as u32),
                token => self.listen((token - FIRST_PAIR) as u32),
            }
        }
        self.ready = ready;
        self.patience = LOOK_EVERY;
        self.read_mail();
        self.settle();
    }

    /// Takes what came on a side channel; not all of it at once, so that whoever says much holds up
    /// nobody.
    fn listen(&mut self, index: u32) {
        for _ in 0..MESSAGES_AT_ONCE {
            let Some(pair) = self.pair(index) else { return };
            if pair.wants_room {
                pair.channel.flush();
            }
            let fate = match pair.channel.receive() {
                Incoming::Nothing => break,
                Incoming::Message(message) => pair.said.hear(message).err(),
                Incoming::End => Some(Fate::PeerDied),
                Incoming::Malformed => Some(Fate::Malformed("what the peer said on the side channel is garbage")),
            };
            if let Some(fate) = fate {
                self.endings.push_back((index, fate));
                break;
            }
            self.watch_process(index);
            self.rise(index);
        }
        self.launch(index);
        self.want_room(index);
    }

    /// Once the peer has said which process it is: sees to it that its end is noticed.
    fn watch_process(&mut self, index: u32) {
        let Self { pairs, watch, endings, shared, .. } = self;
        let Some(pair) = pairs.get_mut(index) else { return };
        let (Some(ours), Some(theirs)) = (&shared.process, pair.said.process.take()) else { return };
        match ours.watch(&theirs) {
            Ok(Some(process)) if watch.add(&process, FIRST_DEATH + u64::from(index)).is_ok() => {
                pair.process = Some(process);
            }
            Ok(_) => {}
            Err(Ended) => endings.push_back((index, Fate::PeerDied)),
        }
    }

    /// The peer's process has ended; what it said before comes first.
    fn died(&mut self, index: u32) {
        self.listen(index);
        self.endings.push_back((index, Fate::PeerDied));
    }

    fn want_room(&mut self, index: u32) {
        let Self { pairs, watch, .. } = self;
        let Some(pair) = pairs.get_mut(index) else { return };
        if pair.fate.is_none() && pair.channel.blocked() != pair.wants_room {
            pair.wants_room = pair.channel.blocked();
            watch.want_room(&pair.channel, FIRST_PAIR + u64::from(index), pair.wants_room);
        }
    }

    /// A step of the way up.
    fn rise(&mut self, index: u32) {
        let Some(pair) = self.pair(index) else { return };
        let lacks_second = pair.lacks_second();
        let depth = pair.depth;
        let mut risen = Ok(());
        if lacks_second {
            risen = self
                .receives
                .queue_pair(&self.hardware, &self.completions, &self.shared.limits, depth, SHARED)
                .and_then(|qp| match self.pair(index) {
                    Some(pair) => pair.second(qp),
                    None => Ok(()),
                });
            self.number(index);
        }
        let Some(pair) = self.pair(index) else { return };
        if risen.and_then(|()| pair.rise()).is_err() {
            let why = Fate::Malformed("the device did not take the peer's address");
            self.endings.push_back((index, why));
        }
    }

    /// Enters the device's numbers of a queue pair.
    fn number(&mut self, index: u32) {
        let Some(pair) = self.pairs.get(index) else { return };
        for number in [OWN, SHARED].into_iter().filter_map(|which| pair.number(which)) {
            self.by_number.insert(number, index);
        }
    }

    /// Hands to the device what may go now.
    fn launch(&mut self, index: u32) {
        let Self { pairs, chain, endings, .. } = self;
        if let Some(pair) = pairs.get_mut(index)
            && let Err(fate) = pair.launch(chain)
        {
            endings.push_back((index, fate));
        }
    }

    fn read_mail(&mut self) {
        for letter in self.mail.take() {
            match letter {
                Letter::Gone(id) => self.segments.end(id, self.sends),
                Letter::Pair(number, fate) => {
                    let Some(index) = self.by_number.get(&number).copied() else { continue };
                    // The device's own report says more, where there is one.
                    while self.gather() == BATCH {}
                    self.settle();
                    self.end(index, fate, true);
                }
                Letter::Queue(queue) if self.receives.is(queue) || self.completions.is(queue) => {
                    self.end_all(Fate::Malformed("the device has given up a queue that all connections share"), true);
                }
                Letter::Queue(_) => {}
                Letter::Device => self.end_all(Fate::Malformed("the device has failed"), true),
            }
        }
    }

    fn end_all(&mut self, fate: Fate, announced: bool) {
        self.pairs.indexes().for_each(|index| self.end(index, fate, announced));
    }

    /// One request; false when there is no room for it now.
    ///
    /// # Safety
    /// As [`Port::post`].
    unsafe fn post_one(&mut self, qp: QpIndex, raw: &RawRequest<'_>) -> Result<bool, VerbsError> {
        let Self { pairs, shared, segments, bounce, domain, sends, .. } = self;
        let pair = pairs.get_mut(qp.0).ok_or(VerbsError::Closed)?;
        if pair.fate.is_some() {
            return Err(VerbsError::Closed);
        }
        if pair.full() {
            pair.refused = true;
            return Ok(false);
        }
        let mut translator =
            Translator { limits: &shared.limits, registry: &shared.registry, segments, bounce, domain: *domain };
        // SAFETY: [ibv-posted] the caller's promise.
        let Some(request) = (unsafe { translator.translate(raw) })? else { return Ok(false) };
        // Counted from 0, so that those accepted before now are those below `sends`.
        pair.park(request, *sends);
        *sends += 1;
        Ok(true)
    }

    /// What waits for other requests to end, or for the peer.
    fn launch_parked(&mut self) {
        for index in self.pairs.indexes() {
            if self.pair(index).is_some_and(|pair| pair.parked()) {
                self.launch(index);
            }
        }
    }
}

// SAFETY: [ibv-posted] what a request names is the device's between post and completion only; each accepted slot is reported
// once, in order, and a report of success follows the device's own.
unsafe impl Port for IbvPort {
    fn attach(&mut self, qp: QpIndex, link: Link) -> Result<(), VerbsError> {
        let wire: Wire = self.shared.party.instance().opened(self.domain, link)?;
        self.completions.make_room(2 * self.depth)?;
        let shares = self.receives.shared_max() > 0;
        let limits = &self.shared.limits;
        let make = |which| self.receives.queue_pair(&self.hardware, &self.completions, limits, self.depth, which);
        let qps = [Some(make(OWN)?), if shares { Some(make(SHARED)?) } else { None }];
        let here = rustix::net::getsockname(&wire.channel).ok().and_then(|here| here.try_into().ok());
        self.serial = (self.serial + 1) & SERIALS;
        let pair = Pair::new(Parts {
            index: qp,
            serial: self.serial,
            channel: wire.channel,
            qps,
            depth: self.depth,
            psn: u32::from_le_bytes(random()?) & 0xff_ffff,
            place: self.shared.place.clone(),
            gid: self.shared.place.gid(here),
            reads: limits.reads,
            atomics: limits.atomics,
            shares,
            mode: if self.receives.any() { Mode::Shared } else { Mode::Undecided },
            process: self.shared.process,
        })?;
        self.watch.add(&pair.channel, FIRST_PAIR + u64::from(qp.0))?;
        self.by_serial.insert(pair.serial, qp.0);
        self.pairs.insert(qp, pair);
        self.number(qp.0);
        self.shared.party.opened();
        // The peer may have attached already.
        self.patience = 0;
        Ok(())
    }

    unsafe fn post(&mut self, qp: QpIndex, batch: &[RawRequest<'_>]) -> (usize, Option<VerbsError>) {
        self.read_mail();
        // What lets the first messages go may be in the side channel by now; then they need no later call of their sender.
        if self.pair(qp.0).is_some_and(|pair| pair.must_hear()) {
            self.listen(qp.0);
            self.settle();
        }
        // SAFETY: [ibv-posted] the caller's promise.
        let (accepted, error) = post_each(batch, |request| unsafe { self.post_one(qp, request) });
        self.launch(qp.0);
        (accepted, error)
    }

    unsafe fn post_receive(&mut self, qp: Option<QpIndex>, batch: &[RawReceive]) -> Result<usize, VerbsError> {
        self.read_mail();
        let Self { pairs, receives, segments, shared, domain, depth, .. } = self;
        let mut find = |receive: &RawReceive| {
            let buffer = &receive.buffer;
            // No message is longer; and of a length beyond that a device may take some bits only.
            let len = buffer.len.min(usize::try_from(shared.limits.message_max).unwrap_or(usize::MAX));
            segments.find((buffer.segment, buffer.address.cast_const(), len), &shared.registry, *domain)
        };
        let Some(qp) = qp else {
            let posted = receives.post_shared(batch, &mut find)?;
            for slot in &batch[..posted] {
                self.segments.posted(self.receives.segment(slot.slot));
            }
            if posted > 0 {
                self.pairs.iter_mut().filter(|p| p.mode == Mode::Undecided).for_each(|p| p.decide(Mode::Shared));
            }
            return Ok(posted);
        };
        let pair = pairs.get_mut(qp.0).filter(|p| p.fate.is_none());
        let pair = pair.ok_or(VerbsError::Closed)?;
        let room = depth.saturating_sub(pair.receives.len()).min(batch.len());
        let posted = receives.post_own(pair, &batch[..room], &mut find)?;
        let from = pair.receives.len() - posted;
        pair.receives.range(from..).for_each(|(_, segment)| self.segments.posted(*segment));
        if posted > 0 {
            pair.decide(Mode::Own);
        }
        Ok(posted)
    }

    fn poll(&mut self, out: &mut [RawCompletion]) -> usize {
        self.read_mail();
        let mut found = 0;
        if self.reports.done.len() < out.len() {
            found = self.gather();
            self.settle();
        }
        if found > 0 {
            self.launch_parked();
            self.settle();
        }
        if self.patience == 0 {
            self.look();
        }
        self.patience -= 1;
        if found == 0 && self.reports.done.is_empty() {
            let now = Instant::now();
            if now >= self.next_look {
                self.look();
                self.next_look = now + LOOK_IDLE;
            }
        }
        self.settle();
        self.reports.take(out)
    }

    fn next_event(&mut self) -> Option<PortEvent> {
        self.reports.events.pop_front()
    }

    fn arm(&mut self) -> Result<bool, VerbsError> {
        self.look();
        if !self.reports.is_empty() {
            return Ok(false);
        }
        self.completions.arm()?;
        if self.gather() > 0 {
            self.settle();
            self.launch_parked();
            self.settle();
            return Ok(false);
        }
        self.pairs.indexes().for_each(|index| self.want_room(index));
        Ok(true)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    fn close(&mut self, qp: QpIndex) {
        self.end(qp.0, Fate::Closed, false);
        self.pairs.remove(qp.0);
        self.settle();
        self.reports.closed(qp);
    }
}

impl Drop for IbvPort {
    /// Peers learn of it; the device's objects end in the order of the fields.
    fn drop(&mut self) {
        self.end_all(Fate::Closed, false);
    }
}

const NO_COMPLETION: ibv_wc = ibv_wc {
    wr_id: 0,
    status: IBV_WC_SUCCESS,
    opcode: 0,
    vendor_err: 0,
    byte_len: 0,
    imm_data: 0,
    qp_num: 0,
    src_qp: 0,
    wc_flags: 0,
    pkey_index: 0,
    slid: 0,
    sl: 0,
    dlid_path_bits: 0,
};
/// Completions taken at once.
const BATCH: usize = 32;
/// Queue pairs that the completion queue has room for before it must grow.
const PAIRS_AT_FIRST: usize = 4;
/// Serials have 31 bits.
const SERIALS: u32 = (1 << 31) - 1;
/// Busy polls between two looks at what is not the completion queue.
const LOOK_EVERY: u32 = 128;
/// Idle polling looks there this often.
const LOOK_IDLE: Duration = Duration::from_micros(20);
/// Messages taken from a side channel in one look: more than anybody has to say.
const MESSAGES_AT_ONCE: usize = 16;
/// Tokens of what is watched; queue pairs count up from the last.
const COMPLETIONS: u64 = 0;
const DEVICE: u64 = 1;
const MAIL: u64 = 2;
const FIRST_PAIR: u64 = 3;
/// From there on the ends of their peers' processes.
const FIRST_DEATH: u64 = 1 << 40;

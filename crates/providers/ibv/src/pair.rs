//! A connection: its side channel, its one or two queue pairs of the device, and what was posted to
//! them.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::OwnedFd;

use overside_verbs::port::{QpIndex, RawCompletion};
use overside_verbs::{Opcode, Status, VerbsError};

use crate::bounce::{Block, Bounce};
use crate::channel::SideChannel;
use crate::ffi::{
    IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_QP_ACCESS_FLAGS, IBV_QP_AV,
    IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU,
    IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE,
    IBV_QP_TIMEOUT, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_SEND_INLINE, IBV_SEND_SIGNALED,
    ibv_qp_attr, ibv_send_wr, ibv_sge,
};
use crate::limits::PortAddress;
use crate::messages::{Attach, Message, Mode};
use crate::objects::{Qp, refused};
use crate::process::Process;
use crate::said::{OUT_OF_TURN, Said};
use crate::status::Fate;
use crate::translate::Request;

/// Which of the two queue pairs: with receives of its own, or on the shared queue.
pub(crate) const OWN: usize = 0;
pub(crate) const SHARED: usize = 1;

/// A queue pair of the port.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) index: QpIndex,
    /// Never used again: tells late completions of an earlier queue pair of this index.
    pub(crate) serial: u32,
    pub(crate) channel: SideChannel,
    pub(crate) qps: [Option<Qp>; 2],
    pub(crate) depth: usize,
    psn: u32,
    place: PortAddress,
    gid: (u8, [u8; 16]),
    reads: [u8; 2],
    atomics: bool,
    /// Whether this end may ever take from the shared queue.
    shares: bool,
    /// What the peer has said.
    pub(crate) said: Said,
    up: [bool; 2],
    told_ready: bool,
    /// From where this end takes receives.
    pub(crate) mode: Mode,
    /// The queue pair in use for sends.
    route: usize,
    /// What was accepted and has not completed, in order; the first `posted` are with the device.
    sends: VecDeque<Sent>,
    posted: usize,
    parked: VecDeque<Request>,
    /// Requests since the last one that the device reports.
    quiet: usize,
    /// Receives of its own: slot and segment.
    pub(crate) receives: VecDeque<(u32, u32)>,
    pub(crate) fate: Option<Fate>,
    pub(crate) wants_room: bool,
    /// A request found no room, and nothing was reported since.
    pub(crate) refused: bool,
    /// The last send that succeeded silently, while none after it was reported.
    silent: Option<RawCompletion>,
    /// Readable when the peer's process has ended, where it is one of this host.
    pub(crate) process: Option<OwnedFd>,
}

/// A request that was accepted.
#[derive(Debug)]
struct Sent {
    slot: u32,
    opcode: Opcode,
    bytes: u64,
    signalled: bool,
    /// Its number among all sends of the port.
    number: u64,
    block: Option<Block>,
}

/// What a connection is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) index: QpIndex,
    pub(crate) serial: u32,
    pub(crate) channel: SideChannel,
    pub(crate) qps: [Option<Qp>; 2],
    pub(crate) depth: usize,
    pub(crate) psn: u32,
    pub(crate) place: PortAddress,
    pub(crate) gid: (u8, [u8; 16]),
    pub(crate) reads: [u8; 2],
    pub(crate) atomics: bool,
    pub(crate) shares: bool,
    pub(crate) mode: Mode,
    pub(crate) process: Option<Process>,
}

/// Lists that a chain of requests is built in.
#[derive(Default)]
pub(crate) struct Chain {
    requests: Vec<Request>,
    sges: Vec<ibv_sge>,
    wrs: Vec<ibv_send_wr>,
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain").field("requests", &self.requests.len()).finish_non_exhaustive()
    }
}

impl Pair {
    /// Takes its queue pairs into use and tells the peer how to reach them.
    pub(crate) fn new(parts: Parts) -> Result<Self, VerbsError> {
        let mut pair = Self {
            index: parts.index,
            serial: parts.serial,
            channel: parts.channel,
            qps: parts.qps,
            depth: parts.depth,
            psn: parts.psn,
            place: parts.place,
            gid: parts.gid,
            reads: parts.reads,
            atomics: parts.atomics,
            shares: parts.shares,
            said: Said::nothing(),
            up: [false; 2],
            told_ready: false,
            mode: parts.mode,
            route: OWN,
            sends: VecDeque::new(),
            posted: 0,
            parked: VecDeque::new(),
            quiet: 0,
            receives: VecDeque::new(),
            fate: None,
            wants_room: false,
            refused: false,
            silent: None,
            process: None,
        };
        pair.qps.iter().flatten().try_for_each(|qp| pair.initialise(qp))?;
        let numbers = [OWN, SHARED].map(|which| pair.number(which).unwrap_or(0));
        pair.channel.send(&Message::Attach(Attach {
            numbers,
            psn: pair.psn,
            gid: pair.gid.1,
            lid: pair.place.lid,
            mtu: pair.place.mtu,
            reads: pair.reads[1],
            shares: pair.shares,
            mode: pair.mode,
            process: parts.process,
        }));
        Ok(pair)
    }

    /// The device's number of a queue pair.
    pub(crate) fn number(&self, which: usize) -> Option<u32> {
        // SAFETY: [ibv-object] the queue pair lives.
        self.qps[which].as_ref().map(|qp| unsafe { (*qp.raw.as_ptr()).qp_num })
    }

    /// Whether the second queue pair is still to be made: the peer shares, and we did not know.
    pub(crate) fn lacks_second(&self) -> bool {
        self.qps[SHARED].is_none() && self.said.shares()
    }

    /// Takes the second queue pair, made late.
    pub(crate) fn second(&mut self, qp: Qp) -> Result<(), VerbsError> {
        self.initialise(&qp)?;
        self.qps[SHARED] = Some(qp);
        if let Some(number) = self.number(SHARED) {
            self.channel.send(&Message::Second { number });
        }
        Ok(())
    }

    /// Takes up whatever can be taken up by now, and tells the peer when all is.
    pub(crate) fn rise(&mut self) -> Result<(), VerbsError> {
        let Some(peer) = self.said.attach else { return Ok(()) };
        for which in [OWN, SHARED] {
            if let Some(qp) = &self.qps[which]
                && !self.up[which]
                && peer.numbers[which] != 0
            {
                self.connect(qp, &peer, which)?;
                self.up[which] = true;
            }
        }
        let needed = [true, self.shares || peer.shares];
        if !self.told_ready && (0..2).all(|which| self.up[which] || !needed[which]) {
            self.told_ready = true;
            self.channel.send(&Message::Ready);
        }
        Ok(())
    }

    /// Whether both ends take what comes.
    pub(crate) fn connected(&self) -> bool {
        self.told_ready && self.said.ready
    }

    /// Whether messages that are posted now would wait for a word of the peer's.
    pub(crate) fn must_hear(&self) -> bool {
        !self.connected() || self.said.mode == Mode::Undecided
    }

    /// From now on, receives come from there.
    pub(crate) fn decide(&mut self, mode: Mode) {
        if self.mode != mode {
            self.mode = mode;
            self.channel.send(&Message::Mode(mode));
        }
    }

    pub(crate) fn full(&self) -> bool {
        self.sends.len() >= self.depth
    }

    /// Accepts a request as number `number` of the port's.
    pub(crate) fn park(&mut self, mut request: Request, number: u64) {
        let block = request.block.take();
        self.sends.push_back(Sent {
            slot: request.slot,
            opcode: request.opcode,
            bytes: request.bytes,
            signalled: request.signalled,
            number,
            block,
        });
        self.parked.push_back(request);
    }

    /// Whether something accepted is not yet with the device.
    pub(crate) fn parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// Whether the next request is one that no key allows, and its turn has come.
    pub(crate) fn refuses(&self) -> bool {
        self.posted == 0 && self.parked.front().is_some_and(|next| next.refused)
    }

    /// The number of the oldest send in flight.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.sends.front().map(|sent| sent.number)
    }

    /// Hands to the device, as one chain, whatever may go now. An error ends the queue pair.
    pub(crate) fn launch(&mut self, chain: &mut Chain) -> Result<(), Fate> {
        if !self.connected() || self.fate.is_some() {
            return Ok(());
        }
        chain.requests.clear();
        while let Some(next) = self.parked.front() {
            let busy = self.posted + chain.requests.len();
            if next.refused {
                // In its turn, as the device would have done it.
                return if busy == 0 { Err(Fate::RemoteAccess) } else { self.post(chain) };
            }
            let route = match self.said.mode {
                Mode::Undecided if next.meets_receive => break,
                Mode::Undecided => self.route,
                Mode::Own => OWN,
                Mode::Shared => SHARED,
            };
            if route != self.route {
                if busy > 0 {
                    break;
                }
                self.route = route;
            }
            chain.requests.extend(self.parked.pop_front());
        }
        self.post(chain)
    }

    fn post(&mut self, chain: &mut Chain) -> Result<(), Fate> {
        let Some(qp) = &self.qps[self.route] else { return Err(OUT_OF_TURN) };
        if chain.requests.is_empty() {
            return Ok(());
        }
        chain.sges.clear();
        chain.wrs.clear();
        // A peer that has a shared queue may change to where its receives are at any time, and the other queue pair is used once this
        // one's last request is known to have ended.
        let may_change = self.said.shares();
        let last = chain.requests.len() - 1;
        for (i, request) in chain.requests.iter().enumerate() {
            self.quiet += 1;
            let mut flags = request.flags;
            if request.signalled || self.quiet >= self.depth / 2 || (may_change && i == last) {
                flags |= IBV_SEND_SIGNALED;
                self.quiet = 0;
            }
            let (sg_list, num_sge) = if flags & IBV_SEND_INLINE != 0 && !request.inline.is_empty() {
                let (addr, length) = (request.inline.as_ptr() as u64, request.inline.len() as u32);
                chain.sges.push(ibv_sge { addr, length, lkey: 0 });
                (chain.sges.len() - 1, 1)
            } else {
                chain.sges.extend_from_slice(&request.sges);
                (chain.sges.len() - request.sges.len(), request.sges.len())
            };
            chain.wrs.push(ibv_send_wr {
                wr_id: send_id(self.serial, request.slot),
                next: std::ptr::null_mut(),
                // Where the list begins; an address once the lists do not grow any more.
                sg_list: std::ptr::without_provenance_mut(sg_list),
                num_sge: num_sge as c_int,
                opcode: request.work,
                send_flags: flags,
                imm_data: request.immediate,
                wr: request.remote,
                qp_type: 0,
                bind_mw: [0; 6],
            });
        }
        chain.link();
        // SAFETY: [ibv-object] [ibv-posted] the queue pair lives; lists and inline bytes are read during the call only, and what
        // the entries name belongs to the device until the completion.
        let failed = unsafe {
            let mut bad = std::ptr::null_mut();
            let post_send = (*(*qp.raw.as_ptr()).context).ops.post_send;
            post_send.map_or(-1, |post| post(qp.raw.as_ptr(), chain.wrs.as_mut_ptr(), &mut bad))
        };
        self.posted += chain.requests.len();
        chain.requests.clear();
        // What of the chain was taken does not matter: the queue pair ends, and everything with it.
        if failed == 0 { Ok(()) } else { Err(Fate::Malformed("the device did not take a request")) }
    }

    /// A send ended as the device says. Appends what is to be reported; earlier unsignalled ones
    /// have ended well.
    pub(crate) fn ended(
        &mut self,
        slot: u32,
        end: Option<Status>,
        bounce: &mut Bounce,
        out: &mut VecDeque<RawCompletion>,
    ) {
        if !self.sends.iter().take(self.posted).any(|sent| sent.slot == slot) {
            return;
        }
        while let Some(mut sent) = self.sends.pop_front() {
            self.posted -= 1;
            let block = sent.block.take();
            let value = block.as_ref().map_or(0, |block| if is_atomic(sent.opcode) { block.word() } else { 0 });
            block.into_iter().for_each(|block| bounce.give_back(block));
            if sent.slot == slot {
                let status = end.unwrap_or(Status::Success);
                let value = if status == Status::Success { value } else { 0 };
                self.tell(sent.report(self.index, status, value), sent.signalled || end.is_some(), out);
                return;
            }
            // If its own report is missing: it cannot have failed.
            self.tell(sent.report(self.index, Status::Success, value), sent.signalled, out);
        }
    }

    /// Reports an end, or keeps in mind that it was silent; then somebody may wait for the room.
    fn tell(&mut self, report: RawCompletion, aloud: bool, out: &mut VecDeque<RawCompletion>) {
        if aloud || self.refused {
            out.push_back(report);
            (self.silent, self.refused) = (None, false);
        } else {
            self.silent = Some(report);
        }
    }

    /// Whether a send that the device has is a SEND, which can only fail at the receive that it
    /// meets.
    pub(crate) fn is_message(&self, slot: u32) -> bool {
        self.sends.iter().take(self.posted).any(|sent| sent.slot == slot && sent.opcode == Opcode::Send)
    }

    /// How a request ends that the device, or nobody, has begun.
    pub(crate) fn flushed(&mut self) -> Status {
        let fate = self.fate.unwrap_or(Fate::Closed);
        let oldest = self.sends.front().filter(|_| self.posted > 0).map(|sent| sent.opcode);
        // The peer's device told ours why it refused, but the peer itself may have been faster.
        match (self.said.blame.take(), oldest) {
            (Some(Fate::TooLong), Some(Opcode::Send)) => Status::TooLong,
            (Some(Fate::RemoteAccess), Some(opcode)) if opcode != Opcode::Send => Status::RemoteAccess,
            _ => fate.pending(),
        }
    }

    /// Nothing that the device still has is begun; what it has begun, it ends soon.
    pub(crate) fn stop(&mut self) {
        for qp in self.qps.iter().flatten() {
            let attributes = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..blank() };
            // An error means that it is in that state, or the device is gone.
            let _ = modify(qp, attributes, IBV_QP_STATE);
        }
    }

    /// Ends its queue pairs, and with them all that was pending. `refused`: the first request is
    /// one that no key allows.
    pub(crate) fn end(&mut self, refused: bool, bounce: &mut Bounce, out: &mut VecDeque<RawCompletion>) {
        // The device touches no memory for it any more.
        self.qps = [None, None];
        let mut first = refused.then_some(Status::RemoteAccess);
        while !self.sends.is_empty() {
            let status = first.take().unwrap_or_else(|| self.flushed());
            let Some(mut sent) = self.sends.pop_front() else { return };
            self.posted = self.posted.saturating_sub(1);
            sent.block.take().into_iter().for_each(|block| bounce.give_back(block));
            out.push_back(sent.report(self.index, status, 0));
            self.silent = None;
        }
        // Nothing after it will tell that it has ended.
        out.extend(self.silent.take());
        self.parked.clear();
    }

    fn initialise(&self, qp: &Qp) -> Result<(), VerbsError> {
        // A device without them may refuse a queue pair that grants them.
        let atomics = if self.atomics { IBV_ACCESS_REMOTE_ATOMIC } else { 0 };
        let attributes = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: self.place.port,
            qp_access_flags: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | atomics,
            ..blank()
        };
        modify(qp, attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
    }

    fn connect(&self, qp: &Qp, peer: &Attach, which: usize) -> Result<(), VerbsError> {
        let other = Other { mtu: peer.mtu, number: peer.numbers[which], psn: peer.psn, lid: peer.lid, gid: &peer.gid };
        let reads = [self.reads[0].min(peer.reads), self.reads[1]];
        connect(qp, &self.place, self.gid.0, self.psn, reads, &other)
    }
}

/// What a queue pair has to know of its peer's.
pub(crate) struct Other<'a> {
    pub(crate) mtu: u8,
    pub(crate) number: u32,
    pub(crate) psn: u32,
    pub(crate) lid: u16,
    pub(crate) gid: &'a [u8; 16],
}

/// An initialised queue pair takes the peer's requests, and may make its own. `reads`: how many of
/// them may be under way, and how many of the peer's.
pub(crate) fn connect(
    qp: &Qp,
    place: &PortAddress,
    gid_index: u8,
    psn: u32,
    reads: [u8; 2],
    peer: &Other<'_>,
) -> Result<(), VerbsError> {
    let mut to = ibv_qp_attr {
        qp_state: IBV_QPS_RTR,
        path_mtu: u32::from(place.mtu.min(peer.mtu)),
        dest_qp_num: peer.number,
        rq_psn: peer.psn,
        max_dest_rd_atomic: reads[1],
        min_rnr_timer: RNR_TIMER,
        ..blank()
    };
    to.ah_attr.port_num = place.port;
    to.ah_attr.dlid = peer.lid;
    // Without an address in an InfiniBand subnet, only the global one is left.
    to.ah_attr.is_global = u8::from(peer.lid == 0);
    to.ah_attr.grh.dgid = [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|i| peer.gid[at + i])));
    to.ah_attr.grh.sgid_index = gid_index;
    to.ah_attr.grh.hop_limit = HOP_LIMIT;
    let receive = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    modify(qp, to, IBV_QP_STATE | receive | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)?;
    let ready = ibv_qp_attr {
        qp_state: IBV_QPS_RTS,
        sq_psn: psn,
        timeout: TIMEOUT,
        retry_cnt: RETRIES,
        rnr_retry: FOR_EVER,
        max_rd_atomic: reads[0],
        ..blank()
    };
    let send = IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
    modify(qp, ready, IBV_QP_STATE | send | IBV_QP_MAX_QP_RD_ATOMIC)
}

impl Sent {
    fn report(&self, index: QpIndex, status: Status, value: u64) -> RawCompletion {
        let report = RawCompletion::new(self.slot, Some(index), self.opcode, status);
        RawCompletion { bytes: self.bytes, value, ..report }
    }
}

impl Chain {
    /// Turns places in the lists into addresses, each request to the next.
    fn link(&mut self) {
        let (sges, wrs, count) = (self.sges.as_mut_ptr(), self.wrs.as_mut_ptr(), self.wrs.len());
        for (i, wr) in self.wrs.iter_mut().enumerate() {
            wr.sg_list = sges.wrapping_add(wr.sg_list.addr());
            if i + 1 < count {
                wr.next = wrs.wrapping_add(i + 1);
            }
        }
    }
}

// SAFETY: [ibv-posted] the lists' addresses are used within one call only.
unsafe impl Send for Chain {}

fn is_atomic(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::FetchAdd | Opcode::CompareSwap)
}

pub(crate) fn blank() -> ibv_qp_attr {
    // SAFETY: [ibv-plain] zeros are a value of it.
    unsafe { std::mem::zeroed() }
}

pub(crate) fn modify(qp: &Qp, mut attributes: ibv_qp_attr, mask: u32) -> Result<(), VerbsError> {
    let library = qp.domain.context.library;
    // SAFETY: [ibv-object] the queue pair lives; the structure has the library's size.
    let failed = unsafe { (library.ibv_modify_qp)(qp.raw.as_ptr(), &mut attributes, mask as c_int) };
    if failed == 0 { Ok(()) } else { Err(refused("ibv_modify_qp", failed)) }
}

/// A send's number for the device: which connection's, and its slot.
pub(crate) fn send_id(serial: u32, slot: u32) -> u64 {
    u64::from(serial) << 33 | u64::from(slot)
}

/// A receive's: serial 0 for one of the shared queue.
pub(crate) fn receive_id(serial: u32, slot: u32) -> u64 {
    send_id(serial, slot) | RECEIVE
}

/// Serial, slot, and whether it is a receive.
pub(crate) fn parts_of(id: u64) -> (u32, u32, bool) {
    ((id >> 33) as u32, id as u32, id & RECEIVE != 0)
}

const RECEIVE: u64 = 1 << 32;
/// A peer without a receive asks for 0.32 ms of patience.
const RNR_TIMER: u8 = 10;
/// A packet is sent again after 0.27 s, seven times.
const TIMEOUT: u8 = 16;
const RETRIES: u8 = 7;
const FOR_EVER: u8 = 7;
const HOP_LIMIT: u8 = 64;

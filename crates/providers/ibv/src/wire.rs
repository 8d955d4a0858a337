//! One queue pair that writes and reads a peer's memory, and nothing else: for who brings
//! connection, memory and framing.
//!
//! Beside the provider: no side channel, no receives, no descriptor to wait on, nothing on the heap
//! once it is made. Memory is named by offsets. What the peer's [`Card`] says is used as it is; who
//! brings it must know that it is the peer's.

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use core::net::SocketAddr;
use overside_verbs::{VerbsError, random};

use crate::device::{Opened, open};
use crate::ffi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_QP_ACCESS_FLAGS, IBV_QP_PKEY_INDEX,
    IBV_QP_PORT, IBV_QP_STATE, IBV_QPS_INIT, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WC_SUCCESS, IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE, ibv_cq, ibv_mr, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_send_wr, ibv_sge, ibv_wc,
    ibv_wr_remote,
};
use crate::limits::{Limits, PortAddress};
use crate::objects::{Context, Domain, Qp, made};
use crate::pair::{self, Other, blank, modify};
use crate::translate::leading;

/// An opened device. Only the process that opened it may use it, or what was made of it.
#[derive(Debug)]
pub struct Nic {
    domain: Arc<Domain>,
    limits: Limits,
    place: PortAddress,
}

/// What a peer must know to reach a [`Wire`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Card {
    number: u32,
    psn: u32,
    gid: [u8; 16],
    lid: u16,
    mtu: u8,
    reads: u8,
    /// Whether the last bytes of a WRITE into this end become visible after all its others: a
    /// device knows it of what arrives.
    in_order: bool,
    /// Of the memory that it may write, and that it may read.
    keys: [u32; 2],
}

/// The queue pair takes no more requests, or the peer is out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Down;

/// A reliable connection to one peer.
#[derive(Debug)]
pub struct Wire {
    // Before the rest: from its end on the device touches no memory for it.
    qp: Qp,
    queue: Queue,
    regions: [Region; 2],
    /// Where the outgoing memory begins, for bytes that ride in a request.
    outgoing: NonNull<u8>,
    card: Card,
    gid_index: u8,
    place: PortAddress,
    own_reads: [u8; 2],
    peer: Card,
    depth: usize,
    inline_max: usize,
    in_flight: usize,
}

/// A completion queue that tells nobody.
#[derive(Debug)]
struct Queue {
    raw: NonNull<ibv_cq>,
    context: Arc<Context>,
}

/// Registered memory of whoever made the wire. Its addresses for the device are offsets.
#[derive(Debug)]
struct Region {
    raw: NonNull<ibv_mr>,
    len: usize,
    domain: Arc<Domain>,
}

// SAFETY: [ibv-object] the library's functions may be called from any thread; it is ended once.
unsafe impl Send for Queue {}
// SAFETY: [ibv-object] as above.
unsafe impl Send for Region {}
// SAFETY: [ibv-wire] the memory is its maker's, who keeps it as long as this.
unsafe impl Send for Wire {}

impl Nic {
    /// Opens the device of this name.
    ///
    /// # Errors
    /// When it is not there or cannot be used; the text says what to do.
    pub fn open(name: &str) -> Result<Self, VerbsError> {
        let device: Opened = open(Some(name))?;
        let limits = Limits::of(&device, DEPTH)?;
        let place = PortAddress::of(&device);
        Ok(Self { domain: Arc::new(Domain::new(&device.context)?), limits, place })
    }

    /// Moves the device's two descriptors to where `aside` makes copies of them. Nothing happens
    /// when it cannot, or when something was made of the device already: other threads may be using
    /// the descriptors.
    ///
    /// # Safety
    /// What `aside` gives are duplicates of what it is given, in that order: the library believes
    /// what it reads there.
    pub unsafe fn move_descriptors(&mut self, aside: impl FnOnce([BorrowedFd<'_>; 2]) -> Option<[OwnedFd; 2]>) {
        let Some(context) = Arc::get_mut(&mut self.domain).and_then(|domain| Arc::get_mut(&mut domain.context)) else {
            return;
        };
        let raw = context.raw.as_ptr();
        // SAFETY: [ibv-object] the context lives, and is this one's alone.
        let old = unsafe { [(*raw).cmd_fd, (*raw).async_fd] };
        // SAFETY: [ibv-object] the context keeps both open.
        let Some(new) = aside(old.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })) else { return };
        let [commands, events] = new.map(IntoRawFd::into_raw_fd);
        // SAFETY: [ibv-object] the library looks there at each call, and closes what stands there in the end; the old ones are closed here.
        unsafe {
            (*raw).cmd_fd = commands;
            (*raw).async_fd = events;
            for fd in old {
                drop(OwnedFd::from_raw_fd(fd));
            }
        }
    }
}

impl Wire {
    /// A queue pair for two memories: `incoming`, which the peer may write, and `outgoing`, which
    /// it may read and from which this side writes. `here` is this end's address of the connection,
    /// by which the device's is chosen.
    ///
    /// # Errors
    /// When the device has no room; locked memory may be limited (`ulimit -l`).
    ///
    /// # Safety
    /// Both are mapped until this is dropped, and nobody takes references into them.
    pub unsafe fn new(
        nic: &Nic,
        incoming: (NonNull<u8>, usize),
        outgoing: (NonNull<u8>, usize),
        here: Option<SocketAddr>,
    ) -> Result<Self, VerbsError> {
        let context = &nic.domain.context;
        let access =
            [IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ];
        // SAFETY: [ibv-wire] the caller's promise.
        let regions =
            unsafe { [register(&nic.domain, incoming, access[0])?, register(&nic.domain, outgoing, access[1])?] };
        let depth = nic.limits.depth_max.min(DEPTH);
        // SAFETY: [ibv-object] the context lives as long as the queue, which keeps it.
        let raw = unsafe {
            let (none, nobody) = (std::ptr::null_mut(), std::ptr::null_mut());
            (context.library.ibv_create_cq)(context.raw.as_ptr(), depth as c_int * 2, none, nobody, 0)
        };
        let queue = Queue { raw: made("ibv_create_cq", raw)?, context: context.clone() };
        let (qp, inline_max) = queue_pair(nic, &queue, depth)?;
        let (gid_index, gid) = nic.place.gid(here);
        let [psn] = random::<4>().map(|bytes| [u32::from_le_bytes(bytes) & PSN_MAX])?;
        // SAFETY: [ibv-object] just made.
        let number = unsafe { (*qp.raw.as_ptr()).qp_num };
        let keys = [regions[0].rkey(), regions[1].rkey()];
        let (lid, mtu, reads) = (nic.place.lid, nic.place.mtu, nic.limits.reads[1]);
        let card = Card { number, psn, gid, lid, mtu, reads, in_order: nic.limits.in_order, keys };
        Ok(Self {
            qp,
            queue,
            regions,
            outgoing: outgoing.0,
            card,
            gid_index,
            place: nic.place.clone(),
            own_reads: nic.limits.reads,
            peer: Card::default(),
            depth,
            inline_max,
            in_flight: 0,
        })
    }

    /// What the peer must know of this end.
    pub fn card(&self) -> Card {
        self.card
    }

    /// Whether the last bytes of a write become visible at the peer after all its others.
    pub fn last_byte_last(&self) -> bool {
        self.peer.in_order
    }

    /// Whether a fork has brought this here: then it is the parent's, and nothing of it may be
    /// used.
    pub fn is_inherited(&self) -> bool {
        self.queue.context.fork.inherited()
    }

    /// Takes the peer's requests from here on, and may make requests once the peer takes them.
    ///
    /// # Errors
    /// When the device refuses what the card says.
    pub fn connect(&mut self, peer: &Card) -> Result<(), VerbsError> {
        let first = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: self.place.port,
            qp_access_flags: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
            ..blank()
        };
        modify(&self.qp, first, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)?;
        let other = Other { mtu: peer.mtu, number: peer.number, psn: peer.psn, lid: peer.lid, gid: &peer.gid };
        let reads = [self.own_reads[0].min(peer.reads).max(1), self.own_reads[1]];
        pair::connect(&self.qp, &self.place, self.gid_index, self.card.psn, reads, &other)?;
        self.peer = *peer;
        Ok(())
    }

    /// Whether one more request finds room.
    pub fn has_room(&self) -> bool {
        self.in_flight < self.depth
    }

    /// Begins to copy `len` bytes from `from` in our outgoing memory to `to` in the peer's incoming
    /// one. Small ones ride in the request (rdma-sockets RS-M18). The bytes must stay until the
    /// peer has them.
    ///
    /// # Errors
    /// [`Down`], also when they do not lie there or there is no room.
    pub fn write(&mut self, from: usize, to: usize, len: usize) -> Result<(), Down> {
        let inline = if len <= self.inline_max { IBV_SEND_INLINE } else { 0 };
        self.post(IBV_WR_RDMA_WRITE, inline, (from, to, len), self.peer.keys[0])
    }

    /// Begins to copy `len` bytes from `from` in the peer's outgoing memory to `to` in ours. It is
    /// done at the peer after all writes that were begun before.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn read(&mut self, from: usize, to: usize, len: usize) -> Result<(), Down> {
        self.post(IBV_WR_RDMA_READ, 0, (to, from, len), self.peer.keys[1])
    }

    /// Takes note of what has ended. Returns how many requests are on their way.
    ///
    /// # Errors
    /// [`Down`] when one has failed: none will end well any more.
    pub fn reap(&mut self) -> Result<usize, Down> {
        if self.in_flight == 0 {
            return Ok(0);
        }
        // SAFETY: [ibv-plain] zeros are values of it.
        let mut done: [ibv_wc; 8] = unsafe { std::mem::zeroed() };
        let cq = self.queue.raw.as_ptr();
        // SAFETY: [ibv-object] the queue lives, and there are that many places.
        let count =
            unsafe { (*(*cq).context).ops.poll_cq.map_or(-1, |poll| poll(cq, done.len() as c_int, done.as_mut_ptr())) };
        let ended = done.get(..usize::try_from(count).map_err(|_| Down)?).ok_or(Down)?;
        self.in_flight = self.in_flight.saturating_sub(ended.len());
        if ended.iter().all(|end| end.status == IBV_WC_SUCCESS) { Ok(self.in_flight) } else { Err(Down) }
    }

    fn post(&mut self, opcode: u32, flags: u32, (near, far, len): (usize, usize, usize), key: u32) -> Result<(), Down> {
        let fits = near.checked_add(len).is_some_and(|end| end <= self.regions[1].len);
        if !fits || !self.has_room() {
            return Err(Down);
        }
        let addr = if flags & IBV_SEND_INLINE != 0 { self.outgoing.as_ptr() as u64 + near as u64 } else { near as u64 };
        let mut sge = ibv_sge { addr, length: len as u32, lkey: self.regions[1].lkey() };
        let mut request = ibv_send_wr {
            wr_id: 0,
            next: std::ptr::null_mut(),
            sg_list: &mut sge,
            num_sge: 1,
            opcode,
            send_flags: flags | IBV_SEND_SIGNALED,
            imm_data: 0,
            wr: ibv_wr_remote { remote_addr: far as u64, compare_add: 0, swap: 0, rkey: key },
            qp_type: 0,
            bind_mw: [0; 6],
        };
        // The union's member for reads and writes has its key where the one for atomics has an operand.
        request.wr.compare_add = leading(key);
        // SAFETY: [ibv-object] [ibv-wire] the queue pair lives; the request is read during the call only, and its memory is registered.
        let failed = unsafe {
            let mut bad = std::ptr::null_mut();
            let post_send = (*(*self.qp.raw.as_ptr()).context).ops.post_send;
            post_send.map_or(-1, |post| post(self.qp.raw.as_ptr(), &mut request, &mut bad))
        };
        if failed != 0 {
            return Err(Down);
        }
        self.in_flight += 1;
        Ok(())
    }
}

impl Card {
    /// Bytes of it as it travels.
    pub const BYTES: usize = 36;

    /// As it travels.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        for (i, word) in [self.number, self.psn, self.keys[0], self.keys[1]].into_iter().enumerate() {
            out[i * 4..i * 4 + 4].copy_from_slice(&word.to_le_bytes());
        }
        out[16..32].copy_from_slice(&self.gid);
        out[32..34].copy_from_slice(&self.lid.to_le_bytes());
        (out[34], out[35]) = (self.mtu | if self.in_order { IN_ORDER } else { 0 }, self.reads);
        out
    }

    /// From any bytes; none when no wire has such a card.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at * 4 + i]));
        let (number, psn, mtu) = (word(0), word(1), bytes[34] & !IN_ORDER);
        let fits = number != 0 && number <= PSN_MAX && psn <= PSN_MAX && (1..=5).contains(&mtu);
        fits.then(|| Self {
            number,
            psn,
            gid: std::array::from_fn(|i| bytes[16 + i]),
            lid: u16::from_le_bytes([bytes[32], bytes[33]]),
            mtu,
            reads: bytes[35],
            in_order: bytes[34] & IN_ORDER != 0,
            keys: [word(2), word(3)],
        })
    }
}

impl Region {
    fn lkey(&self) -> u32 {
        // SAFETY: [ibv-object] it lives.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    fn rkey(&self) -> u32 {
        // SAFETY: [ibv-object] it lives.
        unsafe { (*self.raw.as_ptr()).rkey }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let context = &self.domain.context;
        if !context.fork.inherited() {
            // SAFETY: [ibv-object] ended once, by its owner; the queue pair is gone.
            unsafe { (context.library.ibv_dereg_mr)(self.raw.as_ptr()) };
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if !self.context.fork.inherited() {
            // SAFETY: [ibv-object] ended once, by its owner; the queue pair is gone.
            unsafe { (self.context.library.ibv_destroy_cq)(self.raw.as_ptr()) };
        }
    }
}

/// # Safety
/// The memory is mapped as long as the region.
unsafe fn register(domain: &Arc<Domain>, memory: (NonNull<u8>, usize), access: u32) -> Result<Region, VerbsError> {
    let (base, len) = memory;
    // SAFETY: [ibv-object] [ibv-wire] the caller's promise.
    let raw = unsafe {
        (domain.context.library.ibv_reg_mr_iova)(domain.raw.as_ptr(), base.as_ptr().cast(), len, 0, access as c_int)
    };
    Ok(Region { raw: made("registering memory", raw)?, len, domain: domain.clone() })
}

fn queue_pair(nic: &Nic, queue: &Queue, depth: usize) -> Result<(Qp, usize), VerbsError> {
    let inline = nic.limits.inline_max.min(INLINE_MAX);
    let mut wanted = ibv_qp_init_attr {
        qp_context: std::ptr::null_mut(),
        send_cq: queue.raw.as_ptr(),
        recv_cq: queue.raw.as_ptr(),
        srq: std::ptr::null_mut(),
        cap: ibv_qp_cap {
            max_send_wr: depth as u32,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: inline as u32,
        },
        qp_type: crate::ffi::IBV_QPT_RC,
        sq_sig_all: 0,
    };
    let qp = nic.domain.queue_pair(&mut wanted)?;
    Ok((qp, (wanted.cap.max_inline_data as usize).min(INLINE_MAX)))
}

/// Requests on their way at a time.
const DEPTH: usize = 64;
/// Beyond it nothing is gained (rdma-sockets RS-C08).
const INLINE_MAX: usize = 432;
/// Numbers of packets and of queue pairs have 24 bits.
const PSN_MAX: u32 = (1 << 24) - 1;
/// [`Card::in_order`], beside the MTU. A version before this refuses such a card, and stays with
/// TCP.
const IN_ORDER: u8 = 0x80;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    #[test]
    fn a_card_comes_back_as_it_was_and_nonsense_does_not() {
        let card = Card { number: 17, psn: 9, gid: [3; 16], lid: 2, mtu: 5, reads: 16, in_order: false, keys: [7, 8] };
        for card in [card, Card { in_order: true, ..card }] {
            assert_eq!(Card::decode(&card.encode()), Some(card));
        }
        for (at, byte) in [(34, 0), (34, 6), (34, 0x80), (3, 1), (7, 1)] {
            let mut bytes = card.encode();
            bytes[at] = byte;
            assert_eq!(Card::decode(&bytes), None, "byte {at} is {byte}");
        }
    }

    /// Two wires of a device that counts, to one another; each memory is filled with a number of
    /// its own.
    fn wires(in_order: bool) -> ([Wire; 2], [Vec<u8>; 4]) {
        let limits = Limits {
            sge_max: 1,
            inline_max: 100,
            depth_max: DEPTH,
            message_max: 1 << 20,
            reads: [1, 1],
            shared_receives_max: 1,
            completions_max: DEPTH,
            atomics: false,
            in_order,
        };
        let place = PortAddress { port: 1, lid: 1, mtu: 3, gids: Vec::new() };
        let nic = Nic { domain: Arc::new(Domain::new(&fake::open()).unwrap()), limits, place };
        let mut memories = [1, 2, 3, 4].map(|of| vec![of; BYTES]);
        let parts = memories.each_mut().map(|memory| (NonNull::new(memory.as_mut_ptr()).unwrap(), BYTES));
        // SAFETY: [ibv-wire] the caller keeps the vectors until the wires are gone, and looks at them only while nothing is written.
        let mut wires = [0, 2].map(|of| unsafe { Wire::new(&nic, parts[of], parts[of + 1], None).unwrap() });
        let cards = wires.each_ref().map(Wire::card);
        wires[0].connect(&cards[1]).unwrap();
        wires[1].connect(&cards[0]).unwrap();
        (wires, memories)
    }

    /// A connection registers its two memories when it is made, and a message is a WRITE from a
    /// place in one of them, short or long; none is sent (rdma-sockets RS-M04, RS-M07, RS-M08).
    #[test]
    fn a_wire_registers_its_memory_once_and_a_message_is_a_write_of_a_place_in_it() {
        let ([mut here, mut there], memories) = wires(false);
        assert_eq!(fake::asked().registered.len(), 4);
        let [_, ours, theirs, asked] = memories.each_ref().map(Vec::as_ptr);
        // SAFETY: [ibv-wire] within the vectors, which live; nothing is written meanwhile.
        let byte = |memory: *const u8, at: usize| unsafe { memory.add(at).read() };
        for (round, len) in [8, 99, 100, 101, 3000].into_iter().enumerate() {
            let at = round * 4096;
            here.write(at + 8, at + 64, len).unwrap();
            there.read(at + 16, at + 32, len).unwrap();
            for (to, first, others) in [(theirs, at + 64, 3), (asked, at + 32, 4)] {
                assert!((first..first + len).all(|at| byte(to, at) == byte(ours, 0)), "{len} bytes");
                assert_eq!((byte(to, first - 1), byte(to, first + len)), (others, others), "and no more");
            }
            assert_eq!((here.reap(), there.reap()), (Ok(0), Ok(0)));
        }
        let asked = fake::asked();
        assert_eq!((asked.registered.len(), asked.deregistered), (4, 0), "none for a message");
        assert_eq!(asked.opcodes, [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ].repeat(5));
        drop((here, there));
        assert_eq!(fake::asked().deregistered, 4);
    }

    /// What a device promises of the order of bytes its peer hears, and goes by it.
    #[test]
    fn only_where_the_peers_device_says_so_do_last_bytes_come_last() {
        for in_order in [false, true] {
            let ([here, _there], _memories) = wires(in_order);
            assert_eq!(here.last_byte_last(), in_order);
        }
    }

    const BYTES: usize = 5 * 4096;

    #[test]
    fn a_device_that_is_not_there_is_named() {
        let error = Nic::open("no-such-device").unwrap_err().to_string();
        assert!(error.contains("looking for an RDMA device"), "{error}");
    }
}

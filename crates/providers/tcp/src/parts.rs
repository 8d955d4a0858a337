//! The parsers of a peer's bytes, each alone, for fuzz targets and the replay of their corpus. Not
//! for users.

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use overside_memory::{Segment, SegmentId, Window};
use overside_verbs::handshake::Keys;
use overside_verbs::port::{QpIndex, RawBuffer, RawReceive};
use overside_verbs::{Access, Memory, Opcode, RemoteToken, Status};

use crate::conn::{Conn, Context};
use crate::credits::Pool;
use crate::frame::{HEAD_MAX, Head, Op, head_bytes};
use crate::handshake::Wire;
use crate::outbound::Outbound;
use crate::registry::{Registry, register};
use crate::requests::{Act, Entry};
use crate::seal::Seal;
use crate::target::Target;
pub use crate::two_ends::two_ends;

/// A peer's frames on a connection that has receives, a READ and a FETCH_ADD under way; tagged when
/// the first byte is odd. True: all of them were taken.
///
/// # Panics
/// When a byte outside of what was posted changes, or a request is reported twice.
pub fn frames(bytes: &[u8]) -> bool {
    let Some((tagged, bytes)) = bytes.split_first() else { return false };
    let Ok((ours, mut theirs)) = UnixStream::pair() else { return false };
    let bytes = &bytes[..bytes.len().min(INPUT_BYTES_MAX)];
    let sent = ours.set_nonblocking(true).and(theirs.write_all(bytes));
    if sent.and(theirs.shutdown(std::net::Shutdown::Write)).is_err() {
        return false;
    }
    let keys = (tagged & 1 == 1).then_some(Keys { out: [1; 32], into: [2; 32] });
    let wire = Wire::new(OwnedFd::from(ours), keys);
    let mut conn = Conn::new(QpIndex(0), wire, 32, 64, Default::default());
    let mut ground = vec![CANARY; GROUND_BYTES];
    let base = ground.as_mut_ptr();
    let buffer = |at: usize, len: usize| RawBuffer { address: base.wrapping_add(at), len, segment: SegmentId::FOREIGN };
    let (mut pool, mut done, registry) = (Pool::new(4), VecDeque::new(), Registry::default());
    let Ok(domain) = registry.allocate_domain(()) else { return false };
    let domain = domain.id();
    pool.sharers = 1;
    conn.receives.extend((0..RECEIVES).map(|i| RawReceive {
        slot: i,
        buffer: buffer(i as usize * 8192 + 64, 4096),
        takes_loan: false,
    }));
    // The peer is told of its credits, so that it may use them.
    conn.say(Op::Ack);
    let token = RemoteToken { at: 0, len: 2000, rkey: 1 };
    for (slot, opcode, act) in [
        (100, Opcode::Read, Act::Read(buffer(RECEIVES as usize * 8192 + 64, 2000), token, 0)),
        (101, Opcode::FetchAdd, Act::FetchAdd(token, 1)),
    ] {
        conn.requests.push(Entry::new(slot, opcode, act, Vec::new()));
    }
    // The peer may answer what it has.
    conn.pump();
    if conn.flush().is_err() {
        return false;
    }
    let fate = loop {
        let mut cx = Context { registry: &registry, domain, pool: &mut pool, done: &mut done, done_max: usize::MAX };
        if let Err(fate) = conn.turn(&mut cx) {
            break fate;
        }
    };
    // The end of the stream is no fault; what came before it is.
    let taken = !matches!(fate, crate::fate::Fate::Malformed(_)) && !conn.is_timed();
    conn.end(fate, &mut pool, &mut done);
    drop(conn);
    let mut slots: Vec<u32> = done.iter().map(|done| done.slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, [0, 1, 2, 3, 100, 101], "each is reported once");
    let inside =
        |at: usize| at % 8192 >= 64 && at % 8192 < 64 + if at / 8192 < RECEIVES as usize { 4096 } else { 2000 };
    let strayed = ground.iter().enumerate().find(|(at, byte)| **byte != CANARY && !inside(*at));
    assert!(strayed.is_none(), "a byte outside changed: {strayed:?}");
    assert!(done.iter().all(|done| done.status != Status::Success || done.bytes <= 4096));
    taken
}

/// One-sided requests of a peer that has the keys: records of a head, whose key's lowest byte
/// chooses among a window, a segment and nothing, and its payload. True: none was refused or out of
/// place.
///
/// # Panics
/// When memory without the right changes.
pub fn one_sided(bytes: &[u8]) -> bool {
    let (registry, mut target, mut out) =
        (Registry::default(), Target::new(), Outbound::new(Seal::new(None), Arc::default(), false));
    let Ok(domain) = registry.allocate_domain(()) else { return false };
    let (Ok(window), Ok(segment)) = (Window::new(4096), Segment::private(4096)) else { return false };
    let (window, segment) = (Memory::Window(Arc::new(window)), Memory::Segment(Arc::new(segment)));
    let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let granted = [(&window, all), (&window, Access::REMOTE_READ), (&segment, Access::REMOTE_READ)];
    let keys = granted.map(|(memory, access)| register(&registry, &domain, memory, access).map(|r| r.token().rkey));
    let (mut rest, mut taken) = (bytes, true);
    while let Some(kind) = rest.first() {
        let Some(len) = head_bytes(*kind).filter(|len| *len <= rest.len()) else { return false };
        let Ok(mut head) = Head::decode(&rest[..len]) else { return false };
        rest = &rest[len..];
        let payload = &rest[..(head.len as usize).min(rest.len())];
        rest = &rest[payload.len()..];
        if payload.len() < head.len as usize {
            return false;
        }
        if let Op::Write { rkey, .. } | Op::Read { rkey, .. } | Op::FetchAdd { rkey, .. } | Op::CompareSwap { rkey, .. } =
            &mut head.op
            && let Some(Ok(key)) = keys.get((*rkey & 0xff) as usize)
        {
            *rkey = *key;
        }
        let done = match head.op {
            Op::Write { .. } | Op::WriteMore => {
                target.write(&head, payload, &registry, domain.id()).map(|done| done.is_none_or(|done| done.placed))
            }
            _ if target.is_writing() => return false,
            _ => target.execute(head.op, &registry, domain.id()).map(|()| true),
        };
        taken &= done.unwrap_or(false);
        target.answer(&mut out, 1 << 20, || 0);
        out.drop_unsent();
    }
    if let Memory::Segment(segment) = &segment {
        let mut there = vec![1; 4096];
        // SAFETY: [tcp-read-source] a private segment of that length, which nobody writes.
        unsafe { overside_memory::kernels::copy_racing(there.as_mut_ptr(), segment.base().as_ptr(), 4096) };
        assert!(there.iter().all(|byte| *byte == 0), "a segment that may only be read has changed");
    }
    taken
}

/// Inputs for each target that it takes, by its name.
///
/// # Panics
/// Never: all of it is made here.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut seeds = Vec::new();
    let head = |acked, len, op| Head { acked, credits: 0, len, op };
    for tagged in [0u8, 1] {
        let seal = || Seal::new((tagged == 1).then_some([2; 32]));
        let one = |frames: &[(Head, Vec<u8>)]| {
            let mut out = Outbound::new(seal(), Arc::default(), false);
            frames.iter().for_each(|(head, payload)| out.frame(head, payload));
            [vec![tagged], out.unsent()].concat()
        };
        let message = |len: usize| (head(0, len as u32, Op::Send { immediate: Some(7) }), vec![3; len]);
        seeds.push(("frames", one(&[message(100), message(4096), message(0)])));
        seeds.push((
            "frames",
            one(&[
                (head(0, 2000, Op::Data), vec![4; 2000]),
                (head(1, 0, Op::Value(9)), vec![]),
                (head(2, 0, Op::Want(3)), vec![]),
                (head(2, 0, Op::Recall), vec![]),
                (head(2, 0, Op::Ack), vec![]),
            ]),
        ));
        let write = Op::Write { rkey: 0, at: 0, total: 3, immediate: None };
        seeds.push(("frames", one(&[(head(0, 3, write), vec![1; 3]), (head(0, 0, Op::Refused), vec![])])));
    }
    let raw = |frames: &[(Op, usize)]| {
        let mut out = Vec::new();
        for (op, len) in frames {
            let mut bytes = [0; HEAD_MAX];
            let encoded = head(0, *len as u32, *op).encode(&mut bytes);
            out.extend_from_slice(&bytes[..encoded]);
            out.extend(vec![6; *len]);
        }
        out
    };
    let write = |at, total| Op::Write { rkey: 0, at, total, immediate: Some(1) };
    seeds.push(("one_sided", raw(&[(write(3, 100), 100), (write(8, 40), 30), (Op::WriteMore, 10), (write(0, 0), 0)])));
    seeds.push((
        "one_sided",
        raw(&[
            (Op::Read { rkey: 2, at: 100, len: 3000 }, 0),
            (Op::Read { rkey: 1, at: 4096, len: 0 }, 0),
            (Op::FetchAdd { rkey: 0, at: 8, add: 5 }, 0),
            (Op::CompareSwap { rkey: 0, at: 8, compare: 5, swap: 6 }, 0),
        ]),
    ));
    seeds.extend(crate::two_ends::seeds().into_iter().map(|seed| ("two_ends", seed)));
    seeds
}

const CANARY: u8 = 0x77;
const RECEIVES: u32 = 4;
const GROUND_BYTES: usize = 8192 * (RECEIVES as usize + 1);
/// What fits into a socket at once.
const INPUT_BYTES_MAX: usize = 64 << 10;

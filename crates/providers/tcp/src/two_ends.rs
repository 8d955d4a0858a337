//! Two ends with a connection between them, and a stranger to whom both are connected, too, that
//! says any frame at any moment: the fuzz target `two_ends`, and the replay of its corpus. Not for
//! users.
//!
//! What it checks, after a script of calls and of the stranger's frames:
//!
//! - A source is overwritten or freed as soon as it is reported: not one such byte reaches the
//!   wire.
//! - A receive or sink is overwritten when it is reported, and nobody writes it from then on.
//! - Each request is reported once, in order, whatever becomes of its connection.
//! - Memory that is deregistered is neither read nor written any more.
//! - What waits for a peer that reads nothing is bounded.
//! - The connection between the two carries each message whole, in order.

mod end;
mod stranger;

use end::{End, HONEST, STRANGER};
pub(crate) use stranger::frame;

/// Carries out a script. True: neither end found fault with the stranger.
///
/// # Panics
/// When one of the promises above is broken.
pub fn two_ends(bytes: &[u8]) -> bool {
    let Some(mut ends) = End::two() else { return false };
    let mut script = Script(bytes);
    for _ in 0..STEPS_MAX {
        let Some(step) = script.next() else { break };
        let who = usize::from(step >> 7);
        ends[who].step(step, &mut script);
        exchange(&mut ends);
    }
    // The stranger goes; what the two still have to say to each other arrives.
    for end in &mut ends {
        end.close(STRANGER);
    }
    let honest = ends.iter().all(|end| end.is_open(HONEST));
    for _ in 0..ROUNDS_MAX {
        ends.iter_mut().for_each(End::goes_on);
        exchange(&mut ends);
        if ends.iter().all(End::has_said_all) {
            break;
        }
    }
    let open = ends.iter().all(|end| end.is_open(HONEST));
    assert!(!honest || open, "the two ends have fallen out");
    for end in &ends {
        assert!(!open || end.has_said_all(), "something between the two ends is not reported");
    }
    ends.iter_mut().for_each(|end| end.close(HONEST));
    exchange(&mut ends);
    ends.map(End::ends) == [true; 2]
}

/// What one end says to the other, the other expects.
fn exchange(ends: &mut [End; 2]) {
    let [a, b] = ends;
    b.expects(a.take_said());
    a.expects(b.take_said());
}

/// Bytes that say what happens next.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn next(&mut self) -> Option<u8> {
        self.0.split_off_first().copied()
    }

    /// A number; 0 when there are no more.
    fn number(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    /// A length at which something changes.
    fn length(&mut self) -> usize {
        LENGTHS[usize::from(self.number()) % LENGTHS.len()]
    }
}

/// What `parts::seeds` writes down: calls that keep the promises, with frames of a stranger that
/// behaves.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    use crate::frame::Op;
    let step = |who: u8, pair: usize, call: u8| who << 7 | (pair as u8) << 6 | call;
    let (mut honest, mut polite, mut sharing) = (Vec::new(), Vec::new(), Vec::new());
    for who in [0, 1] {
        let on = |call| step(who, HONEST, call);
        honest.extend([on(RECEIVES), 4, on(SHARE), 4, on(POLL)]);
        honest.extend([on(SEND), 5, on(SEND), 2, on(POLL), on(ARM)]);
        honest.extend([on(WRITE), 1, 3, on(READ), 0, 5, on(ADD), 2, on(POLL), on(POLL)]);
        let with = |call| step(who, STRANGER, call);
        let says = |acked, credits, op, len| [vec![with(SAY)], frame(acked, credits, op, len)].concat();
        // It grants, takes three messages, acknowledges each, and asks for what it may.
        polite.extend(says(0, 5, Op::Ack, 0));
        polite.extend([with(SEND), 6, with(SEND), 9, with(SEND), 1, with(READ), 0, 3, with(ADD), 2]);
        for _ in 0..24 {
            polite.extend([with(POLL), with(HEAR), 255]);
        }
        polite.extend(says(1, 0, Op::Ack, 0));
        polite.extend(says(3, 0, Op::Data, 3));
        polite.extend(says(4, 0, Op::Value(7), 0));
        polite.extend([with(POLL), with(FORGET), 0, with(POLL)]);
        // Shared receives, asked for, used and given back; what it may reach, and what it may not.
        sharing.extend([with(SHARE), 7, with(POLL)]);
        sharing.extend(says(0, 0, Op::Want(3), 0));
        sharing.extend([with(POLL), with(POLL), with(HEAR), 9]);
        sharing.extend(says(0, 1, Op::Send { immediate: Some(1) }, 4));
        sharing.extend(says(0, 0, Op::Write { rkey: 1, at: 1, total: 3, immediate: Some(2) }, 3));
        sharing.extend(says(0, 0, Op::Read { rkey: 0, at: 0, len: 4 }, 0));
        sharing.extend(says(0, 0, Op::FetchAdd { rkey: 2, at: 0, add: 1 }, 0));
        sharing.extend(says(0, 0, Op::CompareSwap { rkey: 2, at: 0, compare: 1, swap: 2 }, 0));
        sharing.extend(says(0, 0, Op::Recall, 0));
        sharing.extend([with(POLL), with(HEAR), 255, with(POLL), with(ARM)]);
    }
    vec![honest, polite, sharing]
}

/// What a step may be, by its low bits; the highest says which end, the next one which of its
/// connections.
const SEND: u8 = 0;
const WRITE: u8 = 1;
const READ: u8 = 2;
const ADD: u8 = 3;
const RECEIVES: u8 = 4;
const SHARE: u8 = 5;
const POLL: u8 = 6;
const ARM: u8 = 7;
const CLOSE: u8 = 8;
const HEAR: u8 = 9;
const SAY: u8 = 10;
const SAY_OFTEN: u8 = 11;
const SAY_BYTES: u8 = 12;
const HANG_UP: u8 = 13;
const FORGET: u8 = 14;
/// Around the borders of what is copied, staged, taken whole, cut into parts and taken by a socket
/// at once.
const LENGTHS: [usize; 12] = [0, 1, 8, 64, 1000, 1024, 1025, 4000, 16 << 10, (16 << 10) + 1, 40_000, 70_000];
/// Of these lengths the first so many fit into a receive.
const FITTING: usize = 8;
const RECEIVE_BYTES: usize = 4096;
const STEPS_MAX: usize = 400;
/// Turns in which the two ends finish: sockets take a few thousand bytes at a time.
const ROUNDS_MAX: usize = 400;
/// What an owner writes into what was given back to it, and a stranger into all that it sends.
const POISON: u8 = 0xDB;
const STRANGE: u8 = 0x11;

//! What the kernel's requests ask of a device. Pure: nothing is read or waited for here.
//!
//! A device takes whole units; programs may read and write any bytes. A READ is widened. A WRITE
//! with a broken edge first reads the units that it touches. Between that read and its write no
//! other write may run: one whose unit is the same would be undone. So it waits until none is under
//! way, and later ones wait for it, in their order.

use std::collections::VecDeque;
use std::ops::Range;

use overside_memory::{Buffer, Bytes};
use overside_volume::{DeviceError, Geometry, Work};
use rustix::io::Errno;

use crate::fronts::room::Room;
use crate::fronts::routed::{errno_of, give_back};

/// Requests on their way to a device.
#[derive(Debug)]
pub(super) struct Requests {
    geometry: Geometry,
    /// Writes that the device has, without one that mends its edges.
    writing: usize,
    mending: bool,
    /// Writes that wait for one that mends its edges, or are one.
    held: VecDeque<PendingWork>,
}

#[derive(Debug)]
enum PendingWork {
    Whole(u64, Work),
    Edged(u64, Edged),
}

/// A WRITE whose ends are not those of units.
#[derive(Debug)]
struct Edged {
    at: u64,
    length: usize,
    from: Buffer,
    durable: bool,
}

/// What is to be done when the device has ended something.
#[derive(Debug)]
pub(super) struct Route {
    /// The kernel's number.
    pub(super) unique: u64,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// Of what was read, this part is answered.
    Read(Range<usize>),
    /// So many bytes, of a write that mends its edges or does not.
    Written {
        bytes: u32,
        mends: bool,
    },
    /// The units under a write have been read; what comes over them.
    Mend {
        edged: Edged,
        first: u64,
    },
    Changed,
    Synced,
}

/// How a request goes on.
#[derive(Debug)]
pub(super) enum Next {
    /// The device is asked.
    Ask(Work, Route),
    /// It waits for others.
    Wait,
    /// It has ended.
    Answer(u64, Result<Said, Errno>),
}

/// What is answered.
#[derive(Debug)]
pub(super) enum Said {
    Nothing,
    Read(Option<(Buffer, Range<usize>)>),
    Written(u32),
}

impl Requests {
    pub(super) fn new(geometry: Geometry) -> Requests {
        Requests { geometry, writing: 0, mending: false, held: VecDeque::new() }
    }

    /// Whether writes wait for others.
    pub(super) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// The units that a range touches.
    fn units(&self, at: u64, length: u64) -> Range<u64> {
        let unit = self.geometry.unit_bytes;
        at / unit * unit..(at + length).next_multiple_of(unit)
    }

    /// How many of `length` bytes from `at` on there are.
    fn within(&self, at: u64, length: u32) -> u32 {
        u64::from(length).min(self.geometry.bytes.saturating_sub(at)) as u32
    }

    pub(super) fn read(&self, unique: u64, at: u64, length: u32, room: &mut Room) -> Next {
        let length = self.within(at, length);
        if length == 0 {
            return Next::Answer(unique, Ok(Said::Read(None)));
        }
        let units = self.units(at, u64::from(length));
        let (all, skipped) = ((units.end - units.start) as usize, (at - units.start) as usize);
        match room.take(all) {
            Some(into) => {
                let step = Step::Read(skipped..skipped + length as usize);
                Next::Ask(Work::Read { at: units.start, length: all, into }, Route { unique, step })
            }
            None => Next::Answer(unique, Err(Errno::NOMEM)),
        }
    }

    /// The bytes lie in front of `from`.
    pub(super) fn write(
        &mut self,
        unique: u64,
        at: u64,
        length: u32,
        from: Buffer,
        durable: bool,
        room: &mut Room,
    ) -> Next {
        let there = self.within(at, length);
        if self.geometry.read_only || there == 0 {
            let why = if self.geometry.read_only { Errno::ROFS } else { Errno::NOSPC };
            let said = if length == 0 { Ok(Said::Written(0)) } else { Err(why) };
            return Next::Answer(unique, said);
        }
        let whole =
            at.is_multiple_of(self.geometry.unit_bytes) && u64::from(there).is_multiple_of(self.geometry.unit_bytes);
        let length = there as usize;
        let held = if whole {
            PendingWork::Whole(unique, Work::Write { at, from: Bytes::prefix(from, length), fua: durable })
        } else {
            PendingWork::Edged(unique, Edged { at, length, from, durable })
        };
        self.enter(held, room)
    }

    /// As `fallocate` means it.
    pub(super) fn allocate(&mut self, unique: u64, at: u64, length: u64, mode: u32, room: &mut Room) -> Next {
        let end = at.checked_add(length);
        let within = end.is_some_and(|end| end <= self.geometry.bytes);
        let whole = at.is_multiple_of(self.geometry.unit_bytes) && length.is_multiple_of(self.geometry.unit_bytes);
        let work = match mode & !KEEP_SIZE {
            _ if self.geometry.read_only => return Next::Answer(unique, Err(Errno::ROFS)),
            _ if length == 0 => return Next::Answer(unique, Err(Errno::INVAL)),
            // What there is of it is allocated.
            0 if within => return Next::Answer(unique, Ok(Said::Nothing)),
            0 => return Next::Answer(unique, Err(Errno::NOSPC)),
            PUNCH_HOLE if within && whole => Work::Discard { at, length },
            ZERO_RANGE if within && whole => Work::Zero { at, length },
            _ => return Next::Answer(unique, Err(Errno::OPNOTSUPP)),
        };
        self.enter(PendingWork::Whole(unique, work), room)
    }

    pub(super) fn sync(&self, unique: u64) -> Next {
        Next::Ask(Work::Flush, Route { unique, step: Step::Synced })
    }

    fn enter(&mut self, held: PendingWork, room: &mut Room) -> Next {
        self.held.push_back(held);
        if self.held.len() == 1 { self.go_on(room).unwrap_or(Next::Wait) } else { Next::Wait }
    }

    /// The next write that waited and need not any more.
    pub(super) fn go_on(&mut self, room: &mut Room) -> Option<Next> {
        if self.mending || (self.writing > 0 && matches!(self.held.front(), Some(PendingWork::Edged(..)))) {
            return None;
        }
        match self.held.pop_front()? {
            PendingWork::Whole(unique, work) => {
                self.writing += 1;
                let step = match &work {
                    Work::Write { from, .. } => Step::Written { bytes: from.len() as u32, mends: false },
                    _ => Step::Changed,
                };
                Some(Next::Ask(work, Route { unique, step }))
            }
            PendingWork::Edged(unique, edged) => {
                let units = self.units(edged.at, edged.length as u64);
                let length = (units.end - units.start) as usize;
                let Some(into) = room.take(length) else {
                    room.put(edged.from);
                    return Some(Next::Answer(unique, Err(Errno::NOMEM)));
                };
                self.mending = true;
                let step = Step::Mend { edged, first: units.start };
                Some(Next::Ask(Work::Read { at: units.start, length, into }, Route { unique, step }))
            }
        }
    }

    /// The device has ended what it was asked. Writes that waited may go on after it.
    pub(super) fn ended(&mut self, route: Route, work: Work, result: Result<(), DeviceError>, room: &mut Room) -> Next {
        let Route { unique, step } = route;
        let failed = result.err().map(errno_of);
        match (step, work) {
            (Step::Read(part), Work::Read { into, .. }) if failed.is_none() => {
                Next::Answer(unique, Ok(Said::Read(Some((into, part)))))
            }
            (Step::Mend { edged, first }, Work::Read { mut into, length, .. }) if failed.is_none() => {
                let skipped = (edged.at - first) as usize;
                into[skipped..skipped + edged.length].copy_from_slice(&edged.from[..edged.length]);
                room.put(edged.from);
                let step = Step::Written { bytes: edged.length as u32, mends: true };
                let work = Work::Write { at: first, from: Bytes::prefix(into, length), fua: edged.durable };
                Next::Ask(work, Route { unique, step })
            }
            (step, work) => {
                give_back(work, room);
                let said = match step {
                    Step::Written { bytes, mends } => {
                        self.let_go(mends);
                        Said::Written(bytes)
                    }
                    Step::Changed => {
                        self.let_go(false);
                        Said::Nothing
                    }
                    Step::Mend { edged, .. } => {
                        self.let_go(true);
                        room.put(edged.from);
                        Said::Nothing
                    }
                    Step::Read(_) | Step::Synced => Said::Nothing,
                };
                Next::Answer(unique, failed.map_or(Ok(said), Err))
            }
        }
    }

    fn let_go(&mut self, mends: bool) {
        if mends { self.mending = false } else { self.writing -= 1 }
    }
}

const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 512;
    const BYTES: u64 = 8 * UNIT;

    fn geometry() -> Geometry {
        Geometry { bytes: BYTES, unit_bytes: UNIT, read_only: false }
    }

    fn filled(room: &mut Room, bytes: &[u8]) -> Buffer {
        let mut buffer = room.take(bytes.len()).unwrap();
        buffer[..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    /// Next of a sequence that looks like chance.
    fn chance(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    /// What a device does, at once.
    fn carry_out(memory: &mut [u8], work: &mut Work) {
        match work {
            Work::Read { at, length, into } => into[..*length].copy_from_slice(&memory[*at as usize..][..*length]),
            Work::Write { at, from, .. } => memory[*at as usize..][..from.len()].copy_from_slice(from),
            Work::Discard { at, length } | Work::Zero { at, length } => {
                memory[*at as usize..][..*length as usize].fill(0);
            }
            _ => {}
        }
    }

    /// Writes of parts of units that touch no common byte, ended in any order: each byte is
    /// the one that was written.
    #[test]
    fn writes_into_the_same_unit_undo_nothing_of_each_other() {
        for seed in 0..400 {
            let (mut state, mut room, mut requests) = (seed, Room::default(), Requests::new(geometry()));
            let mut memory = vec![0; BYTES as usize];
            let (mut asked, mut at, mut written, mut answered) = (Vec::new(), 0, 0, 0);
            let mut take = |next, asked: &mut Vec<(Work, Route)>| match next {
                Next::Ask(work, route) => asked.push((work, route)),
                Next::Wait => {}
                Next::Answer(_, said) => {
                    said.unwrap();
                    answered += 1;
                }
            };
            while at < BYTES || !asked.is_empty() {
                if at < BYTES && (asked.is_empty() || chance(&mut state).is_multiple_of(2)) {
                    // Half of them end where a unit does.
                    let any = at + 1 + chance(&mut state) % 900;
                    let end = if chance(&mut state).is_multiple_of(2) { any.next_multiple_of(UNIT) } else { any };
                    let length = end.min(BYTES) - at;
                    let from = filled(&mut room, &vec![1 + (written % 250) as u8; length as usize]);
                    take(requests.write(written, at, length as u32, from, false, &mut room), &mut asked);
                    (written, at) = (written + 1, at + length);
                } else {
                    let (mut work, route) = asked.swap_remove(chance(&mut state) as usize % asked.len());
                    carry_out(&mut memory, &mut work);
                    take(requests.ended(route, work, Ok(()), &mut room), &mut asked);
                    while let Some(next) = requests.go_on(&mut room) {
                        take(next, &mut asked);
                    }
                }
            }
            assert!(!requests.holds() && answered == written, "seed {seed}: a write was never answered");
            let lost = memory.iter().position(|byte| *byte == 0);
            assert_eq!(lost, None, "seed {seed}: a byte was undone");
            assert!(memory.is_sorted_by_key(|byte| *byte) || written > 250, "seed {seed}");
        }
    }

    #[test]
    fn a_failed_read_of_the_edges_fails_that_write_and_lets_the_next_go() {
        let (mut room, mut requests) = (Room::default(), Requests::new(geometry()));
        let from = filled(&mut room, b"edge");
        let Next::Ask(work, route) = requests.write(1, 3, 4, from, false, &mut room) else { panic!("it is asked") };
        assert!(matches!(work, Work::Read { at: 0, length: 512, .. }));
        let whole = filled(&mut room, &[7; 512]);
        assert!(matches!(requests.write(2, 512, 512, whole, true, &mut room), Next::Wait));
        let ended = requests.ended(route, work, Err(DeviceError::Corrupt), &mut room);
        assert!(matches!(ended, Next::Answer(1, Err(Errno::IO))), "{ended:?}");
        let next = requests.go_on(&mut room);
        assert!(matches!(next, Some(Next::Ask(Work::Write { at: 512, fua: true, .. }, _))), "{next:?}");
    }

    #[test]
    fn what_is_past_the_end_is_not_there() {
        let (mut room, mut requests) = (Room::default(), Requests::new(geometry()));
        assert!(matches!(requests.read(1, BYTES, 9, &mut room), Next::Answer(1, Ok(Said::Read(None)))));
        assert!(matches!(requests.read(1, u64::MAX, 9, &mut room), Next::Answer(1, Ok(Said::Read(None)))));
        let Next::Ask(work, route) = requests.read(2, BYTES - 5, u32::MAX, &mut room) else { panic!("it is asked") };
        assert!(matches!(work, Work::Read { length: 512, .. }));
        let ended = requests.ended(route, work, Ok(()), &mut room);
        assert!(matches!(ended, Next::Answer(2, Ok(Said::Read(Some((_, part))))) if part == (507..512)));
        let from = filled(&mut room, &[1; 8]);
        let full = requests.write(3, BYTES, 8, from, false, &mut room);
        assert!(matches!(full, Next::Answer(3, Err(Errno::NOSPC))), "{full:?}");
        let from = filled(&mut room, &[1; 8]);
        let Next::Ask(..) = requests.write(4, BYTES - 4, 8, from, false, &mut room) else { panic!("half of it") };
        for (at, length, mode, why) in [
            (0, 0, 0, Errno::INVAL),
            (0, BYTES + 1, 0, Errno::NOSPC),
            (u64::MAX, 2, 0, Errno::NOSPC),
            (1, 512, PUNCH_HOLE | KEEP_SIZE, Errno::OPNOTSUPP),
            (0, 2 * BYTES, PUNCH_HOLE | KEEP_SIZE, Errno::OPNOTSUPP),
            (0, 512, 8, Errno::OPNOTSUPP),
        ] {
            let next = requests.allocate(5, at, length, mode, &mut room);
            assert!(matches!(next, Next::Answer(5, Err(errno)) if errno == why), "{at} {length} {mode}: {next:?}");
        }
    }
}

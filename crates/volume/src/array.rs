//! A device over devices: a layout's pieces, carried out by its members.
//!
//! Sub-requests are independent of each other: an array answers when the last has ended.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use overside_memory::Buffer;
use overside_verbs::VerbsError;
use overside_verbs::watch::Watch;

use crate::device::{Completion, Device, DeviceError, Geometry, Request, Work};
use crate::layout::{Concat, Layout, LayoutError, Mirror, Piece, Stripes};
use crate::overlaps::Overlaps;
use crate::slots::Slots;

/// A volume of several devices.
#[derive(Debug)]
pub struct Array {
    layout: Layout,
    geometry: Geometry,
    members: Vec<Member>,
    /// What callers asked for, and what of it each member has.
    parents: Slots<Parent>,
    children: Slots<Child>,
    /// Of a mirror: its sides would differ if writes that overlap met in another order on each.
    overlaps: Overlaps,
    admitted: Vec<u64>,
    /// Which side of a mirror reads next.
    turn: usize,
    watch: Option<Watch>,
    health: Health,
    /// Notes that a side has missed a write.
    on_stale: OnStale,
    /// Sides for which that is still to be done, as bits.
    unnoted: u64,
    done: Vec<Completion>,
    /// Empty between calls.
    pieces: Vec<Piece>,
    polled: Vec<Completion>,
}

/// Whether a member has what it should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It has all that was written.
    Current,
    /// It has missed a write, and is not read any more.
    Stale,
}

/// Which members of an array are stale, for those who have no hold of the array itself.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// The stale ones, as bits.
    stale: Arc<AtomicU64>,
}

impl Health {
    /// How a member stands.
    pub fn state(&self, member: usize) -> MemberState {
        let is_stale = member < MEMBERS_MAX && self.stale.load(Ordering::Acquire) & 1 << member != 0;
        if is_stale { MemberState::Stale } else { MemberState::Current }
    }

    fn miss(&self, member: usize) {
        self.stale.fetch_or(1 << member, Ordering::AcqRel);
    }
}

/// Notes for good that a side of a mirror is stale; whether it could.
struct OnStale(Box<dyn FnMut(usize) -> bool + Send>);

impl fmt::Debug for OnStale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnStale").finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Member {
    device: Box<dyn Device>,
    /// What it has had no room for yet.
    queue: VecDeque<Request>,
    state: MemberState,
}

#[derive(Debug)]
struct Parent {
    tag: u64,
    /// As it came; of a READ under way, with its buffer in `parts`.
    work: Asked,
    left: usize,
    result: Result<(), DeviceError>,
    /// Members of a mirror that have done it.
    done_by: usize,
    /// Members of a mirror that have failed to do it, as bits.
    failed_by: u64,
}

#[derive(Debug)]
enum Asked {
    Read {
        at: u64,
        length: usize,
        parts: Vec<Option<Buffer>>,
    },
    Whole(Work),
    /// While it is being cut.
    Nothing,
}

#[derive(Clone, Copy, Debug)]
struct Child {
    parent: u64,
    member: usize,
    /// Which part of a READ's buffer.
    part: usize,
}

/// Why devices make no array.
#[derive(Debug, thiserror::Error)]
pub enum ArrayError {
    /// The layout does not take them.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The system has no descriptor.
    #[error(transparent)]
    System(#[from] VerbsError),
}

impl Array {
    /// Members one behind the other.
    ///
    /// # Errors
    /// When they make no such volume, or the system has no descriptor.
    pub fn concat(members: Vec<Box<dyn Device>>) -> Result<Array, ArrayError> {
        Self::over(members, |lengths, unit| Concat::new(lengths, unit).map(Layout::Concat))
    }

    /// One device, asked for no more than so many bytes at once: whole units of it.
    ///
    /// # Errors
    /// As [`concat`](Self::concat).
    pub fn in_pieces(device: Box<dyn Device>, bytes: u64) -> Result<Array, ArrayError> {
        Self::over(vec![device], |lengths, unit| {
            Concat::new(lengths, unit).map(|concat| Layout::Concat(concat.in_pieces(bytes)))
        })
    }

    /// RAID 0 with stripes of so many bytes.
    ///
    /// # Errors
    /// As [`concat`](Self::concat).
    pub fn stripes(members: Vec<Box<dyn Device>>, stripe: u64) -> Result<Array, ArrayError> {
        Self::over(members, |lengths, unit| Stripes::new(lengths, stripe, unit).map(Layout::Stripes))
    }

    /// RAID 1. All members have the same content: writes that one of them misses make it
    /// [stale](MemberState::Stale) for as long as this array lives, and [`on_stale`](Self::on_stale) for longer.
    ///
    /// # Errors
    /// As [`concat`](Self::concat).
    pub fn mirror(members: Vec<Box<dyn Device>>) -> Result<Array, ArrayError> {
        Self::over(members, |lengths, unit| Mirror::new(lengths, unit).map(Layout::Mirror))
    }

    fn over(
        members: Vec<Box<dyn Device>>,
        layout: impl FnOnce(&[u64], u64) -> Result<Layout, LayoutError>,
    ) -> Result<Array, ArrayError> {
        let of: Vec<Geometry> = members.iter().map(|member| member.geometry()).collect();
        if of.len() > MEMBERS_MAX {
            return Err(LayoutError::TooLong.into());
        }
        let unit_bytes = of.iter().map(|geometry| geometry.unit_bytes).max().unwrap_or(1);
        let lengths: Vec<u64> = of.iter().map(|geometry| geometry.bytes).collect();
        let layout = layout(&lengths, unit_bytes)?;
        let read_only = of.iter().any(|geometry| geometry.read_only);
        let mut watch = None;
        for (token, fd) in members.iter().enumerate().filter_map(|(token, member)| Some((token, member.fd()?))) {
            let watch = match &mut watch {
                Some(watch) => watch,
                none => none.insert(Watch::new()?),
            };
            watch.add(fd, token as u64)?;
        }
        let member = |device| Member { device, queue: VecDeque::new(), state: MemberState::Current };
        Ok(Array {
            geometry: Geometry { bytes: layout.bytes(), unit_bytes, read_only },
            layout,
            members: members.into_iter().map(member).collect(),
            parents: Slots::default(),
            children: Slots::default(),
            overlaps: Overlaps::default(),
            admitted: Vec::new(),
            turn: 0,
            watch,
            health: Health::default(),
            on_stale: OnStale(Box::new(|_| true)),
            unnoted: 0,
            done: Vec::new(),
            pieces: Vec::new(),
            polled: Vec::new(),
        })
    }

    /// Of a mirror, calls `note` with a side that has missed a write before anybody hears that the write is done.
    /// Where it says no, the write fails, and it is asked again at the next one. It may wait for a disk: the only
    /// time that an array does.
    pub fn on_stale(&mut self, note: impl FnMut(usize) -> bool + Send + 'static) {
        self.on_stale = OnStale(Box::new(note));
    }

    /// A side of a mirror is known to have missed a write, or is not there at all. One side must be left.
    pub fn set_stale(&mut self, side: usize) {
        if let Some(member) = self.members.get_mut(side) {
            member.state = MemberState::Stale;
            self.health.miss(side);
        }
    }

    /// How each member stands.
    pub fn states(&self) -> impl Iterator<Item = MemberState> + '_ {
        self.members.iter().map(|member| member.state)
    }

    /// The same, for as long as anybody wants to know.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    fn is_mirror(&self) -> bool {
        matches!(self.layout, Layout::Mirror(_))
    }

    /// Takes a request in; it goes to the members at once, or waits for what it overlaps.
    fn take(&mut self, request: Request) {
        if let Err(error) = self.geometry.check(&request.work) {
            return self.done.push(request.ended(Err(error)));
        }
        let (range, writes) = (request.work.range(), request.work.writes());
        let parent = self.parents.insert(Parent {
            tag: request.tag,
            work: Asked::Whole(request.work),
            left: 0,
            result: Ok(()),
            done_by: 0,
            failed_by: 0,
        });
        let waits = match range {
            Some((at, length)) if self.is_mirror() => !self.overlaps.enter(parent, at, length, writes),
            _ => false,
        };
        if !waits {
            self.begin(parent);
        }
    }

    /// Gives the members their pieces.
    fn begin(&mut self, id: u64) {
        let Some(parent) = self.parents.get_mut(id) else { return };
        let Asked::Whole(work) = std::mem::replace(&mut parent.work, Asked::Nothing) else { return };
        match work {
            Work::Flush => {
                self.keep(id, Work::Flush);
                self.for_all(id, |_| Work::Flush);
            }
            Work::Read { at, length, into } => self.begin_read(id, at, length, into),
            Work::Write { at, from, fua } => {
                self.keep(id, Work::Write { at, from: from.clone(), fua });
                self.for_pieces(id, (at, from.len() as u64), |piece, done| Work::Write {
                    at: piece.at,
                    from: from.slice(done as usize..(done + piece.length) as usize),
                    fua,
                });
            }
            Work::Discard { at, length } => {
                self.keep(id, Work::Discard { at, length });
                self.for_pieces(id, (at, length), |piece, _| Work::Discard { at: piece.at, length: piece.length });
            }
            Work::Zero { at, length } => {
                self.keep(id, Work::Zero { at, length });
                self.for_pieces(id, (at, length), |piece, _| Work::Zero { at: piece.at, length: piece.length });
            }
            Work::Hint { at, length, hint } => {
                self.keep(id, Work::Hint { at, length, hint });
                self.for_pieces(id, (at, length), |piece, _| Work::Hint { at: piece.at, length: piece.length, hint });
            }
        }
        if self.parents.get_mut(id).is_some_and(|parent| parent.left == 0) {
            self.end(id);
        }
    }

    fn begin_read(&mut self, id: u64, at: u64, length: usize, into: Buffer) {
        let mut pieces = std::mem::take(&mut self.pieces);
        self.layout.cut(at, length as u64, &mut pieces);
        if let Some(parent) = self.parents.get_mut(id) {
            parent.work = Asked::Read { at, length, parts: pieces.iter().map(|_| None).collect() };
        }
        let (mut rest, last) = (Some(into), pieces.len() - 1);
        for (part, piece) in pieces.drain(..).enumerate() {
            let Some(buffer) = rest.take() else { break };
            let into = if part == last {
                buffer
            } else {
                let (into, behind) = buffer.split_at(piece.length as usize);
                rest = Some(behind);
                into
            };
            let member = if self.is_mirror() { self.next_side(0) } else { Some(piece.member) };
            let work = Work::Read { at: piece.at, length: piece.length as usize, into };
            self.push(Child { parent: id, member: member.unwrap_or(piece.member), part }, work);
        }
        self.pieces = pieces;
    }

    /// A side of a mirror that may be read and is not among `but`, each in turn.
    fn next_side(&mut self, but: u64) -> Option<usize> {
        self.turn = self.turn.wrapping_add(1);
        let count = self.members.len();
        let sides = (0..count).map(|i| (self.turn + i) % count);
        let fit = |side: &usize| self.members[*side].state == MemberState::Current && but & 1 << side == 0;
        sides.into_iter().find(fit)
    }

    fn keep(&mut self, id: u64, work: Work) {
        if let Some(parent) = self.parents.get_mut(id) {
            parent.work = Asked::Whole(work);
        }
    }

    fn for_all(&mut self, id: u64, work: impl Fn(usize) -> Work) {
        for member in 0..self.members.len() {
            if self.members[member].state == MemberState::Current {
                self.push(Child { parent: id, member, part: 0 }, work(member));
            }
        }
    }

    fn for_pieces(&mut self, id: u64, (at, length): (u64, u64), work: impl Fn(&Piece, u64) -> Work) {
        let mut pieces = std::mem::take(&mut self.pieces);
        self.layout.cut(at, length, &mut pieces);
        let mut done = 0;
        for piece in pieces.drain(..) {
            if self.is_mirror() {
                self.for_all(id, |_| work(&piece, done));
            } else {
                self.push(Child { parent: id, member: piece.member, part: 0 }, work(&piece, done));
            }
            done += piece.length;
        }
        self.pieces = pieces;
    }

    fn push(&mut self, child: Child, work: Work) {
        if let Some(parent) = self.parents.get_mut(child.parent) {
            parent.left += 1;
        }
        let tag = self.children.insert(child);
        self.members[child.member].queue.push_back(Request { tag, work });
    }

    /// A member has ended its part.
    fn ended(&mut self, Completion { tag, work, result }: Completion) {
        let Some(child) = self.children.remove(tag) else { return };
        let is_mirror = self.is_mirror();
        let Some(parent) = self.parents.get_mut(child.parent) else { return };
        parent.left -= 1;
        match result {
            Ok(()) => parent.done_by += 1,
            Err(error) => {
                parent.failed_by |= 1 << child.member;
                parent.result = parent.result.and(Err(error));
            }
        }
        if let Work::Read { at, length, into } = work {
            let failed_by = parent.failed_by;
            // Another side has the same bytes.
            if result.is_err()
                && is_mirror
                && let Some(member) = self.next_side(failed_by)
            {
                return self.push(Child { member, ..child }, Work::Read { at, length, into });
            }
            if let Some(Parent { work: Asked::Read { parts, .. }, .. }) = self.parents.get_mut(child.parent) {
                parts[child.part] = Some(into);
            }
        }
        if self.parents.get_mut(child.parent).is_some_and(|parent| parent.left == 0) {
            self.end(child.parent);
        }
    }

    /// All parts of a request have ended.
    fn end(&mut self, id: u64) {
        let Some(parent) = self.parents.remove(id) else { return };
        let Parent { tag, work, mut result, done_by, failed_by, .. } = parent;
        if self.is_mirror() && done_by > 0 {
            result = Ok(());
            if matches!(&work, Asked::Whole(work) if work.writes() || matches!(work, Work::Flush)) {
                self.miss(failed_by);
                if self.unnoted != 0 {
                    result = Err(DeviceError::Failed);
                }
            }
        }
        let work = match work {
            Asked::Whole(work) => work,
            Asked::Read { at, length, parts } => {
                let whole = parts.into_iter().flatten().reduce(|first, behind| {
                    first.join(behind).unwrap_or_else(|_| panic!("parts of one buffer came back in their order"))
                });
                let Some(into) = whole else { return };
                Work::Read { at, length, into }
            }
            Asked::Nothing => return,
        };
        if self.is_mirror() && work.range().is_some() {
            self.overlaps.leave(id, &mut self.admitted);
        }
        self.done.push(Completion { tag, work, result });
    }

    /// Sides, as bits, have missed a write that others have.
    fn miss(&mut self, sides: u64) {
        for side in (0..self.members.len()).filter(|side| sides & 1 << side != 0) {
            if self.members[side].state == MemberState::Current {
                self.set_stale(side);
                self.unnoted |= 1 << side;
            }
        }
        for side in 0..self.members.len() {
            if self.unnoted & 1 << side != 0 && (self.on_stale.0)(side) {
                self.unnoted &= !(1 << side);
            }
        }
    }

    /// Hands the members what waits for them; whether any has ended something.
    fn turn(&mut self) -> bool {
        while let Some(id) = self.admitted.pop() {
            self.begin(id);
        }
        let mut polled = std::mem::take(&mut self.polled);
        for Member { device, queue, .. } in &mut self.members {
            if !queue.is_empty() {
                device.submit(queue);
            }
            device.poll(&mut polled);
        }
        let found = !polled.is_empty();
        polled.drain(..).for_each(|completion| self.ended(completion));
        self.polled = polled;
        found
    }
}

impl Device for Array {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        while self.parents.len() < REQUESTS_MAX
            && let Some(request) = batch.pop_front()
        {
            self.take(request);
        }
        for Member { device, queue, .. } in &mut self.members {
            if !queue.is_empty() {
                device.submit(queue);
            }
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        // What ends may let others begin, and those may end at once.
        while self.turn() {}
        let found = self.done.len();
        out.append(&mut self.done);
        found
    }

    fn arm(&mut self) -> bool {
        self.done.is_empty() && self.admitted.is_empty() && self.members.iter_mut().all(|member| member.device.arm())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(|watch| watch.as_fd())
    }

    fn due(&self) -> Option<Instant> {
        self.members.iter().filter_map(|member| member.device.due()).min()
    }
}

/// Requests in flight; more wait with the caller.
const REQUESTS_MAX: usize = 1024;
/// Which of them failed is told by the bits of a word.
const MEMBERS_MAX: usize = 64;

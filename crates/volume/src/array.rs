//! A device over devices: a layout's pieces, carried out by its members.
//!
//! Sub-requests are independent of each other: an array answers when the last has ended.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use overside_memory::Buffer;
use overside_verbs::VerbsError;
use overside_verbs::watch::Watch;

use crate::below::{Below, watch_all};
use crate::device::{Completion, Device, DeviceError, Geometry, Hint, Request, Work};
use crate::layout::{Concat, Layout, LayoutError, Piece, Stripes};
use crate::slots::Slots;

/// A volume of several devices.
#[derive(Debug)]
pub struct Array {
    layout: Layout,
    geometry: Geometry,
    members: Vec<Below<Box<dyn Device>>>,
    /// What callers asked for, and what of it each member has.
    parents: Slots<Parent>,
    children: Slots<Child>,
    watch: Option<Watch>,
    done: Vec<Completion>,
    /// Empty between calls.
    pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Parent {
    tag: u64,
    /// As it came; of a READ under way, with its buffer in `parts`.
    work: ParentWork,
    left: usize,
    result: Result<(), DeviceError>,
}

#[derive(Debug)]
enum ParentWork {
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
    /// Which part of a READ's buffer.
    part: usize,
    member: usize,
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

    fn over(
        members: Vec<Box<dyn Device>>,
        layout: impl FnOnce(&[u64], u64) -> Result<Layout, LayoutError>,
    ) -> Result<Array, ArrayError> {
        let of: Vec<Geometry> = members.iter().map(|member| member.geometry()).collect();
        let unit_bytes = of.iter().map(|geometry| geometry.unit_bytes).max().unwrap_or(1);
        let lengths: Vec<u64> = of.iter().map(|geometry| geometry.bytes).collect();
        let layout = layout(&lengths, unit_bytes)?;
        let read_only = of.iter().any(|geometry| geometry.read_only);
        let watch = watch_all(members.iter().map(|member| &**member))?;
        Ok(Array {
            geometry: Geometry { bytes: layout.bytes(), unit_bytes, read_only },
            layout,
            members: members.into_iter().map(Below::new).collect(),
            parents: Slots::default(),
            children: Slots::default(),
            watch,
            done: Vec::new(),
            pieces: Vec::new(),
        })
    }

    fn take(&mut self, request: Request) {
        if let Err(error) = self.geometry.check(&request.work) {
            return self.done.push(request.ended(Err(error)));
        }
        let work = ParentWork::Whole(request.work);
        let parent = self.parents.insert(Parent { tag: request.tag, work, left: 0, result: Ok(()) });
        self.begin(parent);
    }

    /// Gives the members their pieces.
    fn begin(&mut self, id: u64) {
        let Some(parent) = self.parents.get_mut(id) else { return };
        let ParentWork::Whole(work) = std::mem::replace(&mut parent.work, ParentWork::Nothing) else { return };
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
            Work::Check { at, length, mend, .. } => {
                self.keep(id, Work::Check { at, length, mend, wrong: 0 });
                self.for_pieces(id, (at, length), |piece, _| Work::Check {
                    at: piece.at,
                    length: piece.length,
                    mend,
                    wrong: 0,
                });
            }
            // As a whole it says more than in parts: nobody will use any of it.
            Work::Hint { at: 0, length, hint: Hint::DontNeed }
                if length == self.geometry.bytes && self.members.len() > 1 =>
            {
                self.keep(id, Work::Hint { at: 0, length, hint: Hint::DontNeed });
                let all: Vec<u64> = self.members.iter().map(|member| member.device.geometry().bytes).collect();
                self.for_all(id, |member| Work::Hint { at: 0, length: all[member], hint: Hint::DontNeed });
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
            parent.work = ParentWork::Read { at, length, parts: pieces.iter().map(|_| None).collect() };
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
            let work = Work::Read { at: piece.at, length: piece.length as usize, into };
            self.push(piece.member, (id, part), work);
        }
        self.pieces = pieces;
    }

    fn keep(&mut self, id: u64, work: Work) {
        if let Some(parent) = self.parents.get_mut(id) {
            parent.work = ParentWork::Whole(work);
        }
    }

    fn for_all(&mut self, id: u64, work: impl Fn(usize) -> Work) {
        for member in 0..self.members.len() {
            self.push(member, (id, 0), work(member));
        }
    }

    fn for_pieces(&mut self, id: u64, (at, length): (u64, u64), work: impl Fn(&Piece, u64) -> Work) {
        let mut pieces = std::mem::take(&mut self.pieces);
        self.layout.cut(at, length, &mut pieces);
        let mut done = 0;
        for piece in pieces.drain(..) {
            self.push(piece.member, (id, 0), work(&piece, done));
            done += piece.length;
        }
        self.pieces = pieces;
    }

    fn push(&mut self, member: usize, (parent, part): (u64, usize), work: Work) {
        if let Some(parent) = self.parents.get_mut(parent) {
            parent.left += 1;
        }
        let tag = self.children.insert(Child { parent, part, member });
        self.members[member].push(tag, work);
    }

    /// A member has ended its part.
    fn ended(&mut self, Completion { tag, work, result }: Completion) {
        let Some(child) = self.children.remove(tag) else { return };
        let Some(parent) = self.parents.get_mut(child.parent) else { return };
        parent.left -= 1;
        parent.result = parent.result.and(result);
        match (work, &mut parent.work) {
            (Work::Read { into, .. }, ParentWork::Read { parts, .. }) => parts[child.part] = Some(into),
            (Work::Check { wrong: found, .. }, ParentWork::Whole(Work::Check { wrong, .. })) => {
                // Of one device in pieces, its own members; a volume has at most as many as a word has bits.
                let of = if self.members.len() == 1 { found } else { u64::from(found != 0) << child.member.min(63) };
                *wrong |= of;
            }
            _ => {}
        }
        if self.parents.get_mut(child.parent).is_some_and(|parent| parent.left == 0) {
            self.end(child.parent);
        }
    }

    /// All parts of a request have ended.
    fn end(&mut self, id: u64) {
        let Some(parent) = self.parents.remove(id) else { return };
        let Parent { tag, work, result, .. } = parent;
        let work = match work {
            ParentWork::Whole(work) => work,
            ParentWork::Read { at, length, parts } => {
                let whole = parts.into_iter().flatten().reduce(|first, behind| {
                    first.join(behind).unwrap_or_else(|_| panic!("parts of one buffer came back in their order"))
                });
                let Some(into) = whole else { return };
                Work::Read { at, length, into }
            }
            ParentWork::Nothing => return,
        };
        self.done.push(Completion { tag, work, result });
    }

    /// Hands the members what waits for them; whether any has ended something.
    fn turn(&mut self) -> bool {
        let mut found = false;
        for member in 0..self.members.len() {
            found |= self.members[member].turn();
            while let Some(completion) = self.members[member].ended() {
                self.ended(completion);
            }
        }
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
        self.members.iter_mut().for_each(Below::submit);
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        while self.turn() {}
        let found = self.done.len();
        out.append(&mut self.done);
        found
    }

    fn arm(&mut self) -> bool {
        self.done.is_empty() && self.members.iter_mut().all(|member| member.device.arm())
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

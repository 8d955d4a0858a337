//! 512-byte sectors over a device with longer units: a write of less than a unit reads the unit
//! first.
//!
//! The rest of the unit is written as it was read, so each sector stays old or new as a whole.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use overside_memory::{Buffer, Bytes, Segment};

use crate::below::Below;
use crate::device::{Completion, Device, DeviceError, Geometry, Request, SECTOR_BYTES, Work};
use crate::overlaps::Overlaps;
use crate::slots::Slots;

/// A device with units of one sector over one with longer units. What is whole units passes
/// through.
#[derive(Debug)]
pub struct Sectors<D> {
    inner: Below<D>,
    geometry: Geometry,
    unit: u64,
    parents: Slots<Parent>,
    children: Slots<Child>,
    /// Of what writes, by the inner device's units: a unit that is read to be written back must not
    /// change meanwhile.
    overlaps: Overlaps,
    admitted: Vec<u64>,
    done: Vec<Completion>,
}

#[derive(Debug)]
struct Parent {
    tag: u64,
    /// As it came; none while the inner device has it whole.
    work: Option<Work>,
    left: usize,
    result: Result<(), DeviceError>,
    writes: bool,
}

/// What the inner device does for a request.
#[derive(Debug)]
struct Child {
    parent: u64,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// The request as it came.
    Passed,
    /// Whole units in the middle of it, or the last of two steps.
    Last,
    /// Reads whole units around a READ.
    Around,
    /// Reads a unit that is then written back with a patch.
    Before(Patch),
}

/// What changes in a unit.
#[derive(Debug)]
struct Patch {
    /// The unit's place.
    unit: u64,
    /// First byte in the unit.
    within: usize,
    /// How many.
    length: usize,
    /// What is written there; zeros where there is nothing.
    from: Option<Bytes>,
    fua: bool,
}

impl<D: Device> Sectors<D> {
    /// Over a device, whose length stays.
    pub fn over(inner: D) -> Sectors<D> {
        Self::of(inner, SECTOR_BYTES)
    }

    /// The same with units of one byte, for what lies over it and is no device of blocks.
    pub fn bytes_over(inner: D) -> Sectors<D> {
        Self::of(inner, 1)
    }

    fn of(inner: D, unit_bytes: u64) -> Sectors<D> {
        let geometry = inner.geometry();
        Sectors {
            unit: geometry.unit_bytes,
            geometry: Geometry { unit_bytes, ..geometry },
            inner: Below::new(inner),
            parents: Slots::default(),
            children: Slots::default(),
            overlaps: Overlaps::default(),
            admitted: Vec::new(),
            done: Vec::new(),
        }
    }

    /// The device under it.
    pub fn inner(&self) -> &D {
        &self.inner.device
    }

    /// The device under it.
    pub fn inner_mut(&mut self) -> &mut D {
        &mut self.inner.device
    }

    fn take(&mut self, request: Request) {
        if let Err(error) = self.geometry.check(&request.work) {
            return self.done.push(request.ended(Err(error)));
        }
        let Request { tag, mut work } = request;
        if let Work::Check { wrong, .. } = &mut work {
            *wrong = 0;
        }
        let (writes, range) = (work.writes(), work.range());
        let id = self.parents.insert(Parent { tag, work: Some(work), left: 0, result: Ok(()), writes });
        let goes = match range {
            Some((at, length)) if writes => {
                let start = at - at % self.unit;
                self.overlaps.enter(id, start, (at + length).next_multiple_of(self.unit) - start, true)
            }
            _ => true,
        };
        if goes {
            self.begin(id);
        }
    }

    fn begin(&mut self, id: u64) {
        let Some(work) = self.parents.get_mut(id).and_then(|parent| parent.work.take()) else { return };
        let is_whole = |(at, length): (u64, u64)| at.is_multiple_of(self.unit) && length.is_multiple_of(self.unit);
        if work.range().is_none_or(is_whole) {
            return self.push(id, Step::Passed, work);
        }
        match &work {
            Work::Read { at, length, .. } => {
                let start = at - at % self.unit;
                let length = (at + *length as u64).next_multiple_of(self.unit) - start;
                if let Some(into) = self.scratch(id, length) {
                    self.push(id, Step::Around, Work::Read { at: start, length: length as usize, into });
                }
            }
            Work::Write { at, from, fua } => {
                let (at, from, fua) = (*at, from.clone(), *fua);
                self.cut(id, (at, from.len() as u64), Some(&from), fua, |start, length| Work::Write {
                    at: start,
                    from: from.slice((start - at) as usize..(start - at + length) as usize),
                    fua,
                });
            }
            Work::Discard { at, length } => {
                self.cut(id, (*at, *length), None, false, |at, length| Work::Discard { at, length });
            }
            Work::Zero { at, length } => {
                self.cut(id, (*at, *length), None, false, |at, length| Work::Zero { at, length });
            }
            Work::Check { at, length, mend, .. } => {
                let start = at - at % self.unit;
                let length = (at + length).next_multiple_of(self.unit) - start;
                self.push(id, Step::Last, Work::Check { at: start, length, mend: *mend, wrong: 0 });
            }
            // Nothing depends on it.
            Work::Hint { .. } | Work::Flush => {}
        }
        let Some(parent) = self.parents.get_mut(id) else { return };
        parent.work = Some(work);
        if parent.left == 0 {
            self.end(id);
        }
    }

    /// What writes: whole units as they are, the units at both ends with a patch.
    fn cut(
        &mut self,
        id: u64,
        (at, length): (u64, u64),
        from: Option<&Bytes>,
        fua: bool,
        whole: impl Fn(u64, u64) -> Work,
    ) {
        let end = at + length;
        let (first, last) = (at.next_multiple_of(self.unit), end - end % self.unit);
        if first < last {
            self.push(id, Step::Last, whole(first, last - first));
        }
        let mut patch = |start: u64, end: u64| {
            let unit = start - start % self.unit;
            let bytes = from.map(|from| from.slice((start - at) as usize..(end - at) as usize));
            let (within, length) = ((start - unit) as usize, (end - start) as usize);
            let patch = Patch { unit, within, length, from: bytes, fua };
            if let Some(into) = self.scratch(id, self.unit) {
                let work = Work::Read { at: unit, length: self.unit as usize, into };
                self.push(id, Step::Before(patch), work);
            }
        };
        if at < first {
            patch(at, first.min(end));
        }
        if last < end && last >= first {
            patch(last, end);
        }
    }

    /// Memory of whole pages; none fails the request.
    fn scratch(&mut self, id: u64, bytes: u64) -> Option<Buffer> {
        let buffer = Segment::private(bytes as usize).ok().and_then(|segment| segment.carve(bytes as usize).pop());
        if let (None, Some(parent)) = (&buffer, self.parents.get_mut(id)) {
            parent.result = Err(DeviceError::NoMemory);
        }
        buffer
    }

    fn push(&mut self, parent: u64, step: Step, work: Work) {
        if let Some(parent) = self.parents.get_mut(parent) {
            parent.left += 1;
        }
        let tag = self.children.insert(Child { parent, step });
        self.inner.push(tag, work);
    }

    fn ended(&mut self, Completion { tag, work, result }: Completion) {
        let Some(Child { parent: id, step }) = self.children.remove(tag) else { return };
        let Some(parent) = self.parents.get_mut(id) else { return };
        parent.left -= 1;
        parent.result = parent.result.and(result);
        match (step, work) {
            (Step::Passed, work) => parent.work = Some(work),
            (Step::Last, Work::Check { wrong: found, .. }) => {
                if let Some(Work::Check { wrong, .. }) = &mut parent.work {
                    *wrong = found;
                }
            }
            (Step::Around, Work::Read { at: start, into: around, .. }) => {
                if let (Some(Work::Read { at, length, into }), Ok(())) = (&mut parent.work, result) {
                    let skip = (*at - start) as usize;
                    into[..*length].copy_from_slice(&around[skip..skip + *length]);
                }
            }
            (Step::Before(patch), Work::Read { into: mut unit, length, .. }) if result.is_ok() => {
                let patched = &mut unit[patch.within..patch.within + patch.length];
                match &patch.from {
                    Some(from) => patched.copy_from_slice(from),
                    None => patched.fill(0),
                }
                let work = Work::Write { at: patch.unit, from: Bytes::prefix(unit, length), fua: patch.fua };
                return self.push(id, Step::Last, work);
            }
            _ => {}
        }
        if parent.left == 0 {
            self.end(id);
        }
    }

    fn end(&mut self, id: u64) {
        let Some(Parent { tag, work: Some(work), result, writes, .. }) = self.parents.remove(id) else { return };
        if writes {
            self.overlaps.leave(id, &mut self.admitted);
        }
        self.done.push(Completion { tag, work, result });
    }

    fn turn(&mut self) -> bool {
        while let Some(id) = self.admitted.pop() {
            self.begin(id);
        }
        let found = self.inner.turn();
        while let Some(completion) = self.inner.ended() {
            self.ended(completion);
        }
        found
    }
}

impl<D: Device> Device for Sectors<D> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        while self.parents.len() < REQUESTS_MAX
            && let Some(request) = batch.pop_front()
        {
            self.take(request);
        }
        self.inner.submit();
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        while self.turn() {}
        let found = self.done.len();
        out.append(&mut self.done);
        found
    }

    fn arm(&mut self) -> bool {
        self.done.is_empty() && self.admitted.is_empty() && self.inner.device.arm()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.device.fd()
    }

    fn due(&self) -> Option<Instant> {
        self.inner.device.due()
    }
}

/// Requests in flight; more wait with the caller.
const REQUESTS_MAX: usize = 1024;

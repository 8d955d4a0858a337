//! Requests whose bytes lie in several pieces of the caller's memory.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::time::Instant;

use overside_memory::{Buffer, Bytes, Segment};

use crate::device::{Completion, Device, DeviceError, Geometry, Request, Work};
use crate::slots::Slots;

/// A READ into, or a WRITE from, pieces of memory of any lengths, one behind the other.
///
/// It owns them from when it is submitted until it comes back, as a [`Request`] its buffer.
/// Together they are whole units of the device; each by itself need not be.
#[derive(Debug)]
pub struct Scattered {
    /// The caller's own number.
    pub tag: u64,
    /// First byte of the device.
    pub at: u64,
    /// Where the bytes go, or are.
    pub pieces: Pieces,
}

/// Where a scattered request's bytes go, or are.
#[derive(Debug)]
pub enum Pieces {
    /// A READ fills all of each.
    Into(Vec<Buffer>),
    /// A WRITE.
    From {
        /// What is written.
        pieces: Vec<Bytes>,
        /// Done only when it is on stable storage.
        fua: bool,
    },
}

/// A device that takes [`Scattered`] requests too, beside the usual ones.
///
/// Each is one request of the device below: one message, and one access of a disk. For that its
/// bytes lie in one buffer meanwhile, which costs one copy. Buffers are kept, so nothing is
/// allocated once there are as many as requests under way. Small ones share a segment: a provider
/// has room for few.
///
/// ```
/// use overside_memory::Segment;
/// use overside_volume::{Device, MemoryDevice, Pieces, Scattered, Staged};
///
/// let mut device = Staged::new(MemoryDevice::new(1 << 20)?);
/// let pieces = Segment::private(8192)?.carve(1024);
/// let read = Scattered { tag: 7, at: 4096, pieces: Pieces::Into(pieces) };
/// device.submit_scattered(&mut [read].into());
/// let mut ended = Vec::new();
/// // Of a volume that is elsewhere: `overside_volume::wait`, or its descriptor, until it is there.
/// while device.poll_scattered(&mut ended) == 0 {}
/// let (read, result) = ended.remove(0);
/// assert_eq!((read.tag, result), (7, Ok(())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Staged<D> {
    device: D,
    /// For whom each request under way is, by the device's tags.
    routes: Slots<Route>,
    /// What the device had no room for yet.
    queue: VecDeque<Request>,
    polled: Vec<Completion>,
    plain: Vec<Completion>,
    scattered: Vec<(Scattered, Result<(), DeviceError>)>,
    /// By length, a power of two: what is kept for requests that come.
    buffers: BTreeMap<usize, Vec<Buffer>>,
    /// Of these, what WRITEs had: they need not be made `Bytes` again.
    written: BTreeMap<usize, Vec<Bytes>>,
    kept_bytes: usize,
}

#[derive(Debug)]
enum Route {
    Plain(u64),
    Scattered(Scattered),
}

impl<D: Device> Staged<D> {
    /// Over a device.
    pub fn new(device: D) -> Staged<D> {
        Staged {
            device,
            routes: Slots::default(),
            queue: VecDeque::new(),
            polled: Vec::new(),
            plain: Vec::new(),
            scattered: Vec::new(),
            buffers: BTreeMap::new(),
            written: BTreeMap::new(),
            kept_bytes: 0,
        }
    }

    /// The device. What is under way over it is lost.
    pub fn into_device(self) -> D {
        self.device
    }

    /// Takes all of the batch.
    pub fn submit_scattered(&mut self, batch: &mut VecDeque<Scattered>) {
        for scattered in batch.drain(..) {
            match self.staged(&scattered) {
                Ok(work) => self.push(Route::Scattered(scattered), work),
                Err(error) => self.scattered.push((scattered, Err(error))),
            }
        }
        self.device.submit(&mut self.queue);
    }

    /// Appends the scattered requests that have ended to `out`, and how they did; how many.
    pub fn poll_scattered(&mut self, out: &mut Vec<(Scattered, Result<(), DeviceError>)>) -> usize {
        self.take();
        let found = self.scattered.len();
        out.append(&mut self.scattered);
        found
    }

    fn push(&mut self, route: Route, work: Work) {
        let tag = self.routes.insert(route);
        self.queue.push_back(Request { tag, work });
    }

    /// A request for one buffer.
    fn staged(&mut self, scattered: &Scattered) -> Result<Work, DeviceError> {
        let lengths: &mut dyn Iterator<Item = usize> = match &scattered.pieces {
            Pieces::Into(pieces) => &mut pieces.iter().map(|piece| piece.len()),
            Pieces::From { pieces, .. } => &mut pieces.iter().map(|piece| piece.len()),
        };
        let length = lengths.fold(0, usize::saturating_add);
        if length == 0 || length as u64 > self.device.geometry().bytes {
            return Err(DeviceError::Invalid);
        }
        let at = scattered.at;
        match &scattered.pieces {
            Pieces::Into(_) => {
                let into = self.buffer(length).ok_or(DeviceError::NoMemory)?;
                Ok(Work::Read { at, length, into })
            }
            Pieces::From { pieces, fua } => {
                let mut from = self.bytes(length).ok_or(DeviceError::NoMemory)?;
                // Nobody else has it.
                let filled = from.refill(pieces);
                debug_assert!(filled && from.len() == length);
                Ok(Work::Write { at, from, fua: *fua })
            }
        }
    }

    fn buffer(&mut self, length: usize) -> Option<Buffer> {
        let room = room_of(length)?;
        if let Some(buffer) = self.buffers.get_mut(&room).and_then(Vec::pop) {
            self.kept_bytes -= room;
            return Some(buffer);
        }
        let mut cut = memory(room)?;
        let buffer = cut.pop();
        if self.kept_bytes + cut.len() * room > KEPT_BYTES_MAX {
            // Of lengths that nobody asks for now.
            self.buffers.clear();
            self.written.clear();
            self.kept_bytes = 0;
        }
        self.kept_bytes += cut.len() * room;
        self.buffers.entry(room).or_default().append(&mut cut);
        buffer
    }

    fn bytes(&mut self, length: usize) -> Option<Bytes> {
        let room = room_of(length)?;
        let Some(bytes) = self.written.get_mut(&room).and_then(Vec::pop) else {
            return self.buffer(length).map(Bytes::from);
        };
        self.kept_bytes -= room;
        Some(bytes)
    }

    /// Whether so much more is kept.
    fn keeps(&mut self, bytes: usize) -> bool {
        let keeps = self.kept_bytes + bytes <= KEPT_BYTES_MAX;
        self.kept_bytes += if keeps { bytes } else { 0 };
        keeps
    }

    /// A device may keep what was written for longer: then it is the device's.
    fn put_written(&mut self, mut from: Bytes) {
        let room = from.buffer().len();
        if from.refill::<Bytes>(&[]) && self.keeps(room) {
            self.written.entry(room).or_default().push(from);
        }
    }

    /// Gives the device what it had no room for. An empty batch would wake some.
    fn hand_on(&mut self) {
        if !self.queue.is_empty() {
            self.device.submit(&mut self.queue);
        }
    }

    /// Takes what the device has ended.
    fn take(&mut self) {
        self.hand_on();
        let mut polled = std::mem::take(&mut self.polled);
        self.device.poll(&mut polled);
        for Completion { tag, work, result } in polled.drain(..) {
            match self.routes.remove(tag) {
                Some(Route::Plain(tag)) => self.plain.push(Completion { tag, work, result }),
                Some(Route::Scattered(scattered)) => self.ended(scattered, work, result),
                None => {}
            }
        }
        self.polled = polled;
    }

    fn ended(&mut self, mut scattered: Scattered, work: Work, result: Result<(), DeviceError>) {
        match work {
            Work::Read { into, .. } => {
                if let (Pieces::Into(pieces), Ok(())) = (&mut scattered.pieces, result) {
                    let mut rest = &into[..];
                    for piece in pieces {
                        let (here, behind) = rest.split_at(piece.len());
                        piece.copy_from_slice(here);
                        rest = behind;
                    }
                }
                if self.keeps(into.len()) {
                    self.buffers.entry(into.len()).or_default().push(into);
                }
            }
            Work::Write { from, .. } => self.put_written(from),
            _ => {}
        }
        self.scattered.push((scattered, result));
    }
}

impl<D: Device> Device for Staged<D> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        for Request { tag, work } in batch.drain(..) {
            self.push(Route::Plain(tag), work);
        }
        self.device.submit(&mut self.queue);
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.take();
        let found = self.plain.len();
        out.append(&mut self.plain);
        found
    }

    /// False, too, while something has ended that was not taken yet, of either kind.
    fn arm(&mut self) -> bool {
        // What a full device, or one that is away, leaves waits until that has ended something, and tells of it.
        self.hand_on();
        let tells = self.queue.is_empty() || self.routes.len() > self.queue.len();
        tells && self.plain.is_empty() && self.scattered.is_empty() && self.device.arm()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.device.fd()
    }

    fn due(&self) -> Option<Instant> {
        self.device.due()
    }
}

/// Bytes of the buffer for a request of this length.
fn room_of(length: usize) -> Option<usize> {
    length.checked_next_power_of_two().map(|room| room.max(SMALLEST))
}

/// A segment of a kind that a node may read from, cut into buffers of `room` bytes.
fn memory(room: usize) -> Option<Vec<Buffer>> {
    let bytes = room.max(SEGMENT_BYTES);
    Some(Segment::shared(bytes).or_else(|_| Segment::private(bytes)).ok()?.carve(room))
}

const SMALLEST: usize = 4096;
/// Shorter buffers share so much.
const SEGMENT_BYTES: usize = 1 << 20;
/// What is kept for requests that come.
const KEPT_BYTES_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::MemoryDevice;

    /// Pieces of these lengths, each full of its number.
    fn pieces(lengths: &[usize]) -> Vec<Buffer> {
        let cut = |(number, length): (usize, &usize)| {
            let room = room_of(*length)?;
            let (mut piece, _) = Segment::private(room).ok()?.carve(room).pop()?.split_at(*length);
            piece.fill(number as u8 + 1);
            Some(piece)
        };
        lengths.iter().enumerate().map(|each| cut(each).unwrap()).collect()
    }

    fn carried_out(device: &mut Staged<MemoryDevice>, at: u64, pieces: Pieces) -> (Pieces, Result<(), DeviceError>) {
        let mut ended = Vec::new();
        device.submit_scattered(&mut [Scattered { tag: at, at, pieces }].into());
        assert_eq!(device.poll_scattered(&mut ended), 1);
        let (scattered, result) = ended.remove(0);
        assert_eq!((scattered.tag, scattered.at), (at, at));
        (scattered.pieces, result)
    }

    #[test]
    fn pieces_lie_one_behind_the_other_and_memory_is_used_again() {
        let mut device = Staged::new(MemoryDevice::new(1 << 20).unwrap());
        let mut kept = None;
        for round in 0..20 {
            let from = pieces(&[1, 511, 1000, 536]).into_iter().map(Bytes::from).collect();
            let (given, result) = carried_out(&mut device, 4096, Pieces::From { pieces: from, fua: true });
            assert_eq!(result, Ok(()));
            let Pieces::From { pieces: from, .. } = given else { panic!("{given:?}") };
            assert!(from.into_iter().all(|piece| piece.into_buffer().is_ok()), "nobody shares what has been written");
            let (given, result) = carried_out(&mut device, 4096, Pieces::Into(pieces(&[512, 1000, 24, 512])));
            let Pieces::Into(into) = given else { panic!("{given:?}") };
            assert_eq!(result, Ok(()));
            let found: Vec<u8> = into.iter().flat_map(|piece| piece.iter().copied()).collect();
            let expected = [vec![1; 1], vec![2; 511], vec![3; 1000], vec![4; 536]].concat();
            assert!(found == expected, "round {round}");
            let now = (segments(&device), device.kept_bytes);
            assert_eq!(*kept.get_or_insert(now), now, "round {round}");
        }
    }

    /// How many segments all that is kept lies in.
    fn segments(device: &Staged<MemoryDevice>) -> usize {
        let written = device.written.values().flatten().map(|bytes| &**bytes.buffer());
        let all = device.buffers.values().flatten().chain(written);
        all.map(|buffer| buffer.segment_id()).collect::<BTreeSet<_>>().len()
    }

    /// A provider registers, and a node maps, no more than a few.
    #[test]
    fn small_buffers_share_segments_and_no_two_requests_a_buffer() {
        let mut device = Staged::new(MemoryDevice::new(1 << 20).unwrap());
        let writes = |tag: u64| {
            let mut bytes = pieces(&[512]).remove(0);
            bytes.fill(tag as u8);
            Scattered { tag, at: tag * 512, pieces: Pieces::From { pieces: vec![bytes.into()], fua: false } }
        };
        let reads = |tag: u64| Scattered { tag, at: tag * 512, pieces: Pieces::Into(pieces(&[512])) };
        let mut ended = Vec::new();
        for round in [(0..200).map(writes).collect::<VecDeque<_>>(), (0..200).map(reads).collect()] {
            device.submit_scattered(&mut { round });
            while device.routes.len() > 0 {
                device.poll_scattered(&mut ended);
            }
        }
        assert_eq!(ended.len(), 400);
        for (Scattered { tag, pieces, .. }, result) in ended {
            assert_eq!(result, Ok(()));
            if let Pieces::Into(into) = pieces {
                assert!(into[0].iter().all(|byte| *byte == tag as u8), "{tag}");
            }
        }
        assert_eq!((segments(&device), device.kept_bytes), (2, 2 << 20));
        // What is kept of other lengths makes room, and no more is kept than may be.
        let reads = |length: usize| Pieces::Into(vec![memory(length).unwrap().remove(0)]);
        let mut large = Staged::new(MemoryDevice::new(KEPT_BYTES_MAX as u64 * 2).unwrap());
        for length in [KEPT_BYTES_MAX, SMALLEST, KEPT_BYTES_MAX, 2 * KEPT_BYTES_MAX, KEPT_BYTES_MAX / 2] {
            assert_eq!(carried_out(&mut large, 0, reads(length)).1, Ok(()));
            assert!(large.kept_bytes <= KEPT_BYTES_MAX, "{length}: {}", large.kept_bytes);
        }
        assert_eq!(large.buffers.values().map(Vec::len).sum::<usize>(), 1 + (1 << 20) / SMALLEST);
    }

    #[test]
    fn what_cannot_be_is_refused_and_read_nowhere() {
        let mut device = Staged::new(MemoryDevice::new(8192).unwrap());
        for lengths in [&[][..], &[100], &[512, 100], &[8192, 512]] {
            let (given, result) = carried_out(&mut device, 0, Pieces::Into(pieces(lengths)));
            let Pieces::Into(into) = given else { panic!("{given:?}") };
            assert_eq!(result, Err(DeviceError::Invalid), "{lengths:?}");
            let untouched = |(number, piece): (usize, &Buffer)| piece.iter().all(|byte| *byte == number as u8 + 1);
            assert!(into.iter().enumerate().all(untouched), "{lengths:?}");
        }
        // Too much to be had, whatever its pieces.
        assert!(room_of(usize::MAX).is_none() && memory(1 << 62).is_none());
    }
}

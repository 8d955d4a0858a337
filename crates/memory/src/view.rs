//! Bytes to be sent, from where they lie.

use std::sync::Arc;

use overside_shape::{Run, Shape};
use smallvec::SmallVec;

use crate::MemoryError;
use crate::buffer::Buffer;
use crate::bytes::Bytes;
use crate::hold::Hold;
use crate::segment::SegmentId;

/// A contiguous piece of a view: the scatter/gather element of verbs.
#[derive(Clone, Copy, Debug)]
pub struct Fragment {
    /// First byte.
    pub address: *const u8,
    /// Length in bytes.
    pub len: u32,
    /// The segment it lies in, [`SegmentId::FOREIGN`] for a user's heap.
    pub segment: SegmentId,
}

impl Fragment {
    /// Bytes that lie together: one fragment (without bytes too), unless they are more than one can
    /// say.
    pub(crate) fn of(address: *const u8, len: usize, segment: SegmentId) -> impl Iterator<Item = Fragment> {
        (0..len.max(1)).step_by(FRAGMENT_BYTES_MAX).map(move |at| {
            let len = (len - at).min(FRAGMENT_BYTES_MAX) as u32;
            Fragment { address: address.wrapping_add(at), len, segment }
        })
    }
}

/// Fragments in message order over memory that stays put and unchanged while the hold lives.
///
/// A posted send owns its view, so the memory cannot be taken back before the completion:
///
/// ```compile_fail,E0382
/// # use overside_memory::{Segment, View};
/// # let buffer = Segment::private(4096).unwrap().carve(4096).pop().unwrap();
/// fn post_send(_: View) {}
/// let view = View::whole(buffer);
/// post_send(view);
/// drop(view); // moved
/// ```
///
/// and the buffer under it cannot be written:
///
/// ```compile_fail,E0382
/// # use overside_memory::{Segment, View};
/// # let mut buffer = Segment::private(4096).unwrap().carve(4096).pop().unwrap();
/// let view = View::whole(buffer);
/// buffer[0] = 1; // moved
/// ```
#[derive(Debug)]
pub struct View {
    fragments: SmallVec<[Fragment; 4]>,
    bytes: u64,
    hold: Hold,
}

// SAFETY: [view] the fragments' bytes are immutable while the hold lives, and the hold is Send.
unsafe impl Send for View {}
// SAFETY: [view] as above.
unsafe impl Sync for View {}

/// A part of a message that lies in two memories: [`View::mixed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewPart {
    /// Bytes from where they lie.
    Run(Run),
    /// So many of the packed bytes that come next.
    Packed(u32),
}

impl View {
    /// All of a buffer.
    pub fn whole(buffer: Buffer) -> Self {
        let len = buffer.len();
        Self::prefix(buffer, len)
    }

    /// The first `len` bytes of a buffer (all of it when `len` is larger): what was packed
    /// into a transmit buffer.
    pub fn prefix(buffer: Buffer, len: usize) -> Self {
        let fragments = Fragment::of(buffer.as_ptr(), len.min(buffer.len()), buffer.segment_id());
        // SAFETY: [view] the hold owns the buffer, so nobody writes it.
        unsafe { Self::pinned(fragments, Hold::from(Box::new(buffer))) }
    }

    /// The bytes of `shape` in a shared buffer (offsets from the buffer's start).
    ///
    /// # Errors
    /// [`MemoryError::Escapes`] when the shape ends past the buffer.
    pub fn of(buffer: &Arc<Buffer>, shape: &Shape) -> Result<Self, MemoryError> {
        Self::runs(buffer, shape.fragments())
    }

    /// Runs of a shared buffer (offsets from the buffer's start), in this order.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`] when one ends past the buffer.
    pub fn runs(buffer: &Arc<Buffer>, runs: impl IntoIterator<Item = Run>) -> Result<Self, MemoryError> {
        let mut fragments = SmallVec::new();
        for run in runs {
            push(&mut fragments, lying(buffer, run)?);
        }
        // SAFETY: [view] an Arc<Buffer> has no writer, and the hold keeps it.
        Ok(unsafe { Self::pinned(fragments, Hold::from(buffer.clone())) })
    }

    /// One message out of two memories: runs of a shared buffer, and between them stretches of
    /// `packed`, one after another from its start.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`] when a run ends past the buffer, or the stretches past what was
    /// packed.
    pub fn mixed(
        buffer: &Arc<Buffer>,
        packed: View,
        parts: impl IntoIterator<Item = ViewPart>,
    ) -> Result<Self, MemoryError> {
        let (start, segment, all) = match packed.fragments[..] {
            [Fragment { address, len, segment }] => (address, segment, u64::from(len)),
            _ => (std::ptr::null(), SegmentId::FOREIGN, 0),
        };
        let (mut fragments, mut used) = (SmallVec::new(), 0);
        for part in parts {
            match part {
                ViewPart::Run(run) => push(&mut fragments, lying(buffer, run)?),
                ViewPart::Packed(len) if u64::from(len) <= all - used => {
                    fragments.push(Fragment { address: start.wrapping_add(used as usize), len, segment });
                    used += u64::from(len);
                }
                ViewPart::Packed(len) => return Err(MemoryError::Escapes { at: used, len: u64::from(len), of: all }),
            }
        }
        let hold = Hold::from(Box::new((packed, buffer.clone())));
        // SAFETY: [view] an Arc<Buffer> has no writer, what is packed is the other view's, and the hold keeps both.
        Ok(unsafe { Self::pinned(fragments, hold) })
    }

    /// Shared bytes, one behind the other, as one message with one hold.
    pub fn gathered(parts: Vec<Bytes>) -> Self {
        let fragments: SmallVec<[Fragment; 4]> =
            parts.iter().flat_map(|part| Fragment::of(part.as_ptr(), part.len(), part.buffer().segment_id())).collect();
        // SAFETY: [view] nobody writes shared bytes, and the hold shares each.
        unsafe { Self::pinned(fragments, Hold::from(Box::new(parts))) }
    }

    /// Memory of the user's own, outside of every segment. A provider may have to copy it. Which
    /// bytes, `T` is asked once.
    pub fn foreign<T: AsRef<[u8]> + Send + Sync + 'static>(bytes: Arc<T>) -> Self {
        let slice: &[u8] = (*bytes).as_ref();
        let fragments: SmallVec<[Fragment; 4]> =
            Fragment::of(slice.as_ptr(), slice.len(), SegmentId::FOREIGN).filter(|part| part.len > 0).collect();
        // SAFETY: [view] the slice borrows from `T`, which stays where it is and has no `&mut`
        // while the hold shares the Arc: the borrow could be kept as long as the hold.
        unsafe { Self::pinned(fragments, Hold::from(bytes)) }
    }

    /// Fragments of memory that somebody pinned.
    ///
    /// # Safety
    /// Until `hold` is released, nobody writes or reuses the fragments' bytes, which lie within
    /// the segments they name (for [`SegmentId::FOREIGN`]: within one allocation each).
    pub unsafe fn pinned(fragments: impl IntoIterator<Item = Fragment>, hold: Hold) -> Self {
        let fragments: SmallVec<[Fragment; 4]> = fragments.into_iter().collect();
        let bytes = fragments.iter().map(|f| u64::from(f.len)).sum();
        Self { fragments, bytes, hold }
    }

    /// This view's bytes, then the other's, as one message with one hold.
    pub fn then(mut self, other: View) -> View {
        self.fragments.extend(other.fragments);
        Self { fragments: self.fragments, bytes: self.bytes + other.bytes, hold: self.hold.both(other.hold) }
    }

    /// The fragments in message order.
    pub fn fragments(&self) -> &[Fragment] {
        &self.fragments
    }

    /// Bytes in the message.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies the message into `out`, as far as it goes; for tests and for providers that pack.
    pub fn copy_to(&self, out: &mut [u8]) -> usize {
        let mut done = 0;
        for fragment in &self.fragments {
            // SAFETY: [view] immutable and alive while we have the hold.
            let bytes = unsafe { std::slice::from_raw_parts(fragment.address, fragment.len as usize) };
            let take = bytes.len().min(out.len() - done);
            out[done..done + take].copy_from_slice(&bytes[..take]);
            done += take;
        }
        done
    }
}

/// A run of a buffer, if it lies there.
fn lying(buffer: &Buffer, run: Run) -> Result<(*const u8, usize, SegmentId), MemoryError> {
    let of = buffer.len() as u64;
    match run.at.checked_add(run.len) {
        Some(end) if end <= of => {
            Ok((buffer.as_ptr().wrapping_add(run.at as usize), run.len as usize, buffer.segment_id()))
        }
        _ => Err(MemoryError::Escapes { at: run.at, len: run.len, of }),
    }
}

#[inline]
fn push(fragments: &mut SmallVec<[Fragment; 4]>, (address, len, segment): (*const u8, usize, SegmentId)) {
    match u32::try_from(len) {
        Ok(len) => fragments.push(Fragment { address, len, segment }),
        Err(_) => fragments.extend(Fragment::of(address, len, segment)),
    }
}

/// Longer ones are cut: whole pages, so that parts begin on one.
const FRAGMENT_BYTES_MAX: usize = 1 << 31;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::Segment;

    #[test]
    fn shared_bytes_are_gathered_and_shared_until_the_view_ends() {
        let buffer = |fill| {
            let mut buffer = Segment::private(4096).unwrap().carve(4096).pop().unwrap();
            buffer.fill(fill);
            Bytes::from(buffer)
        };
        let (first, second) = (buffer(1), buffer(2));
        let view = View::gathered(vec![first.slice(10..12), second.slice(0..1), first.slice(0..0)]);
        let mut out = [0; 8];
        assert_eq!((view.copy_to(&mut out), view.bytes(), out), (3, 3, [1, 1, 2, 0, 0, 0, 0, 0]));
        assert_eq!(view.fragments()[1].segment, second.buffer().segment_id());
        let first = first.into_buffer().unwrap_err();
        drop(view);
        assert!(first.into_buffer().is_ok() && second.into_buffer().is_ok());
        assert_eq!(View::gathered(Vec::new()).bytes(), 0);
    }

    #[test]
    fn a_view_gathers_in_message_order() {
        let mut buffer = Segment::private(4096).unwrap().carve(4096).pop().unwrap();
        buffer.iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
        let shape = Shape::list(&[Run::new(9, 2), Run::new(1, 3)]).unwrap();
        let view = View::of(&Arc::new(buffer), &shape).unwrap();
        let view = view.then(View::foreign(Arc::new(vec![77u8])));
        let mut out = [0; 8];
        assert_eq!((view.bytes(), view.copy_to(&mut out)), (6, 6));
        assert_eq!(out, [9, 10, 1, 2, 3, 77, 0, 0]);
    }

    #[test]
    fn a_message_of_two_memories_is_in_the_order_of_its_parts() {
        let mut buffers = Segment::private(4096).unwrap().carve(2048);
        let [mut packed, mut rows] = [buffers.pop().unwrap(), buffers.pop().unwrap()];
        rows.iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
        packed.iter_mut().enumerate().for_each(|(i, b)| *b = 100u8.wrapping_add(i as u8));
        let rows = Arc::new(rows);
        let parts =
            [ViewPart::Packed(2), ViewPart::Run(Run::new(7, 2)), ViewPart::Packed(1), ViewPart::Run(Run::new(2047, 1))];
        let view = View::mixed(&rows, View::prefix(packed, 3), parts).unwrap();
        let mut out = [0; 8];
        assert_eq!((view.bytes(), view.copy_to(&mut out), view.fragments().len()), (6, 6, 4));
        assert_eq!(out, [100, 101, 7, 8, 102, 255, 0, 0]);
    }

    #[test]
    fn parts_that_leave_their_memory_are_refused() {
        let mut buffers = Segment::private(4096).unwrap().carve(1024);
        let rows = Arc::new(buffers.pop().unwrap());
        for run in [Run::new(1024, 1), Run::new(0, 1025), Run::new(u64::MAX, 2)] {
            assert!(matches!(View::runs(&rows, [run]), Err(MemoryError::Escapes { of: 1024, .. })), "{run:?}");
            let packed = View::prefix(buffers.pop().unwrap(), 8);
            assert!(View::mixed(&rows, packed, [ViewPart::Packed(8), ViewPart::Run(run)]).is_err(), "{run:?}");
        }
        let packed = || View::foreign(Arc::new([1u8, 2, 3]));
        assert!(View::mixed(&rows, packed(), [ViewPart::Packed(2), ViewPart::Packed(2)]).is_err());
        assert!(View::mixed(&rows, packed(), [ViewPart::Packed(u32::MAX)]).is_err());
        assert!(
            View::mixed(&rows, packed().then(packed()), [ViewPart::Packed(1)]).is_err(),
            "packed bytes lie together"
        );
        assert_eq!(View::mixed(&rows, packed(), [ViewPart::Packed(2), ViewPart::Packed(1)]).unwrap().bytes(), 3);
    }

    /// Gives another slice each time, or panics.
    struct Fickle {
        bytes: [Vec<u8>; 2],
        asked: AtomicUsize,
        panics: bool,
    }

    impl AsRef<[u8]> for Fickle {
        fn as_ref(&self) -> &[u8] {
            assert!(!self.panics, "planted");
            &self.bytes[self.asked.fetch_add(1, Ordering::Relaxed).min(1)]
        }
    }

    #[test]
    fn memory_of_the_users_own_is_what_it_said_first() {
        let fickle = |panics| {
            let bytes = [vec![1; 100], vec![2; 100_000]];
            Arc::new(Fickle { bytes, asked: AtomicUsize::new(0), panics })
        };
        let owner = fickle(false);
        let view = View::foreign(owner.clone()).then(View::foreign(Arc::new(vec![3u8])));
        let mut out = vec![0; 200_000];
        assert_eq!((view.bytes(), view.copy_to(&mut out), owner.asked.load(Ordering::Relaxed)), (101, 101, 1));
        assert!(out[..100].iter().all(|byte| *byte == 1) && out[100] == 3);
        drop(view);
        assert_eq!(Arc::strong_count(&owner), 1);
        let owner = fickle(true);
        let kept = owner.clone();
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| View::foreign(kept))).is_err());
        assert_eq!(Arc::strong_count(&owner), 1, "nothing keeps it");
    }

    /// Fragments whose iterator panics leave no view, and their hold is released.
    #[test]
    fn a_view_that_does_not_come_about_holds_nothing() {
        let value = Arc::new(7);
        let panics = std::iter::from_fn(|| -> Option<Fragment> { panic!("planted") });
        // SAFETY: [view] there is no fragment.
        let made = || unsafe { View::pinned(panics, Hold::from(value.clone())) };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(made)).is_err());
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn a_shape_past_the_buffer_is_refused() {
        let buffer = Arc::new(Segment::private(4096).unwrap().carve(4096).pop().unwrap());
        let shape = Shape::contiguous(4000, 97).unwrap();
        assert!(matches!(View::of(&buffer, &shape), Err(MemoryError::Escapes { .. })));
    }

    /// A length has 32 bits, a buffer may have more. Nothing of it is touched, so it costs no
    /// memory.
    #[test]
    fn no_byte_of_a_long_buffer_is_left_out() {
        const LEN: usize = (5 << 30) + 4096;
        let long = || Segment::private(LEN).unwrap().carve(LEN).pop().unwrap();
        let together = |view: &View| {
            let mut end = view.fragments()[0].address;
            for fragment in view.fragments() {
                assert_eq!(fragment.address, end, "one behind the other");
                end = end.wrapping_add(fragment.len as usize);
            }
        };
        let shape = Shape::contiguous(4096, LEN as u64 - 4096).unwrap();
        let of = View::of(&Arc::new(long()), &shape).unwrap();
        let (whole, prefix) = (View::whole(long()), View::prefix(long(), 4 << 30));
        assert_eq!((whole.bytes(), prefix.bytes(), of.bytes()), (LEN as u64, 4 << 30, LEN as u64 - 4096));
        [&whole, &prefix, &of].into_iter().for_each(together);
        let none = View::prefix(long(), 0);
        assert_eq!((none.bytes(), none.fragments().len()), (0, 1));
    }
}

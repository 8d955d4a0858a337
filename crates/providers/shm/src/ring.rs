//! The layout of a control memory and of what is in its rings, version 5.
//!
//! Each side of a connection has one control memory: it alone writes it, the peer maps it
//! read-only. Native-endian 64-bit words: both ends are on one host.
//!
//! ```text
//! 0     rung      (32 bits) the number of the peer's sleep that this side ended last
//! 128   consumed  of the peer's descriptors, ever
//! 256   armed     0, or the number of the present sleep above 34 bits: 1 it ends by `rung`, else by a doorbell; 2 by `consumed` too,
//!                 once its lower half has come to bits 2..34
//! 264   returns   0, or how many returns the present sleep waits for, ever
//! 384   closed    0 open, 1 closed, 2 a message was longer than its receive, 3 the other side broke the protocol
//! 512   depth descriptors of 64 bytes                (depth: a power of two, 32 to 4,096)
//! then  cells of 16 bytes                            (cells: a power of two, 256 to 32,768)
//! then  returns of 8 bytes, four times as many as descriptors
//! ```
//!
//! A descriptor's first two words, then six words of gather entries or inline bytes:
//!
//! ```text
//! word 0   bits 0..8 operation: 1 gather, 2 inline, 3 written, 4 region, 5 lend   8..16 flags: 1 immediate, 2 report
//!          16..32 gather entries (at most 256)                  32..64 immediate data
//! word 1   bits 0..32 bytes of the message: at most 1 GiB; 512 when inline; of a region's description, at most 32 MiB
//!          32..64 stamp: the lap around the ring, counted from 0, with bit 63 set
//! ```
//!
//! A gather entry is two words: the offset in the segment; segment id (low half) and length (high
//! half). Up to three entries, and up to 48 inline bytes, lie in the descriptor. When there are
//! more, all of them lie in cells. Cells are used in the descriptors' order, so no descriptor says
//! where its cells are. *Written* has nothing to copy: a WRITE has placed its bytes and consumes a
//! receive.
//!
//! *Lend* is a gather of at least one entry whose sender offers the bytes as a *loan*. If its
//! receive takes loans, the reader may keep the ranges instead of copying them. The number of the
//! loan is the lower half of the descriptor's number, counted from 0. The sender keeps the bytes as
//! they are until the reader returns the loan, or until the connection ends. In the second case it
//! first stores `closed`, then makes a full fence, then lets go. So a reader that finds `closed`
//! still 0 after its last load has read what was sent.
//!
//! Every offered loan is returned once. Its reader writes the number into its own ring of returns,
//! in any order: before it raises `consumed` where it copied the message, else when it is done
//! reading. The sender takes returns in the order of their places, after it has looked at
//! `consumed`.
//!
//! ```text
//! return   bits 0..32 number of the loan    32..64 the lap around the ring of returns, counted from 0, with bit 63 set
//! ```
//!
//! A return rings for a sleep that waits for so many, and for any sleep once its reader has armed.
//! One by a copy rings when `consumed` is raised.
//!
//! A sender offers no more loans at a time than its reader has places for returns; a reader keeps
//! no more than it has places, and copies the rest. A return of what was not lent, or of what was
//! returned before, ends the connection.
//!
//! A *region* is one descriptor for many messages (Regions). It has no immediate data; its
//! other six words are
//!
//! ```text
//! word 2   offset of the description        word 3   its segment (low half), its length (high half)
//! word 4   offset of the memory             word 5   the memory's length
//! word 6   the memory's segment (low half), how many bytes messages share a SEND up to, at most 1 GiB (high half)     word 7   0
//! ```
//!
//! Memory and segments are checked first. The reader copies the description out whole and checks it
//! once; what the sender writes there later changes nothing. Then it makes one SEND after another
//! from the memory, each in its next receive. They are cut and framed as declared messages: as many
//! whole messages as fit, one at least. It looks at `closed` after each, and raises `consumed`
//! after the last. A description that describes nothing, of no message, or of a region that leaves
//! its memory, and memory that leaves its segment, end the connection.
//!
//! A reader copies a descriptor out and checks it. It copies the bytes from its read-only mapping
//! into its posted buffer, and looks at `closed` again. Only then does it complete the receive and
//! raise `consumed`. A descriptor is published by its stamp, which is stored last. The reader waits
//! for the stamp of its lap at the next descriptor, and looks at no other line meanwhile. An
//! unknown operation, a descriptor that changes once published, an entry outside of its segment, or
//! pieces longer than the message end the connection.
//!
//! `consumed` is raised soon after a message that is not inline, or whose sender asks for its
//! *report*. For any other it is raised at the latest after 16 messages, a quarter of the cells, 64
//! polls that found nothing, and before it sleeps for long. Words of a descriptor that its message
//! does not use mean nothing.
//!
//! A waiting reader looks at one line only (rdma-sockets variant 2, RS-M10).

/// The sizes of a control memory's rings; powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    depth: u32,
    cells: u32,
}

impl Geometry {
    /// Room for `depth` requests with `sges` gather entries in all; at least one full gather list
    /// fits.
    pub(crate) fn for_options(depth: usize, sges: usize) -> Self {
        let depth = depth.clamp(DEPTH_MIN, DEPTH_MAX).next_power_of_two() as u32;
        let cells = sges.clamp(CELLS_MIN, CELLS_MAX).next_power_of_two() as u32;
        Self { depth, cells }
    }

    /// One that a model of memory can hold.
    #[cfg(test)]
    pub(crate) const fn tiny(depth: u32, cells: u32) -> Self {
        Self { depth, cells }
    }

    /// What a peer announced, if it is one that [`for_options`](Self::for_options) makes.
    pub(crate) fn checked(depth: u32, cells: u32) -> Option<Self> {
        let geometry = Self::for_options(depth as usize, cells as usize);
        (geometry == Self { depth, cells }).then_some(geometry)
    }

    pub(crate) fn depth(self) -> u32 {
        self.depth
    }

    pub(crate) fn cells(self) -> u32 {
        self.cells
    }

    /// Bytes of the control memory, whole pages.
    pub(crate) fn bytes(self) -> usize {
        (self.returns_from() + self.returns() as usize * RETURN_BYTES).next_multiple_of(PAGE_BYTES)
    }

    /// Places in the ring of returns: loans that the peer may have out at a time.
    pub(crate) fn returns(self) -> u32 {
        self.depth * RETURNS_PER_DESCRIPTOR
    }

    /// Where return number `index` lies.
    #[inline]
    pub(crate) fn return_at(self, index: u64) -> usize {
        self.returns_from() + (index & u64::from(self.returns() - 1)) as usize * RETURN_BYTES
    }

    /// What return number `index` is once it is there, for the loan of this number: never 0, and
    /// another one on each lap.
    #[inline]
    pub(crate) fn returned(self, index: u64, number: u32) -> u64 {
        let lap = index >> self.returns().trailing_zeros();
        u64::from(number) | (lap | 1 << 31) << 32
    }

    fn returns_from(self) -> usize {
        HEADER_BYTES + self.depth as usize * DESCRIPTOR_BYTES + self.cells as usize * CELL_BYTES
    }

    /// Where descriptor number `index` lies.
    #[inline]
    pub(crate) fn descriptor_at(self, index: u64) -> usize {
        HEADER_BYTES + (index & u64::from(self.depth - 1)) as usize * DESCRIPTOR_BYTES
    }

    /// What the second word of descriptor number `index` carries above its length once it is
    /// published. Never 0, and another one on each lap.
    #[inline]
    pub(crate) const fn stamp(self, index: u64) -> u64 {
        let lap = index >> self.depth.trailing_zeros();
        // The top bit is always set; of a lap 31 bits remain.
        (lap | 1 << 31) << LEN_BITS
    }

    /// Bytes from cell number `index` to the last cell's end.
    #[inline]
    pub(crate) fn until_wrap(self, index: u64) -> usize {
        (self.cells as usize - (index & u64::from(self.cells - 1)) as usize) * CELL_BYTES
    }

    /// Where cell number `index` lies.
    #[inline]
    pub(crate) fn cell_at(self, index: u64) -> usize {
        HEADER_BYTES
            + self.depth as usize * DESCRIPTOR_BYTES
            + (index & u64::from(self.cells - 1)) as usize * CELL_BYTES
    }
}

/// A published word; its offset in the control memory. Words that are stored at different times
/// have cache lines of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Word {
    Rung = 0,
    Consumed = 128,
    Armed = 256,
    /// Stored just before `Armed`, and read with it.
    Returns = 264,
    Closed = 384,
}

/// A piece of a message in the sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sge {
    pub(crate) segment: u32,
    pub(crate) len: u32,
    pub(crate) offset: u64,
}

impl Sge {
    pub(crate) fn to_words(self) -> [u64; 2] {
        [self.offset, u64::from(self.segment) | u64::from(self.len) << 32]
    }

    pub(crate) fn from_words(words: [u64; 2]) -> Self {
        Self { offset: words[0], segment: words[1] as u32, len: (words[1] >> 32) as u32 }
    }
}

/// What a descriptor asks of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Copy this many pieces from the sender's memory.
    Gather(usize),
    /// The same, or keep the pieces as a loan. Of one piece at least.
    Lend(usize),
    /// Copy the bytes that ride along.
    Inline,
    /// Make messages of a region by its description.
    Region,
    /// Nothing to copy: a WRITE has placed its bytes and consumes a receive.
    Written,
}

/// A region's messages, as the last six words of a descriptor say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionWords {
    /// Where the shape is described.
    pub(crate) description: Sge,
    /// The memory that the shape's offsets count from: segment, offset, length.
    pub(crate) segment: u32,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Up to so many bytes, whole messages share a SEND.
    pub(crate) bundle_bytes: u32,
}

impl RegionWords {
    pub(crate) fn to_words(self) -> [u64; 6] {
        let [at, what] = self.description.to_words();
        [at, what, self.offset, self.len, u64::from(self.segment) | u64::from(self.bundle_bytes) << 32, 0]
    }

    /// None for what no sender of ours writes.
    pub(crate) fn from_words(words: [u64; 6]) -> Option<Self> {
        let [at, what, offset, len, last, zero] = words;
        let (segment, bundle_bytes) = (last as u32, (last >> 32) as u32);
        let description = Sge::from_words([at, what]);
        let bounded = u64::from(description.len) <= DESCRIPTION_MAX && u64::from(bundle_bytes) <= MESSAGE_MAX;
        (zero == 0 && bounded).then_some(Self { description, segment, offset, len, bundle_bytes })
    }
}

/// The first two words of a descriptor; the other six are [`Sge`]s, inline bytes or a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) task: Task,
    pub(crate) immediate: Option<u32>,
    /// Bytes of the message.
    pub(crate) len: u64,
    /// The sender reports its end, so somebody may wait to hear that it was consumed.
    pub(crate) report: bool,
}

impl Descriptor {
    /// The first two words, not stamped.
    #[inline]
    pub(crate) fn to_words(self) -> [u64; 2] {
        let (op, count) = match self.task {
            Task::Gather(count) => (OP_GATHER, count as u64),
            Task::Lend(count) => (OP_LEND, count as u64),
            Task::Inline => (OP_INLINE, 0),
            Task::Region => (OP_REGION, 0),
            Task::Written => (OP_WRITTEN, 0),
        };
        let immediate = self.immediate.map_or(0, |i| FLAG_IMMEDIATE << 8 | u64::from(i) << 32);
        let report = if self.report { FLAG_REPORT << 8 } else { 0 };
        [op | count << 16 | immediate | report, self.len]
    }

    /// Checked, its stamp aside; none for what no sender of ours writes.
    pub(crate) fn from_words(words: [u64; 2]) -> Option<Self> {
        let (count, flags) = ((words[0] >> 16) as u16 as usize, words[0] >> 8 & 0xff);
        let len = unstamped(words[1]);
        let task = match words[0] & 0xff {
            OP_GATHER if count <= SGE_MAX && len <= MESSAGE_MAX => Task::Gather(count),
            OP_LEND if (1..=SGE_MAX).contains(&count) && len <= MESSAGE_MAX => Task::Lend(count),
            OP_INLINE if count == 0 && len <= INLINE_MAX as u64 => Task::Inline,
            OP_REGION if count == 0 && len <= DESCRIPTION_MAX && flags & FLAG_IMMEDIATE == 0 => Task::Region,
            OP_WRITTEN if count == 0 && len <= MESSAGE_MAX => Task::Written,
            _ => return None,
        };
        let immediate = match flags & FLAG_IMMEDIATE {
            0 if words[0] >> 32 == 0 => None,
            FLAG_IMMEDIATE => Some((words[0] >> 32) as u32),
            _ => return None,
        };
        let known = flags & !(FLAG_IMMEDIATE | FLAG_REPORT) == 0;
        known.then_some(Self { task, immediate, len, report: flags & FLAG_REPORT != 0 })
    }

    /// As [`from_words`](Self::from_words), of bytes that ride along alone; none for anything else,
    /// garbage too.
    #[inline]
    pub(crate) fn inline_from_words(words: [u64; 2]) -> Option<Self> {
        let (op, immediate, len) = (words[0] as u32, (words[0] >> 32) as u32, unstamped(words[1]));
        let flagged = words[0] & FLAG_IMMEDIATE << 8 != 0;
        let known = op & !INLINE_FLAGS == OP_INLINE as u32 && (flagged || immediate == 0) && len <= INLINE_MAX as u64;
        known.then_some(Self {
            task: Task::Inline,
            immediate: flagged.then_some(immediate),
            len,
            report: words[0] & FLAG_REPORT << 8 != 0,
        })
    }

    /// How many cells it uses.
    #[inline]
    pub(crate) fn cells(&self) -> usize {
        match self.task {
            Task::Gather(count) | Task::Lend(count) if count <= SGES_INSIDE => 0,
            Task::Gather(count) | Task::Lend(count) => count,
            Task::Inline if self.len as usize <= INLINE_INSIDE => 0,
            Task::Inline => (self.len as usize).div_ceil(CELL_BYTES),
            Task::Written | Task::Region => 0,
        }
    }
}

/// A descriptor's second word without its stamp: the length.
#[inline]
pub(crate) fn unstamped(word: u64) -> u64 {
    word & ((1 << LEN_BITS) - 1)
}

/// A descriptor's second word without its length: the stamp.
#[inline]
pub(crate) fn stamp_of(word: u64) -> u64 {
    word & !((1 << LEN_BITS) - 1)
}

const LEN_BITS: u32 = 32;
const OP_GATHER: u64 = 1;
const OP_INLINE: u64 = 2;
const OP_WRITTEN: u64 = 3;
const OP_REGION: u64 = 4;
const OP_LEND: u64 = 5;
const FLAG_IMMEDIATE: u64 = 1;
const FLAG_REPORT: u64 = 2;
/// Where the flags of an inline message lie in its first word.
const INLINE_FLAGS: u32 = ((FLAG_IMMEDIATE | FLAG_REPORT) << 8) as u32;

const HEADER_BYTES: usize = 512;
pub(crate) const DESCRIPTOR_BYTES: usize = 64;
pub(crate) const CELL_BYTES: usize = 16;
const RETURN_BYTES: usize = 8;
/// Loans outlast their descriptors.
const RETURNS_PER_DESCRIPTOR: u32 = 4;
const PAGE_BYTES: usize = 4096;
/// Gather entries that fit into the descriptor; a longer list lies in the cells whole.
pub(crate) const SGES_INSIDE: usize = 3;
/// Inline bytes that fit into the descriptor; a longer payload lies in the cells whole.
pub(crate) const INLINE_INSIDE: usize = 48;

/// Gather entries of one message.
pub(crate) const SGE_MAX: usize = 256;
/// Bytes that ride in the ring.
pub(crate) const INLINE_MAX: usize = 512;
/// Bytes of a region's description: the bitmap of a quarter of a milliard rows.
pub(crate) const DESCRIPTION_MAX: u64 = 32 << 20;
/// Bytes of a message.
pub(crate) const MESSAGE_MAX: u64 = 1 << 30;
/// The completion queue above relies on at least 32 (it signals every 16th request).
const DEPTH_MIN: usize = 32;
pub(crate) const DEPTH_MAX: usize = 4096;
/// A full gather list must fit.
const CELLS_MIN: usize = SGE_MAX;
/// With the deepest ring, a control memory stays under 1 MiB and so in the cache.
const CELLS_MAX: usize = 32768;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_stays_below_32_kib_and_the_largest_below_1_mib() {
        let options = overside_verbs::PortOptions::default();
        assert!(Geometry::for_options(options.depth, options.sges).bytes() <= 32 << 10);
        assert!(Geometry::for_options(usize::MAX / 2, usize::MAX / 2).bytes() < 1 << 20);
        assert_eq!(Geometry::checked(100, 1024), None);
        assert_eq!(Geometry::checked(1 << 31, 1024), None);
        assert_eq!(Geometry::checked(128, 0), None);
        assert!(Geometry::checked(128, 1024).is_some());
    }

    #[test]
    fn descriptors_come_back() {
        for task in
            [Task::Gather(0), Task::Gather(SGE_MAX), Task::Lend(1), Task::Lend(SGE_MAX), Task::Inline, Task::Written]
        {
            for (immediate, report) in [(None, true), (Some(0), false), (Some(u32::MAX), true)] {
                let descriptor = Descriptor { task, immediate, len: 77, report };
                assert_eq!(Descriptor::from_words(descriptor.to_words()), Some(descriptor));
            }
        }
        let geometry = Geometry::for_options(32, 0);
        let stamps: Vec<u64> = (0..96).map(|index| geometry.stamp(index)).collect();
        assert!(stamps.iter().all(|stamp| unstamped(*stamp) == 0 && *stamp != 0));
        assert!(stamps[0] == stamps[31] && stamps[31] != stamps[32] && stamps[63] != stamps[64]);
        let sge = Sge { segment: u32::MAX, len: 5, offset: u64::MAX - 1 };
        assert_eq!(Sge::from_words(sge.to_words()), sge);
    }

    #[test]
    fn returns_of_each_lap_differ() {
        let geometry = Geometry::for_options(32, 0);
        let laps = [0, 127, 128, 255, 256].map(|index| (geometry.return_at(index), geometry.returned(index, 7)));
        assert!(laps[0].0 == laps[2].0 && laps[1].0 == laps[3].0 && laps[0].0 + 127 * RETURN_BYTES == laps[1].0);
        assert!(laps[0].1 == laps[1].1 && laps[1].1 != laps[2].1 && laps[2].1 == laps[3].1 && laps[3].1 != laps[4].1);
        assert!(
            laps.iter().all(|(at, word)| *at + RETURN_BYTES <= geometry.bytes() && *word != 0 && *word as u32 == 7)
        );
        assert_eq!(Descriptor::from_words([OP_LEND, 8]), None, "a loan of nothing");
    }

    #[test]
    fn regions_come_back_and_stay_in_bounds() {
        let description = Sge { segment: 7, len: 99, offset: 1 << 40 };
        let region = RegionWords { description, segment: u32::MAX, offset: 5, len: u64::MAX, bundle_bytes: 1 << 30 };
        assert_eq!(RegionWords::from_words(region.to_words()), Some(region));
        let long = Sge { len: DESCRIPTION_MAX as u32 + 1, ..description };
        assert_eq!(RegionWords::from_words(RegionWords { description: long, ..region }.to_words()), None);
        assert_eq!(RegionWords::from_words(RegionWords { bundle_bytes: 1 << 31, ..region }.to_words()), None);
        assert_eq!(RegionWords::from_words([0, 0, 0, 0, 0, 1]), None);
        let task = Descriptor { task: Task::Region, immediate: None, len: 99, report: true };
        assert_eq!(Descriptor::from_words(task.to_words()), Some(task));
        let flagged = Descriptor { immediate: Some(1), ..task };
        assert_eq!(Descriptor::from_words(flagged.to_words()), None, "its immediates are the framing's");
    }

    proptest::proptest! {
        #[test]
        fn any_words_are_a_bounded_descriptor_or_none(a in proptest::num::u64::ANY, b in proptest::num::u64::ANY, op in 0u64..7) {
            for words in [[a, b >> 32], [a & !0xff | op, b % 600], [a & 0xffff_ffff_0000_0000 | 1 << 8 | op, b >> 32]] {
                if let Some(d) = Descriptor::from_words(words) {
                    assert!(d.cells() <= CELLS_MIN);
                    assert_eq!(d.to_words(), words);
                }
                let inline = Descriptor::from_words(words).filter(|d| d.task == Task::Inline);
                assert_eq!(Descriptor::inline_from_words(words), inline);
            }
        }
    }
}

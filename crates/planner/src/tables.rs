//! A profile by ranges of lengths, so that a plan looks nothing up twice.

use overside_shape::{Mask, Shape, ShapeKind};

use crate::curve::Line;
use crate::profile::{Distance, Profile};
use crate::tally::{RANGES, Range, Tally, start_of};

/// What a piece costs, for each range of lengths.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    send: [Line; RANGES],
    /// Near, far.
    send_regular: [[Line; RANGES]; 2],
    send_packed: [Line; RANGES],
    /// Cold, warm.
    pack: [[Line; RANGES]; 2],
    /// Near, far.
    regular: [[Line; RANGES]; 2],
    /// Scattered.
    receive: [Line; RANGES],
    /// Near, far.
    receive_regular: [[Line; RANGES]; 2],
    /// Of packed entries: where nothing else is sent, and between gathered ones.
    pub(crate) whole: [Entry; RANGES],
    pub(crate) beside: [Entry; RANGES],
}

/// What a packed entry costs at both ends, beyond packing its pieces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) send: Line,
    pub(crate) receive: Line,
}

/// Nanoseconds at both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Ends {
    pub(crate) sender_ns: f64,
    pub(crate) receiver_ns: f64,
}

impl Ends {
    #[inline]
    pub(crate) fn add(&mut self, other: Ends) {
        self.sender_ns += other.sender_ns;
        self.receiver_ns += other.receiver_ns;
    }
}

/// How the pieces of a shape lie, which decides what reaching them costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessPattern {
    distance: Distance,
    /// There is a kernel for its kind.
    pub(crate) regular: bool,
    /// Nothing says where the next piece lies.
    anywhere: bool,
    warm: bool,
}

impl AccessPattern {
    pub(crate) fn of(shape: &Shape, tally: &Tally, warm: bool) -> Self {
        let (distance, regular) = match shape.kind() {
            ShapeKind::Contiguous(_) | ShapeKind::List(_) | ShapeKind::Variable { .. } => (Distance::SCATTERED, false),
            ShapeKind::Strided { .. } | ShapeKind::Bitmapped { columns: [_], .. } => {
                let pieces = tally.pieces();
                let gaps = (shape.end() - shape.start()).saturating_sub(shape.bytes());
                (Distance::of_gap(gaps as f64 / pieces.max(1.0)), true)
            }
            // Rows anywhere.
            ShapeKind::Mapped { .. } => (Distance::SCATTERED, true),
            // Each column is read from its start to its end.
            ShapeKind::Bitmapped { .. } | ShapeKind::Set { mask: Mask::Rows, .. } => (Distance::of_gap(0.0), true),
            ShapeKind::Set { mask: Mask::Periods, .. } => (Distance::SCATTERED, false),
        };
        let anywhere = !regular || matches!(shape.kind(), ShapeKind::Mapped { .. });
        Self { distance, regular, anywhere, warm }
    }
}

impl Tables {
    pub(crate) fn new(profile: &Profile) -> Self {
        let by_range = |line: &dyn Fn(u64) -> Line| std::array::from_fn(|range| line(start_of(range)));
        let ends = [Distance::of_gap(0.0), Distance::SCATTERED];
        Self {
            send: by_range(&|len| profile.send(len, false)),
            send_regular: ends.map(|distance| by_range(&|len| profile.send_regular(len, distance))),
            send_packed: by_range(&|len| profile.send(len, true)),
            pack: [false, true].map(|warm| by_range(&|len| profile.pack(len, warm))),
            regular: ends.map(|distance| by_range(&|len| profile.pack_regular(len, distance))),
            receive: by_range(&|len| profile.receive(len)),
            receive_regular: ends.map(|distance| by_range(&|len| profile.receive_regular(len, distance))),
            whole: std::array::from_fn(|range| {
                let len = start_of(range);
                Entry { send: profile.send(len, true), receive: profile.receive_packed(len) }
            }),
            beside: std::array::from_fn(|range| {
                let len = start_of(range);
                let begin = Line { fixed_ns: profile.bends.pack_run_ns, byte_ns: 0.0 };
                let send = profile.send(len, true).and(begin);
                Entry { send, receive: profile.receive_beside(len) }
            }),
        }
    }

    /// Gathering the fragments of a range.
    #[inline]
    pub(crate) fn gathered(&self, range: &Range, pattern: &AccessPattern) -> Ends {
        let send = match (pattern.warm, pattern.anywhere) {
            (true, _) => self.send_packed[range.index],
            (false, true) => self.send[range.index],
            (false, false) => between(&self.send_regular, range.index, pattern.distance),
        };
        let receive = match pattern.anywhere {
            true => self.receive[range.index],
            false => between(&self.receive_regular, range.index, pattern.distance),
        };
        Ends { sender_ns: send.at(range.pieces, range.bytes), receiver_ns: receive.at(range.pieces, range.bytes) }
    }

    /// Gathering one fragment of so many bytes that lies anywhere.
    #[inline]
    pub(crate) fn scattered(&self, range: usize, bytes: f64) -> Ends {
        Ends { sender_ns: self.send[range].at(1.0, bytes), receiver_ns: self.receive[range].at(1.0, bytes) }
    }

    /// Packing a piece that lies anywhere and that no cache holds.
    #[inline]
    pub(crate) fn pack_cold(&self, range: usize) -> Line {
        self.pack[0][range]
    }

    /// Packing an element whose neighbours are so far apart.
    #[inline]
    pub(crate) fn kernel_at(&self, range: usize, distance: Distance) -> Line {
        between(&self.regular, range, distance)
    }

    /// Packing a piece among others that are gathered.
    #[inline]
    pub(crate) fn pack(&self, range: usize, pattern: &AccessPattern) -> Line {
        self.pack[usize::from(pattern.warm)][range]
    }

    /// Packing a piece by the kernel for its shape.
    #[inline]
    pub(crate) fn kernel(&self, range: usize, pattern: &AccessPattern) -> Line {
        if pattern.regular { between(&self.regular, range, pattern.distance) } else { self.pack(range, pattern) }
    }
}

#[inline]
fn between(lines: &[[Line; RANGES]; 2], range: usize, distance: Distance) -> Line {
    let [near, far] = lines;
    if distance.far() >= 1.0 { far[range] } else { near[range].mixed(far[range], distance.far()) }
}

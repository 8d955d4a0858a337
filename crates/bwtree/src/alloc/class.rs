//! Size classes: a span divided into equal slots.

/// The sizes of an arena's spans and slots.
pub(crate) struct Classes {
    span_bytes: usize,
    spans: usize,
    /// Ordinary classes, ascending, and the reserve's at the end if there is one.
    slot_bytes: Box<[usize]>,
    ordinary: usize,
}

impl Classes {
    /// `reserve_bytes`: pieces of this size have a class of their own, for the reserve.
    pub(crate) fn new(chunk_bytes: usize, reserve_bytes: usize) -> Classes {
        // At most 64 spans to a chunk: one word says which are free.
        let span_bytes = SPAN.max(chunk_bytes / 64);
        let mut slot_bytes: Vec<usize> = PER_SPAN.iter().rev().map(|n| slot(SPAN / n)).collect();
        slot_bytes.dedup();
        let ordinary = slot_bytes.len();
        // As large as the slot that such a piece has otherwise, for a piece may have grown into all of it.
        let reserve = slot_bytes.iter().copied().find(|&slot| slot >= reserve_bytes);
        slot_bytes.extend(reserve);
        Classes { span_bytes, spans: chunk_bytes / span_bytes, slot_bytes: slot_bytes.into(), ordinary }
    }

    /// The reserve's class; `None`: its pieces are whole spans.
    pub(crate) fn reserve(&self) -> Option<usize> {
        (self.ordinary < self.slot_bytes.len()).then_some(self.ordinary)
    }

    /// How many classes are for everybody.
    pub(crate) fn ordinary(&self) -> usize {
        self.ordinary
    }

    /// Spans of a chunk.
    pub(crate) fn spans(&self) -> usize {
        self.spans
    }

    pub(crate) fn span_bytes(&self) -> usize {
        self.span_bytes
    }

    /// Slot sizes of all classes.
    pub(crate) fn slot_bytes(&self) -> &[usize] {
        &self.slot_bytes
    }

    /// Class of a piece of this size; `None`: whole spans.
    pub(crate) fn of(&self, bytes: usize) -> Option<usize> {
        let class = self.slot_bytes[..self.ordinary].partition_point(|&slot| slot < bytes);
        (class < self.ordinary).then_some(class)
    }

    pub(crate) fn slots(&self, class: usize) -> usize {
        self.span_bytes / self.slot_bytes[class]
    }
}

/// Rounds a slot's size to cache lines, and off the multiples of 512 where headers of all pages
/// would fall on the same few cache sets.
fn slot(bytes: usize) -> usize {
    let lines = bytes & !63;
    if lines >= 4096 && lines.is_multiple_of(512) { lines - 64 } else { lines }
}

const SPAN: usize = 128 << 10;
/// Slots to 128 KiB.
const PER_SPAN: [usize; 38] = [
    2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 24, 26, 28, 32, 36, 40, 48, 56, 64, 80, 96,
    112, 128, 192, 256, 384, 512, 1024,
];

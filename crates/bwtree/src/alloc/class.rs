//! Size classes: a span divided into equal slots.

/// The sizes of an arena's spans and slots.
pub(crate) struct Classes {
    span_bytes: usize,
    spans: usize,
    slot_bytes: Box<[usize]>,
}

impl Classes {
    pub(crate) fn new(chunk_bytes: usize) -> Classes {
        // At most 64 spans to a chunk: one word says which are free.
        let span_bytes = SPAN.max(chunk_bytes / 64);
        let mut slot_bytes: Vec<usize> = PER_SPAN.iter().rev().map(|n| slot(SPAN / n)).collect();
        slot_bytes.dedup();
        Classes { span_bytes, spans: chunk_bytes / span_bytes, slot_bytes: slot_bytes.into() }
    }

    /// Spans of a chunk.
    pub(crate) fn spans(&self) -> usize {
        self.spans
    }

    pub(crate) fn span_bytes(&self) -> usize {
        self.span_bytes
    }

    /// Slot sizes, ascending.
    pub(crate) fn slot_bytes(&self) -> &[usize] {
        &self.slot_bytes
    }

    /// Class of a piece of this size; `None`: whole spans.
    pub(crate) fn of(&self, bytes: usize) -> Option<usize> {
        let class = self.slot_bytes.partition_point(|&slot| slot < bytes);
        (class < self.slot_bytes.len()).then_some(class)
    }

    pub(crate) fn slots(&self, class: usize) -> usize {
        self.span_bytes / self.slot_bytes[class]
    }
}

/// Rounds a slot's size to cache lines, and off the multiples of 512 where headers of all pages would fall on the same few
/// cache sets.
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

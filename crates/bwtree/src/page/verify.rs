//! Whether bytes that parse are a page, or a record, as a tree makes them.
//!
//! [`Leaf::parse`] looks at the header alone, and accessors answer something whatever the rest
//! says. Who makes a new page of an old one, or searches in it, needs more: sections that hold what
//! their slots say, and keys in order.

use super::delta::{DeltaRecord, OVERFLOW_BYTES, Op};
use super::key::head_of;
use super::layout::*;
use super::leaf::{KEY_SLOT_AT, KEY_SLOT_SHIFT, Leaf, SLOT_AT, SLOT_OVERFLOW};

impl Leaf<'_> {
    /// Checks every row, and the fences: keys ascend between them, have at most `key_max` bytes,
    /// and lie where the search looks for them; rests lie one behind another. What is wrong
    /// otherwise.
    pub(crate) fn verify(&self, key_max: usize) -> Result<(), &'static str> {
        let (low, high) = (self.low_fence(), self.high_fence());
        let flags = self.flags & !(FLAG_FIXED | FLAG_HIGH | FLAG_OVERFLOW) == 0;
        let fences = low.len() <= key_max && high.is_none_or(|high| low < high && high.len() <= key_max);
        ensure(flags, "it has flags that no page has")?;
        ensure(fences && (high.is_some() || self.high_len == 0), "its fences are none")?;
        ensure(self.high_head() == high.map_or(u64::MAX, head_of), "its high fence's head is another key's")?;
        let hints = self.part(self.hints_at(), 8 * self.hints()).as_chunks::<8>().0;
        let hinted = self.heads().iter().skip(HINT_STRIDE).step_by(HINT_STRIDE);
        ensure(
            hints.iter().zip(hinted).all(|(hint, head)| u64::from_le_bytes(*hint) == u64::from_be_bytes(*head)),
            "its hints are other keys' heads",
        )?;
        match self.is_fixed() {
            true => self.verify_fixed_keys(key_max)?,
            false => self.verify_variable_keys(key_max)?,
        }
        if self.count() > 0 {
            let inside = self.key_parts(0).compare(low).is_ge()
                && high.is_none_or(|high| self.key_parts(self.count() - 1).compare(high).is_lt());
            ensure(inside, "its keys are outside its fences")?;
        }
        self.verify_rests()
    }

    fn verify_fixed_keys(&self, key_max: usize) -> Result<(), &'static str> {
        let heads = self.heads();
        let padding = u64::MAX.checked_shr(8 * self.fixed as u32).unwrap_or(0);
        let head = |head: &[u8; 8]| u64::from_be_bytes(*head);
        ensure(self.count() == 0 || self.common_len + self.fixed <= key_max, "its keys are too long")?;
        ensure(heads.iter().all(|bytes| head(bytes) & padding == 0), "a key's head is longer than the key")?;
        ensure(heads.windows(2).all(|pair| head(&pair[0]) < head(&pair[1])), "its keys do not ascend")
    }

    fn verify_variable_keys(&self, key_max: usize) -> Result<(), &'static str> {
        let heads = self.heads();
        let (tails_at, tails_end) = (u32_at(self.page, AT_TAILS), self.prefixes_at as u32);
        let slots = self.part(self.heads_at + 8 * self.count, 4 * (self.count + 1)).as_chunks::<4>().0;
        let slot = |bytes: &[u8; 4]| {
            let slot = u32::from_le_bytes(*bytes);
            ((slot >> KEY_SLOT_SHIFT) as usize, slot & KEY_SLOT_AT)
        };
        let ends = slots.len() == self.count + 1
            && slots.first().is_some_and(|first| slot(first).1 == tails_at)
            && slots.last().is_some_and(|last| slot(last).1 <= tails_end);
        ensure(ends, "its keys' tails lie elsewhere")?;
        let mut last: Option<(u64, usize, &[u8])> = None;
        for (head, pair) in heads.iter().zip(slots.windows(2)) {
            let ((len, from), (_, to)) = (slot(&pair[0]), slot(&pair[1]));
            let tail = self.page.get(from as usize..to as usize).ok_or("a key's tail lies elsewhere")?;
            ensure(len == 8 || len < 8 && tail.is_empty(), "a key's tail has no head")?;
            ensure(self.common_len + len + tail.len() <= key_max, "a key is too long")?;
            let head = u64::from_be_bytes(*head);
            ensure(
                head & u64::MAX.checked_shr(8 * len as u32).unwrap_or(0) == 0,
                "a key's head is longer than the key",
            )?;
            let key = (head, len, tail);
            ensure(last.is_none_or(|last| last < key), "its keys do not ascend")?;
            last = Some(key);
        }
        Ok(())
    }

    fn verify_rests(&self) -> Result<(), &'static str> {
        if !self.has_rests() {
            return ensure(!self.has_overflow(), "it has no rests, but some elsewhere");
        }
        let slots = self.part(self.slots_at, 4 * (self.count + 1)).as_chunks::<4>().0;
        let slot = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
        let ends = slots.len() == self.count + 1
            && slots.first().is_some_and(|first| slot(first) & SLOT_AT == u32_at(self.page, AT_HEAP))
            && slots.last().is_some_and(|last| slot(last) as usize == self.page.len());
        ensure(ends, "its rests lie elsewhere")?;
        let mut elsewhere = false;
        for pair in slots.windows(2) {
            let (from, to) = (slot(&pair[0]), slot(&pair[1]) & SLOT_AT);
            let len = to.checked_sub(from & SLOT_AT).ok_or("a rest ends before it begins")?;
            if from & SLOT_OVERFLOW != 0 {
                elsewhere = true;
                ensure(len as usize == OVERFLOW_BYTES, "a reference to an extent has another length")?;
            }
        }
        // A page whose last such row went still says so.
        ensure(!elsewhere || self.has_overflow(), "it has rests elsewhere and does not say so")
    }
}

impl DeltaRecord<'_> {
    /// Checks that the record is as a tree with such values makes it, and nothing follows it in
    /// `bytes`.
    pub(crate) fn verify(&self, bytes: &[u8], prefix_len: usize, key_max: usize) -> Result<(), &'static str> {
        let key = self.key();
        ensure(bytes.len() == self.record().len(), "a record has another length")?;
        ensure(key.len() <= key_max && self.head_bytes() == head_of(key).to_be_bytes(), "a record's key is none")?;
        let rest = self.rest_at().len();
        match self.op() {
            Op::Delete => ensure(self.prefix().is_empty() && rest == 0, "a delete has a value"),
            Op::Put => {
                let whole = !self.refers() || rest == OVERFLOW_BYTES;
                ensure(self.prefix().len() == prefix_len && whole, "a record's value is none")
            }
        }
    }
}

pub(crate) fn ensure(holds: bool, otherwise: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(otherwise) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{LeafBuilder, OverflowRef, Rest};

    /// Pages with keys of one length and of several, rests here and elsewhere, and none.
    fn pages() -> Vec<Vec<u8>> {
        let built = |keys: &[Vec<u8>], rest: usize| {
            let mut builder = LeafBuilder::new(4).fences(b"a", Some(b"zz"));
            for (i, key) in keys.iter().enumerate() {
                let elsewhere = OverflowRef { offset: 64 * i as u64, len: 70_000, extent: 7 };
                let bytes = vec![i as u8; rest * (i % 3)];
                let rest = if rest > 5 && i % 5 == 4 { Rest::Overflow(elsewhere) } else { Rest::Inline(&bytes) };
                builder.push(key, &[i as u8; 4], rest).unwrap();
            }
            builder.finish()
        };
        let fixed: Vec<Vec<u8>> = (0..70).map(|i| format!("key/{i:04}").into_bytes()).collect();
        let variable: Vec<Vec<u8>> = (0..70).map(|i| format!("key/{i:04}{}", "x".repeat(i % 9)).into_bytes()).collect();
        vec![
            built(&[], 0),
            built(&fixed, 0),
            built(&fixed, 6),
            built(&variable, 0),
            built(&variable, 3),
            built(&variable, 7),
        ]
    }

    #[test]
    fn pages_that_were_made_are_pages() {
        for page in pages() {
            assert_eq!(Leaf::parse(&page).unwrap().verify(100), Ok(()));
        }
        let page = pages().pop().unwrap();
        assert_eq!(Leaf::parse(&page).unwrap().verify(10), Err("a key is too long"));
    }

    /// A page with one byte changed is no page, or its rows lie between its fences in order and
    /// where the search finds them.
    #[test]
    fn what_passes_can_be_searched() {
        for page in pages() {
            for at in 0..page.len() {
                for change in [1, 0x80, 0xff] {
                    let mut page = page.clone();
                    page[at] ^= change;
                    let Ok(leaf) = Leaf::parse(&page) else { continue };
                    if leaf.verify(100).is_err() {
                        continue;
                    }
                    let keys: Vec<Vec<u8>> = (0..leaf.count()).map(|i| leaf.key_parts(i).to_vec()).collect();
                    assert!(keys.is_sorted_by(|a, b| a < b), "byte {at}");
                    for (i, key) in keys.iter().enumerate() {
                        assert_eq!(leaf.search(key), Ok(i), "byte {at}");
                        assert!(**key >= *leaf.low_fence() && leaf.high_fence().is_none_or(|high| **key < *high));
                    }
                }
            }
        }
    }
}

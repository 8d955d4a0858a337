//! Records in the order of their stamps, though they reached the log in another.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use overside_disk::mutant;

use crate::{Record, Records, record};

/// Holds records back until a floor passes them.
#[derive(Debug, Default)]
pub(crate) struct HeldRecords {
    records: BinaryHeap<One>,
    /// How many were held in all, which orders those of one stamp.
    count: u64,
}

#[derive(Debug)]
struct One {
    stamp: u64,
    order: u64,
    bytes: Vec<u8>,
}

impl HeldRecords {
    /// The records of a group, which says that every stamp below `floor` has been in a group by
    /// now, or never will be. Gives out what that settles, in order, without a copy of the group's
    /// own.
    pub fn group<'a, E>(
        &mut self,
        records: impl Iterator<Item = Record<'a>>,
        floor: u64,
        mut each: impl FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut settled = Vec::new();
        for record in records {
            if record.stamp < floor || mutant("floor-ignored") {
                settled.push(record);
            } else {
                self.hold(record);
            }
        }
        settled.sort_by_key(|record| record.stamp);
        for record in settled {
            // Of one stamp, what was held came first.
            self.pass(record.stamp.saturating_add(1), &mut each)?;
            each(record)?;
        }
        self.pass(floor, each)
    }

    fn hold(&mut self, record: Record<'_>) {
        let mut one = Records::new();
        one.push(record);
        self.records.push(One { stamp: record.stamp, order: self.count, bytes: one.bytes().to_vec() });
        self.count += 1;
    }

    fn pass<E>(&mut self, floor: u64, mut each: impl FnMut(Record<'_>) -> Result<(), E>) -> Result<(), E> {
        while self.records.peek().is_some_and(|one| one.stamp < floor) {
            let Some(one) = self.records.pop() else { break };
            for record in record::records(&one.bytes).flatten() {
                each(record)?;
            }
        }
        Ok(())
    }

    /// No group comes any more: gives out the rest, in order.
    pub fn finish<E>(mut self, mut each: impl FnMut(Record<'_>) -> Result<(), E>) -> Result<(), E> {
        self.pass(u64::MAX, &mut each)?;
        // The greatest stamp there is has none above it.
        while let Some(one) = self.records.pop() {
            for record in record::records(&one.bytes).flatten() {
                each(record)?;
            }
        }
        Ok(())
    }
}

// The least stamp is the greatest of the heap.
impl Ord for One {
    fn cmp(&self, other: &One) -> Ordering {
        (other.stamp, other.order).cmp(&(self.stamp, self.order))
    }
}

impl PartialOrd for One {
    fn partial_cmp(&self, other: &One) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for One {
    fn eq(&self, other: &One) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for One {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Change;

    #[test]
    fn records_come_out_by_stamp_as_soon_as_a_floor_passes_them() {
        let record = |stamp, table| Record { stamp, table, change: Change::Drop };
        let mut held = HeldRecords::default();
        let mut out = Vec::new();
        let groups: [(&[(u64, u32)], u64); 5] = [
            (&[(7, 0), (5, 0)], 5),
            (&[(6, 0), (9, 0)], 6),
            (&[], 8),
            (&[(8, 0), (9, 1)], 10),
            (&[(12, 0), (u64::MAX, 0)], 10),
        ];
        let mut lengths = Vec::new();
        for (records, floor) in groups {
            let records = records.iter().map(|(stamp, table)| record(*stamp, *table));
            held.group(records, floor, |record| {
                out.push((record.stamp, record.table));
                Ok::<_, ()>(())
            })
            .unwrap();
            lengths.push(out.len());
        }
        held.finish(|record| {
            out.push((record.stamp, record.table));
            Ok::<_, ()>(())
        })
        .unwrap();
        assert_eq!(lengths, [0, 1, 3, 6, 6]);
        assert_eq!(out, [(5, 0), (6, 0), (7, 0), (8, 0), (9, 0), (9, 1), (12, 0), (u64::MAX, 0)]);
    }
}

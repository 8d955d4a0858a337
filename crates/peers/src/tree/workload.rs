//! What is asked of every map: made once, before anything is measured, the same for all.

use overside_bench::SplitMix64;

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Its key, or where a scan begins.
    pub key: u64,
    /// A value to write, or the rows of a scan.
    pub arg: u32,
    /// Which operation.
    pub kind: Operation,
}

/// Which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A key that is there.
    Read,
    /// A key that is there gets another value.
    Update,
    /// A fresh key.
    Insert,
    /// Up to 100 rows.
    Scan,
}

/// The columns of the comparison that are lists of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// All records, in random order.
    Insert,
    /// Uniformly distributed reads.
    Read,
    /// YCSB C: reads, zipf 0.99.
    C,
    /// YCSB B: 95 % reads, 5 % updates.
    B,
    /// YCSB A: half reads, half updates.
    A,
    /// YCSB E: 95 % scans of 1 to 100 rows, 5 % inserts.
    E,
    /// Half fresh keys, half updates, each one timed.
    Puts,
}

impl Column {
    /// The operations over `records` keys; `fresh` is the number of the first key that is not
    /// there.
    pub fn ops(self, records: u64, count: usize, fresh: &mut u64, zipf: &Zipf) -> Vec<Op> {
        let mut random = SplitMix64(0xC0_1234 + self as u64);
        let mut op = |i: usize| {
            let chance = random.word() % 100;
            let kind = match self {
                Column::Insert => Operation::Insert,
                Column::Read | Column::C => Operation::Read,
                Column::B if chance < 5 => Operation::Update,
                Column::A if chance < 50 => Operation::Update,
                Column::B | Column::A => Operation::Read,
                Column::E if chance < 5 => Operation::Insert,
                Column::E => Operation::Scan,
                Column::Puts if chance < 50 => Operation::Insert,
                Column::Puts => Operation::Update,
            };
            let number = match (self, kind) {
                (_, Operation::Insert) => {
                    *fresh += 1;
                    *fresh - 1
                }
                (Column::Read, _) => random.word() % records,
                // Scrambled: the popular keys lie all over the key space.
                _ => mix(zipf.rank(&mut random)) % records,
            };
            let arg = if kind == Operation::Scan { (random.word() % 100 + 1) as u32 } else { i as u32 };
            Op { key: mix(number + 1), arg, kind }
        };
        (0..count).map(&mut op).collect()
    }
}

/// The columns of the table, in the order in which they are measured.
pub const COLUMNS: [&str; 7] = ["insert", "read", "C", "B", "A", "E", "scan"];

/// A bijection of 64-bit words: the n-th key.
pub fn mix(number: u64) -> u64 {
    SplitMix64::mixed(number)
}

/// Gray's generator of zipf-distributed ranks, as YCSB uses it.
pub struct Zipf {
    records: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// Ranks below `records`, with YCSB's constant 0.99.
    pub fn new(records: u64) -> Zipf {
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-THETA)).sum::<f64>();
        let all = zeta(records);
        let eta = (1.0 - (2.0 / records as f64).powf(1.0 - THETA)) / (1.0 - zeta(2) / all);
        Zipf { records: records as f64, alpha: 1.0 / (1.0 - THETA), zeta: all, eta }
    }

    fn rank(&self, random: &mut SplitMix64) -> u64 {
        let u = random.unit();
        let scaled = u * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(THETA) {
            return 1;
        }
        (self.records * (self.eta * u - self.eta + 1.0).powf(self.alpha)).min(self.records - 1.0) as u64
    }
}

const THETA: f64 = 0.99;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_mixed_as_ycsb_says() {
        let (records, zipf) = (10_000, Zipf::new(10_000));
        let mut fresh = records;
        let share = |ops: &[Op], kind| ops.iter().filter(|op| op.kind == kind).count() as f64 / ops.len() as f64;
        let a = Column::A.ops(records, 20_000, &mut fresh, &zipf);
        let e = Column::E.ops(records, 20_000, &mut fresh, &zipf);
        assert!((share(&a, Operation::Update) - 0.5).abs() < 0.02);
        assert!((share(&e, Operation::Scan) - 0.95).abs() < 0.01);
        let inserts: std::collections::HashSet<u64> =
            e.iter().filter(|op| op.kind == Operation::Insert).map(|op| op.key).collect();
        assert_eq!(inserts.len() as u64, fresh - records, "fresh keys are all different");
        assert!(e.iter().all(|op| op.kind != Operation::Scan || (1..=100).contains(&op.arg)));
        // The most popular key has about 1 / zeta of all accesses.
        let top = a.iter().filter(|op| op.key == mix(mix(0) % records + 1)).count() as f64 / 20_000.0;
        assert!((top - 1.0 / zipf.zeta).abs() < 0.02, "{top}");
    }
}

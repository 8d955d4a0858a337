//! One row: its columns, its checksum.

/// A row of `lineitem`. Decimals are in hundredths, dates in days since 1970-01-01.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the columns are TPC-H's")]
pub struct Row<'a> {
    pub orderkey: i64,
    pub partkey: i64,
    pub suppkey: i64,
    pub linenumber: i32,
    pub quantity: i64,
    pub extendedprice: i64,
    pub discount: i64,
    pub tax: i64,
    pub returnflag: &'a str,
    pub linestatus: &'a str,
    pub shipdate: i32,
    pub commitdate: i32,
    pub receiptdate: i32,
    pub shipinstruct: &'a str,
    pub shipmode: &'a str,
    pub comment: &'a str,
    /// 1 as generated, one more with every write.
    pub version: i64,
    /// [`Row::sum`] of the columns above.
    pub checksum: i64,
}

impl Row<'_> {
    /// The primary key.
    pub fn key(&self) -> (i64, i32) {
        (self.orderkey, self.linenumber)
    }

    /// What `checksum` must be. Every column goes in by its place, and every string with its
    /// length.
    pub fn sum(&self) -> i64 {
        let mut sum = Sum(SEED);
        sum.add(self.orderkey as u64);
        sum.add(self.partkey as u64);
        sum.add(self.suppkey as u64);
        sum.add(u64::from(self.linenumber as u32) | u64::from(self.shipdate as u32) << 32);
        sum.add(u64::from(self.commitdate as u32) | u64::from(self.receiptdate as u32) << 32);
        sum.add(self.quantity as u64);
        sum.add(self.extendedprice as u64);
        sum.add(self.discount as u64);
        sum.add(self.tax as u64);
        sum.add(self.version as u64);
        for text in self.texts() {
            sum.text(text.as_bytes());
        }
        sum.0 as i64
    }

    /// Whether all columns belong to one version of the row.
    pub fn whole(&self) -> bool {
        self.checksum == self.sum()
    }

    /// The variable-length columns in order.
    pub fn texts(&self) -> [&str; 5] {
        [self.returnflag, self.linestatus, self.shipinstruct, self.shipmode, self.comment]
    }
}

/// The columns' names, in order.
pub const COLUMNS: [&str; 18] = [
    "l_orderkey",
    "l_partkey",
    "l_suppkey",
    "l_linenumber",
    "l_quantity",
    "l_extendedprice",
    "l_discount",
    "l_tax",
    "l_returnflag",
    "l_linestatus",
    "l_shipdate",
    "l_commitdate",
    "l_receiptdate",
    "l_shipinstruct",
    "l_shipmode",
    "l_comment",
    "version",
    "checksum",
];

/// The primary key's columns.
pub const KEY: [&str; 2] = ["l_orderkey", "l_linenumber"];

/// Multiply and fold, a word at a time: fast, and any single difference changes it.
struct Sum(u64);

impl Sum {
    fn add(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word).wrapping_mul(u128::from(FACTOR));
        self.0 = (product as u64) ^ ((product >> 64) as u64) ^ self.0.rotate_left(23);
    }

    fn text(&mut self, bytes: &[u8]) {
        self.add(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.add(u64::from_le_bytes(*word));
        }
        let rest = rest.iter().rev();
        self.add(rest.fold(0u64, |word, byte| word << 8 | u64::from(*byte)));
    }
}

const SEED: u64 = 0x0BE4_51DE_0BE4_51DE;
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Row<'static> {
        let mut row = Row {
            orderkey: 1,
            partkey: 2,
            suppkey: 3,
            linenumber: 4,
            quantity: 500,
            extendedprice: 600,
            discount: 7,
            tax: 8,
            returnflag: "N",
            linestatus: "O",
            shipdate: 9,
            commitdate: 10,
            receiptdate: 11,
            shipinstruct: "DELIVER IN PERSON",
            shipmode: "TRUCK",
            comment: "carefully final",
            version: 1,
            checksum: 0,
        };
        row.checksum = row.sum();
        row
    }

    #[test]
    fn any_column_from_another_version_is_found_out() {
        assert!(sample().whole());
        let torn: [fn(&mut Row<'static>); 18] = [
            |r| r.orderkey += 1,
            |r| r.partkey += 1,
            |r| r.suppkey += 1,
            |r| r.linenumber += 1,
            |r| r.quantity += 1,
            |r| r.extendedprice += 1,
            |r| r.discount += 1,
            |r| r.tax += 1,
            |r| r.returnflag = "A",
            |r| r.linestatus = "F",
            |r| r.shipdate += 1,
            |r| r.commitdate += 1,
            |r| r.receiptdate += 1,
            |r| r.shipinstruct = "NONE",
            |r| r.shipmode = "RAIL",
            |r| r.comment = "carefully finam",
            |r| r.version += 1,
            |r| r.checksum += 1,
        ];
        for (column, tear) in torn.iter().enumerate() {
            let mut row = sample();
            tear(&mut row);
            assert!(!row.whole(), "column {column}");
        }
    }

    #[test]
    fn bytes_that_move_between_strings_are_found_out() {
        let moved = Row { returnflag: "NO", linestatus: "", ..sample() };
        let swapped = Row { returnflag: "O", linestatus: "N", ..sample() };
        assert!(!moved.whole() && !swapped.whole());
    }
}

//! Column types of a CSV file, guessed from its first rows.
//!
//! A column gets the narrowest of: boolean, int64, uint64, float64, date, timestamp, utf8 that
//! holds every value of the sample. Numbers written with a leading zero (postal codes) are text.

use super::super::calendar::Instant;
use arrow_schema::{DataType, TimeUnit};

/// What the values of one column seen so far could be.
#[derive(Clone)]
pub struct Guess {
    any: bool,
    boolean: bool,
    int64: bool,
    uint64: bool,
    float64: bool,
    date: bool,
    timestamp: bool,
    zones: (bool, bool),
    nanoseconds: bool,
}

impl Guess {
    /// Nothing seen yet.
    pub fn new() -> Guess {
        Guess {
            any: false,
            boolean: true,
            int64: true,
            uint64: true,
            float64: true,
            date: true,
            timestamp: true,
            zones: (false, false),
            nanoseconds: false,
        }
    }

    /// Takes one more value into account; an empty field is a null and says nothing.
    pub fn see(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.any = true;
        self.boolean &= matches!(text, "true" | "false" | "True" | "False" | "TRUE" | "FALSE");
        let numeric = (self.int64 || self.uint64 || self.float64) && looks_numeric(text);
        self.int64 &= numeric && text.parse::<i64>().is_ok();
        self.uint64 &= numeric && text.parse::<u64>().is_ok();
        self.float64 &= numeric && text.parse::<f64>().is_ok();
        if self.date || self.timestamp {
            let instant = Instant::parse(text);
            self.date &= instant.is_some() && super::super::calendar::parse_date(text).is_some();
            self.timestamp &= instant.is_some();
            if let Some(instant) = instant {
                self.nanoseconds |= instant.nanos % 1000 != 0;
                let (with, without) = self.zones;
                self.zones = (with || instant.zoned, without || !instant.zoned);
                // Instants with and without a zone do not go into one column.
                self.timestamp &= self.zones != (true, true);
            }
        }
    }

    /// The type to read the column as.
    pub fn data_type(&self) -> DataType {
        if !self.any {
            DataType::Utf8
        } else if self.boolean {
            DataType::Boolean
        } else if self.int64 {
            DataType::Int64
        } else if self.uint64 {
            DataType::UInt64
        } else if self.float64 {
            DataType::Float64
        } else if self.date {
            DataType::Date32
        } else if self.timestamp {
            let unit = if self.nanoseconds { TimeUnit::Nanosecond } else { TimeUnit::Microsecond };
            DataType::Timestamp(unit, self.zones.0.then(|| "UTC".into()))
        } else {
            DataType::Utf8
        }
    }
}

fn looks_numeric(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text).as_bytes();
    match digits {
        b"NaN" | b"inf" => true,
        [b'0', b'0'..=b'9', ..] | [] => false,
        [first, ..] => first.is_ascii_digit() || *first == b'.',
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::types::type_name;
    use super::*;

    #[test]
    fn the_narrowest_type_that_holds_every_value() {
        let cases: [(&[&str], &str); 14] = [
            (&["1", "-2", ""], "int64"),
            (&["1", "18446744073709551615"], "uint64"),
            (&["-1", "18446744073709551615"], "float64"),
            (&["1", "2.5", "NaN", "-inf", "1e9"], "float64"),
            (&["007", "123"], "utf8"),
            (&["0", "0.5"], "float64"),
            (&["true", "False"], "boolean"),
            (&["true", "1"], "utf8"),
            (&["1992-01-02", "2000-02-29"], "date"),
            (&["1992-01-02", "2000-02-29 12:00"], "timestamp[us]"),
            (&["1992-01-02T00:00:00Z", "2000-02-29T01:00:00+01:00"], "timestamp[us,UTC]"),
            (&["1992-01-02T00:00:00Z", "2000-02-29T01:00:00"], "utf8"),
            (&["1992-01-02T00:00:00.123456789"], "timestamp[ns]"),
            (&["", ""], "utf8"),
        ];
        for (values, ty) in cases {
            let mut guess = Guess::new();
            values.iter().for_each(|value| guess.see(value));
            assert_eq!(type_name(&guess.data_type()), ty, "{values:?}");
        }
    }
}

//! Records of a CSV file: fields as text, with the line they begin on.
//!
//! Built on csv-core rather than on the `csv` crate's reader. That takes an unclosed quote at the
//! end of a file for a closed one, and lets a record grow to the size of the file.

use crate::limits::COLUMNS_MAX;
use anyhow::{Result, bail};
use csv_core::ReadRecordResult;
use std::io::{Cursor, Read};

/// The fields of one record, and where it stands.
pub struct Record {
    /// The line (from 1) on which the record begins.
    pub line: u64,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    quotes: Quotes,
}

impl Record {
    /// An empty record, to be filled by [`Records::read`].
    pub fn new() -> Record {
        Record { line: 0, bytes: vec![0; 1024], ends: vec![0; 64], quotes: Quotes::default() }
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of all fields.
    pub fn bytes(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Field `index` as text; `None` when it is not UTF-8.
    pub fn field(&self, index: usize) -> Option<&str> {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        std::str::from_utf8(&self.bytes[start..self.ends[index]]).ok()
    }

    /// Whether field `index` is written with quotes: then it is the empty text where it is empty,
    /// else a null.
    pub fn is_quoted(&self, index: usize) -> bool {
        self.quotes.fields.binary_search(&index).is_ok()
    }
}

/// Which fields of a record begin with a quote: the parser does not say it.
#[derive(Default)]
struct Quotes {
    at: At,
    field: usize,
    /// In ascending order.
    fields: Vec<usize>,
}

/// Where in a record the bytes stand that were seen last.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum At {
    /// In front of a field.
    #[default]
    Start,
    /// In a field, outside of quotes.
    Field,
    Quoted,
    /// Behind a quote that ends the quoted text, unless another one follows.
    Quote,
}

impl Quotes {
    fn begin(&mut self) {
        self.at = At::Start;
        self.field = 0;
        self.fields.clear();
    }

    /// Looks at the record's next bytes, with which the fields before number `ended` have ended.
    fn see(&mut self, bytes: &[u8], ended: usize) {
        if bytes.is_empty() || (self.at == At::Quoted && !bytes.contains(&b'"')) {
            return;
        }
        if self.at != At::Quoted && !bytes.contains(&b'"') {
            let last = bytes[bytes.len() - 1];
            self.field = ended;
            self.at = if last == b',' { At::Start } else { At::Field };
            // Line breaks in front of a record are passed over.
            if bytes.iter().all(|byte| matches!(byte, b'\n' | b'\r')) && self.field == 0 {
                self.at = At::Start;
            }
            return;
        }
        for byte in bytes {
            self.at = match (self.at, byte) {
                (At::Start, b'"') => {
                    self.fields.push(self.field);
                    At::Quoted
                }
                (At::Start | At::Field | At::Quote, b',') => {
                    self.field += 1;
                    At::Start
                }
                (At::Start, b'\n' | b'\r') => At::Start,
                (At::Quoted, b'"') => At::Quote,
                (At::Quoted, _) | (At::Quote, b'"') => At::Quoted,
                (At::Start | At::Field | At::Quote, _) => At::Field,
            };
        }
    }
}

/// The records of a file, or of what comes from a pipe, one after another.
pub struct Records {
    source: Box<dyn Read + Send>,
    /// What was read, to be read again.
    taped: Option<Vec<u8>>,
    parser: csv_core::Reader,
    buffer: Vec<u8>,
    unread: std::ops::Range<usize>,
    bytes_done: u64,
    ended: bool,
}

impl Records {
    /// Reads `source` from where it stands, and keeps what it reads for [`Self::rewound`].
    pub fn taping(source: impl Read + Send + 'static) -> Records {
        Records { taped: Some(Vec::new()), ..Records::new(Box::new(source)) }
    }

    /// The same records from the first one on. The source need not be able to go back.
    pub fn rewound(self) -> Records {
        Records::new(Box::new(Cursor::new(self.taped.unwrap_or_default()).chain(self.source)))
    }

    fn new(source: Box<dyn Read + Send>) -> Records {
        Records {
            source,
            taped: None,
            parser: csv_core::Reader::new(),
            buffer: vec![0; BUFFER_BYTES],
            unread: 0..0,
            bytes_done: 0,
            ended: false,
        }
    }

    /// Bytes of the file taken in so far.
    pub fn bytes_done(&self) -> u64 {
        let unread = if self.ended { 0 } else { self.unread.len() as u64 };
        self.bytes_done - unread
    }

    /// Reads the next record into `record`; `false` at the end. Blank lines are passed over.
    ///
    /// # Errors
    /// The file ends inside a quoted field; a record longer than [`RECORD_BYTES_MAX`], or of more
    /// fields than a table has columns.
    pub fn read(&mut self, record: &mut Record) -> Result<bool> {
        record.line = self.parser.line();
        let (mut filled, mut fields) = (0, 0);
        record.bytes.resize(record.bytes.capacity(), 0);
        record.ends.resize(record.ends.capacity(), 0);
        let mut begun = false;
        record.quotes.begin();
        loop {
            if self.unread.is_empty() && !self.refill()? {
                if begun {
                    bail!("line {}: the file ends inside a quoted field; it may be cut off", record.line);
                }
                return Ok(false);
            }
            let input = &self.buffer[self.unread.clone()];
            if !begun {
                record.line = self.parser.line() + blank_lines(input);
            }
            let (result, read, wrote, ended) =
                self.parser.read_record(input, &mut record.bytes[filled..], &mut record.ends[fields..]);
            begun |= input[..read].iter().any(|byte| !matches!(byte, b'\n' | b'\r'));
            self.unread.start += read;
            (filled, fields) = (filled + wrote, fields + ended);
            record.quotes.see(&input[..read], fields);
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull if filled >= RECORD_BYTES_MAX => bail!(
                    "line {}: a row of more than {} MiB; is a quote not closed?",
                    record.line,
                    RECORD_BYTES_MAX >> 20
                ),
                ReadRecordResult::OutputFull => record.bytes.resize(filled * 2, 0),
                // A field needs a comma, and takes more to note than that.
                ReadRecordResult::OutputEndsFull if fields > COLUMNS_MAX => bail!(
                    "line {}: more than {COLUMNS_MAX} fields, which no table has columns for: leave some out, or split it",
                    record.line
                ),
                ReadRecordResult::OutputEndsFull => record.ends.resize(fields * 2, 0),
                ReadRecordResult::Record => {
                    record.ends.truncate(fields);
                    return Ok(true);
                }
                // Said only of an empty input, which is never given.
                ReadRecordResult::End => return Ok(false),
            }
        }
    }

    /// Reads on. At the end of the file a line break is added once: it completes a last line that
    /// lacks it, and completes nothing inside of quotes. `false` after that.
    fn refill(&mut self) -> Result<bool> {
        if self.ended {
            return Ok(false);
        }
        let read = self.source.read(&mut self.buffer)?;
        if let Some(taped) = &mut self.taped {
            taped.extend_from_slice(&self.buffer[..read]);
        }
        self.unread = 0..read;
        self.bytes_done += read as u64;
        if read == 0 {
            self.ended = true;
            self.buffer[0] = b'\n';
            self.unread = 0..1;
        }
        Ok(true)
    }
}

/// Line breaks before the first field, which the parser passes over.
fn blank_lines(input: &[u8]) -> u64 {
    let blank = input.iter().take_while(|byte| matches!(byte, b'\n' | b'\r'));
    blank.filter(|byte| **byte == b'\n').count() as u64
}

/// Bytes that are read at once.
pub const BUFFER_BYTES: usize = 256 << 10;

/// A row's fields together, at most. Tables hold values of 1 MiB at most.
const RECORD_BYTES_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};

    fn read(content: &[u8]) -> Result<Vec<(u64, Vec<String>)>> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file.rewind().unwrap();
        let (mut records, mut record) = (Records::taping(file), Record::new());
        let mut all = Vec::new();
        while records.read(&mut record)? {
            let fields = (0..record.len()).map(|i| record.field(i).unwrap().to_string());
            all.push((record.line, fields.collect()));
        }
        assert_eq!(records.bytes_done(), content.len() as u64);
        Ok(all)
    }

    #[test]
    fn records_carry_the_line_they_begin_on() {
        let rows = read(b"a,b\r\n1,\"x\ny\"\r\n\r\n2,\"\"\"q\"\"\"").unwrap();
        let lines: Vec<_> = rows.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 2, 5]);
        assert_eq!(rows[1].1, ["1", "x\ny"]);
        assert_eq!(rows[2].1, ["2", "\"q\""]);
    }

    #[test]
    fn an_unclosed_quote_is_an_error_and_a_missing_last_line_break_is_none() {
        let told = read(b"a,b\n1,x\n2,\"never closed\n3,y\n").unwrap_err().to_string();
        assert!(told.contains("line 3") && told.contains("quoted"), "{told}");
        for whole in ["a,b\n1,x", "a,b\n1,\"x\"", "a,b\n1,", "a,b\n1,\"x\"\n", "a,b\r\n", "a"] {
            assert!(read(whole.as_bytes()).is_ok(), "{whole:?}");
        }
        assert!(read(b"a,b\n1,\"").is_err());
    }

    #[test]
    fn a_record_longer_than_the_bound_is_refused() {
        let mut content = b"a\n\"".to_vec();
        content.resize(RECORD_BYTES_MAX + 1000, b'x');
        let told = read(&content).unwrap_err().to_string();
        assert!(told.contains("line 2") && told.contains("quote"), "{told}");
    }

    #[test]
    fn a_record_of_more_fields_than_columns_is_refused_before_they_are_noted() {
        let told = read(&b"x,".repeat(1 << 20)).unwrap_err().to_string();
        assert!(told.contains("line 1: more than 1024 fields"), "{told}");
        assert_eq!(read(&b",".repeat(1023)).unwrap()[0].1.len(), 1024);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&b",".repeat(1 << 20)).unwrap();
        file.rewind().unwrap();
        let mut record = Record::new();
        assert!(Records::taping(file).read(&mut record).is_err());
        assert!(record.ends.capacity() <= 4 * COLUMNS_MAX, "{}", record.ends.capacity());
    }

    #[test]
    fn wide_and_long_records_grow_the_buffers() {
        let wide = (0..500).map(|n| "v".repeat(n % 50)).collect::<Vec<_>>();
        let rows = read(wide.join(",").as_bytes()).unwrap();
        assert_eq!(rows[0].1, wide);
    }
}

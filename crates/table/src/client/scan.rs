//! A running scan.

use std::ops::Bound;
use std::sync::Arc;

use overside_service::client::{Arrived, Received};

use super::link::Link;
use super::one_sided::OneSided;
use super::{ClientError, RemoteTable, needs_indexes};
use crate::block::{Answer, LentBlock, RowBlock};
use crate::key::{IndexCodec, KEY_BYTES_MAX, VALUE};
use crate::projection::Projection;
use crate::row::ValueRef;
use crate::wire::{self, Bounds, Features, MessageKind, Mode, Reply, Request, ScanReply, ScanRequest};

/// What to scan and how. The default is every row and every column, in the cheapest way.
#[derive(Clone, Debug)]
pub struct ScanOptions<'a> {
    /// Lower end: values of the key's first columns, at least one.
    pub from: Bound<&'a [ValueRef<'a>]>,
    /// Upper end, likewise. A bound of fewer columns than the key has covers all keys that start
    /// with them.
    pub to: Bound<&'a [ValueRef<'a>]>,
    /// Through the index on these columns, in its order; the bounds are then values of its columns,
    /// and a null is less than any other. A range with an upper end alone leaves nulls out. None:
    /// in the order of the keys.
    pub index: Option<&'a [usize]>,
    /// Columns by index, in the order wanted.
    pub columns: Option<&'a [usize]>,
    /// In which way the answer travels.
    pub mode: Mode,
    /// Stop after at least this many rows.
    pub rows_max: Option<u64>,
}

impl Default for ScanOptions<'_> {
    fn default() -> Self {
        Self {
            from: Bound::Unbounded,
            to: Bound::Unbounded,
            index: None,
            columns: None,
            mode: Mode::Auto,
            rows_max: None,
        }
    }
}

/// How a finished scan went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanSummary {
    /// Rows received.
    pub rows: u64,
    /// Bytes of received row views: what `bytes_per_s` counts.
    pub row_bytes: u64,
    /// What the server says.
    pub server: ScanReply,
}

/// Blocks of rows as they arrive. Dropping it early cancels the rest.
#[derive(Debug)]
pub struct Scan<'a> {
    link: &'a mut Link,
    number: u32,
    projection: Arc<Projection>,
    /// Messages of it that came.
    messages: u64,
    summary: ScanSummary,
    state: State,
    /// This side's own way through the server's memory.
    one_sided: Option<Box<OneSided>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Ended,
    Broken,
}

impl ScanOptions<'_> {
    /// Its ends as encoded keys, and whether each belongs to the range.
    pub(crate) fn bounds(&self, table: &RemoteTable) -> Result<(KeyBound, KeyBound), ClientError> {
        if let Some(columns) = self.index {
            return of_index(&IndexCodec::new(table.schema(), columns)?, self.from, self.to);
        }
        Ok((lower(table, self.from)?, upper(table, self.to)?))
    }
}

/// An encoded key and whether it belongs to the range.
pub(super) type KeyBound = Option<(Vec<u8>, bool)>;

impl<'a> Scan<'a> {
    pub(crate) fn start(
        link: &'a mut Link,
        table: &RemoteTable,
        options: &ScanOptions<'_>,
        in_place: bool,
    ) -> Result<Scan<'a>, ClientError> {
        let projection = Arc::new(table.projection(options.columns)?);
        let (from, to) = options.bounds(table)?;
        let lends = link.features().contains(Features::IN_PLACE);
        let mode = if options.mode == Mode::InPlace && !lends { Mode::Delta } else { options.mode };
        let request = ScanRequest {
            table: table.id(),
            bounds: Bounds {
                from: from.as_ref().map(|(k, within)| (k.as_slice(), *within)),
                to: to.as_ref().map(|(k, within)| (k.as_slice(), *within)),
            },
            columns: options.columns.map(numbered),
            mode,
            rows_max: options.rows_max,
        };
        let lent = lends && (in_place || mode == Mode::InPlace);
        let request = match options.index {
            Some(columns) => {
                needs_indexes(link.features())?;
                let lent_bytes_max = if lent { link.lent_bytes_max() } else { 0 };
                Request::ScanIndex { scan: request, index: numbered(columns), lent_bytes_max }
            }
            None if lent => Request::ScanInPlace { scan: request, lent_bytes_max: link.lent_bytes_max() },
            None => Request::Scan(request),
        };
        let number = link.send(&request)?;
        let (summary, state) = (ScanSummary::default(), State::Running);
        Ok(Scan { link, number, projection, messages: 0, summary, state, one_sided: None })
    }

    pub(crate) fn start_one_sided(
        link: &'a mut Link,
        table: &RemoteTable,
        options: &ScanOptions<'_>,
    ) -> Result<Scan<'a>, ClientError> {
        if options.index.is_some() {
            let text = "an index is read by the server alone; scan without it, or not one-sidedly";
            return Err(ClientError::OneSided(text.into()));
        }
        let projection = Arc::new(table.projection(options.columns)?);
        let (from, to) = options.bounds(table)?;
        let one_sided = Some(Box::new(OneSided::start(link, table, (&from, &to), options.rows_max)?));
        let (summary, state) = (ScanSummary::default(), State::Running);
        Ok(Scan { link, number: 0, projection, messages: 0, summary, state, one_sided })
    }

    /// The next block of rows; none at the end. Blocks may be kept, up to the client's receive
    /// buffers. What was lent is copied.
    ///
    /// # Errors
    /// When the server refuses the scan, sends something broken, or goes away.
    pub fn next_block(&mut self) -> Result<Option<RowBlock<Received>>, ClientError> {
        let message = |link: &mut Link| Ok(Arrived::Copied(link.message()?));
        Ok(match self.next(message)? {
            Some(Answer::Copied(block)) => Some(block),
            _ => None,
        })
    }

    /// The next block of rows, where the server lent it to be read in place; none at the end. What
    /// a scan that was started by [`scan_in_place`](super::Client::scan_in_place) has not read yet
    /// stays as it is in the server's memory: drop each block when it was read. The server waits
    /// for blocks that are kept, and closes the connection of a client that keeps one past its
    /// deadline.
    ///
    /// # Errors
    /// As [`next_block`](Self::next_block), and when the server takes back what it lent.
    pub fn next_in_place(&mut self) -> Result<Option<Answer<Received>>, ClientError> {
        self.next(Link::message_or_loan)
    }

    fn next(
        &mut self,
        message: impl FnOnce(&mut Link) -> Result<Arrived, ClientError>,
    ) -> Result<Option<Answer<Received>>, ClientError> {
        if self.state != State::Running {
            return Ok(None);
        }
        let answer = match &mut self.one_sided {
            Some(walk) => walk.next(self.link, &self.projection).map(|block| block.map(Answer::Copied)),
            None => message(self.link).and_then(|message| self.received(message)),
        };
        let answer = answer.inspect_err(|e| {
            self.state = if matches!(e, ClientError::Refused { .. }) { State::Ended } else { State::Broken };
        })?;
        match &answer {
            Some(answer) => {
                self.summary.rows += answer.len() as u64;
                self.summary.row_bytes += answer.row_bytes();
            }
            None => self.state = State::Ended,
        }
        Ok(answer)
    }

    /// The columns as they were asked for.
    pub fn projection(&self) -> &Arc<Projection> {
        &self.projection
    }

    /// How it went so far; complete once [`next_block`](Self::next_block) has returned none.
    pub fn summary(&self) -> ScanSummary {
        self.summary
    }

    fn received(&mut self, message: Arrived) -> Result<Option<Answer<Received>>, ClientError> {
        let message = match message {
            Arrived::Lent(lent) => {
                let mut block = LentBlock::parse(lent.into_loan(), &self.projection)?;
                block.followed_by(self.link.next_loan(), &self.projection);
                return self.of_this_scan(Answer::Lent(block)).map(Some);
            }
            Arrived::Copied(message) => message,
        };
        if wire::kind(message.as_ref()) == MessageKind::Data {
            let block = RowBlock::parse(message, &self.projection)?;
            return self.of_this_scan(Answer::Copied(block)).map(Some);
        }
        let (number, reply) = wire::decode::<Reply>(message.as_ref())?;
        match reply {
            Reply::ScanEnd(end) | Reply::ScanEndInPlace(end) if number == self.number => {
                self.summary.server = end;
                Ok(None)
            }
            Reply::Fault(fault) if number == self.number => {
                Err(ClientError::Refused { code: fault.code, text: fault.text })
            }
            other => Err(ClientError::Unexpected(format!("a word on request {number} within a scan: {other:.60?}"))),
        }
    }

    fn of_this_scan(&mut self, answer: Answer<Received>) -> Result<Answer<Received>, ClientError> {
        if answer.header().scan != u64::from(self.number) {
            return Err(ClientError::Unexpected("rows of another scan".into()));
        }
        if answer.header().sequence != self.messages {
            return Err(ClientError::Unexpected("rows out of order".into()));
        }
        self.messages += 1;
        Ok(answer)
    }
}

impl Drop for Scan<'_> {
    fn drop(&mut self) {
        if self.state != State::Running || self.one_sided.is_some() || self.link.send(&Request::Cancel).is_err() {
            return;
        }
        // What is under way still arrives; the connection is usable once the end has. A server that does not stop is not heard out.
        let begun = self.link.now();
        while self.link.now().saturating_duration_since(begun) < self.link.timeout()
            && let Ok(Some(_)) = self.next_in_place()
        {}
    }
}

/// Columns as requests name them.
pub(super) fn numbered(columns: &[usize]) -> Vec<u16> {
    // A table has 1,024 columns at most, so that none is taken for another.
    columns.iter().map(|&column| u16::try_from(column).unwrap_or(u16::MAX)).collect()
}

/// The range of an index's encoded values. Each stands for all entries that begin so.
fn of_index(
    codec: &IndexCodec,
    from: Bound<&[ValueRef<'_>]>,
    to: Bound<&[ValueRef<'_>]>,
) -> Result<(KeyBound, KeyBound), ClientError> {
    let encoded = |values: &[ValueRef<'_>]| -> Result<Vec<u8>, ClientError> {
        let mut out = Vec::new();
        codec.encode_first(values, &mut out)?;
        Ok(out)
    };
    let from = match from {
        Bound::Unbounded if to != Bound::Unbounded && codec.begins_with_nulls() => Some((vec![VALUE], true)),
        Bound::Unbounded => None,
        Bound::Included(values) => Some((encoded(values)?, true)),
        Bound::Excluded(values) => Some((after(encoded(values)?), true)),
    };
    let to = match to {
        Bound::Unbounded => None,
        Bound::Included(values) => Some((after(encoded(values)?), false)),
        Bound::Excluded(values) => Some((encoded(values)?, false)),
    };
    Ok((from, to))
}

/// A lower bound as an encoded key and whether that key belongs to the range. A bound of fewer
/// columns than the key has stands for all keys that start with it.
fn lower(table: &RemoteTable, bound: Bound<&[ValueRef<'_>]>) -> Result<Option<(Vec<u8>, bool)>, ClientError> {
    Ok(match bound {
        Bound::Unbounded => None,
        Bound::Included(values) => Some((table.key_start(values)?, true)),
        Bound::Excluded(values) if whole(table, values) => Some((table.key_start(values)?, false)),
        Bound::Excluded(values) => Some((after(table.key_start(values)?), true)),
    })
}

/// An upper bound, likewise.
fn upper(table: &RemoteTable, bound: Bound<&[ValueRef<'_>]>) -> Result<Option<(Vec<u8>, bool)>, ClientError> {
    Ok(match bound {
        Bound::Unbounded => None,
        Bound::Included(values) if whole(table, values) => Some((table.key_start(values)?, true)),
        Bound::Included(values) => Some((after(table.key_start(values)?), false)),
        Bound::Excluded(values) => Some((table.key_start(values)?, false)),
    })
}

fn whole(table: &RemoteTable, values: &[ValueRef<'_>]) -> bool {
    values.len() == table.keys().types().len()
}

/// The first key behind all that start with `key`.
fn after(mut key: Vec<u8>) -> Vec<u8> {
    while let Some(last) = key.pop() {
        if last < u8::MAX {
            key.push(last + 1);
            return key;
        }
    }
    // Behind every key there can be.
    vec![u8::MAX; KEY_BYTES_MAX + 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_behind_a_prefix() {
        assert_eq!(after(vec![1, 2]), vec![1, 3]);
        assert_eq!(after(vec![1, 255, 255]), vec![2]);
        assert_eq!(after(vec![255]).len(), KEY_BYTES_MAX + 1);
    }
}

//! A scan that the server takes no part in: this side reads the mapping table and the leaves
//! (to-copy §6, TC-M41).
//!
//! The server is asked once for where they lie, and again where the table has outgrown what it
//! said. All it says, and all that is read, is checked: `overside_bwtree::Walk` checks pages, and
//! [`RowBlock`] the rows that are packed of them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::{Duration, Instant};

use overside_bwtree::{Opening, OverflowRef, Reads, Walk, WalkError, Walked};
use overside_service::client::Received;
use overside_verbs::{Readable, Remote, RemoteToken};

use super::link::Link;
use super::scan::KeyBound;
use super::{ClientError, RemoteTable};
use crate::block::{Copier, DeltaAt, HEADER_BYTES, PageState, RowBlock};
use crate::key::KEY_BYTES_MAX;
use crate::projection::Projection;
use crate::row::Malformed;
use crate::wire::{FaultCode, Features, Opened, Reply, Request};

/// A walk, and what the server granted for it.
#[derive(Debug)]
pub(super) struct OneSided {
    walk: Walk,
    granted: Granted,
    rows_left: u64,
    sequence: u64,
}

/// The parts of a table's arena that this client may read.
#[derive(Debug)]
struct Granted {
    table: u32,
    prefix_len: usize,
    /// By where they begin: their bytes, and what is read.
    regions: BTreeMap<u64, (u64, Remote<Readable>)>,
}

/// Reads them over a link.
struct Memory<'a> {
    link: &'a mut Link,
    granted: &'a mut Granted,
    began: Instant,
}

impl OneSided {
    pub(super) fn start(
        link: &mut Link,
        table: &RemoteTable,
        (from, to): (&KeyBound, &KeyBound),
        rows_max: Option<u64>,
    ) -> Result<OneSided, ClientError> {
        if !link.features().contains(Features::ONE_SIDED) {
            let text = "the server's version serves nobody one-sidedly; update it";
            return Err(ClientError::Refused { code: FaultCode::BadRequest, text: text.into() });
        }
        let prefix_len = table.layout().prefix_len();
        let mut granted = Granted { table: table.id(), prefix_len, regions: BTreeMap::new() };
        let opening = granted.ask(link)?;
        let walk = Walk::new(opening, bound(from), bound(to));
        Ok(OneSided { walk, granted, rows_left: rows_max.unwrap_or(u64::MAX), sequence: 0 })
    }

    /// The next rows; none at the end.
    pub(super) fn next(
        &mut self,
        link: &mut Link,
        projection: &Projection,
    ) -> Result<Option<RowBlock<Received>>, ClientError> {
        let mut reopened = false;
        while self.rows_left > 0 {
            let began = link.now();
            let mut memory = Memory { link: &mut *link, granted: &mut self.granted, began };
            match self.walk.advance(&mut memory) {
                Ok(false) => return Ok(None),
                Ok(true) => {}
                Err(WalkError::Unopened(_)) if !reopened => {
                    reopened = true;
                    self.walk.reopen(self.granted.ask(link)?);
                    continue;
                }
                Err(WalkError::Read(error)) => return Err(error),
                Err(error) => return Err(ClientError::OneSided(error.to_string())),
            }
            let bytes = packed(&self.walk.page(), projection, self.sequence)?;
            let block = RowBlock::parse(Received::assembled(bytes), projection)?;
            if !block.is_empty() {
                self.sequence += 1;
                self.rows_left = self.rows_left.saturating_sub(block.len() as u64);
                return Ok(Some(block));
            }
        }
        Ok(None)
    }
}

impl Granted {
    /// Asks the server where everything lies.
    fn ask(&mut self, link: &mut Link) -> Result<Opening, ClientError> {
        self.regions.clear();
        let mut from = 0;
        loop {
            let opened = match link.call(&Request::Open { table: self.table, from })? {
                Reply::Opened(opened) => opened,
                other => return Err(ClientError::unexpected(&other)),
            };
            for region in &opened.regions {
                let token = RemoteToken::from_bytes(region.token);
                let end = region.at.checked_add(token.len).filter(|_| region.at >= from && token.len > 0);
                from = end.ok_or_else(|| ClientError::OneSided("the server's regions are not in order".into()))?;
                self.regions.insert(region.at, (token.len, Remote::new(token)));
            }
            if self.regions.len() > REGIONS_MAX {
                return Err(ClientError::OneSided("the server names more regions than it can have".into()));
            }
            if !opened.more || opened.regions.is_empty() {
                return self.opening(opened);
            }
        }
    }

    fn opening(&self, opened: Opened) -> Result<Opening, ClientError> {
        if opened.prefix_len as usize != self.prefix_len {
            return Err(ClientError::OneSided("the server's rows are of another schema".into()));
        }
        Ok(Opening {
            first: opened.first,
            blocks: opened.blocks,
            page_bytes: opened.page_bytes as usize,
            prefix_len: self.prefix_len,
            value_max: (opened.value_max as usize).min(VALUE_BYTES_MAX),
            key_max: (opened.key_max as usize).min(KEY_BYTES_MAX),
        })
    }

    /// The region that a place lies in: where in it, the bytes from there to its end, and what is
    /// read.
    fn place(&self, at: u64) -> Option<(u64, u64, Remote<Readable>)> {
        let (begin, (len, remote)) = self.regions.range(..=at).next_back()?;
        let inside = at - begin;
        (inside < *len).then(|| (inside, len - inside, *remote))
    }
}

impl Reads for Memory<'_> {
    type Error = ClientError;

    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<usize, ClientError> {
        let mut place = self.granted.place(at);
        if place.is_none() {
            // The table may have grown.
            self.granted.ask(self.link)?;
            place = self.granted.place(at);
        }
        let Some((inside, left, remote)) = place else {
            return Err(ClientError::OneSided("a page lies outside of what the server granted".into()));
        };
        let len = out.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.link.read(remote, inside, &mut out[..len])?;
        Ok(len)
    }

    fn again(&mut self, nth: u64) -> bool {
        if !nth.is_multiple_of(AT_ONCE) {
            return true;
        }
        // Whoever changes it may need this processor.
        self.link.pause(PAUSE);
        self.link.now().saturating_duration_since(self.began) < self.link.timeout()
    }
}

/// A message with the rows of a page, as if a server had copied them.
fn packed(walked: &Walked<'_>, projection: &Projection, sequence: u64) -> Result<Vec<u8>, Malformed> {
    let deltas: Vec<DeltaAt<'_>> = walked.deltas().map(|record| DeltaAt { record, at: 0 }).collect();
    let state = PageState::new(walked.leaf(), 0, walked.rows(), &deltas);
    let all = 0..state.rows();
    let mut bytes = vec![0; HEADER_BYTES + Copier::bytes_of(&state, all.clone(), projection)?];
    let mut copier = Copier::new(&mut bytes, projection);
    let taken = copier.push(&state, all, &|reference: OverflowRef| walked.extent(reference))?;
    if taken < state.rows() {
        return Err(Malformed("a page's rows take more room than they say"));
    }
    let len = copier.finish(0, sequence, false);
    bytes.truncate(len);
    Ok(bytes)
}

fn bound(bound: &KeyBound) -> Bound<&[u8]> {
    match bound {
        None => Bound::Unbounded,
        Some((key, true)) => Bound::Included(key),
        Some((key, false)) => Bound::Excluded(key),
    }
}

/// How often a page is read again before the reader waits a little.
const AT_ONCE: u64 = 64;
const PAUSE: Duration = Duration::from_micros(100);
/// Regions of a table: a TiB of the usual ones.
const REGIONS_MAX: usize = 1 << 17;
/// What a value is never longer than, whatever a server says.
const VALUE_BYTES_MAX: usize = 64 << 20;

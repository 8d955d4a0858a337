//! One post of several regions for several destinations (d-rdma §3.2 DR-M15; as a verb that takes
//! queue pairs, §6 DR-M58).
//!
//! A shuffle sends every row of a table somewhere, and each destination's rows lie scattered
//! between the others'. Sent one destination after another, the table is read as often as there are
//! destinations, since each has something in nearly every cache line. Here all are sent tile by
//! tile: a tile of rows, small enough to stay in the cache, is packed for every destination before
//! the next one is touched, so the table is read once. What arrives are the messages that separate
//! sends would have brought. Destinations have no byte in common unless [`Sharing::Allowed`] says
//! that they may.

use std::sync::Arc;

use overside_memory::pack::{Dealer, Packer, RowBuffer};
use overside_memory::{Buffer, Pool};
use overside_planner::{Capabilities, Planner, Terms, ViewPlan};
use overside_shape::{Messages, OneTable, Overlap, Run, Shape, ShapeKind, shared_byte};

use overside_verbs::declared::Region;
use overside_verbs::{CompletionQueue, QueuePair, VerbsError};

use crate::error::{DeclareError, Error};
use crate::send::{Advance, DeclaredSend};

/// Who gets what.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The queue pair to it.
    pub queue_pair: QueuePair,
    /// The caller's number, reported when everything for this destination has arrived; never when
    /// its region has no message.
    pub id: u64,
    /// Its bytes of the common memory.
    pub shape: Arc<Shape>,
}

/// Whether destinations may have different numbers of elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// Every region has as many elements, whatever its destination (d-rdma §3.2 DR-M14).
    #[default]
    Equal,
    /// Rows go where a hash or a bitmap says, so many here and so many there.
    Any,
}

/// Whether destinations may get the same bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Each byte goes to one destination, as in a shuffle: what is in two by mistake is refused.
    #[default]
    Refused,
    /// Rows go to as many destinations as want them, as where they are replicated or broadcast
    /// (d-rdma §6 DR-M59). A table whose destinations have no row in common is dealt all the same.
    Allowed,
}

/// How to send to several.
#[derive(Clone, Copy, Debug)]
pub struct SharedTerms {
    /// Goal, limits and a forced way, for each destination.
    pub view: Terms,
    /// Whether destinations may have different numbers of elements.
    pub balance: Balance,
    /// Whether destinations may get the same bytes.
    pub sharing: Sharing,
    /// Bytes of a tile of the common memory, gaps included: less than the second-level cache.
    pub tile_bytes: u64,
}

impl Default for SharedTerms {
    fn default() -> Self {
        Self {
            view: Terms::default(),
            balance: Balance::default(),
            sharing: Sharing::default(),
            tile_bytes: TILE_BYTES,
        }
    }
}

/// Regions of one memory on their way to several destinations. Nothing blocks, as with
/// [`DeclaredSend`].
#[derive(Debug)]
pub struct SharedSend {
    parts: Vec<Part>,
    tiles: u64,
    /// The tile in hand.
    tile: u64,
    /// Its share of every destination's messages is released.
    released: bool,
    /// Addresses of first fragments, from the lowest to the highest.
    axis: (u64, u64),
    shares: bool,
    /// The first row that is not dealt, where all are rows of one table that one pass over it packs
    /// for everybody.
    dealt: Option<u64>,
}

#[derive(Debug)]
struct Part {
    queue_pair: QueuePair,
    send: DeclaredSend,
    plan: Option<ViewPlan>,
    done: bool,
}

impl SharedSend {
    /// Declares what each destination gets of `memory`, and plans it with a planner; without one,
    /// everything is gathered as far as gather lists reach.
    ///
    /// # Errors
    /// [`DeclareError`], naming the destination, for regions that leave the memory, for those that
    /// overlap or have different numbers of elements where the terms do not allow it, and for
    /// messages longer than a request.
    pub fn new(
        memory: &Arc<Buffer>,
        destinations: &[Destination],
        planner: Option<&Planner>,
        capabilities: &Capabilities,
        terms: &SharedTerms,
    ) -> Result<Self, DeclareError> {
        let regions = regions(memory, destinations, terms.balance)?;
        let apart = apart(destinations, terms.sharing)?;
        let tiles =
            regions.iter().map(|region| touched(region.shape())).max().unwrap_or(0).div_ceil(terms.tile_bytes.max(1));
        let mut tiles = tiles.max(1);
        let shares = shares_lines(&regions, tiles);
        let view = Terms { warm: terms.view.warm || shares, ..terms.view };
        let plans = planner.map(|planner| planned(planner, &regions, &view, shares, apart)).transpose()?;
        let mut plans = plans.into_iter().flatten();
        let mut parts = Vec::with_capacity(regions.len());
        for (region, to) in regions.into_iter().zip(destinations) {
            let plan = plans.next();
            let send = DeclaredSend::new(to.id, region, plan.as_ref(), capabilities, view.request_bytes_max)?;
            parts.push(Part { queue_pair: to.queue_pair, send, plan, done: false });
        }
        let packed = wanting(&parts).all(|part| part.send.fills());
        let wanted: Vec<Region> = wanting(&parts).map(|part| part.send.region().clone()).collect();
        // A row that several want is dealt value by value, which takes longer than a stretch of it for each.
        let dealt = dealer(&wanted).filter(|_| packed && apart).map(|dealer| dealer.row());
        if dealt.is_some() {
            tiles = 1;
        } else if parts.iter().all(|part: &Part| part.send.fills()) {
            // Taking turns at stretches holds the destinations together; tiles only bound how far one runs ahead.
            tiles = tiles.div_ceil(STRETCHED);
        }
        let firsts = parts.iter().filter_map(|part| ends(&part.send.region().shape().messages()));
        let axis = firsts.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or((0, 0));
        Ok(Self { parts, tiles, tile: 0, released: false, axis, shares, dealt })
    }

    /// Tiles in which the common memory is read.
    pub fn tiles(&self) -> u64 {
        self.tiles
    }

    /// Whether destinations have bytes in the same cache lines, so that reading a tile once serves
    /// several.
    pub fn shares(&self) -> bool {
        self.shares
    }

    /// The plan of each destination, in their order; none without a planner.
    pub fn plans(&self) -> impl Iterator<Item = Option<&ViewPlan>> {
        self.parts.iter().map(|part| part.plan.as_ref())
    }

    /// Messages to each destination that no queue has accepted.
    pub(crate) fn unposted(&self) -> impl Iterator<Item = (u64, u64)> {
        self.parts.iter().map(|part| (part.send.id(), part.send.unposted()))
    }

    /// Whether every request of it was accepted.
    pub fn is_posted(&self) -> bool {
        self.tile == self.tiles
    }

    fn release(&mut self) {
        let (tile, tiles, axis) = (self.tile + 1, self.tiles, self.axis);
        for part in &mut self.parts {
            let shape = part.send.region().shape().clone();
            let until = if tile == tiles { u64::MAX } else { boundary(&shape.messages(), tile, tiles, axis) };
            part.send.release(until);
            part.done = false;
        }
        self.released = true;
    }

    /// Posts as much of it as queues and pool take now; true once all is posted. Otherwise poll,
    /// then call it again. A destination that takes nothing holds up the others at the end of its
    /// tile.
    ///
    /// # Errors
    /// As [`DeclaredSend::post`], of the first destination that fails.
    pub fn post(&mut self, queue: &mut CompletionQueue, pool: &Pool) -> Result<bool, Error> {
        if self.tile == 0 && !self.released {
            self.parts.iter().try_for_each(|part| part.send.check(pool))?;
        }
        if let Some(row) = self.dealt.filter(|_| !self.is_posted()) {
            let posted = self.deal(queue, row, pool)?;
            if posted || self.dealt.is_some() {
                return Ok(posted);
            }
        }
        while self.tile < self.tiles {
            if !self.released {
                self.release();
            }
            self.pack_in_turn(queue, pool)?;
            let (mut complete, mut starved) = (true, false);
            for part in self.parts.iter_mut().filter(|part| !part.done) {
                let advance = part.send.advance(queue, part.queue_pair, pool, true)?;
                part.done = advance == Advance::Done;
                complete &= part.done;
                starved |= advance == Advance::Starved;
            }
            if starved {
                self.give_up_buffers(queue, pool)?;
            }
            if !complete {
                return Ok(false);
            }
            (self.tile, self.released) = (self.tile + 1, false);
        }
        Ok(true)
    }

    /// Packs rows from `row` on for everybody in one pass, as far as there are buffers; true once
    /// all is posted. Where buffers are so few that the next row's destination never gets one, the
    /// rest is left to the tiles, which go on destination by destination.
    fn deal(&mut self, queue: &mut CompletionQueue, row: u64, pool: &Pool) -> Result<bool, VerbsError> {
        let regions: Vec<Region> = wanting(&self.parts).map(|part| part.send.region().clone()).collect();
        let Some(mut dealer) = dealer(&regions) else { unreachable!("regions do not change") };
        dealer.resume(row);
        let together = together(pool, regions.len());
        let mut starved = false;
        while !dealer.is_done() && !starved {
            let mut places: Vec<RowBuffer<'_>> = Vec::with_capacity(regions.len());
            for part in self.parts.iter_mut().filter(|part| part.wants()) {
                let room = if part.send.left() > 0 { part.send.room(pool) } else { Some(&mut [][..]) };
                starved |= room.is_none();
                places.push(RowBuffer { room: room.unwrap_or_default(), rows: 0 });
            }
            dealer.deal(&mut places);
            let rows: Vec<usize> = places.into_iter().map(|place| place.rows).collect();
            self.dealt = Some(dealer.row());
            for (part, rows) in self.parts.iter_mut().filter(|part| part.wants()).zip(rows) {
                part.send.filled(rows as u64);
                if part.send.has(together) {
                    part.send.push(queue, part.queue_pair)?;
                }
            }
        }
        if starved {
            self.give_up_buffers(queue, pool)?;
            let stuck =
                dealer.row() == row && self.parts.iter().all(|part| queue.sends_in_flight(part.queue_pair) == 0);
            self.dealt = self.dealt.filter(|_| !stuck);
            return Ok(false);
        }
        let mut all = true;
        for part in &mut self.parts {
            all &= part.send.push(queue, part.queue_pair)?;
        }
        self.tile = if all { self.tiles } else { self.tile };
        Ok(all)
    }

    /// Packs the tile stretch by stretch, each for everybody, so that it is read from the nearest
    /// cache by all but the first; as far as there are buffers.
    fn pack_in_turn(&mut self, queue: &mut CompletionQueue, pool: &Pool) -> Result<(), VerbsError> {
        let Some(memory) = self.parts.first().map(|part| part.send.region().memory().clone()) else { return Ok(()) };
        let shapes: Vec<Arc<Shape>> = self.parts.iter().map(|part| part.send.region().shape().clone()).collect();
        let mut packers: Vec<Option<Packer<'_>>> =
            self.parts.iter().zip(&shapes).map(|(part, shape)| part.send.packer(&memory, shape)).collect();
        let together = together(pool, packers.len());
        let mut more = true;
        while more {
            more = false;
            for (part, packer) in self.parts.iter_mut().zip(&mut packers) {
                let Some(packer) = packer.as_mut().filter(|packer| packer.left() > 0) else { continue };
                if !part.send.fill(packer, pool) {
                    return Ok(());
                }
                if part.send.has(together) && !part.send.push(queue, part.queue_pair)? {
                    return Ok(());
                }
                more = true;
            }
        }
        Ok(())
    }

    /// What holds transmit buffers goes, so that they come back: requests that wait for company
    /// and, where no other buffer is on its way, those that are being filled.
    fn give_up_buffers(&mut self, queue: &mut CompletionQueue, pool: &Pool) -> Result<(), VerbsError> {
        let mut on_their_way = false;
        for part in &mut self.parts {
            part.send.push(queue, part.queue_pair)?;
            on_their_way |= queue.sends_in_flight(part.queue_pair) > 0;
        }
        if !on_their_way && pool.free() == 0 {
            for part in &mut self.parts {
                part.send.close_bundle();
                part.send.push(queue, part.queue_pair)?;
            }
        }
        Ok(())
    }
}

impl Part {
    /// Whether there is anything for this destination.
    fn wants(&self) -> bool {
        self.send.region().shape().bytes() > 0
    }
}

fn wanting(parts: &[Part]) -> impl Iterator<Item = &Part> {
    parts.iter().filter(|part| part.wants())
}

/// How many requests of a destination are posted together. Most of what a shared send costs beside
/// its bytes is waking receivers, so they are as many as may be while others of a destination's
/// share of the pool are on their way back.
fn together(pool: &Pool, destinations: usize) -> usize {
    (pool.capacity() * 2 / (3 * destinations.max(1))).clamp(1, TOGETHER_MAX)
}

/// One pass for all, if they are rows of one table.
fn dealer(regions: &[Region]) -> Option<Dealer<'_>> {
    let shapes: Vec<&Shape> = regions.iter().map(|region| &**region.shape()).collect();
    Dealer::new(regions.first()?.memory(), &shapes).ok().flatten()
}

/// A plan for each region: for all of them at once, if they lie in the same cache lines. `apart`:
/// no two have a byte in common.
fn planned(
    planner: &Planner,
    regions: &[Region],
    terms: &Terms,
    shares: bool,
    apart: bool,
) -> Result<Vec<ViewPlan>, DeclareError> {
    let named = |(index, error)| DeclareError::Plan { field: format!("destination {index}"), error };
    let shapes = regions.iter().map(|region| &**region.shape());
    if shares {
        let shapes: Vec<&Shape> = shapes.collect();
        let plans =
            if apart { planner.plan_together(&shapes, terms) } else { planner.plan_overlapping(&shapes, terms) };
        return plans.map_err(named);
    }
    let plan = |(index, shape)| planner.plan(shape, terms).map_err(|error| named((index, error)));
    shapes.enumerate().map(plan).collect()
}

fn regions(memory: &Arc<Buffer>, destinations: &[Destination], balance: Balance) -> Result<Vec<Region>, DeclareError> {
    let Some(first) = destinations.first() else { return Err(DeclareError::Nobody) };
    let expected = elements(&first.shape);
    let mut regions = Vec::with_capacity(destinations.len());
    for (index, to) in destinations.iter().enumerate() {
        let region = Region::new(memory, &to.shape);
        regions.push(region.map_err(|error| DeclareError::Escapes { field: format!("destination {index}"), error })?);
        let elements = elements(&to.shape);
        if balance == Balance::Equal && elements != expected {
            return Err(DeclareError::Elements { destination: index, elements, expected });
        }
    }
    Ok(regions)
}

/// Elements of each region: of a set all have as many, in whichever order it is sent.
fn elements(shape: &Shape) -> u64 {
    match shape.kind() {
        ShapeKind::Set { regions, .. } => regions.first().map_or(0, Shape::elements),
        _ => shape.elements(),
    }
}

/// Whether no two destinations have a byte in common.
fn apart(destinations: &[Destination], sharing: Sharing) -> Result<bool, DeclareError> {
    let shapes: Vec<&Shape> = destinations.iter().map(|to| &*to.shape).collect();
    match (shared_byte(&shapes), sharing) {
        (Some(Overlap { first, second, at }), Sharing::Refused) => Err(DeclareError::Overlap { first, second, at }),
        (shared, _) => Ok(shared.is_none()),
    }
}

/// Bytes between a shape's ends that a pass over it reads, column by column.
fn touched(shape: &Shape) -> u64 {
    match shape.kind() {
        ShapeKind::Set { regions, .. } => regions.iter().map(touched).sum(),
        ShapeKind::Bitmapped { columns, rows } => {
            columns.iter().map(|column| column.stride.saturating_mul(rows.rows())).fold(0, u64::saturating_add)
        }
        _ => shape.end() - shape.start(),
    }
}

/// Addresses of the first and the last message's first fragments.
fn ends(messages: &Messages<'_>) -> Option<(u64, u64)> {
    let last = messages.count().checked_sub(1)?;
    let (first, last) = (address(messages, 0)?, address(messages, last)?);
    Some((first.min(last), first.max(last)))
}

fn address(messages: &Messages<'_>, index: u64) -> Option<u64> {
    messages.message(index).next().map(|run| run.at)
}

/// How many of a destination's messages belong to the first `tile` of `tiles` tiles: those whose
/// first byte lies before the tile's end. For kinds that cannot tell, where messages are spread
/// evenly the first guess is right; else a few steps of bisection follow. A boundary a little off
/// costs a few lines read twice and nothing else.
fn boundary(messages: &Messages<'_>, tile: u64, tiles: u64, axis: (u64, u64)) -> u64 {
    let share = |of: u64| (u128::from(of) * u128::from(tile) / u128::from(tiles)) as u64;
    let end = axis.0 + share(axis.1 - axis.0);
    let slack = (axis.1 - axis.0) / tiles / 16;
    let (mut low, mut high) = (0, messages.count());
    let mut guess = share(messages.count());
    // Most kinds know by arithmetic or by counting bits.
    if let Some(below) = messages.beginning_below(end) {
        return below;
    }
    for _ in 0..BISECTIONS {
        if low >= high {
            break;
        }
        let Some(at) = address(messages, guess.min(high - 1)) else { break };
        if at.abs_diff(end) <= slack {
            break;
        }
        if at < end {
            low = guess.min(high - 1) + 1
        } else {
            high = guess.min(high - 1)
        }
        guess = low.midpoint(high);
    }
    guess
}

/// Whether reading the lines of all destinations at once saves a good part of reading them one by
/// one: looked at in the middle of the axis, over the address-merged union (d-rdma §4.1 DR-M32).
fn shares_lines(regions: &[Region], tiles: u64) -> bool {
    let shapes: Vec<&Shape> = regions.iter().map(|region| &**region.shape()).collect();
    // Rows of one table are looked at by their bits: walking some hundred fragments of each takes longer than a small table takes to send.
    if let Some(table) = OneTable::of(&shapes) {
        let (union, apart) = table.lines(LINE_BYTES, SAMPLE_ROWS);
        return union * 4 < apart * 3;
    }
    let mut union: Vec<(u64, u64)> = Vec::new();
    let mut apart = 0;
    let middle = regions.iter().filter_map(|region| ends(&region.shape().messages()));
    let Some(axis) = middle.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))) else { return false };
    for region in regions {
        let messages = region.shape().messages();
        let from = boundary(&messages, tiles.div_ceil(2), tiles.max(2), axis).min(messages.count());
        let to = (from + SAMPLE_MESSAGES).min(messages.count());
        let from = to.saturating_sub(SAMPLE_MESSAGES);
        let mut lines: Vec<(u64, u64)> =
            messages.slice(from..to).fragments().take(SAMPLE_FRAGMENTS).map(lines).collect();
        apart += merge(&mut lines);
        union.extend(lines);
    }
    merge(&mut union) * 4 < apart * 3
}

fn lines(run: Run) -> (u64, u64) {
    (run.at / LINE_BYTES, (run.at + run.len).div_ceil(LINE_BYTES))
}

/// Merges ranges of lines; returns how many lines they are.
fn merge(ranges: &mut Vec<(u64, u64)>) -> u64 {
    ranges.sort_unstable();
    ranges.dedup_by(|next, kept| {
        let joined = next.0 <= kept.1;
        if joined {
            kept.1 = kept.1.max(next.1);
        }
        joined
    });
    ranges.iter().map(|(from, to)| to - from).sum()
}

/// A quarter of the second-level cache of anything that runs this: the packed bytes lie in it as
/// well.
const TILE_BYTES: u64 = 256 << 10;
/// How many times longer tiles are where all destinations are packed in turn.
const STRETCHED: u64 = 4;
/// As many as a provider takes at once.
const TOGETHER_MAX: usize = 16;
const BISECTIONS: usize = 40;
/// Few: sorting what they lie in is part of every send.
const SAMPLE_MESSAGES: u64 = 64;
const SAMPLE_FRAGMENTS: usize = 512;
const SAMPLE_ROWS: u64 = 1024;
const LINE_BYTES: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use overside_memory::Segment;

    #[test]
    fn requests_wait_for_company_as_far_as_buffers_reach() {
        let pool = |buffers: usize| Pool::new(Segment::private(buffers * 4096).unwrap(), 4096).unwrap();
        let counts = [(192, 8, 16), (96, 8, 8), (48, 8, 4), (8, 8, 1), (2, 8, 1), (1000, 2, TOGETHER_MAX), (6, 1, 4)];
        for (buffers, destinations, expected) in counts {
            assert_eq!(together(&pool(buffers), destinations), expected, "{buffers} buffers for {destinations}");
        }
    }
}

//! A running scan: page after page, each sent in the way that was asked for or that is cheapest.

use std::ops::Bound;
use std::sync::Arc;

use overside_bwtree::{Direction, Pages, PinAccount, PinnedPage};
use overside_memory::View;
use overside_planner::{Goal, Profile};

use super::Shared;
use super::answer::{self, Ways};
use super::connection::Connection;
use super::meter::{Meter, Stopwatch};
use super::store::{Table, fault};
use super::transmit::{LARGE_BYTES, Transmit};
use crate::block::{Copier, DeltaAt, HEADER_BYTES, PageState};
use crate::projection::Projection;
use crate::wire::{Fault, FaultCode, MODES, Mode, Reply, ScanReply, ScanRequest};

/// A scan that a connection is being fed.
pub(crate) struct ActiveScan {
    number: u32,
    table: Arc<Table>,
    pages: Pages,
    /// A page of which some rows are sent: it did not fit into one message.
    begun: Option<(PinnedPage, usize)>,
    projection: Projection,
    mode: Mode,
    rows_left: u64,
    sequence: u64,
    reply: ScanReply,
    ways: Ways,
    /// The way and the sender's price of the page in hand, where the planner chose.
    planned: Option<(Mode, f64)>,
}

/// What a turn brought.
pub(crate) enum Turn {
    Message(View),
    /// Longer than the client's buffers: to be cut into parts.
    Long(Vec<u8>),
    /// No transmit buffer is free; something must complete first.
    Wait,
    End,
}

/// What sending depends on apart from the page.
pub(crate) struct Terms<'a> {
    pub(crate) profile: &'a Profile,
    pub(crate) goal: Goal,
    pub(crate) sge_max: usize,
    pub(crate) block_bytes: usize,
    /// The connection's pins are spent: copy out.
    pub(crate) spent: bool,
    /// What the ways really took.
    pub(crate) meter: &'a Meter,
}

impl std::fmt::Debug for ActiveScan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ActiveScan").field("table", &self.table.name).field("sent", &self.reply).finish_non_exhaustive()
    }
}

impl ActiveScan {
    pub(crate) fn new(
        number: u32,
        table: Arc<Table>,
        request: &ScanRequest<'_>,
        pins: Arc<PinAccount>,
    ) -> Result<ActiveScan, Fault> {
        let columns: Option<Vec<usize>> =
            request.columns.as_ref().map(|columns| columns.iter().map(|c| usize::from(*c)).collect());
        let projection = match columns {
            None => Projection::whole(&table.schema),
            Some(columns) => {
                Projection::new(&table.schema, &columns).map_err(|e| fault(FaultCode::BadRequest, e.to_string()))?
            }
        };
        let (from, to) = (bound(request.bounds.from), bound(request.bounds.to));
        let pages = table.tree.pages(from, to, Direction::Forward).on_account(pins);
        Ok(ActiveScan {
            number,
            table,
            pages,
            begun: None,
            projection,
            mode: request.mode,
            rows_left: request.rows_max.unwrap_or(u64::MAX),
            sequence: 0,
            reply: ScanReply::default(),
            ways: Ways::default(),
            planned: None,
        })
    }

    /// Ends it after what is under way.
    pub(crate) fn cancel(&mut self) {
        self.rows_left = 0;
        self.begun = None;
        self.reply.cancelled = true;
    }

    /// The next message.
    pub(crate) fn turn(&mut self, terms: &Terms<'_>, transmit: &Transmit) -> Turn {
        let stopwatch = Stopwatch::for_turn(self.sequence);
        loop {
            let (page, from) = match self.begun.take() {
                Some(begun) => begun,
                None if self.rows_left == 0 => return Turn::End,
                None => match self.pages.next() {
                    Some(page) => (page, 0),
                    None => return Turn::End,
                },
            };
            let deltas: Vec<DeltaAt<'_>> =
                page.deltas().map(|record| DeltaAt { record, at: page.offset_of(record.record()) }).collect();
            let state = PageState::new(page.leaf(), page.offset_of(page.base()), page.rows(), &deltas);
            if state.rows() == 0 {
                continue;
            }
            self.ways.next_page();
            let turn = self.send(&page, &state, from, terms, transmit);
            let (turn, sent) = match turn {
                Some(done) => done,
                None => {
                    drop(deltas);
                    self.begun = Some((page, from));
                    return Turn::Wait;
                }
            };
            let rows = state.rows();
            drop(deltas);
            if from + sent < rows {
                self.begun = Some((page, from + sent));
            }
            if let (0, Some(planned)) = (from, self.planned.take()) {
                terms.meter.note(planned.0, planned.1, stopwatch);
            }
            self.rows_left = self.rows_left.saturating_sub(sent as u64);
            self.sequence += 1;
            self.reply.messages += 1;
            return turn;
        }
    }

    /// Sends rows of a page from `from` on: the message and how many rows it has; none when no buffer is free.
    fn send(
        &mut self,
        page: &PinnedPage,
        state: &PageState<'_>,
        from: usize,
        terms: &Terms<'_>,
        transmit: &Transmit,
    ) -> Option<(Turn, usize)> {
        let way = match self.mode {
            // The rest of a page that was begun by copying is copied.
            _ if from > 0 => Mode::Copy,
            Mode::Auto => self.cheapest(state, terms),
            mode => mode,
        };
        let way = if terms.spent && way != Mode::Copy {
            self.reply.over_budget += 1;
            Mode::Copy
        } else {
            way
        };
        let in_place = match way {
            Mode::Gather | Mode::Delta => self.in_place(way, page, state, terms, transmit)?,
            _ => None,
        };
        let (turn, rows, way) = match in_place {
            Some(view) => (Turn::Message(view), state.rows(), way),
            // Too long or too scattered for one message: copied, in as many as it takes.
            None => {
                let (turn, rows) = self.copied(page, state, from, terms, transmit)?;
                (turn, rows, Mode::Copy)
            }
        };
        if from == 0 {
            self.reply.chosen[answer::index(way)] += 1;
        }
        self.reply.bytes_sent += match &turn {
            Turn::Message(view) => view.bytes(),
            Turn::Long(bytes) => bytes.len() as u64,
            Turn::Wait | Turn::End => 0,
        };
        Some((turn, rows))
    }

    fn cheapest(&mut self, state: &PageState<'_>, terms: &Terms<'_>) -> Mode {
        match self.ways.plan(state, &self.projection, terms) {
            Some(plan) => {
                for (sum, price) in self.reply.price_ns.iter_mut().zip(&plan.prices) {
                    *sum += price.map_or(0, |p| p.ns as u64);
                }
                self.planned = Some((MODES[plan.chosen], plan.price().sender_ns));
                MODES[plan.chosen]
            }
            None => Mode::Copy,
        }
    }

    /// A message of fragments; `Some(None)` when the page cannot be sent so, `None` when no buffer is free.
    #[allow(clippy::option_option, reason = "two different reasons for having none")]
    fn in_place(
        &mut self,
        way: Mode,
        page: &PinnedPage,
        state: &PageState<'_>,
        terms: &Terms<'_>,
        transmit: &Transmit,
    ) -> Option<Option<View>> {
        let draft = self.ways.draft(way, state, &self.projection, terms);
        let sges = draft.fragments().len() + 1;
        if draft.message_len() > terms.block_bytes as u64 || sges > terms.sge_max || draft.head_len() > LARGE_BYTES {
            return Some(None);
        }
        let mut head = transmit.take(draft.head_len())?;
        draft.write_head(&mut head, &self.projection, u64::from(self.number), self.sequence);
        let head = transmit.view(head, draft.head_len());
        let Some(body) = page.view(draft.fragments().iter().map(|f| (f.offset, f.len))) else { return Some(None) };
        Some(Some(head.then(body)))
    }

    /// A packed message: as many rows as fit, or one row in parts.
    fn copied(
        &mut self,
        page: &PinnedPage,
        state: &PageState<'_>,
        from: usize,
        terms: &Terms<'_>,
        transmit: &Transmit,
    ) -> Option<(Turn, usize)> {
        let rows = from..state.rows();
        let mut buffer = transmit.take(LARGE_BYTES.min(terms.block_bytes))?;
        let room = buffer.len().min(terms.block_bytes);
        let extent = |named| Some(page.overflow(named));
        let mut copier = Copier::new(&mut buffer[..room], &self.projection);
        let taken = copier.push(state, rows.clone(), &extent).unwrap_or(0);
        if taken > 0 {
            let len = copier.finish(u64::from(self.number), self.sequence, false);
            self.reply.bytes_copied += len as u64;
            return Some((Turn::Message(transmit.view(buffer, len)), taken));
        }
        transmit.put(buffer);
        let one = rows.start..rows.start + 1;
        let needed = Copier::bytes_of(state, one.clone(), &self.projection).unwrap_or(0) + HEADER_BYTES;
        let mut bytes = vec![0; needed];
        let mut copier = Copier::new(&mut bytes, &self.projection);
        let taken = copier.push(state, one, &extent).unwrap_or(0);
        let len = copier.finish(u64::from(self.number), self.sequence, false);
        bytes.truncate(len);
        self.reply.bytes_copied += len as u64;
        // A row that cannot be packed is broken in the store; skipping it would hide that.
        debug_assert_eq!(taken, 1, "a stored row cannot be packed");
        Some((Turn::Long(bytes), 1))
    }
}

impl Connection {
    /// Queues messages of the running scan as far as the window reaches; true when it queued any.
    pub(crate) fn produce(&mut self, shared: &Shared, transmit: &Transmit) -> bool {
        let Some(mut scan) = self.scan.take() else { return false };
        let mut produced = false;
        let terms = Terms {
            profile: &shared.profile,
            goal: shared.options.goal,
            sge_max: shared.sge_max,
            block_bytes: self.block_bytes,
            spent: self.held_bytes() > shared.options.pinned_max,
            meter: &shared.meter,
        };
        let until = shared.options.window.min(self.in_flight + self.outbox.len() + PRODUCE_AT_ONCE);
        while self.in_flight + self.outbox.len() < until {
            produced = true;
            match scan.turn(&terms, transmit) {
                Turn::Message(view) => self.send(view),
                Turn::Long(bytes) => self.send_bytes(bytes, transmit),
                Turn::Wait => {
                    produced = false;
                    break;
                }
                Turn::End => {
                    self.reply(scan.number, &Reply::ScanEnd(scan.reply), transmit);
                    return true;
                }
            }
        }
        self.scan = Some(scan);
        produced
    }
}

fn bound(bound: Option<(&[u8], bool)>) -> Bound<&[u8]> {
    match bound {
        None => Bound::Unbounded,
        Some((key, true)) => Bound::Included(key),
        Some((key, false)) => Bound::Excluded(key),
    }
}

/// Messages produced before they are posted: the client shall not wait for a whole window.
const PRODUCE_AT_ONCE: usize = 4;

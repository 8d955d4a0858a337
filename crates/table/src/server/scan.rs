//! A running scan: page after page, each sent in the way that was asked for or that is cheapest.
//! How they become messages is in [`super::message`].

use std::ops::Bound;
use std::sync::Arc;

use overside_bwtree::{DeltaRecord, Direction, Pages, PinAccount, PinnedPage};
use overside_disk::mutant;
use overside_planner::{Goal, Planner};
use overside_service::{Context, Message, Produced};
use smallvec::SmallVec;

use super::answer::{self, Drafts};
use super::index::{Index, Through};
use super::meter::{Meter, Stopwatch};
use super::remembered::Priced;
use super::session::TableSession;
use super::store::{Table, fault};
use crate::block::{DeltaAt, PageState};
use crate::projection::Projection;
use crate::wire::{self, Fault, FaultCode, MODES, Mode, Reply, ScanReply, ScanRequest};

/// A scan that a connection is being fed.
pub(crate) struct ActiveScan {
    pub(super) number: u32,
    table: Arc<Table>,
    pages: Source,
    /// A page that is to travel next: it did not fit into the message before, or not all of it.
    pub(super) begun: Option<Part>,
    pub(super) projection: Arc<Projection>,
    mode: Mode,
    /// The client reads in place what is lent to it, in messages of so many bytes at most.
    lent_bytes_max: Option<usize>,
    pub(super) rows_left: u64,
    pub(super) sequence: u64,
    pub(super) reply: ScanReply,
    pub(super) drafts: Drafts,
    planned: Planned,
    /// The newest stamp of all pages so far.
    newest: u64,
    /// The connection's pins were spent when they were last looked at.
    spent: bool,
    /// Bytes sent when they are looked at again, for each look goes through all of them.
    look_at: u64,
}

/// Where its pages come from.
enum Source {
    /// The table's own order.
    Table(Pages),
    /// An index's, a page a row.
    Index(Box<Through>),
}

/// A page of which the rows from `from` on are still to be sent.
pub(crate) struct Part {
    pub(super) page: PinnedPage,
    pub(super) from: usize,
}

/// How a page is to travel.
pub(super) struct Choice {
    pub(super) way: Mode,
    /// Rows that the page delivers.
    pub(super) rows: usize,
    /// Where the planner chose.
    priced: Option<Priced>,
    /// Another way was wanted, and the connection's pins are spent.
    over_budget: bool,
}

/// The pages of a message that travel as planned: how many, and what making it of them takes by the
/// device's profile.
#[derive(Clone, Copy, Default)]
struct Planned {
    pages: u32,
    prepared_ns: f64,
}

/// What a turn brought.
pub(crate) enum Turn {
    Message(Message),
    /// Longer than the client's buffers: to be cut into parts.
    Long(Vec<u8>),
    /// The connection may have no other transmit buffer; something must complete first.
    Wait,
    End,
    /// A stored row is not what its table says.
    Broken,
}

/// What sending depends on apart from the page.
pub(crate) struct Terms<'a> {
    pub(crate) planner: &'a Planner,
    pub(crate) goal: Goal,
    pub(crate) sge_max: usize,
    pub(crate) block_bytes: usize,
    /// The connection's pins are spent: copy out.
    pub(crate) spent: bool,
    /// Pages may be lent, in messages of so many bytes at most.
    pub(crate) lent_bytes_max: Option<usize>,
    /// What the ways really took.
    pub(crate) meter: &'a Meter,
}

impl Terms<'_> {
    /// Bytes of a message that travels this way, at most. Copies are as long as the buffers that a
    /// client finds in its caches again; what is lent meets no buffer, and what a message costs at
    /// both ends is shared by more pages.
    pub(super) fn message_bytes(&self, way: Mode) -> usize {
        match (way, self.lent_bytes_max) {
            (Mode::InPlace, Some(lent)) => lent,
            _ => self.block_bytes,
        }
    }
}

impl std::fmt::Debug for ActiveScan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ActiveScan").field("table", &self.table.name).field("sent", &self.reply).finish_non_exhaustive()
    }
}

impl Source {
    fn next(&mut self) -> Option<PinnedPage> {
        match self {
            Source::Table(pages) => pages.next(),
            Source::Index(through) => through.next(),
        }
    }

    /// The same of what it passed over before the page in hand, where that does not say so itself.
    fn passed(&self) -> u64 {
        match self {
            Source::Table(_) => 0,
            Source::Index(through) => through.newest(),
        }
    }

    /// No change that its pages so far, or what is no more, shows has a larger stamp.
    fn newest(&self) -> u64 {
        match self {
            Source::Table(pages) => pages.newest(),
            Source::Index(through) => through.newest(),
        }
    }
}

impl Part {
    /// Calls `with` with the page's state.
    pub(super) fn with_state<R>(&self, with: impl FnOnce(&PageState<'_>) -> R) -> R {
        let page = &self.page;
        let at = |record: DeltaRecord<'_>| page.offset_of(record.record());
        let deltas: SmallVec<[DeltaAt<'_>; 9]> =
            page.deltas().map(|record| DeltaAt { record, at: at(record) }).collect();
        with(&PageState::new(page.leaf(), page.offset_of(page.base()), page.rows(), &deltas))
    }
}

impl ActiveScan {
    pub(crate) fn new(
        number: u32,
        table: Arc<Table>,
        request: &ScanRequest<'_>,
        lent_bytes_max: Option<usize>,
        pins: Arc<PinAccount>,
        index: Option<Arc<Index>>,
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
        let pages = match index {
            Some(index) => Source::Index(Box::new(Through::new(table.clone(), index, pins, (from, to)))),
            None => {
                let pages = table.tree.pages(from, to, Direction::Forward).on_account(pins);
                Source::Table(pages.together(PAGES_TOGETHER))
            }
        };
        Ok(ActiveScan {
            number,
            table,
            pages,
            begun: None,
            projection: Arc::new(projection),
            mode: request.mode,
            lent_bytes_max,
            rows_left: request.rows_max.unwrap_or(u64::MAX),
            sequence: 0,
            reply: ScanReply::default(),
            drafts: Drafts::default(),
            planned: Planned::default(),
            newest: 0,
            spent: false,
            look_at: 0,
        })
    }

    /// Ends it after what is under way.
    pub(crate) fn cancel(&mut self) {
        self.rows_left = 0;
        self.begun = None;
        self.reply.cancelled = true;
    }

    /// The next message.
    pub(crate) fn turn(&mut self, terms: &Terms<'_>, context: &Context<'_>) -> Turn {
        let stopwatch = Stopwatch::for_turn(self.sequence, context.clock());
        self.drafts.next_message();
        self.planned = Planned::default();
        let Some((part, choice)) = self.next_part(terms, None) else { return Turn::End };
        let (turn, way) = match choice.way {
            Mode::Gather | Mode::Delta | Mode::InPlace => self.in_place(part, choice, terms, context),
            _ => (self.copied(part, choice, terms, context), Mode::Copy),
        };
        self.reply.bytes_sent += match &turn {
            Turn::Message(message) => message.bytes(),
            Turn::Long(bytes) => bytes.len() as u64,
            Turn::Wait | Turn::End | Turn::Broken => return turn,
        };
        terms.meter.note(way, self.planned.prepared_ns, self.planned.pages, stopwatch, context.clock());
        self.sequence += 1;
        self.reply.messages += 1;
        turn
    }

    /// The next page with rows, and how it is to travel; `joins`: in the message of earlier ones,
    /// which travel so.
    pub(super) fn next_part(&mut self, terms: &Terms<'_>, joins: Option<Mode>) -> Option<(Part, Choice)> {
        loop {
            let part = match self.begun.take() {
                Some(part) => part,
                None if self.rows_left == 0 => return None,
                None => {
                    let Some(page) = self.pages.next() else {
                        self.newest = self.newest.max(self.pages.newest());
                        return None;
                    };
                    self.newest = self.newest.max(page.newest()).max(self.pages.passed());
                    if mutant("scan-page-lost") && page.deltas().count() > 4 {
                        continue;
                    }
                    Part { page, from: 0 }
                }
            };
            self.drafts.next_page();
            let choice =
                part.with_state(|state| (state.rows() > 0).then(|| self.choose(state, part.from, terms, joins)));
            if let Some(choice) = choice {
                return Some((part, choice));
            }
        }
    }

    fn choose(&mut self, state: &PageState<'_>, from: usize, terms: &Terms<'_>, joins: Option<Mode>) -> Choice {
        let priced = match self.mode {
            Mode::Auto if from == 0 => self.drafts.plan(state, &self.projection, terms, joins),
            _ => None,
        };
        let wanted = match (self.mode, &priced) {
            // The rest of a page that was begun by copying is copied.
            _ if from > 0 => Mode::Copy,
            (Mode::Auto, Some(priced)) => MODES[priced.plan.chosen],
            (Mode::Auto, None) => Mode::Copy,
            (Mode::InPlace, _) if terms.lent_bytes_max.is_none() => Mode::Delta,
            (mode, _) => mode,
        };
        let over_budget = terms.spent && wanted != Mode::Copy;
        let way = if over_budget { Mode::Copy } else { wanted };
        if way != Mode::Copy {
            self.drafts.draft(way, state, &self.projection, terms);
        }
        Choice { way, rows: state.rows(), priced, over_budget }
    }

    /// Books `rows` rows of a page as sent `way`.
    pub(super) fn sent(&mut self, from: usize, rows: usize, way: Mode, choice: &Choice) {
        self.rows_left = self.rows_left.saturating_sub(rows as u64);
        if from > 0 {
            return;
        }
        self.reply.chosen[answer::index(way)] += 1;
        self.table.chains.sent(way, &self.table.tree);
        self.reply.over_budget += u64::from(choice.over_budget);
        if let Some(Priced { plan, prepared_ns }) = &choice.priced {
            for (sum, price) in self.reply.price_ns.iter_mut().zip(&plan.prices) {
                *sum += price.map_or(0, |p| p.ns as u64);
            }
            if MODES[plan.chosen] == way {
                self.planned.pages += 1;
                self.planned.prepared_ns += prepared_ns;
            }
        }
    }
}

impl TableSession {
    /// Sends the next message of the running scan.
    pub(super) fn produce_answer(&mut self, context: &mut Context<'_>) -> Produced {
        let Some(scan) = &mut self.scan else { return Produced::End };
        let (prices, options) = (&self.tables.prices, &self.tables.options);
        if scan.reply.bytes_sent >= scan.look_at {
            scan.spent = self.pins.hold_more_than(options.pinned_max);
            scan.look_at = scan.reply.bytes_sent + options.pinned_max / LOOKS;
        }
        let terms = Terms {
            planner: &prices.planner,
            goal: options.goal,
            sge_max: prices.sge_max,
            block_bytes: context.buffer_bytes(),
            spent: scan.spent,
            lent_bytes_max: scan.lent_bytes_max.filter(|_| prices.lends),
            meter: &prices.meter,
        };
        let turn = scan.turn(&terms, context);
        context.hold(scan.table.shown(scan.newest));
        let end = match turn {
            Turn::Message(message) => {
                context.send(message);
                return Produced::Message;
            }
            Turn::Long(bytes) => {
                context.send_bytes(bytes);
                return Produced::Message;
            }
            Turn::Wait => return Produced::Wait,
            Turn::End if scan.lent_bytes_max.is_some() => Reply::ScanEndInPlace(scan.reply),
            Turn::End => Reply::ScanEnd(scan.reply),
            Turn::Broken => {
                let text = "a stored row cannot be read, and the scan ends before it; this is a bug of the server, please report it";
                Reply::Fault(fault(FaultCode::BadRow, text.into()))
            }
        };
        context.reply(scan.number, |body| wire::append(body, &end));
        self.scan = None;
        Produced::End
    }
}

fn bound(bound: Option<(&[u8], bool)>) -> Bound<&[u8]> {
    match bound {
        None => Bound::Unbounded,
        Some((key, true)) => Bound::Included(key),
        Some((key, false)) => Bound::Excluded(key),
    }
}

/// Looks at the pins while as many bytes are sent as they may hold.
const LOOKS: u64 = 8;
/// Pages found in one go: what a worker produces at once (four messages), where two share a
/// message.
const PAGES_TOGETHER: usize = 8;

//! The ways in which a page can travel, and what each costs at both ends.

use overside_planner::{Draft as Priceable, Plan, Planner};

use super::remembered::{PageClass, Priced, Remembered};
use super::scan::Terms;
use crate::block::{Copier, DeltaAnswer, DeltaMark, Fragment, GatherAnswer, GatherMark, PageState};
use crate::projection::Projection;
use crate::wire::{MODES, Mode};

/// Drafts of a message of some pages, used again message after message. The last page of a draft is
/// the one in hand: it may still turn out to travel otherwise, or in the next message.
#[derive(Debug, Default)]
pub(crate) struct Drafts {
    gather: GatherAnswer,
    delta: DeltaAnswer,
    marks: (GatherMark, DeltaMark),
    /// Fragments and bytes of the drafts before the page in hand.
    before: [Size; 2],
    drafted: [bool; 2],
    remembered: Remembered,
}

/// How large a draft is, or what a page adds to it.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    fragments: usize,
    bytes: u64,
}

/// A draft that is sent from where its bytes lie.
#[derive(Clone, Copy)]
pub(crate) enum Draft<'a> {
    Gather(&'a GatherAnswer),
    Delta(&'a DeltaAnswer),
}

impl<'a> Draft<'a> {
    fn fragments(&self) -> &'a [Fragment] {
        match self {
            Draft::Gather(answer) => answer.fragments(),
            Draft::Delta(answer) => answer.fragments(),
        }
    }

    pub(crate) fn head_len(&self) -> usize {
        match self {
            Draft::Gather(answer) => answer.head_len(),
            Draft::Delta(answer) => answer.head_len(),
        }
    }

    pub(crate) fn message_len(&self) -> u64 {
        match self {
            Draft::Gather(answer) => answer.message_len(),
            Draft::Delta(answer) => answer.message_len(),
        }
    }

    /// Whether it is one message of the client's, with a head of at most `head_max` bytes.
    pub(crate) fn fits(&self, way: Mode, terms: &Terms<'_>, head_max: usize) -> bool {
        self.fragments().len() < terms.sge_max
            && self.message_len() <= terms.message_bytes(way) as u64
            && self.head_len() <= head_max
    }

    pub(crate) fn write_head(&self, head: &mut [u8], projection: &Projection, scan: u64, sequence: u64) {
        match self {
            Draft::Gather(answer) => answer.write_head(head, projection, scan, sequence, false),
            Draft::Delta(answer) => answer.write_head(head, projection, scan, sequence, false),
        }
    }

    /// The head, which is a fragment too, counts from the first page on.
    fn size(&self) -> Size {
        match self.fragments().len() {
            0 => Size::default(),
            fragments => Size { fragments: fragments + 1, bytes: self.message_len() },
        }
    }
}

impl Drafts {
    /// Prices of all ways for the page in hand, or for one like it; none when not even copying can
    /// be priced. A page that `joins` those of a message spares a request where it travels as they
    /// do.
    pub(crate) fn plan(
        &mut self,
        state: &PageState<'_>,
        projection: &Projection,
        terms: &Terms<'_>,
        joins: Option<Mode>,
    ) -> Option<Priced> {
        let kind = PageClass::of(state, joins);
        if let Some(priced) = self.remembered.recall(kind) {
            return Some(priced.clone());
        }
        let priced = self.price(state, projection, terms, joins)?;
        self.remembered.note(kind, &priced);
        Some(priced)
    }

    fn price(
        &mut self,
        state: &PageState<'_>,
        projection: &Projection,
        terms: &Terms<'_>,
        joins: Option<Mode>,
    ) -> Option<Priced> {
        let requests = |way| if joins == Some(way) { 0.0 } else { 1.0 };
        let planner = terms.planner;
        let copied = Copier::bytes_of(state, 0..state.rows(), projection).ok()? as u64;
        let ways = MODES.map(|way| match way {
            Mode::Copy => Some(copying(planner, state, projection, copied)),
            Mode::InPlace if terms.lent_bytes_max.is_none() || !planner.prices_loans() => None,
            _ => {
                self.draft(way, state, projection, terms);
                let page = self.page_in_hand(way);
                let possible = page.fragments < terms.sge_max && page.bytes <= terms.message_bytes(way) as u64;
                possible.then(|| self.in_place(planner, way, state, projection))
            }
        });
        let plan = Plan::cheapest(std::array::from_fn(|at| {
            let mut draft = ways[at]?;
            draft.also(terms.meter.beyond(MODES[at]));
            Some(draft.price(requests(MODES[at]), terms.goal))
        }))?;
        let prepared_ns = ways[plan.chosen].map_or(0.0, |way| way.pack_ns());
        Some(Priced { prepared_ns, plan })
    }

    /// Sending the page in hand from where it lies: an entry for each fragment, at both ends. A
    /// delta answer leaves the merging to the receiver, and so does one that is lent, of which the
    /// receiver reads what was asked for, where it lies.
    fn in_place<'p>(
        &self,
        planner: &'p Planner,
        way: Mode,
        state: &PageState<'_>,
        projection: &Projection,
    ) -> Priceable<'p> {
        let mut draft = planner.draft();
        if way == Mode::InPlace {
            let read = projection.read_of(state.rows() as u64, self.page_in_hand(way).bytes);
            draft.lend(self.fragments(way).len() as u64, read);
        } else {
            self.fragments(way).iter().for_each(|fragment| draft.gather(fragment.len));
        }
        if self.before[place(way)].fragments == 0 {
            draft.write(self.drafted(way).head_len() as u64);
        }
        if matches!(way, Mode::Delta | Mode::InPlace) {
            draft.merge(state.deltas() as u64);
        }
        draft
    }

    /// Sees to it that the page in hand is in the draft of a way.
    pub(crate) fn draft(
        &mut self,
        way: Mode,
        state: &PageState<'_>,
        projection: &Projection,
        terms: &Terms<'_>,
    ) -> Draft<'_> {
        if !std::mem::replace(&mut self.drafted[place(way)], true) {
            if place(way) == 1 {
                self.delta.push(state, projection);
            } else {
                self.gather.push(state, 0..state.rows(), projection, gap_bytes_max(terms.planner));
            }
        }
        self.drafted(way)
    }

    /// The draft of a way as it stands.
    pub(crate) fn drafted(&self, way: Mode) -> Draft<'_> {
        if place(way) == 1 { Draft::Delta(&self.delta) } else { Draft::Gather(&self.gather) }
    }

    /// The fragments of the page in hand.
    pub(crate) fn fragments(&self, way: Mode) -> &[Fragment] {
        // Of the size before, one is the head.
        &self.drafted(way).fragments()[self.before[place(way)].fragments.saturating_sub(1)..]
    }

    /// Begins a message.
    pub(crate) fn next_message(&mut self) {
        self.gather.clear();
        self.delta.clear();
        self.next_page();
    }

    /// Takes the next page in hand.
    pub(crate) fn next_page(&mut self) {
        self.marks = (self.gather.mark(), self.delta.mark());
        self.before = [Mode::Gather, Mode::Delta].map(|way| self.drafted(way).size());
        self.drafted = [false; 2];
    }

    /// The page in hand travels in the message, in this way and no other.
    pub(crate) fn keep(&mut self, way: Mode) {
        if place(way) == 1 {
            self.gather.rewind(&self.marks.0);
        } else {
            self.delta.rewind(&self.marks.1);
        }
    }

    /// The page in hand does not travel in the message.
    pub(crate) fn forget(&mut self) {
        self.gather.rewind(&self.marks.0);
        self.delta.rewind(&self.marks.1);
    }

    fn page_in_hand(&self, way: Mode) -> Size {
        let (now, before) = (self.drafted(way).size(), self.before[place(way)]);
        Size { fragments: now.fragments - before.fragments, bytes: now.bytes - before.bytes }
    }
}

/// Where a way's draft stands. What is lent is a delta answer.
fn place(way: Mode) -> usize {
    usize::from(matches!(way, Mode::Delta | Mode::InPlace))
}

/// Packing the page in hand: columns side by side, what travels whole as it lies.
fn copying<'p>(planner: &'p Planner, state: &PageState<'_>, projection: &Projection, bytes: u64) -> Priceable<'p> {
    let mut draft = planner.draft();
    let (rows, parts) = (state.rows() as u64, state.pieces_len() as u64);
    let (whole, packed) = (projection.in_place().prefix_len() as u64, projection.packed().prefix_len() as u64);
    if whole == packed {
        draft.pack(parts, rows * packed);
    } else {
        projection.prefix_runs().iter().for_each(|run| draft.pack_regular(rows, run.len, whole));
    }
    // Slots and rests of each part of the page are one move each, unless columns are taken out of them.
    let pieces = if projection.keeps_rests() { 2 * parts } else { rows };
    let rests = bytes.saturating_sub(rows * packed);
    draft.pack(if projection.needs_rest() { pieces } else { parts }, rests);
    draft
}

/// The widest gap that is cheaper to send along than to split a fragment at. The cost is a sum over
/// fragments and bytes, so deciding gap by gap is optimal.
fn gap_bytes_max(planner: &Planner) -> u64 {
    let cost = planner.box_cost();
    if cost.byte_ns > 0.0 { (cost.request_ns / cost.byte_ns).clamp(0.0, 1e6) as u64 } else { 0 }
}

/// Where a way stands in arrays by mode.
pub(crate) fn index(way: Mode) -> usize {
    MODES.iter().position(|m| *m == way).unwrap_or(0)
}

//! The three ways in which a page can travel, and what each costs at both ends.

use overside_planner::{Alternative, Profile, Work, plan};

use super::remembered::{Kind, Priced, Remembered};
use super::scan::Terms;
use crate::block::{Copier, DeltaAnswer, DeltaMark, Fragment, GatherAnswer, GatherMark, PageState};
use crate::projection::Projection;
use crate::wire::{MODES, Mode};

/// Drafts of a message of some pages, used again message after message. The last page of a draft is the one in hand: it
/// may still turn out to travel otherwise, or in the next message.
#[derive(Debug, Default)]
pub(crate) struct Ways {
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
    pub(crate) fn fits(&self, terms: &Terms<'_>, head_max: usize) -> bool {
        self.fragments().len() < terms.sge_max
            && self.message_len() <= terms.block_bytes as u64
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

impl Ways {
    /// Prices of all ways for the page in hand, or for one like it; none when not even copying can be priced. A page that
    /// `joins` those of a message spares a request where it travels as they do.
    pub(crate) fn plan(
        &mut self,
        state: &PageState<'_>,
        projection: &Projection,
        terms: &Terms<'_>,
        joins: Option<Mode>,
    ) -> Option<Priced> {
        let kind = Kind::of(state, joins);
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
        let copied = Copier::bytes_of(state, 0..state.rows(), projection).ok()?;
        let copy = copy_work(state, projection, copied, requests(Mode::Copy));
        let copy = Some(terms.meter.corrected(Mode::Copy, copy));
        let [gather, delta] = [Mode::Gather, Mode::Delta].map(|way| {
            self.draft(way, state, projection, terms);
            let page = self.page_in_hand(way);
            let possible = page.fragments < terms.sge_max && page.bytes <= terms.block_bytes as u64;
            possible.then(|| terms.meter.corrected(way, in_place_work(way, state, page, requests(way))))
        });
        let ways = [copy, gather, delta];
        let plan = plan(terms.profile, terms.goal, &ways)?;
        let prepared_ns = ways[plan.chosen].as_ref().map_or(0.0, |way| terms.profile.sender_ns(&prepared(&way.sender)));
        Some(Priced { prepared_ns, plan })
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
            if way == Mode::Delta {
                self.delta.push(state, projection);
            } else {
                self.gather.push(state, 0..state.rows(), projection, gap_bytes_max(terms.profile));
            }
        }
        self.drafted(way)
    }

    /// The draft of a way as it stands.
    pub(crate) fn drafted(&self, way: Mode) -> Draft<'_> {
        if way == Mode::Delta { Draft::Delta(&self.delta) } else { Draft::Gather(&self.gather) }
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
        if way == Mode::Delta {
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

/// Where a way's draft stands.
fn place(way: Mode) -> usize {
    usize::from(way == Mode::Delta)
}

/// Packing: the bytes once on the sender's processor, then as one piece.
fn copy_work<'a>(state: &PageState<'_>, projection: &Projection, bytes: usize, requests: f64) -> Alternative<'a> {
    let pieces = if projection.keeps_rests() && projection.is_whole() {
        // Prefixes, slots and rests of each piece of the page are one move each.
        3 * state.pieces_len()
    } else {
        state.rows()
    };
    let sender = Work {
        requests,
        fragments: requests,
        bytes: bytes as f64,
        packed_bytes: bytes as f64,
        packed_pieces: pieces as f64,
        ..Work::default()
    };
    let receiver = Work { requests, fragments: requests, bytes: bytes as f64, ..Work::default() };
    Alternative { name: Mode::Copy.name(), sender, receiver, wire_bytes: bytes as f64 }
}

/// The part of a sender's work that is done when a message is made, before it is posted.
fn prepared(work: &Work) -> Work {
    Work { requests: 0.0, fragments: 0.0, bytes: 0.0, other_ns: 0.0, ..*work }
}

/// Sending from where it lies: a gather entry for each fragment, at both ends. A delta answer leaves
/// the merging to the receiver.
fn in_place_work<'a>(way: Mode, state: &PageState<'_>, page: Size, requests: f64) -> Alternative<'a> {
    let (bytes, fragments) = (page.bytes as f64, page.fragments as f64);
    let sender = Work { requests, fragments, bytes, ..Work::default() };
    let merged = if way == Mode::Delta { state.deltas() as f64 } else { 0.0 };
    let receiver = Work { requests, fragments, bytes, rows: merged, ..Work::default() };
    Alternative { name: way.name(), sender, receiver, wire_bytes: bytes }
}

/// The widest gap that is cheaper to send along than to split a fragment at. The cost is a sum over
/// fragments and bytes, so deciding gap by gap is optimal.
fn gap_bytes_max(profile: &Profile) -> u64 {
    let fragment = profile.send_fragment_ns + profile.receive_fragment_ns;
    let byte = profile.send_byte_ns + profile.receive_byte_ns + profile.wire_byte_ns;
    if byte > 0.0 { (fragment / byte).clamp(0.0, 1e6) as u64 } else { 0 }
}

/// Where a way stands in arrays by mode.
pub(crate) fn index(way: Mode) -> usize {
    MODES.iter().position(|m| *m == way).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use overside_planner::Bends;

    /// Or what the meter finds would take the kernel's part of sending off a price again, and ways that send more would look cheaper.
    #[test]
    fn of_a_price_only_what_is_done_before_posting_is_held_against_the_clock() {
        let profile = Profile {
            send_request_ns: 900.0,
            send_fragment_ns: 30.0,
            send_byte_ns: 0.25,
            pack_byte_ns: 0.5,
            pack_piece_ns: 8.0,
            pack_request_ns: 0.0,
            row_ns: 4.0,
            receive_request_ns: 400.0,
            receive_fragment_ns: 10.0,
            receive_byte_ns: 0.25,
            wire_byte_ns: 0.0,
            bends: Bends::default(),
            source: "made up".into(),
            elsewhere: None,
        };
        let gathered = Work { requests: 1.0, fragments: 2.0, bytes: 10_000.0, other_ns: 70.0, ..Work::default() };
        assert_eq!(profile.sender_ns(&prepared(&gathered)), 0.0);
        let copied = Work { packed_bytes: 4000.0, packed_pieces: 80.0, ..gathered };
        assert_eq!(profile.sender_ns(&prepared(&copied)), 4000.0 * 0.5 + 80.0 * 8.0);
    }
}

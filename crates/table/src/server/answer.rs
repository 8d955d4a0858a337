//! The three ways in which a page can travel, and what each costs at both ends.

use overside_planner::{Alternative, Plan, Profile, Work, plan};

use super::scan::Terms;
use crate::block::{Copier, DeltaAnswer, Fragment, GatherAnswer, PageState};
use crate::projection::Projection;
use crate::wire::{MODES, Mode};

/// Drafts of an answer, used again page after page.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    gather: GatherAnswer,
    delta: DeltaAnswer,
    drafted: [bool; 2],
}

/// A draft that is sent from where its bytes lie.
pub(crate) enum Draft<'a> {
    Gather(&'a GatherAnswer),
    Delta(&'a DeltaAnswer),
}

impl Draft<'_> {
    pub(crate) fn fragments(&self) -> &[Fragment] {
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

    pub(crate) fn write_head(&self, head: &mut [u8], projection: &Projection, scan: u64, sequence: u64) {
        match self {
            Draft::Gather(answer) => answer.write_head(head, projection, scan, sequence, false),
            Draft::Delta(answer) => answer.write_head(head, projection, scan, sequence, false),
        }
    }
}

impl Ways {
    /// Prices all ways for the page that [`next_page`](Self::next_page) announced; none when not even copying can be priced.
    pub(crate) fn plan(
        &mut self,
        state: &PageState<'_>,
        projection: &Projection,
        terms: &Terms<'_>,
    ) -> Option<Plan<3>> {
        let copied = Copier::bytes_of(state, 0..state.rows(), projection).ok()?;
        let copy = Some(terms.meter.corrected(Mode::Copy, copy_work(state, projection, copied)));
        let [gather, delta] = [Mode::Gather, Mode::Delta].map(|way| {
            let draft = self.draft(way, state, projection, terms);
            let possible = draft.fragments().len() < terms.sge_max && draft.message_len() <= terms.block_bytes as u64;
            possible.then(|| terms.meter.corrected(way, in_place_work(way, state, &draft)))
        });
        plan(terms.profile, terms.goal, &[copy, gather, delta])
    }

    /// The draft of a page in a way; the one that [`plan`](Self::plan) made is used again.
    pub(crate) fn draft(
        &mut self,
        way: Mode,
        state: &PageState<'_>,
        projection: &Projection,
        terms: &Terms<'_>,
    ) -> Draft<'_> {
        let made = &mut self.drafted[usize::from(way == Mode::Delta)];
        let fresh = std::mem::replace(made, true);
        if way == Mode::Delta {
            if !fresh {
                self.delta.clear();
                self.delta.push(state, projection);
            }
            Draft::Delta(&self.delta)
        } else {
            if !fresh {
                self.gather.clear();
                self.gather.push(state, 0..state.rows(), projection, gap_bytes_max(terms.profile));
            }
            Draft::Gather(&self.gather)
        }
    }

    /// Forgets the drafts of the page before.
    pub(crate) fn next_page(&mut self) {
        self.drafted = [false; 2];
    }
}

/// Packing: the bytes once on the sender's processor, then as one piece.
fn copy_work<'a>(state: &PageState<'_>, projection: &Projection, bytes: usize) -> Alternative<'a> {
    let pieces = if projection.keeps_rests() && projection.is_whole() {
        // Prefixes, slots and rests of each piece of the page are one move each.
        3 * state.pieces_len()
    } else {
        state.rows()
    };
    let sender = Work {
        requests: 1.0,
        fragments: 1.0,
        bytes: bytes as f64,
        packed_bytes: bytes as f64,
        packed_pieces: pieces as f64,
        ..Work::default()
    };
    let receiver = Work { requests: 1.0, fragments: 1.0, bytes: bytes as f64, ..Work::default() };
    Alternative { name: Mode::Copy.name(), sender, receiver, wire_bytes: bytes as f64 }
}

/// Sending from where it lies: a gather entry for each fragment, at both ends. A delta answer leaves
/// the merging to the receiver.
fn in_place_work<'a>(way: Mode, state: &PageState<'_>, draft: &Draft<'_>) -> Alternative<'a> {
    let bytes = draft.message_len() as f64;
    let fragments = draft.fragments().len() as f64 + 1.0;
    let sender = Work { requests: 1.0, fragments, bytes, ..Work::default() };
    let merged = if way == Mode::Delta { state.deltas() as f64 } else { 0.0 };
    let receiver = Work { requests: 1.0, fragments, bytes, rows: merged, ..Work::default() };
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

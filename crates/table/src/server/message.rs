//! Pages becoming messages: as many in one as fit the client's buffers and travel the same way.
//!
//! What a message costs at both ends (requests, rings, completions, parsing its head) is shared by
//! its pages. A page that is cheaper another way, or does not fit, begins the next message.

use overside_bwtree::{OverflowRef, PinnedPage};
use overside_memory::View;
use overside_service::Context;

use super::LARGE_BYTES;
use super::scan::{ActiveScan, Choice, Part, Terms, Turn};
use crate::block::{Copier, HEADER_BYTES};
use crate::wire::Mode;

impl ActiveScan {
    /// A message of fragments; copied where the first page is too long or too scattered for one.
    /// With the way it went.
    pub(super) fn in_place(
        &mut self,
        first: Part,
        choice: Choice,
        terms: &Terms<'_>,
        context: &Context<'_>,
    ) -> (Turn, Mode) {
        let way = choice.way;
        let draft = self.drafts.drafted(way);
        if !draft.fits(way, terms, LARGE_BYTES) {
            return (self.copied(first, choice, terms, context), Mode::Copy);
        }
        let Some(mut head) = context.take(draft.head_len()) else {
            self.begun = Some(first);
            return (Turn::Wait, way);
        };
        let Some(mut body) = self.view(&first.page, way) else {
            context.put(head);
            return (self.copied(first, choice, terms, context), Mode::Copy);
        };
        self.keep(way, &choice);
        let mut last_bytes = body.bytes();
        // Another page is likely to be as long as the one before; looking at one that does not fit would be in vain.
        while self.drafts.drafted(way).message_len() + last_bytes <= terms.message_bytes(way) as u64 {
            let Some((part, choice)) = self.next_part(terms, Some(way)) else { break };
            let fits = choice.way == way && self.drafts.drafted(way).fits(way, terms, head.len());
            let Some(view) = fits.then(|| self.view(&part.page, way)).flatten() else {
                self.drafts.forget();
                self.begun = Some(part);
                break;
            };
            last_bytes = view.bytes();
            body = body.then(view);
            self.keep(way, &choice);
        }
        let draft = self.drafts.drafted(way);
        draft.write_head(&mut head, &self.projection, u64::from(self.number), self.sequence);
        let message = context.message(head, draft.head_len()).then(body);
        (Turn::Message(if way == Mode::InPlace { message.lendable() } else { message }), way)
    }

    /// A packed message: as many rows as fit of the first page and then whole pages, or one row in
    /// parts.
    pub(super) fn copied(&mut self, first: Part, choice: Choice, terms: &Terms<'_>, context: &Context<'_>) -> Turn {
        let Some(mut taken) = context.take(LARGE_BYTES.min(terms.block_bytes)) else {
            self.begun = Some(first);
            return Turn::Wait;
        };
        let room = taken.len().min(terms.block_bytes);
        let projection = self.projection.clone();
        let mut copier = Copier::new(&mut taken[..room], &projection);
        let rows = first.from..choice.rows;
        let packed = first.with_state(|state| copier.push(state, rows.clone(), &extent(&first.page)).unwrap_or(0));
        if packed == 0 {
            context.put(taken);
            return self.one_row(first, choice);
        }
        self.sent(first.from, packed, Mode::Copy, &choice);
        if packed < rows.len() {
            self.begun = Some(Part { from: first.from + packed, page: first.page });
        } else {
            self.copy_more(&mut copier, terms);
        }
        let len = copier.finish(u64::from(self.number), self.sequence, false);
        self.reply.bytes_copied += len as u64;
        Turn::Message(context.message(taken, len))
    }

    /// Adds whole pages while there is room for another like the last.
    fn copy_more(&mut self, copier: &mut Copier<'_, '_>, terms: &Terms<'_>) {
        let mut room_before = copier.room();
        let mut last_bytes = 0;
        while copier.room() >= last_bytes {
            let Some((part, choice)) = self.next_part(terms, Some(Mode::Copy)) else { return };
            let mut added = choice.way == Mode::Copy;
            if added {
                added = part.with_state(|state| copier.push_whole(state, &extent(&part.page)).unwrap_or(false));
            }
            if !added {
                self.begun = Some(part);
                return;
            }
            self.sent(0, choice.rows, Mode::Copy, &choice);
            last_bytes = room_before - copier.room();
            room_before = copier.room();
        }
    }

    /// A row that is longer than a transmit buffer, or than the client's.
    fn one_row(&mut self, part: Part, choice: Choice) -> Turn {
        let packed = part.with_state(|state| {
            let one = part.from..part.from + 1;
            let needed = Copier::bytes_of(state, one.clone(), &self.projection).unwrap_or(0) + HEADER_BYTES;
            let mut bytes = vec![0; needed];
            let mut copier = Copier::new(&mut bytes, &self.projection);
            let taken = copier.push(state, one, &extent(&part.page)).unwrap_or(0);
            let len = copier.finish(u64::from(self.number), self.sequence, false);
            bytes.truncate(len);
            (taken == 1).then_some(bytes)
        });
        // A row that cannot be packed is broken in the store; skipping it would hide that.
        let Some(bytes) = packed else { return Turn::Broken };
        self.reply.bytes_copied += bytes.len() as u64;
        self.sent(part.from, 1, Mode::Copy, &choice);
        if part.from + 1 < choice.rows {
            self.begun = Some(Part { from: part.from + 1, page: part.page });
        }
        Turn::Long(bytes)
    }

    /// The fragments of the page in hand; none when they are not all of that page.
    fn view(&self, page: &PinnedPage, way: Mode) -> Option<View> {
        page.view(self.drafts.fragments(way).iter().map(|f| (f.offset, f.len)))
    }

    /// The page in hand is in the message.
    fn keep(&mut self, way: Mode, choice: &Choice) {
        self.drafts.keep(way);
        self.sent(0, choice.rows, way, choice);
    }
}

/// Finds the bytes of a rest that lies in an extent of its own.
fn extent<'p>(page: &'p PinnedPage) -> impl Fn(OverflowRef) -> Option<&'p [u8]> {
    |named| page.overflow(named)
}

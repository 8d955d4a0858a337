//! From what a port reports to what the user gets: completions, and the end of what was held.

use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::port::{Lending, Port, RawCompletion};
use crate::slots::{QueuePairs, Slots, is_receive};
use crate::work::{Status, WorkCompletion, WorkRequest};

/// Brings what the port has reported to its end, and appends what the user gets.
#[inline]
pub(crate) fn complete_all(
    port: &mut Box<dyn Port>,
    slots: &mut Slots,
    pairs: &mut QueuePairs,
    reported: &[RawCompletion],
    out: &mut Vec<WorkCompletion>,
) {
    let mut left = reported;
    while let [first, rest @ ..] = left {
        if is_receive(first.slot) {
            complete_receive(port, slots, pairs, first, out);
        } else {
            let unwinding = Unwinding { port, slots, pairs, left, out };
            complete_send(unwinding.slots, unwinding.pairs, first, unwinding.out);
            std::mem::forget(unwinding);
        }
        left = rest;
    }
}

/// What is left of a batch when a hold panics as it is released.
///
/// The end of a hold is its maker's code. The port reports each completion once, so those behind it
/// would be lost for ever: they are brought to their end while the panic unwinds.
struct Unwinding<'a> {
    port: &'a mut Box<dyn Port>,
    slots: &'a mut Slots,
    pairs: &'a mut QueuePairs,
    /// The first of them is half done.
    left: &'a [RawCompletion],
    out: &'a mut Vec<WorkCompletion>,
}

impl Unwinding<'_> {
    fn complete(&mut self, completion: &RawCompletion) {
        if is_receive(completion.slot) {
            complete_receive(self.port, self.slots, self.pairs, completion, self.out);
        } else {
            complete_send(self.slots, self.pairs, completion, self.out);
        }
    }
}

impl Drop for Unwinding<'_> {
    #[cold]
    fn drop(&mut self) {
        while let [first, rest @ ..] = self.left {
            let before = self.slots.in_flight();
            let ended = catch_unwind(AssertUnwindSafe(|| self.complete(first)));
            // Each panic ends one request, so this comes to an end.
            if ended.is_ok() || self.slots.in_flight() == before {
                self.left = rest;
            }
            // Only the first panic goes on. The end of another one's payload may panic as well.
            std::mem::forget(ended);
        }
    }
}

/// Runs no code of the user's.
#[inline(always)]
fn complete_receive(
    port: &mut Box<dyn Port>,
    slots: &mut Slots,
    pairs: &mut QueuePairs,
    raw: &RawCompletion,
    out: &mut Vec<WorkCompletion>,
) {
    let Some(posted_on) = slots.receive(raw.slot).map(|receiving| receiving.qp) else { return };
    let mut arrived_on = None;
    if let Some(index) = raw.qp
        && let Some(state) = pairs.by_index(index)
    {
        arrived_on = Some(state.name);
        if posted_on == arrived_on {
            state.receives = state.receives.saturating_sub(1);
            if state.closed {
                pairs.retire(index);
            }
        }
    }
    if posted_on != arrived_on
        && let Some((index, state)) = posted_on.and_then(|name| pairs.by_name(name))
    {
        state.receives = state.receives.saturating_sub(1);
        pairs.retire(index);
    }
    // Made where it lies, once there is room for it.
    out.extend(iter::once_with(|| slots.complete_receive(posted_on.or(arrived_on), raw)));
    if raw.lending == Lending::Lent
        && let Some(received) = out.last_mut()
    {
        received.loan = port.take_loan(raw.slot);
    }
}

/// Unsignalled requests posted before one that completed have completed too (**order**).
///
/// What a request holds is released last: if that panics, all else about it is done, and the next
/// call with the same report goes on behind it.
#[inline(never)]
fn complete_send(slots: &mut Slots, pairs: &mut QueuePairs, raw: &RawCompletion, out: &mut Vec<WorkCompletion>) {
    let Some(sending) = slots.get(raw.slot) else { return };
    let Some((index, state)) = pairs.by_name(sending.qp) else { return };
    if sending.lent || raw.lending == Lending::Returned {
        if sending.lent && raw.lending == Lending::Returned {
            state.loans -= 1;
            if state.closed {
                pairs.retire(index);
            }
            slots.end_loan(raw.slot, raw, out);
        }
        return;
    }
    let lent = raw.lending == Lending::Lent && raw.status == Status::Success;
    while let Some(slot) = state.sent.pop_front()
        && slot != raw.slot
    {
        if !slots.release(slot) {
            let bytes = slots.request(slot).map_or(0, WorkRequest::bytes);
            let success = RawCompletion {
                slot,
                status: Status::Success,
                bytes,
                immediate: None,
                value: 0,
                lending: Lending::No,
                ..*raw
            };
            slots.complete(slot, &success, out);
        }
    }
    state.loans += usize::from(lent);
    if state.closed {
        pairs.retire(index);
    }
    if lent {
        return slots.lend(raw.slot, raw, out);
    }
    let silent = raw.status == Status::Success && !sending.reported;
    // A READ's buffer comes back even if nobody asked for the report.
    if !(silent && slots.release(raw.slot)) {
        slots.complete(raw.slot, raw, out);
    }
}

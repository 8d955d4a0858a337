//! Whether a recorded history has an order that explains it (Wing and Gong's search, with Lowe's
//! memory of what was tried).

use std::collections::HashSet;
use std::hash::Hash;

/// What calls do to a value, one after another.
pub trait Model {
    /// The value.
    type State: Clone + Eq + Hash;
    /// A call.
    type Call;
    /// What it answers.
    type Answer: PartialEq;

    /// The value after `call` on `state`, and the answer that it must give.
    fn apply(state: &Self::State, call: &Self::Call) -> (Self::State, Self::Answer);
}

/// A call of a history. Times are any numbers that ascend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<C, A> {
    /// What was called.
    pub call: C,
    /// What it answered; none where no answer came, and it may have taken effect or not.
    pub answer: Option<A>,
    /// When it began.
    pub began: u64,
    /// When it ended. Without an answer: when it can have taken effect at the latest.
    pub ended: u64,
    /// It takes effect behind the event of this index: of two rows of one key in one batch, the
    /// second.
    pub after: Option<usize>,
}

/// Whether some order of the events that begins with `state` gives all the answers. None comes
/// before one that ended before it began. One without an answer has its place there, or none.
pub fn linearizable<M: Model>(state: M::State, events: &[Event<M::Call, M::Answer>]) -> bool {
    let done = vec![0; events.len().div_ceil(64)];
    let wanted = events.iter().filter(|event| event.answer.is_some()).count();
    Search::<M> { events, wanted, done, tried: HashSet::new() }.from(state)
}

struct Search<'a, M: Model> {
    events: &'a [Event<M::Call, M::Answer>],
    /// Events with an answer.
    wanted: usize,
    /// Bits of the events that have their place.
    done: Vec<u64>,
    tried: HashSet<(Vec<u64>, M::State)>,
}

/// An order as far as it has come, and what may come next in it.
struct Prefix<S> {
    state: S,
    /// Events with an answer that have their place.
    answered: usize,
    /// When the latest of all that have one began.
    latest: u64,
    next: std::vec::IntoIter<usize>,
    /// The one that is tried.
    tried: Option<usize>,
}

impl<M: Model> Search<'_, M> {
    fn is_done(&self, index: usize) -> bool {
        self.done[index / 64] & 1 << (index % 64) != 0
    }

    fn turn(&mut self, index: usize) {
        self.done[index / 64] ^= 1 << (index % 64);
    }

    /// A history may be longer than a thread's stack is deep, so the way back is kept in a list.
    fn from(&mut self, state: M::State) -> bool {
        if self.wanted == 0 {
            return true;
        }
        self.tried.insert((self.done.clone(), state.clone()));
        let mut way = vec![Prefix { state, answered: 0, latest: 0, next: self.open(), tried: None }];
        while let Some(place) = way.last_mut() {
            if let Some(index) = place.tried.take() {
                self.turn(index);
            }
            let Some(index) = place.next.next() else {
                way.pop();
                continue;
            };
            let Some(state) = self.after(&place.state, place.latest, index) else { continue };
            let event = &self.events[index];
            let answered = place.answered + usize::from(event.answer.is_some());
            if answered == self.wanted {
                return true;
            }
            let latest = place.latest.max(event.began);
            place.tried = Some(index);
            self.turn(index);
            if self.tried.insert((self.done.clone(), state.clone())) {
                way.push(Prefix { state, answered, latest, next: self.open(), tried: None });
            }
        }
        false
    }

    /// What has no place yet and may be next: what has an answer first, for the others explain what
    /// is left.
    fn open(&self) -> std::vec::IntoIter<usize> {
        let open: Vec<usize> = (0..self.events.len()).filter(|index| !self.is_done(*index)).collect();
        let has_answer = |index: &usize| self.events[*index].answer.is_some();
        let ends = open.iter().filter(|index| has_answer(index)).map(|index| self.events[*index].ended);
        let first_end = ends.min().unwrap_or(u64::MAX);
        let begun = open.into_iter().filter(|index| self.events[*index].began <= first_end);
        let (mut all, without): (Vec<usize>, Vec<usize>) = begun.partition(has_answer);
        all.extend(without);
        all.into_iter()
    }

    /// The value behind an event that comes next; none where it cannot.
    fn after(&self, state: &M::State, latest: u64, index: usize) -> Option<M::State> {
        let event = &self.events[index];
        let in_turn = event.after.is_none_or(|before| self.is_done(before));
        let too_late = event.answer.is_none() && latest > event.ended;
        if !in_turn || too_late {
            return None;
        }
        let (next, answer) = M::apply(state, &event.call);
        if event.answer.as_ref().is_some_and(|given| *given != answer) {
            return None;
        }
        // Without an answer and without an effect its place says nothing, and many of them have many orders.
        let says_nothing = event.answer.is_none() && next == *state;
        (!says_nothing || self.events.iter().any(|other| other.after == Some(index))).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that may be there; a call replaces it or reads it.
    struct Register;

    impl Model for Register {
        type State = Option<u64>;
        type Call = Option<u64>;
        type Answer = Option<u64>;

        fn apply(state: &Option<u64>, call: &Option<u64>) -> (Option<u64>, Option<u64>) {
            (call.or(*state), *state)
        }
    }

    fn event(
        call: Option<u64>,
        answer: Option<Option<u64>>,
        began: u64,
        ended: u64,
    ) -> Event<Option<u64>, Option<u64>> {
        Event { call, answer, began, ended, after: None }
    }

    fn explained(events: &[Event<Option<u64>, Option<u64>>]) -> bool {
        linearizable::<Register>(None, events)
    }

    #[test]
    fn an_order_must_explain_all_answers() {
        let put = event(Some(1), Some(None), 1, 2);
        assert!(explained(&[put, event(None, Some(Some(1)), 3, 4)]));
        assert!(!explained(&[put, event(None, Some(None), 3, 4)]), "a read that began after the put must see it");
        let long = event(Some(1), Some(None), 1, 9);
        assert!(explained(&[long, event(None, Some(None), 3, 4)]), "one that overlaps it may or may not");
        let (new, old) = (event(None, Some(Some(1)), 3, 4), event(None, Some(None), 5, 6));
        assert!(!explained(&[long, new, old]), "new, then old again");
    }

    #[test]
    fn a_call_without_an_answer_happened_or_did_not_but_not_too_late() {
        let lost = event(Some(1), None, 1, 10);
        let read = |seen, began| event(None, Some(seen), began, began + 1);
        assert!(explained(&[lost, read(None, 20)]) && explained(&[lost, read(Some(1), 20)]));
        assert!(explained(&[lost, read(None, 5), read(Some(1), 20)]), "it happened between the reads, by time 10");
        assert!(!explained(&[lost, read(None, 12), read(Some(1), 20)]), "the first read began after it could happen");
        assert!(!explained(&[lost, read(Some(1), 5), read(None, 20)]), "what was seen stays");
        assert!(!explained(&[read(Some(1), 0), Event { began: 5, ..lost }]), "it did not happen before it began");
    }

    #[test]
    fn of_two_rows_of_a_batch_the_second_comes_second() {
        let first = event(Some(1), Some(None), 1, 9);
        let second = Event { after: Some(0), ..event(Some(2), Some(Some(1)), 1, 9) };
        assert!(explained(&[first, second, event(None, Some(Some(2)), 10, 11)]));
        let turned = [Event { answer: Some(Some(2)), ..first }, Event { answer: Some(None), ..second }];
        assert!(!explained(&turned));
    }

    #[test]
    fn calls_without_answer_and_effect_cost_no_orders() {
        let mut events: Vec<_> = (0..60).map(|n| event(Some(1), None, 10 + n, 100)).collect();
        events.push(event(Some(1), Some(None), 1, 2));
        events.push(event(None, Some(Some(2)), 101, 102));
        assert!(!explained(&events));
    }

    #[test]
    fn long_histories_are_searched() {
        // Longer than a small stack is deep.
        let events: Vec<_> = (0..3000u64).map(|n| event(Some(n), Some(n.checked_sub(1)), 2 * n, 2 * n + 1)).collect();
        assert!(explained(&events));
        let mut broken = events;
        broken[2500].answer = Some(Some(7));
        assert!(!explained(&broken));
    }
}

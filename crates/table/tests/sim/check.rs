//! What a history must be.
//!
//! Each row, and each table's name, has an order of its calls that explains all answers. A scan is a read of
//! every key: each row that it returned was current at some moment of it, and a row that was there throughout
//! cannot be missing. So is a scan through an index on values that a row keeps. Along one on values that change, a
//! row may be missed that somebody changed meanwhile, and no other.
//!
//! A server that ends may leave less than it acknowledged, as its durability says. Then the calls of its life
//! are looked at twice. As they were heard, they must have an order that follows on what it had recovered. And
//! what the next server has must be what they came to at some moment, a *cut*: a log's is one for all rows,
//! which makes it a prefix; a checkpoint's lies within the writing of it, for each row elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use overside_corpus::{Event, linearizable};

use super::history::{Answer, Call, CheckpointRequest, History, Left, Record, Subject, Value};

/// Whether everything that was heard can be explained; else what cannot, as short as it gets.
pub fn check(history: &History) -> Result<(), String> {
    let lives = Lives::new(history);
    let mut budget = ATTEMPTS;
    lives.explain(&mut Vec::new(), &mut budget).map_err(|found| found.told(&lives))
}

/// Calls about one row or name, with their numbers in the history.
type Calls = Vec<(usize, Record)>;

/// The calls of a history by the servers that they were made to.
struct Lives {
    lives: Vec<Life>,
    subjects: BTreeSet<Subject>,
}

struct Life {
    began: u64,
    ended: u64,
    left: Left,
    calls: BTreeMap<Subject, Calls>,
    checkpoints: Vec<CheckpointRequest>,
}

/// Up to where the calls of a life count for the lives after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// All of them do.
    Nowhere,
    /// Each row has a moment in these bounds, of which later calls do not.
    Within { from: u64, to: u64, shown: bool },
}

/// What nothing explains: a subject, where each life was cut.
struct Unexplained {
    subject: Subject,
    cuts: Vec<Cut>,
}

impl Lives {
    fn new(history: &History) -> Lives {
        let mut lives = Vec::new();
        let mut began = 0;
        for end in history.ends() {
            lives.push(Life::new(began, end.at, end.left));
            began = end.at;
        }
        lives.push(Life::new(began, u64::MAX, Left::All));
        let mut subjects = BTreeSet::new();
        let at = |lives: &[Life], moment: u64| lives.partition_point(|life| life.ended < moment);
        let all: Vec<(usize, Record)> =
            history.all().into_iter().enumerate().filter(|(_, record)| !record.is_void()).collect();
        let says_nothing = may_have_been_missed(&all);
        for (number, mut record) in all.into_iter().filter(|(number, _)| !says_nothing.contains(number)) {
            let life = at(&lives, record.event.began);
            let life = &mut lives[life];
            // A reply may come after the server's end, which did what it says before.
            record.event.ended = record.event.ended.min(life.ended);
            subjects.insert(record.subject);
            life.calls.entry(record.subject).or_default().push((number, record));
        }
        for asked in history.checkpoints() {
            let life = at(&lives, asked.began);
            lives[life].checkpoints.push(asked);
        }
        Lives { lives, subjects }
    }

    /// Whether some cuts of all lives from `cuts.len()` on explain what was heard.
    fn explain(&self, cuts: &mut Vec<Cut>, budget: &mut u32) -> Result<(), Unexplained> {
        let number = cuts.len();
        let life = &self.lives[number];
        let last = number + 1 == self.lives.len();
        // A life of which nothing is lost is looked at together with the next.
        if last || life.left != Left::All {
            for subject in &self.subjects {
                if !self.is_explained(*subject, cuts) {
                    return Err(Unexplained { subject: *subject, cuts: cuts.clone() });
                }
            }
        }
        if last {
            return Ok(());
        }
        let mut first = None;
        for cut in life.cuts() {
            cuts.push(cut);
            let explained = self.explain(cuts, budget);
            cuts.pop();
            match explained {
                Ok(()) => return Ok(()),
                Err(why) => _ = first.get_or_insert(why),
            }
            *budget = budget.saturating_sub(1);
            if *budget == 0 {
                break;
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Whether the calls of a subject, up to the life behind the last of `cuts`, have an order.
    fn is_explained(&self, subject: Subject, cuts: &[Cut]) -> bool {
        self.of_subject(subject, cuts, &Vec::new(), 0)
    }

    fn of_subject(&self, subject: Subject, cuts: &[Cut], before: &Calls, number: usize) -> bool {
        let life = &self.lives[number];
        let all = || before.iter().copied().chain(life.of(subject).iter().copied()).collect::<Calls>();
        match cuts.get(number) {
            None => explained(&all()),
            Some(Cut::Nowhere) => self.of_subject(subject, cuts, &all(), number + 1),
            Some(Cut::Within { from, to, shown }) => life.moments(subject, *from, *to).into_iter().any(|moment| {
                let kept = life.until(subject, moment, *shown);
                let kept = before.iter().copied().chain(kept).collect::<Calls>();
                self.of_subject(subject, cuts, &kept, number + 1)
            }),
        }
    }

    /// The calls of a subject as the last life's check looked at them, each life cut as late as it may be.
    fn looked_at(&self, subject: Subject, cuts: &[Cut]) -> Calls {
        let mut calls = Calls::new();
        for (life, cut) in self.lives.iter().zip(cuts) {
            match cut {
                Cut::Nowhere => calls.extend(life.of(subject)),
                Cut::Within { to, shown, .. } => calls.extend(life.until(subject, *to, *shown)),
            }
        }
        calls.extend(self.lives[cuts.len()].of(subject));
        calls
    }
}

impl Life {
    fn new(began: u64, ended: u64, left: Left) -> Life {
        Life { began, ended, left, calls: BTreeMap::new(), checkpoints: Vec::new() }
    }

    fn of(&self, subject: Subject) -> &[(usize, Record)] {
        self.calls.get(&subject).map_or(&[], Vec::as_slice)
    }

    /// Where it may be cut, the latest first.
    fn cuts(&self) -> Vec<Cut> {
        match self.left {
            Left::All => vec![Cut::Nowhere],
            Left::Acknowledged => vec![Cut::Within { from: self.ended, to: self.ended, shown: false }],
            Left::Prefix { whole } => {
                let from = whole.clamp(self.began, self.ended);
                let changes = self.calls.values().flatten().filter(|(_, record)| !only_shows(record));
                let moments = changes.flat_map(|(_, record)| [record.event.began, record.event.ended]);
                let moments = moments.filter(|at| (from..self.ended).contains(at)).chain([from, self.ended]);
                let moments: BTreeSet<u64> = moments.collect();
                moments.into_iter().rev().map(|at| Cut::Within { from: at, to: at, shown: false }).collect()
            }
            Left::Checkpoint => {
                let complete = |asked: &CheckpointRequest| asked.ended.filter(|ended| *ended <= self.ended);
                // One that was complete before another was asked for is not the last.
                let passed = |ended: u64| self.checkpoints.iter().any(|a| a.began > ended && complete(a).is_some());
                let window = |asked: &CheckpointRequest| Cut::Within {
                    from: asked.began,
                    to: complete(asked).unwrap_or(self.ended),
                    shown: true,
                };
                let last = self.checkpoints.iter().rev();
                let last = last.filter(|asked| !passed(complete(asked).unwrap_or(self.ended)));
                let mut cuts: Vec<Cut> = last.map(window).collect();
                if !self.checkpoints.iter().any(|asked| complete(asked).is_some()) {
                    // What it began with.
                    cuts.push(Cut::Within { from: self.began, to: self.began, shown: true });
                }
                cuts
            }
        }
    }

    /// The moments in these bounds that make a difference to a subject, the latest first.
    fn moments(&self, subject: Subject, from: u64, to: u64) -> Vec<u64> {
        let moments = self.of(subject).iter().flat_map(|(_, record)| [record.event.began, record.event.ended]);
        let moments: BTreeSet<u64> = moments.filter(|at| (from..to).contains(at)).chain([from, to]).collect();
        moments.into_iter().rev().collect()
    }

    /// The calls of a subject as a cut leaves them. What was under way then happened or did not. Where nothing
    /// holds back what is `shown`, reads and refusals say nothing of what is left.
    fn until(&self, subject: Subject, cut: u64, shown: bool) -> Calls {
        let begun = self.of(subject).iter().filter(|(_, record)| record.event.began <= cut);
        let known = begun.filter(|(_, record)| shown || !only_shows(record)).map(|(number, record)| {
            let mut record = *record;
            if record.event.ended > cut {
                (record.event.answer, record.event.ended) = (None, cut);
            }
            (*number, record)
        });
        known.collect()
    }
}

impl Unexplained {
    fn told(&self, lives: &Lives) -> String {
        let Unexplained { subject, cuts } = self;
        let mut text = told(*subject, &lives.looked_at(*subject, cuts));
        for (life, cut) in lives.lives.iter().zip(cuts) {
            if let Cut::Within { from, to, .. } = cut {
                let left = life.left;
                text +=
                    &format!("\nthe server that ended at {} left {left:?}, at best cut at {from} to {to}", life.ended);
            }
        }
        text
    }
}

/// Reads that found nothing along an index of what somebody changed meanwhile.
fn may_have_been_missed(all: &[(usize, Record)]) -> BTreeSet<usize> {
    let reads = all.iter().filter(|(_, record)| record.event.call == Call::ReadIfStill);
    let missed = reads.filter(|(_, record)| record.event.answer == Some(Answer(false, None)));
    let changed = |read: &Record| {
        all.iter().any(|(_, other)| {
            let meanwhile = other.event.began <= read.event.ended && other.event.ended >= read.event.began;
            other.subject == read.subject && meanwhile && !only_shows(other)
        })
    };
    missed.filter(|(_, record)| changed(record)).map(|(number, _)| *number).collect()
}

/// Whether a call changes nothing, by its kind or its answer.
fn only_shows(record: &Record) -> bool {
    let reads = matches!(record.event.call, Call::Read | Call::ReadIfStill | Call::Describe);
    let refused = record.event.answer == Some(Answer(false, None)) && !matches!(record.event.call, Call::Upsert(_));
    reads || refused
}

fn explained(records: &[(usize, Record)]) -> bool {
    let place = |number: usize| records.iter().position(|(other, _)| *other == number);
    let event = |record: &Record| Event { after: record.event.after.and_then(place), ..record.event };
    let events: Vec<Event<Call, Answer>> = records.iter().map(|(_, record)| event(record)).collect();
    linearizable::<Value>(None, &events)
}

/// The shortest beginning of the history that nothing explains, without what does not matter.
fn told(subject: Subject, records: &[(usize, Record)]) -> String {
    let mut ends: Vec<u64> = records.iter().filter_map(|(_, r)| r.event.answer.map(|_| r.event.ended)).collect();
    ends.sort_unstable();
    let until = |end: u64| {
        let begun = records.iter().filter(|(_, record)| record.event.began <= end);
        let known = |(number, record): &(usize, Record)| {
            let mut record = *record;
            if record.event.answer.is_some() && record.event.ended > end {
                // Seen from there it is still under way.
                (record.event.answer, record.event.ended) = (None, u64::MAX);
            }
            (*number, record)
        };
        begun.map(known).collect::<Vec<_>>()
    };
    let short = ends.into_iter().map(until).find(|some| !explained(some)).unwrap_or_else(|| records.to_vec());
    let mut kept = short;
    let mut at = 0;
    while at < kept.len() {
        let mut without = kept.clone();
        without.remove(at);
        // Only what changed nothing may go, and what may not have happened where nobody saw it: without the rest, what is left
        // could not be explained either.
        let (_, Record { event, .. }) = &kept[at];
        let seen = |value| without.iter().any(|(_, other)| other.event.answer == Some(Answer(true, Some(value))));
        let unseen = event.answer.is_none() && event.call.value().is_some_and(|value| !seen(value));
        if (unseen || only_shows(&kept[at].1)) && !explained(&without) {
            kept = without;
        } else {
            at += 1;
        }
    }
    let told = kept.iter().map(|(_, record)| format!("\n{record}")).collect::<String>();
    format!("no order explains what was heard of {subject:?}:{told}")
}

/// Cuts that are tried before a history counts as one that nothing explains.
const ATTEMPTS: u32 = 20_000;

#[cfg(test)]
mod tests {
    use overside_sim::World;

    use super::super::history::Ended;
    use super::*;
    use std::time::Duration;

    const DONE: Answer = Answer(true, None);
    const NEW: Answer = Answer(false, None);
    const WINDOW: Duration = Duration::from_millis(10);

    fn judged(happens: impl FnOnce(&World, &History) + Send + 'static) -> Result<(), String> {
        let world = World::run(1, move |world| {
            let history = History::new(world);
            happens(world, &history);
            check(&history)
        });
        world.expect("nothing runs in it").value
    }

    fn heard(history: &History, key: u64, call: Call, answer: Answer) {
        let begun = history.begin(0, &[(Subject::Row(1, key), call)]);
        history.end(&begun, &[answer]);
    }

    fn reads(history: &History, key: u64, value: Option<u64>) {
        heard(history, key, Call::Read, Answer(value.is_some(), value));
    }

    #[test]
    fn what_nothing_explains_is_told_without_what_does_not_matter() {
        let told = judged(|_, history| {
            heard(history, 7, Call::Insert(5), DONE);
            for other in 0..8 {
                heard(history, 8, Call::Upsert(other), Answer(other > 0, None));
                reads(history, 7, Some(5));
                heard(history, 7, Call::Insert(other), Answer(false, None));
                history.begin(1, &[(Subject::Row(1, 7), Call::Insert(100 + other))]);
            }
            history.server_ended(Ended::All, true, WINDOW);
            reads(history, 7, None);
            reads(history, 7, None);
        });
        let told = told.unwrap_err();
        assert_eq!(told.lines().count(), 3, "{told}");
        assert!(told.contains("Insert(5) answered true") && told.contains("Read answered false"), "{told}");
    }

    #[test]
    fn a_log_that_lost_something_has_a_prefix() {
        /// Two rows, one after the other; which of them the next server has.
        fn left(first: bool, second: bool, late: bool) -> Result<(), String> {
            judged(move |world, history| {
                heard(history, 1, Call::Upsert(5), NEW);
                if late {
                    world.clock().sleep(2 * WINDOW);
                }
                heard(history, 2, Call::Upsert(6), NEW);
                history.server_ended(Ended::Prefix, true, WINDOW);
                reads(history, 1, first.then_some(5));
                reads(history, 2, second.then_some(6));
            })
        }
        assert!([(false, false), (true, false), (true, true)].iter().all(|(a, b)| left(*a, *b, false).is_ok()));
        assert!(left(false, true, false).is_err(), "a later change without an earlier one");
        assert!(left(true, false, true).is_ok());
        assert!(left(false, false, true).is_err(), "acknowledged long before the loss");
    }

    #[test]
    fn what_was_only_shown_may_be_lost_with_its_server_and_what_was_acknowledged_may_not() {
        let left = |value: Option<u64>, acknowledged: bool| {
            judged(move |_, history| {
                let begun = history.begin(0, &[(Subject::Row(1, 1), Call::Upsert(5))]);
                reads(history, 1, Some(5));
                if acknowledged {
                    history.end(&begun, &[NEW]);
                }
                history.server_ended(Ended::Acknowledged, true, WINDOW);
                reads(history, 1, value);
            })
        };
        assert!(left(None, false).is_ok() && left(Some(5), false).is_ok() && left(Some(5), true).is_ok());
        assert!(left(None, true).is_err());
        let within = judged(|_, history| {
            heard(history, 1, Call::Upsert(5), NEW);
            reads(history, 1, None);
            history.server_ended(Ended::Acknowledged, true, WINDOW);
            reads(history, 1, Some(5));
        });
        assert!(within.is_err(), "while its server lives everything is explained");
    }

    #[test]
    fn a_checkpoint_has_each_row_as_it_was_while_it_was_written() {
        /// A put before, one within and one behind a checkpoint; what the next server has.
        fn left(values: [Option<u64>; 3], complete: bool) -> Result<(), String> {
            judged(move |_, history| {
                heard(history, 1, Call::Upsert(5), NEW);
                let asked = history.checkpoint_asked();
                heard(history, 2, Call::Upsert(6), NEW);
                if complete {
                    history.checkpoint_complete(asked);
                }
                heard(history, 3, Call::Upsert(7), NEW);
                history.server_ended(Ended::Checkpoint, true, WINDOW);
                (1..).zip(values).for_each(|(key, value)| reads(history, key, value));
            })
        }
        assert!(left([Some(5), Some(6), None], true).is_ok() && left([Some(5), None, None], true).is_ok());
        assert!(left([None, Some(6), None], true).is_err(), "it is older than the checkpoint");
        assert!(left([Some(5), Some(6), Some(7)], true).is_err(), "it is newer");
        assert!(left([None, None, None], true).is_err(), "the last complete one counts");
        assert!(left([None, None, None], false).is_ok() && left([Some(5), Some(6), Some(7)], false).is_ok());
    }
}

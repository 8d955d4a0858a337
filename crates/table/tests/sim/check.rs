//! What a history must be.

use std::collections::BTreeMap;

use overside_corpus::{Event, linearizable};

use super::history::{Answer, Call, History, Record, Subject, Value};

/// Each row, and each table's name, has an order of its calls that explains all answers. A scan is a
/// read of every key: each row that it returned was current at some moment of it, and a row that was
/// there throughout cannot be missing.
pub fn check(history: &History) -> Result<(), String> {
    let mut subjects: BTreeMap<Subject, Vec<(usize, Record)>> = BTreeMap::new();
    for (number, record) in history.all().into_iter().enumerate().filter(|(_, record)| !record.is_void()) {
        subjects.entry(record.subject).or_default().push((number, record));
    }
    for (subject, records) in subjects {
        if !explained(&records) {
            return Err(told(subject, &records));
        }
    }
    Ok(())
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
        let reads = matches!(kept[at].1.event.call, Call::Read | Call::Describe);
        let changes = matches!(kept[at].1.event.call, Call::Upsert(_));
        let refused = kept[at].1.event.answer == Some(Answer(false, None)) && !changes;
        let mut without = kept.clone();
        without.remove(at);
        // Only what changed nothing may go: without the rest, what is left could not be explained either.
        if (reads || refused) && !explained(&without) {
            kept = without;
        } else {
            at += 1;
        }
    }
    let told = kept.iter().map(|(_, record)| format!("\n{record}")).collect::<String>();
    format!("no order explains what was heard of {subject:?}:{told}")
}

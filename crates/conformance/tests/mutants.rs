//! The suite itself under test: a provider that keeps every sentence passes, and each that breaks one on
//! purpose fails by the sentence it breaks.

mod harness;
mod mutant;

use std::sync::Arc;
use std::time::Duration;

use harness::ReferenceHarness;
use mutant::{Mutant, Wrong};
use overside_conformance::{Harness, Outcome, check, suite};
use overside_reference::{Fault, Weather, World};
use overside_verbs::SystemClock;
use overside_verbs::port::Port;

#[test]
fn the_reference_keeps_every_sentence() {
    let harness: Arc<dyn Harness> = Arc::new(ReferenceHarness(World::new()));
    let report = suite(&harness);
    println!("{report}");
    assert!(report.outcomes.iter().all(|(_, outcome)| *outcome == Outcome::Kept), "\n{report}");
}

/// The network of simulations: every request takes a while of its own.
#[test]
fn the_reference_keeps_every_sentence_while_requests_take_time() {
    let weather = Weather { delay_max: Duration::from_micros(300), cut_one_in: 0 };
    let world = World::under(SystemClock::handle(), weather);
    let courier = world.courier().unwrap();
    std::thread::spawn(move || courier.run());
    let harness: Arc<dyn Harness> = Arc::new(ReferenceHarness(world));
    let report = suite(&harness);
    println!("{report}");
    assert!(report.outcomes.iter().all(|(_, outcome)| *outcome == Outcome::Kept), "\n{report}");
}

/// Each of `sentences` catches it.
fn caught(fault: Option<Fault>, wrap: fn(Box<dyn Port>) -> Box<dyn Port>, sentences: &[&str]) {
    for sentence in sentences {
        let harness: Arc<dyn Harness> = Arc::new(ReferenceHarness(World::broken(fault, wrap)));
        match check(sentence, &harness) {
            Outcome::Broken(what) => println!("{sentence}: {what}"),
            other => panic!("**{sentence}** did not catch it: {other:?}"),
        }
    }
}

macro_rules! mutants {
    ($($name:ident: $wrong:ident by $($sentence:literal)+;)*) => {
        mod mutants {
            use super::*;
            $(#[test] fn $name() { caught(None, |port| Mutant::boxed(port, Wrong::$wrong), &[$($sentence),+]); })*
        }
    };
}

macro_rules! faults {
    ($($name:ident: $fault:ident by $($sentence:literal)+;)*) => {
        mod faults {
            use super::*;
            $(#[test] fn $name() { caught(Some(Fault::$fault), |port| port, &[$($sentence),+]); })*
        }
    };
}

// Wrapped around a sound provider.
mutants! {
    completes_early: Early by "placed" "rnr";
    completes_twice: Twice by "once";
    completes_out_of_order: Backwards by "order";
    loses_one: Loses by "once";
    writes_past_the_end: PastEnd by "own" "gather" "length" "region";
    keeps_what_was_flushed: Keeps by "close" "once" "death";
    drops_the_immediate: DropsImmediate by "immediate" "region";
    reports_unsignalled_successes: Talks by "silent";
    changes_bytes_after_completion: ChangesLater by "own" "private";
    blocks: Blocks by "nonblocking";
    is_never_readable_after_arm: Deaf by "arm";
    oversleeps: Oversleeps by "wait";
    is_always_readable: Restless by "idle";
    tells_how_far_nobody_is: Remembers by "line";
}

// Broken inside.
faults! {
    takes_what_it_refused: TouchesRefused by "accept";
    gives_messages_to_the_last_receive: LastReceiveFirst by "fifo";
    sorts_fragments: SortsFragments by "gather" "region" "lend";
    completes_regions_early: RegionsOfOne by "region";
    reads_lists_after_post: KeepsPointers by "inline";
    fails_without_a_receive: NeedsReceives by "rnr" "placed";
    writes_all_of_a_message_that_is_too_long: WritesPastTheEnd by "length" "region";
    writes_the_last_word_first: LastWordFirst by "last-word";
    lets_writes_overtake: WritesOvertake by "write-order";
    ignores_fences: IgnoresFences by "fence";
    loads_then_stores: LoadsThenStores by "atomic";
    ignores_keys: IgnoresKeys by "keys";
    needs_the_target: NeedsTheTarget by "progress";
    flushes_shared_receives: FlushesShared by "shared";
    misses_a_death: MissesDeath by "death";
    wakes_for_the_last_of_many: WakesForTheLast by "half";
    hoards_memory: HoardsMemory by "forget";
    lets_others_suffer: ClosesAll by "hostile";
    forgets_who_waits_for_room: ForgetsRoom by "room";
    leaves_the_silent_unsaid: LeavesSilence by "close";
    lends_to_anyone: LendsToAnyone by "lend";
    never_lends: NeverLends by "lend";
    copies_what_it_lends: LendsAndCopies by "lend";
    returns_at_once: ReturnsAtOnce by "return";
    forgets_returns: ForgetsReturns by "lend" "return";
    returns_twice: ReturnsTwice by "return";
    sleeps_through_returns: SleepsThroughReturns by "return";
    vouches_for_what_it_let_go: StaysValid by "revoke";
    keeps_what_was_revoked: KeepsRevoked by "revoke";
    sorts_fragments_once_it_has_learnt: SortsWhenTold by "learn";
}

/// Every sentence has caught something.
#[test]
fn no_sentence_is_idle_talk() {
    let this = include_str!("mutants.rs");
    for sentence in overside_conformance::SENTENCES {
        let by = this.lines().filter_map(|line| line.split_once(" by ")).map(|(_, by)| by);
        assert!(
            by.into_iter().any(|by| by.contains(&format!("\"{}\"", sentence.id))),
            "no mutant shows that **{}** can fail",
            sentence.id
        );
    }
}

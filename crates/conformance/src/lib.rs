//! What a provider owes, as a suite that any provider runs.
//!
//! Each sentence of [`overside_verbs::port`] has an id and a check of the same name here; a test of
//! this crate reads both lists and fails when they differ. A provider's crate runs all of them with
//! one macro, in an integration test of its own:
//!
//! ```ignore
//! // crates/providers/mine/tests/conformance.rs
//! use std::sync::Arc;
//! use overside_verbs::Provider;
//!
//! fn provider() -> Arc<dyn Provider> {
//!     Arc::new(overside_mine::Mine::open().expect("the device is there"))
//! }
//!
//! // One #[test] for each sentence, and `second_process`, which `death` starts and kills.
//! overside_conformance::conformance_tests!(provider);
//! ```
//!
//! Each end of a connection asks for a provider of its own. What the provider's
//! [`Capabilities`](overside_verbs::Capabilities) do not promise is skipped and the test says why
//! (on stderr). A harness with other needs than that implements [`Harness`] and calls [`suite`] or
//! [`check`].
//!
//! The checks drive [`Port`](overside_verbs::Port) by a [`Probe`](overside_verbs::probe::Probe),
//! not by a completion queue, which would mask what it is protected against. Every wait has a
//! limit, and a check whose calls never return is given up: a broken provider fails, it does not
//! hang.
//!
//! The suite has been tested itself: `tests/mutants.rs` runs it against providers that are broken
//! on purpose.
//!
//! What a block device owes ([`overside_volume::device`]) is a suite of its own, in [`device`].
#![forbid(unsafe_code)]

pub mod declared;
pub mod device;
mod ends;
pub mod holds;
mod second;
mod sentences;

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, mpsc};
use std::time::Duration;

use overside_verbs::Provider;

pub use second::{Doomed, Processes, peer_until_killed, second_process};
pub use sentences::{SENTENCES, Sentence};

/// What the suite needs of whoever tests a provider.
pub trait Harness: Send + Sync {
    /// A provider for one end of a connection: a new one each time, or the same.
    fn provider(&self) -> Arc<dyn Provider>;

    /// A name to listen at that nobody uses.
    fn name(&self) -> String {
        unused_name()
    }

    /// Starts a peer that runs [`peer_until_killed`] against `name` and can be killed; none where
    /// that is impossible, which skips `death`.
    fn doomed(&self, name: &str) -> Option<Box<dyn Doomed>>;
}

fn unused_name() -> String {
    format!("conformance-{}-{}", std::process::id(), next())
}

/// An address of this process alone, within 127.0.0.0/8, for providers whose names are `HOST:PORT`.
pub fn loopback_name() -> String {
    let process = std::process::id();
    format!("127.{}.{}.1:{}", 1 + (process >> 8 & 0x7f), process & 0xff, 20_000 + next() % 40_000)
}

fn next() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The provider keeps the sentence.
    Kept,
    /// It does not promise this; says which capability is missing.
    Skipped(String),
    /// It breaks the sentence; says what was seen.
    Broken(String),
}

/// What came of each sentence.
#[derive(Clone, Debug)]
pub struct Report {
    /// Ids with their outcomes, in the order of `port.rs`.
    pub outcomes: Vec<(&'static str, Outcome)>,
}

impl Report {
    /// Whether no sentence is broken.
    pub fn conforms(&self) -> bool {
        self.broken().is_empty()
    }

    /// Ids of the broken sentences.
    pub fn broken(&self) -> Vec<&'static str> {
        self.outcomes.iter().filter(|(_, o)| matches!(o, Outcome::Broken(_))).map(|(id, _)| *id).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (id, outcome) in &self.outcomes {
            match outcome {
                Outcome::Kept => writeln!(f, "{id:12} kept")?,
                Outcome::Skipped(why) => writeln!(f, "{id:12} skipped: {why}")?,
                Outcome::Broken(what) => writeln!(f, "{id:12} BROKEN: {what}")?,
            }
        }
        Ok(())
    }
}

/// Checks every sentence.
pub fn suite(harness: &Arc<dyn Harness>) -> Report {
    Report { outcomes: SENTENCES.iter().map(|sentence| (sentence.id, run(sentence, harness))).collect() }
}

/// Checks one sentence.
///
/// # Panics
/// When no sentence has this id.
pub fn check(id: &str, harness: &Arc<dyn Harness>) -> Outcome {
    let sentence = SENTENCES.iter().find(|sentence| sentence.id == id);
    run(sentence.unwrap_or_else(|| panic!("no sentence has the id {id}")), harness)
}

/// Checks one sentence and fails the test that calls it when it is broken.
///
/// # Panics
/// Then, with what was seen.
pub fn assert_kept(id: &str, harness: &Arc<dyn Harness>) {
    match check(id, harness) {
        Outcome::Kept => {}
        Outcome::Skipped(why) => eprintln!("{id}: skipped, {why}"),
        Outcome::Broken(what) => panic!("the provider breaks **{id}**: {what}"),
    }
}

/// One `#[test]` for each sentence, and `second_process`. Takes a `fn() -> Arc<dyn Provider>`, and
/// a `fn() -> String` where the provider's names have another form than `NAME` of `shm:NAME`.
#[macro_export]
macro_rules! conformance_tests {
    ($provider:expr) => {
        $crate::conformance_tests!(@tests $provider, $crate::Processes::new($provider, module_path!()));
    };
    ($provider:expr, $name:expr) => {
        $crate::conformance_tests!(@tests $provider, $crate::Processes::new($provider, module_path!()).named($name));
    };
    (@tests $provider:expr, $harness:expr) => {
        fn conformance_harness() -> ::std::sync::Arc<dyn $crate::Harness> {
            ::std::sync::Arc::new($harness)
        }

        /// Does nothing by itself: `death` starts it as another process.
        #[test]
        fn second_process() {
            $crate::second_process($provider);
        }

        $crate::conformance_tests!(@sentences
            own "own", private "private", accept "accept", once "once", silent "silent", room "room", order "order",
            fifo "fifo", placed "placed", gather "gather", inline "inline", region "region",
            lend "lend", r#return "return", revoke "revoke",
            immediate "immediate", rnr "rnr",
            length "length", last_word "last-word", write_order "write-order", fence "fence", atomic "atomic",
            keys "keys", progress "progress", shared "shared", close "close", death "death",
            hostile "hostile", arm "arm", half "half", wait "wait", forget "forget", idle "idle",
            nonblocking "nonblocking", line "line", learn "learn"
        );
    };
    (@sentences $($name:ident $id:literal),*) => {
        $(
            #[test]
            fn $name() {
                $crate::assert_kept($id, &conformance_harness());
            }
        )*
    };
}

/// Why a check ended before its end.
#[derive(Debug)]
pub(crate) enum Stop {
    Broken(String),
    Skipped(String),
}

impl<E: std::error::Error> From<E> for Stop {
    fn from(error: E) -> Self {
        Stop::Broken(format!("an error where there must be none: {error}"))
    }
}

fn run(sentence: &'static Sentence, harness: &Arc<dyn Harness>) -> Outcome {
    let harness = harness.clone();
    ended(sentence.id, "provider", move || (sentence.check)(&*harness))
}

/// How the check of a sentence ends, of a provider's or of a device's.
pub(crate) fn ended(
    id: &str,
    what: &'static str,
    check: impl FnOnce() -> Result<(), Stop> + Send + 'static,
) -> Outcome {
    // `idle` counts the processor time of the process: nothing else may run then.
    let (shared, alone);
    if id == "idle" {
        alone = Some(QUIET.write().unwrap_or_else(PoisonError::into_inner));
        shared = None;
    } else {
        shared = Some(QUIET.read().unwrap_or_else(PoisonError::into_inner));
        alone = None;
    }
    let (report, outcome) = mpsc::channel();
    // On a thread of its own, which is left behind when a call never returns.
    std::thread::spawn(move || {
        let ended = std::panic::catch_unwind(AssertUnwindSafe(check));
        let _ = report.send(match ended {
            Ok(Ok(())) => Outcome::Kept,
            Ok(Err(Stop::Skipped(why))) => Outcome::Skipped(why),
            Ok(Err(Stop::Broken(what))) => Outcome::Broken(what),
            Err(_) => Outcome::Broken(format!("the check or the {what} panicked; the message is on stderr")),
        });
    });
    let ended = outcome
        .recv_timeout(CHECK_LIMIT)
        .unwrap_or_else(|_| Outcome::Broken(format!("a call did not return within {CHECK_LIMIT:?}")));
    drop((shared, alone));
    ended
}

static QUIET: RwLock<()> = RwLock::new(());
/// A check that takes longer hangs in a call: each of its own waits is far shorter.
const CHECK_LIMIT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn owed() -> Vec<&'static str> {
        include_str!("../../verbs/src/port.rs")
            .lines()
            .filter_map(|line| line.strip_prefix("//! - **")?.split_once("**:"))
            .map(|(id, _)| id)
            .collect()
    }

    #[test]
    fn every_sentence_has_a_check_and_every_check_a_sentence() {
        let checked: Vec<&str> = SENTENCES.iter().map(|sentence| sentence.id).collect();
        assert!(owed().len() > 20, "the list of port.rs was found");
        assert_eq!(owed(), checked, "port.rs on the left, the suite on the right");
    }

    #[test]
    fn the_macro_makes_a_test_of_every_sentence() {
        let lib = include_str!("lib.rs");
        for id in owed() {
            let name = if id == "return" { "r#return".to_owned() } else { id.replace('-', "_") };
            let arm = format!("{name} \"{id}\"");
            assert!(lib.contains(&arm), "conformance_tests! lacks `{arm}`");
        }
    }
}

//! What must not stand in the crates that a seeded simulation runs.
//!
//! There, time, sleep, chance and threads are the simulation's, and nothing may depend on the order
//! of a map whose keys are hashed by chance.
//!
//! `calibrate` and `conformance` are not among them: no simulated world runs them. The one measures
//! the machine's own time, the other checks providers of this machine, with threads of its own.

use super::{Violation, violation};
use crate::source::Source;
use crate::syntax;
use crate::tree::Tree;

const RULE: &str = "sim-safe";
const CRATES: [&str; 8] = [
    "overside-verbs",
    "overside-bwtree",
    "overside-transfer",
    "overside-service",
    "overside-disk",
    "overside-log",
    "overside-vault",
    "overside-volume",
];
/// Of the table store, its server and its client.
const TABLE: [&str; 2] = ["crates/table/src/server/", "crates/table/src/client/"];
/// Where the system's own clock and waits stand, behind the traits.
const SYSTEMS: [&str; 4] = [
    "crates/verbs/src/clock.rs",
    "crates/bwtree/src/waits.rs",
    "crates/service/src/threads.rs",
    "crates/verbs/src/numbers.rs",
];
const CLOCK: &str = "take it from the clock of the provider or port (`overside_verbs::Clock`)";
const WAITS: &str = "wait by the clock (`Clock::sleep`, `Clock::wait`), so that a simulation can step it";
const THREADS: &str = "starting a thread is its caller's, or goes through the trait that `service` has for it";
const ORDER: &str = "its order is chance: BTreeMap, or `overside_verbs::ByNumber`";
const PATHS: [(&str, &str); 7] = [
    ("Instant::now", CLOCK),
    ("SystemTime", CLOCK),
    ("thread::sleep", WAITS),
    ("thread::spawn", THREADS),
    ("thread::Builder", THREADS),
    ("HashMap", ORDER),
    ("HashSet", ORDER),
];

pub fn check(tree: &Tree) -> Vec<Violation> {
    let of_table = |source: &&Source| TABLE.iter().any(|folder| source.path.starts_with(folder));
    let sources = tree.sources_of(&CRATES).chain(tree.sources_of(&["overside-table"]).filter(of_table));
    sources.filter(|source| !SYSTEMS.contains(&source.path.as_str())).flat_map(check_source).collect()
}

fn check_source(source: &Source) -> Vec<Violation> {
    let found = PATHS.iter().flat_map(|(path, why)| {
        syntax::words(&source.code, path).map(move |at| (source.line_of(at), format!("`{path}`: {why}")))
    });
    found
        .filter(|(line, _)| source.is_shipped(*line))
        .map(|(line, message)| violation(RULE, &source.path, line, message))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    const CODE: &str = "use std::time::Instant;\nfn a() {\n  let t = Instant::now();\n  std::thread::sleep(d);\n}\n\
                        use std::collections::HashMap;\n#[cfg(test)]\nmod tests { fn b() { Instant::now(); } }\n";

    #[test]
    fn time_sleep_and_chance_are_found_in_shipped_code() {
        for path in ["crates/verbs/src/queue.rs", "crates/table/src/server/scan.rs"] {
            let tree = planted::tree(&[("crates/table/src/lib.rs", ""), (path, CODE)]);
            assert_eq!(planted::lines(&check(&tree)), [3, 4, 6], "{path}");
        }
    }

    #[test]
    fn other_crates_and_the_system_behind_the_trait_are_free() {
        let tree = planted::tree(&[
            ("crates/verbs/src/clock.rs", CODE),
            ("crates/bench/src/lib.rs", CODE),
            ("crates/table/src/row.rs", CODE),
        ]);
        assert_eq!(check(&tree), []);
    }
}

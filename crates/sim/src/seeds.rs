//! Worlds of many seeds, as a test runs some of them and `cargo xtask sim` asks for more.

use std::env;
use std::process::Command;

use crate::Trace;

/// What the world of a seed came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its trace's.
    pub hash: u64,
    /// What some of many worlds must have seen, and how often this one has.
    pub counts: Vec<(&'static str, u64)>,
}

impl Held {
    /// What `trace` says, and of which kinds of things.
    pub fn of(trace: &Trace, kinds: &[&'static str]) -> Held {
        Held { hash: trace.hash(), counts: kinds.iter().map(|kind| (*kind, trace.count_of(kind))).collect() }
    }
}

/// Runs the world of a seed: what it came to, or what is wrong.
pub type Run = fn(u64) -> Result<Held, String>;

/// The hash of a world that must hold its promises.
///
/// # Panics
/// It does not.
pub fn holds(run: Run, seed: u64) -> u64 {
    match run(seed) {
        Ok(held) => held.hash,
        Err(why) => panic!("seed {seed} fails: {why}\nagain: cargo xtask sim --seed {seed}"),
    }
}

/// The worlds that `cargo xtask sim` asks for, with a line for each on standard output: seeds
/// `FROM..TO` in the environment's `OVERSIDE_SIM_SEEDS`; none without it. Of the caller's test
/// `asked`, which is ignored unless it is asked for.
///
/// # Panics
/// The variable is something else.
pub fn asked(run: Run) {
    let Ok(asked) = env::var(SEEDS) else { return };
    let (from, to) = asked.split_once("..").expect("OVERSIDE_SIM_SEEDS is FROM..TO");
    let seeds = from.parse::<u64>().expect("a seed")..to.parse().expect("a seed");
    for seed in seeds {
        match run(seed) {
            Ok(held) => {
                println!("seed {seed} trace {:016x}", held.hash);
                let counts: Vec<String> = held.counts.iter().map(|(kind, n)| format!("{kind}={n}")).collect();
                println!("  did {}", counts.join("|"));
            }
            Err(why) => {
                println!("seed {seed} FAILS: {}", why.replace('\n', "\n    "));
                // A planted fault is found once, and a broken world may take long.
                if env::var_os("OVERSIDE_MUTANT").is_some() {
                    return;
                }
            }
        }
    }
}

/// Some seeds take the same steps in another process, whose addresses, descriptors and hashers
/// differ: the caller's test `asked` runs them there.
///
/// # Panics
/// They take others.
pub fn same_in_another_process(run: Run, seeds: &[u64]) {
    for seed in seeds {
        let mut other = Command::new(env::current_exe().expect("this program lies somewhere"));
        other.args(["--exact", "asked", "--ignored", "--nocapture"]).env(SEEDS, format!("{seed}..{}", seed + 1));
        let said = other.output().expect("this program runs").stdout;
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains(&format!("seed {seed} trace {:016x}", holds(run, *seed))), "{said}");
    }
}

const SEEDS: &str = "OVERSIDE_SIM_SEEDS";

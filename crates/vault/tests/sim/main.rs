//! The shipped node, client and arrays in worlds from seeds: `cargo xtask sim` runs many, CONTRIBUTING.md
//! says how to read a seed that fails.

mod client;
mod model;
mod scenario;

use std::process::Command;

use scenario::{KINDS, run};

/// The world of a seed holds its promises; its trace's hash.
fn holds(seed: u64) -> u64 {
    match run(seed) {
        Ok(held) => held.hash,
        Err(why) => panic!("seed {seed} fails: {why}\nagain: cargo xtask sim --seed {seed}"),
    }
}

#[test]
fn some_seeds_hold() {
    for seed in 0..12 {
        holds(seed);
    }
}

/// Asked for by `cargo xtask sim`: seeds `FROM..TO`, with a line for each.
#[test]
#[ignore = "cargo xtask sim runs it"]
fn asked() {
    let Ok(asked) = std::env::var("OVERSIDE_SIM_SEEDS") else { return };
    #[cfg(mutants)]
    std::env::var("OVERSIDE_MUTANT").iter().for_each(|name| overside_volume::plant(name));
    let (from, to) = asked.split_once("..").expect("OVERSIDE_SIM_SEEDS is FROM..TO");
    let seeds = from.parse::<u64>().expect("a seed")..to.parse().expect("a seed");
    for seed in seeds {
        match run(seed) {
            Ok(held) => {
                println!("seed {seed} trace {:016x}", held.hash);
                let counts: Vec<String> =
                    KINDS.iter().zip(held.counts).map(|(kind, n)| format!("{kind}={n}")).collect();
                println!("  did {}", counts.join("|"));
            }
            Err(why) => {
                println!("seed {seed} FAILS: {}", why.replace('\n', "\n    "));
                // A planted fault is found once, and a broken world may take long.
                if std::env::var_os("OVERSIDE_MUTANT").is_some() {
                    return;
                }
            }
        }
    }
}

/// The same steps in another process, whose addresses, descriptors and hashers differ.
#[test]
fn a_seed_is_the_same_trace_in_another_process() {
    const SEEDS: [u64; 3] = [1, 2, 5];
    for seed in SEEDS {
        let mut other = Command::new(std::env::current_exe().unwrap());
        other.args(["--exact", "asked", "--ignored", "--nocapture"]);
        other.env("OVERSIDE_SIM_SEEDS", format!("{seed}..{}", seed + 1));
        let said = String::from_utf8(other.output().unwrap().stdout).unwrap();
        assert!(said.contains(&format!("seed {seed} trace {:016x}", holds(seed))), "{said}");
    }
}

//! The shipped server and client in worlds from seeds: `cargo xtask sim` runs many, CONTRIBUTING.md
//! says how to read a seed that fails.

mod check;
mod client;
mod history;
mod scenario;

use overside_sim::seeds;
use scenario::run;

#[test]
fn some_seeds_hold() {
    for seed in 0..12 {
        seeds::holds(run, seed);
    }
}

#[test]
#[ignore = "cargo xtask sim runs it"]
fn asked() {
    seeds::asked(run);
}

#[test]
fn a_seed_is_the_same_trace_in_another_process() {
    seeds::same_in_another_process(run, &[1, 2, 5]);
}

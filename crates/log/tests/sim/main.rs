//! The log alone in simulated worlds: writers as threads, a disk that fails, crashes at any operation,
//! and what recovery must find. `cargo xtask sim` runs many seeds.

mod book;
mod scenario;
mod server;

use overside_sim::seeds;
use scenario::run;

#[test]
fn some_seeds_hold() {
    for seed in 0..20 {
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
    seeds::same_in_another_process(run, &[3, 4]);
}

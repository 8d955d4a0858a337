//! Shortens a program for as long as it still fails.

use std::collections::{BTreeMap, BTreeSet};

use super::program::{List, Program, Step, is_barrier};

/// The shortest program found for which `fails` still says yes; it says no when there is no time
/// left.
pub fn shrink(program: &Program, fails: &mut dyn FnMut(&Program) -> bool) -> Program {
    let mut best = program.clone();
    loop {
        let before = best.clone();
        drop_units(&mut best, fails, |step| Unit::Phase(step.phase));
        drop_units(
            &mut best,
            fails,
            |step| if is_barrier(step) { Unit::Stays } else { Unit::Connection(step.connection) },
        );
        drop_units(&mut best, fails, unit_of);
        plain_words(&mut best, fails);
        smaller_numbers(&mut best, fails);
        if best == before {
            return without_idle_lists(&best);
        }
    }
}

/// What is left out together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Unit {
    Phase(u32),
    Connection(usize),
    /// What a script says word for word, in one list or several.
    Step(String),
    /// A barrier stays, for it may be what makes the outcome one.
    Stays,
}

fn unit_of(step: &Step) -> Unit {
    if is_barrier(step) { Unit::Stays } else { Unit::Step(step.to_string()) }
}

/// Leaves out halves of the units, then quarters, down to single ones.
fn drop_units(best: &mut Program, fails: &mut dyn FnMut(&Program) -> bool, unit: impl Fn(&Step) -> Unit) {
    let units: BTreeSet<Unit> = best.steps().map(&unit).filter(|unit| *unit != Unit::Stays).collect();
    let mut units: Vec<Unit> = units.into_iter().collect();
    let mut size = units.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < units.len() {
            let gone: BTreeSet<&Unit> = units[at..(at + size).min(units.len())].iter().collect();
            let mut candidate = best.clone();
            for list in &mut candidate.lists {
                list.steps.retain(|step| !gone.contains(&unit(step)));
            }
            if candidate.steps().count() > 0 && candidate != *best && fails(&candidate) {
                *best = candidate;
                units.drain(at..(at + size).min(units.len()));
            } else {
                at += size;
            }
        }
        size /= 2;
    }
}

/// Takes a change that still fails.
fn attempt(best: &mut Program, fails: &mut dyn FnMut(&Program) -> bool, change: impl FnOnce(&mut Program)) -> bool {
    let mut candidate = best.clone();
    change(&mut candidate);
    let taken = candidate != *best && fails(&candidate);
    if taken {
        *best = candidate;
    }
    taken
}

/// The usual call, way of waiting and settings in place of rarer ones.
fn plain_words(best: &mut Program, fails: &mut dyn FnMut(&Program) -> bool) {
    attempt(best, fails, |program| "both".clone_into(&mut program.under));
    attempt(best, fails, |program| program.nofile = 0);
    attempt(best, fails, |program| "return".clone_into(&mut program.ending));
    attempt(best, fails, |program| "tcp".clone_into(&mut program.family));
    for list in 0..best.lists.len() {
        for at in 0..best.lists[list].steps.len() {
            let usual = match best.lists[list].steps[at].verb.as_str() {
                "send" => "send",
                "recv" | "talk" | "share" => "recv",
                "open" => "plain",
                _ => continue,
            };
            attempt(best, fails, |program| usual.clone_into(&mut program.lists[list].steps[at].call));
            if usual != "plain" {
                attempt(best, fails, |program| "block".clone_into(&mut program.lists[list].steps[at].wait));
                attempt(best, fails, |program| program.lists[list].steps[at].delay = 0);
            }
        }
    }
}

/// Amounts that stand in several steps (what is sent and what is received) become smaller together.
fn smaller_numbers(best: &mut Program, fails: &mut dyn FnMut(&Program) -> bool) {
    let amounts: BTreeSet<i64> =
        best.steps().filter(|step| COUNTED.contains(&step.verb.as_str()) && step.n > 1).map(|step| step.n).collect();
    for amount in amounts.into_iter().rev() {
        let smaller = [1, 10, 100, 1000, 10_000, 100_000, amount / 2, amount / 2 + amount / 4];
        smaller.into_iter().filter(|smaller| (1..amount).contains(smaller)).any(|smaller| {
            attempt(best, fails, |program| {
                let steps = program.lists.iter_mut().flat_map(|list| &mut list.steps);
                let same = steps.filter(|step| step.n == amount && COUNTED.contains(&step.verb.as_str()));
                same.for_each(|step| step.n = smaller);
            })
        });
    }
    let in_pieces = |step: &&Step| step.verb != "talk" && (1..ONE_PIECE).contains(&step.piece);
    let pieces: BTreeSet<i64> = best.steps().filter(in_pieces).map(|step| step.piece).collect();
    for piece in pieces {
        attempt(best, fails, |program| {
            let steps = program.lists.iter_mut().flat_map(|list| &mut list.steps);
            steps.filter(|step| step.verb != "talk" && step.piece == piece).for_each(|step| step.piece = ONE_PIECE);
        });
    }
}

/// Threads that only wait for others go, but for the main ones, and children that nobody starts; so
/// do barriers that one list alone has. The other lists are named by their new numbers. None of
/// this changes what the program does.
fn without_idle_lists(program: &Program) -> Program {
    let mut program = program.clone();
    program.lists.iter_mut().filter(|list| list.steps.iter().all(is_barrier)).for_each(|list| list.steps.clear());
    let mut counts = BTreeMap::<i64, usize>::new();
    program.steps().filter(|step| is_barrier(step)).for_each(|step| *counts.entry(step.n).or_default() += 1);
    for list in &mut program.lists {
        list.steps.retain(|step| step.verb != "barrier" || counts.get(&step.n) != Some(&1));
    }
    let started: BTreeSet<i64> = program.steps().filter(|step| step.verb == "spawn").map(|step| step.n).collect();
    let mut numbers = Vec::new();
    let mut shorter = Program { lists: Vec::<List>::new(), ..program.clone() };
    for (number, list) in program.lists.iter().enumerate() {
        numbers.push(shorter.lists.len() as i64);
        let is_main = !list.child && !shorter.lists.iter().any(|other| other.side == list.side && !other.child);
        let is_started = list.child && started.contains(&(number as i64));
        if is_main || is_started || !list.child && !list.steps.is_empty() {
            shorter.lists.push(list.clone());
        }
    }
    for step in shorter.lists.iter_mut().flat_map(|list| &mut list.steps).filter(|step| step.verb == "spawn") {
        step.n = usize::try_from(step.n).ok().and_then(|old| numbers.get(old).copied()).unwrap_or(step.n);
    }
    shorter
}

/// Larger than most amounts.
const ONE_PIECE: i64 = 65536;
/// Verbs whose number is an amount.
const COUNTED: [&str; 7] = ["send", "recv", "talk", "pump", "run", "many", "ticks"];

#[cfg(test)]
mod tests {
    use super::super::generate::generate;
    use super::*;

    /// Of what is started: a child's list that nobody starts goes from the shortest program.
    fn alive(program: &Program) -> impl Iterator<Item = &Step> {
        program.lists.iter().filter(|list| !list.child).flat_map(|list| &list.steps)
    }

    fn has(program: &Program, verb: &str) -> bool {
        alive(program).any(|step| step.verb == verb)
    }

    /// Fails whenever something is sent after something has been run, with more than 1,000 bytes.
    fn artificial(program: &Program) -> bool {
        has(program, "run") && alive(program).any(|step| step.verb == "send" && step.n > 1000)
    }

    #[test]
    fn what_matters_is_left() {
        let seeds: Vec<u64> = (0..).filter(|seed| artificial(&generate(*seed))).take(20).collect();
        for seed in seeds {
            let short = shrink(&generate(seed), &mut artificial);
            assert!(artificial(&short), "seed {seed}");
            assert_eq!(alive(&short).filter(|step| !is_barrier(step)).count(), 2, "seed {seed}:\n{short}");
            let sent = short
                .steps()
                .find(|step| step.verb == "send")
                .map(|step| (step.n, step.call.as_str(), step.wait.as_str()));
            assert!(matches!(sent, Some((n, "send", "block")) if n <= 2000), "seed {seed}:\n{short}");
        }
    }

    /// But for those of a phase that goes as a whole.
    #[test]
    fn barriers_stay() {
        let mut program = generate(3);
        program.lists.iter_mut().flat_map(|list| &mut list.steps).for_each(|step| step.phase = 0);
        let barriers = |program: &Program| program.steps().filter(|step| is_barrier(step)).count();
        let mut tried = 0;
        shrink(&program, &mut |candidate| {
            tried += 1;
            assert_eq!(barriers(candidate), barriers(&program), "{candidate}");
            false
        });
        assert!(tried > 10);
    }

    #[test]
    fn a_program_that_fails_no_more_stays() {
        let program = generate(1);
        assert_eq!(shrink(&program, &mut |_| false), without_idle_lists(&program));
    }

    #[test]
    fn children_keep_their_lists() {
        let spawned = |program: &Program| {
            program
                .steps()
                .any(|step| step.verb == "spawn" && program.lists.get(step.n as usize).is_some_and(|list| list.child))
        };
        for seed in (0..).filter(|seed| spawned(&generate(*seed))).take(10) {
            let short = shrink(&generate(seed), &mut |candidate| spawned(candidate));
            assert!(spawned(&short), "{short}");
        }
    }
}

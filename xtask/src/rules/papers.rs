//! docs/claims.toml against the tree and the committed results: each claim has its row, and what a
//! row names is so.

use std::collections::{BTreeMap, BTreeSet};

use overside_evidence::{Claim, FIGURES, Says, numbers, rules};

use super::{Violation, violation};
use crate::papers::{self, CLAIMS, Evidence};
use crate::source::Source;
use crate::syntax;
use crate::tree::Tree;

const RULE: &str = "papers";
/// How many claims each paper has, by the prefix of their ids.
const COUNTS: [(&str, usize); 10] = [
    ("TC-M", 42),
    ("TC-C", 53),
    ("TH-M", 31),
    ("TH-C", 24),
    ("DR-M", 68),
    ("DR-C", 44),
    ("RS-M", 24),
    ("RS-C", 15),
    ("VI-M", 72),
    ("VI-C", 63),
];
const STATES: [&str; 4] = ["built", "partly", "not yet", "not applicable"];
/// What no user of the product runs.
const NOT_SHIPPED: [&str; 7] = [
    "crates/bench/",
    "crates/peers/",
    "crates/conformance/",
    "crates/corpus/",
    "crates/providers/reference/",
    "guest/",
    "xtask/",
];
/// What changes with each result, if a note counts it.
const COUNTED: [&str; 8] = ["run", "runs", "machine", "machines", "step", "steps", "core", "cores"];
const COUNTS_OF: [&str; 24] = [
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "sixteen",
    "all",
    "both",
    "most",
    "some",
    "other",
    "newest",
    "newer",
    "latest",
    "older",
    "oldest",
    "committed",
    "full",
    "former",
];
/// Names of machines.
const MACHINES: [&str; 4] = ["intel", "amd", "epyc", "xeon"];
const CI: &str = ".ci/run";
const NIGHTLY: &str = ".ci/nightly";
const JOBS: &str = "guest/src/jobs.rs";

pub fn check(tree: &Tree) -> Vec<Violation> {
    let evidence = match Evidence::of(tree) {
        Ok(evidence) => evidence,
        Err(wrong) => {
            return wrong.into_iter().map(|(path, line, what)| violation(RULE, &path, line, what)).collect();
        }
    };
    let tests = tests(tree);
    let mut violations = completeness(&evidence.claims);
    for claim in &evidence.claims {
        let complaints = [
            what_it_names(tree, &tests, claim),
            what_it_states(claim),
            what_backs_it(claim),
            what_calls_it(tree, claim),
            what_it_says(&evidence, claim),
            what_it_notes(claim),
        ];
        let complaints = complaints.into_iter().flatten();
        violations.extend(complaints.map(|what| violation(RULE, CLAIMS, claim.line, format!("{}: {what}", claim.id))));
    }
    violations.extend(citations(tree, &evidence.claims));
    // Where rows are wrong their pages are no news.
    if violations.is_empty() {
        match papers::pages(tree, &evidence) {
            Ok(pages) => violations.extend(
                pages
                    .iter()
                    .filter(|(path, text)| tree.text(path) != text)
                    .map(|(path, _)| violation(RULE, path, 0, "is stale: run `cargo xtask papers`")),
            ),
            Err(error) => violations.push(violation(RULE, papers::FIGURES, 0, error.to_string())),
        }
    }
    violations
}

fn completeness(claims: &[Claim]) -> Vec<Violation> {
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    let mut violations = Vec::new();
    for claim in claims {
        let line = claim.line;
        if !is_claim(&claim.id) {
            violations.push(violation(RULE, CLAIMS, line, format!("`{}` is no claim of the papers", claim.id)));
        } else if let Some(first) = lines.insert(&claim.id, line) {
            let message = format!("`{}` stands on line {first} already", claim.id);
            violations.push(violation(RULE, CLAIMS, line, message));
        }
    }
    for (prefix, count) in COUNTS {
        let all = (1..=count).map(|number| format!("{prefix}{number:02}"));
        for id in all.filter(|id| !lines.contains_key(id.as_str())) {
            violations.push(violation(RULE, CLAIMS, 0, format!("lacks `{id}`")));
        }
    }
    let known: BTreeSet<&str> = claims.iter().map(|claim| claim.id.as_str()).collect();
    for rule in rules().filter(|rule| !known.contains(rule.claim)) {
        violations.push(violation(
            RULE,
            CLAIMS,
            0,
            format!("lacks `{}`, of which a rule judges {}", rule.claim, rule.figure),
        ));
    }
    violations
}

/// Files, tests and figures.
fn what_it_names(tree: &Tree, tests: &BTreeSet<&str>, claim: &Claim) -> Vec<String> {
    let mut complaints = Vec::new();
    for path in claim.code.iter().chain(&claim.counted) {
        let is_folder = || tree.files.keys().any(|file| file.starts_with(&format!("{path}/")));
        if !tree.files.contains_key(path) && !is_folder() {
            complaints.push(format!("`{path}` does not exist"));
        }
    }
    for test in claim.tests.iter().filter(|test| !runs(tree, tests, test)) {
        complaints.push(format!(
            "no test `{test}` runs: name a test function, a file of a test target, a script that {CI} runs, or `guest: JOB` of it or of {NIGHTLY}"
        ));
    }
    for figure in &claim.figures {
        let name = figure.split(':').next().unwrap_or_default();
        let runs = match name.strip_prefix("bench ") {
            Some(name) => {
                let quickly = tree.text(".ci/figures").contains(&format!("\"{name}\""));
                FIGURES.contains(&name) && (quickly || tree.text(NIGHTLY).contains(&format!(" bench {name} --json ")))
            }
            None => name == "demo" && tree.text(CI).contains(".ci/demo"),
        };
        if !runs {
            complaints
                .push(format!("no figure `{name}` runs: one is `demo` or `bench` with one of {}", FIGURES.join(", ")));
        }
    }
    complaints
}

/// Functions that the test command runs.
fn tests(tree: &Tree) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for source in &tree.sources {
        for at in syntax::words(&source.code, "fn") {
            let name = syntax::identifier(&source.code[at + 2..]);
            let attributes = attributes(&source.code[..at]);
            let is_test = attributes.contains("#[test]") && !attributes.contains("#[ignore");
            if is_test || named_by_a_macro(source, at) {
                found.insert(name);
            }
        }
    }
    found
}

/// What stands between an item and the end of the one before it.
fn attributes(before: &str) -> &str {
    before.rfind(['}', ';', '{']).map_or(before, |end| &before[end + 1..])
}

/// A function of a test target that makes its tests by a macro, or has no harness: it is called by
/// its name elsewhere in tests.
fn named_by_a_macro(source: &Source, at: usize) -> bool {
    source.is_test(source.line_of(at)) && source.path.contains("/tests/")
}

fn runs(tree: &Tree, tests: &BTreeSet<&str>, test: &str) -> bool {
    if let Some(job) = test.strip_prefix("guest: ") {
        return tree.text(JOBS).contains(&format!("name: \"{job}\"")) && runs_in_a_guest(tree, job);
    }
    if test.starts_with(".ci/") {
        return tree.files.contains_key(test) && tree.text(CI).contains(test);
    }
    if test.ends_with(".rs") {
        let is_target = tree.packages.iter().flat_map(|p| &p.targets).any(|t| t.kind == "test" && t.root == test);
        // Doctests.
        return is_target || tree.text(test).contains("```compile_fail");
    }
    tests.contains(test)
}

/// A call for jobs in a guest runs those that it names; one that names none runs all but that of a
/// failing disk.
fn runs_in_a_guest(tree: &Tree, job: &str) -> bool {
    let lines = [CI, NIGHTLY].into_iter().flat_map(|script| tree.text(script).lines());
    let mut calls = lines.filter_map(|line| line.split_once("cargo xtask guest")).filter(|call| !call.0.contains('#'));
    calls.any(|(_, named)| {
        let mut named = named.split(['>', '|', '&', ';']).next().unwrap_or_default().split_whitespace().peekable();
        (named.peek().is_none() && job != "power") || named.any(|name| name == job)
    })
}

/// No number that the paper states has been dropped from the text, nor made up.
fn what_it_states(claim: &Claim) -> Vec<String> {
    let stated = numbers(&claim.states);
    let complaint = |what: &str, number: &String| format!("`states` {what} the number {number}");
    let dropped = claim.numbers.iter().filter(|number| !stated.contains(number));
    let added = stated.iter().filter(|number| !claim.numbers.contains(number));
    let dropped = dropped.map(|number| complaint("drops", number));
    dropped.chain(added.map(|number| complaint("has, and `numbers` has not,", number))).collect()
}

/// A state that is known, and what it needs.
fn what_backs_it(claim: &Claim) -> Vec<String> {
    let mut complaints = Vec::new();
    let ruled = rules().any(|rule| rule.claim == claim.id);
    let state = claim.state.as_str();
    if !STATES.contains(&state) {
        complaints.push(format!("the state is one of {}: not `{state}`", STATES.join(", ")));
    }
    if matches!(state, "built" | "partly") && claim.code.is_empty() {
        complaints.push(format!("is {state} but names no file"));
    }
    if state == "built" && !claim.asserts() && claim.tests.is_empty() {
        complaints.push("is built but names no test".into());
    }
    let by_tests = claim.tests.iter().any(|test| !test.starts_with(".ci/"));
    if state == "built" && claim.asserts() && !ruled && !by_tests {
        complaints.push("is built but no rule judges it and no test shows it: add a rule, or say partly".into());
    }
    if state != "built" && claim.note.is_empty() {
        complaints.push(format!("is {state}: say in `note` what is missing"));
    }
    if claim.verdict.is_some() && !ruled {
        complaints.push("has a verdict and no rule: crates/evidence/src/rules judges it, or nobody does".into());
    }
    let figure =
        |name: &str| claim.figures.iter().any(|figure| figure.split(':').next() == Some(&format!("bench {name}")));
    for rule in rules().filter(|rule| rule.claim == claim.id && !figure(rule.figure)) {
        complaints.push(format!("a rule asks the figure {0}: name `bench {0}`", rule.figure));
    }
    complaints
}

/// Shipped code uses a mechanism that is built.
fn what_calls_it(tree: &Tree, claim: &Claim) -> Vec<String> {
    if claim.measurement || claim.asserts() || claim.state != "built" {
        let figure = claim.measurement && claim.figures.is_empty();
        return figure.then(|| "is a measurement that no figure carries out".to_owned()).into_iter().collect();
    }
    let Some((path, symbol)) = claim.caller.as_deref().and_then(|caller| caller.split_once(':')) else {
        return vec!["is built: name in `caller` the `path:symbol` where shipped code uses it, or say partly".into()];
    };
    let source = tree.sources.iter().find(|source| source.path == path);
    let shipped = source.filter(|source| !NOT_SHIPPED.iter().any(|folder| source.path.starts_with(folder)));
    if shipped.is_some_and(|source| uses(source, symbol)) {
        return Vec::new();
    }
    vec![format!("`{path}` is no shipped code that uses `{symbol}`: name another caller, or say partly")]
}

/// Whether shipped code of a file names a symbol, other than to define it.
fn uses(source: &Source, symbol: &str) -> bool {
    const DEFINES: [&str; 9] = ["fn", "struct", "enum", "trait", "type", "const", "static", "mod", "union"];
    syntax::words(&source.code, symbol).any(|at| {
        let before = source.code[..at].split_whitespace().next_back().unwrap_or_default();
        source.is_shipped(source.line_of(at)) && !DEFINES.contains(&before)
    })
}

/// The verdict is the one that its rule gives of the committed results.
fn what_it_says(evidence: &Evidence, claim: &Claim) -> Vec<String> {
    let Some(says) = evidence.verdicts.get(claim.id.as_str()).copied() else { return Vec::new() };
    let held = claim.verdict.map_or("nothing", Says::text);
    let differs = claim.verdict != Some(says);
    let complaint = || format!("the committed results say `{}`, and `verdict` says {held}", says.text());
    differs.then(complaint).into_iter().collect()
}

/// A note outlives the next result: what was measured, how often and where stands beside the
/// verdict, made of the results.
fn what_it_notes(claim: &Claim) -> Vec<String> {
    let of = |what: &str| {
        format!("`note` says `{what}`, which the next result makes stale: the page shows what each run says")
    };
    let words: Vec<String> = claim.note.split_whitespace().map(bare).collect();
    let is_count = |word: &String| COUNTS_OF.contains(&&word[..]) || word.bytes().all(|b| b.is_ascii_digit());
    let counted = words.iter().enumerate().filter(|(_, word)| COUNTED.contains(&&word[..]));
    let counted = counted.filter(|(at, _)| words[at.saturating_sub(3)..*at].iter().any(is_count));
    let mut stale: Vec<String> = counted.map(|(at, _)| words[at.saturating_sub(3)..=at].join(" ")).collect();
    stale.extend(words.iter().filter(|word| MACHINES.contains(&&word[..])).cloned());
    // What the paper states and what a rule asks is no measurement.
    let asked = rules().filter(|rule| rule.claim == claim.id).flat_map(|rule| rule.parts);
    let asked: String = asked.map(|part| format!("{} {} ", part.says, part.bar)).collect();
    let known = [numbers(&claim.states), numbers(&asked)].concat();
    stale.extend(numbers(&claim.note).into_iter().filter(|number| number.contains('.') && !known.contains(number)));
    stale.iter().map(|what| of(what)).collect()
}

/// A word in small letters, without its marks.
fn bare(word: &str) -> String {
    word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase()
}

/// Every claim that code cites exists, and its row does not say that nothing is built.
fn citations(tree: &Tree, claims: &[Claim]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in &tree.sources {
        // tidy's own tests spell out ids that do not exist.
        if source.path.starts_with("xtask/") {
            continue;
        }
        let not_id = |c: char| !(c.is_ascii_alphanumeric() || c == '-');
        let cited = source.comments.iter().flat_map(|c| c.text.split(not_id).map(|id| (c.line, id)));
        for (line, id) in cited {
            if !COUNTS.iter().any(|(prefix, _)| id.starts_with(prefix)) {
                continue;
            }
            if !is_claim(id) {
                let message = format!("`{id}` is no claim of the papers");
                violations.push(violation(RULE, &source.path, line, message));
            }
            if claims.iter().any(|claim| claim.id == id && claim.state == "not yet") {
                let message = format!("cites `{id}`, which {CLAIMS} calls not yet built");
                violations.push(violation(RULE, &source.path, line, message));
            }
        }
    }
    violations
}

fn is_claim(id: &str) -> bool {
    COUNTS.iter().any(|(prefix, count)| {
        let number = id.strip_prefix(prefix).filter(|digits| digits.len() == 2);
        number.and_then(|digits| digits.parse().ok()).is_some_and(|n| (1..=*count).contains(&n))
    })
}

#[cfg(test)]
mod tests;

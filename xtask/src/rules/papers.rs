//! docs/papers.md against the tree: every claim has its row, and what a row names exists.

use std::collections::{BTreeMap, BTreeSet};

use super::{Violation, violation};
use crate::syntax;
use crate::tree::Tree;

const RULE: &str = "papers";
const PAPERS: &str = "docs/papers.md";
/// How many claims each paper has, by the prefix of their ids; those of the first eight
/// (to-copy-or-not-to-copy, the thesis, d-rdma and rdma-sockets) have a row each.
const CLAIMS: [(&str, usize); 10] = [
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
const WITH_ROWS: usize = 8;
const STATES: [&str; 4] = ["built", "partly", "not yet", "not applicable"];

/// A row: id | what | code | test | figure | state.
struct Row<'a> {
    line: usize,
    id: &'a str,
    code: &'a str,
    test: &'a str,
    state: &'a str,
}

pub fn check(tree: &Tree) -> Vec<Violation> {
    let rows = rows(tree.text(PAPERS));
    let functions = function_names(tree);
    let mut violations = completeness(&rows);
    for row in &rows {
        violations.extend(check_row(tree, &functions, row));
    }
    violations.extend(citations(tree, &rows));
    violations
}

fn rows(text: &str) -> Vec<Row<'_>> {
    let lines = text.lines().enumerate();
    lines
        .filter_map(|(index, line)| {
            let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
            let cells: Vec<&str> = inner.split('|').map(str::trim).collect();
            let [id, _, code, test, _, state] = cells[..] else {
                return None;
            };
            let is_row = id != "id" && !id.starts_with('-');
            is_row.then_some(Row { line: index + 1, id, code, test, state })
        })
        .collect()
}

fn completeness(rows: &[Row<'_>]) -> Vec<Violation> {
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    let mut violations = Vec::new();
    for row in rows {
        if !is_claim(row.id, &CLAIMS[..WITH_ROWS]) {
            let message = format!("`{}` is no claim of TC, TH, DR or RS", row.id);
            violations.push(violation(RULE, PAPERS, row.line, message));
        } else if let Some(first) = lines.insert(row.id, row.line) {
            let message = format!("`{}` has a row already, on line {first}", row.id);
            violations.push(violation(RULE, PAPERS, row.line, message));
        }
    }
    for (prefix, count) in &CLAIMS[..WITH_ROWS] {
        for number in 1..=*count {
            let id = format!("{prefix}{number:02}");
            if !lines.contains_key(id.as_str()) {
                violations.push(violation(RULE, PAPERS, 0, format!("`{id}` has no row")));
            }
        }
    }
    violations
}

fn check_row(tree: &Tree, functions: &BTreeSet<&str>, row: &Row<'_>) -> Vec<Violation> {
    let mut complaints = Vec::new();
    for path in quoted(row.code) {
        let is_folder = || tree.files.keys().any(|file| file.starts_with(&format!("{path}/")));
        if !tree.files.contains_key(path) && !is_folder() {
            complaints.push(format!("`{path}` does not exist"));
        }
    }
    for test in quoted(row.test) {
        let name = test.rsplit("::").next().unwrap_or(test);
        if !functions.contains(name) && !tree.files.contains_key(test) {
            complaints.push(format!("there is no test `{name}` and no file of that name"));
        }
    }
    let state = STATES.into_iter().find(|state| row.state.starts_with(*state)).unwrap_or("");
    if state.is_empty() {
        let states = STATES.join(", ");
        complaints.push(format!("the state is one of {states}: not `{}`", row.state));
    }
    if matches!(state, "built" | "partly") && quoted(row.code).next().is_none() {
        complaints.push(format!("`{}` is {state} but names no file", row.id));
    }
    if state == "built" && row.id.contains("-M") && quoted(row.test).next().is_none() {
        complaints.push(format!("`{}` is built but names no test", row.id));
    }
    if state == "not applicable" && row.state.len() < state.len() + 3 {
        complaints.push(format!("`{}` is not applicable: say why", row.id));
    }
    let complaints = complaints.into_iter();
    complaints.map(|message| violation(RULE, PAPERS, row.line, message)).collect()
}

/// Every claim that code cites exists, and its row does not say that nothing is built.
fn citations(tree: &Tree, rows: &[Row<'_>]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in &tree.sources {
        // tidy's own tests spell out ids that do not exist.
        if source.path.starts_with("xtask/") {
            continue;
        }
        let not_id = |c: char| !(c.is_ascii_alphanumeric() || c == '-');
        let cited = source.comments.iter().flat_map(|c| c.text.split(not_id).map(|id| (c.line, id)));
        for (line, id) in cited {
            if !CLAIMS.iter().any(|(prefix, _)| id.starts_with(prefix)) {
                continue;
            }
            if !is_claim(id, &CLAIMS) {
                let message = format!("`{id}` is no claim of the papers");
                violations.push(violation(RULE, &source.path, line, message));
            }
            let row = rows.iter().find(|row| row.id == id);
            if row.is_some_and(|row| row.state.starts_with("not yet")) {
                let message = format!("cites `{id}`, which {PAPERS} calls not yet built");
                violations.push(violation(RULE, &source.path, line, message));
            }
        }
    }
    violations
}

fn is_claim(id: &str, claims: &[(&str, usize)]) -> bool {
    claims.iter().any(|(prefix, count)| {
        let number = id.strip_prefix(prefix).filter(|digits| digits.len() == 2);
        number.and_then(|digits| digits.parse().ok()).is_some_and(|n| (1..=*count).contains(&n))
    })
}

fn function_names(tree: &Tree) -> BTreeSet<&str> {
    let sources = tree.sources.iter().map(|source| source.code.as_str());
    sources.flat_map(|code| syntax::words(code, "fn").map(|at| syntax::identifier(&code[at + 2..]))).collect()
}

/// Pieces between back-ticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    const LIB: &str = "crates/table/src/lib.rs";

    /// All rows, `row` in the place of its own.
    fn papers(row: &str) -> String {
        let id = row.split('|').nth(1).unwrap_or("").trim();
        let mut text = format!("{row}\n");
        for (prefix, count) in &CLAIMS[..WITH_ROWS] {
            let others = (1..=*count).map(|number| format!("{prefix}{number:02}"));
            for other in others.filter(|other| other != id) {
                text += &format!("| {other} | w | | | | not yet |\n");
            }
        }
        text
    }

    fn found(row: &str, code: &str) -> Vec<String> {
        let tree = planted::tree(&[(PAPERS, &papers(row)), (LIB, code)]);
        check(&tree).into_iter().map(|violation| violation.message).collect()
    }

    #[test]
    fn rows_name_what_exists() {
        let row = "| TC-M01 | w | `crates/table/src/lib.rs` | `send_works` | | built |";
        assert_eq!(found(row, "fn send_works() {}"), [""; 0]);
        assert!(found(row, "")[0].contains("no test `send_works`"));
        let row = "| TC-M01 | w | `crates/table/src/gone.rs` | | | partly |";
        assert!(found(row, "")[0].contains("does not exist"));
    }

    #[test]
    fn states_are_known_and_backed() {
        assert!(found("| TC-M01 | w | | | | done |", "")[0].contains("the state is one of"));
        assert!(found("| TC-M01 | w | | | | built |", "")[0].contains("names no file"));
        assert!(found("| TC-M01 | w | `crates/table` | | | built |", "")[0].contains("no test"));
        assert!(found("| TC-M01 | w | | | | not applicable |", "")[0].contains("say why"));
    }

    #[test]
    fn every_claim_has_one_row() {
        let text = "| TC-M01 | w | | | | not yet |\n| TC-M99 | w | | | | not yet |\n";
        let found = check(&planted::tree(&[(PAPERS, text)]));
        assert_eq!(found.iter().filter(|v| v.message.contains("has no row")).count(), 300);
        assert!(found.iter().any(|v| v.message.contains("`TC-M99` is no claim")));
    }

    #[test]
    fn citations_are_of_claims_that_are_built() {
        let row = "| TC-M28 | w | | | | not yet |";
        assert!(found(row, "//= to-copy §5.3 TC-M28")[0].contains("not yet built"));
        assert!(found(row, "//= d-rdma §4.1 DR-M99")[0].contains("no claim"));
        assert_eq!(found(row, "//= vi-attached-storage VI-M01"), [""; 0]);
    }
}

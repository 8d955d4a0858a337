//! Documentation of items: lines of 100 columns and sentences of 35 words, as in pages. What is
//! longer is counted for each crate, and the counts may only shrink: a tenth below is to be written
//! down, so that not every change of a few lines has to.

use std::collections::BTreeMap;

use super::links::prose_lines;
use super::prose::{COLUMNS_MAX, WORDS_MAX, sentences, words};
use super::{Violation, violation};
use crate::tree::Tree;

const RULE: &str = "rustdoc";
/// Crates that have longer ones: `folder lines sentences` each. A crate that is not in it has none.
const LET_THROUGH: &str = "xtask/long-rustdoc.txt";

pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found: BTreeMap<&str, (Vec<Violation>, Vec<Violation>)> = BTreeMap::new();
    for (path, text) in &tree.files {
        let Some((folder, _)) = path.split_once("/src/").filter(|_| path.ends_with(".rs")) else { continue };
        if folder.ends_with("/fuzz") {
            continue;
        }
        let (lines, long) = found.entry(folder).or_default();
        lines.extend(long_lines(path, text));
        long.extend(long_sentences(path, text));
    }
    let mut violations = Vec::new();
    let list = let_through(tree.text(LET_THROUGH));
    for (folder, (lines, long)) in found {
        let (entry, lines_max, long_max) = list.get(folder).copied().unwrap_or_default();
        let both = [(lines, lines_max, "lines over 100 columns"), (long, long_max, "sentences over 35 words")];
        for (found, most, what) in both {
            let count = found.len();
            if count > most && most == 0 {
                violations.extend(found);
            } else if count > most {
                let message = format!("{count} {what} in its rustdoc, {most} are allowed: break those that are new");
                violations.push(violation(RULE, folder, 0, message));
            } else if count < most && count * 10 <= most * 9 {
                let message = format!("`{folder}` has {count} {what} now, not {most}: write {count}");
                violations.push(violation(RULE, LET_THROUGH, entry, message));
            }
        }
    }
    violations
}

fn is_doc(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("//!") || line.starts_with("///") && !line.starts_with("////")
}

/// The documentation of a file, each line where it stands: what lies between two items ends a
/// sentence.
fn docs(text: &str) -> String {
    let docs = text.lines().map(|line| if is_doc(line) { &line.trim_start()[3..] } else { "" });
    docs.collect::<Vec<_>>().join("\n")
}

/// Tables and code may be wider.
fn long_lines(path: &str, text: &str) -> Vec<Violation> {
    let (docs, lines) = (docs(text), text.lines().collect::<Vec<_>>());
    let prose = prose_lines(&docs).filter(|(_, line)| !line.trim_start().starts_with('|'));
    prose
        .map(|(line, _)| (line, lines[line - 1].chars().count()))
        .filter(|(line, columns)| *columns > COLUMNS_MAX && is_doc(lines[line - 1]))
        .map(|(line, columns)| violation(RULE, path, line, format!("{columns} columns, and {COLUMNS_MAX} are the end")))
        .collect()
}

fn long_sentences(path: &str, text: &str) -> Vec<Violation> {
    let docs = docs(text);
    let counted = sentences(&docs).into_iter().map(|(line, sentence)| (line, words(&sentence).count()));
    let long = counted.filter(|(_, count)| *count > WORDS_MAX);
    long.map(|(line, count)| {
        let message = format!("a sentence of {count} words, and {WORDS_MAX} are the end: cut it in two");
        violation(RULE, path, line, message)
    })
    .collect()
}

/// Entries by folder: the line of the list, and how many lines and sentences may be longer.
fn let_through(text: &str) -> BTreeMap<&str, (usize, usize, usize)> {
    text.lines()
        .enumerate()
        .filter_map(|(index, line)| {
            let [folder, lines, sentences] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
            Some((folder, (index + 1, lines.parse().ok()?, sentences.parse().ok()?)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    const PATH: &str = "crates/table/src/a.rs";

    fn with(text: &str, list: &str) -> Vec<(String, usize)> {
        let tree = planted::tree(&[(PATH, text), ("crates/table/src/lib.rs", "mod a;\n"), (LET_THROUGH, list)]);
        check(&tree).into_iter().map(|found| (found.path, found.line)).collect()
    }

    fn at(path: &str, line: usize) -> Vec<(String, usize)> {
        vec![(path.to_string(), line)]
    }

    #[test]
    fn long_lines_and_sentences_are_found_where_they_stand() {
        let columns = |columns: usize| format!("fn a() {{}}\n    /// {}\n", "x".repeat(columns - 8));
        assert_eq!(with(&columns(100), ""), []);
        assert_eq!(with(&columns(101), ""), at(PATH, 2));
        let half = "wo ".repeat(18);
        assert_eq!(with(&format!("//! {half}\n//! {half}\nfn a() {{}}\n"), ""), at(PATH, 1));
        assert_eq!(with(&format!("/// {half}\nfn a() {{}}\n/// {half}\nfn b() {{}}\n"), ""), []);
        assert_eq!(with(&format!("//! | {half} |\n//! ```\n//! {half} {half}\n//! ```\n"), ""), []);
        assert_eq!(with(&format!("// {half} {half}\n//// {half} {half}\n"), ""), []);
    }

    #[test]
    fn a_count_is_written_down_anew_once_it_is_a_tenth_lower() {
        let lines = |count: usize| format!("/// {}\n", "x".repeat(99)).repeat(count);
        let list = "crates/table 20 0\n";
        assert_eq!(with(&lines(19), list), []);
        assert_eq!(with(&lines(18), list), at(LET_THROUGH, 1));
    }

    #[test]
    fn what_is_let_through_may_only_shrink() {
        let lines = |count: usize| format!("/// {}\n", "x".repeat(99)).repeat(count);
        let list = "# why\ncrates/table 2 0\n";
        assert_eq!(with(&lines(2), list), []);
        assert_eq!(with(&lines(3), list), at("crates/table", 0));
        assert_eq!(with(&lines(1), list), at(LET_THROUGH, 2));
        assert_eq!(with(&lines(0), list), at(LET_THROUGH, 2));
        let long = format!("/// {}\n", "wo ".repeat(20)).repeat(2);
        assert_eq!(with(&long, list), [at(LET_THROUGH, 2), at(PATH, 1)].concat());
    }
}

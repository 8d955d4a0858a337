//! Documentation of items: lines of 100 columns and sentences of 35 words, as in pages.

use super::links::prose_lines;
use super::prose::{COLUMNS_MAX, WORDS_MAX, sentences, words};
use super::{Violation, violation};
use crate::tree::Tree;

const RULE: &str = "rustdoc";

pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in &tree.files {
        let Some((folder, _)) = path.split_once("/src/").filter(|_| path.ends_with(".rs")) else { continue };
        if !folder.ends_with("/fuzz") {
            violations.extend(long_lines(path, text));
            violations.extend(long_sentences(path, text));
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

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    const PATH: &str = "crates/table/src/a.rs";

    fn with(text: &str) -> Vec<(String, usize)> {
        let tree = planted::tree(&[(PATH, text), ("crates/table/src/lib.rs", "mod a;\n")]);
        check(&tree).into_iter().map(|found| (found.path, found.line)).collect()
    }

    fn at(path: &str, line: usize) -> Vec<(String, usize)> {
        vec![(path.to_string(), line)]
    }

    #[test]
    fn long_lines_and_sentences_are_found_where_they_stand() {
        let columns = |columns: usize| format!("fn a() {{}}\n    /// {}\n", "x".repeat(columns - 8));
        assert_eq!(with(&columns(100)), []);
        assert_eq!(with(&columns(101)), at(PATH, 2));
        let half = "wo ".repeat(18);
        assert_eq!(with(&format!("//! {half}\n//! {half}\nfn a() {{}}\n")), at(PATH, 1));
        assert_eq!(with(&format!("/// {half}\nfn a() {{}}\n/// {half}\nfn b() {{}}\n")), []);
        assert_eq!(with(&format!("//! | {half} |\n//! ```\n//! {half} {half}\n//! ```\n")), []);
        assert_eq!(with(&format!("// {half} {half}\n//// {half} {half}\n")), []);
    }
}

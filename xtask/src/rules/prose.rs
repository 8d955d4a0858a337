//! Pages that people read, and what a crate says of itself at its root: short lines, short
//! sentences, no measured figure, the field's words.

use std::borrow::Cow;

use super::links::prose_lines;
use super::{Violation, violation};
use crate::papers;
use crate::tree::Tree;

const RULE: &str = "prose";
/// Pages that are held to it, and the lines that each may have: what needs more is two pages.
const PAGES: [(&str, usize); 5] = [
    ("README.md", 90),
    ("docs/guide/", 100),
    ("docs/design/", 120),
    ("docs/architecture.md", 300),
    ("docs/", usize::MAX),
];
/// Lines at the head of a `lib.rs` that say what the crate is.
const HEAD_MAX: usize = 80;
/// What `--help` says is written there, as documentation of its arguments.
const HELP: &str = "crates/cli/src/args";
/// Made by `cargo xtask papers`, in the papers' own words.
const RENDERED: &str = "docs/reference/claims.md";
/// The book's table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";
/// The page whose matter is figures.
const RESULTS: &str = "docs/reference/results.md";
/// Of all pages of `docs` together, without the rendered one.
const BYTES_MAX: usize = 160 * 1024;
pub(super) const COLUMNS_MAX: usize = 100;
pub(super) const WORDS_MAX: usize = 35;
/// Words of this house, and what the field says.
const OWN_WORDS: [(&str, &str); 12] = [
    ("whoever", "who acts: the worker, the caller, the peer"),
    ("nobody", "who does not"),
    ("gate", "listener"),
    ("chime", "eventfd"),
    ("bell", "wake byte"),
    ("wish", "request"),
    ("crowd", "oversubscription"),
    ("meeting", "rendezvous, handshake"),
    ("teller", "reporter"),
    ("told", "reported"),
    ("heed", "-"),
    ("sated", "window full"),
];
/// What follows a number that was measured.
const UNITS: [&str; 11] = ["ns", "µs", "us", "ms", "GB/s", "MB/s", "rows/s", "Mrows/s", "IOPS", "%", "x"];

pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    let pages = tree.files.iter().filter(|(path, _)| path.starts_with("docs/") && path.ends_with(".md"));
    let pages = pages.filter(|(path, _)| ![RENDERED, SUMMARY].contains(&path.as_str()));
    let bytes: usize = pages.map(|(_, text)| written(text)).sum();
    if bytes > BYTES_MAX {
        let message = format!("{bytes} bytes in all, and {BYTES_MAX} are the end: cut, or move it to where it is used");
        violations.push(violation(RULE, "docs", 0, message));
    }
    for (path, text) in &tree.files {
        let Some((lines_max, text)) = held(path, text) else { continue };
        let (text, lines) = (&*text, text.lines().count());
        if lines > lines_max {
            let message = format!("{lines} lines, and {lines_max} are the end: make two pages of it");
            violations.push(violation(RULE, path, 0, message));
        }
        for (number, line) in prose_lines(text) {
            let is_table = line.starts_with('|');
            let columns = line.chars().count() + if path.ends_with(".rs") { "//! ".len() } else { 0 };
            // A terminal wraps help, whatever its lines here.
            if columns > COLUMNS_MAX && !is_table && !path.starts_with(HELP) {
                violations.push(violation(
                    RULE,
                    path,
                    number,
                    format!("{columns} columns, and {COLUMNS_MAX} are the end"),
                ));
            }
            for (own, better) in OWN_WORDS {
                if words(line).any(|word| word.eq_ignore_ascii_case(own)) {
                    violations.push(violation(RULE, path, number, format!("`{own}`: the field says {better}")));
                }
            }
            if let Some(figure) = figure(line).filter(|_| path != RESULTS) {
                let message = format!("`{figure}` is stale tomorrow: name the figure that shows it");
                violations.push(violation(RULE, path, number, message));
            }
        }
        for (number, sentence) in sentences(text) {
            let count = words(&sentence).count();
            if count > WORDS_MAX {
                let message = format!("a sentence of {count} words, and {WORDS_MAX} are the end: cut it in two");
                violations.push(violation(RULE, path, number, message));
            }
        }
    }
    violations
}

/// Bytes of a page without what `cargo xtask papers` makes of it.
fn written(text: &str) -> usize {
    let made = text.split_once(papers::BEGIN).and_then(|(_, rest)| rest.split_once(papers::END));
    text.len() - made.map_or(0, |(made, _)| made.len())
}

/// What of a file is prose that is held to the rule, and how many lines it may have.
fn held<'a>(path: &str, text: &'a str) -> Option<(usize, Cow<'a, str>)> {
    if path.starts_with("crates/") && path.ends_with("/src/lib.rs") && !path.contains("/fuzz/") {
        let head = text.lines().map_while(|line| line.strip_prefix("//!"));
        let head: Vec<&str> = head.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
        return Some((HEAD_MAX, head.join("\n").into()));
    }
    if path.starts_with(HELP) && path.ends_with(".rs") {
        // Each line where it stands, so that lines that are named are the file's.
        let help = text.lines().map(|line| line.trim_start().strip_prefix("///").unwrap_or("").trim_start());
        return Some((usize::MAX, help.collect::<Vec<_>>().join("\n").into()));
    }
    let (_, lines_max) = PAGES.iter().find(|(page, _)| path.starts_with(page))?;
    (path.ends_with(".md") && path != RENDERED).then_some((*lines_max, text.into()))
}

pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace()
        .map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()))
        .filter(|word| !word.is_empty())
}

/// A number with a unit behind it, outside of code.
fn figure(line: &str) -> Option<String> {
    let spoken: String = line.split('`').step_by(2).collect::<Vec<_>>().join(" ");
    let list: Vec<&str> = spoken.split_whitespace().collect();
    let bare =
        |word: &str| word.trim_matches(|c: char| matches!(c, '.' | ',' | ';' | ':' | '(' | ')' | '|')).to_owned();
    list.windows(2).find_map(|pair| {
        let (number, unit) = (bare(pair[0]), bare(pair[1]));
        let is_number = number.starts_with(|c: char| c.is_ascii_digit())
            && number.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | ','));
        (is_number && UNITS.contains(&unit.as_str())).then(|| format!("{number} {unit}"))
    })
}

/// Sentences with the line on which each begins. A heading, a list item and a table's cell end one.
pub(super) fn sentences(text: &str) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    let mut open: Option<(usize, String)> = None;
    let mut last = 0;
    for (number, line) in prose_lines(text) {
        let trimmed = line.trim();
        let begins = trimmed.is_empty()
            || trimmed.starts_with(['#', '|', '>'])
            || trimmed.starts_with("- ")
            || trimmed.split_once(". ").is_some_and(|(head, _)| head.chars().all(|c| c.is_ascii_digit()))
            || number != last + 1;
        last = number;
        if begins {
            all.extend(open.take());
        }
        for cell in trimmed.split(" | ") {
            for part in cell.split_inclusive(['.', '!', '?']) {
                let (_, sentence) = open.get_or_insert_with(|| (number, String::new()));
                sentence.push_str(part);
                // A full stop within a name, as in `a.md`, ends nothing.
                if part.ends_with(['.', '!', '?']) && !is_within(cell, part) {
                    all.extend(open.take());
                }
            }
            if trimmed.starts_with('|') {
                all.extend(open.take());
            }
        }
        if let Some((_, sentence)) = &mut open {
            sentence.push(' ');
        }
    }
    all.extend(open);
    all
}

/// Whether what follows `part` in `cell` goes on without a space.
fn is_within(cell: &str, part: &str) -> bool {
    let end = part.as_ptr() as usize - cell.as_ptr() as usize + part.len();
    cell[end..].starts_with(|c: char| c.is_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    fn found(page: &str) -> Vec<usize> {
        planted::lines(&check(&planted::tree(&[("docs/guide/a.md", page)])))
    }

    #[test]
    fn long_sentences_lines_and_pages_are_found() {
        let long = "word ".repeat(18);
        assert_eq!(found(&format!("Short. {long}\n{long}.\n")), [1]);
        assert_eq!(found(&format!("- {long}\n- {long}\n")), [] as [usize; 0]);
        assert_eq!(found(&format!("{long}`a.md`.\n\n{long}\n")), [] as [usize; 0]);
        assert_eq!(found(&"x".repeat(101)), [1]);
        assert_eq!(found(&format!("```\n{}\n```\n", "x".repeat(101))), [] as [usize; 0]);
        assert_eq!(found(&"a\n\n".repeat(51)), [0]);
    }

    #[test]
    fn what_a_crate_says_of_itself_is_held_to_it() {
        let head = |text: &str| planted::lines(&check(&planted::tree(&[("crates/a/src/lib.rs", text)])));
        let long = "wo ".repeat(18);
        assert_eq!(head(&format!("//! Short. {long}\n//! {long}.\n//! Short.\nmod nobody;\n")), [1]);
        assert_eq!(head(&format!("//! {}\n//! Whoever.\nmod a;\n//! Nobody.\n", "x".repeat(97))), [1, 2]);
        assert_eq!(head(&"//! a\n//!\n".repeat(41)), [0]);
    }

    #[test]
    fn help_is_held_to_it() {
        let help = |text: &str| planted::lines(&check(&planted::tree(&[("crates/cli/src/args/a.rs", text)])));
        let long = "wo ".repeat(18);
        assert_eq!(
            help(&format!("struct A {{\n    /// {long}\n    /// {long}\n    nobody: u8,\n    /// Nobody.\n}}\n")),
            [5, 2]
        );
    }

    #[test]
    fn own_words_and_measured_figures_are_found() {
        assert_eq!(found("Whoever comes.\nThe gate opens.\nThe delegate comes.\n"), [1, 2]);
        assert_eq!(found("It takes 4.2 µs.\nIt is 30 % faster.\n`sleep 10 ms`\nTen rows.\n"), [1, 2]);
    }

    #[test]
    fn pages_that_are_not_held_to_it_are_left_alone() {
        let (long, figure) = ("x".repeat(200), "It takes 4.2 µs.\n");
        assert_eq!(check(&planted::tree(&[("CHANGELOG.md", &long), (RENDERED, &long), (RESULTS, figure)])), []);
        assert_eq!(planted::lines(&check(&planted::tree(&[("docs/other.md", &long)]))), [1]);
    }

    #[test]
    fn all_pages_together_have_a_limit() {
        let page = "Short.\n".repeat(BYTES_MAX / 14);
        let (a, b, longer) = (("docs/a.md", &*page), ("docs/b.md", &*page), format!("{page}Short.\nShort.\n"));
        assert_eq!(check(&planted::tree(&[a, b, (RENDERED, &page)])), []);
        assert_eq!(planted::lines(&check(&planted::tree(&[a, ("docs/b.md", &longer)]))), [0]);
        let made = format!("{page}{}\n\nShort.\n{}\n", papers::BEGIN, papers::END);
        assert_eq!(planted::lines(&check(&planted::tree(&[a, ("docs/b.md", &made)]))), [0], "the marks are written");
        let made = made.replacen("Short.\n", "", 16);
        assert_eq!(check(&planted::tree(&[a, ("docs/b.md", &made.replace("\n\nShort", &"\n\nShort".repeat(99)))])), []);
    }
}

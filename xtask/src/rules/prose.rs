//! Pages that people read, and what a crate says of itself at its root: short lines, short
//! sentences, no measured figure, the field's words.

use std::borrow::Cow;

use super::links::prose_lines;
use super::{Violation, violation};
use crate::papers;
use crate::source::Source;
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
/// What `--help` and `overside help` say is written there: documentation of arguments, and
/// literals.
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
        held(path, text).iter().for_each(|prose| check_prose(path, prose, &mut violations));
    }
    violations
}

/// Prose that stands together in a file.
struct Prose<'a> {
    text: Cow<'a, str>,
    lines_max: usize,
    /// Lines of the file before it.
    line: usize,
    /// Columns before each of its lines.
    indent: usize,
}

fn check_prose(path: &str, prose: &Prose<'_>, violations: &mut Vec<Violation>) {
    let mut found = |line, message| {
        violations.push(violation(RULE, path, if line == 0 { 0 } else { prose.line + line }, message));
    };
    let (lines, lines_max) = (prose.text.lines().count(), prose.lines_max);
    if lines > lines_max {
        found(0, format!("{lines} lines, and {lines_max} are the end: make two pages of it"));
    }
    for (number, line) in prose_lines(&prose.text) {
        let columns = line.chars().count() + prose.indent;
        if columns > COLUMNS_MAX && !line.starts_with('|') {
            found(number, format!("{columns} columns, and {COLUMNS_MAX} are the end"));
        }
        for (own, better) in OWN_WORDS {
            if words(line).any(|word| word.eq_ignore_ascii_case(own)) {
                found(number, format!("`{own}`: the field says {better}"));
            }
        }
        if let Some(figure) = figure(line).filter(|_| path != RESULTS) {
            found(number, format!("`{figure}` is stale tomorrow: name the figure that shows it"));
        }
    }
    for (number, sentence) in sentences(&prose.text) {
        let count = words(&sentence).count();
        if count > WORDS_MAX {
            found(number, format!("a sentence of {count} words, and {WORDS_MAX} are the end: cut it in two"));
        }
    }
}

/// Bytes of a page without what `cargo xtask papers` makes of it.
fn written(text: &str) -> usize {
    let made = text.split_once(papers::BEGIN).and_then(|(_, rest)| rest.split_once(papers::END));
    text.len() - made.map_or(0, |(made, _)| made.len())
}

/// What of a file is prose that is held to the rule.
fn held<'a>(path: &str, text: &'a str) -> Vec<Prose<'a>> {
    if path.starts_with("crates/") && path.ends_with("/src/lib.rs") && !path.contains("/fuzz/") {
        let head = text.lines().map_while(|line| line.strip_prefix("//!"));
        let head: Vec<&str> = head.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
        return vec![Prose { text: head.join("\n").into(), lines_max: HEAD_MAX, line: 0, indent: "//! ".len() }];
    }
    if path.starts_with(HELP) && path.ends_with(".rs") {
        return help(&Source::new(path, text));
    }
    let page = PAGES.iter().find(|(page, _)| path.starts_with(page) && path.ends_with(".md") && path != RENDERED);
    page.map(|(_, lines_max)| Prose { text: text.into(), lines_max: *lines_max, line: 0, indent: 0 })
        .into_iter()
        .collect()
}

/// The documentation of a file's items and their fields, and each literal that the command shows.
fn help(source: &Source) -> Vec<Prose<'static>> {
    let prose = |text: String, line, indent| Prose { text: text.into(), lines_max: usize::MAX, line, indent };
    // Each line where it stands; those of fields are indented.
    let docs = |indent: &str| {
        let mark = format!("{indent}/// ");
        let docs: Vec<&str> = source.text.lines().map(|line| line.strip_prefix(&mark).unwrap_or("")).collect();
        prose(docs.join("\n"), 0, mark.len())
    };
    let literals = source.strings.iter().filter(|literal| source.is_shipped(literal.line)).map(|literal| {
        // Examples are code, and a line's end that is escaped is none.
        let shown = literal.text.lines().map(|line| line.strip_suffix('\\').unwrap_or(line));
        let shown: Vec<&str> = shown.map(|line| if line.starts_with("  ") { "" } else { line }).collect();
        prose(shown.join("\n"), literal.line - 1, 0)
    });
    [docs(""), docs("    ")].into_iter().chain(literals).collect()
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

    fn help_lines(text: &str) -> Vec<usize> {
        planted::lines(&check(&planted::tree(&[("crates/cli/src/args/a.rs", text)])))
    }

    #[test]
    fn documentation_of_arguments_is_held_to_it() {
        let long = "wo ".repeat(18);
        assert_eq!(
            help_lines(&format!("struct A {{\n    /// {long}\n    /// {long}\n    nobody: u8,\n    /// Nobody.\n}}\n")),
            [5, 2]
        );
        assert_eq!(help_lines(&format!("    /// {}\n    /// {}\n", "x".repeat(92), "x".repeat(93))), [2]);
    }

    #[test]
    fn literals_that_help_shows_are_held_to_it() {
        let long = "wo ".repeat(18);
        let text = format!("const A: &str = \"\\\n{long}\nNobody {long}\n\";\nconst B: &str = \"{long}\";\n");
        assert_eq!(help_lines(&text), [3, 2]);
        let columns =
            |columns: usize| help_lines(&format!("const A: &str = \"\\\n{} \\\nand.\";\n", "x".repeat(columns - 1)));
        assert_eq!((columns(100), columns(101)), (vec![], vec![2]));
        assert_eq!(
            help_lines(&format!("const A: &str = \"\\\nExamples:\n  {}\";\n", "x ".repeat(90))),
            [] as [usize; 0]
        );
        let told = "assert!(told, \"nobody\");";
        assert_eq!(
            help_lines(&format!("#[cfg(test)]\nmod tests {{\n    fn a() {{\n        {told}\n    }}\n}}\n")),
            [] as [usize; 0]
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

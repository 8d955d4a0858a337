//! Links between the pages lead somewhere: to a file that is there, and to a heading that it has.
//! Those of docs stay within docs, and the book's summary has every page, since `mdbook build docs`
//! renders that folder alone.

use std::collections::BTreeSet;

use super::{Violation, violation};
use crate::tree::Tree;

const RULE: &str = "links";
const SUMMARY: &str = "docs/SUMMARY.md";

pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.files.iter().filter(|(path, _)| path.ends_with(".md")) {
        for (number, line) in prose_lines(text) {
            for target in targets(line) {
                if let Some(message) = fault(tree, path, target) {
                    violations.push(violation(RULE, path, number, message));
                }
            }
        }
    }
    violations.extend(unlisted(tree));
    violations
}

/// Pages of docs that the book would leave out.
fn unlisted(tree: &Tree) -> Vec<Violation> {
    let listed: BTreeSet<String> =
        prose_lines(tree.text(SUMMARY)).flat_map(|(_, line)| targets(line)).map(|to| resolved(SUMMARY, to)).collect();
    let pages = tree.files.keys().filter(|path| path.starts_with("docs/") && path.ends_with(".md"));
    let pages = pages.filter(|path| *path != SUMMARY && !listed.contains(*path));
    pages.map(|path| violation(RULE, path, 0, format!("is not in the book: add a line to {SUMMARY}"))).collect()
}

/// Lines outside of fenced blocks, numbered from 1.
pub(super) fn prose_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((index + 1, line))
    })
}

/// What the links of a line lead to.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("](").filter_map(move |(at, mark)| line[at + mark.len()..].split(')').next())
}

fn fault(tree: &Tree, from: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = if file.is_empty() { from.to_owned() } else { resolved(from, file) };
    if from.starts_with("docs/") && !path.starts_with("docs/") {
        return Some(format!("the rendered book has no `{path}`: name it as code, without a link"));
    }
    let folder = format!("{}/", path.trim_end_matches('/'));
    let is_folder = tree.files.keys().any(|known| known.starts_with(&folder));
    if !tree.files.contains_key(&path) && !is_folder {
        return Some(format!("the link to `{target}` leads to `{path}`, which is not there"));
    }
    let anchor = anchor.filter(|_| path.ends_with(".md"))?;
    let known: BTreeSet<String> = headings(tree.text(&path)).collect();
    (!known.contains(anchor)).then(|| format!("`{path}` has no heading for `#{anchor}`"))
}

/// `file` as a page in `from`'s folder names it, from the repository's root.
fn resolved(from: &str, file: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Anchors of a page's headings, as the usual renderers make them.
fn headings(text: &str) -> impl Iterator<Item = String> {
    prose_lines(text).filter(|(_, line)| line.starts_with('#')).map(|(_, line)| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    #[test]
    fn links_lead_somewhere() {
        let page = "# A `b`: c\n[x](#a-b-c) [y](sub/b.md#two) [z](lib/) [w](https://x.y)\n```\n[n](none)\n```\n";
        let with = |page: &str| check(&planted::tree(&[("a.md", page), ("sub/b.md", "## Two\n"), ("lib/lib.rs", "")]));
        assert_eq!(with(page), []);
        assert_eq!(planted::lines(&with("[x](b.md)\n[y](#none)\n[z](sub/b.md#three)\n[a](sub/b.md)")), [1, 2, 3]);
    }

    #[test]
    fn the_book_is_whole_and_leads_nowhere_else() {
        let with = |page: &str, summary: &str| {
            check(&planted::tree(&[("docs/a.md", page), (SUMMARY, summary), ("README.md", "")]))
        };
        assert_eq!(with("[a](a.md)\n", "- [a](a.md)\n"), []);
        assert_eq!(planted::lines(&with("[a](a.md)\n\n[r](../README.md)\n", "- [a](a.md)\n")), [3]);
        assert_eq!(planted::lines(&with("a\n", "# Summary\n")), [0]);
    }
}

//! How long a file and a function may be.

use std::collections::BTreeMap;

use super::{Violation, violation};
use crate::source::Source;
use crate::syntax;
use crate::tree::Tree;

const RULE: &str = "lengths";
/// A longer file is worth a look; an idea may be that large.
const FILE_LINES_USUAL: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;
/// Longer functions that are let through, `path::name lines` each. The list may only shrink:
/// an entry whose function has become shorter than it says, or is gone, is a violation too.
const LET_THROUGH: &str = "xtask/long-functions.txt";

pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut let_through = let_through(tree.text(LET_THROUGH));
    for source in &tree.sources {
        for (name, line, lines) in long_functions(source) {
            let key = format!("{}::{name}", source.path);
            let allowed = let_through.get(&key).map_or(FUNCTION_LINES_MAX, |(_, lines)| *lines);
            if lines > allowed {
                let message = format!("`{name}` has {lines} lines, {allowed} are allowed: split it");
                violations.push(violation(RULE, &source.path, line, message));
            }
            if lines >= allowed {
                let_through.remove(&key);
            }
        }
    }
    violations.extend(let_through.into_iter().map(|(key, (line, lines))| {
        let message = format!("`{key}` no longer has {lines} lines: shorten or drop this line");
        violation(RULE, LET_THROUGH, line, message)
    }));
    violations
}

/// Files that are longer than one idea mostly is. Nothing fails for them.
pub fn warnings(tree: &Tree) -> Vec<Violation> {
    let long = tree.sources.iter().filter(|source| source.line_count() > FILE_LINES_USUAL);
    long.map(|source| {
        let lines = source.line_count();
        violation(RULE, &source.path, 0, format!("{lines} lines: is it one idea?"))
    })
    .collect()
}

/// Functions over the limit: name, line and lines. Tests and examples may be as long as their
/// story.
fn long_functions(source: &Source) -> Vec<(String, usize, usize)> {
    syntax::functions(&source.code)
        .into_iter()
        .map(|function| {
            let first = source.line_of(function.range.start);
            (function.name, first, source.line_of(function.range.end) - first + 1)
        })
        .filter(|(_, line, lines)| *lines > FUNCTION_LINES_MAX && source.is_shipped(*line))
        .collect()
}

/// Entries by key: the line of the list and the lines that the function may have.
fn let_through(text: &str) -> BTreeMap<String, (usize, usize)> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#'));
    lines
        .filter_map(|(index, line)| {
            let (key, lines) = line.rsplit_once(' ')?;
            Some((key.to_string(), (index + 1, lines.parse().ok()?)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    const PATH: &str = "crates/table/src/lib.rs";

    fn function(lines: usize) -> String {
        format!("\nfn long() {{\n{}}}\n", "    a();\n".repeat(lines - 2))
    }

    #[test]
    fn long_functions_are_refused_and_long_files_are_told() {
        let file = |lines: usize| "// x\n".repeat(lines);
        let tree = planted::tree(&[
            (PATH, &function(71)),
            ("crates/table/src/b.rs", &file(801)),
            ("crates/table/src/c.rs", &file(800)),
        ]);
        assert_eq!(planted::lines(&check(&tree)), [2]);
        let told: Vec<String> = warnings(&tree).into_iter().map(|warning| warning.path).collect();
        assert_eq!(told, ["crates/table/src/b.rs"]);
        assert_eq!(check(&planted::tree(&[(PATH, &function(70))])), []);
    }

    #[test]
    fn the_list_lets_through_and_may_only_shrink() {
        let list = format!("# why\n{PATH}::long 90\n");
        let with = |lines| check(&planted::tree(&[(PATH, &function(lines)), (LET_THROUGH, &list)]));
        assert_eq!(with(90), []);
        assert_eq!(with(91)[0].path, PATH);
        assert_eq!(with(80)[0].path, LET_THROUGH);
        assert_eq!(with(30)[0].path, LET_THROUGH);
    }

    #[test]
    fn tests_and_examples_may_be_long() {
        let code = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(100));
        assert_eq!(check(&planted::tree(&[(PATH, &code)])), []);
        let example = "crates/table/examples/b.rs";
        assert_eq!(check(&planted::tree(&[(PATH, ""), (example, &function(100))])), []);
    }
}
